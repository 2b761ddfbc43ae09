"""Feeds the statistics with a bundle's tables: comparisons, controls, arms, family.

Rules:
1. Only the last attempt of a process counts, and only at points that it completed.
2. Where a timed duration of a pair is not positive, nothing is computed of that pair at that point: the validator says INVALID, and no number is
   made up.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchkit.analysis.samples import Samples, integers
from benchkit.bundle.reader import Bundle
from benchkit.fixture.routing import Routing, from_rows
from benchkit.fixture.traffic import arm_traffic
from benchkit.protocol.model import Arm, Comparison, MoeFixture, Point, Protocol, Role
from benchkit.statistics.diagnostics import Clocks, Outputs, timer_quantum
from benchkit.statistics.noninferiority import Family, family_verdict
from benchkit.statistics.point import (
    ArmMedians,
    ControlResult,
    ControlRole,
    PointFlags,
    PointResult,
    judge_control,
    judge_point,
    with_holm,
)
from benchkit.units import FloatArray, IntArray

_NOTHING = np.zeros(0, dtype=np.float64)
_IDENTITY = ("operating_point", "arm", "role", "samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One comparison at one point, with its names."""

    point: Point
    comparison: Comparison
    result: PointResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """One control at one point, with its names."""

    point: Point
    arm: Arm
    result: ControlResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What the author of a bundle claims; ``arms`` are the finished rows of the report's table."""

    comparisons: tuple[ComparisonRow, ...]
    controls: tuple[ControlRow, ...]
    arms: tuple[dict[str, Any], ...]
    family: Family


def analyse(bundle: Bundle) -> Analysis:
    """Everything that analysis.json says of a bundle."""
    return Analyst(bundle).analysis()


