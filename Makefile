# Every target has a `##` comment; `make help` prints them.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
# The number of parallel processes of simulations.
WORKERS ?= 2
# Tests of real processes mostly wait, so more of them than cores run at once.
TEST_WORKERS ?= 4
# Further arguments to pytest: make test ARGS="-k fits"
ARGS    ?=
# Where `make up` keeps everything, and where it listens.
DATA    ?= data
LISTEN  ?= 127.0.0.1:6443
STORE   ?=
# The number of nodes that `make up` divides this machine into.
AGENTS  ?= 3

# The number of seeds that sim-authority simulates.
SEEDS   ?= 1000

# Some shells and images set this. Every process of a plane would then compile all its modules when it
# starts, which took a third of the CPU time of a test run.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: authority-page signals-page evictions-page matrix-page help install up system check check-types check-rules check-collect format test test-quick test-long full-long property-long storm-long crash-long failover-long end-to-end-long run-long fuzz sim-authority sim-end-to-end sim-all-controllers sim-edges sim-sweep bench requirements lock wheel clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## Create .venv with Holdfast and all development tools, at pinned versions

$(VENV)/.installed: pyproject.toml setup.py constraints.txt tools/make-venv $(wildcard src/holdfast/host/runtime/shim*.[ch])
	@tools/make-venv $(PYTHON) $(VENV)
	@touch $@

system: $(VENV)/.system ## Install the system packages that live tests use (etcd, kubectl, strace, iproute2, iptables, runc, busybox)

# The stamp is written only when nothing is missing: a machine that lacks a package gets the message each time.
$(VENV)/.system: tools/system-packages | $(VENV)/.installed
	@if tools/system-packages; then touch $@; fi

up: $(VENV)/.installed ## Run a whole plane here (DATA=data LISTEN=127.0.0.1:6443 STORE= AGENTS=3); Ctrl-C stops it, the data stays
	@$(BIN)/holdfast up --data "$(DATA)" --listen "$(LISTEN)" --store "$(STORE)" --agents "$(AGENTS)"

check: $(VENV)/.installed ## Lint, format, types, import layers, purity of the pure rooms; changes nothing
	@$(MAKE) --no-print-directory --jobs 2 check-types check-rules

check-types: $(VENV)/.installed
	$(BIN)/mypy

check-rules: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.tidy

format: $(VENV)/.installed ## Format the code and apply the fixes of the linter
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# On a fresh clone no test is compiled yet, and every worker would compile all of them at the same time.
# Collecting them once, beside the type check, took a minute off the run.
check-collect: $(VENV)/.installed
	@test -d tests/__pycache__ || $(BIN)/pytest --collect-only -q >/dev/null

test: $(VENV)/.system ## Check, then run all tests in their short forms and print their cost; on a fresh clone, install what is missing first
	@$(MAKE) --no-print-directory --jobs 2 check-types check-rules check-collect
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadgroup --costs $(ARGS)

test-quick: $(VENV)/.installed ## Run only the tests that need no real processes and take seconds at most
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not live and not slow" $(ARGS)

test-long: $(VENV)/.installed $(VENV)/.system ## Run all long forms, one after another, with progress (some hours); PARTS="crash-long fuzz" runs only those
	$(BIN)/python -m tests.long_run $(PARTS)

full-long: $(VENV)/.installed $(VENV)/.system ## Run the full form of what make test shortens: all seeds, examples, planted bugs and variants
	HOLDFAST_LONG=1 $(BIN)/pytest -n $(WORKERS) --dist loadgroup --costs $(ARGS)

property-long: $(VENV)/.installed $(VENV)/.system ## Search properties many times longer than usual
	HOLDFAST_LONG=1 HOLDFAST_HYPOTHESIS=long $(BIN)/pytest -n $(WORKERS) --dist loadgroup --timeout 7200 tests/property $(ARGS)

crash-long: $(VENV)/.installed ## Simulate a power failure at 200,000 moments of the embedded store (a quarter of an hour)
	$(BIN)/python -m tests.crash_check --states 200000

failover-long: $(VENV)/.installed $(VENV)/.system ## Kill and stop etcd members at random under load (SECONDS=600)
	HOLDFAST_FAILOVER_S=$(or $(SECONDS),600) $(BIN)/pytest tests/live/etcd/test_failover.py -k long_time -s $(ARGS)

