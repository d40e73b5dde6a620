import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.lowering.calibrate import magnitudes
from dlmc.lowering.linear import linears
from dlmc_runtime.errors import EngineError, UsageError


def observed(bundle, states) -> dict[str, list[np.ndarray]]:
    """Return, by map, everything it multiplied, taken out of the graph whole."""
    model = ir.load(bundle.root / "denoiser.onnx")
    readers = {str(one.product.name): one.values for one in linears(model.graph)}
    values = list(dict.fromkeys(readers.values()))
    outputs = {*model.graph.outputs}
    model.graph.outputs.extend(value for value in values if value not in outputs)
    options = ort.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(bundle.root)
    )
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    names = [str(value.name) for value in values]
    runs = [dict(zip(names, session.run(names, dict(state)), strict=True)) for state in states]
    return {product: [run[str(value.name)] for run in runs] for product, value in readers.items()}


def test_magnitudes_are_the_largest_over_all_states(sdar, sdar_states):
    found = magnitudes(sdar, sdar_states)
    wanted = observed(sdar, sdar_states)
    assert found.keys() == wanted.keys()
    for name, arrays in wanted.items():
        assert found[name] == pytest.approx(max(np.abs(a).max() for a in arrays), rel=1e-5), name


def test_a_quantile_cuts_the_loudest_positions_off(sdar, sdar_states):
    found = magnitudes(sdar, sdar_states, quantile=0.9)
    for name, arrays in observed(sdar, sdar_states).items():
        peaks = np.concatenate([np.abs(a).max(-1).ravel() for a in arrays])
        wanted = np.quantile(peaks, 0.9, method="higher")
        assert found[name] == pytest.approx(wanted, rel=1e-5), name
    whole = magnitudes(sdar, sdar_states)
    assert all(found[name] <= whole[name] for name in whole)
    assert any(found[name] < whole[name] for name in whole)


def test_maps_that_read_the_same_values_have_the_same_magnitude(llada, llada_states):
    found = magnitudes(llada, llada_states)
    q, k, v = (found[f"layers.3.self_attn.{part}_proj.MatMul"] for part in "qkv")
    assert q == k == v
    assert q != found["layers.3.self_attn.o_proj.MatMul"]


def test_noise_levels_differ(llada, llada_states):
    """A calibration that saw clean text only would cut off what a noisy canvas does."""
    noisy, clean = magnitudes(llada, llada_states[:1]), magnitudes(llada, llada_states[4:5])
    assert any(noisy[name] > 1.05 * clean[name] for name in noisy)
    assert any(clean[name] > 1.05 * noisy[name] for name in noisy)


@pytest.mark.parametrize("quantile", [0.0, -1.0, 1.5])
def test_refuses_a_quantile_that_is_none(llada, llada_states, quantile):
    with pytest.raises(UsageError, match="the quantile is"):
        magnitudes(llada, llada_states, quantile)


def test_refuses_to_measure_nothing(llada):
    with pytest.raises(UsageError, match="no states"):
        magnitudes(llada, [])


def test_refuses_states_of_another_model(llada, sdar_states):
    with pytest.raises(EngineError, match="cannot run"):
        magnitudes(llada, sdar_states)


def test_refuses_what_is_not_finite(sdar, sdar_states):
    broken = {name: array.copy() for name, array in sdar_states[-1].items()}
    broken["past_key_values.0.value"][:] = np.nan
    with pytest.raises(
        EngineError, match=r"the input of layers.0.self_attn.o_proj.* is not finite"
    ):
        magnitudes(sdar, [broken])
