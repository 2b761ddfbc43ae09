"""Bundles in memory: a test changes rows and records, and nothing has to be sealed again."""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import builder
import numpy as np

from validator.findings import Finding
from validator.reading.bundle import Bundle, open_bundle
from validator.reading.processes import ProcessRecord
from validator.reading.rows import View, view
from validator.reading.tables import Frame, Text
from validator.reasons import Reason

Rows = list[dict[str, Any]]
Said = list[tuple[Reason, str, str, str]]


def said(findings: Iterable[Finding]) -> Said:
    """What findings say, in full."""
    return [(item.reason, item.where, item.expected, item.got) for item in findings]


def rows_of(frame: Frame) -> Rows:
    """The rows of a table, as dictionaries."""
    columns: dict[str, list[Any]] = {name: values.tolist() for name, values in frame.numbers.items()}
    columns |= {name: [text.at(row) for row in range(frame.rows)] for name, text in frame.texts.items()}
    columns |= {name: list(values) for name, values in frame.blobs.items()}
    return [{name: values[row] for name, values in columns.items()} for row in range(frame.rows)]


def frame_of(like: Frame, rows: Rows) -> Frame:
    """A table of such rows."""
    texts = {}
    for name in like.texts:
        values = [row[name] for row in rows]
        distinct = tuple(dict.fromkeys(value for value in values if value is not None))
        index = {value: code for code, value in enumerate(distinct)} | {None: -1}
        texts[name] = Text(codes=np.array([index[value] for value in values], dtype=np.int32), values=distinct)
    return Frame(
        name=like.name,
        rows=len(rows),
        numbers={
            name: np.array([row[name] for row in rows], dtype=np.int64 if old.dtype.kind == "i" else old.dtype)
            for name, old in like.numbers.items()
        },
        texts=texts,
        blobs={name: tuple(row[name] for row in rows) for name in like.blobs},
    )


def changed(frame: Frame, change: Callable[[Rows], object]) -> Frame:
    """The table with changed rows."""
    rows = rows_of(frame)
    change(rows)
    return frame_of(frame, rows)


@cache
def built(clock: str, change: Callable[[builder.Row], object] | None = None, pairs: int = 5) -> Bundle:
    """A clean bundle of the builder; ``change`` edits its protocol first."""
    with tempfile.TemporaryDirectory() as folder:
        return open_bundle(builder.draft(clock=clock, change=change, pairs=pairs).seal(Path(folder) / "b"))


def with_rows(bundle: Bundle, table: str, change: Callable[[Rows], object]) -> Bundle:
    """The bundle with changed rows of a table; records of processes stay."""
    read = bundle.tables[table]
    assert read.frame is not None
    return replace(bundle, tables={**bundle.tables, table: replace(read, frame=changed(read.frame, change))})


def without(bundle: Bundle, table: str) -> Bundle:
    """The bundle with a table that cannot be read."""
    return replace(bundle, tables={**bundle.tables, table: replace(bundle.tables[table], frame=None)})


def with_records(bundle: Bundle, change: Callable[[list[ProcessRecord]], object]) -> Bundle:
    """The bundle with changed records of its processes."""
    records = list(bundle.processes or ())
    change(records)
    return replace(bundle, processes=tuple(records))


def edited(at: int, **values: Any) -> Callable[[list[ProcessRecord]], None]:
    """A change of one record."""

    def change(records: list[ProcessRecord]) -> None:
        records[at] = replace(records[at], **values)

    return change


def surroundings(record: ProcessRecord, **values: Any) -> ProcessRecord:
    """The record with another environment."""
    return replace(record, environment=replace(record.environment, **values))


def seen(bundle: Bundle) -> View:
    """The bundle beside its plan."""
    frame = bundle.frame("samples")
    assert bundle.protocol is not None
    assert bundle.plan is not None
    assert frame is not None
    return view(bundle, bundle.protocol, bundle.plan, frame)
