"""Ratio of medians by Bonett and Price: on process medians, never on pooled samples."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, ndtri

from benchkit.statistics.estimand import median, positive
from benchkit.statistics.interval import check_alpha
from benchkit.units import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianRatio:
    """Ratio of two medians with one-sided bounds."""

    median_candidate: float
    median_baseline: float
    ratio: float
    lower: float
    upper: float


def median_ratio(candidate: ArrayLike, baseline: ArrayLike, *, alpha_one_sided: float) -> MedianRatio:
    """Unpaired ratio of medians.

    Notes
    -----
    Per arm ``a = round(n / 2 - sqrt(n))`` (half to even), at least 1; ``se = (log y_(n-a+1) - log y_(a)) / (2 z0)``,
    ``z0 = qnorm(1 - pbinom(a - 1, n, 1/2))``; bounds ``exp(log ratio -+ z sqrt(se1^2 + se2^2))``.

    References
    ----------
    Bonett, D. G. and Price, R. M. (2020), "Confidence intervals for ratios of means and medians", J. Educ. Behav.
    Stat. 45(6), 750-770.
    """
    ours, theirs = positive(candidate, name="candidate"), positive(baseline, name="baseline")
    variance = _se_log_median(ours) ** 2 + _se_log_median(theirs) ** 2
    return _result(ours, theirs, variance, alpha_one_sided)


def median_ratio_paired(candidate: ArrayLike, baseline: ArrayLike, *, alpha_one_sided: float) -> MedianRatio:
    """Paired ratio of medians; the covariance is ``(4 p00 - 1) se1 se2``.

    Notes
    -----
    ``p00 = (f00 + 1/4) / (n + 1)`` for even n, ``/ n`` for odd; f00 counts pairs with both values below their medians.
    """
    ours, theirs = positive(candidate, name="candidate"), positive(baseline, name="baseline")
    if ours.size != theirs.size:
        raise ValueError(f"expected as many candidate as baseline values, found {ours.size} and {theirs.size}")
    se_ours, se_theirs = _se_log_median(ours), _se_log_median(theirs)
    both = int(((ours < median(ours)) & (theirs < median(theirs))).sum())
    share = (both + 0.25) / (ours.size + 1 if ours.size % 2 == 0 else ours.size)
    variance = se_ours**2 + se_theirs**2 - 2.0 * (4.0 * share - 1.0) * se_ours * se_theirs
    return _result(ours, theirs, max(0.0, variance), alpha_one_sided)


def _se_log_median(values: FloatArray) -> float:
    count = values.size
    if count < 2:
        raise ValueError(f"expected at least two values in either arm, found {count}")
    ordered = np.sort(values)
    a = max(1, round(count / 2 - math.sqrt(count)))
    z = -float(ndtri(bdtr(a - 1, count, 0.5)))
    return (math.log(ordered[count - a]) - math.log(ordered[a - 1])) / (2.0 * z)


def _result(ours: FloatArray, theirs: FloatArray, variance: float, alpha_one_sided: float) -> MedianRatio:
    check_alpha(alpha_one_sided)
    ratio = median(ours) / median(theirs)
    reach = -float(ndtri(alpha_one_sided)) * math.sqrt(variance)
    return MedianRatio(
        median_candidate=median(ours),
        median_baseline=median(theirs),
        ratio=ratio,
        lower=ratio * math.exp(-reach),
        upper=ratio * math.exp(reach),
    )
