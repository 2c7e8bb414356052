# Short names for the commands that README.md and CONTRIBUTING.md explain.
SHELL := bash
BIN := .venv/bin

# Without compiled bytecode of torch and transformers, a worker takes twice as long to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve gateway stop archive lint check packages test test-all fuzz mutants docs bench gpu soak lock help

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*##/ {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@awk -F '[:.]' '/^ "seconds"/ {n = split(FILENAME, path, "[/.]"); printf "%-12s took%s s in its last run\n", path[n - 1], $$2}' \
		$$(ls .pytest_cache/tiers/*.json 2>/dev/null) </dev/null

$(BIN)/python: # a moved or removed environment is rebuilt
	@rm -f .venv/.installed

.venv/.installed: requirements.lock deploy/environment.sh $(wildcard my/requirements.txt) $(BIN)/python
	@deploy/environment.sh

# CONFIG and NODES are only arguments of make: environment variables of these names may belong to another program.
config = $(if $(filter command,$(firstword $(origin CONFIG))),--config $(CONFIG))
nodes = $(if $(filter command,$(firstword $(origin NODES))),--node-count $(NODES))

serve: .venv/.installed ## build a model, start a server, predict; CONFIG=production NODES=4
	@$(BIN)/python -m deploy.nodes.run start $(config) $(nodes)

gateway: .venv/.installed ## start Envoy in front of the servers; CONFIG=my/gateway.yaml
	@$(BIN)/python -m deploy.gateway start $(config)

stop: .venv/.installed ## stop the gateway after its last response, then the servers
	@$(BIN)/python -m deploy.nodes.run stop $(config)

archive: .venv/.installed ## build every archive of examples/models.yaml
	@./archive.sh --all

lint: .venv/.installed ## check style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# OpenVINO needs tests/avx2.sh, besides the variable, to use only AVX2.
capped = $(if $(filter AVX2,$(ONEDNN_MAX_CPU_ISA)),tests/avx2.sh)
# A process that dies ends the run: if xdist replaced it, `--dist loadfile` would wait forever.
pytest = $(capped) $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --max-worker-restart 0

check: lint tier-check ## run lint and the tests that build and start nothing; 2 minutes

# Number of test processes, each with a separate TorchServe. Three keep two cores busy; four took longer. Each process needs
# up to 3 GB of memory.
SIDE_BY_SIDE ?= 3

# A tier that fails does not hide the next.
test: ## run check, then tests with builds and servers; 8 to 20 minutes
	@$(MAKE) --keep-going check tier-builds tier-test

.PHONY: tier-check tier-builds tier-test tier-nightly
tier-check tier-builds: tier-%: # tests/conftest.py selects by the mark `builds`
	@OMP_NUM_THREADS=1 $(pytest) -n auto --tier $* tests --ignore tests/e2e --ignore tests/nightly

tier-test:
	@$(pytest) -n $(SIDE_BY_SIDE) --tier test tests/e2e

tier-nightly:
	@$(pytest) -n 0 --tier nightly $(if $(CI),--strict-tier) tests/nightly

packages: .venv/.installed ## install what test-all needs besides .venv; needs root
	@tests/nightly/packages/debian.sh
	@tests/nightly/packages/kubernetes.sh
	@tests/nightly/packages/perf_analyzer.sh >/dev/null
	@tests/nightly/packages/prometheus.sh

# A part that fails does not end the run; the table at the end names every module with its seconds and results.
test-all: ## run every test: image, Kubernetes, browser, soak, drills; two hours
	@rm -rf .pytest_cache/tiers
	@$(MAKE) --keep-going packages docs lint tier-check tier-builds tier-test tier-nightly; status=$$?; \
		$(BIN)/python -m tests.tiers; exit $$status

EXAMPLES ?= 2000
SEED ?= 1

fuzz: .venv/.installed ## send malformed requests; EXAMPLES=2000 SEED=1
	@EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --hypothesis-profile fuzz --hypothesis-seed $(SEED) \
		tests/hostile tests/nightly/test_hostile_gateway.py

N ?= 20
mutants: .venv/.installed ## list small faults that no test notices; N=20 SEED=1 FILES=load
	@$(BIN)/python -W ignore -m tests.mutants --number $(N) --seed $(SEED) $(if $(BASE),--base $(BASE)) $(if $(MAP),--map $(MAP)) $(FILES)

docs: .venv/.installed ## write the reference pages and the site, build/site
	@$(BIN)/python -m docs.diagrams
	@$(BIN)/python -m docs.generate
	@rm -rf build/pages build/site && mkdir -p build/pages
	@git ls-files -co --exclude-standard '*.md' 'docs/images/*' 'docs/*.json' deploy/gateway.yaml LICENSE | grep -v load/bench \
		| xargs cp --parents -t build/pages
	@$(BIN)/python -m docs.generate --site build/pages/docs/reference
	@$(BIN)/zensical build --strict --clean

bench: .venv/.installed ## compare with peers, write build/bench.json; ONLY=texts: one part
	@$(BIN)/python -m load.bench $(ONLY)

gpu: .venv/.installed ## run the tests and benches of a GPU in ten minutes; DRY=1
	@$(BIN)/python -m tests.nightly.gpu_check $(if $(DRY),--dry-run)

soak: .venv/.installed ## send mixed load and kill workers; MINUTES=10 MODE=both SEED=1
	@$(BIN)/python -m tests.nightly.test_soak --minutes $(or $(MINUTES),10) --mode $(or $(MODE),both) --seed $(or $(SEED),1) \
		--share $(or $(SHARE),0.7) --output build/soak.json

resolve = .uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock"

# The second lock, for images, omits the packages of tests. Both locks have equal versions.
lock: ## resolve requirements.lock and requirements-server.lock
	@$(resolve) --extra all --extra dev --group weights -o requirements.lock pyproject.toml
	@$(resolve) --extra all --group weights --constraints requirements.lock -o requirements-server.lock pyproject.toml
	@sed -n 's/ .*//; /^uv==/p' deploy/uv.lock | $(resolve) -o deploy/uv.lock -

.PHONY: lock-extras
lock-extras: ## resolve deploy/extras/*.lock; run it after lock
	@for lock in deploy/extras/*.lock; do deploy/extras/lock.sh "$$(basename "$$lock" .lock)"; done

.PHONY: images
images: # raise the tags and digests of images
	@$(BIN)/python -m docs.image_tags $(TAGS)

# grpcio-tools 1.76.0 writes code for protobuf 6.31 and later; an older runtime refuses newer code, and the lock has 6.33.6. The
# modules use a separate descriptor pool, since the default pool may contain Triton's messages, which have equal names; and
# no runtime needs the offsets at their end.
messages := handlers/protocol/open_inference deploy/protocol/messages deploy/gateway/envoy/discovery
.PHONY: proto
proto: # generate the messages of gRPC calls from their .proto files
	@.uv/bin/uvx --quiet --from grpcio-tools==1.76.0 python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
		$(messages:=.proto)
	@sed -i -e 's/_descriptor_pool.Default()/_descriptor_pool.DescriptorPool()/' -e '/^if not _descriptor._USE_C/,$$d' \
		$(messages:=_pb2.py)
