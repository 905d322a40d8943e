# Needs only Python >= 3.11 with pip. `make help` lists the targets.
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys, venv, ensurepip; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),$(p))))
BIN := .venv/bin
READY := .venv/.ready
PYTEST_ARGS ?=

.PHONY: help install check test faults lint types train docs format clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(READY)  ## make .venv and install the package with its test extra

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "ambs needs Python 3.11 or newer with venv and pip; none was found on PATH."; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $(READY)

check: lint types  ## for the inner loop, some three minutes on two cores: linters, types, and the tests that are quick
	$(BIN)/python -m pytest -n 2 -m 'not slow and not learns and not process' $(PYTEST_ARGS)

test: lint types  ## linters, types and tests; closes with pytest's summary
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

faults: $(READY)  ## everything that docs/reliability.md promises, tried in full; up to two hours
	@rm -f .faults.jsonl
	AMBS_FAULTS=full AMBS_FAULTS_LEDGER=$(CURDIR)/.faults.jsonl $(BIN)/python -m pytest -q tests/faults

lint: $(READY)  ## ruff: lint and format
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .

types: $(READY)  ## mypy
	$(BIN)/mypy --no-error-summary

train: $(READY)  ## the main job: train an unshielded and a shielded agent, and compare them
	$(BIN)/ambs quickstart

docs: $(READY)  ## build the documentation's site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Wrote site/index.html"

format: $(READY)  ## let ruff rewrite the files
	$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

clean:  ## remove what make made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
