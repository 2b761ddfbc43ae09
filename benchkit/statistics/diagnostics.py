"""What must hold before an interval may speak: the timer's resolution and the gates.

Rules:
1. A gate returns a finding with its text, or None; it never changes a number and never drops a sample.
2. Thresholds are those of results/README.md, "Gates"; what a protocol locks (margin, alpha) is passed in.
3. Counts are compared as integers where a share decides, so that 5 % of 20 is not more than 5 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from benchkit.statistics.estimand import finite, median, positive
from benchkit.statistics.interval import RatioInterval, check_margin
from benchkit.statistics.noninferiority import Gate, GateFinding, distinct
from benchkit.units import IntArray

PLAIN_FROM = 20.0
GUARDED_FROM = 2.0
DOSE_LOW = 1.2
DOSE_HIGH = 1.8
SLOWDOWN_BITS = 0x8 | 0x20 | 0x40 | 0x80
SLOWDOWN_NAMES = (
    (0x8, "hardware slowdown"),
    (0x20, "software thermal"),
    (0x40, "hardware thermal"),
    (0x80, "power brake"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The timer against the margin.

    Attributes
    ----------
    quantum_ns:
        q, resolution of ``duration_ns``; None where the data show none.
    steps:
        g, how many quanta the margin is long; None without a process median or a quantum.
    guarded:
        2 <= g < 20: the guarded interval applies.
    finding:
        g < 2: the gate ``timer_resolution``.
    """

    quantum_ns: float | None
    steps: float | None
    guarded: bool
    finding: GateFinding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Digests of outputs that an arm claims to be one: over all processes, and calls at a point or token 0 at all batches (``of`` says which)."""

    arm: str
    output_sha256: tuple[str, ...]
    of: str = "calls"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clocks:
    """Telemetry of one point: one entry per row for the throttle bits, one array of clocks per arm.

    Attributes
    ----------
    process, block, throttle_reasons:
        Parallel arrays over the telemetry rows of the point, all arms.
    candidate_sm_mhz, baseline_sm_mhz:
        ``sm_clock_mhz`` of the rows of either arm.
    """

    process: IntArray
    block: IntArray
    throttle_reasons: IntArray
    candidate_sm_mhz: IntArray
    baseline_sm_mhz: IntArray

    def __post_init__(self) -> None:
        if not len(self.process) == len(self.block) == len(self.throttle_reasons):
            raise ValueError("telemetry: expected process, block and throttle_reasons of one length")


def timer_quantum(durations_ns: ArrayLike, *, clock_tick_ns: int) -> int:
    """Resolution q of the timer: the smallest gap between distinct durations of all rows, else the clock's tick.

    Parameters
    ----------
    durations_ns:
        Every ``duration_ns`` of the samples table, warm-ups included.
    clock_tick_ns:
        The largest ``clock_tick_ns`` of the processes table; used where all durations are equal.
    """
    gaps = np.diff(np.unique(np.asarray(durations_ns, dtype=np.int64)))
    return int(gaps.min()) if gaps.size else clock_tick_ns


def timer_resolution(
    candidate_ns: ArrayLike, baseline_ns: ArrayLike, *, quantum_ns: float, margin: float
) -> Resolution:
    """Is the timer fine enough to see the margin?

    Parameters
    ----------
    candidate_ns, baseline_ns:
        Process medians of ``duration_ns``, whole samples.
    quantum_ns:
        q of :func:`timer_quantum`; 0 is a timer without a known step.
    margin:
        d.

    Notes
    -----
    ``g = d min(medians) / q``: g < 2 is the gate, 2 <= g < 20 asks for the guarded interval, from 20 the plain one is
    right. A coarse timer makes s collapse: at g < 5 the plain t was wrong in up to every experiment.
    """
    check_margin(margin)
    medians = np.concatenate([positive(candidate_ns, name="candidate_ns"), positive(baseline_ns, name="baseline_ns")])
    if not medians.size or quantum_ns <= 0:
        return Resolution(quantum_ns=quantum_ns or None, steps=None, guarded=False, finding=None)
    smallest = float(medians.min())
    steps = margin * smallest / quantum_ns
    finding = None
    if steps < GUARDED_FROM:
        detail = (
            f"the margin is {steps:.3g} timer steps ({margin:g} of {smallest:g} ns, step {quantum_ns:g} ns), "
            f"at least {GUARDED_FROM:g} are needed: put more calls into a sample"
        )
        finding = GateFinding(gate=Gate.TIMER_RESOLUTION, detail=detail)
    guarded = GUARDED_FROM <= steps < PLAIN_FROM
    return Resolution(quantum_ns=quantum_ns, steps=steps, guarded=guarded, finding=finding)


def least_pairs(*, alpha_one_sided: float) -> int:
    """Smallest K at which a verdict is given: 5 above alpha 0.025, else 6 (where the signed rank test can reject)."""
    return 5 if alpha_one_sided > 0.025 else 6


def too_few_pairs(pairs: int, *, alpha_one_sided: float) -> GateFinding | None:
    """Gate: fewer complete pairs than :func:`least_pairs`."""
    least = least_pairs(alpha_one_sided=alpha_one_sided)
    if pairs >= least:
        return None
    detail = f"{pairs} complete pairs, at least {least} are needed at one-sided alpha {alpha_one_sided:g}"
    return GateFinding(gate=Gate.TOO_FEW_PAIRS, detail=detail)


def failed_process(processes: Sequence[int]) -> GateFinding | None:
    """Gate: processes that failed before they had completed the point; none may be dropped in silence."""
    if not processes:
        return None
    names = ", ".join(str(process) for process in processes)
    return GateFinding(gate=Gate.FAILED_PROCESS, detail=f"failed before the point was complete: process {names}")


def unsupported(arms: Sequence[str]) -> GateFinding | None:
    """Gate: candidate, baseline or a control of the baseline cannot run here; each text names arm and reason."""
    return GateFinding(gate=Gate.UNSUPPORTED, detail="; ".join(arms)) if arms else None


def determinism(outputs: Sequence[Outputs]) -> GateFinding | None:
    """Gate: an arm that claims to be deterministic or batch-invariant gave more than one output."""
    broken = [
        f"{entry.arm}: {len(set(entry.output_sha256))} different outputs in {len(entry.output_sha256)} {entry.of}"
        for entry in outputs
        if len(set(entry.output_sha256)) > 1
    ]
    return GateFinding(gate=Gate.DETERMINISM, detail="; ".join(broken)) if broken else None


def zero_spread(interval: RatioInterval) -> GateFinding | None:
    """Gate: all log ratios are equal, so nothing says how far they would vary."""
    return GateFinding(gate=Gate.ZERO_SPREAD, detail=interval.reason) if interval.zero_spread else None


def aa_control(*, lower: float | None, upper: float | None, margin: float) -> GateFinding | None:
    """Gate: the A/A control's interval is not inside ``(1 / (1 + d), 1 + d)``; without an interval it is not either."""
    check_margin(margin)
    low, high = 1.0 / (1.0 + margin), 1.0 + margin
    if lower is not None and upper is not None and low < lower and upper < high:
        return None
    detail = f"A/A interval {_interval_text(lower, upper, low, high)} is not inside ({low:.6f}, {high:.6f})"
    return GateFinding(gate=Gate.AA_CONTROL, detail=detail)


