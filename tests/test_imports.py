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


def loaded_by(module):
    """Return the top-level packages that a fresh process has after importing ``module``."""
    command = [sys.executable, "-c", _IMPORT.format(_PRINT), module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_runtime_has_modules():
    assert "dlmc_runtime.manifest" in MODULES


@pytest.mark.parametrize("module", ["dlmc_runtime", *MODULES])
def test_a_runtime_module_loads_no_compiler(module):
    assert not loaded_by(module) & COMPILER


def test_importing_the_runtime_is_light():
    assert not loaded_by("dlmc_runtime") & ON_DEMAND


@pytest.mark.parametrize("module", ["dlmc", "dlmc.cli.app"])
def test_the_command_line_starts_without_heavy_libraries(module):
    assert not loaded_by(module) & ((COMPILER - {"dlmc"}) | {"huggingface_hub", "onnxruntime"})


def test_the_whole_runtime_in_one_process_has_no_torch():
    source = "".join(f"import {module}\n" for module in MODULES)
    source += "import sys; sys.exit(bool({'torch', 'transformers', 'dlmc'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", source], check=True)
