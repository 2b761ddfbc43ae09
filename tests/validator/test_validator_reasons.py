"""Bundles with one thing wrong, sealed as if nothing were: the exact reasons, in their order."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import builder
import numpy as np
import pinned
import pyarrow as pa
import pytest
from builder import Draft

from validator.checks import times
from validator.findings import Report, Validity, Verdict
from validator.reasons import Reason as R
from validator.validate import validate

HOST_NOT_APPLICABLE = [
    "kernel identity",
    "clocks",
    "stream blocked",
    "escaped work",
    "cold cache",
    "physical floor",
    "claims",
]


def test_clean_host_bundle(tmp_path: Path) -> None:
    report = validate(builder.draft().seal(tmp_path / "b"))
    assert (report.validity, report.reasons, report.not_checked) == (Validity.VALID, (), ())
    assert [item.check for item in report.not_applicable] == HOST_NOT_APPLICABLE
    assert report.numbers is not None
    assert [item.verdict for item in report.numbers.comparisons] == [Verdict.SUPERIOR] * 2
    assert [item.gates for item in report.numbers.comparisons] == [(), ()]


def test_clean_cuda_bundle(tmp_path: Path) -> None:
    report = validate(builder.draft(clock="cuda-event").seal(tmp_path / "b"))
    assert (report.validity, report.reasons, report.not_checked) == (Validity.VALID, (), ())
    assert [item.check for item in report.not_applicable] == ["claims"]
    assert report.bundle.gpu == "NVIDIA H200"


def test_synthetic_is_last_and_blocks_nothing(tmp_path: Path) -> None:
    draft = builder.draft()
    draft.synthetic = True
    report = validate(draft.seal(tmp_path / "b"))
    assert (report.validity, report.codes) == (Validity.INVALID, (R.SYNTHETIC,))
    assert report.numbers is not None
    draft.samples[0]["duration_ns"] = 0
    assert validate(draft.seal(tmp_path / "c")).codes == (R.NON_POSITIVE_DURATION, R.SYNTHETIC)


def test_clean_scripted_bundles(fake_bundle: Path, fake_cuda_bundle: Path) -> None:
    for bundle in (fake_bundle, fake_cuda_bundle):
        assert validate(bundle).codes == (R.SYNTHETIC,)


def resealed(tmp_path: Path, clock: str, change: Callable[[Draft], object]) -> Report:
    draft = builder.draft(clock=clock)
    change(draft)
    return validate(draft.seal(tmp_path / "b"))


def timed(draft: Draft, arm: str = "cand", process: int = 0) -> list[builder.Row]:
    return [row for row in draft.samples if row["arm"] == arm and row["block"] >= 0 and row["process"] == process]


def drop(draft: Draft, keep: Callable[[builder.Row], bool]) -> None:
    draft.samples[:] = [row for row in draft.samples if keep(row)]


def first(draft: Draft, point: str, arm: str) -> int:
    """The row of the first warm-up sample of an arm at a point."""
    places = [(r["process"], r["point"], r["arm"], r["block"], r["sample"]) for r in draft.samples]
    return places.index((0, point, arm, -1, 0))


def fail(draft: Draft, process: int = 4) -> None:
    """A process ends by the watchdog."""
    draft.tables["processes"][process].update(status="failed", reason="watchdog")
    draft.ledger[-1].update(status="failed_processes")


def set_all(rows: list[builder.Row], **values: object) -> None:
    for row in rows:
        row.update(values)


def environment(draft: Draft, process: int, **values: object) -> None:
    row = draft.tables["processes"][process]
    text = json.dumps(json.loads(row["environment"]) | values, sort_keys=True, separators=(",", ":"))
    row["environment"], row["environment_sha256"] = text, builder.sha(text)


def whole_gpu(draft: Draft, name: str) -> Draft:
    """Every process ran on a whole GPU, not on a part of one."""
    for process, row in enumerate(draft.tables["processes"]):
        gpu = json.loads(row["environment"])["gpu"] | {"name": name, "mig": False}
        environment(draft, process, gpu=gpu)
    return draft


def swap(rows: list[builder.Row], a: int, b: int) -> None:
    rows[a], rows[b] = rows[b], rows[a]


def reroute(draft: Draft) -> None:
    row = draft.tables["routing"][0]
    row["expert"] = (row["expert"] + 1) % 8


HOST: dict[str, tuple[Callable[[Draft], object], list[R]]] = {
    "a deleted row": (lambda d: d.samples.pop(55), [R.ROWS_MISSING]),
    "the last three rows (F04)": (lambda d: d.samples.__delitem__(slice(-3, None)), [R.ROWS_MISSING]),
    "a repeated row (F04)": (lambda d: d.samples.insert(56, dict(d.samples[55])), [R.ROWS_DUPLICATED, R.TIME_DISORDER]),
    "two rows swapped (F04)": (lambda d: swap(d.samples, 55, 56), [R.ORDER_NOT_AS_PLANNED, R.TIME_DISORDER]),
    "rows of two processes swapped": (
        lambda d: swap(d.samples, 55, 155),
        [R.ORDER_NOT_AS_PLANNED] * 3 + [R.TIME_DISORDER] * 2,
    ),
    "a gap in seq alone": (lambda d: d.samples[55].update(seq=999), [R.ORDER_NOT_AS_PLANNED]),
    "an arm missing at a point": (
        lambda d: drop(d, lambda r: (r["process"], r["point"], r["arm"]) != (1, "mib=2", "same")),
        [R.ARM_MISSING],
    ),
    "a point missing": (lambda d: drop(d, lambda r: (r["process"], r["point"]) != (1, "mib=2")), [R.POINT_MISSING]),
    "no rows at all (F04)": (lambda d: d.samples.clear(), [R.PROCESS_MISSING] * 5 + [R.POINT_MISSING] * 10),
    "a process missing": (
        lambda d: (drop(d, lambda r: r["process"] != 4), d.tables["processes"].pop()),
        [R.PROCESS_MISSING],
    ),
    "a process still interrupted": (
        lambda d: d.tables["processes"][4].update(status="interrupted"),
        [R.PROCESS_MISSING],
    ),
    "no warm-ups in one cell (A07)": (
        lambda d: drop(d, lambda r: not (r["warmup"] and (r["process"], r["point"], r["arm"]) == (0, "mib=1", "base"))),
        [R.WARMUP_COUNT],
    ),
    "another number of calls": (lambda d: set_all(d.samples, calls=5), [R.CALLS_MISMATCH] * 5),
    "another number of calls in one row": (lambda d: d.samples[257].update(calls=5), [R.CALLS_MISMATCH]),
    "the first sample of the layout twice": (
        lambda d: d.samples.insert(first(d, "mib=1", "base"), dict(d.samples[first(d, "mib=1", "base")])),
        [R.ROWS_DUPLICATED, R.TIME_DISORDER, R.INJECTION_MISMATCH],
    ),
    "a process without a row": (
        lambda d: drop(d, lambda r: r["process"] != 4),
        [R.PROCESS_MISSING] + [R.POINT_MISSING] * 2,
    ),
    "a row of an unknown arm alone in a failed process": (
        lambda d: (
            fail(d),
            drop(d, lambda r: r["process"] != 4),
            d.samples.append(d.samples[0] | {"process": 4, "arm": "x"}),
        ),
        [R.SCHEMA_VALUE, R.ORDER_NOT_AS_PLANNED, R.TIME_DISORDER],
    ),
    "a gap in a failed process": (
        lambda d: (fail(d), d.samples.__delitem__(slice(-50, None)), d.samples.__delitem__(slice(-20, -18))),
        [R.ROWS_MISSING],
    ),
    "an unknown arm": (
        lambda d: d.samples[55].update(arm="other"),
        [R.SCHEMA_VALUE, R.ROWS_MISSING, R.ORDER_NOT_AS_PLANNED],
    ),
    "a zero duration (D09)": (lambda d: timed(d)[0].update(duration_ns=0), [R.NON_POSITIVE_DURATION]),
    "a negative duration": (lambda d: timed(d)[0].update(duration_ns=-5), [R.NON_POSITIVE_DURATION]),
    "host times backwards": (lambda d: d.samples[55].update(host_start_ns=1), [R.TIME_DISORDER]),
    "a delay in the candidate": (lambda d: timed(d)[0].update(injected_ns=7), [R.INJECTION_MISMATCH]),
    "no delay in the control": (lambda d: set_all(timed(d, "slow"), injected_ns=0), [R.INJECTION_MISMATCH]),
    "an exploratory run": (lambda d: d.exploratory.append("torch 2.9"), [R.EXPLORATORY]),
    "locked after the start": (lambda d: d.lock.update(locked_utc="2026-01-01T13:00:01Z"), [R.LOCKED_AFTER_START]),
    "another plan": (lambda d: d.lock.update(plan_digest="0" * 64), [R.PLAN_CHANGED] * 2),
    "another protocol": (lambda d: d.lock.update(protocol_digest="0" * 64), [R.PROTOCOL_CHANGED]),
    "other bytes": (lambda d: d.lock["bytes"]["mib=1"].update(unique_bytes=1), [R.PLAN_CHANGED]),
    "no lock's key": (lambda d: d.lock.pop("tool_version"), [R.LOCK_INVALID]),
    "a python that is not required": (
        lambda d: [environment(d, p, python="3.10.1") for p in range(5)],
        [R.BUILD_MISMATCH] * 5,
    ),
    "another environment": (lambda d: environment(d, 2, cpu="other"), [R.ENVIRONMENT_DRIFT]),
    "environment text of another digest": (
        lambda d: set_all(d.tables["processes"], environment_sha256="0" * 64),
        [R.SCHEMA_VALUE] * 5,
    ),
    "other weights": (lambda d: d.tables["processes"][2].update(fixture_sha256="0" * 64), [R.ENVIRONMENT_DRIFT]),
    "the flush between the events (A01)": (
        lambda d: set_all(d.tables["processes"], event_order="start,flush,call*4,stop"),
        [R.BOUNDARY_MISMATCH] * 5,
    ),
    "no correctness row": (lambda d: d.tables["correctness"].pop(0), [R.CORRECTNESS_MISSING]),
    "no correctness row of a control": (
        lambda d: set_all([r for r in d.tables["correctness"] if r["arm"] == "slow"], truth="original"),
        [R.CORRECTNESS_MISSING] * 10,
    ),
    "a wrong result": (lambda d: d.tables["correctness"][0].update(rel_error=0.5), [R.CORRECTNESS_FAILED]),
    "a NaN error": (lambda d: d.tables["correctness"][0].update(rel_error=float("nan")), [R.CORRECTNESS_FAILED]),
    "a broken A/A control": (
        lambda d: [row.update(duration_ns=2 * row["duration_ns"]) for p in range(5) for row in timed(d, "same", p)],
        [R.TIME_DISORDER] * 5 + [R.CONTROL_FAILED] * 2,  # longer than the host times allow, too
    ),
    "durations shorter than their host times": (
        lambda d: [row.update(duration_ns=row["duration_ns"] - 1) for row in timed(d)],
        [R.TIME_DISORDER],
    ),
    "two processes at once": (
        lambda d: d.tables["processes"][3].update(started_utc="2026-01-01T12:01:00Z", ended_utc="2026-01-01T12:02:00Z"),
        [R.TIME_DISORDER],
    ),
    "a process before the run": (
        lambda d: d.tables["processes"][0].update(started_utc="2026-01-01T11:58:59Z"),
        [R.TIME_DISORDER],
    ),
    "a process after the run": (
        lambda d: d.tables["processes"][4].update(ended_utc="2026-01-01T12:11:01Z"),
        [R.TIME_DISORDER],
    ),
    "a process that ended before it started": (
        lambda d: d.tables["processes"][4].update(ended_utc="2026-01-01T12:02:59Z"),
        [R.TIME_DISORDER],
    ),
    "host times of an earlier process": (
        lambda d: [
            r.update(host_start_ns=r["host_start_ns"] - 10**13, host_end_ns=r["host_end_ns"] - 10**13)
            for r in d.samples
            if r["process"] == 3
        ],
        [R.TIME_DISORDER] * 2,  # earlier than the process before, and the next one much later
    ),
    "host times that jump by hours where UTC does not": (
        lambda d: [
            r.update(host_start_ns=r["host_start_ns"] + 10**13, host_end_ns=r["host_end_ns"] + 10**13)
            for r in d.samples
            if r["process"] >= 3
        ],
        [R.TIME_DISORDER],
    ),
    "host times that a process did not have": (
        lambda d: d.samples[99].update(
            duration_ns=d.samples[99]["duration_ns"] + 121 * 10**9,
            host_end_ns=d.samples[99]["host_end_ns"] + 121 * 10**9,
        ),
        [R.TIME_DISORDER],
    ),
    "another dose than the planned one": (
        lambda d: [row.update(injected_ns=row["injected_ns"] + 2) for row in timed(d, "slow")],
        [R.INJECTION_MISMATCH] * 2,
    ),
    "other copies than the locked ones": (
        lambda d: set_all(d.tables["processes"], copies='{"mib=1": 3, "mib=2": 3}'),
        [R.BOUNDARY_MISMATCH] * 5,
    ),
    "an attempt without a resumption": (
        lambda d: (builder.with_attempt(d, 2, 33), d.ledger.pop(1)),
        [R.PROCESS_MISSING, R.TIME_DISORDER],
    ),
    "four attempts": (
        lambda d: [builder.with_attempt(d, 2, 0) for _ in range(3)],
        [R.PROCESS_MISSING],
    ),
    "a check of a process that was not run": (
        lambda d: d.tables["correctness"].append(d.tables["correctness"][-1] | {"process": 9}),
        [R.PROCESS_MISSING],
    ),
    "a check that stands twice": (
        lambda d: d.tables["correctness"].append(dict(d.tables["correctness"][-1])),
        [R.ROWS_DUPLICATED],
    ),
    "a check of an arm that is called unsupported": (
        lambda d: set_all(d.tables["processes"], unsupported='[["mib=2","cand","x"]]'),
        [R.ORDER_NOT_AS_PLANNED] * 6,
    ),
    "an unsupported arm that nobody knows": (
        lambda d: d.tables["processes"][0].update(unsupported='[["nowhere","nobody","x"]]'),
        [R.SCHEMA_VALUE],
    ),
    "no time of a start": (lambda d: d.tables["processes"][1].update(started_utc=""), [R.SCHEMA_VALUE]),
    "a time without a zone": (
        lambda d: d.tables["processes"][1].update(started_utc="0001-01-01T00:00:00+23:59"),
        [R.SCHEMA_VALUE],
    ),
    "an ok process with a reason": (lambda d: d.tables["processes"][1].update(reason="tired"), [R.SCHEMA_VALUE]),
    "weights named by a word": (
        lambda d: set_all(d.tables["processes"], fixture_sha256="banana"),
        [R.SCHEMA_VALUE] * 5,
    ),
    "a binary named by a word": (
        lambda d: set_all(d.tables["processes"], binaries='{"libx.so":"banana"}'),
        [R.SCHEMA_VALUE] * 5,
    ),
    "an output named by a word": (
        lambda d: d.tables["correctness"][0].update(output_sha256="banana"),
        [R.SCHEMA_VALUE],
    ),
    "checks in another order": (lambda d: d.tables["correctness"].reverse(), [R.SCHEMA_VALUE]),
    "locked after the end": (lambda d: d.lock.update(locked_utc="2026-01-01T12:12:00Z"), [R.LOCKED_AFTER_START]),
    "a cosine above 1": (lambda d: d.tables["correctness"][0].update(min_cosine=1.1), [R.SCHEMA_VALUE]),
    "an error below 0": (lambda d: d.tables["correctness"][0].update(max_abs_error=-1.0), [R.SCHEMA_VALUE]),
    "no end in the ledger": (lambda d: d.ledger.pop(), [R.LEDGER_BROKEN]),
    "a failure that the ledger does not know": (
        lambda d: d.tables["processes"][4].update(status="failed", reason="watchdog"),
        [R.LEDGER_BROKEN],
    ),
    "a failure that only the ledger knows": (
        lambda d: d.ledger[-1].update(status="failed_processes"),
        [R.LEDGER_BROKEN],
    ),
    "another run's ledger": (
        lambda d: set_all(d.ledger, run_id="20260101T120000Z-ffffffff"),
        [R.LEDGER_BROKEN] * 2,
    ),
    "a broken chain": (lambda d: d.ledger[1].update(prev_sha256="1" * 64), [R.LEDGER_BROKEN]),
    "another run in the footer": (lambda d: d.footer.update({"benchkit.run_id": "x"}), [R.SCHEMA_VALUE] * 7),
    "rows of an attempt that no process lists": (
        lambda d: (builder.with_attempt(d, 2, 33), d.tables["processes"].pop(2)),
        [R.PROCESS_MISSING] * 2,
    ),
    "another environment in the first process": (lambda d: environment(d, 0, cpu="other"), [R.ENVIRONMENT_DRIFT] * 4),
    "another environment in a first process that failed": (
        lambda d: (fail(d, 0), environment(d, 0, cpu="other")),
        [R.ENVIRONMENT_DRIFT],
    ),
    "a process that says only its clock": (
        lambda d: d.tables["processes"][1].update(launch="", event_order=""),
        [R.SCHEMA_VALUE] * 2 + [R.BOUNDARY_MISMATCH] * 2,
    ),
    "a process that says only its launch": (
        lambda d: d.tables["processes"][1].update(clock="", event_order=""),
        [R.SCHEMA_VALUE] * 2 + [R.BOUNDARY_MISMATCH] * 2,
    ),
    "a process that says only its order": (
        lambda d: d.tables["processes"][1].update(clock="", launch=""),
        [R.SCHEMA_VALUE] * 2 + [R.BOUNDARY_MISMATCH] * 2,
    ),
    "an ok process without a cache": (lambda d: d.tables["processes"][2].update(l2_bytes=0), [R.ENVIRONMENT_DRIFT]),
    "a device of another clock": (
        lambda d: [environment(d, p, device="cuda") for p in range(5)],
        [R.SCHEMA_VALUE] * 10 + [R.BOUNDARY_MISMATCH] * 5 + [R.KERNEL_IDENTITY] * 50,
    ),
    "a negative wait after a sample": (lambda d: d.samples[57].update(post_sync_ns=-1), [R.TIME_DISORDER]),
    "a sample that ends before it starts": (
        lambda d: d.samples[57].update(host_end_ns=d.samples[57]["host_start_ns"] - 1),
        [R.TIME_DISORDER],
    ),
    "a duration of 1 ns": (lambda d: timed(d)[0].update(duration_ns=1), [R.TIME_DISORDER]),
    "a minute between the clocks of run and processes": (
        lambda d: (
            d.tables["processes"][0].update(started_utc="2026-01-01T11:59:00Z"),
            d.tables["processes"][4].update(ended_utc="2026-01-01T12:11:00Z"),
        ),
        [],
    ),
    "an unknown key": (lambda d: d.protocol["timing"].update(extra=1), [R.PROTOCOL_INVALID] + [R.PROTOCOL_CHANGED] * 3),
}
CUDA: dict[str, tuple[Callable[[Draft], object], list[R]]] = {
    "another expert": (reroute, [R.ROUTING_MISMATCH]),
    "another kernel": (lambda d: d.tables["kernels"][0].update(grid="2,1,1"), [R.KERNEL_IDENTITY] * 4),
    "a graph that was not checked": (
        lambda d: d.tables["correctness"].remove(
            next(r for r in d.tables["correctness"] if (r["arm"], r["stage"]) == ("copy", "replay"))
        ),
        [R.CORRECTNESS_MISSING],
    ),
    "one edge of telemetry missing": (lambda d: d.tables["telemetry"].pop(7), [R.ROWS_MISSING]),
    "an arm scaled, its host times left": (
        lambda d: [row.update(duration_ns=row["duration_ns"] * 9 // 10) for row in d.samples if row["arm"] == "cand"],
        [R.ESCAPED_WORK] * 10,
    ),
    "a kernel of no shape": (lambda d: set_all(d.tables["kernels"], grid="banana"), [R.SCHEMA_VALUE]),
    "clocks that stand still": (
        lambda d: set_all(d.tables["telemetry"], sm_clock_mhz=0),
        [R.SCHEMA_VALUE],
    ),
    "an event longer than the host waited": (
        lambda d: timed(d)[0].update(duration_ns=timed(d)[0]["duration_ns"] + 30_000),
        [R.ESCAPED_WORK],
    ),
    "no telemetry of one process": (
        lambda d: d.tables["telemetry"].__setitem__(
            slice(None), [r for r in d.tables["telemetry"] if r["process"] != 3]
        ),
        [R.ROWS_MISSING],
    ),
    "no telemetry at all": (lambda d: d.tables["telemetry"].clear(), [R.ROWS_MISSING] * 5),
    "a reading of telemetry twice": (
        lambda d: d.tables["telemetry"].append(dict(d.tables["telemetry"][-1])),
        [R.ROWS_DUPLICATED],
    ),
    "telemetry of a block that was not planned": (
        lambda d: d.tables["telemetry"].append(d.tables["telemetry"][-1] | {"block": 99}),
        [R.ORDER_NOT_AS_PLANNED],
    ),
    "a power that is no number": (
        lambda d: d.tables["telemetry"][7].update(power_w=float("nan")),
        [R.SCHEMA_VALUE],
    ),
    "a stream that was not blocked": (lambda d: timed(d)[0].update(blocked=False), [R.STREAM_NOT_BLOCKED]),
    "work after the stop event": (
        lambda d: set_all(timed(d), post_sync_ns=900_000),
        [R.TIME_DISORDER][:0] + [R.ESCAPED_WORK] * 2,
    ),
    "events of 1 % of host time (G01)": (
        lambda d: [row.update(duration_ns=row["duration_ns"] // 100) for p in range(5) for row in timed(d, "cand", p)],
        [R.ESCAPED_WORK] * 10,
    ),
    "a larger cache": (lambda d: set_all(d.tables["processes"], l2_bytes=10**9), [R.CACHE_NOT_COLD] * 10),
    "faster than the memory (A03, A08)": (
        lambda d: set_all(timed(d, "copy"), duration_ns=1_000, host_start_ns=0, host_end_ns=0),
        [R.TIME_DISORDER] + [R.ESCAPED_WORK] * 2 + [R.BELOW_FLOOR] * 2,
    ),
    "another GPU": (
        lambda d: environment(d, 0, gpu=None),
        [R.BUILD_MISMATCH, R.SCHEMA_VALUE] + [R.ENVIRONMENT_DRIFT] * 4,
    ),
    "no kernels at all": (lambda d: d.tables["kernels"].clear(), [R.KERNEL_IDENTITY] * 50),
    "no kernels of one process": (
        lambda d: d.tables["kernels"].__setitem__(slice(None), [r for r in d.tables["kernels"] if r["process"] != 3]),
        [R.KERNEL_IDENTITY] * 10,
    ),
    "a sample out of time": (
        lambda d: d.samples[57].update(host_start_ns=d.samples[57]["host_start_ns"] - 10**9),
        [R.TIME_DISORDER, R.ESCAPED_WORK],
    ),
    "three readings missing in a later process": (
        lambda d: d.tables["telemetry"].__delitem__(slice(90, 93)),
        [R.ROWS_MISSING],
    ),
    "the first reading of the layout twice": (
        lambda d: d.tables["telemetry"].insert(
            0,
            dict(
                next(r for r in d.tables["telemetry"] if (r["point"], r["block"], r["arm"]) == ("batch=1", 0, "base"))
            ),
        ),
        [R.ROWS_DUPLICATED],
    ),
    "telemetry of an unknown arm": (
        lambda d: d.tables["telemetry"][3].update(arm="nobody"),
        [R.SCHEMA_VALUE, R.ROWS_MISSING, R.ORDER_NOT_AS_PLANNED],
    ),
    "telemetry of a block below 0": (
        lambda d: d.tables["telemetry"][3].update(block=-1),
        [R.ROWS_MISSING, R.ORDER_NOT_AS_PLANNED],
    ),
    "another driver in one process": (lambda d: environment(d, 3, driver="590.1"), [R.ENVIRONMENT_DRIFT]),
    "no cache": (lambda d: set_all(d.tables["processes"], l2_bytes=0), [R.CACHE_NOT_COLD]),
    "a cache smaller than the GPU's": (lambda d: whole_gpu(d, "NVIDIA H200"), [R.CACHE_NOT_COLD]),
    "200 readings alike": (lambda d: set_all(d.tables["telemetry"], temperature_c=40), [R.TELEMETRY_FROZEN]),
    "a mode missing among others": (
        lambda d: set_all(
            [row for row in d.tables["repeats"] if row["arm"] == "base"][1:], mode_sha256=builder.sha("mode")
        ),
        [R.SCHEMA_VALUE],
    ),
    "an output beside those of the repeats": (
        lambda d: d.tables["correctness"][0].update(output_sha256="0" * 64),
        [],  # a gate
    ),
}


@pytest.mark.parametrize("name", HOST)
def test_host(tmp_path: Path, name: str) -> None:
    change, expected = HOST[name]
    report = resealed(tmp_path, "host", change)
    assert list(report.codes) == expected
    pinned.compare("host", name, report)


@pytest.mark.parametrize("name", CUDA)
def test_cuda(tmp_path: Path, name: str) -> None:
    change, expected = CUDA[name]
    report = resealed(tmp_path, "cuda-event", change)
    assert list(report.codes) == expected
    pinned.compare("cuda-event", name, report)


@pytest.mark.parametrize(
    "reading", [{"sm_clock_mhz": 1965}, {"memory_clock_mhz": 3200}, {"temperature_c": 41}, {"power_w": 300.1}]
)
def test_one_reading_of_200_that_differs(tmp_path: Path, reading: dict[str, Any]) -> None:
    def change(draft: Draft) -> None:
        set_all(draft.tables["telemetry"], temperature_c=40)
        draft.tables["telemetry"][-1].update(reading)

    assert resealed(tmp_path, "cuda-event", change).reasons == ()


def test_readings_alike(tmp_path: Path) -> None:
    few = builder.draft(clock="cuda-event", change=lambda protocol: protocol["operating_points"].update(batch=[4]))
    set_all(few.tables["telemetry"], temperature_c=40)
    assert len(few.tables["telemetry"]) == 100
    assert validate(few.seal(tmp_path / "few")).reasons == ()
    scripted = builder.draft(clock="cuda-event")
    set_all(scripted.tables["telemetry"], temperature_c=40)
    for process in range(5):
        environment(scripted, process, device="fake")
    assert validate(scripted.seal(tmp_path / "scripted")).codes == (R.SYNTHETIC,)


@pytest.mark.parametrize(
    ("gpu", "bytes_", "least"),
    [
        ("NVIDIA H200", 52_428_799, 52_428_800),
        ("NVIDIA A100-SXM4-80GB", 41_943_039, 41_943_040),
        ("a GPU that nobody knows", 0, 1),
    ],
)
def test_least_cache_of_a_gpu(tmp_path: Path, gpu: str, bytes_: int, least: int) -> None:
    def built(size: int) -> Draft:
        draft = builder.draft(
            clock="cuda-event",
            change=lambda p: (p["build"]["require"].update(gpu=gpu), p["timing"].update(min_l2_multiple=1e-9)),
        )
        set_all(draft.tables["processes"], l2_bytes=size)
        return whole_gpu(draft, gpu)

    (finding,) = validate(built(bytes_).seal(tmp_path / "smaller")).reasons
    assert (finding.where, finding.got) == ("process=0:l2_bytes", f"{bytes_} bytes")
    assert finding.expected == f"a cache of at least {least} bytes for {gpu}"
    assert validate(built(least).seal(tmp_path / "enough")).reasons == ()


def test_where_names_the_missing_edge(tmp_path: Path) -> None:
    (finding,) = resealed(tmp_path, "cuda-event", CUDA["one edge of telemetry missing"][0]).reasons
    row = builder.draft(clock="cuda-event").tables["telemetry"][7]
    assert finding.where == "telemetry.parquet process=0 point={point} block={block} arm={arm} edge={edge}".format(
        **row
    )
    assert (finding.expected, finding.got) == (
        "40 rows, before and after every timed block of every arm",
        "1 rows missing",
    )


def test_a_scripted_device_need_not_have_telemetry(tmp_path: Path) -> None:
    def scripted(draft: Draft) -> None:
        draft.tables["telemetry"].clear()
        for process in range(5):
            environment(draft, process, device="fake")

    report = resealed(tmp_path, "cuda-event", scripted)
    assert report.codes == (R.SYNTHETIC,)
    assert "clocks" in [item.check for item in report.not_applicable]


def test_where_names_the_row(tmp_path: Path) -> None:
    (finding,) = resealed(tmp_path, "host", lambda d: d.samples.pop(55)).reasons
    row = builder.draft().samples[55]
    assert finding.where == "process=0 point={point} block={block} arm={arm} sample={sample}".format(**row)
    assert (finding.expected, finding.got) == ("80 rows", "1 row missing")


def test_a01_names_the_order(tmp_path: Path) -> None:
    finding = resealed(tmp_path, "host", HOST["the flush between the events (A01)"][0]).reasons[0]
    assert finding.where == "process=0:event_order"
    assert (finding.expected, finding.got) == ("start,call*4,stop", "start,flush,call*4,stop")


def test_a_duration_between_two_steps_of_the_clock(tmp_path: Path) -> None:
    def stepped(process: int, point: str, block: int, arm: str, sample: int) -> int:
        return builder.script(process, point, block, arm, sample) // 32 * 32

    def off(draft: Draft, rows: int) -> Draft:
        for row in draft.samples[:rows]:
            row["duration_ns"] += 5
        return draft

    def draft() -> Draft:
        return builder.draft(clock="cuda-event", duration=stepped)

    assert validate(draft().seal(tmp_path / "a")).validity is Validity.VALID
    one, total = off(draft(), 1), len(draft().samples)
    (finding,) = validate(one.seal(tmp_path / "b")).reasons
    assert (finding.reason, finding.where) == (R.TICK_MISMATCH, "samples.parquet:duration_ns[0] process=0")
    assert finding.expected == "a multiple of 32 ns, the clock's step"
    assert finding.got == f"{one.samples[0]['duration_ns']} ns (1 of {total} rows of the bundle are off)"
    # a clock whose steps are no whole nanoseconds is off everywhere
    assert validate(off(draft(), total // 2).seal(tmp_path / "c")).validity is Validity.VALID


def stepped_draft(scale: int, step: int, off: dict[int, int], tick: int = 1) -> Draft:
    """A draft on the event clock whose durations are whole steps, but for some rows; ``off`` gives their distance in ns."""

    def stepped(process: int, point: str, block: int, arm: str, sample: int) -> int:
        return scale * builder.script(process, point, block, arm, sample) // step * step

    result = builder.draft(clock="cuda-event", duration=stepped)
    for row in result.tables["processes"]:
        row["clock_tick_ns"] = tick
    for row, distance in off.items():
        result.samples[row]["duration_ns"] += distance
    return result


@pytest.mark.parametrize(
    ("scale", "step", "off", "expected"),
    [
        (1, 8, {57: 3}, "8"),
        (1, 7, {57: 3}, None),  # finer than any event clock
        (1, 32, {57: 1}, "32"),
        (1, 32, {57: -1}, "32"),
        (1, 32, dict.fromkeys(range(160), 5), "32"),  # 40 % of the rows, the clock says its step
        (100, 32, {51: 10}, None),  # milliseconds as float32 have no finer steps at 100 ms
        (100, 32, {51: -10}, None),
        (100, 32, {51: 14}, "32"),
    ],
)
def test_steps_of_the_clock(tmp_path: Path, scale: int, step: int, off: dict[int, int], expected: str | None) -> None:
    draft = stepped_draft(scale, step, off, tick=32 if scale > 1 or len(off) > 1 else 1)
    if scale > 1:  # longer processes
        for row in draft.tables["processes"]:
            row["started_utc"], row["ended_utc"] = "2026-01-01T12:01:00Z", "2026-01-01T12:09:00Z"
    found = [item for item in validate(draft.seal(tmp_path / "b")).reasons if item.reason is R.TICK_MISMATCH]
    first = min(off)
    assert scale == 1 or draft.samples[first]["arm"] != "copy"  # which is twice as fast
    told = [
        (f"samples.parquet:duration_ns[{first}] process=0", f"a multiple of {expected} ns, the clock's step"),
    ]
    assert [(item.where, item.expected) for item in found] == (told if expected else [])
    total = len(draft.samples)
    assert [item.got for item in found] == [
        f"{draft.samples[first]['duration_ns']} ns ({len(off)} of {total} rows of the bundle are off)"
    ] * len(found)


@pytest.mark.parametrize(
    ("durations", "step"),
    [
        ([range(16, 336, 16)], 16),  # 20 values
        ([range(16, 320, 16)], 1),  # 19 may have more in common by chance
        ([[0, *range(16, 320, 16)]], 1),
        ([[1, *range(16, 336, 16)]], 1),
        ([range(7_999_680, 8_000_000, 16)], 16),
        ([range(8_000_000, 8_000_320, 16)], 1),  # not exact in float32 milliseconds
        ([range(8, 168, 8), range(32, 672, 32), range(16, 336, 16)], 16),
        ([range(8, 168, 8), range(32, 672, 32)], 32),
        ([range(5), range(32, 672, 32)], 32),
        ([[]], 1),
    ],
)
def test_the_step_that_most_arms_have_in_common(durations: list[Iterable[int]], step: int) -> None:
    values = [(value, arm) for arm, several in enumerate(durations) for value in several]
    rows = SimpleNamespace(
        arm=np.array([arm for _, arm in values], dtype=np.int64),
        columns={"duration_ns": np.array([value for value, _ in values], dtype=np.int64)},
        layout=SimpleNamespace(arms=[str(arm) for arm in range(len(durations))]),
    )
    view: Any = SimpleNamespace(rows=rows)
    assert times._step(view) == step


@pytest.mark.parametrize(("samples", "rows"), [(8, 18), (5, 12), (4, None)])
def test_durations_of_another_process(tmp_path: Path, samples: int, rows: int | None) -> None:
    def many(protocol: builder.Row) -> None:
        protocol["timing"]["samples_per_block"] = samples

    def draft() -> Draft:
        return builder.draft(clock="cuda-event", change=many)

    assert validate(draft().seal(tmp_path / "a")).validity is Validity.VALID
    copied = draft()
    by_place = {
        (r["point"], r["block"], r["sample"]): r["duration_ns"]
        for r in copied.samples
        if (r["arm"], r["process"]) == ("cand", 1)
    }
    for row in copied.samples:
        if (row["arm"], row["process"]) == ("cand", 3):
            row["host_end_ns"] += by_place[row["point"], row["block"], row["sample"]] - row["duration_ns"]
            row["duration_ns"] = by_place[row["point"], row["block"], row["sample"]]
    found = validate(copied.seal(tmp_path / "b")).reasons
    assert [(item.reason, item.expected, item.got) for item in found] == (
        [(R.ROWS_DUPLICATED, "durations of its own", f"{rows} durations, those of process=1")] if rows else []
    )
    for item in found:
        assert item.where.startswith("process=3 point=batch=")
        assert item.where.endswith(" arm=cand")


@pytest.mark.parametrize(("more", "validity"), [(2, Validity.VALID), (3, Validity.INVALID)])
def test_attempts_that_are_allowed(tmp_path: Path, more: int, validity: Validity) -> None:
    draft = builder.draft()
    for _ in range(more):
        builder.with_attempt(draft, 2, 0)
    assert validate(draft.seal(tmp_path / "b")).validity is validity


def test_repeats_that_were_locked(tmp_path: Path) -> None:
    def draft() -> Draft:
        return builder.draft(clock="cuda-event", change=lambda protocol: protocol["correctness"].update(repeats=2))

    assert validate(draft().seal(tmp_path / "a")).validity is Validity.VALID
    short = draft()
    row = short.tables["repeats"].pop(5)
    (finding,) = validate(short.seal(tmp_path / "b")).reasons
    where = f"repeats.parquet process=0 point={row['point']} arm={row['arm']}"
    assert (finding.reason, finding.where) == (R.ROWS_MISSING, where)
    assert (finding.expected, finding.got) == ("repeats 0 to 1", "1 rows: [0]")


def test_a08_names_the_rate(tmp_path: Path) -> None:
    report = resealed(tmp_path, "cuda-event", CUDA["faster than the memory (A03, A08)"][0])
    finding = next(item for item in report.reasons if item.reason is R.BELOW_FLOOR)
    assert finding.got == "1000 ns in the shortest of 6 rows, 8389 GB/s, 1.75 times the peak"


def test_a_failed_process_holds_a_prefix(tmp_path: Path) -> None:
    draft = builder.draft()
    draft.tables["processes"][4].update(status="failed", reason="watchdog")
    draft.ledger[-1].update(status="failed_processes")
    draft.samples[:] = draft.samples[:-50]
    report = validate(draft.seal(tmp_path / "b"))
    assert report.validity is Validity.VALID
    assert report.numbers is not None
    first = builder.order(draft.digest, draft.protocol, 4)[0][0]
    gates = {item.operating_point: [gate.gate for gate in item.gates] for item in report.numbers.comparisons}
    assert gates.pop(first, []) in ([], ["too_few_pairs", "failed_process"])
    assert list(gates.values()) == [["too_few_pairs", "failed_process"]]
    del draft.samples[-20]
    assert validate(draft.seal(tmp_path / "c")).codes == (R.ROWS_MISSING,)


def test_an_interrupted_attempt_stays_and_is_not_analysed(tmp_path: Path) -> None:
    clean = validate(builder.draft().seal(tmp_path / "a"))
    report = validate(builder.with_attempt(builder.draft(), 2, 33).seal(tmp_path / "b"))
    assert report.validity is Validity.VALID
    assert "1 interrupted attempt kept beside the attempts that were analysed" in report.notes
    assert report.numbers is not None
    assert clean.numbers is not None
    assert report.numbers.comparisons == clean.numbers.comparisons


def test_an_unsupported_arm_is_not_missing(tmp_path: Path) -> None:
    draft = builder.draft()
    for row in draft.tables["processes"]:
        row["unsupported"] = '[["mib=2","cand","needs more"]]'
    for table in ("samples", "correctness", "telemetry", "kernels", "repeats"):
        draft.tables[table][:] = [r for r in draft.tables[table] if (r["point"], r["arm"]) != ("mib=2", "cand")]
    for process in range(5):
        for seq, row in enumerate(row for row in draft.samples if row["process"] == process):
            row["seq"] = seq
    report = validate(draft.seal(tmp_path / "b"))
    assert report.validity is Validity.VALID
    assert report.numbers is not None
    assert [gate.gate for gate in report.numbers.comparisons[1].gates] == ["too_few_pairs", "unsupported"]
    assert report.numbers.family.verdict is Verdict.INCONCLUSIVE
    unsupported = next(arm for arm in report.numbers.arms if (arm.operating_point, arm.arm) == ("mib=2", "cand"))
    assert (unsupported.samples, unsupported.median_ns, unsupported.unique_bytes) == (0, None, None)


@pytest.mark.parametrize(
    ("column", "kind", "code"),
    [
        ("duration_ns", pa.float32(), R.SCHEMA_TYPE),
        ("duration_ns", pa.float64(), R.SCHEMA_TYPE),
        ("duration_ns", pa.duration("ns"), R.SCHEMA_TYPE),
        ("host_start_ns", pa.timestamp("ns", "UTC"), R.SCHEMA_TYPE),
        ("host_start_ns", pa.time64("ns"), R.SCHEMA_TYPE),
    ],
)
def test_e01_e06_time_types(tmp_path: Path, column: str, kind: pa.DataType, code: R) -> None:
    draft = builder.draft()

    def retype(table: str, schema: pa.Schema) -> pa.Schema:
        index = schema.get_field_index(column)
        return schema.set(index, pa.field(column, kind)) if index >= 0 else schema

    draft.schema = retype
    report = validate(draft.seal(tmp_path / "b"))
    assert report.codes == (code,)
    assert [item.stage.value for item in report.not_checked] == ["schema", "schedule", "physics", "recompute"]
    assert report.numbers is None


def test_another_unit(tmp_path: Path) -> None:
    draft = builder.draft()

    def rename(table: str, schema: pa.Schema) -> pa.Schema:
        index = schema.get_field_index("duration_ns")
        return schema.set(index, schema.field(index).with_metadata({"unit": "us"})) if index >= 0 else schema

    draft.schema = rename
    assert validate(draft.seal(tmp_path / "b")).codes == (R.SCHEMA_UNIT,)


def test_absent_units_and_footers_are_notes(tmp_path: Path) -> None:
    draft = builder.draft()
    draft.schema = lambda table, schema: pa.schema([field.with_metadata({}) for field in schema])
    report = validate(draft.seal(tmp_path / "b"))
    assert report.validity is Validity.VALID
    assert "samples.parquet: no units in the field metadata" in report.notes
    assert "samples.parquet: no benchkit keys in the footer" in report.notes
