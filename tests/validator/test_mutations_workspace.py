"""The mutator's own tools: digests against bytes written out by hand, and copies that never touch the original."""

import hashlib
import json
import math
import struct
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from validator.mutations.content import content_digest, json_digest, plan_digest, point_ids, type_name
from validator.mutations.timing import renumber, retime
from validator.mutations.workspace import WorkingCopy

SAMPLES = pa.schema(
    [
        pa.field("process", pa.int32(), nullable=False),
        pa.field("attempt", pa.int16(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("duration_ns", pa.int64(), nullable=False, metadata={"unit": "ns"}),
        pa.field("host_start_ns", pa.int64(), nullable=False, metadata={"unit": "ns"}),
        pa.field("host_end_ns", pa.int64(), nullable=False, metadata={"unit": "ns"}),
    ],
    metadata={"benchkit.protocol_digest": "old", "benchkit.run_id": "r"},
)
ROWS = [
    {"process": 0, "attempt": 0, "seq": 0, "duration_ns": 10, "host_start_ns": 100, "host_end_ns": 112},
    {"process": 0, "attempt": 0, "seq": 1, "duration_ns": 20, "host_start_ns": 120, "host_end_ns": 141},
    {"process": 1, "attempt": 0, "seq": 0, "duration_ns": 30, "host_start_ns": 100, "host_end_ns": 131},
]
PROTOCOL = """\
[timing]
clock = "host"
[schedule]
process_pairs = 1
blocks = 2
[operating_points]
b = [1, 4]
a = ["x"]
[[arm]]
name = "old"
[[arm]]
name = "new"
points = ["a=x,b=4"]
"""


def hexdigest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def copy(tmp_path: Path) -> WorkingCopy:
    bundle = tmp_path / "original"
    (bundle / "assets").mkdir(parents=True)
    (bundle / "assets" / "routes").write_bytes(b"asset")
    (bundle / "protocol.toml").write_text(PROTOCOL)
    (bundle / "protocol.lock").write_text(json.dumps({"protocol_digest": "old", "plan_digest": "old"}))
    (bundle / "manifest.json").write_text(json.dumps({"protocol_digest": "old", "tables": {}, "files": {}}))
    (bundle / "analysis.json").write_text(json.dumps({"manifest_sha256": "old", "protocol_digest": "old"}))
    (bundle / "report.html").write_text("")
    (bundle / "manifest.json.sig.json").write_text("{}")
    (bundle / "attempts.jsonl").write_text('{"seq":0,"prev_sha256":"x","run_id":"r"}\n')
    pq.write_table(pa.Table.from_pylist(ROWS, schema=SAMPLES), bundle / "samples.parquet")
    for path in bundle.iterdir():
        path.chmod(0o555 if path.is_dir() else 0o444)
    return WorkingCopy.of(bundle, tmp_path / "copy")


def test_content_digest_of_repeats_by_hand() -> None:
    schema = pa.schema([("repeat", pa.int32()), ("mode_sha256", pa.string()), ("output_sha256", pa.string())])
    table = pa.Table.from_pydict(
        {"repeat": [0, -1], "mode_sha256": [None, "é"], "output_sha256": ["", "ab"]}, schema=schema
    )
    numbers = hexdigest(struct.pack("<qq", 0, -1))
    nullable = hexdigest(b"\x00" + b"\x01" + struct.pack("<I", 2) + "é".encode())
    texts = hexdigest(struct.pack("<I", 0) + struct.pack("<I", 2) + b"ab")
    canonical = (
        f'["benchkit.table/1",2,["repeat","int","{numbers}"],["mode_sha256","string","{nullable}"],'
        f'["output_sha256","string","{texts}"]]'
    )
    assert content_digest("repeats", table) == hexdigest(canonical.encode())


def test_content_digest_of_floats_and_bools_by_hand() -> None:
    table = pa.table({"power_w": [1.5, math.nan, -0.0], "block": [True, False, True]})
    floats = hexdigest(struct.pack("<d", 1.5) + bytes.fromhex("000000000000f87f") + bytes.fromhex("0000000000000080"))
    bools = hexdigest(struct.pack("<qqq", 1, 0, 1))
    canonical = f'["benchkit.table/1",3,["block","bool","{bools}"],["power_w","float","{floats}"]]'
    assert content_digest("telemetry", table) == hexdigest(canonical.encode())


def test_content_digest_ignores_the_encoding() -> None:
    plain = pa.table({"name": ["a", "b", "a"]})
    for kind in (pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()):
        other = pa.table({"name": plain.column("name").cast(kind)})
        assert content_digest("kernels", other) == content_digest("kernels", plain)
    assert content_digest("kernels", plain.slice(1)) != content_digest("kernels", plain)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.int16(), "int"),
        (pa.float32(), "float"),
        (pa.bool_(), "bool"),
        (pa.large_binary(), "binary"),
        (pa.list_(pa.int32()), "list<int>"),
        (pa.dictionary(pa.int32(), pa.large_string()), "string"),
    ],
)
def test_type_names(kind: pa.DataType, name: str) -> None:
    assert type_name(kind) == name


