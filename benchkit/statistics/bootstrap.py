"""Bootstrap over process pairs with indices that two code bases can repeat exactly: for display.

Rules:
1. The unit is the process pair; samples inside a process are never resampled.
2. Indices come from raw Philox words, not from a library's bounded integers; sums are exactly rounded. So the result is
   the same on every machine and for every batch size, and memory is bounded by the batch.
3. Percentile and BCa are too short for few pairs; below 30 the warning says so. Where BCa does not exist (no spread of
   the jackknife, all replicates on one side) the percentile is given and named.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Philox
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from benchkit.statistics.estimand import finite
from benchkit.statistics.interval import check_alpha, moments
from benchkit.units import FloatArray, IntArray

REPLICATES = 9999
WARN_BELOW = 30
EXHAUSTIVE_TO = 7
SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Key of the stream: two words of 64 bits, and the text that they come from."""

    low: int
    high: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """An order statistic of the replicates: value, rank from 1, and the method really used.

    ``z0`` and ``acceleration`` are None for the plain percentile.
    """

    value: float
    rank: int
    method: str
    z0: float | None
    acceleration: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapBounds:
    """Upper bounds on the log scale, one-sided at ``1 - alpha``; None is a bound that does not exist."""

    replicates: int
    key: str
    bootstrap_t: float | None
    percentile: Percentile
    bca: Percentile
    sd: float
    warning: str


def bootstrap_key(*, protocol_digest: str, point: str) -> Key:
    """Key of one operating point of a locked protocol."""
    return key_from_text(f"benchkit-boot-v1|{protocol_digest}|{point}")


def key_from_text(text: str) -> Key:
    """First 16 bytes of the SHA-256 of the text, as two little-endian words."""
    digest = hashlib.sha256(text.encode()).digest()
    return Key(low=int.from_bytes(digest[:8], "little"), high=int.from_bytes(digest[8:16], "little"), text=text)


def resample_indices(count: int, *, key: Key, replicates: int, batch: int) -> Iterator[IntArray]:
    """Rows of indices into ``count`` pairs, ``batch`` rows at a time.

    Notes
    -----
    ``raw[g] = philox4x64_10(counter = (g div 4, 0, 0, 0), key)[g mod 4]`` with ``g = b K + j``, and
    ``idx[b, j] = (raw[g] K) >> 64``. numpy increments the counter before it generates, so it starts at all ones.

    References
    ----------
    Salmon, J. K. et al. (2011), "Parallel random numbers: as easy as 1, 2, 3", SC '11.
    """
    if not 1 <= count < 1 << 32:
        raise ValueError(f"count: expected 1 to 2^32 - 1, found {count}")
    generator = Philox(counter=(1 << 256) - 1, key=key.low | key.high << 64)
    for start in range(0, replicates, batch):
        rows = min(batch, replicates - start)
        yield high_word(generator.random_raw(rows * count), count).reshape(rows, count)


def high_word(words: NDArray[np.uint64], count: int) -> IntArray:
    """``(word count) >> 64`` without 128-bit integers, exact for ``count < 2^32``."""
    factor, half, shift = np.uint64(count), np.uint64(0xFFFFFFFF), np.uint64(32)
    return (((words >> shift) * factor + (((words & half) * factor) >> shift)) >> shift).astype(np.int64)


def all_resamples(count: int) -> IntArray:
    """All ``K^K`` rows of indices: an answer without a random number, for K <= 7."""
    if not 1 <= count <= EXHAUSTIVE_TO:
        raise ValueError(f"count: expected 1 to {EXHAUSTIVE_TO} for all K^K resamples, found {count}")
    return np.array(list(itertools.product(range(count), repeat=count)), dtype=np.int64)


def acceleration(jackknife: ArrayLike) -> float | None:
    """BCa's acceleration from leave-one-out values: ``sum d^3 / (6 (sum d^2)^1.5)``, d = mean - value; None without spread.

    For a mean, d is proportional to the centred data: pass ``-data``.
    """
    values = finite(jackknife, name="jackknife")
    if not values.size or values.max() == values.min():
        return None
    d = math.fsum(values.tolist()) / values.size - values
    square = math.fsum((d**2).tolist())
    return math.fsum((d**3).tolist()) / (6.0 * square**1.5) if square > 0.0 else None


def percentile(replicates: FloatArray, p: float, *, exhaustive: bool) -> Percentile:
    """Order statistic at probability p, rank ``ceil((B + 1) p)``, of all resamples ``ceil(B p)``."""
    ordered = np.sort(replicates)
    rank = _rank(ordered.size, p, exhaustive=exhaustive)
    return Percentile(value=float(ordered[rank - 1]), rank=rank, method="percentile", z0=None, acceleration=None)


