# `make demo` and `make test` each set everything up and work on their own.
PYTHON ?= python3
BIN := .venv/bin
# Cache compiled modules even if the environment disables that: each process would compile them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test quick lint types docs pictures figures bench clean

demo: .venv/.installed
	$(BIN)/emergo demo

# All tests. Three processes for two cores, because tests that wait for Slurm or Chromium leave their core idle. Neighbouring
# tests share compiled programs and fixtures, so each process gets a contiguous block and idle processes steal tests.
test: .venv/.ready
	$(BIN)/pytest -q -rs -n 3 --dist worksteal $(TESTS)

# The first test of every file.
quick: .venv/.ready
	$(BIN)/pytest -q -n 2 --quick tests

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready
	$(BIN)/basedpyright

# The site, under docs/_build/html. Warnings are errors.
docs: .venv/.ready
	$(BIN)/python docs/_site/build.py

# Pictures of the gallery that are missing; takes minutes for all of them.
pictures: .venv/.ready
	$(BIN)/python docs/_site/pictures.py

figures: .venv/.ready
	$(BIN)/emergo figure $$($(BIN)/emergo figures --json | $(BIN)/python -c "import json, sys; print(*(f['id'] for f in json.load(sys.stdin)['figures']))")

bench: .venv/.ready
	$(BIN)/python benchmarks/speed.py out/bench 300

clean:
	rm -rf .venv out report.html docs/_build dist

# What the package itself needs.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "emergo needs Python 3.11 or newer; try make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# What tests, types and the site need as well.
.venv/.ready: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	touch $@
