"""How vLLM's Marlin-MoE kernel spreads tiles over CUDA blocks, and where it cuts the reduction: pure arithmetic, no GPU.

Rules (G tiles, ``grid`` CUDA blocks, k_tiles steps along K for each tile):
1. Tile t = moe_block * n_tiles + n, with n_tiles = size_n / thread_n and k_tiles = size_k / thread_k; G = blocks * n_tiles.
2. The last ``shared`` tiles are shared out: G where G <= grid, else G mod grid, plus grid where three times that is at most grid.
   The tiles before them are *direct*: CUDA block t mod grid walks all of K.
3. The K tiles of the shared ones form one line, cut every ``stripe`` = ceil(k_tiles * shared / grid), rounded up to whole groups of scales
   where a group holds several K tiles. CUDA block i takes stripe i. A tile in one piece is *single-slice*, in n pieces *split(n)*.
4. A split tile is reduced in series in fp32, from the slice of the highest K down. So the cut points alone decide the bits of a tile:
   direct and single-slice have the same.

Source: csrc/moe/marlin_moe_wna16/marlin_template.h of vLLM 0.20.0, lines 385-416, 567-661, 2187-2195 ("DP + two-tile SK", pull request 24722).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from benchkit.errors import DataError

DIRECT = "direct"
SINGLE_SLICE = "single-slice"
PER_COLUMN = -1  # one group of scales per column: stripes are not rounded to groups

Cuts: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A piece of a tile: K tiles ``start`` to ``start + length - 1``, done by CUDA block ``cuda_block``."""

    start: int
    length: int
    cuda_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of one launch; make it with ``schedule``.

    Parameters
    ----------
    blocks:
        MoE blocks (aligned rows / block size).
    n_tiles, k_tiles:
        Tiles along N of one MoE block, and K tiles of each.
    thread_n, thread_k:
        Columns and K rows of a tile.
    grid:
        CUDA blocks of the launch.
    direct_tiles:
        The first so many global tiles are direct.
    stripe:
        K tiles of one CUDA block in the shared part.
    """

    blocks: int
    n_tiles: int
    k_tiles: int
    thread_n: int
    thread_k: int
    grid: int
    direct_tiles: int
    stripe: int

    @property
    def tiles(self) -> int:
        """Global (MoE block, N tile) tiles."""
        return self.blocks * self.n_tiles

    def slices(self, tile: int) -> tuple[Slice, ...]:
        """The pieces of a global tile, K ascending."""
        if not 0 <= tile < self.tiles:
            raise DataError(f"tile: expected 0 to {self.tiles - 1}, found {tile}")
        if tile < self.direct_tiles:
            return (Slice(start=0, length=self.k_tiles, cuda_block=tile % self.grid),)
        first = (tile - self.direct_tiles) * self.k_tiles
        last = first + self.k_tiles
        pieces = []
        for owner in range(first // self.stripe, (last - 1) // self.stripe + 1):
            start, end = max(first, owner * self.stripe), min(last, (owner + 1) * self.stripe)
            pieces.append(Slice(start=start - first, length=end - start, cuda_block=owner))
        return tuple(pieces)

    def cuts(self, tile: int) -> Cuts:
        """(start, length) in K tiles of each piece, K ascending: what decides the bits of the tile."""
        return tuple((piece.start, piece.length) for piece in self.slices(tile))

    def tile_class(self, tile: int) -> str:
        """``direct``, ``single-slice`` or ``split(n)``."""
        pieces = len(self.slices(tile))
        if tile < self.direct_tiles:
            return DIRECT
        return SINGLE_SLICE if pieces == 1 else f"split({pieces})"

    def block_classes(self, block: int) -> tuple[str, ...]:
        """The class of each N tile of a MoE block."""
        return tuple(self.tile_class(tile) for tile in self.tiles_of(block))

    def block_cuts(self, block: int) -> tuple[Cuts, ...]:
        """The cut points of each N tile of a MoE block: equal for two blocks whose rows may be exchanged without changing a bit."""
        return tuple(self.cuts(tile) for tile in self.tiles_of(block))

    def tiles_of(self, block: int) -> range:
        """The global tiles of a MoE block."""
        if not 0 <= block < self.blocks:
            raise DataError(f"block: expected 0 to {self.blocks - 1}, found {block}")
        return range(block * self.n_tiles, (block + 1) * self.n_tiles)

    def counts(self) -> Mapping[str, int]:
        """Tiles of each class, in the order of their first tile."""
        found: dict[str, int] = {}
        for tile in range(self.tiles):
            name = self.tile_class(tile)
            found[name] = found.get(name, 0) + 1
        return found


def schedule(
    *, blocks: int, size_n: int, size_k: int, thread_n: int, thread_k: int, grid: int, group: int = 128
) -> Schedule:
    """The schedule of a GEMM [rows of ``blocks`` MoE blocks, size_k] x [size_k, size_n].

    ``group`` is the rows that share a scale; ``PER_COLUMN`` (or size_k, which the op makes of it) means one group.
    Raises DataError where tiles do not fill the matrix, or groups and K tiles do not fill each other.
    """
    positive = {
        "blocks": blocks,
        "size_n": size_n,
        "size_k": size_k,
        "thread_n": thread_n,
        "thread_k": thread_k,
        "grid": grid,
    }
    for name, value in positive.items():
        if value < 1:
            raise DataError(f"{name}: expected at least 1, found {value}")
    for size_name, size, tile_name, tile in (
        ("size_n", size_n, "thread_n", thread_n),
        ("size_k", size_k, "thread_k", thread_k),
    ):
        if size % tile:
            raise DataError(
                f"{tile_name} = {tile}: expected a divisor of {size_name} = {size}, found {size} mod {tile} = {size % tile}"
            )
    if group != PER_COLUMN and (group < 1 or size_k % group or (group % thread_k and thread_k % group)):
        raise DataError(
            f"group = {group}: expected {PER_COLUMN}, or a divisor of size_k = {size_k} that divides thread_k = {thread_k} "
            "or is a multiple of it"
        )
    n_tiles, k_tiles = size_n // thread_n, size_k // thread_k
    tiles = blocks * n_tiles
    shared = tiles
    if tiles > grid:
        shared = tiles % grid
        if 3 * shared <= grid:
            shared += grid
    stripe = -(-k_tiles * shared // grid)
    if group not in (PER_COLUMN, size_k) and group > thread_k:
        ratio = group // thread_k
        stripe = -(-stripe // ratio) * ratio
    return Schedule(
        blocks=blocks,
        n_tiles=n_tiles,
        k_tiles=k_tiles,
        thread_n=thread_n,
        thread_k=thread_k,
        grid=grid,
        direct_tiles=tiles - shared,
        stripe=stripe,
    )
