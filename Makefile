# Every target does its own set-up: `make demo` or `make test` on a fresh machine with Python 3.11+ and make needs nothing before it.

PYTHON ?= python3
# Interpreter for the real engines; by default that of .venv/ if they run on it, else the first that uv finds.
STACKS_PYTHON ?=
# PyTorch's CPU wheel index, where pip's own settings do not already lead to the CPU build (requirements/README.md).
TORCH_INDEX ?=
# Options for the demo: make demo ARGS="--port 9000 --no-calibrate"
ARGS ?=
# Options for pytest: make test TESTS="tests/routing -x"; in one process, as a debugger needs it: TESTS="-n 0 --pdb"
TESTS ?=
# How many requests `make fuzz` generates, and from which seed.
REQUESTS ?= 10000
SEED ?=

COMPILED_TESTS := tests/test_compiled.py tests/test_workers.py tests/backends tests/client_http tests/language tests/metrics tests/openai tests/routing tests/serving
QUICK := -m "not slow"
COMPILED_KIND := -m "not stack and not slow"
# Tests that failed beside others, on cores that real engines share, once more with the machine to themselves: what fails
# twice has failed. Not where pytest ended for another reason than failed tests (1).
again = { [ $$? -eq 1 ] && echo "once more, alone:" && $(1) -n 0 --last-failed --last-failed-no-failures none --maxfail 5 $(2); }

BIN := .venv/bin
UV := $(BIN)/uv
TRITON := .stacks/triton
VLLM := .stacks/vllm
NEWEST := .stacks/vllm-newest
COMPILED := .compiled
NODE := tests/clients/node
CLIENTS := .stacks/clients
TOOLS := .stacks/tools
SBOM := dist/crossover.cdx.json
FIND_PYTHON := $(BIN)/python -c 'import sys; print(sys.executable if sys.version_info < (3, 13) else ">=3.11,<3.13")'
# Byte code is compiled once here, not at every start of an engine.
INSTALL := $(UV) pip install --quiet --compile-bytecode --no-deps
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

.DEFAULT_GOAL := help
.PHONY: help install compiled stacks clients demo bench check test test-compiled test-fast slow fuzz mutants format lock sbom audit clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(BIN)/.installed ## the gateway, the load tester and the demo, into .venv/

compiled: $(COMPILED)/.installed ## the same from a wheel in dist/ whose hot paths are compiled, into .compiled/ (a C compiler)

stacks: $(TRITON)/.installed $(VLLM)/.installed $(NEWEST)/.installed ## real Triton and real vLLM for CPUs, into .stacks/ (Linux x86-64, 2.7 GB)

clients: $(NODE)/node_modules/.installed $(CLIENTS)/.installed $(CLIENTS)-older/.installed ## the clients that tests run apart: those for Node.js, and Python's frameworks

demo: install ## two engines, one gateway: measure where they cross, then serve (ARGS="--stack cpu" for the real servers)
	@$(BIN)/crossover demo $(ARGS)

bench: compiled ## what a token costs through the gateway and through others (ARGS="--quick"; docs/performance.md)
	@$(COMPILED)/bin/python -m loadtest.lab.bench $(ARGS)

check: $(BIN)/.dev ## formatting, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: check stacks clients ## check, then the tests on both stacks but for those of `make slow`, and test-compiled
	$(BIN)/pytest -n 2 $(QUICK) $(TESTS) || $(call again,$(BIN)/pytest,$(QUICK) $(TESTS))
	$(if $(TESTS),,@$(MAKE) --no-print-directory test-compiled)

# The wheel's modules go before those of this folder, which is on the path for the tests' sake.
test-compiled: compiled ## the tests of what every token passes, on its compiled form
	export PYTHONSAFEPATH=1 CROSSOVER_IS_COMPILED=1; $(COMPILED)/bin/pytest -n 2 $(COMPILED_KIND) $(or $(TESTS),$(COMPILED_TESTS)) || $(call again,$(COMPILED)/bin/pytest,$(COMPILED_KIND) $(or $(TESTS),$(COMPILED_TESTS)))

