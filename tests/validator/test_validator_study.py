"""The schedule of a study, check by check: the published CPU study in memory with one thing changed, and exactly what is said."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import memory
import numpy as np
import pytest
from memory import Rows, changed, edited, rows_of, surroundings

from validator.checks.study import StudyView, check_study, prescribed
from validator.findings import Finding
from validator.reading.bundle import open_bundle
from validator.reading.processes import ProcessRecord
from validator.reading.records import Entry, LockedBytes
from validator.reading.study import Swap
from validator.reading.study_assets import Captured, Plans, read_plans
from validator.reasons import Reason as R
from validator.recompute.layer import input_bytes
from validator.recompute.marlin import laid_out
from validator.recompute.surfaces import summed
from validator.recompute.trajectories import recompute_study, study_facts

(BUNDLE,) = (Path(__file__).parents[2] / "results" / "route-membership-cpu").glob("2*")
ASSET = BUNDLE / "assets" / "plans"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def published() -> StudyView:
    bundle = open_bundle(BUNDLE)
    assert bundle.study is not None
    assert bundle.study_plan is not None
    plans = read_plans(ASSET.read_bytes(), bundle.study)
    assert isinstance(plans, Plans)
    trajectories, stored, surfaces = (bundle.frame(name) for name in ("trajectories", "plans", "surfaces"))
    assert trajectories is not None
    assert stored is not None
    assert surfaces is not None
    return StudyView(
        bundle=bundle,
        study=bundle.study,
        plan=bundle.study_plan,
        plans=plans,
        captured=None,
        trajectories=trajectories,
        stored=stored,
        surfaces=surfaces,
    )


def with_rows(view: StudyView, table: str, change: Callable[[Rows], object]) -> StudyView:
    """The view with changed rows of ``trajectories``, ``stored`` or ``surfaces``."""
    return replace(view, **{table: changed(getattr(view, table), change)})


def with_records(view: StudyView, change: Callable[[list[ProcessRecord]], object]) -> StudyView:
    return replace(view, bundle=memory.with_records(view.bundle, change))


def with_ledger(view: StudyView, *entries: tuple[int, str, str]) -> StudyView:
    """The view with more lines in the ledger: seconds after this run's end, event, run."""
    ledger = view.bundle.ledger or ()
    last = ledger[-1]
    more = (replace(last, utc=last.utc + timedelta(seconds=s), event=event, run_id=run) for s, event, run in entries)
    return replace(view, bundle=replace(view.bundle, ledger=(*ledger, *more)))


def said(view: StudyView) -> memory.Said:
    return memory.said(check_study(view).findings)


def places(view: StudyView) -> list[str]:
    return [f"{item.reason} {item.where}" for item in check_study(view).findings]


def run_id() -> str:
    manifest = published().bundle.manifest
    assert manifest is not None
    return manifest.run_id


def test_the_published_study_has_no_finding() -> None:
    assert said(published()) == []
    assert said(replace(published(), bundle=replace(published().bundle, lock=None, manifest=None, ledger=None))) == []


def test_a_lock_counts_no_bytes() -> None:
    bundle = published().bundle
    assert bundle.lock is not None
    lock = replace(bundle.lock, bytes=(LockedBytes(point="p", unique=1, issued=1),) * 2)
    assert said(replace(published(), bundle=replace(bundle, lock=lock))) == [
        (R.PLAN_CHANGED, "protocol.lock:bytes", "no points in a study", "2")
    ]


def attempts(*states: str, process: int = 3, resumed: int = 0) -> StudyView:
    """A process with these attempts; its trajectory is of the last one."""

    def change(records: list[ProcessRecord]) -> None:
        own = [replace(records[process], attempt=i, status=state) for i, state in enumerate(states)]
        records[process : process + 1] = own

    view = with_records(published(), change)
    view = with_rows(view, "trajectories", lambda rows: rows[process].update(attempt=len(states) - 1))
    return with_ledger(view, *[(0, "resume", run_id())] * resumed)


ORDER = "interrupted attempts, then one that is ok or failed"


@pytest.mark.parametrize(
    ("states", "resumed", "expected"),
    [
        (("ok",), 0, []),
        (("interrupted", "ok"), 1, []),
        (("interrupted", "interrupted", "ok"), 2, []),
        (("interrupted", "ok"), 0, [("attempts.jsonl", "1 resumptions", "0")]),
        (("interrupted", "interrupted", "ok"), 1, [("attempts.jsonl", "2 resumptions", "1")]),
        (("ok", "ok"), 1, [("process=3", ORDER, "['ok', 'ok']")]),
        (("failed", "interrupted", "ok"), 2, [("process=3", ORDER, "['failed', 'interrupted', 'ok']")]),
        (("interrupted",), 0, [("process=3", ORDER, "['interrupted']")]),
        (("interrupted", "interrupted"), 1, [("process=3", ORDER, "['interrupted', 'interrupted']")]),
        (
            ("interrupted", "interrupted", "interrupted", "ok"),
            3,
            [("process=3", "attempts from 0 on, at most 3", "[0, 1, 2, 3]")],
        ),
    ],
)
def test_attempts(states: tuple[str, ...], resumed: int, expected: list[tuple[str, str, str]]) -> None:
    found = said(attempts(*states, resumed=resumed))
    # an attempt that was ok has a trajectory of its own; all of them were made at one time
    assert [item[1:] for item in found if item[0] is R.PROCESS_MISSING] == expected
    others = [item for item in found if item[0] not in (R.PROCESS_MISSING, R.TIME_DISORDER)]
    assert others == (
        [(R.ROWS_MISSING, "trajectories.parquet process=3", "a row", "none")] if states == ("ok", "ok") else []
    )


def test_resumptions_of_another_run_make_no_attempt() -> None:
    view = attempts("interrupted", "ok")
    assert places(with_ledger(view, (0, "resume", "20200101T000000Z-00000000"))) == ["PROCESS_MISSING attempts.jsonl"]
    assert places(replace(view, bundle=replace(view.bundle, ledger=None))) == []
    assert places(replace(view, bundle=replace(view.bundle, manifest=None))) == []


