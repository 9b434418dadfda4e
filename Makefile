# Nodesmith: `make run`, `make test`, `make demo`. Everything else is a part of those three.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
HOME_DIR ?= .nodesmith

.PHONY: bench-gateway demo-models dist reference sbom bench-isolation attack breaks chaos kills help setup run demo test quick lint types imports unit lock format histories bench bench-gallery bench-models bench-registry bench-liveness soak clean bench-signing

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## virtual environment from the hash-pinned lock, and nothing else

$(STAMP): requirements.lock requirements-uv.lock pyproject.toml tools/python tools/setup
	@tools/setup $(VENV)
	@touch $@

run: setup  ## the whole system on this machine, until Ctrl-C
	@exec $(BIN)/nodesmith up --home $(HOME_DIR)

demo: setup  ## kill it and watch: the tour of the README, about a minute and a half
	@exec $(BIN)/nodesmith demo

demo-models: setup  ## a client calls a model while nodes, backend and control plane are taken away
	@exec $(BIN)/python -m benchmarks.demo_models

test: setup lint types imports  ## lint, types, import contracts, and all tests but the long ones (`make chaos`)
	@tools/test
	@$(BIN)/python -m tests.mutations --sample 6 --without-control

breaks: setup  ## break the code on purpose, function by function, on a copy: each break has to turn its tests red
	$(BIN)/python -m tests.mutations

attack: setup  ## play every attack we know against a running system; prints what refused each
	$(BIN)/python -m tests.attacks

quick: setup lint types imports unit  ## what runs in under a minute: static checks and unit tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/pytest tests/domain tests/contracts tests/gallery tests/test_architecture.py -q

format: setup  ## rewrite the sources as ruff likes them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: setup  ## write the generated pages of docs/reference: command line, HTTP, settings, states, rules
	$(BIN)/python -m tests.reference

sbom: setup  ## sbom.json: a CycloneDX bill of materials of everything that requirements.lock pins
	$(BIN)/python tools/sbom > sbom.json

dist: setup  ## dist/: the wheel, which holds `nodesmith/` only
	$(BIN)/python -m hatchling build -t wheel -d dist

lock: setup  ## resolve the dependencies anew
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --only-binary :all: --all-extras --upgrade -q pyproject.toml -o requirements.lock

bench-artifacts: setup  ## download, verify and unpack of 1 GB, and of 20,000 paths, against curl, sha256sum and tar
	$(BIN)/python -m benchmarks.artifacts
	$(BIN)/python -m benchmarks.unpacking

bench: setup  ## what operations cost, as ratios to a floor in the same run
	$(BIN)/python -m benchmarks.operations

soak: setup  ## two APIs, two workers, 200 nodes, 2,000 operations, a worker killed every 10 s
	$(BIN)/python -m benchmarks.soak

kills: setup  ## ten minutes of random kill -9 of every process beside real installs; SEED and MINUTES may be set
	$(BIN)/python -m benchmarks.random_kills --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

chaos: setup  ## the tests that take more than half a minute each
	$(BIN)/pytest -m long --durations=0

histories: setup  ## record the histories of new scenarios for the replay tests
	$(BIN)/python -m tests.replay.record

bench-isolation: setup  ## what the namespace around the embedded Temporal costs one operation
	$(BIN)/python -m benchmarks.isolation

bench-signing: setup  ## what signing and verifying cost one operation
	$(BIN)/python -m benchmarks.signing_cost

bench-gallery: setup  ## what reading a gallery of 1,000 entries costs
	$(BIN)/python -m benchmarks.gallery

bench-models: setup  ## what one tick of the model scheduler costs over 1,000 nodes, and how often gateways can write their counts
	$(BIN)/python -m benchmarks.models

bench-registry: setup  ## what 5,000 nodes cost, as ratios to the bare queries of the same run
	$(BIN)/python -m benchmarks.registry

bench-gateway: setup  ## what the gateway and the forwarder cost one call, to direct calls of the same run
	$(BIN)/python -m benchmarks.gateway

bench-liveness: setup  ## how soon the control plane goes on after a node's return, and after a kill
	$(BIN)/python -m benchmarks.liveness

clean:  ## remove the virtual environment and the local state of a stopped `make run`
	@tools/clean $(VENV) $(HOME_DIR)
