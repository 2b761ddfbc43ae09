"""What a worker tells: one JSON object a line, appended to a file that only this worker writes.

Rules:
1. The first line is the header, then rows as they are made, then one end line; a file without an end line belongs to a worker that did not end by itself.
2. Every line is flushed when it is written: a killed worker loses at most the line that it was writing. A torn last line is ignored when read.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from benchkit.errors import OutputError
from benchkit.run.stored import damaged, stored

TENSORS = "tensors"  # folder of a study's run where each distinct tensor lies under its SHA-256


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a process had: the columns of processes.parquet that a worker knows."""

    environment: str
    environment_sha256: str
    fixture_sha256: str
    clock: str
    launch: str
    event_order: str
    clock_tick_ns: int
    l2_bytes: int
    copies: Mapping[str, int]
    unsupported: Sequence[Sequence[str]]
    binaries: Mapping[str, str]
    repacking: Sequence[Sequence[str | int]]  # arm, ns, bytes
    problems: Sequence[str]  # how the build differs from what is required (exploratory runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a worker ended by itself."""

    status: Literal["ok", "failed"]
    reason: str | None


class RecordWriter:
    """Appends the records of one worker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("x", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # what could not be flushed was said where it was written
            self._file.close()

    def header(self, header: Header) -> None:
        """Write the header."""
        self._write({"kind": "header", **asdict(header)})

    def rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows of a table (without process and attempt)."""
        if rows:
            self._write({"kind": "rows", "table": table, "rows": rows})

    def end(self, end: End) -> None:
        """Write the end line."""
        self._write({"kind": "end", **asdict(end)})

    def _write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")) + "\n"
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise OutputError(f"{self._path}: cannot be written ({error.strerror})") from error


def read_header(path: Path) -> Header | None:
    """The header of a worker's file; None where it wrote none."""
    record = next(_lines(path, "header"), None)
    return None if record is None else stored(Header, record, path)


def read_end(path: Path) -> End | None:
    """The end line of a worker's file; None where the worker did not end by itself."""
    record = next(_lines(path, "end"), None)
    return None if record is None else stored(End, record, path)


def read_rows(path: Path, table: str) -> list[list[Any]]:
    """The rows of one table in a worker's file, in the order in which they were made."""
    found: list[list[Any]] = []
    for record in _lines(path, "rows", table):
        rows = record.get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise damaged(path, f"rows of {table}: {rows!r:.80}")
        found += rows
    return found


def _lines(path: Path, kind: str, table: str | None = None) -> Iterator[dict[str, Any]]:
    """The records of a kind (and table); a missing file has none, and a line torn by a kill is no record. StorageError on one that is no JSON."""
    start = json.dumps({"kind": kind} if table is None else {"kind": kind, "table": table}, separators=(",", ":"))[:-1]
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(start + ",") and line.endswith("\n"):
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise damaged(path, error) from error
                del record["kind"]
                yield record
