"""Warp decode in Triton: the same two kernels with tiles of outputs, for GPUs that the literal form was not written for.

Rules:
1. Tiles come from the protocol, by value; nothing is tuned here. ``Tiles`` says what they have to be.
2. ``launch_pdl`` lets a kernel start while the one before ends (programmatic dependent launch). Calls do not overlap: gate/up waits before
   it reads anything, down reads its weights before it waits for h.
3. ``stream`` (default true) marks weights as the first to leave L2: right while few tokens share an expert.
4. Where Triton interprets (TRITON_INTERPRET=1) the kernels run on the host, on the same tiles.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from triton import knobs

from benchkit.errors import DataError
from benchkit.fixture.layer import MoeInputs
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.warp_decode.layer import Buffers, allocate, prepared_arm, refusal
from benchkit.kernels.warp_decode.tiles import moe_down_tiles, moe_gate_up_tiles

_MAX_ELEMENTS = 1 << 16  # of a tile; more would not fit into the registers of any CTA
_PDL_CAPABILITY = (9, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The tile of one kernel: ``n`` outputs x ``k`` weights of each row (both powers of two), ``warps`` and ``stages`` of a program;
    in the down kernel ``experts`` slots side by side (a power of two)."""

    n: int
    k: int
    experts: int
    warps: int
    stages: int


def parse_tiles(params: Params) -> tuple[Tiles, Tiles]:
    """``up_tile_n``, ``up_tile_k``, ``up_warps``, ``up_stages``, the same of ``down``, and ``down_experts``.

    Raises DataError on values that no layer could use; ``tiles_problem`` says what a layer needs.
    """
    up, down = (
        Tiles(
            n=_power(params, f"{kernel}_tile_n", 256),
            k=_power(params, f"{kernel}_tile_k", 4096),
            experts=1 if kernel == "up" else _power(params, "down_experts", 32),
            warps=_power(params, f"{kernel}_warps", 16),
            stages=_integer(params, f"{kernel}_stages", 8),
        )
        for kernel in ("up", "down")
    )
    return up, down


def tiles_problem(up: Tiles, down: Tiles, inputs: MoeInputs) -> str | None:
    """Why these tiles do not fit this layer, or None."""
    weights = inputs.weights
    group = 32 if weights.weight_format == "mxfp8" else 1
    if weights.hidden % up.k:
        return f"up_tile_k = {up.k} needs hidden to be a multiple of it, found {weights.hidden}"
    for name, size, tile in (("up", weights.intermediate, up), ("down", weights.hidden, down)):
        if size % tile.n:
            return f"{name}_tile_n = {tile.n} needs the outputs to be a multiple of it, found {size}"
        if tile.k % group:
            return f"{name}_tile_k needs a multiple of {group} with {weights.weight_format}, found {tile.k}"
        if tile.n * tile.k * tile.experts > _MAX_ELEMENTS:
            return f"{name}: needs at most {_MAX_ELEMENTS} weights in a tile, found {tile.n * tile.k * tile.experts}"
    if inputs.top_k % down.experts:
        return f"down_experts = {down.experts} needs top_k to be a multiple of it, found {inputs.top_k}"
    return None


def space(inputs: MoeInputs) -> Iterator[Params]:
    """The parameters that are worth a try on a layer of this format."""
    if inputs.weights.weight_format == "mxfp8":
        ups = [(2, 512, 1, 1), (1, 1024, 1, 1), (4, 256, 2, 1), (4, 512, 4, 1), (1, 2048, 1, 1)]
        downs = [(8, 128, 8, 4, 1), (16, 128, 8, 8, 1), (4, 128, 8, 2, 1), (4, 1024, 2, 4, 1), (2, 256, 8, 4, 1)]
    else:
        ups = [(1, 512, 1, 1), (1, 2048, 1, 1), (1, 2048, 1, 2), (2, 2048, 4, 1), (16, 256, 8, 1)]
        downs = [(2, 256, 4, 4, 1), (2, 256, 2, 2, 1), (4, 256, 2, 4, 1), (1, 256, 8, 4, 1)]
        downs += [(1, 256, 1, 1, 1), (1, 256, 2, 1, 1), (2, 256, 1, 2, 1), (8, 256, 1, 8, 1)]
    shared = (
        inputs.tokens * inputs.top_k > inputs.weights.experts
    )  # some experts have several tokens, which may meet in L2
    for up in ups:
        for down in downs:
            for pdl in (False, True):
                for stream in (True, False) if shared else (True,):
                    yield {**params_of(up, down, launch_pdl=pdl), "stream": stream}