def test_attempts_that_do_not_begin_at_0() -> None:
    view = with_records(published(), edited(3, attempt=1))
    view = with_rows(view, "trajectories", lambda rows: rows[3].update(attempt=1))
    assert said(view) == [(R.PROCESS_MISSING, "process=3", "attempts from 0 on, at most 3", "[1]")]


def test_processes_that_are_missing_and_one_that_was_not_planned() -> None:
    def change(records: list[ProcessRecord]) -> None:
        records.append(replace(records[-1], process=70))
        del records[5], records[0]

    def follow(rows: Rows) -> None:
        rows.append(rows[-1] | {"process": 70})
        rows[5]["treatment"] = "nothing is said of what a stranger consumed"
        rows[7]["injected"] = not rows[7]["injected"]

    view = with_rows(with_records(published(), change), "trajectories", follow)
    stranger = (R.PROCESS_MISSING, "a process of processes.parquet")
    assert said(view) == [
        (R.PROCESS_MISSING, "process=0", "a row in processes.parquet", "none"),
        (R.PROCESS_MISSING, "process=5", "a row in processes.parquet", "none"),
        (R.PROCESS_MISSING, "process=70", "no such process", "a row"),
        *((stranger[0], f"trajectories.parquet[{row}]", stranger[1], f"process={row},attempt=0") for row in (0, 5, 70)),
        (R.ORDER_NOT_CONSUMED, "trajectories.parquet[7] swap_within/H1:injected", "True", "False"),
    ]


def test_no_process_at_all() -> None:
    bundle = replace(published().bundle, processes=())
    found = places(replace(published(), bundle=bundle))
    assert found == [f"PROCESS_MISSING process={i}" for i in range(70)] + [
        f"PROCESS_MISSING trajectories.parquet[{i}]" for i in range(70)
    ]


def failed(record: ProcessRecord, **values: Any) -> ProcessRecord:
    return replace(record, status="failed", **values)


def test_what_a_failed_process_need_not_say() -> None:
    def change(records: list[ProcessRecord]) -> None:
        silent = replace(records[3].environment, text="{}", device=None, sources=())
        records[3] = failed(
            records[3], environment=silent, fixture_sha256="", clock="", launch="", event_order="", binaries=()
        )
        records[4] = failed(records[4], clock="", launch="", event_order="")
        records[5] = failed(surroundings(records[5], device="cuda"))
        records[6] = failed(surroundings(records[6], sources=()))

    def follow(rows: Rows) -> None:
        del rows[3:7]

    assert said(with_rows(with_records(published(), change), "trajectories", follow)) == []


def test_the_first_process_that_says_anything_has_the_layer_of_the_seeds() -> None:
    def change(records: list[ProcessRecord]) -> None:
        wanted.append(records[1].fixture_sha256)
        silent = replace(records[0].environment, text="{}", device=None, sources=())
        records[0] = failed(records[0], environment=silent, fixture_sha256="")
        records[1:] = [replace(record, fixture_sha256="f" * 64) for record in records[1:]]

    wanted: list[str] = []
    view = with_rows(with_records(published(), change), "trajectories", lambda rows: rows.pop(0))
    assert said(view) == [(R.FIXTURE_MISMATCH, "process=1:fixture_sha256", wanted[0], "f" * 64)]


UNTIMED = "clock_tick_ns, copies, unsupported, repacking"


@pytest.mark.parametrize(
    ("change", "reason", "what", "expected", "got"),
    [
        (lambda r: replace(r, clock="host"), R.BOUNDARY_MISMATCH, "clock, launch, event_order", None, None),
        (lambda r: replace(r, launch="marlin-op"), R.BOUNDARY_MISMATCH, "clock, launch, event_order", None, None),
        (lambda r: replace(r, event_order="sum"), R.BOUNDARY_MISMATCH, "clock, launch, event_order", None, None),
        *(
            (lambda r, change=change: replace(r, **change), R.BOUNDARY_MISMATCH, UNTIMED, None, None)
            for change in (
                {"clock_tick_ns": 1000},
                {"copies": (("batch=1", 2),)},
                {"unsupported": (("batch=1", "arm"),)},
                {"repacking": (("arm", 1, 1),)},
            )
        ),
        (lambda r: surroundings(r, device="cuda"), R.BOUNDARY_MISMATCH, "device", "host", "cuda"),
        (
            lambda r: surroundings(r, sources=()),
            R.BUILD_MISMATCH,
            "sources.cpu-emulation",
            "the source digest of the engine",
            "nothing recorded",
        ),
        (
            lambda r: surroundings(r, sources=(("cpu-emulation", "abc"),)),
            R.BUILD_MISMATCH,
            "sources.cpu-emulation",
            "the source digest of the engine",
            "abc",
        ),
        (lambda r: replace(r, fixture_sha256="f" * 64), R.ENVIRONMENT_DRIFT, "fixture_sha256", None, "f" * 64),
        (lambda r: replace(r, binaries=(("a", "b"),)), R.ENVIRONMENT_DRIFT, "binaries", "()", "(('a', 'b'),)"),
    ],
)
def test_one_process_that_differs(
    change: Callable[[ProcessRecord], ProcessRecord], reason: R, what: str, expected: str | None, got: str | None
) -> None:
    (found,) = said(with_records(published(), lambda records: records.__setitem__(8, change(records[8]))))
    assert found[:2] == (reason, f"process=8:{what}")
    if got is not None:
        assert found[3] == got
    if expected is not None:
        assert found[2] == expected
    if what == UNTIMED:
        assert found[2] == "(1, (), (), ())"
    if what.startswith("clock,"):
        assert found[2] == "('none', 'cpu-emulation', 'treatment,fixture,alignment,w13,activation,w2,sum')"


