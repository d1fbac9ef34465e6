# `make demo` and `make test` work on a fresh clone: they make .venv and install everything there.
# Needs Python 3.11 to 3.13 (with venv) and, for the inductor executor, a C++ compiler.

SHELL := /bin/bash

# The first interpreter that works and has a supported version; or say `make PYTHON=...`.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
    $$p -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 \
    && echo $$p && break; done)

VENV := .venv
BIN := $(VENV)/bin
# Compilers and kernels on two cores run best on one thread each; every figure in the README is for one thread.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test test-all test-newest fuzz check docs format bench clean

help:
	@echo "make demo      train the digits example with torchjanus, then compare it with eager PyTorch"
	@echo "make test      the tests, without the slow ones"
	@echo "make test-all  all tests"
	@echo "make test-newest  a sample of the tests on the newest PyTorch that pip finds, in .venv-newest"
	@echo "make fuzz      made-up programs against eager (N=1000 SEED=0 JOBS=1); finds go to build/fuzz"
	@echo "make check     ruff (rules and format) and mypy --strict"
	@echo "make docs      the documentation site, in build/site; a broken link fails"
	@echo "make format    let ruff rewrite what it can"
	@echo "make bench     the measurements of the README (QUICK=1: a few minutes)"
	@echo "make clean     remove .venv, .venv-newest and what the tools leave behind"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found: install one, or say 'make PYTHON=/path/to/python3'" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: $(VENV)/installed-demo, $(VENV)/installed-dev.
$(VENV)/installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$*]'
	@touch $@

# Importing torchjanus from source takes a second and a half longer, in each process of a test or a demo, where the
# environment forbids Python to write bytecode (PYTHONDONTWRITEBYTECODE). Only what has changed is compiled.
define bytecode
	$(BIN)/python -m compileall -q torchjanus tests benchmarks examples
endef

demo: $(VENV)/installed-demo
	$(bytecode)
	$(BIN)/torchjanus run examples/digits.py
	$(BIN)/python examples/compare.py

# Processes that run tests side by side; 0 runs them in one. Each begins with one half of the suite, so that what a file
# or a folder sets up is set up once.
WORKERS ?= 2

test: $(VENV)/installed-dev
	$(bytecode)
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal

test-all: $(VENV)/installed-dev
	$(bytecode)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Not part of CI: PyTorch's next release must not stop a change. The rest stays pinned. What is sampled: all that reads
# torch's own tables and schemas, lowering, and the programs of the corpus. A deprecation warning is no failure there.
NEWEST := .venv-newest
NEWEST_TESTS ?= tests/core tests/ops tests/graph/lowering tests/semantics/known tests/runtime/entries \
    tests/runtime/test_speculate.py tests/test_programs.py

test-newest:
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found: say 'make PYTHON=/path/to/python3 $@'" >&2; exit 2; }
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	grep -v '^torch==' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/python -m pip install --quiet --upgrade -c $(NEWEST)/constraints.txt torch -e '.[test]'
	@$(NEWEST)/bin/python -c 'import torch; print("PyTorch", torch.__version__)'
	$(NEWEST)/bin/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal -W default $(NEWEST_TESTS)

N ?= 1000
SEED ?= 0
JOBS ?= 1
fuzz: $(VENV)/installed-dev
	$(BIN)/python -m tests.fuzz --count $(N) --seed $(SEED) --jobs $(JOBS)

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.speed.training_steps $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.speed.papers $(if $(QUICK),--quick,--record)
	$(BIN)/python -m benchmarks.speed.eager_profile $(if $(QUICK),--small,--record)
	$(BIN)/python -m benchmarks.speed.convergence $(if $(QUICK),--quick,--record)
	$(BIN)/python -m benchmarks.speed.ablation $(if $(QUICK),--quick,--record)

clean:
	rm -rf $(VENV) $(NEWEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
