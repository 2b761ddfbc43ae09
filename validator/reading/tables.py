"""Reading a Parquet table in pieces: columns as narrow arrays, and the content digest in the same pass.

Rules:
1. Strings become integer codes; rows are never Python objects, so ten million of them fit in memory.
2. The content digest follows results/README.md; it exists only where columns, types and nulls are as the schema says.
3. A file that pyarrow cannot read to its end is unreadable; page checksums are verified where they are present.
4. What a file would unpack to is looked at before it is unpacked (``validator.reading.limits``); strings stay
   dictionaries, so that a long string in many rows is held once.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from validator.findings import Finding
from validator.reading.canonical import digest_of
from validator.reading.limits import BATCH_TEXT, TEXT_VALUE, OversizedError, check_footer, check_parquet, check_size
from validator.reading.schema import ColumnSchema, columns_of
from validator.reasons import Reason

_BATCH = 1 << 17
_COUNTED = ("string", "binary")
_NAN = np.uint64(0x7FF8000000000000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A string column: a code per row (-1 for null) into the distinct values."""

    codes: NDArray[np.signedinteger]
    values: tuple[str, ...]

    def at(self, row: int) -> str | None:
        """Give the value of one row."""
        code = int(self.codes[row])
        return None if code < 0 else self.values[code]

    def recoded(self, names: Iterable[str]) -> NDArray[np.signedinteger]:
        """Give codes into ``names`` instead; -1 where the value is not among them."""
        index = {name: i for i, name in enumerate(names)}
        kind = np.int16 if len(index) < 2**15 else np.int32
        table = np.array([index.get(value, -1) for value in self.values] + [-1], dtype=kind)
        return np.asarray(table[self.codes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A table in memory; ``blobs`` are its binary columns, a value for each row."""

    name: str
    rows: int
    numbers: Mapping[str, NDArray[np.generic]]
    texts: Mapping[str, Text]
    blobs: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)

    def integer(self, column: str, row: int) -> int:
        """Give one integer."""
        return int(self.numbers[column][row])

    def real(self, column: str, row: int) -> float:
        """Give one float."""
        return float(self.numbers[column][row])

    def text(self, column: str, row: int) -> str:
        """Give one string; an empty one for null."""
        return self.texts[column].at(row) or ""

    def process(self, row: int) -> tuple[int, int]:
        """Give process and attempt of a row."""
        return self.integer("process", row), self.integer("attempt", row)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """What reading a table gave; ``frame`` and ``content_sha256`` are None where it is not what the schema says."""

    frame: Frame | None
    content_sha256: str | None
    rows: int
    findings: tuple[Finding, ...]
    footer: tuple[tuple[str, str], ...] = ()
    bare: bool = False


@dataclass(slots=True)
class _Column:
    """The state of one column while its batches pass by."""

    schema: ColumnSchema
    hasher: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    pieces: list[NDArray[np.generic]] = field(default_factory=list)
    index: dict[bytes, int] = field(default_factory=dict)
    nulls: int = 0
    first_null: int = -1

    def add(self, array: pa.Array, start: int) -> None:
        """Take one batch."""
        if array.null_count and not self.schema.nullable:
            if self.first_null < 0:
                self.first_null = start + array.is_null().to_pylist().index(True)
            self.nulls += array.null_count
        elif self.schema.kind in _COUNTED:
            self._add_text(array)
        else:
            self._add_numbers(array)

    def _add_numbers(self, array: pa.Array) -> None:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        values = _plain_values(array)
        wide = values.astype("<f8" if self.schema.kind == "float" else "<i8")
        if self.schema.kind == "float":
            wide.view(np.uint64)[np.isnan(wide)] = _NAN
        self.hasher.update(wide.tobytes())
        self.pieces.append(values.astype(_narrow(values, self.schema)))

    def _add_text(self, array: pa.Array) -> None:
        if not pa.types.is_dictionary(array.type):
            array = array.cast(
                pa.large_string() if self.schema.kind == "string" else pa.large_binary()
            ).dictionary_encode()
        raw: list[bytes | None] = array.dictionary.cast(pa.large_binary()).to_pylist()
        for value in raw if self.schema.kind == "string" else ():
            (value or b"").decode("utf-8")
        table = [-1 if value is None else self.index.setdefault(value, len(self.index)) for value in raw] + [-1]
        indices = array.indices.cast(pa.int32())
        local = _plain_values(indices).astype(np.int32)
        if indices.null_count:
            local[~_bits(indices.buffers()[0], indices.offset, len(indices))] = len(raw)
        codes = np.array(table, dtype=np.int16 if len(self.index) < 2**15 else np.int32)[local]
        mark = b"\x01" if self.schema.nullable else b""
        encoded = [mark + struct.pack("<I", len(value or b"")) + (value or b"") for value in raw] + [b"\x00"]
        encoded = [b"\x00" if code < 0 else piece for code, piece in zip(table, encoded, strict=True)]
        starts = np.flatnonzero(np.diff(local, prepend=-1))
        lengths = np.diff(starts, append=len(local))
        runs = list(zip(local[starts].tolist(), lengths.tolist(), strict=True))
        check_texts(self.schema.name, [len(piece) for piece in encoded], runs)
        self.hasher.update(b"".join([encoded[code] * length for code, length in runs]))
        self.pieces.append(codes)

    def joined(self) -> NDArray[np.generic]:
        """Join the pieces, and let go of them."""
        plain = np.dtype(np.int32 if self.schema.kind in _COUNTED else self.schema.type)
        result = np.concatenate(self.pieces) if self.pieces else np.empty(0, dtype=plain)
        self.pieces.clear()
        return result


def _plain_values(array: pa.Array) -> NDArray[np.generic]:
    """View an array without nulls; pyarrow's own ``to_numpy`` would import pandas."""
    start, stop = array.offset, array.offset + len(array)
    data = array.buffers()[1]
    if pa.types.is_boolean(array.type):
        return _bits(data, start, len(array))
    return np.frombuffer(data or b"", dtype=np.dtype(_plain(array.type)))[start:stop]


def _bits(data: pa.Buffer | None, start: int, count: int) -> NDArray[np.bool_]:
    bits = np.frombuffer(data or b"", dtype=np.uint8)
    return np.unpackbits(bits, count=start + count, bitorder="little")[start:].astype(np.bool_)


def _narrow(values: NDArray[np.generic], schema: ColumnSchema) -> np.dtype[np.generic]:
    """Give the smallest type that holds a piece of a column; joining pieces widens it again."""
    if schema.kind == "int" and len(values):
        low, high = int(values.min()), int(values.max())
        for kind in (np.int16, np.int32):
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                return np.dtype(kind)
    return np.dtype(schema.type)


def read_table(path: Path, name: str) -> TableRead:
    """Read a table of a bundle; every problem becomes a finding."""
    try:
        size = path.stat().st_size
        check_size(f"{name}.parquet", size)
        check_footer(path, size)
        present = pq.read_schema(path, memory_map=False).names
        texts = [each.name for each in columns_of(name, present) if each.kind in _COUNTED]
        with pq.ParquetFile(path, page_checksum_verification=True, memory_map=False, read_dictionary=texts) as file:
            check_parquet(file, str(path), name, size)
            return _read(file, name)
    except OversizedError as error:
        finding = Finding(reason=Reason.OVERSIZED, where=path.name, expected=error.expected, got=error.got)
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        text = " ".join(str(error).split())[:200]
        finding = Finding(reason=Reason.FILE_UNREADABLE, where=path.name, expected="a Parquet file", got=text)
    return TableRead(frame=None, content_sha256=None, rows=0, findings=(finding,))


def check_texts(column: str, lengths: list[int], runs: list[tuple[int, int]]) -> None:
    """Refuse strings that are longer than any that a run writes, alone or in all rows of a batch together."""
    if max(lengths) > TEXT_VALUE:
        raise OversizedError(f"strings of at most {TEXT_VALUE} bytes", f"{max(lengths)} bytes in {column}")
    total = sum(lengths[code] * count for code, count in runs)
    if total > BATCH_TEXT:
        raise OversizedError(f"at most {BATCH_TEXT} bytes in a batch of rows", f"{total} bytes in {column}")


def _read(file: pq.ParquetFile, name: str) -> TableRead:
    schema = file.schema_arrow
    rows = int(file.metadata.num_rows)
    findings = [*_columns(schema, name), *_types(schema, name, rows), *_units(schema, name)]
    broken = any(finding.reason is Reason.SCHEMA_TYPE for finding in findings)
    wanted = columns_of(name, schema.names)
    missing = [column.name for column in wanted if column.name not in schema.names]
    doubled = len(set(schema.names)) != len(schema.names)
    units = any(column.unit for column in wanted)
    bare = units and not any(field.metadata and b"unit" in field.metadata for field in schema)
    footer = tuple(
        (key.decode(errors="replace"), value.decode(errors="replace"))
        for key, value in (schema.metadata or {}).items()
        if key.startswith(b"benchkit.")
    )
    if missing or broken or doubled:
        _exhaust(file, name)
        return TableRead(frame=None, content_sha256=None, rows=rows, findings=tuple(findings), footer=footer, bare=bare)
    columns = [_Column(schema=column) for column in wanted]
    start = 0
    for batch in file.iter_batches(batch_size=_BATCH, columns=[column.name for column in wanted]):
        for column in columns:
            column.add(batch.column(column.schema.name), start)
        start += batch.num_rows
    findings.extend(_nulls(columns, name))
    if any(column.nulls for column in columns):
        return TableRead(
            frame=None, content_sha256=None, rows=start, findings=tuple(findings), footer=footer, bare=bare
        )
    extra = len(schema.names) > len(columns)
    digest = None if extra else _content_digest(columns, start)
    frame = _frame(columns, name, start)
    return TableRead(frame=frame, content_sha256=digest, rows=start, findings=tuple(findings), footer=footer, bare=bare)


def _exhaust(file: pq.ParquetFile, name: str) -> None:
    """Read the columns that are as the schema says, to see that they can be read."""
    schema = file.schema_arrow
    good = [
        column.name
        for column in columns_of(name, schema.names)
        if schema.names.count(column.name) == 1 and _plain(schema.field(column.name).type) == column.type
    ]
    for _ in file.iter_batches(batch_size=_BATCH, columns=good):
        pass


def _content_digest(columns: list[_Column], rows: int) -> str:
    listed = [[column.schema.name, column.schema.kind, column.hasher.hexdigest()] for column in columns]
    return digest_of(["benchkit.table/1", rows, *listed])


def _frame(columns: list[_Column], name: str, rows: int) -> Frame:
    numbers: dict[str, NDArray[np.generic]] = {}
    texts: dict[str, Text] = {}
    blobs: dict[str, tuple[bytes, ...]] = {}
    for column in columns:
        joined = column.joined()
        if column.schema.kind == "binary":
            distinct = tuple(column.index)
            blobs[column.schema.name] = tuple(distinct[code] for code in joined.tolist())
        elif column.schema.kind == "string":
            values = tuple(value.decode("utf-8") for value in column.index)
            texts[column.schema.name] = Text(codes=joined, values=values)  # type: ignore[arg-type]
        else:
            numbers[column.schema.name] = joined
    return Frame(name=name, rows=rows, numbers=numbers, texts=texts, blobs=blobs)


def _columns(schema: pa.Schema, name: str) -> Iterator[Finding]:
    expected = [column.name for column in columns_of(name, schema.names)]
    if schema.names == expected:
        return
    lacking = [column for column in expected if column not in schema.names]
    surplus = [column for column in schema.names if column not in expected]
    got = ", ".join([f"no {column}" for column in lacking] + [f"also {column!r}" for column in surplus])
    yield Finding(
        reason=Reason.SCHEMA_COLUMN,
        where=f"{name}.parquet",
        expected=", ".join(expected),
        got=got or "the order " + ", ".join(schema.names),
    )


def _plain(kind: pa.DataType) -> str:
    """Name a type; dictionary, large and view encodings of a type are that type."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_string(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "binary"
    names = {"double": "float64", "float": "float32", "halffloat": "float16"}
    return names.get(str(kind), str(kind))


def _types(schema: pa.Schema, name: str, rows: int) -> Iterator[Finding]:
    """Compare types; a string column without a single value may have the null type, as some engines write it."""
    for column in columns_of(name, schema.names):
        index = schema.get_field_index(column.name)
        empty = column.kind == "string" and (column.nullable or rows == 0)
        if empty and index >= 0 and pa.types.is_null(schema.field(index).type):
            continue
        if index >= 0 and _plain(schema.field(index).type) != column.type:
            yield Finding(
                reason=Reason.SCHEMA_TYPE,
                where=f"{name}.parquet:{column.name}",
                expected=column.type,
                got=str(schema.field(index).type),
            )


def _units(schema: pa.Schema, name: str) -> Iterator[Finding]:
    for column in columns_of(name, schema.names):
        index = schema.get_field_index(column.name)
        metadata = (schema.field(index).metadata or {}) if index >= 0 else {}
        unit = metadata.get(b"unit")
        if unit is not None and unit.decode(errors="replace") != (column.unit or ""):
            yield Finding(
                reason=Reason.SCHEMA_UNIT,
                where=f"{name}.parquet:{column.name}",
                expected=column.unit or "no unit",
                got=unit.decode(errors="replace")[:60],
            )


def _nulls(columns: list[_Column], name: str) -> Iterator[Finding]:
    for column in columns:
        if column.nulls:
            yield Finding(
                reason=Reason.SCHEMA_NULL,
                where=f"{name}.parquet:{column.schema.name}[{column.first_null}]",
                expected="no null",
                got=f"{column.nulls} null" + ("s" if column.nulls > 1 else ""),
            )
