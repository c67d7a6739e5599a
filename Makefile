# The commands of this repository. `make serve` and `make test` need nothing prepared on a fresh Debian 12.
.DEFAULT_GOAL := help
# A job for each core, as far as memory goes: the largest files take over a gigabyte to compile.
JOBS ?= $(shell awk -v cores="$$(nproc)" '/^MemAvailable/ { n = int($$2 / 1500000); if (n > cores) n = cores; print (n < 1 ? 1 : n) }' /proc/meminfo)
PORT ?= 8000
RELEASE := build/release
CMAKE := cmake -G Ninja -S .

.PHONY: help setup build serve chat test build-tests unit e2e san-short test-san test-slow eval perplexity bench-peer bench-peer-serve clean
.NOTPARALLEL:

help:
	@echo "make serve      build what is missing and serve the built-in model on http://127.0.0.1:$(PORT)"
	@echo "make test       install, build and run every test"
	@echo "make build      the release binary: $(RELEASE)/fathom"
	@echo "make chat       talk to the built-in model in this terminal"
	@echo "make eval       exact-match accuracy of the built-in model on held-out questions"
	@echo "make perplexity what each weight format costs on the built-in model's evaluation text"
	@echo "make bench-peer speed beside llama.cpp and ik_llama.cpp on the same models (QUICK=1: under 10 minutes)"
	@echo "make bench-peer-serve  streaming clients on fathom serve beside llama.cpp's server"
	@echo "make test-san   all unit and end-to-end tests under address + undefined, then thread sanitizers"
	@echo "make test-slow  long fuzzing and big runs"

setup:
	@tools/setup.sh build

build: setup
	@[ -e $(RELEASE)/build.ninja ] || $(CMAKE) -B $(RELEASE) -DCMAKE_BUILD_TYPE=Release >/dev/null
	@ninja -C $(RELEASE) -j$(JOBS) --quiet fathom

serve: build
	@exec $(RELEASE)/fathom serve --port $(PORT) $(ARGS)

chat: build
	@exec $(RELEASE)/fathom chat $(ARGS)

build-tests:
	@tools/setup.sh test
	@$(CMAKE) -B $(RELEASE) -DCMAKE_BUILD_TYPE=Release >/dev/null
	@ninja -C $(RELEASE) -j$(JOBS) --quiet

unit: build-tests
	@ctest --test-dir $(RELEASE) --no-tests=error --output-on-failure

e2e: build
	@tools/setup.sh test
	@build/venv/bin/python -m pytest -q -m "not slow" tests/tidy tests/e2e

# A quarter of the unit tests carries most of the lifetime and threading risk; the rest is in test-san.
SAN_SHORT := base text kv engine
san-short:
	@tools/setup.sh test
	@$(CMAKE) -B build/asan -DCMAKE_BUILD_TYPE=Release -DFATHOM_SANITIZE=address,undefined >/dev/null
	@ninja -C build/asan -j$(JOBS) --quiet $(SAN_SHORT:%=test_%)
	@ctest --test-dir build/asan --no-tests=error --output-on-failure -R '^($(subst $() $(),|,$(SAN_SHORT)))$$'

test: unit e2e san-short

# The servers of the end-to-end tests are the sanitizers' own, with more time for everything.
# The simulator has no threads (a test of the tree forbids them), and takes half an hour under the thread sanitizer.
test-san:
	@tools/setup.sh test
	@for san in address,undefined thread; do \
	  dir=build/san-$${san%%,*}; \
	  $(CMAKE) -B $$dir -DCMAKE_BUILD_TYPE=Release -DFATHOM_SANITIZE=$$san >/dev/null && \
	  ninja -C $$dir -j$(JOBS) --quiet && ctest --test-dir $$dir --no-tests=error --output-on-failure $$([ $$san = thread ] && echo -E '^sim$$') && \
	  FATHOM_BINARY=$$PWD/$$dir/fathom FATHOM_TIME_FACTOR=10 build/venv/bin/python -m pytest -q -m "not slow" tests/e2e || exit 1; \
	done

# Property tests take RC_PARAMS: twenty times their usual number of cases. Small fleets take five
# thousand seeds of faults, the published day is simulated whole.
test-slow: build-tests
	@tools/setup.sh slow
	@JOBS=$(JOBS) tools/fuzz_all.sh 60
	@RC_PARAMS="max_success=2000" FATHOM_FAULT_SEEDS=5000 FATHOM_WHOLE_DAYS=1 ctest --test-dir $(RELEASE) --no-tests=error --output-on-failure
	@FATHOM_START_TIMEOUT_S=1800 build/venv/bin/python -m pytest -q -m slow tests/e2e
	@bench/start_time.sh
	@tools/eval_forms.sh

eval: build
	@tools/setup.sh test
	@tools/run_eval.sh $(ARGS)

perplexity: setup
	@$(CMAKE) -B $(RELEASE) -DCMAKE_BUILD_TYPE=Release >/dev/null
	@ninja -C $(RELEASE) -j$(JOBS) --quiet perplexity
	@$(RELEASE)/bench/perplexity models/demo models/demo/eval.jsonl

# Makes two synthetic models (20 GB below build/peer) and installs the peers there; LLAMA_LIB= and IK_LIB= take a
# libllama.so of the machine instead.
bench-peer: perplexity
	@tools/setup.sh build
	@$(CMAKE) -B $(RELEASE) -DCMAKE_BUILD_TYPE=Release >/dev/null
	@ninja -C $(RELEASE) -j$(JOBS) --quiet peer_cell fathom
	@bench/peer/setup.sh
	@build/peer/venv/bin/python bench/peer/run.py $(if $(QUICK),--quick) $(ARGS)

bench-peer-serve: build
	@bench/peer/setup.sh serve
	@build/peer/venv/bin/python bench/peer/serve.py $(ARGS)

clean:
	@rm -rf build
