"""The engine of studies on an H200: what it consumes is what was asked, the interventions do what the schedule says, and the emulation beside it.

The layer is that of the protocol: 168 routes, 50 blocks, expert 106 in blocks 40 and 41. P0 and P1 are made here: they differ by one exchange, of routes
51 and 86, so that the swap across carries one whole trajectory over into the other.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchkit.errors import DataError
from benchkit.fixture.alignment import align, study_ids, swap
from benchkit.fixture.plans import Plans, capture
from benchkit.fixture.study_layer import synthetic_layer
from benchkit.kernels import vllm_ops
from benchkit.kernels.contract import Support
from benchkit.mechanism.emulation import layer
from benchkit.mechanism.marlin_engine import MarlinEngine
from benchkit.mechanism.native_order import native_orders
from benchkit.mechanism.orders import tile_schedule
from benchkit.mechanism.raw_engine import RawMarlinEngine
from benchkit.mechanism.trajectory import Trajectory, treatment_sha256
from benchkit.protocol.study import SURFACES, Study, Swap, Tiling, read_study

pytestmark = pytest.mark.gpu

STUDY = Path(__file__).parents[2] / "protocols" / "route-membership-h200.toml"
RAW = STUDY.with_name("route-membership-raw-h200.toml")
REPEATS = 5
SWAPS = {
    "swap_within": Swap(first=22, second=28, same_block=True),
    "swap_across": Swap(first=51, second=86, same_block=False),
}


def exchanging(path: Path) -> Study:
    """The protocol's study with the swaps that suit the plans here."""
    study = read_study(path)
    return replace(study, cells=tuple(replace(cell, swap=SWAPS.get(cell.name)) for cell in study.cells))


@pytest.fixture(scope="module")
def study() -> Study:
    if torch.cuda.get_device_properties(0).multi_processor_count != 132:
        pytest.skip("the study's grids are multiples of 132 multiprocessors")
    found = vllm_ops.load()
    if isinstance(found, Support):
        pytest.skip(str(found.reason))
    return exchanging(STUDY)


@pytest.fixture(scope="module")
def plans() -> Plans:
    ids = study_ids()
    stable = align(ids, 128, 8).plan
    weights = np.full(ids.shape, 0.125, dtype=np.float32)
    orders = {"P0": (stable.tolist(), "stable"), "P1": (swap(stable, 51, 86).tolist(), "one exchange")}
    return capture(ids, weights, experts=128, block=8, orders=orders)


@pytest.fixture(scope="module")
def engines(study: Study, plans: Plans, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, MarlinEngine]]:
    """An engine under each history; the treatments of a study come in processes of their own."""
    made = {}
    for history in ("H0", "H1"):
        made[history] = MarlinEngine(study, plans, tmp_path_factory.mktemp(history))
        made[history].treat(history)
        made[history].build()
    yield made
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def raw(study: Study, plans: Plans, tmp_path_factory: pytest.TempPathFactory) -> RawMarlinEngine:
    """The engine with free grids, without a treatment; an order of H1 may be injected all the same."""
    engine = RawMarlinEngine(exchanging(RAW), plans, tmp_path_factory.mktemp("raw"))
    engine.treat("H0")
    engine.build()
    return engine


@pytest.fixture(scope="module")
def made(study: Study, engines: dict[str, MarlinEngine]) -> dict[str, Trajectory]:
    """Every place of the study but the native ones, run once; the first must repeat itself to the bit."""
    found = {
        f"{cell.name}/{history}": engines[history].run(cell, history)
        for cell in study.cells
        if cell.name != "native"
        for history in engines
    }
    for _ in range(REPEATS):
        again = engines["H0"].run(study.cell("reinjected"), "H0")
        assert differing(again, found["reinjected/H0"]) == dict.fromkeys(SURFACES, 0)
    return found


def differing(one: Trajectory, other: Trajectory) -> dict[str, int]:
    """Elements that differ, by surface."""
    return {
        name: int((one.surfaces[name].view(np.uint16) != other.surfaces[name].view(np.uint16)).sum())
        for name in SURFACES
    }


def rows(one: Trajectory, other: Trajectory, surface: str) -> set[int]:
    a, b = (each.surfaces[surface].view(np.uint16) for each in (one, other))
    return set(np.flatnonzero((a != b).any(axis=1)).tolist())


def test_markers_of_treatment_and_launch(study: Study, plans: Plans, made: dict[str, Trajectory]) -> None:
    x = synthetic_layer(study.layer).x
    resident = treatment_sha256((x, plans.topk_weights, plans.topk_ids))
    for place, trajectory in made.items():
        expected = ("none", treatment_sha256(())) if place.endswith("H0") else ("resident-tensors:3", resident)
        assert (trajectory.treatment, trajectory.treatment_sha256) == expected
        grid = 132 if place.startswith("whole_tiles") else 528
        assert {gemm: (one.thread_k, one.thread_n, one.grid) for gemm, one in trajectory.launches.items()} == {
            "w13": (128, 64, grid),
            "w2": (128, 64, grid),
        }
    assert made["stable/H0"].alignment.plan.tolist() == plans.plans["P0"].tolist()