def positive_control(*, lower: float | None, upper: float | None, margin: float) -> GateFinding | None:
    """Gate: a delay of 1.5 margins was not seen as slower and beyond the limit: ``lower > 1 and upper >= 1 + d``."""
    check_margin(margin)
    limit = 1.0 + margin
    if lower is not None and lower > 1.0 and (upper is None or upper >= limit):
        return None
    text = _interval_text(lower, upper, 1.0, limit)
    detail = f"positive control's interval {text} does not show a slowdown beyond the limit {limit:.6f}"
    return GateFinding(gate=Gate.POSITIVE_CONTROL, detail=detail)


def control_dose(injected_ns: Sequence[ArrayLike], baseline_ns: ArrayLike, *, margin: float) -> GateFinding | None:
    """Gate: a delay outside 1.2 to 1.8 times ``d x`` the baseline's process median.

    Parameters
    ----------
    injected_ns:
        Per process, the delays of the positive control's timed rows.
    baseline_ns:
        Per process, the baseline's median of ``duration_ns``, whole samples.
    margin:
        d.
    """
    check_margin(margin)
    medians = positive(baseline_ns, name="baseline_ns")
    outside = []
    for position, (rows, base) in enumerate(zip(injected_ns, medians.tolist(), strict=True)):
        delays = finite(rows, name="injected_ns")
        unit = margin * base
        wrong = delays[(delays < DOSE_LOW * unit) | (delays > DOSE_HIGH * unit)]
        if wrong.size:
            outside.append(f"pair {position}: {wrong.size} of {delays.size} rows, such as {wrong[0] / unit:.3f}")
    if not outside:
        return None
    detail = f"delay outside {DOSE_LOW} to {DOSE_HIGH} margins of the baseline: " + "; ".join(outside)
    return GateFinding(gate=Gate.CONTROL_DOSE, detail=detail)


