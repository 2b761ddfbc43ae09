"""The GPU engine's parts on a CPU, over the stand-in for vLLM's ops: surfaces, the order that was consumed, launch markers, refusals."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import vllm_stand_in

from benchkit.bundle.tables import build_table
from benchkit.device.ports import LaunchedKernel
from benchkit.errors import MachineError, WorkerError
from benchkit.fixture.alignment import study_ids
from benchkit.fixture.plans import capture
from benchkit.fixture.study_layer import synthetic_layer
from benchkit.kernels import alignment, vllm_ops
from benchkit.kernels.engines import ENGINES, engine_sources
from benchkit.kernels.marlin import Configuration, MarlinPath
from benchkit.mechanism import raw_engine
from benchkit.mechanism.emulation import layer
from benchkit.mechanism.marlin_engine import _per_sm, launch_marker, moe_inputs, run_path
from benchkit.mechanism.orders import tile_schedule
from benchkit.protocol.study import SURFACES, LayerSizes, Tiling, parse_study

SIZES = LayerSizes(
    experts=128, hidden=256, intermediate=128, top_k=8, tokens=21, group=128, block=8, weight_seed=3, input_seed=4
)
# of the tile 128 x 64 (K x N), from a run on an H200; demangled: marlin_moe_wna16::Marlin<..., 128, 1, 4, 8, true, 4, 8, false>
NAME = (
    "_ZN16marlin_moe_wna166MarlinILl1125899906910725ELl1125899906843648ELl1125899906910725ELl1125899906910725E"
    "Li128ELi1ELi4ELi8ELb1ELi4ELi8ELb0EEEvPK4int4S3_PS1_S4_S3_PKfS3_S6_S3_PKiS8_S8_S8_S6_ibiiiiPibbb"
)
TILE = Tiling(thread_k=64, thread_n=128, grid=132)
PROTOCOLS = Path(__file__).parents[3] / "protocols"
TEXT = (Path(__file__).parents[2] / "data" / "study.toml").read_text("utf-8")


@pytest.fixture(scope="module")
def plans():
    ids = study_ids()
    crowded = [22, 28, 51, 86, 1, 13, 32, 47, 58, 69, 73]
    others = [route for route in range(168) if route not in crowded]
    weights = np.full(ids.shape, 0.125, dtype=np.float32)
    orders = {"P0": (others + crowded, "one"), "P1": (others + crowded[::-1], "two")}
    return capture(ids, weights, experts=128, block=8, orders=orders)


@pytest.fixture
def ops():
    found = vllm_stand_in.ops()
    names = zip(("align", "gemm", "sum", "silu_and_mul"), found.values(), strict=True)
    return vllm_ops.VllmOps(version="0.22.0", binaries={}, **dict(names))


def path_of(plans, ops, align):
    inputs = moe_inputs(synthetic_layer(SIZES), plans, "cpu")
    return MarlinPath(inputs, ops, Configuration(w13=(64, 128, 1), w2=(64, 128, 1)), align, SIZES.block)


@pytest.mark.parametrize("name", ["P0", "P1"])
def test_an_injected_plan_is_consumed_and_its_surfaces_are_near_the_emulation(plans, ops, name):
    asked = plans.alignment(plans.plans[name])
    path = path_of(plans, ops, alignment.injected(asked))
    surfaces = run_path(path)
    consumed = path.routes.read(plans.topk_ids)
    assert np.array_equal(consumed.sorted_token_ids, asked.sorted_token_ids)
    assert np.array_equal(consumed.expert_ids, asked.expert_ids)
    inputs = synthetic_layer(SIZES)
    cut = tuple(tile_schedule(SIZES, gemm, TILE, asked.blocks) for gemm in ("w13", "w2"))
    expected = layer(inputs.x, plans.topk_weights, inputs.w13, inputs.w2, asked, cut)
    for surface, theirs in zip(
        SURFACES, (expected.w13, expected.activation, expected.routed, expected.final), strict=True
    ):
        ours = surfaces[surface]
        assert (ours.dtype, ours.shape) == (np.float16, SIZES.surface(surface))
        scale = np.abs(theirs.astype(np.float64)).max()
        assert np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max() < 2e-3 * scale


def test_a_native_order_is_read_back_from_the_op(plans, ops):
    path = path_of(plans, ops, alignment.native(ops.align))
    run_path(path)
    consumed = path.routes.read(plans.topk_ids)
    assert [consumed.members(40), consumed.members(41)] == [(28, 32, 47, 51, 58, 69, 73, 86), (1, 13, 22)]


def test_the_marker_is_that_of_the_launch(plans):
    blocks = plans.alignment(None).blocks
    study = parse_study(TEXT.encode(), "x.toml")
    kernel = LaunchedKernel(name=NAME, grid=(40, 1, 1), block=(128, 1, 1), registers=128, shared_bytes=1)
    marker = launch_marker(study, "w13", kernel, 18)
    plan = tile_schedule(study.layer, "w13", Tiling(thread_k=128, thread_n=64, grid=40), 18)
    assert (marker.thread_k, marker.thread_n, marker.grid) == (128, 64, 40)
    assert marker.classes == ",".join(f"{name}={count}" for name, count in plan.counts().items())
    assert blocks == 50
    with pytest.raises(WorkerError, match=r"w13: expected 128 threads, as the kernel's name says, found \(256, 1, 1\)"):
        launch_marker(study, "w13", replace(kernel, block=(256, 1, 1)), 18)
    with pytest.raises(
        WorkerError, match=r"w13: expected a kernel named as in vLLM 0\.22, with its tile, found Marlin"
    ):
        launch_marker(study, "w13", replace(kernel, name="Marlin"), 18)


def test_grids_are_multiples_of_the_multiprocessors():
    assert _per_sm(Tiling(thread_k=64, thread_n=128, grid=396), 132) == (64, 128, 3)
    with pytest.raises(MachineError, match="grid 246: expected a multiple of the 132 multiprocessors"):
        _per_sm(Tiling(thread_k=64, thread_n=128, grid=246), 132)


class Captured:
    """A captured call: it runs when it is replayed."""

    def __init__(self, work):
        self.replay = work

    def raw_cuda_graph(self):
        return 7


def test_the_raw_engine_runs_the_graph_that_was_given_its_grid(plans, ops, monkeypatch):
    """What the op's own launch wrote is gone before, so the surfaces are those of the second launch; the marker is that of its graph."""
    given, outputs = [], []

    def regrid(graph, grid):
        given.append((graph, grid))
        return LaunchedKernel(
            name=NAME.replace("ELi4ELi8ELb1", "ELi8ELi4ELb1"),
            grid=(grid, 1, 1),
            block=(128, 1, 1),
            registers=128,
            shared_bytes=1,
        )

    device = SimpleNamespace(capture=lambda work, keep: Captured(work), synchronize=lambda: None)
    monkeypatch.setattr(raw_engine, "regrid", regrid)
    study = parse_study((PROTOCOLS / "route-membership-raw-h200.toml").read_bytes(), "x.toml")
    study = replace(study, layer=SIZES)
    engine = raw_engine.RawMarlinEngine(study, plans, Path("nowhere"))
    gemm = ops.gemm

    def watched(*arguments):
        outputs.append(bool(torch.isnan(arguments[1]).all()))
        gemm(*arguments)

    engine._device, engine._ops, engine._multiprocessors = device, replace(ops, gemm=watched), 132
    engine._inputs = moe_inputs(synthetic_layer(SIZES), plans, "cpu")
    path = engine._path(study.cell("whole_tiles"), "H0")
    surfaces = run_path(path)
    assert given == [(7, 200), (7, 200)]
    assert outputs == [True, True, False, True]  # W2 writes over W13's; both replays begin with NaN
    assert {gemm: kernel.grid for gemm, kernel in engine._launched(path).items()} == {
        "w13": (200, 1, 1),
        "w2": (200, 1, 1),
    }
    assert [call[26:] for call in gemm.calls] == [(64, 128, 2)] * 4
    plain = run_path(path_of(plans, ops, alignment.injected(plans.alignment(plans.plans["P0"]))))
    assert all(np.array_equal(surfaces[name], plain[name]) for name in SURFACES)
    assert not engine.run(study.cell("native"), "H0").injected
    made = engine.run(study.cell("whole_tiles"), "H1")
    assert (made.treatment, made.injected, made.alignment.plan.tolist()) == ("none", True, plans.plans["P1"].tolist())
    assert {gemm: (one.thread_k, one.thread_n, one.grid) for gemm, one in made.launches.items()} == {
        "w13": (64, 128, 200),
        "w2": (64, 128, 200),
    }
    table = build_table("trajectories", [[13, 0, *made.row(["whole_tiles", "H1", 0], 5)]])
    assert table.column("w2_grid").to_pylist() == [200]


def test_room_for_any_grid():
    found = [
        raw_engine.room_for(Tiling(thread_k=64, thread_n=128, grid=grid), 132)[2] for grid in (1, 132, 200, 246, 528)
    ]
    assert found == [1, 1, 2, 2, 4]
    with pytest.raises(MachineError, match="grid 529: expected at most 528 CUDA blocks, 4 on each of the 132"):
        raw_engine.room_for(Tiling(thread_k=64, thread_n=128, grid=529), 132)


def test_every_source_of_an_engine_is_there():
    assert {engine: len(engine_sources(engine)[engine]) for engine in ENGINES} == dict.fromkeys(ENGINES, 64)
    assert torch.__version__
