"""What engines on a device share, and proof that the double of CUDA catches what goes wrong."""

import gc
import shutil
from dataclasses import replace

import fake_tensorrt
import handmade
import numpy as np
import pytest
from fake_cuda import Cuda

from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines import memory
from dlmc_runtime.engines.base import Store
from dlmc_runtime.engines.cuda import CudaDevice, CudaGraph
from dlmc_runtime.engines.device import DeviceEngine
from dlmc_runtime.engines.device_cache import CachePool
from dlmc_runtime.engines.tensorrt import TensorRTEngine
from dlmc_runtime.errors import DlmcError, EngineError
from dlmc_runtime.generate import Generator
from dlmc_runtime.samplers.config import SamplerConfig


@pytest.fixture
def cuda():
    return Cuda()


@pytest.fixture
def trt(cuda, monkeypatch):
    double = fake_tensorrt.TensorRT(cuda)
    fake_tensorrt.install(monkeypatch, double)
    return double


@pytest.fixture
def root(tmp_path):
    root = handmade.write(tmp_path / "bundle")
    fake_tensorrt.write_engine(root)
    return root


def load(root):
    bundle = Bundle.open(root)
    return engines.make(bundle, bundle.engine("tensorrt"))


@pytest.fixture
def engine(trt, root):
    made = load(root)
    yield made
    made.close()


def fed(engine, index=0, first=4):
    """Return inputs of a profile that differ from place to place."""
    inputs = engine.inputs(engine.profiles[index])
    batch, block = inputs.input_ids.shape
    inputs.input_ids[:] = first + np.arange(batch * block).reshape(batch, block)
    inputs.position_ids[:] = inputs.input_ids + 4
    inputs.head_rows[:] = block - 1
    inputs.attention_mask[:] = True
    return inputs


def past(cache, row=0):
    keys, values = cache.contents().past.values()
    np.testing.assert_array_equal(keys, -values)
    return keys[row, 0, :, 0].tolist()


def test_answers_of_one_forward_outlast_the_next(engine):
    cache = engine.cache(1, 24)
    first = engine.forward(fed(engine), cache, [])
    kept = first.sampled_id.copy()
    engine.forward(fed(engine, first=20), cache, [])
    np.testing.assert_array_equal(first.sampled_id, kept)


def test_what_is_stored_is_appended_to_its_row(engine):
    cache = engine.cache(2, 24)
    engine.forward(fed(engine, 2), cache, [])
    assert cache.filled.tolist() == [0, 0]
    engine.forward(fed(engine, 2), cache, [Store(1, 3)])
    engine.forward(fed(engine, 3), cache, [Store(0, 8), Store(1, 2)])
    assert cache.filled.tolist() == [8, 5]
    assert past(cache, 0) == [4, 5, 6, 7, 8, 9, 10, 11, *[0] * 16]
    assert past(cache, 1) == [8, 9, 10, 12, 13, *[0] * 19]


def test_what_is_stored_at_a_position_ends_its_row_there(engine):
    cache = engine.cache(2, 24)
    engine.forward(fed(engine, 3), cache, [Store(0, 8), Store(1, 8)])
    engine.forward(fed(engine, 2, first=40), cache, [Store(1, 3, at=2)])
    assert cache.filled.tolist() == [8, 5]
    assert past(cache, 1)[:8] == [12, 13, 44, 45, 46, 17, 18, 19]
    engine.forward(fed(engine, 2, first=50), cache, [Store(0, 2, at=0), Store(1, 1)])
    assert cache.filled.tolist() == [2, 6]
    assert past(cache, 1)[4:7] == [46, 54, 18]


