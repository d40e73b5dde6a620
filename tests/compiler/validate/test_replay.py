import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import handmade
import numpy as np
import pytest

from dlmc.validate.recording import record
from dlmc.validate.reference import GRAPH, answering
from dlmc.validate.replay import INPUTS, OUTPUTS, STATES, load_states, save_states
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import UsageError
from dlmc_runtime.generate import Generator


def _polygraphy(*arguments):
    """Run the real program."""
    return subprocess.run(
        [Path(sys.executable).with_name("polygraphy"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def _replayed(bundle, folder):
    graph = bundle.root / bundle.manifest.graph
    files = ("--load-inputs", folder / INPUTS, "--load-outputs", folder / OUTPUTS)
    return _polygraphy("run", graph, "--onnxrt", "--atol", "1e-3", *files)


@pytest.fixture(scope="module")
def saved(bundle, recording, reference, tmp_path_factory):
    """A folder of saved states."""
    folder = tmp_path_factory.mktemp("saved") / "new" / "folder"
    save_states(recording, bundle, "torch", reference.run, folder)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    """One that a test may damage."""
    shutil.copytree(saved, tmp_path / "copy")
    return tmp_path / "copy"


def _edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def _replace(copy, file, forward, name, change):
    """Change one array of one forward in a saved file."""
    from polygraphy.comparator import RunResults
    from polygraphy.json import load_json, save_json

    if file == INPUTS:
        inputs = load_json(str(copy / INPUTS))
        inputs[forward][name] = change(inputs[forward][name])
        save_json(inputs, str(copy / INPUTS))
    else:
        results = RunResults.load(str(copy / OUTPUTS))
        result = next(iter(results.values()))[forward]
        result[name] = change(result[name])
        results.save(str(copy / OUTPUTS))


@pytest.mark.slow
def test_polygraphy_replays_the_states(bundle, saved):
    done = _replayed(bundle, saved)
    assert done.returncode == 0, done.stdout
    assert "present.1.value" in done.stdout


@pytest.mark.slow
def test_polygraphy_finds_what_differs(bundle, copy):
    _replace(copy, OUTPUTS, 2, "entropy", lambda array: array + np.float32(0.5))
    done = _replayed(bundle, copy)
    assert done.returncode == 1
    assert "FAILED | Output: 'entropy'" in done.stdout, done.stdout


@pytest.mark.slow
def test_polygraphy_reads_the_graph_where_it_lies(bundle):
    graph = bundle.root / bundle.manifest.graph
    done = _polygraphy("inspect", "model", graph, "--ignore-external-data")
    assert done.returncode == 0, done.stdout
    assert "past_key_values.1.value" in done.stdout


@pytest.mark.slow
def test_polygraphy_lints_a_copy_of_the_bundle_on_the_states(bundle, saved, tmp_path):
    # ONNX refuses weights that are hard links, as a bundle's are; a copy has none.
    shutil.copytree(bundle.root, tmp_path / "copy")
    graph = tmp_path / "copy" / bundle.manifest.graph
    assert _polygraphy("inspect", "model", graph).returncode == 0
    done = _polygraphy("check", "lint", graph, "--load-inputs", saved / INPUTS)
    assert done.returncode == 0, done.stdout
    assert "PASSED" in done.stdout


def test_what_is_saved_is_loaded_again(bundle, recording, saved):
    name, loaded = load_states(bundle, saved / OUTPUTS)
    assert name == "torch"
    assert loaded.answers == recording.answers
    assert loaded.starts == recording.starts
    assert len(loaded.states) == len(recording.states)
    for one, other in zip(loaded.states, recording.states, strict=True):
        for field in ("prompt", "forward", "size", "stores", "task"):
            assert getattr(one, field) == getattr(other, field), field
        for field in ("canvas", "masked"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
        for name, array in other.feeds().items():
            np.testing.assert_array_equal(one.feeds()[name], array)
        np.testing.assert_array_equal(one.outputs.top_logits, other.outputs.top_logits)
        assert one.kept.keys() == other.kept.keys()
        for name, array in other.kept.items():
            np.testing.assert_array_equal(one.kept[name], array)
        assert (one.choice is None) == (other.choice is None)
        if one.choice is not None and other.choice is not None:
            assert one.choice.sampler == other.choice.sampler
            assert one.choice.block.step == other.choice.block.step
            np.testing.assert_array_equal(one.choice.block.masked, other.choice.block.masked)


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A bundle whose graph has every input that only some have, and states saved of it."""
    root = tmp_path_factory.mktemp("extended")
    bundle = Bundle.open(handmade.bind(handmade.write(root / "bundle", extended=True)))
    engine = engines.load(bundle, "onnxruntime-cpu")
    request = Generator(engine, None).request([5, 6, 7, 8, 9], max_new_tokens=4, ignore_eos=True)
    made = record(engine, [request])
    # What is stored is stored again one position earlier.
    states = [
        replace(state, stores=tuple(replace(one, at=one.count // 2) for one in state.stores))
        for state in made.states
    ]
    with answering(bundle, GRAPH, engine) as run:
        save_states(replace(made, states=tuple(states)), bundle, GRAPH, run, root / "saved")
    engine.close()
    return bundle, root / "saved", states


def test_positions_of_stores_are_kept(extended):
    bundle, folder, states = extended
    _, loaded = load_states(bundle, folder / OUTPUTS)
    assert [one.stores for one in loaded.states] == [one.stores for one in states]
    found = [store.at for one in loaded.states for store in one.stores]
    assert found
    assert None not in found
    engine = engines.load(bundle, "onnxruntime-cpu")
    for state in loaded.states:
        outputs, kept = state.replay(engine)
        np.testing.assert_array_equal(outputs.sampled_id, state.outputs.sampled_id)
        assert kept.keys() == state.kept.keys()
        for name, array in state.kept.items():
            np.testing.assert_array_equal(kept[name], array)
    engine.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("partner", value) for value in (-1, 1, 1 << 40)),
        *(("guidance", value) for value in (np.nan, np.inf, -np.inf)),
        *(("adapter", value) for value in (-1, 0.5, 2, np.nan)),
        ("sliding_attention_mask", False),
    ],
)
def test_odd_inputs_that_only_some_graphs_have_are_refused(extended, tmp_path, name, value):
    bundle, folder, _ = extended
    shutil.copytree(folder, tmp_path / "copy")
    _replace(tmp_path / "copy", INPUTS, 1, name, lambda array: np.full_like(array, value))
    with pytest.raises(UsageError, match="no runtime feeds"):
        load_states(bundle, tmp_path / "copy" / OUTPUTS)


def test_states_of_another_bundle_are_refused(bundle, copy):
    _edit(copy / STATES, lambda data: data.update(manifest_sha256="0" * 64))
    with pytest.raises(UsageError, match="another bundle"):
        load_states(bundle, copy / OUTPUTS)


@pytest.mark.parametrize("file", [INPUTS, OUTPUTS, STATES])
def test_a_missing_file_is_named(bundle, copy, file):
    (copy / file).unlink()
    with pytest.raises(UsageError, match=file):
        load_states(bundle, copy / OUTPUTS)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("input_ids", lambda array: array - (1 << 40)),
        ("input_ids", lambda array: array + (1 << 20)),
        ("position_ids", lambda array: array - (1 << 20)),
        ("head_rows", lambda array: array + 1000),
        ("head_rows", lambda array: array - 1000),
        ("attention_mask", lambda array: array & False),
        ("temperature", lambda array: array * np.float32(np.nan)),
        ("temperature", lambda array: array - np.float32(1)),
        ("uniform", lambda array: array + np.float32(1)),
    ],
)
def test_inputs_that_no_runtime_feeds_are_refused(bundle, copy, name, change):
    _replace(copy, INPUTS, 1, name, change)
    with pytest.raises(UsageError, match="no runtime feeds"):
        load_states(bundle, copy / OUTPUTS)


@pytest.mark.parametrize(
    ("file", "name", "change"),
    [
        (INPUTS, "input_ids", lambda array: array.astype(np.int32)),
        (INPUTS, "past_key_values.0.key", lambda array: array[:, :, :-1]),
        (OUTPUTS, "top_logits", lambda array: array[..., :1]),
        (OUTPUTS, "entropy", lambda array: array.astype(np.float64)),
        (OUTPUTS, "present.0.key", lambda array: array[:, :1]),
    ],
)
def test_arrays_of_another_type_or_shape_are_refused(bundle, copy, file, name, change):
    _replace(copy, file, 0, name, change)
    with pytest.raises(UsageError, match=f"no {name} of the shape and type"):
        load_states(bundle, copy / OUTPUTS)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(stores=[{"row": 0, "count": 1 << 30, "at": None}]),
        lambda state: state.update(stores=[{"row": 0, "count": 1, "at": 1 << 30}]),
        lambda state: state.update(stores=[{"row": 0, "count": 4, "at": 29}]),
        lambda state: state.update(stores=[{"row": 0, "count": 9, "at": 0}]),
        lambda state: state.update(stores=[{"row": 1, "count": 1, "at": 0}]),
        lambda state: state.update(stores=[{"row": 0, "count": 1, "at": 0}] * 2),
        lambda state: state.update(filled=[1 << 30]),
        lambda state: state.update(filled=[0, 0]),
        lambda state: state["task"].update(end=1 << 30),
        lambda state: state["task"].update(head_start=9, head_end=3),
        lambda state: state.update(canvas=[]),
        lambda state: state.update(canvas=[1 << 30] * len(state["canvas"])),
        lambda state: state.update(noise=[0.5] * 9),
    ],
)
def test_a_description_that_does_not_fit_is_refused(bundle, copy, change):
    _edit(copy / STATES, lambda data: change(data["states"][0]))
    with pytest.raises(UsageError, match="no runtime feeds"):
        load_states(bundle, copy / OUTPUTS)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(extra=1),
        lambda data: data["states"][0].update(prompt=-1),
        lambda data: data["states"][0].update(stores=[{"row": 0, "count": -1, "at": None}]),
        lambda data: data["states"][0].update(stores=[{"row": 0, "count": 1, "at": -1}]),
        lambda data: data["states"][0].update(stores=[{"row": -1, "count": 1, "at": 0}]),
        lambda data: data["states"][0].update(stores=[{"row": 0, "count": 1, "at": 0.5}]),
        lambda data: data["states"][0].update(profile={"batch": 1 << 50}),
        lambda data: data.update(states="text"),
    ],
)
def test_a_description_that_breaks_its_schema_is_refused(bundle, copy, change):
    _edit(copy / STATES, change)
    with pytest.raises(UsageError, match="holds no recorded states"):
        load_states(bundle, copy / OUTPUTS)


def test_a_sampler_that_is_none_is_refused(bundle, copy):
    def change(data):
        state = next(one for one in data["states"] if one["sampler"])
        state["sampler"]["name"] = "os.system"

    _edit(copy / STATES, change)
    with pytest.raises(UsageError, match=r"no sampler is called 'os\.system'"):
        load_states(bundle, copy / OUTPUTS)


def test_files_of_different_lengths_are_refused(bundle, copy):
    _edit(copy / STATES, lambda data: data["states"].pop())
    with pytest.raises(UsageError, match="different numbers"):
        load_states(bundle, copy / OUTPUTS)


def test_prompts_that_do_not_fit_the_answers_are_refused(bundle, copy):
    _edit(copy / STATES, lambda data: data["answers"].append([1]))
    with pytest.raises(UsageError, match="does not fit itself"):
        load_states(bundle, copy / OUTPUTS)
