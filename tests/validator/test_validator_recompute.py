"""What is computed from the rows, part by part: gates, families, cells, tables beside; a clean bundle in memory with one thing changed."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import builder
import memory
import numpy as np
import pytest
from memory import Rows, edited, rows_of, seen, with_records, with_rows

from validator.findings import Comparison, Equivalence, Gate, Numbers, Verdict
from validator.reading.bundle import Bundle
from validator.reading.model import Statistics
from validator.reading.processes import ProcessRecord
from validator.reading.protocol import read_protocol
from validator.reading.rows import View
from validator.reading.study import Sizes, Tile
from validator.recompute import gates as gates_module
from validator.recompute import sensitivity
from validator.recompute.family import judge_family
from validator.recompute.gates import gates_of, inside, spread, too_few_pairs
from validator.recompute.marlin import Aligned, alignment_problems, laid_out, walk_tiles
from validator.recompute.measure import measure, resolution
from validator.recompute.numbers import _dose, _failed, equivalence, recompute
from validator.recompute.pairing import Pair, pair
from validator.recompute.sensitivity import bootstrap_t, resamples, sign_flip, signed_rank_cdf
from validator.recompute.series import autocorrelations, series, shape_of
from validator.recompute.statistics import TIE, LogRatios, Moments, estimate, finite_exp, moments, zone
from validator.recompute.supplement import supplement


def host() -> Bundle:
    return memory.built("host")


def four_blocks(protocol: builder.Row) -> None:
    protocol["schedule"]["blocks"] = 4


def cuda() -> Bundle:
    """Two points of 20 blocks: four in each of five processes."""
    return memory.built("cuda-event", four_blocks)


def numbers(bundle: Bundle) -> Numbers:
    return recompute(seen(bundle)).numbers


def gates(bundle: Bundle) -> dict[str, list[tuple[str, str]]]:
    return {
        item.operating_point: [(gate.gate, gate.detail) for gate in item.gates] for item in numbers(bundle).comparisons
    }


def readings(change: Callable[[Rows], object]) -> dict[str, list[tuple[str, str]]]:
    return gates(with_rows(cuda(), "telemetry", change))


def cells(rows: Rows, **wanted: Any) -> Rows:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def set_all(rows: Rows, **values: Any) -> None:
    for row in rows:
        row.update(values)


# gates


@pytest.mark.parametrize("bit", range(10))
def test_bits_of_a_slowdown(bit: int) -> None:
    found = readings(lambda rows: set_all(cells(rows, point="batch=4"), throttle_reasons=1 << bit))
    slow = [("clocks", "slowed down by hardware or heat in 20 of 20 blocks")]
    assert found == {"batch=1": [], "batch=4": slow if 1 << bit in (0x8, 0x20, 0x40, 0x80) else []}


def test_blocks_that_were_slowed_down() -> None:
    def slowed(*blocks: tuple[int, int]) -> dict[str, list[tuple[str, str]]]:
        def change(rows: Rows) -> None:
            for process, block in blocks:
                set_all(cells(rows, process=process, block=block, point="batch=4"), throttle_reasons=0x40)

        return readings(change)

    assert slowed((1, 0)) == {"batch=1": [], "batch=4": []}
    for pairs in (((1, 0), (3, 0)), ((1, 0), (1, 2)), ((0, 1), (1, 0))):
        slow = [("clocks", "slowed down by hardware or heat in 2 of 20 blocks")]
        assert slowed(*pairs) == {"batch=1": [], "batch=4": slow}


def test_readings_that_do_not_count() -> None:
    def before_the_blocks(rows: Rows) -> None:
        more = [row | {"block": -1, "throttle_reasons": 0x8, "sm_clock_mhz": 5} for row in rows]
        rows[:0] = more
        rows.sort(key=lambda row: row["process"])

    def of_an_attempt_that_was_interrupted(rows: Rows) -> None:
        more = [row | {"attempt": 7, "throttle_reasons": 0x8, "sm_clock_mhz": 5} for row in rows]
        rows += [row for row in more if row["process"] == 3]

    assert readings(before_the_blocks) == readings(of_an_attempt_that_was_interrupted) == {"batch=1": [], "batch=4": []}
    assert readings(lambda rows: rows.clear()) == {"batch=1": [], "batch=4": []}

    def resumed(records: list[ProcessRecord]) -> None:
        records[3] = replace(records[3], attempt=1)

    def second(rows: Rows) -> None:
        set_all(cells(rows, process=3), attempt=1)

    bundle = cuda()
    for table in ("samples", "telemetry", "correctness", "kernels", "repeats"):
        bundle = with_rows(bundle, table, second)
    bundle = with_records(bundle, resumed)
    assert gates(bundle) == {"batch=1": [], "batch=4": []}

    def first_attempts(rows: Rows) -> None:
        set_all(cells(rows, process=3, point="batch=1"), throttle_reasons=0x8)
        rows += [row | {"process": 1, "attempt": 1, "throttle_reasons": 0x8} for row in cells(rows, process=1)]

    slow = [("clocks", "slowed down by hardware or heat in 4 of 20 blocks")]
    assert gates(with_rows(bundle, "telemetry", first_attempts)) == {"batch=1": slow, "batch=4": []}


@pytest.mark.parametrize(
    ("base", "cand", "fires"), [(1000, 1020, False), (1000, 1021, True), (1000, 979, True), (1, 2, True)]
)
def test_clocks_that_are_apart(base: int, cand: int, fires: bool) -> None:
    def change(rows: Rows) -> None:
        set_all(cells(rows, point="batch=1", arm="base"), sm_clock_mhz=base)
        set_all(cells(rows, point="batch=1", arm="cand"), sm_clock_mhz=cand)

    apart = [("clocks", f"median SM clock {cand} MHz for cand, {base} MHz for base")]
    assert readings(change) == {"batch=1": apart if fires else [], "batch=4": []}


@pytest.mark.parametrize(("factor", "fires"), [(1.19, True), (1.21, False), (1.79, False), (1.81, True), (2.5, True)])
def test_doses(factor: float, fires: bool) -> None:
    view = seen(host())
    unit = 0.02 * measure(view).cells[(2, "mib=1", "base")].whole_ns
    dose = round(factor * unit)

    def change(rows: Rows) -> None:
        set_all(cells(rows, process=2, point="mib=1", arm="slow", warmup=False), injected_ns=dose)

    found = gates(with_rows(host(), "samples", change))
    said = f"process 2: slow injected {dose} ns, planned 1.2 to 1.8 times {unit:.0f} ns"
    assert found == {"mib=1": [("control_dose", said)] if fires else [], "mib=2": []}


@pytest.mark.parametrize(("dose", "fires"), [(23_999, True), (24_000, False), (36_000, False), (36_001, True)])
def test_doses_on_their_limits(dose: int, fires: bool) -> None:
    """Two percent of a millisecond are 20 us."""

    def change(rows: Rows) -> None:
        set_all(cells(rows, process=2, point="mib=1", arm="base", warmup=False), duration_ns=1_000_000)
        set_all(cells(rows, process=2, point="mib=1", arm="slow", warmup=False), injected_ns=dose)

    said = [gate for gate, _ in gates(with_rows(host(), "samples", change))["mib=1"]]
    assert said == ["control_dose"] * fires


def test_how_many_pairs_a_level_needs() -> None:
    view = seen(host())
    item = pair(view.protocol, measure(view), "mib=1", "cand", "base", alpha=0.05)
    for alpha, count, least in ((0.0251, 5, None), (0.0251, 4, 5), (0.025, 6, None), (0.025, 5, 6)):
        found = list(too_few_pairs(replace(item, processes=tuple(range(count))), alpha))
        assert found == [Gate(gate="too_few_pairs", detail=f"{count} complete pairs, at least {least} are needed")] * (
            least is not None
        )


def test_a_timer_of_two_steps_within_the_margin() -> None:
    view = seen(host())
    item = pair(view.protocol, measure(view), "mib=1", "cand", "base", alpha=0.05)
    assert list(spread(replace(item, fineness=2.0), 32)) == []
    detail = "the margin is 1.99 steps of 32 ns, at least 2 are needed"
    assert list(spread(replace(item, fineness=1.99), 32)) == [Gate(gate="timer_resolution", detail=detail)]


def test_processes_that_did_not_complete_a_point() -> None:
    rows = rows_of(seen(host()).bundle.tables["samples"].frame)  # type: ignore[arg-type]
    at = next(
        i
        for i, row in enumerate(rows)
        if (row["process"], row["point"], row["arm"], row["block"]) == (2, "mib=1", "copy", 1)
    )
    short = with_rows(host(), "samples", lambda found: found.__delitem__(at))
    few = ("too_few_pairs", "4 complete pairs, at least 5 are needed")
    assert gates(short)["mib=1"][0] == few
    assert "failed_process" not in [name for name, _ in gates(short)["mib=1"]]
    failed = gates(with_records(short, edited(2, status="failed")))
    assert failed["mib=1"][1] == ("failed_process", "process 2 failed before it completed the point")
    assert failed["mib=2"] == []


def test_controls_inside_the_margin() -> None:
    found = estimate(LogRatios(plain=(0.001, 0.002, 0.003)), alpha=0.05, margin=0.02)
    for lower, upper, good in (
        (0.99, 1.01, True),
        (0.6, 1.01, False),
        (0.99, 1.02, False),
        (None, 1.01, False),
        (0.99, None, False),
        (1 / 1.02, 1.01, False),
    ):
        assert inside(replace(found, lower=lower, upper=upper), 0.02) is good


def test_positive_controls_that_are_seen() -> None:
    found = estimate(LogRatios(plain=(0.001, 0.002, 0.003)), alpha=0.05, margin=0.02)
    for lower, upper, good in (
        (1.0, 1.05, False),
        (1.0001, 1.02, True),
        (1.0001, 1.0199, False),
        (1.0001, None, False),
        (None, 1.05, False),
    ):
        assert gates_module.seen(replace(found, lower=lower, upper=upper), 0.02) is good
    assert gates_module.seen(replace(found, lower=1.0001, upper=None, unbounded=True), 0.02)


@pytest.mark.parametrize(
    ("arm", "lower", "upper", "got"),
    [
        ("same", 1.02, 1.5, "not wholly beyond 0.980392 to 1.02"),
        ("same", 1.0199, 1.5, None),
        ("same", 0.5, 1 / 1.02, "not wholly beyond 0.980392 to 1.02"),
        ("same", 0.5, 0.9805, None),
        ("slow", 0.5, 0.9999, "slower than its baseline"),
        ("slow", 0.5, 1.0, None),
        ("slow", 1.03, 1.5, None),
    ],
)
def test_controls_that_noise_cannot_give(arm: str, lower: float, upper: float, got: str | None) -> None:
    view = seen(host())
    item = pair(view.protocol, measure(view), "mib=1", arm, "base", alpha=0.05)
    odd = replace(item, estimate=replace(item.estimate, lower=lower, upper=upper))
    found = [(each.where, each.expected) for each in _failed(view, {(arm, "mib=1"): odd})]
    assert found == ([] if got is None else [(f"point=mib=1 arm={arm}", got)])


def test_a_role_of_controls_fires_once() -> None:
    view = seen(host())
    measured = measure(view)
    item, control = (pair(view.protocol, measured, "mib=1", arm, "base", alpha=0.05) for arm in ("cand", "same"))
    bad = replace(control, estimate=replace(control.estimate, lower=0.5, upper=2.0))
    for controls in ((bad,), (bad, bad), (control, bad, bad)):
        found = gates_of(view, measured, item, controls, alpha=0.05)
        assert [gate.gate for gate in found] == ["aa_control"]
        assert found[0].detail == "same: 0.5 to 2, not inside the margin"


def test_arms_that_are_the_same_each_time() -> None:
    def other(rows: Rows) -> None:
        cells(rows, arm="cand", point="batch=4")[-1]["output_sha256"] = "1" * 64

    one = [("determinism", "cand claims to be deterministic and gave 2 outputs")]
    assert gates(with_rows(cuda(), "repeats", other)) == {"batch=1": [], "batch=4": one}
    assert gates(with_rows(cuda(), "correctness", other)) == {"batch=1": [], "batch=4": one}
    both = with_rows(
        with_rows(cuda(), "correctness", other),
        "repeats",
        lambda rows: set_all(cells(rows, arm="cand"), output_sha256="2" * 64),
    )
    assert [detail for _, detail in gates(both)["batch=4"]] == ["cand claims to be deterministic and gave 3 outputs"]


def claiming_nothing(protocol: builder.Row) -> None:
    four_blocks(protocol)
    for arm in protocol["arm"]:
        arm.get("correctness", {}).pop("deterministic", None)


def test_arms_that_claim_nothing_may_give_any_output() -> None:
    bundle = memory.built("cuda-event", claiming_nothing)

    def apart(rows: Rows) -> None:
        for at, row in enumerate(rows):
            row["output_sha256"] = f"{at:064x}"

    def among_others(rows: Rows) -> None:
        rows += [row | {"truth": "batch", "output_sha256": builder.sha(str(row["process"]))} for row in rows]

    assert gates(with_rows(bundle, "repeats", apart)) == {"batch=1": [], "batch=4": []}
    assert gates(with_rows(bundle, "correctness", among_others)) == {"batch=1": [], "batch=4": []}


# families


@cache
def clean() -> Comparison:
    return numbers(host()).comparisons[0]


def a_comparison(**values: Any) -> Comparison:
    return replace(clean(), **values)


def judged(rules: Statistics, *items: Comparison) -> Any:
    nothing = Pair(
        point="",
        arm="",
        other="",
        processes=(),
        log_ratios=(),
        estimate=estimate(LogRatios(plain=()), alpha=0.05, margin=0.02),
        fineness=None,
        guarded=False,
    )
    return judge_family(rules, [(item, nothing) for item in items], alpha=0.05)


NAMED = Statistics(alpha=0.05, margin=0.02, named_points=("mib=1",))
TOGETHER = Statistics(alpha=0.05, margin=0.02, gatekeeping=True)
V = Verdict


@pytest.mark.parametrize(
    ("own", "p", "better", "verdict"),
    [
        (V.SUPERIOR, 0.01, 0.01, V.SUPERIOR),
        (V.SUPERIOR, 0.01, 0.05, V.NON_INFERIOR),
        (V.SUPERIOR, 0.01, None, V.NON_INFERIOR),
        (V.NON_INFERIOR, 0.01, 0.01, V.NON_INFERIOR),
        (V.NON_INFERIOR_BUT_SLOWER, 0.01, 0.9, V.NON_INFERIOR_BUT_SLOWER),
        (V.SUPERIOR, 0.05, 0.01, V.INCONCLUSIVE),
        (V.NON_INFERIOR, 0.2, 0.9, V.INCONCLUSIVE),
        (V.NON_INFERIOR_BUT_SLOWER, 0.2, 0.9, V.INCONCLUSIVE_BUT_SLOWER),
        (V.NON_INFERIOR, None, 0.9, V.INCONCLUSIVE),
        (V.INCONCLUSIVE, 0.01, 0.9, V.INCONCLUSIVE),
        (V.INCONCLUSIVE_BUT_SLOWER, 0.01, 0.9, V.INCONCLUSIVE_BUT_SLOWER),
        (V.INFERIOR, 0.9, 0.9, V.INFERIOR),
        (V.SUPERIOR, 0.05 - TIE, 0.01, V.INCONCLUSIVE),
        (V.SUPERIOR, math.nextafter(0.05 - TIE, 0), 0.01, V.SUPERIOR),
        (V.SUPERIOR, 0.01, 0.05 - TIE, V.NON_INFERIOR),
        (V.SUPERIOR, 0.01, math.nextafter(0.05 - TIE, 0), V.SUPERIOR),
    ],
)
def test_one_member(own: Verdict, p: float | None, better: float | None, verdict: Verdict) -> None:
    item = a_comparison(operating_point="mib=1", verdict=own, p_non_inferior=p, p_superior=better)
    found = judged(NAMED, item)
    (member,) = found.members
    assert (found.verdict, member.verdict) == (verdict, verdict)
    assert member.p_non_inferior_adjusted == (1.0 if p is None else p)
    shown = verdict in (V.SUPERIOR, V.NON_INFERIOR, V.NON_INFERIOR_BUT_SLOWER)
    assert member.p_superior_adjusted == ((1.0 if better is None else better) if shown else None)


def test_members_whose_gate_fired() -> None:
    gate = (Gate(gate="clocks", detail=""),)
    item = a_comparison(verdict=V.INCONCLUSIVE, gates=gate, p_non_inferior=0.001, p_superior=0.001)
    for rules in (NAMED, TOGETHER):
        (member,) = judged(rules, item).members
        assert (member.p_non_inferior_adjusted, member.verdict) == (1.0, V.INCONCLUSIVE)
    (member,) = judged(TOGETHER, a_comparison(verdict=V.INCONCLUSIVE, p_non_inferior=None)).members
    assert member.p_non_inferior_adjusted == 1.0


def test_all_points_go_by_their_own_verdicts() -> None:
    # no p-value is asked of a member that is shown by its own interval
    item = a_comparison(verdict=V.NON_INFERIOR, p_non_inferior=0.9, p_superior=0.9)
    assert judged(TOGETHER, item).members[0].verdict is V.NON_INFERIOR
    # superiority by Holm is for the members; the family's own verdict is the intersection
    two = (a_comparison(verdict=V.SUPERIOR, p_superior=0.03), a_comparison(verdict=V.SUPERIOR, p_superior=0.04))
    found = judged(TOGETHER, *two)
    assert ([member.verdict for member in found.members], found.verdict) == ([V.NON_INFERIOR] * 2, V.SUPERIOR)
    named = judged(NAMED, *(replace(item, operating_point="mib=1") for item in two))
    assert named.verdict is V.NON_INFERIOR
    within = Equivalence(p_lower=0.01, p_upper=0.01, p_equivalence=0.01, equivalent=True, failing_side="none")
    alike = a_comparison(verdict=V.SUPERIOR, equivalence=within)
    assert judged(Statistics(alpha=0.05, margin=0.02), alike).verdict is V.NON_INFERIOR


# numbers


@pytest.mark.parametrize(
    ("lower", "upper", "side"),
    [
        (1 / 1.02 + 2e-9, 1.02 - 2e-9, "none"),
        (1 / 1.02, 1.01, "lower"),
        (1 / 1.02 + 5e-10, 1.01, "lower"),
        (1 / 1.02 + TIE, 1.01, "lower"),
        (0.99, 1.02 - TIE, "upper"),
        (0.99, 1.02, "upper"),
        (0.99, 1.02 - 5e-10, "upper"),
        (0.99, 1.5, "upper"),
        (0.99, None, "upper"),
        (None, 1.01, "lower"),
        (0.5, 1.5, "both"),
        (None, None, "both"),
    ],
)
def test_equivalence(lower: float | None, upper: float | None, side: str) -> None:
    base = estimate(LogRatios(plain=(0.001, 0.002, 0.003)), alpha=0.05, margin=0.02)
    found = equivalence(replace(base, lower=lower, upper=upper, p_lower=0.3, p_non_inferior=0.2), 0.02, closed=False)
    assert (found.failing_side, found.equivalent, found.p_equivalence) == (side, side == "none", 0.3)
    assert not equivalence(replace(base, lower=lower, upper=upper), 0.02, closed=True).equivalent


@pytest.mark.parametrize(
    ("low", "high", "p"), [(0.1, 0.2, 0.2), (None, 0.2, None), (0.1, None, None), (None, None, None)]
)
def test_equivalence_needs_both_sides(low: float | None, high: float | None, p: float | None) -> None:
    base = estimate(LogRatios(plain=(0.001, 0.002, 0.003)), alpha=0.05, margin=0.02)
    assert equivalence(replace(base, p_lower=low, p_non_inferior=high), 0.02, closed=False).p_equivalence == p


def two_looks(protocol: builder.Row) -> None:
    protocol["statistics"]["looks"] = [6, 10]


def test_the_first_look_that_shows_the_claim_decides() -> None:
    found = numbers(memory.built("host", two_looks, 10))
    assert found.family.looks is not None
    assert [(look.processes, look.verdict) for look in found.family.looks] == [(6, V.SUPERIOR)]
    assert {item.pairs for item in found.comparisons} == {6}


def test_controls_stand_where_their_arm_does() -> None:
    view = seen(host())

    def standing(**points: tuple[str, ...]) -> list[tuple[str, str]]:
        arms = tuple(replace(arm, points=points.get(arm.name)) for arm in view.protocol.arms)
        changed = replace(view, protocol=replace(view.protocol, arms=arms))
        return [(item.arm, item.operating_point) for item in recompute(changed).numbers.controls]

    assert standing(same=("mib=1",)) == [("same", "mib=1"), ("slow", "mib=1"), ("slow", "mib=2")]
    assert standing(base=("mib=2",)) == [("same", "mib=2"), ("slow", "mib=2")]


def with_durations(bundle: Bundle, duration: int, **wanted: Any) -> Bundle:
    return with_rows(bundle, "samples", lambda rows: set_all(cells(rows, **wanted), duration_ns=duration))


def test_the_dose_of_a_baseline_of_one_nanosecond() -> None:
    found = numbers(with_durations(host(), 1, arm="base", point="mib=1"))
    dose = next(item.dose for item in found.controls if (item.arm, item.operating_point) == ("slow", "mib=1"))
    injected = [measure(seen(host())).cells[(process, "mib=1", "slow")].injected_ns / 0.02 for process in range(5)]
    assert dose == sorted(injected)[2]
    none = numbers(with_durations(host(), 0, arm="base", point="mib=1"))
    assert next(item.dose for item in none.controls if (item.arm, item.operating_point) == ("slow", "mib=1")) is None


def test_a_baseline_without_time_has_no_dose() -> None:
    view, durations = seen(host()), {"arm": "base", "point": "mib=1", "process": 2}
    item = pair(view.protocol, measure(view), "mib=1", "slow", "base", alpha=0.05)
    assert _dose(view, measure(seen(with_durations(host(), 0, **durations))), item) is None
    assert _dose(view, measure(seen(with_durations(host(), 1, **durations))), item) is not None


@pytest.mark.parametrize(("duration", "known"), [(0, False), (1, True)])
def test_an_arm_with_a_duration_of_0_has_no_median(duration: int, known: bool) -> None:
    one = {"process": 2, "point": "mib=1", "arm": "base", "block": 1, "sample": 0}
    found = numbers(with_durations(host(), duration, **one)).arms
    assert {(x.operating_point, x.arm) for x in found if x.median_ns is None} == (
        set() if known else {("mib=1", "base")}
    )


# cells


def test_processes_up_to_a_look() -> None:
    found = measure(seen(host())).up_to(3, resolution_ns=7)
    assert [record.process for record in found.records] == [0, 1, 2]
    assert found.completed == {(process, point) for process in range(3) for point in ("mib=1", "mib=2")}
    assert found.resolution_ns == 7


def test_rows_of_analysed_attempts() -> None:
    view = seen(with_records(host(), edited(3, attempt=2)))
    measured = measure(view)
    asked = [(0, 0), (3, 2), (0, 2), (3, 0), (9, 0), (9, 2)]
    assert [measured.analysed(*pair) for pair in asked] == [True, True, False, False, False, False]


def test_rows_of_an_unknown_arm_leave_the_others() -> None:
    view = seen(with_rows(host(), "samples", lambda rows: set_all(cells(rows, arm="copy"), arm="nobody")))
    assert {arm for _, _, arm in measure(view).cells} == {"base", "cand", "same", "slow"}


@pytest.mark.parametrize(
    ("values", "middle"),
    [
        ([7], 7.0),
        ([7, 2], 4.5),
        ([7, 2, 4], 4.0),
        ([9, 2, 4, 7], 5.5),
        ([9, 2, 4, 8, 7], 7.0),
        ([1, 2, 3, 5, 7, 8], 4.0),
    ],
)
def test_medians(values: list[int], middle: float) -> None:
    def change(rows: Rows) -> None:
        own = cells(rows, process=1, point="mib=2", arm="cand", warmup=False)
        for row, value in zip(own, values, strict=False):
            row["duration_ns"] = value
        gone = own[len(values) :]
        rows[:] = [row for row in rows if row not in gone]

    cell = measure(seen(with_rows(host(), "samples", change))).cells[(1, "mib=2", "cand")]
    assert (cell.whole_ns, cell.samples, cell.least_ns, cell.most_ns) == (middle, len(values), min(values), max(values))


def test_the_resolution_of_the_timer() -> None:
    def steps(first: int, others: int) -> View:
        def change(rows: Rows) -> None:
            for at, row in enumerate(rows):
                row["duration_ns"] = 10**6 + (first if row["process"] == 0 else others) * (at % 3)

        def ticks(records: list[ProcessRecord]) -> None:
            records[:] = [replace(record, clock_tick_ns=7 + record.process) for record in records]

        return seen(with_records(with_rows(host(), "samples", change), ticks))

    assert [resolution(steps(64, 100), up_to=up_to) for up_to in (1, 2, None)] == [64, 28, 28]
    assert resolution(steps(1, 3)) == 1
    assert [resolution(steps(0, 0), up_to=up_to) for up_to in (1, 3, None)] == [7, 9, 11]
    assert [resolution(steps(0, 5), up_to=up_to) for up_to in (1, None)] == [7, 5]
    assert resolution(seen(replace(steps(0, 0).bundle, processes=None))) == 0


def test_arms_with_a_time_of_one_nanosecond_or_none() -> None:
    def arms(bundle: Bundle) -> dict[str, Any]:
        return {item.arm: item for item in numbers(bundle).arms if item.operating_point == "mib=1"}

    assert arms(with_durations(host(), 1, arm="cand", process=0))["cand"].median_ns is not None
    clean = arms(host())["cand"].percent_of_copy
    for duration in (0, 1):
        for arm in ("cand", "copy"):
            shares = arms(with_durations(host(), duration, arm=arm, process=0))["cand"].percent_of_copy
            assert (shares is None) == (duration == 0)
            assert shares != clean


# beside


def beside(bundle: Bundle, change: Callable[[View], View] = lambda view: view) -> Any:
    view = change(seen(bundle))
    return supplement(view, recompute(view).numbers)


def test_the_power_cap() -> None:
    def change(rows: Rows) -> None:
        for row in rows:
            row["sm_clock_mhz"] = 1000 + 100 * row["block"] + (row["point"] == "batch=4")
            row["throttle_reasons"] = 0x1 if row["point"] == "batch=1" else 0x5 * (row["block"] == 0)
        rows.append(rows[-1] | {"block": -1, "sm_clock_mhz": 7, "throttle_reasons": 4})

    found = beside(with_rows(cuda(), "telemetry", change)).power_cap
    shown = [(x.operating_point, x.percent_of_rows, x.least_sm_mhz, x.median_sm_mhz, x.most_sm_mhz) for x in found]
    assert shown == [("batch=1", 0.0, 1000, 1150.0, 1300), ("batch=4", 25.0, 1001, 1151.0, 1301)]
    assert beside(with_rows(cuda(), "telemetry", lambda rows: rows.clear())).power_cap == ()


@pytest.mark.parametrize(
    ("middle", "largest", "listed"), [(1000, 5000, False), (1000, 5001, True), (1, 6, True), (0, 6, False)]
)
def test_uneven_samples(middle: int, largest: int, listed: bool) -> None:
    def change(rows: Rows) -> None:
        own = cells(rows, process=1, point="mib=2", arm="cand", warmup=False)
        set_all(own, duration_ns=middle)
        own[-1]["duration_ns"] = largest

    found = beside(with_rows(host(), "samples", change)).uneven
    shown = [(x.process, x.operating_point, x.arm, x.samples, x.median_ns, x.largest_ns) for x in found]
    assert shown == ([(1, "mib=2", "cand", 6, float(middle), largest)] if listed else [])


def test_accuracy_is_the_worst_of_what_is_analysed() -> None:
    def change(rows: Rows) -> None:
        own = cells(rows, process=2, point="batch=4", arm="cand", stage="eager")
        set_all(own, min_cosine=0.9995, max_abs_error=0.25, rel_error=0.005)
        worse = {"min_cosine": 0.1, "max_abs_error": 9.0, "rel_error": 0.9}
        rows += [own[0] | worse | {"attempt": 7}, own[0] | worse | {"truth": "batch"}]

    found = {(x.operating_point, x.arm, x.truth): x for x in beside(with_rows(cuda(), "correctness", change)).accuracy}
    assert len(found) == 10
    worst = found["batch=4", "cand", "stored"]
    assert (worst.min_cosine, worst.max_abs_error, worst.rel_error) == (0.9995, 0.25, 0.005)
    assert found["batch=1", "cand", "stored"].min_cosine != 0.9995


def test_repacking_is_that_of_the_analysed_attempts() -> None:
    def change(records: list[ProcessRecord]) -> None:
        times = {0: 100, 1: 500, 2: 300, 3: 200, 4: 400}
        records[:] = [replace(r, repacking=(("cand", times[r.process], 64 + r.process),)) for r in records]
        records.insert(0, replace(records[0], attempt=7, analysed=False, repacking=(("cand", 9, 9), ("base", 9, 9))))

    (found,) = beside(with_records(cuda(), change)).repacking
    assert (found.arm, found.processes, found.median_ns, found.least_ns) == ("cand", 5, 300.0, 100)
    assert (found.most_ns, found.bytes) == (500, 68)


def test_arrays_may_have_an_axis_that_is_called_batch(tmp_path: Path) -> None:
    draft = builder.draft(clock="host")
    draft.protocol["operating_points"]["batch"] = ["a", "b"]
    read = read_protocol((draft.seal(tmp_path / "b") / "protocol.toml").read_bytes())
    assert read.problems == ()
    assert read.protocol is not None
    points = read.protocol.points
    assert [read.protocol.tokens(point) for point in points] == [0] * 4

    def named(view: View) -> View:
        own = [replace(point, values=(("batch", "a"), *point.values)) for point in view.protocol.points]
        return replace(view, protocol=replace(view.protocol, points=tuple(own)))

    assert beside(host(), named) == beside(host())


def test_scratch_by_token_needs_tokens() -> None:
    frame = cuda().frame("kernels")
    assert frame is not None
    kernels = rows_of(frame)[:1]

    def change(rows: Rows) -> None:
        rows += [kernels[0] | {"point": "mib=1", "arm": "cand", "process": process} for process in range(5)]

    (found,) = beside(with_rows(host(), "kernels", change)).launches
    assert (found.arm, found.kernels, found.scratch_bytes_per_token) == ("cand", kernels[0]["name"], None)
    shown = {(x.operating_point, x.scratch_bytes_per_token) for x in beside(cuda()).launches}
    assert shown == {("batch=1", 64.0), ("batch=4", 16.0)}


def test_stages_and_bookkeeping() -> None:
    def change(view: View) -> View:
        roles = {"cand": ("sort", "base"), "copy": ("up", "base"), "same": (None, "base"), "slow": ("pad", None)}
        arms = tuple(
            replace(arm, stage=roles[arm.name][0], part_of=roles[arm.name][1]) if arm.name in roles else arm
            for arm in view.protocol.arms
        )
        return replace(view, protocol=replace(view.protocol, arms=arms))

    found = beside(host(), change).bookkeeping
    times = {(x.operating_point, x.arm): x.median_ns for x in numbers(host()).arms}
    for item in found:
        sort, up = (times[item.operating_point, name] for name in ("cand", "copy"))
        assert (item.path, item.path_ns) == ("base", times[item.operating_point, "base"])
        assert sort is not None
        assert up is not None
        assert (item.stages_ns, item.percent_bookkeeping) == (sort + up, pytest.approx(100 * sort / (sort + up)))
    assert [item.operating_point for item in found] == ["mib=1", "mib=2"]
    view = seen(host())
    arms = recompute(view).numbers.arms
    parts = tuple(replace(x, role="component", median_ns=None if x.arm == "cand" else x.median_ns) for x in arms)
    shares = supplement(view, replace(recompute(view).numbers, arms=parts)).stages
    total = math.fsum(x.median_ns or 0 for x in parts if x.operating_point == "mib=1")
    assert [(x.arm, x.percent_of_stages) for x in shares if x.operating_point == "mib=1"] == [
        (x.arm, pytest.approx(100 * x.median_ns / total))
        for x in parts
        if x.operating_point == "mib=1" and x.median_ns is not None
    ]


# functions


@pytest.mark.parametrize("pairs", [1, 2, 3, 7, 20])
def test_the_signed_rank_distribution_is_whole(pairs: int) -> None:
    found = signed_rank_cdf(pairs)
    assert len(found) == pairs * (pairs + 1) // 2 + 1
    assert found[0] == 0.5**pairs
    assert found[-1] == pytest.approx(1.0, rel=1e-12)
    assert found[-2] < 1


def test_sums_of_signs_of_any_size() -> None:
    # of the eight sums of 1, 2 and 4 five are at most 1
    for scale in (1e-9, 1.0, 1e9):
        assert sign_flip([-1 * scale, -2 * scale, 4 * scale]) == 5 / 8
    # 0.1 + 0.2 is not 0.3, and yet a tie
    for scale in (1e-9, 1.0, 1e9):
        assert sign_flip([0.1 * scale, 0.2 * scale, -0.3 * scale]) == 5 / 8
        assert sign_flip([-0.1 * scale, -0.2 * scale, 0.3 * scale]) == 5 / 8


SPREAD = [0.01 * math.sin(3 * i) for i in range(9)]


@cache
def replicates(key: tuple[int, int]) -> list[float]:
    """The bootstrap by the definition: all replicates at once, each studentised by exactly rounded sums; ascending."""
    whole, found = moments(SPREAD), []
    for draw in resamples(len(SPREAD), key).tolist():
        mine = [SPREAD[i] for i in draw]
        each = moments(mine)
        found.append(-math.inf if max(mine) == min(mine) else (each.mean - whole.mean) / each.error)
    return sorted(found)


@pytest.mark.parametrize(("alpha", "rank"), [(0.05, 500), (0.049999, 499), (0.0001, 1), (0.00001, 1), (0.0002, 2)])
def test_ranks_of_the_bootstrap(monkeypatch: pytest.MonkeyPatch, alpha: float, rank: int) -> None:
    monkeypatch.setattr(sensitivity, "_AT_ONCE", 4000 * len(SPREAD))  # three batches
    whole, bound = moments(SPREAD), replicates((1, 2))[rank - 1]
    assert bound not in (replicates((1, 2))[rank], replicates((1, 2))[rank - 2])
    assert bootstrap_t(SPREAD, alpha=alpha, key=(1, 2)) == pytest.approx(whole.mean - bound * whole.error, rel=1e-9)


def test_a_bootstrap_without_spread() -> None:
    assert bootstrap_t([0.1], alpha=0.05, key=(1, 2)) is None
    assert bootstrap_t([0.1] * 5, alpha=0.05, key=(1, 2)) is None
    assert bootstrap_t([0.1, 0.2], alpha=0.05, key=(1, 2)) is None  # half of the replicates have none
    assert bootstrap_t([0.1, 0.2], alpha=0.6, key=(1, 2)) is not None


def test_moments() -> None:
    one = Moments(mean=0.0, error=1.0, freedom=4)
    assert (one.p_below(0.0), one.p_above(0.0)) == (0.5, 0.5)
    none = Moments(mean=0.0, error=0.0, freedom=4)
    assert (none.p_below(0.0), none.p_above(0.0)) == (None, None)
    assert [finite_exp(value) for value in (0.0, 1000.0, math.inf, -1000.0)] == [1.0, None, None, 0.0]
    two = estimate(LogRatios(plain=(0.1, 0.1)), alpha=0.05, margin=0.02)
    assert (two.zero_spread, two.lower, two.upper) == (True, math.exp(0.1), math.exp(0.1))
    assert estimate(LogRatios(plain=(-0.1, 0.1)), alpha=0.05, margin=0.02).p_differs == 1.0
    tiny = estimate(LogRatios(plain=(0.0, 1e-200)), alpha=0.05, margin=0.02)  # the squares of their distances are 0
    assert (tiny.zero_spread, tiny.lower, tiny.upper, tiny.p_superior, tiny.p_differs) == (False, 1.0, 1.0, None, None)


@pytest.mark.parametrize(
    ("lower", "upper", "verdict"),
    [
        (0.9, 0.9999, V.SUPERIOR),
        (0.9, 1.0, V.NON_INFERIOR),
        (1.0, 1.01, V.NON_INFERIOR),
        (1.0001, 1.01, V.NON_INFERIOR_BUT_SLOWER),
        (0.9, 1.02, V.INCONCLUSIVE),
        (1.0001, 1.02, V.INCONCLUSIVE),
        (1.0001, 1.03, V.INCONCLUSIVE_BUT_SLOWER),
        (1.0199, 1.03, V.INCONCLUSIVE_BUT_SLOWER),
        (1.02, 1.03, V.INFERIOR),
        (1.02, None, V.INFERIOR),
        (1.0, None, V.INCONCLUSIVE),
        (1.0001, None, V.INCONCLUSIVE_BUT_SLOWER),
        (None, 1.01, V.NON_INFERIOR),
    ],
)
def test_zones(lower: float | None, upper: float | None, verdict: Verdict) -> None:
    assert zone(lower, upper, 0.02) is verdict


def test_tiles_on_their_limits() -> None:
    def schedule(grid: int, group: int = 16) -> str:
        """Eight tiles in a row, each two k tiles deep."""
        sizes = Sizes(
            experts=1, hidden=32, intermediate=64, top_k=1, tokens=1, group=group, block=8, weight_seed=0, input_seed=0
        )
        return walk_tiles(sizes, "w13", Tile(thread_k=16, thread_n=16, grid=grid), 1).counts

    # eight tiles on six CUDA blocks leave two, and 3 x 2 <= 6: all eight share the grid, in stripes of ceil(2 x 8 / 6) = 3
    assert schedule(6) == "single-slice=5,split(2)=3"
    # on five they leave three, which share it alone
    assert schedule(5) == "direct=5,single-slice=3"
    # stripes are whole groups only where a group is less than all of k
    assert schedule(16, group=32) == "split(2)=8"


@pytest.mark.parametrize("count", [4, 5, 10, 99, 100, 101, 400])
def test_effective_shares(count: int) -> None:
    values = np.array([1000.0 + 10 * math.sin(0.3 * i) + i % 7 for i in range(count)])
    lags = math.floor(4 * (count / 100) ** (2 / 9))
    rho = autocorrelations(values, count - 1)
    share = 1 / (1 + 2 * sum((1 - lag / (lags + 1)) * rho[lag - 1] for lag in range(1, lags + 1)))
    found = shape_of(values)
    assert found is not None
    assert (found.effective_share, found.lag1) == (pytest.approx(share, rel=1e-12), pytest.approx(rho[0], rel=1e-12))
    assert 1 <= lags < count


@pytest.mark.parametrize(("rising", "whole"), [(1999, False), (2000, True)])
def test_the_first_2000_samples_are_a_series(rising: int, whole: bool) -> None:
    """A sample that is shorter than all before it: the 2000th is seen, the 2001st is not."""

    def change(rows: Rows) -> None:
        own = cells(rows, process=1, point="mib=1", arm="base", warmup=False)
        at = rows.index(own[-1]) + 1
        rows[at:at] = [dict(own[-1]) for _ in range(rising + 1 - len(own))]
        own = cells(rows, process=1, point="mib=1", arm="base", warmup=False)
        for number, row in enumerate(own):
            row["duration_ns"] = 10**6 + number
        own[-1]["duration_ns"] = 10**5

    (found,) = (x for x in series(seen(with_rows(host(), "samples", change))) if x.largest_tau > 0.99)
    assert (found.operating_point, found.arm, found.largest_tau == 1.0) == ("mib=1", "base", whole)


def test_alignments() -> None:
    ids = (0, 1, 0, -1, 1, 1)
    good = laid_out(ids, (0, 2, 1, 4, 5), 2)
    assert (good.rows, good.experts) == ((0, 2, 1, 4, 5, 6), (0, 1, 1))
    assert laid_out(ids, (0, 1, 4), 2).rows == (0, 6, 1, 4)
    assert laid_out(ids, (), 2).rows == ()
    assert list(alignment_problems(good, ids)) == []
    for route in (-1, 3, 7, 100):
        rows = (0, 2, 1, 4, route, 6)
        odd = Aligned(rows=rows, experts=good.experts, block=2, routes=6)
        assert list(alignment_problems(odd, ids)) == [("valid routes of 0 to 5", f"route {route}")]
    two = Aligned(rows=(0, 9, 1, 4, 3, 6), experts=good.experts, block=2, routes=6)
    assert list(alignment_problems(two, ids)) == [("valid routes of 0 to 5", "route 9")]
