"""Quantiles by definition, distribution-free bounds, and what the tail of the processes can show.

Rules:
1. A quantile claim names its Hyndman-Fan type; the p quantile of n samples is claimed only where n (1 - p) >= 5.
2. Bounds by order statistics hold for every distribution; where n is too small there is none, and the reason says so.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr

from benchkit.statistics.estimand import finite, median
from benchkit.statistics.interval import check_alpha

Method = Literal[
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "linear",
    "median_unbiased",
    "normal_unbiased",
]
HYNDMAN_FAN: tuple[Method, ...] = (
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "linear",
    "median_unbiased",
    "normal_unbiased",
)
TAIL_SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBound:
    """A bound that is an order statistic: its rank from 1, None where no rank reaches the level."""

    rank: int | None
    attained: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderInterval:
    """A two-sided interval between two order statistics, ranks from 1."""

    lower_rank: int | None
    upper_rank: int | None
    attained: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustSummary:
    """Location and scale that a few stragglers do not move."""

    median: float
    mad: float
    mad_normal: float
    iqr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTail:
    """What the mean of the log ratios hides.

    Attributes
    ----------
    largest:
        max r, a bound at ``1 - alpha`` for the ``covered`` quantile of process log ratios.
    covered:
        ``alpha^(1 / K)``.
    skewness:
        Moment skewness of r; None without spread.
    """

    largest: float
    covered: float
    skewness: float | None


def quantile(values: ArrayLike, p: float, *, hyndman_fan: int) -> float:
    """Sample quantile of one of the nine types (7 is numpy's and R's default, 8 median-unbiased).

    References
    ----------
    Hyndman, R. J. and Fan, Y. (1996), "Sample quantiles in statistical packages", The American Statistician 50, 361-365.
    """
    if not 1 <= hyndman_fan <= len(HYNDMAN_FAN):
        raise ValueError(f"hyndman_fan: expected a type from 1 to 9, found {hyndman_fan}")
    data = finite(values, name="values")
    if not data.size:
        raise ValueError("values: expected at least one value, found none")
    return float(np.quantile(data, p, method=HYNDMAN_FAN[hyndman_fan - 1]))


def process_quantile(durations: ArrayLike, p: float, *, hyndman_fan: int) -> float:
    """Quantile of one process, for a claim about tails; refused where fewer than 5 samples lie beyond it."""
    data = finite(durations, name="durations")
    beyond = data.size * (1.0 - p)
    if beyond < TAIL_SAMPLES - 1e-9:
        raise ValueError(
            f"p = {p:g}: expected n (1 - p) >= {TAIL_SAMPLES}, found {beyond:.3g} with {data.size} samples"
        )
    return quantile(data, p, hyndman_fan=hyndman_fan)


def upper_order_bound(count: int, p: float, *, alpha_one_sided: float) -> OrderBound:
    """Upper bound of the p quantile: the smallest rank k with ``P(Bin(n, p) <= k - 1) >= 1 - alpha``.

    References
    ----------
    Hahn, G. J. and Meeker, W. Q. (1991), "Statistical Intervals", section 5.2.
    """
    check_alpha(alpha_one_sided)
    reached = _binomial(count - 1, count, p)
    wanted = 1.0 - alpha_one_sided
    if reached < wanted:
        reason = f"{count} samples reach {reached:.5g}, not {wanted:g}: no bound exists"
        return OrderBound(rank=None, attained=reached, reason=reason)
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _binomial(middle, count, p) >= wanted else (middle + 1, high)
    attained = _binomial(low, count, p)
    return OrderBound(rank=low + 1, attained=attained, reason=f"order statistic {low + 1} of {count}")


def lower_order_bound(count: int, p: float, *, alpha_one_sided: float) -> OrderBound:
    """Lower bound of the p quantile: the mirror image of :func:`upper_order_bound`."""
    mirrored = upper_order_bound(count, 1.0 - p, alpha_one_sided=alpha_one_sided)
    rank = None if mirrored.rank is None else count + 1 - mirrored.rank
    reason = mirrored.reason if rank is None else f"order statistic {rank} of {count}"
    return OrderBound(rank=rank, attained=mirrored.attained, reason=reason)


def order_interval(count: int, p: float, *, alpha_one_sided: float) -> OrderInterval:
    """Two-sided interval of the p quantile, ``alpha_one_sided`` on either side."""
    lower = lower_order_bound(count, p, alpha_one_sided=alpha_one_sided)
    upper = upper_order_bound(count, p, alpha_one_sided=alpha_one_sided)
    return OrderInterval(
        lower_rank=lower.rank, upper_rank=upper.rank, attained=max(0.0, lower.attained + upper.attained - 1.0)
    )


def robust_summary(values: ArrayLike) -> RobustSummary:
    """Median, median absolute deviation (raw and times 1.4826) and interquartile range of type 7."""
    data = finite(values, name="values")
    centre = median(data)
    mad = median(np.abs(data - centre))
    iqr = quantile(data, 0.75, hyndman_fan=7) - quantile(data, 0.25, hyndman_fan=7)
    return RobustSummary(median=centre, mad=mad, mad_normal=1.4826 * mad, iqr=iqr)


def process_tail(log_ratios: ArrayLike, *, alpha_one_sided: float) -> ProcessTail:
    """Bound for the tail of process log ratios, and their skewness.

    Notes
    -----
    ``P(max r < q_p) = p^K``, so max r is an upper bound at ``1 - alpha`` of the quantile ``p = alpha^(1 / K)``: with
    alpha 0.05 the 74th percentile for K = 10, the 95th for K = 59. Skewed process effects break the t at K <= 20, and
    no method rescues it.
    """
    check_alpha(alpha_one_sided)
    data = finite(log_ratios, name="log_ratios")
    if not data.size:
        raise ValueError("log_ratios: expected at least one, found none")
    centred = data - math.fsum(data.tolist()) / data.size
    spread = math.fsum((centred**2).tolist()) / data.size
    third = math.fsum((centred**3).tolist()) / data.size
    scale = spread**1.5
    return ProcessTail(
        largest=float(data.max()),
        covered=alpha_one_sided ** (1.0 / data.size),
        skewness=third / scale if data.max() > data.min() and scale > 0.0 else None,
    )


def _binomial(k: int, count: int, p: float) -> float:
    return float(bdtr(k, count, p)) if k >= 0 else 0.0
