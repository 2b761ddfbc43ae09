"""The table of arms: medians, rates and percentages of ceilings, correctness and launches, per point."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchkit.analysis.evidence import Evidence, finite_or_none
from benchkit.fixture.traffic import arm_traffic
from benchkit.protocol.model import Arm, Point, Role
from benchkit.units import FloatArray

_NOTHING = np.zeros(0, dtype=np.float64)
_IDENTITY = ("operating_point", "arm", "role", "samples")


class ArmTable:
    """Makes the rows of the report's ``arms`` from all processes of a bundle."""

    def __init__(self, evidence: Evidence) -> None:
        self.protocol = evidence.protocol
        self.samples = evidence.samples
        self.completed = evidence.completed
        self.correctness = evidence.correctness
        self.kernels = evidence.kernels
        self.repeats = evidence.repeats
        self.routings = evidence.routings

    def rows(self) -> tuple[dict[str, Any], ...]:
        """All rows, by point, then arm as in the protocol."""
        return tuple(
            self._arm_row(arm, point) for point in self.protocol.points for arm in self.protocol.arms_at(point.id)
        )

    def _per_call(self, arm: Arm, point: Point, processes: Sequence[int]) -> FloatArray:
        medians = [np.median(self.samples.duration_ns(p, point.id, arm.name)) for p in processes]
        return np.array(medians, dtype=np.float64) / arm.calls_per_sample

    def _arm_row(self, arm: Arm, point: Point) -> dict[str, Any]:
        samples = self.samples.count(point.id, arm.name)
        traffic = arm_traffic(self.protocol, arm, point, self.routings[point.id])
        processes = [p for p in self.completed[point.id] if self.samples.duration_ns(p, point.id, arm.name).size]
        sound = samples and self.samples.sound(point.id, arm.name)
        per_call = self._per_call(arm, point, processes) if sound else _NOTHING
        median = float(np.median(per_call)) if per_call.size else None
        rate = traffic.unique_bytes / median if median and traffic.unique_bytes else None
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
            "min_cosine": finite_or_none(min((row["min_cosine"] for row in accuracy), default=None)),
            "max_abs_error": finite_or_none(max((row["max_abs_error"] for row in accuracy), default=None)),
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
        if not both or any(
            np.any(self.samples.duration_ns(p, point.id, a.name) <= 0) for p in both for a in (arm, ceiling)
        ):
            return None
        ours, top = self._per_call(arm, point, both), self._per_call(ceiling, point, both)
        ceiling_bytes = arm_traffic(self.protocol, ceiling, point, self.routings[point.id]).unique_bytes or 0
        return float(100 * np.median((size / ours) / (ceiling_bytes / top)))
