"""Looking at the data more than once: boundaries that keep the level, for a locked plan of looks.

Rules:
1. Looks are planned before the data, as fractions of the last K. Looking without a plan has no valid p-value.
2. One-sided, no stopping for futility. A look succeeds where its p-value is below the look's nominal level.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from benchkit.statistics.interval import check_alpha
from benchkit.units import FloatArray

NODES = 256
LOWEST = -10.0
HIGHEST = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """Boundaries by look.

    Attributes
    ----------
    information:
        Fractions of the last K, ascending to 1.
    z:
        The z statistic that a look has to exceed.
    nominal_p:
        The same as a one-sided p-value.
    spent:
        Probability, under the null, of having stopped by then.
    """

    information: tuple[float, ...]
    z: tuple[float, ...]
    nominal_p: tuple[float, ...]
    spent: tuple[float, ...]


def lan_demets(information: Sequence[float], *, alpha_one_sided: float) -> Looks:
    """Boundaries by the spending function of O'Brien-Fleming type.

    Notes
    -----
    ``alpha(t) = 2 - 2 Phi(z(1 - alpha / 2) / sqrt(t))``; boundaries by recursive numerical integration.

    References
    ----------
    Lan, K. K. G. and DeMets, D. L. (1983), "Discrete sequential boundaries for clinical trials", Biometrika 70, 659-663.
    """
    check_alpha(alpha_one_sided)
    times = _check(information)
    spent = [2.0 * float(ndtr(float(ndtri(alpha_one_sided / 2.0)) / math.sqrt(time))) for time in times]
    walk = _Walk(times)
    z: list[float] = []
    for look, total in enumerate(spent):
        step = total - (spent[look - 1] if look else 0.0)
        z.append(walk.boundary(step) if step > 0.0 else HIGHEST)
        walk.advance(z[-1])
    return _looks(times, z, spent)


def obrien_fleming(looks: int, *, alpha_one_sided: float) -> Looks:
    """Classical boundaries ``C sqrt(m / k)`` for m equally spaced looks.

    References
    ----------
    O'Brien, P. C. and Fleming, T. R. (1979), "A multiple testing procedure for clinical trials", Biometrics 35, 549-556.
    """
    check_alpha(alpha_one_sided)
    if looks < 1:
        raise ValueError(f"looks: expected at least 1, found {looks}")
    times = tuple((look + 1) / looks for look in range(looks))

    def boundaries(constant: float) -> list[float]:
        return [constant / math.sqrt(time) for time in times]

    def excess(constant: float) -> float:
        return crossing_probabilities(boundaries(constant), information=times)[-1] - alpha_one_sided

    z = boundaries(_root(excess, 0.1, 10.0))
    return _looks(times, z, crossing_probabilities(z, information=times))


def crossing_probabilities(z: Sequence[float], *, information: Sequence[float]) -> tuple[float, ...]:
    """Probability, under the null, of having exceeded a boundary by each look.

    References
    ----------
    Armitage, P., McPherson, C. K. and Rowe, B. C. (1969), "Repeated significance tests on accumulating data", J. R.
    Statist. Soc. A 132, 235-244.
    """
    times = _check(information)
    if len(z) != len(times):
        raise ValueError(f"expected as many boundaries as looks, found {len(z)} and {len(times)}")
    walk = _Walk(times)
    total, spent = 0.0, []
    for boundary in z:
        total += walk.beyond(boundary)
        spent.append(total)
        walk.advance(boundary)
    return tuple(spent)


class _Walk:
    """Density of the z statistic at the current look, over the paths that have not stopped."""

    def __init__(self, times: Sequence[float]) -> None:
        self._times = tuple(times)
        self._look = 0
        self._points = np.zeros(1)
        self._mass = np.ones(1)

    def beyond(self, boundary: float) -> float:
        """Probability of going on until now and exceeding the boundary at this look."""
        mean, sd = self._conditional()
        return float(self._mass @ ndtr((mean - boundary) / sd))

    def boundary(self, step: float) -> float:
        """The boundary that is exceeded with this probability."""
        return _root(lambda z: self.beyond(z) - step, LOWEST, HIGHEST)

    def advance(self, boundary: float) -> None:
        """Go on to the next look with the paths at or below the boundary."""
        mean, sd = self._conditional()
        nodes, weights = _legendre()
        top = min(boundary, -LOWEST)
        points = LOWEST + (top - LOWEST) * (nodes + 1.0) / 2.0
        kernel = np.exp(-(((points[:, None] - mean[None, :]) / sd) ** 2) / 2.0) / (sd * math.sqrt(2.0 * math.pi))
        self._mass = (top - LOWEST) / 2.0 * weights * (kernel @ self._mass)
        self._points = points
        self._look += 1

    def _conditional(self) -> tuple[FloatArray, float]:
        now = self._times[self._look]
        before = self._times[self._look - 1] if self._look else 0.0
        return self._points * math.sqrt(before / now), math.sqrt((now - before) / now)


def _check(information: Sequence[float]) -> tuple[float, ...]:
    times = tuple(float(time) for time in information)
    ascending = all(a < b for a, b in itertools.pairwise(times))
    if not times or not times[0] > 0.0 or not ascending or times[-1] != 1.0:
        raise ValueError(f"information: expected fractions that ascend from above 0 to 1, found {times}")
    return times


def _looks(times: Sequence[float], z: Sequence[float], spent: Sequence[float]) -> Looks:
    nominal = tuple(float(ndtr(-value)) for value in z)
    return Looks(information=tuple(times), z=tuple(z), nominal_p=nominal, spent=tuple(spent))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq  # slow to import, and only looks need it

    return float(brentq(function, low, high, xtol=1e-13, rtol=1e-13))


@lru_cache(maxsize=1)
def _legendre() -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights
