"""TensorRT's engine on a double that runs the graph over device memory for real."""

import gc
import shutil
from dataclasses import replace
from types import SimpleNamespace

import fake_tensorrt
import handmade
import numpy as np
import pytest
from fake_cuda import Cuda

from dlmc_runtime import engines, preflight
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines import tensorrt as subject
from dlmc_runtime.engines.base import Store
from dlmc_runtime.engines.tensorrt import TensorRTEngine
from dlmc_runtime.errors import BundleError, EngineError


@pytest.fixture
def cuda():
    return Cuda()


@pytest.fixture(params=["tensorrt", "tensorrt-rtx"])
def trt(request, cuda, monkeypatch):
    double = fake_tensorrt.TensorRT(cuda, rtx=request.param == "tensorrt-rtx")
    fake_tensorrt.install(monkeypatch, double)
    return double


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    return handmade.write(tmp_path_factory.mktemp("tensorrt") / "bundle")


@pytest.fixture
def root(original, tmp_path):
    root = shutil.copytree(original, tmp_path / "bundle")
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


def test_a_forward_answers_for_the_rows_it_is_asked_about(engine):
    assert isinstance(engine, TensorRTEngine)
    assert engine.profiles == handmade.PROFILES
    inputs, cache = fed(engine), engine.cache(1, 24)
    inputs.head_rows[:] = [[3, 2, 1, 0]]
    outs = [engine.forward(inputs, cache, []) for _ in range(3)]
    for out in outs:
        assert out.sampled_id.tolist() == [handmade.TABLE[[11, 10, 9, 8]].tolist()]
        assert out.top_ids[..., 0].tolist() == out.sampled_id.tolist()
        np.testing.assert_allclose(out.sampled_logit, -0.1)


def test_a_profile_runs_as_a_graph_from_the_second_time_on(engine, cuda):
    one, other = engine.cache(1, 24), engine.cache(1, 24)
    for cache in (one, other, one, other, one, other):
        before = cuda.calls.count("cudaGraphLaunch")
        engine.forward(fed(engine, first=int(cache is one)), cache, [Store(0, 1)])
        last = cuda.calls.count("cudaGraphLaunch") - before
    assert last == 1
    assert past(one)[:4] == [1, 1, 1, 0]
    assert past(other)[:4] == [0, 0, 0, 0]
    other.restore(one.contents())
    assert past(other) == past(one)
    assert other.filled.tolist() == [3]


def test_what_cannot_be_captured_runs_as_it_is(trt, root, cuda):
    trt.capturable = False
    engine = load(root)
    cache = engine.cache(1, 24)
    for _ in range(4):
        out = engine.forward(fed(engine), cache, [Store(0, 1)])
    assert out.sampled_id.tolist() == [[handmade.TABLE[11]] * 4]
    assert past(cache)[:5] == [4, 4, 4, 4, 0]
    assert "cudaGraphLaunch" not in cuda.calls
    engine.close()


def test_a_cache_begins_empty_also_where_another_lay(engine, cuda):
    cache = engine.cache(1, 24)
    engine.forward(fed(engine), cache, [Store(0, 4)])
    address = cache.memory.address
    del cache
    again, besides = engine.cache(1, 24), engine.cache(1, 24)
    assert again.memory.address == address != besides.memory.address
    assert past(again) == [0] * 24 == past(besides)
    assert again.filled.tolist() == [0]


def test_idle_caches_make_room_for_others(trt, root):
    engine = load(root)
    cache = engine.cache(1, 24)
    for _ in range(3):
        engine.forward(fed(engine), cache, [])
    trt.cuda.memory = trt.cuda._used()
    with pytest.raises(MemoryError):
        engine.cache(2, 24)  # somebody still holds the one there is
    trt.cuda.memory += 256
    del cache
    larger = engine.cache(2, 24)
    assert trt.cuda.live()["device"] == 5
    assert "executables" not in trt.cuda.live()
    engine.forward(fed(engine, 2), larger, [Store(1, 4)])
    assert past(larger, 1)[:4] == [8, 9, 10, 11]
    engine.close()


def test_everything_is_given_back(trt, root, cuda):
    engine = load(root)
    inputs = [fed(engine, index) for index in range(4)]
    caches = [engine.cache(batch, 24) for batch in (1, 2)]
    for _ in range(3):
        for one in inputs:
            engine.forward(one, caches[one.profile.batch - 1], [Store(0, 1)])
    assert cuda.live()["executables"] == 4
    assert len(trt.live) == 5  # the engine and a context a profile
    engine.close()
    engine.close()
    assert cuda.live() == {"pinned": 4}  # the buffers that the caller still holds
    inputs[0].input_ids[:] = 1
    del inputs, one
    gc.collect()
    assert cuda.live() == {}
    assert len(trt.live) == 0
    for broken in (
        lambda: engine.forward(None, caches[0], []),
        lambda: engine.cache(1, 24),
        lambda: engine.inputs(engine.profiles[0]),
        caches[0].contents,
        lambda: caches[0].restore(None),
    ):
        with pytest.raises(EngineError, match="was closed"):
            broken()


