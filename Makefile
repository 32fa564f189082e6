# One command each. Every target makes .venv on first use; after that it starts at once.
#
#   make demo    run the first notebook here in the terminal, cell by cell
#   make test    lint, types and imports; the tests of jdist itself; the first notebook. About 25 minutes on two cores
#   make test-unit | test-process | test-cluster    one tier of them: nothing started; single processes; clusters
#   make test-libraries  PyTorch's tutorials, and libraries for training, in cells
#   make test-system  what jdist works with: ssh, Slurm, MPI, Ray, JupyterHub, browsers, all notebooks, the soak
#   make test-gpu  what needs GPUs, on a machine that has one or more: five minutes, no network
#   make test-all   everything that is checked: test, test-libraries and test-system
#   make test-torch   what depends on torch most, with the oldest and the newest torch that jdist supports; each has an
#                environment of its own, of some GB. TORCHES='2.13.0' for another one
#   make test-python  the same with each Python that jdist supports; PYTHONS='3.13' for one of them
#   make lab     open the notebooks in JupyterLab
#   make labextension  build the JupyterLab extension, which `make lab` and `make test` do by themselves
#   make dist    the source distribution and the wheel in dist/, as a release publishes them; needs npm
#   make lint    the checks without the tests
#   make translations  write the catalogue of the JupyterLab extension's texts, which language packs translate
#   make types   write the TypeScript types of what the server sends, from its Structs
#   make docs    build the documentation's site into site/
#   make pictures  the pictures of the README and the docs, from a real JupyterLab; PICTURES='hang' for some of them
#   make bench   the benchmarks
#   make soak    random programs under random faults; SOAK='--seconds 3600' for an hour, '--seed 7' for the same again
#   make worst-day  hostile cells and faults of the machine in pairs, as root; WORST_DAY='--pairs 500 --seed 1'
#   make clean   remove .venv and the caches
#
#   make demo PYTHON=/path/to/python3.12                another interpreter
#   make demo TORCH='torch --index-url https://…/cu128' another build of torch, from now on
#   make test-unit PYTEST_ARGS='-k verdict -x' JOBS=0   a part of the tests, in one process

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
PYTEST_ARGS ?=
# Test processes side by side: much of a test is waiting, so one more than there are cores.
JOBS ?= $(shell expr $$(nproc) + 1)
SOAK ?= --faults 200
TORCHES ?= $(shell sed -n 's/^[A-Z]*_TORCH = "\(.*\)"/\1/p' jdist/core/settings.py)
PYTHONS ?= 3.11 3.12 3.13
# The clusters' tests that depend on torch most: what ranks wait in, how they are freed, what they keep.
HEART := cells doctor faults handover interrupts_in_c on_reform profile restore timeouts values verdicts
PICTURES ?=

BIN := $(VENV)/bin
HAS_TORCH := $(VENV)/.torch
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
HUB_PROXY := tests/support/hub/node_modules/.package-lock.json
LAB := labextension/built/package.json
LAB_TOOLS := labextension/node_modules/.package-lock.json
LAB_SOURCES := $(wildcard labextension/*.json labextension/schema/* labextension/style/* labextension/style/*/*) \
  $(shell find labextension/src -type f)

.DEFAULT_GOAL := help
.PHONY: help demo test test-libraries test-unit test-process test-cluster test-system test-gpu test-all test-lab test-heart test-torch test-python FORCE lab labextension dist lint lint-lab translations types docs pictures bench soak worst-day clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   \{0,1\}//p' Makefile

