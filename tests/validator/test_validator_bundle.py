"""Files, encodings, documents and claims: what is tampering, what is only another encoding, what cannot be checked."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builder
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from validator.findings import Validity
from validator.reading.protocol import read_protocol
from validator.reading.tables import read_table
from validator.reasons import Reason as R
from validator.report.document import document
from validator.validate import validate


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean bundle without claims (never change it: copy it)."""
    return builder.draft(clock="cuda-event").seal(tmp_path_factory.mktemp("clean") / "b")


@pytest.fixture
def bundle(clean: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(clean, tmp_path / "b"))


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    pq.write_table(change(pq.read_table(path)), path, **options)


def rows(table: pa.Table, change: Callable[[list[dict[str, Any]]], object]) -> pa.Table:
    listed = table.to_pylist()
    change(listed)
    return pa.Table.from_pylist(listed, schema=table.schema)


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


FILES: dict[str, tuple[Callable[[Path], object], list[R]]] = {
    "no manifest": (lambda b: (b / "manifest.json").unlink(), [R.MANIFEST_MISSING]),
    "a manifest with NaN": (
        lambda b: (b / "manifest.json").write_text('{"schema": "benchkit.manifest/1", "x": NaN}'),
        [R.MANIFEST_INVALID],
    ),
    "a manifest with a doubled key": (
        lambda b: (b / "manifest.json").write_text('{"schema": "benchkit.manifest/1", "schema": "benchkit.manifest/1"}'),
        [R.MANIFEST_INVALID],
    ),
    "a name outside": (
        lambda b: edit_json(b / "manifest.json", lambda m: m["files"].update({"../x": {"sha256": "0" * 64, "bytes": 1}})),
        [R.UNSAFE_PATH],
    ),
    "a link": (lambda b: ((b / "routing.parquet").rename(b.parent / "r"), os.symlink(b.parent / "r", b / "routing.parquet")),
               [R.UNSAFE_PATH]),
    "a pipe": (lambda b: os.mkfifo(b / "pipe"), [R.UNSAFE_PATH]),
    "names that collide": (lambda b: (b / "ATTEMPTS.jsonl").write_text(""), [R.UNSAFE_PATH, R.EXTRA_FILE]),
    "a missing file": (lambda b: (b / "telemetry.parquet").unlink(), [R.FILE_MISSING]),
    "a missing lock": (lambda b: (b / "protocol.lock").unlink(), [R.FILE_MISSING, R.LOCK_MISSING]),
    "another file": (lambda b: (b / "notes.txt").write_text("x"), [R.EXTRA_FILE]),
    "a truncated table": (
        lambda b: (b / "samples.parquet").write_bytes((b / "samples.parquet").read_bytes()[:-200]),
        [R.FILE_CHANGED, R.FILE_UNREADABLE],
    ),
    "an empty table": (lambda b: (b / "samples.parquet").write_bytes(b""), [R.FILE_CHANGED, R.FILE_UNREADABLE]),
    "a duration changed by 1 ns (F04)": (
        lambda b: rewrite(
            b / "samples.parquet", lambda t: rows(t, lambda r: r[30].update(duration_ns=r[30]["duration_ns"] + 1))
        ),
        [R.CONTENT_CHANGED],
    ),
    "a changed ledger": (
        lambda b: (b / "attempts.jsonl").write_bytes((b / "attempts.jsonl").read_bytes().replace(b"12:00", b"12:01")),
        [R.FILE_CHANGED, R.LEDGER_BROKEN],
    ),
    "a lock of huge integers": (
        lambda b: (b / "protocol.lock").write_text('{"schema": "benchkit.lock/1", "x": ' + "9" * 5000 + "}"),
        [R.FILE_CHANGED, R.LOCK_INVALID],
    ),
    "a deep lock": (lambda b: (b / "protocol.lock").write_text("[" * 100_000), [R.FILE_CHANGED, R.LOCK_INVALID]),
    "a null in a column": (
        lambda b: rewrite(
            b / "samples.parquet",
            lambda t: t.set_column(9, "duration_ns", pa.array([None, *t["duration_ns"].to_pylist()[1:]], pa.int64())),
        ),
        [R.FILE_CHANGED, R.SCHEMA_NULL],
    ),
    "another column": (
        lambda b: rewrite(b / "routing.parquet", lambda t: t.append_column("extra", pa.array(range(len(t))))),
        [R.FILE_CHANGED, R.SCHEMA_COLUMN],
    ),
    "columns in another order": (
        lambda b: rewrite(b / "routing.parquet", lambda t: t.select(["token", "point", "slot", "expert", "weight"])),
        [R.SCHEMA_COLUMN],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files(bundle: Path, name: str) -> None:
    change, expected = FILES[name]
    change(bundle)
    report = validate(bundle)
    assert list(dict.fromkeys(report.codes)) == expected
    assert report.validity is Validity.INVALID


def test_unreadable_samples_block_later_stages(bundle: Path) -> None:
    (bundle / "samples.parquet").write_bytes(b"PAR1")
    report = validate(bundle)
    assert [(item.stage.value, item.blocked_by) for item in report.not_checked] == [
        (stage, "samples.parquet") for stage in ("schema", "schedule", "physics", "recompute")
    ]
    assert document(report)["comparisons"] == []


ENCODINGS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "plain": lambda t: t,
    "no metadata": lambda t: t.replace_schema_metadata(None),
    "large_string": lambda t: recast(t, pa.large_string()),
    "string_view": lambda t: recast(t, pa.string_view()),
    "dictionary": lambda t: recast(t, pa.dictionary(pa.int32(), pa.string())),
    "large dictionary": lambda t: recast(t, pa.dictionary(pa.int8(), pa.large_string())),
}


def recast(table: pa.Table, kind: pa.DataType) -> pa.Table:
    for i, field in enumerate(table.schema):
        if field.type == pa.string():
            table = table.set_column(i, field.name, table.column(i).cast(pa.string()).cast(kind))
    return table


@pytest.mark.parametrize("name", ENCODINGS)
def test_e03_another_encoding_is_a_note(bundle: Path, name: str) -> None:
    for path in sorted(bundle.glob("*.parquet")):
        rewrite(path, ENCODINGS[name], compression="snappy", row_group_size=97)
    report = validate(bundle)
    assert (report.validity, report.codes) == (Validity.VALID, ())
    again = {f"RE_ENCODED {path.name}: another file, the same rows" for path in bundle.glob("*.parquet")}
    assert {note for note in report.notes if note.startswith("RE_ENCODED")} == again


def test_pandas_keeps_the_digest(bundle: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for path in bundle.glob("*.parquet"):
        pandas.read_parquet(path).to_parquet(path, index=False)
    assert validate(bundle).validity is Validity.VALID


def test_content_digest_of_the_two_writers(clean: Path) -> None:
    manifest = json.loads((clean / "manifest.json").read_text())
    for name in builder.COLUMNS:
        assert read_table(clean / f"{name}.parquet", name).content_sha256 == manifest["tables"][name]["content_sha256"]


def test_nan_and_negative_zero_in_a_digest(tmp_path: Path) -> None:
    draft = builder.draft()
    nan = float(np.frombuffer(np.uint64(0x7FF8000000000001).tobytes(), dtype=np.float64)[0])
    draft.tables["correctness"][0].update(max_abs_error=nan, rel_error=-0.0)
    report = validate(draft.seal(tmp_path / "b"))
    assert report.codes == ()
    assert report.numbers is not None
    assert [arm.max_abs_error for arm in report.numbers.arms].count(None) == 1


def test_a_flipped_bit_is_seen_by_its_checksum(bundle: Path) -> None:
    data = bytearray((bundle / "samples.parquet").read_bytes())
    data[len(data) // 3] ^= 1
    (bundle / "samples.parquet").write_bytes(bytes(data))
    assert validate(bundle).codes in ((R.FILE_CHANGED, R.FILE_UNREADABLE), (R.CONTENT_CHANGED,))


@pytest.mark.parametrize("seed", range(40))
def test_noise_never_raises(bundle: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    path = sorted(bundle.iterdir())[seed % 11]
    data = bytearray(path.read_bytes())
    for at in random.integers(0, len(data), 3):
        data[at] = int(random.integers(0, 256))
    path.write_bytes(bytes(data))
    assert validate(bundle).validity in tuple(Validity)


# protocol.toml


@pytest.mark.parametrize(
    "layout",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "# a comment\n\n" + text,
        lambda text: "".join(sorted(text.splitlines(keepends=True))),
    ],
    ids=["crlf", "comment", "order of keys"],
)
def test_f01_layout_is_a_note(bundle: Path, layout: Callable[[str], str]) -> None:
    path = bundle / "protocol.toml"
    path.write_bytes(layout(path.read_text()).encode())
    report = validate(bundle)
    assert report.validity is Validity.VALID
    assert "RE_ENCODED protocol.toml: another file, the same protocol digest" in report.notes


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text.replace('"samples" = 2', '"samples" = 3'), [R.FILE_CHANGED, R.PROTOCOL_CHANGED]),
        (
            lambda text: text.replace('"samples" = 2', '"samples" = 2.0'),
            [R.PROTOCOL_INVALID],
        ),  # the digest of 2.0 is that of 2
        (lambda text: text.replace('"samples" = 2', '"samples" = true'), [R.FILE_CHANGED, R.PROTOCOL_INVALID]),
        (lambda text: text.replace('"samples" = 2', '"samples" = nan'), [R.FILE_CHANGED, R.PROTOCOL_INVALID]),
        (lambda text: text + "schema = 1\n", [R.FILE_CHANGED, R.PROTOCOL_INVALID]),
        (lambda text: "\ufeff" + text, [R.FILE_CHANGED, R.PROTOCOL_INVALID]),
    ],
    ids=["value", "float", "bool", "nan", "duplicate key", "byte-order mark"],
)
def test_f01_a_value_is_another_protocol(bundle: Path, change: Callable[[str], str], expected: list[R]) -> None:
    path = bundle / "protocol.toml"
    path.write_bytes(change(path.read_text()).encode())
    codes = list(dict.fromkeys(validate(bundle).codes))
    assert [code for code in codes if code in (R.FILE_CHANGED, expected[-1])] == expected


