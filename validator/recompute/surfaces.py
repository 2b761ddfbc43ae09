"""What one surface of a study says of the next: sums, activations, and how far a product may lie from the exact one.

Rules (results/README.md, "Mechanism bundles"):
1. The final surface adds the slots of a token in their order: float16 for 2, 3 or 4 of them, else float32, rounded once.
2. The activation is float16(float16(silu(gate)) * up), gate columns first, silu in float32 with an exponential rounded once.
3. A stored product lies within 2^-9 abs(y) + 2^-18 S + 2^-23 of the exact y. S = sum of abs(x) x (the largest weight that zero
   point and scale allow): two roundings to float16 take half of the first, float32 sums in any order and split a part of the second.
"""

import numpy as np
from numpy.typing import NDArray

from validator.reading.study import Sizes
from validator.recompute.layer import Expert, Floats

Halves = NDArray[np.float16]
_HALF_SUMS = (2, 3, 4)
_LARGEST = 65504.0


def summed(routed: Halves, sizes: Sizes) -> Halves:
    """Give the final surface that a routed one stands for."""
    slots = routed.reshape(sizes.tokens, sizes.top_k, sizes.hidden)
    kind = np.float16 if sizes.top_k in _HALF_SUMS else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        total = slots[:, 0, :].astype(kind)
        for slot in range(1, sizes.top_k):
            total = (total + slots[:, slot, :].astype(kind)).astype(kind)
        return total.astype("<f2")


def activated(w13: Halves) -> Halves:
    """Give the activation of [rows, 2 intermediate]."""
    half = w13.shape[1] // 2
    gate = w13[:, :half].astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        exponential = np.exp(-gate.astype(np.float64)).astype(np.float32)
        silu = (gate / (np.float32(1) + exponential)).astype(np.float16)
        return (silu * w13[:, half:]).astype("<f2")


def apart(first: Halves, second: Halves) -> NDArray[np.int64]:
    """Count the float16 numbers from one to the other; two that are no number are alike."""
    one, other = (np.where(v < 0, -(v & 0x7FFF), v.astype(np.int64)) for v in (_words(first), _words(second)))
    return np.where(np.isnan(first) & np.isnan(second), 0, np.abs(one - other))


def _words(values: Halves) -> NDArray[np.int64]:
    return values.view("<i2").astype(np.int64)


def strangers(found: Halves, rows: Floats, expert: Expert, scale: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """Say which elements of ``found`` are too far from rows x weights x scale, and give these products.

    Where a product may leave float16, or has an operand that did, nothing can be said.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        plain, reach = expert.product(rows)
        allowed = np.abs(plain) * 2.0**-9 + reach * 2.0**-18 + 2.0**-23
        most = (np.abs(plain) + allowed) * np.maximum(1, np.abs(scale))[:, None]
        exact = plain * scale[:, None]
        near = np.abs(found.astype(np.float32) - exact) <= allowed * np.abs(scale)[:, None] + 2.0**-23
        return (most < _LARGEST) & ~near, exact
