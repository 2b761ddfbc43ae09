"""Diagnostics of a comparison: the shape and the tail of its process ratios, which the mean hides. In no verdict.

Formulas (results/README.md, "Numbers"), plain r, c = r - rbar::

    skewness = (sum c^3 / K) / (sum c^2 / K)^1.5;  largest_ratio = exp(max(r));  tail_quantile = alpha^(1 / K)
"""

import math
from collections.abc import Sequence

from validator.findings import Diagnostics
from validator.recompute.statistics import finite_exp


def diagnostics(ratios: Sequence[float], *, alpha: float) -> Diagnostics:
    """Give the diagnostics of log ratios."""
    if not ratios:
        return Diagnostics(skewness=None, largest_ratio=None, tail_quantile=None)
    return Diagnostics(
        skewness=skewness(ratios), largest_ratio=finite_exp(max(ratios)), tail_quantile=alpha ** (1 / len(ratios))
    )


def skewness(values: Sequence[float]) -> float | None:
    """Give the moment skewness, None without spread."""
    count = len(values)
    if max(values) == min(values):
        return None
    mean = math.fsum(values) / count
    centred = [value - mean for value in values]
    scale = (math.fsum(value * value for value in centred) / count) ** 1.5
    return math.fsum(value**3 for value in centred) / count / scale if scale > 0 else None
