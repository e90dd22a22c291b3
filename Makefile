# Two commands matter: `make demo` and `make test`. Both set everything up in .venv by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test check format kernels bench docs notebooks reports clean help

demo: $(READY)  ## all built-in scenarios, five frameworks, executed and checked; writes out/demo
	$(BIN)/handoff run --out out/demo

test: $(READY)  ## lint, types and the whole test suite
	$(MAKE) --no-print-directory check VENV=$(VENV)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

check: $(READY)  ## ruff (lint and format) and mypy strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy handoff adapters

format: $(READY)  ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## planner speed on a public trace: make bench TRACE=conversation_trace.jsonl
	$(BIN)/handoff bench trace $(TRACE) --adapter vllm --pool-tokens 4194304

docs: $(READY)  ## the documentation site, warnings are errors: out/docs/index.html
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/savings.py
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs out/docs

notebooks: $(READY)  ## run all notebooks from a clean kernel
	$(BIN)/python -m pytest -q tests/notebooks

REPORTS := report-workloads report-models report-traces report-speed
.PHONY: $(REPORTS)

reports: $(REPORTS)  ## all kept comparison reports; those of traces need TRACE="path ..."

$(REPORTS): report-%: $(READY)
	$(BIN)/python reports/make.py $* $(TRACE)

clean:  ## remove the environment and what was built
	rm -rf $(VENV) build dist out *.egg-info

help:  ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:[^#]*## */\t/'

# A torch that $(PYTHON) already has is used as it is; otherwise the pinned one is downloaded.
$(READY): pyproject.toml constraints.txt
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then \
	  $(PYTHON) -m venv --system-site-packages $(VENV) && \
	  grep -viE '^(torch|triton)==' constraints.txt > $(VENV)/constraints.txt; \
	else \
	  $(PYTHON) -m venv $(VENV) && cp constraints.txt $(VENV)/constraints.txt; \
	fi
	@echo "Setting up $(VENV) once: about 1 GB with a CPU build of torch, a few minutes"
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[test,notebook,docs]'
	@touch $@
