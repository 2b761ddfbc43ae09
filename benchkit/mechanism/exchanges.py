"""Which exchanges of two routes change the arithmetic: blocks of one expert whose tiles are cut differently.

Rules:
1. Exchanging two routes of one expert between blocks changes bits only in their two rows, and only in the N tiles whose K cut points differ.
2. Direct and single-slice tiles are cut alike: an exchange between them changes the class and not a bit. It is not listed.
3. The classes follow from the number of blocks: a routing with one block more moves all cut points.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from benchkit.errors import DataError
from benchkit.fixture.alignment import Alignment
from benchkit.kernels.marlin_schedule import Schedule, schedule
from benchkit.kernels.marlin_selector import GPUS, select
from benchkit.mechanism.limits import MAX_PAIRS, MAX_TILES, refuse_beyond
from benchkit.mechanism.membership import align_file, heading, overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A GEMM and its launch; give ``gpu`` (its name) or all of ``thread_k``, ``thread_n`` and ``grid``.

    ``size_k`` x ``size_n`` is the weight, ``group`` its rows that share a scale.
    """

    size_n: int
    size_k: int
    group: int
    gpu: str | None = None
    thread_k: int | None = None
    thread_n: int | None = None
    grid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Two blocks of an expert between which an exchange of routes changes bits, in ``tiles`` of the N tiles."""

    expert: int
    first: int
    second: int
    first_routes: tuple[int, ...]
    second_routes: tuple[int, ...]
    tiles: int


def exchanges(alignment: Alignment, plan: Schedule) -> tuple[Exchange, ...]:
    """All pairs of blocks of one expert that are cut differently somewhere, in the order of experts and blocks."""
    found = []
    for one in overflows(alignment):
        members = dict(zip(one.blocks, one.members, strict=True))
        cuts = {block: plan.block_cuts(block) for block in one.blocks}
        for first, second in combinations(one.blocks, 2):
            tiles = sum(left != right for left, right in zip(cuts[first], cuts[second], strict=True))
            if tiles:
                found.append(
                    Exchange(
                        expert=one.expert,
                        first=first,
                        second=second,
                        first_routes=members[first],
                        second_routes=members[second],
                        tiles=tiles,
                    )
                )
    return tuple(found)


def plan_launch(launch: Launch, alignment: Alignment, tokens: int, top_k: int) -> Schedule:
    """The schedule of the launch; where ``gpu`` is given, by what the op chooses there for fp16. DataError on contradictions."""
    explicit = (launch.thread_k, launch.thread_n, launch.grid)
    if launch.gpu is None:
        thread_k, thread_n, grid = explicit
        if thread_k is None or thread_n is None or grid is None:
            raise DataError("expected --gpu, or all of --thread-k, --thread-n and --grid")
    elif explicit != (None, None, None):
        raise DataError("expected --gpu or --thread-k, --thread-n and --grid, found both")
    elif launch.gpu not in GPUS:
        raise DataError(f"--gpu: expected one of {', '.join(GPUS)}, found {launch.gpu}")
    else:
        chosen = select(
            GPUS[launch.gpu],
            tokens=tokens,
            top_k=top_k,
            size_n=launch.size_n,
            size_k=launch.size_k,
            block=alignment.block,
        )
        thread_k, thread_n, grid = chosen.thread_k, chosen.thread_n, chosen.grid
    return schedule(
        blocks=alignment.blocks,
        size_n=launch.size_n,
        size_k=launch.size_k,
        thread_n=thread_n,
        thread_k=thread_k,
        grid=grid,
        group=launch.group,
    )


def describe_schedule(path: Path, launch: Launch, *, experts: int, block: int, point: str | None = None) -> list[str]:
    """The lines of ``benchkit mechanism schedule``."""
    ids, alignment = align_file(path, experts, block, point)
    if not alignment.expert_ids.size:
        raise DataError(f"{path}: expected a route of an expert of this device, found -1 alone: nothing is launched")
    plan = plan_launch(launch, alignment, *ids.shape)
    refuse_beyond(
        MAX_TILES, plan.tiles, f"tiles of {plan.blocks} blocks x {plan.n_tiles} along N", "give a larger --thread-n"
    )
    of_experts = Counter(alignment.expert_ids.tolist()).values()
    pairs = sum(blocks * (blocks - 1) // 2 for blocks in of_experts)
    refuse_beyond(MAX_PAIRS, pairs, f"{path}: pairs of blocks of one expert", "give a larger --block, or fewer routes")
    counts = ", ".join(f"{name} {count}" for name, count in plan.counts().items())
    return [
        *heading(path, ids, alignment, experts),
        f"tiles of {plan.thread_k} x {plan.thread_n} (K x N): {plan.n_tiles} along N, {plan.k_tiles} along K, {plan.tiles} in all; grid {plan.grid}",
        f"{counts}; {plan.stripe} K tiles to a CUDA block in the shared part",
        "",
        "block  expert  routes  class",
        *(
            f"{j:>5}  {expert:>6}  {len(alignment.members(j)):>6}  {_classes(plan, j)}"
            for j, expert in enumerate(alignment.expert_ids)
        ),
        "",
        *_swaps(exchanges(alignment, plan), plan),
    ]


def _classes(plan: Schedule, block: int) -> str:
    names = plan.block_classes(block)
    distinct = list(dict.fromkeys(names))
    return distinct[0] if len(distinct) == 1 else ", ".join(f"{name} x {names.count(name)}" for name in distinct)


def _swaps(found: tuple[Exchange, ...], plan: Schedule) -> list[str]:
    if not found:
        return ["no swap of two routes of one expert changes how they are cut along K"]
    lines = ["routes (stable order) that a swap would cut differently along K:"]
    for one in found:
        left, right = (" ".join(map(str, routes)) for routes in (one.first_routes, one.second_routes))
        lines.append(
            f"  expert {one.expert}: block {one.first} ({left}) with block {one.second} ({right}), "
            f"in {one.tiles} of {plan.n_tiles} N tiles"
        )
    return lines
