"""Alignment of routes to blocks of one expert, on a GPU: vLLM's own op, the stable (expert, route) order by a kernel of ours, or a given order.

Rules:
1. All three fill the same buffers, of the sizes that vLLM allocates, and as its op does: padding and the unused tail are ``routes``, the experts
   of unused blocks -1. What is in them before does not matter.
2. ``stable`` is one launch up to 1024 routes and two beyond, without atomics on memory: equal ids give equal buffers. It takes any number of
   experts and of routes.
3. Nothing is read back by the host: native and stable alignment can be captured in a graph.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from benchkit.errors import DataError
from benchkit.fixture.alignment import Alignment, capacity, from_buffers
from benchkit.kernels.alignment_triton import stable_align, stable_count, stable_place

_FEW = 128  # routes that one warp sorts fastest
_MOST_AT_ONCE = 1024  # routes of one launch: beyond, every block looking at every route costs more than a second launch
_PART = 128  # routes of a step of the two launches
_MOST_CHUNKS = 128
_COUNTS = 4096  # counters that a program adds up at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AlignedRoutes:
    """The buffers of an alignment on the device; make them with ``allocate``.

    Parameters
    ----------
    sorted_token_ids:
        int32 [capacity], routes and padding.
    expert_ids:
        int32 [ceil(capacity / block)].
    num_tokens_post_padded:
        int32 [1], aligned rows.
    counts:
        int32 [chunks * counters], what the two launches of ``stable`` hand on; empty where one is enough.
    experts, block:
        Experts of the layer, rows of a block.
    """

    sorted_token_ids: torch.Tensor
    expert_ids: torch.Tensor
    num_tokens_post_padded: torch.Tensor
    counts: torch.Tensor
    experts: int
    block: int

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The three, in the order in which the GEMM takes them."""
        return self.sorted_token_ids, self.expert_ids, self.num_tokens_post_padded

    @property
    def nbytes(self) -> int:
        """Bytes of all four."""
        return sum(int(tensor.nbytes) for tensor in (*self.tensors, self.counts))

    def read(self, topk_ids: NDArray[np.integer]) -> Alignment:
        """What stands in the buffers (waits for the device); DataError unless it is a legal alignment of ``topk_ids`` [M, k]."""
        ids, experts, rows = (tensor.cpu().numpy() for tensor in self.tensors)
        return from_buffers(ids, experts, int(rows[0]), topk_ids=topk_ids, experts=self.experts, block=self.block)


Align: TypeAlias = Callable[[torch.Tensor, AlignedRoutes], None]


def allocate(routes: int, experts: int, block: int, device: torch.device | str) -> AlignedRoutes:
    """Buffers for any ids of ``routes`` routes; DataError on a size below 1."""
    for name, size in (("routes", routes), ("experts", experts), ("block", block)):
        if size < 1:
            raise DataError(f"{name}: expected at least 1, found {size}")
    rows = capacity(routes, experts, block)
    chunks = 0 if routes <= _MOST_AT_ONCE else min(-(-routes // _PART), _MOST_CHUNKS)
    sizes = {
        "sorted_token_ids": rows,
        "expert_ids": -(-rows // block),
        "num_tokens_post_padded": 1,
        "counts": chunks * _bins(experts),
    }
    buffers = {name: torch.zeros(size, dtype=torch.int32, device=device) for name, size in sizes.items()}
    return AlignedRoutes(**buffers, experts=experts, block=block)


def native(op: Callable[..., Any]) -> Align:
    """vLLM's ``moe_align_block_size``, without an expert map."""

    def align(topk_ids: torch.Tensor, into: AlignedRoutes) -> None:
        op(topk_ids, into.experts, into.block, *into.tensors, None)

    return align


def stable(topk_ids: torch.Tensor, into: AlignedRoutes) -> None:
    """The order (expert, route): routes of an expert ascend. ``topk_ids`` int32, contiguous; ids outside the layer are skipped."""
    for kernel, grid, arguments, shape in _launches(topk_ids, into):
        kernel[grid](*arguments, **shape)


def compile_stable(topk_ids: torch.Tensor, into: AlignedRoutes) -> Mapping[str, str]:
    """Compile ``stable`` for these sizes without launching it; name -> SHA-256 of the machine code."""
    if triton.knobs.runtime.interpret:
        return {}
    binaries = {}
    for kernel, grid, arguments, shape in _launches(topk_ids, into):
        sha256 = hashlib.sha256(kernel.warmup(*arguments, grid=grid, **shape).asm["cubin"]).hexdigest()
        binaries[f"{kernel.__name__}-{sha256[:12]}.cubin"] = sha256
    return binaries


def _launches(
    topk_ids: torch.Tensor, into: AlignedRoutes
) -> list[tuple[Any, tuple[int], tuple[Any, ...], dict[str, int]]]:
    """Kernel, grid, arguments and shape of each launch."""
    routes, rows, slots = topk_ids.numel(), into.sorted_token_ids.numel(), into.expert_ids.numel()
    sizes = {"experts": into.experts, "bins": _bins(into.experts)}
    blocks = {"block": into.block, "block_p": triton.next_power_of_2(into.block)}
    if routes <= _MOST_AT_ONCE:
        warps = 1 if routes <= _FEW else 4
        shape = {**sizes, **blocks, "part": max(triton.next_power_of_2(routes), 32 * warps), "num_warps": warps}
        return [(stable_align, (slots,), (topk_ids, *into.tensors, routes, rows), shape)]
    chunks = into.counts.numel() // sizes["bins"]
    steps = triton.cdiv(routes, chunks * _PART)
    parts = {**sizes, "part": _PART, "steps": steps, "num_warps": 4}
    places = {
        "slots_p": triton.next_power_of_2(triton.cdiv(slots, chunks)),
        "counts_p": max(1, _COUNTS // sizes["bins"]),
    }
    return [
        (stable_count, (chunks,), (topk_ids, into.counts, routes), parts),
        (
            stable_place,
            (chunks,),
            (topk_ids, into.counts, *into.tensors, routes, rows, slots, chunks),
            {**parts, **blocks, **places},
        ),
    ]


def _bins(experts: int) -> int:
    """Counters of a program: the power of two from the number of experts on, and at least one a thread."""
    return max(int(triton.next_power_of_2(experts)), 128)


def injected(alignment: Alignment) -> Align:
    """A given order: copied from the host in every call."""

    def align(topk_ids: torch.Tensor, into: AlignedRoutes) -> None:
        if topk_ids.numel() != alignment.routes or into.block != alignment.block:
            raise DataError(
                f"injected alignment: expected {alignment.routes} routes in blocks of {alignment.block}, "
                f"found {topk_ids.numel()} in blocks of {into.block}"
            )
        rows = alignment.num_tokens_post_padded
        into.sorted_token_ids.fill_(alignment.routes)
        into.sorted_token_ids[:rows].copy_(torch.from_numpy(alignment.sorted_token_ids))
        into.expert_ids.fill_(-1)
        into.expert_ids[: alignment.blocks].copy_(torch.from_numpy(alignment.expert_ids))
        into.num_tokens_post_padded.fill_(rows)

    return align
