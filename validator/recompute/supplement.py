"""What the tables say beyond the claims: errors against every truth, what was launched, shares of stages, power and clocks, drift.

Rules:
1. Nothing here enters a verdict, a gate or validity; nothing of it stands in analysis.json.
2. Errors are the worst over the processes and stages of the analysed attempts; a number that is not finite is null.
3. The share of a component is its median time over the sum of the medians of all components at the point.
4. Bookkeeping is what the stages sort, pad, gather, scatter and combine take of that sum (``params.stage`` of a component).
5. Kernel names, scratch and launches are those of the first analysed process; another one's differ nowhere (``KERNEL_IDENTITY``).
6. What repacking costs stands in processes.parquet, once for each arm that repacks and each process.
7. The share of the software power cap (throttle bit 0x4) is over the point's telemetry rows of timed blocks.
"""

import math
from collections.abc import Iterator

import numpy as np

from validator.findings import ArmSummary, Numbers
from validator.reading.rows import View
from validator.reading.tables import Frame
from validator.recompute.invariance import TRUTH, invariance
from validator.recompute.measure import measure
from validator.recompute.series import series
from validator.supplement import (
    Accuracy,
    Bookkeeping,
    Ceiling,
    Launches,
    PowerCap,
    Repacking,
    StageShare,
    Supplement,
    Uneven,
)

_POWER_CAP = 0x4
_MANY_TIMES = 5
_BOOKKEEPING = ("sort", "pad", "gather", "scatter", "combine")


def supplement(view: View, numbers: Numbers) -> Supplement:
    """Give all parts; empty where the bundle has no rows for them."""
    return Supplement(
        accuracy=tuple(_accuracy(view)),
        stages=tuple(_stages(numbers.arms)),
        bookkeeping=tuple(_bookkeeping(view, numbers.arms)),
        launches=tuple(_launches(view, numbers.arms)),
        repacking=tuple(_repacking(view)),
        invariance=tuple(dict.fromkeys(invariance(view).values())),
        power_cap=tuple(_power_cap(view)),
        ceilings=tuple(_ceilings(view, numbers.arms)),
        uneven=tuple(_uneven(view)),
        series=tuple(series(view)),
    )


def _accuracy(view: View) -> Iterator[Accuracy]:
    frame = view.bundle.frame("correctness")
    if frame is None:
        return
    analysed = {(record.process, record.attempt) for record, _ in view.records() if record.analysed}
    rows: dict[tuple[str, str, str], list[int]] = {}
    for row in range(frame.rows):
        if frame.process(row) in analysed and frame.text("truth", row) != TRUTH:
            key = (frame.text("point", row), frame.text("arm", row), frame.text("truth", row))
            rows.setdefault(key, []).append(row)
    for point in view.protocol.points:
        for arm in view.protocol.arms_at(point.id):
            for (at, name, truth), found in rows.items():
                if (at, name) == (point.id, arm.name):
                    yield Accuracy(
                        operating_point=at,
                        arm=name,
                        truth=truth,
                        min_cosine=_worst(frame, "min_cosine", found, largest=False),
                        max_abs_error=_worst(frame, "max_abs_error", found, largest=True),
                        rel_error=_worst(frame, "rel_error", found, largest=True),
                    )


def _worst(frame: Frame, column: str, rows: list[int], *, largest: bool) -> float | None:
    values = [frame.real(column, row) for row in rows]
    if not all(math.isfinite(value) for value in values):
        return None
    return max(values) if largest else min(values)


def _ceilings(view: View, arms: tuple[ArmSummary, ...]) -> Iterator[Ceiling]:
    kinds = {arm.name: arm.ceiling for arm in view.protocol.arms if arm.ceiling is not None}
    for item in arms:
        kind = kinds.get(item.arm)
        if kind is not None and item.gb_per_s is not None:
            yield Ceiling(
                operating_point=item.operating_point,
                arm=item.arm,
                counted="read + write" if kind == "copy" else "read",
                gb_per_s=item.gb_per_s,
                gib_per_s=item.gb_per_s * 1e9 / 2**30,
                one_way_gb_per_s=item.gb_per_s / 2 if kind == "copy" else item.gb_per_s,
            )


def _uneven(view: View) -> Iterator[Uneven]:
    """Flag the arms of a process whose largest timed sample is more than five times their median; nothing is dropped."""
    for (process, point, arm), cell in measure(view).cells.items():
        if cell.whole_ns > 0 and cell.most_ns > _MANY_TIMES * cell.whole_ns:
            yield Uneven(
                operating_point=point,
                arm=arm,
                process=process,
                samples=cell.samples,
                median_ns=cell.whole_ns,
                largest_ns=cell.most_ns,
            )


