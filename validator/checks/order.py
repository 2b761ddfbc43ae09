"""Order: every planned sample stands once, in the planned order.

Rules:
1. A process that is ``ok`` holds the whole plan, any other a prefix of it.
2. The first applicable cause is named: a missing point, a missing arm, warm-ups, calls, duplicates, gaps, order.
   What one cause explains is not reported again under the next.
3. ``seq`` counts rows from 0; it is judged only where nothing else is wrong.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from validator.checks.words import finding
from validator.findings import Finding
from validator.reading.processes import ProcessRecord
from validator.reading.rows import Segment, View
from validator.reasons import Reason


def check_order(view: View) -> Iterator[Finding]:
    """Check the rows of every process and attempt against the plan."""
    if not view.rows.sorted:
        yield finding(
            Reason.ORDER_NOT_AS_PLANNED,
            "samples.parquet",
            "rows ascending by process and attempt",
            "rows of a process between those of another",
        )
    for record, segment in view.records():
        yield from _calls(view, record, segment)
        if segment.stop > segment.start or (record.status == "ok" and record.analysed):
            yield from _segment(view, record, segment)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _calls(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    planned = np.array([arm.calls for arm in view.protocol.arms], dtype=np.int64)
    arm = view.rows.arm[segment.rows]
    calls = view.rows.ints("calls", segment)
    bad = np.flatnonzero((arm >= 0) & (calls != planned[arm]))
    if len(bad):
        row = int(bad[0])
        name = view.protocol.arms[int(arm[row])].name
        where = f"samples.parquet:calls[{segment.start + row}] {record.name} arm={name}"
        yield finding(Reason.CALLS_MISMATCH, where, planned[arm[row]], f"{calls[row]} ({_rows(len(bad))})")


def _segment(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    keys, planned = view.rows.keys(segment), view.planned(record)
    whole = record.status == "ok"
    if not whole and len(keys) <= len(planned):
        planned = planned[: len(keys)]
    if np.array_equal(keys, planned):
        yield from _seq(view, record, segment)
        return
    if not whole:
        planned = _horizon(view.planned(record), keys)
    found = list(_diagnose(view, record, segment, keys, planned))
    if found:
        yield from found
    else:
        yield from _seq(view, record, segment)


def _horizon(planned: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cut the plan after the last planned row that is there."""
    reached = np.flatnonzero(np.isin(planned, keys))
    return planned[: int(reached[-1]) + 1 if len(reached) else 0]


def _diagnose(
    view: View, record: ProcessRecord, segment: Segment, keys: NDArray[np.int64], planned: NDArray[np.int64]
) -> Iterator[Finding]:
    layout = view.rows.layout
    arms = len(layout.arms)
    explained = np.zeros(len(layout.points) * arms, dtype=np.bool_)
    cells = view.rows.cells(segment)
    planned_cells = layout.arm_of(planned)
    if record.status == "ok":
        yield from _absent(view, record, cells, planned_cells, explained)
        wrong = _warmups(view, segment, cells, planned_cells, explained)
        for cell, count in wrong:
            where = f"{record.name} point={layout.points[cell // arms]} arm={layout.arms[cell % arms]}"
            yield finding(Reason.WARMUP_COUNT, where, f"{layout.warmup} warm-up samples", count)
        odd = np.zeros(len(explained), dtype=np.bool_)
        odd[[cell for cell, _ in wrong]] = True
        planned = planned[~explained[planned_cells]]
        planned = planned[~(layout.is_warmup(planned) & odd[layout.arm_of(planned)])]
        keep = ~(view.rows.flags("warmup", segment) & (cells >= 0) & odd[cells])
        keys = keys[keep]
    else:
        keep = np.ones(len(keys), dtype=np.bool_)
    yield from _sets(view, record, keys, planned, np.flatnonzero(keep) + segment.start)


def _absent(
    view: View,
    record: ProcessRecord,
    cells: NDArray[np.int64],
    planned_cells: NDArray[np.signedinteger],
    explained: NDArray[np.bool_],
) -> Iterator[Finding]:
    """Find points and arms without a single row, and mark their cells as explained."""
    layout = view.rows.layout
    arms = len(layout.arms)
    wanted, present = np.unique(planned_cells), np.unique(cells[cells >= 0])
    reported = set()
    for cell in np.setdiff1d(wanted, present).tolist():
        point = layout.points[cell // arms]
        explained[cell] = True
        if np.any(present // arms == cell // arms):
            where = f"{record.name} point={point} arm={layout.arms[cell % arms]}"
            yield finding(Reason.ARM_MISSING, where, "rows of the arm", "none")
        elif point not in reported:
            reported.add(point)
            yield finding(Reason.POINT_MISSING, f"{record.name} point={point}", "rows of the point", "none")


def _warmups(
    view: View,
    segment: Segment,
    cells: NDArray[np.int64],
    planned_cells: NDArray[np.signedinteger],
    explained: NDArray[np.bool_],
) -> list[tuple[int, int]]:
    """Give the (point, arm) cells with another number of distinct warm-up samples."""
    warm = view.rows.flags("warmup", segment) & (cells >= 0)
    sample = view.rows.ints("sample", segment)[warm]
    distinct = np.unique(cells[warm] * 2**31 + np.maximum(sample, 0)) // 2**31
    counts = np.bincount(distinct, minlength=len(explained))
    wanted = np.unique(planned_cells)
    return [
        (cell, int(counts[cell]))
        for cell in wanted.tolist()
        if not explained[cell] and counts[cell] != view.rows.layout.warmup
    ]


def _sets(
    view: View, record: ProcessRecord, keys: NDArray[np.int64], planned: NDArray[np.int64], rows: NDArray[np.int64]
) -> Iterator[Finding]:
    """Compare what is there with what was planned: duplicates, gaps, then order."""
    name = view.rows.layout.name
    distinct, first, counts = np.unique(keys, return_index=True, return_counts=True)
    doubled = distinct[(counts > 1) & (distinct >= 0)]
    if len(doubled):
        key = int(doubled[np.argmin(first[np.searchsorted(distinct, doubled)])])
        got = f"{int(counts[np.searchsorted(distinct, key)])} times ({_rows(len(doubled))} doubled)"
        yield finding(Reason.ROWS_DUPLICATED, f"{record.name} {name(key)}", "once", got)
    missing = planned[~np.isin(planned, distinct)]
    if len(missing):
        where = f"{record.name} {name(int(missing[0]))}"
        yield finding(Reason.ROWS_MISSING, where, _rows(len(planned)), f"{_rows(len(missing))} missing")
    kept = np.zeros(len(keys), dtype=np.bool_)
    kept[first] = True
    kept |= keys < 0
    actual, where_rows = keys[kept], rows[kept]
    expected = planned[np.isin(planned, distinct)]
    same = len(expected)  # each of these is among the actual ones
    differing = np.flatnonzero(actual[:same] != expected)
    if not len(differing) and len(actual) == same:
        return
    at = int(differing[0]) if len(differing) else same
    wanted = name(int(expected[at])) if at < same else "no further row"
    got = name(int(actual[at])) if actual[at] >= 0 else "a row that was not planned"
    where = f"samples.parquet[{where_rows[at]}] {record.name}"
    yield finding(Reason.ORDER_NOT_AS_PLANNED, where, wanted, got)


def _seq(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    seq = view.rows.ints("seq", segment)
    bad = np.flatnonzero(seq != np.arange(len(seq)))
    if len(bad):
        row = int(bad[0])
        where = f"samples.parquet:seq[{segment.start + row}] {record.name}"
        yield finding(Reason.ORDER_NOT_AS_PLANNED, where, row, seq[row])