@pytest.mark.parametrize(
    ("margin", "value"),
    [("2%", 0.02), ("0.5%", 0.005), (0.02, 0.02), (2, None), ("2", None), (2.0, None), ("0%", None)],
)
def test_margin(margin: Any, value: float | None) -> None:
    document = builder.document(clock="host", pairs=5, alpha=0.05, margin=margin)
    read = read_protocol("".join(f"{key} = {builder.toml(item)}\n" for key, item in document.items()).encode())
    assert (read.protocol.margin if read.protocol else None) == value


def test_all_problems_at_once() -> None:
    document = builder.document(clock="host", pairs=4, alpha=0.05, margin="2%")
    document["timing"] |= {"clock": "hourglass", "peak_gb_per_s": 3}
    document["fixture"]["extra"] = 1
    del document["schedule"]["blocks"]
    read = read_protocol("".join(f"{key} = {builder.toml(item)}\n" for key, item in document.items()).encode())
    paths = [problem.split(":")[0] for problem in read.problems]
    assert paths == [
        "fixture.extra",
        "timing.clock",
        "timing.peak_gb_per_s",
        "schedule.blocks",
        "schedule.process_pairs",
    ]


@pytest.mark.parametrize("name", ["protocol.toml", "protocol.lock", "manifest.json"])
def test_another_major_could_not_be_checked(bundle: Path, name: str) -> None:
    path = bundle / name
    kind = name.split(".")[1] if name != "manifest.json" else "manifest"
    kind = "protocol" if kind == "toml" else kind
    path.write_text(path.read_text().replace(f"benchkit.{kind}/1", f"benchkit.{kind}/2"))
    report = validate(bundle)
    assert (report.validity, report.reasons) == (Validity.COULD_NOT_CHECK, ())
    assert len(report.not_checked) == 7


