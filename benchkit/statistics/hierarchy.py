"""Where the variance sits: levels of repetition, and how many repetitions of each are worth their cost.

Rules:
1. Data are balanced arrays, the highest level (process) first. Level 1 is the lowest.
2. Only the highest level's variance enters an interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtrc

from benchkit.statistics.interval import check_alpha, t_critical
from benchkit.units import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelVariances:
    """Variances by level, the lowest first.

    Attributes
    ----------
    biased:
        S_i^2: variance of the level's means, which holds a share of the levels below.
    unbiased:
        T_i^2: the level's own contribution; may be negative by chance.
    """

    mean: float
    biased: tuple[float, ...]
    unbiased: tuple[float, ...]
    top_count: int

    def half_width(self, *, alpha_one_sided: float) -> float:
        """``t(1 - alpha, r_n - 1) sqrt(S_n^2 / r_n)``: half the two-sided interval of the mean."""
        check_alpha(alpha_one_sided)
        return t_critical(alpha_one_sided, self.top_count - 1) * math.sqrt(self.biased[-1] / self.top_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponents:
    """One-way analysis of variance with processes as groups.

    Attributes
    ----------
    design_effect:
        ``1 + (n - 1) icc``: how many times too small the variance is if samples are taken for replicates.
    """

    mean_square_between: float
    mean_square_within: float
    process_variance: float
    intraclass_correlation: float
    design_effect: float
    f_statistic: float
    p: float


def _balanced(data: ArrayLike, *, least: int) -> FloatArray:
    values = np.asarray(data, dtype=np.float64)
    if values.ndim < least or min(values.shape) < 2:
        raise ValueError(f"expected at least {least} levels of at least two repetitions, found shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"expected finite values, first that is not at index {np.argwhere(~np.isfinite(values))[0]}")
    return values


def level_variances(data: ArrayLike) -> LevelVariances:
    """Variances of every level of a balanced nested design.

    Notes
    -----
    S_i^2 averages, over all units of the level above, the variance of the level's means;
    ``T_1^2 = S_1^2``, ``T_i^2 = S_i^2 - S_{i-1}^2 / r_{i-1}``.

    References
    ----------
    Kalibera, T. and Jones, R. (2013), "Rigorous benchmarking in reasonable time", ISMM '13, 63-74.
    """
    values = _balanced(data, least=1)
    biased, sizes, level = [], [], values
    while level.ndim:
        biased.append(float(np.mean(np.var(level, axis=-1, ddof=1))))
        sizes.append(level.shape[-1])
        level = np.mean(level, axis=-1)
    unbiased = [s - (biased[i - 1] / sizes[i - 1] if i else 0.0) for i, s in enumerate(biased)]
    return LevelVariances(mean=float(level), biased=tuple(biased), unbiased=tuple(unbiased), top_count=values.shape[0])


def optimal_repetitions(variances: LevelVariances, *, costs: Sequence[float]) -> tuple[float | None, ...]:
    """Repetitions of each level but the highest, the lowest first, that make an interval shortest for its cost.

    Parameters
    ----------
    variances:
        From a pilot, :func:`level_variances`.
    costs:
        Cost of one more repetition of each level, the lowest first.

    Returns
    -------
    tuple of float or None
        ``r_i = sqrt(c_{i+1} / c_i  T_i^2 / T_{i+1}^2)``, to be rounded up; None where the level above shows no variance
        of its own, so that repeating it brings nothing that repeating this one does not; 0 where this level shows none:
        one repetition is enough.
    """
    own = variances.unbiased
    if len(costs) != len(own) or not min(costs) > 0.0:
        raise ValueError(f"costs: expected {len(own)} numbers above 0, found {tuple(costs)}")
    return tuple(
        math.sqrt(costs[i + 1] / costs[i] * max(own[i], 0.0) / own[i + 1]) if own[i + 1] > 0.0 else None
        for i in range(len(own) - 1)
    )


def variance_components(data: ArrayLike) -> VarianceComponents:
    """Process and residual variance of a table with one row per process.

    Notes
    -----
    ``s2_process = (MSB - MSW) / n``, ``icc = (MSB - MSW) / (MSB + (n - 1) MSW)``.

    References
    ----------
    Shrout, P. E. and Fleiss, J. L. (1979), "Intraclass correlations", Psychological Bulletin 86(2), 420-428.
    """
    values = _balanced(data, least=2)
    if values.ndim != 2:
        raise ValueError(f"expected a table, found {values.ndim} dimensions")
    groups, count = values.shape
    within = float(np.mean(np.var(values, axis=1, ddof=1)))
    between = count * float(np.var(np.mean(values, axis=1), ddof=1))
    if not within > 0.0:
        raise ValueError("expected values that differ within a process, found none")
    correlation = (between - within) / (between + (count - 1) * within)
    f_statistic = between / within
    return VarianceComponents(
        mean_square_between=between,
        mean_square_within=within,
        process_variance=(between - within) / count,
        intraclass_correlation=correlation,
        design_effect=1.0 + (count - 1) * correlation,
        f_statistic=f_statistic,
        p=float(fdtrc(groups - 1, groups * (count - 1), f_statistic)),
    )