def _stages(arms: tuple[ArmSummary, ...]) -> Iterator[StageShare]:
    components = [(arm, arm.median_ns) for arm in arms if arm.role == "component" and arm.median_ns is not None]
    sums: dict[str, float] = {}
    for arm, middle in components:
        sums[arm.operating_point] = sums.get(arm.operating_point, 0.0) + middle
    for arm, middle in components:
        total = sums[arm.operating_point]
        yield StageShare(
            operating_point=arm.operating_point,
            arm=arm.arm,
            median_ns=middle,
            percent_of_stages=100 * middle / total,
        )


def _bookkeeping(view: View, arms: tuple[ArmSummary, ...]) -> Iterator[Bookkeeping]:
    components = {arm.name: arm for arm in view.protocol.arms if arm.stage is not None and arm.part_of is not None}
    times = {(arm.operating_point, arm.arm): arm.median_ns for arm in arms}
    for point in view.protocol.points:
        paths = dict.fromkeys(arm.part_of for arm in components.values())
        for path in paths:
            mine = [
                (arm, times.get((point.id, name)) or 0.0) for name, arm in components.items() if arm.part_of == path
            ]
            total = sum(time for _, time in mine)
            if path is not None and total:
                yield Bookkeeping(
                    operating_point=point.id,
                    path=path,
                    path_ns=times.get((point.id, path)),
                    stages_ns=total,
                    percent_bookkeeping=100 * sum(time for arm, time in mine if arm.stage in _BOOKKEEPING) / total,
                )


def _launches(view: View, arms: tuple[ArmSummary, ...]) -> Iterator[Launches]:
    frame = view.bundle.frame("kernels")
    if frame is None:
        return
    names: dict[tuple[str, str], dict[tuple[int, int], list[str]]] = {}
    analysed = {(record.process, record.attempt) for record, _ in view.records() if record.analysed}
    for row in range(frame.rows):
        if frame.process(row) in analysed:
            cell = names.setdefault((frame.text("point", row), frame.text("arm", row)), {})
            cell.setdefault(frame.process(row), []).append(frame.text("name", row))
    tokens = {point.id: view.protocol.tokens(point) for point in view.protocol.points}
    for arm in arms:
        processes = names.get((arm.operating_point, arm.arm))
        if processes:
            batch = tokens[arm.operating_point]
            yield Launches(
                operating_point=arm.operating_point,
                arm=arm.arm,
                kernels=" + ".join(next(iter(processes.values()))),
                scratch_bytes_per_token=arm.scratch_bytes / batch if arm.scratch_bytes is not None and batch else None,
                issued_gb_per_s=arm.issued_bytes / arm.median_ns if arm.issued_bytes and arm.median_ns else None,
            )


def _repacking(view: View) -> Iterator[Repacking]:
    """Give the one-time cost of arms that repack weights, over the analysed attempts; bytes are the largest that one states."""
    stated: dict[str, list[tuple[int, int]]] = {}
    for record, _ in view.records():
        for name, elapsed, size in record.repacking if record.analysed else ():
            stated.setdefault(name, []).append((elapsed, size))
    for arm in view.protocol.arms:
        if found := stated.get(arm.name):
            times = [elapsed for elapsed, _ in found]
            yield Repacking(
                arm=arm.name,
                processes=len(found),
                median_ns=float(np.median(times)),
                least_ns=min(times),
                most_ns=max(times),
                bytes=max(size for _, size in found),
            )


def _power_cap(view: View) -> Iterator[PowerCap]:
    frame = view.bundle.frame("telemetry")
    if frame is None:
        return
    points = view.rows.layout.points
    place = frame.texts["point"].recoded(points)
    timed = frame.numbers["block"].astype(np.int64) >= 0
    capped = (frame.numbers["throttle_reasons"].astype(np.int64) & _POWER_CAP) != 0
    clocks = frame.numbers["sm_clock_mhz"].astype(np.int64)
    for index, point in enumerate(points):
        here = timed & (place == index)
        if here.any():
            yield PowerCap(
                operating_point=point,
                percent_of_rows=100 * float(capped[here].mean()),
                least_sm_mhz=int(clocks[here].min()),
                median_sm_mhz=float(np.median(clocks[here])),
                most_sm_mhz=int(clocks[here].max()),
            )
