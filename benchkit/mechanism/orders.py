"""The order of routes that a cell runs under a history, and the checks that a study's words hold for its plans.

Rules:
1. ``native``: as the op gives it under the history. ``own`` and ``other`` inject the plan of the history's own mode, or of the other history's.
2. ``swap`` exchanges two routes of the injected plan, of one expert; ``stable`` sorts by (expert, route).
"""

from collections.abc import Iterator
from pathlib import Path

from benchkit.errors import DataError
from benchkit.fixture.alignment import swap
from benchkit.fixture.plans import Plans, read_plans
from benchkit.kernels.marlin_schedule import Schedule, schedule
from benchkit.kernels.marlin_selector import block_size, tiles
from benchkit.protocol.study import CPU_EMULATION, GEMMS, HISTORIES, NATIVE, OTHER, OWN, Cell, LayerSizes, Study, Tiling
from benchkit.units import IntArray

MARLIN_GROUP = 128  # of the op as it is compiled in here


def mode_of(study: Study, cell: Cell, history: str) -> str:
    """Name of the plan that the cell starts from under the history."""
    other = HISTORIES[1 - HISTORIES.index(history)]
    return study.modes[other if cell.order == OTHER else history]


def injected_plan(study: Study, plans: Plans, cell: Cell, history: str) -> IntArray | None:
    """The plan that a cell injects under a history; None for the stable order. A native cell injects none: DataError."""
    if cell.order == NATIVE:
        raise DataError(f"cell {cell.name}: a native order is the op's, not injected")
    if cell.order not in (OWN, OTHER):
        return None
    plan = plans.plans[mode_of(study, cell, history)]
    return plan if cell.swap is None else swap(plan, cell.swap.first, cell.swap.second)


def tile_schedule(layer: LayerSizes, gemm: str, tiling: Tiling, blocks: int) -> Schedule:
    """Marlin's schedule of one GEMM of the layer."""
    size_k, size_n = layer.weight(gemm)
    return schedule(
        blocks=blocks,
        size_n=size_n,
        size_k=size_k,
        thread_n=tiling.thread_n,
        thread_k=tiling.thread_k,
        grid=tiling.grid,
        group=layer.group,
    )


def load_plans(study: Study, path: Path) -> Plans:
    """The plans of a study, from its asset; DataError where routing, plans and swaps are not what the study says."""
    plans = read_plans(path)
    problems = list(_problems(study, plans))
    if problems:
        raise DataError(f"{path}: " + "; ".join(problems))
    return plans


def _problems(study: Study, plans: Plans) -> Iterator[str]:
    layer = study.layer
    wanted = (layer.experts, layer.block, (layer.tokens, layer.top_k))
    found = (plans.experts, plans.block, plans.topk_ids.shape)
    if wanted != found:
        yield f"expected experts, block, [tokens, top_k] = {wanted} as in [fixture], found {found}"
        return
    missing = [name for name in study.modes.values() if name not in plans.plans]
    if missing:
        yield f"histories: no plan is named {', '.join(missing)}; there are {', '.join(plans.plans)}"
        return
    blocks = plans.alignment(None).blocks
    wanted_block = block_size(layer.tokens, layer.top_k, layer.experts)
    if study.engine != CPU_EMULATION and (layer.group != MARLIN_GROUP or layer.block != wanted_block):
        yield f"engine {study.engine}: expected group {MARLIN_GROUP} and block {wanted_block}, found {layer.group} and {layer.block}"
    for cell in study.cells:
        for gemm in GEMMS:
            tile = (cell.launches[gemm].thread_k, cell.launches[gemm].thread_n)
            if study.engine != CPU_EMULATION and tile not in [(k, n) for k, n, _ in tiles(wanted_block)]:
                yield f"cell {cell.name}: {gemm}: expected a tile of the kernel, found {tile[0]} x {tile[1]}"
            try:
                tile_schedule(layer, gemm, cell.launches[gemm], blocks)
            except DataError as error:
                yield f"cell {cell.name}: {gemm}: {error}"
        if cell.swap is not None:
            yield from _swap_problems(study, plans, cell)


def _swap_problems(study: Study, plans: Plans, cell: Cell) -> Iterator[str]:
    swapped = cell.swap
    assert swapped is not None  # asked for by the caller
    for history in HISTORIES:
        alignment = plans.alignment(plans.plans[mode_of(study, cell, history)])
        places = [
            next((j for j in range(alignment.blocks) if route in alignment.members(j)), None)
            for route in (swapped.first, swapped.second)
        ]
        experts = [None if j is None else int(alignment.expert_ids[j]) for j in places]
        if None in places or experts[0] != experts[1]:
            yield f"cell {cell.name}: swap: expected two valid routes of one expert, found experts {experts}"
            return
        if (places[0] == places[1]) is not swapped.same_block:
            said = "same" if swapped.same_block else "different"
            yield f"cell {cell.name}: swap: expected blocks to be {said} under {history}, found blocks {places}"
