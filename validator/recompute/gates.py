"""Gates: what makes a point inconclusive. They never touch validity.

Rules: results/README.md "Gates", in the order of that table; ``detail`` is text for people.
"""

from collections.abc import Iterator

import numpy as np

from validator.findings import Gate
from validator.reading.model import CONTROLS
from validator.reading.rows import View
from validator.recompute.invariance import invariance
from validator.recompute.measure import Measurements
from validator.recompute.pairing import COARSE, Pair
from validator.recompute.statistics import Estimate

_SLOWDOWN = 0x8 | 0x20 | 0x40 | 0x80
DOSE_LOW, DOSE_HIGH = 1.2, 1.8


def gates_of(
    view: View, measured: Measurements, item: Pair, controls: tuple[Pair, ...], *, alpha: float
) -> tuple[Gate, ...]:
    """Give the gates that fire for a comparison at a point; ``controls`` are the controls at that point."""
    found = [
        *too_few_pairs(item, alpha),
        *_processes(view, measured, item),
        *_determinism(view, measured, item),
        *spread(item, measured.resolution_ns),
        *_controls(view, controls),
        *_dose(view, measured, controls),
        *_clocks(view, measured, item),
    ]
    return tuple(found)


def too_few_pairs(item: Pair, alpha: float) -> Iterator[Gate]:
    """Fire where K is too small for a verdict at this level."""
    least = 5 if alpha > 0.025 else 6
    if len(item.processes) < least:
        yield Gate(gate="too_few_pairs", detail=f"{len(item.processes)} complete pairs, at least {least} are needed")


def _processes(view: View, measured: Measurements, item: Pair) -> Iterator[Gate]:
    failed = [
        record.process
        for record in measured.records
        if record.status == "failed" and (record.process, item.point) not in measured.completed
    ]
    if failed:
        names = ", ".join(map(str, failed))
        yield Gate(gate="failed_process", detail=f"process {names} failed before it completed the point")
    needed = {item.arm, item.other}
    needed |= {arm.name for arm in view.protocol.arms_at(item.point) if arm.role in CONTROLS}
    absent = sorted(
        {
            arm
            for record in measured.records
            for point, arm in record.unsupported
            if point == item.point and arm in needed
        }
    )
    if absent:
        yield Gate(gate="unsupported", detail=", ".join(absent) + " cannot run at this point")


def _determinism(view: View, measured: Measurements, item: Pair) -> Iterator[Gate]:
    for name in (item.arm, item.other):
        tolerance = view.protocol.arm(name).tolerance
        distinct = len(_outputs(view, measured, item.point, name)) if tolerance and tolerance.deterministic else 0
        if distinct > 1:
            yield Gate(gate="determinism", detail=f"{name} claims to be deterministic and gave {distinct} outputs")
            return
        if tolerance is None or not tolerance.batch_invariant:
            continue
        among = invariance(view).get((name, item.point))
        if among is not None and among.outputs > 1:
            seen = f"{among.equal} of {among.tested} batches equal, {among.outputs} outputs of token 0"
            yield Gate(gate="determinism", detail=f"{name} claims to be batch-invariant: {seen}")
            return


def _outputs(view: View, measured: Measurements, point: str, arm: str) -> set[str]:
    """Give the outputs of an arm's repeats, and those that were compared with its truth: all of one call."""
    truth, found = view.protocol.tolerance_of(view.protocol.arm(arm)).truth, set()
    for name in ("repeats", "correctness"):
        frame = view.bundle.frame(name)
        for row in range(frame.rows if frame is not None else 0):
            assert frame is not None
            here = (frame.text("point", row), frame.text("arm", row)) == (point, arm)
            asked = name == "repeats" or frame.text("truth", row) == truth
            if here and asked and measured.analysed(*frame.process(row)):
                found.add(frame.text("output_sha256", row))
    return found