def test_nothing_there(tmp_path: Path) -> None:
    assert validate(tmp_path / "none").validity is Validity.COULD_NOT_CHECK
    assert validate(tmp_path).codes[0] is R.MANIFEST_MISSING


def test_a_folder_of_bundles_is_none(tmp_path: Path) -> None:
    for name in ("a", "b"):
        builder.draft().seal(tmp_path / "built" / name)
    first = validate(tmp_path).reasons[0]
    assert (first.reason, first.where) == (R.MANIFEST_MISSING, "manifest.json")
    assert first.got == "nothing here, and one in built/a, built/b: each is a bundle by itself"


def test_expected_protocol(bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    text = (bundle / "protocol.toml").read_text()
    other.write_text(text)
    assert validate(bundle, expected_protocol=other).validity is Validity.VALID
    other.write_text(text.replace('"2%"', '"5%"'))
    assert validate(bundle, expected_protocol=other).codes == (R.PROTOCOL_NOT_THE_EXPECTED,)


# analysis.json


def claim(bundle: Path, change: Callable[[Any], object] = lambda value: None) -> tuple[R, ...]:
    """Write the right claims, changed; they are the validator's own numbers, so only the change can be found."""
    (bundle / "analysis.json").unlink(missing_ok=True)
    own = document(validate(bundle))
    value = {key: own[key] for key in ("comparisons", "controls", "arms", "family")} | {
        "schema": "benchkit.analysis/1",
        "manifest_sha256": builder.sha((bundle / "manifest.json").read_bytes()),
        "protocol_digest": own["bundle"]["protocol_digest"],  # type: ignore[index,call-overload]
        "run_id": builder.RUN_ID,
    }
    change(value)
    (bundle / "analysis.json").write_text(json.dumps(value))
    report = validate(bundle)
    wheres.clear()
    wheres.extend(finding.where for finding in report.reasons)
    return report.codes


wheres: list[str] = []


def scale(item: dict[str, Any], key: str, factor: float) -> None:
    item[key] *= factor


CLAIMS: dict[str, tuple[Callable[[Any], object], list[R], list[str]]] = {
    "right": (lambda v: None, [], []),
    "text of a gate": (lambda v: [g.update(detail="x") for c in v["comparisons"] for g in c["gates"]], [], []),
    "last bits": (lambda v: scale(v["comparisons"][0], "ratio", 1 + 4e-16), [], []),
    "a ratio": (
        lambda v: scale(v["comparisons"][0], "ratio", 1 - 1e-9),
        [R.CLAIM_MISMATCH],
        ["$.comparisons[0].ratio"],
    ),
    "a p-value": (
        lambda v: scale(v["comparisons"][1], "p_superior", 1 + 1e-8),
        [R.CLAIM_MISMATCH],
        ["$.comparisons[1].p_superior"],
    ),
    "a verdict": (lambda v: v["family"].update(verdict="inferior"), [R.CLAIM_MISMATCH], ["$.family.verdict"]),
    "an integer as a float": (lambda v: scale(v["arms"][0], "samples", 1.0), [R.CLAIM_MISMATCH], ["$.arms[0].samples"]),
    "a lost control": (lambda v: v["controls"].pop(), [R.CLAIM_MISMATCH], ["$.controls"]),
    "a lost key": (lambda v: v["arms"][0].pop("gb_per_s"), [R.CLAIM_MISMATCH], ["$.arms[0].gb_per_s"]),
    "stale": (lambda v: v.update(manifest_sha256="0" * 64), [R.ANALYSIS_STALE], ["$.manifest_sha256"]),
    "no family": (lambda v: v.pop("family"), [R.ANALYSIS_INVALID], ["$.family"]),
    "another schema": (lambda v: v.update(schema="x"), [R.ANALYSIS_INVALID], ["$.schema"]),
    "NaN": (lambda v: v["arms"][0].update(median_ns=float("nan")), [R.ANALYSIS_INVALID], ["analysis.json"]),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims(bundle: Path, name: str) -> None:
    change, codes, places = CLAIMS[name]
    assert (list(claim(bundle, change)), wheres) == (codes, places)
