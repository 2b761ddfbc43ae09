"""The tiles that are worth a try, for ``benchkit tune``: by layout, number of tokens, and how many tokens the busiest expert has.

Rules:
1. What follows was chosen by counting (registers and spills of sm_90, shared memory, bytes in flight), and from what earlier searches and counters
   found (results/hardware: AWQ and MXFP8 lack warps, so there are forms with more of them and fewer registers or stages; two ``chains`` gained
   nothing). The rows of the table (dispatch.py) are always among it, so that a search never ends with less than there was.
2. Larger token groups and forms that walk an expert's tokens are tried only where an expert has more than 8 tokens, 8 groups from 33 on.
3. On a GPU everything is compiled side by side before the first trial.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from benchkit.fixture.layer import MoeInputs
from benchkit.kernels.contract import Params
from benchkit.kernels.warp_decode.configuration import (
    GROUP,
    LAYOUTS,
    WIDE_GROUPS,
    DownTiles,
    LayerShape,
    ProductTiles,
    Tiles,
    as_params,
)
from benchkit.kernels.warp_decode.decode import device_limits, fit_problem
from benchkit.kernels.warp_decode.decode_source import compile_decode, kernels
from benchkit.kernels.warp_decode.dispatch import TABLE, down, rows, up, wide_rows

_FEW, _MANY = 4, 64  # up to so many tokens a layer is latency; beyond so many its parts do not fit shared memory
_COMPILERS = 16
_AHEAD = (16, 32)  # KiB of down's weights a CTA: 4 and 9 MB together, two or three microseconds of device memory

# gate/up
_UPS: Mapping[str, tuple[ProductTiles, ...]] = {
    "bf16": (
        up(1, 2, 1, 4, 112),
        up(2, 2, 1, 2, 128),
        up(4, 3, 1, 2, 248, 1),
        up(8, 3, 1, 4, 255, 1),
    ),
    "bf16-packed": (
        up(1, 2, 1, 4, 104),
        up(2, 2, 1, 1, 128),
        up(2, 2, 1, 2, 128),
        up(4, 3, 1, 2, 248, 1),
        up(4, 4, 1, 2, 248, 1),
        up(8, 3, 1, 4, 255, 1),
    ),
    "mxfp8-packed": (up(1, 2, 1, 4, 96), up(1, 1, 1, 2, 80, 3), up(2, 2, 1, 2, 128), up(4, 4, 1, 2, 248, 1)),
    "awq-packed": (
        up(1, 2, 1, 4, 104),
        up(1, 2, 1, 4, 112),
        up(1, 2, 1, 4, 80, 3),
        up(1, 2, 2, 4, 120),
        up(2, 2, 2, 2, 128),
        up(2, 2, 1, 4, 128),
        up(4, 3, 2, 2, 248, 1),
    ),
}
# down with sums in shared memory, few tokens of an expert
_DOWNS: Mapping[str, tuple[DownTiles, ...]] = {
    "bf16": (down(1, 2, 1, 1, 1, 12, 0, 96), down(1, 3, 1, 1, 1, 12, 0, 96)),
    "bf16-packed": (down(1, 2, 1, 1, 1, 12, 0, 80), down(1, 3, 1, 1, 1, 12, 0, 88)),
    "mxfp8-packed": (
        down(1, 2, 1, 1, 1, 12, 0, 88),
        down(1, 2, 1, 2, 2, 12, 1, 160),
        down(1, 2, 1, 2, 2, 12, 0, 128),
        down(1, 2, 1, 1, 1, 16, 0, 128),
        down(1, 2, 1, 2, 2, 16, 0, 112),
        down(1, 2, 1, 1, 1, 12, 0, 144, walk=1),
    ),
    "awq-packed": (
        down(1, 2, 1, 1, 1, 12, 0, 96),
        down(1, 2, 2, 2, 2, 12, 1, 168),
        down(1, 2, 2, 2, 2, 12, 1, 168, walk=1),
        down(1, 2, 1, 2, 2, 16, 0, 112),
        down(1, 2, 1, 1, 1, 16, 0, 112),
    ),
}
# for few tokens, in place of that: what shortens the way of the first tiles
_FEW_UPS: Mapping[str, tuple[ProductTiles, ...]] = {
    "bf16": (up(1, 3, 1, 2, 96, 1),),
    "bf16-packed": (up(1, 3, 1, 2, 104),),
    "mxfp8-packed": (up(1, 3, 1, 1, 96), up(1, 2, 1, 2, 96)),
    "awq-packed": (up(1, 3, 1, 4, 104), up(1, 1, 2, 4, 104)),
}
_FEW_DOWNS: Mapping[str, tuple[DownTiles, ...]] = {
    "bf16": (),
    "bf16-packed": (),
    "mxfp8-packed": (down(1, 1, 1, 1, 1, 24, 0, 80), down(1, 2, 1, 2, 2, 16, 0, 112)),
    "awq-packed": (down(1, 1, 1, 1, 1, 24, 0, 80), down(1, 2, 1, 2, 2, 16, 0, 112), down(1, 2, 1, 1, 1, 16, 0, 112)),
}
# rows of all SMs, added by a third kernel, for 1, 2, 4 and 8 token groups
_ROWS: Mapping[str, tuple[DownTiles, ...]] = {
    "bf16": (rows(1, 2, 1, 2, 104, 5), rows(2, 2, 1, 2, 136, 4), rows(4, 3, 1, 2, 248, 2), wide_rows(3)),
    "bf16-packed": (rows(1, 2, 1, 4, 104, 5), rows(2, 2, 1, 2, 136, 4), rows(4, 3, 1, 2, 248, 2), wide_rows(3)),
    "mxfp8-packed": (rows(1, 2, 1, 4, 104, 5), rows(2, 2, 1, 2, 152, 4), rows(4, 3, 1, 2, 248, 2)),
    "awq-packed": (rows(1, 2, 2, 4, 112, 5), rows(2, 2, 2, 4, 152, 4), rows(4, 3, 2, 2, 248, 2)),
}
# down with sums in shared memory, some experts with many tokens
_BUSY_DOWNS: Mapping[str, tuple[DownTiles, ...]] = {
    "bf16": (
        down(1, 2, 1, 1, 1, 12, 0, 136, walk=1),
        down(1, 2, 1, 1, 1, 12, 1, 168, walk=1),
        down(2, 2, 1, 1, 1, 12, 0, 128),
        down(4, 4, 1, 1, 1, 8, 0, 248),
    ),
    "bf16-packed": (
        down(1, 2, 1, 1, 1, 12, 0, 136, walk=1),
        down(1, 3, 1, 1, 1, 12, 1, 168, walk=1),
        down(2, 2, 1, 1, 1, 12, 0, 128),
        down(2, 3, 1, 2, 2, 12, 0, 168, 1),
        down(4, 4, 1, 1, 1, 8, 0, 248),
    ),
    "mxfp8-packed": (
        down(1, 2, 1, 1, 1, 12, 1, 168, walk=1),
        down(1, 2, 1, 2, 2, 8, 1, 248, walk=1),
        down(1, 2, 1, 1, 1, 16, 0, 120, walk=1),
        down(2, 2, 1, 1, 1, 12, 0, 168),
    ),
    "awq-packed": (down(1, 2, 1, 1, 1, 12, 1, 144, walk=1), down(2, 2, 2, 2, 2, 12, 0, 168)),
}


def candidates(layout: str, tokens: int, busiest: int) -> tuple[Tiles, ...]:
    """The tiles to try for so many tokens, of which one expert has ``busiest``; without repetition."""
    groups = [count for count in (1, 2, 4, WIDE_GROUPS) if busiest > count // 2 * GROUP]
    ups = [
        replace(each, walk=walk)
        for each in _UPS[layout]
        if each.groups in groups
        for walk in (0, 1)
        if (
            busiest > each.entry_tokens and not each.wide if walk else 4 * each.entry_tokens > busiest
        )  # else weights are streamed again and again
    ]
    if tokens <= _MANY:
        ups += [replace(ups[0], ahead=ahead) for ahead in _AHEAD]
    if tokens <= _FEW:
        ups += _FEW_UPS[layout]
    found = [Tiles(up=first, down=second) for first in ups for second in _downs(layout, tokens, groups)]
    return tuple(dict.fromkeys((*found, *(tiles for _, tiles in TABLE[layout]))))


def _downs(layout: str, tokens: int, groups: list[int]) -> list[DownTiles]:
    paired = LAYOUTS[layout].paired
    products = [each for each in _ROWS[layout] if each.groups in groups]
    if tokens <= _FEW:
        return [*_DOWNS[layout][:1], *_FEW_DOWNS[layout]]
    if tokens <= _MANY:
        busy = _BUSY_DOWNS[layout] if groups[-1] > 1 else ()
        return [*_DOWNS[layout], *busy, *(products if tokens > GROUP else ())]
    pairwise = (down(2, 2, paired, 2, 2, 12, 0, 168, 1), down(4, 3, paired, 2, 2, 8, 0, 248, 1))
    return [*_DOWNS[layout], *_BUSY_DOWNS[layout], *pairwise, *products]


def space(shape: LayerShape, inputs: MoeInputs) -> Iterator[Params]:
    """``candidates`` for these inputs and the layer that they make, as parameters."""
    experts = inputs.weights.experts
    busiest = int(torch.bincount(inputs.topk_ids.flatten().clamp(min=0), minlength=experts).max())
    found = candidates(shape.layout, inputs.tokens, busiest)
    if inputs.x.device.type == "cuda":
        _compile_ahead(shape, inputs, found)
    yield from map(as_params, found)


def _compile_ahead(shape: LayerShape, inputs: MoeInputs, found: tuple[Tiles, ...]) -> None:
    limits = device_limits(inputs.x.device.index)
    jobs = {
        (kernel, tiles.up if kernel == kernels(tiles)[0] else tiles.down, tiles.chains): tiles
        for tiles in found
        if fit_problem(shape, tiles, inputs.tokens, limits) is None
        for kernel in kernels(tiles)
    }
    with ThreadPoolExecutor(_COMPILERS) as pool:
        list(pool.map(lambda job: compile_decode(shape, job[0][0], job[1], limits.arch), jobs.items()))
