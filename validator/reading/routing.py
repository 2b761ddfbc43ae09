"""The routing that a protocol stands for, and the bytes that follow from it.

Rules (protocols/README.md "Routing" and "Bytes"):
1. ``uniform`` and ``zipf-<a>`` are derived from digests alone; ``recorded`` is what the locked asset holds.
2. Weights are float32 of g over the exactly rounded sum of the token's g.
3. Bytes count each distinct expert once (unique) or once per route (issued), in the checkpoint format.
"""

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from validator.reading.model import Arm, Point, Protocol

_BYTES_PER_WEIGHT = {
    "fp32": Fraction(4),
    "bf16": Fraction(2),
    "mxfp8": Fraction(33, 32),
    "awq-int4-g128": Fraction(133, 256),
}
_SHARE = {"w13": Fraction(2, 3), "w2": Fraction(1, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The routes of one point: experts and weights by token and slot."""

    point: str
    experts: NDArray[np.int64]
    weights: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Bytes of one call: each distinct expert once, and once per route."""

    unique: int | None
    issued: int | None


def _h(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 11


def law_at(protocol: Protocol, point: Point) -> str:
    """Give the routing law at a point: the axis ``routing`` overrides the fixture's."""
    return str(point.value("routing") or protocol.fixture.routing)


def derive_routes(protocol: Protocol, point: Point) -> Routes | None:
    """Derive the routes of a point; None where the law is ``recorded`` or nothing is routed."""
    fixture = protocol.fixture
    law = law_at(protocol, point)
    if fixture.kind != "moe" or law == "recorded":
        return None
    tokens = protocol.tokens(point)
    exponent = None if law == "uniform" else float(law.removeprefix("zipf-"))
    experts = np.empty((tokens, fixture.top_k), dtype=np.int64)
    weights = np.empty((tokens, fixture.top_k), dtype=np.float32)
    for token in range(tokens):
        stem = f"{fixture.routing_seed}/{tokens}/{token}/"
        if exponent is None:
            order = sorted(range(fixture.experts), key=lambda e, s=stem: hashlib.sha256(f"{s}{e}".encode()).digest())  # type: ignore[misc]
        else:
            keys = [-math.log((_h(f"{stem}{e}") + 0.5) / 2**53) * (e + 1) ** exponent for e in range(fixture.experts)]
            order = sorted(range(fixture.experts), key=keys.__getitem__)
        chosen = order[: fixture.top_k]
        shares = [(_h(f"{stem}{e}/weight") + 0.5) / 2**53 for e in chosen]
        total = math.fsum(shares)
        experts[token] = chosen
        weights[token] = [share / total for share in shares]
    return Routes(point=point.id, experts=experts, weights=weights)


def bytes_at(protocol: Protocol, point: Point, distinct_experts: int) -> Bytes:
    """Give the bytes of a whole layer at a point, from the distinct experts of its routing."""
    fixture = protocol.fixture
    if fixture.kind == "arrays":
        size = int(point.value("mib") or 0) * 2**20 * (2 if fixture.counted == "read+write" else 1)
        return Bytes(unique=size, issued=size)
    expert = 3 * fixture.hidden * fixture.intermediate * _BYTES_PER_WEIGHT[fixture.weight_format]
    routes = protocol.tokens(point) * fixture.top_k
    return Bytes(unique=int(distinct_experts * expert), issued=int(routes * expert))


def bytes_of_arm(arm: Arm, layer: Bytes) -> Bytes:
    """Give the bytes that count for an arm: a component's share, a ceiling's own, else the layer's."""
    if arm.role == "ceiling":
        own = int(arm.bytes or 0) * (2 if arm.ceiling == "copy" else 1)
        return Bytes(unique=own, issued=own)
    if arm.role != "component":
        return layer
    if arm.counted_bytes == "none" or layer.unique is None or layer.issued is None:
        return Bytes(unique=None, issued=None)
    share = _SHARE[str(arm.counted_bytes)]
    return Bytes(unique=int(layer.unique * share), issued=int(layer.issued * share))