# For pip, which would build the JupyterLab extension, too: that has a target of its own.
WITHOUT_LAB = SKIP_JUPYTER_BUILDER=1

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "jdist needs Python 3.11 or later, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch comes first and by itself: which build fits (CPU, CUDA, ROCm) is not something a dependency can say, and left
# to the second install the newest one would be taken, whatever it is. One that can be imported already is kept, unless
# TORCH= names another one than the last time.
IS_NAMED = [ "$(origin TORCH)" != file ]
$(HAS_TORCH): $(BIN)/python FORCE
	@if [ -e $@ ] && { ! $(IS_NAMED) || [ "$$(cat $@)" = "$(TORCH)" ]; }; then exit; fi; \
	  if [ -n "$(strip $(TORCH))" ] && { $(IS_NAMED) || ! $(BIN)/python -c 'import torch' 2>/dev/null; }; then \
	    echo "$(BIN)/python -m pip install $(TORCH)"; \
	    $(BIN)/python -m pip uninstall --quiet --yes torch 2>/dev/null; \
	    $(BIN)/python -m pip install --quiet $(TORCH) || exit; \
	  fi; echo "$(TORCH)" > $@

FORCE:

$(READY): pyproject.toml jdist/core/__init__.py $(HAS_TORCH)
	@echo "installing jdist, JupyterLab and what the notebooks need into $(VENV); once, a minute or two"
	$(WITHOUT_LAB) $(BIN)/python -m pip install --quiet -e '.[notebooks]'
	@touch $@

$(TOOLS): $(READY)
	@echo "installing what is needed to test, to build and to measure; once, a few minutes"
	$(WITHOUT_LAB) $(BIN)/python -m pip install --quiet -e '.[test]'
	@touch $@

demo: $(READY)
	$(BIN)/python notebooks/show.py notebooks/01_first_cell.ipynb

