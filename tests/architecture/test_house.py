"""The house: who may import whom at run time, what loads at start, and README against ``--help``."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import readme

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "triton", "pandas", "scipy", "pyarrow", "numpy", "rich")


def modules(package: str) -> list[str]:
    """All modules of a package, by name."""
    paths = sorted((ROOT / package).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)


@pytest.mark.parametrize(("package", "other"), [("validator", "benchkit"), ("benchkit", "validator")])
def test_neither_package_loads_the_other(package: str, other: str) -> None:
    names = [name for name in modules(package) if "cuda" not in name]
    done = run(f"import sys, importlib; sys.modules[{other!r}] = None\nfor n in {names!r}: importlib.import_module(n)")
    assert done.returncode == 0, done.stderr


def test_validator_needs_no_torch() -> None:
    done = run(
        "import sys, importlib; sys.modules['torch'] = None; sys.modules['triton'] = None\n"
        f"for n in {modules('validator')!r}: importlib.import_module(n)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["benchkit", "validator"])
def test_help_loads_nothing_heavy_and_is_quick(package: str) -> None:
    code = (
        f"import sys; sys.argv = [{package!r}, '--help']\nfrom {package}.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    times = []
    for _ in range(6):
        before = os.times()
        done = run(code)
        after = os.times()  # processor time: what else runs on the machine is not the command's fault
        times.append(sum(after[2:4]) - sum(before[2:4]))
    assert done.stderr.strip() == "[]"
    assert done.stdout.startswith(f"Usage: {package}")
    assert min(times) < 0.4


def test_the_supervisor_loads_no_torch() -> None:
    done = run(
        "import sys\nimport benchkit.run.session, benchkit.run.survey, benchkit.run.locking\nprint('torch' in sys.modules)"
    )
    assert done.stdout.strip() == "False"


def test_every_module_and_public_function_says_what_it_is() -> None:
    silent = []
    for package in ("benchkit", "validator"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text("utf-8"))
            nodes: list[ast.AST] = [tree] if path.stat().st_size else []
            nodes += [
                node
                for node in tree.body
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            ]
            silent += [
                f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}"
                for node in nodes
                if not ast.get_docstring(node)  # type: ignore[arg-type]
            ]
    assert silent == []


@pytest.mark.parametrize("tool", ["benchkit", "validator"])
def test_readme_shows_the_help_of_every_command(tool: str) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    found = list(readme.commands(tool))
    assert {"benchkit": ("mechanism", "schedule"), "validator": ("report",)}[tool] in found
    for command in found:
        told = f"README.md lacks the help of {tool} {' '.join(command)}: run make readme"
        assert readme.help_text(tool, *command) in text, told


def test_readme_lists_every_reason() -> None:
    done = run("import sys; sys.path.insert(0, 'tests/architecture')\nimport readme; print(readme.reasons())")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in (ROOT / "README.md").read_text("utf-8"), "README.md lacks a reason: run make readme"
