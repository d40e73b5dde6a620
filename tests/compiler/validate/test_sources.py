import json

import pytest

from dlmc.validate.prompts import Wanted
from dlmc.validate.sources import Live, Saved, load_text
from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.manifest import Profile

SHORT = Wanted(max_new_tokens=4, questions=1)


@pytest.fixture
def profiles(bundle):
    return bundle.engine("onnxruntime-cpu").profiles


@pytest.fixture
def live(bundle):
    source = Live(bundle, "torch", SHORT)
    yield source
    source.close()


@pytest.fixture
def saved(live, bundle, profiles, tmp_path):
    """Saved states, and what was recorded."""
    recorded = live.recorded(profiles)
    live.save(profiles, tmp_path / "states")
    return Saved(bundle, tmp_path / "states" / "outputs.json"), recorded


def test_a_reference_generates_once_for_every_set_of_shapes(live, profiles):
    first = live.recorded(profiles)
    assert live.recorded(profiles) is first
    other = (
        Profile(batch=1, block=4, cache=20, rows=4),
        Profile(batch=1, block=8, cache=20, rows=1),
    )
    second = live.recorded(other)
    assert second is not first
    assert second.recording.answers == first.recording.answers
    assert {state.inputs.profile for state in second.recording.states} <= set(other)


def test_only_torch_is_torch(bundle, live, profiles):
    seen = [live.torch is not None]  # nothing is loaded before it is needed
    live.recorded(profiles)
    seen.append(live.torch is not None)
    live.close()
    assert [*seen, live.torch is not None] == [False, True, False]
    graph = Live(bundle, "graph", SHORT)
    graph.recorded(profiles)
    assert graph.torch is None
    graph.close()


def test_what_was_recorded_stays_when_the_reference_goes(live, profiles):
    first = live.recorded(profiles)
    live.close()
    live.close()
    assert live.recorded(profiles) is first


def test_saved_states_come_back_with_their_requests(saved, profiles):
    source, recorded = saved
    found = source.recorded(profiles)
    assert found.recording.answers == recorded.recording.answers
    (ours,), (theirs,) = found.requests, recorded.requests
    assert (ours.prompt, ours.max_new_tokens) == (theirs.prompt, theirs.max_new_tokens)
    assert ours.sampler == theirs.sampler
    assert found.prompts == recorded.prompts
    assert source.name == "torch (outputs.json)"
    assert source.torch is None


def test_states_of_other_shapes_are_refused(saved):
    source, _ = saved
    with pytest.raises(UsageError, match="which the engine lacks"):
        source.recorded((Profile(batch=1, block=4, cache=9, rows=4),))


def test_a_prompt_longer_than_its_canvas_is_refused(saved, bundle, profiles, tmp_path):
    path = tmp_path / "states" / "states.json"
    data = json.loads(path.read_text())
    data["starts"] = [10_000]
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="do not fit"):
        Saved(bundle, path.with_name("outputs.json")).recorded(profiles)


def test_a_folder_that_cannot_be_written_is_one_error(live, profiles, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EngineError, match="cannot be written"):
        live.save(profiles, tmp_path / "file")


def test_a_bundle_may_have_no_text(bundle, trained):
    assert load_text(bundle) is None
    assert load_text(trained) is not None