def test_what_does_not_fit_is_not_stored(engine):
    cache = engine.cache(1, 24)
    for _ in range(3):
        engine.forward(fed(engine, 1), cache, [Store(0, 8)])
    with pytest.raises(ValueError, match="row 0: 1 positions at 24 do not fit into 24"):
        engine.forward(fed(engine), cache, [Store(0, 1)])
    for at in (-1, 21, 24, 1 << 50):
        with pytest.raises(ValueError, match=f"4 positions at {at} do not fit into 24"):
            engine.forward(fed(engine), cache, [Store(0, 4, at)])
    with pytest.raises(ValueError, match="there is no row 1"):
        engine.forward(fed(engine), cache, [Store(1, 1, 0)])
    with pytest.raises(ValueError, match="5 positions of a block of 4"):
        engine.forward(fed(engine), engine.cache(1, 24), [Store(0, 5)])
    assert cache.filled.tolist() == [24]


def test_only_the_answers_cross_to_the_host(engine, cuda):
    inputs, cache = fed(engine), engine.cache(1, 24)
    before = len(cuda.calls)
    engine.forward(inputs, cache, [Store(0, 2)])
    calls = cuda.calls[before:]
    assert calls.count("cudaMemcpyAsync") == 2  # the inputs there, the answers back
    assert calls.count("cudaMemcpy2DAsync") == 2  # key and value of the one layer
    assert calls[-1] == "cudaStreamSynchronize"
    assert calls.count("cudaStreamSynchronize") == 1


def test_buffers_of_another_engine_are_refused(engine):
    inputs, cache = fed(engine), engine.cache(1, 24)
    with pytest.raises(TypeError, match="another engine"):
        engine.forward(inputs, object(), [])
    with pytest.raises(TypeError, match="another engine"):
        engine.forward(object(), cache, [])
    with pytest.raises(ValueError, match="a cache of 1x24 for 2x4 over 24"):
        engine.forward(fed(engine, 2), cache, [])
    with pytest.raises(ValueError, match="a cache of 1x16 for 1x4 over 24"):
        engine.forward(inputs, engine.cache(1, 16), [])


def test_a_narrow_forward_uses_the_front_of_a_wider_cache(engine):
    cache = engine.cache(2, 24)
    engine.forward(fed(engine, 2), cache, [Store(0, 2), Store(1, 3)])
    engine.forward(fed(engine, 0, first=40), cache, [Store(0, 4)])
    assert cache.filled.tolist() == [6, 3]
    assert past(cache, 0)[:7] == [4, 5, 40, 41, 42, 43, 0]
    assert past(cache, 1)[:4] == [8, 9, 10, 0]
    with pytest.raises(ValueError, match="there is no row"):
        engine.forward(fed(engine, 0), cache, [Store(2, 1)])


def test_a_failing_forward_is_one_sentence(trt, root, cuda):
    engine = load(root)
    inputs, cache = fed(engine), engine.cache(1, 24)
    cuda.failure = Cuda.cudaError_t.cudaErrorIllegalAddress
    with pytest.raises(EngineError, match=r"CUDA failed at cudaStreamSynchronize \(cudaErrorIll"):
        engine.forward(inputs, cache, [Store(0, 2)])
    assert cache.filled.tolist() == [0]
    engine.close()


def test_too_little_memory_for_the_buffers_is_one_sentence(trt, root, cuda):
    cuda.memory = 1 << 10
    with pytest.raises(EngineError, match="bytes of memory for the engine's buffers"):
        load(root)
    gc.collect()
    assert cuda.live() == {}


def test_inputs_lie_where_the_layout_says(engine):
    inputs = engine.inputs(engine.profiles[3])
    assert inputs.memory.nbytes == engine._buffers[engine.profiles[3]].inputs.size
    for array in inputs.arrays().values():
        assert np.shares_memory(array, inputs.memory)
        assert (array.ctypes.data - inputs.memory.ctypes.data) % memory.ALIGNMENT == 0
    assert inputs.attention_mask.sum() == 2 * 8  # padding sees itself, as on any engine


def test_inputs_that_the_manifest_describes_otherwise_are_refused(trt, root):
    bundle = Bundle.open(root)
    first, *others = bundle.manifest.inputs
    engine = load(root)
    for specs, problem in (
        ([first.model_copy(update={"dtype": "bool"}), *others], "gives input_ids another shape"),
        ([first, *others[:-1]], "has no input uniform"),
    ):
        odd = replace(bundle, manifest=bundle.manifest.model_copy(update={"inputs": specs}))
        layouts = DeviceEngine(odd, bundle.engine("tensorrt"), engine._device)
        with pytest.raises(EngineError, match=problem):
            layouts.inputs(engine.profiles[0])
    engine.close()


