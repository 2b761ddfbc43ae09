"""How many process pairs a claim needs, by the noncentral t distribution.

Rules:
1. Power is that of the primary method, one-sided, at the locked alpha; the true ratio is named, never assumed to be 1.
2. More samples per process cannot beat the process term; only more pairs can.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, nctdtr, ndtr

from benchkit.statistics.interval import check_alpha, check_margin, t_critical
from benchkit.units import FloatArray

MOST_PAIRS = 1_000_000
NODES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """Pairs for a claim over all points.

    Attributes
    ----------
    pairs, power:
        Smallest K, and the power that it gives at one point.
    per_point:
        The power that each point had to reach.
    """

    pairs: int
    power: float
    per_point: float


def noncentral_t_cdf(statistic: float, *, df: float, noncentrality: float) -> float:
    """Distribution function of the noncentral t."""
    return float(nctdtr(df, noncentrality, statistic))


def one_sided_power(effect: float, *, se: float, df: float, alpha_one_sided: float) -> float:
    """Power of a one-sided t test at a true distance ``effect`` beyond the null, in the direction of the alternative.

    Notes
    -----
    ``1 - F_nct(t(1 - alpha, df); df, effect / se)``.
    """
    check_alpha(alpha_one_sided)
    if not se > 0.0:
        raise ValueError(f"se: expected a number above 0, found {se!r}")
    critical = t_critical(alpha_one_sided, df)
    return 1.0 - noncentral_t_cdf(critical, df=df, noncentrality=effect / se)


def power(pairs: int, *, sd_log_ratio: float, margin: float, true_ratio: float, alpha_one_sided: float) -> float:
    """Probability that K pairs show non-inferiority.

    Notes
    -----
    ``F_nct(-t(1 - alpha, K - 1); K - 1, -sqrt(K) (log1p(d) - log(theta)) / sd)``.

    References
    ----------
    Julious, S. A. (2004), "Sample sizes for clinical trials with normal data", Statistics in Medicine 23, 1921-1986.
    """
    check_margin(margin)
    if pairs < 2:
        return 0.0
    effect = math.log1p(margin) - math.log(true_ratio)
    se = sd_log_ratio / math.sqrt(pairs)
    return one_sided_power(effect, se=se, df=pairs - 1, alpha_one_sided=alpha_one_sided)


def pairs_needed(
    target: float,
    *,
    sd_log_ratio: float,
    margin: float,
    true_ratio: float,
    alpha_one_sided: float,
    least_pairs: int,
    points: int,
) -> PairPlan:
    """Smallest K that shows non-inferiority at all points with probability ``target``.

    Parameters
    ----------
    target:
        Power of the whole claim, between 0 and 1.
    sd_log_ratio:
        Standard deviation of r between process pairs.
    margin, true_ratio, alpha_one_sided:
        d, the ratio at which the power is wanted, and the level.
    least_pairs:
        Smallest K allowed.
    points:
        Operating points of the all-points claim; each is planned at ``1 - (1 - target) / points``.

    Raises
    ------
    ValueError
        The true ratio is at or beyond the limit, or a million pairs do not suffice.
    """
    if not 0.0 < target < 1.0:
        raise ValueError(f"target: expected a number between 0 and 1, found {target!r}")
    if not 0.0 < true_ratio < 1.0 + margin:
        raise ValueError(f"true_ratio: expected a ratio below the limit {1.0 + margin:g}, found {true_ratio!r}")
    wanted = all_points_target(target, points=points)

    def reached(pairs: int) -> float:
        effect = {"margin": margin, "true_ratio": true_ratio}
        return power(pairs, sd_log_ratio=sd_log_ratio, alpha_one_sided=alpha_one_sided, **effect)

    pairs = _smallest(reached, wanted, least=max(2, least_pairs))
    return PairPlan(pairs=pairs, power=reached(pairs), per_point=wanted)


def _smallest(reached: Callable[[int], float], wanted: float, *, least: int) -> int:
    """Smallest count at which an increasing function reaches a value, by doubling and halving."""
    low = high = least
    while reached(high) < wanted:
        if high >= MOST_PAIRS:
            raise ValueError(f"more than {MOST_PAIRS} pairs would be needed: choose a wider margin")
        low, high = high + 1, min(2 * high, MOST_PAIRS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= wanted else (middle + 1, high)
    return low


def all_points_target(target: float, *, points: int) -> float:
    """Power for each of m points so that all succeed with probability ``target``: ``1 - (1 - target) / m``."""
    if points < 1:
        raise ValueError(f"points: expected at least 1, found {points}")
    return 1.0 - (1.0 - target) / points


def sd_from_components(*, process_sd: float, sample_sd: float, samples: int, inflation: float) -> float:
    """Standard deviation of r: ``sqrt(2 sp^2 + (pi / 2) (2 ss^2 / n) tau)``.

    Parameters
    ----------
    process_sd:
        Standard deviation, over processes, of one arm's own effect on log latency.
    sample_sd:
        Standard deviation of log latency over the samples of one process.
    samples:
        Samples per arm and process, n.
    inflation:
        tau, n divided by the effective number of samples.
    """
    return math.sqrt(2.0 * process_sd**2 + math.pi / 2.0 * (2.0 * sample_sd**2 / samples) * inflation)


def sd_from_cv(cv: float) -> float:
    """Standard deviation of a paired log ratio from a within-subject CV: ``sqrt(2 log(1 + CV^2))`` (PowerTOST)."""
    return math.sqrt(2.0 * math.log1p(cv * cv))


def two_sample_power(per_group: float, *, difference: float, sd: float, alpha_one_sided: float) -> float:
    """Power of the two-sample t test with n per group, the opposite tail ignored (R: power.t.test, strict = FALSE)."""
    se = sd * math.sqrt(2.0 / per_group)
    return one_sided_power(abs(difference), se=se, df=2.0 * (per_group - 1.0), alpha_one_sided=alpha_one_sided)


def two_sample_size(target: float, *, difference: float, sd: float, alpha_one_sided: float) -> float:
    """n per group, not rounded, of :func:`two_sample_power`."""
    from scipy.optimize import brentq  # slow to import, and off the verdict's path

    def missing(per_group: float) -> float:
        reached = two_sample_power(per_group, difference=difference, sd=sd, alpha_one_sided=alpha_one_sided)
        return reached - target

    return float(brentq(missing, 2.0, 1e7, xtol=1e-9, rtol=1e-12))


def tost_power(
    effect: float, *, se: float, df: float, lower_bound: float, upper_bound: float, alpha_one_sided: float
) -> float:
    """Exact power of two one-sided tests at the true ``effect``, all on the log scale.

    Notes
    -----
    With u = s / sigma, ``E[max(0, Phi((upper - effect) / se - t u) - Phi((lower - effect) / se + t u))]``, integrated by
    Gauss-Legendre over u.

    References
    ----------
    Phillips, K. F. (1990), "Power of the two one-sided tests procedure in bioequivalence", J. Pharmacokinet. Biopharm.
    18(2), 137-144.
    """
    check_alpha(alpha_one_sided)
    critical = t_critical(alpha_one_sided, df)
    width = 14.0 / math.sqrt(2.0 * df)
    low = max(0.0, 1.0 - width)
    high = min((upper_bound - lower_bound) / (2.0 * se * critical), 1.0 + width)
    if not high > low:
        return 0.0
    nodes, weights = _legendre()
    u = low + (high - low) * (nodes + 1.0) / 2.0
    log_density = math.log(2.0) + df / 2.0 * math.log(df / 2.0) - float(gammaln(df / 2.0))
    density = np.exp(log_density + (df - 1.0) * np.log(u) - df * u * u / 2.0)
    inside = ndtr((upper_bound - effect) / se - critical * u) - ndtr((lower_bound - effect) / se + critical * u)
    return float((high - low) / 2.0 * (weights @ (density * np.maximum(inside, 0.0))))


@lru_cache(maxsize=1)
def _legendre() -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights
