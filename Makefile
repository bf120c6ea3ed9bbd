# Everything a fresh machine needs: git, make, Python 3.11 or later, and PyPI.
# Each target makes .venv from requirements/dev.lock the first time (or when the lock changes) and reuses it.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-full mutants check lint format types pyright imports docs site bench bench-large clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## a few thousand jobs, a worker killed in the middle, and the proof that nothing was lost
	@$(PY) -m perdure demo

test: $(READY) ## the everyday tests, with the wall time of each suite
	@$(PY) tests/run_suites.py

test-full: $(READY) ## the same tests with every number at full size
	@PERDURE_TEST_SIZE=full PYTEST_TIMEOUT=1800 $(PY) tests/run_suites.py

mutants: $(READY) ## plant bugs one at a time and say which test notices each (WHAT=job for a part of them)
	@$(PY) -m tests.mutants $(WHAT)

check: lint format types pyright imports ## ruff, ruff format, mypy, pyright and the import rules

docs: $(READY) ## write docs/errors.md and docs/cli.md anew, from the program and docs/errors.toml
	@$(PY) -m tests.docs.errors_page
	@$(PY) -m tests.docs.cli_page

site: $(READY) ## the documentation as a site, in site/: open site/index.html
	@$(PY) -m tests.docs.site

bench: $(READY) ## the figures, beside the bare driver and Huey
	@$(PY) -m bench

bench-large: $(READY) ## the figures with millions of jobs in the file
	@$(PY) -m bench --large

clean: ## remove .venv, caches, build output and benchmark files
	@rm -rf $(VENV) .bench .site site dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.*
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	@echo "Clean."

# One line when all is well, the tool's whole output when it is not. `make -k check` goes on after a failure.
define quietly
@printf '%-14s' '$(1)'; if output=$$($(2) 2>&1); then echo ok; else echo FAILED; printf '%s\n' "$$output"; exit 1; fi
endef

lint: $(READY)
	$(call quietly,ruff check,$(PY) -m ruff check .)

format: $(READY)
	$(call quietly,ruff format,$(PY) -m ruff format --check .)

types: $(READY)
	$(call quietly,mypy,$(PY) -m mypy)

pyright: $(READY)
	$(call quietly,pyright,$(VENV)/bin/basedpyright)

imports: $(READY)
	$(call quietly,import rules,$(VENV)/bin/lint-imports --no-logo)

$(READY): requirements/dev.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "No '$(PYTHON)' found. Install Python 3.11 or later, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Perdure needs Python 3.11 or later, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=python3.12"; exit 1; }
	@echo "Preparing $(VENV) with the versions in requirements/dev.lock (about a minute the first time) ..."
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PY) -m pip install -qq --requirement requirements/dev.lock
	@$(PY) -m pip install -qq --no-build-isolation --no-deps --editable .
	@touch $@
