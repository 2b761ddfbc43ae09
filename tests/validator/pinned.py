"""Findings word by word: what was expected, what was found and where, kept in tests/data/findings.json, eight of a report.

``PIN_FINDINGS=1 pytest ...`` writes what is found instead of comparing it; read the difference before it is committed.
"""

import json
import os
from pathlib import Path

from validator.findings import Report

FILE = Path(__file__).parents[1] / "data" / "findings.json"
MOST = 8


def compare(group: str, name: str, report: Report) -> None:
    """Compare the findings of a report with those kept under a name of a group."""
    found = [f"{item.reason.value} {item.where}: expected {item.expected}, got {item.got}" for item in report.reasons]
    if len(found) > MOST:
        found[MOST:] = [f"{len(found)} in all"]
    kept = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    if os.environ.get("PIN_FINDINGS"):
        kept.setdefault(group, {})[name] = found
        FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert found == kept[group][name]
