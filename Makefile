# Needs Python 3.11 or newer with pip, and make. Everything else goes into $(VENV).
PYTHON ?= python3
VENV ?= .venv
# CPU machines on Linux: name a CPU build or index of PyTorch here or in PIP_EXTRA_INDEX_URL.
TORCH ?= torch==2.13.0
# Processes that test at once, each on a core of its own; 0 tests in one, which pytest --pdb needs.
WORKERS ?= 2
# A question of the held-out set: no checkpoint has been trained on it.
QUESTION ?= 458+386=?

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Modules are compiled when they are first imported, which most of them never are.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
BENCH ?= accuracy precision lowering_error overhead denoise_forward end_to_end dual_cache \
    serving structured samplers experts diffusion_gemma engine_load export_memory install_size \
    startup
DEMO := artifacts/demo
TINY := tiny-llada tiny-sdar tiny-gemma
# Two makes at once must not install into one environment: the second waits, then finds it done.
LOCK := $(if $(shell command -v flock),flock $(VENV).lock)
export OMP_NUM_THREADS ?= 2

.DEFAULT_GOAL := help
.PHONY: help environment demo test gpu-check check lint format train bench schema map samplers families clean
.PHONY: $(TINY:%=demo-%) $(TINY:%=train-%)

help: ## List the targets
	@sed -n 's/^\([a-z -]*\):.*## /\1\t/p' Makefile | expand -t 14

environment: ## Install dlmc and its tools into .venv, if pyproject.toml is newer
	@$(LOCK) $(MAKE) --silent $(STAMP)

$(STAMP): pyproject.toml
	@echo "Installing into $(VENV); the first time takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '$(TORCH)'
	$(INSTALL) -e '.[dev]'
	# For its tritonserver program alone: its own Python code asks for an older numpy.
	-$(INSTALL) --no-deps nvidia-pytriton
	# Its Triton is 24.10, whose models cannot read numpy 2: tests give them this one.
	-$(INSTALL) --no-deps --target $(VENV)/share/triton-python 'numpy<2'
	@touch $@

demo: $(TINY:%=demo-%) ## Export, build, validate and run the shipped checkpoints

$(TINY:%=demo-%): demo-%: environment
	@echo "== $*"
	$(BIN)/dlmc export artifacts/$* -o $(DEMO)/$* --recipe tiny/$* --force
	$(BIN)/dlmc build $(DEMO)/$* --target onnxruntime-cpu
	$(BIN)/dlmc build $(DEMO)/$* --target openvino-cpu --precision bf16
	$(BIN)/dlmc build $(DEMO)/$* --target tensorrt-rtx --precision bf16 --compute-capability sm89,sm120
	$(BIN)/dlmc validate $(DEMO)/$*
	$(BIN)/dlmc run $(DEMO)/$* --stats "$(QUESTION)"
	$(BIN)/dlmc run $(DEMO)/$* --target openvino-cpu --stats "$(QUESTION)"

test: environment ## Run the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

gpu-check: ## Build, validate and test on this machine's NVIDIA GPU
	$(PYTHON) tests/gpu/check.py --torch '$(TORCH)'

check: lint test ## Run what CI runs: format, lint, types, tests

lint: environment ## Check format, lint rules and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: environment ## Rewrite the sources as the linter wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

train: $(TINY:%=train-%) ## Train the tiny checkpoints anew (hours)

$(TINY:%=train-%): train-tiny-%: environment
	$(BIN)/python recipes/tiny/train.py $* --output artifacts/tiny-$*

bench: environment demo ## Run the benchmarks and write benchmarks/results/
	set -e; for name in $(BENCH); do \
	    PYTHONPATH=recipes/tiny $(BIN)/python benchmarks/$$name.py \
	        --json benchmarks/results/$$name.json; \
	done

schema map samplers families: environment ## Regenerate docs/*.schema.json, or the map or tables in a page of docs/
	$(BIN)/python docs/generate.py $@

clean: ## Remove the environment, caches and whatever was built
	rm -rf $(VENV) $(VENV).lock .venv-gpu $(DEMO) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
