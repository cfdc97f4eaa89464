# Four verbs. Each does all of its own set-up: Python 3.11+ and make are enough.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BOOTSTRAP := .cache/bootstrap
# uv where it is there; else its own copy, from PyPI, in a folder of the project's.
UV := $(shell command -v uv 2>/dev/null || echo $(CURDIR)/$(BOOTSTRAP)/bin/uv)

.PHONY: help demo test check bench sync

help:  ## Show the verbs
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(CURDIR)/$(BOOTSTRAP)/bin/uv:
	$(PYTHON) -m venv $(BOOTSTRAP)
	$(BOOTSTRAP)/bin/python -m pip install --quiet --disable-pip-version-check uv

sync: $(filter $(CURDIR)/%,$(UV))
	@$(UV) sync --frozen --quiet

demo: sync  ## Run the nightly job on the embedded cluster and print who held what
	@$(UV) run --frozen gpu-chargeback demo

test: sync  ## Run every test, on real servers
	@$(UV) run --frozen pytest

check: sync  ## Lint, format, types, import contract
	@$(UV) run --frozen ruff check .
	@$(UV) run --frozen ruff format --check .
	@$(UV) run --frozen mypy
	@$(UV) run --frozen lint-imports

bench: sync  ## Measure, and write docs/performance.md
	@$(UV) run --frozen python -m benchmarks
