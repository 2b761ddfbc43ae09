"""The decision rule: bounds and margin -> one of six verdicts, with the reason.

Rules:
1. Decisions are made on unrounded numbers; ``upper`` equal to the limit is not below it.
2. ``upper`` within 1e-9 of the limit is a numerical tie: inconclusive, and flagged.
3. A gate makes a point inconclusive, whatever its interval says. Gates are reported in the order of ``Gate``.
4. ``upper`` None is a bound that is not attainable: never below anything. ``lower`` None is never above anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchkit.statistics.interval import check_margin

TIE = 1e-9
ALL_POINTS = "all-points"


class Verdict(StrEnum):
    """What the data show about ``ratio < 1 + margin``, from best to worst where they can be ordered."""

    SUPERIOR = "superior"
    NON_INFERIOR = "non_inferior"
    NON_INFERIOR_BUT_SLOWER = "non_inferior_but_slower"
    INCONCLUSIVE = "inconclusive"
    INCONCLUSIVE_BUT_SLOWER = "inconclusive_but_slower"
    INFERIOR = "inferior"


class Gate(StrEnum):
    """Why a point is inconclusive whatever its interval; members stand in the documented order."""

    TOO_FEW_PAIRS = "too_few_pairs"
    FAILED_PROCESS = "failed_process"
    UNSUPPORTED = "unsupported"
    DETERMINISM = "determinism"
    ZERO_SPREAD = "zero_spread"
    TIMER_RESOLUTION = "timer_resolution"
    AA_CONTROL = "aa_control"
    POSITIVE_CONTROL = "positive_control"
    CONTROL_DOSE = "control_dose"
    CLOCKS = "clocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFinding:
    """A gate that fired, and what was found: text for people, not compared."""

    gate: Gate
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict with its reason."""

    verdict: Verdict
    numerical_tie: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A claim over every comparison of the family."""

    claim: str
    verdict: Verdict
    comparisons: int


SHOWN = (Verdict.SUPERIOR, Verdict.NON_INFERIOR, Verdict.NON_INFERIOR_BUT_SLOWER)
GATE_ORDER = {gate: position for position, gate in enumerate(Gate)}


def ordered(findings: Sequence[GateFinding]) -> tuple[GateFinding, ...]:
    """Findings in the documented order of gates."""
    return tuple(sorted(findings, key=lambda finding: GATE_ORDER[finding.gate]))


def decide(*, lower: float | None, upper: float | None, margin: float) -> Decision:
    """Verdict of one comparison at one point, gates aside.

    Parameters
    ----------
    lower, upper:
        One-sided bounds of candidate / baseline; None is a bound that does not exist.
    margin:
        d; the limit is ``1 + d``.

    Notes
    -----
    superior: upper < 1. non_inferior: upper < 1 + d. non_inferior_but_slower: lower > 1 and upper < 1 + d.
    inferior: lower >= 1 + d. inconclusive_but_slower: lower > 1 and upper >= 1 + d. Otherwise inconclusive.

    References
    ----------
    Piaggio, G. et al. (2012), "Reporting of noninferiority and equivalence randomized trials: extension of the CONSORT
    2010 statement", JAMA 308(24), 2594-2604.
    """
    check_margin(margin)
    for name, bound in (("lower", lower), ("upper", upper)):
        if bound is not None and not bound >= 0.0:
            raise ValueError(f"{name}: expected a ratio of at least 0, found {bound!r}")
    limit = 1.0 + margin
    if upper is not None and abs(upper - limit) < TIE:
        reason = f"upper bound {upper!r} equals the limit {limit!r} within {TIE}"
        return Decision(verdict=Verdict.INCONCLUSIVE, numerical_tie=True, reason=reason)
    verdict = _zone(lower, upper, limit)
    return Decision(verdict=verdict, numerical_tie=False, reason=_reason(lower, upper, limit))


def _zone(lower: float | None, upper: float | None, limit: float) -> Verdict:
    slower = lower is not None and lower > 1.0
    if upper is not None and upper < 1.0:
        return Verdict.SUPERIOR
    if upper is not None and upper < limit:
        return Verdict.NON_INFERIOR_BUT_SLOWER if slower else Verdict.NON_INFERIOR
    if lower is not None and lower >= limit:
        return Verdict.INFERIOR
    return Verdict.INCONCLUSIVE_BUT_SLOWER if slower else Verdict.INCONCLUSIVE


def _reason(lower: float | None, upper: float | None, limit: float) -> str:
    """Why: the bounds against 1 and the limit, with enough digits to see which is larger."""
    if upper is None:
        return "no upper bound can be given"
    if upper < 1.0:
        return f"upper {distinct(upper, 1.0)} < 1"
    against = f"upper {distinct(upper, limit)} {'<' if upper < limit else '>='} limit {limit:.12g}"
    if lower is None or lower <= 1.0:
        return against
    if lower >= limit:
        return f"lower {distinct(lower, limit)} >= limit {limit:.12g}"
    return f"{against}, lower {distinct(lower, 1.0)} > 1"


def distinct(value: float, reference: float) -> str:
    """Value with at least 5 decimals, and as many more as it takes to differ in print from the reference."""
    for digits in range(5, 17):
        text = f"{value:.{digits}f}"
        if value == reference or text != f"{reference:.{digits}f}":
            return text
    return repr(value)


def family_verdict(verdicts: Sequence[Verdict], *, claim: str = ALL_POINTS) -> Family:
    """Verdict of a family; over the points' own verdicts it is an intersection-union test, every point at full alpha.

    Notes
    -----
    superior if all are; else non_inferior if all are that or better; else non_inferior_but_slower if all are one of
    these three; else inferior if one is; else inconclusive_but_slower if one is; else inconclusive. A family without a
    comparison shows nothing: inconclusive.

    References
    ----------
    Berger, R. L. (1982), "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24(4), 295-300.
    """
    found = frozenset(verdicts)
    verdict = Verdict.INCONCLUSIVE
    if found and found <= frozenset(SHOWN):
        verdict = next(SHOWN[i] for i in range(3) if found <= frozenset(SHOWN[: i + 1]))
    elif Verdict.INFERIOR in found:
        verdict = Verdict.INFERIOR
    elif Verdict.INCONCLUSIVE_BUT_SLOWER in found:
        verdict = Verdict.INCONCLUSIVE_BUT_SLOWER
    return Family(claim=claim, verdict=verdict, comparisons=len(verdicts))
