# `make demo` runs the main job on the sample collection; `make test` runs the tests. Both make .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Threads that wait must sleep: on few cores spinning ones take the time of those that work.
export OMP_WAIT_POLICY ?= passive

.PHONY: install demo test check format lint types clean
install: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"Python 3.11 or newer is needed, this is {v[0]}.{v[1]}; make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python -m benchmarks.demo

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(READY)
	$(BIN)/mypy

check: lint types test

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf .venv build dist