def test_caches() -> None:
    def of(*sizes: int) -> memory.Said:
        def change(records: list[ProcessRecord]) -> None:
            records[:] = [replace(r, l2_bytes=sizes[i % len(sizes)]) for i, r in enumerate(records)]

        return [item for item in said(with_records(published(), change)) if item[1].startswith("process=1:")]

    unequal = (R.ENVIRONMENT_DRIFT, "process=1:l2_bytes", "0", "1")
    on_a_host = (R.BOUNDARY_MISMATCH, "process=1:l2_bytes", "0 on a host", "1")
    assert (of(0), of(1), of(0, 1)) == ([], [on_a_host], [unequal, on_a_host])


@pytest.mark.parametrize(("at", "start"), [(0, 0), (40, 0), (41, 1), (300, 260)])
def test_texts_are_cut_to_where_they_part(at: int, start: int) -> None:
    first = "".join(chr(97 + i % 26) for i in range(400))
    own = first[:at] + "#" + first[at + 1 :]

    def change(records: list[ProcessRecord]) -> None:
        records[:] = [surroundings(record, text=own if i == 2 else first) for i, record in enumerate(records)]

    (found,) = said(with_records(published(), change))
    assert found == (
        R.ENVIRONMENT_DRIFT,
        "process=2:environment",
        first[start : start + 160],
        own[start : start + 160],
    )


def test_a_text_that_is_longer() -> None:
    def change(records: list[ProcessRecord]) -> None:
        records[:] = [surroundings(r, text="a" * (100 + 7 * (i == 2))) for i, r in enumerate(records)]

    (found,) = said(with_records(published(), change))
    assert found[2:] == ("a" * 40, "a" * 47)


def captured_of(view: StudyView, **values: str) -> Captured:
    ids, weights = np.array(view.plans.ids, dtype="<i4"), np.array(view.plans.weights, dtype="<f4")
    stated = {
        "fixture_sha256": (view.bundle.processes or ())[0].fixture_sha256,
        "x_sha256": sha(input_bytes(view.study.sizes)),
        "topk_ids_sha256": sha(ids.tobytes()),
        "topk_weights_sha256": sha(weights.tobytes()),
    }
    return Captured(**(stated | values))


def test_a_captured_fixture() -> None:
    sizes = replace(published().study.sizes, captured="layer")
    view = replace(published(), study=replace(published().study, sizes=sizes))
    own = captured_of(view)
    assert said(replace(view, captured=own)) == []
    assert said(replace(view, captured=replace(own, fixture_sha256="f" * 64))) == [
        (R.FIXTURE_MISMATCH, "process=0:fixture_sha256", "f" * 64, own.fixture_sha256)
    ]
    for name in ("topk_ids_sha256", "topk_weights_sha256"):
        other = replace(own, **{name: "f" * 64})
        assert said(replace(view, captured=other)) == [
            (
                R.FIXTURE_MISMATCH,
                "assets/layer:topk_ids, topk_weights",
                str((own.topk_ids_sha256, own.topk_weights_sha256)),
                str((other.topk_ids_sha256, other.topk_weights_sha256)),
            )
        ]


def test_resident_tensors_of_a_captured_input() -> None:
    study = replace(published().study, treatment="resident-tensors")
    view = replace(published(), study=study)
    own = captured_of(view, x_sha256="e" * 64)
    resident = sha("\n".join(("e" * 64, own.topk_weights_sha256, own.topk_ids_sha256)).encode())
    marked = {"H0": ("none", sha(b"")), "H1": ("resident-tensors:3", resident)}

    def mark(rows: Rows) -> None:
        for row in rows:
            row["treatment"], row["treatment_sha256"] = marked[row["history"]]

    view = replace(with_rows(view, "trajectories", mark), captured=own)
    assert said(view) == []
    drawn = replace(view, captured=None)
    assert {item[0] for item in said(drawn)} == {R.TREATMENT_NOT_CONSUMED}
    assert len(said(drawn)) == 35


def start_of(view: StudyView) -> Entry:
    (start,) = (entry for entry in view.bundle.ledger or () if entry.event == "start")
    return start


@pytest.mark.parametrize(("seconds", "disorder"), [(60, False), (61, True)])
def test_a_minute_is_left_for_utc(seconds: int, disorder: bool) -> None:
    view, earlier = published(), timedelta(seconds=seconds)
    records = view.bundle.processes or ()
    start, end = start_of(view).utc, (view.bundle.ledger or ())[-1].utc
    first = start - earlier
    (found,) = said(with_records(view, edited(0, started=first))) or [None]
    before = (R.TIME_DISORDER, "process=0", f"no earlier than {start.isoformat()}", first.isoformat())
    assert found == (before if disorder else None)
    assert records[7].ended is not None
    back = records[7].ended - earlier
    (found,) = said(with_records(view, edited(8, started=back))) or [None]
    before = (R.TIME_DISORDER, "process=8", f"no earlier than {records[7].ended.isoformat()}", back.isoformat())
    assert found == (before if disorder else None)
    late = end + earlier
    (found,) = said(with_records(view, edited(69, ended=late))) or [None]
    after = (R.TIME_DISORDER, "processes.parquet", f"no later than {end.isoformat()}", late.isoformat())
    assert found == (after if disorder else None)


def test_times_of_other_runs_and_times_that_nobody_said() -> None:
    view = published()
    far = [(-(10**6), "end", "20200101T000000Z-00000000"), (10**6, "start", "20200101T000000Z-00000000")]
    assert said(with_ledger(view, *far)) == []
    assert said(with_records(view, lambda r: r.__setitem__(4, failed(r[4], ended=None)))) == []
    unstarted = replace(view, bundle=replace(view.bundle, ledger=(view.bundle.ledger or ())[1:]))
    long_ago = start_of(view).utc - timedelta(days=1)
    assert said(with_records(unstarted, edited(0, started=long_ago))) == []
    nothing = with_records(
        view, lambda r: r.__setitem__(slice(None), [replace(x, started=None, ended=None) for x in r])
    )
    assert said(replace(nothing, bundle=replace(nothing.bundle, ledger=nothing.bundle.ledger))) == []
    unstarted = replace(nothing, bundle=replace(nothing.bundle, ledger=(view.bundle.ledger or ())[1:]))
    assert said(unstarted) == []


