"""Alignment of routes to blocks of one expert, on a GPU: vLLM's own op, the stable (expert, route) order by a kernel of ours, or a given order.

Rules:
1. All three fill the same buffers, of the sizes that vLLM allocates, and as its op does: padding and the unused tail are ``routes``, the experts
   of unused blocks -1. What is in them before does not matter.
2. ``stable`` is one launch and has no atomics on memory: equal ids give equal buffers. It takes any number of experts and of routes.
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
from benchkit.kernels.alignment_triton import stable_align

_LARGEST_PART = 2048  # routes of a step
_WARPS = 4
_LANES = 32 * _WARPS


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
    experts, block:
        Experts of the layer, rows of a block.
    """

    sorted_token_ids: torch.Tensor
    expert_ids: torch.Tensor
    num_tokens_post_padded: torch.Tensor
    experts: int
    block: int

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The three, in the order in which the GEMM takes them."""
        return self.sorted_token_ids, self.expert_ids, self.num_tokens_post_padded

    @property
    def nbytes(self) -> int:
        """Bytes of the three."""
        return sum(int(tensor.nbytes) for tensor in self.tensors)

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
    sizes = (rows, -(-rows // block), 1)
    ids, blocks, count = (torch.zeros(size, dtype=torch.int32, device=device) for size in sizes)
    return AlignedRoutes(
        sorted_token_ids=ids, expert_ids=blocks, num_tokens_post_padded=count, experts=experts, block=block
    )


def native(op: Callable[..., Any]) -> Align:
    """vLLM's ``moe_align_block_size``, without an expert map."""

    def align(topk_ids: torch.Tensor, into: AlignedRoutes) -> None:
        op(topk_ids, into.experts, into.block, *into.tensors, None)

    return align


def stable(topk_ids: torch.Tensor, into: AlignedRoutes) -> None:
    """The order (expert, route): routes of an expert ascend. ``topk_ids`` int32, contiguous; ids outside the layer are skipped."""
    stable_align[(into.expert_ids.numel(),)](*_arguments(topk_ids, into), **_shape(topk_ids, into))


def compile_stable(topk_ids: torch.Tensor, into: AlignedRoutes) -> Mapping[str, str]:
    """Compile ``stable`` for these sizes without launching it; name -> SHA-256 of the machine code."""
    if triton.knobs.runtime.interpret:
        return {}
    arguments, shape = _arguments(topk_ids, into), _shape(topk_ids, into)
    compiled = stable_align.warmup(*arguments, grid=(into.expert_ids.numel(),), **shape)
    sha256 = hashlib.sha256(compiled.asm["cubin"]).hexdigest()
    return {f"stable-align-{sha256[:12]}.cubin": sha256}


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


def _arguments(topk_ids: torch.Tensor, into: AlignedRoutes) -> tuple[Any, ...]:
    return (topk_ids, *into.tensors, topk_ids.numel(), into.sorted_token_ids.numel())


def _shape(topk_ids: torch.Tensor, into: AlignedRoutes) -> dict[str, int]:
    routes = topk_ids.numel()
    part = min(max(triton.next_power_of_2(routes), _LANES), _LARGEST_PART)
    return {
        "experts": into.experts,
        "bins": max(triton.next_power_of_2(into.experts + 1), _LANES),
        "block": into.block,
        "block_p": triton.next_power_of_2(into.block),
        "part": part,
        "steps": triton.cdiv(routes, part),
        "num_warps": _WARPS,
    }