def params_of(up: tuple[int, int, int, int], down: tuple[int, int, int, int, int], *, launch_pdl: bool) -> Params:
    """Parameters from (tile_n, tile_k, warps, stages) and (tile_n, tile_k, experts, warps, stages)."""
    values = {f"up_{name}": value for name, value in zip(("tile_n", "tile_k", "warps", "stages"), up, strict=True)}
    names = ("tile_n", "tile_k", "experts", "warps", "stages")
    values |= {f"down_{name}": value for name, value in zip(names, down, strict=True)}
    return {**values, "launch_pdl": launch_pdl}


def prepare(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """The two kernels on the point's layer; ``parse_tiles`` says what it takes beside ``launch_pdl`` (default false) and ``stream``."""
    up, down = parse_tiles(params)
    pdl, stream = bool(params.get("launch_pdl", False)), bool(params.get("stream", True))
    device, interpreted = inputs.x.device, bool(knobs.runtime.interpret)
    if (device.type == "cpu") is not interpreted:
        expected = "the host (TRITON_INTERPRET is set)" if interpreted else "a GPU"
        return Support.no(f"needs a layer on {expected}, found it on {device}")
    capability = None
    if not interpreted:
        properties = torch.cuda.get_device_properties(device)
        capability = (int(properties.major), int(properties.minor))
    if pdl and (capability is None or capability < _PDL_CAPABILITY):
        found = "an interpreter" if capability is None else f"{capability[0]}.{capability[1]}"
        return Support.no(f"launch_pdl needs compute capability 9.0, found {found}")
    problem = refusal(inputs, rows_per_cta=1, capability=capability) or tiles_problem(up, down, inputs)
    if problem is not None:
        return Support.no(problem)
    buffers = allocate(inputs)
    return prepared_arm(inputs, buffers, _call(inputs, buffers, up, down, pdl=pdl, stream=stream))


def _call(
    inputs: MoeInputs, buffers: Buffers, up: Tiles, down: Tiles, *, pdl: bool, stream: bool
) -> Callable[[int], None]:
    weights, top_k = inputs.weights, inputs.top_k
    mxfp8 = weights.weight_format == "mxfp8"
    none = inputs.topk_ids  # a place holder that no bf16 kernel reads
    up_grid = (inputs.tokens * top_k, weights.intermediate // up.n)
    down_grid = (inputs.tokens, weights.hidden // down.n)
    shape: dict[str, int | bool | str] = {
        "hidden": weights.hidden,
        "intermediate": weights.intermediate,
        "mxfp8": mxfp8,
    }
    shape |= {"eviction": "evict_first" if stream else "", "chained": pdl}
    up_tile = {"tile_n": up.n, "tile_k": up.k, "stages": up.stages, "num_warps": up.warps}
    down_tile = {"tile_n": down.n, "tile_k": down.k, "stages": down.stages, "num_warps": down.warps}
    if pdl:
        up_tile["launch_pdl"] = down_tile["launch_pdl"] = True

    def call(copy: int) -> None:
        w13_scale, w2_scale = (weights.w13_scale[copy], weights.w2_scale[copy]) if mxfp8 else (none, none)
        ids, h = inputs.topk_ids, buffers.h
        moe_gate_up_tiles[up_grid](inputs.x, weights.w13[copy], w13_scale, ids, h, top_k, **shape, **up_tile)
        moe_down_tiles[down_grid](
            h,
            weights.w2[copy],
            w2_scale,
            ids,
            inputs.topk_weights,
            buffers.output,
            top_k,
            experts=down.experts,
            **shape,
            **down_tile,
        )

    return call


def _power(params: Params, name: str, most: int) -> int:
    value = _integer(params, name, most)
    if value & (value - 1):
        raise DataError(f"params.{name}: expected a power of two, found {value}")
    return value


def _integer(params: Params, name: str, most: int) -> int:
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise DataError(f"params.{name}: expected an integer from 1 to {most}, found {value!r}")
    return value
