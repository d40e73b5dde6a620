"""The double has the interface of cuda-python, and catches what a GPU would not."""

import inspect

import numpy as np
import pytest
from cuda.bindings import runtime
from fake_cuda import FIRST_ADDRESS, STALE, Cuda, Error, Kind, MisuseError

FUNCTIONS = [n for n, f in vars(Cuda).items() if n.startswith("cuda") and inspect.isfunction(f)]


@pytest.fixture
def cuda():
    return Cuda()


@pytest.fixture
def stream(cuda):
    return cuda.cudaStreamCreateWithFlags(cuda.cudaStreamNonBlocking)[1]


def device(cuda, size=64):
    return cuda.cudaMalloc(size)[1]


def pinned(cuda, size=64):
    return cuda.cudaHostAlloc(size, 0)[1]


def upload(cuda, stream, target, source, size=64):
    return cuda.cudaMemcpyAsync(target, source, size, Kind.cudaMemcpyHostToDevice, stream)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_what_the_real_one_takes(name):
    ours = list(inspect.signature(getattr(Cuda, name)).parameters)[1:]
    assert ours == list(inspect.signature(getattr(runtime, name)).parameters)


def test_the_functions_are_found():
    assert len(FUNCTIONS) > 15


def test_device_addresses_are_no_host_addresses(cuda):
    assert device(cuda) >= FIRST_ADDRESS > np.iinfo(np.int64).max // 256
    assert device(cuda) != device(cuda)


def test_a_copy_happens_when_it_is_waited_for(cuda, stream):
    there, source, back = device(cuda), pinned(cuda), pinned(cuda)
    cuda.find(source, 64, "pinned", "")[:] = 5
    upload(cuda, stream, there, source)
    cuda.cudaMemcpyAsync(back, there, 64, Kind.cudaMemcpyDeviceToHost, stream)
    assert set(cuda.find(back, 64, "pinned", "")) == {STALE}
    cuda.cudaStreamSynchronize(stream)
    assert set(cuda.find(back, 64, "pinned", "")) == {5}


def test_host_memory_that_changes_before_its_copy_is_caught(cuda, stream):
    source = pinned(cuda)
    upload(cuda, stream, device(cuda), source)
    cuda.find(source, 64, "pinned", "")[3] = 1
    with pytest.raises(MisuseError, match="host changed memory"):
        cuda.cudaStreamSynchronize(stream)


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_copy_out_of_bounds_is_caught(cuda, stream, shift):
    with pytest.raises(MisuseError, match="no 64 bytes of device memory"):
        upload(cuda, stream, device(cuda) + shift, pinned(cuda))


@pytest.mark.parametrize("kind", ["cudaMemcpyDeviceToHost", "cudaMemcpyDeviceToDevice"])
def test_a_copy_in_a_wrong_direction_is_caught(cuda, stream, kind):
    with pytest.raises(MisuseError, match="memory at"):
        cuda.cudaMemcpyAsync(device(cuda), pinned(cuda), 8, getattr(Kind, kind), stream)


def test_ordinary_host_memory_is_not_pinned(cuda, stream):
    with pytest.raises(MisuseError, match="no 64 bytes of pinned memory"):
        upload(cuda, stream, device(cuda), np.zeros(64, np.uint8).ctypes.data)


def test_rows_that_do_not_fit_are_caught(cuda, stream):
    within, there = Kind.cudaMemcpyDeviceToDevice, device(cuda)
    with pytest.raises(MisuseError, match="pitches of 4 and 8"):
        cuda.cudaMemcpy2DAsync(there, 4, device(cuda), 8, 6, 2, within, stream)
    with pytest.raises(MisuseError, match="no 66 bytes of device memory"):
        cuda.cudaMemcpy2DAsync(there, 32, device(cuda), 8, 2, 3, within, stream)
    with pytest.raises(MisuseError, match="overlap"):
        cuda.cudaMemcpy2DAsync(there, 8, there + 4, 8, 6, 2, within, stream)


def test_freed_memory_is_caught(cuda, stream):
    there, source = device(cuda), pinned(cuda)
    upload(cuda, stream, there, source)
    with pytest.raises(MisuseError, match="freed while cudaMemcpyAsync waits"):
        cuda.cudaFree(there)
    cuda.cudaStreamSynchronize(stream)
    cuda.cudaFree(there)
    with pytest.raises(MisuseError, match="freed twice"):
        cuda.cudaFree(there)
    with pytest.raises(MisuseError, match="was freed"):
        upload(cuda, stream, there, source)
    with pytest.raises(MisuseError, match="no address of device memory"):
        cuda.cudaFree(source)


def captured(cuda, stream, work):
    mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    cuda.cudaStreamBeginCapture(stream, mode)
    work()
    return cuda.cudaStreamEndCapture(stream)


def test_a_graph_replays_the_addresses_it_was_captured_with(cuda, stream):
    addresses = [device(cuda), device(cuda)]
    target = addresses[0]
    _, graph = captured(cuda, stream, lambda: cuda.cudaMemsetAsync(target, 9, 64, stream))
    target = addresses[1]
    _, executable = cuda.cudaGraphInstantiate(graph, 0)
    cuda.cudaGraphLaunch(executable, stream)
    cuda.cudaStreamSynchronize(stream)
    first, second = (cuda.find(address, 64, "device", "") for address in addresses)
    assert set(first) == {9}
    assert 9 not in second
    cuda.cudaFree(addresses[0])
    with pytest.raises(MisuseError, match=r"memset: memory at .* was freed"):
        cuda.cudaGraphLaunch(executable, stream)
    cuda.cudaGraphExecDestroy(executable)
    with pytest.raises(MisuseError, match="launched that was destroyed"):
        cuda.cudaGraphLaunch(executable, stream)
    with pytest.raises(MisuseError, match="destroyed twice"):
        cuda.cudaGraphExecDestroy(executable)


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaStreamSynchronize"])
def test_what_may_not_be_captured_spoils_the_capture(cuda, stream, name):
    argument = 64 if name == "cudaMalloc" else stream
    codes = []
    code, graph = captured(cuda, stream, lambda: codes.append(getattr(cuda, name)(argument)[0]))
    assert codes == [Error.cudaErrorStreamCaptureUnsupported]
    assert (code, graph) == (Error.cudaErrorStreamCaptureInvalidated, None)


def test_a_stream_is_not_destroyed_with_work_on_it(cuda, stream):
    cuda.cudaMemsetAsync(device(cuda), 0, 64, stream)
    with pytest.raises(MisuseError, match="work that nobody waited for"):
        cuda.cudaStreamDestroy(stream)
    cuda.cudaStreamSynchronize(stream)
    cuda.cudaStreamDestroy(stream)
    with pytest.raises(MisuseError, match="no stream"):
        cuda.cudaStreamSynchronize(stream)


def test_what_was_not_given_back_is_counted(cuda, stream):
    there = device(cuda)
    _, graph = captured(cuda, stream, lambda: None)
    _, executable = cuda.cudaGraphInstantiate(graph, 0)
    pinned(cuda)
    assert cuda.live() == dict.fromkeys(("device", "pinned", "streams", "graphs", "executables"), 1)
    cuda.cudaFree(there)
    cuda.cudaGraphDestroy(graph)
    cuda.cudaGraphExecDestroy(executable)
    assert cuda.live() == {"pinned": 1, "streams": 1}
