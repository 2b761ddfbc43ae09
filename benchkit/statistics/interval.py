"""Paired t interval of the geometric ratio, with a defined answer for every input.

Rules:
1. K = 0: nothing. K = 1: the ratio alone. Equal log ratios: [ratio, ratio] and no p-value. Otherwise all of it.
2. A bound that is infinite is None and ``unbounded`` says so; a number that does not exist is None. NaN never leaves here.
3. Sums are exactly rounded (``math.fsum``), the variance is two-pass: two code bases agree to 1e-12.
4. The guarded interval is for timers that are coarse against the margin; it contains the plain one where the medians of a
   point are of one size, as they are.
"""

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from benchkit.statistics.estimand import finite, log_ratios, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean, standard deviation and standard error of values, and their range.

    Attributes
    ----------
    count:
        How many values.
    mean:
        ``fsum(x) / K``; None without a value.
    sd:
        ``sqrt(fsum((x - mean)^2) / (K - 1))``; None below two values.
    se:
        ``sd / sqrt(K)``; None below two values.
    constant:
        Two or more values, all equal: max == min, never ``sd == 0``.
    """

    count: int
    mean: float | None
    sd: float | None
    se: float | None
    constant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioInterval:
    """Geometric ratio with its two one-sided bounds, each at confidence ``1 - alpha_one_sided``.

    Attributes
    ----------
    pairs:
        Process pairs, K.
    ratio, lower, upper:
        Point estimate and bounds; None where they do not exist or are infinite.
    p_non_inferior, p_superior:
        One-sided p-values of ``ratio >= 1 + margin`` and of ``ratio >= 1``.
    p_lower:
        One-sided p-value of ``ratio <= 1 / (1 + margin)``, the other half of an equivalence test.
    p_differs:
        Two-sided p-value of ``ratio = 1``, from the plain log ratios.
    guarded, unbounded, zero_spread:
        Which rule made the bounds; see ``reason``.
    reason:
        One sentence for people: the method, or why there is no interval.
    """

    pairs: int
    ratio: float | None
    lower: float | None
    upper: float | None
    p_non_inferior: float | None
    p_superior: float | None
    p_lower: float | None
    p_differs: float | None
    guarded: bool
    unbounded: bool
    zero_spread: bool
    reason: str


def check_alpha(alpha_one_sided: float) -> None:
    """Refuse a one-sided level outside (0, 0.5), NaN included."""
    if not 0.0 < alpha_one_sided < 0.5:
        raise ValueError(f"alpha_one_sided: expected a number between 0 and 0.5, found {alpha_one_sided!r}")


def check_margin(margin: float) -> None:
    """Refuse a margin that is not a finite positive number, NaN included."""
    if not 0.0 < margin < math.inf:
        raise ValueError(f"margin: expected a finite number above 0, found {margin!r}")


def moments(values: ArrayLike, *, name: str) -> Moments:
    """Two-pass moments by exactly rounded sums.

    References
    ----------
    Chan, T. F., Golub, G. H. and LeVeque, R. J. (1983), "Algorithms for computing the sample variance",
    The American Statistician 37(3), 242-247.
    """
    data = finite(values, name=name).tolist()
    count = len(data)
    if not count:
        return Moments(count=0, mean=None, sd=None, se=None, constant=False)
    mean = math.fsum(data) / count
    if count == 1:
        return Moments(count=1, mean=mean, sd=None, se=None, constant=False)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in data) / (count - 1))
    return Moments(count=count, mean=mean, sd=sd, se=sd / math.sqrt(count), constant=max(data) == min(data))


def t_cdf(statistic: float, df: float) -> float:
    """Distribution function of Student's t, to 1e-10 relative in both tails."""
    return float(stdtr(df, statistic))


def t_critical(alpha: float, df: float) -> float:
    """Upper ``alpha`` point of Student's t, ``t(1 - alpha, df)``."""
    return -float(stdtrit(df, alpha))


def exponential(value: float) -> float | None:
    """``exp(value)``, None where that is infinite."""
    try:
        return math.exp(value)
    except OverflowError:
        return None


def paired_interval(values: ArrayLike, *, margin: float, alpha_one_sided: float) -> RatioInterval:
    """Paired t interval from log ratios of process medians.

    Parameters
    ----------
    values:
        ``r_k = log(m_candidate,k / m_baseline,k)``, one per process pair.
    margin:
        d; the limit is ``1 + d``.
    alpha_one_sided:
        Level of each bound.

    Notes
    -----
    With ``rbar``, ``s`` and ``se = s / sqrt(K)`` of r,
    ``upper, lower = exp(rbar +- t(1 - alpha, K - 1) se)``,
    ``p_non_inferior = F_t((rbar - log1p(d)) / se)``, ``p_superior = F_t(rbar / se)``,
    ``p_lower = F_t(-(rbar + log1p(d)) / se)``,
    ``p_differs = 2 F_t(-abs(rbar) / se)``, all with ``K - 1`` degrees of freedom.

    References
    ----------
    Aarts, E., Dolan, C. V., Verhage, M. and van der Sluis, S. (2015), "Multilevel analysis quantifies variation in the
    experimental effect while optimizing power and preventing false positives", BMC Neuroscience 16:94.
    """
    check_alpha(alpha_one_sided)
    check_margin(margin)
    plain = moments(values, name="log_ratios")
    return _interval(plain, plain, plain, margin=margin, alpha=alpha_one_sided, guarded=False)


