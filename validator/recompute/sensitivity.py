"""Sensitivity analyses that stand in analysis.json: pre-specified, always shown, in no verdict.

Rules (results/README.md, "Numbers on request"):
1. Hodges-Lehmann with the exact signed-rank bound; sign-flip over all 2^K sign vectors for K <= 20; bootstrap-t over
   processes with B = 9999 and the Philox words of the point's key.
2. K = 0 leaves every number null; a bound that does not exist or is infinite is null.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from validator.findings import Sensitivity
from validator.recompute.philox import indices, stream
from validator.recompute.statistics import finite_exp, median, moments

REPLICATES = 9999
_AT_ONCE = 500_000
EXACT_FLIPS = 20
_SLACK, _TIE = 1e-9, 1e-12

Floats = NDArray[np.float64]


def sensitivity(
    method: str, ratios: Sequence[float], *, alpha: float, margin: float, key: tuple[int, int]
) -> Sensitivity:
    """Give one analysis of the plain log ratios of a comparison."""
    if not ratios:
        return Sensitivity(method=method, ratio=None, lower=None, upper=None, p_non_inferior=None)
    limit = math.log1p(margin)
    ratio = finite_exp(math.fsum(ratios) / len(ratios))
    if method == "hodges-lehmann":
        return _hodges_lehmann(ratios, alpha, limit)
    if method == "sign-flip":
        p = sign_flip([value - limit for value in ratios])
        return Sensitivity(method=method, ratio=ratio, lower=None, upper=None, p_non_inferior=p)
    bound = bootstrap_t(ratios, alpha=alpha, key=key)
    upper = None if bound is None else finite_exp(bound)
    return Sensitivity(method="bootstrap-t", ratio=ratio, lower=None, upper=upper, p_non_inferior=None)


def walsh(values: Sequence[float]) -> list[float]:
    """Give all averages of two values, each with itself too, ascending."""
    data = np.asarray(values, dtype=np.float64)
    first, second = np.tril_indices(len(data))
    ordered: list[float] = np.sort((data[first] + data[second]) / 2).tolist()
    return ordered


@lru_cache(maxsize=64)
def signed_rank_cdf(pairs: int) -> Floats:
    """Give P(T+ <= c) for c = 0 .. K (K + 1) / 2."""
    mass = np.zeros(pairs * (pairs + 1) // 2 + 1)
    mass[0] = 1.0
    for rank in range(1, pairs + 1):
        mass[rank:] += mass[:-rank].copy()
        mass /= 2
    return np.cumsum(mass)


def critical(pairs: int, alpha: float) -> int:
    """Give the largest c with P(T+ <= c) <= alpha, -1 where there is none."""
    return int(np.count_nonzero(signed_rank_cdf(pairs) <= alpha)) - 1


def signed_rank_bounds(values: Sequence[float], alpha: float) -> tuple[float | None, float | None]:
    """Give the lower and the upper bound of the pseudo-median."""
    averages, c = walsh(values), critical(len(values), alpha)
    return (None, None) if c < 0 else (averages[c], averages[len(averages) - 1 - c])


def _hodges_lehmann(ratios: Sequence[float], alpha: float, limit: float) -> Sensitivity:
    averages = walsh(ratios)
    lower, upper = signed_rank_bounds(ratios, alpha)
    above = sum(value >= limit for value in averages)
    return Sensitivity(
        method="hodges-lehmann",
        ratio=finite_exp(median(averages)),
        lower=None if lower is None else finite_exp(lower),
        upper=None if upper is None else finite_exp(upper),
        p_non_inferior=float(signed_rank_cdf(len(ratios))[above]),
    )


def sign_flip(differences: Sequence[float]) -> float | None:
    """Give the share of sign vectors with a sum of at most the observed one; None beyond 20 pairs.

    The sums of the two halves of the vector are made apart and matched, so 2^20 sums are never made.
    """
    count = len(differences)
    if count > EXACT_FLIPS:
        return None
    sizes = [abs(value) for value in differences]
    limit = math.fsum(differences) + _TIE * math.fsum(sizes)
    left, right = _sums(sizes[: count // 2]), np.sort(_sums(sizes[count // 2 :]))
    at_most = int(np.searchsorted(right, limit - left, side="right").sum())
    return float(at_most / 2**count)


def _sums(sizes: Sequence[float]) -> Floats:
    """Give the sum under every choice of signs."""
    signs = 1 - 2 * ((np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes))) & 1)
    return np.asarray(signs @ np.asarray(sizes, dtype=np.float64), dtype=np.float64)


def bootstrap_key(digest: str, point: str) -> tuple[int, int]:
    """Give the two words of a point's key."""
    return key_of(f"benchkit-boot-v1|{digest}|{point}")


def key_of(text: str) -> tuple[int, int]:
    """Give the first 16 bytes of the text's SHA-256 as two little-endian words."""
    raw = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:16], "little")


def resamples(pairs: int, key: tuple[int, int], *, first: int = 0, count: int = REPLICATES) -> NDArray[np.int64]:
    """Give rows of indices into the pairs: all B, or ``count`` from the ``first``."""
    return indices(stream(count * pairs, key, start=first * pairs), pairs).reshape(count, pairs)


def bootstrap_t(ratios: Sequence[float], *, alpha: float, key: tuple[int, int]) -> float | None:
    """Give the upper bound of the mean log ratio, None where it does not exist.

    The replicates are studentised to find the one of the wanted rank, some rows at a time so that memory does not grow with the
    pairs; that one is then summed exactly.
    """
    count = len(ratios)
    if count < 2:
        return None
    values, whole = np.asarray(ratios, dtype=np.float64), moments(ratios)
    batch = max(1, _AT_ONCE // count)
    t = np.concatenate(
        [
            _studentised(values[resamples(count, key, first=first, count=min(batch, REPLICATES - first))], whole.mean)
            for first in range(0, REPLICATES, batch)
        ]
    )
    rank = max(1, math.floor((REPLICATES + 1) * alpha + _SLACK))
    chosen = int(np.argsort(t, kind="stable")[rank - 1])
    if t[chosen] == -np.inf:
        return None
    draw = moments(values[resamples(count, key, first=chosen, count=1)[0]].tolist())
    return whole.mean - (draw.mean - whole.mean) / draw.error * whole.error


def _studentised(rows: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    """Give (mean_b - mean) / se_b of every row but for a factor that all share, minus infinity where a row has no spread."""
    means = rows.mean(axis=1)
    errors = np.sqrt(((rows - means[:, None]) ** 2).sum(axis=1))
    same = rows.max(axis=1) == rows.min(axis=1)
    errors[same] = 1.0
    return np.where(same, -np.inf, (means - mean) / errors)
