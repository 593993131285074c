# Two commands matter: `make test` sets up and runs everything CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed

.PHONY: test services check unit crash parity demo mutants bench bench-spark peers clean help

help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/'

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

$(PEERS_STAMP): pyproject.toml
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(PEERS_VENV)/bin/python -m pip install --quiet --editable . --group peers
	touch $@

test: services check unit ## Set up, then formatting, lint, types, import directions and all tests

services: ## What the tests start servers with, from Debian's packages if missing: Java for Spark, PostgreSQL
	@java -version >/dev/null 2>&1 || (apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless) \
	  || { echo "Spark's tests need Java 17 or 21: install one and put it on the PATH."; exit 1; }
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
	  || (apt-get update -qq && apt-get install -y -qq postgresql) \
	  || { echo "PostgreSQL's tests need its server: install it and put initdb on the PATH."; exit 1; }

check: $(STAMP) ## Formatting, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP) ## The tests alone
	$(BIN)/pytest -n 2 --dist loadgroup

crash: $(STAMP) ## Kill a pipeline before every step on the disk and at 400 random moments
	DPSQLP_CRASH=all $(BIN)/pytest -n 2 tests/crash

parity: services $(STAMP) ## Spark against the local engine: every query, shards, cluster, Connect, and everything killed
	DPSQLP_PARITY=all $(BIN)/pytest -n 2 --dist loadgroup tests/spark

demo: $(STAMP) ## A day of page views as a live private table, beside the truth
	$(BIN)/dpsqlp demo

mutants: services $(STAMP) ## Break the privacy on purpose in every listed way; each break must be caught
	$(BIN)/python tests/mutants/run.py

bench: $(STAMP) ## Speed of the core and of the whole pipeline, one JSON object per line
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/pipeline.py
	$(BIN)/python benchmarks/postgres.py

bench-spark: $(STAMP) services ## The Spark engine beside Spark's own non-private streaming count
	$(BIN)/python benchmarks/spark.py

peers: $(PEERS_STAMP) ## dpsqlp beside PipelineDP and OpenDP; PEERS='--save' keeps the results
	$(PEERS_VENV)/bin/python benchmarks/peers.py $(PEERS)

clean: ## Remove the environments and caches
	rm -rf $(VENV) $(PEERS_VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