def guarded_interval(
    candidate: ArrayLike,
    baseline: ArrayLike,
    *,
    candidate_quantum: float,
    baseline_quantum: float,
    margin: float,
    alpha_one_sided: float,
) -> RatioInterval:
    """Interval that stays right when the timer rounds to multiples of a quantum.

    Parameters
    ----------
    candidate, baseline:
        Process medians per call, one per process pair.
    candidate_quantum, baseline_quantum:
        q' = resolution of one call's latency, ``q / calls``, in the medians' unit.
    margin, alpha_one_sided:
        As for :func:`paired_interval`.

    Notes
    -----
    Rounding is monotone, so a true median lies within q'/2 of the recorded one. The upper bound (and p_non_inferior and
    p_superior) comes from ``log((m_c + q'/2) / (m_b - q'/2))``, the lower bound from
    ``log((m_c - q'/2) / (m_b + q'/2))``; ratio and p_differs from the plain log ratios. Equal plain log ratios have no
    spread to guard: [ratio, ratio], and not ``guarded``.
    """
    check_alpha(alpha_one_sided)
    check_margin(margin)
    for quantum in (candidate_quantum, baseline_quantum):
        if not 0.0 <= quantum < math.inf:
            raise ValueError(f"quantum: expected a finite number of at least 0, found {quantum!r}")
    plain = moments(log_ratios(candidate, baseline), name="log_ratios")
    above, below = positive(candidate, name="candidate"), positive(baseline, name="baseline")
    ours, theirs = candidate_quantum / 2.0, baseline_quantum / 2.0
    slow = moments(log_ratios(above + ours, below - theirs), name="log_ratios") if (below > theirs).all() else None
    fast = moments(log_ratios(above - ours, below + theirs), name="log_ratios") if (above > ours).all() else None
    return _interval(plain, slow, fast, margin=margin, alpha=alpha_one_sided, guarded=True)


def _interval(
    plain: Moments, above: Moments | None, below: Moments | None, *, margin: float, alpha: float, guarded: bool
) -> RatioInterval:
    """Interval from the moments that give the ratio, the upper and the lower bound; None = as wide as can be."""
    ratio = None if plain.mean is None else exponential(plain.mean)
    if plain.mean is None or plain.se is None:
        reason = "no complete process pair" if plain.mean is None else "one process pair: a ratio, no interval"
        return _without_p(plain.count, ratio, bound=None, zero_spread=False, reason=reason)
    if plain.constant:
        reason = f"all {plain.count} log ratios are equal: no spread to judge by"
        return _without_p(plain.count, ratio, bound=ratio, zero_spread=True, reason=reason)
    df = plain.count - 1
    quantile = t_critical(alpha, df)
    upper = _bound(above, quantile)
    return RatioInterval(
        pairs=plain.count,
        ratio=ratio,
        lower=0.0 if below is None else _bound(below, -quantile),
        upper=upper,
        p_non_inferior=1.0 if above is None else _p_value(above, math.log1p(margin), df),
        p_superior=1.0 if above is None else _p_value(above, 0.0, df),
        p_lower=1.0 if below is None else _p_above(below, -math.log1p(margin), df),
        p_differs=min(1.0, 2.0 * t_cdf(-abs(plain.mean) / plain.se, df)) if plain.se > 0.0 else None,
        guarded=guarded,
        unbounded=upper is None,
        zero_spread=False,
        reason=f"paired t on {plain.count} log ratios of process medians" + (", guarded" if guarded else ""),
    )


def _without_p(
    count: int, ratio: float | None, *, bound: float | None, zero_spread: bool, reason: str
) -> RatioInterval:
    return RatioInterval(
        pairs=count,
        ratio=ratio,
        lower=bound,
        upper=bound,
        p_non_inferior=None,
        p_superior=None,
        p_lower=None,
        p_differs=None,
        guarded=False,
        unbounded=False,
        zero_spread=zero_spread,
        reason=reason,
    )


def _bound(side: Moments | None, quantile: float) -> float | None:
    if side is None or side.mean is None or side.se is None:
        return None
    return exponential(side.mean + quantile * side.se)


def _p_value(side: Moments, null: float, df: int) -> float | None:
    if side.mean is None or side.se is None or side.se == 0.0:
        return None
    return t_cdf((side.mean - null) / side.se, df)


def _p_above(side: Moments, null: float, df: int) -> float | None:
    if side.mean is None or side.se is None or side.se == 0.0:
        return None
    return t_cdf((null - side.mean) / side.se, df)
