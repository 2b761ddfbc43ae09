# The one list of commands; .ci/run and pre-commit call these.
# PYTHON makes .venv; gpu-test runs with it directly, since a GPU machine has its own build of PyTorch: make gpu-test PYTHON=.venv/bin/python for another
PYTHON ?= python3
BIN := .venv/bin
# the tests start a thousand short processes: compile each module once, whatever the machine's default
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test check readme catalogue deep gpu-test

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,dev]'
	touch $@

demo: setup
	$(BIN)/benchkit run-protocol protocols/moe-decode-cpu.toml --out runs
	$(BIN)/validator report "$$(ls -d runs/moe-decode-cpu/2* | tail -n 1)"

# in the order of the folders: the long files come early
test: setup
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/architecture -q

readme: setup
	$(BIN)/python tests/architecture/readme.py

catalogue: setup
	$(BIN)/validator index results --output results/catalogue.parquet

# not in CI: random examples for every property, a hundred thousand inputs for every reader together, atheris, and mutants of the validator; results/deep/
deep: setup
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest --numprocesses auto -m 'hypothesis and not gpu and not large'
	$(BIN)/python tests/deep/fuzz.py --inputs 100000 --atheris 60
	$(BIN)/python tests/deep/mutants.py

gpu-test:
	$(PYTHON) -m pytest -m gpu tests/gpu