def bca(
    replicates: FloatArray, p: float, *, estimate: float, accelerated: float | None, exhaustive: bool
) -> Percentile:
    """Bias-corrected and accelerated order statistic; the plain percentile where it does not exist.

    Notes
    -----
    ``z0 = qnorm((#{< estimate} + #{== estimate} / 2) / B)``, ``p* = Phi(z0 + (z0 + z) / (1 - a (z0 + z)))``, z = qnorm(p).

    References
    ----------
    Efron, B. (1987), "Better bootstrap confidence intervals", JASA 82(397), 171-185.
    """
    share = float((replicates < estimate).sum() + 0.5 * (replicates == estimate).sum()) / replicates.size
    if accelerated is None or not 0.0 < share < 1.0:
        return percentile(replicates, p, exhaustive=exhaustive)
    z0 = float(ndtri(share))
    z = z0 + float(ndtri(p))
    if not 1.0 - accelerated * z > 0.0:
        return percentile(replicates, p, exhaustive=exhaustive)
    ordered = np.sort(replicates)
    rank = _rank(ordered.size, float(ndtr(z0 + z / (1.0 - accelerated * z))), exhaustive=exhaustive)
    return Percentile(value=float(ordered[rank - 1]), rank=rank, method="BCa", z0=z0, acceleration=accelerated)


def exhaustive_percentile(values: ArrayLike, p: float, *, statistic: Callable[[FloatArray], FloatArray]) -> Percentile:
    """BCa over all resamples of up to 7 values, percentile where BCa does not exist; the method is named.

    Parameters
    ----------
    values:
        Data, one per process pair.
    p:
        Probability of the bound.
    statistic:
        Function of a matrix that gives one number per row.
    """
    data = finite(values, name="values")
    replicates = statistic(data[all_resamples(data.size)])
    left_out = np.array([statistic(np.delete(data, i)[None, :])[0] for i in range(data.size)])
    estimate = float(statistic(data[None, :])[0])
    return bca(replicates, p, estimate=estimate, accelerated=acceleration(left_out), exhaustive=True)


def bootstrap_bounds(
    log_ratios: ArrayLike, *, key: Key, alpha_one_sided: float, replicates: int = REPLICATES, batch: int = 1000
) -> BootstrapBounds:
    """Upper bounds of the mean log ratio: bootstrap-t, percentile and BCa.

    Notes
    -----
    ``t_b = (mean_b - rbar) / (s_b / sqrt(K))``, minus infinity where all draws are equal;
    ``upper_t = rbar - t_(floor((B + 1) alpha)) se``. B = 9999 makes ``(B + 1) alpha`` whole.

    References
    ----------
    Hall, P. (1988), "Theoretical comparison of bootstrap confidence intervals", Ann. Statist. 16(3), 927-953.
    """
    check_alpha(alpha_one_sided)
    data = finite(log_ratios, name="log_ratios")
    plain = moments(data, name="log_ratios")
    if plain.mean is None or plain.se is None or plain.constant:
        raise ValueError(f"log_ratios: expected at least two that differ, found {plain.count}")
    means, studentized = _replicate(data, plain.mean, key=key, replicates=replicates, batch=batch)
    deepest = float(np.sort(studentized)[max(1, math.floor((replicates + 1) * alpha_one_sided + SLACK)) - 1])
    few = f"{plain.count} pairs: percentile and BCa bounds are too short below {WARN_BELOW}"
    return BootstrapBounds(
        replicates=replicates,
        key=key.text,
        bootstrap_t=plain.mean - deepest * plain.se if math.isfinite(deepest) else None,
        percentile=percentile(means, 1.0 - alpha_one_sided, exhaustive=False),
        bca=bca(means, 1.0 - alpha_one_sided, estimate=plain.mean, accelerated=acceleration(-data), exhaustive=False),
        sd=spread(means),
        warning=few if plain.count < WARN_BELOW else "",
    )


def spread(replicates: FloatArray) -> float:
    """Standard deviation of the replicates, divided by B: they are the whole population, not a sample of it."""
    mean = math.fsum(replicates.tolist()) / replicates.size
    return math.sqrt(math.fsum((value - mean) ** 2 for value in replicates.tolist()) / replicates.size)


def _replicate(
    data: FloatArray, mean: float, *, key: Key, replicates: int, batch: int
) -> tuple[FloatArray, FloatArray]:
    """Mean and studentized mean of every resample."""
    means, studentized = [], []
    count, root = data.size, math.sqrt(data.size)
    for indices in resample_indices(count, key=key, replicates=replicates, batch=batch):
        for row in data[indices].tolist():
            centre = math.fsum(row) / count
            means.append(centre)
            if min(row) == max(row):
                studentized.append(-math.inf)
                continue
            sd = math.sqrt(math.fsum((value - centre) ** 2 for value in row) / (count - 1))
            studentized.append((centre - mean) / (sd / root))
    return np.array(means), np.array(studentized)


def _rank(size: int, p: float, *, exhaustive: bool) -> int:
    return min(max(math.ceil((size if exhaustive else size + 1) * p - SLACK), 1), size)
