"""The samples against the plan: rows as codes, cut into processes, beside the rows that were planned.

Rules:
1. Points and arms are codes into the protocol's lists; an unplanned block or sample has the key -1.
2. A key stands for (point, block, arm, sample) and nothing else; block -1 (the warm-up) is slot 0.
3. Arms that a process called unsupported at a point are not planned in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from validator.reading.bundle import Bundle
from validator.reading.model import Protocol
from validator.reading.plan import Plan
from validator.reading.processes import ProcessRecord
from validator.reading.routing import Bytes, Routes, bytes_at, derive_routes
from validator.reading.tables import Frame

Ints = NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The rows of one process and attempt."""

    process: int
    attempt: int
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        """The rows as a slice."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a (point, block, arm, sample) becomes a key, and back."""

    points: tuple[str, ...]
    arms: tuple[str, ...]
    blocks: int
    warmup: int
    samples: int

    @property
    def width(self) -> int:
        """Samples that a key leaves room for."""
        return max(self.warmup, self.samples, 1)

    def base(self, point: int, block: int, arm: int) -> int:
        """Give the key of sample 0."""
        return ((point * (self.blocks + 1) + block + 1) * len(self.arms) + arm) * self.width

    def name(self, key: int) -> str:
        """Name what a key stands for."""
        rest, sample = divmod(key, self.width)
        rest, arm = divmod(rest, len(self.arms))
        point, slot = divmod(rest, self.blocks + 1)
        return f"point={self.points[point]} block={slot - 1} arm={self.arms[arm]} sample={sample}"

    def arm_of(self, keys: Ints) -> Ints:
        """Give the (point, arm) cell of keys, as point * arms + arm."""
        rest = keys // self.width
        return (rest // len(self.arms) // (self.blocks + 1)) * len(self.arms) + rest % len(self.arms)

    def is_warmup(self, keys: Ints) -> NDArray[np.bool_]:
        """Say which keys are those of a warm-up."""
        return np.asarray(keys // self.width // len(self.arms) % (self.blocks + 1) == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRows:
    """The samples in memory; ``sorted`` says whether processes and attempts ascended."""

    point: Ints
    arm: Ints
    columns: Mapping[str, NDArray[np.generic]]
    segments: tuple[Segment, ...]
    layout: Layout
    sorted: bool

    def ints(self, column: str, segment: Segment) -> NDArray[np.int64]:
        """Give a column of one segment as int64."""
        return self.columns[column][segment.rows].astype(np.int64)

    def flags(self, column: str, segment: Segment) -> NDArray[np.bool_]:
        """Give a boolean column of one segment."""
        return self.columns[column][segment.rows].astype(np.bool_)

    def cells(self, segment: Segment) -> NDArray[np.int64]:
        """Give the (point, arm) cell of every row, as point * arms + arm; -1 for unknown names."""
        point, arm = self.point[segment.rows].astype(np.int64), self.arm[segment.rows]
        return np.where((point >= 0) & (arm >= 0), point * len(self.layout.arms) + arm, -1)

    def by_cell(self, segment: Segment, *, timed: bool = False) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Give every (point, arm) cell with its rows in order, counted from the segment's start; ``timed`` leaves warm-ups out."""
        cells = self.cells(segment)
        rows = np.flatnonzero(~self.flags("warmup", segment)) if timed else np.arange(len(cells))
        rows = rows[np.argsort(cells[rows], kind="stable")]
        edges = np.flatnonzero(np.diff(cells[rows], prepend=-2, append=-2))
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if cells[rows[start]] >= 0:
                yield int(cells[rows[start]]), rows[start:stop]

    def timed_cells(self, segment: Segment) -> list[int]:
        """Give the (point, arm) cells that have timed rows, ascending."""
        cells = self.cells(segment)[~self.flags("warmup", segment)]
        present: list[int] = np.flatnonzero(np.bincount(cells[cells >= 0])).tolist()
        return present

    def keys(self, segment: Segment) -> NDArray[np.int64]:
        """Give the key of every row; -1 where block or sample are outside of what can be planned."""
        layout = self.layout
        point, arm = self.point[segment.rows].astype(np.int64), self.arm[segment.rows].astype(np.int64)
        block, sample = self.ints("block", segment), self.ints("sample", segment)
        key = ((point * (layout.blocks + 1) + block + 1) * len(layout.arms) + arm) * layout.width + sample
        limit = np.where(block < 0, layout.warmup, layout.samples)
        good = (block >= -1) & (block < layout.blocks) & (sample >= 0) & (sample < limit) & (point >= 0) & (arm >= 0)
        return np.where(good, key, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A readable bundle: what was planned beside what was recorded."""

    bundle: Bundle
    protocol: Protocol
    plan: Plan
    rows: SampleRows
    routes: Mapping[str, Routes]
    layer: Mapping[str, Bytes]

    @property
    def pairs(self) -> int:
        """Process pairs that the run was to take: all that are planned, or the first so many where it ended at a locked look."""
        held = {record.process for record in self.bundle.processes or ()}
        ended = len(held) in self.protocol.statistics.looks and held == set(range(len(held)))
        return len(held) if ended else self.protocol.process_pairs

    def records(self) -> Iterator[tuple[ProcessRecord, Segment]]:
        """Give every process record with its rows (none is an empty segment)."""
        known = {(segment.process, segment.attempt): segment for segment in self.rows.segments}
        for record in self.bundle.processes or ():
            key = (record.process, record.attempt)
            yield record, known.get(key, Segment(process=key[0], attempt=key[1], start=0, stop=0))

    def planned(self, record: ProcessRecord) -> NDArray[np.int64]:
        """Give the keys that a process was to write, in planned order; none for an unplanned process."""
        layout = self.rows.layout
        absent = set(record.unsupported)
        bases: list[int] = []
        lengths: list[int] = []
        points = {name: i for i, name in enumerate(layout.points)}
        arms = {name: i for i, name in enumerate(layout.arms)}
        if not 0 <= record.process < len(self.plan.processes):
            return np.empty(0, dtype=np.int64)
        for planned in self.plan.processes[record.process].points:
            for block, order in enumerate((planned.warmup, *planned.blocks), start=-1):
                for arm in order:
                    if (planned.point, arm) not in absent:
                        bases.append(layout.base(points[planned.point], block, arms[arm]))
                        lengths.append(layout.warmup if block < 0 else layout.samples)
        count = np.array(lengths, dtype=np.int64)
        starts = np.repeat(np.cumsum(count) - count, count)
        return np.repeat(np.array(bases, dtype=np.int64), count) + np.arange(int(count.sum())) - starts

    def completed(self, record: ProcessRecord, segment: Segment) -> NDArray[np.bool_]:
        """Say for each point of the protocol whether all its planned rows are there."""
        layout = self.rows.layout
        per_point = layout.base(1, -1, 0)
        planned = self.planned(record)
        keys = self.rows.keys(segment)
        present = planned if np.array_equal(keys, planned) else np.intersect1d(planned, keys)
        wanted = np.bincount(planned // per_point, minlength=len(layout.points))
        got = np.bincount(present // per_point, minlength=len(layout.points))
        return np.asarray((got == wanted) & (wanted > 0))


def view(bundle: Bundle, protocol: Protocol, plan: Plan, samples: Frame) -> View:
    """Set the samples of a bundle beside its plan."""
    routes = {}
    layer = {}
    for point in protocol.points:
        derived = derive_routes(protocol, point)
        if derived is not None:
            routes[point.id] = derived
        distinct = len(np.unique(derived.experts)) if derived is not None else _recorded(bundle, point.id)
        layer[point.id] = bytes_at(protocol, point, distinct)
    return View(
        bundle=bundle,
        protocol=protocol,
        plan=plan,
        rows=_sample_rows(protocol, samples),
        routes=routes,
        layer=layer,
    )


def _recorded(bundle: Bundle, point: str) -> int:
    frame = bundle.frame("routing")
    if frame is None:
        return 0
    here = frame.texts["point"].recoded([point]) == 0
    return len(np.unique(frame.numbers["expert"][here]))


def _sample_rows(protocol: Protocol, frame: Frame) -> SampleRows:
    layout = Layout(
        points=tuple(point.id for point in protocol.points),
        arms=tuple(arm.name for arm in protocol.arms),
        blocks=protocol.blocks,
        warmup=protocol.warmup_samples,
        samples=protocol.samples_per_block,
    )
    point = frame.texts["point"].recoded(layout.points)
    arm = frame.texts["arm"].recoded(layout.arms)
    columns = dict(frame.numbers)
    ascending, changes = _changes(columns)
    if not ascending:
        order = np.lexsort((columns["attempt"], columns["process"]))
        point, arm = point[order], arm[order]
        columns = {name: values[order] for name, values in columns.items()}
        changes = _changes(columns)[1]
    edges = [0, *changes, frame.rows] if frame.rows else [0]
    segments = tuple(
        Segment(
            process=int(columns["process"][start]),
            attempt=int(columns["attempt"][start]),
            start=start,
            stop=stop,
        )
        for start, stop in pairwise(edges)
    )
    return SampleRows(point=point, arm=arm, columns=columns, segments=segments, layout=layout, sorted=ascending)


def _changes(columns: Mapping[str, NDArray[np.generic]]) -> tuple[bool, list[int]]:
    """Say whether (process, attempt) ascends, and where it changes."""
    process, attempt = columns["process"].astype(np.int32), columns["attempt"].astype(np.int32)
    up = process[1:] > process[:-1]
    same = process[1:] == process[:-1]
    ascending = bool(np.all(up | (same & (attempt[1:] >= attempt[:-1]))))
    return ascending, (np.flatnonzero(~same | (attempt[1:] != attempt[:-1])) + 1).tolist()
