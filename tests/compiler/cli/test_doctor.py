import pytest

from dlmc.cli import doctor
from dlmc.targets import TARGETS
from dlmc_runtime.preflight import ThisMachine
from dlmc_runtime.version import __version__


@pytest.fixture
def packages(monkeypatch):
    """Say what is installed, and which GPU there is."""

    def set_to(names, gpu=None):
        def version(name):
            return "1.0" if name in names else None

        monkeypatch.setattr(doctor, "installed", version)
        monkeypatch.setattr(ThisMachine, "compute_capability", lambda _: gpu)

    return set_to


def test_the_table_for_people(dlmc):
    outcome = dlmc("doctor")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"dlmc {__version__} on Python 3.")
    lines = {line.split()[0]: line for line in outcome.out.splitlines() if line}
    assert lines["onnxruntime-cpu"].split()[1:3] == ["yes", "yes"]
    assert lines["openvino-cpu"].split()[1:3] == ["yes", "yes"]


def test_json(dlmc):
    report = dlmc("doctor", "--json").json
    assert report["machine"]["cores"] >= 1
    assert "gpu" in report["machine"]
    assert {one["target"] for one in report["targets"]} == set(TARGETS)


@pytest.mark.parametrize(
    ("target", "names", "gpu", "build", "run", "todo"),
    [
        ("openvino-cpu", {"openvino", "onnx", "onnx-ir"}, None, True, True, ""),
        ("openvino-cpu", {"openvino"}, None, False, True, "pip install 'dlmc[compile]' to build"),
        ("openvino-cpu", {"onnx", "onnx-ir"}, None, False, False, "pip install 'dlmc[openvino]'"),
        (
            "tensorrt-rtx",
            {"tensorrt-rtx-cu13", "onnx", "onnx-ir"},
            None,
            True,
            False,
            "no GPU answers here: builds only",
        ),
        (
            "tensorrt",
            {"tensorrt", "onnx", "onnx-ir"},
            None,
            False,
            False,
            "no GPU answers here: build and run it there",
        ),
        ("tensorrt", {"tensorrt", "onnx", "onnx-ir"}, "sm89", True, True, ""),
        ("onnxruntime-cuda", {"onnxruntime-gpu", "onnx", "onnx-ir"}, "sm89", True, True, ""),
        (
            "onnxruntime-cuda",
            {"onnx", "onnx-ir"},
            None,
            True,
            False,
            "pip uninstall onnxruntime; pip install --force-reinstall "
            "'onnxruntime-gpu[cuda,cudnn]' cuda-python; no GPU answers here: builds only",
        ),
        ("tensorrt", {"tensorrt"}, "sm89", False, True, "pip install 'dlmc[compile]' to build"),
    ],
)
def test_what_a_target_lacks(packages, dlmc, target, names, gpu, build, run, todo):
    packages(names, gpu)
    found = doctor.examine(target, gpu)
    assert (found.build, found.run, found.todo) == (build, run, todo)
    line = next(line for line in dlmc("doctor").out.splitlines() if line.startswith(f"{target} "))
    assert line.endswith(todo or "1.0")


def test_what_is_missing_says_how_to_get_it(dlmc, packages):
    packages(set())
    out = dlmc("doctor").out
    assert "pip install 'dlmc[compile]'" in out
    assert "no GPU" in out.splitlines()[0]


@pytest.mark.parametrize("package", ["no-such-distribution", ""])
def test_a_distribution_that_is_not_installed(package):
    assert doctor.installed(package or "no-such") is None