def test_json_digest_by_hand() -> None:
    assert json_digest({"b": 1.0, "a": [True, None, 1e-5]}) == hexdigest(b'{"a":[true,null,0.00001],"b":1}')


def test_points_and_plan_by_hand() -> None:
    protocol = tomllib.loads(PROTOCOL)
    assert point_ids(protocol["operating_points"]) == ["a=x,b=1", "a=x,b=4"]

    def order(prefix: str, *names: str) -> list[str]:
        return sorted(names, key=lambda name: hexdigest(f"{prefix}/{name}".encode()))

    arms = {"a=x,b=1": ["old"], "a=x,b=4": ["old", "new"]}
    points = [
        [point, *(order(f"d/0/{point}/{block}", *arms[point]) for block in ("warmup", 0, 1))]
        for point in order("d/0", "a=x,b=1", "a=x,b=4")
    ]
    canonical = json.dumps(["benchkit.plan/1", [[0, points]]], separators=(",", ":"))
    assert plan_digest(protocol, "d") == hexdigest(canonical.encode())


def test_tables_keep_types_and_metadata(copy: WorkingCopy) -> None:
    copy.set_values("samples", [1], duration_ns=7)
    copy.take("samples", [1, 0, 2])
    table = copy.table("samples")
    assert table.schema.equals(SAMPLES, check_metadata=True)
    assert table.column("duration_ns").to_pylist() == [7, 10, 30]
    copy.drop("samples", copy.rows("samples", process=0, duration_ns=lambda duration: duration > 7))
    assert copy.column("samples", "duration_ns") == [7, 30]


def test_the_original_stays(copy: WorkingCopy) -> None:
    original = copy.root.parent / "original"
    before = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    copy.path("assets/routes").write_bytes(b"")
    copy.set_values("samples", [0], duration_ns=1)
    copy.relock()
    copy.reseal()
    assert {path: path.read_bytes() for path in original.rglob("*") if path.is_file()} == before


def test_retime_moves_the_rest_of_the_process(copy: WorkingCopy) -> None:
    retime(copy, {0: 15})
    assert copy.column("samples", "duration_ns") == [15, 20, 30]
    assert copy.column("samples", "host_start_ns") == [100, 125, 100]
    assert copy.column("samples", "host_end_ns") == [117, 146, 131]


def test_renumber_counts_per_process(copy: WorkingCopy) -> None:
    copy.take("samples", [1, 2, 0])
    renumber(copy)
    assert copy.column("samples", "seq") == [0, 0, 1]


def test_protocol_survives_being_written(copy: WorkingCopy) -> None:
    value = {"schema": 'a"\n\\é', "t": {"batch=8": [1, 1e-05, True], "n": {}}, "arm": [{"x": "y"}, {}]}
    copy.write_protocol(value)
    assert copy.protocol() == value


def test_reseal_lists_what_is_there(copy: WorkingCopy) -> None:
    copy.path("protocol.lock").unlink()
    copy.reseal()
    manifest = copy.read_json("manifest.json")
    assert list(manifest["files"]) == ["assets/routes", "attempts.jsonl", "protocol.toml", "samples.parquet"]
    assert manifest["files"]["assets/routes"] == {"sha256": hexdigest(b"asset"), "bytes": 5}
    digest = content_digest("samples", copy.table("samples"))
    assert manifest["tables"] == {"samples": {"rows": 3, "content_sha256": digest}}
    tip = hexdigest(b'{"seq":0,"prev_sha256":"x","run_id":"r"}')
    assert manifest["ledger"] == {"lines": 1, "tip_sha256": tip}
    written = copy.path("manifest.json").read_bytes()
    assert copy.read_json("analysis.json")["manifest_sha256"] == hexdigest(written)


def test_relock_names_the_new_digest_everywhere(copy: WorkingCopy) -> None:
    copy.relock()
    digest = json_digest(copy.protocol())
    assert copy.read_json("protocol.lock")["protocol_digest"] == digest
    assert copy.read_json("protocol.lock")["plan_digest"] == plan_digest(copy.protocol(), digest)
    assert copy.read_json("manifest.json")["protocol_digest"] == digest
    assert copy.read_json("analysis.json")["protocol_digest"] == digest
    assert copy.table("samples").schema.metadata[b"benchkit.protocol_digest"] == digest.encode()
    assert copy.table("samples").schema.metadata[b"benchkit.run_id"] == b"r"
    (line,) = copy.ledger()
    assert (line["protocol_digest"], line["prev_sha256"], line["run_id"]) == (digest, "0" * 64, "r")
