import gc
import shutil
from contextlib import closing, contextmanager
from typing import cast

import handmade
import numpy as np
import openvino
import pytest
from processor import HAS_BFLOAT16
from sealing import replace_bytes, reseal

from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import Cache
from dlmc_runtime.engines.base import Store
from dlmc_runtime.engines.openvino import OpenVinoEngine, cache_folder
from dlmc_runtime.errors import EngineError
from dlmc_runtime.generate import Generator

TARGET = "openvino-cpu"


def build(root, **options):
    plan = plan_build(root, TARGET, ProfileRequest(batch=(1,)), BuildOptions(**options))
    build_engine(plan)
    return plan.name


@contextmanager
def loaded(root, name=TARGET):
    engine = engines.load(Bundle.open(root), name)
    assert isinstance(engine, OpenVinoEngine)
    with closing(engine):
        yield engine


@pytest.fixture
def root(tmp_path):
    return handmade.write(tmp_path / "bundle")


@pytest.fixture
def settings(monkeypatch):
    """Every setting that models were compiled with."""
    seen = []
    compile_model = openvino.Core.compile_model

    def watch(self, model, device, config):
        seen.append(config)
        return compile_model(self, model, device, config)

    monkeypatch.setattr(openvino.Core, "compile_model", watch)
    return seen


def test_what_openvino_refuses_is_one_sentence(root, capfd):
    model = handmade.graph()
    model.graph.node[0].op_type = "NoSuchOperator"
    (root / "denoiser.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(EngineError, match=r"OpenVINO [\d.]+ cannot load .*denoiser") as caught:
        build(handmade.seal(root))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_failing_forward_is_one_sentence(root):
    build(root)
    with loaded(root) as engine:
        request = engine._requests[engine.profiles[0]]._request
        inputs, cache = engine.inputs(engine.profiles[0]), engine.cache(1, 24)
        engine.forward(inputs, cache, [])
        request.set_tensor("temperature", openvino.Tensor(np.zeros(3, np.float32)))
        request.set_tensor("head_rows", openvino.Tensor(np.zeros((7, 2), np.int64)))
        with pytest.raises(EngineError, match=r"OpenVINO .* failed at 1x4 over 24") as caught:
            engine.forward(inputs, cache, [])
        assert "\n" not in str(caught.value)


def test_a_cache_of_another_kind_of_engine_is_refused(root):
    build(root)
    with loaded(root) as engine:
        inputs = engine.inputs(engine.profiles[0])
        with pytest.raises(TypeError, match="another engine"):
            engine.forward(inputs, cast("Cache", object()), [])


def test_the_library_never_lowers_what_the_graph_keeps(root, settings):
    build(root)
    assert {one["INFERENCE_PRECISION_HINT"] for one in settings} == {"f32"}
    assert not any("CACHE_DIR" in one for one in settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision",
    [
        "float32",
        pytest.param(
            "bfloat16",
            marks=pytest.mark.skipif(
                not HAS_BFLOAT16, reason="the processor has no bfloat16 instructions"
            ),
        ),
    ],
)
def test_stored_weights_stay_as_they_are_stored(tiny_bundle, precision):
    """Widened weights would take twice the memory: none becomes a float32 constant."""
    root = tiny_bundle("tiny-sdar")
    name = build(root, precision=precision)
    bundle = Bundle.open(root)
    with loaded(root, name) as engine:
        compiled = engine._requests[engine.profiles[0]]._request.get_compiled_model()
        nodes = compiled.get_runtime_model().get_ordered_ops()
    products = [
        {key: value.astype(str) for key, value in node.get_rt_info().items()} for node in nodes
    ]
    products = [info for info in products if info["layerType"] == "FullyConnected"]
    assert len(products) == 7 * bundle.manifest.model.num_hidden_layers + 1
    assert all("bf16" in info["runtimePrecision"] for info in products)
    assert products[-1]["outputPrecisions"] == "f32"


@pytest.mark.slow
def test_bfloat16_caches_are_stored_and_read_as_such(tiny_bundle):
    root = tiny_bundle("tiny-sdar")
    name = build(root, precision="bfloat16")
    assert name == "openvino-cpu-bf16"
    with loaded(root, name) as engine:
        profile = engine.profiles[0]
        inputs, cache = engine.inputs(profile), engine.cache(1, profile.cache)
        inputs.input_ids[:] = np.arange(profile.block) + 40
        inputs.position_ids[:] = np.arange(profile.block)
        inputs.attention_mask[:, :, :, profile.cache :] = True
        engine.forward(inputs, cache, [Store(0, profile.block)])
        kept = cache.contents()
        again = engine.cache(1, profile.cache)
        again.restore(kept)
        del cache
        gc.collect()  # what is bound must not be read any more
        inputs.attention_mask[:, :, :, : profile.block] = True
        first = engine.forward(inputs, again, [])
        second = engine.forward(inputs, again, [])
    for values in kept.past.values():
        assert np.abs(values[0, :, : profile.block]).min(axis=(0, 2)).all()
        assert not values[0, :, profile.block :].any()
        assert (values.view(np.uint32) & 0xFFFF == 0).all()
    np.testing.assert_array_equal(first.top_logits, second.top_logits)
    assert np.isfinite(first.top_logits).all()


@pytest.mark.slow
def test_a_compiled_model_is_kept_where_asked_and_never_stale(
    tiny_bundle, tmp_path, monkeypatch, settings
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tiny_bundle("tiny-sdar")
    build(root, model_cache=True)
    assert settings[-1]["CACHE_DIR"] == str(cache_folder()) == str(tmp_path / "cache/dlmc/openvino")
    kept = sorted(cache_folder().iterdir())
    assert kept

    def answer(root):
        with Generator.load(root, TARGET) as generator:
            return generator.generate("12+7=?", max_new_tokens=8).tokens

    first = answer(root)
    assert sorted(cache_folder().iterdir()) == kept
    other = shutil.copytree(root, tmp_path / "other")
    weights = other / Bundle.open(root).manifest.weights[0]
    data = bytearray(weights.read_bytes())
    data[-2000:] = data[-4000:-2000]
    replace_bytes(weights, bytes(data))
    reseal(other)
    build(other, model_cache=True)
    answer(other)
    assert len(list(cache_folder().iterdir())) > len(kept)
    assert answer(root) == first


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_cache_is_read_by_its_own_forwards(tiny_bundle, precision):
    """Caches are bound where they lie: another one must be bound anew."""
    root = tiny_bundle("tiny-sdar")
    name = build(root, precision=precision)
    with loaded(root, name) as engine:
        profile = engine.profiles[0]
        inputs = engine.inputs(profile)
        full, empty = (engine.cache(1, profile.cache) for _ in range(2))
        inputs.input_ids[:] = np.arange(profile.block) + 40
        inputs.position_ids[:] = np.arange(profile.block)
        inputs.head_rows[:] = np.arange(profile.rows)
        inputs.attention_mask[:, :, :, profile.cache :] = True
        engine.forward(inputs, full, [Store(0, profile.block)])
        inputs.attention_mask[:, :, :, : profile.block] = True
        answers = [
            engine.forward(inputs, cache, []).logsumexp for cache in (full, empty, full, empty)
        ]
    np.testing.assert_array_equal(answers[0], answers[2])
    np.testing.assert_array_equal(answers[1], answers[3])
    assert np.abs(answers[0] - answers[1]).max() > 0.01