test-fast: $(BIN)/.dev clients ## the tests that need no real Triton or vLLM and no patience
	$(BIN)/pytest -n 2 -m "not stack and not slow and not gpu" $(TESTS)

slow: $(BIN)/.dev stacks clients ## the tests that take more than twenty seconds each
	$(BIN)/pytest -n 2 -m slow $(TESTS) || $(call again,$(BIN)/pytest,-m slow $(TESTS))

fuzz: $(BIN)/.dev ## generated requests, other ones each time (REQUESTS=10000, SEED= that of a run to repeat)
	CROSSOVER_FUZZ_REQUESTS=$(REQUESTS) CROSSOVER_FUZZ_SEED=$(or $(SEED),$(shell date +%s)) $(BIN)/pytest -rP tests/fuzz/test_generated_requests.py $(TESTS)

mutants: $(BIN)/.dev ## each promised behaviour taken away in turn: its tests must fail (ARGS="--only retry")
	$(BIN)/python -m tests.mutants.run $(ARGS)

format: $(BIN)/.dev ## format, and mend what lint can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: $(BIN)/.build ## compile requirements/*.txt again, to the newest versions allowed
	$(LOCK) --upgrade requirements/build.in -o requirements/build.txt
	$(LOCK) --upgrade pyproject.toml -o requirements/base.txt
	$(LOCK) --upgrade pyproject.toml --group dev -c requirements/base.txt -o requirements/dev.txt
	$(LOCK) --upgrade requirements/wheel.in -c requirements/dev.txt -c requirements/build.txt -o requirements/wheel.txt
	$(LOCK) --upgrade requirements/triton.in --no-deps -o requirements/triton.txt
	$(LOCK) --upgrade requirements/vllm.in --override requirements/vllm.overrides -o requirements/vllm.txt \
		$(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS)) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--no-emit-package torch --no-emit-package torchaudio --no-emit-package torchcodec --no-emit-package torchvision \
		--no-emit-package triton --no-emit-package opencv-python-headless
	$(LOCK) --upgrade requirements/vllm-newest.in --no-deps -c requirements/base.txt -o requirements/vllm-newest.txt
	$(LOCK) --upgrade requirements/clients.in -o requirements/clients.txt
	$(LOCK) --upgrade requirements/clients-older.in -o requirements/clients-older.txt
	$(LOCK) --upgrade requirements/tools.in -o requirements/tools.txt
	@$(MAKE) --no-print-directory $(BIN)/.dev
	$(BIN)/npm update --prefix $(NODE) --package-lock-only

sbom: $(TOOLS)/.installed ## the bill of materials of the gateway, in CycloneDX's form, into dist/
	@mkdir -p dist
	PYTHONWARNINGS=ignore $(TOOLS)/bin/cyclonedx-py requirements requirements/base.txt --pyproject pyproject.toml --output-reproducible --of JSON -o $(SBOM)

