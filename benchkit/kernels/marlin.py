"""vLLM's packed-AWQ MoE layer, kernel for kernel: align -> W13 -> SiLU(gate) x up -> W2 -> sum over a token's routes.

Rules:
1. GEMMs, activation and sum are the compiled ops of the installed vLLM (``vllm_ops``), called as its ``fused_marlin_moe`` calls them: fp16, reduction in
   fp32 and in series, no atomics on values, routing weights applied by W2. Alignment is vLLM's op (``native``) or ours (``stable``).
2. Without explicit ones the op chooses its own launch configurations. An explicit one is tile rows, tile columns and CUDA blocks per SM together.
3. Buffers have the sizes that vLLM gives them, and W13 and W2 write to the same one, as there. All arms of a point share them, and all of a process
   the lock words of split tiles (``marlin_buffers``).
4. The driver compiles the GEMMs at their first launch (about 40 s, kept in its cache): that is the correctness gate's call, before any timing.

Source: vLLM 0.22.0, model_executor/layers/fused_moe/experts/marlin_moe.py and csrc/moe/marlin_moe_wna16/ops.cu.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import triton

from benchkit.errors import DataError, WorkerError
from benchkit.fixture.alignment import fingerprint
from benchkit.fixture.awq_shapes import layer_reasons
from benchkit.fixture.layer import AWQ, AWQ_GROUP, MoeInputs, tensor_bytes
from benchkit.kernels import alignment, vllm_ops
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.marlin_buffers import MOST_PER_SM, lock_words, marlin_buffers, multiprocessors
from benchkit.kernels.marlin_repack import MarlinGemm, marlin_layer
from benchkit.kernels.marlin_selector import block_size, resident, shared_bytes, tiles
from benchkit.kernels.reference import moe_truth
from benchkit.kernels.vllm_ops import VllmOps
from benchkit.units import FloatArray

ALIGNMENTS = ("native", "stable")
UINT4 = 1125899906843648  # vLLM's number of the type: 4 bits, unsigned, zero points beside them
_AUTO = (-1, -1, -1)
_WIDEST_TILE = 256
_GEMMS = ("w13", "w2")
_CONFIGURATION = ("thread_k", "thread_n", "blocks_per_sm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How the GEMMs are launched: (thread_k, thread_n, blocks_per_sm) of each, or three times -1 where the op chooses."""

    w13: tuple[int, int, int] = _AUTO
    w2: tuple[int, int, int] = _AUTO


def parse_configuration(params: Params) -> Configuration:
    """``w13_thread_k``, ``w13_thread_n``, ``w13_blocks_per_sm`` and the same of ``w2``; DataError where one stands without the others."""
    chosen = {}
    for gemm in _GEMMS:
        values = [params.get(f"{gemm}_{name}") for name in _CONFIGURATION]
        given = [value for value in values if isinstance(value, int)]
        if given and len(given) < len(values):
            names = ", ".join(f"{gemm}_{name}" for name in _CONFIGURATION)
            raise DataError(f"params: expected all or none of {names}, found {len(given)} of them")
        chosen[gemm] = (given[0], given[1], given[2]) if given else _AUTO
    return Configuration(**chosen)


def space(inputs: MoeInputs) -> Iterator[Params]:
    """The explicit configurations of both GEMMs that fit this layer and an SM's registers, each with vLLM's own alignment."""
    weights = inputs.weights
    sizes = {"w13": (weights.hidden, 2 * weights.intermediate), "w2": (weights.intermediate, weights.hidden)}
    rows = block_size(inputs.tokens, inputs.top_k, weights.experts)
    shared = _shared_limit(inputs.x.device)
    fitting = []
    for size_k, size_n in sizes.values():
        each = [
            (k, n, count) for k, n, _ in tiles(rows) for count in range(1, min(MOST_PER_SM, resident(k, n, rows)) + 1)
        ]
        fitting.append([shape for shape in each if _shape_problem(shape, size_k, size_n, rows, shared) is None])
    for shapes in itertools.product(*fitting):
        named = zip(_GEMMS, shapes, strict=True)
        values = {
            f"{gemm}_{name}": value for gemm, shape in named for name, value in zip(_CONFIGURATION, shape, strict=True)
        }
        yield {"alignment": "native", **values}


