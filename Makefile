# Every target does its own set-up. People, pre-commit and CI run the same ones.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
export PYTHONPATH := api:kube:operator:gateway:worker_image:cli:.
PACKAGES := api/dormouse_api kube/dormouse_kube operator/dormouse_operator gateway/dormouse_gateway worker_image/dormouse_worker cli/dormouse_cli

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: install
install: ## Make the Python environment (hash-pinned, shared by all clones)
	@python3 tools/bootstrap.py

.PHONY: format
format: install ## Format the code
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

.PHONY: lint
lint: install ## Check style and import contracts
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	.venv/bin/lint-imports --no-cache

.PHONY: typecheck
typecheck: install ## Check types (mypy strict)
	$(PY) -m mypy $(PACKAGES) localkube tools

.PHONY: proto
proto: install ## Generate code from the .proto files
	tools/proto.sh

.PHONY: lock
lock: install ## Resolve requirements/*.txt anew from pyproject.toml
	tools/lock.sh

.PHONY: verify
verify: install ## Regenerate everything generated and fail on a difference
	tools/verify.sh
