"""What one process of a study leaves: four surfaces, and the markers of what its arithmetic consumed (results/README.md, "Mechanism bundles").

Rules:
1. Markers come from what was consumed, never from what was asked for.
2. A plan's digest is SHA-256 of sorted_token_ids, then expert_ids, as int32 little-endian; a mode's is ``alignment.fingerprint``.
3. A tensor's digest is SHA-256 of its bytes, little-endian in C order.
4. Cut points' digest: SHA-256 of the RFC 8785 JSON [[[start, length], ...] of each global tile, ...].
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import rfc8785
from numpy.typing import NDArray

from benchkit.fixture.alignment import Alignment, fingerprint
from benchkit.kernels.marlin_schedule import Cuts
from benchkit.protocol.study import GEMMS, SURFACES


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchMarker:
    """How a GEMM was cut: its tile, its grid, the classes of its tiles (``name=count``, in the order of their first tile), its cut points' digest."""

    thread_k: int
    thread_n: int
    grid: int
    classes: str
    cuts_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One process's outcome: ``treatment`` and the digest of what it applied, the order consumed, launches, surfaces by name."""

    treatment: str
    treatment_sha256: str
    injected: bool
    alignment: Alignment
    launches: Mapping[str, LaunchMarker]
    surfaces: Mapping[str, NDArray[np.float16]]

    def row(self, place: Sequence[Any], elapsed_ns: int) -> list[Any]:
        """The row of trajectories.parquet after process and attempt; ``place`` is cell, history, replicate."""
        launches = [
            value
            for gemm in GEMMS
            for one in (self.launches[gemm],)
            for value in (one.thread_k, one.thread_n, one.grid, one.classes, one.cuts_sha256)
        ]
        return [
            *place,
            self.treatment,
            self.treatment_sha256,
            self.injected,
            plan_sha256(self.alignment),
            fingerprint(self.alignment),
            *launches,
            *(tensor_sha256(self.surfaces[name]) for name in SURFACES),
            elapsed_ns,
        ]


def plan_sha256(alignment: Alignment) -> str:
    """Digest of the aligned rows and the experts of the blocks."""
    rows, experts = alignment.sorted_token_ids.astype("<i4"), alignment.expert_ids.astype("<i4")
    return hashlib.sha256(rows.tobytes() + experts.tobytes()).hexdigest()


def order_sha256(routes: NDArray[np.integer]) -> str:
    """Digest of an order of routes, as int32 little-endian."""
    return hashlib.sha256(routes.astype("<i4").tobytes()).hexdigest()


def treatment_sha256(arrays: Sequence[NDArray[Any]]) -> str:
    """Digest of resident tensors: SHA-256 of the SHA-256 (hex) of each, a line each; of nothing where there is none."""
    lines = [hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arrays]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def tensor_bytes(tensor: NDArray[np.float16]) -> bytes:
    """The bytes of a surface, little-endian in C order."""
    return np.ascontiguousarray(tensor).astype("<f2").tobytes()


def tensor_sha256(tensor: NDArray[np.float16]) -> str:
    """Digest of ``tensor_bytes``."""
    return hashlib.sha256(tensor_bytes(tensor)).hexdigest()


def cuts_sha256(cuts: Sequence[Cuts]) -> str:
    """Digest of the cut points of all global tiles, in their order."""
    document: Any = [[[start, length] for start, length in tile] for tile in cuts]
    return hashlib.sha256(rfc8785.dumps(document)).hexdigest()
