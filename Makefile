# `make quick` after every save; `make test` sets up and runs everything CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KAFKA := .services/kafka
JAR := '[artifact]-[revision].[ext]'
IVY = java -jar $(VENV)/lib/python*/site-packages/pyspark/jars/ivy-*.jar -warn -confs default -types jar bundle -retrieve
ACTIONLINT := .services/bin/actionlint
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed

# Tests start many processes. Each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test quick services packages check unit docs crash parity demo screenshots mutants bench bench-spark bench-dashboard peers clean help

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

quick: $(STAMP) ## Lint and the fast tests: no server, no Java, no browser
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	DPSQLP_QUICK=1 $(BIN)/pytest -n 2 --dist worksteal -m "not slow and not needs"

# Where one of these cannot be had, `make test` leaves out the tests that need it. Not on CI.
services: packages ## What the tests start servers with: Debian's packages, and Kafka from Maven Central
	@$(MAKE) --no-print-directory --keep-going $(KAFKA)/.fetched $(ACTIONLINT) \
	  || { echo "Not everything could be fetched."; test "$$CI" != true; }

packages:
	@wanted=""; \
	java -version >/dev/null 2>&1 || wanted="openjdk-17-jre-headless"; \
	command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || wanted="$$wanted postgresql"; \
	docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || wanted="$$wanted docker-compose"; \
	command -v systemd-analyze >/dev/null || wanted="$$wanted systemd"; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || wanted="$$wanted chromium"; \
	test -z "$$wanted" || (apt-get update -qq && apt-get install -y -qq $$wanted) \
	  || { echo "Not installed: $$wanted (Debian's names)."; test "$$CI" != true; }

# By Ivy, which comes with pyspark. Spark's connector shares the broker's client.
$(KAFKA)/.fetched: Makefile | $(STAMP)
	rm -rf $(KAFKA)
	$(IVY) $(KAFKA)/broker/$(JAR) -dependency org.apache.kafka kafka_2.13 4.3.1
	$(IVY) $(KAFKA)/spark/$(JAR) -notransitive -dependency org.apache.spark spark-sql-kafka-0-10_2.13 4.2.0
	$(IVY) $(KAFKA)/spark/$(JAR) -notransitive -dependency org.apache.spark spark-token-provider-kafka-0-10_2.13 4.0.0
	$(IVY) $(KAFKA)/spark/$(JAR) -notransitive -dependency org.apache.commons commons-pool2 2.12.0
	cp $(KAFKA)/broker/kafka-clients-*.jar $(KAFKA)/spark
	touch $@

# Checks the workflow. Its package on PyPI fetches a binary from elsewhere, so Go builds it.
$(ACTIONLINT):
	@if command -v go >/dev/null; \
	then GOBIN=$(abspath $(@D)) go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12; \
	else echo "There is no Go here, so .github/workflows is not checked."; fi

check: $(STAMP) ## Formatting, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP) ## The tests alone
	$(BIN)/pytest -n 2 --dist loadgroup

docs: $(STAMP) ## The documentation site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

crash: $(STAMP) ## Kill a pipeline before every step on the disk and at 400 random moments
	DPSQLP_CRASH=all $(BIN)/pytest -n 2 tests/crash

parity: services $(STAMP) ## Spark against the local engine: every query, shards, cluster, Connect, and everything killed
	DPSQLP_PARITY=all $(BIN)/pytest -n 2 --dist loadgroup tests/spark

demo: $(STAMP) ## A day of page views as a live private table, beside the truth
	$(BIN)/dpsqlp demo

screenshots: $(STAMP) services ## The pictures of the dashboard in docs/images
	$(BIN)/python tests/dashboard/screenshots.py

mutants: services $(STAMP) ## Break the privacy on purpose in every listed way; each break must be caught
	$(BIN)/python tests/mutants/run.py

bench: $(STAMP) services ## Speed of the core, the whole pipeline and the connectors, one JSON object per line
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/pipeline.py
	$(BIN)/python benchmarks/topics.py
	$(BIN)/python benchmarks/database.py

bench-spark: $(STAMP) services ## The Spark engine beside Spark's own non-private streaming count
	$(BIN)/python benchmarks/spark.py

bench-dashboard: $(STAMP) services ## The dashboard with 100,000 keys and 100 triggers, and what it costs a pipeline
	$(BIN)/python benchmarks/dashboard.py

peers: $(PEERS_STAMP) ## dpsqlp beside PipelineDP and OpenDP; PEERS='--save' keeps the results
	$(PEERS_VENV)/bin/python benchmarks/peers.py $(PEERS)

clean: ## Remove the environments, caches and everything built
	rm -rf dist site $(VENV) $(PEERS_VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	cd examples/web-analytics && rm -rf events articles audience.duckdb analytics.state analytics.secret
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
