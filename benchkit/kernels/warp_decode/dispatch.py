"""Which tiles ``moe_decode`` takes: a table by layout and number of tokens, found by ``benchkit tune`` on an H200 and locked by value here.

Rules:
1. A row holds for all numbers of tokens up to its own, and above those of the row before. The last row reaches 512.
2. Other devices and other layer shapes take the same rows; where those do not fit, ``fitted`` takes less of what costs shared memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from benchkit.kernels.warp_decode.configuration import (
    WIDE_GROUPS,
    WIDE_WARPS,
    DownTiles,
    LayerShape,
    ProductTiles,
    Tiles,
)
from benchkit.kernels.warp_decode.fit import (
    product_warps,
    tiles_problem,
    up_warps,
)

# of a CTA of gate/up and of a product down in the layer that was tuned (hidden 2048, intermediate 768)
TUNED_WARPS, TUNED_DOWN_WARPS = 8, 3
Row = tuple[int, Tiles]
Product = TypeVar("Product", ProductTiles, DownTiles)


def up(
    groups: int,
    stages: int,
    tiles: int,
    flush: int,
    registers: int,
    ctas_per_sm: int = 2,
    ahead: int = 0,
    walk: int = 0,
) -> ProductTiles:
    """``ProductTiles`` by position."""
    return ProductTiles(
        groups=groups,
        stages=stages,
        tiles=tiles,
        flush=flush,
        registers=registers,
        ctas_per_sm=ctas_per_sm,
        ahead=ahead,
        walk=walk,
    )


def down(
    groups: int,
    stages: int,
    tiles: int,
    row_tiles: int,
    cluster: int,
    warps: int,
    prefetch: int,
    registers: int,
    pairwise: int = 0,
    walk: int = 0,
    ctas_per_sm: int = 1,
) -> DownTiles:
    """``DownTiles`` by position."""
    return DownTiles(
        groups=groups,
        stages=stages,
        tiles=tiles,
        row_tiles=row_tiles,
        cluster=cluster,
        warps=warps,
        prefetch=prefetch,
        registers=registers,
        pairwise=pairwise,
        ctas_per_sm=ctas_per_sm,
        walk=walk,
    )


def rows(
    groups: int, stages: int, tiles: int, flush: int, registers: int, ctas_per_sm: int, warps: int = TUNED_DOWN_WARPS
) -> DownTiles:
    """``DownTiles`` with ``pairwise`` 2 by position."""
    return down(groups, stages, tiles, flush, 1, warps, 0, registers, 2, ctas_per_sm=ctas_per_sm)


def wide_rows(stages: int) -> DownTiles:
    """``DownTiles`` with ``pairwise`` 2 whose rows product_wide.cu makes."""
    return rows(WIDE_GROUPS, stages, 1, 4, 255, 1, warps=WIDE_WARPS)


def _rows(*rows: tuple[int, ProductTiles, DownTiles, int]) -> tuple[Row, ...]:
    return tuple((tokens, Tiles(up=first, down=second, chains=chains)) for tokens, first, second, chains in rows)


TABLE: Mapping[str, tuple[Row, ...]] = {
    "bf16": _rows(
        (16, up(1, 2, 1, 4, 112), down(1, 2, 1, 1, 1, 12, 0, 96), 1),
        (64, up(1, 2, 1, 4, 112, walk=1), down(4, 4, 1, 1, 1, 8, 0, 248), 1),
        (128, up(4, 3, 1, 2, 248, 1), rows(2, 2, 1, 2, 136, 4), 1),
        (256, up(4, 3, 1, 2, 248, 1), wide_rows(3), 1),
        (512, up(8, 3, 1, 4, 255, 1), wide_rows(3), 1),
    ),
    "bf16-packed": _rows(
        (16, up(1, 2, 1, 4, 104), down(1, 2, 1, 1, 1, 12, 0, 80), 1),
        (64, up(1, 2, 1, 4, 104, walk=1), down(1, 3, 1, 1, 1, 12, 0, 88), 1),
        (256, up(4, 3, 1, 2, 248, 1), wide_rows(3), 1),
        (512, up(8, 3, 1, 4, 255, 1), wide_rows(3), 1),
    ),
    "mxfp8-packed": _rows(
        (16, up(1, 2, 1, 4, 96, ahead=16), down(1, 2, 1, 1, 1, 12, 0, 88), 1),
        (64, up(1, 2, 1, 4, 96, walk=1), down(1, 2, 1, 2, 2, 12, 0, 128), 1),
        (128, up(2, 2, 1, 2, 128), down(2, 2, 1, 1, 1, 12, 0, 168), 1),
        (512, up(4, 4, 1, 2, 248, 1), down(2, 2, 1, 2, 2, 12, 0, 168, 1), 1),
    ),
    "awq-packed": _rows(
        (1, up(1, 2, 1, 4, 104, ahead=16), down(1, 2, 1, 1, 1, 12, 0, 96), 1),
        (2, up(1, 2, 1, 4, 104), down(1, 2, 1, 1, 1, 12, 0, 96), 1),
        (32, up(1, 2, 1, 4, 104), down(1, 2, 1, 2, 2, 16, 0, 112), 1),
        (64, up(1, 2, 1, 4, 104), down(1, 2, 2, 2, 2, 12, 1, 168), 1),
        (128, up(2, 2, 1, 4, 128), down(2, 2, 2, 2, 2, 12, 0, 168, 1), 1),
        (512, up(4, 3, 2, 2, 248, 1), down(4, 3, 2, 2, 2, 8, 0, 248, 1), 1),
    ),
}


def tiles_for(shape: LayerShape, tokens: int, *, sm_bytes: int, cta_bytes: int) -> Tiles | None:
    """The table's tiles for this layer and number of tokens, made to fit the device; None where nothing fits."""
    rows = TABLE[shape.layout]
    chosen = next((tiles for most, tiles in rows if tokens <= most), rows[-1][1])
    return fitted(shape, chosen, tokens, sm_bytes=sm_bytes, cta_bytes=cta_bytes)


