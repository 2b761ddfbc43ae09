"""What fits where: warps, shared memory and scratch of the kernels of ``moe_decode`` for a layer, its tiles and a number of tokens. No torch.

Rules:
1. The kernels compute the same sizes again and end with a message where they were given less.
2. A refusal is one sentence: needed, found.
"""

from benchkit.kernels.warp_decode.configuration import (
    GROUP,
    LAYOUTS,
    TILE_K,
    TILE_ROWS,
    WIDE_GROUPS,
    WIDE_WARPS,
    DownTiles,
    LayerShape,
    ProductTiles,
    Tiles,
)

COMBINE_THREADS, COMBINE_WIDTH = 128, 4  # combine.cu: threads of a CTA, outputs of a thread
_SM_REGISTERS = 65536
_SM_THREADS = 1536  # of every device with compute capability 9.0 and more
_RESERVED = 1024  # bytes of shared memory that the driver keeps of a CTA


def tiles_problem(shape: LayerShape, tiles: Tiles, tokens: int, *, sm_bytes: int, cta_bytes: int) -> str | None:
    """Why these tiles do not fit this layer on a device with ``sm_bytes`` of shared memory, ``cta_bytes`` at most in a CTA, or None."""
    layout = LAYOUTS[shape.layout]
    for name, count in (("up_tiles", tiles.up.tiles), ("down_tiles", tiles.down.tiles)):
        if count > layout.paired:
            return f"{shape.layout} needs {name} of at most {layout.paired}, found {count}"
    for name, groups in (("up_groups", tiles.up.groups), ("down_groups", tiles.down.groups)):
        if groups == WIDE_GROUPS and not layout.wide:
            return f"needs {name} of at most 4 with {shape.layout}, found {groups}"
    if tiles.chains > 1 and layout.weight_format != "awq-int4-g128":
        return f"needs chains = 1 with {shape.layout}, found {tiles.chains}"
    if tiles.down.product:
        needed = product_warps(shape.intermediate, tiles.down.groups)
        if tiles.down.warps != needed:
            return f"needs down_warps = {needed} with down_pairwise = 2, found {tiles.down.warps}"
    threads_of = (("up", up_warps(shape, tiles.up) * 32, tiles.up), ("down", tiles.down.warps * 32, tiles.down))
    for name, threads, part in threads_of:
        warps = threads // 32 * part.ctas_per_sm
        most = 4 * (_SM_REGISTERS // 4 // (32 * (-(-part.registers // 8) * 8)))  # a warp's registers lie in one quarter
        if warps > most:
            return f"needs at most {most} warps of {part.registers} registers on an SM for {name}, found {warps}"
        if threads * part.ctas_per_sm > _SM_THREADS:
            return f"needs at most {_SM_THREADS} threads of an SM for {name}, found {threads} x {part.ctas_per_sm}"
    for name, needed in (
        ("up", up_shared_bytes(shape, tiles.up, tokens)),
        ("down", down_shared_bytes(shape, tiles.down, tokens)),
    ):
        if needed > cta_bytes:
            return f"needs at most {cta_bytes} bytes of shared memory in a CTA for {name}, found {needed}"
    products = [("gate/up", tiles.up.ctas_per_sm, up_shared_bytes(shape, tiles.up, tokens))]
    if tiles.down.product:
        products.append(("down", tiles.down.ctas_per_sm, down_shared_bytes(shape, tiles.down, tokens)))
    for name, ctas, size in products:
        if ctas * (size + _RESERVED) > sm_bytes:
            return f"needs {ctas} CTAs of {name} in the {sm_bytes} bytes of an SM, found {size} bytes each"
    return None


def up_warps(shape: LayerShape, tiles: ProductTiles) -> int:
    """Warps of a CTA of gate/up."""
    return product_warps(shape.hidden, tiles.groups)


def product_warps(columns: int, groups: int) -> int:
    """Warps of a CTA of a product: with product.cu at most 8, each with as many blocks of 256 columns."""
    if groups == WIDE_GROUPS:
        return WIDE_WARPS
    blocks = -(-columns // TILE_K)
    return -(-blocks // -(-blocks // 8))


def up_shared_bytes(shape: LayerShape, tiles: ProductTiles, tokens: int) -> int:
    """Dynamic shared memory that a CTA of gate/up uses."""
    return _product_shared_bytes(shape, tiles, tokens, up_warps(shape, tiles))


def _product_shared_bytes(shape: LayerShape, tiles: ProductTiles, tokens: int, warps: int) -> int:
    lists, mask = (count(shape, tokens, tiles.entry_tokens) for count in (list_bytes, mask_bytes))
    if tiles.wide:  # 64 columns of the warps' row tiles and of the inputs, in 2 bytes each
        stage = 2 * 64 * (WIDE_WARPS * tiles.flush * TILE_ROWS + tiles.entry_tokens)
        return (tiles.stages - 1) * stage + max(stage, mask) + lists
    ring = warps * tiles.stages * (LAYOUTS[shape.layout].stage_bytes * tiles.tiles + 8)
    sums = 2 * warps * tiles.flush * tiles.groups * 32 * 16  # two buffers of those that meet
    return ring + max(sums, mask) + lists


def down_shared_bytes(shape: LayerShape, tiles: DownTiles, tokens: int) -> int:
    """Dynamic shared memory that a CTA of down uses."""
    if tiles.product:
        return _product_shared_bytes(shape, tiles.product, tokens, tiles.warps)
    ring = tiles.warps * tiles.stages * (LAYOUTS[shape.layout].stage_bytes * tiles.tiles + 8)
    parts = 0 if tiles.pairwise else tiles.warps * tokens * TILE_ROWS * tiles.row_tiles * 4
    pairs = tokens * shape.top_k
    kept = 2 * (pairs + pairs % 2) if tiles.pairwise else 4 * pairs  # places, or routing weights
    lists = kept + list_bytes(shape, tokens, tiles.entry_tokens)
    return ring + max(parts, mask_bytes(shape, tokens, tiles.entry_tokens)) + lists


def mask_bytes(shape: LayerShape, tokens: int, entry_tokens: int) -> int:
    """A bit for each token and expert, tokens in words of 32, and for large entries 2 bytes a word and an id (frame.cu, MANY); a multiple of 16."""
    words, many = -(-tokens // 32) * shape.experts, entry_tokens > 2 * GROUP
    return -(-(words * 6 + tokens * shape.top_k * 2 if many else words * 4) // 16) * 16


def list_bytes(shape: LayerShape, tokens: int, entry_tokens: int) -> int:
    """The routing lists that both kernels have in a CTA (frame.cu, Lists::bytes)."""
    pairs = tokens * shape.top_k
    entries = min(pairs, min(pairs, shape.experts) + pairs // entry_tokens)
    return entries * 8 + 2 * (pairs + pairs % 2) + 2 * (shape.experts + shape.experts % 2) + 8


def scratch_elements(shape: LayerShape, tiles: DownTiles, tokens: int) -> int:
    """Two-byte elements between the kernels: h [pairs, intermediate], and where rows go through memory these in fp32, [pairs, hidden]."""
    return tokens * shape.top_k * (shape.intermediate + (2 * shape.hidden if tiles.pairwise else 0))


def combine_grid(shape: LayerShape, tokens: int) -> int:
    """CTAs of ``COMBINE_THREADS`` threads that add the rows of all tokens."""
    return -(-tokens * shape.hidden // (COMBINE_THREADS * COMBINE_WIDTH))


def launched_bytes(needed: int, ctas_per_sm: int, *, sm_bytes: int, cta_bytes: int) -> int:
    """``needed``, raised so that no more than ``ctas_per_sm`` CTAs fit an SM."""
    crowding = sm_bytes // (ctas_per_sm + 1) - _RESERVED + 1
    return min(max(needed, -(-crowding // 128) * 128), cta_bytes)
