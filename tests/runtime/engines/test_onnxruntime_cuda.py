"""The bound session on the host's memory, where CI can run it."""

import shutil
from dataclasses import replace

import handmade
import numpy as np
import onnxruntime
import pytest
from fake_cuda import Cuda

from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines import onnxruntime_cuda as subject
from dlmc_runtime.engines.base import OUTPUTS, Store
from dlmc_runtime.engines.device_cache import DeviceCache
from dlmc_runtime.engines.memory import HostDevice
from dlmc_runtime.engines.onnxruntime_cuda import OnnxRuntimeCudaEngine
from dlmc_runtime.errors import EngineError
from dlmc_runtime.generate import Generator
from dlmc_runtime.samplers.config import SamplerConfig

TARGET = "onnxruntime-cuda"


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    root = handmade.write(tmp_path_factory.mktemp("bound") / "bundle")
    for target in (TARGET, "onnxruntime-cpu"):
        build_engine(plan_build(root, target, ProfileRequest()))
    return root


def bound(root, device=None, **options):
    bundle = Bundle.open(root)
    record = bundle.engine(TARGET)
    record = record.model_copy(update={"options": {**record.options, **options}})
    return OnnxRuntimeCudaEngine(bundle, record, HostDevice() if device is None else device)


@pytest.fixture
def engine(root):
    made = bound(root)
    yield made
    made.close()


def fed(engine, index=0):
    inputs = engine.inputs(engine.profiles[index])
    batch, block = inputs.input_ids.shape
    inputs.input_ids[:] = 4 + np.arange(batch * block).reshape(batch, block)
    inputs.position_ids[:] = inputs.input_ids + 4
    inputs.head_rows[:] = np.arange(inputs.head_rows.shape[1])
    inputs.attention_mask[:] = True
    return inputs


@pytest.mark.parametrize("index", range(4))
def test_it_answers_what_the_unbound_session_answers(engine, root, index):
    plain = engines.load(Bundle.open(root), "onnxruntime-cpu")
    batch = plain.profiles[index].batch
    caches = plain.cache(batch, 24), engine.cache(batch, 24)
    assert isinstance(caches[1], DeviceCache)
    for stores in ([Store(0, 3)], [], [Store(batch - 1, 2)], [Store(0, 3, at=1)]):
        wanted = plain.forward(fed(plain, index), caches[0], stores)
        found = engine.forward(fed(engine, index), caches[1], stores)
        for name in OUTPUTS:
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
            assert getattr(found, name).dtype == getattr(wanted, name).dtype
    ours, theirs = caches[1].contents(), caches[0].contents()
    np.testing.assert_array_equal(ours.filled, theirs.filled)
    for name, array in theirs.past.items():
        np.testing.assert_array_equal(ours.past[name], array)


def test_inputs_that_not_every_graph_has_reach_it(tmp_path):
    root = handmade.write(tmp_path / "extended", extended=True)
    build_engine(plan_build(root, TARGET, ProfileRequest()))
    engine = bound(root)
    for profile in engine.profiles:
        inputs = fed(engine, engine.profiles.index(profile))
        wanted = handmade.feed_extras(inputs)
        found = engine.forward(inputs, engine.cache(profile.batch, profile.cache), [])
        for name, array in wanted.items():
            np.testing.assert_array_equal(getattr(found, name), array, err_msg=name)
    engine.close()


