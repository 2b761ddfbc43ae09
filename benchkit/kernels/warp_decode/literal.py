"""Warp decode as published: CUDA C++, eight warps a CTA, one output value a warp, compiled at run time for one layer shape.

Rules:
1. ``moe_gate_up_3d_batched``: a warp is one intermediate neuron of one (token, expert) pair; it reads x once for the gate row and the up row.
2. ``moe_down_3d_batched``: a warp is one output of one token; it goes over all top_k experts into one fp32 accumulator, routing weight included.
3. Weights become fp32 in registers, lanes meet in a ``__shfl_xor_sync`` butterfly; no shared memory, no atomics: the same bits on every call.
4. Shapes are macros of the source, so that the compiler sees them; what is left to choose (loads in flight, their width, CTAs of an SM)
   comes from the protocol.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchkit.cuda_source import Cubin, Launch, Module, compile_cubin
from benchkit.errors import DataError
from benchkit.fixture.layer import MoeInputs
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.warp_decode.layer import Buffers, allocate, prepared_arm, refusal

SOURCE = Path(__file__).with_name("literal.cu").read_text(encoding="utf-8")
WARPS = 8  # of a CTA
_WARN = "--ptxas-options=--warn-on-spills"
_GATE_UP, _DOWN = "moe_gate_up_3d_batched", "moe_down_3d_batched"
_LOADS = {"bf16": (16,), "mxfp8": (8, 16)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is open in one of the two kernels: bytes of a weight load, loads of a row in flight in a lane, CTAs of an SM."""

    load_bytes: int
    depth: int
    ctas_per_sm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What is compiled in."""

    hidden: int
    intermediate: int
    top_k: int
    weight_format: str


def parse_stages(params: Params, weight_format: str) -> tuple[Stage, Stage]:
    """``up_load_bytes``, ``up_depth``, ``up_ctas_per_sm`` and the same of ``down``; DataError on values outside their range."""
    loads = _LOADS[weight_format]
    stages = []
    for kernel in ("up", "down"):
        load_bytes, depth, ctas = (params.get(f"{kernel}_{name}") for name in ("load_bytes", "depth", "ctas_per_sm"))
        if load_bytes not in loads:
            allowed = " or ".join(str(load) for load in loads)
            raise DataError(
                f"params.{kernel}_load_bytes: expected {allowed} with {weight_format}, found {load_bytes!r}"
            )
        for name, value, most in (("depth", depth, 16), ("ctas_per_sm", ctas, 8)):
            if not isinstance(value, int) or not 1 <= value <= most:
                raise DataError(f"params.{kernel}_{name}: expected an integer from 1 to {most}, found {value!r}")
        stages.append(Stage(load_bytes=int(load_bytes), depth=int(depth or 0), ctas_per_sm=int(ctas or 0)))
    return stages[0], stages[1]


def compile_literal(shape: LayerShape, stages: tuple[Stage, Stage], arch: str, *extra: str) -> Cubin:
    """Both kernels for one layer shape; ``extra`` are further options of the compiler."""
    macros = {
        "HIDDEN": shape.hidden,
        "INTERMEDIATE": shape.intermediate,
        "TOP_K": shape.top_k,
        "MXFP8": int(shape.weight_format == "mxfp8"),
    }
    for kernel, stage in zip(("UP", "DOWN"), stages, strict=True):
        macros |= {
            f"{kernel}_LOAD": stage.load_bytes,
            f"{kernel}_DEPTH": stage.depth,
            f"{kernel}_CTAS": stage.ctas_per_sm,
        }
    options = tuple(f"-D{name}={value}" for name, value in macros.items())
    return compile_cubin(SOURCE, name="literal.cu", arch=arch, options=(*options, _WARN, *extra))


def space(inputs: MoeInputs) -> Iterator[Params]:
    """The parameters that are worth a try."""
    load = max(_LOADS.get(inputs.weights.weight_format, (16,)))  # 8 bytes were slower everywhere
    for up_depth, up_ctas in [(1, 6), (1, 8), (2, 4), (2, 5), (2, 6), (4, 3), (4, 4)]:
        for down_depth, down_ctas in [(1, 8), (3, 4), (4, 4), (6, 3), (6, 4), (12, 2)]:
            yield {
                "up_load_bytes": load,
                "up_depth": up_depth,
                "up_ctas_per_sm": up_ctas,
                "down_load_bytes": load,
                "down_depth": down_depth,
                "down_ctas_per_sm": down_ctas,
            }


def prepare(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """The two kernels on the point's layer; ``parse_stages`` says what it takes."""
    device = inputs.x.device
    if device.type != "cuda":
        return Support.no(f"needs a layer on a GPU, found it on {device}")
    properties = torch.cuda.get_device_properties(device)
    problem = refusal(inputs, rows_per_cta=WARPS, capability=(properties.major, properties.minor))
    if problem is not None:
        return Support.no(problem)
    stages = parse_stages(params, inputs.weights.weight_format)
    cubin = compile_literal(shape_of(inputs), stages, f"sm_{properties.major}{properties.minor}")
    if cubin.log:
        return Support.no(f"needs as many registers as ctas_per_sm leaves it, found: {cubin.log.splitlines()[0]}")
    buffers = allocate(inputs)
    launches = _launches(Module(cubin), inputs, buffers)
    held = (inputs, buffers)  # what the launches point to lives as long as the call does

    def call(copy: int, _held: object = held) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for launch in launches[copy]:
            launch(stream)

    return prepared_arm(inputs, buffers, call, {f"warp-decode-literal-{cubin.sha256[:12]}.cubin": cubin.sha256})


def shape_of(inputs: MoeInputs) -> LayerShape:
    """What is compiled in for these inputs."""
    weights = inputs.weights
    return LayerShape(
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        top_k=inputs.top_k,
        weight_format=weights.weight_format,
    )


def _launches(module: Module, inputs: MoeInputs, buffers: Buffers) -> tuple[tuple[Launch, Launch], ...]:
    """Gate/up and down of every weight copy."""
    weights, pairs = inputs.weights, inputs.tokens * inputs.top_k
    none = (None,) * weights.copies
    ids, shares = _pointer(inputs.topk_ids), _pointer(inputs.topk_weights)
    h, output = _pointer(buffers.h), _pointer(buffers.output)
    return tuple(
        (
            module.launch(
                _GATE_UP,
                *(_pointer(inputs.x), _pointer(w13), _pointer(w13_scale), ids, h, ctypes.c_int32(pairs)),
                grid=pairs * weights.intermediate // WARPS,
                block=WARPS * 32,
            ),
            module.launch(
                _DOWN,
                *(h, _pointer(w2), _pointer(w2_scale), ids, shares, output, ctypes.c_int32(inputs.tokens)),
                grid=inputs.tokens * weights.hidden // WARPS,
                block=WARPS * 32,
            ),
        )
        for w13, w13_scale, w2, w2_scale in zip(
            weights.w13, weights.w13_scale or none, weights.w2, weights.w2_scale or none, strict=True
        )
    )


def _pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
