# Every target does its own set-up. People, pre-commit and CI run the same ones.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
# where this is set, each of a thousand processes compiles every test and module anew
unexport PYTHONDONTWRITEBYTECODE
PACKAGES := api/dormouse_api kube/dormouse_kube operator/dormouse_operator gateway/dormouse_gateway worker_image/dormouse_worker cli/dormouse_cli cli/dormouse_conformance

# in the same order each time: whoever waits for the answer asks about a change, not about luck
STEADY := $(PY) -m pytest --randomly-seed=1

# what decides without touching anything: every branch of it is tested
PURE := decide manifests model parse

# where that is tested, and by whole passes of an operator
PURE_TESTS := $(PURE:%=tests/operator_/%) tests/operator_/life tests/operator_/pools tests/worker/engine

QUICK := "not cluster and not gpu and not slow"

# what is no unit test
APART := --ignore=tests/e2e --ignore=tests/faults --ignore=tests/integration --ignore=tests/outside

# where tests of the cluster are; to look for them everywhere takes half a minute
CLUSTER := tests/e2e tests/chart tests/kube tests/localkube tests/operator_

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: install
install: ## Make the Python environment (hash-pinned, shared by all clones)
	@python3 tools/bootstrap.py

.PHONY: prepare
prepare: ## Also build the programs of the local Kubernetes, at the same time
	@python3 tools/bootstrap.py --kubernetes

.PHONY: format
format: install ## Format the code
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

.PHONY: lint
lint: install ## Check style, what bandit knows of security, and import contracts
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m bandit --quiet --configfile pyproject.toml --recursive $(PACKAGES)
	.venv/bin/lint-imports --no-cache

.PHONY: typecheck
typecheck: install ## Check types (mypy strict)
	$(PY) -m mypy $(PACKAGES) localkube tools bench

.PHONY: proto
proto: install ## Generate code from the .proto files
	tools/proto.sh
	$(PY) -m tools.wire

.PHONY: lock
lock: install ## Resolve requirements/*.txt anew from pyproject.toml
	tools/lock.sh

.PHONY: verify
verify: install ## Regenerate everything generated and fail on a difference
	tools/verify.sh

.PHONY: model
model: install ## Train the small model of the tests (2 minutes, cached)
	$(PY) -m tools.train_model

.PHONY: demo-model
demo-model: install ## Download and convert the demo's chat model (93 MB, cached)
	$(PY) -m tools.demo_model

.PHONY: unit
unit: install ## Unit tests (no cluster, no network)
	$(MAKE) --no-print-directory -j 2 unit-worker unit-others unit-pure

.PHONY: unit-worker
unit-worker: install ## Of them, those of the worker: each process imports torch
	$(STEADY) -n 2 --dist worksteal -m $(QUICK) tests/worker --ignore=tests/worker/engine --durations=10

.PHONY: unit-others
unit-others: install ## Of them, those of all other parts, which wait now and then
	$(STEADY) -m $(QUICK) tests $(APART) --ignore=tests/worker $(PURE_TESTS:%=--ignore=%) --durations=10

.PHONY: unit-pure
unit-pure: install ## Of them, those of what decides, which have to reach every branch of it
	$(STEADY) -n 2 --dist worksteal -m "not cluster and not gpu" $(PURE_TESTS) $(PURE:%=--cov=dormouse_operator.%) --cov=dormouse_worker.engine --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

.PHONY: integration
integration: install model demo-model ## Real processes, real models, no cluster
	$(STEADY) -n 2 --dist loadfile -m "not cluster and not gpu and not slow" tests/integration --durations=10

.PHONY: faults
faults: prepare ## What operator and gateway survive, quick part: real API server, real processes, broken network (2-3 minutes)
	$(PY) -m localkube.extras
	$(STEADY) -n 2 -m "not slow" tests/faults --durations=10

.PHONY: cluster
cluster: prepare ## Start the local Kubernetes (or check the one of DORMOUSE_CONTEXT)
	$(PY) -m tools.testcluster up

.PHONY: e2e
e2e: install model ready ## Tests on the real cluster
	$(STEADY) -n 2 --dist loadfile -m "cluster and not slow" $(CLUSTER) --durations=10

.PHONY: e2e-nodes
e2e-nodes: prepare model ## Two nodes: one is drained, one is lost under load (4 minutes)
	$(PY) -m localkube up --nodes 2
	$(PY) -m tools.images
	DORMOUSE_RECORD=nodes $(PY) -m pytest -m "cluster and slow" tests/e2e --ignore=tests/e2e/test_vllm.py --durations=0

.PHONY: e2e-platforms
e2e-platforms: install model ready ## Other people's controllers, built from their Go modules: Kueue admits models, KEDA and Kubernetes' autoscaler scale them, Istio's gateway asks us; a model that vLLM computes (45 minutes)
	$(MAKE) bench-peers
	DORMOUSE_RECORD=platforms $(PY) -m pytest -m "cluster and slow" tests/platforms tests/e2e/test_vllm.py --durations=10

