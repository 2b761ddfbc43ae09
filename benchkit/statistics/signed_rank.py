"""Hodges-Lehmann estimate with exact signed-rank bounds: a sensitivity analysis, not the verdict.

Rules:
1. The target is the pseudo-median of the log ratios; it equals the mean only where they are symmetric.
2. Bounds are exact for continuous data. A level that K pairs cannot reach gives no bound, and the reason says so.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from benchkit.statistics.estimand import finite, median
from benchkit.statistics.interval import check_alpha
from benchkit.units import FloatArray


class Alternative(StrEnum):
    """Which side a test looks at."""

    LESS = "less"
    GREATER = "greater"
    TWO_SIDED = "two-sided"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalValue:
    """Largest c with ``P(T+ <= c) <= alpha``; c = -1: the level cannot be reached."""

    c: int
    attained: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HodgesLehmann:
    """Pseudo-median with one-sided bounds, in the unit of the values (log ratios: take ``exp``)."""

    pairs: int
    estimate: float | None
    lower: float | None
    upper: float | None
    critical: CriticalValue
    reason: str


def null_distribution(pairs: int) -> FloatArray:
    """Probabilities of T+ = 0 .. K (K + 1) / 2: the coefficients of ``prod (1 + x^j) / 2^K``.

    References
    ----------
    Hollander, M., Wolfe, D. A. and Chicken, E. (2014), "Nonparametric Statistical Methods", 3rd ed., chapter 3.
    """
    probabilities = np.ones(1)
    for rank in range(1, pairs + 1):
        gap = np.zeros(rank)
        probabilities = (np.concatenate([probabilities, gap]) + np.concatenate([gap, probabilities])) / 2.0
    return probabilities


def critical_value(pairs: int, *, alpha_one_sided: float) -> CriticalValue:
    """Critical value of the signed-rank statistic for ``pairs`` pairs without ties."""
    check_alpha(alpha_one_sided)
    cumulative = np.cumsum(null_distribution(pairs))
    c = int(np.searchsorted(cumulative, alpha_one_sided, side="right")) - 1
    return CriticalValue(c=c, attained=float(cumulative[c]) if c >= 0 else 0.0)


def walsh_averages(values: ArrayLike) -> FloatArray:
    """All ``(x_i + x_j) / 2`` with i <= j, ascending."""
    data = finite(values, name="values")
    first, second = np.triu_indices(data.size)
    return np.sort((data[first] + data[second]) / 2.0)


def hodges_lehmann(values: ArrayLike, *, alpha_one_sided: float) -> HodgesLehmann:
    """Hodges-Lehmann estimate and exact one-sided bounds.

    Notes
    -----
    With the M = K (K + 1) / 2 Walsh averages w ascending and c of :func:`critical_value`: estimate = median(w),
    upper = w_(M - c), lower = w_(c + 1), counted from 1; c = -1: no bounds.

    References
    ----------
    Hodges, J. L. and Lehmann, E. L. (1963), "Estimates of location based on rank tests", Ann. Math. Stat. 34, 598-611.
    """
    averages = walsh_averages(values)
    pairs = (math.isqrt(8 * averages.size + 1) - 1) // 2
    critical = critical_value(pairs, alpha_one_sided=alpha_one_sided)
    bounded = critical.c >= 0
    reach = f"{pairs} pairs reach no level below {0.5**pairs:.4g}"
    return HodgesLehmann(
        pairs=pairs,
        estimate=median(averages) if pairs else None,
        lower=float(averages[critical.c]) if bounded else None,
        upper=float(averages[averages.size - 1 - critical.c]) if bounded else None,
        critical=critical,
        reason=f"exact signed-rank bounds, attained level {critical.attained:.4g}" if bounded else reach,
    )


def signed_rank_p(values: ArrayLike, *, null: float, alternative: Alternative) -> float:
    """Exact p-value of the signed-rank test of the pseudo-median against ``null``.

    Notes
    -----
    T+ is the number of Walsh averages above ``null``. One that equals it counts against the alternative, so the test
    rejects at alpha exactly where the bound of :func:`hodges_lehmann` lies beyond ``null``.
    """
    averages = walsh_averages(values)
    pairs = (math.isqrt(8 * averages.size + 1) - 1) // 2
    cumulative = np.cumsum(null_distribution(pairs))
    less = float(cumulative[int((averages >= null).sum())])
    greater = float(cumulative[int((averages <= null).sum())])
    if alternative is Alternative.LESS:
        return less
    return greater if alternative is Alternative.GREATER else min(1.0, 2.0 * min(less, greater))


def signed_rank_statistic(values: ArrayLike, *, null: float) -> int:
    """T+ (R: V): the sum of the ranks of the positive differences, as the number of Walsh averages above ``null``."""
    return int((walsh_averages(values) > null).sum())
