# Each target sets up what it needs: a fresh machine wants Python 3.11+ with pip, and nothing else.
PYTHON ?= python3
# `make test TORCH=2.15.0` tests with another torch than the pinned one, in an environment of its own.
TORCH ?=
VENV ?= .venv$(if $(TORCH),-torch-$(TORCH))
WHICH := $(if $(TORCH),torch==$(TORCH),--constraint constraints.txt)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests start many processes: they should not compile the sources each time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-gpu test-frameworks coverage lint format docs picture clean install
install: $(STAMP)

# Installed again only when what is to be installed changed.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Paceline needs Python 3.11 or newer; found " + sys.version.split()[0] + ". Type: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(WHICH) --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/paceline demo

# More test processes than the two cores of a small machine: half of the time a test waits for processes of its own.
test: $(STAMP)
	$(BIN)/python -m pytest -n 4

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 3 -m '' --hypothesis-profile large

# All tests that need a GPU: minutes on one GPU and 16 cores. A machine with torch and without a network needs the folder
# .gpu-site, see CONTRIBUTING.md, and no environment: `make test-gpu PYTHON=python3`.
GPU_SITE := $(wildcard .gpu-site)
test-gpu: $(if $(GPU_SITE),,$(STAMP))
	$(if $(GPU_SITE),PYTHONPATH=src:.gpu-site $(PYTHON),$(BIN)/python) -m pytest -p no:benchmark -m gpu -n 8 --dist worksteal --durations 10

# Programs of many frameworks, plain and on 2 workers, in an environment of its own; writes docs/frameworks.md.
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_STAMP := $(FRAMEWORKS)/.installed
test-frameworks: $(FRAMEWORKS_STAMP)
	$(FRAMEWORKS)/bin/python tests/frameworks/run.py $(PROGRAMS)

$(FRAMEWORKS_STAMP): pyproject.toml constraints.txt $(wildcard tests/frameworks/*requirements.txt)
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint constraints.txt --requirement tests/frameworks/requirements.txt --editable .
	$(FRAMEWORKS)/bin/python -m pip install --quiet --no-deps --target $(FRAMEWORKS)/vision --upgrade --requirement tests/frameworks/vision-requirements.txt
	@touch $@

# Of the default run, with the branches that workers take.
coverage: $(STAMP)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2; ended=$$?; \
	$(BIN)/coverage combine --quiet; \
	$(BIN)/coverage report --skip-covered --sort=-miss --precision=2 --include='src/paceline/*'; exit $$ended

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in site/: open site/index.html. It needs no network and no server.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Pictures: the rooms; real runs of an example, in terminals and in `paceline view`. The last needs chromium.
picture: $(STAMP)
	$(BIN)/python docs/make_picture.py rooms docs/images/rooms.svg
	$(BIN)/python docs/make_picture.py same docs/images/same-numbers.svg
	$(BIN)/python docs/make_picture.py dashboard docs/images/dashboard.png

clean:
	rm -rf $(VENV) $(FRAMEWORKS) .mypy_cache .ruff_cache .pytest_cache paceline-runs site
