# Needs Python 3.11 or newer, make, and for Kafka on this machine Java 17 and Maven. All else goes into .venv.

PYTHON ?= python3
DURATION ?= 60
PYTEST_ARGS ?=
# Each worker has a broker of its own.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps

# Containers often set it; then each process that a run or a test starts would compile torch and all else anew.
unexport PYTHONDONTWRITEBYTECODE

# uv does not read pip's configuration: hand on the index that pip asks, where one is configured, and trust the
# machine's certificates as pip does.
UV_SETTINGS = index=$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null)}}; \
	export UV_SYSTEM_CERTS=1 $${index:+"UV_DEFAULT_INDEX=$$index"}
INSTALL = $(UV_SETTINGS); $(BIN)/uv pip install --python $(BIN)/python -c constraints.txt -e

.PHONY: help run learn test chaos soak lint bench clean

help:
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(STAMPS)/local ## run the whole pipeline for DURATION=60 seconds, kill parts of it, verify that nothing was lost
	@$(BIN)/python -m deploy.local.run --duration $(DURATION)

learn: $(STAMPS)/local ## learn CartPole-v1 through the whole loop, and say how long it took
	@$(BIN)/python -m deploy.local.learn

test: $(STAMPS)/dev ## run all tests; PYTEST_ARGS="-k name" chooses
	@$(UV_SETTINGS); exec $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

chaos: $(STAMPS)/dev ## break everything, at random and step by step, and audit what is left; an hour
	@$(UV_SETTINGS); exec $(BIN)/python -m pytest -m chaos $(PYTEST_ARGS)

soak: $(STAMPS)/dev ## run the tests that take a minute or more each
	@$(UV_SETTINGS); exec $(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

lint: $(STAMPS)/dev ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(STAMPS)/dev ## measure, print the figures and write build/bench.json
	@$(BIN)/python -m benchmarks

clean: ## remove what runs, builds and checks have left; .venv stays
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says what .venv holds; what they depend on says when that is out of date.

$(STAMPS)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "error: PYTHON=$(PYTHON) is \
	$$($(PYTHON) --version 2>&1): install Python 3.11 or newer, or name one, as in make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/local: $(STAMPS)/uv pyproject.toml constraints.txt
	@$(INSTALL) '.[local]'
	@touch $@

# It holds all of local too, so that `make run` after it has nothing to install.
$(STAMPS)/dev: $(STAMPS)/uv pyproject.toml constraints.txt
	@$(INSTALL) '.[dev]'
	@touch $(STAMPS)/local $@
