"""The synthetic layer of a study, derived again: its digest, and the products with its weights.

Rules (protocols/README.md, "Mechanism protocols"; results/README.md, "Mechanism bundles"):
1. Raw words of PCG64, two 32-bit words in each, the low half first; every array begins with a new one.
2. A weight is float16((q - z) * s); products are added in float32, beside a scale of what rounding can do to them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validator.reading.study import GEMMS, Sizes
from validator.reading.study_assets import Plans

_COLUMN_OF_NIBBLE = (0, 2, 4, 6, 1, 3, 5, 7)


Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expert:
    """One expert's part of a weight: bytes of two 4-bit numbers [groups, group, N / 2], zero points and scales [groups, N]."""

    packed: NDArray[np.uint8]
    zeros: NDArray[np.uint32]
    scales: NDArray[np.float16]

    def product(self, rows: Floats) -> tuple[Floats, Floats]:
        """Give rows [R, K] times the weight, and the sums of abs(row) x (the largest weight that zero point and scale allow)."""
        distinct: dict[bytes, int] = {}
        places = [distinct.setdefault(row.tobytes(), len(distinct)) for row in rows]
        rows = np.frombuffer(b"".join(distinct), dtype=np.float32).reshape(len(distinct), -1)
        groups, size, half = self.packed.shape
        columns = _columns(2 * half)
        total, reach = (np.zeros((len(rows), 2 * half), dtype=np.float32) for _ in range(2))
        weight = np.empty((size, 2 * half), dtype=np.float32)
        for i in range(groups):
            zeros, scales = self.zeros[i][columns].astype(np.float32), self.scales[i][columns].astype(np.float32)
            weight[:, :half], weight[:, half:] = self.packed[i] & 15, self.packed[i] >> 4
            weight -= zeros
            weight *= scales
            bits = weight.view(np.uint32)  # to float16 and back by integers; astype takes ten times as long
            bits += np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
            bits &= np.uint32(0xFFFFE000)
            part = rows[:, i * size : (i + 1) * size]
            for r, row in enumerate(part):  # few rows each time: one by one is faster than a matrix product
                total[r] += row @ weight
            reach += np.abs(part).sum(axis=1)[:, None] * (scales * np.maximum(zeros, 15 - zeros))
        ordered = np.argsort(columns)
        return total[places][:, ordered], reach[places][:, ordered]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """The digest of input, routing and both weights; the weights of those experts that the routing uses, by GEMM."""

    digest: str
    weights: Mapping[str, Mapping[int, Expert]]


def derive_layer(sizes: Sizes, plans: Plans) -> Layer:
    """Derive the layer of the seeds."""
    hasher = hashlib.sha256()
    hasher.update(input_bytes(sizes))
    hasher.update(np.array(plans.ids, dtype="<i4").tobytes())
    hasher.update(np.array(plans.weights, dtype="<f4").tobytes())
    source = np.random.PCG64(sizes.weight_seed)
    used = sorted({expert for expert in plans.ids if expert >= 0})
    weights = {}
    for gemm in GEMMS:
        count = sizes.experts * sizes.reduction(gemm) * sizes.columns(gemm)
        shape = (sizes.experts, sizes.reduction(gemm) // sizes.group, -1)
        packed = _raw(source, count // 8)
        hasher.update(packed.tobytes())
        zeros = 4 + _raw(source, count // sizes.group) % np.uint32(8)
        hasher.update(_packed(zeros))
        scales = ((1.0 + _raw(source, count // sizes.group) / 4294967296.0) / 64.0).astype("<f2")
        hasher.update(scales.tobytes())
        in_bytes = packed.view(np.uint8).reshape(*shape[:2], sizes.group, -1)
        zeros, scales = zeros.reshape(shape), scales.reshape(shape)
        weights[gemm] = {e: Expert(packed=in_bytes[e].copy(), zeros=zeros[e], scales=scales[e]) for e in used}
        del packed, in_bytes
    return Layer(digest=hasher.hexdigest(), weights=weights)


def input_bytes(sizes: Sizes) -> bytes:
    """Give the bytes of the input, float16."""
    numbers = _raw(np.random.PCG64(sizes.input_seed), 2 * sizes.tokens * sizes.hidden).view("<u2").reshape(-1, 4)
    centred = numbers.astype(np.float64).sum(axis=1) - 131070.0
    return bytes((centred / 32768.0).astype("<f2").tobytes())


def _packed(numbers: NDArray[np.uint32]) -> bytes:
    eights = numbers.reshape(-1, 8)
    packed = np.zeros(len(eights), dtype=np.uint64)
    for nibble, column in enumerate(_COLUMN_OF_NIBBLE):
        packed += eights[:, column].astype(np.uint64) * np.uint64(16**nibble)
    return packed.astype("<u4").tobytes()


def _columns(count: int) -> NDArray[np.intp]:
    """Name the columns whose numbers stand in the low halves of the bytes of a row, then those in the high ones."""
    eights = np.arange(0, count, 8)[:, None]
    halves = (eights + np.array(_COLUMN_OF_NIBBLE[start::2]) for start in (0, 1))
    return np.concatenate([half.ravel() for half in halves])


def _raw(source: np.random.PCG64, count: int) -> NDArray[np.uint32]:
    words = np.asarray(source.random_raw((count + 1) // 2), dtype="<u8")
    return np.frombuffer(words.tobytes(), dtype="<u4", count=count)
