"""The fp64 truth against a loop written here, the gate / up mix-up of trial C01, and what never passes."""

import numpy as np
import pytest
import torch

from benchkit.errors import DataError
from benchkit.fixture.layer import MoeInputs, MoeWeights, make_inputs, make_weights
from benchkit.fixture.mxfp8 import dequantise
from benchkit.fixture.routing import Routing, route
from benchkit.kernels.reference import NOT_FINITE, compare, moe_truth

C01_STUB = [1.462117, 11.430890, 199.990920, 1200.0]


def test_gate_rows_come_first(c01, c01_right):
    assert moe_truth(c01)[0].tolist() == pytest.approx(c01_right, abs=5e-7)


def test_a_swapped_layout_is_seen(c01):
    metrics = compare(np.array([C01_STUB]), moe_truth(c01))
    assert metrics.min_cosine < 0.99
    assert metrics.rel_error > 1.0
    assert metrics.max_abs_error == pytest.approx(1200.0 - 157.122206, abs=1e-6)


def test_gate_and_up_exchanged_is_seen_on_random_weights():
    inputs = make_inputs(
        make_weights(seed=1, experts=4, hidden=64, intermediate=32, copies=1), route("uniform", 1, 4, 4, 2)
    )
    gate, up = inputs.weights.w13[0].chunk(2, dim=1)
    swapped = MoeWeights(w13=(torch.cat((up, gate), dim=1),), w2=inputs.weights.w2, seed=1)
    other = MoeInputs(
        weights=swapped,
        x=inputs.x,
        topk_ids=inputs.topk_ids,
        topk_weights=inputs.topk_weights,
        routing=inputs.routing,
    )
    assert compare(moe_truth(other), moe_truth(inputs)).min_cosine < 0.9


def test_truth_is_the_sum_over_routes():
    inputs = make_inputs(
        make_weights(seed=3, experts=7, hidden=12, intermediate=5, copies=2), route("uniform", 2, 5, 7, 3)
    )
    x, w13, w2 = (t.double().numpy() for t in (inputs.x, inputs.weights.w13[0], inputs.weights.w2[0]))
    expected = np.zeros((5, 12))
    for token in range(5):
        for expert, share in zip(inputs.routing.topk_ids[token], inputs.routing.topk_weights[token], strict=True):
            gate, up = w13[expert, :5] @ x[token], w13[expert, 5:] @ x[token]
            expected[token] += float(share) * (w2[expert] @ (gate / (1 + np.exp(-gate)) * up))
    found = moe_truth(inputs)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)
    assert moe_truth(inputs, "original") is found
    with pytest.raises(DataError, match='truth: expected one of stored, original, found "true"'):
        moe_truth(inputs, "true")


def test_mxfp8_has_two_truths():
    sizes = {"experts": 4, "hidden": 64, "intermediate": 32}
    routing = route("uniform", 2, 3, 4, 2)
    narrow = make_inputs(make_weights(seed=3, copies=1, weight_format="mxfp8", **sizes), routing)
    original = make_inputs(make_weights(seed=3, copies=1, weight_format="bf16", **sizes), routing)
    assert torch.equal(narrow.x, original.x)
    assert np.array_equal(moe_truth(narrow, "original"), moe_truth(original))
    w13, w2 = (
        dequantise(elements[0], scale[0]).float()
        for elements, scale in (
            (narrow.weights.w13, narrow.weights.w13_scale),
            (narrow.weights.w2, narrow.weights.w2_scale),
        )
    )
    decoded = make_inputs(MoeWeights(w13=(w13,), w2=(w2,), seed=3), routing)
    decoded.x.copy_(narrow.x)
    assert np.array_equal(moe_truth(narrow), moe_truth(decoded))
    between = compare(moe_truth(narrow), moe_truth(narrow, "original"))
    assert 0.02 < between.rel_error < 0.08


def test_slots_may_stand_in_any_order():
    weights = make_weights(seed=3, experts=7, hidden=12, intermediate=5, copies=1)
    routing = route("uniform", 2, 5, 7, 3)
    turned = Routing(
        topk_ids=np.ascontiguousarray(routing.topk_ids[:, ::-1]),
        topk_weights=np.ascontiguousarray(routing.topk_weights[:, ::-1]),
    )
    assert np.array_equal(moe_truth(make_inputs(weights, turned)), moe_truth(make_inputs(weights, routing)))


def test_metrics_exactly():
    metrics = compare(np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([[3.0, 4.0], [2.0, 0.0]]))
    assert metrics.min_cosine == 0.0
    assert metrics.max_abs_error == 2.0
    assert metrics.rel_error == pytest.approx((8 / 29) ** 0.5, rel=1e-15)
    assert compare(np.array([1.0, 2.0]), np.array([1.0, 2.0])).rel_error == 0.0


def test_rows_are_tokens_and_one_axis_is_one_row():
    wrong = np.array([[1.0, 0.0], [0.0, 1.0]])
    truth = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert compare(wrong, truth).min_cosine == 0.0
    assert compare(wrong.ravel(), truth.ravel()).min_cosine == pytest.approx(0.5)


def test_zeros():
    zeros, ones = np.zeros((1, 3)), np.ones((1, 3))
    assert (compare(zeros, zeros).min_cosine, compare(zeros, zeros).rel_error) == (1.0, 0.0)
    assert (compare(zeros, ones).min_cosine, compare(zeros, ones).rel_error) == (0.0, 1.0)
    assert (compare(ones, zeros).min_cosine, compare(ones, zeros).rel_error) == (0.0, float("inf"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_never_passes(bad):
    output = np.ones((4, 3))
    output[2, 1] = bad
    assert compare(output, np.ones((4, 3))) == NOT_FINITE
    assert NOT_FINITE.min_cosine == -1.0
    assert NOT_FINITE.max_abs_error == NOT_FINITE.rel_error == float("inf")


def test_large_values_do_not_overflow():
    huge = np.full((1, 4), 1e300)
    assert compare(huge, huge).min_cosine == pytest.approx(1.0, abs=1e-15)
    assert compare(-huge, huge).rel_error == pytest.approx(2.0)


def test_our_own_bugs_are_errors():
    with pytest.raises(ValueError, match="shape"):
        compare(np.ones((2, 3)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="finite"):
        compare(np.ones(2), np.array([1.0, float("nan")]))
