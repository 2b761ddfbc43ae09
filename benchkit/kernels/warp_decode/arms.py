"""The kernels of ``moe_decode`` as arms: repacked once per layer at preparation, tiles from the protocol.

Rules:
1. ``wd_bf16`` reads the fixture's weights as they lie; the others hold a repacked copy of every weight copy, made once and shared by all points.
2. Everything is refused at preparation, repeated and invalid ids among it (``benchkit.kernels.warp_decode.layer``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch.utils.weak import WeakIdKeyDictionary

from benchkit.errors import DataError
from benchkit.fixture.layer import AWQ, MoeInputs, MoeWeights
from benchkit.kernels.contract import Params, PreparedArm, Repacking, Support
from benchkit.kernels.repacking import timed
from benchkit.kernels.warp_decode import layer, search
from benchkit.kernels.warp_decode.configuration import (
    LAYOUTS,
    LayerShape,
    Tiles,
    parse_tiles,
)
from benchkit.kernels.warp_decode.decode import (
    CAPABILITY,
    decode_kernels,
    device_limits,
    fit_problem,
    launches,
    scratch,
    shape_of,
)
from benchkit.kernels.warp_decode.layer import Buffers, prepared_arm
from benchkit.kernels.warp_decode.pack import (
    AwqTensors,
    DecodeWeights,
    checkpoint_bf16,
    pack_awq,
    pack_bf16,
    pack_mxfp8,
)

Pack = Callable[[MoeWeights], DecodeWeights]

_PACKS: Mapping[str, Pack] = {
    "bf16-packed": lambda weights: pack_bf16(weights.w13[0], weights.w2[0]),
    "mxfp8-packed": lambda weights: pack_mxfp8(
        weights.w13[0], weights.w13_scale[0], weights.w2[0], weights.w2_scale[0]
    ),
    "awq-packed": lambda weights: pack_awq(
        AwqTensors(qweight=weights.w13[0], qzeros=weights.w13_zero[0], scales=weights.w13_scale[0]),
        AwqTensors(qweight=weights.w2[0], qzeros=weights.w2_zero[0], scales=weights.w2_scale[0]),
    ),
}
_ROWS = 16  # of a weight tile
_packed: WeakIdKeyDictionary = WeakIdKeyDictionary()  # w13 of copy 0 -> layout -> PackedLayer


def prepare_bf16(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """bf16 in the checkpoint layout; ``parse_tiles`` says what it takes."""
    return _prepare(inputs, params, "bf16")


def prepare_bf16_packed(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """bf16 repacked; ``parse_tiles`` says what it takes."""
    return _prepare(inputs, params, "bf16-packed")


def prepare_mxfp8(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """MXFP8 repacked; ``parse_tiles`` says what it takes."""
    return _prepare(inputs, params, "mxfp8-packed")


def prepare_awq(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """AWQ int4 in groups of 128, repacked; ``parse_tiles`` says what it takes."""
    return _prepare(inputs, params, "awq-packed")


def space_bf16(inputs: MoeInputs) -> Iterator[Params]:
    """The tiles that are worth a try for bf16 in the checkpoint layout."""
    return search.space(_shape(inputs, "bf16"), inputs)


def space_bf16_packed(inputs: MoeInputs) -> Iterator[Params]:
    """The tiles that are worth a try for repacked bf16."""
    return search.space(_shape(inputs, "bf16-packed"), inputs)


def space_mxfp8(inputs: MoeInputs) -> Iterator[Params]:
    """The tiles that are worth a try for MXFP8."""
    return search.space(_shape(inputs, "mxfp8-packed"), inputs)


def space_awq(inputs: MoeInputs) -> Iterator[Params]:
    """The tiles that are worth a try for AWQ."""
    return search.space(_shape(inputs, "awq-packed"), inputs)


def _prepare(inputs: MoeInputs, params: Params, layout: str) -> PreparedArm | Support:
    weights, device = inputs.weights, inputs.x.device
    if device.type != "cuda":
        return Support.no(f"needs a layer on a GPU, found it on {device}")
    if weights.weight_format != LAYOUTS[layout].weight_format:
        return Support.no(f"needs {LAYOUTS[layout].weight_format} weights, found {weights.weight_format}")
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    if capability < CAPABILITY:
        return Support.no(f"needs compute capability 9.0 (bulk copies), found {capability[0]}.{capability[1]}")
    problem = _input_problem(inputs, capability)
    if problem is not None:
        return Support.no(problem)
    tiles, limits = parse_tiles(params), device_limits(device.index)
    problem = fit_problem(_shape(inputs, layout), tiles, inputs.tokens, limits)
    if problem is not None:
        return Support.no(problem)
    try:
        packed = packed_layer(weights, layout)
    except DataError as error:  # weights that cannot be repacked: wrong sizes or scales that are not finite
        return Support.no(str(error))
    return _arm(inputs, tiles, packed)


def _shape(inputs: MoeInputs, layout: str) -> LayerShape:
    weights = inputs.weights
    return LayerShape(
        experts=weights.experts,
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        top_k=inputs.top_k,
        layout=layout,
        x_bf16=inputs.x.dtype is torch.bfloat16,
    )


def _input_problem(inputs: MoeInputs, capability: tuple[int, int]) -> str | None:
    """What is wrong with x, the routes and the weights, or None; AWQ's weights are looked at where they are repacked."""
    if inputs.weights.weight_format == AWQ:
        expected = (inputs.tokens, inputs.weights.hidden)
        if tuple(inputs.x.shape) != expected or inputs.x.dtype not in (torch.float16, torch.bfloat16):
            return f"needs x in fp16 or bf16 of shape {expected}, found {inputs.x.dtype} of {tuple(inputs.x.shape)}"
        return layer._route_problem(inputs)
    return layer.refusal(inputs, rows_per_cta=_ROWS, capability=capability)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedLayer:
    """Every copy of a layer in one layout, and what repacking the first of them cost; None where the layout is the checkpoint's."""

    copies: tuple[DecodeWeights, ...]
    repacking: Repacking | None


