"""What warp decode refuses at preparation, with the reason; nothing here runs a kernel."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchkit.errors import DataError
from benchkit.fixture.layer import MoeInputs, make_inputs, make_weights
from benchkit.fixture.routing import Routing, route
from benchkit.kernels.contract import Support
from benchkit.kernels.warp_decode import literal
from benchkit.kernels.warp_decode.layer import allocate, prepared_arm, refusal

HOPPER = (9, 0)


def layer(weight_format: str = "bf16", tokens: int = 2, **sizes: int) -> MoeInputs:
    shape = {"experts": 4, "hidden": 64, "intermediate": 32} | sizes
    weights = make_weights(seed=1, copies=2, weight_format=weight_format, **shape)
    return make_inputs(weights, route("uniform", 1, tokens, weights.experts, 2))


def found(inputs: MoeInputs, capability: tuple[int, int] | None = HOPPER) -> str | None:
    return refusal(inputs, rows_per_cta=8, capability=capability)


def with_routes(inputs: MoeInputs, ids: list[list[int]], shares: list[list[float]] | None = None) -> MoeInputs:
    routes = torch.tensor(ids, dtype=torch.int32)
    weights = torch.ones(routes.shape) if shares is None else torch.tensor(shares)
    routing = Routing(topk_ids=routes.numpy(), topk_weights=weights.numpy())
    return replace(inputs, topk_ids=routes, topk_weights=weights, routing=routing)


@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
@pytest.mark.parametrize("capability", [HOPPER, (8, 9), None])
def test_a_good_layer_is_taken(weight_format, capability):
    assert found(layer(weight_format), capability) is None


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([[0, 1], [2, 2]], "token 1: needs distinct experts, found expert 2 2 times"),
        ([[0, 4], [1, 2]], "token 0, slot 1: needs an expert from 0 to 3, found 4"),
        ([[0, 1], [-1, 2]], "token 1, slot 0: needs an expert from 0 to 3, found -1"),
    ],
)
def test_wrong_ids(ids, text):
    assert found(with_routes(layer(), ids)) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_routing_weights_that_are_not_finite(value):
    inputs = with_routes(layer(), [[0, 1], [2, 3]], [[0.5, 0.5], [0.5, value]])
    assert found(inputs) == f"token 1, slot 1: needs a finite routing weight, found {value}"


def test_no_token():
    inputs = layer()
    empty = with_routes(inputs, [[0, 1]])
    empty = replace(empty, topk_ids=empty.topk_ids[:0], topk_weights=empty.topk_weights[:0], x=inputs.x[:0])
    assert found(empty) == "needs at least 1 token, found 0"


@pytest.mark.parametrize(
    ("weight_format", "sizes", "text"),
    [
        ("bf16", {"hidden": 36}, "bf16 needs hidden to be a multiple of 8, found 36"),
        ("bf16", {"intermediate": 12}, "bf16 needs intermediate to be a multiple of 8, found 12"),
        ("fp32", {}, "needs bf16 or mxfp8 weights, found fp32"),
    ],
)
def test_shapes_and_formats_outside_the_rule(weight_format, sizes, text):
    assert found(layer(weight_format, **sizes)) == text


def test_rows_that_are_no_whole_cta():
    assert refusal(layer(), rows_per_cta=128, capability=HOPPER) == (
        "needs hidden to be a multiple of 128 (outputs of a CTA), found 64"
    )


def test_too_many_slots():
    weights = make_weights(seed=1, experts=40, hidden=32, intermediate=32, copies=1, weight_format="bf16")
    inputs = make_inputs(weights, route("uniform", 1, 1, 40, 33))
    assert found(inputs) == "needs a top_k from 1 to 32, found 33"


@pytest.mark.parametrize(
    ("weight_format", "capability", "text"),
    [
        ("bf16", (7, 5), "bf16 needs compute capability 8.0, found 7.5"),
        ("mxfp8", (8, 6), "mxfp8 needs compute capability 8.9, found 8.6"),
    ],
)
def test_devices_below_the_capability(weight_format, capability, text):
    assert found(layer(weight_format), capability) == text


def test_weights_that_are_not_finite():
    inputs = layer()
    inputs.weights.w2[0][3, 5, 7] = float("nan")
    assert found(inputs) == "w2: needs finite weights, found others in expert 3"


@pytest.mark.parametrize("where", ["w13", "w13_scale"])
def test_mxfp8_weights_that_are_not_finite(where):
    inputs = layer("mxfp8")
    getattr(inputs.weights, where)[0].view(torch.uint8)[2, 1, 1] = 255
    assert found(inputs) == "w13: needs finite weights, found others in expert 2"


def test_strided_inputs_are_refused():
    inputs = layer(tokens=4)
    assert found(replace(inputs, topk_ids=inputs.topk_ids.t().contiguous().t())) == (
        "needs contiguous x, ids and routing weights, found strided ones"
    )


def test_buffers_and_their_poison():
    inputs = layer(tokens=3)
    buffers = allocate(inputs)
    arm = prepared_arm(inputs, buffers, lambda copy: None)
    assert (tuple(buffers.h.shape), tuple(buffers.output.shape)) == ((3, 2, 32), (3, 64))
    assert arm.scratch_bytes == 3 * 2 * 32 * 2
    buffers.output.fill_(1.5)
    np.testing.assert_array_equal(arm.output(), np.full((3, 64), 1.5))
    assert arm.output_bytes() == b"\xc0\x3f" * 192
    arm.poison()
    assert np.isnan(arm.output()).all()
    assert bool(torch.isnan(buffers.h).all())


def test_the_literal_form_needs_a_gpu():
    assert literal.prepare(layer(), {}) == Support.no("needs a layer on a GPU, found it on cpu")


GOOD = {
    "up_load_bytes": 16,
    "up_depth": 2,
    "up_ctas_per_sm": 6,
    "down_load_bytes": 16,
    "down_depth": 6,
    "down_ctas_per_sm": 4,
}


def test_stages_of_the_literal_form():
    up, down = literal.parse_stages({**GOOD, "down_load_bytes": 8}, "mxfp8")
    assert up == literal.Stage(load_bytes=16, depth=2, ctas_per_sm=6)
    assert down == literal.Stage(load_bytes=8, depth=6, ctas_per_sm=4)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"up_load_bytes": 8}, "params.up_load_bytes: expected 16 with bf16, found 8"),
        ({"down_load_bytes": 4}, "params.down_load_bytes: expected 16 with bf16, found 4"),
        ({"up_depth": 17}, "params.up_depth: expected an integer from 1 to 16, found 17"),
        ({"down_ctas_per_sm": 9}, "params.down_ctas_per_sm: expected an integer from 1 to 8, found 9"),
    ],
)
def test_wrong_stages(change, text):
    with pytest.raises(DataError) as error:
        literal.parse_stages({**GOOD, **change}, "bf16")
    assert str(error.value) == text
