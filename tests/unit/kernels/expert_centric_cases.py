"""The expert-centric arms in Triton's interpreter; test_expert_centric_interpreted.py runs this file with TRITON_INTERPRET=1 in a process of its own."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchkit.errors import DataError
from benchkit.fixture.layer import MoeInputs, make_inputs, make_weights
from benchkit.fixture.routing import Routing, route
from benchkit.kernels import expert_centric, registry
from benchkit.kernels.contract import PreparedArm, Support
from benchkit.kernels.expert_centric import EightStage, poison
from benchkit.kernels.expert_centric_stages import Stage
from benchkit.kernels.expert_centric_tiles import parse_tiles
from benchkit.kernels.reference import compare

SIZES = {"experts": 6, "hidden": 64, "intermediate": 32}
PRODUCT = {"tile_n": 64, "tile_k": 32, "stages": 1, "warps": 4}
PARAMS = {"tile_m": 16, **{f"{name}_{key}": value for name in ("up", "down") for key, value in PRODUCT.items()}}
FORMS = ["moe_eight_stage", "moe_fused"]
EXACT = {"sort", "pad", "gather", "scatter"}


def layer(weight_format="bf16", batch=3, law="uniform", copies=1, **sizes):
    sizes = {**SIZES, **sizes}
    weights = make_weights(seed=3, copies=copies, weight_format=weight_format, **sizes)
    return make_inputs(weights, route(law, 5, batch, sizes["experts"], 2))


def same_experts(batch, weight_format="bf16"):
    """All tokens meet the same two experts: more rows than one block has."""
    ids = np.tile(np.array([4, 1], dtype=np.int32), (batch, 1))
    routing = Routing(topk_ids=ids, topk_weights=np.full((batch, 2), 0.5, dtype=np.float32))
    return make_inputs(make_weights(seed=3, copies=1, weight_format=weight_format, **SIZES), routing)


def prepared(kernel, inputs, **params):
    arm = registry.prepare(kernel, inputs, {**PARAMS, **params})
    assert isinstance(arm, PreparedArm), arm
    return arm


def tolerance(kernel, weight_format):
    """Least cosine; the interpreter truncates to bf16 where a GPU rounds. Activations through MXFP8 cost more."""
    return 0.996 if (kernel, weight_format) == ("moe_eight_stage", "mxfp8") else 0.9999


@pytest.mark.parametrize("kernel", FORMS)
@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
def test_right_on_every_copy(kernel, weight_format):
    inputs = layer(weight_format, batch=2, law="zipf-1.0", copies=2)
    arm = prepared(kernel, inputs, up_swap=weight_format == "bf16", down_swap=True)
    seen = set()
    for copy in (0, 1):
        arm.poison()
        assert np.isnan(arm.output()).all()
        arm.call(copy)
        seen.add(arm.output_bytes())
    assert compare(arm.output(), arm.expected("stored")).min_cosine > tolerance(kernel, weight_format)
    assert len(seen) == 1
    inputs.weights.w2[1].view(torch.uint8).zero_()
    arm.call(1)
    assert not arm.output().any()


@pytest.mark.parametrize("kernel", FORMS)
def test_right_where_an_expert_has_two_blocks(kernel):
    arm = prepared(kernel, same_experts(17))
    assert compare(arm.output(), arm.expected("stored")).min_cosine > tolerance(kernel, "bf16")


@pytest.mark.parametrize("kernel", FORMS)
def test_right_where_no_part_is_full(kernel, monkeypatch):
    monkeypatch.setattr(expert_centric, "_WIDE_PART", 64)
    monkeypatch.setattr(expert_centric, "_NARROW_PART", 64)
    arm = prepared(kernel, layer("mxfp8", batch=1, hidden=96, intermediate=96), down_tile_n=32)
    assert compare(arm.output(), arm.expected("stored")).min_cosine > tolerance(kernel, "mxfp8")


def mixed_up(inputs: MoeInputs, order: torch.Tensor) -> MoeInputs:
    """The same point with the rows of w13 in another order."""
    w13 = inputs.weights.w13[0][:, order].contiguous()
    return replace(inputs, weights=replace(inputs.weights, w13=(w13,)))


@pytest.mark.parametrize("kernel", FORMS)
def test_trial_c01_gate_and_up_mixed_up_is_caught(kernel):
    inputs = layer(batch=2)
    truth = prepared(kernel, inputs).expected("stored")
    rows = torch.arange(64)
    for order in (rows.roll(32), rows.view(2, 32).t().reshape(64)):  # up first; neighbours as gate and up
        arm = prepared(kernel, mixed_up(inputs, order))
        arm.call(0)
        assert compare(arm.output(), truth).min_cosine < 0.9


@pytest.mark.parametrize("kernel", FORMS)
@pytest.mark.parametrize("inputs", [layer(batch=1), same_experts(17)], ids=["1", "same"])
def test_trial_c03_no_buffer_is_left(kernel, inputs, monkeypatch):
    guarded = []

    def scratch(shape, dtype, device):
        whole = torch.zeros(int(np.prod(shape)) + 128, dtype=dtype, device=device)
        whole[:64], whole[-64:] = 77, 77
        guarded.append(whole)
        return whole[64:-64].view(shape)

    monkeypatch.setattr(expert_centric, "scratch", scratch)
    arm = prepared(kernel, inputs)
    inputs.topk_ids.copy_(inputs.topk_ids.flip(0, 1))  # other routes than those of the preparation
    arm.call(0)
    assert all((whole[:64] == 77).all() and (whole[-64:] == 77).all() for whole in guarded)
    assert sum(whole.nbytes - 128 * whole.itemsize for whole in guarded) == arm.scratch_bytes + inputs.tokens * 64 * 2
    inputs.topk_ids.copy_(inputs.topk_ids.flip(0, 1))


def test_scratch_by_hand():
    inputs = layer(batch=5)  # 10 routes, at most 6 experts: 6 blocks, 96 rows
    wide = 2 * 96 * (64 + 64 + 32 + 64) + 2 * 10 * 64
    assert prepared("moe_eight_stage", inputs).scratch_bytes == wide + 4 * (6 + 6 + 10 + 6 + 6 + 10)
    assert prepared("moe_fused", inputs).scratch_bytes == 2 * 10 * (64 + 32 + 64) + 4 * (6 + 6 + 96)


@pytest.mark.parametrize("kernel", FORMS)
def test_ids_are_read_in_every_call(kernel):
    inputs = layer(batch=2)
    arm = prepared(kernel, inputs)
    ids = torch.tensor([[5, 0], [0, 5]], dtype=torch.int32)
    inputs.topk_ids.copy_(ids)
    arm.call(0)
    other = make_inputs(inputs.weights, replace(inputs.routing, topk_ids=ids.numpy()))
    assert compare(arm.output(), prepared(kernel, other).expected("stored")).min_cosine > 0.9999


@pytest.fixture(scope="module", params=["bf16", "mxfp8"])
def path(request):
    path = EightStage(layer(request.param), parse_tiles(PARAMS))
    path(0)
    return path


@pytest.mark.parametrize("name", EightStage.names)
def test_a_stage_alone(path, name):
    stage = Stage(path, name)
    before, expected = stage.read(), stage.expect("stored")
    poison(*stage.outputs)
    assert not compare(stage.read(), expected).rel_error < 0.05
    path.stage(name)(0)
    assert np.array_equal(stage.read(), before)
    found = compare(stage.read(), expected)
    assert found.rel_error == 0.0 if name in EXACT else found.rel_error < 0.008, found
    quantised = path.mxfp8 and name in ("up", "down")
    original = compare(stage.read(), stage.expect("original"))
    assert 0.01 < original.rel_error < 0.05 if quantised else original == found


def test_a_stage_as_an_arm():
    inputs = layer("mxfp8", copies=2, batch=1)
    arm = prepared("moe_stage", inputs, stage="up")
    arm.poison()
    arm.call(1)
    assert compare(arm.output(), arm.expected("stored")).rel_error < 0.008
    inputs.weights.w13[1].view(torch.uint8).zero_()
    arm.call(1)
    assert not arm.output().any()
    assert arm.output_bytes() == bytes(2 * 64 * 8)


def test_a_wrong_table_never_passes(path):
    stage = Stage(path, "gather")
    path.row_of_route[2] += 1
    assert compare(stage.read(), stage.expect("stored")).rel_error == float("inf")
    path.row_of_route[2] -= 1
    assert compare(stage.read(), stage.expect("stored")).rel_error == 0.0


def changed(inputs, **fields):
    return replace(inputs, **fields)


def with_ids(ids):
    inputs = layer(batch=1)
    return changed(inputs, topk_ids=torch.tensor([ids], dtype=torch.int32))


def with_nan():
    inputs = layer(batch=1)
    inputs.weights.w2[0][3, 1, 1] = float("nan")
    return inputs


def with_scale(byte):
    inputs = layer("mxfp8", batch=1)
    inputs.weights.w13_scale[0][2, 1, 1] = byte
    return inputs


def without_tokens():
    inputs = layer(batch=1)
    nothing = {"x": inputs.x[:0], "topk_ids": inputs.topk_ids[:0], "topk_weights": inputs.topk_weights[:0]}
    return changed(inputs, **nothing)


@pytest.mark.parametrize("kernel", FORMS)
@pytest.mark.parametrize(
    ("make", "params", "reason"),
    [
        (lambda: with_ids([2, 2]), {}, "token 0: needs distinct experts, found expert 2 2 times"),
        (lambda: with_ids([2, 6]), {}, "token 0, slot 1: needs an expert from 0 to 5, found 6"),
        (lambda: with_ids([-1, 2]), {}, "token 0, slot 0: needs an expert from 0 to 5, found -1"),
        (with_nan, {}, "w2: needs finite weights, found others in expert 3"),
        (lambda: with_scale(255), {}, "w13: needs finite weights, found others in expert 2"),
        (lambda: with_scale(135), {}, "needs scale bytes up to 134 (a factor of 2^7), found 135"),
        (without_tokens, {}, "needs at least 1 token, found 0"),
        (lambda: layer("fp32"), {}, "needs bf16 or mxfp8 weights, found fp32"),
        (layer, {"up_tile_n": 128}, "up_tile_n = 128 needs a multiple of it as weight rows, found 64"),
        (layer, {"down_tile_k": 64}, "down_tile_k = 64 needs a multiple of it as weight columns, found 32"),
        (lambda: layer(hidden=68), {}, "bf16 needs hidden to be a multiple of 8, found 68"),
        (layer, {"launch_pdl": True}, "launch_pdl needs compute capability 9.0, found an interpreter"),
        (lambda: layer(batch=2049), {}, "needs at most 4096 routes (this is a decode path), found 4098"),
    ],
)
def test_refusals(kernel, make, params, reason):
    answer = registry.prepare(kernel, make(), {**PARAMS, **params})
    assert isinstance(answer, Support)
    assert answer.reason == reason


def test_offsets_within_an_expert_have_32_bits(monkeypatch):
    monkeypatch.setattr(expert_centric, "_MAX_ELEMENTS", 2 * 32 * 64)
    answer = registry.prepare("moe_fused", layer(), PARAMS)
    assert isinstance(answer, Support)
    assert answer.reason == "needs w13 of an expert below 2^31 weights, found 4096"


def test_refused_parameters():
    for name, value, text in [
        ("tile_m", 24, "expected one of 16, 32, 64, 128 for moe_fused, found 24"),
        ("up_tile_k", 16, "expected one of 32, 64, 128, 256 for moe_fused, found 16"),
        ("down_warps", 32, "expected one of 1, 2, 4, 8, 16 for moe_fused, found 32"),
    ]:
        with pytest.raises(DataError, match=rf"params\.{name}: {text}"):
            registry.prepare("moe_fused", layer(), {**PARAMS, name: value})
    with pytest.raises(
        DataError, match=r"params\.stage: expected one of sort, pad, gather, .* for moe_stage, found \"norm\""
    ):
        registry.prepare("moe_stage", layer(), {**PARAMS, "stage": "norm"})


def test_the_search_space_is_made_of_parameters():
    for weight_format in ("bf16", "mxfp8"):
        found = list(registry.search_space("moe_fused", layer(weight_format, batch=1)))
        assert len(found) == 32
        assert all(registry.param_problems("moe_fused", params) == () for params in found)


@pytest.mark.parametrize(("tokens", "tried"), [(16, [16]), (17, [16, 32]), (33, [16, 32, 64])])
def test_a_busy_expert_is_tried_in_larger_blocks(tokens, tried):
    found = list(registry.search_space("moe_fused", same_experts(tokens)))
    assert [rows for rows, _ in itertools.groupby(params["tile_m"] for params in found)] == tried
    assert len(found) == 32 + 50 * (len(tried) - 1)
    assert all(registry.param_problems("moe_fused", params) == () for params in found)
