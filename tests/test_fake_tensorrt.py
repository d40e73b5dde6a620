"""The double has the interface of TensorRT, and answers no where it would."""

import inspect
import re

import fake_tensorrt
import handmade
import numpy as np
import pytest
import tensorrt_rtx as real
from fake_cuda import Cuda, MisuseError

from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.base import tensor_shape
from dlmc_runtime.engines.tensorrt import logger

NAMES = {
    "Runtime": "Runtime",
    "ICudaEngine": "ICudaEngine",
    "IExecutionContext": "IExecutionContext",
}


def methods():
    for ours, theirs in NAMES.items():
        for name, member in vars(getattr(fake_tensorrt, ours)).items():
            if inspect.isfunction(member) and not name.startswith("_") and name != "numpy_type":
                yield theirs, name, list(inspect.signature(member).parameters)[1:]


@pytest.mark.parametrize(("kind", "name", "parameters"), list(methods()))
def test_a_method_takes_what_the_real_one_takes(kind, name, parameters):
    text = getattr(getattr(real, kind), name).__doc__
    signatures = re.findall(rf"{name}\((.*?)\) -> ", text)
    taken = [re.findall(r"(\w+): ", one.split(" = ")[0])[1:] for one in signatures]
    # An overloaded parameter has a name of its own in each variant.
    assert any(len(one) == len(parameters) for one in taken)
    assert len(signatures) > 1 or taken == [parameters]


def test_the_methods_are_found():
    assert len(list(methods())) == 12


@pytest.mark.parametrize(
    "name", ["num_io_tensors", "num_optimization_profiles", "device_memory_size_v2"]
)
def test_a_number_is_one_of_the_real_ones(setup, name):
    assert isinstance(inspect.getattr_static(real.ICudaEngine, name), property)
    assert getattr(setup.engine, name) > 0


def test_a_runtime_configuration_has_the_names_of_the_real_one(bundle):
    setup = Setup(fake_tensorrt.TensorRT(Cuda()), bundle)
    setup.trt.rtx = True
    config = vars(setup.engine.create_runtime_config())
    assert set(config) - {"strategy"} <= set(dir(real.IRuntimeConfig))


@pytest.fixture
def trt():
    return fake_tensorrt.TensorRT(Cuda())


@pytest.fixture
def bundle(tmp_path):
    return Bundle.open(handmade.write(tmp_path / "bundle"))


class Setup:
    """An engine, a context, and memory for every tensor of a profile."""

    def __init__(self, trt, bundle, index=0):
        self.trt, self.cuda, self.manifest = trt, trt.cuda, bundle.manifest
        profiles = self.manifest.profiles
        self.profile, self.index = profiles[index], index
        data = fake_tensorrt.plan(bundle.root / "denoiser.onnx", self.manifest, profiles)
        self.logger, self.log = logger(trt)
        self.engine = trt.Runtime(self.logger).deserialize_cuda_engine(data)
        strategy = real.ExecutionContextAllocationStrategy.USER_MANAGED
        self.context = self.engine.create_execution_context(strategy)
        self.stream = self.cuda.cudaStreamCreateWithFlags(self.cuda.cudaStreamNonBlocking)[1]
        self.at = {}
        for spec in (*self.manifest.inputs, *self.manifest.outputs):
            size = int(np.prod(tensor_shape(spec, self.profile))) * 8
            self.at[spec.name] = self.cuda.cudaMalloc(size)[1]

    def choose(self):
        assert self.context.set_optimization_profile_async(self.index, self.stream)

    def shape(self):
        for spec in self.manifest.inputs:
            assert self.context.set_input_shape(spec.name, tensor_shape(spec, self.profile))

    def place(self):
        for name, address in self.at.items():
            assert self.context.set_tensor_address(name, address)

    def scratch(self):
        size = self.engine.device_memory_size_v2
        self.context.set_device_memory(self.cuda.cudaMalloc(size)[1], size)

    def all(self):
        self.choose()
        self.shape()
        self.place()
        self.scratch()
        return self

    def write(self, name, values):
        self.cuda.find(self.at[name], values.nbytes, "device", name)[:] = values.view(
            np.uint8
        ).reshape(-1)

    def run(self):
        return self.context.execute_async_v3(self.stream)


@pytest.fixture
def setup(trt, bundle):
    return Setup(trt, bundle)


