"""Digests of files and of the logical rows of a table (results/README.md, "Tables").

The content digest does not see compression, encoding, row groups or dictionary types; it sees every value, every null and the order of rows.
"""

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import rfc8785

_CHUNK_ROWS = 1 << 16
_CANONICAL_NAN = bytes.fromhex("000000000000f87f")  # 7ff8000000000000, little-endian


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ContentDigest:
    """The content digest of a table that comes in parts."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._hashers = [hashlib.sha256() for _ in schema]
        self.rows = 0

    def update(self, part: pa.Table) -> None:
        """Add the next rows; the part has the columns of the schema."""
        self.rows += part.num_rows
        for field, hasher in zip(self._schema, self._hashers, strict=True):
            for chunk in part.column(field.name).chunks:
                for start in range(0, len(chunk), _CHUNK_ROWS):
                    hasher.update(_encoded(chunk.slice(start, _CHUNK_ROWS), field))

    def hexdigest(self) -> str:
        """The digest of all rows so far."""
        columns = [
            [field.name, _plain_type(field.type), hasher.hexdigest()]
            for field, hasher in zip(self._schema, self._hashers, strict=True)
        ]
        document: Any = ["benchkit.table/1", self.rows, *columns]
        return hashlib.sha256(rfc8785.dumps(document)).hexdigest()


def _plain_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_string(kind):
        return "string"
    if pa.types.is_binary(kind):
        return "binary"
    raise TypeError(f"no table of schema 1 has a column of type {kind}")


def _encoded(values: pa.Array, field: pa.Field) -> bytes:
    if field.nullable:
        return b"".join(b"\x00" if value is None else b"\x01" + _one(value) for value in values.to_pylist())
    kind = _plain_type(field.type)
    if kind in ("string", "binary"):
        return b"".join(_one(value) for value in values.to_pylist())
    numbers = values.to_numpy(zero_copy_only=False)
    if kind == "float":
        raw = numbers.astype("<f8")
        words = raw.view("<u8")
        words[np.isnan(raw)] = int.from_bytes(_CANONICAL_NAN, "little")
        return bytes(raw.tobytes())
    return bytes(numbers.astype("<i8").tobytes())


def _one(value: str | bytes) -> bytes:
    data = value.encode("utf-8") if isinstance(value, str) else value
    return struct.pack("<I", len(data)) + data
