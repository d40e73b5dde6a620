import gc

import numpy as np
import pytest
from cuda.bindings import runtime
from fake_cuda import FIRST_ADDRESS, STALE, Cuda, Error, MisuseError

from dlmc_runtime.engines import cuda as subject
from dlmc_runtime.engines.cuda import CudaDevice
from dlmc_runtime.errors import EngineError


@pytest.fixture
def cuda(monkeypatch):
    double = Cuda(memory=1 << 16)
    monkeypatch.setattr(subject, "_library", lambda: double)
    return double


@pytest.fixture
def device(cuda):
    made = CudaDevice()
    yield made
    made.close()


def test_bytes_go_to_the_device_and_back_when_it_is_waited_for(cuda, device):
    there, back = device.staging(8), device.staging(8)
    assert not there.any()
    assert there.ctypes.data < FIRST_ADDRESS
    there[:] = np.arange(8)
    address = device.allocate(16)
    assert address >= FIRST_ADDRESS
    device.zero(address, 16)
    device.upload(address + 4, there)
    device.download(back, address + 2)
    assert back.tolist() == [STALE] * 8
    device.synchronize()
    assert back.tolist() == [0, 0, 0, 1, 2, 3, 4, 5]


def test_rows_are_copied_with_their_pitches(device):
    first, second = device.allocate(64), device.allocate(64)
    source, target = device.staging(64), device.staging(64)
    source[:] = np.arange(64)
    device.upload(first, source)
    device.zero(second, 64)
    device.copy_rows(second + 3, 16, first + 8, 8, 2, 3)
    device.download(target, second)
    device.synchronize()
    wanted = np.zeros(64, np.uint8)
    for row in range(3):
        wanted[3 + 16 * row : 5 + 16 * row] = source[8 + 8 * row : 10 + 8 * row]
    assert target.tolist() == wanted.tolist()


def test_what_is_recorded_runs_when_it_is_replayed(cuda, device):
    address, back = device.allocate(4), device.staging(4)
    device.zero(address, 4)
    source = device.staging(4)
    source[:] = 7
    recording = device.record(lambda: device.upload(address, source))
    device.download(back, address)
    device.synchronize()
    assert back.tolist() == [0] * 4
    for _ in range(2):
        recording.replay()
    device.download(back, address)
    device.synchronize()
    assert back.tolist() == [7] * 4
    recording.release()
    assert set(cuda.live()) == {"device", "pinned", "streams"}


def test_work_that_cannot_be_recorded_leaves_the_stream_usable(cuda, device):
    with pytest.raises(EngineError, match=r"failed at cudaMalloc \(cudaErrorStreamCapture"):
        device.record(lambda: device.allocate(4))
    with pytest.raises(ZeroDivisionError):
        device.record(lambda: 1 / 0)
    end = Cuda.cudaStreamEndCapture.__get__(cuda)
    cuda.cudaStreamEndCapture = lambda stream: end(stream) and (Error.cudaErrorUnknown, None)
    with pytest.raises(EngineError, match="cudaStreamEndCapture"):
        device.record(lambda: None)
    device.synchronize()
    assert "executables" not in cuda.live()


def test_a_failure_of_queued_work_is_told_where_it_is_waited_for(cuda, device):
    cuda.failure = Error.cudaErrorIllegalAddress
    with pytest.raises(EngineError, match=r"at cudaStreamSynchronize \(cudaErrorIllegalAddress\)"):
        device.synchronize()


def test_too_little_memory_is_a_memory_error(device):
    with pytest.raises(MemoryError, match="cudaErrorMemoryAllocation"):
        device.allocate(1 << 20)


def test_everything_is_given_back(cuda):
    device = CudaDevice()
    kept, freed = device.allocate(0), device.allocate(8)
    device.free(freed)
    staging = device.staging(0)
    assert set(cuda.live()) == {"device", "pinned", "streams"}
    device.close()
    device.close()
    assert cuda.live() == {"pinned": 1}
    del staging
    gc.collect()
    assert cuda.live() == {}
    with pytest.raises(MisuseError, match="freed twice"):
        cuda.cudaFree(kept)


def test_pinned_memory_lives_as_long_as_a_view_of_it(cuda, device):
    view = device.staging(8)[2:].view(np.uint16)
    gc.collect()
    view[:] = 1
    assert cuda.live()["pinned"] == 1
    del view
    gc.collect()
    assert "pinned" not in cuda.live()


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 9), "sm89"), ((12, 0), "sm120"), (None, None)]
)
def test_the_gpu_is_asked_for_its_capability(monkeypatch, capability, name):
    monkeypatch.setattr(subject, "_library", lambda: Cuda(capability=capability))
    assert subject.compute_capability() == name


def test_the_gpu_is_asked_for_its_memory(cuda, device):
    before = subject.free_memory()
    device.allocate(1000)
    assert before == 1 << 16
    assert subject.free_memory() == (1 << 16) - 1000


def test_a_machine_without_a_gpu_answers_none(monkeypatch):
    monkeypatch.setattr(subject, "_library", lambda: Cuda(capability=None))
    assert subject.compute_capability() is None
    assert subject.free_memory() is None
    with pytest.raises(EngineError, match=r"CUDA failed at cudaSetDevice \(cudaErrorNoDevice\)"):
        CudaDevice()


def test_a_machine_without_cuda_python_answers_none(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    assert subject.compute_capability() is None
    assert subject.free_memory() is None
    with pytest.raises(EngineError, match=r"cuda-python is not installed: pip install 'dlmc\["):
        CudaDevice()


def test_the_real_library_answers_as_the_double_does():
    # Whether or not there is a GPU here: a code of its own kind, then values or None.
    code, count = runtime.cudaGetDeviceCount()
    assert isinstance(code, Error)
    assert (count is None) == bool(int(code))
    assert subject.compute_capability() is None or int(code) == 0
