"""Methods over many experiments at once: does each reject "the ratio is at or beyond the limit"?

Rules:
1. Formulas and ranks are those of ``benchkit.statistics``, here over rows of a matrix; tests hold the two together.
2. Bootstraps share one table of resamples over all experiments; it comes from the same index scheme.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

from benchkit.calibration.nulls import Medians
from benchkit.statistics.bootstrap import key_from_text, resample_indices
from benchkit.statistics.permutation import EXACT_TO, TIE
from benchkit.statistics.quantile import upper_order_bound
from benchkit.statistics.signed_rank import critical_value
from benchkit.units import FloatArray

REPLICATES = 999
BATCH = 1000
Rejections = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The limit on the log scale, and the one-sided level."""

    limit: float
    alpha: float


Method = Callable[[Medians, Level], Rejections]


def _t(alpha: float, df: FloatArray | float) -> FloatArray:
    return np.asarray(-stdtrit(df, alpha), dtype=np.float64)


def t_upper(ratios: FloatArray, alpha: float) -> FloatArray:
    """Upper bound of the paired t; missing pairs (NaN) are left out, fewer than five give no bound."""
    count = np.isfinite(ratios).sum(axis=1)
    total = np.nansum(ratios, axis=1)
    mean = total / np.maximum(count, 1)
    square = np.nansum((ratios - mean[:, None]) ** 2, axis=1)
    df = np.maximum(count - 1, 1)
    upper = mean + _t(alpha, df.astype(np.float64)) * np.sqrt(square / df / np.maximum(count, 1))
    return np.where(count >= 5, upper, np.inf)


def _paired_t(data: Medians, level: Level) -> Rejections:
    return np.asarray(t_upper(data.log_ratios, level.alpha) < level.limit)


def _welch(data: Medians, level: Level) -> Rejections:
    pairs = data.candidate.shape[1]
    ours, theirs = (arm.var(axis=1, ddof=1) / pairs for arm in (data.candidate, data.baseline))
    df = (ours + theirs) ** 2 / ((ours**2 + theirs**2) / (pairs - 1))
    upper = data.log_ratios.mean(axis=1) + _t(level.alpha, df) * np.sqrt(ours + theirs)
    return np.asarray(upper < level.limit)


def _fieller(data: Medians, level: Level) -> Rejections:
    above, below = np.exp(data.candidate), np.exp(data.baseline)
    pairs = above.shape[1]
    t2 = float(_t(level.alpha, pairs - 1.0)) ** 2
    top, bottom = above.mean(axis=1), below.mean(axis=1)
    v_top, v_bottom = above.var(axis=1, ddof=1) / pairs, below.var(axis=1, ddof=1) / pairs
    both = ((above - top[:, None]) * (below - bottom[:, None])).sum(axis=1) / (pairs - 1) / pairs
    a, b, c = bottom**2 - t2 * v_bottom, top * bottom - t2 * both, top**2 - t2 * v_top
    upper = np.where(a > 0.0, (b + np.sqrt(np.maximum(b**2 - a * c, 0.0))) / np.where(a > 0.0, a, 1.0), np.inf)
    return np.asarray(np.log(upper) < level.limit)


def _hodges_lehmann(data: Medians, level: Level) -> Rejections:
    ratios = data.log_ratios
    c = critical_value(ratios.shape[1], alpha_one_sided=level.alpha).c
    if c < 0:
        return np.zeros(data.experiments, dtype=bool)
    first, second = np.triu_indices(ratios.shape[1])
    walsh = (ratios[:, first] + ratios[:, second]) / 2.0
    rank = walsh.shape[1] - 1 - c
    return np.asarray(np.partition(walsh, rank, axis=1)[:, rank] < level.limit)


def _order_statistic(data: Medians, level: Level) -> Rejections:
    ratios = np.sort(data.log_ratios, axis=1)
    rank = upper_order_bound(ratios.shape[1], 0.5, alpha_one_sided=level.alpha).rank
    return np.zeros(data.experiments, dtype=bool) if rank is None else np.asarray(ratios[:, rank - 1] < level.limit)


def _sign_flip(data: Medians, level: Level) -> Rejections:
    shifted = data.log_ratios - level.limit
    if shifted.shape[1] > EXACT_TO:
        raise ValueError(f"pairs: expected at most {EXACT_TO}, found {shifted.shape[1]}")
    sums = np.zeros((data.experiments, 1))
    for column in np.abs(shifted).T:
        sums = np.concatenate([sums + column[:, None], sums - column[:, None]], axis=1)
    observed = shifted.sum(axis=1) + TIE * np.abs(shifted).sum(axis=1)
    return np.asarray((sums <= observed[:, None]).mean(axis=1) <= level.alpha)


