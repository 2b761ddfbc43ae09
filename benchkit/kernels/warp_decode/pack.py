"""Weights as ``moe_decode`` reads them: bf16 as the checkpoint has it, and the one-time repack of bf16, MXFP8 and AWQ.

Rules:
1. A packed matrix is uint8 [experts, row tiles / P, blocks, P, bytes of a tile] (P: ``Layout.paired``): 16 rows x 256 columns of the
   reduction in the order of mma.m16n8k16's A fragments, scales behind the weights. What a CTA streams is contiguous.
2. A row tile of w13 is 8 gate rows and the up rows of the same neurons. Columns beyond the reduction are zero.
3. Inside a tile, lane 4 g + t of mma m holds the columns 32 (m // 2) + 8 t + 4 (m % 2) + 2 r + h of the rows g and g + 8 (register r, half h),
   so that the B fragment of 32 columns is 16 bytes of x as it lies.
4. ``unpack_*`` are the inverses; packing loses nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchkit.errors import DataError
from benchkit.fixture import awq_device
from benchkit.kernels.warp_decode.configuration import LAYOUTS, TILE_K, TILE_ROWS

AWQ_GROUP = 128
# where a packed word has the weight of (register, half); the last one wraps around
_NIBBLE_BITS = (2, 18, 6, 22, 10, 26, 14, 30)
_AWQ_ONES = 256, 16  # what a weight's bits add to it in rows g and g + 8: format_awq.cu
_SCALE_BLOCK = 32
_E8M0_NAN = 255
_CHUNK = 8  # experts packed at a time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeWeights:
    """One MoE layer's expert weights on one device, in a layout of ``configuration.LAYOUTS``.

    Parameters
    ----------
    layout:
        ``bf16``: w13 [experts, 2 * intermediate, hidden] (gate rows first) and w2 [experts, hidden, intermediate] in bfloat16;
        ``bf16-packed``, ``mxfp8-packed``, ``awq-packed``: uint8 as ``pack_bf16``, ``pack_mxfp8`` and ``pack_awq`` make them.
    experts, hidden, intermediate:
        Sizes of the layer.
    w13, w2:
        Gate and up, and down.
    """

    layout: str
    experts: int
    hidden: int
    intermediate: int
    w13: torch.Tensor
    w2: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes in memory, padding included."""
        return int(self.w13.nbytes + self.w2.nbytes)

    def copy(self) -> "DecodeWeights":
        """The same weights elsewhere in memory."""
        return self._with(self.w13.clone(), self.w2.clone())

    def to(self, device: torch.device | str) -> "DecodeWeights":
        """The same weights on another device."""
        return self._with(self.w13.to(device), self.w2.to(device))

    def _with(self, w13: torch.Tensor, w2: torch.Tensor) -> "DecodeWeights":
        sizes = {"experts": self.experts, "hidden": self.hidden, "intermediate": self.intermediate}
        return DecodeWeights(layout=self.layout, **sizes, w13=w13, w2=w2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AwqTensors:
    """A stack of matrices [K, N] in AWQ's checkpoint format: qweight int32 [E, K, N / 8], qzeros int32 [E, K / 128, N / 8], scales
    float16 [E, K / 128, N] (benchkit.fixture.awq)."""

    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor


def checkpoint_bf16(w13: torch.Tensor, w2: torch.Tensor) -> DecodeWeights:
    """bf16 weights as they are: nothing is copied. Raises DataError on other shapes, types or strides."""
    experts, hidden, intermediate = _check_pair(w13, w2, torch.bfloat16, "bf16")
    for name, tensor in (("w13", w13), ("w2", w2)):
        if not tensor.is_contiguous() or tensor.data_ptr() % 16:
            raise DataError(
                f"{name}: expected a contiguous tensor at a 16-byte address, found another; use .contiguous()"
            )
    return DecodeWeights(layout="bf16", experts=experts, hidden=hidden, intermediate=intermediate, w13=w13, w2=w2)


def pack_bf16(w13: torch.Tensor, w2: torch.Tensor) -> DecodeWeights:
    """Repack w13 [E, 2 I, H] and w2 [E, H, I] of bfloat16. Raises DataError on other shapes and types."""
    experts, hidden, intermediate = _check_pair(w13, w2, torch.bfloat16, "bf16")
    order = fragment_order("bf16-packed", w13.device)

    def pack(matrix: torch.Tensor, *, up: bool) -> torch.Tensor:
        return _by_chunks(
            lambda part: _tiles(part.view(torch.int16), up=up).flatten(-2)[..., order].contiguous().view(torch.uint8),
            matrix,
        )

    return _packed("bf16-packed", experts, hidden, intermediate, pack(w13, up=True), pack(w2, up=False))


def unpack_bf16(weights: DecodeWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """w13 and w2 in bfloat16 from ``pack_bf16``."""
    order = torch.argsort(fragment_order("bf16-packed", weights.w13.device))
    matrices = []
    for packed, up, columns in ((weights.w13, True, weights.hidden), (weights.w2, False, weights.intermediate)):
        values = packed.flatten(1, -2).view(torch.int16)[..., order]
        matrices.append(_untile(values, packed, up=up, columns=columns).view(torch.bfloat16))
    return matrices[0], matrices[1]


def pack_mxfp8(w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor) -> DecodeWeights:
    """Repack float8_e4m3fn weights [E, 2 I, H] and [E, H, I] with their e8m0 scale bytes uint8 [.., .., columns / 32].

    Raises DataError on other shapes and types, and on scales that are NaN (255).
    """
    experts, hidden, intermediate = _check_pair(w13, w2, torch.float8_e4m3fn, "mxfp8")
    order = fragment_order("mxfp8-packed", w13.device)
    for name, matrix, scale in (("w13_scale", w13, w13_scale), ("w2_scale", w2, w2_scale)):
        expected = (*matrix.shape[:2], matrix.shape[2] // _SCALE_BLOCK)
        if tuple(scale.shape) != expected or scale.dtype is not torch.uint8:
            raise DataError(f"{name}: expected uint8 of shape {expected}, found {scale.dtype} of {tuple(scale.shape)}")
        if bool((scale == _E8M0_NAN).any()):
            raise DataError(f"{name}: expected finite scales (0 to 254), found {_E8M0_NAN}")

    def pack(part: torch.Tensor, scale: torch.Tensor, *, up: bool) -> torch.Tensor:
        values = _tiles(part.view(torch.uint8), up=up).flatten(-2)[..., order]
        scales = _tiles(scale, up=up, columns=TILE_K // _SCALE_BLOCK)
        low, high = scales[..., :8, :], scales[..., 8:, :]
        return torch.cat([values, torch.stack([low, high], dim=-1).flatten(-3)], dim=-1)

    packed = (
        _by_chunks(lambda part, scale: pack(part, scale, up=True), w13, w13_scale),
        _by_chunks(lambda part, scale: pack(part, scale, up=False), w2, w2_scale),
    )
    return _packed("mxfp8-packed", experts, hidden, intermediate, *packed)


def unpack_mxfp8(weights: DecodeWeights) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """w13, w13_scale, w2 and w2_scale from ``pack_mxfp8``."""
    order = torch.argsort(fragment_order("mxfp8-packed", weights.w13.device))
    found = []
    for packed, up, columns in ((weights.w13, True, weights.hidden), (weights.w2, False, weights.intermediate)):
        tiles = packed.flatten(1, -2)
        values = _untile(tiles[..., : TILE_ROWS * TILE_K][..., order], packed, up=up, columns=columns)
        pairs = tiles[..., TILE_ROWS * TILE_K :].unflatten(-1, (8, TILE_K // _SCALE_BLOCK, 2))
        scales = torch.cat([pairs[..., 0], pairs[..., 1]], dim=-2).flatten(-2)
        found += [
            values.view(torch.float8_e4m3fn),
            _untile(scales, packed, up=up, columns=columns // _SCALE_BLOCK, width=TILE_K // _SCALE_BLOCK),
        ]
    return found[0], found[1], found[2], found[3]


def pack_awq(w13: AwqTensors, w2: AwqTensors) -> DecodeWeights:
    """Repack AWQ's checkpoint tensors: w13 is [H, 2 I] (gate columns first), w2 [I, H], groups of 128.

    Raises DataError on another group size, on shapes and types that do not belong together, and on scales that are not finite.
    """
    experts, hidden, double = _awq_sizes("w13", w13)
    other, intermediate, width = _awq_sizes("w2", w2)
    if (other, width, 2 * intermediate) != (experts, hidden, double):
        raise DataError(
            f"w2: expected {experts} matrices [{double // 2}, {hidden}] beside w13 [{hidden}, {double}], found {other} [{intermediate}, {width}]"
        )
    _check_sizes("awq-packed", hidden, intermediate)
    order = fragment_order("awq-packed", w13.qweight.device)

    def pack(tensors: AwqTensors, *, up: bool) -> torch.Tensor:
        return _by_chunks(
            lambda q, z, s: _pack_awq_chunk(q, z, s, order, up=up), tensors.qweight, tensors.qzeros, tensors.scales
        )

    return _packed("awq-packed", experts, hidden, intermediate, pack(w13, up=True), pack(w2, up=False))


def unpack_awq(weights: DecodeWeights) -> tuple[AwqTensors, AwqTensors]:
    """w13 and w2 in AWQ's checkpoint format from ``pack_awq``."""
    order = torch.argsort(fragment_order("awq-packed", weights.w13.device))
    groups, found = TILE_K // AWQ_GROUP, []
    for packed, up, columns in ((weights.w13, True, weights.hidden), (weights.w2, False, weights.intermediate)):
        tiles = packed.permute(0, 1, 3, 2, 4).flatten(1, 2).flatten(1, -2)  # [E, tiles x blocks, bytes]
        words = tiles[..., :2048].contiguous().view(torch.int32)
        nibbles = torch.stack([_nibble(words, bit) for bit in _NIBBLE_BITS], dim=-1).flatten(-2)[..., order]
        values = _untile(nibbles, packed, up=up, columns=columns)
        scale = tiles[..., 2048:2112].contiguous().view(torch.int16).unflatten(-1, (8, groups, 2))
        start = tiles[..., 2112:2176].contiguous().view(torch.float16).unflatten(-1, (8, groups, 2))
        scales = torch.cat([scale[..., 0], scale[..., 1]], dim=-2).flatten(-2)
        zeros = torch.cat([-start[..., 0] - _AWQ_ONES[0], -start[..., 1] - _AWQ_ONES[1]], dim=-2)
        zeros = zeros.flatten(-2).to(torch.uint8)
        rows_of_scales, rows_of_zeros = (
            _untile(each, packed, up=up, columns=columns // AWQ_GROUP, width=groups) for each in (scales, zeros)
        )
        found.append(
            AwqTensors(
                qweight=awq_device.pack(values.transpose(1, 2)),
                qzeros=awq_device.pack(rows_of_zeros.transpose(1, 2)),
                scales=rows_of_scales.transpose(1, 2).contiguous().view(torch.float16),
            )
        )
    return found[0], found[1]


def fragment_order(layout: str, device: torch.device | str = "cpu") -> torch.Tensor:
    """For every weight of a stored tile, in the order of storage, its place row * 256 + column in the tile: int64 [4096]."""
    lane = torch.arange(32)
    g, t = lane // 4, lane % 4
    mmas = []
    for m in range(TILE_K // 16):
        places = []  # a0 a1 a2 a3, two halves each: row g, row g + 8, and again with r = 1
        for register in range(4):
            for half in range(2):
                column = 32 * (m // 2) + 8 * t + 4 * (m % 2) + 2 * (register // 2) + half
                places.append((g + 8 * (register % 2)) * TILE_K + column)
        mmas.append(torch.stack(places, dim=-1))  # [lane, 8]
    every = torch.stack(mmas)  # [mma, lane, 8]
    per_load = {"bf16-packed": 1, "mxfp8-packed": 2, "awq-packed": 4}[layout]  # mmas of a lane's 16-byte load
    return every.unflatten(0, (-1, per_load)).transpose(1, 2).flatten().to(device)


def _pack_awq_chunk(
    qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, order: torch.Tensor, *, up: bool
) -> torch.Tensor:
    groups = TILE_K // AWQ_GROUP
    values = (
        _tiles(awq_device.unpack(qweight).transpose(1, 2), up=up)
        .flatten(-2)[..., order]
        .unflatten(-1, (-1, 8))
        .to(torch.int32)
    )
    words = torch.zeros(values.shape[:-1], dtype=torch.int32, device=values.device)
    for place, bit in enumerate(_NIBBLE_BITS):
        nibble = values[..., place]
        words |= nibble << bit if bit < 30 else (nibble & 3) << 30 | nibble >> 2
    scale = _tiles(scales.view(torch.int16).transpose(1, 2), up=up, columns=groups)
    zero = _tiles(awq_device.unpack(qzeros).transpose(1, 2), up=up, columns=groups)
    parts = (
        words,
        torch.stack([scale[..., :8, :], scale[..., 8:, :]], dim=-1).flatten(-3),
        torch.stack(
            [-(zero[..., :8, :].half() + _AWQ_ONES[0]), -(zero[..., 8:, :].half() + _AWQ_ONES[1])], dim=-1
        ).flatten(-3),
    )
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=-1)


def _nibble(words: torch.Tensor, bit: int) -> torch.Tensor:
    if bit < 30:
        return (words >> bit & 15).to(torch.uint8)
    return ((words >> 30 & 3) | (words & 3) << 2).to(torch.uint8)


def _tiles(matrix: torch.Tensor, *, up: bool, columns: int = TILE_K) -> torch.Tensor:
    """[E, rows, K] -> [E, row tiles, blocks, 16, columns], K padded with zeros to whole blocks."""
    experts, rows, size_k = matrix.shape
    padded = torch.nn.functional.pad(matrix, (0, -size_k % columns))
    if up:
        gate_up = padded.unflatten(1, (2, rows // 2 // 8, 8))
        padded = gate_up.transpose(1, 2).reshape(experts, rows, -1)
    return padded.unflatten(1, (rows // TILE_ROWS, TILE_ROWS)).unflatten(-1, (-1, columns)).transpose(2, 3)


def _untile(values: torch.Tensor, packed: torch.Tensor, *, up: bool, columns: int, width: int = TILE_K) -> torch.Tensor:
    """The inverse of ``_tiles``, from [E, row tiles x blocks, 16 x width]."""
    tiles, blocks = packed.shape[1] * packed.shape[3], packed.shape[2]
    rows = (
        values.unflatten(1, (tiles, blocks)).unflatten(-1, (TILE_ROWS, width)).transpose(2, 3).flatten(-2).flatten(1, 2)
    )
    if up:
        experts, count, _ = rows.shape
        rows = rows.unflatten(1, (count // TILE_ROWS, 2, 8)).transpose(1, 2).reshape(experts, count, -1)
    return rows[..., :columns].contiguous()


def _by_chunks(pack: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """A few experts at a time, so that little memory is needed beside the result."""
    parts = zip(*(tensor.split(_CHUNK) for tensor in tensors), strict=True)
    return torch.cat([pack(*part) for part in parts])


def _packed(
    layout: str, experts: int, hidden: int, intermediate: int, w13: torch.Tensor, w2: torch.Tensor
) -> DecodeWeights:
    """From [E, row tiles, blocks, bytes] to storage order."""
    paired = LAYOUTS[layout].paired
    stored = [each.unflatten(1, (-1, paired)).transpose(2, 3).contiguous() for each in (w13, w2)]
    return DecodeWeights(
        layout=layout, experts=experts, hidden=hidden, intermediate=intermediate, w13=stored[0], w2=stored[1]
    )


def _check_pair(w13: torch.Tensor, w2: torch.Tensor, dtype: torch.dtype, layout: str) -> tuple[int, int, int]:
    if w2.ndim != 3 or w13.ndim != 3:
        raise DataError(f"expected w13 and w2 with three axes, found {list(w13.shape)} and {list(w2.shape)}")
    experts, hidden, intermediate = w2.shape
    if tuple(w13.shape) != (experts, 2 * intermediate, hidden):
        raise DataError(
            f"w13: expected {[experts, 2 * intermediate, hidden]} beside w2 {list(w2.shape)}, found {list(w13.shape)}"
        )
    if w13.dtype is not dtype or w2.dtype is not dtype:
        raise DataError(f"expected {dtype} weights, found {w13.dtype} and {w2.dtype}")
    if w13.device != w2.device:
        raise DataError(f"expected w13 and w2 on one device, found them on {w13.device} and {w2.device}")
    _check_sizes("bf16" if layout == "bf16" else "mxfp8-packed", hidden, intermediate)
    return experts, hidden, intermediate


def _check_sizes(layout: str, hidden: int, intermediate: int) -> None:
    multiple = LAYOUTS[layout].multiple
    for name, size in (("hidden", hidden), ("intermediate", intermediate)):
        if size < 1 or size % multiple:
            raise DataError(
                f"{name}: expected a multiple of {multiple} for {LAYOUTS[layout].weight_format}, found {size}"
            )


def _awq_sizes(name: str, tensors: AwqTensors) -> tuple[int, int, int]:
    """Experts, K and N; DataError where the three tensors are not a matrix in groups of 128."""
    qweight, qzeros, scales = tensors.qweight, tensors.qzeros, tensors.scales
    for part, tensor, dtype in (
        ("qweight", qweight, torch.int32),
        ("qzeros", qzeros, torch.int32),
        ("scales", scales, torch.float16),
    ):
        if tensor.dtype is not dtype or tensor.ndim != 3:
            raise DataError(
                f"{name}.{part}: expected {dtype} with three axes, found {tensor.dtype} {list(tensor.shape)}"
            )
    experts, size_k, words = qweight.shape
    groups = scales.shape[1]
    if groups < 1 or size_k != groups * AWQ_GROUP:
        found = f"{size_k // groups}" if groups and size_k % groups == 0 else f"{size_k} / {groups}"
        raise DataError(
            f"{name}: expected a group size of {AWQ_GROUP}, found {found}; requantise, or use another kernel"
        )
    for part, tensor, expected in (
        ("qzeros", qzeros, (experts, groups, words)),
        ("scales", scales, (experts, groups, 8 * words)),
    ):
        if tuple(tensor.shape) != expected:
            raise DataError(
                f"{name}.{part}: expected {list(expected)} beside qweight {list(qweight.shape)}, found {list(tensor.shape)}"
            )
    if not bool(torch.isfinite(scales).all()):
        raise DataError(f"{name}.scales: expected finite values, found NaN or infinity")
    return experts, size_k, 8 * words
