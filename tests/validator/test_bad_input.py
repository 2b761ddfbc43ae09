"""Bad input in whole bundles: each kind has a named status, and none of it ends in a verdict that shows something (trials D01, D07, D09)."""

import math
from collections.abc import Callable
from pathlib import Path

import builder
import pyarrow as pa
import pytest
from builder import Draft

from validator.findings import Report, Validity
from validator.reasons import Reason as R
from validator.recompute.family import SHOWN
from validator.validate import validate

Change = Callable[[Draft], None]


def failed(complete: int) -> Change:
    """Only so many processes came to an end; the others failed before their first sample."""

    def change(draft: Draft) -> None:
        for row in draft.tables["processes"]:
            if row["process"] >= complete:
                row.update(status="failed", reason="killed")
        for rows in (
            draft.samples,
            *(draft.tables[name] for name in ("correctness", "telemetry", "kernels", "repeats")),
        ):
            rows[:] = [row for row in rows if row["process"] < complete]
        draft.ledger[-1]["status"] = "failed_processes"

    return change


def durations(arm: str, value: object, *, as_float: bool = False) -> Change:
    """The first timed sample of an arm has this duration."""

    def change(draft: Draft) -> None:
        next(row for row in draft.samples if row["arm"] == arm and not row["warmup"])["duration_ns"] = value
        if as_float:
            draft.schema = lambda name, schema: (
                schema.set(schema.get_field_index("duration_ns"), schema.field("duration_ns").with_type(pa.float64()))
                if name == "samples"
                else schema
            )

    return change


def without(keep: Callable[[builder.Row], bool]) -> Change:
    """Rows of samples that do not fit are gone, and the rest is numbered again."""

    def change(draft: Draft) -> None:
        draft.samples[:] = [row for row in draft.samples if keep(row)]
        counts: dict[int, int] = {}
        for row in draft.samples:
            row["seq"] = counts.get(row["process"], 0)
            counts[row["process"]] = row["seq"] + 1

    return change


def one_arm_a_process(row: builder.Row) -> bool:
    """The candidate in odd processes, the baseline in even ones: unpaired data under a paired lock."""
    return bool(row["arm"] not in ("base", "cand") or (row["arm"] == "cand") == (row["process"] % 2 == 1))


def unequal(row: builder.Row) -> bool:
    """The candidate has a sample less in process 2."""
    return not (row["process"] == 2 and row["arm"] == "cand" and row["block"] == 0 and row["sample"] == 1)


def flat(process: int, point: str, block: int, arm: str, sample: int) -> int:
    """Every sample of an arm is the same."""
    return {"base": 1_000_000, "cand": 1_000_000, "same": 1_000_100, "slow": 1_030_000, "copy": 500_000}[arm]


CASES: dict[str, tuple[Change, tuple[R, ...], tuple[str, ...]]] = {
    "no process": (failed(0), (), ("too_few_pairs", "failed_process", "aa_control", "positive_control")),
    "one process": (failed(1), (), ("too_few_pairs", "failed_process", "aa_control", "positive_control")),
    "two processes": (failed(2), (), ("too_few_pairs", "failed_process")),
    "NaN": (durations("cand", math.nan, as_float=True), (R.SCHEMA_TYPE,), ()),
    "infinity": (durations("cand", math.inf, as_float=True), (R.SCHEMA_TYPE,), ()),
    "zero baseline": (durations("base", 0), (R.NON_POSITIVE_DURATION,), ()),
    "negative candidate": (durations("cand", -5), (R.NON_POSITIVE_DURATION,), ()),
    "unequal n": (without(unequal), (R.ROWS_MISSING,), ()),
    "unpaired": (without(one_arm_a_process), (R.ARM_MISSING,) * 10, ()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_named_status_and_no_verdict(tmp_path: Path, name: str) -> None:
    change, codes, gates = CASES[name]
    draft = builder.draft()
    change(draft)
    report = validate(draft.seal(tmp_path / "b"))
    assert report.codes == codes
    assert report.validity is (Validity.INVALID if codes else Validity.VALID)
    if gates:
        shown = verdicts(report)
        assert shown == [(gates, "inconclusive")] * 2
        assert report.numbers is not None
        assert report.numbers.family.verdict not in SHOWN


def verdicts(report: Report) -> list[tuple[tuple[str, ...], str]]:
    """Gates and verdict of every comparison."""
    assert report.numbers is not None
    return [(tuple(gate.gate for gate in item.gates), item.verdict.value) for item in report.numbers.comparisons]


def test_a_bad_sample_leaves_no_pair_and_no_number(tmp_path: Path) -> None:
    """A zero baseline at one point: nothing of that point is computed, and the good points do not outvote it."""
    draft = builder.draft()
    durations("base", 0)(draft)
    report = validate(draft.seal(tmp_path / "b"))
    assert report.numbers is not None
    (finding,) = report.reasons
    bad = next(row for row in draft.samples if row["duration_ns"] == 0)["point"]
    rows = {item.operating_point: item for item in report.numbers.comparisons}
    assert (rows[bad].ratio, rows[bad].lower, rows[bad].upper, rows[bad].p_non_inferior, rows[bad].pairs) == (
        *(None,) * 4,
        0,
    )
    assert rows[bad].verdict.value == "inconclusive"
    assert report.numbers.family.verdict not in SHOWN
    assert "duration_ns" in finding.where


def test_equal_samples_are_zero_spread(tmp_path: Path) -> None:
    """No variance, and nothing but ties: the interval shown is the ratio itself."""
    report = validate(builder.draft(duration=flat).seal(tmp_path / "b"))
    assert report.codes == ()
    assert [gates[0] for gates, _ in verdicts(report)] == ["zero_spread"] * 2
    assert {verdict for _, verdict in verdicts(report)} == {"inconclusive"}
    assert report.numbers is not None
    assert {(item.lower, item.ratio, item.upper) for item in report.numbers.comparisons} == {(1.0, 1.0, 1.0)}