.PHONY: e2e-ladder
e2e-ladder: install model ready ## Ask all the time while models sleep, wake, roll out, scale, restart and are killed: nothing may be lost
	$(PY) -m tests.prober

.PHONY: e2e-install
e2e-install: install model ready ## What a removed release leaves, two releases beside each other; the images as pods (15 minutes)
	DORMOUSE_RECORD=install $(PY) -m pytest -m "cluster and slow" tests/install tests/chart --durations=10

.PHONY: static
static: lint typecheck ## Both checks that run nothing

.PHONY: test
test: prepare ## All set-up, then every test but the slow ones (what needs no cluster runs while others wait for something)
	$(MAKE) --no-print-directory -j 2 static unit
	$(MAKE) --no-print-directory -j 3 ready integration faults
	$(MAKE) --no-print-directory e2e

.PHONY: test-long
test-long: prepare ## Every fault, the ladder, a lost node; writes records to tests/records/ (an hour)
	$(PY) -m localkube.extras
	$(MAKE) bench-peers
	DORMOUSE_RECORD=faults $(PY) -m pytest tests/faults --durations=0
	$(PY) -m pytest -n 2 -m "slow and not cluster and not gpu" tests $(APART) --durations=0
	$(PY) -m pytest -n 2 -m "hypothesis and not slow and not cluster and not gpu" --hypothesis-profile=searching tests $(APART)
	$(PY) -m pytest -n 2 --dist loadfile -m "slow and not cluster and not gpu" tests/integration --durations=0
	$(MAKE) outside
	$(MAKE) e2e-ladder
	$(MAKE) e2e-install
	$(MAKE) e2e-platforms
	$(MAKE) e2e-nodes

.PHONY: outside
outside: prepare model ## As an outsider would: client libraries, floods, mistyped resources, every architecture (12 minutes); writes tests/records/outside.json
	$(PY) -m localkube.extras
	$(PY) -m tests.outside.client_env
	DORMOUSE_RECORD=outside $(PY) -m pytest tests/outside --durations=0

.PHONY: mutate
mutate: install ## Change what decides in small ways, print those that no test notices (an hour of one core)
	$(PY) -m tools.mutate

.PHONY: bench
bench: install ## Measure against vLLM and transformers; one part with NAME=throughput and the like: `python -m bench --help` lists them
	$(PY) -m bench $(NAME)

.PHONY: bench-peers
bench-peers: install ## Make the environment of the engine that we are compared with: vLLM for processors (6 GB, some minutes)
	$(PY) -m bench.peer_env

.PHONY: bench-speech-peers
bench-speech-peers: install ## Make the environment of the Whisper programs that ours is compared with (6 GB, some minutes)
	$(PY) -m bench.speech_env

.PHONY: bench-processor-peers
bench-processor-peers: install ## Make the environment of OpenVINO, llama.cpp and onnxruntime-genai, which our vectors and weights of few bits are compared with (300 MB)
	$(PY) -m bench.processor_env

.PHONY: bench-operator
bench-operator: prepare ## Measure the operator over 5,000 deployments on a real API server and KWOK's nodes (as root); ARGS=--help
	$(PY) -m bench.fleet $(ARGS)

.PHONY: gpu-test
gpu-test: install ## Check sleep, graphs, kernels and the profile on this machine's GPU; without one, what the fake device can tell
	$(PY) tests/gpu test

.PHONY: gpu-bench
gpu-bench: install ## Measure an 8B model on this machine's GPU beside the device's own limits
	$(PY) tests/gpu bench

.PHONY: gpu-wheels
gpu-wheels: install ## Download the packages that a machine with a GPU lacks for both, to carry there
	$(PY) -m tools.gpu_wheels

.PHONY: demo
demo: export DORMOUSE_STARTED := $(shell date +%s)
demo: prepare ## All set-up, then the whole chain: a chat model is applied, answers, sleeps, wakes
	$(PY) -m tools.demo

.PHONY: demo-down
demo-down: install ## Remove the demo and the local Kubernetes
	$(PY) -m tools.demo --down

.PHONY: charts
charts: prepare ## Copy the CRDs and the dashboard into the chart, and render the kustomize base from it
	$(PY) -m tools.charts
	$(PY) -m tools.kustomize

.PHONY: docs
docs: install ## Build the documentation site (build/site)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --clean

.PHONY: images
images: install ## Build the container images and hand them to the cluster
	$(PY) -m tools.images

.PHONY: ready
ready: cluster ## The local Kubernetes with the images in it
	$(PY) -m tools.images

.PHONY: reproduce
reproduce: install ## Build all images twice without a cache: same digests? (15 minutes)
	$(PY) -m tools.images reproduce

.PHONY: bundle
bundle: prepare ## Chart, images, what is in them, and the CLI in one folder with checksums (build/bundle)
	$(PY) -m tools.bundle

.PHONY: prune
prune: install ## Remove old images and old builds of the local cluster
	$(PY) -m tools.images prune
	$(PY) -m localkube prune
