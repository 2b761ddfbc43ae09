"""Two arms at one point: their pairs, their log ratios, and whether the timer is fine enough for them.

Rules (results/README.md, gate ``timer_resolution``):
1. g = d x (smallest process median, or claimed quantile, of duration_ns over both arms) / q.
2. g >= 20: plain ratios. 2 <= g < 20: guarded, half a tick against the candidate (upper) or for it (lower).
   g < 2: the plain interval is shown, and the gate fires. Without an interval nothing is guarded.
3. A duration of 0 or less in a cell leaves no pair at all.
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
    log_ratios: tuple[float, ...]
    estimate: Estimate
    fineness: float | None
    guarded: bool


def pair(protocol: Protocol, measured: Measurements, point: str, arm: str, other: str, *, alpha: float) -> Pair:
    """Estimate ``arm`` / ``other`` at a point over the processes that completed it."""
    processes = measured.processes(point, arm, other)
    cells = [(measured.cells[(process, point, arm)], measured.cells[(process, point, other)]) for process in processes]
    if any(cell.least_ns <= 0 for both in cells for cell in both):
        processes, cells = (), []
    fineness = None
    if cells and measured.resolution_ns > 0:
        smallest = min(cell.claimed_ns for both in cells for cell in both)
        fineness = protocol.margin * smallest / measured.resolution_ns
    plain = tuple(math.log(a.claimed_per_call_ns / b.claimed_per_call_ns) for a, b in cells)
    spread = len(plain) >= 2 and max(plain) > min(plain)
    guarded = fineness is not None and COARSE <= fineness < FINE and spread
    ratios = LogRatios(plain=plain)
    if guarded:
        half = measured.resolution_ns / 2
        sides = [(a.claimed_per_call_ns, half / a.calls, b.claimed_per_call_ns, half / b.calls) for a, b in cells]
        ratios = LogRatios(
            plain=plain,
            high=tuple(math.log((a + da) / (b - db)) for a, da, b, db in sides),
            low=tuple(math.log((a - da) / (b + db)) for a, da, b, db in sides),
        )
    return Pair(
        point=point,
        arm=arm,
        other=other,
        processes=processes,
        log_ratios=plain,
        estimate=estimate(ratios, alpha=alpha, margin=protocol.margin),
        fineness=fineness,
        guarded=guarded,
    )
