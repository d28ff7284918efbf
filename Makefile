# Every target sets up what it needs in .venv/; `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
KEEP   ?=
FULL   ?=
ROWS   ?=
ROUNDS ?=
COUNT  ?= 2000
SEED   ?= 29
SHARD  ?=
STAMP  := $(VENV)/.epochal-$(shell cat pyproject.toml Makefile | cksum | cut -d' ' -f1)

PYTEST := EPOCHAL_EVERY_TEST=1 $(BIN)/python -m pytest --durations=12 --durations-min=20
SOURCE := coordinator checkpoints sinks chaos src tests examples docs $(wildcard benchmarks)

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all test-fast test-containers test-browser test-matrix fuzz chaos planted bench bench-quick bench-growth bench-consistency bench-page archives docs check format

help:            ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' Makefile

demo: venv       ## the main job under fire, beside the usual foreachBatch; 2 to 5 minutes (KEEP=1 leaves servers up, FULL=1 is longer)
	KEEP=$(KEEP) FULL=$(FULL) $(BIN)/python -m epochal.chaos.demo

test: venv       ## lint, types and the tests that prove the promise, 13 minutes on 2 quiet cores; fails if one did not run
	@$(MAKE) --no-print-directory --jobs=2 check archives
	@$(BIN)/python -m tests.run --proof

test-all: venv   ## all tests, in shards (about an hour and a half); SHARD=3/9 runs one of them
	@$(MAKE) --no-print-directory archives
	@$(BIN)/python -m tests.run $(if $(SHARD),--shard $(SHARD),--all)

test-fast: venv  ## what needs neither Spark nor servers, without the longest simulations; under 2 minutes
	@$(BIN)/python -m tests.run --fast

# The program in its first line ends with 3 where no engine answers; make shows "Error 3" and ends with 2, as always.
test-containers: venv ## contracts of sinks and log on Postgres and Kafka in containers; without an engine "Error 3"
	@$(BIN)/python -m epochal.chaos.servers.containers
	EPOCHAL_SERVERS=containers $(PYTEST) --proof tests/containers tests/real/sinks/postgres/test_contract.py \
	    tests/real/sinks/kafka/test_contract.py tests/real/checkpoints/test_postgres_log.py

# The same: 3 where there is no Chromium.
test-browser: venv ## reports in a real headless Chromium; without one "Error 3"
	@$(BIN)/python -m tests.browser.chromium
	$(PYTEST) tests/browser

# The same: 3 where nothing failed and something is missing; ROWS are words that parts begin with (spark, kafka, ...).
test-matrix: venv ## other versions of Spark, Kafka, Postgres; pgbouncer; S3; what is missing is named, "Error 3" (long)
	$(BIN)/python -m tests.matrix $(ROWS)

fuzz: venv       ## COUNT (2000) random pipelines of a SEED on real servers: right, or refused by name (about an hour)
	$(BIN)/python -m tests.fuzz --count $(COUNT) --seed $(SEED)

# Two million traces take most of an hour; each workload and each pipeline of the third tier a few minutes.
chaos: venv      ## all four tiers against ourselves, the last one for MINUTES=n (10); long
	$(BIN)/epochal chaos simulate --traces 2000000
	$(BIN)/epochal chaos fuzz --minutes 5
	for workload in rows map state window join dedup; do \
	    $(BIN)/epochal chaos run --tier 3 --workload $$workload || exit $$?; done
	for pipeline in upsert plain overwrite idempotent; do \
	    $(BIN)/epochal chaos run --tier 3 --target epochal.chaos.campaign.own:$$pipeline || exit $$?; done
	$(BIN)/epochal chaos run --minutes $(or $(MINUTES),10) --report chaos-report.html --history chaos-histories

planted: venv    ## plant known bugs in copies of the checkout: the suite must catch each (long)
	$(BIN)/epochal chaos mutants

# Quick results lie apart, where git does not look.
bench-quick: venv ## every table of the benchmarks with fewer rows and cases, to see that all of it runs; and its page
	$(BIN)/python -m benchmarks all --quick --rounds $(or $(ROUNDS),1) --into artifacts/bench-quick
	$(BIN)/python -m benchmarks.page --quick --from artifacts/bench-quick

bench: venv      ## what sinks cost beside their peers: every table but those of the next two, then the page (hours; ROUNDS=n)
	$(BIN)/python -m benchmarks most --rounds $(or $(ROUNDS),5)
	$(BIN)/python -m benchmarks.page

bench-growth: venv ## what an epoch costs at epoch 10 to 100,000 (hours)
	$(BIN)/python -m benchmarks growth --rounds $(or $(ROUNDS),5)

bench-consistency: venv ## what faults do to each sink, mode and peer, and what each costs (about an hour)
	$(BIN)/python -m benchmarks consistency consistency-flink

bench-page: venv ## benchmarks/results/index.html: the newest results with plots, beside those before
	$(BIN)/python -m benchmarks.page

archives: venv   ## what Spark and Kafka start sooner with, made once on this machine
	@$(BIN)/python -m epochal.chaos.job.archive

docs: venv       ## write docs/errors.md and docs/options.md from the source
	$(BIN)/python docs/generate.py

check: venv      ## lint and types
	$(BIN)/ruff check $(SOURCE)
	$(BIN)/ruff format --check $(SOURCE)
	$(BIN)/mypy

format: venv     ## rewrite the code in the project's layout
	$(BIN)/ruff check --fix $(SOURCE)
	$(BIN)/ruff format $(SOURCE)

venv: $(STAMP)   ## install everything into .venv/ (second runs take no time)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m epochal.chaos.servers.java || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[java]'
	@rm -f $(VENV)/.epochal-*; touch $@
