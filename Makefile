# Whatever needs .venv makes or refreshes it first; nothing has to be installed before but Python 3.11 and make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PORT ?= 6006
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BROWSER := $(VENV)/.browser

.DEFAULT_GOAL := help
.PHONY: help train tensorboard test lint lock ladder bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

# ptan 0.8.1 pins packages of 2024, so it comes last and alone (docs/install.md).
$(READY): requirements.lock setup.cfg pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make test PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps ptan==0.8.1
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

# The page runs beside the training and ends with it, however that ends.
train: $(READY)  ## solve Pong, with a TensorBoard page; options by ARGS="--seed 2 ..."
	@echo "TensorBoard: http://localhost:$(PORT) in some seconds; if not, see runs/tensorboard.log"
	@training=$$$$; ( $(BIN)/tensorboard --logdir runs --port $(PORT) >runs/tensorboard.log 2>&1 & page=$$!; \
	  trap '' INT; while kill -0 $$training 2>/dev/null; do sleep 1; done; kill $$page 2>/dev/null ) & \
	exec $(BIN)/python distributed/02_ppo_actors.py $(ARGS)

tensorboard: $(READY)  ## show all runs at http://localhost:6006
	$(BIN)/tensorboard --logdir runs --port $(PORT)

test: lint $(BROWSER)  ## formatter, linter, type checker, tests
	$(BIN)/python -m pytest $(ARGS)

# 250 MB that nothing but a test of tools/report.py needs, which is skipped where they cannot be had.
$(BROWSER): $(READY) requirements-browser.lock
	@$(BIN)/python -m pip install --quiet --requirement requirements-browser.lock && touch $@ \
	  || echo "no browser could be installed: the test of tools/report.py's page is skipped"

lint: $(READY)  ## formatter, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

ladder: $(READY)  ## each rung's parent, changed lines, what it keeps, measured speed
	@$(BIN)/python benchmarks/ladder.py

bench: $(READY)  ## measure chapter 9's rungs, about twenty minutes
	$(BIN)/python benchmarks/chapter09.py

# torch brings the accelerator packages that its own build needs; naming them would bind the lock to one build.
lock:  ## resolve the newest versions that setup.cfg allows into requirements.lock
	rm -rf .lock && $(PYTHON) -m venv .lock
	.lock/bin/python -m pip install --quiet '.[dev]'
	.lock/bin/python -m pip freeze --exclude pong-ladder | grep -vE '^(nvidia-|triton)' \
	  | sed 's/^\(torch==[0-9.]*\)+.*/\1/' >requirements.lock
	.lock/bin/python -m pip install --quiet '.[browser]'
	.lock/bin/python -m pip freeze | grep -iE '^(pyside6|shiboken6)' >requirements-browser.lock
	rm -rf .lock build *.egg-info

clean:  ## remove .venv and all caches; runs/ stays
	rm -rf $(VENV) .lock build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
