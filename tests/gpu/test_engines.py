"""Engines on a GPU against torch: whole generations, caches, and what is left behind."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc.validate.reference import load_reference
from dlmc_runtime import engines, preflight
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines import cuda
from dlmc_runtime.engines.base import Store
from dlmc_runtime.errors import EngineError
from dlmc_runtime.generate import Generator

pytestmark = pytest.mark.gpu

FAMILIES = ("tiny-llada", "tiny-sdar")
CASES = {
    "tensorrt": ("tensorrt", BuildOptions()),
    "tensorrt, hardware compatible": ("tensorrt", BuildOptions(hardware_compatible=True)),
    "onnxruntime-cuda": ("onnxruntime-cuda", BuildOptions()),
    "onnxruntime-cuda, graphs": ("onnxruntime-cuda", BuildOptions(cuda_graph=True)),
    "onnxruntime-cuda, tensorrt": (
        "onnxruntime-cuda",
        BuildOptions(execution_provider="tensorrt"),
    ),
}
PROMPTS = ("458+386=?", "sort 7 3 9 1", "12+7=?", "sort 4 4 2", "99+1=?")


def built(root, case):
    target, options = CASES[case]
    record = build_engine(plan_build(root, target, ProfileRequest(), options))
    return engines.load(Bundle.open(root), record.target)


def answers(engine, prompts):
    generator = Generator(engine, None)
    ids = [list(prompt.encode()) for prompt in prompts]
    requests = [generator.request(one, max_new_tokens=24, seed=3, ignore_eos=True) for one in ids]
    return [replace(result, seconds=0.0) for result in generator.run(requests)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_it_gives_the_tokens_of_torch_and_a_batch_those_of_its_rows(tiny_bundle, family, case):
    root = tiny_bundle(family)
    engine = built(root, case)
    bundle = Bundle.open(root)
    wanted = answers(load_reference(bundle, engine.profiles), PROMPTS)
    for _ in range(2):  # the second time every profile and cache has its graph
        assert answers(engine, PROMPTS) == wanted
    alone = [answers(engine, [prompt])[0] for prompt in PROMPTS]
    assert alone == wanted
    engine.close()


@pytest.mark.parametrize("case", CASES)
def test_caches_hold_what_torch_stores_and_do_not_mix(tiny_bundle, case):
    root = tiny_bundle("tiny-sdar")
    engine, bundle = built(root, case), Bundle.open(root)
    reference = load_reference(bundle, engine.profiles)
    profile = next(p for p in engine.profiles if p.batch == 4 and p.block == 8)
    caches = []
    for one in (reference, engine):
        pair = [one.cache(profile.batch, profile.cache) for _ in range(2)]
        for turn in range(6):
            inputs = one.inputs(profile)
            shape = inputs.input_ids.shape
            inputs.input_ids[:] = np.random.default_rng(turn).integers(0, 250, shape)
            inputs.position_ids[:] = np.arange(profile.block) + 3 * (turn // 2)
            inputs.head_rows[:] = np.arange(profile.rows)
            filled = pair[turn % 2].filled
            for row in range(profile.batch):
                inputs.attention_mask[row, 0, :, : filled[row]] = True
            inputs.attention_mask[..., profile.cache :] = True
            stores = [Store(0, 3), Store(2, 8), Store(3, 2, at=turn // 2)]
            one.forward(inputs, pair[turn % 2], stores)
        caches.append([cache.contents() for cache in pair])
    for theirs, ours in zip(*caches, strict=True):
        assert ours.filled.tolist() == theirs.filled.tolist() == [9, 0, 24, 4]
        for name, array in theirs.past.items():
            np.testing.assert_allclose(ours.past[name], array, atol=1e-4)
    engine.close()


@pytest.mark.parametrize("case", CASES)
def test_loading_and_closing_leaves_no_memory_behind(tiny_bundle, case):
    root = tiny_bundle("tiny-sdar")
    bundle = Bundle.open(root)
    built(root, case).close()
    left = []
    for _ in range(4):
        engine = engines.load(bundle, CASES[case][0])
        answers(engine, PROMPTS)
        engine.close()
        del engine
        gc.collect()
        left.append(cuda.free_memory() or 0)
    assert left[-1] >= left[1] - (8 << 20)


def test_another_gpu_and_a_damaged_plan_are_refused(tiny_bundle):
    root = tiny_bundle("tiny-sdar")
    built(root, "tensorrt").close()
    bundle = Bundle.open(root)
    record = bundle.engine("tensorrt")
    needs = record.requires.model_copy(update={"compute_capabilities": ("sm30",)})
    with pytest.raises(EngineError, match="built for sm30, this GPU is"):
        preflight.check(record.model_copy(update={"requires": needs}))
    path = root / record.plan
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(EngineError, match="cannot load"):
        engines.make(bundle, record)


def test_the_device_copies_rows_and_replays_what_was_recorded():
    device = cuda.CudaDevice()
    first, second = device.allocate(4096), device.allocate(4096)
    source, target = device.staging(4096), device.staging(4096)
    source[:] = np.arange(4096) % 251
    device.zero(second, 4096)
    device.upload(first, source)
    device.copy_rows(second + 3, 64, first + 8, 32, 10, 20)
    device.download(target, second)
    device.synchronize()
    wanted = np.zeros(4096, np.uint8)
    for row in range(20):
        wanted[3 + 64 * row : 13 + 64 * row] = source[8 + 32 * row : 18 + 32 * row]
    np.testing.assert_array_equal(target, wanted)
    recording = device.record(lambda: device.copy_rows(second, 64, first, 64, 64, 64))
    device.download(target, second)
    device.synchronize()
    np.testing.assert_array_equal(target, wanted)
    recording.replay()
    device.download(target, second)
    device.synchronize()
    np.testing.assert_array_equal(target, source)
    recording.release()
    with pytest.raises(MemoryError):
        device.allocate(1 << 50)
    device.close()
