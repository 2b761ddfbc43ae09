"""Rows -> Parquet files with the format's schema, footer keys, units, zstd and page checksums.

Rules:
1. A file is written under a temporary name and renamed; a table with a null where none may be, or a value outside its type, is never written.
2. Rows are given as tuples in schema order; nothing is sorted or dropped here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchkit.bundle.digest import ContentDigest
from benchkit.bundle.schema import table_schema

Row = Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """What the manifest says of a table."""

    rows: int
    content_sha256: str


def build_table(name: str, rows: Iterable[Row], *, flushed: bool = False) -> pa.Table:
    """An Arrow table of the rows; ``ValueError`` names the column of a null that may not be there."""
    schema = table_schema(name, flushed=flushed)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    if len(columns) != len(schema):
        raise ValueError(f"{name}: expected {len(schema)} columns, found {len(columns)}")
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and None in column:
            raise ValueError(f"{name}.{field.name}: expected no null, found one at row {column.index(None)}")
    arrays = [pa.array(column, type=field.type) for field, column in zip(schema, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_table(
    folder: Path, name: str, parts: Iterable[pa.Table], *, protocol_digest: str, run_id: str, flushed: bool = False
) -> TableEntry:
    """Write ``<folder>/<name>.parquet`` from tables of its schema, one after the other, and return its entry for the manifest."""
    footer = {
        "benchkit.schema": f"benchkit.{name}/1",
        "benchkit.protocol_digest": protocol_digest,
        "benchkit.run_id": run_id,
    }
    schema = table_schema(name, flushed=flushed).with_metadata(footer)
    digest = ContentDigest(schema)
    path = folder / f"{name}.parquet"
    temporary = path.with_suffix(".parquet.tmp")
    with pq.ParquetWriter(temporary, schema, compression="zstd", write_page_checksum=True) as writer:
        for part in parts:
            digest.update(part)
            writer.write_table(part.replace_schema_metadata(footer))
    temporary.replace(path)
    return TableEntry(rows=digest.rows, content_sha256=digest.hexdigest())
