"""Fieller's interval for a ratio of arithmetic means: for users who need a ratio of means, not for the verdict."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from benchkit.statistics.estimand import finite
from benchkit.statistics.interval import check_alpha, moments, t_cdf, t_critical


@dataclass(frozen=True, slots=True, kw_only=True)
class FiellerInterval:
    """Ratio of means with one-sided bounds.

    Attributes
    ----------
    g:
        ``t^2 var(denominator) / denominator^2``; from 1 on the denominator may be zero and there are no bounds.
    """

    ratio: float
    lower: float | None
    upper: float | None
    g: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTest:
    """Sasabuchi's test that the ratio of two means is below ``rho``."""

    statistic: float
    df: int
    p_less: float


def fieller(
    numerator: float,
    denominator: float,
    *,
    var_numerator: float,
    var_denominator: float,
    covariance: float,
    critical: float,
) -> FiellerInterval:
    """Fieller's bounds from two estimates, the variances of these estimates, and a t quantile.

    Notes
    -----
    With ``A = a^2 - t^2 Va``, ``B = a b - t^2 Vab``, ``C = b^2 - t^2 Vb`` (a the denominator, b the numerator):
    bounds ``(B -+ sqrt(B^2 - A C)) / A`` where ``g = t^2 Va / a^2 < 1``.

    References
    ----------
    Fieller, E. C. (1954), "Some problems in interval estimation", J. R. Statist. Soc. B 16(2), 175-185.
    """
    if denominator == 0.0:
        raise ValueError("denominator: expected a mean that is not zero")
    square = critical * critical
    g = square * var_denominator / denominator**2
    ratio = numerator / denominator
    if not g < 1.0:
        return FiellerInterval(ratio=ratio, lower=None, upper=None, g=g, reason="g >= 1: the denominator may be zero")
    a = denominator**2 - square * var_denominator
    b = denominator * numerator - square * covariance
    c = numerator**2 - square * var_numerator
    root = math.sqrt(max(0.0, b * b - a * c))
    return FiellerInterval(ratio=ratio, lower=(b - root) / a, upper=(b + root) / a, g=g, reason="Fieller's bounds")


def fieller_paired(candidate: ArrayLike, baseline: ArrayLike, *, alpha_one_sided: float) -> FiellerInterval:
    """Paired Fieller interval on process medians, variances and covariance divided by K, K - 1 degrees of freedom."""
    check_alpha(alpha_one_sided)
    ours, theirs = moments(candidate, name="candidate"), moments(baseline, name="baseline")
    if ours.count != theirs.count:
        raise ValueError(f"expected as many candidate as baseline medians, found {ours.count} and {theirs.count}")
    if ours.mean is None or theirs.mean is None or ours.se is None or theirs.se is None:
        raise ValueError(f"expected at least two pairs, found {ours.count}")
    products = (finite(candidate, name="candidate") - ours.mean) * (finite(baseline, name="baseline") - theirs.mean)
    return fieller(
        ours.mean,
        theirs.mean,
        var_numerator=ours.se**2,
        var_denominator=theirs.se**2,
        covariance=math.fsum(products.tolist()) / (ours.count - 1) / ours.count,
        critical=t_critical(alpha_one_sided, ours.count - 1),
    )


def fieller_unpaired(candidate: ArrayLike, baseline: ArrayLike, *, alpha_one_sided: float) -> FiellerInterval:
    """Two-sample Fieller interval with the pooled variance, n1 + n2 - 2 degrees of freedom.

    References
    ----------
    Hauschke, D., Kieser, M. and Hothorn, L. A. (1999), "Proof of safety in toxicology based on the ratio of two means
    for normally distributed data", Biometrical Journal 41(3), 295-304.
    """
    check_alpha(alpha_one_sided)
    b, a, variance, n_b, n_a = _pooled(candidate, baseline)
    return fieller(
        b,
        a,
        var_numerator=variance / n_b,
        var_denominator=variance / n_a,
        covariance=0.0,
        critical=t_critical(alpha_one_sided, n_a + n_b - 2),
    )


def ratio_test_unpaired(candidate: ArrayLike, baseline: ArrayLike, *, rho: float) -> RatioTest:
    """One-sided test of ``mean(candidate) / mean(baseline) >= rho``, pooled variance.

    Notes
    -----
    ``T = (b - rho a) / (s sqrt(1 / n_b + rho^2 / n_a))``.

    References
    ----------
    Sasabuchi, S. (1988), "A multivariate test with composite hypotheses determined by linear inequalities",
    Mem. Fac. Sci. Kyushu Univ. A 42, 9-19.
    """
    b, a, variance, n_b, n_a = _pooled(candidate, baseline)
    if variance == 0.0:
        raise ValueError("expected values that differ within an arm, found none")
    statistic = (b - rho * a) / math.sqrt(variance * (1.0 / n_b + rho * rho / n_a))
    df = n_a + n_b - 2
    return RatioTest(statistic=statistic, df=df, p_less=t_cdf(statistic, df))


def _pooled(candidate: ArrayLike, baseline: ArrayLike) -> tuple[float, float, float, int, int]:
    ours, theirs = moments(candidate, name="candidate"), moments(baseline, name="baseline")
    if ours.mean is None or ours.sd is None or theirs.mean is None or theirs.sd is None:
        raise ValueError(f"expected at least two values in either arm, found {ours.count} and {theirs.count}")
    weights = np.array([ours.count - 1.0, theirs.count - 1.0])
    variance = float(weights @ np.array([ours.sd**2, theirs.sd**2]) / weights.sum())
    return ours.mean, theirs.mean, variance, ours.count, theirs.count
