# Everything a developer runs. `make` alone lists the targets. The only thing needed beforehand is Python 3.11 or newer.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.installed
TESTS  := $(VENV)/.installed-tests
DOCS   := $(VENV)/.installed-docs
PIP    := $(BIN)/python -m pip -qq --disable-pip-version-check
# Test processes side by side; one file stays in one process, so that its tests share what it compiles or loads. Many
# tests start Python anew: bytecode is written, whatever the environment says. `--times` ends with a table of where the
# time went (tests/times.py). LINGERONNX_CACHE_DIR names a folder of compiled kernels to keep between runs.
JOBS   ?= 2
# The release of torch that the tests take, as setup.cfg names it. Its CPU build is `+cpu`; not every index has it.
TORCH  := $(shell sed -n 's/^ *\(torch==[0-9.]*\)$$/\1/p' setup.cfg | head -n 1)
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --times
PRECOMMIT := $(VENV)/.installed-pre-commit

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo examples test test-slow test-all test-lowest package baseline fuzz fuzz-nets lint pre-commit format \
        bench coverage warmup docs docs-reference docs-catalogs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

venv: $(TESTS) ## set up .venv with the package and its test tools (again only when setup.cfg changes)

$(CORE): setup.cfg
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "lingeronnx needs Python 3.11 or newer; '$(PYTHON)' is older or not there." \
	       "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); } || { \
	  echo "'$(PYTHON) -m venv' failed; some systems ship it apart (Debian, Ubuntu: package python3-venv)." >&2; exit 1; }
	@echo "installing lingeronnx into $(VENV)"
	@$(PIP) install -e .
	@touch $@

# torch first, so that its CPU build is there when the extra asks for torch.
$(TESTS): $(CORE)
	@echo "installing the test tools into $(VENV)"
	@$(PIP) install '$(TORCH)+cpu' 2>/dev/null || \
	  echo "no CPU build of $(TORCH) at hand; what comes instead brings gigabytes of CUDA on Linux." \
	       "CONTRIBUTING.md tells how to name an index that has the CPU build."
	@$(PIP) install -e '.[test]'
	@touch $@

$(DOCS): $(CORE)
	@echo "installing what builds the site into $(VENV)"
	@$(PIP) install -e '.[docs]'
	@touch $@

demo: $(CORE) ## quantize the digits model and print its accuracy, float against integer
	@$(BIN)/lingeronnx demo

examples: example-keyword-spotter example-face-detector example-denoiser example-crnn ## train and quantize what is in examples/

example-%: $(TESTS)
	@$(BIN)/python examples/$(subst -,_,$*).py

test: lint ## lint, then the fast tests: each behaviour has a case here
	LINGERONNX_TESTS=fast $(PYTEST)

test-slow: $(TESTS) ## the other tests: further cases, C compilers, training, whole models, packaging
	LINGERONNX_TESTS=slow $(PYTEST)

test-all: $(TESTS) ## every combination of cases, and ten times as many random ones; takes hours
	LINGERONNX_TESTS=all LINGERONNX_EXAMPLES=10 $(PYTEST)

# One process at a time writes its own data file; they are combined at the end. Compiled kernels are not traced.
coverage: $(PRECOMMIT) ## run the fast tests and report the lines that none of them reaches: build/coverage/index.html
	LINGERONNX_TESTS=$(or $(TIER),fast) $(PYTEST) --cov --cov-report=term:skip-covered --cov-report=html $(COVERAGE)

test-lowest: ## tests with the lowest version of each dependency that setup.cfg allows, in an environment of its own
	@$(PYTHON) -m benchmarks.lowest_versions $(LOWEST)

package: ## build sdist and wheel into dist/, test them in clean environments (PACKAGE='--python python3.12': with this one)
	@$(PYTHON) -m benchmarks.package_install $(PACKAGE)
	@$(PYTHON) -m benchmarks.container_steps

baseline: $(TESTS) ## compare the measured figures of benchmarks/results/baseline.md with the code; fail on a regression (BASELINE=--write: update the page)
	@$(BIN)/python -m benchmarks.baselines $(BASELINE)

fuzz: $(TESTS) ## hostile input through the commands and calls (N=2000 SECONDS=600 KIND="integer yaml" SEED=0 SECOND=1; docs/explanation/reliability.md)
	@OMP_NUM_THREADS=1 LINGERONNX_THREADS=1 $(BIN)/python -m tests.robustness -n $(or $(N),2000) $(if $(SECONDS),--seconds $(SECONDS)) \
	  $(if $(KIND),--kind $(KIND)) $(if $(SEED),--seed $(SEED)) $(if $(SECOND),--second) $(if $(JOURNAL),--journal $(JOURNAL)) $(if $(KEEP),--keep $(KEEP))

# One process computes with one thread; several may run side by side with a JOURNAL each.
fuzz-nets: $(TESTS) ## random nets through everything we have (N=400 FAMILY="image unet" CHIP="venus arcs" SEED=0; benchmarks/results/fuzzing.md)
	@OMP_NUM_THREADS=1 LINGERONNX_THREADS=1 $(BIN)/python -m tests.fuzz -n $(or $(N),400) $(if $(FAMILY),--family $(FAMILY)) \
	  $(if $(CHIP),--chip $(CHIP)) $(if $(CHECK),--check $(CHECK)) $(if $(SEED),--seed $(SEED)) $(if $(JOURNAL),--journal $(JOURNAL)) $(if $(THAN),--than $(THAN))

lint: $(TESTS) ## ruff (rules and layout), mypy, the contracts on imports, structure and readability
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m benchmarks.check_structure
	$(BIN)/python -m benchmarks.readability lingeronnx simulator --limits

$(PRECOMMIT): $(TESTS)
	@$(PIP) install -e '.[dev]'
	@touch $@

pre-commit: $(PRECOMMIT) ## run the hooks of .pre-commit-config.yaml on all files
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pre-commit run --all-files --show-diff-on-failure

format: $(TESTS) ## let ruff mend layout and what it can mend of its rules
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(TESTS) ## measure speed and write benchmarks/results/speed.md; tell what became slower (BENCH=--quick: two minutes)
	@$(BIN)/python -m benchmarks.speed $(or $(BENCH),--write benchmarks/results)

warmup: $(CORE) ## compile the simulator's kernels into the cache
	@$(BIN)/lingeronnx warmup

# -W: a warning is an error; all are told before it ends. -E: each page names all others, so all are made anew.
SPHINX := $(BIN)/python -m sphinx -q -E -W --keep-going -j auto

docs: $(DOCS) ## build the site, build/site/index.html in English and build/site/zh/index.html in Chinese
	$(SPHINX) -b html -d build/doctrees/en docs build/site
	$(SPHINX) -b html -d build/doctrees/zh -D language=zh_CN docs build/site/zh
	@echo "open build/site/index.html, build/site/zh/index.html"

docs-reference: $(CORE) ## write the pages of docs/ that the code tells: commands, calls, files, targets, error messages
	$(BIN)/python -m docs.pages

docs-catalogs: $(DOCS) ## bring docs/locale to the pages as they are: what changed is marked, for the translators
	$(SPHINX) -b gettext -d build/doctrees/gettext docs build/messages
	$(BIN)/python -m docs.pages.catalogues build/messages

clean: ## remove what these targets made, .venv included
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -type d -name __pycache__ -prune -exec rm -rf {} +
