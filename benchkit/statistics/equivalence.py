"""Equivalence by two one-sided tests: the p-value is the larger of the two, and the failing side is named."""

import math
from dataclasses import dataclass
from enum import StrEnum

from numpy.typing import ArrayLike
from scipy.special import ndtr

from benchkit.statistics.interval import moments, t_cdf


class Side(StrEnum):
    """Which one-sided hypothesis could not be rejected; for latencies ``upper`` is the slower side."""

    NONE = "none"
    LOWER = "lower"
    UPPER = "upper"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Two one-sided tests.

    Attributes
    ----------
    p_lower, p_upper:
        p-values of "the effect is at or below the lower bound", "at or above the upper bound".
    p:
        The larger of the two.
    df:
        Degrees of freedom; None is normal theory.
    """

    t_lower: float
    t_upper: float
    df: float | None
    p_lower: float
    p_upper: float
    p: float

    def failing(self, *, alpha_one_sided: float) -> Side:
        """The side that was not shown at this level."""
        return _side(self.p_lower < alpha_one_sided, self.p_upper < alpha_one_sided)


def two_one_sided_tests(
    estimate: float, *, se: float, df: float | None, lower_bound: float, upper_bound: float
) -> Equivalence:
    """Two one-sided tests from an estimate and its standard error, for ratios all on the log scale.

    Notes
    -----
    ``t_lower = (estimate - lower_bound) / se``, ``p_lower = 1 - F(t_lower)``; ``t_upper = (estimate - upper_bound) / se``,
    ``p_upper = F(t_upper)``; F is Student's t, or normal where ``df`` is None.

    References
    ----------
    Schuirmann, D. J. (1987), "A comparison of the two one-sided tests procedure and the power approach", J.
    Pharmacokinet. Biopharm. 15(6), 657-680.
    """
    if not (math.isfinite(estimate) and math.isfinite(se) and se > 0.0):
        raise ValueError(f"expected a finite estimate and a standard error above 0, found {estimate!r} and {se!r}")
    if not lower_bound < upper_bound:
        raise ValueError(f"expected lower_bound < upper_bound, found {lower_bound!r} and {upper_bound!r}")
    t_lower, t_upper = (estimate - lower_bound) / se, (estimate - upper_bound) / se
    p_lower = float(ndtr(-t_lower)) if df is None else t_cdf(-t_lower, df)
    p_upper = float(ndtr(t_upper)) if df is None else t_cdf(t_upper, df)
    return Equivalence(
        t_lower=t_lower, t_upper=t_upper, df=df, p_lower=p_lower, p_upper=p_upper, p=max(p_lower, p_upper)
    )


def paired_equivalence(log_ratios: ArrayLike, *, lower_ratio: float, upper_ratio: float) -> Equivalence:
    """Equivalence of two arms from log ratios of process medians, region ``(lower_ratio, upper_ratio)``."""
    found = moments(log_ratios, name="log_ratios")
    if found.mean is None or found.se is None or found.constant:
        raise ValueError(f"expected at least two log ratios that differ, found {found.count}")
    return two_one_sided_tests(
        found.mean,
        se=found.se,
        df=found.count - 1,
        lower_bound=math.log(lower_ratio),
        upper_bound=math.log(upper_ratio),
    )


def failing_side(*, lower: float, upper: float, region: tuple[float, float]) -> Side:
    """The side on which an interval is not inside the open region."""
    return _side(lower > region[0], upper < region[1])


def _side(lower_holds: bool, upper_holds: bool) -> Side:
    if lower_holds:
        return Side.NONE if upper_holds else Side.UPPER
    return Side.LOWER if upper_holds else Side.BOTH