def test_inputs_that_not_every_graph_has_reach_it(trt, tmp_path):
    root = handmade.write(tmp_path / "extended", extended=True)
    fake_tensorrt.write_engine(root)
    engine = load(root)
    cache = engine.cache(2, 24)
    for index in (2, 3, 2):
        inputs = fed(engine, index)
        wanted = handmade.feed_extras(inputs)
        found = engine.forward(inputs, cache, [])
        for name, array in wanted.items():
            np.testing.assert_array_equal(getattr(found, name), array, err_msg=name)
    engine.close()


def test_too_little_memory_while_it_runs_is_one_sentence(engine, cuda):
    cuda.failure = Cuda.cudaError_t.cudaErrorMemoryAllocation
    with pytest.raises(EngineError, match="no memory left to run 1x4 over 24, 4 rows"):
        engine.forward(fed(engine), engine.cache(1, 24), [])


# Whole generations: masks, positions, prefill, commits and profiles all at once.

SAMPLERS = {
    "llada": SamplerConfig(steps=3, block_length=5),
    "sdar": SamplerConfig(name="low_confidence_dynamic", threshold=0.5),
}


@pytest.fixture(scope="session")
def families(exported, tmp_path_factory):
    """Bundles of both families, each with an engine for ONNX Runtime and one for the double."""
    roots = {}
    for family in SAMPLERS:
        bundle = exported(family)
        profiles = bundle.engine("onnxruntime-cpu").profiles
        roots[family] = shutil.copytree(bundle.root, tmp_path_factory.mktemp("device") / family)
        fake_tensorrt.write_engine(roots[family], profiles=profiles)
    return roots


def answers(engine, family, prompts):
    generator = Generator(engine, None)
    requests = [
        generator.request(
            prompt, max_new_tokens=14, sampler=SAMPLERS[family], seed=5, ignore_eos=True
        )
        for prompt in prompts
    ]
    return [replace(result, seconds=0.0) for result in generator.run(requests)]


@pytest.fixture(scope="session")
def wanted(families, prompts):
    """What ONNX Runtime answers, by family."""
    found = {}
    for family, root in families.items():
        engine = engines.load(Bundle.open(root), "onnxruntime-cpu")
        found[family] = answers(engine, family, prompts)
        engine.close()
    return found


def work(trt, families, wanted, prompts, family):
    """Generate twice, interleaved with a cache that somebody holds, and give everything back."""
    engine = load(families[family])
    profile = engine.profiles[0]
    try:
        held, inputs = engine.cache(profile.batch, profile.cache), fed(engine)
        for _ in range(3):
            engine.forward(inputs, held, [Store(0, 1)] if profile.cache else [])
        before = held.contents()
        for _ in range(2):
            assert answers(engine, family, prompts) == wanted[family]
        for name, array in held.contents().past.items():
            np.testing.assert_array_equal(array, before.past[name])
        engine._pool._free_idle()
    finally:
        engine.close()
    del engine, inputs, held
    gc.collect()
    assert trt.cuda.live() == {}
    assert len(trt.live) == 0


@pytest.mark.parametrize("family", SAMPLERS)
def test_it_gives_the_tokens_of_another_engine(trt, families, wanted, prompts, family):
    work(trt, families, wanted, prompts, family)
    assert trt.cuda.calls.count("cudaGraphLaunch") > 10


# Proof that the test above can fail: the engine with one mistake each.

_FREE, _COPY, _BIND = CudaDevice.free, CudaDevice.copy_rows, TensorRTEngine._bind
_PROFILE = fake_tensorrt.IExecutionContext.set_optimization_profile_async


