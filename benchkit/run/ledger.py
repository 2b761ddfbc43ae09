"""The append-only, hash-chained ledger of attempts, ``<out>/<protocol id>/attempts.jsonl`` (results/README.md, "Manifest, ledger, analysis").

Rules:
1. One RFC 8785 JSON object a line; ``prev_sha256`` is the SHA-256 of the line before, without its line end.
2. Appending happens under a file lock, after the whole chain was verified; a torn last line (a kill while writing) is cut off first.
"""

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import rfc8785

from benchkit.errors import BundleError
from benchkit.protocol.lock import utc_now

LEDGER = "attempts.jsonl"
_FIRST = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPrefix:
    """The ledger up to a line: its bytes, their number of lines and the SHA-256 of the last one."""

    data: bytes
    lines: int
    tip_sha256: str


def append(folder: Path, *, run_id: str, protocol_digest: str, event: str, status: str | None) -> LedgerPrefix:
    """Append one event and return the ledger up to it.

    Raises
    ------
    BundleError
        The ledger's chain does not verify; nothing is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LEDGER
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = _verified(file, path)
        record: Any = {
            "seq": len(lines),
            "run_id": run_id,
            "protocol_digest": protocol_digest,
            "event": event,
            "utc": utc_now(),
            "status": status,
            "prev_sha256": hashlib.sha256(lines[-1]).hexdigest() if lines else _FIRST,
        }
        line = rfc8785.dumps(record)
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    lines.append(line)
    return LedgerPrefix(
        data=b"".join(one + b"\n" for one in lines), lines=len(lines), tip_sha256=hashlib.sha256(line).hexdigest()
    )


def _verified(file: BinaryIO, path: Path) -> list[bytes]:
    """The complete lines of the ledger, after their chain was checked; cuts a torn last line off."""
    file.seek(0)
    data = file.read()
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        file.truncate(complete)
    lines = data[:complete].splitlines()
    previous = _FIRST
    for number, line in enumerate(lines):
        try:
            record = json.loads(line)
            good = record["seq"] == number and record["prev_sha256"] == previous
        except (ValueError, KeyError, TypeError, RecursionError):
            good = False
        if not good:
            raise BundleError(
                f"{path}: line {number + 1} does not continue the chain; the ledger was edited. "
                "Keep it for whoever asks, and use a fresh --out folder"
            )
        previous = hashlib.sha256(line).hexdigest()
    return lines
