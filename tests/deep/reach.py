"""Which tests judge a mutant: what each of them runs of the validator, and which module imports which."""

import ast
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    *(f"tests/validator/test_validator_{name}.py" for name in ("bundle", "documents", "families", "reasons")),
    *(
        f"tests/validator/test_validator_{name}.py"
        for name in (
            "checks",
            "numbers",
            "recompute",
            "sensitivity",
            "signatures",
            "statistics",
            "study",
            "surfaces",
            "times",
            "trials",
        )
    ),
    *(
        f"tests/validator/test_{name}.py"
        for name in ("bad_input", "invariance", "mutations", "study_scorer", "supplement")
    ),
    *(f"tests/properties/test_two_packages_agree{name}.py" for name in ("", "_on_studies")),
]
QUICK_S = 0.2
"""A test that takes less is always a judge."""
SLOWEST_S = 3.0
"""A test that takes longer is none."""
OF_A_KIND = 2
WHOLE = "test_validator_documents.py::"


@dataclass(slots=True)
class Reach:
    """Lines that each test runs by module, and the seconds (of processor time) of those that pass; ``loading``: lines that run when a module is loaded."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    loading: dict[str, list[int]] = field(default_factory=dict)
    bundles: dict[str, str] = field(default_factory=dict)

    def judges(self, module: str, lines: frozenset[int]) -> list[str]:
        """Tests that run one of these lines, fastest first.

        Tests that run the same lines of the module are of a kind: two of a kind are taken, all quick ones, and all that compare
        whole reports, which see a number in whatever line it was made.
        What runs while the module is loaded is judged by every test that uses the module.
        """
        loads = not lines.isdisjoint(self.loading.get(module, ()))
        seen: Counter[frozenset[int]] = Counter()
        chosen = []
        for test in sorted(self.seconds, key=self.seconds.__getitem__):
            reached = frozenset(self.lines[test].get(module, ()))
            if self.seconds[test] > SLOWEST_S or not reached or not (loads or lines & reached):
                continue
            seen[reached] += 1
            if seen[reached] <= OF_A_KIND or self.seconds[test] < QUICK_S or WHOLE in test:
                chosen.append(test)
        return chosen


@cache
def paths() -> dict[Path, str]:
    """All modules of the validator by file."""
    files = (ROOT / "validator").rglob("*.py")
    return {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files}


def imports(path: Path) -> set[str]:
    """Names of modules that a file imports, a name imported from a package of the validator among them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(name for alias in node.names if (name := f"{node.module}.{alias.name}") in paths().values())
    return found


def independent(module: str) -> list[str]:
    """Modules of the validator that the judges need and whose imports, theirs too, leave this one out."""
    direct = {name: imports(path) | {name.rpartition(".")[0]} for path, name in paths().items()}

    @cache
    def reached(name: str) -> frozenset[str]:
        seen, todo = set(), [name]
        while todo:
            if (each := todo.pop()) in direct and each not in seen:
                seen.add(each)
                todo += direct[each]
        return frozenset(seen)

    needed = {each for name in FILES for start in imports(ROOT / name) for each in reached(start)}
    return sorted(name for name in needed if module not in reached(name))