def test_a_later_process_is_held_to_the_latest_time_before() -> None:
    view = published()
    records = view.bundle.processes or ()
    assert records[5].ended is not None
    ahead = records[5].ended + timedelta(seconds=50)
    late = records[6].started
    assert late is not None
    behind = ahead - timedelta(seconds=61)

    def change(found: list[ProcessRecord]) -> None:
        found[5] = replace(found[5], ended=ahead)
        found[6] = replace(found[6], started=late, ended=late)
        found[7] = replace(found[7], started=behind)

    (found,) = said(with_records(view, change))
    assert found == (R.TIME_DISORDER, "process=7", f"no earlier than {ahead.isoformat()}", behind.isoformat())


def test_a_clock_is_set_once_or_twice_and_not_with_every_process() -> None:
    """Within the minute that is left everywhere: processes in another order, or side by side."""
    times = [(record.started, record.ended) for record in published().bundle.processes or ()]

    def at(*places: int) -> Callable[[list[ProcessRecord]], None]:
        def change(records: list[ProcessRecord]) -> None:
            for process, place in enumerate(places):
                records[process] = replace(records[process], started=times[place][0], ended=times[place][1])

        return change

    assert said(with_records(published(), at(0, 2, 1, 4, 3))) == []
    wanted = (R.TIME_DISORDER, "processes.parquet", "times that go back at most 2 times", "4 times")
    assert said(with_records(published(), at(4, 3, 2, 1, 0))) == [wanted]
    assert said(with_records(published(), at(0, 0, 0, 0, 0))) == [wanted]


@pytest.mark.parametrize(("elapsed", "bad"), [(-1, True), (0, True), (1, False)])
def test_elapsed_times(elapsed: int, bad: bool) -> None:
    found = said(with_rows(published(), "trajectories", lambda rows: rows[9].update(elapsed_ns=elapsed)))
    wanted = (R.NON_POSITIVE_DURATION, "trajectories.parquet[9]:elapsed_ns", "above 0", str(elapsed))
    assert found == ([wanted] if bad else [])


@pytest.mark.parametrize(("over", "bad"), [(0, False), (1000, True)])
def test_a_trajectory_that_takes_longer_than_its_process(over: int, bad: bool) -> None:
    record = next(r for r in published().bundle.processes or () if r.process == 9)
    assert record.started is not None
    assert record.ended is not None
    most = record.ended - record.started + timedelta(minutes=1)
    elapsed = most // timedelta(microseconds=1) * 1000 + over
    found = said(with_rows(published(), "trajectories", lambda rows: rows[9].update(elapsed_ns=elapsed)))
    wanted = (R.TIME_DISORDER, "trajectories.parquet[9]:elapsed_ns", f"at most {most} (process=9)", str(elapsed))
    assert found == ([wanted] if bad else [])


def test_rows_out_of_order() -> None:
    def exchange(rows: Rows) -> None:
        rows[5], rows[6] = rows[6], rows[5]

    found = said(with_rows(published(), "trajectories", exchange))
    assert found == [(R.ORDER_NOT_AS_PLANNED, "trajectories.parquet[6]", "a process after 6", "process 5")]

    def twice(rows: Rows) -> None:
        rows.insert(5, dict(rows[4]))
        rows[9]["treatment"] = "unknown"

    found = said(with_rows(published(), "trajectories", twice))
    assert found[0] == (
        R.ROWS_DUPLICATED,
        "trajectories.parquet[5]",
        "one trajectory of a process and attempt",
        "process=4 again",
    )
    assert [item[:2] for item in found[1:]] == [
        (R.TREATMENT_NOT_CONSUMED, "trajectories.parquet[9] swap_across/H0:treatment")
    ]


def test_a_row_of_another_place_says_nothing_of_what_it_consumed() -> None:
    def change(rows: Rows) -> None:
        rows[5]["replicate"] = 1
        rows[5]["treatment"] = rows[8]["treatment"] = "unknown"

    found = said(with_rows(published(), "trajectories", change))
    assert found[0] == (
        R.ORDER_NOT_AS_PLANNED,
        "trajectories.parquet[5] process=5",
        "replicate 0, cell cross_order, history H1",
        "replicate 1, cell cross_order, history H1",
    )
    assert [item[:2] for item in found[1:]] == [
        (R.TREATMENT_NOT_CONSUMED, "trajectories.parquet[8] swap_across/H0:treatment")
    ]


