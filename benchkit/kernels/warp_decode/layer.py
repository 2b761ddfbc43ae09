"""What both forms of warp decode ask of a layer and its routes, and the buffers that they fill.

Rules:
1. Everything is refused at preparation, with the expected and the found value: a kernel checks nothing.
2. Ids and routing weights are read back from the device once, at preparation: they are what the kernels will read.
3. The only scratch is the intermediate h [tokens, top_k, intermediate] in bf16; there is no gather buffer and no output per expert.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from benchkit.fixture.layer import MoeInputs, MoeWeights, tensor_bytes
from benchkit.kernels.contract import PreparedArm
from benchkit.kernels.reference import moe_truth
from benchkit.units import FloatArray

FORMATS: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "mxfp8": torch.float8_e4m3fn}
MULTIPLES: Mapping[str, int] = {"bf16": 8, "mxfp8": 32}  # one 16-byte load; one block of a shared scale
MAX_TOP_K = 32
_CAPABILITIES: Mapping[str, tuple[int, int]] = {"bf16": (8, 0), "mxfp8": (8, 9)}
_MAX_GRID = 2**31 - 1
_E8M0_NAN = 255
_E4M3_NAN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """h [tokens, top_k, intermediate] between the kernels, and the output [tokens, hidden], both bf16."""

    h: torch.Tensor
    output: torch.Tensor


def refusal(inputs: MoeInputs, *, rows_per_cta: int, capability: tuple[int, int] | None) -> str | None:
    """Why warp decode cannot run on these inputs, or None.

    Parameters
    ----------
    rows_per_cta:
        Output rows of a CTA: it divides intermediate and hidden.
    capability:
        Compute capability of the device, or None where an interpreter runs on the host.
    """
    weights = inputs.weights
    if weights.weight_format not in FORMATS:
        return f"needs {' or '.join(FORMATS)} weights, found {weights.weight_format}"
    if capability is not None and capability < _CAPABILITIES[weights.weight_format]:
        needed, found = _CAPABILITIES[weights.weight_format], f"{capability[0]}.{capability[1]}"
        return f"{weights.weight_format} needs compute capability {needed[0]}.{needed[1]}, found {found}"
    return _shape_problem(inputs, rows_per_cta) or _route_problem(inputs) or _weight_problem(weights)


def allocate(inputs: MoeInputs) -> Buffers:
    """The buffers of one arm at one point."""
    x = inputs.x
    h = torch.empty((inputs.tokens, inputs.top_k, inputs.weights.intermediate), dtype=torch.bfloat16, device=x.device)
    return Buffers(
        h=h, output=torch.empty((inputs.tokens, inputs.weights.hidden), dtype=torch.bfloat16, device=x.device)
    )


def prepared_arm(
    inputs: MoeInputs, buffers: Buffers, call: Callable[[int], None], binaries: Mapping[str, str] | None = None
) -> PreparedArm:
    """An arm that fills ``buffers.output``."""

    def output() -> FloatArray:
        return np.array(buffers.output.double().cpu().numpy(), dtype=np.float64)

    def poison() -> None:
        with torch.inference_mode():  # the buffers may have been made in it
            buffers.h.fill_(float("nan"))
            buffers.output.fill_(float("nan"))

    return PreparedArm(
        call=call,
        output=output,
        poison=poison,
        expected=lambda truth: moe_truth(inputs, truth),
        output_bytes=lambda: tensor_bytes(buffers.output),
        scratch_bytes=buffers.h.nbytes,
        binaries=dict(binaries or {}),
    )


def _shape_problem(inputs: MoeInputs, rows_per_cta: int) -> str | None:
    weights = inputs.weights
    tokens, top_k = (int(size) for size in inputs.topk_ids.shape)
    multiple = MULTIPLES[weights.weight_format]
    for name, size in (("hidden", weights.hidden), ("intermediate", weights.intermediate)):
        if size % multiple:
            return f"{weights.weight_format} needs {name} to be a multiple of {multiple}, found {size}"
        if size % rows_per_cta:
            return f"needs {name} to be a multiple of {rows_per_cta} (outputs of a CTA), found {size}"
    if tokens < 1:
        return "needs at least 1 token, found 0"
    if not 1 <= top_k <= min(MAX_TOP_K, weights.experts):
        return f"needs a top_k from 1 to {min(MAX_TOP_K, weights.experts)}, found {top_k}"
    expected = (tokens, weights.hidden)
    if tuple(inputs.x.shape) != expected or inputs.x.dtype is not torch.bfloat16:
        return f"needs x in bf16 of shape {expected}, found {inputs.x.dtype} of {tuple(inputs.x.shape)}"
    ctas = tokens * max(top_k * weights.intermediate, weights.hidden) // rows_per_cta
    if ctas > _MAX_GRID:
        return f"needs at most {_MAX_GRID} CTAs, found {ctas}"
    return None


def _route_problem(inputs: MoeInputs) -> str | None:
    if inputs.topk_ids.dtype is not torch.int32 or inputs.topk_weights.dtype is not torch.float32:
        return f"needs int32 ids and float32 routing weights, found {inputs.topk_ids.dtype} and {inputs.topk_weights.dtype}"
    if inputs.topk_weights.shape != inputs.topk_ids.shape:
        return f"needs one routing weight a route, found {tuple(inputs.topk_weights.shape)} for {tuple(inputs.topk_ids.shape)}"
    if not (inputs.topk_ids.is_contiguous() and inputs.topk_weights.is_contiguous() and inputs.x.is_contiguous()):
        return "needs contiguous x, ids and routing weights, found strided ones"
    ids, shares = inputs.topk_ids.cpu().numpy(), inputs.topk_weights.cpu().numpy()
    outside = (ids < 0) | (ids >= inputs.weights.experts)
    if outside.any():
        token, slot = np.argwhere(outside)[0]
        return f"token {token}, slot {slot}: needs an expert from 0 to {inputs.weights.experts - 1}, found {ids[token, slot]}"
    for token, row in enumerate(ids):
        experts, times = np.unique(row, return_counts=True)
        if (times > 1).any():
            worst = int(np.argmax(times))
            return f"token {token}: needs distinct experts, found expert {experts[worst]} {times[worst]} times"
    if not np.isfinite(shares).all():
        token, slot = np.argwhere(~np.isfinite(shares))[0]
        return f"token {token}, slot {slot}: needs a finite routing weight, found {shares[token, slot]}"
    return None


def _weight_problem(weights: MoeWeights) -> str | None:
    """Values that are not finite, in copy 0: all copies are equal. One expert at a time, so that little memory is needed."""
    for name, tensor, scales in (("w13", weights.w13, weights.w13_scale), ("w2", weights.w2, weights.w2_scale)):
        bad = [_not_finite(expert) for expert in tensor[0]]
        if scales:
            bad = [found | (scale == _E8M0_NAN).any() for found, scale in zip(bad, scales[0], strict=True)]
        experts = torch.nonzero(torch.stack(bad)).flatten().tolist()
        if experts:
            return f"{name}: needs finite weights, found others in expert {experts[0]}"
        if not all(copy.is_contiguous() and copy.data_ptr() % 16 == 0 for copy in (*tensor, *scales)):
            return f"{name}: needs contiguous copies at 16-byte addresses, found others"
    return None


def _not_finite(values: torch.Tensor) -> torch.Tensor:
    if values.dtype is torch.float8_e4m3fn:
        return ((values.view(torch.uint8) & _E4M3_NAN) == _E4M3_NAN).any()
    return ~torch.isfinite(values).all()
