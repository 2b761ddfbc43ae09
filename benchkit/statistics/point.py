"""One comparison, or one control, at one operating point: arrays in, one row of the report out.

Rules:
1. Only processes that completed the point enter, in the same order in every array of one call.
2. The fields of the results are those of results/README.md ("comparisons", "controls") without the names.
3. A gate makes the verdict inconclusive; the interval is shown all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from numpy.typing import ArrayLike

from benchkit.statistics import diagnostics
from benchkit.statistics.diagnostics import Clocks, Outputs, Resolution
from benchkit.statistics.estimand import log_ratios, positive
from benchkit.statistics.interval import RatioInterval, check_alpha, check_margin, guarded_interval, paired_interval
from benchkit.statistics.multiplicity import holm_with_gaps
from benchkit.statistics.noninferiority import GateFinding, Verdict, decide, ordered
from benchkit.units import FloatArray


class ControlRole(StrEnum):
    """What a control is there to show."""

    AA_CONTROL = "aa_control"
    POSITIVE_CONTROL = "positive_control"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmMedians:
    """One arm at one point.

    Attributes
    ----------
    duration_ns:
        Process medians of whole samples, one per process that completed the point.
    calls:
        Calls that a sample holds.
    """

    duration_ns: FloatArray
    calls: int

    def __post_init__(self) -> None:
        positive(self.duration_ns, name="duration_ns")
        if self.calls < 1:
            raise ValueError(f"calls: expected at least 1, found {self.calls}")

    @property
    def per_call_ns(self) -> FloatArray:
        """m: process medians per call."""
        return positive(self.duration_ns, name="duration_ns") / self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult:
    """A control at one point; ``dose`` is None for an A/A control."""

    role: ControlRole
    ratio: float | None
    lower: float | None
    upper: float | None
    pairs: int
    guarded: bool
    unbounded: bool
    p_differs: float | None
    p_differs_holm: float | None
    dose: float | None
    dose_finding: GateFinding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFlags:
    """What the numbers cannot show: failed processes and arms without support, as texts name them.

    Attributes
    ----------
    failed_processes:
        Processes with status ``failed`` in their last attempt that had not completed the point.
    unsupported:
        ``arm: reason`` of candidate, baseline and controls of the baseline.
    outputs:
        Digests of those arms of the comparison that claim ``deterministic`` or ``batch_invariant``.
    """

    failed_processes: tuple[int, ...]
    unsupported: tuple[str, ...]
    outputs: tuple[Outputs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """A comparison at one point; None is a number that does not exist or is infinite."""

    ratio: float | None
    lower: float | None
    upper: float | None
    margin: float
    alpha_one_sided: float
    pairs: int
    p_non_inferior: float | None
    p_superior: float | None
    p_lower: float | None
    guarded: bool
    numerical_tie: bool
    unbounded: bool
    verdict: Verdict
    gates: tuple[GateFinding, ...]
    reason: str


def judge_point(
    candidate: ArmMedians,
    baseline: ArmMedians,
    *,
    margin: float,
    alpha_one_sided: float,
    quantum_ns: float,
    controls: Sequence[ControlResult],
    telemetry: Clocks | None,
    flags: PointFlags,
) -> PointResult:
    """Interval, gates and verdict of one comparison at one point.

    Parameters
    ----------
    candidate, baseline:
        Process medians, the same processes in the same order.
    margin, alpha_one_sided:
        As locked.
    quantum_ns:
        q of :func:`benchkit.statistics.diagnostics.timer_quantum`.
    controls:
        The baseline's controls at this point, from :func:`judge_control`; empty where none is locked.
    telemetry:
        None where the device has none: the gate ``clocks`` does not apply.
    flags:
        Failed processes, missing support, outputs.
    """
    interval, resolution = _interval(
        candidate, baseline, margin=margin, alpha_one_sided=alpha_one_sided, quantum_ns=quantum_ns
    )
    decision = decide(lower=interval.lower, upper=interval.upper, margin=margin)
    gates = _gates(interval, resolution, margin, alpha_one_sided, controls, telemetry, flags)
    return PointResult(
        ratio=interval.ratio,
        lower=interval.lower,
        upper=interval.upper,
        margin=margin,
        alpha_one_sided=alpha_one_sided,
        pairs=interval.pairs,
        p_non_inferior=interval.p_non_inferior,
        p_superior=interval.p_superior,
        p_lower=interval.p_lower,
        guarded=interval.guarded,
        numerical_tie=decision.numerical_tie,
        unbounded=interval.unbounded,
        verdict=Verdict.INCONCLUSIVE if gates else decision.verdict,
        gates=gates,
        reason=f"gate {', '.join(finding.gate for finding in gates)}" if gates else decision.reason,
    )


def _gates(
    interval: RatioInterval,
    resolution: Resolution,
    margin: float,
    alpha_one_sided: float,
    controls: Sequence[ControlResult],
    telemetry: Clocks | None,
    flags: PointFlags,
) -> tuple[GateFinding, ...]:
    """Every gate that fires, in the documented order."""
    findings = (
        diagnostics.too_few_pairs(interval.pairs, alpha_one_sided=alpha_one_sided),
        diagnostics.failed_process(flags.failed_processes),
        diagnostics.unsupported(flags.unsupported),
        diagnostics.determinism(flags.outputs),
        diagnostics.zero_spread(interval),
        resolution.finding,
        *(finding for control in controls for finding in control_findings(control, margin=margin)),
        None if telemetry is None else diagnostics.clocks(telemetry),
    )
    return ordered([finding for finding in findings if finding is not None])


def judge_control(
    control: ArmMedians,
    baseline: ArmMedians,
    *,
    role: ControlRole,
    margin: float,
    alpha_one_sided: float,
    quantum_ns: float,
    injected_ns: Sequence[ArrayLike],
    median_ns: FloatArray | None = None,
) -> ControlResult:
    """Interval of control / baseline at one point; ``p_differs_holm`` is filled by :func:`with_holm`.

    Parameters
    ----------
    control, baseline:
        Process medians, the same processes in the same order.
    role:
        Which of the two controls it is.
    margin, alpha_one_sided, quantum_ns:
        As for :func:`judge_point`.
    injected_ns:
        Per process, the timed rows' delays; not looked at for an A/A control.
    median_ns:
        The baseline's process medians, by which the dose is judged; needed where ``baseline`` holds quantiles.
    """
    interval, _ = _interval(control, baseline, margin=margin, alpha_one_sided=alpha_one_sided, quantum_ns=quantum_ns)
    dosed = role is ControlRole.POSITIVE_CONTROL
    base = baseline.duration_ns if median_ns is None else median_ns
    return ControlResult(
        role=role,
        ratio=interval.ratio,
        lower=interval.lower,
        upper=interval.upper,
        pairs=interval.pairs,
        guarded=interval.guarded,
        unbounded=interval.unbounded,
        p_differs=interval.p_differs,
        p_differs_holm=None,
        dose=diagnostics.median_dose(injected_ns, base, margin=margin) if dosed else None,
        dose_finding=diagnostics.control_dose(injected_ns, base, margin=margin) if dosed else None,
    )


def control_findings(control: ControlResult, *, margin: float) -> tuple[GateFinding, ...]:
    """The gates that a control closes at its point."""
    gate = diagnostics.aa_control if control.role is ControlRole.AA_CONTROL else diagnostics.positive_control
    findings = (gate(lower=control.lower, upper=control.upper, margin=margin), control.dose_finding)
    return tuple(finding for finding in findings if finding is not None)


def with_holm(controls: Sequence[ControlResult]) -> tuple[ControlResult, ...]:
    """One arm's controls over all its points, with ``p_differs_holm`` filled."""
    adjusted = holm_with_gaps([control.p_differs for control in controls])
    return tuple(replace(control, p_differs_holm=p) for control, p in zip(controls, adjusted, strict=True))


def _interval(
    above: ArmMedians, below: ArmMedians, *, margin: float, alpha_one_sided: float, quantum_ns: float
) -> tuple[RatioInterval, Resolution]:
    check_alpha(alpha_one_sided)
    check_margin(margin)
    ours, theirs = above.per_call_ns, below.per_call_ns
    resolution = diagnostics.timer_resolution(
        above.duration_ns, below.duration_ns, quantum_ns=quantum_ns, margin=margin
    )
    if resolution.guarded:
        interval = guarded_interval(
            ours,
            theirs,
            candidate_quantum=quantum_ns / above.calls,
            baseline_quantum=quantum_ns / below.calls,
            margin=margin,
            alpha_one_sided=alpha_one_sided,
        )
    else:
        interval = paired_interval(log_ratios(ours, theirs), margin=margin, alpha_one_sided=alpha_one_sided)
    return interval, resolution
