"""The table of arms: times, bytes, bandwidths and errors of every arm at every point.

Rules:
1. ``gb_per_s`` counts each distinct expert's bytes once; percentages are of ceilings of the same process and point.
2. An arm without a timed sample has no numbers at all.
3. Kernels, scratch (the arm's, the same in every row) and repeats are those of one process (the first that has rows);
   outputs and modes are over all, and null where no row names one.
"""

import math
from collections.abc import Iterable

from validator.findings import ArmSummary
from validator.reading.model import Arm, Point
from validator.reading.routing import Bytes, bytes_of_arm
from validator.reading.rows import View
from validator.reading.tables import Frame
from validator.recompute.measure import Measurements
from validator.recompute.statistics import median

_Rows = dict[tuple[str, str], dict[int, list[int]]]


def arms_table(view: View, measured: Measurements) -> tuple[ArmSummary, ...]:
    """Summarise every arm at every point where it stands."""
    correctness, kernels, repeats = (view.bundle.frame(name) for name in ("correctness", "kernels", "repeats"))
    rows = tuple(_by_cell(frame, measured) for frame in (correctness, kernels, repeats))
    return tuple(
        _summary(view, measured, point, arm, rows)
        for point in view.protocol.points
        for arm in view.protocol.arms_at(point.id)
    )


def _by_cell(frame: Frame | None, measured: Measurements) -> _Rows:
    """Group the rows of analysed attempts by point and arm, then process."""
    result: _Rows = {}
    for row in range(frame.rows if frame is not None else 0):
        assert frame is not None
        if measured.analysed(*frame.process(row)):
            cell = (frame.text("point", row), frame.text("arm", row))
            result.setdefault(cell, {}).setdefault(frame.integer("process", row), []).append(row)
    return result


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return median(known) if known else None


def _summary(view: View, measured: Measurements, point: Point, arm: Arm, rows: tuple[_Rows, ...]) -> ArmSummary:
    cells = [measured.cells.get((record.process, point.id, arm.name)) for record in measured.records]
    samples = sum(cell.samples for cell in cells if cell is not None)
    none = dict.fromkeys(ArmSummary.__dataclass_fields__)
    identity = {"operating_point": point.id, "arm": arm.name, "role": arm.role, "samples": samples}
    if not samples:
        return ArmSummary(**(none | identity))  # type: ignore[arg-type]
    counted = bytes_of_arm(arm, view.layer[point.id])
    times = {
        process: measured.cells[(process, point.id, arm.name)] for process in measured.processes(point.id, arm.name)
    }
    sound = all(cell is None or cell.least_ns > 0 for cell in cells)
    middle = _median(cell.per_call_ns for cell in times.values()) if sound else None
    cosine, error = _errors(view, arm, rows[0].get((point.id, arm.name), {}))
    launched = next(iter(rows[1].get((point.id, arm.name), {}).values()), None)
    repeated = rows[2].get((point.id, arm.name), {})
    return ArmSummary(
        operating_point=point.id,
        arm=arm.name,
        role=arm.role,
        median_ns=middle,
        samples=samples,
        unique_bytes=counted.unique,
        issued_bytes=counted.issued,
        gb_per_s=counted.unique / middle if counted.unique is not None and middle else None,
        percent_of_copy=_percent(view, measured, point, arm, counted, "copy"),
        percent_of_read=_percent(view, measured, point, arm, counted, "read"),
        min_cosine=cosine,
        max_abs_error=error,
        kernels=len(launched) if launched else None,
        scratch_bytes=_scratch(view, launched),
        repeats=len(next(iter(repeated.values()))) if repeated else None,
        distinct_outputs=_distinct(view, repeated, "output_sha256"),
        distinct_modes=_distinct(view, repeated, "mode_sha256"),
    )


def _percent(view: View, measured: Measurements, point: Point, arm: Arm, counted: Bytes, kind: str) -> float | None:
    ceiling = next((item for item in view.protocol.arms_at(point.id) if item.ceiling == kind), None)
    if ceiling is None or counted.unique is None:
        return None
    size = bytes_of_arm(ceiling, view.layer[point.id]).unique or 0
    shares = []
    for process in measured.processes(point.id, arm.name, ceiling.name):
        mine = measured.cells[(process, point.id, arm.name)]
        limit = measured.cells[(process, point.id, ceiling.name)]
        if mine.least_ns <= 0 or limit.least_ns <= 0:
            return None
        shares.append((counted.unique / mine.per_call_ns) / (size / limit.per_call_ns))
    middle = _median(shares)
    return None if middle is None else 100 * middle


def _errors(view: View, arm: Arm, rows: dict[int, list[int]]) -> tuple[float | None, float | None]:
    """Give the worst cosine and the worst absolute error under the arm's own truth."""
    frame = view.bundle.frame("correctness")
    truth = view.protocol.tolerance_of(arm).truth
    listed = [row for group in rows.values() for row in group]
    if frame is None:
        return None, None
    own = [row for row in listed if frame.text("truth", row) == truth]
    cosines = [frame.real("min_cosine", row) for row in own]
    errors = [frame.real("max_abs_error", row) for row in own]
    if not own:
        return None, None
    return _finite(min(cosines), cosines), _finite(max(errors), errors)


def _finite(value: float, values: list[float]) -> float | None:
    return value if all(math.isfinite(item) for item in values) else None


def _scratch(view: View, rows: list[int] | None) -> int | None:
    frame = view.bundle.frame("kernels")
    if frame is None or not rows:
        return None
    return frame.integer("scratch_bytes", rows[0])


def _distinct(view: View, rows: dict[int, list[int]], column: str) -> int | None:
    frame = view.bundle.frame("repeats")
    if frame is None or not rows:
        return None
    values = {frame.texts[column].at(row) for group in rows.values() for row in group}
    return len(values - {None}) or None
