"""Mutants of the validator's own code (cosmic-ray): which changes of its code do its tests not see?

``sites`` says which mutants there are, ``reach`` which tests try them, ``judges`` how; nothing on disk is changed. A mutant that
no judge reaches is listed as such. The survivors go to a file that people complete: ``why`` and ``note`` of a survivor
that is still there are kept. A share below 1 draws mutants by the seed, module by module. ``--again`` tries those that are
left, and where a module changed since (git has the source that was tried) those of the statements that changed: of the others
it is taken that tests that noticed them still do.

Usage: python tests/deep/mutants.py [MODULE ...] [--share S] [--seed N] [--again] [--folder DIR] [--list FILE.json]
"""

import argparse
import difflib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import judges
import pytest
from judges import Outcome
from reach import ROOT, Reach
from sites import Mutant, changed_line, mutants

PACKAGES = ("validator/checks", "validator/recompute")
LIST = ROOT / "results" / "deep" / "mutants.json"
LEFT = (Outcome.SURVIVED, Outcome.INCOMPLETE, Outcome.NOT_REACHED)
"""Outcomes of a mutant that no test noticed; incomplete: tests were skipped or gone, none failed."""


def main() -> int:
    """Try the mutants of some modules; always 0: a survivor is read by a person."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "modules", nargs="*", help="e.g. checks/order.py reading/rows.py; all of checks and recompute without"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="only those that the list says are left, after new tests")
    parser.add_argument("--folder", type=Path, help="keeps what the tests reach: remove it when tests change")
    parser.add_argument("--list", type=Path, default=LIST, help="counts and survivors; other modules in it stay")
    options = parser.parse_args()
    options.list = options.list.resolve()
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).glob("*.py") if path.name != "__init__.py")
    if options.modules:
        paths = [ROOT / "validator" / name for name in options.modules]
    with tempfile.TemporaryDirectory(prefix="deep-mutants-") as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        judges.in_a_warm_process(lambda session: _all(session, paths, folder, options))
    return 0


def _all(session: pytest.Session, paths: list[Path], folder: Path, options: argparse.Namespace) -> None:
    begin = time.monotonic()
    reach = judges.survey(session, folder)
    print(f"{len(reach.seconds)} judges, {time.monotonic() - begin:.0f} s", flush=True)
    known = json.loads(options.list.read_text("utf-8")) if options.list.exists() else {"modules": {}, "survivors": []}
    for path in paths:
        name, result = str(path.relative_to(ROOT)), folder / "module.json"
        before = [entry for entry in known["survivors"] if entry["module"] == name]
        begin = time.monotonic()
        tried = _tried(name, known["modules"].get(name, {})) if options.again else None
        if options.again and tried is None:
            print(f"{name}: not all of it was tried in a form that git knows: try it without --again", flush=True)
            continue
        if not (child := os.fork()):
            _one(session, path, reach, folder, options, before, tried)
            os._exit(0)
        os.waitpid(child, 0)
        if not result.exists():
            print(f"{name}: the unmutated module does not pass its tests: nothing was tried", flush=True)
            continue
        counts, entries = json.loads(result.read_text("utf-8"))
        result.unlink()
        if options.again:
            counts = _corrected(counts, known["modules"][name])
        known["modules"][name] = counts
        known["survivors"] = [entry for entry in known["survivors"] if entry["module"] != name] + entries
        known["survivors"].sort(key=lambda entry: (entry["module"], entry["line"], entry["operator"]))
        known["modules"] = dict(sorted(known["modules"].items()))
        options.list.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(f"{name}: {counts}, {time.monotonic() - begin:.0f} s", flush=True)


def _one(
    session: pytest.Session,
    path: Path,
    reach: Reach,
    folder: Path,
    options: argparse.Namespace,
    before: list[Any],
    tried: str | None,
) -> None:
    """Try the mutants of one module in this process, and write counts and survivors; those that are left of a source that was tried."""
    source, name = path.read_text("utf-8"), str(path.relative_to(ROOT))
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    every = list(mutants(source))
    chance = random.Random(f"{options.seed}/{name}")
    drawn = [mutant for mutant in every if chance.random() < options.share]
    if tried is not None:
        left = {(entry["operator"], entry["before"], entry["after"]) for entry in before}
        new = _new_lines(tried, source)
        drawn = [m for m in every if m.lines & new or (m.operator, *changed_line(source, m)) in left]
    tests = [reach.judges(module, mutant.lines) for mutant in drawn]
    cases = _cases(source, drawn, tests)
    found = judges.outcomes(session, module, cases, reach, folder / "child")
    if next(found) not in (Outcome.SURVIVED, Outcome.NOT_REACHED):
        return
    outcomes = list(found)
    notes = {(entry["operator"], entry["before"], entry["after"]): entry for entry in before}
    entries = []
    for mutant, outcome, asked in zip(drawn, outcomes, tests, strict=True):
        if outcome in LEFT:
            old, new = changed_line(source, mutant)
            noted = notes.get((mutant.operator, old, new), {})
            entry = {"module": name, "line": mutant.line, "operator": mutant.operator, "occurrence": mutant.occurrence}
            entry |= {"before": old, "after": new, "outcome": outcome.name.lower(), "judges": len(asked)}
            entries.append(entry | {"why": noted.get("why", "open"), "note": noted.get("note", "")})
    counts = {"sha256": _digest(source), "mutants": len(every), "tried": len(drawn)}
    tally = Counter(outcomes)
    counts |= {outcome.name.lower(): tally[outcome] for outcome in Outcome}
    (folder / "module.json").write_text(json.dumps([counts, entries]), "utf-8")


def _cases(source: str, drawn: list[Mutant], tests: list[list[str]]) -> Iterator[tuple[str, list[str]]]:
    """First the module as it is, with 30 of its judges: it must survive."""
    yield source, max(tests, key=len, default=[])[:30]
    for mutant, asked in zip(drawn, tests, strict=True):
        yield mutant.apply(source), asked


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def _tried(name: str, counts: dict[str, Any]) -> str | None:
    """Give the source all of whose mutants were tried; None where they were not, or git does not know it."""
    if not counts or counts["tried"] != counts["mutants"]:
        return None
    for commit in _git("log", "--format=%h", "--", name).split():
        if _digest(source := _git("show", f"{commit}:{name}")) == counts["sha256"]:
            return source
    return None


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _new_lines(before: str, after: str) -> set[int]:
    """Numbers of the lines that were not there before."""
    pairs = difflib.SequenceMatcher(None, before.split("\n"), after.split("\n"), autojunk=False).get_opcodes()
    return {line + 1 for tag, _, _, start, stop in pairs if tag != "equal" for line in range(start, stop)}


def _corrected(counts: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Counts of a whole module after a part of it was tried again: what was not was noticed by a test, as it was before."""
    ended = {name: before[name] + counts[name] for name in ("not_loaded", "timeout")}
    left = sum(counts[outcome.name.lower()] for outcome in LEFT)
    failed = counts["mutants"] - left - sum(ended.values())
    return counts | ended | {"tried": counts["mutants"], "failed": failed}


if __name__ == "__main__":
    sys.exit(main())
