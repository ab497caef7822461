# Short names for the README's commands. `make env` once, then the rest.
PYTHON ?= python3
VENV ?= .venv
# Of gpu-report: a Python whose torch can use the GPU; lutlab need not be installed in it.
GPU_PYTHON ?= $(PYTHON)
BIN = $(VENV)/bin
# Where containers forbid bytecode, two workers would rewrite and compile every test anew.
unexport PYTHONDONTWRITEBYTECODE
# Of versions: pyproject.toml's requires-python, as a marker.
PYTHONS = python_full_version >= '3.11' and python_full_version < '3.15'

.PHONY: help env lint format versions lock test test-newest test-all test-random test-isa test-peers test-gpu installed release table bench report dashboard publish notebooks docs gpu-report

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

env: $(BIN)/ruff ## virtual environment with everything that developing needs

$(BIN)/ruff: pyproject.toml requirements/lock.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c requirements/lock.txt -e '.[dev]'
	@touch $@

lint: env ## style, unused names, docstrings, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env ## rewrite in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A week old: mirrors lag behind, and what is broken is mostly withdrawn by then.
versions: $(BIN)/uv ## renew requirements/lock.txt: versions that pyproject.toml allows, for every Python and system
	$(BIN)/uv pip compile -q --upgrade --exclude-newer "7 days" --universal --all-extras --no-annotate \
		--custom-compile-command "make versions" pyproject.toml -o requirements/lock.txt
	@# On another Python no line applies, so that pip says what is wrong: lutlab's requires-python.
	sed -i.bak -E "/^#/! { s/ ; (.*)/ ; (\1) and $(PYTHONS)/; /;/! s/$$/ ; $(PYTHONS)/; }" requirements/lock.txt && rm requirements/lock.txt.bak

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q uv

lock: env ## check versions against sources and golden cells, and lock them (UNCHANGED=<components>: CONTRIBUTING.md)
	$(BIN)/python -m tools.lock $(if $(UNCHANGED),--unchanged $(UNCHANGED))

test: env ## the README's tests: those that take moments and need no GPU
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

test-newest: env ## the README's tests with the newest versions, whatever the lock says; a warning fails none
	tests/newest.sh $(VENV)

test-all: env ## those and the slow ones: the site, notebooks, launchers, kills, published runs
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not gpu"

test-random: env ## those that draw their examples, with other ones in each run (minutes)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --hypothesis-profile random -m "hypothesis and not gpu"

test-isa: env ## those of CPU kernels by the other instruction set: AVX-512 by SIMDe (libsimde-dev), or AVX2 beside AVX-512
	tests/other_isa.sh $(BIN)/python

test-peers: env ## those beside llama.cpp, built from its source (minutes): the same model, the same divergence
	[ -d build/peers/llama_cpp ] || $(BIN)/pip install -q --no-deps --target build/peers llama-cpp-python==0.3.36 diskcache
	PYTHONPATH=build/peers $(BIN)/python -m pytest -q tests/evaluators/test_llama_cpp.py tests/checkpoint/test_gguf_writing.py \
		tests/quantizers/test_ggml.py

test-gpu: env ## the tests that need one
	$(BIN)/python -m pytest -m gpu

installed: env ## build the wheel, use it in a bare environment
	tests/installed.sh $(BIN)/python

release: installed ## of a clean tree: the wheel in dist/ and a tag, both of pyproject.toml's version; nothing is sent anywhere
	@test -z "$$(git status --porcelain)" || { echo "commit first: a tag names what is committed"; exit 1; }
	rm -rf dist && $(BIN)/python -m pip wheel -q --no-deps -w dist .
	@version=$$(basename dist/lutlab-*.whl | cut -d- -f2); \
	! grep "^## $$version (unreleased)" CHANGELOG.md || { echo "date it in CHANGELOG.md first"; exit 1; }; \
	git tag -a "v$$version" -m "lutlab $$version" && echo "tagged v$$version"

gpu-report: ## check, time and record all that needs a GPU, on this one; call again to go on
	$(GPU_PYTHON) benchmarks/gpu_report.py

table: env ## LUT-GEMM Table 4 on the models that ship with lutlab
	$(BIN)/python run.py +exp=table4

report: env ## render what is published into results/rendered, and the figures of docs/; measures nothing
	$(BIN)/python -m tools.render
	$(BIN)/python -m tools.figures

dashboard: env ## all that was measured and published as one page, results/dashboard.html; measures nothing
	$(BIN)/python run.py mode=dashboard "dashboard.of=[results,results/published]"

publish: env ## measure what results/published/list.yaml names (hours; call again to go on) and publish it
	$(BIN)/python -m tools.publish

bench: env ## speed against named peers, one run
	for b in benchmarks/bench_*.py; do $(BIN)/python $$b || exit 1; done

docs: env ## build the documentation into site/, strictly and offline
	$(BIN)/python -m tools.gallery
	$(BIN)/zensical build --strict
	@echo "site/index.html opens from disk; its search needs a server: $(BIN)/python -m http.server -d site"

notebooks: env ## execute the notebooks, and write their outputs into them
	$(BIN)/python -m tools.notebooks
