"""Layers of all formats for the tests of ``moe_decode``, their fp64 truth, and calls with poisoned buffers."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from benchkit.fixture import awq_device
from benchkit.fixture.mxfp8 import dequantise, quantise
from benchkit.fixture.routing import route
from benchkit.kernels.warp_decode.configuration import LayerShape, Tiles
from benchkit.kernels.warp_decode.decode import decode_kernels, launches, scratch, shape_of
from benchkit.kernels.warp_decode.decode_source import compile_decode, kernels
from benchkit.kernels.warp_decode.pack import (
    AwqTensors,
    DecodeWeights,
    checkpoint_bf16,
    pack_awq,
    pack_bf16,
    pack_mxfp8,
)

Sizes = tuple[int, int, int]  # experts, hidden, intermediate


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """Weights as the kernels take them, and exactly in fp64: w13 [E, 2 I, H], w2 [E, H, I]."""

    weights: DecodeWeights
    w13: torch.Tensor
    w2: torch.Tensor


def make_layer(layout: str, sizes: Sizes, seed: int = 1, device: str = "cuda") -> Layer:
    """Random weights of one layout."""
    experts, hidden, intermediate = sizes
    generator = torch.Generator(device=device).manual_seed(seed)
    if layout == "awq-packed":
        tensors = [_awq(generator, experts, k, n) for k, n in ((hidden, 2 * intermediate), (intermediate, hidden))]
        return Layer(weights=pack_awq(*tensors), w13=_awq_exact(tensors[0]), w2=_awq_exact(tensors[1]))
    shapes = ((2 * intermediate, hidden), (hidden, intermediate))
    w13, w2 = (
        (torch.randn((experts, *shape), generator=generator, device=device) / shape[1] ** 0.5).bfloat16()
        for shape in shapes
    )
    if layout == "mxfp8-packed":
        q13, s13 = quantise(w13)
        q2, s2 = quantise(w2)
        return Layer(weights=pack_mxfp8(q13, s13, q2, s2), w13=dequantise(q13, s13), w2=dequantise(q2, s2))
    make = checkpoint_bf16 if layout == "bf16" else pack_bf16
    return Layer(weights=make(w13, w2), w13=w13.double(), w2=w2.double())


def _awq(generator: torch.Generator, experts: int, size_k: int, size_n: int) -> AwqTensors:
    device, groups = generator.device, size_k // 128
    kind = {"generator": generator, "device": device}
    values = torch.randint(0, 16, (experts, size_k, size_n), dtype=torch.uint8, **kind)
    zeros = torch.randint(0, 16, (experts, groups, size_n), dtype=torch.uint8, **kind)
    scales = (0.75 + 0.5 * torch.rand((experts, groups, size_n), **kind)) / (6.5 * size_k**0.5)
    return AwqTensors(qweight=awq_device.pack(values), qzeros=awq_device.pack(zeros), scales=scales.half())


def _awq_exact(tensors: AwqTensors) -> torch.Tensor:
    """(q - z) * s in fp64, [E, N, K]."""
    return awq_device.dequantise(tensors.qweight, tensors.scales, tensors.qzeros).transpose(1, 2)


def truth(layer: Layer, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The layer in fp64; ids outside the layer are skipped."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in torch.unique(ids).tolist():
        if 0 <= expert < layer.w2.shape[0]:
            tokens, slots = torch.nonzero(ids == expert, as_tuple=True)
            gate, up = (x[tokens].double() @ layer.w13[expert].T).chunk(2, dim=-1)
            down = (torch.nn.functional.silu(gate) * up) @ layer.w2[expert].T
            out.index_add_(0, tokens, shares[tokens, slots, None].double() * down)
    return out


def routes(law: str, tokens: int, experts: int, top_k: int, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    """ids int32 and weights float32 [tokens, top_k]; law ``one``: every token takes the last experts of the layer."""
    routing = route("uniform" if law == "one" else law, 1, tokens, experts, top_k)
    ids = torch.from_numpy(routing.topk_ids.copy())
    if law == "one":
        ids = torch.arange(experts - top_k, experts, dtype=torch.int32).repeat(tokens, 1)
    return ids.to(device), torch.from_numpy(routing.topk_weights.copy()).to(device)


def poisoned_call(
    layer: Layer, tiles: Tiles, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and h of one call on buffers full of NaN."""
    shape = shape_of(layer.weights, int(ids.shape[1]), x.dtype)
    between = scratch(shape, tiles, int(x.shape[0]), x.device).fill_(float("nan"))
    output = torch.full_like(x, float("nan"))
    loaded = decode_kernels(shape, tiles, x.device.index or 0)
    for launch in launches(loaded, x, layer.weights, ids, shares, between, output):
        launch(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return output, between[: ids.numel() * shape.intermediate]


def distance(output: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """The smallest cosine of a token, and the relative error in the 2-norm."""
    found = output.double()
    cosine = torch.nn.functional.cosine_similarity(found, expected, dim=-1).min()
    return float(cosine), float((found - expected).norm() / expected.norm())


def compile_ahead(wanted: Sequence[tuple[LayerShape, Tiles]], arch: str) -> None:
    """Compile side by side what is going to be used; the compiler leaves other threads alone."""
    with ThreadPoolExecutor(16) as pool:
        jobs = {(shape, kernel, tiles) for shape, tiles in wanted for kernel in kernels(tiles)}
        list(pool.map(lambda job: compile_decode(job[0], job[1], job[2], arch), jobs))
