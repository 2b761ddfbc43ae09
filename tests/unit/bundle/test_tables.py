"""Tables and their content digest: exact bytes, nulls, NaN, and independence of encoding (trials E01, E03)."""

import hashlib
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785

from benchkit.bundle.digest import ContentDigest
from benchkit.bundle.schema import TABLES, table_schema
from benchkit.bundle.tables import build_table, write_table


def content_sha256(table: pa.Table, schema: pa.Schema) -> str:
    """The digest of a whole table."""
    digest = ContentDigest(schema)
    digest.update(table)
    return digest.hexdigest()


def text(value: str) -> bytes:
    """A string as the digest sees it."""
    data = value.encode()
    return struct.pack("<I", len(data)) + data


def digest(rows: int, *columns: tuple[str, str, bytes]) -> str:
    """A content digest from the encoded columns, as results/README.md says."""
    entries = [[name, kind, hashlib.sha256(data).hexdigest()] for name, kind, data in columns]
    return hashlib.sha256(rfc8785.dumps(["benchkit.table/1", rows, *entries])).hexdigest()


def test_content_digest_is_the_documented_one() -> None:
    schema = pa.schema(
        [
            pa.field("i", pa.int32(), nullable=False),
            pa.field("f", pa.float64(), nullable=False),
            pa.field("b", pa.bool_(), nullable=False),
            pa.field("s", pa.string(), nullable=False),
            pa.field("n", pa.string(), nullable=True),
        ]
    )
    table = pa.table([[1, -2], [-0.0, float("nan")], [True, False], ["ü", ""], ["x", None]], schema=schema)
    expected = digest(
        2,
        ("i", "int", struct.pack("<qq", 1, -2)),
        ("f", "float", struct.pack("<d", -0.0) + bytes.fromhex("000000000000f87f")),
        ("b", "bool", struct.pack("<qq", 1, 0)),
        ("s", "string", text("ü") + text("")),
        ("n", "string", b"\x01" + text("x") + b"\x00"),
    )
    assert content_sha256(table, schema) == expected


def test_the_digest_sees_values_and_order_not_chunks() -> None:
    schema = pa.schema([pa.field("i", pa.int64(), nullable=False)])
    whole = pa.table([[1, 2, 3]], schema=schema)
    parts = pa.concat_tables([pa.table([[1]], schema=schema), pa.table([[2, 3]], schema=schema)])
    assert content_sha256(whole, schema) == content_sha256(parts, schema)
    assert content_sha256(whole, schema) != content_sha256(pa.table([[1, 3, 2]], schema=schema), schema)


def test_every_reader_sees_int64_nanoseconds(fake_bundle: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = fake_bundle / "samples.parquet"
    arrow = pq.read_table(path)
    assert arrow.schema.field("duration_ns").type == pa.int64()
    frame = pandas.read_parquet(path)
    assert str(frame["duration_ns"].dtype) == "int64"
    assert frame["duration_ns"].tolist() == arrow.column("duration_ns").to_pylist()


def test_files_carry_units_keys_and_checksums(fake_bundle: Path) -> None:
    for name in TABLES:
        file = pq.ParquetFile(fake_bundle / f"{name}.parquet", page_checksum_verification=True)
        file.read()
        assert file.schema_arrow.metadata[b"benchkit.schema"] == f"benchkit.{name}/1".encode()
        assert file.schema_arrow.equals(table_schema(name), check_metadata=False)
    samples = pq.read_schema(fake_bundle / "samples.parquet")
    assert {
        name: samples.field(name).metadata[b"unit"] for name in samples.names if name.endswith("_ns")
    } == dict.fromkeys(("duration_ns", "host_start_ns", "host_end_ns", "post_sync_ns", "injected_ns"), b"ns")


def test_a_null_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"routing\.weight: expected no null, found one at row 1"):
        build_table("routing", [["batch=1", 0, 0, 3, 0.5], ["batch=1", 0, 1, 4, None]])
    with pytest.raises(pa.ArrowInvalid):
        build_table("routing", [["batch=1", 2**40, 0, 3, 0.5]])
    table = build_table("routing", [])
    entry = write_table(tmp_path, "routing", [table], protocol_digest="d", run_id="r")
    assert (entry.rows, [path.name for path in tmp_path.iterdir()]) == (0, ["routing.parquet"])
