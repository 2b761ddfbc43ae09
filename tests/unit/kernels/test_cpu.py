"""Both host arms against the fp64 truth: sizes, skew, poison, copies, determinism, and the rows of trial B06."""

import os

import numpy as np
import pytest
import torch

from benchkit.fixture.layer import make_inputs, make_weights
from benchkit.fixture.routing import Routing, route
from benchkit.kernels import registry
from benchkit.kernels.contract import PreparedArm, Support
from benchkit.kernels.cpu import align
from benchkit.kernels.reference import compare

ARMS = [
    ("cpu_expert_centric", {"tile": 1, "threads": 1}),
    ("cpu_expert_centric", {"tile": 4}),
    ("cpu_output_centric", {"threads": 1}),
]


def prepared(kernel, params, inputs):
    arm = registry.prepare(kernel, inputs, params)
    assert isinstance(arm, PreparedArm)
    return arm


def check(arm, copies):
    for copy in range(copies):
        arm.poison()
        assert np.isnan(arm.output()).all()
        arm.call(copy)
        metrics = compare(arm.output(), arm.expected("stored"))
        assert metrics.min_cosine > 1 - 1e-10
        assert metrics.rel_error < 2e-6


@pytest.mark.parametrize(("kernel", "params"), ARMS)
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_right_at_the_sizes_of_the_demo(kernel, params, batch):
    weights = make_weights(seed=1, experts=32, hidden=128, intermediate=64, copies=2)
    check(prepared(kernel, params, make_inputs(weights, route("uniform", 7, batch, 32, 8))), 2)


@pytest.mark.parametrize(("kernel", "params"), [*ARMS, ("cpu_expert_centric", {"tile": 7, "threads": 2})])
@pytest.mark.parametrize("sizes", [(5, 3, 17, 11, 3), (1, 1, 1, 1, 1), (3, 3, 33, 5, 7), (9, 2, 10, 31, 2)])
def test_right_at_odd_sizes(kernel, params, sizes):
    experts, top_k, hidden, intermediate, batch = sizes
    weights = make_weights(seed=2, experts=experts, hidden=hidden, intermediate=intermediate, copies=1)
    check(prepared(kernel, params, make_inputs(weights, route("zipf-0.6", 3, batch, experts, top_k))), 1)


@pytest.mark.parametrize(("kernel", "params"), ARMS)
def test_right_where_all_tokens_meet_the_same_experts(kernel, params):
    shares = np.tile(np.array([0.5, 0.25, 0.25], dtype=np.float32), (9, 1))
    routing = Routing(topk_ids=np.tile(np.array([11, 0, 6], dtype=np.int32), (9, 1)), topk_weights=shares)
    weights = make_weights(seed=4, experts=12, hidden=40, intermediate=24, copies=1)
    check(prepared(kernel, params, make_inputs(weights, routing)), 1)


@pytest.mark.parametrize(("kernel", "params"), ARMS)
def test_gate_rows_come_first(kernel, params, c01, c01_right):
    arm = prepared(kernel, params, c01)
    arm.call(0)
    assert arm.output()[0].tolist() == pytest.approx(c01_right, rel=1e-6)


@pytest.mark.parametrize(("kernel", "params"), ARMS)
def test_copies_and_repeats_give_the_same_bytes(kernel, params):
    weights = make_weights(seed=1, experts=16, hidden=256, intermediate=128, copies=3)
    arm = prepared(kernel, params, make_inputs(weights, route("uniform", 5, 6, 16, 4)))
    seen = set()
    for call in range(9):
        arm.poison()
        arm.call(call % 3)
        seen.add(arm.output_bytes())
    assert len(seen) == 1
    assert len(seen.pop()) == 6 * 256 * 4


@pytest.mark.parametrize(("kernel", "params"), ARMS)
def test_each_copy_is_read(kernel, params):
    weights = make_weights(seed=1, experts=4, hidden=16, intermediate=8, copies=3)
    arm = prepared(kernel, params, make_inputs(weights, route("uniform", 5, 2, 4, 4)))
    weights.w2[1].zero_()
    weights.w13[2].zero_()
    norms = []
    for copy in range(3):
        arm.call(copy)
        norms.append(float(np.abs(arm.output()).max()))
    assert norms[0] > 0.1
    assert norms[1:] == [0.0, 0.0]


