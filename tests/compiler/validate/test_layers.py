"""The layers of the trained checkpoint, sound and damaged in each of them."""

import numpy as np
import pytest
from damage import break_mask, copy_engine, flip_weight, swap_scales

from dlmc.validate.layers import _routed_alike, choose, compare_layers
from dlmc.validate.reference import graph_record, load_reference
from dlmc.validate.tolerances import EXACT, limits
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import BundleError, EngineError

TARGET = "onnxruntime-cpu"
DAMAGED = f"{TARGET}-damaged"
LAYERS = range(6)


def _compare(bundle, name, recording):
    opened = Bundle.open(bundle.root)
    record = opened.engine(name)
    allowed = limits(opened.manifest, record)
    return compare_layers(opened, record, choose(recording.states), allowed)


@pytest.fixture
def damaged(trained, trained_recording):
    """Damage a copy of an engine and compare its layers."""

    def damage(source, change):
        change(copy_engine(trained, source, DAMAGED))
        return _compare(trained, DAMAGED, trained_recording)

    return damage


def test_a_sound_engine_of_its_own_graph_agrees_everywhere(damaged):
    found = damaged(TARGET, lambda folder: None)
    assert found.reference == "graph"
    assert [one.point for one in found.way] == [
        "embed_tokens",
        "rope",
        *(f"layers.{layer}" for layer in LAYERS),
        "norm",
        "lm_head",
    ]
    assert all(one.error < 1e-5 and one.channel < 1e-5 for one in found.points)
    assert found.first is None


def test_the_graph_itself_is_compared_with_torch(trained, trained_recording):
    record = graph_record(trained, trained.engine(TARGET).profiles)
    torch = load_reference(trained, record.profiles)
    states = choose(trained_recording.states)
    found = compare_layers(trained, record, states, EXACT, torch)
    assert found.reference == "torch"
    assert found.first is None
    assert next(one.point for one in found.way) == "embed_tokens"
    assert 0 < max(one.error for one in found.points) < 2e-5
    with pytest.raises(EngineError, match="very graph"):
        compare_layers(trained, record, states, EXACT)


def test_a_sound_int8_engine_is_off_by_little_in_every_layer(trained, trained_recording):
    found = _compare(trained, f"{TARGET}-int8", trained_recording)
    assert found.first is None
    layers = [one for one in found.way if one.point.startswith("layers.")]
    assert all(0.001 < one.error < 0.05 for one in layers)
    # On its own a layer is no worse for being deep; with the layers before, errors add up.
    assert all(one.carried >= one.error / 2 for one in layers)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_damaged_weight_is_found_in_its_layer(damaged, layer):
    part = f"layers.{layer}.mlp.down_proj"
    first = damaged(TARGET, lambda folder: flip_weight(folder, f"{part}.weight")).first
    assert first is not None
    assert first.point == part
    assert first.where is not None
    assert first.where.output == part
    assert first.where.ours != first.where.reference


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("how", ["ignored", "shifted"])
def test_a_wrong_mask_is_found_in_its_layer(damaged, layer, how):
    first = damaged(TARGET, lambda folder: break_mask(folder, layer, how)).first
    assert first is not None
    assert first.point == f"layers.{layer}.self_attn.Attention"


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("part", ["self_attn.q_proj", "mlp.down_proj"])
def test_two_exchanged_scales_are_found_in_their_weight(damaged, layer, part):
    point = f"layers.{layer}.{part}"
    first = damaged(f"{TARGET}-int8", lambda folder: swap_scales(folder, f"{point}.weight")).first
    assert first is not None
    assert first.point == point
    assert first.channel > 0.3


def test_only_the_damaged_layer_is_wrong_by_itself(damaged):
    found = damaged(TARGET, lambda folder: flip_weight(folder, "layers.2.mlp.down_proj.weight"))
    wrong = [one.point for one in found.points if not one.ok]
    assert wrong == ["layers.2.mlp.down_proj", "layers.2"]
    carried = {one.point: one.carried for one in found.way}
    assert carried["layers.1"] < 1e-5
    assert all(carried[f"layers.{layer}"] > 0.01 for layer in (2, 3, 4, 5))


def test_a_plan_that_reads_other_files_is_refused(trained, trained_recording):
    folder = copy_engine(trained, TARGET, DAMAGED)
    record = trained.engine(DAMAGED).model_copy(update={"files": {}})
    allowed = limits(trained.manifest, record)
    assert folder.exists()
    with pytest.raises(BundleError, match="not listed as weights"):
        compare_layers(trained, record, trained_recording.states[:1], allowed)


def test_nothing_is_left_behind(trained, damaged):
    damaged(TARGET, lambda folder: None)
    assert not [*(trained.root / "validation").glob(".layers*")]


def test_a_few_forwards_stand_for_all(trained_recording):
    states = trained_recording.states
    chosen = choose(states)
    assert len(chosen) <= 4
    assert len({id(one) for one in chosen}) == len(chosen)
    assert any(state.stores for state in chosen)
    noisy = [state for state in states if state.choice is not None]
    assert chosen[0] is noisy[0]
    assert choose(states, [states[3]])[0] is states[3]


def test_an_engine_calibrated_elsewhere_cannot_be_lowered_again(trained, trained_recording):
    record = trained.engine(TARGET).model_copy(
        update={"plan": "engines/x/engine.plan", "quantization": "w8a8", "target": "tensorrt"}
    )
    with pytest.raises(EngineError, match="not kept"):
        compare_layers(
            trained, record, trained_recording.states[:1], limits(trained.manifest, record)
        )


def test_tokens_whose_experts_differ_say_nothing_about_rounding():
    routed = np.array([[[0.5, 0.0], [0.0, 0.5], [0.5, 0.0]]], np.float32)
    wanted = {"layers.1.router": routed, "layers.1": np.ones((1, 3, 4), np.float32)}
    wanted |= {"layers.2": np.ones((1, 3, 4), np.float32)}
    found = {name: value.copy() for name, value in wanted.items()}
    found["layers.1.router"][0, 1] = [0.4, 0.0]
    for name in ("layers.1", "layers.2"):
        found[name][0, 1:] = 7.0
    kept = _routed_alike(found, wanted)
    assert kept["layers.1"][0, :, 0].tolist() == [1.0, 1.0, 7.0]
    assert kept["layers.2"][0, :, 0].tolist() == [1.0, 7.0, 7.0]
    np.testing.assert_array_equal(kept["layers.1.router"], routed)
    assert found["layers.1"][0, 1, 0] == 7.0