# What clients import, which run on macOS and Windows, too.
CLIENT := $(addprefix jdist/,*.py core wire/*.py wire/transport wire/values client notebook server \
  $(addprefix launch/,__init__.py base.py hosts.py join.py launch_program.py pods.py ssh_command.py))

lint: $(TOOLS) lint-lab
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for system in darwin win32; do \
	  $(BIN)/mypy --platform $$system --cache-dir .mypy_cache/$$system --no-warn-unreachable --follow-imports silent $(CLIENT) || exit; done
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/unit/docs/test_budget.py

# The proxy of the JupyterHub in tests/system/hub. Without npm those tests say what they lack.
$(HUB_PROXY): tests/support/hub/package-lock.json
	@command -v npm >/dev/null || { echo "no npm here: tests/system/hub will be skipped"; exit 0; }; \
	  echo "npm ci --prefix tests/support/hub"; npm ci --silent --no-fund --no-audit --prefix tests/support/hub && touch $@

# What follows needs npm. Without it, each target says what is left out; in CI, that is a failure.
WITHOUT_NPM = command -v npm >/dev/null || { echo "no npm here: $(1)" >&2; [ -z "$$JDIST_CI" ]; exit; }

# The compiler, the linter and the test runner of the JupyterLab extension.
$(LAB_TOOLS): labextension/package-lock.json
	@$(call WITHOUT_NPM,the tools of the JupyterLab extension are not installed); \
	  echo "installing the tools of the JupyterLab extension; once, a minute"; \
	  npm ci --silent --no-fund --no-audit --prefix labextension && touch $@

lint-lab: $(TOOLS) $(LAB_TOOLS)
	@$(call WITHOUT_NPM,the TypeScript of the JupyterLab extension is not linted); \
	  echo "npm run lint --prefix labextension"; npm run lint --silent --prefix labextension && \
	  for check in catalogue server_types; do \
	    echo "$(BIN)/python labextension/$$check.py --check"; $(BIN)/python labextension/$$check.py --check || exit; \
	  done

translations: $(TOOLS)
	@$(call WITHOUT_NPM,the texts of the JupyterLab extension are not extracted); \
	  echo "$(BIN)/python labextension/catalogue.py"; $(BIN)/python labextension/catalogue.py

types: $(TOOLS) $(LAB_TOOLS)
	@$(call WITHOUT_NPM,the types of what the server sends are not written); \
	  echo "$(BIN)/python labextension/server_types.py"; $(BIN)/python labextension/server_types.py

test-lab: $(LAB_TOOLS)
	@$(call WITHOUT_NPM,the unit tests of the JupyterLab extension are not run); \
	  echo "npm test --prefix labextension"; npm test --silent --prefix labextension

# The JupyterLab extension, linked into the environment. Without npm, JupyterLab works and lacks it.
$(LAB): $(LAB_SOURCES) $(LAB_TOOLS) | $(READY)
	@$(call WITHOUT_NPM,JupyterLab will lack the extension); \
	  echo "building the JupyterLab extension"; npm run build --silent --prefix labextension && touch $@ && \
	  $(BIN)/jupyter-builder develop . --overwrite --log-level=WARN

labextension: $(LAB)

# The wheel is made from the source distribution, as others make theirs.
dist: $(TOOLS)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

PYTEST = $(BIN)/python -m pytest -n $(JOBS) --durations=30 $(PYTEST_ARGS)

test: lint test-lab
	$(PYTEST) tests/unit tests/process tests/cluster 'tests/system/test_notebooks.py::test_runs[01_first_cell.ipynb]'

test-unit: $(TOOLS) test-lab
	$(PYTEST) tests/unit

test-process: $(TOOLS)
	$(PYTEST) tests/process

test-cluster: $(TOOLS)
	$(PYTEST) tests/cluster

test-libraries: $(TOOLS)
	$(PYTEST) tests/libraries

test-system: $(TOOLS) $(HUB_PROXY) $(LAB)
	$(PYTEST) tests/system

# One process: the tests share the GPUs.
NO_GPU = no GPU here that this torch can use: run it where there is one, or name a build of torch with CUDA by TORCH=
test-gpu: $(TOOLS)
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "$(NO_GPU)" >&2; exit 1; }
	$(BIN)/python -m pytest -n 0 $(PYTEST_ARGS) tests/gpu

test-all: test test-libraries test-system

test-heart: $(TOOLS)
	$(PYTEST) tests/unit tests/process $(HEART:%=tests/cluster/test_%.py)

test-torch: $(TORCHES:%=test-torch-%)

test-torch-%:
	@$(MAKE) --no-print-directory test-heart VENV=.venv-torch-$* TORCH=torch==$*

test-python: $(PYTHONS:%=test-python-%)

test-python-%:
	@for python in python$* $(HOME)/.pyenv/versions/$*.*/bin/python none; do $$python -c '' 2>/dev/null && break; done; \
	  [ $$python != none ] || { echo "no Python $* here: no python$* on the PATH, and none of pyenv's" >&2; exit 1; }; \
	  $(MAKE) --no-print-directory test-heart VENV=.venv-python-$* PYTHON=$$python

# JupyterLab refuses to run as root unless it is told to.
lab: $(READY) $(LAB)
	$(BIN)/jupyter lab --ServerApp.root_dir=$(CURDIR)/notebooks $$([ "$$(id -u)" -ne 0 ] || echo --allow-root)

docs: $(TOOLS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir site

pictures: $(TOOLS) $(LAB)
	PYTHONPATH=tests $(BIN)/python docs/making/pictures.py $(PICTURES)

bench: $(TOOLS)
	@for bench in benchmarks/*.py; do echo "== $$bench"; $(BIN)/python $$bench || exit 1; done

soak: $(TOOLS)
	PYTHONPATH=tests $(BIN)/python -m support.soak.soak $(SOAK)

worst-day: $(TOOLS)
	PYTHONPATH=tests $(BIN)/python -m support.soak.worst_day $(WORST_DAY)

clean:
	rm -rf $(VENV) .venv-torch-* .venv-python-* labextension/built labextension/lib labextension/node_modules tests/support/hub/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist site
	find jdist tests benchmarks notebooks -name __pycache__ -type d -prune -exec rm -rf {} +
