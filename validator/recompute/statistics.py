"""Paired log ratios: point estimate, interval, p-values, verdict. Pure functions over floats.

Formulas (results/README.md "Numbers"), r = log(m_candidate / m_baseline), K pairs::

    rbar = fsum(r) / K;  s^2 = fsum((r - rbar)^2) / (K - 1);  se = s / sqrt(K)
    ratio = exp(rbar);  bounds = exp(rbar +- t(1 - alpha, K - 1) se)
    p_non_inferior = F_t((rbar - log1p(d)) / se);  p_superior = F_t(rbar / se);  p_lower = F_t(-(rbar + log1p(d)) / se)
    t(1 - alpha) = -t(alpha), which keeps its digits for the small alpha of an early look

Rules:
1. K = 0 gives nothing, K = 1 the ratio alone; max(r) == min(r) gives [ratio, ratio] and no p-value.
2. An upper bound within 1e-9 of 1 + d is a numerical tie, and inconclusive.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from validator.findings import Verdict

TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and standard error of log ratios."""

    mean: float
    error: float
    freedom: int

    def bound(self, alpha: float, side: int) -> float | None:
        """Give exp(mean +- t se); None where it is infinite."""
        return finite_exp(self.mean - side * float(stdtrit(self.freedom, alpha)) * self.error)

    def p_below(self, limit: float) -> float | None:
        """Give the one-sided p-value of a mean below ``limit``."""
        if self.error == 0:
            return None
        return float(stdtr(self.freedom, (self.mean - limit) / self.error))

    def p_above(self, limit: float) -> float | None:
        """Give the one-sided p-value of a mean above ``limit``."""
        if self.error == 0:
            return None
        return float(stdtr(self.freedom, (limit - self.mean) / self.error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A ratio with its interval; None stands for a number that does not exist or is infinite."""

    ratio: float | None
    lower: float | None
    upper: float | None
    pairs: int
    p_non_inferior: float | None
    p_superior: float | None
    p_lower: float | None
    p_differs: float | None
    zero_spread: bool
    unbounded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRatios:
    """Log ratios of the pairs; the guarded ones bound them where the timer is coarse."""

    plain: tuple[float, ...]
    high: tuple[float, ...] | None = None
    low: tuple[float, ...] | None = None


def finite_exp(value: float) -> float | None:
    """Give exp(value), None where it is infinite."""
    try:
        result = math.exp(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def median(values: Sequence[float]) -> float:
    """Give the median; an even count gives the mean of the two middle values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def moments(values: Sequence[float]) -> Moments:
    """Give mean and standard error by two passes of exactly rounded sums; needs two values."""
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Moments(mean=mean, error=math.sqrt(variance) / math.sqrt(count), freedom=count - 1)


def estimate(ratios: LogRatios, *, alpha: float, margin: float) -> Estimate:
    """Estimate the ratio of a comparison or control."""
    values = ratios.plain
    count = len(values)
    lower = upper = p_non_inferior = p_superior = p_lower = p_differs = None
    ratio = finite_exp(math.fsum(values) / count) if count else None
    zero = count >= 2 and max(values) == min(values)
    unbounded = False
    if zero:
        lower = upper = ratio
    elif count >= 2:
        plain = moments(values)
        high = moments(ratios.high) if ratios.high else plain
        low = moments(ratios.low) if ratios.low else plain
        lower, upper = low.bound(alpha, -1), high.bound(alpha, 1)
        unbounded = upper is None
        p_non_inferior, p_superior = high.p_below(math.log1p(margin)), high.p_below(0.0)
        p_lower = low.p_above(-math.log1p(margin))
        if plain.error > 0:
            p_differs = 2 * float(stdtr(plain.freedom, -abs(plain.mean) / plain.error))
    return Estimate(
        ratio=ratio,
        lower=lower,
        upper=upper,
        pairs=count,
        p_non_inferior=p_non_inferior,
        p_superior=p_superior,
        p_lower=p_lower,
        p_differs=p_differs,
        zero_spread=zero,
        unbounded=unbounded,
    )


def zone(lower: float | None, upper: float | None, margin: float) -> Verdict:
    """Give the verdict that an interval stands for, gates aside."""
    limit = 1 + margin
    if upper is not None and abs(upper - limit) < TIE:
        return Verdict.INCONCLUSIVE
    slower = lower is not None and lower > 1
    if lower is not None and lower >= limit:
        return Verdict.INFERIOR
    if upper is None:
        return Verdict.INCONCLUSIVE_BUT_SLOWER if slower else Verdict.INCONCLUSIVE
    if upper < 1:
        return Verdict.SUPERIOR
    if upper < limit:
        return Verdict.NON_INFERIOR_BUT_SLOWER if slower else Verdict.NON_INFERIOR
    return Verdict.INCONCLUSIVE_BUT_SLOWER if slower else Verdict.INCONCLUSIVE


def family_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Give the verdict over all comparisons that claim something; none at all is inconclusive."""
    good = (Verdict.SUPERIOR, Verdict.NON_INFERIOR, Verdict.NON_INFERIOR_BUT_SLOWER)
    if not verdicts:
        return Verdict.INCONCLUSIVE
    for count, name in enumerate(good, start=1):
        if all(verdict in good[:count] for verdict in verdicts):
            return name
    for name in (Verdict.INFERIOR, Verdict.INCONCLUSIVE_BUT_SLOWER):
        if name in verdicts:
            return name
    return Verdict.INCONCLUSIVE


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by Holm's step-down method; None is left out."""
    known = sorted((value, i) for i, value in enumerate(values) if value is not None)
    result: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (value, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        result[i] = largest
    return result
