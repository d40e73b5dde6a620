from pathlib import Path

import pytest

from dlmc.bench import memory
from dlmc_runtime.errors import EngineError

STATUS = "Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nThreads:\t1\n"


def test_fields_of_status_are_bytes():
    assert memory.kilobytes(STATUS, "VmHWM") == 2048 * 1024
    assert memory.kilobytes(STATUS, "VmRSS") == 1024 * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells, others do not")
def test_an_engine_in_a_process_of_its_own(root):
    found = memory.measure(root, "onnxruntime-cpu")
    assert found is not None
    assert 0 < found.load <= found.peak
    assert 0 < found.anonymous <= 2 * found.peak
    weights = sum(path.stat().st_size for path in (root / "weights").iterdir())
    assert found.read > weights  # at least its hash was computed
    assert found.seconds > 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells, others do not")
def test_an_engine_that_is_not_there(root):
    with pytest.raises(
        EngineError, match=r"failed \(no engine for openvino-cpu found at .*: run dlmc build"
    ):
        memory.measure(root, "openvino-cpu")


def test_a_system_that_does_not_tell(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    assert memory.measure(tmp_path, "onnxruntime-cpu") is None
