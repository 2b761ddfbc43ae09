"""Locked looks: which level each may use, so that all of them together keep alpha.

Rules (results/README.md, ``family.looks``):
1. Information t_j = looks[j] / process_pairs; spent(t) = 2 - 2 Phi(z(1 - alpha / 2) / sqrt(t)) (Lan-DeMets, O'Brien-Fleming).
2. Boundary b_j: P(Z_i <= b_i for i < j, Z_j > b_j) = spent(t_j) - spent(t_(j-1)); the look's alpha = 1 - Phi(b_j).

The density of a Brownian motion that has not crossed yet is carried from look to look on Gauss-Legendre panels no wider
than two standard deviations of the next step; each boundary is bisected until its last bit.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]

_DEEP, _HIGH, _NODES = 10.0, 40.0, 20


def look_alphas(looks: Sequence[int], alpha: float) -> tuple[float, ...]:
    """Give the one-sided level of every look."""
    times = [look / looks[-1] for look in looks]
    spent = [2 * float(ndtr(float(ndtri(alpha / 2)) / math.sqrt(time))) for time in times]
    result = [spent[0]]
    before, points, mass = times[0], np.zeros(1), np.ones(1)
    bound, step = -float(ndtri(spent[0])) * math.sqrt(before), math.sqrt(before)
    for j, (time, total) in enumerate(zip(times[1:], spent[1:], strict=True), start=1):
        points, mass = _carry(points, mass, step, bound, math.sqrt(before), math.sqrt(time - before))
        step = math.sqrt(time - before)
        bound = _boundary(points, mass, step, math.sqrt(time), total - spent[j - 1])
        result.append(float(ndtr(-bound / math.sqrt(time))))
        before = time
    return tuple(result)


def _carry(
    points: Floats, mass: Floats, step: float, bound: float, spread: float, coming: float
) -> tuple[Floats, Floats]:
    """Give nodes and masses of the paths at or below ``bound``, after a step from ``points``."""
    low, high = -_DEEP * spread, min(bound, _DEEP * spread)
    panels = max(8, math.ceil((high - low) / (2 * min(coming, step))))
    unit, weights = np.polynomial.legendre.leggauss(_NODES)
    edges = np.linspace(low, high, panels + 1)
    half = np.diff(edges) / 2
    nodes = (edges[:-1, None] + half[:, None] * (unit + 1)).ravel()
    density = np.exp(-(((nodes[:, None] - points[None, :]) / step) ** 2) / 2) @ mass / (step * math.sqrt(2 * math.pi))
    return nodes, density * (half[:, None] * weights).ravel()


def _boundary(points: Floats, mass: Floats, step: float, spread: float, wanted: float) -> float:
    """Give the bound that the next step exceeds with the wanted probability."""
    low, high = -_DEEP * spread, _HIGH * spread
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return middle
        beyond = float(mass @ ndtr((points - middle) / step))
        low, high = (middle, high) if beyond > wanted else (low, middle)