def plan_rows(view: StudyView, name: str, routes: list[int], experts: list[int]) -> Rows:
    block = view.plans.block
    return [
        {"plan_sha256": name, "row": i, "block": i // block, "expert": experts[i // block], "route": route}
        for i, route in enumerate(routes)
    ]


def with_plan(rows: Rows) -> StudyView:
    """One more plan, the first of all, that no trajectory used."""
    return with_rows(published(), "stored", lambda stored: stored.__setitem__(slice(0, 0), rows))


def first_plan() -> Rows:
    stored = rows_of(published().stored)
    return [dict(row, plan_sha256="0" * 64) for row in stored if row["plan_sha256"] == stored[0]["plan_sha256"]]


WHERE = f"plans.parquet plan {'0' * 16}"
UNUSED = (R.MEMBERSHIP_MISMATCH, WHERE, "a trajectory that used it", "none")
BLOCKS = (R.MEMBERSHIP_MISMATCH, WHERE, "whole blocks of 8 rows from 0")


def test_a_plan_of_another_name_that_nobody_used() -> None:
    name = published().stored.text("plan_sha256", 0)
    assert said(with_plan(first_plan())) == [(R.MEMBERSHIP_MISMATCH, f"{WHERE}:plan_sha256", name, "0" * 64), UNUSED]


def test_more_rows_than_any_plan_has() -> None:
    view = published()
    most = len(view.plans.ids) + view.plans.experts * view.plans.block
    assert most == 192
    for rows, expected in ((200, "at most 192 rows"), (193, "at most 192 rows"), (191, BLOCKS[2])):
        plan = plan_rows(view, "0" * 64, [64] * rows, [0] * 25)
        assert said(with_plan(plan)) == [(R.MEMBERSHIP_MISMATCH, WHERE, expected, f"{rows} rows")]
    whole = said(with_plan(plan_rows(view, "0" * 64, [64] * 192, [0] * 24)))
    assert [item[2] for item in whole] == [
        "experts ascending, each padded to whole blocks",
        "64 routes",
        whole[2][2],
        "a trajectory that used it",
    ]


def test_a_plan_after_one_that_is_none() -> None:
    view = published()
    for rows in (200, 191):
        plan = plan_rows(view, "0" * 64, [64] * rows, [0] * 25)
        second = [dict(row, plan_sha256="1" * 64) for row in first_plan()]
        found = said(with_plan(plan + second))
        assert [item[1] for item in found] == [
            WHERE,
            f"plans.parquet plan {'1' * 16}:plan_sha256",
            f"plans.parquet plan {'1' * 16}",
        ]


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[3].update(row=4),
        lambda rows: rows[8].update(block=0),
        lambda rows: [row.update(row=row["row"] + 1) for row in rows],
        lambda rows: [row.update(block=row["block"] + 1) for row in rows],
        lambda rows: rows.pop(),
    ],
)
def test_rows_and_blocks_that_do_not_count_up(change: Callable[[Rows], object]) -> None:
    rows = first_plan()
    change(rows)
    assert said(with_plan(rows)) == [(*BLOCKS, f"{len(rows)} rows")]


def test_two_experts_in_a_block() -> None:
    rows = first_plan()
    rows[-1]["expert"] -= 1
    assert said(with_plan(rows)) == [(R.MEMBERSHIP_MISMATCH, WHERE, "one expert in a block", "several")]


def swapped(routes: tuple[int, int], blocks: str) -> StudyView:
    """The published study with another swap; what was consumed is another thing."""
    study = published().study
    cells = tuple(
        replace(cell, swap=Swap(routes=routes, blocks=blocks)) if cell.name == "swap_within" else cell
        for cell in study.cells
    )
    return replace(published(), study=replace(study, cells=cells))


def swaps(view: StudyView) -> list[tuple[str, str, str]]:
    cell = "protocol.toml:cell swap_within.swap under "
    return [(where.removeprefix(cell), *rest) for _, where, *rest in said(view) if where.startswith(cell)]


def blocks_of(*routes: int) -> list[tuple[int | None, ...]]:
    plans, study = published().plans, published().study
    orders = (plans.order(study.modes[history]) for history in (0, 1))
    return [tuple(laid_out(plans.ids, order, plans.block).block_of(route) for route in routes) for order in orders]


def test_swaps_of_one_expert() -> None:
    ids = published().plans.ids
    none = [route for route, expert in enumerate(ids) if expert == 0][:2]
    assert swaps(swapped((none[0], none[1]), "same")) == []
    under = [(history, f"blocks {blocks}") for history, blocks in zip(("H0", "H1"), blocks_of(*none), strict=True)]
    wanted = "routes of one expert, blocks {}"
    assert swaps(swapped((none[0], none[1]), "different")) == [(h, wanted.format("different"), got) for h, got in under]
    strangers = (none[0], ids.index(1))
    under = [(history, f"blocks {blocks}") for history, blocks in zip(("H0", "H1"), blocks_of(*strangers), strict=True)]
    assert swaps(swapped(strangers, "different")) == [(h, wanted.format("different"), got) for h, got in under]


def test_swaps_of_routes_that_go_nowhere() -> None:
    view = swapped((13, 16), "same")
    ids = list(view.plans.ids)
    ids[13] = ids[16] = -1
    orders = tuple((name, tuple(r for r in order if r not in (13, 16))) for name, order in view.plans.orders)
    view = replace(view, plans=replace(view.plans, ids=tuple(ids), orders=orders))
    got = "blocks (None, None)"
    assert swaps(view) == [(history, "routes of one expert, blocks same", got) for history in ("H0", "H1")]
    # the routes are in no order, so that there is nothing to exchange
    cell = view.study.cell("swap_within")
    found = prescribed(view, cell, "H0")
    assert found is not None
    assert found.rows == laid_out(ids, view.plans.order("P0"), 8).rows


def test_a_swap_of_the_only_two_routes() -> None:
    view = swapped((0, 1), "same")
    orders = tuple((name, (0, 1)) for name, _ in view.plans.orders)
    view = replace(view, plans=replace(view.plans, ids=(0, 0), orders=orders))
    found = prescribed(view, view.study.cell("swap_within"), "H0")
    assert found is not None
    assert found.rows == laid_out((0, 0), (1, 0), view.plans.block).rows
    assert found.rows[:2] == (1, 0)


def test_a_native_order_is_the_recorded_one_under_recorded_orders() -> None:
    def change(rows: Rows) -> None:
        stable = next(row for row in rows if row["cell"] == "stable")
        rows[0] |= {name: stable[name] for name in ("plan_sha256", "mode_sha256")}
        others.append(rows[1 - 1]["plan_sha256"])

    others: list[str] = []
    before = published().trajectories.text("plan_sha256", 0)
    found = said(with_rows(published(), "trajectories", change))
    assert found == [(R.ORDER_NOT_CONSUMED, "trajectories.parquet[0] native/H0:plan_sha256", before, others[0])]
    resident = replace(published(), study=replace(published().study, treatment="resident-tensors"))
    cells = published().study.cells
    assert [prescribed(resident, cell, "H0") is None for cell in cells] == [True] + [False] * 6
    assert [prescribed(published(), cell, "H0") is None for cell in cells] == [False] * 7


