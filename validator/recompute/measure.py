"""The measured cells: what the analysed attempts recorded, by process, point and arm.

Rules:
1. Only the last attempt of a process is analysed; warm-up rows never count.
2. A median (and the quantile, where one is claimed) is taken over all timed rows of a cell; nothing is dropped.
3. Quantile of x_1 <= .. <= x_n: h = (n - 1) p + 1 (type 7) or (n + 1/3) p + 1/3 (type 8), clipped to [1, n];
   x_floor(h) + (h - floor(h)) (x_(floor(h) + 1) - x_floor(h)).
4. A process counts at a point when all its planned rows of that point are there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from validator.reading.processes import ProcessRecord
from validator.reading.rows import Segment, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The timed rows of one process, point and arm."""

    samples: int
    whole_ns: float
    claimed_ns: float
    calls: int
    least_ns: int
    most_ns: int
    injected_low: int
    injected_high: int
    injected_ns: float

    @property
    def per_call_ns(self) -> float:
        """The median of a sample, by call."""
        return self.whole_ns / self.calls

    @property
    def claimed_per_call_ns(self) -> float:
        """What a claim is about: the median, or the locked quantile, by call."""
        return self.claimed_ns / self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """All cells, which processes completed which point, and the resolution of the timer."""

    cells: Mapping[tuple[int, str, str], Cell]
    records: tuple[ProcessRecord, ...]
    completed: frozenset[tuple[int, str]]
    resolution_ns: int

    def processes(self, point: str, *arms: str) -> tuple[int, ...]:
        """Give the processes that completed a point and have rows of all the arms in it."""
        return tuple(
            record.process
            for record in self.records
            if (record.process, point) in self.completed
            and all((record.process, point, arm) in self.cells for arm in arms)
        )

    def up_to(self, processes: int, *, resolution_ns: int) -> "Measurements":
        """Give the same as if no process from that number on existed, with the timer's resolution by the rows that remain."""
        return replace(
            self,
            resolution_ns=resolution_ns,
            records=tuple(record for record in self.records if record.process < processes),
            completed=frozenset(pair for pair in self.completed if pair[0] < processes),
        )

    def analysed(self, process: int, attempt: int) -> bool:
        """Say whether a row of another table belongs to an analysed attempt."""
        return any(record.process == process and record.attempt == attempt for record in self.records)


def measure(view: View) -> Measurements:
    """Reduce the samples to cells."""
    cells: dict[tuple[int, str, str], Cell] = {}
    completed = set()
    records = []
    for record, segment in sorted(view.records(), key=lambda item: item[0].process):
        if not record.analysed:
            continue
        records.append(record)
        done = view.completed(record, segment)
        completed |= {
            (record.process, name) for name, whole in zip(view.rows.layout.points, done, strict=True) if whole
        }
        cells.update(_cells(view, record, segment))
    return Measurements(
        cells=cells, records=tuple(records), completed=frozenset(completed), resolution_ns=resolution(view)
    )


def _cells(view: View, record: ProcessRecord, segment: Segment) -> dict[tuple[int, str, str], Cell]:
    layout, rules = view.rows.layout, view.protocol.statistics
    timed = np.flatnonzero(~view.rows.flags("warmup", segment))
    cells = view.rows.cells(segment)[timed]
    duration = view.rows.ints("duration_ns", segment)[timed]
    injected = view.rows.ints("injected_ns", segment)[timed]
    order = np.lexsort((duration, cells))
    edges = np.flatnonzero(np.diff(cells[order], prepend=-2, append=-2)).tolist()
    result = {}
    for start, stop in pairwise(edges):
        rows = order[start:stop]
        cell = int(cells[rows[0]])
        if cell < 0:
            continue
        point, arm = divmod(cell, len(layout.arms))
        values = duration[rows]
        delays = np.sort(injected[rows])
        result[(record.process, layout.points[point], layout.arms[arm])] = Cell(
            samples=len(rows),
            whole_ns=_middle(values),
            claimed_ns=_middle(values)
            if rules.quantile is None
            else quantile(values, rules.quantile, rules.quantile_type),
            calls=view.protocol.arms[arm].calls,
            least_ns=int(values[0]),
            most_ns=int(values[-1]),
            injected_low=int(delays[0]),
            injected_high=int(delays[-1]),
            injected_ns=_middle(delays),
        )
    return result


def quantile(ordered: NDArray[np.int64], p: float, kind: int) -> float:
    """Give the quantile of ascending integers by one of the two types that a protocol can lock."""
    count = len(ordered)
    place = (count - 1) * p + 1 if kind == 7 else (count + 1 / 3) * p + 1 / 3
    place = min(max(place, 1.0), float(count))
    below = int(place)
    value, after = int(ordered[below - 1]), int(ordered[min(below, count - 1)])
    return value + (place - below) * (after - value)


def _middle(ordered: NDArray[np.int64]) -> float:
    """Give the median of ascending integers: of an even count the mean of the two middle ones."""
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return (int(ordered[middle - 1]) + int(ordered[middle])) / 2


def resolution(view: View, *, up_to: int | None = None) -> int:
    """Give the smallest positive difference between distinct durations (of the first processes), else the largest clock tick."""
    durations = view.rows.columns["duration_ns"]
    ordered = np.sort(durations if up_to is None else durations[view.rows.columns["process"].astype(np.int64) < up_to])
    gaps = np.diff(ordered.astype(np.int64))
    gaps = gaps[gaps > 0]
    if len(gaps):
        return int(gaps.min())
    ticks = (r.clock_tick_ns for r in view.bundle.processes or () if up_to is None or r.process < up_to)
    return max(ticks, default=0)
