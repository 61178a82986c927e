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

.PHONY: demo test test-own test-beside test-quick test-slow test-schedulers test-rig check lint crash crash-full bench clean

$(VENV)/run.stamp: pyproject.toml hatch_build.py $(wildcard src/holdfast/native/*.c)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -e .
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements/test.txt
	$(PIP) install -r requirements/test.txt
	touch $@

demo: $(VENV)/run.stamp
	$(BIN)/python examples/demo.py

# All tests, the proof rig included; coverage is measured on everything but the rig. Many wait for other processes, the
# slow ones most of all: there are more of them at a time than processors. Beside them run those that wait for
# schedulers, and then the tests of the rig, which forks and so has a process to itself.
test: $(VENV)/dev.stamp lint
	tests/components
	rm -f .coverage .coverage.* .coverage-*
	$(MAKE) -j 2 --output-sync=target test-own test-beside
	$(BIN)/coverage combine -q --append .coverage-*
	$(BIN)/coverage report
	$(MAKE) crash

test-own: $(VENV)/dev.stamp
	$(MAKE) test-quick
	$(MAKE) test-slow

test-beside: $(VENV)/dev.stamp
	$(MAKE) test-schedulers
	$(MAKE) test-rig

test-quick: $(VENV)/dev.stamp
	COVERAGE_OF_CHILDREN=$(CURDIR)/.coverage-children \
		$(BIN)/python -m pytest -n 2 --dist worksteal -m "not crash and not slow and not scheduler" --ignore=tests/crash \
			$(COV) $(PYTEST_ARGS)

test-slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "slow and not crash and not scheduler" --ignore=tests/crash \
		$(COV) --cov-append $(PYTEST_ARGS)

test-schedulers: $(VENV)/dev.stamp
	COVERAGE_FILE=$(CURDIR)/.coverage-schedulers \
		$(BIN)/python -m pytest -n 4 --dist loadfile -m scheduler $(COV) $(PYTEST_ARGS)

test-rig: $(VENV)/dev.stamp
	COVERAGE_FILE=$(CURDIR)/.coverage-rig \
		$(BIN)/python -m pytest -m "not crash" tests/crash $(COV) $(PYTEST_ARGS)

# The inner loop, under three minutes: without the tests that start many programs, or generate many cases.
LATER := background multiprocess proving supervising doors integrations properties agent crash docs/test_examples.py \
	cli/test_prove.py engine/test_witness.py engine/test_bystanders.py data/test_agreement.py test_benchmarks.py

check: $(VENV)/dev.stamp lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not crash and not slow and not scheduler" $(LATER:%=--ignore=tests/%) $(PYTEST_ARGS)

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
