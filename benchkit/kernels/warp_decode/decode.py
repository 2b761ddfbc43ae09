"""``moe_decode``: one MoE layer for a few tokens, two or three kernels from routing to output, as an inference engine calls it.

Rules:
1. Ids and routing weights stay on the device: nothing waits for it, and a call can be captured in a CUDA graph.
2. What can be seen without the device (types, shapes, aliases, limits) is checked on every call; ids cannot be, see ``moe_decode``.
3. The sums have a fixed order and there are no float atomics: the same inputs give the same bits, whatever runs beside them. Different
   tiles (another number of tokens, another device) may differ in the last bit.
4. The only scratch is h [tokens * top_k, intermediate] of two bytes an element, and from some number of tokens on (dispatch.py) float32
   [tokens * top_k, hidden]; it comes from torch's allocator.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from benchkit.cuda_launch import AttributedLaunch, AttributedModule
from benchkit.errors import DataError, MachineError
from benchkit.kernels.warp_decode.configuration import (
    LAYOUTS,
    LayerShape,
    Tiles,
    shape_problem,
)
from benchkit.kernels.warp_decode.decode_source import COMBINE, DOWN, DOWN_ROWS, GATE_UP, compile_decode, kernels
from benchkit.kernels.warp_decode.dispatch import tiles_for
from benchkit.kernels.warp_decode.fit import (
    COMBINE_THREADS,
    combine_grid,
    down_shared_bytes,
    launched_bytes,
    scratch_elements,
    tiles_problem,
    up_shared_bytes,
    up_warps,
)
from benchkit.kernels.warp_decode.pack import DecodeWeights

CAPABILITY = (9, 0)


def moe_decode(
    x: torch.Tensor,
    weights: DecodeWeights,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """y[b] = sum over k of topk_weights[b, k] * (silu(x[b] Wg^T) * (x[b] Wu^T)) Wd^T, with the weights of expert topk_ids[b, k].

    Parameters
    ----------
    x:
        bfloat16 [tokens, hidden], 1 to 512 tokens; beside packed MXFP8 and AWQ weights float16 is taken too.
    weights:
        From ``checkpoint_bf16``, ``pack_bf16``, ``pack_mxfp8`` or ``pack_awq`` (benchkit.kernels.warp_decode.pack).
    topk_ids:
        int32 [tokens, top_k], top_k from 1 to 16. Ids outside 0 to experts - 1, such as -1, are skipped (expert parallelism). The ids of a
        token are distinct: of one that stands twice, one routing weight is lost, which cannot be seen without waiting for the device.
    topk_weights:
        float32 [tokens, top_k].
    out:
        Where the result goes, like x; a new tensor where it is None.

    Returns
    -------
    torch.Tensor
        [tokens, hidden] of x's type, on the current stream. Products are of bf16 with bf16 weights and of fp16 otherwise, where x and h
        beyond 65504 saturate; every sum is fp32, h is rounded once and y is rounded once.

    Raises
    ------
    DataError
        Types, shapes, strides or devices that do not fit, more than 512 tokens or experts, an ``out`` that shares memory with an input.
    MachineError
        A GPU without compute capability 9.0, or no compiler.

    Examples
    --------
    >>> layer = checkpoint_bf16(w13, w2)                        # w13 [E, 2 I, H], gate rows first; w2 [E, H, I]
    >>> probabilities = router_logits.softmax(-1)               # [tokens, E]
    >>> shares, ids = probabilities.topk(8, dim=-1)
    >>> y = moe_decode(x, layer, ids.int(), shares.float())
    """
    problem = call_problem(x, weights, topk_ids, topk_weights, out)
    if problem is not None:
        raise DataError(f"moe_decode {problem}")
    device = device_limits(x.device.index)
    shape = shape_of(weights, int(topk_ids.shape[1]), x.dtype)
    tokens = int(x.shape[0])
    tiles = tiles_for(shape, tokens, sm_bytes=device.sm_bytes, cta_bytes=device.cta_bytes)
    if tiles is None:
        raise DataError(f"moe_decode needs less shared memory than {tokens} tokens and {shape} take on {device.name}")
    output = torch.empty_like(x) if out is None else out
    between = scratch(shape, tiles, tokens, x.device)
    stream = torch.cuda.current_stream(x.device).cuda_stream
    for launch in launches(
        decode_kernels(shape, tiles, x.device.index), x, weights, topk_ids, topk_weights, between, output
    ):
        launch(stream)
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """A GPU as the kernels see it: shared memory in bytes."""

    name: str
    arch: str
    sm_count: int
    sm_bytes: int
    cta_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeKernels:
    """The kernels of one call, by name and in order, loaded on one device."""

    shape: LayerShape
    tiles: Tiles
    device: DeviceLimits
    modules: Mapping[str, AttributedModule]
    sha256: Mapping[str, str]


@lru_cache(maxsize=16)
def device_limits(index: int) -> DeviceLimits:
    """The limits of CUDA device ``index``; MachineError below compute capability 9.0."""
    properties = torch.cuda.get_device_properties(index)
    found = (properties.major, properties.minor)
    if found < CAPABILITY:
        raise MachineError(
            f"needs compute capability {CAPABILITY[0]}.{CAPABILITY[1]} (bulk copies), found {found[0]}.{found[1]}; use wd_portable there"
        )
    return DeviceLimits(
        name=str(properties.name),
        arch=f"sm_{properties.major}{properties.minor}",
        sm_count=int(properties.multi_processor_count),
        sm_bytes=int(properties.shared_memory_per_multiprocessor),
        cta_bytes=int(properties.shared_memory_per_block_optin),
    )


@lru_cache(maxsize=256)
def decode_kernels(shape: LayerShape, tiles: Tiles, index: int) -> DecodeKernels:
    """The kernels compiled and loaded on CUDA device ``index``; once for each shape and tiles."""
    device = device_limits(index)
    cubins = {kernel: compile_decode(shape, kernel, tiles, device.arch) for kernel in kernels(tiles)}
    return DecodeKernels(
        shape=shape,
        tiles=tiles,
        device=device,
        modules={kernel: AttributedModule(cubin, device.cta_bytes) for kernel, cubin in cubins.items()},
        sha256={kernel: cubin.sha256 for kernel, cubin in cubins.items()},
    )


def launches(
    loaded: DecodeKernels,
    x: torch.Tensor,
    weights: DecodeWeights,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    between: torch.Tensor,
    output: torch.Tensor,
) -> tuple[AttributedLaunch, ...]:
    """The kernels of one call for these tensors, ready to be issued as often as they live."""
    shape, tiles, device, tokens = loaded.shape, loaded.tiles, loaded.device, int(x.shape[0])
    limits = {"sm_bytes": device.sm_bytes, "cta_bytes": device.cta_bytes}
    ids, shares, h = _pointer(topk_ids), _pointer(topk_weights), _pointer(between)
    rows = ctypes.c_void_p(between.data_ptr() + tokens * shape.top_k * shape.intermediate * between.element_size())
    count = ctypes.c_int32(tokens)
    gate_up = loaded.modules[GATE_UP].attributed(
        GATE_UP,
        *(_pointer(weights.w13), _pointer(x), ids, h, _pointer(weights.w2), count),
        grid=device.sm_count * tiles.up.ctas_per_sm,
        block=up_warps(shape, tiles.up) * 32,
        shared_bytes=launched_bytes(up_shared_bytes(shape, tiles.up, tokens), tiles.up.ctas_per_sm, **limits),
        dependent=tiles.launch_pdl,
    )
    block = tiles.down.warps * 32
    shared_bytes = launched_bytes(down_shared_bytes(shape, tiles.down, tokens), tiles.down.ctas_per_sm, **limits)
    if not tiles.down.product:
        down = loaded.modules[DOWN].attributed(
            DOWN,
            *(_pointer(weights.w2), h, ids, shares, _pointer(output), rows, count),
            grid=shape.hidden // (16 * tiles.down.row_tiles) * tiles.down.cluster,
            block=block,
            shared_bytes=shared_bytes,
            cluster=tiles.down.cluster,
            dependent=tiles.launch_pdl,
        )
        return gate_up, down
    down_rows = loaded.modules[DOWN_ROWS].attributed(
        DOWN_ROWS,
        *(_pointer(weights.w2), h, ids, rows, count),
        grid=device.sm_count * tiles.down.ctas_per_sm,
        block=block,
        shared_bytes=shared_bytes,
        dependent=tiles.launch_pdl,
    )
    combine = loaded.modules[COMBINE].attributed(
        COMBINE,
        *(rows, ids, shares, _pointer(output), count),
        grid=combine_grid(shape, tokens),
        block=COMBINE_THREADS,
        shared_bytes=0,
        dependent=tiles.launch_pdl,
    )
    return gate_up, down_rows, combine


def scratch(shape: LayerShape, tiles: Tiles, tokens: int, device: torch.device) -> torch.Tensor:
    """What lies between the kernels, one-dimensional: h in bf16 beside bf16 weights, else in fp16; behind it rows that go through memory."""
    dtype = torch.bfloat16 if LAYOUTS[shape.layout].weight_format == "bf16" else torch.float16
    return torch.empty(scratch_elements(shape, tiles.down, tokens), dtype=dtype, device=device)


def shape_of(weights: DecodeWeights, top_k: int, x_dtype: torch.dtype) -> LayerShape:
    """What is compiled in for these weights."""
    return LayerShape(
        experts=weights.experts,
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        top_k=top_k,
        layout=weights.layout,
        x_bf16=x_dtype is torch.bfloat16,
    )


def fit_problem(shape: LayerShape, tiles: Tiles, tokens: int, device: DeviceLimits) -> str | None:
    """Why these tiles cannot run this layer on this device, or None."""
    return shape_problem(shape, tokens) or tiles_problem(
        shape, tiles, tokens, sm_bytes=device.sm_bytes, cta_bytes=device.cta_bytes
    )


def call_problem(
    x: torch.Tensor,
    weights: DecodeWeights,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    out: torch.Tensor | None,
) -> str | None:
    """What is wrong with a call, as far as the host can see it; None where nothing is."""
    if weights.layout not in LAYOUTS:
        return f"needs a layout of {', '.join(LAYOUTS)}, found {weights.layout!r}"
    if x.ndim != 2 or x.shape[1] != weights.hidden or x.dtype not in (torch.bfloat16, torch.float16):
        return f"needs x in bfloat16 or float16 of shape [tokens, {weights.hidden}], found {x.dtype} of {list(x.shape)}"
    tokens = int(x.shape[0])
    for name, tensor, dtype in (("topk_ids", topk_ids, torch.int32), ("topk_weights", topk_weights, torch.float32)):
        if tensor.ndim != 2 or tensor.shape[0] != tokens or tensor.dtype is not dtype:
            return f"needs {name} in {dtype} of shape [{tokens}, top_k], found {tensor.dtype} of {list(tensor.shape)}"
    if topk_ids.shape != topk_weights.shape:
        return f"needs one routing weight a route, found {list(topk_weights.shape)} for {list(topk_ids.shape)}"
    problem = shape_problem(shape_of(weights, int(topk_ids.shape[1]), x.dtype), tokens)
    if problem is not None:
        return problem
    if out is not None and (out.shape != x.shape or out.dtype is not x.dtype):
        return f"needs out like x, {x.dtype} of {list(x.shape)}, found {out.dtype} of {list(out.shape)}"
    inputs = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights, "w13": weights.w13, "w2": weights.w2}
    for name, tensor in {**inputs, **({} if out is None else {"out": out})}.items():
        if tensor.device.type != "cuda" or tensor.device != x.device:
            return f"needs all tensors on one GPU, found x on {x.device} and {name} on {tensor.device}"
        if not tensor.is_contiguous() or tensor.data_ptr() % 16:
            return f"needs {name} contiguous at a 16-byte address, found it otherwise; use .contiguous()"
    if out is not None:
        for name, tensor in inputs.items():
            if out.data_ptr() < tensor.data_ptr() + tensor.nbytes and tensor.data_ptr() < out.data_ptr() + out.nbytes:
                return f"needs an out that shares no memory with its inputs, found it over {name}"
    return None


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
