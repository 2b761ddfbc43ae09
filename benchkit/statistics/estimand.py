"""The estimand: geometric mean over process pairs of the within-process ratio of median latencies.

Rules:
1. The process pair is the only unit of inference; samples of one process enter through their median alone.
2. A number that is not finite and positive is refused with its index and the count; none is skipped, none is replaced.
3. Ratios are candidate / baseline: lower is better.
"""

import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchkit.units import FloatArray


def finite(values: ArrayLike, *, name: str) -> FloatArray:
    """Values as a one-dimensional float array.

    Raises
    ------
    ValueError
        A value is NaN or infinite: how many are, the first one's index and the value.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one dimension, found {array.ndim}")
    result = array.astype(np.float64)
    _refuse(~np.isfinite(result), result, name=name, expected="finite")
    return result


def positive(values: ArrayLike, *, name: str) -> FloatArray:
    """Values as a one-dimensional float array of finite positive numbers.

    Raises
    ------
    ValueError
        A value is NaN, infinite, zero or negative: how many are, the first one's index and the value.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one dimension, found {array.ndim}")
    result = array.astype(np.float64)
    _refuse(~(np.isfinite(result) & (result > 0)), result, name=name, expected="finite and positive")
    return result


def _refuse(bad: NDArray[np.bool_], values: FloatArray, *, name: str, expected: str) -> None:
    indices = np.flatnonzero(bad)
    if indices.size:
        first = int(indices[0])
        raise ValueError(
            f"{name}: expected {expected} values, found {indices.size} of {values.size} that are not; "
            f"first at index {first}: {float(values[first])!r}"
        )


def median(values: ArrayLike, *, name: str = "values") -> float:
    """Median of finite values; of an even number, the mean of the two middle ones.

    Raises
    ------
    ValueError
        There is no value, or one is not finite.
    """
    array = np.sort(finite(values, name=name))
    if not array.size:
        raise ValueError(f"{name}: expected at least one value, found none")
    middle = array.size // 2
    if array.size % 2:
        return float(array[middle])
    return (float(array[middle - 1]) + float(array[middle])) / 2.0


def process_median(durations: ArrayLike, *, calls: int) -> float:
    """Median latency of one call, in one process, at one point, of one arm.

    Parameters
    ----------
    durations:
        ``duration_ns`` of the samples that are not warm-up, of all blocks.
    calls:
        Calls that one sample holds. With 1 the result is the median of whole samples.

    Returns
    -------
    float
        ``m = median(durations) / calls``.

    Raises
    ------
    ValueError
        A duration is not finite and positive, there is none, or ``calls`` is below 1.
    """
    if calls < 1:
        raise ValueError(f"calls: expected at least 1, found {calls}")
    return median(positive(durations, name="durations"), name="durations") / calls


def log_ratios(candidate: ArrayLike, baseline: ArrayLike) -> FloatArray:
    """Log ratios of process medians, ``r_k = log(m_candidate,k / m_baseline,k)``.

    Parameters
    ----------
    candidate, baseline:
        One process median per process pair, in the same order.

    Raises
    ------
    ValueError
        The lengths differ, or a median is not finite and positive.
    """
    upper = positive(candidate, name="candidate")
    lower = positive(baseline, name="baseline")
    if upper.size != lower.size:
        raise ValueError(f"expected as many candidate as baseline medians, found {upper.size} and {lower.size}")
    return np.array([_log_ratio(c, b) for c, b in zip(upper.tolist(), lower.tolist(), strict=True)], dtype=np.float64)


def _log_ratio(above: float, below: float) -> float:
    """``log(above / below)``, by the difference of logarithms where the quotient leaves the range of numbers."""
    quotient = above / below
    in_range = sys.float_info.min <= quotient <= sys.float_info.max
    return math.log(quotient) if in_range else math.log(above) - math.log(below)


def geometric_ratio(ratios: Sequence[float] | FloatArray) -> float | None:
    """Geometric mean of ratios from their logarithms, ``exp(fsum(r) / K)``; None without a ratio.

    References
    ----------
    Fleming, P. J. and Wallace, J. J. (1986), "How not to lie with statistics", CACM 29(3), 218-221.
    """
    logs = finite(ratios, name="log_ratios").tolist()
    return math.exp(math.fsum(logs) / len(logs)) if logs else None
