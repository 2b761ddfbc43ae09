"""benchkit and the validator derive the same schedules, alignments, layers and sums of a study, each by its own code."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchkit.fixture.alignment import align, fingerprint
from benchkit.fixture.awq import dequantise_half
from benchkit.fixture.plans import read_plans
from benchkit.fixture.study_layer import synthetic_layer
from benchkit.kernels.marlin_schedule import schedule
from benchkit.mechanism.emulation import silu_and_mul, sum_routes
from benchkit.mechanism.trajectory import cuts_sha256, plan_sha256
from benchkit.protocol.study import LayerSizes, read_study
from validator.reading.protocol import read_protocol
from validator.reading.study import Sizes, Tile, derive_study_plan
from validator.reading.study_assets import Plans
from validator.recompute.layer import derive_layer
from validator.recompute.marlin import Aligned, alignment_problems, laid_out, walk_tiles
from validator.recompute.surfaces import activated, apart, summed

ROOT = Path(__file__).parents[2]
PROTOCOL = ROOT / "protocols" / "route-membership-cpu.toml"


def sizes(**changed: int) -> Sizes:
    plain = {"experts": 16, "hidden": 2048, "intermediate": 768, "top_k": 4, "tokens": 16, "group": 128, "block": 8}
    return Sizes(**{**plain, "weight_seed": 0, "input_seed": 0, **changed})


CONFIGURATIONS = list(
    product(
        (1, 7, 18, 50), ((64, 128), (128, 64), (64, 64)), (1, 33, 132, 200, 246, 396, 528), (32, 64, 128), ("w13", "w2")
    )
)


@pytest.mark.parametrize(("blocks", "tile", "grid", "group", "gemm"), CONFIGURATIONS)
def test_closed_form_and_walk_over_cuda_blocks(
    blocks: int, tile: tuple[int, int], grid: int, group: int, gemm: str
) -> None:
    thread_k, thread_n = tile
    both = sizes(group=group)
    walked = walk_tiles(both, gemm, Tile(thread_k=thread_k, thread_n=thread_n, grid=grid), blocks)
    form = schedule(
        blocks=blocks,
        size_n=both.columns(gemm),
        size_k=both.reduction(gemm),
        thread_n=thread_n,
        thread_k=thread_k,
        grid=grid,
        group=group,
    )
    assert walked.pieces == tuple(form.cuts(tile) for tile in range(form.tiles))
    assert walked.classes == tuple(form.tile_class(tile) for tile in range(form.tiles))
    assert walked.counts == ",".join(f"{name}={count}" for name, count in form.counts().items())
    assert walked.digest == cuts_sha256([form.cuts(tile) for tile in range(form.tiles)])


def test_the_two_cases_of_the_published_study() -> None:
    """50 blocks, N 1536, K 2048, tiles of 64 x 128: 492 direct at grid 246 and block 41 split in two; 400 direct at grid 200, nothing split."""
    both = sizes()
    native = walk_tiles(both, "w13", Tile(thread_k=64, thread_n=128, grid=246), 50)
    assert native.counts == "direct=492,split(2)=108"
    assert (native.of_block(40), native.of_block(41)) == (("direct",) * 12, ("split(2)",) * 12)
    assert native.pieces[492] == ((0, 16), (16, 16))
    other = walk_tiles(both, "w13", Tile(thread_k=64, thread_n=128, grid=200), 50)
    assert other.counts == "direct=400,single-slice=200"
    assert other.of_block(33) == ("direct",) * 4 + ("single-slice",) * 8


@given(st.data())
def test_alignments_and_modes(data: st.DataObject) -> None:
    experts, block = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1, 2, 8]))
    tokens, top_k = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3))
    flat = data.draw(st.lists(st.integers(-1, experts - 1), min_size=tokens * top_k, max_size=tokens * top_k))
    valid = [route for route, expert in enumerate(flat) if expert >= 0]
    order = sorted(data.draw(st.permutations(valid)), key=lambda route: flat[route])
    theirs = align(np.array(flat).reshape(tokens, top_k), experts, block, order)
    mine = laid_out(flat, order, block)
    assert (list(mine.rows), list(mine.experts)) == (theirs.sorted_token_ids.tolist(), theirs.expert_ids.tolist())
    assert (mine.digest, mine.mode) == (plan_sha256(theirs), fingerprint(theirs))
    assert list(alignment_problems(mine, flat)) == []
    if len(valid) > 1 and flat[order[0]] != flat[order[-1]]:
        rows = list(mine.rows)
        first, last = rows.index(order[0]), rows.index(order[-1])
        rows[first], rows[last] = rows[last], rows[first]
        moved = Aligned(rows=tuple(rows), experts=mine.experts, block=block, routes=len(flat))
        assert list(alignment_problems(moved, flat)) != []


@pytest.mark.parametrize(
    "changed", [{}, {"group": 32, "weight_seed": 9}, {"experts": 3, "top_k": 2, "tokens": 5, "input_seed": 2}]
)
def test_the_synthetic_layer(changed: dict[str, int]) -> None:
    plain = {"experts": 4, "hidden": 128, "intermediate": 64, "top_k": 3, "tokens": 7, "group": 64, "block": 8}
    chosen = {**plain, "weight_seed": 1, "input_seed": 1, **changed}
    routes = chosen["tokens"] * chosen["top_k"]
    ids = np.arange(routes, dtype=np.int32) % chosen["experts"]
    weights = (np.arange(routes) / 7).astype(np.float32)
    theirs = synthetic_layer(LayerSizes(**chosen)).sha256(ids, weights)
    plans = Plans(
        experts=chosen["experts"], block=8, ids=tuple(ids.tolist()), weights=tuple(weights.tolist()), orders=()
    )
    assert derive_layer(Sizes(**chosen), plans).digest == theirs


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5, 8])
def test_the_sum_of_a_token(top_k: int) -> None:
    both = sizes(top_k=top_k, tokens=6, hidden=64)
    routed = (np.random.default_rng(top_k).standard_normal((6 * top_k, 64)) * 50).astype(np.float16)
    assert summed(routed, both).tobytes() == sum_routes(routed, top_k).tobytes()


def test_products_with_the_synthetic_layer() -> None:
    chosen = {"experts": 4, "hidden": 128, "intermediate": 64, "top_k": 3, "tokens": 7, "group": 32, "block": 8}
    chosen |= {"weight_seed": 3, "input_seed": 1}
    theirs = synthetic_layer(LayerSizes(**chosen))
    plans = Plans(experts=4, block=8, ids=(3, 1, -1) * 7, weights=(1.0,) * 21, orders=())
    ours = derive_layer(Sizes(**chosen), plans).weights
    rows = np.random.default_rng(4).standard_normal((5, 128)).astype(np.float32)
    rows[3] = rows[1]
    for gemm, matrix in (("w13", theirs.w13), ("w2", theirs.w2)):
        assert sorted(ours[gemm]) == [1, 3]
        for expert in (1, 3):
            given = rows[:, : matrix.size_k]
            weight = dequantise_half(matrix.expert(expert)).astype(np.float64)
            product, reach = ours[gemm][expert].product(np.ascontiguousarray(given))
            np.testing.assert_allclose(product, given @ weight, rtol=0, atol=1e-5)
            sums = np.abs(given) @ np.abs(weight)
            assert (sums <= reach * (1 + 2**-10)).all()
            assert (reach <= 5 * sums).all()


@given(st.integers(0, 2**32))
def test_activations(seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, 1 << 16, (3, 64), dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        theirs = silu_and_mul(words)
    assert (apart(activated(words), theirs) == 0).all()


@pytest.mark.parametrize(
    ("one", "other", "steps"),
    [
        (1.0, 1.0009765625, 1),
        (0.0, -0.0, 0),
        (6e-8, -6e-8, 2),
        (np.nan, np.nan, 0),
        (65504.0, np.inf, 1),
        (-2.0, -1.999, 1),
    ],
)
def test_steps_between_two_numbers(one: float, other: float, steps: int) -> None:
    assert apart(np.array([one], dtype="<f2"), np.array([other], dtype="<f2")).tolist() == [steps]
    assert (apart(np.array([1.0], dtype="<f2"), np.array([np.nan], dtype="<f2")) > 1000).all()


def test_the_published_protocol() -> None:
    theirs = read_protocol(PROTOCOL.read_bytes())
    ours = read_study(PROTOCOL)
    assert theirs.study is not None
    assert derive_study_plan(theirs.study).digest in PROTOCOL.with_suffix(".lock").read_text("utf-8")
    assert [cell.name for cell in theirs.study.cells] == [cell.name for cell in ours.cells]
    for cell, mine in zip(theirs.study.cells, ours.cells, strict=True):
        launches = {gemm: (tile.thread_k, tile.thread_n, tile.grid) for gemm, tile in cell.launches}
        assert launches == {gemm: (tile.thread_k, tile.thread_n, tile.grid) for gemm, tile in mine.launches.items()}
    relations = [(item.a, item.b, item.expected == "equal", item.surfaces) for item in theirs.study.relations]
    assert relations == [(str(item.a), str(item.b), item.equal, item.surfaces) for item in ours.relations]
    plans = read_plans(PROTOCOL.parent / ours.plans.path)
    assert plans.alignment(None).blocks == 18
