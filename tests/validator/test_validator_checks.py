"""Files, provenance, schedule and schema, check by check: a clean bundle in memory with one thing changed, and exactly what is said."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import builder
import memory
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from memory import Rows, edited, seen, surroundings, with_records, with_rows, without

from validator.checks.integrity import check_integrity
from validator.checks.order import check_order
from validator.checks.provenance import check_provenance, satisfies
from validator.checks.schedule import check_schedule
from validator.checks.schema import check_schema
from validator.checks.words import first
from validator.findings import CouldNotCheckError, Finding, NotApplicable
from validator.reading.bundle import Bundle, FileFact
from validator.reading.model import Asset, Require
from validator.reading.processes import ProcessRecord
from validator.reading.records import Entry, ListedFile, Manifest
from validator.reasons import Reason as R

OTHER_RUN = "20200101T000000Z-00000000"
NO_REQUIREMENT = Require(ranges=(), gpu=None, compute_capability=None, sources=(), binaries=())


def host() -> Bundle:
    return memory.built("host")


def cuda() -> Bundle:
    return memory.built("cuda-event")


def manifest_of(bundle: Bundle) -> Manifest:
    assert bundle.manifest is not None
    return bundle.manifest


def with_manifest(bundle: Bundle, **values: Any) -> Bundle:
    return replace(bundle, manifest=replace(manifest_of(bundle), **values))


def with_protocol(bundle: Bundle, **values: Any) -> Bundle:
    read = bundle.protocol_read
    assert read is not None
    assert read.protocol is not None
    return replace(bundle, protocol_read=replace(read, protocol=replace(read.protocol, **values)))


def integrity(bundle: Bundle) -> memory.Said:
    return memory.said(check_integrity(bundle).findings)


def provenance(bundle: Bundle, expected: Path | None = None) -> memory.Said:
    return memory.said(check_provenance(bundle, expected, []).findings)


def schema(bundle: Bundle) -> memory.Said:
    return memory.said(check_schema(bundle).findings)


def schedule(bundle: Bundle) -> memory.Said:
    return memory.said(check_schedule(seen(bundle), []).findings)


@pytest.mark.parametrize("bundle", [host, cuda])
def test_clean_bundles_have_no_finding(bundle: Callable[[], Bundle]) -> None:
    for check in (integrity, provenance, schema, schedule):
        assert check(bundle()) == []


# integrity


def listed_without(bundle: Bundle, *names: str) -> Bundle:
    """Neither listed nor there."""
    files = {name: fact for name, fact in bundle.files.items() if name not in names}
    listed = tuple(item for item in manifest_of(bundle).files if item.name not in names)
    return replace(with_manifest(bundle, files=listed), files=files)


def test_required_files_that_nobody_lists() -> None:
    bundle = listed_without(host(), "samples.parquet", "protocol.lock")  # that a lock is missing is said of the lock
    assert integrity(bundle) == [(R.FILE_MISSING, "samples.parquet", "a file", "nothing")]


def test_unsafe_names_are_said_once() -> None:
    more = (*manifest_of(host()).files, ListedFile(name="assets/../x", sha256="0" * 64, bytes=1))
    assert integrity(with_manifest(host(), files=more)) == []
    more = (*manifest_of(host()).files, ListedFile(name="assets/x", sha256="0" * 64, bytes=1))
    unsafe = Finding(reason=R.UNSAFE_PATH, where="assets/x", expected="", got="")
    bundle = with_manifest(host(), files=more)
    assert integrity(replace(bundle, findings=(unsafe,))) == []
    assert integrity(bundle) == [(R.FILE_MISSING, "assets/x", "a file", "nothing")]


def fact_of(bundle: Bundle, name: str, **values: Any) -> Bundle:
    return replace(bundle, files={**bundle.files, name: replace(bundle.files[name], **values)})


def test_tables_are_judged_by_their_contents() -> None:
    recoded = fact_of(host(), "samples.parquet", sha256="0" * 64)
    outcome = check_integrity(recoded)
    assert outcome.findings == ()
    assert outcome.notes == ("RE_ENCODED samples.parquet: another file, the same rows",)
    listed = next(item for item in manifest_of(host()).files if item.name == "samples.parquet")
    longer = fact_of(host(), "samples.parquet", bytes=listed.bytes + 1)
    expected = f"{listed.bytes} bytes, sha256 {listed.sha256}"
    assert integrity(longer) == [
        (R.FILE_CHANGED, "samples.parquet", expected, f"{listed.bytes + 1} bytes, sha256 {listed.sha256}")
    ]
    digest = replace(host().tables["samples"], content_sha256="1" * 64)
    other = replace(recoded, tables={**host().tables, "samples": digest})
    assert [item[:2] for item in integrity(other)] == [(R.CONTENT_CHANGED, "samples.parquet")]


def test_an_asset_with_the_name_of_a_table_is_a_file() -> None:
    for name in ("assets/samples.parquet", "assets/samples"):
        listed = (*manifest_of(host()).files, ListedFile(name=name, sha256="0" * 64, bytes=7))
        bundle = replace(
            with_manifest(host(), files=listed), files={**host().files, name: FileFact(bytes=7, sha256="1" * 64)}
        )
        wanted = (R.FILE_CHANGED, name, f"7 bytes, sha256 {'0' * 64}", f"7 bytes, sha256 {'1' * 64}")
        assert integrity(bundle) == [wanted]


def test_contents_after_a_table_that_cannot_be_read() -> None:
    stated = manifest_of(host()).tables
    unread = replace(host().tables[stated[0].name], content_sha256=None)
    changed = replace(host().tables[stated[-1].name], rows=99)
    bundle = replace(host(), tables={**host().tables, stated[0].name: unread, stated[-1].name: changed})
    assert [item[:2] for item in integrity(bundle)] == [(R.CONTENT_CHANGED, f"{stated[-1].name}.parquet")]


def test_ledgers() -> None:
    ledger = host().ledger or ()
    tip = (R.LEDGER_BROKEN, "attempts.jsonl", f"tip {'0' * 64}", f"tip {ledger[-1].sha256}")
    assert integrity(with_manifest(host(), ledger_tip="0" * 64)) == [tip]
    problem = (R.LEDGER_BROKEN, "attempts.jsonl", "RFC 8785 JSON lines of the ledger", "line 3: none")
    assert integrity(replace(host(), ledger_problems=("line 3: none",))) == [problem]
    assert integrity(replace(host(), ledger=(), ledger_problems=("line 3: none",))) == [problem]
    nothing = (R.LEDGER_BROKEN, "attempts.jsonl", "at least a start and an end", "no line")
    assert integrity(replace(host(), ledger=())) == [nothing]
    assert integrity(replace(host(), ledger=None)) == []


def chained(*entries: Entry) -> Bundle:
    """The bundle with such lines, each after the one before; the last is the tip."""
    lines: list[Entry] = []
    for entry in entries:
        before = lines[-1].sha256 if lines else "0" * 64
        lines.append(replace(entry, seq=len(lines), prev_sha256=before, sha256=f"{len(lines)}" * 64))
    bundle = replace(host(), ledger=tuple(lines))
    return with_manifest(bundle, ledger_tip=lines[-1].sha256, ledger_lines=len(lines))


def test_the_life_of_a_run() -> None:
    start, end = host().ledger or ()
    resume = replace(start, event="resume")
    for good in ((start, end), (start, resume, resume, end), (start, end, resume, end)):
        assert integrity(chained(*good)) == []
    expected = f"{start.run_id}: start, any resumptions, end; after an end, a resumption before another"
    for odd in ((start, start, end), (start, end, end), (start, resume, start, end)):
        got = ", ".join(entry.event for entry in odd)
        assert integrity(chained(*odd)) == [(R.LEDGER_BROKEN, "attempts.jsonl", expected, got)]
    # without an end that is all that is said
    last = f"the end of {start.run_id} in the last line"
    for short in ((start, resume), (start, end, resume), (start, start)):
        got = f"{short[-1].event} {start.run_id}"
        assert integrity(chained(*short)) == [(R.LEDGER_BROKEN, "attempts.jsonl", last, got)]
    other = with_manifest(chained(start, resume, end), ledger_tip="f" * 64)
    assert integrity(other) == [(R.LEDGER_BROKEN, "attempts.jsonl", f"tip {'f' * 64}", f"tip {'2' * 64}")]


# provenance


def with_ledger(bundle: Bundle, change: Callable[[list[Entry]], object]) -> Bundle:
    entries = list(bundle.ledger or ())
    change(entries)
    return replace(bundle, ledger=tuple(entries))


def locked_at(bundle: Bundle, entry: int, **later: float) -> Bundle:
    """Locked so long after a line of the ledger."""
    assert bundle.lock is not None
    when = (bundle.ledger or ())[entry].utc + timedelta(**later)
    return replace(bundle, lock=replace(bundle.lock, locked=when))


def places(found: memory.Said) -> list[tuple[R, str]]:
    return [item[:2] for item in found]


def test_a_protocol_is_locked_within_an_hour_of_the_start_and_before_the_end() -> None:
    def long_ago(entries: list[Entry]) -> None:
        entries[0] = replace(entries[0], utc=entries[0].utc - timedelta(hours=5))

    late = [(R.LOCKED_AFTER_START, "protocol.lock:locked_utc")]
    run = with_ledger(host(), long_ago)
    assert provenance(locked_at(run, 0, hours=1)) == []
    assert places(provenance(locked_at(run, 0, hours=1, seconds=1))) == late
    # what counts is this run's start and its last end
    start, end = (host().ledger or ())[0], (host().ledger or ())[-1]
    earlier = replace(start, run_id=OTHER_RUN, utc=start.utc - timedelta(days=9))
    assert provenance(replace(host(), ledger=(earlier, *(host().ledger or ())))) == []
    later = replace(end, run_id=OTHER_RUN, utc=end.utc + timedelta(days=9))
    resumed = replace(start, event="resume", utc=end.utc + timedelta(days=9))
    after = locked_at(replace(host(), ledger=(*(host().ledger or ()), later, resumed)), 1, minutes=1, seconds=1)
    (found,) = provenance(after)
    assert found[:3] == (*late[0], f"before the run ended at {end.utc.isoformat()}")
    assert provenance(locked_at(host(), 1, minutes=1)) == []
    assert places(provenance(locked_at(host(), 1, minutes=1, microseconds=1))) == late
    unlocked = replace(host(), lock=None)
    assert provenance(with_manifest(unlocked, protocol_digest="0" * 64))[0][:2] == (
        R.PROTOCOL_CHANGED,
        "manifest.json:protocol_digest",
    )


def test_without_a_plan_nothing_is_said_of_it() -> None:
    assert provenance(replace(host(), plan=None)) == []


def test_the_expected_protocol(tmp_path: Path) -> None:
    with pytest.raises(CouldNotCheckError) as error:
        provenance(host(), tmp_path / "none.toml")
    assert str(error.value) == f"{tmp_path / 'none.toml'}: cannot be read (No such file or directory)"
    other = tmp_path / "other.toml"
    other.write_text("a = 1\n")
    (found,) = provenance(replace(host(), protocol_read=None, plan=None), other)
    assert (found[0], found[3]) == (R.PROTOCOL_NOT_THE_EXPECTED, "no protocol")
    read = host().protocol_read
    assert read is not None
    assert provenance(host(), other)[0][3] == read.digest


def test_assets() -> None:
    assets = tuple(Asset(name=name, sha256=name * 64) for name in "abc")
    bundle = with_protocol(host(), assets=assets)
    assert provenance(bundle) == [(R.ASSET_CHANGED, f"assets/{name}", name * 64, "nothing") for name in "abc"]
    files = {
        **bundle.files,
        "assets/b": FileFact(bytes=1, sha256="b" * 64),
        "assets/c": FileFact(bytes=1, sha256="d" * 64),
    }
    assert provenance(replace(bundle, files=files)) == [
        (R.ASSET_CHANGED, "assets/a", "a" * 64, "nothing"),
        (R.ASSET_CHANGED, "assets/c", "c" * 64, "d" * 64),
    ]
    outside = replace(with_manifest(bundle, external=("a",)), files=files)
    not_applicable: list[NotApplicable] = []
    assert places(memory.said(check_provenance(outside, None, not_applicable).findings)) == [
        (R.ASSET_CHANGED, "assets/c")
    ]
    assert [(item.check, item.why) for item in not_applicable] == [("asset a", "asset not in bundle")]
    assert provenance(replace(outside, manifest=None))[0][:2] == (R.ASSET_CHANGED, "assets/a")


@pytest.mark.parametrize(
    ("version", "required", "good"),
    [
        ("2.11.0", ">=2.11", True),
        ("2.11.0+cu130", "==2.11.0", True),
        ("2.12.0rc1", ">=2.11", True),
        ("2.10", ">=2.11", False),
        ("banana", ">=2.11", False),
        ("2.11", "banana", False),
    ],
)
def test_versions(version: str, required: str, good: bool) -> None:
    assert satisfies(version, required) is good


@pytest.mark.parametrize(
    ("require", "found"),
    [
        (
            Require(ranges=(("python", ">=9"),), gpu=None, compute_capability=None, sources=(), binaries=()),
            ("python", ">=9", "3.11.7"),
        ),
        (replace(NO_REQUIREMENT, gpu="X"), ("gpu", "X", "NVIDIA H200")),
        (replace(NO_REQUIREMENT, compute_capability="8.0"), ("compute_capability", "8.0", "9.0")),
        (replace(NO_REQUIREMENT, sources=(("a", "1" * 64),)), ("sources.a", "1" * 64, "nothing recorded")),
        (replace(NO_REQUIREMENT, binaries=(("x.so", "1" * 64),)), ("binaries.x.so", "1" * 64, "2, 3")),
        (replace(NO_REQUIREMENT, binaries=(("x.so", "2"),)), ("binaries.x.so", "2", "2, 3")),
        (replace(NO_REQUIREMENT, binaries=(("y.so", "1" * 64),)), ("binaries.y.so", "1" * 64, "nothing recorded")),
    ],
)
def test_each_requirement(require: Require, found: tuple[str, str, str]) -> None:
    def change(records: list[ProcessRecord]) -> None:
        records[0] = surroundings(records[0], text="{}")  # it could say nothing
        records[1:] = [replace(r, binaries=(("b/x.so", "3"), ("a/x.so", "2"), ("x.so.1", "4"))) for r in records[1:]]

    not_applicable: list[NotApplicable] = []
    bundle = with_records(with_protocol(cuda(), require=require), change)
    said = memory.said(check_provenance(bundle, None, not_applicable).findings)
    what, *rest = found
    assert said == [(R.BUILD_MISMATCH, f"process={process}:{what}", *rest) for process in range(1, 5)]
    assert not_applicable == []
    scripted = with_records(
        bundle, lambda records: records.__setitem__(slice(None), [surroundings(r, device="fake") for r in records])
    )
    assert len(provenance(scripted)) == (0 if rest[1] == "nothing recorded" else 4)


def test_nothing_required() -> None:
    not_applicable: list[NotApplicable] = []
    assert check_provenance(with_protocol(host(), require=NO_REQUIREMENT), None, not_applicable).findings == ()
    assert [item.check for item in not_applicable] == ["build requirements"]


# schema


@pytest.mark.parametrize(
    ("table", "column", "least"),
    [
        ("telemetry", "sm_clock_mhz", 1),
        ("telemetry", "memory_clock_mhz", 1),
        ("telemetry", "temperature_c", -50),
        ("telemetry", "power_w", 0),
        ("telemetry", "throttle_reasons", 0),
        ("kernels", "registers", 0),
        ("kernels", "shared_bytes", 0),
        ("kernels", "scratch_bytes", 0),
        ("repeats", "repeat", 0),
        ("routing", "token", 0),
    ],
)
def test_least_values(table: str, column: str, least: int) -> None:
    assert schema(with_rows(cuda(), table, lambda rows: rows[3].update({column: least}))) == []
    (found,) = schema(with_rows(cuda(), table, lambda rows: rows[3].update({column: least - 1})))
    got = f"{least - 1}.0" if column == "power_w" else str(least - 1)
    assert found == (R.SCHEMA_VALUE, f"{table}.parquet:{column}[3]", f"{least} or more", got)

    def two(rows: Rows) -> None:
        rows[5][column], rows[6][column] = least - 2, least - 1

    (found,) = schema(with_rows(cuda(), table, two))
    got = f"{least - 2}.0" if column == "power_w" else str(least - 2)
    assert found == (R.SCHEMA_VALUE, f"{table}.parquet:{column}[5]", f"{least} or more", f"{got} (2 rows)")


@pytest.mark.parametrize(
    ("block", "warmup", "bad"),
    [(-2, False, True), (-2, True, True), (-1, False, True), (0, True, True), (1, False, False)],
)
def test_blocks_of_warmups(block: int, warmup: bool, bad: bool) -> None:
    at = next(i for i, row in enumerate(memory.rows_of(host().tables["samples"].frame)) if not row["warmup"])  # type: ignore[arg-type]
    found = schema(with_rows(host(), "samples", lambda rows: rows[at].update(block=block, warmup=warmup)))
    got = f"block {block} with warmup {warmup}"
    wanted = (R.SCHEMA_VALUE, f"samples.parquet:warmup[{at}]", "block -1 in warm-up rows alone", got)
    assert found == ([wanted] if bad else [])


@pytest.mark.parametrize(
    ("keys", "row", "before", "after"),
    [
        ([(0, 0), (2, 0), (1, 0)], 2, "process 2, attempt 0", "process 1, attempt 0"),
        ([(0, 0), (1, 1), (1, 0), (2, 0)], 2, "process 1, attempt 1", "process 1, attempt 0"),
        ([(0, 0), (1, 1), (2, 0)], None, "", ""),
        ([(0, 0), (0, 1), (1, 0)], None, "", ""),
        ([(1, 3), (2, 2), (3, 1)], None, "", ""),
    ],
)
def test_rows_ascend(keys: list[tuple[int, int]], row: int | None, before: str, after: str) -> None:
    def change(rows: Rows) -> None:
        rows[:] = [rows[0] | {"process": process, "attempt": attempt} for process, attempt in keys]

    found = schema(with_rows(cuda(), "kernels", change))
    wanted = (
        R.SCHEMA_VALUE,
        f"kernels.parquet:process[{row}]",
        "rows ascending by process and attempt",
        f"{after} after {before}",
    )
    assert found == ([] if row is None else [wanted])


@pytest.mark.parametrize(
    ("moded", "said"),
    [
        (lambda row: True, None),
        (lambda row: row["arm"] == "base", None),
        (lambda row: (row["arm"], row["point"]) == ("base", "batch=4"), None),
        (lambda row: row["arm"] != "cand" or row["process"] != 4, "null (4 rows)"),
        (
            lambda row: (row["arm"], row["process"], row["repeat"]) != ("cand", 2, 1) or row["point"] == "batch=1",
            "null",
        ),
    ],
)
def test_an_arm_at_a_point_has_modes_or_has_none(moded: Callable[[builder.Row], bool], said: str | None) -> None:
    first: list[tuple[int, str]] = []

    def change(rows: Rows) -> None:
        for number, row in enumerate(rows):
            row["mode_sha256"] = builder.sha("mode") if moded(row) else None
            if row["arm"] == "cand" and not moded(row):
                first.append((number, row["point"]))

    found = schema(with_rows(cuda(), "repeats", change))
    if said is None:
        assert found == []
        return
    at, point = first[0]
    wanted = f"a digest, as in other repeats of cand at {point}"
    assert found == [(R.SCHEMA_VALUE, f"repeats.parquet:mode_sha256[{at}]", wanted, said)]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((1 + 1e-9, 0.0, 0.0), None),
        ((-1 - 1e-9, 1.0, 0.5), None),
        ((0.5, 0.5, 1.0), None),
        ((0.5, math.nan, math.inf), None),
        ((1 + 1.1e-9, 0.0, 0.0), ("min_cosine", "a cosine between -1 and 1", repr(1 + 1.1e-9))),
        ((-1 - 1.1e-9, 0.0, 0.0), ("min_cosine", "a cosine between -1 and 1", repr(-1 - 1.1e-9))),
        ((1.0, -1e-9, 0.5), ("max_abs_error", "0 or more", "-1e-09")),
        ((1.0, 0.5, -1e-9), ("rel_error", "0 or more", "-1e-09")),
        ((1.0, 0.0, 1e-9), ("rel_error", "0 where max_abs_error is 0, and nowhere else", "1e-09")),
        ((1.0, 1e-9, 0.0), ("rel_error", "0 where max_abs_error is 0, and nowhere else", "0.0")),
    ],
)
def test_errors_that_an_error_can_be(values: tuple[float, float, float], said: tuple[str, str, str] | None) -> None:
    change = dict(zip(("min_cosine", "max_abs_error", "rel_error"), values, strict=True))
    found = schema(with_rows(cuda(), "correctness", lambda rows: rows[2].update(change)))
    assert found == ([] if said is None else [(R.SCHEMA_VALUE, f"correctness.parquet:{said[0]}[2]", *said[1:])])


def test_the_column_of_flushes() -> None:
    column = "samples.parquet", "{} column flush_ns with cache {}", "{} column flush_ns"
    assert schema(with_protocol(host(), cache="cold-flush")) == [
        (R.SCHEMA_COLUMN, column[0], column[1].format("a", "cold-flush"), column[2].format("no"))
    ]
    frame = host().tables["samples"].frame
    assert frame is not None
    more = replace(frame, numbers={**frame.numbers, "flush_ns": np.ones(frame.rows, dtype=np.int64)})
    bundle = replace(host(), tables={**host().tables, "samples": replace(host().tables["samples"], frame=more)})
    assert schema(bundle) == [
        (R.SCHEMA_COLUMN, column[0], column[1].format("no", "cold-rotate"), column[2].format("a"))
    ]
    assert schema(with_protocol(bundle, cache="cold-flush")) == []


# schedule


def test_attempts_before_the_last() -> None:
    def change(records: list[ProcessRecord]) -> None:
        records.insert(3, replace(records[3], attempt=0))
        records[4] = replace(records[4], attempt=1)

    found = schedule(with_records(host(), change))
    assert found[0] == (
        R.PROCESS_MISSING,
        "process=3",
        "only interrupted attempts before the last",
        "[(0, 'ok'), (1, 'ok')]",
    )


@pytest.mark.parametrize(
    ("last", "said"), [(2, []), (3, [(R.PROCESS_MISSING, "process=3", "at most 3 attempts", "4")])]
)
def test_three_attempts_and_no_more(last: int, said: memory.Said) -> None:
    def change(records: list[ProcessRecord]) -> None:
        own = records[3]
        records[3:4] = [replace(own, attempt=at, status="interrupted" if at < last else "ok") for at in range(last + 1)]

    bundle = with_records(host(), change)
    for table in ("samples", "correctness"):
        bundle = with_rows(bundle, table, lambda rows: [r.update(attempt=last) for r in rows if r["process"] == 3])
    start, *others = host().ledger or ()
    assert schedule(replace(bundle, ledger=(start, *[replace(start, event="resume")] * last, *others))) == said
    found = schedule(replace(bundle, ledger=(start, *[replace(start, event="resume")] * (last - 1), *others)))
    expected = f"a resumption in the ledger for each of {last} interrupted attempts"
    assert (R.PROCESS_MISSING, "processes.parquet:status", expected, f"{last - 1} resumptions") in found


def test_a_process_that_was_not_planned() -> None:
    found = schedule(with_records(host(), lambda records: records.append(replace(records[-1], process=7))))
    assert found[0] == (R.PROCESS_MISSING, "process=7", "no such process", "a row")


def test_rows_of_attempts_that_nobody_lists() -> None:
    bundle = with_rows(cuda(), "repeats", lambda rows: rows.insert(90, rows[90] | {"attempt": 3}))
    wanted = (R.PROCESS_MISSING, "repeats.parquet process=4,attempt=3", "a row in processes.parquet", "none")
    assert wanted in schedule(bundle)
    assert wanted in schedule(without(bundle, "telemetry"))


def test_processes_that_are_missing() -> None:
    bundle = with_records(host(), lambda records: [records.pop(at) for at in (3, 1)])
    found = schedule(bundle)
    assert found[:2] == [
        (R.PROCESS_MISSING, f"process={process}", "a row in processes.parquet", "none") for process in (1, 3)
    ]


def test_an_arm_that_was_not_compared_with_its_truth() -> None:
    gone = {"process": 2, "point": "batch=4", "arm": "cand", "stage": "replay"}
    bundle = with_rows(
        cuda(), "correctness", lambda rows: [rows.remove(r) for r in list(rows) if gone.items() <= r.items()]
    )
    expected = "a row of stage eager and replay under truth stored"
    where = "process=2 point=batch=4 arm=cand"
    assert schedule(bundle) == [(R.CORRECTNESS_MISSING, where, expected, "none of stage replay")]


def test_points_after_one_whose_routing_is_not_known() -> None:
    view = seen(with_rows(cuda(), "routing", lambda rows: [row.update(expert=7) for row in rows[-1:]]))
    known = {name: routes for name, routes in view.routes.items() if name != "batch=1"}
    found = memory.said(check_schedule(replace(view, routes=known), []).findings)
    assert places(found) == [(R.ROUTING_MISMATCH, "routing.parquet[9] point=batch=4")]


def test_what_a_failed_process_need_not_have() -> None:
    failed = with_records(host(), edited(3, status="failed", fixture_sha256="", binaries=(), l2_bytes=0))
    assert schedule(failed) == []
    for values in ({"fixture_sha256": "1" * 64}, {"l2_bytes": 1}, {"binaries": (("a", "b"),)}):
        (what,) = values
        found = schedule(with_records(host(), edited(3, status="failed", **values)))
        assert places(found) == [(R.ENVIRONMENT_DRIFT, f"process=3:{what}")]


def test_a_process_that_said_nothing_has_no_boundary() -> None:
    def change(records: list[ProcessRecord]) -> None:
        records[1] = replace(records[1], clock="", launch="", event_order="")
        records[2] = replace(records[2], launch="graph")

        records[3] = replace(records[3], clock="", event_order="")

    assert places(schedule(with_records(host(), change))) == [
        (R.BOUNDARY_MISMATCH, place) for place in ("process=2:launch", "process=3:clock", "process=3:event_order")
    ]


def test_bytes_of_a_point_that_is_not_locked() -> None:
    lock = host().lock
    assert lock is not None
    less = replace(host(), lock=replace(lock, bytes=lock.bytes[1:]))
    point = lock.bytes[0]
    assert schedule(less) == [
        (
            R.PLAN_CHANGED,
            f"protocol.lock:bytes.{point.point}",
            "None as locked",
            f"{(point.unique, point.issued)} derived",
        )
    ]
    more = replace(host(), lock=replace(lock, bytes=(*lock.bytes, replace(point, point="mib=9"))))
    assert schedule(more) == [
        (R.PLAN_CHANGED, "protocol.lock:bytes.mib=9", f"{(point.unique, point.issued)} as locked", "None derived")
    ]


def test_routes_that_are_too_few_at_two_points() -> None:
    def change(rows: Rows) -> None:
        del rows[-1], rows[0]

    assert schedule(with_rows(cuda(), "routing", change)) == [
        (R.ROUTING_MISMATCH, "routing.parquet point=batch=1", "2 routes", "1 routes"),
        (R.ROUTING_MISMATCH, "routing.parquet point=batch=4", "8 routes", "7 routes"),
    ]


def test_routes_on_a_host_are_none() -> None:
    def change(rows: Rows) -> None:
        rows.append({"point": "mib=1", "token": 0, "slot": 0, "expert": 0, "weight": 1.0})

    assert schedule(with_rows(host(), "routing", change)) == [
        (R.ROUTING_MISMATCH, "routing.parquet point=mib=1", "0 routes", "1 routes")
    ]


def recorded(
    tmp_path: Path, change: Callable[[Rows], object] = lambda rows: None, *, there: bool = True
) -> tuple[memory.Said, list[str]]:
    """What is said of a routing that the protocol takes from an asset."""
    frame = cuda().tables["routing"].frame
    assert frame is not None
    rows = memory.rows_of(frame)
    change(rows)
    types = {
        "point": pa.string(),
        "token": pa.int32(),
        "slot": pa.int32(),
        "expert": pa.int32(),
        "weight": pa.float32(),
    }
    fields = [pa.field(name, kind, nullable=False) for name, kind in types.items()]
    (tmp_path / "assets").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), tmp_path / "assets" / "recorded")
    protocol = cuda().protocol
    assert protocol is not None
    bundle = with_protocol(cuda(), fixture=replace(protocol.fixture, routing="recorded", routing_asset="recorded"))
    files = {**bundle.files, "assets/recorded": FileFact(bytes=1, sha256=None)} if there else bundle.files
    not_applicable: list[NotApplicable] = []
    outcome = check_schedule(seen(replace(bundle, root=tmp_path, files=files)), not_applicable)
    return memory.said(outcome.findings), [item.check for item in not_applicable]


def test_a_recorded_routing(tmp_path: Path) -> None:
    assert recorded(tmp_path) == ([], [])


def test_a_recorded_routing_that_is_not_in_the_bundle(tmp_path: Path) -> None:
    def change(rows: Rows) -> None:
        rows[0]["expert"] = (rows[0]["expert"] + 1) % 8

    assert recorded(tmp_path, change, there=False) == ([], ["recorded routing"])


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [(0, "expert", 7), (4, "expert", 7), (4, "token", 3), (4, "slot", 1), (4, "weight", 0.125)],
)
def test_another_routing_than_the_recorded_one(tmp_path: Path, row: int, column: str, value: float) -> None:
    def change(rows: Rows) -> None:
        before.update(rows[row])
        assert rows[row][column] != value
        rows[row][column] = value

    before: builder.Row = {}
    found, _ = recorded(tmp_path, change)
    text = "token {token} slot {slot} expert {expert} weight {weight!r}"
    wanted = text.format(**(before | {column: value}))
    assert found == [
        (
            R.ROUTING_MISMATCH,
            f"routing.parquet[{row}] point={before['point']}",
            wanted,
            f"{text.format(**before)} (1 rows differ)",
        )
    ]


def test_points_after_one_whose_recorded_routing_is_shorter(tmp_path: Path) -> None:
    def change(rows: Rows) -> None:
        rows[-1]["expert"] = (rows[-1]["expert"] + 1) % 8
        del rows[0]

    found, _ = recorded(tmp_path, change)
    assert places(found) == [
        (R.ROUTING_MISMATCH, "routing.parquet point=batch=1"),
        (R.ROUTING_MISMATCH, "routing.parquet[9] point=batch=4"),
    ]


def test_kernels_of_a_process_after_one_that_failed() -> None:
    bundle = with_rows(cuda(), "kernels", lambda rows: [rows.remove(r) for r in list(rows) if r["process"] in (1, 3)])
    found = schedule(with_records(bundle, edited(1, status="failed")))
    assert {item[1] for item in found if item[0] is R.KERNEL_IDENTITY} == {
        f"process=3 point={point} arm={arm}"
        for point in ("batch=1", "batch=4")
        for arm in ("base", "cand", "same", "slow", "copy")
    }


def test_the_first_cell_and_the_first_key() -> None:
    frame = host().frame("samples")
    assert frame is not None
    rows = memory.rows_of(frame)
    first = {"process": 1, "point": "mib=1", "arm": "base", "block": -1}
    mine = [at for at, row in enumerate(rows) if first.items() <= row.items()]
    assert [rows[at]["sample"] for at in mine] == [0, 1]
    bundle = with_rows(host(), "samples", lambda found: found.__delitem__(mine[1]))
    assert schedule(bundle) == [
        (R.WARMUP_COUNT, "process=1 point=mib=1 arm=base", "2 warm-up samples", "1"),
    ]

    at = mine[0]

    def later(found: Rows) -> None:
        found.insert(at - 2, found.pop(at))

    (found,) = schedule(with_rows(host(), "samples", later))
    expected, got = rows[at - 2], rows[at]
    text = "point={point} block={block} arm={arm} sample={sample}"
    assert found == (
        R.ORDER_NOT_AS_PLANNED,
        f"samples.parquet[{at - 2}] process=1",
        text.format(**expected),
        text.format(**got),
    )


def test_an_unplanned_warm_up_is_not_explained_by_one_that_is_missing() -> None:
    """Of the first cell, to which a row of no cell must not be counted."""
    frame = host().frame("samples")
    assert frame is not None
    rows = memory.rows_of(frame)
    at = next(i for i, row in enumerate(rows) if (row["process"], row["point"], row["arm"]) == (1, "mib=1", "base"))
    bundle = with_rows(host(), "samples", lambda found: found[at].update(arm="stranger"))
    warmup, order = schedule(bundle)
    assert warmup == (R.WARMUP_COUNT, "process=1 point=mib=1 arm=base", "2 warm-up samples", "1")
    assert (order[0], order[1], order[3]) == (
        R.ORDER_NOT_AS_PLANNED,
        f"samples.parquet[{at}] process=1",
        "a row that was not planned",
    )


def test_a_row_that_was_not_planned_after_all_others() -> None:
    frame = host().frame("samples")
    assert frame is not None
    bundle = with_rows(host(), "samples", lambda rows: rows.append(rows[-1] | {"arm": "stranger", "seq": frame.rows}))
    where = f"samples.parquet[{frame.rows}] process=4"
    assert (R.ORDER_NOT_AS_PLANNED, where, "no further row", "a row that was not planned") in schedule(bundle)


@pytest.mark.parametrize("status", ["ok", "interrupted", "failed"])
def test_nothing_is_said_of_the_order_of_no_rows_before_the_last_attempt(status: str) -> None:
    def change(records: list[ProcessRecord]) -> None:
        records.insert(3, replace(records[3], attempt=0, analysed=False, status=status))
        records[4] = replace(records[4], attempt=1)

    bundle = with_rows(host(), "samples", lambda rows: [r.update(attempt=1) for r in rows if r["process"] == 3])
    assert list(check_order(seen(with_records(bundle, change)))) == []


def test_no_more_than_a_thousand_findings_are_looked_for() -> None:
    looked = iter([Finding(reason=R.UNSAFE_PATH, where=str(at), expected="", got="") for at in range(1001)])
    assert [item.where for item in first(looked)] == [str(at) for at in range(1000)]
    assert next(looked).where == "1000"
