# One command each, here and in CI. Every target makes .venv on first need; that takes python3 (3.11 or newer),
# pip and make, nothing else. ARGS passes options on: make test ARGS="tests/layout/test_layout.py -x".
# make test PY=/path/to/python runs in an environment you prepared yourself, and makes no .venv.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
ARGS ?=

ifeq ($(origin PY), command line)
STAMP :=
export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
endif

# Tests are repeatable: one torch thread per worker, string hashes the same in every worker.
TEST_ENV := OMP_NUM_THREADS=1 PYTHONHASHSEED=0
PINS := $(wildcard requirements/*.txt)
NATIVE := $(wildcard src/dtorch/native/*.c)

.DEFAULT_GOAL := help
.PHONY: help demo test check bench gpu-check native snapshots rules coverage clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(STAMP) ## train and run a HuggingFace Llama on a 2 x 2 mesh, beside plain PyTorch
	$(PY) examples/main_job.py $(ARGS)

test: $(STAMP) ## all tests this machine can run
	$(TEST_ENV) $(PY) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: $(STAMP) ## format, lint, types
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

bench: $(STAMP) ## measure the budgets, both sides in one run, into benchmarks/results/
	OMP_NUM_THREADS=1 $(PY) -m benchmarks.run $(ARGS)

gpu-check: $(STAMP) ## the tests that need a CUDA device, within five minutes
	$(PY) -m benchmarks.gpu_check $(ARGS)

# .venv has it already; for an environment of your own, or after a change of the C file.
native: $(STAMP) ## compile the C that records calls made before, into src/
	$(PY) -c "from setuptools import setup; setup()" -q build_ext --inplace

snapshots: $(STAMP) ## write the listings of recorded graphs anew, tests/snapshots/
	$(TEST_ENV) DTORCH_WRITE_SNAPSHOTS=1 $(PY) -m pytest -q tests/test_snapshots.py $(ARGS)

# Goes on where it was stopped; ARGS="--calls 0 --seconds 0" judges every call of the samples, ARGS="aten.mm" one operator.
rules: $(STAMP) ## judge every placement rule by brute force, into docs/rules.md
	OMP_NUM_THREADS=1 $(PY) -m dtorch.testing.rules $(ARGS)

# Goes on where it was stopped; ARGS="--shard 0/4" takes a quarter, ARGS="--again" starts anew.
coverage: $(STAMP) ## try all of PyTorch's operator database, into docs/coverage.md
	$(TEST_ENV) $(PY) -m tests.coverage $(ARGS)

clean: ## remove .venv and the caches
	rm -rf $(VENV) build src/*.egg-info src/dtorch/native/*.so .pytest_cache .hypothesis .mypy_cache .ruff_cache

# torch comes first and by its exact version: whatever is installed after it takes the torch it finds.
# A python3 without ensurepip (Debian's, for one) still makes a .venv, with the pip it has.
$(VENV)/.installed: $(PINS) $(NATIVE) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("dtorch needs Python 3.11 or newer, this is %s. Name another: make PYTHON=python3.12 ..." % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "making $(VENV), once (torch is the large part)"
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) 2>/dev/null || \
		{ $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(VENV)/bin/python install -q pip; }
	$(PY) -m pip install -q --disable-pip-version-check -r requirements/torch.txt
	$(PY) -m pip install -q --disable-pip-version-check $(patsubst %,-r %,$(PINS))
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
