"""What the validator says, word by word and number by number, kept in tests/data: eight findings of a report, whole reports.

``PIN_FINDINGS=1 pytest ...`` writes what is found instead of comparing it; read the difference before it is committed.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from validator.findings import Report
from validator.report.document import document

DATA = Path(__file__).parents[1] / "data"
MOST = 8


def compare(group: str, name: str, report: Report) -> None:
    """Compare the findings of a report with those kept under a name of a group."""
    found = [f"{item.reason.value} {item.where}: expected {item.expected}, got {item.got}" for item in report.reasons]
    if len(found) > MOST:
        found[MOST:] = [f"{len(found)} in all"]
    kept = _kept("findings.json", group, name, found)
    assert found == kept, "\n".join(["found:", *found, "kept:", *kept])


def compare_document(name: str, report: Report) -> None:
    """Compare a whole report, as JSON, with the one kept under a name: texts exactly, floats to 1e-9 of their size."""
    found = json.loads(json.dumps(document(report)))
    for name_of_this_copy in ("path", "manifest_sha256"):  # the bytes of a Parquet file are its library's
        found["bundle"].pop(name_of_this_copy)
    kept = _kept("documents.json", "document", name, found)
    different: list[str] = []
    _differ("$", kept, found, different)
    assert not different, "\n".join(different)


def _kept(file: str, group: str, name: str, found: Any) -> Any:
    path = DATA / file
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if os.environ.get("PIN_FINDINGS"):
        kept.setdefault(group, {})[name] = found
        path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return kept[group][name]


def _differ(where: str, kept: Any, found: Any, different: list[str]) -> None:
    if type(kept) is not type(found):
        different.append(f"{where}: expected {kept!r}, got {found!r}")
    elif isinstance(kept, dict):
        for name in kept:  # what a report has beside is no difference: other tests look at it
            _differ(f"{where}.{name}", kept[name], found.get(name), different)
    elif isinstance(kept, list):
        if len(kept) != len(found):
            different.append(f"{where}: expected {len(kept)} entries, got {len(found)}")
        for number, (one, other) in enumerate(zip(kept, found, strict=False)):
            _differ(f"{where}[{number}]", one, other, different)
    elif kept != (pytest.approx(found, rel=1e-9, abs=1e-12) if isinstance(kept, float) else found):
        different.append(f"{where}: expected {kept!r}, got {found!r}")