def test_markers_of_what_was_consumed() -> None:
    def change(rows: Rows) -> None:
        rows[0]["injected"] = True
        rows[2]["plan_sha256"] = "0" * 64
        rows[2]["w13_grid"] = 1  # nothing more is said of a plan that is not there
        rows[4]["mode_sha256"] = "1" * 64
        for number, (gemm, column) in enumerate((g, c) for g in ("w13", "w2") for c in LAUNCH):
            row = rows[14 + number]
            row[f"{gemm}_{column}"] = "other" if isinstance(row[f"{gemm}_{column}"], str) else 9

    view = with_rows(published(), "trajectories", change)
    rows = rows_of(view.trajectories)
    names = [f"trajectories.parquet[{i}] {row['cell']}/{row['history']}" for i, row in enumerate(rows)]
    original = rows_of(published().trajectories)
    found = said(view)
    assert found[:3] == [
        (R.ORDER_NOT_CONSUMED, f"{names[0]}:injected", "False", "True"),
        (R.MEMBERSHIP_MISMATCH, f"{names[2]}:plan_sha256", "a plan of plans.parquet", "0" * 64),
        (R.MEMBERSHIP_MISMATCH, f"{names[4]}:mode_sha256", original[4]["mode_sha256"], "1" * 64),
    ]
    assert found[3:] == [
        (R.GRID_NOT_CONSUMED, f"{names[14 + i]}:{gemm}", launch(original[14 + i], gemm), launch(rows[14 + i], gemm))
        for i, gemm in enumerate(["w13"] * 5 + ["w2"] * 5)
    ]


LAUNCH = ("thread_k", "thread_n", "grid", "classes", "cuts_sha256")


def launch(row: Mapping[str, Any], gemm: str) -> str:
    return str(tuple(row[f"{gemm}_{column}"] for column in LAUNCH))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"topk_weights": [[1e39] + [0.25] * 3] + [[0.25] * 4] * 15}, "topk_weights: expected float32 values of at least 0"),
        ({"topk_weights": [[-0.25] + [0.25] * 3] + [[0.25] * 4] * 15}, "topk_weights: expected float32 values of at least 0"),
        ({"topk_weights": [[0.1] + [0.25] * 3] + [[0.25] * 4] * 15}, "topk_weights: expected float32 values of at least 0"),
        ({"topk_weights": [[0.0] + [3.4028234663852886e38] * 3] + [[0.25] * 4] * 15}, None),
        ({"plans": ("P0", "P0")}, "plans: expected orders of as many modes"),
        ({"plans": ("P0", "P1")}, None),
    ],
)  # fmt: skip
def test_plans_of_a_study(change: dict[str, Any], problem: str | None) -> None:
    study = published().study
    document = json.loads(ASSET.read_bytes())
    if "plans" in change:
        change = {
            "plans": {name: document["plans"][like] for name, like in zip(("P0", "P1"), change["plans"], strict=True)}
        }
    found = read_plans(json.dumps({**document, **change}).encode(), study)
    assert found == (problem,) if problem else isinstance(found, Plans)


def test_orders_of_one_mode_are_one_plan() -> None:
    """An exchange within a block is no other mode, one across blocks of an expert is."""
    study = published().study
    document = json.loads(ASSET.read_bytes())
    ids, order = [e for row in document["topk_ids"] for e in row], document["plans"]["P0"]
    mine = [at for at, route in enumerate(order) if ids[route] == 6]
    assert len(mine) > study.sizes.block == 8
    for other, alike in ((mine[7], True), (mine[8], False)):
        exchanged = list(order)
        exchanged[mine[0]], exchanged[other] = order[other], order[mine[0]]
        text = json.dumps(document | {"plans": {"P0": order, "P1": exchanged}}).encode()
        assert (read_plans(text, study) == ("plans: expected orders of as many modes",)) is alike


def surface_rows(name: str) -> list[int]:
    """Rows of the stored tensors that trajectories name as this surface."""
    names = set(published().trajectories.texts[f"{name}_sha256"].values)
    shape = "{}x{}".format(*published().study.sizes.shape(name))
    stored = published().surfaces
    return [r for r in range(stored.rows) if stored.text("sha256", r) in names and stored.text("shape", r) == shape]


def named(surface: str, row: int) -> str:
    return published().trajectories.text(f"{surface}_sha256", row)


def renamed(data: bytes, like: str, surface: str) -> Callable[[StudyView], StudyView]:
    """Another tensor under its own digest in the place of one, in all trajectories that name that one."""

    def change(view: StudyView) -> StudyView:
        def store(rows: Rows) -> None:
            for row in rows:
                if row["sha256"] == like:
                    row.update(bytes=data, sha256=sha(data))

        def name(rows: Rows) -> None:
            for row in rows:
                if row[f"{surface}_sha256"] == like:
                    row[f"{surface}_sha256"] = sha(data)

        return with_rows(with_rows(view, "surfaces", store), "trajectories", name)

    return change


def test_a_final_surface_that_is_not_the_sum() -> None:
    view, final = published(), named("final", 0)
    first: dict[str, int] = {}  # two routed surfaces have this sum
    for at in range(70):
        if named("final", at) == final:
            first.setdefault(named("routed_w2", at), at)
    row = next(r for r in surface_rows("final") if view.surfaces.text("sha256", r) == final)
    data = view.surfaces.blobs["bytes"][row]
    other = bytes([data[0] ^ 1]) + data[1:]
    summed_otherwise = renamed(other, final, "final")(view)
    wanted = [
        (
            R.SURFACE_CONTRADICTION,
            f"trajectories.parquet[{at}]:final_sha256",
            f"{final}, the sum of {routed}",
            sha(other),
        )
        for routed, at in first.items()
    ]
    assert said(summed_otherwise) == wanted
    on_a_gpu = replace(view.study, engine="marlin-op")
    assert contradicted(replace(summed_otherwise, study=on_a_gpu), "final") == wanted


