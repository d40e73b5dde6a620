"""Rules of the layout that no linter states."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from dlmc_runtime.version import __version__

ROOT = Path(__file__).parent.parent
MIRRORS = {"compiler/dlmc": "tests/compiler", "runtimes/dlmc_runtime": "tests/runtime"}
SOURCES = sorted(
    path for folder in MIRRORS for path in (ROOT / folder).rglob("*.py") if path.stat().st_size
)
# Sources whose tests live elsewhere, and where.
TESTED_ELSEWHERE = {
    "compiler/dlmc/denoiser/config.py": "tests/compiler/denoiser/test_denoiser.py",
    "compiler/dlmc/checkpoint/stack.py": "tests/compiler/checkpoint/test_weights.py",
    "compiler/dlmc/export/options.py": "tests/compiler/export/test_plan.py",
    "compiler/dlmc/export/passes/define_mixture.py": "tests/compiler/export/test_mixture.py",
    "compiler/dlmc/folder_writer.py": "tests/compiler/export/test_bundle_writer.py",
    "compiler/dlmc/export/translation.py": "tests/compiler/lowering/test_experts.py",
    "compiler/dlmc/families/llada_moe.py": "tests/compiler/families/test_experts.py",
    "compiler/dlmc/families/rnd1.py": "tests/compiler/families/test_experts.py",
    "compiler/dlmc/lowering/passes/inline_mixture.py": "tests/compiler/lowering/test_experts.py",
    "compiler/dlmc/lowering/passes/native_mixture.py": "tests/compiler/lowering/test_experts.py",
    "runtimes/dlmc_runtime/engines/base.py": "tests/runtime/test_decode.py",
    "runtimes/dlmc_runtime/version.py": "tests/test_repository.py",
}
# Samplers of one reference are tested together.
TESTED_ELSEWHERE |= {
    f"runtimes/dlmc_runtime/samplers/{name}.py": f"tests/runtime/samplers/test_{reference}.py"
    for reference, names in {
        "dream": ("maskgit_plus", "topk_margin", "entropy", "origin", "confidence_threshold"),
        "sdar": ("low_confidence_static", "low_confidence_dynamic", "sequential"),
        "nemotron": (
            "by_rank",
            "fixed",
            "confidence_threshold_ref",
            "confidence_threshold_bound",
            "cumulative_error",
        ),
        "speculation": ("autoregressive", "linear_speculation"),
    }.items()
    for name in names
}
# Each engine library is imported in these files and nowhere else.
ENGINE_LIBRARIES = {
    "cuda": ("engines/cuda.py",),
    "openvino": ("engines/openvino.py", "targets/openvino_cpu.py"),
    "tensorrt": ("engines/tensorrt.py",),
    "tensorrt_rtx": ("engines/tensorrt.py",),
}
MAX_LINES = 400
MAX_BODY_LINES = 60
MAX_FILE_BYTES = 10_000_000
_MACHINE = re.compile(r"/[w]ork/|/[f]arm/|/opt/[w]heels|/home/[a-z]+/|[p]ypi\.org|pytho[n]hosted")


def _name(path):
    return path.relative_to(ROOT).as_posix()


def _tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def _imports(path):
    """Return the top-level packages a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_source_file_can_be_read(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0].lineno  # a command's signature is as long as its options
            assert (node.end_lineno or first) - first < MAX_BODY_LINES, node.name


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.name != "__init__.py"], ids=_name
)
def test_a_source_file_has_its_tests(path):
    source, tests = next(pair for pair in MIRRORS.items() if _name(path).startswith(pair[0]))
    mirror = ROOT / tests / path.relative_to(ROOT / source)
    expected = TESTED_ELSEWHERE.get(_name(path), _name(mirror.with_name(f"test_{path.name}")))
    exists = (ROOT / expected).exists()
    assert exists, f"expected {expected}; TESTED_ELSEWHERE names exceptions"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_an_engine_library_stays_in_its_file(path):
    strays = {
        library
        for library in _imports(path) & set(ENGINE_LIBRARIES)
        if not _name(path).endswith(ENGINE_LIBRARIES[library])
    }
    assert not strays


def test_test_folders_are_no_packages():
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_tracked_file_is_large():
    assert not [path for path in _tracked() if path.stat().st_size > MAX_FILE_BYTES]


def test_no_tracked_file_names_a_machine_or_a_registry():
    found = []
    for path in _tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{_name(path)}: {match}" for match in _MACHINE.findall(text)]
    assert not found


def test_ci_runs_what_the_readme_says():
    script = ROOT / ".ci" / "run"
    commands = script.read_text(encoding="utf-8").splitlines()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    for command in ("make demo", "make test"):
        assert command in commands
        assert command in readme


def test_the_changelog_has_the_current_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{__version__}]" in changelog or "## [Unreleased]" in changelog
