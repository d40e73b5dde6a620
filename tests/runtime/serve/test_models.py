import pytest

from dlmc_runtime.scheduler import Scheduler
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.models import Catalog, Served


@pytest.fixture
def served(letters):
    """Make a model that nobody runs."""

    def make(name="test", regime="block", **changes):
        generator = letters(regime, **changes)
        return Served(name, generator, Scheduler(generator))

    return make


def test_models_are_listed_and_described(shared):
    listed = shared.client.get("/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert model["id"] == "test"
    assert model["object"] == "model"
    assert (model["family"], model["regime"]) == ("test", "block")
    assert model["sampler"] == {"name": "low_confidence_dynamic"}
    assert "low_confidence" in model["samplers"]
    assert "renoise" not in model["samplers"]
    assert shared.client.get("/v1/models/test").json() == model


def test_an_unknown_model_is_a_404(shared):
    response = shared.client.get("/v1/models/other")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert shared.refusal("/v1/completions", {"model": "x", "prompt": "a"})[:2] == (404, "model")


def test_the_context_is_what_the_engine_has_room_for(served):
    assert served().context == 48 + 4
    assert served(regime="full").context == 40


def test_the_context_ends_where_the_model_does(served, manifest):
    model = manifest().model.model_dump() | {"max_position_embeddings": 20}
    assert served(model=model).context == 20


def test_names_are_looked_up_and_unique(served):
    catalog = Catalog([served("a"), served("b/c")])
    assert list(catalog) == ["a", "b/c"]
    assert catalog.find("b/c").name == "b/c"
    with pytest.raises(FieldError, match="choose one of a, b/c"):
        catalog.find("c")
    with pytest.raises(ValueError, match="names"):
        Catalog([served("a"), served("a")])
    with pytest.raises(ValueError, match="names"):
        Catalog([])


def test_names_with_a_slash_can_be_retrieved(serving, letters):
    running = serving(letters(), name="org/model")
    assert running.client.get("/v1/models/org/model").json()["id"] == "org/model"


def test_tokens_have_texts(served, codec):
    model = served()
    assert model.token(codec.encode("a")[0]) == "a"
    assert model.token(63) == "<mask>"
