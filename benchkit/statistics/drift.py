"""Steady state of one series inside a process: reported, never used to trim samples."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from benchkit.statistics.estimand import finite, median, positive
from benchkit.units import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Trend against time; None where it does not exist (too short, or no spread).

    Attributes
    ----------
    tau, p_two_sided:
        Kendall's tau-b against the index, and its p-value.
    half_ratio:
        Median of the second half / median of the first; the middle sample of an odd number belongs to neither.
    """

    tau: float | None
    p_two_sided: float | None
    half_ratio: float | None


_PAIRWISE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Changepoint:
    """One shift of the mean by least squares: ``before`` counts the samples ahead of it."""

    before: int
    mean_before: float
    mean_after: float
    rss: float
    rss_null: float


def drift(values: ArrayLike) -> Drift:
    """Kendall's tau against time and the ratio of the halves' medians.

    References
    ----------
    Kendall, M. G. (1938), "A new measure of rank correlation", Biometrika 30, 81-93; Mann, H. B. (1945),
    "Nonparametric tests against trend", Econometrica 13, 245-259.
    """
    data = positive(values, name="values")
    tau = time_tau(data)
    if tau is None:
        return Drift(tau=None, p_two_sided=None, half_ratio=half_ratio(data))
    from scipy.stats import kendalltau  # slow to import, and needed for the p-value alone

    pvalue = float(kendalltau(np.arange(data.size), data).pvalue)
    return Drift(tau=tau, p_two_sided=pvalue, half_ratio=half_ratio(data))


def half_ratio(data: FloatArray) -> float | None:
    """Median of the second half over that of the first; None below two samples."""
    half = data.size // 2
    return median(data[data.size - half :]) / median(data[:half]) if half else None


def time_tau(data: FloatArray) -> float | None:
    """Kendall's tau-b of samples against their order; None where all are equal or fewer than two.

    Up to ``_PAIRWISE`` samples every pair is looked at; beyond, scipy.stats has the quicker way and the slow import.
    """
    count = data.size
    if count < 2 or data.max() == data.min():
        return None
    if count > _PAIRWISE:
        from scipy.stats import kendalltau

        return float(kendalltau(np.arange(count), data).statistic)
    signs = np.sign(data[np.newaxis, :] - data[:, np.newaxis])[np.triu_indices(count, 1)]
    pairs, tied = signs.size, int(np.count_nonzero(signs == 0))
    return float(signs.sum() / math.sqrt(pairs * (pairs - tied)))


def changepoint(values: ArrayLike) -> Changepoint:
    """The split that leaves the smallest residual sum of squares; the first of several.

    References
    ----------
    Cobb, G. W. (1978), "The problem of the Nile: conditional solution to a changepoint problem", Biometrika 65, 243-251.
    """
    data = finite(values, name="values")
    count = data.size
    if count < 2:
        raise ValueError(f"values: expected at least two, found {count}")
    mean = math.fsum(data.tolist()) / count
    sums = np.cumsum(data - mean)[:-1]
    sizes = np.arange(1, count)
    before = int(np.argmax(sums**2 * count / (sizes * (count - sizes)))) + 1
    left, right = data[:before].tolist(), data[before:].tolist()
    mean_left, mean_right = math.fsum(left) / len(left), math.fsum(right) / len(right)
    residual = math.fsum([(x - mean_left) ** 2 for x in left] + [(x - mean_right) ** 2 for x in right])
    return Changepoint(
        before=before,
        mean_before=mean_left,
        mean_after=mean_right,
        rss=residual,
        rss_null=math.fsum((x - mean) ** 2 for x in data.tolist()),
    )