def packed_layer(weights: MoeWeights, layout: str) -> PackedLayer:
    """The layer in ``layout``; repacked once, the copies are equal."""
    known = _packed.setdefault(weights.w13[0], {})
    if layout not in known:
        known[layout] = _pack_layer(weights, layout)
    layer: PackedLayer = known[layout]
    return layer


def _pack_layer(weights: MoeWeights, layout: str) -> PackedLayer:
    if layout == "bf16":
        lying = tuple(checkpoint_bf16(*pair) for pair in zip(weights.w13, weights.w2, strict=True))
        return PackedLayer(copies=lying, repacking=None)
    first, repacking = timed(lambda: _PACKS[layout](weights))
    return PackedLayer(copies=(first, *(first.copy() for _ in range(weights.copies - 1))), repacking=repacking)


def _arm(inputs: MoeInputs, tiles: Tiles, packed: PackedLayer) -> PreparedArm:
    x, copies = inputs.x, packed.copies
    shape = shape_of(copies[0], inputs.top_k, x.dtype)
    kernels = decode_kernels(shape, tiles, x.device.index)
    buffers = Buffers(h=scratch(shape, tiles, inputs.tokens, x.device), output=torch.empty_like(x))
    prepared = [
        launches(kernels, x, weights, inputs.topk_ids, inputs.topk_weights, buffers.h, buffers.output)
        for weights in copies
    ]
    held = (inputs, buffers, copies)  # what the launches point to lives as long as the call does

    def call(copy: int, _held: object = held) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for launch in prepared[copy]:
            launch(stream)

    binaries = {f"{name}-{sha256[:12]}.cubin": sha256 for name, sha256 in kernels.sha256.items()}
    return replace(prepared_arm(inputs, buffers, call, binaries), repacking=packed.repacking)
