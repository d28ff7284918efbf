# Every target sets up what it needs in .venv/; `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
KEEP   ?=
STAMP  := $(VENV)/.epochal-$(shell cat pyproject.toml Makefile | cksum | cut -d' ' -f1)

.DEFAULT_GOAL := help
.PHONY: help venv

help:            ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' Makefile

venv: $(STAMP)   ## install everything into .venv/ (second runs take no time)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@rm -f $(VENV)/.epochal-*; touch $@
