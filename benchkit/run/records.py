"""What a worker tells: one JSON object a line, appended to a file that only this worker writes.

Rules:
1. The first line is the header, then rows as they are made, then one end line; a file without an end line belongs to a worker that did not end by itself.
2. Every line is flushed when it is written: a killed worker loses at most the line that it was writing. A torn last line is ignored when read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self


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
    problems: Sequence[str]  # how the build differs from what is required (exploratory runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a worker ended by itself."""

    status: str
    reason: str | None


class RecordWriter:
    """Appends the records of one worker."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("x", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecords:
    """All that a worker left behind."""

    header: Header | None = None
    end: End | None = None
    tables: Mapping[str, list[list[Any]]] = field(default_factory=dict)


def read_records(path: Path) -> WorkerRecords:
    """Read a worker's file; a missing file is a worker that wrote nothing."""
    header, end, tables = None, None, dict[str, list[list[Any]]]()
    if not path.exists():
        return WorkerRecords()
    for line in path.read_text("utf-8", errors="replace").splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # torn by a kill
        record = json.loads(line)
        kind = record.pop("kind")
        if kind == "header":
            header = Header(**record)
        elif kind == "end":
            end = End(**record)
        else:
            tables.setdefault(record["table"], []).extend(record["rows"])
    return WorkerRecords(header=header, end=end, tables=tables)
