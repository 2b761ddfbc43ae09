"""What a log contradicts itself in: a clock's step, the life of a run, what a process ran on, errors against the truth."""

import json
from pathlib import Path
from typing import Any

import builder
import pytest

from validator.findings import Finding, Validity
from validator.reasons import Reason
from validator.validate import validate

LIVES = {
    "a run": (["start", "end"], None),
    "interrupted once": (["start", "resume", "end"], None),
    "killed while sealing": (["start", "end", "resume", "resume", "end"], None),
    "two starts": (["start", "start", "end"], "start, start, end"),
    "two ends": (["start", "end", "end"], "start, end, end"),
    "the end before the start": (["end", "start", "end"], "end, start, end"),
    "a start after a resumption": (["start", "resume", "start", "end"], "start, resume, start, end"),
}


def lived(draft: builder.Draft, events: list[str]) -> None:
    """Let the run have these events in its ledger."""
    first, last = draft.ledger[0], draft.ledger[-1]
    lines = {"start": first, "end": last, "resume": {**first, "event": "resume"}}
    draft.ledger = [dict(lines[event]) for event in events]


@pytest.mark.parametrize("name", LIVES)
def test_the_events_of_a_run_stand_in_its_order(tmp_path: Path, name: str) -> None:
    events, got = LIVES[name]
    draft = builder.draft()
    lived(draft, events)
    report = validate(draft.seal(tmp_path / "b"))
    if got is None:
        assert (report.validity, report.reasons) == (Validity.VALID, ())
        return
    (finding,) = report.reasons
    run = report.bundle.run_id
    assert finding == Finding(
        reason=Reason.LEDGER_BROKEN,
        where="attempts.jsonl",
        expected=f"{run}: start, any resumptions, end; after an end, a resumption before another",
        got=got,
    )


def off_the_clock(draft: builder.Draft, arm: str, share: float) -> int:
    """Scale an arm's durations to the nanosecond, host times following; gives how many rows are off 32 ns."""
    off, shift, process = 0, 0, -1
    for row in draft.tables["samples"]:
        if row["process"] != process:
            process, shift = row["process"], 0
        row["host_start_ns"] += shift
        if row["arm"] == arm:
            new = round(share * row["duration_ns"])
            shift += new - row["duration_ns"]
            row["duration_ns"] = new
            off += new % 32 != 0
        row["host_end_ns"] += shift
    return off


@pytest.mark.parametrize("step", [32, 1_000_003, 7])
def test_a_recorded_step_that_fits_nothing_does_not_hide_the_clocks(tmp_path: Path, step: int) -> None:
    def wobbling(process: int, point: str, block: int, arm: str, sample: int) -> int:
        return 32 * (31_250 + (7 * process + 5 * block + 3 * sample + len(arm) + len(point)) % 40 + process)

    draft = builder.draft(clock="cuda-event", duration=wobbling)
    for row in draft.tables["processes"]:
        row["clock_tick_ns"] = step
    off = off_the_clock(draft, "cand", 0.99)
    total = len(draft.tables["samples"])
    assert 0 < off < total / 2
    found = [item for item in validate(draft.seal(tmp_path / "b")).reasons if item.reason is Reason.TICK_MISMATCH]
    (finding,) = found
    assert finding.expected == "a multiple of 32 ns, the clock's step"
    assert finding.got.endswith(f"ns ({off} of {total} rows of the bundle are off)")


def changed(draft: builder.Draft, **values: Any) -> None:
    """Give every process another environment."""
    for row in draft.tables["processes"]:
        text = json.dumps(json.loads(row["environment"]) | values, sort_keys=True, separators=(",", ":"))
        row["environment"], row["environment_sha256"] = text, builder.sha(text)


GPU = {"name": "NVIDIA H200", "uuid": "GPU-0", "compute_capability": "9.0", "memory_bytes": 1, "sm_count": 132}


@pytest.mark.parametrize(
    ("values", "expected", "got"),
    [
        ({"platform": ""}, "platform: a text", "''"),
        ({"cpu": None}, "cpu: a text", "None"),
        ({"cpu_count": 0}, "cpu_count: a positive number", "0"),
        ({"threads": True}, "threads: a positive number", "True"),
        ({"packages": []}, "packages: an object", "[]"),
        ({"device": "tpu"}, "device: one of host, cuda, fake", "'tpu'"),
        ({"gpu": GPU | {"uuid": ""}}, "gpu.uuid: a text", "''"),
        ({"gpu": GPU | {"sm_count": -1}}, "gpu.sm_count: a positive number", "-1"),
        ({"driver": ""}, "driver: a text", "''"),
        ({"benchkit_sha256": ""}, "benchkit_sha256: 64 hexadecimal digits", "''"),
    ],
)
def test_what_a_process_ran_on_is_said(tmp_path: Path, values: dict[str, Any], expected: str, got: str) -> None:
    draft = builder.draft(clock="cuda-event")
    changed(draft, **values)
    found = [item for item in validate(draft.seal(tmp_path / "b")).reasons if item.reason is Reason.SCHEMA_VALUE]
    assert [(item.where, item.expected, item.got) for item in found] == [
        (f"processes.parquet:environment[{row}]", expected, got) for row in range(len(draft.tables["processes"]))
    ]


@pytest.mark.parametrize(("largest", "relative"), [(2.0, 0.0), (0.0, 1e-4)])
def test_errors_are_none_or_both(tmp_path: Path, largest: float, relative: float) -> None:
    draft = builder.draft()
    draft.tables["correctness"][3] |= {"max_abs_error": largest, "rel_error": relative}
    (finding,) = validate(draft.seal(tmp_path / "b")).reasons
    assert finding == Finding(
        reason=Reason.SCHEMA_VALUE,
        where="correctness.parquet:rel_error[3]",
        expected="0 where max_abs_error is 0, and nowhere else",
        got=str(relative),
    )


def test_of_a_check_that_finds_everything_wrong_the_first_thousand_are_told(tmp_path: Path) -> None:
    draft = builder.draft()
    rows = draft.tables["correctness"]
    rows.extend({**rows[-1], "process": process} for process in range(100, 1500))
    report = validate(draft.seal(tmp_path / "b"))
    assert report.codes == (Reason.PROCESS_MISSING,) * 1000
    assert report.reasons[-1].where == "correctness.parquet process=1099,attempt=0"
