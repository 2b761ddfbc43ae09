"""What the samples of one process say about their order: drift and dependence. Shown, in no verdict.

Rules:
1. A series is the timed samples of an arm at a point in one process that completed it, in the order in which they were taken; the first
   2000 of them. One with fewer than four samples, without spread, with a duration of 0 or less, or that alternates so strictly that its
   long-run variance is 0, has no numbers.
2. A row of the table holds medians over the processes, and the trend that is furthest from 0.

Formulas (results/README.md), x_0 .. x_(n-1), c = x - mean, gamma_l = sum c_t c_(t+l) / n::

    tau (Kendall's tau-b against the order) = (P - Q) / sqrt(N (N - ties)), N = n (n - 1) / 2
    half_ratio = median of the last floor(n / 2) / median of the first floor(n / 2)
    lag1 = gamma_1 / gamma_0
    effective share = 1 / (1 + 2 sum_(l = 1 .. L) (1 - l / (L + 1)) gamma_l / gamma_0), L = floor(4 (n / 100)^(2/9))
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validator.reading.rows import View
from validator.supplement import Series

MOST, LEAST, _ZERO = 2000, 4, 1e-12
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers of one series."""

    tau: float
    half_ratio: float
    lag1: float
    effective_share: float


def series(view: View) -> Iterator[Series]:
    """Give a row for every arm that is compared, at every point where some process has numbers."""
    compared = {name for item in view.protocol.comparisons for name in (item.candidate, item.baseline)}
    found: dict[tuple[str, str], list[Shape]] = {}
    layout = view.rows.layout
    for record, segment in view.records():
        if not record.analysed:
            continue
        done = view.completed(record, segment)
        cells = np.where(view.rows.flags("warmup", segment), -1, view.rows.cells(segment))
        durations = view.rows.ints("duration_ns", segment)
        for cell in view.rows.timed_cells(segment):
            point, arm = divmod(cell, len(layout.arms))
            if done[point] and layout.arms[arm] in compared:
                shape = shape_of(durations[cells == cell][:MOST].astype(np.float64))
                if shape is not None:
                    found.setdefault((layout.points[point], layout.arms[arm]), []).append(shape)
    for point_id in layout.points:
        for name in layout.arms:
            if shapes := found.get((point_id, name)):
                yield _row(point_id, name, shapes)


def _row(point: str, arm: str, shapes: list[Shape]) -> Series:
    return Series(
        operating_point=point,
        arm=arm,
        processes=len(shapes),
        tau=float(np.median([shape.tau for shape in shapes])),
        largest_tau=max((shape.tau for shape in shapes), key=abs),
        half_ratio=float(np.median([shape.half_ratio for shape in shapes])),
        lag1=float(np.median([shape.lag1 for shape in shapes])),
        effective_percent=100 * float(np.median([shape.effective_share for shape in shapes])),
    )


def shape_of(values: Floats) -> Shape | None:
    """Give the numbers of a series; None where it has none."""
    count = len(values)
    if count < LEAST or values.min() <= 0 or values.min() == values.max():
        return None
    half = count // 2
    lags = math.floor(4 * (count / 100) ** (2 / 9))  # from 1 to less than the count, for 4 values and more
    rho = autocorrelations(values, lags)
    weights = 1 - np.arange(1, lags + 1) / (lags + 1)
    inflation = 1 + 2 * float(weights @ rho)
    if inflation <= _ZERO:
        return None
    return Shape(
        tau=kendall(values),
        half_ratio=float(np.median(values[count - half :]) / np.median(values[:half])),
        lag1=float(rho[0]),
        effective_share=1 / inflation,
    )


def kendall(values: Floats) -> float:
    """Give Kendall's tau-b of values against their order; they must have spread."""
    above = np.tri(len(values), k=-1, dtype=np.bool_)
    signs = np.sign(values[:, None] - values[None, :])[above]
    ties = int(np.count_nonzero(signs == 0))
    return float(signs.sum() / math.sqrt(len(signs) * (len(signs) - ties)))


def autocorrelations(values: Floats, most: int) -> Floats:
    """Give the autocorrelations at lags 1 to ``most``."""
    centred = values - math.fsum(values) / len(values)
    whole = float(centred @ centred)
    return np.array([float(centred[lag:] @ centred[:-lag]) / whole for lag in range(1, most + 1)])