def tensor(surface: str, row: int) -> np.ndarray[Any, np.dtype[np.float16]]:
    """The tensor that a trajectory names, writable."""
    view, shape = published(), published().study.sizes.shape(surface)
    at = next(r for r in surface_rows(surface) if view.surfaces.text("sha256", r) == named(surface, row))
    return np.frombuffer(view.surfaces.blobs["bytes"][at], dtype="<f2").reshape(shape).copy()


def contradicted(view: StudyView, surface: str) -> list[memory.Said]:
    ending = f":{surface}_sha256"
    return [item for item in said(view) if item[0] is R.SURFACE_CONTRADICTION and item[1].endswith(ending)]


@pytest.mark.parametrize(
    ("engine", "steps", "wrong"),
    [("cpu-emulation", 1, True), ("marlin-op", 2, False), ("marlin-op", 3, True), ("marlin-raw", 2, False)],
)
def test_an_activation_that_is_not_of_its_w13(engine: str, steps: int, wrong: bool) -> None:
    other = tensor("activation", 0)
    own = other[3, 5]
    other.view("<u2")[3, 5] += steps
    view = renamed(other.tobytes(), named("activation", 0), "activation")(published())
    found = contradicted(replace(view, study=replace(view.study, engine=engine)), "activation")
    aside = 0 if engine == "cpu-emulation" else 2
    expected = f"silu(gate) * up of {named('w13', 0)}, {aside} steps aside: {float(own):.4g} at [3,5]"
    got = f"{other[3, 5]}, 1 such elements in {sha(other.tobytes())}"
    where = "trajectories.parquet[0]:activation_sha256"
    assert found == ([(R.SURFACE_CONTRADICTION, where, expected, got)] if wrong else [])


@pytest.mark.parametrize("engine", ["cpu-emulation", "marlin-op", "marlin-raw"])
@pytest.mark.parametrize("surface", ["w13", "routed_w2"])
@pytest.mark.parametrize(
    ("factor", "wrong"), [(1.0005, False), (1.01, True), (0, True), (np.nan, True), (np.inf, True)]
)
def test_a_product_that_no_layer_gives(engine: str, surface: str, factor: float, wrong: bool) -> None:
    other = tensor(surface, 0)
    at = np.unravel_index(np.abs(other).argmax(), other.shape)
    other[at] *= np.float16(1) if factor == 1.0005 else np.float16(factor)
    other.view("<u2")[at] ^= factor == 1.0005  # the last bit: what rounding can do
    view = renamed(other.tobytes(), named(surface, 0), surface)(published())
    view = replace(view, study=replace(view.study, engine=engine))
    found = contradicted(view, surface)
    assert len(found) >= wrong
    assert bool(found) is wrong
    for _, _, expected, got in found:
        assert f" at [{at[0]},{at[1]}]" in expected
        assert got == f"{other[at]}, 1 such elements in {sha(other.tobytes())}"
    assert contradicted(replace(view, captured=captured_of(view)), surface) == []


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("surface", ["w13", "routed_w2"])
@pytest.mark.parametrize(("value", "wrong"), [(1.0, True), (np.nan, True), (-0.0, False)])
def test_a_skipped_route_has_nothing(surface: str, value: float, wrong: bool, known: bool) -> None:
    """A route of another device is not computed, whatever is known of the layer: what stood there would enter the sum."""
    other, route = tensor(surface, 0), 5
    other[route] = 0
    other[route, 3] = value
    view = renamed(other.tobytes(), named(surface, 0), surface)(published())
    ids = tuple(-1 if at == route else expert for at, expert in enumerate(view.plans.ids))
    view = replace(view, plans=replace(view.plans, ids=ids), captured=None if known else captured_of(view))
    where = f"trajectories.parquet[0]:{surface}_sha256"
    assert [item for item in contradicted(view, surface) if item[1] == where] == [
        (
            R.SURFACE_CONTRADICTION,
            where,
            f"nothing of a skipped route: 0 at [{route},3]",
            f"{value}, 1 such elements in {sha(other.tobytes())}",
        )
    ] * wrong
    # what is said of a route that was computed is another thing
    assert not [item for item in contradicted(replace(view, plans=published().plans), surface) if "skipped" in item[2]]


def test_products_of_another_layer_are_held_to_none() -> None:
    view = with_records(
        published(),
        lambda records: records.__setitem__(slice(None), [replace(r, fixture_sha256="0" * 64) for r in records]),
    )
    assert {item[0] for item in said(view)} == {R.FIXTURE_MISMATCH}
    other = np.zeros_like(tensor("w13", 0))
    assert contradicted(renamed(other.tobytes(), named("w13", 0), "w13")(view), "w13") == []


@pytest.mark.parametrize("surface", ["final", "routed_w2"])
def test_a_tensor_that_is_not_there_is_no_contradiction(surface: str) -> None:
    view = published()
    gone, final = named(surface, 0), named("final", 1)
    assert gone != named(surface, 1)
    row = next(r for r in surface_rows("final") if view.surfaces.text("sha256", r) == final)
    data = view.surfaces.blobs["bytes"][row]
    other = bytes([data[0] ^ 1]) + data[1:]
    view = renamed(other, final, "final")(view)
    view = with_rows(
        view, "surfaces", lambda rows: rows.pop(next(i for i, r in enumerate(rows) if r["sha256"] == gone))
    )
    found = said(view)
    assert [item[:2] for item in found] == [
        (R.SURFACE_MISSING, f"trajectories.parquet:{surface}_sha256"),
        (R.SURFACE_CONTRADICTION, "trajectories.parquet[1]:final_sha256"),
    ]


@pytest.mark.parametrize("size", [-2, 2])
def test_a_routed_surface_of_another_length_is_no_contradiction(size: int) -> None:
    view, routed = published(), named("routed_w2", 0)
    row = next(r for r in surface_rows("routed_w2") if view.surfaces.text("sha256", r) == routed)
    data = view.surfaces.blobs["bytes"][row]
    other = data[:size] if size < 0 else data + bytes(size)
    assert said(renamed(other, routed, "routed_w2")(view)) == [
        (
            R.SURFACE_MISSING,
            f"surfaces.parquet[{row}]",
            "float16 values that fill the shape",
            f"float16 64x256 of {len(other)} bytes",
        )
    ]


