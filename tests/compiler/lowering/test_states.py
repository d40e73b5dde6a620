from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest

from dlmc.lowering.states import load_states, record_states, save_states
from dlmc_runtime.errors import DlmcError
from dlmc_runtime.generate import Generator


def level(state, mask: int) -> float:
    asked = state["input_ids"][0, np.unique(state["head_rows"][0])]
    return float((asked == mask).mean())


def test_every_noise_level_is_met(llada, llada_states):
    levels = [level(state, llada.manifest.tokens.mask) for state in llada_states]
    for prompt in (levels[:5], levels[5:]):
        assert prompt == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0], abs=1 / 16)


def test_forwards_that_store_are_met_where_there_are_any(sdar, sdar_states):
    levels = [level(state, sdar.manifest.tokens.mask) for state in sdar_states]
    assert {0.0, 1.0} <= set(levels)
    assert any(0.1 < one < 0.9 for one in levels)


def test_states_are_inputs_of_the_graph(sdar, sdar_states):
    session = ort.InferenceSession(str(sdar.root / "denoiser.onnx"))
    for state in sdar_states:
        assert set(state) == {value.name for value in session.get_inputs()}
        assert state["past_key_values.0.key"].dtype == np.float32
        session.run(None, dict(state))


def test_caches_are_those_before_the_forward(sdar_states):
    filled = [np.abs(state["past_key_values.0.key"]).max() for state in sdar_states]
    assert filled[0] == 0
    assert max(filled) > 0


def test_a_state_that_serves_two_levels_is_kept_once(llada):
    with Generator.load(llada.root) as generator:
        request = generator.request("12+7=?", max_new_tokens=16)
        fast = replace(request, sampler=replace(request.sampler, threshold=None, steps=1))
        (state,) = record_states(generator, [fast], levels=(1.0, 0.9))
    assert level(state, llada.manifest.tokens.mask) == 1.0


def test_the_engine_stays_open(llada):
    with Generator.load(llada.root) as generator:
        request = generator.request("12+7=?", max_new_tokens=2)
        assert record_states(generator, [request, request], levels=(1.0,))
        assert generator.run([request])


def test_states_of_one_shape_share_a_file_without_pickles(sdar_states, tmp_path):
    paths = save_states(sdar_states, tmp_path / "states")
    shapes = {state["input_ids"].shape for state in sdar_states}
    assert [path.name for path in paths] == [f"states-{i}.npz" for i in range(len(shapes))]
    found = [state for path in paths for state in load_states(path)]
    assert len(found) == len(sdar_states)
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            assert set(file.files) == set(sdar_states[0])


def test_what_was_saved_is_what_was_recorded(llada_states, tmp_path):
    (path,) = save_states(llada_states, tmp_path)
    for found, wanted in zip(load_states(path), llada_states, strict=True):
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


def test_a_batch_is_read_together(llada_states, tmp_path):
    (path,) = save_states(llada_states, tmp_path)
    found = load_states(path, batch=2)
    assert [len(state["input_ids"]) for state in found] == [2] * (len(llada_states) // 2)


def test_a_row_whose_partner_is_elsewhere_becomes_its_own(tmp_path):
    partner = np.array([1, 1])
    pair = {"input_ids": np.arange(6).reshape(2, 3), "partner": partner}
    (path,) = save_states([pair, pair], tmp_path)
    assert [state["partner"].tolist() for state in load_states(path, batch=2)] == [[1, 1]] * 2
    assert [state["partner"].tolist() for state in load_states(path)] == [[0]] * 4


def test_what_holds_no_states_is_refused(tmp_path):
    with pytest.raises(DlmcError, match="holds no states"):
        load_states(tmp_path / "nowhere.npz")
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DlmcError, match="holds no states"):
        load_states(tmp_path / "pickled.npy")


def test_a_folder_that_cannot_be_made_is_refused(llada_states, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DlmcError, match="cannot write states"):
        save_states(llada_states, tmp_path / "file")
