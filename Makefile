# Everything a developer or a CI machine runs. Needs cargo, python3 (3.10 or newer, with venv), a C linker and git; all else
# is set up here, in .venv and .envs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.SILENT:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
SGLANG_ENV ?= .envs/sglang
SGLANG_VERSION := 0.5.23
SGLANG_DISK_GB := 25
ARGS ?=
export PYTHON

BIN := $(VENV)/bin
WHEELS := target/wheels
BENCH_WHEELS := target/bench-wheels
BENCH_SITE := .envs/bench
SOURCES := $(shell find rust python -type f \( -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name '*.toml' -o -name 'py.typed' \))
UV_INSTALL := uv pip install --quiet --python

.PHONY: help demo test test-rust test-python test-interpreter test-sglang test-gpu lint format bench bench-wheel wheel env clean

help: ## this list
	grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: $(VENV)/.installed ## serve traffic, refresh and check every round (ARGS="--workload FILE --plot demo.png")
	$(BIN)/qsa-group demo $(ARGS)

test: lint test-rust test-sglang test-interpreter test-python ## everything that needs no GPU

test-rust: ## Rust tests
	echo '== Rust tests'
	if cargo nextest --version >/dev/null 2>&1; then
		cargo nextest run --locked --workspace --no-tests=warn
		cargo test --locked --workspace --doc
	else
		cargo test --locked --workspace
	fi

test-python: $(VENV)/.installed ## Python tests on the installed wheel
	echo '== Python tests'
	$(BIN)/python -m pytest --ignore=tests/sglang -m 'not gpu and not interpreter' $(ARGS)

test-interpreter: $(VENV)/.installed ## the kernel's tests on the CPU, through Triton's interpreter
	echo '== Python tests through the Triton interpreter'
	TRITON_INTERPRET=1 $(BIN)/python -m pytest --ignore=tests/sglang -m 'interpreter and not gpu' $(ARGS)

test-gpu: $(VENV)/.installed ## tests that need a CUDA device
	echo '== Python tests on the GPU'
	$(BIN)/python -m pytest --ignore=tests/sglang -m gpu $(ARGS)

test-sglang: $(VENV)/.installed ## tests against the released SGLang, in an environment of its own (11 GB)
	echo '== tests with SGLang $(SGLANG_VERSION)'
	scripts/test-sglang.sh '$(SGLANG_ENV)' '$(SGLANG_VERSION)' '$(SGLANG_DISK_GB)' '$(WHEELS)' $(ARGS)

lint: $(VENV)/.installed ## formatting, lints and types
	echo '== lint'
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	if test -x $(BIN)/actionlint; then $(BIN)/actionlint; fi
	$(BIN)/python -m mypy.stubtest qsa_group._core --ignore-disjoint-bases --allowlist tests/stubs_allowlist.txt

format: $(VENV)/.tools ## write the formatting that lint wants
	cargo fmt --all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH_SITE)/.installed ## benches of the Rust core, the host executor and the launches
	cargo bench --locked --workspace
	export PYTHONPATH='$(CURDIR)/$(BENCH_SITE)'
	$(BIN)/python benches/host_torch.py
	if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
		$(BIN)/python benches/launch.py --grid quick $(ARGS)
	else
		$(BIN)/python benches/launch.py --stub $(ARGS)
	fi

bench-wheel: $(BENCH_SITE)/.installed ## the wheel with what only benches need; PYTHONPATH=.envs/bench uses it

wheel: $(WHEELS)/.built ## the wheel, in target/wheels

env: $(VENV)/.installed ## the environment with the wheel in it

clean: ## removes what was built, and the environments
	rm -rf target dist $(VENV) .envs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(VENV)/.tools: pyproject.toml
	echo '== environment $(VENV)'
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; set PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/$(UV_INSTALL) $(BIN)/python --group dev 'torch>=2.8'
	touch $@

$(WHEELS)/.built: $(VENV)/.tools Cargo.toml Cargo.lock README.md $(SOURCES)
	echo '== wheel'
	rm -f $(WHEELS)/qsa_group-*.whl
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build --release --quiet --interpreter $(BIN)/python --out $(WHEELS)
	touch $@

$(VENV)/.installed: $(WHEELS)/.built
	$(BIN)/$(UV_INSTALL) $(BIN)/python --reinstall --no-deps $(WHEELS)/qsa_group-*.whl
	touch $@

# A folder and no environment of its own: everything but the package comes from $(VENV).
$(BENCH_SITE)/.installed: $(VENV)/.tools Cargo.toml Cargo.lock README.md $(SOURCES)
	echo '== wheel for benches'
	rm -rf $(BENCH_SITE) $(BENCH_WHEELS)/qsa_group-*.whl
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build --release --quiet --features bench --interpreter $(BIN)/python \
		--out $(BENCH_WHEELS)
	$(BIN)/$(UV_INSTALL) $(BIN)/python --target $(BENCH_SITE) --no-deps $(BENCH_WHEELS)/qsa_group-*.whl
	touch $@
