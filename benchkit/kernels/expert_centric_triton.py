# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernels of the expert-centric MoE path: routes are sorted by expert and padded to tiles of ``tile_m`` rows, one expert a tile.

Rules:
1. A *route* is one (token, slot), numbered token * top_k + slot. A *row* is a place in the padded order: experts ascend, an expert's rows start at a
   multiple of tile_m, and its routes stand in ascending order. A *block* is tile_m rows; ``block_expert`` is -1 where no rows are.
2. Grids have the size that any routing of this many tokens needs; programs without work return. Nothing is read back by the host.
3. Sums have a fixed order and there are no atomics on floats: the same inputs give the same bits.
4. With ``pdl`` a kernel may start while its predecessor ends, and waits for it before it reads or writes memory.
5. e4m3 times a power of two is exact in bf16, so mxfp8 weights enter the tensor cores without rounding.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
MAX_SCALE = 134  # 2^7: the largest scale byte that ``_decode`` takes


@triton.jit
def _wait(pdl: tl.constexpr):
    """Wait for the predecessor, and let the successor start as early as it can."""
    if pdl:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _dot(left, right, sums):
    """Add a product of bf16 tiles to fp32 sums."""
    if INTERPRETED:  # the interpreter would multiply the bit patterns
        return sums + tl.dot(left.to(tl.float32), right.to(tl.float32))
    else:  # noqa: RET505 - the other branch must not be compiled
        return tl.dot(left, right, sums)


