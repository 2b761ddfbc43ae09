# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""The two kernels of the portable form, in Triton: a program owns a tile of outputs of one (token, expert) pair or of one token.

Rules:
1. Every product and sum is fp32. A program adds in an order that its tile sizes fix: the same tiles give the same bits.
2. mxfp8: the elements of a block are summed first, then multiplied by the block's scale.
3. x and h are read once per row of a tile, in the layout of the weights: an exchange between threads would cost more than L1 does.
"""

import triton
import triton.language as tl


@triton.jit
def power_of_two(scale):
    """2 ^ (scale - 127) in fp32; the smallest one is subnormal."""
    bits = scale.to(tl.int32) << 23
    return tl.where(bits == 0, 0x00400000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _wait_for_predecessor():
    """Until the kernel before has ended and its writes are seen; from here on the kernel behind may start."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def moe_gate_up_tiles(
    x,
    w13,
    w13_scale,
    topk_ids,
    h,
    top_k,
    hidden: tl.constexpr,
    intermediate: tl.constexpr,
    mxfp8: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    stages: tl.constexpr,
    eviction: tl.constexpr,
    chained: tl.constexpr,
):
    """h[pair, tile] = silu(gate . x) * (up . x). Pairs of one tile stand side by side: tokens with one expert meet in L2."""
    pair, block = tl.program_id(0), tl.program_id(1)
    if chained:
        _wait_for_predecessor()
    expert = tl.load(topk_ids + pair).to(tl.int64)
    rows = block * tile_n + tl.arange(0, tile_n)
    inputs = x + (pair // top_k) * hidden
    weights = w13 + expert * (2 * intermediate * hidden)
    same = tl.zeros((tile_n,), tl.int32)  # one x for all rows, yet an address of each row's own
    if mxfp8:
        blocks: tl.constexpr = tile_k // 32
        group, element = tl.arange(0, blocks), tl.arange(0, 32)
        k = group[:, None] * 32 + element[None, :]
        offsets = rows[:, None, None] * hidden + k[None, :, :]
        scales = w13_scale + expert * (2 * intermediate * (hidden // 32))
        scale_offsets = rows[:, None] * (hidden // 32) + group[None, :]
        gate = tl.zeros((tile_n, blocks), tl.float32)
        up = tl.zeros((tile_n, blocks), tl.float32)
        for at in tl.range(0, hidden, tile_k, num_stages=stages):
            gate_part = tl.load(weights + offsets + at, eviction_policy=eviction)
            up_part = tl.load(weights + offsets + (at + intermediate * hidden), eviction_policy=eviction)
            gate_scale = power_of_two(tl.load(scales + scale_offsets + at // 32))
            up_scale = power_of_two(tl.load(scales + scale_offsets + (at + intermediate * hidden) // 32))
            part = tl.load(inputs + at + same[:, None, None] + k[None, :, :]).to(tl.float32)
            gate += tl.sum(gate_part.to(tl.float32) * part, 2) * gate_scale
            up += tl.sum(up_part.to(tl.float32) * part, 2) * up_scale
    else:
        k = tl.arange(0, tile_k)
        offsets = rows[:, None] * hidden + k[None, :]
        gate = tl.zeros((tile_n, tile_k), tl.float32)
        up = tl.zeros((tile_n, tile_k), tl.float32)
        for at in tl.range(0, hidden, tile_k, num_stages=stages):
            gate_part = tl.load(weights + offsets + at, eviction_policy=eviction)
            up_part = tl.load(weights + offsets + (at + intermediate * hidden), eviction_policy=eviction)
            part = tl.load(inputs + at + same[:, None] + k[None, :]).to(tl.float32)
            gate += gate_part.to(tl.float32) * part
            up += up_part.to(tl.float32) * part
    gate_sum = tl.sum(gate, 1)
    activated = gate_sum / (1.0 + tl.exp(-gate_sum)) * tl.sum(up, 1)
    tl.store(h + pair * intermediate + rows, activated.to(tl.bfloat16))


@triton.jit
def moe_down_tiles(
    h,
    w2,
    w2_scale,
    topk_ids,
    topk_weights,
    output,
    top_k: tl.constexpr,
    hidden: tl.constexpr,
    intermediate: tl.constexpr,
    mxfp8: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    experts: tl.constexpr,
    stages: tl.constexpr,
    eviction: tl.constexpr,
    chained: tl.constexpr,
):
    """output[token, tile] = sum over slots of routing weight * (w2 . h); ``experts`` slots stand side by side as rows of one tile.

    ``chained``: the kernel starts while gate/up ends, and waits for it before its first read of h; where all of its weights are one
    tile, behind their loads.
    """
    token, block = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, experts * tile_n)
    n = block * tile_n + row % tile_n
    chunks: tl.constexpr = (intermediate + tile_k - 1) // tile_k
    steps: tl.constexpr = (top_k // experts) * chunks
    if mxfp8:
        blocks: tl.constexpr = tile_k // 32
        group, element = tl.arange(0, blocks), tl.arange(0, 32)
        k = group[:, None] * 32 + element[None, :]
        sums = tl.zeros((experts * tile_n, blocks), tl.float32)
    else:
        k = tl.arange(0, tile_k)
        sums = tl.zeros((experts * tile_n, tile_k), tl.float32)
    if chained and steps > 1:
        _wait_for_predecessor()
    for step in tl.range(0, steps, num_stages=stages):
        slot = token * top_k + (step // chunks) * experts + row // tile_n
        first = (step % chunks) * tile_k
        expert = tl.load(topk_ids + slot).to(tl.int64)
        share = tl.load(topk_weights + slot)
        offsets = (expert * hidden + n) * intermediate + first
        if mxfp8:
            inside = (first + k < intermediate)[None, :, :]
            part = tl.load(
                w2 + offsets[:, None, None] + k[None, :, :], mask=inside, other=0.0, eviction_policy=eviction
            )
            scale_offsets = (offsets // 32)[:, None] + group[None, :]
            scale = tl.load(w2_scale + scale_offsets, mask=(first + group * 32 < intermediate)[None, :], other=127)
            if chained and steps == 1:
                _wait_for_predecessor()
            values = tl.load(h + (slot * intermediate + first)[:, None, None] + k[None, :, :], mask=inside, other=0.0)
            dots = tl.sum(part.to(tl.float32) * values.to(tl.float32), 2)
            sums += dots * (power_of_two(scale) * share[:, None])
        else:
            inside = (first + k < intermediate)[None, :]
            part = tl.load(w2 + offsets[:, None] + k[None, :], mask=inside, other=0.0, eviction_policy=eviction)
            if chained and steps == 1:
                _wait_for_predecessor()
            values = tl.load(h + (slot * intermediate + first)[:, None] + k[None, :], mask=inside, other=0.0)
            sums += part.to(tl.float32) * (values.to(tl.float32) * share[:, None])
    total = tl.sum(tl.reshape(tl.sum(sums, 1), (experts, tile_n)), 0)
    tl.store(output + token * hidden + block * tile_n + tl.arange(0, tile_n), total.to(tl.bfloat16))
