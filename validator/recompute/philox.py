"""Philox4x64-10: random words that two code bases can repeat bit for bit, because they are a function of a counter.

Formula (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC '11), ten rounds on (c0, c1, c2, c3)::

    (h0, l0) = M0 c0;  (h1, l1) = M1 c2
    c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0;  then k0 += W0, k1 += W1

all modulo 2^64; h and l are the high and the low word of a 128-bit product.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS, _LOW, _HALF, _WORD = 10, np.uint64(0xFFFFFFFF), np.uint64(32), 1 << 64


def high_product(a: Words, b: np.uint64) -> Words:
    """Give the high word of a 128-bit product, from four products of 32 bits."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    middle = a1 * b0 + ((a0 * b0) >> _HALF)
    carry = a0 * b1 + (middle & _LOW)
    return np.asarray(a1 * b1 + (middle >> _HALF) + (carry >> _HALF), dtype=np.uint64)


def philox(counters: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Give the four words of every counter."""
    c0, c1, c2, c3 = counters
    k0, k1 = key
    for _ in range(_ROUNDS):
        h0, l0, h1, l1 = high_product(c0, _M0), c0 * _M0, high_product(c2, _M1), c2 * _M1
        c0, c1, c2, c3 = h1 ^ c1 ^ np.uint64(k0), l1, h0 ^ c3 ^ np.uint64(k1), l0
        k0, k1 = (k0 + _W0) % _WORD, (k1 + _W1) % _WORD
    return c0, c1, c2, c3


def stream(count: int, key: tuple[int, int], *, start: int = 0) -> Words:
    """Give raw[g] = philox((g div 4, 0, 0, 0))[g mod 4] for g = start .. start + count - 1."""
    counter = np.arange(start // 4, (start + count + 3) // 4, dtype=np.uint64)
    zero = np.zeros_like(counter)
    return np.stack(philox((counter, zero, zero, zero), key), axis=1).ravel()[start % 4 :][:count]


def indices(raw: Words, size: int) -> NDArray[np.int64]:
    """Give (raw size) >> 64: an index below ``size`` for every word."""
    return high_product(raw, np.uint64(size)).astype(np.int64)