@triton.jit
def _power_of_two(exponent):
    """2^(exponent - 127) in fp32, from 0 to 254; the smallest is subnormal."""
    bits = exponent.to(tl.int32) << 23
    return tl.where(bits == 0, 0x00400000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _through_mxfp8(values, size: tl.constexpr):
    """fp32 [size] through MXFP8 and back, by the rules of benchkit.fixture.mxfp8."""
    blocks = tl.reshape(values, (size // 32, 32))
    largest = tl.max(tl.abs(blocks), 1).to(tl.int32, bitcast=True)
    # 448 = 1.75 x 2^8: one more where the mantissa is above 1.75
    scale = (largest >> 23) - 8 + ((largest & 0x7FFFFF) > 0x600000).to(tl.int32)
    scale = tl.maximum(scale, 1)
    scaled = blocks * _power_of_two(254 - scale)[:, None]
    bits = scaled.to(tl.int32, bitcast=True)  # keep three bits of the mantissa: nearest, ties to even
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    subnormal = ((scaled * 512.0 + 12582912.0) - 12582912.0) * 0.001953125  # multiples of 2^-9 below 2^-6
    rounded = tl.where(tl.abs(scaled) < 0.015625, subnormal, normal)
    return tl.reshape(rounded * _power_of_two(scale)[:, None], (size,))


@triton.jit
def _rank(all_ids, ids, i, j):
    """Of each route i: how many earlier routes have the same expert."""
    earlier = (all_ids[None, :] == ids[:, None]) & (j[None, :] < i[:, None])
    return tl.sum(earlier.to(tl.int32), 1)


@triton.jit
def _store_blocks(b, e, counts, blocks, block_expert, block_rows, max_blocks, tile_m: tl.constexpr):
    """Expert and number of rows of the blocks ``b``, from routes and blocks per expert."""
    end = tl.cumsum(blocks, 0)
    expert = tl.sum((b[:, None] >= end[None, :]).to(tl.int32), 1)
    left = counts[None, :] - (b[:, None] - (end - blocks)[None, :]) * tile_m
    rows = tl.sum(tl.where(e[None, :] == expert[:, None], left, 0), 1)
    used = b < tl.sum(blocks, 0)
    tl.store(block_expert + b, tl.where(used, expert, -1), mask=b < max_blocks)
    tl.store(block_rows + b, tl.where(used, tl.minimum(rows, tile_m), 0), mask=b < max_blocks)


@triton.jit
def moe_sort(
    ids,
    rank,
    counts,
    routes,
    routes_p: tl.constexpr,
    experts: tl.constexpr,
    experts_p: tl.constexpr,
    part: tl.constexpr,
    pdl: tl.constexpr,
):
    """Rank of part routes within their experts; program 0 also counts the routes of every expert."""
    _wait(pdl)
    j, i = tl.arange(0, routes_p), tl.program_id(0) * part + tl.arange(0, part)
    all_ids = tl.load(ids + j, mask=j < routes, other=experts)
    mine = tl.load(ids + i, mask=i < routes, other=experts)
    tl.store(rank + i, _rank(all_ids, mine, i, j), mask=i < routes)
    if tl.program_id(0) == 0:
        e = tl.arange(0, experts_p)
        tl.store(counts + e, tl.histogram(all_ids, experts_p), mask=e < experts)


@triton.jit
def moe_pad(
    counts_in,
    starts,
    block_expert,
    block_rows,
    max_blocks,
    experts: tl.constexpr,
    experts_p: tl.constexpr,
    tile_m: tl.constexpr,
    part: tl.constexpr,
    pdl: tl.constexpr,
):
    """First row of every expert (program 0), and the table of part blocks."""
    _wait(pdl)
    e, b = tl.arange(0, experts_p), tl.program_id(0) * part + tl.arange(0, part)
    counts = tl.load(counts_in + e, mask=e < experts, other=0)
    blocks = (counts + tile_m - 1) // tile_m
    if tl.program_id(0) == 0:
        tl.store(starts + e, (tl.cumsum(blocks, 0) - blocks) * tile_m, mask=e < experts)
    _store_blocks(b, e, counts, blocks, block_expert, block_rows, max_blocks, tile_m)


@triton.jit
def moe_gather(
    x,
    ids,
    rank,
    starts,
    row_of_route,
    gathered,
    top_k: tl.constexpr,
    hidden: tl.constexpr,
    part: tl.constexpr,
    quantise: tl.constexpr,
    pdl: tl.constexpr,
):
    """The token's x into the row of each route, through MXFP8 with quantise."""
    _wait(pdl)
    route, c = tl.program_id(0), tl.program_id(1) * part + tl.arange(0, part)
    values = tl.load(x + (route // top_k) * hidden + c, mask=c < hidden, other=0.0)
    row = tl.load(starts + tl.load(ids + route)) + tl.load(rank + route)
    if tl.program_id(1) == 0:
        tl.store(row_of_route + route, row)
    if quantise:
        values = _through_mxfp8(values.to(tl.float32), part).to(tl.bfloat16)
    tl.store(gathered + row * hidden + c, values, mask=c < hidden)


@triton.jit
def moe_align(
    ids,
    route_of_row,
    block_expert,
    block_rows,
    routes,
    max_blocks,
    routes_p: tl.constexpr,
    experts: tl.constexpr,
    experts_p: tl.constexpr,
    tile_m: tl.constexpr,
    part: tl.constexpr,
    pdl: tl.constexpr,
):
    """Sort, pad and index in one launch: the rows of part routes and the table of part blocks; every program counts for itself."""
    _wait(pdl)
    j, e = tl.arange(0, routes_p), tl.arange(0, experts_p)
    i = tl.program_id(0) * part + tl.arange(0, part)
    all_ids = tl.load(ids + j, mask=j < routes, other=experts)
    mine = tl.load(ids + i, mask=i < routes, other=experts)
    counts = tl.where(e < experts, tl.histogram(all_ids, experts_p), 0)
    blocks = (counts + tile_m - 1) // tile_m
    start = tl.sum(tl.where(e[None, :] < mine[:, None], blocks[None, :], 0), 1) * tile_m
    tl.store(route_of_row + start + _rank(all_ids, mine, i, j), i, mask=i < routes)
    _store_blocks(i, e, counts, blocks, block_expert, block_rows, max_blocks, tile_m)


@triton.jit
def _decode(elements, scale):
    """e4m3 elements times 2^(scale - 127) as bf16, exactly; both of one shape, scale bytes at most MAX_SCALE.

    The seven bits of exponent and mantissa, moved to the place where bf16 has them, read as the element times 2^-120; one product does the rest.
    """
    if INTERPRETED:
        return (elements.to(tl.float32) * _power_of_two(scale)).to(tl.bfloat16)
    else:  # noqa: RET505 - the other branch must not be compiled
        factor = ((scale.to(tl.int16) + 120) << 7).to(tl.bfloat16, bitcast=True)
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 low, high, part, zero;
            mov.b32 zero, 0x80008000;
            prmt.b32 low, $2, 0, 0x1404;
            prmt.b32 high, $2, 0, 0x3424;
            shr.u32 part, low, 4;
            and.b32 part, part, 0x07f007f0;
            lop3.b32 low, low, 0x80008000, part, 0xea;
            fma.rn.bf16x2 $0, low, $3, zero;
            shr.u32 part, high, 4;
            and.b32 part, part, 0x07f007f0;
            lop3.b32 high, high, 0x80008000, part, 0xea;
            fma.rn.bf16x2 $1, high, $4, zero;
            }
            """,
            "=r,=r,r,r,r",
            [elements, factor],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )


@triton.jit
def _weight_tile(
    w,
    scale,
    n,
    k0,
    depth: tl.constexpr,
    mxfp8: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
):
    """Rows ``n``, columns k0 .. k0 + tile_k of an expert's matrix, in bf16."""
    k = tl.arange(0, tile_k)
    tile = tl.load(w + n[:, None] * depth + (k0 + k)[None, :], eviction_policy="evict_first")
    if mxfp8:
        block = k0 // 32 + tl.arange(0, tile_k // 32)
        scales = tl.load(scale + n[:, None] * (depth // 32) + block[None, :])
        shape: tl.constexpr = (tile_n, tile_k // 32, 32)
        blocks = _decode(tl.reshape(tile, shape), tl.broadcast_to(scales[:, :, None], shape))
        tile = tl.reshape(blocks, (tile_n, tile_k))
    return tile


@triton.jit
def moe_gemm(
    a,
    w,
    scale,
    c,
    block_expert,
    block_rows,
    route_of_row,
    a_share: tl.constexpr,
    width: tl.constexpr,
    depth: tl.constexpr,
    mxfp8: tl.constexpr,
    indexed: tl.constexpr,
    swap: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    stages: tl.constexpr,
    pdl: tl.constexpr,
):
    """c = a @ w[expert]^T for tile_n columns of one block, in bf16.

    indexed: ``c`` stands in the order of the routes and a_share consecutive routes share a row of ``a``; else both are padded rows.
    swap makes the weights the left operand of the product.
    """
    _wait(pdl)
    n, block = tl.program_id(0) * tile_n + tl.arange(0, tile_n), tl.program_id(1)
    expert = tl.load(block_expert + block).to(tl.int64)
    if expert < 0:
        return
    m, k = tl.arange(0, tile_m), tl.arange(0, tile_k)
    used = m < tl.load(block_rows + block)
    a_row = block * tile_m + m
    c_row = a_row
    if indexed:
        c_row = tl.where(used, tl.load(route_of_row + c_row), 0)
        a_row = c_row // a_share
    w += expert * (width * depth)
    scale += expert * (width * (depth // 32))
    sums = tl.zeros((tile_n, tile_m), tl.float32) if swap else tl.zeros((tile_m, tile_n), tl.float32)
    for k0 in tl.range(0, depth, tile_k, num_stages=stages):
        rows = tl.load(a + a_row[:, None] * depth + (k0 + k)[None, :], mask=used[:, None], other=0.0)
        tile = _weight_tile(w, scale, n, k0, depth, mxfp8, tile_n, tile_k)
        sums = _dot(tile, tl.trans(rows), sums) if swap else _dot(rows, tl.trans(tile), sums)
    if swap:
        sums = tl.trans(sums)
    tl.store(c + c_row[:, None] * width + n[None, :], sums.to(tl.bfloat16), mask=used[:, None])


@triton.jit
def moe_silu_mul(
    gate_up,
    activated,
    row_of_route,
    intermediate: tl.constexpr,
    part: tl.constexpr,
    padded: tl.constexpr,
    quantise: tl.constexpr,
    pdl: tl.constexpr,
):
    """silu(gate) * up of each route, in its padded row with padded, else in its own; through MXFP8 with quantise."""
    _wait(pdl)
    row, c = tl.program_id(0), tl.program_id(1) * part + tl.arange(0, part)
    if padded:
        row = tl.load(row_of_route + row)
    inside = c < intermediate
    gate = tl.load(gate_up + row * (2 * intermediate) + c, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * intermediate) + intermediate + c, mask=inside, other=0.0).to(tl.float32)
    values = gate / (1.0 + tl.exp(-gate)) * up
    if quantise:
        values = _through_mxfp8(values, part)
    tl.store(activated + row * intermediate + c, values.to(tl.bfloat16), mask=inside)


@triton.jit
def moe_scatter(down, row_of_route, routed, hidden: tl.constexpr, part: tl.constexpr, pdl: tl.constexpr):
    """The padded row of each route back into the order of the routes."""
    _wait(pdl)
    route, c = tl.program_id(0), tl.program_id(1) * part + tl.arange(0, part)
    row = tl.load(row_of_route + route)
    tl.store(routed + route * hidden + c, tl.load(down + row * hidden + c, mask=c < hidden), mask=c < hidden)


@triton.jit
def moe_combine(routed, weights, y, top_k: tl.constexpr, hidden: tl.constexpr, part: tl.constexpr, pdl: tl.constexpr):
    """y of each token: its routes' rows times their weights, added in the order of the slots."""
    _wait(pdl)
    token, c = tl.program_id(0), tl.program_id(1) * part + tl.arange(0, part)
    sums = tl.zeros((part,), tl.float32)
    for slot in tl.static_range(top_k):
        route = token * top_k + slot
        values = tl.load(routed + route * hidden + c, mask=c < hidden, other=0.0).to(tl.float32)
        sums += values * tl.load(weights + route)
    tl.store(y + token * hidden + c, sums.to(tl.bfloat16), mask=c < hidden)
