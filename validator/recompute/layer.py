"""The synthetic layer of a study, derived again for its digest, and the one surface that follows from another.

Rules (protocols/README.md, "Mechanism protocols"; results/README.md, "Mechanism bundles"):
1. Raw words of PCG64, two 32-bit words in each, the low half first; every array begins with a new one.
2. The final surface adds the slots of a token in their order: float16 for 2, 3 or 4 of them, else float32, rounded once.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from validator.reading.study import GEMMS, Plans, Sizes

_COLUMN_OF_NIBBLE = (0, 2, 4, 6, 1, 3, 5, 7)
_HALF = (2, 3, 4)


def layer_digest(sizes: Sizes, plans: Plans) -> str:
    """Give the digest of input, routing and both weights."""
    hasher = hashlib.sha256()
    hasher.update(input_bytes(sizes))
    hasher.update(np.array(plans.ids, dtype="<i4").tobytes())
    hasher.update(np.array(plans.weights, dtype="<f4").tobytes())
    source = np.random.PCG64(sizes.weight_seed)
    for gemm in GEMMS:
        weights = sizes.experts * sizes.reduction(gemm) * sizes.columns(gemm)
        for piece in _matrix(source, weights, weights // sizes.group):
            hasher.update(piece)
    return hasher.hexdigest()


def input_bytes(sizes: Sizes) -> bytes:
    """Give the bytes of the input, float16."""
    numbers = _raw(np.random.PCG64(sizes.input_seed), 2 * sizes.tokens * sizes.hidden).view("<u2").reshape(-1, 4)
    centred = numbers.astype(np.float64).sum(axis=1) - 131070.0
    return bytes((centred / 32768.0).astype("<f2").tobytes())


def _matrix(source: np.random.PCG64, weights: int, grouped: int) -> Iterator[bytes]:
    yield _raw(source, weights // 8).tobytes()
    eights = (4 + _raw(source, grouped) % np.uint32(8)).reshape(-1, 8)
    packed = np.zeros(len(eights), dtype=np.uint64)
    for nibble, column in enumerate(_COLUMN_OF_NIBBLE):
        packed += eights[:, column].astype(np.uint64) * np.uint64(16**nibble)
    yield packed.astype("<u4").tobytes()
    yield ((1.0 + _raw(source, grouped) / 4294967296.0) / 64.0).astype("<f2").tobytes()


def _raw(source: np.random.PCG64, count: int) -> NDArray[np.uint32]:
    words = np.asarray(source.random_raw((count + 1) // 2), dtype="<u8")
    return np.frombuffer(words.tobytes(), dtype="<u4", count=count)


def summed(routed: bytes, sizes: Sizes) -> bytes:
    """Give the final surface that a routed one stands for."""
    slots = np.frombuffer(routed, dtype="<f2").reshape(sizes.tokens, sizes.top_k, sizes.hidden)
    kind = np.float16 if sizes.top_k in _HALF else np.float32
    total = slots[:, 0, :].astype(kind)
    for slot in range(1, sizes.top_k):
        total = (total + slots[:, slot, :].astype(kind)).astype(kind)
    return total.astype("<f2").tobytes()
