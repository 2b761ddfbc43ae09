"""Families of tests: adjusted p-values, in the order of the input.

Rules:
1. The all-points claim needs no adjustment (intersection-union): its p is the largest.
2. "These points" needs Holm. Hochberg needs independence or positive dependence; Benjamini-Hochberg controls the false
   discovery rate only: both are for display.
3. A p-value that does not exist (None) is left out of the family and stays None.
"""

from collections.abc import Sequence

import numpy as np

from benchkit.units import FloatArray


def _p_values(p: Sequence[float] | FloatArray) -> FloatArray:
    values = np.asarray(p, dtype=np.float64)
    bad = np.flatnonzero(~((values >= 0.0) & (values <= 1.0)))
    if bad.size:
        raise ValueError(f"p: expected numbers from 0 to 1, found {values[bad[0]]!r} at index {int(bad[0])}")
    return values


def holm(p: Sequence[float] | FloatArray) -> tuple[float, ...]:
    """Holm's step-down: ``max over j <= i of min(1, (m - j + 1) p_(j))``.

    References
    ----------
    Holm, S. (1979), "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6, 65-70.
    """
    values = _p_values(p)
    order = np.argsort(values, kind="stable")
    steps = np.arange(values.size, 0, -1)
    return _restore(np.minimum(1.0, np.maximum.accumulate(steps * values[order])), order)


def hochberg(p: Sequence[float] | FloatArray) -> tuple[float, ...]:
    """Hochberg's step-up: ``min over j >= i of (m - j + 1) p_(j)``.

    References
    ----------
    Hochberg, Y. (1988), "A sharper Bonferroni procedure for multiple tests of significance", Biometrika 75, 800-802.
    """
    values = _p_values(p)
    order = np.argsort(values, kind="stable")
    steps = np.arange(values.size, 0, -1)
    return _restore(_from_top(steps * values[order]), order)


def benjamini_hochberg(p: Sequence[float] | FloatArray) -> tuple[float, ...]:
    """False discovery rate, step-up: ``min over j >= i of m / j p_(j)``.

    References
    ----------
    Benjamini, Y. and Hochberg, Y. (1995), "Controlling the false discovery rate", J. R. Statist. Soc. B 57, 289-300.
    """
    values = _p_values(p)
    order = np.argsort(values, kind="stable")
    scale = values.size / np.arange(1, values.size + 1)
    return _restore(_from_top(scale * values[order]), order)


def bonferroni(p: Sequence[float] | FloatArray) -> tuple[float, ...]:
    """Bonferroni: ``min(1, m p)``."""
    values = _p_values(p)
    return tuple(np.minimum(1.0, values.size * values).tolist())


def intersection_union(p: Sequence[float] | FloatArray) -> float:
    """p-value of "all of them": the largest, each test at full alpha.

    References
    ----------
    Berger, R. L. (1982), "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24(4), 295-300.
    """
    values = _p_values(p)
    if not values.size:
        raise ValueError("p: expected at least one p-value, found none")
    return float(values.max())


def holm_with_gaps(p: Sequence[float | None]) -> tuple[float | None, ...]:
    """Holm over the p-values that exist; None stays None and does not count."""
    adjusted = iter(holm([value for value in p if value is not None]))
    return tuple(None if value is None else next(adjusted) for value in p)


def superiority_after_non_inferiority(
    p_non_inferior: Sequence[float], p_superior: Sequence[float], *, alpha_one_sided: float
) -> tuple[float, ...] | None:
    """Serial gatekeeping: Holm-adjusted superiority p-values, only where non-inferiority holds at all points.

    Returns
    -------
    tuple of float or None
        None: the gate is closed, ``max(p_non_inferior) >= alpha``, and superiority may not be tested.

    References
    ----------
    Morikawa, T. and Yoshida, M. (1995), "A useful testing strategy in phase III trials", J. Biopharm. Stat. 5, 297-306.
    """
    if len(p_non_inferior) != len(p_superior):
        raise ValueError(f"expected as many p-values of both, found {len(p_non_inferior)} and {len(p_superior)}")
    if intersection_union(p_non_inferior) >= alpha_one_sided:
        return None
    return holm(p_superior)


def _from_top(scaled: FloatArray) -> FloatArray:
    return np.asarray(np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1]), dtype=np.float64)


def _restore(sorted_values: FloatArray, order: np.ndarray) -> tuple[float, ...]:
    result = np.empty_like(sorted_values)
    result[order] = sorted_values
    return tuple(result.tolist())
