"""What ``moe_decode`` refuses before anything is launched, and how its arms answer without a GPU."""

import pytest
import torch

from benchkit.errors import DataError
from benchkit.fixture.layer import make_inputs, make_weights
from benchkit.fixture.routing import route
from benchkit.kernels import registry
from benchkit.kernels.contract import Support
from benchkit.kernels.warp_decode import checkpoint_bf16, moe_decode, pack_bf16, pack_mxfp8
from benchkit.kernels.warp_decode.arms import packed_layer
from benchkit.kernels.warp_decode.configuration import LAYOUTS, as_params, parse_tiles
from benchkit.kernels.warp_decode.decode import call_problem
from benchkit.kernels.warp_decode.dispatch import TABLE

EXPERTS, HIDDEN, INTERMEDIATE, TOP_K, TOKENS = 4, 128, 64, 2, 3
KERNELS = {"wd_bf16": "bf16", "wd_bf16_packed": "bf16-packed", "wd_mxfp8": "mxfp8-packed", "wd_awq": "awq-packed"}


def arguments() -> dict[str, torch.Tensor]:
    routing = route("uniform", 1, TOKENS, EXPERTS, TOP_K)
    return {
        "x": torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16),
        "topk_ids": torch.from_numpy(routing.topk_ids.copy()),
        "topk_weights": torch.from_numpy(routing.topk_weights.copy()),
    }


def layer(weight_format: str = "bf16"):
    return make_weights(
        seed=1, experts=EXPERTS, hidden=HIDDEN, intermediate=INTERMEDIATE, copies=2, weight_format=weight_format
    )


def bf16():
    weights = layer()
    return checkpoint_bf16(weights.w13[0], weights.w2[0])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "needs all tensors on one GPU, found x on cpu and x on cpu"),
        (
            {"x": torch.zeros(TOKENS, 64, dtype=torch.bfloat16)},
            "needs x in bfloat16 or float16 of shape [tokens, 128], found torch.bfloat16 of [3, 64]",
        ),
        (
            {"x": torch.zeros(TOKENS, HIDDEN)},
            "needs x in bfloat16 or float16 of shape [tokens, 128], found torch.float32 of [3, 128]",
        ),
        ({"x": torch.zeros(TOKENS, HIDDEN, dtype=torch.float16)}, "needs x in bf16 beside bf16 weights, found fp16"),
        (
            {"topk_ids": torch.zeros(TOKENS, TOP_K, dtype=torch.int64)},
            "needs topk_ids in torch.int32 of shape [3, top_k], found torch.int64 of [3, 2]",
        ),
        (
            {"topk_weights": torch.zeros(TOKENS + 1, TOP_K)},
            "needs topk_weights in torch.float32 of shape [3, top_k], found torch.float32 of [4, 2]",
        ),
        (
            {"topk_weights": torch.zeros(TOKENS, TOP_K + 1)},
            "needs one routing weight a route, found [3, 3] for [3, 2]",
        ),
        (
            {
                "topk_ids": torch.zeros(TOKENS, 5, dtype=torch.int32),
                "topk_weights": torch.zeros(TOKENS, 5),
            },
            "needs top_k from 1 to 4, found 5",
        ),
        (
            {
                "x": torch.zeros(513, HIDDEN, dtype=torch.bfloat16),
                "topk_ids": torch.zeros(513, TOP_K, dtype=torch.int32),
                "topk_weights": torch.zeros(513, TOP_K),
            },
            "needs tokens from 1 to 512, found 513",
        ),
        (
            {"out": torch.zeros(TOKENS, HIDDEN)},
            "needs out like x, torch.bfloat16 of [3, 128], found torch.float32 of [3, 128]",
        ),
    ],
)
def test_a_call_that_does_not_fit(change, text):
    given = {"out": None, **arguments(), **change}
    with pytest.raises(DataError) as caught:
        moe_decode(given["x"], bf16(), given["topk_ids"], given["topk_weights"], out=given["out"])
    assert str(caught.value) == f"moe_decode {text}"


def test_a_layout_that_nobody_knows():
    given, weights = arguments(), bf16()
    object.__setattr__(weights, "layout", "int3")
    problem = call_problem(given["x"], weights, given["topk_ids"], given["topk_weights"], None)
    assert problem == "needs a layout of bf16, bf16-packed, mxfp8-packed, awq-packed, found 'int3'"


@pytest.mark.parametrize(("kernel", "layout"), KERNELS.items())
def test_arms_say_no_without_a_gpu(kernel, layout):
    sizes = {"experts": EXPERTS, "hidden": HIDDEN, "intermediate": 128, "copies": 1}
    weights = make_weights(seed=1, **sizes, weight_format=LAYOUTS[layout].weight_format)
    inputs = make_inputs(weights, route("uniform", 1, TOKENS, EXPERTS, TOP_K))
    answer = registry.prepare(kernel, inputs, as_params(TABLE[layout][0][1]))
    assert answer == Support.no("needs a layer on a GPU, found it on cpu")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_the_search_space_is_valid(kernel, tokens):
    inputs = make_inputs(layer(), route("uniform", 1, tokens, EXPERTS, TOP_K))
    tried = list(registry.search_space(kernel, inputs))
    assert len({str(params) for params in tried}) == len(tried) > 2
    for params in tried:
        assert registry.param_problems(kernel, params) == ()
        parse_tiles(params)
    assert len({frozenset(params) for params in tried}) == 1  # a point's own parameters change those of all points
    found = [parse_tiles(params) for params in tried]
    assert all(tiles in found for _, tiles in TABLE[KERNELS[kernel]])  # what the table has can be found again


def test_copies_are_packed_once():
    weights = layer()
    packed = packed_layer(weights, "bf16-packed")
    copies = packed.copies
    assert len(copies) == 2
    assert packed_layer(weights, "bf16-packed") is packed
    assert packed.repacking.nbytes == copies[0].nbytes
    assert packed.repacking.duration_ns > 0
    assert copies[0].w13.data_ptr() != copies[1].w13.data_ptr()
    expected = pack_bf16(weights.w13[0], weights.w2[0])
    for found in copies:
        assert torch.equal(found.w13, expected.w13)
        assert torch.equal(found.w2, expected.w2)
    lying = packed_layer(weights, "bf16")
    assert lying.repacking is None
    assert [each.w13.data_ptr() for each in lying.copies] == [each.data_ptr() for each in weights.w13]
    mxfp8 = layer("mxfp8")
    assert packed_layer(mxfp8, "mxfp8-packed").copies[0].layout == "mxfp8-packed"
    again = pack_mxfp8(mxfp8.w13[0], mxfp8.w13_scale[0], mxfp8.w2[0], mxfp8.w2_scale[0])
    assert torch.equal(packed_layer(mxfp8, "mxfp8-packed").copies[1].w2, again.w2)
