"""Digests as results/README.md and protocols/README.md define them, for resealing a mutated bundle.

Written from the documents and apart from ``validator.reading``, whose list of columns is all that they share: if the two
disagree, a resealed bundle fails and says so.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as types
import rfc8785

from validator.reading.schema import columns_of


def sha256(data: bytes) -> str:
    """SHA-256 of bytes, lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def json_digest(value: Any) -> str:
    """SHA-256 of the RFC 8785 JSON of a value."""
    return sha256(rfc8785.dumps(value))


def content_digest(name: str, table: pa.Table) -> str:
    """Content digest of a table, columns in schema order; what the schema does not know stands last."""
    known = {column.name: column.nullable for column in columns_of(name, table.column_names)}
    present = [column for column in known if column in table.column_names]
    columns: list[Any] = []
    for column in [*present, *(column for column in table.column_names if column not in known)]:
        kind, values = table.schema.field(column).type, table.column(column).to_pylist()
        columns.append([column, type_name(kind), _column_hex(kind, values, known.get(column, False))])
    return json_digest(["benchkit.table/1", table.num_rows, *columns])


def type_name(kind: pa.DataType) -> str:
    """The plain type that a digest names."""
    if types.is_dictionary(kind):
        return type_name(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return f"list<{type_name(kind.value_type)}>"
    for name, belongs in _PLAIN:
        if any(test(kind) for test in belongs):
            return name
    raise ValueError(f"expected a type of the format, got {kind}")


_PLAIN: tuple[tuple[str, tuple[Callable[[pa.DataType], bool], ...]], ...] = (
    ("int", (types.is_integer,)),
    ("float", (types.is_floating,)),
    ("bool", (types.is_boolean,)),
    ("string", (types.is_string, types.is_large_string, types.is_string_view, types.is_null)),
    ("binary", (types.is_binary, types.is_large_binary, types.is_binary_view)),
)


def _column_hex(kind: pa.DataType, values: Iterable[Any], nullable: bool) -> str:
    """Digest of one column; a null in a column that may not be null has no encoding and counts as byte 00."""
    encode, mark = _encoder(kind), b"\x01" if nullable else b""
    return sha256(b"".join(b"\x00" if value is None else mark + encode(value) for value in values))


def _encoder(kind: pa.DataType) -> Callable[[Any], bytes]:
    name = type_name(kind)
    if name.startswith("list<"):
        element = _encoder(kind.value_type)
        return lambda value: struct.pack("<I", len(value)) + b"".join(element(item) for item in value)
    encoders: dict[str, Callable[[Any], bytes]] = {
        "int": _int64,
        "bool": _int64,
        "float": _binary64,
        "string": _text,
        "binary": _counted,
    }
    return encoders[name]


@lru_cache(maxsize=1024)
def _int64(value: int) -> bytes:
    return struct.pack("<q", int(value))


def _binary64(value: float) -> bytes:
    return bytes.fromhex("000000000000f87f") if value != value else struct.pack("<d", value)


@lru_cache(maxsize=1024)
def _text(value: str) -> bytes:
    return _counted(value.encode("utf-8"))


def _counted(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def plan_digest(protocol: Mapping[str, Any], digest: str) -> str:
    """Plan digest of a parsed protocol whose own digest is ``digest``."""
    if protocol.get("protocol", {}).get("kind") == "mechanism":
        return json_digest(["benchkit.study-plan/1", study_plan_of(protocol)])
    return json_digest(["benchkit.plan/1", plan_of(protocol, digest)])


def study_plan_of(protocol: Mapping[str, Any]) -> list[Any]:
    """The plan of a mechanism protocol: process, replicate, cell and history, one after the other."""
    plan: list[Any] = []
    for replicate in range(protocol["schedule"]["replicates"]):
        for cell in protocol["cell"]:
            for history in sorted(("H0", "H1"), reverse=replicate % 2 == 1):
                plan.append([len(plan), replicate, cell["name"], history])
    return plan


def plan_of(protocol: Mapping[str, Any], digest: str) -> list[Any]:
    """The plan: per process its points in order, each with the arms of its warm-up and of its blocks in order."""
    points = point_ids(protocol["operating_points"])
    return [
        [
            process,
            [_point_plan(protocol, digest, process, point) for point in _ascending(points, f"{digest}/{process}")],
        ]
        for process in range(protocol["schedule"]["process_pairs"])
    ]


def _point_plan(protocol: Mapping[str, Any], digest: str, process: int, point: str) -> list[Any]:
    arms = [arm["name"] for arm in protocol["arm"] if point in arm.get("points", [point])]
    blocks = ["warmup", *range(protocol["schedule"]["blocks"])]
    return [point, *(_ascending(arms, f"{digest}/{process}/{point}/{block}") for block in blocks)]


def _ascending(names: Sequence[str], prefix: str) -> list[str]:
    return sorted(names, key=lambda name: sha256(f"{prefix}/{name}".encode()))


def point_ids(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """The ids of all points: every combination of the axes, which stand in the order of their names."""
    partial: list[list[str]] = [[]]
    for axis in sorted(axes):
        partial = [[*parts, f"{axis}={value}"] for parts in partial for value in axes[axis]]
    return [",".join(parts) for parts in partial]