def fitted(shape: LayerShape, tiles: Tiles, tokens: int, *, sm_bytes: int, cta_bytes: int) -> Tiles | None:
    """``tiles`` with as much less of warps, stages and CTAs as the layer and the device ask for; None where nothing fits."""
    return next(
        (
            each
            for each in _smaller(shape, tiles)
            if tiles_problem(shape, each, tokens, sm_bytes=sm_bytes, cta_bytes=cta_bytes) is None
        ),
        None,
    )


def _smaller(shape: LayerShape, tiles: Tiles) -> Iterator[Tiles]:
    ups = _smaller_products(tiles.up, up_warps(shape, tiles.up), TUNED_WARPS)
    if tiles.down.product:
        warps = product_warps(shape.intermediate, tiles.down.groups)
        smaller = _smaller_products(tiles.down, warps, warps if tiles.down.product.wide else TUNED_DOWN_WARPS)
        downs = [replace(each, warps=product_warps(shape.intermediate, each.groups)) for each in smaller]
    else:
        downs = [tiles.down]
        while downs[-1].warps > 1:
            downs.append(replace(downs[-1], warps=downs[-1].warps - 1))
        while downs[-1].stages > 1:
            downs.append(replace(downs[-1], stages=downs[-1].stages - 1))
    for down_tiles in downs:
        for up_tiles in ups:
            yield replace(tiles, up=up_tiles, down=down_tiles)


def _smaller_products(tiles: Product, warps: int, tuned_warps: int) -> list[Product]:
    """As many warps an SM as in the layer that was tuned, then fewer CTAs, stages and token groups."""
    found = [replace(tiles, ctas_per_sm=min(16, max(1, tiles.ctas_per_sm * tuned_warps // warps)))]
    while found[-1].ctas_per_sm > 1:
        found.append(replace(found[-1], ctas_per_sm=found[-1].ctas_per_sm - 1))
    while found[-1].stages > (2 if found[-1].groups == WIDE_GROUPS else 1):
        found.append(replace(found[-1], stages=found[-1].stages - 1))
    while found[-1].groups > 1:
        found.append(replace(found[-1], groups=found[-1].groups // 2))
    return found
