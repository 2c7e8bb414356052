# Thin names over the commands that the README explains.
SHELL := bash
BIN := .venv/bin

.PHONY: serve gateway stop archive lint check packages test test-system test-all fuzz bench soak lock help

help: ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(BIN)/python: # a moved or removed environment is built anew
	@rm -f .venv/.installed

.venv/.installed: requirements.lock deploy/environment.sh $(BIN)/python
	@echo "environment: installing requirements.lock into .venv"
	@deploy/environment.sh

# CONFIG and NODES as arguments of make alone: the environment's own may be anybody's.
config = $(if $(filter command,$(firstword $(origin CONFIG))),--config $(CONFIG))
nodes = $(if $(filter command,$(firstword $(origin NODES))),--nodes $(NODES))

serve: .venv/.installed ## build, start, register, and print one prediction; CONFIG=production, NODES=4
	@$(BIN)/python -m deploy.serve start $(config) $(nodes)

gateway: .venv/.installed ## Envoy in front of what `make serve` started, on ports 8000 to 8002; deploy/gateway.yaml
	@$(BIN)/python -m deploy.gateway start

stop: .venv/.installed ## end the gateway, when its last answer is out, and then what `make serve` started
	@$(BIN)/python -m deploy.gateway stop
	@$(BIN)/python -m deploy.serve stop $(config)

archive: .venv/.installed ## build every archive of examples/models.yaml
	@./archive.sh --all

lint: .venv/.installed ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

check: lint ## lint, types, and the tests without a server, an environment or a clock
	@OMP_NUM_THREADS=1 $(modules) -n auto \
		-m "not e2e and not environment and not clock and not long and not system"

# Modules of tests that run side by side, each process with a TorchServe of its own: one that starts, or waits for a batch,
# leaves most of two cores idle. More take 3 GB of memory each.
SIDE_BY_SIDE ?= 3

modules = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

test: check ## check, then every other test but the long ones and those that need packages
	@$(modules) -n $(SIDE_BY_SIDE) -m "(e2e or environment) and not clock and not long and not system"
	@OMP_NUM_THREADS=1 $(modules) -n 2 -m "clock and not e2e and not long and not system"
	@$(BIN)/python -m pytest -m "clock and e2e and not long and not system"

packages: .venv/.installed ## Debian's packages (as root) and perf_analyzer, for test-system
	@tests/packages.sh
	@tests/kubernetes.sh
	@tests/perf_analyzer.sh >/dev/null
	@tests/prometheus.sh

test-system: .venv/.installed ## the tests that need what `make packages` installs
	@$(modules) -n $(SIDE_BY_SIDE) -m "system and not clock and not long"
	@$(BIN)/python -m pytest -m "system and clock and not long"

test-all: test test-system ## test and test-system, then what takes minutes or needs more than the environment has
	@$(BIN)/python -m pytest -m long

MINUTES ?= 5
SEED ?= 1

fuzz: .venv/.installed ## what no client should send, for MINUTES=5 by SEED=1, against handlers and a server
	@nice $(BIN)/python -W ignore -m tests.fuzz --minutes $(MINUTES) --seed $(SEED)

bench: .venv/.installed ## this server against its peers, as ratios; ONLY=translation runs a part
	@$(BIN)/python -m load.bench $(ONLY)

soak: .venv/.installed ## mixed load with killed workers: what was lost, crossed or grown; MINUTES=10, MODE=both, SEED=1
	@$(BIN)/python -m load.soak --minutes $(or $(MINUTES),10) --mode $(or $(MODE),both) --seed $(or $(SEED),1)

resolve = .uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock"

# An image has what serves and none of what tests: a second lock, of the same versions as the first.
lock: ## resolve requirements.lock anew from pyproject.toml, and requirements-server.lock, its part without `dev`
	@$(resolve) --extra dev -o requirements.lock pyproject.toml
	@$(resolve) --constraints requirements.lock -o requirements-server.lock pyproject.toml

.PHONY: lock-extras
lock-extras: ## after lock: what each extra adds to requirements.lock, deploy/extras/*.lock
	@for lock in deploy/extras/*.lock; do deploy/extras/lock.sh "$$(basename "$$lock" .lock)"; done
