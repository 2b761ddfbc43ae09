"""What pictures need beyond the numbers of a report: per-process ratios, distributions, blocks in time, environment.

Rules:
1. Everything is read again from the bundle, by the reader that the checks use; what cannot be read is empty.
2. Nothing is dropped, trimmed or clipped: warm-up rows and attempts that were run again are left out, as in the numbers.
3. Order is that of the protocol; blocks stand in the order in which they ran.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from validator.findings import CouldNotCheckError
from validator.reading.bundle import Bundle, open_bundle
from validator.reading.canonical import parse_toml, read_small
from validator.reading.model import Protocol
from validator.reading.processes import ProcessRecord
from validator.reading.rows import Segment, View, view
from validator.reading.tables import Frame
from validator.recompute.measure import Measurements, measure
from validator.report.surroundings import Surroundings, surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRatio:
    """One process pair of a comparison at a point: medians by call, and their ratio."""

    process: int
    candidate_ns: float
    baseline_ns: float

    @property
    def ratio(self) -> float:
        """Candidate / baseline."""
        return self.candidate_ns / self.baseline_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """All timed samples of an arm at a point, by call, ascending."""

    arm: str
    role: str
    values_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What telemetry around one block of one arm said: the lowest clock, the highest temperature and power."""

    sm_clock_mhz: int
    temperature_c: int
    power_w: float
    throttle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The samples of one arm in one block of one process."""

    process: int
    block: int
    arm: str
    median_ns: float
    start_s: float
    health: Health | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """All of it; empty where the bundle could not be read."""

    title: str = ""
    question: str = ""
    rationale: str = ""
    points: tuple[str, ...] = ()
    ratios: Mapping[tuple[str, str, str], tuple[ProcessRatio, ...]] = field(default_factory=dict)
    spreads: Mapping[str, tuple[Spread, ...]] = field(default_factory=dict)
    blocks: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)
    telemetry: bool = False
    ceilings: Mapping[str, str] = field(default_factory=dict)
    peak_gb_per_s: float | None = None
    surroundings: Surroundings = field(default_factory=Surroundings)


def gather(root: Path) -> Material:
    """Read a bundle for its pictures."""
    try:
        bundle = open_bundle(root)
    except CouldNotCheckError:
        return Material()
    protocol, samples = bundle.protocol, bundle.frame("samples")
    around = surroundings(bundle)
    if bundle.study is not None:
        return Material(title=bundle.study.title, question=bundle.study.question, surroundings=around)
    if protocol is None or bundle.plan is None or samples is None or bundle.processes is None:
        return Material(surroundings=around)
    seen = view(bundle, protocol, bundle.plan, samples)
    measured = measure(seen)
    head = _head(bundle)
    telemetry = bundle.frame("telemetry")
    return Material(
        title=head.get("title", ""),
        question=head.get("question", ""),
        rationale=head.get("margin_rationale", ""),
        points=tuple(point.id for point in protocol.points),
        ratios=dict(_ratios(protocol, measured)),
        spreads=_spreads(seen, measured.records),
        blocks=_blocks(seen, measured.records, telemetry),
        telemetry=telemetry is not None and telemetry.rows > 0,
        ceilings={arm.name: arm.ceiling for arm in protocol.arms if arm.ceiling is not None},
        peak_gb_per_s=protocol.peak_gb_per_s,
        surroundings=around,
    )


def _head(bundle: Bundle) -> Mapping[str, str]:
    """Give the texts of [protocol]; only called where protocol.toml is a regular file that parsed."""
    try:
        table = parse_toml(read_small(bundle.root / "protocol.toml")).get("protocol")
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in table.items() if isinstance(value, str)} if isinstance(table, dict) else {}


def _ratios(
    protocol: Protocol, measured: Measurements
) -> Iterator[tuple[tuple[str, str, str], tuple[ProcessRatio, ...]]]:
    for locked in protocol.comparisons:
        for point in protocol.points:
            names = (locked.candidate, locked.baseline)
            cells = {
                process: tuple(measured.cells[(process, point.id, name)] for name in names)
                for process in measured.processes(point.id, *names)
            }
            sound = all(cell.least_ns > 0 for both in cells.values() for cell in both)
            yield (
                (*names, point.id),
                tuple(
                    ProcessRatio(
                        process=process, candidate_ns=top.claimed_per_call_ns, baseline_ns=bottom.claimed_per_call_ns
                    )
                    for process, (top, bottom) in cells.items()
                    if sound
                ),
            )


def _segments(seen: View, records: tuple[ProcessRecord, ...]) -> Iterator[Segment]:
    chosen = {(record.process, record.attempt) for record in records}
    for record, segment in sorted(seen.records(), key=lambda item: item[0].process):
        if (record.process, record.attempt) in chosen and segment.stop > segment.start:
            yield segment


def _spreads(seen: View, records: tuple[ProcessRecord, ...]) -> dict[str, tuple[Spread, ...]]:
    arms = seen.protocol.arms
    pieces: dict[int, list[NDArray[np.int64]]] = {}
    for segment in _segments(seen, records):
        timed = ~seen.rows.flags("warmup", segment)
        cells = seen.rows.cells(segment)[timed]
        durations = seen.rows.ints("duration_ns", segment)[timed]
        for cell in np.unique(cells[cells >= 0]).tolist():
            pieces.setdefault(cell, []).append(durations[cells == cell])
    result: dict[str, tuple[Spread, ...]] = {}
    for index, point in enumerate(seen.protocol.points):
        found = []
        for place, arm in enumerate(arms):
            values = pieces.get(index * len(arms) + place)
            if values and arm.ceiling is None:
                by_call = np.sort(np.concatenate(values)) / arm.calls
                found.append(Spread(arm=arm.name, role=arm.role, values_ns=by_call))
        if found:
            result[point.id] = tuple(found)
    return result


def _blocks(seen: View, records: tuple[ProcessRecord, ...], telemetry: Frame | None) -> dict[str, tuple[Block, ...]]:
    layout, arms = seen.rows.layout, seen.protocol.arms
    wanted = {name for pair in seen.protocol.comparisons for name in (pair.candidate, pair.baseline)}
    health = _health(telemetry, {(record.process, record.attempt) for record in records}, wanted)
    found: list[tuple[int, str, Block]] = []
    for segment in _segments(seen, records):
        block = seen.rows.ints("block", segment)
        cells = seen.rows.cells(segment)
        keep = ~seen.rows.flags("warmup", segment) & (block >= 0) & (block < layout.blocks) & (cells >= 0)
        durations, starts = (seen.rows.ints(name, segment)[keep] for name in ("duration_ns", "host_start_ns"))
        keys = cells[keep] * layout.blocks + block[keep]
        order = np.argsort(keys, kind="stable")
        edges = np.flatnonzero(np.diff(keys[order], prepend=-1, append=-1)).tolist()
        for start, stop in pairwise(edges):
            rows = order[start:stop]
            cell, number = divmod(int(keys[rows[0]]), layout.blocks)
            point, arm = layout.points[cell // len(arms)], arms[cell % len(arms)]
            if arm.name not in wanted:
                continue
            begin = int(starts[rows].min())
            item = Block(
                process=segment.process,
                block=number,
                arm=arm.name,
                median_ns=float(np.median(durations[rows])) / arm.calls,
                start_s=begin / 1e9,
                health=health.get((segment.process, point, number, arm.name)),
            )
            found.append((begin, point, item))
    found.sort(key=lambda entry: (entry[2].process, entry[0]))
    result: dict[str, list[Block]] = {point: [] for point in layout.points}
    for _, point, item in found:
        result[point].append(item)
    return {point: tuple(items) for point, items in result.items() if items}


def _health(
    frame: Frame | None, attempts: set[tuple[int, int]], arms: set[str]
) -> dict[tuple[int, str, int, str], Health]:
    result: dict[tuple[int, str, int, str], Health] = {}
    for row in range(frame.rows if frame is not None else 0):
        assert frame is not None
        arm = frame.text("arm", row)
        if arm not in arms or frame.process(row) not in attempts:
            continue
        key = (frame.integer("process", row), frame.text("point", row), frame.integer("block", row), arm)
        now = Health(
            sm_clock_mhz=frame.integer("sm_clock_mhz", row),
            temperature_c=frame.integer("temperature_c", row),
            power_w=frame.real("power_w", row),
            throttle=frame.integer("throttle_reasons", row),
        )
        before = result.get(key, now)
        result[key] = Health(
            sm_clock_mhz=min(now.sm_clock_mhz, before.sm_clock_mhz),
            temperature_c=max(now.temperature_c, before.temperature_c),
            power_w=max(now.power_w, before.power_w),
            throttle=now.throttle | before.throttle,
        )
    return result
