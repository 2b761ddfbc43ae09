"""Welch's t on log process medians: for arms that were measured in different processes."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from benchkit.statistics.estimand import positive
from benchkit.statistics.interval import check_alpha, check_margin, exponential, moments, t_cdf, t_critical


@dataclass(frozen=True, slots=True, kw_only=True)
class WelchDifference:
    """Difference of two means, its standard error and Satterthwaite's degrees of freedom."""

    difference: float
    se: float
    df: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WelchRatio:
    """Geometric ratio of unpaired arms; where pairs share an effect this wastes power, so pair them."""

    ratio: float | None
    lower: float | None
    upper: float | None
    df: float
    p_non_inferior: float


def welch_difference(*, mean_a: float, sd_a: float, n_a: int, mean_b: float, sd_b: float, n_b: int) -> WelchDifference:
    """``a - b`` from summaries.

    References
    ----------
    Welch, B. L. (1947), "The generalization of Student's problem when several different population variances are
    involved", Biometrika 34, 28-35.
    """
    v_a, v_b = sd_a**2 / n_a, sd_b**2 / n_b
    if not v_a + v_b > 0.0:
        raise ValueError("expected values that differ within an arm, found none")
    df = (v_a + v_b) ** 2 / (v_a**2 / (n_a - 1) + v_b**2 / (n_b - 1))
    return WelchDifference(difference=mean_a - mean_b, se=math.sqrt(v_a + v_b), df=df)


def welch_ratio(candidate: ArrayLike, baseline: ArrayLike, *, margin: float, alpha_one_sided: float) -> WelchRatio:
    """Unpaired geometric ratio of process medians, with one-sided bounds and the p-value at the margin."""
    check_alpha(alpha_one_sided)
    check_margin(margin)
    ours = moments(np.log(positive(candidate, name="candidate")), name="candidate")
    theirs = moments(np.log(positive(baseline, name="baseline")), name="baseline")
    if ours.mean is None or ours.sd is None or theirs.mean is None or theirs.sd is None:
        raise ValueError(f"expected at least two medians in either arm, found {ours.count} and {theirs.count}")
    found = welch_difference(
        mean_a=ours.mean, sd_a=ours.sd, n_a=ours.count, mean_b=theirs.mean, sd_b=theirs.sd, n_b=theirs.count
    )
    reach = t_critical(alpha_one_sided, found.df) * found.se
    return WelchRatio(
        ratio=exponential(found.difference),
        lower=exponential(found.difference - reach),
        upper=exponential(found.difference + reach),
        df=found.df,
        p_non_inferior=t_cdf((found.difference - math.log1p(margin)) / found.se, found.df),
    )
