"""What a bundle's tables hold, as far as claims rest on it.

Rules:
1. Only the last attempt of a process counts, and only at points that it completed.
2. ``gather`` up to a process is the same bundle as if no later process existed, the timer's quantum included.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchkit.analysis.samples import Samples, integers
from benchkit.bundle.reader import Bundle
from benchkit.errors import BundleError
from benchkit.fixture.routing import Routing, from_rows
from benchkit.protocol.model import Arm, MoeFixture, Point, Protocol
from benchkit.statistics.diagnostics import timer_quantum

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """The tables of one bundle, last attempts only.

    Attributes
    ----------
    processes:
        Process pairs that the bundle holds.
    quantum:
        q, the timer's resolution in ns.
    completed, failed:
        Point -> processes that completed it, that failed before they had.
    unsupported:
        (process, point, arm, reason).
    """

    protocol: Protocol
    protocol_digest: str
    processes: int
    samples: Samples
    quantum: int
    completed: Mapping[str, list[int]]
    failed: Mapping[str, list[int]]
    unsupported: tuple[tuple[int, str, str, str], ...]
    telemetry: Rows
    correctness: Rows
    kernels: Rows
    repeats: Rows
    routings: Mapping[str, Routing | None]

    def why_unsupported(self, point: str, arm: str) -> str | None:
        """Why the arm cannot run at the point; None where it can."""
        reasons = [reason for _, where, name, reason in self.unsupported if (where, name) == (point, arm)]
        return reasons[-1] if reasons else None

    def processes_of(self, point: str, *arms: Arm) -> list[int]:
        """Processes that completed the point and have rows of all these arms."""
        return [
            process
            for process in self.completed[point]
            if all(self.samples.duration_ns(process, point, arm.name).size for arm in arms)
        ]


def gather(bundle: Bundle, *, up_to: int | None = None) -> Evidence:
    """Read and group the tables of a bundle, or of its first ``up_to`` processes."""

    def rows(name: str) -> pa.Table:
        table = bundle.table(name)
        return table if up_to is None else table.filter(integers(table, "process") < up_to)

    protocol = bundle.protocol
    processes = rows("processes").to_pylist()
    last = {row["process"]: row for row in processes}  # rows ascend by attempt
    attempts = {process: row["attempt"] for process, row in last.items()}
    table = rows("samples")
    samples = Samples(table, attempts)
    tick = max((row["clock_tick_ns"] for row in processes), default=1)
    missing = {process: _unsupported(bundle.folder, row) for process, row in last.items()}
    completed = {
        point.id: [p for p in sorted(last) if _complete(protocol, samples, p, point, missing[p])]
        for point in protocol.points
    }
    return Evidence(
        protocol=protocol,
        protocol_digest=bundle.protocol_digest,
        processes=len(last),
        samples=samples,
        quantum=timer_quantum(integers(table, "duration_ns"), clock_tick_ns=tick),
        completed=completed,
        failed={
            point: [p for p in sorted(last) if last[p]["status"] == "failed" and p not in done]
            for point, done in completed.items()
        },
        unsupported=tuple((process, point, arm, reason) for process in last for point, arm, reason in missing[process]),
        telemetry=_last_rows(rows("telemetry"), attempts),
        correctness=_last_rows(rows("correctness"), attempts),
        kernels=_last_rows(rows("kernels"), attempts),
        repeats=_last_rows(rows("repeats"), attempts),
        routings=_routings(protocol, bundle.table("routing")),
    )


def _unsupported(folder: Path, row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a process could not run; BundleError where that is no list of [point, arm, reason]."""
    where = f"{folder / 'processes.parquet'}: unsupported of process {row['process']}"
    try:
        listed = json.loads(row["unsupported"])
    except ValueError as error:
        raise BundleError(f"{where}: expected JSON, found {row['unsupported'][:80]!r} ({error})") from error
    if not isinstance(listed, list) or not all(isinstance(entry, list) and len(entry) == 3 for entry in listed):
        raise BundleError(f"{where}: expected a list of [point, arm, reason], found {row['unsupported'][:80]!r}")
    return [(str(point), str(arm), str(reason)) for point, arm, reason in listed]


def _complete(
    protocol: Protocol, samples: Samples, process: int, point: Point, unsupported: Sequence[Sequence[str]]
) -> bool:
    absent = {arm for where, arm, _ in unsupported if where == point.id}
    arms = sum(arm.name not in absent for arm in protocol.arms_at(point.id))
    per_arm = protocol.warmup.samples + protocol.schedule.blocks * protocol.timing.samples_per_block
    return samples.rows[(process, point.id)] == arms * per_arm


def _last_rows(table: pa.Table, last: Mapping[int, int]) -> list[dict[str, Any]]:
    return [row for row in table.to_pylist() if row["attempt"] == last.get(row["process"])]


def _routings(protocol: Protocol, table: pa.Table) -> dict[str, Routing | None]:
    fixture = protocol.fixture
    if not isinstance(fixture, MoeFixture):
        return {point.id: None for point in protocol.points}
    rows: dict[str, list[tuple[int, int, int, float]]] = {point.id: [] for point in protocol.points}
    for row in table.to_pylist():
        rows.setdefault(row["point"], []).append((row["token"], row["slot"], row["expert"], row["weight"]))
    return {
        point.id: from_rows(
            rows[point.id],
            source=f"routing.parquet, {point.id}",
            batch=point.integer("batch"),
            experts=fixture.experts,
            top_k=fixture.top_k,
        )
        for point in protocol.points
    }


def finite_or_none(value: float | None) -> float | None:
    """The value where it is a number."""
    return value if value is not None and math.isfinite(value) else None
