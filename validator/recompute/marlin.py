"""Marlin's schedule and the membership of MoE blocks, derived by walking: CUDA block by CUDA block, aligned row by aligned row.

Rules (results/README.md, "Mechanism bundles"):
1. Tiles are numbered block by block; those that do not fit whole waves of the grid are shared out along one line of K
   tiles, which every CUDA block cuts at its stripe.
2. Class: ``direct`` for a tile of a whole wave, else ``single-slice`` or ``split(n)`` by the number of its pieces.
3. The mode of an alignment is the sequence of (expert, block, sorted routes of the block); padding does not enter.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from validator.reading.canonical import digest_of, sha256
from validator.reading.study import Sizes, Tile

Pieces = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSchedule:
    """Cut points and class of every global tile, and N tiles of a MoE block."""

    pieces: tuple[Pieces, ...]
    classes: tuple[str, ...]
    width: int

    @property
    def digest(self) -> str:
        """The digest of all cut points."""
        return digest_of([[list(piece) for piece in tile] for tile in self.pieces])

    @property
    def counts(self) -> str:
        """Classes with their numbers of tiles, in the order of their first tile."""
        names = dict.fromkeys(self.classes)
        return ",".join(f"{name}={self.classes.count(name)}" for name in names)

    def of_block(self, block: int) -> tuple[str, ...]:
        """The classes of a MoE block's tiles."""
        return self.classes[block * self.width : (block + 1) * self.width]


def walk_tiles(sizes: Sizes, gemm: str, tile: Tile, blocks: int) -> TileSchedule:
    """Walk over all CUDA blocks of a launch and note what each of them does to which tile."""
    width, depth = sizes.columns(gemm) // tile.thread_n, sizes.reduction(gemm) // tile.thread_k
    total = blocks * width
    waves, rest = divmod(total, tile.grid)
    whole = waves * tile.grid
    if total <= tile.grid:
        whole, rest = 0, total
    elif 3 * rest <= tile.grid:
        whole, rest = whole - tile.grid, rest + tile.grid
    stripe = -(-depth * rest // tile.grid)
    if tile.thread_k < sizes.group < sizes.reduction(gemm):
        per_group = sizes.group // tile.thread_k
        stripe = -(-stripe // per_group) * per_group
    cut: list[list[tuple[int, int]]] = [[(0, depth)] if t < whole else [] for t in range(total)]
    for worker in range(tile.grid):
        at, end = worker * stripe, min((worker + 1) * stripe, rest * depth)
        while at < end:
            place, start = divmod(at, depth)
            length = min(depth - start, end - at)
            cut[whole + place].append((start, length))
            at += length
    classes = tuple(
        "direct" if t < whole else "single-slice" if len(pieces) == 1 else f"split({len(pieces)})"
        for t, pieces in enumerate(cut)
    )
    return TileSchedule(pieces=tuple(map(tuple, cut)), classes=classes, width=width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Aligned rows (padding is the number of routes) and the expert of each block."""

    rows: tuple[int, ...]
    experts: tuple[int, ...]
    block: int
    routes: int

    @property
    def digest(self) -> str:
        """SHA-256 of rows, then experts, as int32 little-endian."""
        return sha256(struct.pack(f"<{len(self.rows) + len(self.experts)}i", *self.rows, *self.experts))

    @property
    def mode(self) -> str:
        """SHA-256 of the RFC 8785 JSON of (expert, block, sorted routes) over all blocks."""
        return digest_of([[expert, j, sorted(self.members(j))] for j, expert in enumerate(self.experts)])

    def members(self, block: int) -> list[int]:
        """The routes of a block, in the order of its rows."""
        return [r for r in self.rows[block * self.block : (block + 1) * self.block] if r != self.routes]

    def block_of(self, route: int) -> int | None:
        """The block that holds a route."""
        return self.rows.index(route) // self.block if route in self.rows else None


def laid_out(ids: Sequence[int], order: Sequence[int], block: int) -> Aligned:
    """Lay an order of the valid routes (experts ascending) out in blocks of one expert."""
    rows: list[int] = []
    experts: list[int] = []
    for route in order:
        if experts and experts[-1] != ids[route]:
            rows += [len(ids)] * (-len(rows) % block)
        if len(rows) % block == 0:
            experts.append(ids[route])
        rows.append(route)
    rows += [len(ids)] * (-len(rows) % block)
    return Aligned(rows=tuple(rows), experts=tuple(experts), block=block, routes=len(ids))


def alignment_problems(found: Aligned, ids: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Say in what an alignment is none of a routing: pairs of expected and found."""
    order = [route for route in found.rows if route != found.routes]
    outside = [route for route in order if not 0 <= route < len(ids) or ids[route] < 0]
    if outside:
        yield f"valid routes of 0 to {len(ids) - 1}", f"route {outside[0]}"
        return
    doubled = len(order) - len(set(order))
    if doubled:
        yield "every valid route once", f"{doubled} of them again"
        return
    for j, expert in enumerate(found.experts):
        stranger = next((route for route in found.members(j) if ids[route] != expert), None)
        if stranger is not None:
            yield (
                f"routes of expert {ids[stranger]} in a block of it",
                f"route {stranger} in block {j} of expert {expert}",
            )
            return
    wanted = laid_out(ids, sorted(order, key=lambda route: ids[route]), found.block)
    if (wanted.rows, wanted.experts) != (found.rows, found.experts):
        yield "experts ascending, each padded to whole blocks", "other blocks or padding"
    valid = sum(expert >= 0 for expert in ids)
    if len(order) != valid:
        yield f"{valid} routes", f"{len(order)} routes"