SAMPLERS = {
    "llada": SamplerConfig(steps=3, block_length=5),
    "sdar": SamplerConfig(name="low_confidence_dynamic", threshold=0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", SAMPLERS)
def test_it_gives_the_tokens_of_the_unbound_session(exported, prompts, tmp_path, family):
    bundle = exported(family)
    root = shutil.copytree(bundle.root, tmp_path / "bundle")
    plain = engines.load(bundle, "onnxruntime-cpu")
    record = bundle.engine("onnxruntime-cpu").model_copy(update={"target": TARGET})
    engine = OnnxRuntimeCudaEngine(Bundle.open(root), record, HostDevice())

    def answers(engine):
        generator = Generator(engine, None)
        requests = [
            generator.request(
                prompt, max_new_tokens=14, sampler=SAMPLERS[family], seed=5, ignore_eos=True
            )
            for prompt in prompts
        ]
        return [replace(result, seconds=0.0) for result in generator.run(requests)]

    assert answers(engine) == answers(plain)
    engine.close()


def test_inputs_and_outputs_are_bound_once_for_a_cache(engine):
    made = []
    session = engine._session

    class Session:
        def io_binding(self):
            made.append(session.io_binding())
            return made[-1]

        def run_with_iobinding(self, binding, options):
            session.run_with_iobinding(binding, options)

    engine._session = Session()
    one, other = engine.cache(1, 24), engine.cache(1, 24)
    for cache in (one, other, one, other):
        engine.forward(fed(engine), cache, [Store(0, 1)])
    assert len(made) == 2
    del one, cache
    engine._pool._free_idle()
    assert [memory for _, memory in engine._bindings] == [other.memory]


def test_a_closed_engine_says_so(engine):
    inputs, cache = fed(engine), engine.cache(1, 24)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        engine.forward(inputs, cache, [])


def test_a_failing_forward_is_one_sentence(engine, capfd):
    inputs = fed(engine)
    inputs.head_rows[:] = 99
    with pytest.raises(EngineError, match="ONNX Runtime failed at 1x4 over 24, 4 rows") as caught:
        engine.forward(inputs, engine.cache(1, 24), [])
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_provider_that_nobody_knows_is_refused(root):
    with pytest.raises(EngineError, match="names the execution provider 'abacus'"):
        bound(root, execution_provider="abacus")


def test_an_onnx_runtime_without_cuda_is_refused(root, monkeypatch):
    cuda = Cuda()
    monkeypatch.setattr("dlmc_runtime.engines.cuda._library", lambda: cuda)
    bundle = Bundle.open(root)
    with pytest.raises(EngineError, match=r"no working .*CUDAExecutionProvider.*: pip install"):
        OnnxRuntimeCudaEngine(bundle, bundle.engine(TARGET))
    assert cuda.live() == {}


class Gpu(HostDevice):
    """Host memory that says it is a GPU's."""

    kind = "cuda"
    stream = 77


def test_a_session_that_fell_back_to_the_cpu_is_refused(root, monkeypatch):
    names = [*subject.PROVIDERS.values(), "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    seen = {}

    def opened(bundle, plan, files, cache_dtype, providers):
        seen.update(providers)

        class Session:
            def get_providers(self):
                return ["CPUExecutionProvider"]

        return Session()

    monkeypatch.setattr(subject, "open_session", opened)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    with pytest.raises(EngineError, match="has no working CUDAExecutionProvider"):
        bound(root, Gpu(), cuda_graph="on")
    settings = seen["CUDAExecutionProvider"]
    assert settings["use_tf32"] == "0"
    assert settings["user_compute_stream"] == "77"
    assert settings["enable_cuda_graph"] == "1"


def test_tensorrt_goes_before_cuda_and_writes_no_plans(root, monkeypatch):
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    providers = subject._settings(Gpu(), "tensorrt", graphs=False)
    assert [name for name, _ in providers] == [
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]
    assert providers[0][1]["trt_engine_cache_enable"] == "0"
    assert providers[0][1]["trt_cuda_graph_enable"] == "0"
    assert __import__("os").environ["NVIDIA_TF32_OVERRIDE"] == "0"


def test_every_cache_has_a_cuda_graph_of_its_own(engine, monkeypatch):
    engine._graphs = True
    runs = []
    session = engine._session

    class Session:
        def io_binding(self):
            return session.io_binding()

        def run_with_iobinding(self, binding, options):
            runs.append(options.get_run_config_entry("gpu_graph_id"))
            session.run_with_iobinding(binding, None)

    engine._session = Session()
    one, other = engine.cache(1, 24), engine.cache(1, 24)
    for cache in (one, other, one):
        engine.forward(fed(engine), cache, [])
    engine.forward(fed(engine, 1), one, [])
    assert runs == ["0", "1", "0", "2"]


def test_options_are_kept_for_whoever_loads_the_engine(root, tmp_path):
    copy = shutil.copytree(root, tmp_path / "bundle")
    options = BuildOptions(execution_provider="tensorrt", cuda_graph=True)
    record = build_engine(plan_build(copy, TARGET, ProfileRequest(), options))
    assert record.options["execution_provider"] == "tensorrt"
    assert record.options["cuda_graph"] == "on"