def test_the_plan_is_read_without_a_copy(trt, root):
    engine = load(root)
    assert [kind.__name__ for kind in trt.buffers] == ["mmap"]
    engine.close()


def test_no_plan_is_parsed_before_it_was_hashed(trt, root, monkeypatch):
    monkeypatch.setattr(preflight, "check", lambda record: None)
    path = root / "engines" / "tensorrt" / "engine.plan"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(BundleError, match=r"engine\.plan in .* has another hash"):
        engines.load(Bundle.open(root), "tensorrt")
    assert trt.buffers == []


def test_a_machine_without_the_library_or_gpu_is_refused_before_anything_is_read(
    trt, root, monkeypatch
):
    bundle = Bundle.open(root)
    with pytest.raises(EngineError, match="needs tensorrt, which is not installed"):
        engines.load(bundle, "tensorrt")
    monkeypatch.setattr(preflight.ThisMachine, "library", lambda self, name: fake_tensorrt.VERSION)
    trt.cuda.capability = (9, 0)
    with pytest.raises(EngineError, match="built for sm89, this GPU is sm90"):
        engines.load(bundle, "tensorrt")
    assert trt.buffers == []
    trt.cuda.capability = (8, 9)
    engines.load(bundle, "tensorrt").close()
    assert len(trt.buffers) == 1


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"no plan", r"cannot load .*engine\.plan \(Error Code 1: the magic tag does not match\)"),
        (b"", r"engine\.plan cannot be read \(cannot mmap an empty file\)"),
    ],
)
def test_a_plan_that_the_library_refuses_is_one_sentence(trt, root, cuda, data, problem):
    fake_tensorrt.write_engine(root, data=data)
    with pytest.raises(EngineError, match=problem) as caught:
        load(root)
    assert "\n" not in str(caught.value)
    del caught
    gc.collect()
    assert cuda.live() == {}


def test_a_plan_must_be_what_its_record_says(trt, root, cuda):
    few = handmade.PROFILES[:3]
    other = (*few, few[2].model_copy(update={"block": 6, "rows": 2}))
    plan = (root / "engines" / "tensorrt" / "engine.plan").read_bytes()
    for odd, changes in (
        ("profiles", {"profiles": few}),
        ("input_ids of 2x6 over 24, 2 rows", {"profiles": other}),
        (r"past_key_values\.0\.key", {"cache_dtype": "float16"}),
    ):
        fake_tensorrt.write_engine(root, data=plan, **changes)
        with pytest.raises(EngineError, match=f"disagree about {odd}"):
            load(root)
    gc.collect()
    assert cuda.live() == {}


def test_a_plan_must_have_the_inputs_of_its_manifest(trt, root):
    bundle = Bundle.open(root)
    spec = bundle.manifest.outputs[-1].model_copy(update={"name": "present.7.key"})
    manifest = bundle.manifest.model_copy(update={"outputs": (*bundle.manifest.outputs[:-1], spec)})
    with pytest.raises(EngineError, match=r"disagree about present\.0\.value"):
        engines.make(replace(bundle, manifest=manifest), bundle.engine("tensorrt"))


def test_a_plan_of_another_version_wants_its_lean_runtime(cuda, root, monkeypatch):
    trt = fake_tensorrt.TensorRT(cuda)
    fake_tensorrt.install(monkeypatch, trt)
    bundle = Bundle.open(root)
    record = bundle.engine("tensorrt")
    needs = record.requires.model_copy(update={"match": "any"})
    record = record.model_copy(update={"requires": needs})
    engines.make(bundle, record).close()
    assert trt.lean == []
    trt.__version__ = "11.9.0"
    with pytest.raises(EngineError, match=r"TensorRT 11\.1\.0\.10, here is 11\.9\.0: pip install"):
        engines.make(bundle, record)
    library = SimpleNamespace(name="libnvinfer_lean.so.11", locate=lambda: "/lib/lean.so")
    monkeypatch.setattr(subject, "files", lambda name: [SimpleNamespace(name="x.py"), library])
    engines.make(bundle, record).close()
    assert trt.lean == ["/lib/lean.so"]


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_a_library_that_is_missing_is_one_sentence(monkeypatch, target):
    modules = __import__("sys").modules
    monkeypatch.setitem(modules, target.replace("-", "_"), None)
    with pytest.raises(EngineError, match=rf"{target} does not load here .*pip install 'dlmc\["):
        subject.library(target)