def test_an_exchange_across_blocks_that_are_cut_differently_moves_its_rows_alone(made: dict[str, Trajectory]) -> None:
    one, other = made["reinjected/H0"], made["reinjected/H1"]
    assert rows(one, other, "w13")
    for surface in ("w13", "activation", "routed_w2"):
        assert rows(one, other, surface) <= {51, 86}
    assert rows(one, other, "final") <= {51 // 8, 86 // 8}
    assert differing(made["swap_across/H0"], other) == dict.fromkeys(SURFACES, 0)
    assert differing(made["cross_order/H0"], other) == dict.fromkeys(SURFACES, 0)


def test_a_swap_inside_a_block_and_a_grid_of_whole_blocks_change_nothing(made: dict[str, Trajectory]) -> None:
    for history in ("H0", "H1"):
        assert differing(made[f"swap_within/{history}"], made[f"reinjected/{history}"]) == dict.fromkeys(SURFACES, 0)
    assert differing(made["whole_tiles/H0"], made["whole_tiles/H1"]) == dict.fromkeys(SURFACES, 0)
    assert differing(made["whole_tiles/H0"], made["reinjected/H0"])["w13"] > 0


def test_a_grid_that_the_op_could_have_launched_gives_the_bits_of_the_op(
    study: Study, engines: dict[str, MarlinEngine], raw: RawMarlinEngine
) -> None:
    for grid in (132, 264):
        tiling = Tiling(thread_k=64, thread_n=128, grid=grid)
        cell = replace(study.cell("reinjected"), launches={"w13": tiling, "w2": tiling})
        one, other = engines["H0"].run(cell, "H0"), raw.run(cell, "H0")
        assert one.launches == other.launches
        assert differing(one, other) == dict.fromkeys(SURFACES, 0)


def test_the_grids_of_the_published_study(raw: RawMarlinEngine) -> None:
    """246: exchanging across blocks 40 and 41 changes bits of the two moved rows alone, inside block 40 none; 200: neither does."""
    study = exchanging(RAW)
    own, within, across = (raw.run(study.cell(name), "H0") for name in ("reinjected", "swap_within", "swap_across"))
    again = raw.run(study.cell("reinjected"), "H0")
    whole = [raw.run(study.cell("whole_tiles"), history) for history in ("H0", "H1")]
    for trajectory, grid in ((own, 246), (within, 246), (across, 246), (whole[0], 200), (whole[1], 200)):
        assert {gemm: one.grid for gemm, one in trajectory.launches.items()} == {"w13": grid, "w2": grid}
    assert own.launches["w13"].classes == "direct=492,split(2)=108"
    assert whole[0].launches["w13"].classes == "direct=400,single-slice=200"
    print("246, across:", differing(own, across), "in rows", sorted(rows(own, across, "w13")))
    assert differing(own, again) == dict.fromkeys(SURFACES, 0)
    assert differing(own, within) == dict.fromkeys(SURFACES, 0)
    assert rows(own, across, "w13")
    assert rows(own, across, "w13") <= {51, 86}
    assert differing(*whole) == dict.fromkeys(SURFACES, 0)


def test_native_orders_are_legal_and_their_modes_counted(
    study: Study, plans: Plans, engines: dict[str, MarlinEngine]
) -> None:
    """Whether they vary on this GPU is a result, not a condition; that the op's order is read back is one."""
    found = [engines[h].run(study.cell("native"), h) for h in ("H0", "H1") for _ in range(REPEATS)]
    assert all(not each.injected and each.alignment.blocks == 50 for each in found)
    print("native modes:", len({tuple(each.alignment.members(40)) for each in found}))


def test_two_native_modes_from_fresh_processes(plans: Plans) -> None:
    try:
        found = native_orders(plans.topk_ids, experts=128, block=8, hidden=2048)
    except DataError as error:  # one mode in all tries is an answer
        pytest.skip(str(error))
    modes = [align(plans.topk_ids, 128, 8, order).members(40) for order, _ in found.values()]
    assert modes[0] != modes[1]


def test_the_emulation_beside_the_gpu(study: Study, plans: Plans, made: dict[str, Trajectory]) -> None:
    """It models the order inside a tensor core, so single bits differ; most do not, and none by more than the rounding of a sum."""
    inputs, cell = synthetic_layer(study.layer), study.cell("reinjected")
    alignment = plans.alignment(plans.plans["P0"])
    cut = tuple(tile_schedule(study.layer, gemm, cell.launches[gemm], alignment.blocks) for gemm in ("w13", "w2"))
    emulated = layer(inputs.x, plans.topk_weights, inputs.w13, inputs.w2, alignment, (cut[0], cut[1]))
    theirs = made["reinjected/H0"].surfaces["w13"]
    equal = float((emulated.w13.view(np.uint16) == theirs.view(np.uint16)).mean())
    away = np.abs(emulated.w13.astype(np.float64) - theirs.astype(np.float64))
    print(f"W13 words equal to the emulation's: {100 * equal:.3f} %, largest difference {away.max():.3g}")
    assert equal > 0.95
    assert away.max() <= 2 * np.spacing(np.abs(theirs).max()).astype(np.float64)
