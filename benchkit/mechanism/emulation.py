"""Marlin's MoE layer on a CPU, rounding where the kernel rounds and adding in the order that the schedule fixes. numpy alone.

What is the kernel's:
1. Operands: fp16 activations, and weights fp16((q - z) * s).
2. A K tile of ``thread_k`` rows is shared by thread_k / 32 groups of warps; group g takes its rows 32 g to 32 g + 31 in two steps of 16, and
   keeps an fp32 sum over the K tiles of the slice. At the end of a slice the sums of the groups are added in a tree, in fp32.
3. Slices of a tile are reduced in series in fp32, highest K first: each next slice adds what came before to its own sum.
4. fp32 -> fp16 at the end of a GEMM; W2's fp16 output times the fp16 weight of the route; silu(gate) is rounded to fp16 before the product
   with up. Routes of a token: 2, 3 and 4 are added in fp16, other numbers in fp32 and rounded once.

What is a model: inside a step of 16 a tensor core adds in an order and with a truncation that NVIDIA does not publish; here the 16 products are
added in fp64, slot by slot, together with the running sum, and rounded once to fp32. The order of the final fp32 sum is slot by slot.
So bits of single elements differ from a GPU's; which rows an intervention can reach does not. Every element is computed by the same
sequence of operations whatever its row in a block, as on the GPU.

Source: csrc/moe/marlin_moe_wna16/marlin_template.h (``thread_block_reduce``, ``global_reduce_fp32``, ``write_result``), fused_marlin_moe.py of vLLM 0.20.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchkit.errors import DataError
from benchkit.fixture.alignment import Alignment
from benchkit.fixture.awq import AwqMatrix, dequantise_half
from benchkit.kernels.marlin_schedule import Cuts, Schedule
from benchkit.units import FloatArray

_STEP = 16  # rows of K in one matrix instruction
_GROUP_STEPS = 2  # steps of one warp group in a K tile
_HALF_SUMS = (2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """What a GEMM took for one MoE block: its expert, its routes in the order of the rows, and the K cut points of each N tile."""

    expert: int
    routes: tuple[int, ...]
    cuts: tuple[Cuts, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surfaces:
    """The four surfaces of a layer, all float16; rows of skipped routes are 0.

    Parameters
    ----------
    w13:
        [routes, 2 x intermediate], gate columns first.
    activation:
        [routes, intermediate].
    routed:
        [routes, hidden], W2's output times the weight of the route.
    final:
        [tokens, hidden].
    """

    w13: NDArray[np.float16]
    activation: NDArray[np.float16]
    routed: NDArray[np.float16]
    final: NDArray[np.float16]


def layer(
    x: NDArray[np.float16],
    topk_weights: NDArray[np.float32],
    w13: AwqMatrix,
    w2: AwqMatrix,
    alignment: Alignment,
    plans: tuple[Schedule, Schedule],
    consumed: tuple[list[Consumed], list[Consumed]] | None = None,
) -> Surfaces:
    """A MoE layer: ``x`` [tokens, hidden], ``topk_weights`` [tokens, top_k], W13 [E, hidden, 2 I], W2 [E, I, hidden].

    ``plans`` are the schedules of W13 and W2; what each GEMM took is appended to its list of ``consumed``.
    Raises DataError where shapes, alignment and schedules do not belong together.
    """
    if topk_weights.ndim != 2 or topk_weights.shape[0] != x.shape[0] or topk_weights.size != alignment.routes:
        raise DataError(
            f"topk_weights: expected [{x.shape[0]}, top_k] of {alignment.routes} routes, found {list(topk_weights.shape)}"
        )
    top_k = int(topk_weights.shape[1])
    by_w13, by_w2 = consumed or ([], [])
    gate_up = gemm(x, w13, alignment, plans[0], top_k=top_k, consumed=by_w13)
    activation = silu_and_mul(gate_up)
    scale = topk_weights.ravel().astype(np.float16)
    routed = gemm(activation, w2, alignment, plans[1], top_k=1, scale=scale, consumed=by_w2)
    return Surfaces(w13=gate_up, activation=activation, routed=routed, final=sum_routes(routed, top_k))


def gemm(
    x: NDArray[np.float16],
    weights: AwqMatrix,
    alignment: Alignment,
    plan: Schedule,
    *,
    top_k: int,
    scale: NDArray[np.float16] | None = None,
    consumed: list[Consumed] | None = None,
) -> NDArray[np.float16]:
    """Row r of the output [routes, N] is x[r // top_k] @ weights[expert of r], times ``scale``[r] where given.

    What was multiplied for each MoE block, and how it was cut, is appended to ``consumed`` as it happens.
    ``x`` is [routes / top_k, K], ``weights`` [E, K, N]. Raises DataError where the operands, the alignment and the plan differ in shape.
    """
    _check(x, weights, alignment, plan, top_k)
    out = np.zeros((alignment.routes, weights.size_n), dtype=np.float16)
    dense: dict[int, FloatArray] = {}
    for block, expert in enumerate(alignment.expert_ids.tolist()):
        if expert not in dense:
            dense = {expert: dequantise_half(weights.expert(expert)).astype(np.float64)}
        ids = alignment.sorted_token_ids[block * alignment.block : (block + 1) * alignment.block]
        routes = ids[ids != alignment.routes]
        rows = x[routes // top_k].astype(np.float64)
        taken: dict[int, Cuts] = {}
        for cuts, columns in _columns_by_cuts(plan, block):
            sums = _tile(rows, dense[expert][:, columns], cuts, plan.thread_k)
            out[routes[:, None], columns] = sums.astype(np.float16)
            taken |= dict.fromkeys((columns[:: plan.thread_n] // plan.thread_n).tolist(), cuts)
        if consumed is not None:
            by_tile = tuple(cuts for _, cuts in sorted(taken.items()))
            consumed.append(Consumed(expert=expert, routes=tuple(routes.tolist()), cuts=by_tile))
    return out if scale is None else out * scale[:, None]


def silu_and_mul(gate_up: NDArray[np.float16]) -> NDArray[np.float16]:
    """fp16(fp16(g / (1 + exp(-g))) * u) of [rows, 2 I], gate columns first."""
    half = gate_up.shape[-1] // 2
    gate = gate_up[:, :half].astype(np.float32)
    with np.errstate(over="ignore"):  # exp(-g) may be infinite in fp32: the quotient is then -0
        exp = np.exp(-gate.astype(np.float64)).astype(np.float32)  # numpy's fp32 exp depends on the CPU's vector units
        silu = (gate / (np.float32(1) + exp)).astype(np.float16)
    product: NDArray[np.float16] = silu * gate_up[:, half:]
    return product


def sum_routes(routed: NDArray[np.float16], top_k: int) -> NDArray[np.float16]:
    """The sum over the routes of each token, [tokens, hidden]."""
    slots = routed.reshape(-1, top_k, routed.shape[-1])
    if top_k not in _HALF_SUMS:
        slots = slots.astype(np.float32)
    total = slots[:, 0]
    for slot in range(1, top_k):
        total = total + slots[:, slot]
    return total.astype(np.float16)


def _columns_by_cuts(plan: Schedule, block: int) -> list[tuple[Cuts, NDArray[np.intp]]]:
    """The columns of the N tiles of a block, those with the same cut points together."""
    found: dict[Cuts, list[NDArray[np.intp]]] = {}
    for n, cuts in enumerate(plan.block_cuts(block)):
        found.setdefault(cuts, []).append(np.arange(n * plan.thread_n, (n + 1) * plan.thread_n))
    return [(cuts, np.concatenate(columns)) for cuts, columns in found.items()]


def _tile(rows: FloatArray, weights: FloatArray, cuts: Cuts, thread_k: int) -> NDArray[np.float32]:
    """rows [r, K] @ weights [K, n] in fp32 with the slices of ``cuts``, highest K first."""
    total: NDArray[np.float32] | None = None
    for start, length in reversed(cuts):
        part = slice(start * thread_k, (start + length) * thread_k)
        own = _slice(rows[:, part], weights[part], thread_k)
        total = own if total is None else own + total
    assert total is not None  # a tile has at least one slice
    return total


def _slice(rows: FloatArray, weights: FloatArray, thread_k: int) -> NDArray[np.float32]:
    """One CUDA block's sum over its slice: the warp groups one after the other, then their tree."""
    per_group = _GROUP_STEPS * _STEP
    sums = []
    for group in range(thread_k // per_group):
        running = np.zeros((rows.shape[0], weights.shape[1]), dtype=np.float32)
        for first in range(group * per_group, rows.shape[1], thread_k):
            for step in range(first, first + per_group, _STEP):
                running = _step(running, rows[:, step : step + _STEP], weights[step : step + _STEP])
        sums.append(running)
    return _tree(sums)


def _step(running: NDArray[np.float32], rows: FloatArray, weights: FloatArray) -> NDArray[np.float32]:
    total = running.astype(np.float64)
    for k in range(_STEP):  # products of two fp16 are exact in fp64; no BLAS: its order could depend on the shape
        total += rows[:, k, None] * weights[k]
    return total.astype(np.float32)


def _tree(sums: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """``thread_block_reduce``: the upper half of the groups hands its sums down, until group 0 adds the last."""
    own = list(sums)
    held: dict[int, NDArray[np.float32]] = {}
    first = offset = len(sums) // 2
    while offset >= 1:
        for index in range(offset, 2 * offset):
            if offset < first:
                own[index] = own[index] + (held[index] + held[index - offset])
            held[index - offset] = own[index]
        offset //= 2
    return own[0] if len(sums) == 1 else own[0] + held[0]


def _check(x: NDArray[np.float16], weights: AwqMatrix, alignment: Alignment, plan: Schedule, top_k: int) -> None:
    if x.dtype != np.float16 or x.shape != (alignment.routes // top_k, weights.size_k):
        raise DataError(
            f"x: expected float16 [{alignment.routes // top_k}, {weights.size_k}], found {x.dtype} {list(x.shape)}"
        )
    if weights.qweight.ndim != 3 or (alignment.blocks and int(alignment.expert_ids[-1]) >= weights.qweight.shape[0]):
        raise DataError(
            f"weights: expected an axis of experts that holds all of them, found {list(weights.qweight.shape)}"
        )
    expected = (alignment.blocks, weights.size_n, weights.size_k)
    found = (plan.blocks, plan.n_tiles * plan.thread_n, plan.k_tiles * plan.thread_k)
    if found != expected:
        raise DataError(f"schedule: expected blocks, N, K = {expected}, found {found}")
    groups = plan.thread_k // (_GROUP_STEPS * _STEP)
    if plan.thread_k % (_GROUP_STEPS * _STEP) or groups & (groups - 1):
        raise DataError(f"thread_k = {plan.thread_k}: expected 32 times a power of two")