@pytest.mark.parametrize(("kernel", "params"), ARMS)
def test_ids_are_read_in_every_call(kernel, params):
    weights = make_weights(seed=1, experts=8, hidden=16, intermediate=8, copies=1)
    inputs = make_inputs(weights, route("uniform", 5, 3, 8, 2))
    arm = prepared(kernel, params, inputs)
    arm.call(0)
    inputs.topk_ids.copy_(torch.tensor([[7, 6], [7, 6], [0, 1]], dtype=torch.int32))
    arm.call(0)
    check_against = make_inputs(weights, inputs.routing)
    check_against.topk_ids.copy_(inputs.topk_ids)
    metrics = compare(arm.output(), prepared(kernel, params, check_against).expected("stored"))
    assert metrics.min_cosine > 1 - 1e-10


def test_inputs_stay_as_they_are():
    weights = make_weights(seed=1, experts=8, hidden=16, intermediate=8, copies=1)
    inputs = make_inputs(weights, route("uniform", 5, 3, 8, 2))
    before = [t.clone() for t in (weights.w13[0], weights.w2[0], inputs.x, inputs.topk_ids, inputs.topk_weights)]
    for kernel, params in ARMS:
        prepared(kernel, params, inputs).call(0)
    after = (weights.w13[0], weights.w2[0], inputs.x, inputs.topk_ids, inputs.topk_weights)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_scratch_is_counted():
    inputs = make_inputs(
        make_weights(seed=1, experts=8, hidden=16, intermediate=6, copies=1), route("uniform", 5, 3, 8, 2)
    )
    rows = 6 + 6 * 3
    expected = 4 * (rows * (16 + 12 + 6 + 16) + 6 * 16)
    assert prepared("cpu_expert_centric", {"tile": 4, "threads": 1}, inputs).scratch_bytes == expected
    assert prepared("cpu_output_centric", {"threads": 1}, inputs).scratch_bytes == 4 * 2 * (12 + 6)


def test_other_weights_are_unsupported():
    weights = make_weights(seed=1, experts=4, hidden=16, intermediate=8, copies=1, weight_format="bf16")
    for kernel, params in ARMS:
        answer = registry.prepare(kernel, make_inputs(weights, route("uniform", 5, 1, 4, 2)), params)
        assert answer == Support.no("needs fp32 weights, found bf16")


@pytest.mark.parametrize(("kernel", "params"), ARMS)
def test_threads_are_locked_and_never_more_than_processors(kernel, params, monkeypatch):
    inputs = make_inputs(
        make_weights(seed=1, experts=4, hidden=16, intermediate=8, copies=1), route("uniform", 5, 1, 4, 2)
    )
    arm = prepared(kernel, {**params, "threads": 1}, inputs)
    torch.set_num_threads(2)
    arm.call(0)
    assert torch.get_num_threads() == 1
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    answer = registry.prepare(kernel, inputs, {**params, "threads": 5})
    assert isinstance(answer, Support)
    assert answer.reason == "threads: expected at most 4, the processors of this machine, found 5"


def test_rows_of_trial_b06():
    """E = 5, ids [[0, 1], [2, 4], [4, 3]], tile 4: 20 rows, experts 0 to 4, routes at rows 0, 4, 8, 16, 17, 12."""
    row_tokens, route_rows, experts, sizes = align([0, 1, 2, 4, 4, 3], 2, 4)
    assert (experts, sizes, len(row_tokens)) == ([0, 1, 2, 3, 4], [4, 4, 4, 4, 4], 20)
    assert route_rows == [0, 4, 8, 16, 17, 12]
    assert [row_tokens[row] for row in route_rows] == [0, 0, 1, 1, 2, 2]


def test_rows_skip_experts_without_routes():
    row_tokens, route_rows, experts, sizes = align([0, 1024, 1024, 5], 2, 16)
    assert (len(row_tokens), experts, sizes) == (48, [0, 5, 1024], [16, 16, 16])
    assert route_rows == [0, 32, 33, 16]


@pytest.mark.parametrize(("kernel", "params"), ARMS)
def test_an_arm_prepared_in_inference_mode_is_right_outside(kernel, params):
    weights = make_weights(seed=1, experts=8, hidden=16, intermediate=8, copies=1)
    with torch.inference_mode():
        arm = prepared(kernel, params, make_inputs(weights, route("uniform", 5, 3, 8, 2)))
    check(arm, 1)