def fill(setup):
    for spec in setup.manifest.inputs:
        shape = tensor_shape(spec, setup.profile)
        setup.write(spec.name, np.zeros(shape, setup.engine.numpy_type(spec.name)))
    positions = np.arange(8, 8 + setup.profile.block)
    setup.write("position_ids", np.tile(positions, (setup.profile.batch, 1)))


def answer(setup):
    return setup.cuda.find(setup.at["sampled_id"], 32, "device", "").view(np.int64).tolist()


def test_it_runs_when_the_stream_gets_there(setup):
    setup.all()
    fill(setup)
    assert setup.run()
    assert answer(setup) == [-1] * 4
    setup.cuda.cudaStreamSynchronize(setup.stream)
    assert answer(setup) == [handmade.TABLE[8]] * 4


@pytest.mark.parametrize("missing", ["choose", "shape", "place", "scratch"])
def test_nothing_runs_before_all_is_set(setup, missing):
    for step in ("choose", "shape", "place", "scratch"):
        if step != missing and (step != "shape" or missing != "choose"):
            getattr(setup, step)()
    assert not setup.run()
    assert "not all is set" in setup.log.first()


def test_a_new_profile_wants_new_shapes(setup):
    setup.all()
    setup.choose()
    assert not setup.run()


def test_shapes_are_those_of_the_profile(setup):
    assert not setup.context.set_input_shape("input_ids", (1, 4))
    setup.choose()
    assert not setup.context.set_input_shape("input_ids", (1, 8))
    assert not setup.context.set_input_shape("no", (1, 8))
    assert not setup.context.set_optimization_profile_async(9, setup.stream)
    assert setup.log.first().startswith("Error Code 3")


def test_addresses_are_aligned_and_lie_in_memory_that_is_large_enough(setup):
    assert not setup.context.set_tensor_address("input_ids", setup.at["input_ids"] + 8)
    assert not setup.context.set_tensor_address("no", setup.at["input_ids"])
    setup.all()
    small = setup.cuda.cudaMalloc(8)[1]
    assert setup.context.set_tensor_address("input_ids", small)
    with pytest.raises(MisuseError, match="an engine: no 32 bytes of device memory"):
        setup.run()


def test_an_output_without_room_is_caught(setup):
    setup.all()
    fill(setup)
    setup.context.set_tensor_address("sampled_id", setup.cuda.cudaMalloc(8)[1])
    setup.run()
    with pytest.raises(MisuseError, match="sampled_id: no 32 bytes of device memory"):
        setup.cuda.cudaStreamSynchronize(setup.stream)


def test_tensors_that_lie_over_one_another_are_caught(setup):
    setup.all()
    fill(setup)
    setup.context.set_tensor_address("entropy", setup.at["logsumexp"])
    with pytest.raises(MisuseError, match="two tensors lie at one address"):
        setup.run()


def test_an_output_that_lies_over_an_input_is_caught(trt, bundle):
    setup = Setup(trt, bundle, index=3).all()
    fill(setup)
    setup.context.set_tensor_address("sampled_id", setup.at["attention_mask"] + 256)
    assert setup.run()
    with pytest.raises(MisuseError, match="sampled_id lies over something else"):
        setup.cuda.cudaStreamSynchronize(setup.stream)


def test_scratch_memory_must_suffice(setup):
    with pytest.raises(MisuseError, match="scratch memory of 8 bytes"):
        setup.context.set_device_memory(setup.cuda.cudaMalloc(8)[1], 8)


def test_what_a_first_run_sets_up_cannot_be_captured(setup):
    setup.all()
    fill(setup)
    mode = setup.cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    for settled in (False, True):
        setup.cuda.cudaStreamBeginCapture(setup.stream, mode)
        assert setup.run() == settled
        code, _ = setup.cuda.cudaStreamEndCapture(setup.stream)
        assert (int(code) == 0) == settled
        assert setup.run()


def test_a_plan_of_another_version_is_refused(trt, bundle):
    data = fake_tensorrt.plan(
        bundle.root / "denoiser.onnx", bundle.manifest, bundle.manifest.profiles, "11.0"
    )
    made, log = logger(trt)
    assert trt.Runtime(made).deserialize_cuda_engine(data) is None
    assert log.first() == "Error Code 6: another version"
    assert trt.Runtime(made).deserialize_cuda_engine(b"plan") is None
    assert log.first() == "Error Code 1: the magic tag does not match"
    assert log.first() == "it says no more"
