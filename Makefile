# Sets up an environment of its own and runs what a newcomer or a CI needs: make demo, make check, make test.

# Of python3.11 to 3.13 the first that is there; for 3.11 the pins give torch's small build without CUDA.
PYTHON ?= $(shell for version in 3.11 3.12 3.13; do python$$version -c pass 2>/dev/null && echo python$$version && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
FRAMEWORKS := .integrations
VARIANTS := none stage-backward-cycle param-group-cycle kept-outputs engine
PIPELINE := sample_runs/p2p_pipeline

# PYTHON:TORCH pairs that `make versions` runs the tests with, and where it keeps their environments, 3 to 7 GB each.
VERSIONS ?= 3.11:2.10.0 3.12:2.14.1 3.13:2.15.0
VERSIONS_FOLDER ?= .versions
HERE := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

FUZZ_SECONDS ?= 600
PAIRS ?= --sample 200

.PHONY: demo test integrations test-fast fuzz pairs goldens mutants check docs docs-record bench gpu samples versions python-there clean

demo: $(READY)
	$(BIN)/leakscope demo

# Tests that inspect their own process get one each, file by file; both lanes run whatever the other reports.
test: $(READY)
	@status=0; \
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=25 -m "not inspect and not integrations" || status=1; \
	$(BIN)/python tests/inspect_lane.py || status=1; \
	exit $$status

# The callbacks in the frameworks they are for, which have an environment of their own.
integrations: $(FRAMEWORKS)/ready
	$(FRAMEWORKS)/bin/python -m pytest tests/integrations tests/docs/test_pages.py -m integrations --durations=10

# The tests that start no process and take milliseconds each, for while one writes.
test-fast: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m unit

# Every entry of the parts in C with valid and hostile arguments, under AddressSanitizer and UndefinedBehaviorSanitizer.
fuzz: $(READY)
	cd tests && ../$(BIN)/python -m support.native_fuzz --sanitized --seconds $(FUZZ_SECONDS)

# Two leaks of the corpus at a time: what is found is the union. PAIRS=--all takes hours.
pairs: $(READY)
	cd tests && ../$(BIN)/python -m corpus.pairs $(PAIRS)

# Records anew what is found in the runs of tests/golden_runs, field by field.
goldens: $(READY)
	cd tests && ../$(BIN)/python -m golden_runs.judged

# A sample of mutants of findings and graph: which ones do the tests kill? MUTANTS="--seed 1 --only findings/cut" for others.
mutants: $(READY)
	$(BIN)/python tests/mutate.py $(MUTANTS)

# What has to pass before the tests, in CI too.
check: $(READY)
	$(BIN)/ruff check leakscope cli tests benchmarks
	$(BIN)/ruff format --check leakscope cli tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports
	@git log -n 50 --format=%s 2>/dev/null | awk 'length > 72 { print "longer than 72 characters: " $$0; bad = 1 } END { exit bad }'
	$(BIN)/mypy --strict $$(find cli -name "*.py")

docs: $(READY)
	$(BIN)/python -m mkdocs build --strict -f docs/mkdocs.yml
	@echo "docs/site/index.html"

# Runs every command of the pages and writes into them what it told.
docs-record: $(READY)
	$(BIN)/python -m pytest tests/docs/test_pages.py --docs-update

# What only a GPU shows, in ten minutes at most, with whatever python here has leakscope and a torch for it.
gpu:
	$(if $(GPU_PYTHON),$(GPU_PYTHON),$(HERE)) benchmarks/gpu/all_parts.py $(GPU_ARGUMENTS)

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py

# The unit lane, the leak corpus, the backward's tests and the sample pipeline on other versions; prints the table. With
# TORCH_TESTS, a folder for each version, torch's own tests of the backward too.
versions: python-there
	$(HERE) benchmarks/versions.py --folder $(VERSIONS_FOLDER) $(if $(TORCH_TESTS),--torch-tests $(TORCH_TESTS)) $(VERSIONS)

python-there:
	@test -n "$(HERE)" || { echo "leakscope needs one of python3.11, python3.12 and python3.13, and none is there" >&2; exit 1; }

# Records every variant of the sample pipeline again; 23 says that leaks were found, as they should be.
samples: $(READY)
	cd $(PIPELINE) && for variant in $(VARIANTS); do \
		$(CURDIR)/$(BIN)/leakscope run -q -f --prove --steps 12 --ranks 2 -o $$variant train.py -- --leak $$variant \
			|| test $$? -eq 23 || exit 1; \
		rm -rf $$variant/logs; \
	done

# Made again only when the pins, the project's own requirements or the parts in C change.
$(READY): pyproject.toml setup.py constraints.txt $(wildcard leakscope/*/*.[ch] leakscope/*/*/*.[ch])
	@$(MAKE) --no-print-directory python-there
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools wheel torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[test,docs]'
	@command -v dot >/dev/null && command -v chromium >/dev/null || test "$$(id -u)" -ne 0 || ! command -v apt-get >/dev/null \
		|| { apt-get update -qq && apt-get install -y -qq graphviz chromium >/dev/null; } \
		|| echo "graphviz and chromium could not be installed; the report draws without one, tests skip without the other" >&2
	touch $(READY)

$(FRAMEWORKS)/ready: pyproject.toml setup.py constraints.txt constraints-integrations.txt
	@$(MAKE) --no-print-directory python-there
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint constraints.txt setuptools wheel torch
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint constraints.txt --constraint constraints-integrations.txt \
		--no-build-isolation --editable '.[integrations]'
	touch $(FRAMEWORKS)/ready

clean:
	rm -rf $(VENV) $(FRAMEWORKS)
