"""What a small file would take many bytes or hours to read is refused before; nothing of it is unpacked."""

import os
from pathlib import Path

import builder
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchkit.errors import ProtocolError
from benchkit.protocol.files import parse_toml as parse_protocol
from validator.findings import CouldNotCheckError
from validator.reading.canonical import StrictJsonError, parse_json, parse_toml
from validator.reading.folder import Folder
from validator.reading.limits import MEMBERS, MOST_ROWS
from validator.reading.protocol import read_protocol
from validator.reading.records import read_ledger, read_lock, read_manifest
from validator.reading.tables import read_table
from validator.reasons import Reason
from validator.validate import validate


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return builder.draft().seal(tmp_path / "b")


@pytest.mark.parametrize("piece", [b"[]", b"{}", b"0"])
def test_json_of_many_values_is_not_parsed(piece: bytes) -> None:
    small = b"[" + piece + (b"," + piece) * 10_000 + b"]"
    value = parse_json(small)
    assert isinstance(value, list)
    assert len(value) == 10_001
    large = b"[" + piece + (b"," + piece) * 3_000_000 + b"]"
    marks = 3_000_002 if piece == b"0" else 6_000_003
    with pytest.raises(StrictJsonError, match=rf"^expected at most 3000000 values, found up to {marks}$"):
        parse_json(large)


@pytest.mark.parametrize("key", ["a", '"a"', "'a'", '"\\""', ' "\'" '])
def test_dotted_keys_that_take_the_parser_long(key: str) -> None:
    short, long = f"{key}." * 30 + "z = 1\n", f"{key}." * 4097 + "z = 1\n"
    assert parse_toml(short.encode()) == parse_protocol(short.encode(), "x.toml")
    with pytest.raises(
        ValueError, match=r"^dots whose number in a line, squared, is more than 16777216 over all lines$"
    ):
        parse_toml(long.encode())
    assert read_protocol(long.encode()).problems == (
        "dots whose number in a line, squared, is more than 16777216 over all lines",
    )
    with pytest.raises(ProtocolError) as refused:
        parse_protocol(long.encode(), "x.toml")
    assert refused.value.problems == (
        "file: expected lines whose numbers of dots, squared, sum to at most 16777216, found more; write shorter keys",
    )


def test_tables_within_tables_are_no_toml() -> None:
    with pytest.raises(ValueError, match=r"^tables or arrays that are nested too deeply$"):
        parse_toml(b"a = " + b"[" * 100_000)


def test_of_many_problems_the_first_two_hundred_are_told() -> None:
    unknown = "".join(f', "k{number}": 0' for number in range(1000))
    for kind, read in (("manifest", read_manifest), ("lock", read_lock)):
        problems = read(f'{{"schema": "benchkit.{kind}/1"{unknown}}}'.encode())
        assert isinstance(problems, tuple)
        assert len(problems) == 200
        assert problems[-1].endswith(": unknown key")


def test_a_ledger_is_read_up_to_its_first_bad_line() -> None:
    entries, problems = read_ledger(b"{}\n" * 1_000_000)
    assert (entries, problems[0]) == ((), "line 0.event: missing")


def test_a_listed_file_of_no_known_kind_is_not_read(bundle: Path) -> None:
    (bundle / "weights.bin").touch()
    os.truncate(bundle / "weights.bin", 1 << 40)
    folder = Folder(bundle)
    assert (folder.digest("weights.bin"), folder.findings) == (None, [])
    assert folder.digest("protocol.lock") == builder.sha((bundle / "protocol.lock").read_bytes())
    assert validate(bundle).codes == (Reason.EXTRA_FILE,)


@pytest.mark.parametrize("table", sorted(MOST_ROWS))
def test_tables_that_are_gone_through_row_by_row_have_few(bundle: Path, table: str) -> None:
    rows, path = MOST_ROWS[table] + 1, bundle / f"{table}.parquet"
    schema = pq.read_schema(path)
    columns = [
        pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), rows), ["{}"])
        if pa.types.is_string(field.type)
        else pa.repeat(pa.scalar(0, field.type), rows)
        for field in schema
    ]
    pq.write_table(pa.table(columns, names=schema.names), path, compression="zstd")
    read = read_table(path, table)
    (finding,) = read.findings
    assert (read.frame, finding.reason, finding.where) == (None, Reason.OVERSIZED, f"{table}.parquet")
    assert (finding.expected, finding.got) == (f"at most {rows - 1} rows", f"{rows} rows")


def test_a_large_footer_is_not_unpacked(bundle: Path) -> None:
    path = bundle / "kernels.parquet"
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"x": "a" * (4 << 20)}), path)
    length = int.from_bytes(path.read_bytes()[-8:-4], "little")
    (finding,) = read_table(path, "kernels").findings
    assert (finding.reason, finding.expected, finding.got) == (
        Reason.OVERSIZED,
        "a footer of at most 4194304 bytes",
        f"one of {length} bytes",
    )


def test_folders_count_like_files(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sum(path.is_file() for path in bundle.iterdir())
    for number in range(3):
        (bundle / f"empty{number}").mkdir()
    assert len(Folder(bundle).names) == files
    monkeypatch.setattr("validator.reading.folder.MEMBERS", files + 2)
    with pytest.raises(CouldNotCheckError, match=rf"more than {files + 2} files and folders: this is no bundle$"):
        Folder(bundle)
    assert MEMBERS == 10_000
