import importlib.util
from dataclasses import dataclass

import pytest
from damage import break_mask, copy_engine

from dlmc.validate import built
from dlmc.validate.built import validate_built
from dlmc_runtime.bundle import Bundle

TARGET = "onnxruntime-cpu"


@dataclass
class Machine:
    """A machine with as much memory and as many libraries as the test says."""

    memory: int | None = 1 << 40
    libraries: str | None = "9.9"

    def library(self, distribution):
        return self.libraries

    def system(self):
        return "linux-x86_64"

    def compute_capability(self):
        return None

    def free_memory(self, *, gpu):
        return self.memory


def _as_graph(bundle):
    """Let the engine be the bundle's own graph."""
    folder = copy_engine(bundle, TARGET, f"{TARGET}-graph")
    record = bundle.engine(f"{TARGET}-graph").model_copy(
        update={"plan": bundle.manifest.graph, "files": {}}
    )
    (folder / "engine.json").write_text(record.model_dump_json())
    return f"{TARGET}-graph"


def test_a_sound_engine_is_compared_with_the_graph(trained):
    report = validate_built(trained, f"{TARGET}-int8")
    assert not isinstance(report, str)
    assert report.ok
    assert report.against == "graph"
    assert len(report.prompts) == 1
    assert report.layers is not None
    assert not (trained.root / "validation" / f"{TARGET}-int8.html").exists()
    assert (trained.root / "validation" / f"{TARGET}-int8.json").exists()


def test_the_graph_itself_is_compared_with_torch(trained):
    report = validate_built(trained, _as_graph(trained))
    assert not isinstance(report, str)
    assert (report.ok, report.against, report.layers) == (True, "torch", None)


def test_a_damaged_engine_does_not_pass(trained):
    break_mask(copy_engine(trained, TARGET, f"{TARGET}-damaged"), 0, "ignored")
    report = validate_built(Bundle.open(trained.root), f"{TARGET}-damaged")
    assert not isinstance(report, str)
    assert not report.ok


def test_of_a_large_model_a_forward_of_each_kind_is_compared_and_no_layers(trained, monkeypatch):
    monkeypatch.setattr(built, "_LARGE", 1)
    report = validate_built(trained, f"{TARGET}-int8")
    assert not isinstance(report, str)
    assert (report.forwards, report.layers) == (2, None)
    assert "generation" not in {row.output for row in report.rows}


def test_too_little_memory_is_said_and_nothing_is_loaded(trained, monkeypatch):
    monkeypatch.setattr("dlmc.validate.run.validate", lambda *arguments: 1 / 0)
    model = trained.manifest.model
    needed = 4 * model.parameters + trained.engine(f"{TARGET}-int8").requires.memory
    reason = validate_built(trained, f"{TARGET}-int8", Machine(memory=needed - 1))
    assert isinstance(reason, str)
    assert "of memory together" in reason
    with pytest.raises(ZeroDivisionError):
        validate_built(trained, f"{TARGET}-int8", Machine(memory=needed))
    with pytest.raises(ZeroDivisionError):
        validate_built(trained, f"{TARGET}-int8", Machine(memory=None))


def test_an_engine_for_another_machine_is_not_compared(trained):
    reason = validate_built(trained, f"{TARGET}-int8", Machine(libraries=None))
    assert reason == f"{TARGET} needs onnxruntime, which is not installed"


@pytest.mark.parametrize("package", ["polygraphy", "torch"])
def test_what_is_not_installed_is_named(trained, monkeypatch, package):
    name = _as_graph(trained)
    real = importlib.util.find_spec

    def find_spec(name, *arguments):
        return None if name == package else real(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    reason = validate_built(trained, name)
    assert isinstance(reason, str)
    assert "pip install 'dlmc[" in reason


def test_an_engine_too_small_for_the_usual_prompt_is_not_compared(trained, tmp_path):
    import shutil

    from dlmc.targets.build import build_engine, plan_build
    from dlmc.targets.profiles import ProfileRequest

    root = tmp_path / "small"
    shutil.copytree(trained.root, root)
    build_engine(plan_build(root, TARGET, ProfileRequest(batch=(1,), cache=8, prefill=8)))
    reason = validate_built(Bundle.open(root), TARGET)
    assert isinstance(reason, str)
    assert "the usual prompt does not fit" in reason


def test_a_target_that_this_version_does_not_run_is_not_compared(trained, monkeypatch):
    monkeypatch.setattr(built, "ENGINES", {})
    reason = validate_built(trained, TARGET)
    assert reason == f"this version of dlmc runs no engines for {TARGET}"
