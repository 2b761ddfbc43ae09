"""AWQ weights of a layer in the layouts that Marlin reads, on the device where they are: ``benchkit.fixture.marlin_layout`` in torch.

Rules:
1. The layouts, and the numpy reference that these functions equal bit for bit, are those of ``benchkit.fixture.marlin_layout``.
2. A layer is repacked once per process, expert by expert, and shared by all arms and points; every copy has memory of its own.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from benchkit.fixture import awq_device
from benchkit.fixture.awq import ORDER
from benchkit.fixture.layer import MoeWeights
from benchkit.fixture.marlin_layout import COLUMNS, GROUPED, ROWS, SINGLE, tile_places
from benchkit.kernels.contract import Repacking
from benchkit.kernels.repacking import timed

_ASCENDING = tuple(range(8))
_repacked: WeakKeyDictionary[MoeWeights, "MarlinLayer"] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarlinGemm:
    """One of the two matrices of all experts, [size_k, size_n] each.

    Parameters
    ----------
    weight:
        int32 [experts, size_k / 16, 2 * size_n].
    scales:
        float16 [experts, groups, size_n].
    zeros:
        int32 [experts, groups, size_n / 8].
    """

    weight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all three."""
        return int(self.weight.nbytes + self.scales.nbytes + self.zeros.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarlinWeights:
    """One copy of a layer: W13 (gate columns first) and W2."""

    w13: MarlinGemm
    w2: MarlinGemm

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.w13.nbytes + self.w2.nbytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarlinLayer:
    """All copies of a layer, and what repacking the first of them cost."""

    copies: tuple[MarlinWeights, ...]
    repacking: Repacking


def marlin_layer(weights: MoeWeights) -> MarlinLayer:
    """The copies of an AWQ layer as Marlin reads them, made when first asked for; ``awq_shapes.layer_reasons`` says which layers can be."""
    if weights not in _repacked:
        first, repacking = timed(lambda: _first(weights))
        rest = (MarlinWeights(w13=_clone(first.w13), w2=_clone(first.w2)) for _ in range(weights.copies - 1))
        _repacked[weights] = MarlinLayer(copies=(first, *rest), repacking=repacking)
    return _repacked[weights]


def _first(weights: MoeWeights) -> MarlinWeights:
    parts = weights.parts()
    w13, w2 = (repack(*(parts[f"{name}{part}"][0] for part in ("", "_scale", "_zero"))) for name in ("w13", "w2"))
    return MarlinWeights(w13=w13, w2=w2)


def repack(qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor) -> MarlinGemm:
    """Checkpoint layout of all experts -> Marlin's: qweight int32 [E, K, N/8], scales float16 [E, G, N], qzeros int32 [E, G, N/8]."""
    experts, size_k, words = (int(size) for size in qweight.shape)
    weight = torch.empty((experts, size_k // ROWS, 16 * words), dtype=torch.int32, device=qweight.device)
    for expert in range(experts):
        weight[expert] = _weight(awq_device.unpack(qweight[expert]))
    return MarlinGemm(weight=weight, scales=_scales(scales), zeros=_zeros(awq_device.unpack(qzeros)))


def _weight(values: torch.Tensor) -> torch.Tensor:
    """Values uint8 [K, N] -> int32 [K/16, 2N]."""
    size_k, size_n = (int(size) for size in values.shape)
    rows, columns = (torch.from_numpy(places).to(values.device) for places in tile_places())
    tiles = values.view(size_k // ROWS, ROWS, size_n // COLUMNS, COLUMNS).transpose(1, 2)
    return awq_device.pack_nibbles(tiles[:, :, rows, columns].reshape(size_k // ROWS, -1), _ASCENDING)


def _scales(scales: torch.Tensor) -> torch.Tensor:
    return _permuted(scales, GROUPED if scales.shape[-2] > 1 else SINGLE)


def _zeros(zeros: torch.Tensor) -> torch.Tensor:
    """Zero points uint8 [..., G, N] -> int32 [..., G, N/8]."""
    return awq_device.pack_nibbles(_permuted(zeros, GROUPED), ORDER)


def _permuted(values: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    places = torch.tensor(order, device=values.device)
    return values.unflatten(-1, (-1, len(order)))[..., places].flatten(-2).contiguous()


def _clone(gemm: MarlinGemm) -> MarlinGemm:
    return MarlinGemm(weight=gemm.weight.clone(), scales=gemm.scales.clone(), zeros=gemm.zeros.clone())
