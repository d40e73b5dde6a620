import pytest
from pydantic import ValidationError

from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.scheduler import Scheduler
from dlmc_runtime.serve import fields
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.fim import FimBody
from dlmc_runtime.serve.models import Served
from dlmc_runtime.serve.settings import Settings


@pytest.fixture(scope="module")
def served(letters):
    generator = letters("full")
    return Served("test", generator, Scheduler(generator))


def body(**given):
    return fields.Generation.model_validate({"model": "test", **given})


def test_every_option_of_samplers_is_a_field(served):
    own = set(fields.Generation.model_fields) | set(fields.Diffusion.model_fields)
    assert set(SamplerConfig.__dataclass_fields__) - {"name"} <= own


def test_the_sampler_is_the_models_with_what_is_given_on_top(served):
    assert fields.sampler(served, body()) == served.generator.sampler
    given = body(temperature=0.5, top_p=0.9, diffusion={"steps": 3, "defer_ids": [1, 2]})
    assert fields.sampler(served, given) == SamplerConfig(
        "low_confidence", steps=3, temperature=0.5, top_p=0.9, defer_ids=(1, 2)
    )
    assert fields.sampler(served, body(diffusion={"sampler": "entropy"})) == SamplerConfig(
        "entropy"
    )


def test_an_effort_is_a_pace_and_single_options_go_on_top(served):
    low = fields.sampler(served, body(reasoning_effort="low"))
    assert low != served.generator.sampler
    assert low.temperature == 0
    both = body(reasoning_effort="low", temperature=0.5)
    assert fields.sampler(served, both).temperature == 0.5


def test_two_options_that_exclude_each_other_are_blamed_on_the_object(served):
    with pytest.raises(FieldError) as caught:
        fields.sampler(served, body(diffusion={"threshold": 0.5, "factor": 1.0}))
    assert caught.value.param == "diffusion"


def test_stops_are_a_list():
    assert fields.stops(body()) == []
    assert fields.stops(body(stop="a")) == ["a"]
    assert fields.stops(body(stop=["a", "b"])) == ["a", "b"]


def test_seeds_are_consecutive_or_new():
    assert fields.seeds(body(seed=7, n=3)) == [7, 8, 9]
    assert fields.seeds(body()) != fields.seeds(body())


def test_rows_are_bounded():
    fields.check_rows(2, body(n=2), Settings(max_choices=4))
    with pytest.raises(FieldError, match="4 at most") as caught:
        fields.check_rows(3, body(n=2), Settings(max_choices=4))
    assert caught.value.param == "n"


def test_an_answer_has_room_for_what_is_asked_or_the_default(served):
    assert fields.room(served, 3, body(max_tokens=9)) == 9
    assert fields.room(served, 3, body()) == 16
    assert fields.room(served, 30, body()) == 10
    assert fields.room(served, 30, body(max_tokens=10)) == 10
    with pytest.raises(FieldError, match="exceed the context of 40: ask for 10 at most") as caught:
        fields.room(served, 30, body(max_tokens=11))
    assert caught.value.param == "max_tokens"
    with pytest.raises(FieldError, match="no room in the context of 40: shorten it") as caught:
        fields.room(served, 40, body(), param="messages")
    assert caught.value.param == "messages"


def test_null_is_as_good_as_absent():
    names = [
        name
        for name, field in fields.Generation.model_fields.items()
        if field.default is None and name != "model"
    ]
    assert body(**dict.fromkeys(names)) == body()


@pytest.mark.parametrize("name", fields.NEUTRAL)
def test_fields_that_ask_for_nothing_are_dropped(name):
    for value in (fields.NEUTRAL[name], None):
        assert body(**{name: value}) == body()


@pytest.mark.parametrize("wrong", [0.5, "0", [], [0], {"5": 1}, True, 2, "x"])
@pytest.mark.parametrize("name", fields.NEUTRAL)
def test_whatever_asks_for_something_is_refused(name, wrong):
    if repr(wrong) == repr(fields.NEUTRAL[name]):
        wrong = "of another type"
    with pytest.raises(ValidationError, match="extra_forbidden"):
        body(**{name: wrong})


def test_neutral_fields_are_those_of_whole_bodies():
    with pytest.raises(ValidationError, match="extra_forbidden"):
        body(diffusion={"frequency_penalty": 0})
    asked = FimBody.model_validate({"model": "m", "prompt": "a", "suffix": ""})
    assert asked.suffix == ""
    assert not set(fields.NEUTRAL) & set(fields.Generation.model_fields)


@pytest.mark.parametrize(
    ("name", "given", "same"),
    [(n, g, s) for n, all_ in fields.SYNONYMS.items() for g, s in all_.items()],
)
def test_other_servers_values_are_known(name, given, same):
    assert body(**{name: given}) == body(**{name: same})
    with pytest.raises(ValidationError):
        body(**{name: [given]})


def test_bodies_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        body().stream = True
