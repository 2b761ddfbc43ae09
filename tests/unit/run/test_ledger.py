"""The ledger: chained, appended under a lock, and what a kill leaves behind."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchkit.errors import BundleError
from benchkit.run import ledger


def append(folder: Path, event: str = "start", run_id: str = "r") -> ledger.LedgerPrefix:
    """Append one event."""
    return ledger.append(folder, run_id=run_id, protocol_digest="d" * 64, event=event, status=None)


def test_lines_are_chained(tmp_path: Path) -> None:
    append(tmp_path)
    prefix = append(tmp_path, "end")
    first, second = (tmp_path / "attempts.jsonl").read_bytes().splitlines()
    assert json.loads(first)["prev_sha256"] == "0" * 64
    assert json.loads(second)["prev_sha256"] == hashlib.sha256(first).hexdigest()
    assert prefix == ledger.LedgerPrefix(
        data=first + b"\n" + second + b"\n", lines=2, tip_sha256=hashlib.sha256(second).hexdigest()
    )


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    append(tmp_path)
    with (tmp_path / "attempts.jsonl").open("ab") as file:
        file.write(b'{"seq":1,"ru')
    append(tmp_path, "resume")
    events = [json.loads(line)["event"] for line in (tmp_path / "attempts.jsonl").read_bytes().splitlines()]
    assert events == ["start", "resume"]


@pytest.mark.parametrize("damage", ["edit", "drop", "swap", "garbage"])
def test_a_broken_chain_is_refused_and_left_alone(tmp_path: Path, damage: str) -> None:
    for number in range(3):
        append(tmp_path, run_id=str(number))
    path = tmp_path / "attempts.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines = {
        "edit": [lines[0].replace(b'"start"', b'"end"'), *lines[1:]],
        "drop": [lines[0], lines[2]],
        "swap": [lines[1], lines[0], lines[2]],
        "garbage": [lines[0], b"null\n"],
    }[damage]
    path.write_bytes(b"".join(lines))
    with pytest.raises(BundleError, match="does not continue the chain"):
        append(tmp_path)
    assert path.read_bytes() == b"".join(lines)


def test_concurrent_appends_keep_the_chain(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append(tmp_path, run_id=str(number)), range(24)))
    records = [json.loads(line) for line in (tmp_path / "attempts.jsonl").read_bytes().splitlines()]
    assert [record["seq"] for record in records] == list(range(24))
    assert {record["run_id"] for record in records} == {str(number) for number in range(24)}
