# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator"
"""Stable alignment in one launch: every program makes one block of the aligned order, from all ids."""

import triton
import triton.language as tl


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
    steps: tl.constexpr,
):
    """Block program_id of the (expert, route) order: its routes ascending, then ``routes`` as padding; its expert, or -1 behind the last block.

    ids int32 [routes]; one outside 0 .. experts - 1 is skipped. sorted_token_ids int32 [rows], expert_ids int32 [cdiv(rows, block)],
    num_tokens_post_padded int32 [1]: all are overwritten. bins: a power of two above ``experts``; steps x part covers the routes; block_p is
    the power of two from ``block`` on.
    """
    b, e, j, r = tl.program_id(0), tl.arange(0, bins), tl.arange(0, part), tl.arange(0, block_p)
    counts = tl.zeros((bins,), tl.int32)
    for step in range(steps):
        route = step * part + j
        found = tl.load(ids + route, mask=route < routes, other=experts)
        counts += tl.histogram(tl.where((found >= 0) & (found < experts), found, experts), bins)
    counts = tl.where(e < experts, counts, 0)
    blocks = (counts + block - 1) // block
    ends = tl.cumsum(blocks, 0)
    total = tl.sum(blocks, 0)
    used = b < total
    expert = tl.sum((ends <= b).to(tl.int32), 0)
    done = (b - tl.sum(tl.where(e < expert, blocks, 0), 0)) * block  # routes of this expert in its earlier blocks
    left = tl.where(used, tl.sum(tl.where(e == expert, counts, 0), 0) - done, 0)
    tl.store(expert_ids + b, tl.where(used, expert, -1))
    if b == 0:
        tl.store(num_tokens_post_padded, total * block)
    padding = (r >= left) & (r < block) & (b * block + r < rows)
    tl.store(sorted_token_ids + b * block + r, routes, mask=padding)
    before = -done
    for step in range(steps):
        route = step * part + j
        mine = (tl.load(ids + route, mask=route < routes, other=experts) == expert) & used
        rank = before + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(sorted_token_ids + b * block + rank, route, mask=mine & (rank >= 0) & (rank < block))
        before += tl.sum(mine.to(tl.int32), 0)
