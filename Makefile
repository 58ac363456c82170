# Every target that needs .venv creates or updates it first. Only make and Python 3.11 to 3.14 have to be installed.

# python3.11 is tried, because the launcher of a version manager may exist without that Python.
PYTHON ?= $(or $(shell python3.11 -c '' 2>/dev/null && command -v python3.11 || command -v python3),python3)
PORT ?=
ARGS ?=
RUN ?= $(if $(wildcard runs/*/params.json),last,models/pong)

VERSION := 'import sys; print(sys.version_info[:2])'
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
BROWSER := $(VENV)/.browser
DOCS := $(VENV)/.docs

# TensorBoard listens on this machine only. Without PORT, it takes the first free port from 6006 on and prints its address.
TENSORBOARD = $(BIN)/python -m tensorboard.main --logdir runs --host 127.0.0.1 $(if $(PORT),--port "$(PORT)")
FREEZE = .lock/bin/python -m pip freeze --exclude pong-ladder | grep -vE '^(nvidia-|cuda-|triton)' \
  | sed 's/^\(torch==[0-9.]*\)+.*/\1/'

# Without saved bytecode, every process compiles the project anew: a minute of CPU time in the tests.
unexport PYTHONDONTWRITEBYTECODE

# Two targets must not install into .venv at the same time.
.NOTPARALLEL:

.DEFAULT_GOAL := help
.PHONY: help install train play tensorboard check test test-long docs-check site lint ladder bench lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

# ptan 0.8.1 pins packages of 2024, so it is installed last and without its dependencies (docs/install.md).
$(READY): requirements.lock setup.cfg pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) \
	  and "Python 3.11 to 3.14 is needed, not %d.%d: make ... PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	@[ ! -e $(BIN) ] || [ "$$($(BIN)/python -c $(VERSION) 2>/dev/null)" = "$$($(PYTHON) -c $(VERSION) 2>/dev/null)" ] || { \
	  echo "$(VENV) has another Python than $(PYTHON), or none: give its PYTHON=..., or run make clean first" >&2; exit 2; }
	@echo "Installing into $(VENV): torch, gymnasium and the packages they need. They take 1.4 GB with a torch for the CPU,"
	@echo "and several GB more with a torch for NVIDIA GPUs. docs/install.md says how to choose one."
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip uninstall -qq --yes pygame  # from an older .venv; pygame-ce has the same files
	$(BIN)/python -m pip install --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps ptan==0.8.1
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

install: $(READY)  ## install into .venv

# What only development needs: Ray, pytest, mypy and ruff.
$(DEV): $(READY) requirements-dev.lock
	@echo "Installing the packages for development: 0.8 GB."
	$(BIN)/python -m pip install --requirement requirements-dev.lock
	@touch $@

# TensorBoard runs in the background and ends with the training, even if that is killed. The training saves and ends if
# make is killed.
train: $(READY)  ## solve Pong; options: ARGS="--seed 2 ..." and PORT=7000
	@mkdir -p runs; training=$$$$; make=$$PPID; log=runs/tensorboard-$$$$.log; ( trap '' INT HUP; \
	  $(TENSORBOARD) >$$log 2>&1 & page=$$!; address=; ended=; asked=; \
	  while kill -0 $$training 2>/dev/null; do \
	    [ "$$asked" ] || kill -0 $$make 2>/dev/null || { asked=yes; kill $$training; }; \
	    [ "$$address" ] || { address=$$(sed -n 's/^TensorBoard .* at \(http[^ ]*\).*/\1/p' $$log); \
	      [ -z "$$address" ] || echo "TensorBoard: $$address"; }; \
	    [ "$$ended" ] || kill -0 $$page 2>/dev/null || { ended=yes; echo "TensorBoard ended:"; tail -n 2 $$log; }; \
	    sleep 1; done; \
	  kill $$page 2>/dev/null; rm -f $$log ) & \
	echo "Starting; importing PyTorch takes some seconds ..."; exec $(BIN)/python distributed/03_ppo_actors.py $(ARGS)

play: $(READY)  ## watch the agent of the last run; RUN=... and ARGS="--scores"
	$(BIN)/python tools/play.py "$(RUN)" $(ARGS)

tensorboard: $(READY)  ## show all runs, at PORT or from 6006 on
	@mkdir -p runs
	$(TENSORBOARD)

check: lint  ## format, lint, types and the fast tests: at most 90 seconds, for use while editing
	$(BIN)/python -m pytest -m "not slow and not long" $(ARGS)

test: lint  ## format, lint, types and all tests but the long ones: 5 minutes
	$(BIN)/python -m pytest $(ARGS)

test-long: $(BROWSER)  ## the long tests, which make test leaves out
	$(BIN)/python -m pytest -m long $(ARGS)

docs-check: $(READY)  ## check the pages: figures, commands, links, words
	$(BIN)/python benchmarks/check_docs.py

$(DOCS): $(READY) requirements-docs.lock
	$(BIN)/python -m pip install --quiet --requirement requirements-docs.lock
	@touch $@

site: $(DOCS)  ## the pages as a site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "Open build/site/index.html in a browser."

# A headless browser, 0.7 GB. Only tests of pages need it, and are skipped without it.
$(BROWSER): $(DEV) requirements-browser.lock
	@$(BIN)/python -m pip install --quiet --requirement requirements-browser.lock && touch $@ \
	  || echo "no browser could be installed: tests of pages are skipped"

# mypy checks tests and benchmarks with tests/mypy.ini, because they import their helpers without a package name.
lint: $(DEV)  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@echo "mypy: the program, and at the same time its tests and benchmarks"
	@$(BIN)/python -m mypy & program=$$!; $(BIN)/python -m mypy --config-file tests/mypy.ini; tests=$$?; wait $$program && exit $$tests

ladder: $(READY)  ## the scripts: changed lines, lines to read, speed
	@$(BIN)/python benchmarks/ladder.py

bench: $(READY)  ## measure; ARGS="run chapter09", ARGS=tables, or a list
	$(BIN)/python benchmarks/bench.py $(or $(ARGS),list)

# torch's accelerator packages are left out, because each build of torch installs its own.
lock:  ## write the newest versions into requirements*.lock
	rm -rf .lock && $(PYTHON) -m venv .lock
	.lock/bin/python -m pip install --quiet .
	$(FREEZE) >requirements.lock
	.lock/bin/python -m pip install --quiet --constraint requirements.lock '.[docs]'
	$(FREEZE) | grep -vxFf requirements.lock >requirements-docs.lock
	.lock/bin/python -m pip uninstall --quiet --yes --requirement requirements-docs.lock
	.lock/bin/python -m pip install --quiet --constraint requirements.lock --constraint requirements-docs.lock '.[dev]'
	$(FREEZE) | grep -vxFf requirements.lock >requirements-dev.lock
	.lock/bin/python -m pip install --quiet '.[browser]'
	.lock/bin/python -m pip freeze | grep -iE '^(pyside6|shiboken6)' >requirements-browser.lock
	rm -rf .lock build *.egg-info

# If .venv is a link, its target stays. If it is a container's volume, it is emptied.
clean:  ## remove .venv and all caches, but not runs/
	rm -rf .lock build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	[ ! -L $(VENV) ] || rm $(VENV)
	[ ! -d $(VENV) ] || { find $(VENV) -mindepth 1 -delete; rmdir $(VENV) 2>/dev/null || true; }
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