def spread(item: Pair, resolution_ns: int) -> Iterator[Gate]:
    """Fire where the ratios have no spread, or the timer is too coarse for the margin."""
    if item.estimate.zero_spread:
        yield Gate(gate="zero_spread", detail="all processes gave the same ratio, to the last bit")
    if item.fineness is not None and item.fineness < COARSE:
        detail = f"the margin is {item.fineness:.2f} steps of {resolution_ns} ns, at least 2 are needed"
        yield Gate(gate="timer_resolution", detail=detail)


def inside(estimate: Estimate, margin: float) -> bool:
    """Say whether an interval lies inside 1/(1+d) to 1+d."""
    if estimate.lower is None or estimate.upper is None:
        return False
    return 1 / (1 + margin) < estimate.lower and estimate.upper < 1 + margin


def seen(estimate: Estimate, margin: float) -> bool:
    """Say whether a positive control was seen: slower, and not shown to be within the margin."""
    if estimate.lower is None or estimate.lower <= 1:
        return False
    return estimate.unbounded or (estimate.upper is not None and estimate.upper >= 1 + margin)


def _controls(view: View, controls: tuple[Pair, ...]) -> Iterator[Gate]:
    margin = view.protocol.margin
    for role in CONTROLS:
        for control in controls:
            if view.protocol.arm(control.arm).role != role:
                continue
            found = control.estimate
            lower, upper = found.lower, found.upper
            good = inside(found, margin) if role == "aa_control" else seen(found, margin)
            if not good:
                shown = "no interval" if lower is None else f"{lower:.6g} to {upper if upper else float('inf'):.6g}"
                detail = f"{control.arm}: {shown}, " + ("not inside the margin" if role == "aa_control" else "not seen")
                yield Gate(gate=role, detail=detail)
                break


def _dose(view: View, measured: Measurements, controls: tuple[Pair, ...]) -> Iterator[Gate]:
    for control in controls:
        if view.protocol.arm(control.arm).role != "positive_control":
            continue
        for process in control.processes:
            cell = measured.cells[(process, control.point, control.arm)]
            unit = view.protocol.margin * measured.cells[(process, control.point, control.other)].whole_ns
            if cell.injected_low < DOSE_LOW * unit or cell.injected_high > DOSE_HIGH * unit:
                doses = dict.fromkeys((cell.injected_low, cell.injected_high))
                shown = " to ".join(str(dose) for dose in doses)
                detail = f"process {process}: {control.arm} injected {shown} ns, planned 1.2 to 1.8 times {unit:.0f} ns"
                yield Gate(gate="control_dose", detail=detail)
                return


def _clocks(view: View, measured: Measurements, item: Pair) -> Iterator[Gate]:
    frame = view.bundle.frame("telemetry")
    if frame is None:
        return
    attempts = {(record.process, record.attempt) for record in measured.records}
    process, attempt = (frame.numbers[name].astype(np.int64) for name in ("process", "attempt"))
    mine = np.zeros(frame.rows, dtype=np.bool_)
    for number, last in attempts:
        mine |= (process == number) & (attempt == last)
    block = frame.numbers["block"].astype(np.int64)
    here = mine & (frame.texts["point"].recoded([item.point]) == 0) & (block >= 0)
    if not here.any():
        return
    blocks = np.stack([process[here], block[here]], axis=1)
    slowed = (frame.numbers["throttle_reasons"].astype(np.int64)[here] & _SLOWDOWN) != 0
    total, bad = (len(np.unique(rows, axis=0)) for rows in (blocks, blocks[slowed]))
    clock = frame.numbers["sm_clock_mhz"].astype(np.float64)
    arms = frame.texts["arm"].recoded([item.arm, item.other])
    medians = [float(np.median(clock[here & (arms == i)])) if (here & (arms == i)).any() else 0.0 for i in (0, 1)]
    apart = min(medians) > 0 and 50 * abs(medians[0] - medians[1]) > medians[1]
    if 20 * bad > total:
        yield Gate(gate="clocks", detail=f"slowed down by hardware or heat in {bad} of {total} blocks")
    elif apart:
        detail = f"median SM clock {medians[0]:g} MHz for {item.arm}, {medians[1]:g} MHz for {item.other}"
        yield Gate(gate="clocks", detail=detail)
