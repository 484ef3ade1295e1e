# Everything a clone needs: `make demo` trains to a target, `make test` runs all tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MINIMAL := .venv-minimal
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Tests start hundreds of programs, which load what was compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs-site environments test test-busy test-cpus test-minimal test-slow services check bench docs clean

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install --constraint constraints.txt --editable \
		'.[atari,box2d,coderl,dev,docs,figures,mujoco,notebook,onnx,parquet,postgres,tensorboard,torch,web]'
	@touch $@

# All that the other targets need; with --jobs side by side, as most of it is waiting for downloads.
environments: $(VENV)/.dev $(MINIMAL)/.base services

demo: $(VENV)/.base
	$(BIN)/mileage warmup CartPole-v1
	$(BIN)/mileage train ppo CartPole-v1 --target "mean_return>=475" --seeds 5 --price 2.20 --eval-every 1024
	$(BIN)/mileage report ppo-CartPole-v1 --out runs/demo.html
	@echo 'Open runs/demo.html in a browser: learning curves, costs, phases and episodes to watch.'

# What fails once is run again by itself: what passes then is listed at the end as FLAKY, what fails twice is red.
# Tests often wait for a program: three workers keep two cores busy. Each takes tests that stand together, so that few
# kernels are compiled by two of them.
TESTED := tools/second_chance.py -n 3 --dist worksteal

# What tests start beside Python packages, from Debian, where apt-get and the right to use it are there; a machine without
# them keeps what it has, and tests name what is missing.
services:
	@bash .ci/install-services

test: $(VENV)/.dev services
	$(BIN)/python $(TESTED)

# The package as `pip install .` leaves it, without extras: what needs one is skipped and names it. Left out are tests that
# start compilers of other languages or programs of others, search for minutes, look at the source tree, or compute, learn
# or break without anything that an extra could bring (kernels, buffers, statistics, goldens, faults): no extra changes them.
LEFT_OUT := algorithms/test_impala.py algorithms/test_learning.py algorithms/test_off_policy.py algorithms/test_rpo.py \
	benchmarks buffers cli/test_profile_try.py coderl contracts/test_moved_ledgers.py \
	contracts/test_recovery.py contracts/test_store.py contracts/test_writer_faults.py docs envs/native envs/test_check.py \
	external/exam external/race external/test_exams.py external/test_record.py golden jobs kernels ledger/test_announce.py \
	ledger/test_exits.py ledger/test_reading.py ledger/test_redaction.py measure/test_caveats.py measure/test_cost.py \
	measure/test_coverage_study.py measure/test_failures.py measure/test_intervals.py measure/test_relabelling.py \
	measure/test_returns.py measure/test_series.py measure/test_timing.py measure/test_turns.py measure/test_typical.py \
	measure/test_verdict.py profiling/programs profiling/test_planted.py profiling/tuning test_house_style.py \
	test_interrupts.py tools training/test_broken_envs.py training/test_fork.py

$(MINIMAL)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(MINIMAL)
	$(MINIMAL)/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt . \
		hypothesis pytest pytest-xdist
	@touch $@

test-minimal: $(MINIMAL)/.base
	$(MINIMAL)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --force-reinstall .
	$(MINIMAL)/bin/python $(TESTED) -rs $(addprefix --ignore=tests/,$(LEFT_OUT))

# All tests in a random order, beside two processes that burn, with no kernel compiled.
test-busy: $(VENV)/.dev services
	.ci/test-busy $(BIN)/python

# The numeric tests as other processors would compute, as far as this one can.
test-cpus: $(VENV)/.dev
	.ci/test-cpus $(BIN)/python

test-slow: $(VENV)/.dev services
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

# The documentation as a site: strict, offline, into site/.
docs-site: $(VENV)/.dev
	$(BIN)/python docs/build_site.py

clean:
	rm -rf $(VENV) $(MINIMAL) .mypy_cache .pytest_cache .ruff_cache