def problem_of(inputs: MoeInputs, configuration: Configuration, block: int) -> str | None:
    """Why Marlin does not take these inputs, or None."""
    weights, device = inputs.weights, inputs.x.device
    if weights.weight_format != AWQ:
        return f"needs {AWQ} weights, found {weights.weight_format}"
    if inputs.tokens < 1:
        return "needs at least 1 token, found 0"
    reasons = layer_reasons(weights.hidden, weights.intermediate, AWQ_GROUP)
    if reasons:
        return "; ".join(reasons)
    if (device.type == "cpu") is not bool(triton.knobs.runtime.interpret):
        return f"needs a layer on a GPU, found it on {device}"
    sizes = ((weights.hidden, 2 * weights.intermediate), (weights.intermediate, weights.hidden))
    for gemm, shape, size in zip(_GEMMS, (configuration.w13, configuration.w2), sizes, strict=True):
        problem = None if shape == _AUTO else _shape_problem(shape, *size, block, _shared_limit(device))
        if problem is not None:
            return f"{gemm}: {problem}"
    return None


def prepare(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """The path with ``alignment`` = native or stable; ``parse_configuration`` says how its GEMMs are launched."""
    kind = params.get("alignment")
    if kind not in ALIGNMENTS:
        raise DataError(f"params.alignment: expected one of {', '.join(ALIGNMENTS)}, found {kind!r}")
    configuration = parse_configuration(params)
    block = block_size(max(inputs.tokens, 1), inputs.top_k, inputs.weights.experts)
    problem = problem_of(inputs, configuration, block)
    if problem is not None:
        return Support.no(problem)
    ops = vllm_ops.load()
    if isinstance(ops, Support):
        return ops
    path = MarlinPath(
        inputs, ops, configuration, alignment.native(ops.align) if kind == "native" else alignment.stable, block
    )
    ours = alignment.compile_stable(inputs.topk_ids, path.routes) if kind == "stable" else {}
    return PreparedArm(
        call=path,
        output=path.output,
        poison=path.poison,
        expected=lambda truth: moe_truth(inputs, truth),
        output_bytes=lambda: tensor_bytes(path.y),
        scratch_bytes=path.scratch_bytes,
        binaries={**ops.binaries, **ours},
        mode=path.mode,
        repacking=path.repacking,
    )


class MarlinPath:
    """The stages of one arm at one point over the buffers of that point; call it with a weight copy for the whole layer.

    W13 and W2 write to the same memory, as in vLLM: read ``gate_up`` before ``w2`` runs, and all else before another path of the same inputs runs.
    """

    def __init__(
        self, inputs: MoeInputs, ops: VllmOps, configuration: Configuration, align: alignment.Align, block: int
    ) -> None:
        weights, routes = inputs.weights, inputs.routing.routes
        self.inputs, self._ops, self._configuration, self._align = inputs, ops, configuration, align
        layer = marlin_layer(weights)
        self._weights, self.repacking = layer.copies, layer.repacking
        self._locks = lock_words(weights)
        buffers = marlin_buffers(inputs, block)
        self._products, self.activated, self.y = buffers.products, buffers.activated, buffers.y
        self.routes = buffers.routes
        self.gate_up = self._products[: routes * 2 * weights.intermediate].view(routes, 2 * weights.intermediate)
        self.routed = self._products[: routes * weights.hidden].view(routes, weights.hidden)

    def __call__(self, copy: int) -> None:
        """One layer on weight copy ``copy``."""
        with torch.inference_mode():  # the tensors may have been made in it
            self.align()
            self.w13(copy)
            self.silu_and_mul()
            self.w2(copy)
            self.sum()

    def align(self) -> None:
        """Fill ``routes``."""
        self._align(self.inputs.topk_ids, self.routes)

    def w13(self, copy: int) -> None:
        """x -> ``gate_up`` [routes, 2 * intermediate]."""
        inputs, w13 = self.inputs, self._weights[copy].w13
        self._gemm(inputs.x, self.gate_up, w13, inputs.top_k, self._configuration.w13, weighted=False)

    def silu_and_mul(self) -> None:
        """``gate_up`` -> ``activated`` [routes, intermediate]."""
        self._ops.silu_and_mul(self.activated, self.gate_up)

    def w2(self, copy: int) -> None:
        """``activated`` -> ``routed`` [routes, hidden], times the routing weights."""
        self._gemm(self.activated, self.routed, self._weights[copy].w2, 1, self._configuration.w2, weighted=True)

    def sum(self) -> None:
        """``routed`` -> ``y`` [tokens, hidden]."""
        self._ops.sum(self.routed.view(self.inputs.tokens, self.inputs.top_k, -1), self.y)

    def _gemm(
        self,
        a: torch.Tensor,
        c: torch.Tensor,
        b: MarlinGemm,
        top_k: int,
        explicit: tuple[int, int, int],
        *,
        weighted: bool,
    ) -> None:
        """c[route] = a[route // top_k] @ b[expert of route], times the route's weight where ``weighted``."""
        self._ops.gemm(
            *(a, c, b.weight, None, b.scales, None, None, b.zeros),  # no bias, no scales of a, none of everything
            *(None, None, self._locks, *self.routes.tensors, self.inputs.topk_weights),  # K in its own order
            *(self.routes.block, top_k, weighted, UINT4, a.shape[0], c.shape[1], a.shape[1]),
            *(True, False, True, False),  # all of K here, no atomics, reduction in fp32, integer zero points
            *explicit,
        )

    @property
    def scratch_bytes(self) -> int:
        """Shared buffers, and the fp32 partial sums that the GEMM allocates in a call (the larger of its two)."""
        rows, block = self.routes.sorted_token_ids.numel(), self.routes.block
        width = max(self.gate_up.shape[1], self.routed.shape[1])
        values = min(width * rows, multiprocessors(self.y.device) * MOST_PER_SM * block * _WIDEST_TILE)
        sums = 4 * values * (2 if block == 8 else 1)
        buffers = (self._products, self.activated, self._locks)
        return sum(int(each.nbytes) for each in buffers) + self.routes.nbytes + int(sums)

    def output(self) -> FloatArray:
        """y of the last call in fp64. WorkerError where the GEMM left its lock words dirty, which would hang the next call."""
        if bool(self._locks.any()):
            raise WorkerError(
                "Marlin: expected lock words of 0 behind a call, found others; the next split tile would wait for ever"
            )
        return np.array(self.y.double().cpu().numpy(), dtype=np.float64)

    def poison(self) -> None:
        """NaN in whatever a call writes, and an alignment that names no route."""
        with torch.inference_mode():
            for buffer in (self._products, self.activated, self.y):
                buffer.fill_(float("nan"))
            for indices in self.routes.tensors:
                indices.fill_(0)

    def mode(self) -> str:
        """SHA-256 of the route-block membership of the last call."""
        return fingerprint(self.routes.read(self.inputs.routing.topk_ids))


def _shape_problem(shape: tuple[int, int, int], size_k: int, size_n: int, block: int, shared_limit: int) -> str | None:
    """Why a configuration does not fit a GEMM [size_k, size_n] in blocks of ``block`` rows, or None."""
    thread_k, thread_n, per_sm = shape
    known = [(k, n) for k, n, _ in tiles(block)]
    if (thread_k, thread_n) not in known:
        names = ", ".join(f"{k} x {n}" for k, n in known)
        return f"needs a tile of {names} in blocks of {block} rows, found {thread_k} x {thread_n}"
    if size_k % thread_k or size_n % thread_n:
        return f"needs tiles that fill {size_k} x {size_n}, found {thread_k} x {thread_n}"
    needed = (shared_bytes(thread_k, thread_n, -(-block // 16)) + 1536) * per_sm
    if per_sm > MOST_PER_SM or needed > shared_limit:
        return f"needs up to {MOST_PER_SM} CUDA blocks per SM within {shared_limit} bytes of shared memory, found {per_sm} of {needed} bytes"
    return None


def _shared_limit(device: torch.device) -> int:
    """Bytes of shared memory that a block may ask for."""
    if device.type != "cuda":
        return 232_448  # an interpreter has no limit: take the H200's
    most: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return most
