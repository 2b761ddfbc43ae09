"""Dependence inside one process: reported, used to choose the number of samples, never part of a verdict."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from benchkit.statistics.estimand import finite
from benchkit.units import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Autocorrelation of one series; numbers are None where the series has no spread or is too short."""

    samples: int
    lag1: float | None
    effective_samples: float | None
    block_stationary: float | None
    block_circular: float | None


def autocovariance(values: ArrayLike, *, max_lag: int) -> FloatArray:
    """``gamma_l = sum_t (x_t - mean) (x_{t+l} - mean) / n`` for l = 0 .. max_lag, by exactly rounded sums."""
    data = finite(values, name="values")
    if not 0 <= max_lag < data.size:
        raise ValueError(f"max_lag: expected 0 to {data.size - 1}, found {max_lag}")
    centred = data - math.fsum(data.tolist()) / data.size
    lags = range(max_lag + 1)
    return np.array([math.fsum((centred[lag:] * centred[: data.size - lag]).tolist()) / data.size for lag in lags])


def autocorrelation(values: ArrayLike, *, max_lag: int) -> FloatArray:
    """``gamma_l / gamma_0``; a series without spread is refused.

    References
    ----------
    Box, G. E. P. and Jenkins, G. M. (1976), "Time Series Analysis: Forecasting and Control", section 2.1.
    """
    gamma = autocovariance(values, max_lag=max_lag)
    if not gamma[0] > 0.0:
        raise ValueError("values: expected values that differ, found none")
    return np.asarray(gamma / gamma[0], dtype=np.float64)


def effective_samples(values: ArrayLike) -> float:
    """``n gamma_0 / LRV``, the long-run variance with Bartlett weights up to ``L = floor(4 (n / 100)^(2/9))``.

    References
    ----------
    Newey, W. K. and West, K. D. (1987), "A simple, positive semi-definite, heteroskedasticity and autocorrelation
    consistent covariance matrix", Econometrica 55, 703-708.
    """
    count = finite(values, name="values").size
    lags = min(math.floor(4.0 * (count / 100.0) ** (2.0 / 9.0)), count - 1)
    rho = autocorrelation(values, max_lag=lags)
    weights = 1.0 - np.arange(1, lags + 1) / (lags + 1.0)
    return count / float(1.0 + 2.0 * (weights @ rho[1:]))


def block_length(values: ArrayLike) -> tuple[float, float]:
    """Automatic block length of the stationary and of the circular block bootstrap.

    Notes
    -----
    M is twice the largest lag after which ``k_n = max(5, floor(log10 n))`` autocorrelations in a row lie within
    ``2 sqrt(log10(n) / n)``; flat-top weights lambda(k / M); ``G = sum lambda |k| gamma_k``,
    ``S = sum lambda gamma_k`` over -M .. M; ``b = (2 G^2 / D)^(1/3) n^(1/3)``, D = 2 S^2 and 4/3 S^2, at most
    ``ceil(min(3 sqrt(n), n / 3))``.

    References
    ----------
    Politis, D. N. and White, H. (2004), "Automatic block-length selection for the dependent bootstrap", Econometric
    Reviews 23, 53-70; Patton, A., Politis, D. N. and White, H. (2009), correction, Econometric Reviews 28, 372-375.
    """
    data = finite(values, name="values")
    count = data.size
    run = max(5, int(math.log10(count))) if count else 5
    largest = math.ceil(math.sqrt(count)) + run
    if count < largest + 2:
        raise ValueError(f"values: expected at least 12 for a block length, found {count}")
    gamma = autocovariance(data, max_lag=largest)
    if not gamma[0] > 0.0:
        raise ValueError("values: expected values that differ, found none")
    half = _last_significant(data, run=run, largest=largest)
    m = largest if half is None else min(2 * max(half, 1), largest)
    lags = np.arange(1, m + 1)
    weights = np.where(lags / m <= 0.5, 1.0, 2.0 * (1.0 - lags / m))
    g = 2.0 * float((weights * lags) @ gamma[1 : m + 1])
    long_run = float(gamma[0] + 2.0 * weights @ gamma[1 : m + 1])
    cap = float(math.ceil(min(3.0 * math.sqrt(count), count / 3.0)))
    if long_run == 0.0:
        return cap, cap
    stationary, circular = (
        (2.0 * g * g / (c * long_run**2)) ** (1.0 / 3.0) * count ** (1.0 / 3.0) for c in (2.0, 4 / 3)
    )
    return min(stationary, cap), min(circular, cap)


def dependence(values: ArrayLike) -> Dependence:
    """All of the above for one series, with None where a number does not exist."""
    data = finite(values, name="values")
    spread = data.size >= 2 and data.max() > data.min()
    long_enough = spread and data.size >= 12
    stationary, circular = block_length(data) if long_enough else (None, None)
    return Dependence(
        samples=data.size,
        lag1=float(autocorrelation(data, max_lag=1)[1]) if spread else None,
        effective_samples=effective_samples(data) if spread else None,
        block_stationary=stationary,
        block_circular=circular,
    )


def _last_significant(data: FloatArray, *, run: int, largest: int) -> int | None:
    """Smallest lag m after which ``run`` autocorrelations in a row are insignificant; None where there is none."""
    count = data.size
    centred = data - data.mean()
    bound = 2.0 * math.sqrt(math.log10(count) / count)
    small: list[bool] = []
    for lag in range(largest + 1):
        ahead, behind = centred[lag + 1 :], centred[: count - lag - 1]
        scale = math.sqrt(float(ahead @ ahead) * float(behind @ behind))
        product = abs(float(centred[lag:] @ centred[: count - lag]))
        small.append(product < bound * scale)
        if lag >= run and all(small[lag - run : lag]):
            return lag - run
    return None
