# Everything from Python 3.11, pip, make and git alone. `make check` is what the gate runs.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# The quick profile derives its examples from the tests themselves; the others use SEED, which is printed.
HYPOTHESIS_PROFILE ?= quick
SEED               ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
WORKERS            ?= 2
TESTS              ?= tests
export HYPOTHESIS_PROFILE
SEED := $(SEED)
SEED_OPTION = $(if $(filter quick,$(HYPOTHESIS_PROFILE)),,--hypothesis-seed=$(SEED))

.PHONY: help setup check format lint types contracts test mutants demo fuzz bench docs clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1: /p' $(MAKEFILE_LIST)

setup: $(STAMP)  ## a virtual environment in .venv with all that is needed to work here

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --editable '.[dev]'
	@touch $(STAMP)

check: format lint types contracts test  ## format, lint, types, import contracts, tests

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

test: $(STAMP)  ## the tests; TESTS=tests/store HYPOTHESIS_PROFILE=pr SEED=1 WORKERS=4 narrow or widen them
	@echo "profile $(HYPOTHESIS_PROFILE), $(if $(SEED_OPTION),seed $(SEED): repeat with SEED=$(SEED),seeds fixed by the tests themselves)"
	$(BIN)/pytest -n $(WORKERS) $(SEED_OPTION) $(TESTS)

mutants: $(STAMP)  ## plant each known bug, see it die in its layer, and write docs/planted-bugs.md; ALL=--all tries all layers
	PYTHONPATH=kernel:hookspecs:builtin_plugins $(BIN)/python tests/faults/matrix.py $(ALL)

demo: $(STAMP)  ## kill an agent in mid-stream, resume it, prove that nothing was lost or done twice
	$(BIN)/flightlog demo

fuzz: $(STAMP)  ## hours in the fault laboratory; SECONDS=600 SEED=1 WORKERS=4 change how long, which rounds, on how many cores
	@echo "seed $(SEED): repeat with SEED=$(SEED)"
	$(BIN)/flightlog fuzz --profile deep --seed $(SEED) $(if $(SECONDS),--seconds $(SECONDS)) --jobs $(WORKERS) --save fuzz-failures

bench: benchmarks/.venv/.installed  ## all benchmarks, beside others, into benchmarks/results; ONLY="resume growth" narrows them
	benchmarks/.venv/bin/python benchmarks/run.py $(ONLY) $(if $(RECORD),--record)

benchmarks/.venv/.installed: pyproject.toml benchmarks/requirements.txt
	test -x benchmarks/.venv/bin/python || $(PYTHON) -m venv --without-pip benchmarks/.venv
	$(PYTHON) -m pip --python benchmarks/.venv/bin/python install --quiet --editable '.[cli]' --requirement benchmarks/requirements.txt
	@touch $@

docs: $(STAMP)  ## write the pages that are generated from the code
	$(BIN)/python docs/generate.py

clean:  ## everything that can be made again
	rm -rf $(VENV) benchmarks/.venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