class Analyst:
    """Holds the tables of one bundle while its analysis is made."""

    def __init__(self, bundle: Bundle) -> None:
        self.protocol: Protocol = bundle.protocol
        processes = bundle.table("processes").to_pylist()
        last = {row["process"]: row for row in processes}  # rows ascend by attempt
        attempts = {process: row["attempt"] for process, row in last.items()}
        samples = bundle.table("samples")
        self.samples = Samples(samples, attempts)
        tick = max((row["clock_tick_ns"] for row in processes), default=1)
        self.quantum = timer_quantum(integers(samples, "duration_ns"), clock_tick_ns=tick)
        self.unsupported: dict[tuple[str, str], str] = {
            (point, arm): reason for row in last.values() for point, arm, reason in json.loads(row["unsupported"])
        }
        missing = {process: json.loads(row["unsupported"]) for process, row in last.items()}
        self.completed = {
            point.id: [process for process in sorted(last) if self._complete(process, point, missing[process])]
            for point in self.protocol.points
        }
        self.failed = {
            point: [p for p in sorted(last) if last[p]["status"] == "failed" and p not in done]
            for point, done in self.completed.items()
        }
        self.telemetry = _last_rows(bundle.table("telemetry"), attempts)
        self.correctness = _last_rows(bundle.table("correctness"), attempts)
        self.kernels = _last_rows(bundle.table("kernels"), attempts)
        self.repeats = _last_rows(bundle.table("repeats"), attempts)
        self.routings = _routings(self.protocol, bundle.table("routing"))

    def _complete(self, process: int, point: Point, unsupported: Sequence[Sequence[str]]) -> bool:
        absent = {arm for where, arm, _ in unsupported if where == point.id}
        arms = sum(arm.name not in absent for arm in self.protocol.arms_at(point.id))
        rules = self.protocol
        per_arm = rules.warmup.samples + rules.schedule.blocks * rules.timing.samples_per_block
        return self.samples.rows[(process, point.id)] == arms * per_arm

    def analysis(self) -> Analysis:
        """All parts."""
        controls = self._controls()
        by_point = {point.id: [row.result for row in controls if row.point == point] for point in self.protocol.points}
        comparisons = tuple(
            ComparisonRow(
                point=point, comparison=comparison, result=self._compare(comparison, point, by_point[point.id])
            )
            for comparison in self.protocol.comparisons
            for point in self.protocol.points
            if comparison in self.protocol.comparisons_at(point.id)
        )
        claimed = [row.result.verdict for row in comparisons if row.comparison.claim != "descriptive"]
        arms = tuple(
            self._arm_row(arm, point) for point in self.protocol.points for arm in self.protocol.arms_at(point.id)
        )
        return Analysis(comparisons=comparisons, controls=controls, arms=arms, family=family_verdict(claimed))

    def _pair(self, one: Arm, other: Arm, point: Point) -> tuple[ArmMedians, ArmMedians, list[int]]:
        """Process medians of two arms at a point, and the processes that they come from."""
        processes = [
            process
            for process in self.completed[point.id]
            if all(self.samples.duration_ns(process, point.id, arm.name).size for arm in (one, other))
        ]
        if any(np.any(self.samples.duration_ns(p, point.id, a.name) <= 0) for p in processes for a in (one, other)):
            processes = []
        first, second = (
            ArmMedians(
                duration_ns=np.array([np.median(self.samples.duration_ns(p, point.id, arm.name)) for p in processes]),
                calls=arm.calls_per_sample,
            )
            for arm in (one, other)
        )
        return first, second, processes

    def _controls(self) -> tuple[ControlRow, ...]:
        rows: list[ControlRow] = []
        for arm in self.protocol.arms:
            if not arm.role.is_control:
                continue
            points = [point for point in self.protocol.points if arm.stands_at(point.id)]
            results = with_holm([self._control(arm, point) for point in points])
            rows.extend(
                ControlRow(point=point, arm=arm, result=result) for point, result in zip(points, results, strict=True)
            )
        return tuple(rows)

    def _control(self, arm: Arm, point: Point) -> ControlResult:
        control, baseline, processes = self._pair(arm, self.protocol.baseline, point)
        rules = self.protocol.statistics
        return judge_control(
            control,
            baseline,
            role=ControlRole(arm.role.value),
            margin=rules.margin,
            alpha_one_sided=rules.alpha_one_sided,
            quantum_ns=self.quantum,
            injected_ns=[self.samples.injected_ns(process, point.id, arm.name) for process in processes],
        )

    def _compare(self, comparison: Comparison, point: Point, controls: Sequence[ControlResult]) -> PointResult:
        candidate, baseline = self.protocol.arm(comparison.candidate), self.protocol.arm(comparison.baseline)
        ours, theirs, _ = self._pair(candidate, baseline, point)
        involved = [candidate, baseline, *(arm for arm in self.protocol.arms_at(point.id) if arm.of == baseline.name)]
        reasons = [(arm.name, self.unsupported.get((point.id, arm.name))) for arm in involved]
        flags = PointFlags(
            failed_processes=tuple(self.failed[point.id]),
            unsupported=tuple(f"{name}: {reason}" for name, reason in reasons if reason is not None),
            outputs=tuple(
                Outputs(arm=arm.name, output_sha256=tuple(self._outputs(arm, point)))
                for arm in (candidate, baseline)
                if arm.tolerance.deterministic
            ),
        )
        return judge_point(
            ours,
            theirs,
            margin=self.protocol.statistics.margin,
            alpha_one_sided=self.protocol.statistics.alpha_one_sided,
            quantum_ns=self.quantum,
            controls=controls,
            telemetry=self._clocks(candidate, baseline, point),
            flags=flags,
        )

    def _outputs(self, arm: Arm, point: Point) -> list[str]:
        return [row["output_sha256"] for row in self.repeats if (row["point"], row["arm"]) == (point.id, arm.name)]

    def _clocks(self, candidate: Arm, baseline: Arm, point: Point) -> Clocks | None:
        rows = [row for row in self.telemetry if row["point"] == point.id]
        if not rows:
            return None

        def column(name: str, arm: Arm | None = None) -> IntArray:
            return np.array([row[name] for row in rows if arm is None or row["arm"] == arm.name], dtype=np.int64)

        return Clocks(
            process=column("process"),
            block=column("block"),
            throttle_reasons=column("throttle_reasons"),
            candidate_sm_mhz=column("sm_clock_mhz", candidate),
            baseline_sm_mhz=column("sm_clock_mhz", baseline),
        )

    def _per_call(self, arm: Arm, point: Point, processes: Sequence[int]) -> FloatArray:
        medians = [np.median(self.samples.duration_ns(p, point.id, arm.name)) for p in processes]
        return np.array(medians, dtype=np.float64) / arm.calls_per_sample

    def _arm_row(self, arm: Arm, point: Point) -> dict[str, Any]:
        samples = self.samples.count(point.id, arm.name)
        traffic = arm_traffic(self.protocol, arm, point, self.routings[point.id])
        processes = [p for p in self.completed[point.id] if self.samples.duration_ns(p, point.id, arm.name).size]
        per_call = self._per_call(arm, point, processes) if samples else _NOTHING
        median = float(np.median(per_call)) if per_call.size else None
        rate = traffic.unique_bytes / median if median and median > 0 and traffic.unique_bytes else None
        accuracy = [
            row
            for row in self.correctness
            if (row["point"], row["arm"], row["truth"]) == (point.id, arm.name, arm.tolerance.truth)
        ]
        row = {
            "operating_point": point.id,
            "arm": arm.name,
            "role": arm.role.value,
            "median_ns": median,
            "samples": samples,
            "unique_bytes": traffic.unique_bytes,
            "issued_bytes": traffic.issued_bytes,
            "gb_per_s": rate,
            "percent_of_copy": self._percent("copy", arm, point, traffic.unique_bytes, processes),
            "percent_of_read": self._percent("read", arm, point, traffic.unique_bytes, processes),
            "min_cosine": _finite(min((row["min_cosine"] for row in accuracy), default=None)),
            "max_abs_error": _finite(max((row["max_abs_error"] for row in accuracy), default=None)),
            **self._launched(arm, point),
        }
        return row if samples else {name: row[name] if name in _IDENTITY else None for name in row}

    def _launched(self, arm: Arm, point: Point) -> dict[str, int | None]:
        kernels = [row for row in self.kernels if (row["point"], row["arm"]) == (point.id, arm.name)]
        per_process = Counter(row["process"] for row in kernels)
        repeats = [row for row in self.repeats if (row["point"], row["arm"]) == (point.id, arm.name)]
        modes = {row["mode_sha256"] for row in repeats} - {None}
        return {
            "kernels": max(per_process.values(), default=None),
            "scratch_bytes": max((row["scratch_bytes"] for row in kernels), default=None),
            "repeats": max(Counter(row["process"] for row in repeats).values(), default=None),
            "distinct_outputs": len({row["output_sha256"] for row in repeats}) or None,
            "distinct_modes": len(modes) or None,
        }

    def _percent(self, kind: str, arm: Arm, point: Point, size: int | None, processes: Sequence[int]) -> float | None:
        ceiling = next(
            (c for c in self.protocol.arms_at(point.id) if c.role is Role.CEILING and c.ceiling == kind), None
        )
        if ceiling is None or size is None:
            return None
        both = [p for p in processes if self.samples.duration_ns(p, point.id, ceiling.name).size]
        ours, top = self._per_call(arm, point, both), self._per_call(ceiling, point, both)
        if not both or np.any(ours <= 0) or np.any(top <= 0):
            return None
        ceiling_bytes = arm_traffic(self.protocol, ceiling, point, self.routings[point.id]).unique_bytes or 0
        return float(100 * np.median((size / ours) / (ceiling_bytes / top)))


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


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
