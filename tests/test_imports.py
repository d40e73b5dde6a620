"""The runtime carries no compiler: each module is imported in a process of its own."""

import json
import pkgutil
import subprocess
import sys

import pytest

import dlmc_runtime

COMPILER = {
    "dlmc",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "polygraphy",
    "safetensors",
    "torch",
    "transformers",
}
# Import on demand: what `import dlmc_runtime` alone must not cost.
ON_DEMAND = {"huggingface_hub", "jinja2", "onnxruntime", "pydantic", "rich", "tokenizers", "typer"}
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(dlmc_runtime.__path__, "dlmc_runtime.")
)
_IMPORT = "import importlib, json, sys; importlib.import_module(sys.argv[1]); {}"
_PRINT = "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
# What many modules import takes the most time: it is imported once, before the process forks.
_SHARED = ("fastapi", "jinja2", "numpy", "pydantic", "tokenizers")
_FORK = f"""
import importlib, importlib.util, json, os, sys
for library in filter(importlib.util.find_spec, {_SHARED}):
    importlib.import_module(library)
for module in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(module)
        print(json.dumps([module, sorted({{name.partition('.')[0] for name in sys.modules}})]))
        sys.exit()
    os.wait()
"""


def loaded_by(module):
    """Return the top-level packages that a fresh process has after importing ``module``."""
    command = [sys.executable, "-c", _IMPORT.format(_PRINT), module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module")
def loaded_by_each():
    """The packages that a process has after importing a module of the runtime, for each of them.

    None of these processes has imported another module of the runtime before.
    """
    command = [sys.executable, "-c", _FORK, "dlmc_runtime", *MODULES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert list(found) == ["dlmc_runtime", *MODULES], done.stderr
    return found


def test_the_runtime_has_modules():
    assert "dlmc_runtime.manifest" in MODULES


@pytest.mark.parametrize("module", ["dlmc_runtime", *MODULES])
def test_a_runtime_module_loads_no_compiler(loaded_by_each, module):
    assert not COMPILER & set(loaded_by_each[module])


def test_importing_the_runtime_is_light():
    assert not loaded_by("dlmc_runtime") & ON_DEMAND


@pytest.mark.parametrize("module", ["dlmc", "dlmc.cli.app"])
def test_the_command_line_starts_without_heavy_libraries(module):
    assert not loaded_by(module) & ((COMPILER - {"dlmc"}) | {"huggingface_hub", "onnxruntime"})


def test_the_whole_runtime_in_one_process_has_no_torch():
    source = "".join(f"import {module}\n" for module in MODULES)
    source += "import sys; sys.exit(bool({'torch', 'transformers', 'dlmc'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", source], check=True)