end-to-end-long: $(VENV)/.installed $(VENV)/.system ## Kill every pair of parts on the way of one replica, on SQLite and on etcd; 500 completions of a job; a store outage of 90 s (some minutes)
	HOLDFAST_LONG=1 HOLDFAST_END_TO_END_LONG=1 $(BIN)/pytest tests/live/test_end_to_end.py tests/live/test_end_to_end_trouble.py tests/live/test_jobs.py \
		tests/live/test_serving.py -s $(ARGS)

run-long: $(VENV)/.installed $(VENV)/.system ## Cut nodes off, remove servers, kill parts under load, run 5,000 short replicas (some minutes)
	HOLDFAST_LONG=1 HOLDFAST_RUN_LONG=1 $(BIN)/pytest tests/live/test_node_cut.py tests/live/test_node_loss.py tests/live/test_revocation.py tests/live/test_rotation.py tests/live/test_ca_rotation.py tests/live/test_run_kills.py \
		tests/live/test_many_short.py -s $(ARGS)

fuzz: $(VENV)/.installed ## Fuzz every parser of external input, for MINUTES=10; prints the coverage
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) $(ARGS)

storm-long: $(VENV)/.installed $(VENV)/.system ## Retry storms: 5,000 simulated agents and all planted bugs, 200 real agents whose etcd is paused (some minutes)
	HOLDFAST_LONG=1 HOLDFAST_STORM_LONG=1 $(BIN)/pytest tests/sim/test_retry_storm.py tests/sim/test_overload.py tests/live/test_retry_storm.py -s $(ARGS)

sim-authority: $(VENV)/.installed ## Simulate the authority under faults, SEEDS of them (1,000 take about ten minutes of CPU)
	$(BIN)/python -m holdfast.sim run holdfast.sim.worlds.authority.scenario:SCENARIO \
		--seeds 0-$$(($(SEEDS) - 1)) --processes $(WORKERS)

sim-end-to-end: $(VENV)/.installed ## Simulate one replica end to end under faults, SEEDS of them (1,000 take about half an hour of CPU)
	$(BIN)/python -m holdfast.sim run holdfast.sim.worlds.end_to_end.scenario:SCENARIO \
		--seeds 0-$$(($(SEEDS) - 1)) --processes $(WORKERS)

sim-all-controllers: $(VENV)/.installed ## Simulate all controllers under faults, SEEDS of them (1,000 take about half an hour of CPU)
	$(BIN)/python -m holdfast.sim run holdfast.sim.worlds.all_controllers.scenario:SCENARIO \
		--seeds 0-$$(($(SEEDS) - 1)) --processes $(WORKERS)

sim-edges: SEEDS = 100
sim-edges: $(VENV)/.installed ## Simulate every small world, each for a defect that the large ones hide, SEEDS=100 of each (about two hours of CPU)
	$(BIN)/python -m holdfast.sim edges --seeds 0-$$(($(SEEDS) - 1)) --processes $(WORKERS)

sim-sweep: $(VENV)/.installed ## Simulate one fault at every point of the small workloads (about half an hour of CPU)
	$(BIN)/python -m holdfast.sim.worlds.all_controllers.sweep_worlds --processes $(WORKERS)

bench: $(VENV)/.installed ## Run a benchmark: make bench NAME=model; without NAME, list them
	@$(BIN)/python -m bench $(NAME)

requirements: $(VENV)/.installed ## Write docs/requirements.md from docs/requirements.toml and the tests; with ID=C4, list one with its proofs
	@$(BIN)/python -m tools.requirements $(ID)

authority-page: $(VENV)/.installed ## Rewrite docs/authority.md from the table in commit/authority_table.py
	@$(BIN)/python -m tools.authority_page

signals-page: $(VENV)/.installed ## Rewrite docs/signals.md from the table in correct/trouble_signals.py
	@$(BIN)/python -m tools.signals_page

evictions-page: $(VENV)/.installed ## Rewrite docs/evictions.md from the rules of preemption and budgets
	@$(BIN)/python -m tools.evictions_page

matrix-page: $(VENV)/.installed ## Rewrite docs/matrix.md from the routes and tools/matrix_rows.py
	@$(BIN)/python -m tools.matrix_page

lock: ## Rewrite constraints.txt with the newest versions that pyproject.toml allows, and their hashes; ARGS=--keep keeps versions
	@$(PYTHON) tools/lock_versions.py $(ARGS)

wheel: $(VENV)/.installed ## Build the wheel of this commit in dist/; the same commit gives the same bytes
	@tools/make-wheel $(BIN)/python dist

clean: ## Remove .venv, caches and build products
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist src/*.egg-info
	rm -f src/holdfast/host/runtime/holdfast-shim
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
