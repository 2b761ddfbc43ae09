"""One number over several points: secondary, and never a t-test over the points."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchkit.units import FloatArray


def pooled_log_ratios(points: Sequence[Mapping[int, float]]) -> FloatArray:
    """Mean log ratio over the points, per process that counts at all of them.

    Parameters
    ----------
    points:
        Per point, process -> log ratio.

    Notes
    -----
    ``R_k = fsum over points of r[i, k] / points``; equal weights, fixed before the data. Points share processes, so K
    stays the number of processes.
    """
    if not points:
        return np.zeros(0)
    shared = sorted(set.intersection(*(set(point) for point in points)))
    return np.array([math.fsum(point[k] for point in points) / len(points) for k in shared], dtype=np.float64)
