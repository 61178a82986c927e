# Everything a fresh machine needs. Each target makes its own environment under .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
export OMP_NUM_THREADS ?= 1
# Judged once, at the end.
COV := --cov=holdfast --cov-report= --cov-fail-under=0

.PHONY: demo test check lint crash crash-full bench clean

$(VENV)/run.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -e .
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements/test.txt
	$(PIP) install -r requirements/test.txt
	touch $@

demo: $(VENV)/run.stamp
	$(BIN)/python examples/demo.py

# All tests, the proof rig included; coverage is measured on everything but the rig. The quick ones run side by side;
# most of the slow ones measure times, and have the machine for themselves.
test: $(VENV)/dev.stamp lint
	tests/components
	rm -f .coverage .coverage.* .coverage-children.*
	COVERAGE_OF_CHILDREN=$(CURDIR)/.coverage-children \
		$(BIN)/python -m pytest -n 2 -m "not crash and not slow" --ignore=tests/crash $(COV) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -n 2 -m slow tests/proving $(COV) --cov-append $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m "slow and not crash" --ignore=tests/crash --ignore=tests/proving $(COV) --cov-append $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m "not crash" tests/crash $(COV) --cov-append $(PYTEST_ARGS)
	$(BIN)/coverage combine -q --append .coverage-children.*
	$(BIN)/coverage report
	$(MAKE) crash

# The inner loop: under three minutes.
check: $(VENV)/dev.stamp lint
	$(BIN)/python -m pytest -q -n 2 -m "not crash and not slow" --ignore=tests/crash $(PYTEST_ARGS)
	$(BIN)/python -m pytest -q -n 2 -m "not crash and not slow" tests/crash $(PYTEST_ARGS)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

crash: $(VENV)/dev.stamp
	$(BIN)/python -m tests.crash

crash-full: $(VENV)/dev.stamp
	$(BIN)/python -m tests.crash --full

$(VENV)/bench.stamp: $(VENV)/dev.stamp requirements/bench.txt
	$(PIP) install -r requirements/bench.txt
	touch $@

bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
