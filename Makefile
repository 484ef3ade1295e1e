# Everything a clone needs: `make demo` trains to a target, `make test` runs all tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-slow services check bench docs clean

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install --constraint constraints.txt --editable '.[atari,coderl,dev,mujoco,parquet,postgres,tensorboard,torch]'
	@touch $@

demo: $(VENV)/.base
	$(BIN)/mileage warmup CartPole-v1
	$(BIN)/mileage train ppo CartPole-v1 --target "mean_return>=475" --seeds 5 --price 2.20

# Installs what tests start beside Python packages, from Debian, as root. Only on request: without it, tests name what is missing.
services:
	@bash .ci/install-services

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/architecture.py --check

bench: $(VENV)/.dev
	flock /tmp/mileage-bench.lock $(BIN)/python benchmarks/run_all.py

docs: $(VENV)/.dev
	$(BIN)/python docs/build_reference.py
	$(BIN)/python docs/build_layers.py
	$(BIN)/python benchmarks/readme_table.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