@pytest.mark.parametrize(
    ("values", "got"),
    [
        ({"dtype": "float32"}, "float32 16x256 of 8192 bytes"),
        ({"shape": "16x256x1"}, "float16 16x256x1 of 8192 bytes"),
        ({"shape": "a16x256"}, "float16 a16x256 of 8192 bytes"),
        ({"shape": "16x255"}, "float16 16x255 of 8192 bytes"),
        ({"shape": "1234567890x1"}, "float16 1234567890x1 of 8192 bytes"),
    ],
)
def test_what_a_stored_tensor_may_be(values: dict[str, str], got: str) -> None:
    row = surface_rows("final")[0]
    name = published().surfaces.text("sha256", row)
    found = said(with_rows(published(), "surfaces", lambda rows: rows[row].update(values)))
    assert found[0] == (R.SURFACE_MISSING, f"surfaces.parquet[{row}]", "float16 values that fill the shape", got)
    named_elsewhere = [
        (R.SURFACE_MISSING, "trajectories.parquet:final_sha256", "a stored tensor of 16x256", name),
        (
            R.SURFACE_MISSING,
            "surfaces.parquet",
            "a trajectory that names the tensor",
            f"{name} {values.get('shape')}",
        ),
    ]
    assert found[1:] == (named_elsewhere if "shape" in values else [])


def test_a_stored_tensor_twice_and_one_that_nobody_names() -> None:
    def change(rows: Rows) -> None:
        rows.append(dict(rows[0]))
        rows.append(rows[0] | {"bytes": b"ab", "sha256": "1" * 64, "shape": "1x1"})

    found = said(with_rows(published(), "surfaces", change))
    stored = published().surfaces
    rows, name = stored.rows, stored.text("sha256", 0)
    assert found == [
        (R.ROWS_DUPLICATED, f"surfaces.parquet[{rows}]", "one row for a tensor", f"{name[:16]} again"),
        (R.SURFACE_CHANGED, f"surfaces.parquet[{rows + 1}]:bytes", f"SHA-256 {'1' * 64}", sha(b"ab")),
        (R.SURFACE_MISSING, "surfaces.parquet", "a trajectory that names the tensor", f"{'1' * 64} 1x1"),
    ]


def test_long_texts_are_cut() -> None:
    finding: Finding
    view = with_records(published(), edited(8, binaries=(("a" * 400, "b" * 400),)))
    (finding,) = check_study(view).findings
    assert (finding.expected, finding.got) == ("()", str((("a" * 400,),))[:160])
    treated = with_rows(published(), "trajectories", lambda rows: rows[0].update(treatment="t" * 400))
    (finding,) = check_study(treated).findings
    assert finding.got == ("('" + "t" * 400)[:300]
    assert json.loads(json.dumps(finding.expected)) == finding.expected


def test_sums_of_the_published_tensors() -> None:
    sizes = published().study.sizes
    for row in range(4):
        assert sha(summed(tensor("routed_w2", row), sizes).tobytes()) == named("final", row)


def test_what_counts_of_a_study() -> None:
    view = published()
    facts = study_facts(view.study, view.plans)
    assert [(item.cell, item.gemm) for item in facts.launches] == [
        (cell.name, gemm) for cell in view.study.cells for gemm in ("w13", "w2")
    ]
    gone = swapped((13, 16), "same")
    orders = tuple((name, tuple(r for r in order if r not in (13, 16))) for name, order in gone.plans.orders)
    found = study_facts(gone.study, replace(gone.plans, orders=orders)).swaps
    assert [item.blocks for item in found if item.cell == "swap_within"] == [(0, 0)] * 2
    view = with_records(view, lambda records: records.__setitem__(0, failed(records[0])))
    cells = recompute_study(view.bundle, view.study).cells
    assert [item.processes for item in cells] == [4] + [5] * 13
    strange = with_rows(view, "trajectories", lambda rows: rows[1].update(cell="nowhere"))
    tables = {
        **view.bundle.tables,
        "trajectories": replace(view.bundle.tables["trajectories"], frame=strange.trajectories),
    }
    cells = recompute_study(replace(view.bundle, tables=tables), view.study).cells
    assert [item.processes for item in cells] == [4, 4] + [5] * 12


def test_the_first_process_is_what_the_others_are_held_to() -> None:
    own = (published().bundle.processes or ())[0].fixture_sha256
    for values in ({"binaries": (("a", "b"),)}, {"fixture_sha256": "f" * 64}):
        (what,) = values
        found = places(with_records(published(), edited(0, **values)))
        drift = [f"ENVIRONMENT_DRIFT process={process}:{what}" for process in range(1, 70)]
        assert [place for place in found if place.startswith("ENV")] == drift
    (fixture,) = (
        item for item in said(with_records(published(), edited(0, **values))) if item[0] is R.FIXTURE_MISMATCH
    )
    assert fixture[1:] == ("process=0:fixture_sha256", own, "f" * 64)
    other = with_records(published(), lambda records: records.__setitem__(0, surroundings(records[0], text="{other}")))
    assert places(other) == [f"ENVIRONMENT_DRIFT process={process}:environment" for process in range(1, 70)]


def test_an_end_without_a_start_counts() -> None:
    records = published().bundle.processes or ()
    assert records[4].ended is not None
    late = records[4].ended + timedelta(days=1)
    found = said(with_records(published(), edited(4, started=None, ended=late)))
    assert found[0][:3] == (R.TIME_DISORDER, "process=5", f"no earlier than {late.isoformat()}")


def test_a_tensor_of_one_byte_and_no_shape() -> None:
    odd = {"sha256": sha(b"a"), "dtype": "float16", "shape": "odd", "bytes": b"a"}
    found = said(with_rows(published(), "surfaces", lambda rows: rows.append(odd)))
    assert found[0][2:] == ("float16 values that fill the shape", "float16 odd of 1 bytes")
