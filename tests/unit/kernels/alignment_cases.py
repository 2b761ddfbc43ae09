"""Stable alignment in Triton's interpreter against the numpy reference: every row, padding and tail included."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchkit.errors import DataError
from benchkit.fixture import alignment as reference
from benchkit.fixture.routing import route
from benchkit.kernels import alignment


def buffers(ids: np.ndarray, experts: int, block: int) -> alignment.AlignedRoutes:
    """Buffers full of what a former call may have left."""
    made = alignment.allocate(ids.size, experts, block, "cpu")
    for tensor in made.tensors:
        tensor.fill_(12345)
    return made


def aligned(ids: np.ndarray, experts: int, block: int) -> alignment.AlignedRoutes:
    made = buffers(ids, experts, block)
    alignment.stable(torch.from_numpy(ids), made)
    return made


def check(ids: np.ndarray, experts: int, block: int) -> None:
    made, right = aligned(ids, experts, block), reference.align(ids, experts, block)
    rows, routes = right.num_tokens_post_padded, ids.size
    assert made.num_tokens_post_padded.tolist() == [rows]
    assert made.sorted_token_ids[:rows].tolist() == right.sorted_token_ids.tolist()
    assert set(made.sorted_token_ids[rows:].tolist()) <= {routes}
    assert made.expert_ids[: right.blocks].tolist() == right.expert_ids.tolist()
    assert set(made.expert_ids[right.blocks :].tolist()) <= {-1}
    found = made.read(ids)
    assert reference.fingerprint(found) == reference.fingerprint(right)


def test_b06_more_experts_than_a_warp_or_a_block_counts():
    made = aligned(np.array([[0, 1024], [1024, 5]], dtype=np.int32), 1025, 16)
    assert made.num_tokens_post_padded.tolist() == [48]
    assert made.expert_ids[:3].tolist() == [0, 5, 1024]
    assert made.sorted_token_ids[:48].tolist() == [0, *[4] * 15, 3, *[4] * 15, 1, 2, *[4] * 14]


def test_b06_an_odd_number_of_experts():
    made = aligned(np.array([[0, 1], [2, 4], [4, 3]], dtype=np.int32), 5, 4)
    assert made.num_tokens_post_padded.tolist() == [20]
    assert made.expert_ids[:5].tolist() == [0, 1, 2, 3, 4]
    assert made.sorted_token_ids[:20].tolist() == [0, 6, 6, 6, 1, 6, 6, 6, 2, 6, 6, 6, 5, 6, 6, 6, 3, 4, 6, 6]


@pytest.mark.parametrize("experts", [1, 2, 127, 129, 255, 1023, 1025])
@pytest.mark.parametrize("block", [8, 48])
def test_every_number_of_experts(experts, block):
    ids = route("zipf-2.0", 3, 21, experts, min(2, experts)).topk_ids
    assert np.bincount(ids.ravel()).max() > 8  # more than one block where a block has 8 rows
    check(ids, experts, block)


@pytest.mark.parametrize(
    ("tokens", "block"),
    [(1, 8), (16, 8), (17, 8), (64, 16), (115, 48), (128, 32), (129, 16), (257, 32), (600, 64)],
)
def test_every_number_of_tokens(tokens, block):
    """Up to 16 tokens one warp sorts; from 129 on there are two launches."""
    check(route("uniform", 5, tokens, 24, 8).topk_ids, 24, block)


def test_one_expert_fills_blocks_of_48():
    check(np.zeros((100, 1), dtype=np.int32), 2, 48)


@given(data=st.data())
def test_any_ids(data):
    experts = data.draw(st.integers(1, 40))
    tokens, top_k = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 3))
    block = data.draw(st.sampled_from([1, 3, 8, 16, 48]))
    few = data.draw(st.lists(st.integers(-1, experts - 1), min_size=1, max_size=6))
    pool = st.sampled_from(few) if data.draw(st.booleans()) else st.integers(-1, experts - 1)
    flat = data.draw(st.lists(pool, min_size=tokens * top_k, max_size=tokens * top_k))
    check(np.array(flat, dtype=np.int32).reshape(tokens, top_k), experts, block)


def test_routes_of_no_expert_are_skipped():
    made = aligned(np.array([[7, -1], [2, 9], [2**31 - 1, -(2**31)]], dtype=np.int32), 8, 2)
    assert made.num_tokens_post_padded.tolist() == [4]
    assert made.sorted_token_ids[:4].tolist() == [2, 6, 0, 6]
    assert made.expert_ids.tolist() == [2, 7, -1, -1, -1, -1]
    nothing = aligned(np.full((2, 2), -1, dtype=np.int32), 8, 2)
    assert nothing.num_tokens_post_padded.tolist() == [0]
    assert set(nothing.sorted_token_ids.tolist()) == {4}
    assert set(nothing.expert_ids.tolist()) == {-1}


def test_nothing_is_written_beside_the_buffers():
    ids = route("uniform", 5, 21, 16, 4).topk_ids
    made, guards = alignment.allocate(ids.size, 16, 8, "cpu"), []
    inner = []
    for tensor in made.tensors:
        whole = torch.full((tensor.numel() + 64,), 77, dtype=torch.int32)
        guards.append(whole)
        inner.append(whole[32:-32])
    names = ("sorted_token_ids", "expert_ids", "num_tokens_post_padded")
    into = replace(made, **dict(zip(names, inner, strict=True)))
    alignment.stable(torch.from_numpy(ids), into)
    assert reference.mode(into.read(ids)) == reference.mode(reference.align(ids, 16, 8))
    for whole in guards:
        assert set(whole[:32].tolist()) | set(whole[-32:].tolist()) == {77}


def test_an_injected_order():
    ids = reference.study_ids()
    plan = reference.swap(reference.align(ids, 128, 8).plan, 51, 86)
    given_order = reference.align(ids, 128, 8, plan)
    into = buffers(ids, 128, 8)
    alignment.injected(given_order)(torch.from_numpy(ids), into)
    assert np.array_equal(into.read(ids).plan, plan)
    stable = aligned(ids, 128, 8).read(ids)
    assert reference.fingerprint(into.read(ids)) != reference.fingerprint(stable)
    assert set(into.expert_ids[50:].tolist()) == {-1}
    with pytest.raises(
        DataError, match="injected alignment: expected 168 routes in blocks of 8, found 168 in blocks of 16"
    ):
        alignment.injected(given_order)(torch.from_numpy(ids), buffers(ids, 128, 16))


def test_the_native_op_gets_the_buffers_and_no_map():
    seen = []
    into = alignment.allocate(8, 128, 8, "cpu")
    alignment.native(lambda *arguments: seen.append(arguments))(torch.zeros((1, 8)), into)
    ((ids, experts, block, *tensors, expert_map),) = seen
    assert (tuple(ids.shape), experts, block, expert_map) == ((1, 8), 128, 8, None)
    assert all(found is given for found, given in zip(tensors, into.tensors, strict=True))
    assert [tensor.numel() for tensor in tensors] == [64, 8, 1]
    assert into.nbytes == 4 * 73


def test_buffers_of_nothing():
    with pytest.raises(DataError, match="routes: expected at least 1, found 0"):
        alignment.allocate(0, 128, 8, "cpu")


def test_interpreted_code_has_no_binary():
    ids = torch.zeros((1, 8), dtype=torch.int32)
    assert alignment.compile_stable(ids, alignment.allocate(8, 128, 8, "cpu")) == {}


@pytest.mark.parametrize(
    ("experts", "block", "skipped"), [(5, 8, False), (128, 64, True), (1025, 48, True), (9, 3, False)]
)
def test_two_launches(experts, block, skipped):
    """2051 routes: 17 chunks, the last with three routes; skewed, so that experts reach over many chunks and blocks."""
    drawn = np.random.default_rng(7).zipf(1.3, size=2051)
    ids = ((drawn - 1) % (experts + skipped) - skipped).astype(np.int32).reshape(7, 293)
    assert bool(ids.min() == -1) is skipped
    check(ids, experts, block)


def test_more_routes_than_chunks_of_one_step(monkeypatch):
    """128 chunks are the most. Here, where 8 are: 1100 routes in steps of 128, so each chunk has two steps, and three have no route."""
    assert alignment.allocate(17000, 40, 64, "cpu").counts.numel() == 128 * 128
    monkeypatch.setattr(alignment, "_MOST_CHUNKS", 8)
    ids = np.random.default_rng(3).integers(0, 40, size=(1100, 1)).astype(np.int32)
    assert alignment.allocate(ids.size, 40, 64, "cpu").counts.numel() == 8 * 128
    check(ids, 40, 64)