@lru_cache(maxsize=8)
def _weights(pairs: int) -> FloatArray:
    """Share of each pair in each resample."""
    key = key_from_text(f"benchkit-calibrate-v1|weights|{pairs}")
    indices = np.concatenate(list(resample_indices(pairs, key=key, replicates=REPLICATES, batch=REPLICATES)))
    return np.stack([np.bincount(row, minlength=pairs) for row in indices]) / pairs


def _rank(share: float) -> int:
    return min(max(math.ceil((REPLICATES + 1) * share - 1e-9), 1), REPLICATES)


def _percentile(data: Medians, level: Level) -> Rejections:
    rank = _rank(1.0 - level.alpha) - 1
    means = data.log_ratios @ _weights(data.candidate.shape[1]).T
    return np.asarray(np.partition(means, rank, axis=1)[:, rank] < level.limit)


def _bca(data: Medians, level: Level) -> Rejections:
    ratios = data.log_ratios
    mean = ratios.mean(axis=1, keepdims=True)
    means = np.sort(ratios @ _weights(ratios.shape[1]).T, axis=1)
    share = (means < mean).mean(axis=1) + 0.5 * (means == mean).mean(axis=1)
    z0 = ndtri(np.clip(share, 1e-6, 1.0 - 1e-6))
    centred = ratios - mean
    acceleration = (centred**3).sum(axis=1) / (6.0 * (centred**2).sum(axis=1) ** 1.5)
    z = z0 + ndtri(1.0 - level.alpha)
    wanted = ndtr(z0 + z / (1.0 - acceleration * z))
    ranks = np.clip(np.ceil((REPLICATES + 1) * wanted - 1e-9), 1, REPLICATES).astype(np.int64) - 1
    return np.asarray(np.take_along_axis(means, ranks[:, None], axis=1)[:, 0] < level.limit)


def _bootstrap_t(data: Medians, level: Level) -> Rejections:
    ratios = data.log_ratios
    pairs = ratios.shape[1]
    mean = ratios.mean(axis=1, keepdims=True)
    centred, weights = ratios - mean, _weights(pairs)
    means = centred @ weights.T
    one_pair = weights.max(axis=1) == 1.0
    square = np.maximum((centred**2) @ weights.T - means**2, 1e-300)
    studentized = np.where(one_pair, -np.inf, means / np.sqrt(square / (pairs - 1)))
    rank = max(1, math.floor((REPLICATES + 1) * level.alpha + 1e-9)) - 1
    deepest = np.partition(studentized, rank, axis=1)[:, rank]
    upper = mean[:, 0] - deepest * ratios.std(axis=1, ddof=1) / math.sqrt(pairs)
    return np.asarray(upper < level.limit)


METHODS: Mapping[str, Method] = {
    "paired-t": _paired_t,
    "hodges-lehmann": _hodges_lehmann,
    "sign-flip": _sign_flip,
    "fieller": _fieller,
    "bootstrap-t": _bootstrap_t,
    "order-statistic": _order_statistic,
    "welch": _welch,
    "percentile": _percentile,
    "bca": _bca,
}


def rejections(method: str, data: Medians, level: Level) -> Rejections:
    """Which experiments the method calls non-inferior."""
    parts = range(0, data.experiments, BATCH)
    return np.concatenate([METHODS[method](data.rows(start, start + BATCH), level) for start in parts])


def iteration_bootstrap(
    candidate: FloatArray, baseline: FloatArray, level: Level, rng: np.random.Generator, *, replicates: int = 400
) -> Rejections:
    """The wrong unit: all samples of all processes resampled as one lot, percentile bound of the ratio of medians.

    The median of a resample of N values is the order statistic at ``floor(N Beta(m + 1, m + 1))``, N = 2 m + 1.
    """
    pooled = [np.sort(arm.reshape(arm.shape[0], -1), axis=1) for arm in (candidate, baseline)]
    count = pooled[0].shape[1]
    middle = count // 2
    drawn = []
    for arm in pooled:
        places = (count * rng.beta(middle + 1, middle + 1, (arm.shape[0], replicates))).astype(np.int64)
        drawn.append(np.take_along_axis(arm, places, axis=1))
    rank = math.ceil((replicates + 1) * (1.0 - level.alpha) - 1e-9) - 1
    return np.asarray(np.partition(drawn[0] - drawn[1], rank, axis=1)[:, rank] < level.limit)
