# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator"
"""Stable alignment: one launch where few routes are, two where many are. No atomics on memory, nothing read back by the host.

Rules:
1. ids int32 [routes]; one outside 0 .. experts - 1 is skipped. sorted_token_ids int32 [rows], expert_ids int32 [slots], slots = cdiv(rows, block),
   and num_tokens_post_padded int32 [1] are overwritten: routes by (expert, route), ``routes`` as padding, -1 for the expert of an unused block.
2. ``bins`` is the power of two from ``experts`` on.
3. Tiles are powers of two: ``part`` ids, ``block_p`` rows from ``block`` on, ``slots_p`` blocks.
"""

import triton
import triton.language as tl


@triton.jit
def _ids(ids, route, routes, experts: tl.constexpr):
    """The experts of routes; -1 where one is skipped or lies behind the last."""
    found = tl.load(ids + route, mask=route < routes, other=-1)
    return tl.where(found < experts, tl.maximum(found, -1), -1)


@triton.jit
def _histogram(found, bins: tl.constexpr):
    """Routes of each expert."""
    return tl.histogram(tl.maximum(found, 0), bins, mask=found >= 0)


@triton.jit
def stable_align(
    ids,
    sorted_token_ids,
    expert_ids,
    num_tokens_post_padded,
    routes,
    rows,
    experts: tl.constexpr,
    bins: tl.constexpr,
    block: tl.constexpr,
    block_p: tl.constexpr,
    part: tl.constexpr,
):
    """Everything in one launch: program b makes block b, from all ids (at most ``part``)."""
    b, e, j, r = tl.program_id(0), tl.arange(0, bins), tl.arange(0, part), tl.arange(0, block_p)
    found = _ids(ids, j, routes, experts)
    counts = _histogram(found, bins)
    blocks = (counts + block - 1) // block
    total = tl.sum(blocks, 0)
    used = b < total
    expert = tl.sum((tl.cumsum(blocks, 0) <= b).to(tl.int32), 0)
    done = (b - tl.sum(tl.where(e < expert, blocks, 0), 0)) * block  # routes of this expert in its earlier blocks
    left = tl.where(used, tl.sum(tl.where(e == expert, counts, 0), 0) - done, 0)
    tl.store(expert_ids + b, tl.where(used, expert, -1))
    if b == 0:
        tl.store(num_tokens_post_padded, total * block)
    tl.store(sorted_token_ids + b * block + r, routes, mask=(r >= left) & (r < block) & (b * block + r < rows))
    mine = (found == expert) & used
    rank = tl.cumsum(mine.to(tl.int32), 0) - 1 - done
    tl.store(sorted_token_ids + b * block + rank, j, mask=mine & (rank >= 0) & (rank < block))


@triton.jit
def stable_count(
    ids, counts, routes, experts: tl.constexpr, bins: tl.constexpr, part: tl.constexpr, steps: tl.constexpr
):
    """First of two launches: program c counts the experts of its chunk of steps x part routes; counts int32 [chunks, bins]."""
    c, e, j = tl.program_id(0), tl.arange(0, bins), tl.arange(0, part)
    sums = tl.zeros((bins,), tl.int32)
    for step in range(steps):
        sums += _histogram(_ids(ids, (c * steps + step) * part + j, routes, experts), bins)
    tl.store(counts + c * bins + e, sums)


@triton.jit
def stable_place(
    ids,
    counts,
    sorted_token_ids,
    expert_ids,
    num_tokens_post_padded,
    routes,
    rows,
    slots,
    chunks: tl.constexpr,
    experts: tl.constexpr,
    bins: tl.constexpr,
    block: tl.constexpr,
    block_p: tl.constexpr,
    part: tl.constexpr,
    steps: tl.constexpr,
    slots_p: tl.constexpr,
    counts_p: tl.constexpr,
):
    """Second of two launches: program c places the routes of its chunk, and makes cdiv(slots, chunks) blocks: padding and expert."""
    c, e, j, r = tl.program_id(0), tl.arange(0, bins), tl.arange(0, part), tl.arange(0, block_p)
    total, place = tl.zeros((bins,), tl.int32), tl.zeros((bins,), tl.int32)
    for first in range(0, chunks, counts_p):
        i = first + tl.arange(0, counts_p)
        found = tl.load(counts + i[:, None] * bins + e[None, :], mask=i[:, None] < chunks, other=0)
        total += tl.sum(found, 0)
        place += tl.sum(tl.where(i[:, None] < c, found, 0), 0)  # routes of earlier chunks
    blocks = (total + block - 1) // block
    ends = tl.cumsum(blocks, 0)

    each = (slots + chunks - 1) // chunks
    s = tl.arange(0, slots_p)
    b = c * each + s
    ours = (s < each) & (b < slots)
    expert = tl.sum((ends[None, :] <= b[:, None]).to(tl.int32), 1)
    used = b < tl.sum(blocks, 0)
    end = tl.sum(
        tl.where(e[None, :] == expert[:, None], total + (ends - blocks) * block, 0), 1
    )  # row behind its routes
    tl.store(expert_ids + b, tl.where(used, expert, -1), mask=ours)
    row = b[:, None] * block + r[None, :]
    padding = ours[:, None] & (r[None, :] < block) & (row < rows) & (row >= tl.where(used, end, 0)[:, None])
    tl.store(sorted_token_ids + row, routes, mask=padding)
    if c == 0:
        tl.store(num_tokens_post_padded, tl.sum(blocks, 0) * block)

    place += (ends - blocks) * block
    for step in range(steps):
        route = (c * steps + step) * part + j
        mine = _ids(ids, route, routes, experts)
        earlier = (mine[None, :] == mine[:, None]) & (j[None, :] < j[:, None])
        at = tl.gather(place, tl.maximum(mine, 0), 0) + tl.sum(earlier.to(tl.int32), 1)
        tl.store(sorted_token_ids + at, route, mask=mine >= 0)
        place += _histogram(mine, bins)
