"""Two arms at one point: their pairs, their log ratios, and whether the timer is fine enough for them.

Rules (results/README.md, gate ``timer_resolution``):
1. g = d x (smallest process median of duration_ns over both arms) / q.
2. g >= 20: plain ratios. 2 <= g < 20: guarded, half a tick against the candidate (upper) or for it (lower).
   g < 2: the plain interval is shown, and the gate fires.
3. A cell with a non-positive duration gives no ratio at all.
"""

import math
from dataclasses import dataclass

from validator.reading.model import Protocol
from validator.recompute.measure import Measurements
from validator.recompute.statistics import Estimate, LogRatios, estimate

FINE, COARSE = 20.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The estimate of one arm against another at one point."""

    point: str
    arm: str
    other: str
    processes: tuple[int, ...]
    estimate: Estimate
    fineness: float | None
    guarded: bool


def pair(protocol: Protocol, measured: Measurements, point: str, arm: str, other: str) -> Pair:
    """Estimate ``arm`` / ``other`` at a point over the processes that completed it."""
    processes = measured.processes(point, arm, other)
    top = [measured.cells[(process, point, arm)] for process in processes]
    bottom = [measured.cells[(process, point, other)] for process in processes]
    fineness = None
    if processes and measured.resolution_ns > 0:
        smallest = min(cell.whole_ns for cell in (*top, *bottom))
        fineness = protocol.margin * smallest / measured.resolution_ns
    guarded = fineness is not None and COARSE <= fineness < FINE
    sound = all(cell.least_ns > 0 for cell in (*top, *bottom))
    pairs = [(a.per_call_ns, b.per_call_ns, a.calls, b.calls) for a, b in zip(top, bottom, strict=True) if sound]
    plain = tuple(math.log(a / b) for a, b, _, _ in pairs)
    ratios = LogRatios(plain=plain)
    if guarded and sound:
        half = measured.resolution_ns / 2
        ratios = LogRatios(
            plain=plain,
            high=tuple(math.log((a + half / ca) / (b - half / cb)) for a, b, ca, cb in pairs),
            low=tuple(math.log((a - half / ca) / (b + half / cb)) for a, b, ca, cb in pairs),
        )
    result = estimate(ratios, alpha=protocol.alpha, margin=protocol.margin)
    return Pair(
        point=point,
        arm=arm,
        other=other,
        processes=processes,
        estimate=result,
        fineness=fineness,
        guarded=guarded,
    )