def _frees_what_it_hands_out(pool, batch, size):
    for found in pool.idle:
        if (found.batch, found.size) == (batch, size):
            pool.device.free(found.address)
            return found
    return None


def _frees_twice(device, address):
    _FREE(device, address)
    device._owned.add(address)


def _forgets_to_free(device):
    device.synchronize()
    device._cuda.cudaStreamDestroy(device._stream)


def _binds_once(engine, profile, memory):
    if profile not in engine._bound:
        _BIND(engine, profile, memory)
    engine._bound[profile] = memory


def _rows(change):
    return lambda device, *sizes: _COPY(device, *change(*sizes))


MISTAKES = {
    "answers are read too early": (
        CudaDevice,
        "synchronize",
        lambda device: None,
        "the host changed memory",
    ),
    "inputs stay on the host": (CudaDevice, "upload", lambda *_: None, "Result"),
    "a copy goes the wrong way": (
        CudaDevice,
        "upload",
        lambda device, address, source: device._copy(
            address, source.ctypes.data, source.nbytes, device._within
        ),
        "bytes of device memory",
    ),
    "a copy is too long": (
        CudaDevice,
        "download",
        lambda device, target, address: device._copy(
            target.ctypes.data, address, 1 << 20, device._to_host
        ),
        "no 1048576 bytes",
    ),
    "pitches are swapped": (
        CudaDevice,
        "copy_rows",
        _rows(lambda t, tp, s, sp, w, h: (t, sp, s, tp, w, h)),
        "bytes of device memory",
    ),
    "rows lie too close": (
        CudaDevice,
        "copy_rows",
        _rows(lambda t, tp, s, sp, w, h: (t, sp, s, sp, w, h)),
        "Result",
    ),
    "only one head is stored": (
        CudaDevice,
        "copy_rows",
        _rows(lambda t, tp, s, sp, w, h: (t, tp, s, sp, w, 1)),
        "Result",
    ),
    "nothing is stored": (CudaDevice, "copy_rows", lambda *_: None, "Result"),
    "a cache is not emptied": (CudaDevice, "zero", lambda *_: None, "answered NaN"),
    "a graph keeps the addresses of another cache": (
        TensorRTEngine,
        "_bind",
        _binds_once,
        "Result",
    ),
    "the profile is not set": (
        fake_tensorrt.IExecutionContext,
        "set_optimization_profile_async",
        lambda *_: True,
        "no profile has a shape",
    ),
    "the profile is another one": (
        fake_tensorrt.IExecutionContext,
        "set_optimization_profile_async",
        lambda context, index, stream: _PROFILE(context, 1 - min(1, index), stream),
        "the profile says",
    ),
    "tensors are not aligned": (memory, "ALIGNMENT", 1, "is not aligned"),
    "memory is freed while it is used": (CachePool, "_idle", _frees_what_it_hands_out, "was freed"),
    "memory is freed twice": (CudaDevice, "free", _frees_twice, "is freed twice"),
    "memory is not freed": (CudaDevice, "close", _forgets_to_free, "'device': "),
    "graphs are not released": (CudaGraph, "release", lambda graph: None, "'executables': "),
    "contexts are kept": (TensorRTEngine, "_release", lambda engine: None, "'executables': "),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_does_not_go_unseen(trt, families, wanted, prompts, monkeypatch, mistake):
    *change, seen = MISTAKES[mistake]
    monkeypatch.setattr(*change)
    with pytest.raises((AssertionError, DlmcError), match=seen):  # Misuse is an AssertionError
        work(trt, families, wanted, prompts, "sdar")


def test_a_graph_that_is_replayed_for_another_cache_is_seen(
    trt, families, wanted, prompts, monkeypatch
):
    recall = TensorRTEngine._run

    def forgetful(engine, profile, memory):
        for (known, _), recording in list(engine._recordings.items()):
            if known == profile:
                return recording.replay()
        return recall(engine, profile, memory)

    monkeypatch.setattr(TensorRTEngine, "_run", forgetful)
    with pytest.raises((AssertionError, DlmcError)):
        work(trt, families, wanted, prompts, "sdar")
