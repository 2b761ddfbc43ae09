"""Telemetry: both edges of everything that was timed, or none at all where the machine has none to give.

Rules:
1. If one analysed process has telemetry, all have: a row ``before`` and a row ``after``, once each, for every timed
   (point, block, arm) of every point that the process completed, and none for anything that was not timed.
2. A CUDA device on the event clock always has telemetry; elsewhere a bundle without a row is not applicable.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from validator.findings import Finding, NotApplicable
from validator.reading.processes import ProcessRecord
from validator.reading.rows import Segment, View
from validator.reading.tables import Frame
from validator.reasons import Reason

_EDGES = ("before", "after")


def check_telemetry(view: View, frame: Frame, not_applicable: list[NotApplicable]) -> Iterator[Finding]:
    """Compare the telemetry of every analysed process with what it timed."""
    attempts = [(record, segment) for record, segment in view.records() if record.analysed]
    cuda = view.protocol.clock == "cuda-event" and any(r.environment.device == "cuda" for r, _ in attempts)
    if not frame.rows and not cuda:
        not_applicable.append(NotApplicable(check="clocks", why="no telemetry"))
        return
    process, attempt = (frame.numbers[name].astype(np.int64) for name in ("process", "attempt"))
    cells = _recorded(view, frame)
    for record, segment in attempts:
        wanted = _timed(view, record, segment)
        mine = cells[(process == record.process) & (attempt == record.attempt)]
        missing = np.setdiff1d(wanted, mine)
        if len(missing):
            where = f"telemetry.parquet {record.name} {_name(view, int(missing[0]))}"
            expected = f"{len(wanted)} rows, before and after every timed block of every arm"
            yield Finding(
                reason=Reason.ROWS_MISSING, where=where, expected=expected, got=f"{len(missing)} rows missing"
            )
        yield from _surplus(view, record, segment, mine)


def _surplus(view: View, record: ProcessRecord, segment: Segment, mine: NDArray[np.int64]) -> Iterator[Finding]:
    """Find telemetry that stands twice, or of something that was not timed: it would thin out the bad readings."""
    distinct, counts = np.unique(mine, return_counts=True)
    doubled = distinct[(counts > 1) & (distinct >= 0)]
    if len(doubled):
        where = f"telemetry.parquet {record.name} {_name(view, int(doubled[0]))}"
        got = f"{int(counts[distinct == doubled[0]][0])} times ({len(doubled)} doubled)"
        yield Finding(reason=Reason.ROWS_DUPLICATED, where=where, expected="once", got=got)
    timed = _timed(view, record, segment, whole=False)
    stray = np.flatnonzero(~np.isin(mine, timed))
    if len(stray):
        code = int(mine[stray[0]])
        what = _name(view, code) if code >= 0 else "a block that was not planned"
        where = f"telemetry.parquet {record.name}"
        got = f"{what} ({len(stray)} rows)"
        yield Finding(reason=Reason.ORDER_NOT_AS_PLANNED, where=where, expected="rows of what was timed", got=got)


def _codes(view: View, point: NDArray[np.int64], block: NDArray[np.int64], arm: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give a code for (point, block, arm), with room for the edge."""
    return ((point * view.protocol.blocks + block) * len(view.protocol.arms) + arm) * len(_EDGES)


def _recorded(view: View, frame: Frame) -> NDArray[np.int64]:
    layout = view.rows.layout
    point, arm = frame.texts["point"].recoded(layout.points), frame.texts["arm"].recoded(layout.arms)
    edge, block = frame.texts["edge"].recoded(_EDGES), frame.numbers["block"].astype(np.int64)
    good = (point >= 0) & (arm >= 0) & (edge >= 0) & (block >= 0) & (block < layout.blocks)
    return np.where(good, _codes(view, point.astype(np.int64), block, arm.astype(np.int64)) + edge, -1)


def _timed(view: View, record: ProcessRecord, segment: Segment, *, whole: bool = True) -> NDArray[np.int64]:
    """Give the codes, with both edges, of what a process timed at the points that it completed (or at all points)."""
    point = view.rows.point[segment.rows].astype(np.int64)
    arm, block = view.rows.arm[segment.rows].astype(np.int64), view.rows.ints("block", segment)
    done = np.append(view.completed(record, segment) | (not whole), False)
    timed = (
        ~view.rows.flags("warmup", segment) & done[point] & (arm >= 0) & (block >= 0) & (block < view.protocol.blocks)
    )
    before = np.unique(_codes(view, point[timed], block[timed], arm[timed]))
    return np.concatenate([before, before + 1])


def _name(view: View, code: int) -> str:
    rest, edge = divmod(code, len(_EDGES))
    rest, arm = divmod(rest, len(view.protocol.arms))
    point, block = divmod(rest, view.protocol.blocks)
    layout = view.rows.layout
    return f"point={layout.points[point]} block={block} arm={layout.arms[arm]} edge={_EDGES[edge]}"