# --strict: without it a package whose advisories cannot be read is passed over, and the whole counts as clean.
audit: $(TOOLS)/.installed ## known vulnerabilities of all pinned packages, by PyPI's advisories (needs the internet)
	@failed=; for file in $(filter-out requirements/torch.txt,$(wildcard requirements/*.txt)); do \
		echo "$$file"; $(TOOLS)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r $$file || failed="$$failed $$file"; \
	done; [ -z "$$failed" ] || { echo "vulnerable, or not audited because PyPI's advisories could not be read (see above):$$failed" >&2; exit 1; }

clean: ## remove .venv/, .compiled/, dist/, .stacks/, .bench/, node_modules/ and the caches
	rm -rf .venv $(COMPILED) dist .stacks .bench $(NODE)/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "crossover needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1): make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

$(BIN)/.build: requirements/build.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(BIN)/.installed: requirements/base.txt pyproject.toml $(BIN)/.build
	$(INSTALL) --python $(BIN)/python --require-hashes -r $<
	$(INSTALL) --python $(BIN)/python --no-build-isolation --editable .
	@touch $@

$(BIN)/.dev: requirements/dev.txt $(BIN)/.installed
	$(INSTALL) --python $(BIN)/python --require-hashes -r $<
	@touch $@

# By way of a source distribution: what is compiled in place would stay beside the sources, and win over them.
$(COMPILED)/.installed: $(BIN)/.dev $(shell find gateway loadtest engines deploy model_repo -name '*.py')
	rm -rf dist
	$(BIN)/python -m hatchling build -t sdist
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w dist dist/*.tar.gz
	@$(UV) venv --quiet --clear --python $(BIN)/python $(COMPILED)
	$(INSTALL) --python $(COMPILED)/bin/python --require-hashes -r requirements/base.txt
	$(INSTALL) --python $(COMPILED)/bin/python --require-hashes -r requirements/dev.txt
	$(INSTALL) --python $(COMPILED)/bin/python dist/*.whl
	@$(COMPILED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | { read -r site; pwd >$$site/tests.pth; }
	@touch $@

$(NODE)/node_modules/.installed: $(NODE)/package-lock.json | $(BIN)/.dev
	$(BIN)/npm ci --loglevel=error --prefix $(NODE)
	@touch $@

# Frameworks that agree on no release of the OpenAI client: each set has an environment of its own.
$(CLIENTS)/.installed: requirements/clients.txt
$(CLIENTS)-older/.installed: requirements/clients-older.txt
$(CLIENTS)/.installed $(CLIENTS)-older/.installed: | $(BIN)/.dev
	@$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	$(INSTALL) --python $(@D)/bin/python --require-hashes -r $<
	@touch $@

$(TOOLS)/.installed: requirements/tools.txt $(BIN)/.build
	@$(UV) venv --quiet --clear --python $(BIN)/python $(TOOLS)
	$(INSTALL) --python $(TOOLS)/bin/python --require-hashes -r $<
	@touch $@

$(TRITON)/.installed: requirements/triton.txt $(BIN)/.build
	@$(UV) venv --quiet --clear --python "$(or $(STACKS_PYTHON),$$($(FIND_PYTHON)))" $(TRITON)
	$(INSTALL) --python $(TRITON)/bin/python --require-hashes -r $<
	@deploy/check-libraries.sh $(TRITON)
	@touch $@

# pip and not uv for torch: pip reads the settings (PIP_FIND_LINKS, pip.conf) that say where a machine gets its wheels.
$(VLLM)/.installed: requirements/vllm.txt requirements/torch.txt $(BIN)/.build
	@$(UV) venv --quiet --clear --python "$(or $(STACKS_PYTHON),$$($(FIND_PYTHON)))" $(VLLM)
	$(INSTALL) --python $(VLLM)/bin/python --require-hashes -r $<
	@$(BIN)/pip --python $(VLLM)/bin/python install --quiet --disable-pip-version-check --no-deps -r requirements/torch.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) || \
		{ echo "no CPU build of PyTorch found: make stacks TORCH_INDEX=<PyTorch's CPU wheel index>" >&2; exit 1; }
	@deploy/check-libraries.sh $(VLLM)
	@touch $@

# To go before $(VLLM)'s packages on Python's path. The wheel's kernels are for GPUs, so those of the CPU build take their place. --no-cache: it is
# unpacked once, and to a tenth of it.
$(NEWEST)/.installed: requirements/vllm-newest.txt $(VLLM)/.installed
	rm -rf $(NEWEST)
	$(INSTALL) --no-cache --python $(VLLM)/bin/python --target $(NEWEST) --require-hashes -r $<
	find $(NEWEST)/vllm -type f \( -name '*.so' -o -name vllm-rs -o -path '*/include/*' \) -delete
	ln -sr $(VLLM)/lib/python3.*/site-packages/vllm/*.so $(NEWEST)/vllm/
	@touch $@
