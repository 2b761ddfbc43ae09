"""Tiles of the expert-centric arms: what the protocol locks, and which are worth a try.

Rules:
1. Tiles are powers of two. Whether they divide a layer says ``benchkit.kernels.expert_centric.problem_of``.
2. Nothing here imports torch or Triton.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchkit.errors import DataError
from benchkit.kernels.contract import Params

Shape = tuple[bool, int, int, int, int]  # swap, tile_n, tile_k, stages, warps
SHAPES: Mapping[str, tuple[Shape, ...]] = {  # those that were best, or nearly so, at some batch size on an H200
    "bf16": ((True, 64, 128, 3, 4), (True, 64, 128, 4, 4), (True, 128, 128, 3, 8), (False, 64, 128, 3, 4)),
    "mxfp8": ((False, 32, 128, 3, 2), (False, 64, 128, 3, 4), (False, 128, 128, 2, 4), (False, 32, 256, 3, 4)),
}
_WIDE: Mapping[str, tuple[Shape, ...]] = {"bf16": ((False, 128, 64, 4, 4),)}  # tried beside them in blocks of more rows
_TILES_M = (16, 32, 64)  # 16 is the least that tensor cores take


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """The tile of a product: ``tile_n`` weight rows x ``tile_k`` of their columns, ``stages`` of them in flight in ``warps`` warps.

    ``swap`` makes the weights the left operand of the tensor cores, whose tiles are 64 rows tall.
    """

    tile_n: int
    tile_k: int
    stages: int
    warps: int
    swap: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Rows of a block, the tiles of both products, and whether kernels overlap by programmatic dependent launch."""

    tile_m: int
    up: Gemm
    down: Gemm
    launch_pdl: bool


def parse_tiles(params: Params) -> Tiles:
    """``tile_m``; ``tile_n``, ``tile_k``, ``stages``, ``warps`` and ``swap`` with ``up_`` and with ``down_``; ``launch_pdl``.

    Flags are false where they are not given.

    Raises DataError on values that no layer could use: tiles are powers of two from 16 (``tile_k``: 32) on.
    """
    up, down = (
        Gemm(
            tile_n=_power(params, f"{name}_tile_n", 16, 256),
            tile_k=_power(params, f"{name}_tile_k", 32, 256),
            stages=_integer(params, f"{name}_stages", 1, 8),
            warps=_power(params, f"{name}_warps", 1, 16),
            swap=bool(params.get(f"{name}_swap", False)),
        )
        for name in ("up", "down")
    )
    pdl = bool(params.get("launch_pdl", False))
    return Tiles(tile_m=_power(params, "tile_m", 16, 128), up=up, down=down, launch_pdl=pdl)


def gemm(shape: Shape) -> Gemm:
    """The tile of a line of ``SHAPES``."""
    swap, tile_n, tile_k, stages, warps = shape
    return Gemm(tile_n=tile_n, tile_k=tile_k, stages=stages, warps=warps, swap=swap)


def params_of(tiles: Tiles) -> Params:
    """What a protocol says to get these tiles."""
    values: dict[str, int | bool] = {"tile_m": tiles.tile_m, "launch_pdl": tiles.launch_pdl}
    for name, tile in (("up", tiles.up), ("down", tiles.down)):
        values |= {f"{name}_tile_n": tile.tile_n, f"{name}_tile_k": tile.tile_k, f"{name}_stages": tile.stages}
        values |= {f"{name}_warps": tile.warps, f"{name}_swap": tile.swap}
    return values


def combinations(weight_format: str, busiest: int) -> Iterator[Params]:
    """Every pair of tiles, with and without dependent launches, in blocks of 16 rows, and of as many more as the busiest expert fills by half."""
    least = _TILES_M[0]
    for rows in (rows for rows in _TILES_M if rows == least or rows < 2 * busiest):
        lines = SHAPES.get(weight_format, ()) + (_WIDE.get(weight_format, ()) if rows > least else ())
        for up, down, pdl in itertools.product(map(gemm, lines), map(gemm, lines), (True, False)):
            yield params_of(Tiles(tile_m=rows, up=up, down=down, launch_pdl=pdl))


def _power(params: Params, name: str, least: int, most: int) -> int:
    value = _integer(params, name, least, most)
    if value & (value - 1):
        raise DataError(f"params.{name}: expected a power of two, found {value}")
    return value


def _integer(params: Params, name: str, least: int, most: int) -> int:
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise DataError(f"params.{name}: expected an integer from {least} to {most}, found {value!r}")
    return value
