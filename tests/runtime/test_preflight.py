"""An engine that does not fit is refused with one sentence, before its library is imported."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import pytest

from dlmc_runtime import preflight
from dlmc_runtime.engine_record import EngineRecord, Requirements
from dlmc_runtime.engines import ENGINES
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import Profile


@dataclass
class Box:
    """A machine as the test wants it."""

    libraries: dict
    name: str = "linux-x86_64"
    gpu: str | None = None
    memory: int | None = 1 << 34

    def library(self, distribution):
        return self.libraries.get(distribution)

    def system(self):
        return self.name

    def compute_capability(self):
        return self.gpu

    def free_memory(self, *, gpu):
        return self.memory


def record(**needs):
    return EngineRecord(
        target="tensorrt",
        device="sm89",
        precision="float32",
        profiles=(Profile(batch=1, block=1, cache=0, rows=1),),
        plan="engines/tensorrt/engine.plan",
        requires=Requirements(
            **{"library": "tensorrt", "version": "11.1.0", "match": "exact", **needs}
        ),
        manifest_sha256="0" * 64,
        versions={},
        files={},
    )


GPU = Box({"tensorrt": "11.1.0"}, gpu="sm89")
FOR_GPU = {"compute_capabilities": ("sm86", "sm89"), "system": "linux-x86_64", "memory": 1 << 30}


def test_what_fits_is_not_refused():
    assert preflight.obstacle(record(**FOR_GPU), GPU) is None
    preflight.check(record(**FOR_GPU), GPU)


@pytest.mark.parametrize(
    ("needs", "machine", "problem", "remedy"),
    [
        (
            {},
            Box({}),
            "needs tensorrt, which is not",
            "pip install 'dlmc[tensorrt]' tensorrt==11.1.0",
        ),
        ({"match": "any"}, Box({}), "needs tensorrt, which", "pip install 'dlmc[tensorrt]'"),
        ({}, Box({"tensorrt": "11.2.0"}), "tensorrt 11.1.0, here is 11.2.0", "install that"),
        (
            FOR_GPU,
            Box({"tensorrt": "11.1.0"}, name="linux-aarch64", gpu="sm89"),
            "built for linux-x86_64, this is linux-aarch64",
            "dlmc build --target tensorrt",
        ),
        (FOR_GPU, Box({"tensorrt": "11.1.0"}), r"a GPU \(sm86, sm89\), none answers", "nvidia-smi"),
        (
            FOR_GPU,
            Box({"tensorrt": "11.1.0"}, gpu="sm90"),
            "built for sm86, sm89, this GPU is sm90",
            "dlmc build --target tensorrt",
        ),
        (
            {**FOR_GPU, "newer_gpus": True},
            Box({"tensorrt": "11.1.0"}, gpu="sm80"),
            "this GPU is sm80",
            "dlmc build",
        ),
        (
            FOR_GPU,
            Box({"tensorrt": "11.1.0"}, gpu="sm89", memory=1 << 29),
            "needs 1.0 GiB of memory, the GPU has 0.5 GiB free",
            "smaller --batch",
        ),
        (
            {"memory": 3 << 30},
            Box({"tensorrt": "11.1.0"}, memory=1 << 31),
            "this machine has 2.0 GiB free",
            "smaller --batch",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(needs, machine, problem, remedy):
    with pytest.raises(EngineError, match=problem) as caught:
        preflight.check(record(**needs), machine)
    assert remedy in caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gpu", ["sm89", "sm90", "sm120"])
def test_newer_gpus_run_a_hardware_compatible_engine(gpu):
    needs = {**FOR_GPU, "compute_capabilities": ("sm89",), "newer_gpus": True}
    assert preflight.obstacle(record(**needs), Box({"tensorrt": "11.1.0"}, gpu=gpu)) is None


def test_newer_means_newer_than_all_it_was_built_for():
    needs = {**FOR_GPU, "compute_capabilities": ("sm80", "sm89"), "newer_gpus": True}
    with pytest.raises(EngineError, match="built for sm80, sm89, this GPU is sm87"):
        preflight.check(record(**needs), Box({"tensorrt": "11.1.0"}, gpu="sm87"))


@pytest.mark.parametrize("version", ["11.1.0", "11.1.0.post1", "11.10.0", "12.0"])
def test_later_versions_run_a_version_compatible_engine(version):
    assert preflight.obstacle(record(match="later"), Box({"tensorrt": version})) is None


@pytest.mark.parametrize("version", ["11.0.9", "10.16.2", "9"])
def test_earlier_versions_do_not(version):
    found = preflight.obstacle(record(match="later"), Box({"tensorrt": version}))
    assert found is not None
    assert "that version or a later one" in found[1]


def test_the_gpu_build_of_onnxruntime_stands_in_for_the_other(monkeypatch):
    def installed(name):
        if name != "onnxruntime-gpu":
            raise PackageNotFoundError(name)
        return "1.31.0"

    monkeypatch.setattr(preflight, "version", installed)
    assert preflight.ThisMachine().library("onnxruntime") == "1.31.0"
    assert preflight.ThisMachine().library("openvino") is None


def test_any_version_runs_a_plain_graph():
    assert preflight.obstacle(record(match="any"), Box({"tensorrt": "7"})) is None


def test_every_engine_library_has_a_command_that_installs_it():
    for kind in ENGINES.values():
        assert preflight.install(kind.distribution) != f"pip install {kind.distribution}"
    assert preflight.install("abacus") == "pip install abacus"


def test_unknown_memory_is_no_obstacle():
    assert (
        preflight.obstacle(record(memory=1 << 40), Box({"tensorrt": "11.1.0"}, memory=None)) is None
    )


def test_the_gpu_of_this_machine_is_asked_only_where_one_is_needed(monkeypatch):
    asked = []
    monkeypatch.setattr("dlmc_runtime.engines.cuda.compute_capability", lambda: asked.append("gpu"))
    monkeypatch.setattr("dlmc_runtime.engines.cuda.free_memory", lambda: asked.append("memory"))
    here = version("onnxruntime")
    plain = record(library="onnxruntime", version=here)
    assert preflight.obstacle(plain) is None
    assert asked == []
    assert preflight.obstacle(
        record(library="onnxruntime", version=here, compute_capabilities=("sm89",))
    ) == (
        "tensorrt needs a GPU (sm89), none answers here",
        "run it where there is one; nvidia-smi shows what the driver sees",
    )
    assert asked == ["gpu"]
    assert preflight.ThisMachine().free_memory(gpu=True) is None
    assert asked == ["gpu", "memory"]


def test_this_machine_knows_itself():
    here = preflight.ThisMachine()
    assert here.library("onnxruntime")
    assert here.library("no-such-distribution") is None
    system, processor = here.system().split("-", 1)
    assert system.islower()
    assert processor
    free = here.free_memory(gpu=False)
    assert free is None or free > 1 << 20