def median_dose(injected_ns: Sequence[ArrayLike], baseline_ns: ArrayLike, *, margin: float) -> float | None:
    """Median over processes of ``injected_ns / (d x baseline's process median)``; None without a process.

    Within a process the median of its timed rows stands for the delay; the plan makes them equal.
    """
    check_margin(margin)
    medians = positive(baseline_ns, name="baseline_ns").tolist()
    doses = [
        median(rows, name="injected_ns") / (margin * base) for rows, base in zip(injected_ns, medians, strict=True)
    ]
    return median(doses, name="dose") if doses else None


def clocks(telemetry: Clocks) -> GateFinding | None:
    """Gate: slowdown bits in more than 5 % of the (process, block) pairs, or SM clocks of the arms more than 2 % apart.

    Notes
    -----
    Bits are NVML's clock event reasons 0x8, 0x20, 0x40 and 0x80. A software power cap (0x4) is no gate. The difference
    of the median clocks is taken relative to the baseline's.
    """
    found = [text for text in (_slowdown(telemetry), _clock_difference(telemetry)) if text]
    return GateFinding(gate=Gate.CLOCKS, detail="; ".join(found)) if found else None


def _slowdown(telemetry: Clocks) -> str:
    pairs = np.stack([np.asarray(telemetry.process), np.asarray(telemetry.block)], axis=1)
    bits = np.asarray(telemetry.throttle_reasons, dtype=np.int64)
    total = len(np.unique(pairs, axis=0))
    slowed = len(np.unique(pairs[(bits & SLOWDOWN_BITS) != 0], axis=0))
    if slowed * 20 <= total:
        return ""
    seen = int(np.bitwise_or.reduce(bits)) if bits.size else 0
    names = ", ".join(name for bit, name in SLOWDOWN_NAMES if seen & bit)
    return f"{names} in {slowed} of {total} blocks, more than 5 %"


def _clock_difference(telemetry: Clocks) -> str:
    candidate, baseline = np.asarray(telemetry.candidate_sm_mhz), np.asarray(telemetry.baseline_sm_mhz)
    if not candidate.size or not baseline.size:
        return ""
    ours, theirs = median(candidate, name="candidate_sm_mhz"), median(baseline, name="baseline_sm_mhz")
    if 50.0 * abs(ours - theirs) <= theirs:
        return ""
    return f"median SM clock {ours:g} MHz (candidate) against {theirs:g} MHz (baseline), more than 2 % apart"


def share_of_blocks(telemetry: Clocks, *, bit: int) -> float:
    """Share of (process, block) pairs with a reason bit, such as 0x4 (software power cap); printed, no gate."""
    pairs = np.stack([np.asarray(telemetry.process), np.asarray(telemetry.block)], axis=1)
    marked = pairs[(np.asarray(telemetry.throttle_reasons, dtype=np.int64) & bit) != 0]
    total = len(np.unique(pairs, axis=0))
    return len(np.unique(marked, axis=0)) / total if total else 0.0


def _interval_text(lower: float | None, upper: float | None, low: float, high: float) -> str:
    if lower is None and upper is None:
        return "(none)"
    left = "none" if lower is None else distinct(lower, low)
    right = "none" if upper is None else distinct(upper, high)
    return f"[{left}, {right}]"
