"""The Marlin path on a small layer in Triton's interpreter, over a stand-in for vLLM's ops: arguments, alignment, truth, refusals."""

import gc
import weakref

import numpy as np
import pytest
import torch
import vllm_stand_in

from benchkit.errors import DataError, WorkerError
from benchkit.fixture import alignment as reference
from benchkit.fixture import awq
from benchkit.fixture.layer import make_inputs, make_weights
from benchkit.fixture.marlin_layout import to_marlin
from benchkit.fixture.routing import Routing, route
from benchkit.kernels import alignment, marlin, marlin_buffers, registry, vllm_ops
from benchkit.kernels.contract import PreparedArm, Support
from benchkit.kernels.marlin_repack import marlin_layer
from benchkit.kernels.marlin_selector import block_size
from benchkit.kernels.reference import compare

SIZES = {"experts": 6, "hidden": 256, "intermediate": 128}
NATIVE, STABLE = {"alignment": "native"}, {"alignment": "stable"}


@pytest.fixture(scope="module")
def weights():
    return make_weights(seed=5, copies=2, weight_format="awq-int4-g128", **SIZES)


@pytest.fixture
def installed(monkeypatch):
    found = vllm_stand_in.ops()
    names = zip(("align", "gemm", "sum", "silu_and_mul"), found.values(), strict=True)
    ops = vllm_ops.VllmOps(version="0.22.0", binaries={"vllm/_moe_C.abi3.so": "ab" * 32}, **dict(names))
    monkeypatch.setattr(vllm_ops, "load", lambda: ops)
    return found


def inputs_of(weights, tokens, top_k=2):
    return make_inputs(weights, route("zipf-1.2", 1, tokens, weights.experts, top_k))


def prepared(inputs, params) -> PreparedArm:
    arm = registry.prepare("marlin_moe", inputs, params)
    assert isinstance(arm, PreparedArm), arm
    return arm


@pytest.mark.parametrize(("tokens", "top_k"), [(1, 2), (3, 1), (24, 2), (40, 3)])
@pytest.mark.parametrize("params", [NATIVE, STABLE])
def test_the_layer(weights, installed, tokens, top_k, params):
    """With 24 and 40 tokens experts have more routes than a block of 8 or 16 holds."""
    inputs = inputs_of(weights, tokens, top_k)
    arm = prepared(inputs, params)
    for copy in (0, 1):
        arm.poison()
        assert np.isnan(arm.output()).all()
        arm.call(copy)
        found = compare(arm.output(), arm.expected("stored"))
        assert found.min_cosine > 0.999998
        assert found.rel_error < 1.5e-3
    assert arm.expected("original").shape == (tokens, 256)
    assert compare(arm.output(), arm.expected("original")).rel_error > 0.05
    assert arm.binaries == {"vllm/_moe_C.abi3.so": "ab" * 32}
    assert arm.repacking is marlin_layer(weights).repacking
    assert len(arm.output_bytes()) == tokens * 256 * 2


def test_modes_of_both_alignments(weights, installed):
    """The stand-in's native order is legal and another one, so a different mode wherever an expert fills more than one block."""
    inputs = inputs_of(weights, 24)
    ids = inputs.routing.topk_ids
    assert np.bincount(ids.ravel()).max() > 16 == block_size(24, 2, 6)
    modes, outputs = [], []
    for arm in (prepared(inputs, NATIVE), prepared(inputs, STABLE)):
        arm.call(0)
        modes.append(arm.mode())
        outputs.append(arm.output_bytes())
    assert modes[1] == reference.fingerprint(reference.align(ids, 6, 16))
    assert modes[0] != modes[1]
    assert len(modes[0]) == 64
    assert outputs[0] == outputs[1]  # rows of a product do not depend on each other here


def test_arguments_of_the_gemms(weights, installed):
    inputs = inputs_of(weights, 3)
    explicit = {"w13_thread_k": 64, "w13_thread_n": 128, "w13_blocks_per_sm": 3}
    prepared(inputs, {**NATIVE, **explicit}).call(1)
    w13, w2 = installed["_moe_C::moe_wna16_marlin_gemm"].calls
    assert (w13[15:22], w13[26:]) == ((8, 2, False, marlin.UINT4, 3, 256, 256), (64, 128, 3))
    assert (w2[15:22], w2[26:]) == ((8, 1, True, marlin.UINT4, 6, 256, 128), (-1, -1, -1))
    assert w13[1].data_ptr() == w2[1].data_ptr()  # one buffer for both, as in vLLM
    assert w13[2] is marlin_layer(weights).copies[1].w13.weight
    assert w13[10].numel() == 4
    ((given, experts, block, *_),) = installed["_moe_C::moe_align_block_size"].calls
    assert (given is inputs.topk_ids, experts, block) == (True, 6, 8)


def test_an_injected_order_through_the_stages(weights, installed):
    inputs = inputs_of(weights, 24)
    ids = inputs.routing.topk_ids
    plan = reference.small_batch_plan(ids, 6)
    given = reference.align(ids, 6, 16, plan)
    path = marlin.MarlinPath(inputs, vllm_ops.load(), marlin.Configuration(), alignment.injected(given), 16)
    path.align()
    path.w13(0)
    surface = path.gate_up.clone()
    path.silu_and_mul()
    path.w2(0)
    path.sum()
    assert path.mode() == reference.fingerprint(given)
    assert surface.shape == (48, 256)
    assert not torch.equal(surface, path.gate_up)  # W2 has overwritten it
    output = path.output().tobytes()
    stable = prepared(inputs, STABLE)
    stable.poison()
    stable.call(0)
    assert stable.output().tobytes() == output


def test_repacked_layouts_are_those_of_numpy(weights):
    (first, second), parts = marlin_layer(weights).copies, weights.parts()
    assert marlin_layer(weights) is marlin_layer(weights)
    assert marlin_layer(weights).repacking.nbytes == marlin_layer(weights).copies[1].nbytes
    assert marlin_layer(weights).repacking.duration_ns > 0
    for name in ("w13", "w2"):
        arrays = [parts[f"{name}{part}"][0].numpy() for part in ("", "_zero", "_scale")]
        right = to_marlin(awq.AwqMatrix(qweight=arrays[0], qzeros=arrays[1], scales=arrays[2]))
        for gemm in (getattr(first, name), getattr(second, name)):
            assert np.array_equal(gemm.weight.numpy(), right.weight)
            assert np.array_equal(gemm.scales.numpy(), right.scales)  # w2 has one group a column, another permutation
            assert np.array_equal(gemm.zeros.numpy(), right.zeros)
        tensors = [
            getattr(getattr(each, name), part) for each in (first, second) for part in ("weight", "scales", "zeros")
        ]
        assert len({tensor.data_ptr() for tensor in tensors}) == 6


def test_a_wrong_zero_point_is_caught(weights, installed):
    """Zero points of one expert's W2, off by one: the arm computes it faithfully, and the truth shows it."""
    inputs = inputs_of(weights, 3)
    arm = prepared(inputs, STABLE)
    arm.call(0)
    assert compare(arm.output(), arm.expected("stored")).rel_error < 1e-3
    expert = int(inputs.routing.topk_ids[0, 0])
    zeros = marlin_layer(weights).copies[0].w2.zeros[expert]
    kept = zeros.clone()
    zeros ^= 0x11111111
    arm.call(0)
    found = compare(arm.output(), arm.expected("stored"))
    zeros.copy_(kept)
    assert found.rel_error > 0.01
    assert found.min_cosine < 0.9999


def test_dirty_lock_words_end_the_process_and_never_reach_the_next_arm(weights, installed):
    inputs = inputs_of(weights, 1)
    path = marlin.MarlinPath(inputs, vllm_ops.load(), marlin.Configuration(), alignment.stable, 8)
    path(0)
    path.output()
    path._locks[2] = 1
    with pytest.raises(WorkerError, match="expected lock words of 0 behind a call, found others"):
        path.output()
    prepared(inputs, NATIVE).call(0)  # the stand-in refuses lock words that are not 0
    path.output()


def addresses(path):
    tensors = (*path.routes.tensors, path.gate_up, path.activated, path.routed, path.y, path._locks)
    return [tensor.data_ptr() for tensor in tensors]


def test_arms_of_a_point_share_their_memory(weights, installed):
    """Equal addresses in all arms of a point, whatever their alignment and launches; the lock words in all of a layer."""
    here, there = inputs_of(weights, 3), inputs_of(weights, 3)
    ops, explicit = vllm_ops.load(), marlin.Configuration(w13=(64, 128, 1), w2=(64, 128, 2))
    first = marlin.MarlinPath(here, ops, marlin.Configuration(), alignment.native(ops.align), 8)
    second = marlin.MarlinPath(here, ops, explicit, alignment.stable, 8)
    assert addresses(first) == addresses(second)
    assert len(set(addresses(first))) == 7  # gate_up and routed begin together
    elsewhere = addresses(marlin.MarlinPath(there, ops, explicit, alignment.stable, 8))
    assert [a == b for a, b in zip(addresses(first), elsewhere, strict=True)] == [False] * 7 + [True]
    wider = addresses(marlin.MarlinPath(here, ops, explicit, alignment.stable, 16))
    assert wider[-1] == elsewhere[-1]
    assert not set(wider[:-1]) & set(addresses(first)[:-1])


def test_an_arm_that_writes_nothing_does_not_pass_for_another(weights, installed):
    inputs = inputs_of(weights, 3)
    prepared(inputs, STABLE).call(0)
    installed["_moe_C::moe_sum"].function = lambda values, result: None
    idle = prepared(inputs, NATIVE)
    idle.poison()
    idle.call(0)
    assert np.isnan(idle.output()).all()


def test_buffers_go_with_the_inputs(weights):
    inputs = inputs_of(weights, 3)
    kept = weakref.ref(marlin_buffers.marlin_buffers(inputs, 8).routes.sorted_token_ids)
    assert marlin_buffers.marlin_buffers(inputs, 8).routes.sorted_token_ids is kept()
    del inputs
    gc.collect()
    assert kept() is None


def test_scratch():
    """One token: 2 routes, 16 rows of blocks; products 2 x 256 fp16, activated 2 x 128 fp16, 4 locks, partial sums 256 x 16 fp32, twice."""
    weights = make_weights(seed=5, copies=1, weight_format="awq-int4-g128", **SIZES)
    path = marlin.MarlinPath(inputs_of(weights, 1), None, marlin.Configuration(), alignment.stable, 8)
    assert path.routes.nbytes == 4 * (16 + 2 + 1)
    assert path.scratch_bytes == 2 * 256 * 2 + 2 * 128 * 2 + 4 * 4 + 76 + 4 * 256 * 16 * 2


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (
            {"experts": 2, "hidden": 128, "intermediate": 128},
            None,
        ),
        (
            {"experts": 2, "hidden": 128, "intermediate": 128, "weight_format": "bf16"},
            "needs awq-int4-g128 weights, found bf16",
        ),
    ],
)
def test_layers_that_marlin_takes(installed, sizes, reason):
    weights = make_weights(**{"seed": 1, "copies": 1, "weight_format": "awq-int4-g128", **sizes})
    found = registry.prepare("marlin_moe", inputs_of(weights, 1), STABLE)
    assert getattr(found, "reason", None) == reason
    assert isinstance(found, Support) is (reason is not None)
    assert not installed["_moe_C::moe_wna16_marlin_gemm"].calls


def test_no_tokens(weights, installed):
    inputs = inputs_of(weights, 1)
    nothing = Routing(topk_ids=np.zeros((0, 2), dtype=np.int32), topk_weights=np.zeros((0, 2), dtype=np.float32))
    empty = type(inputs)(
        weights=weights,
        x=inputs.x[:0],
        topk_ids=inputs.topk_ids[:0],
        topk_weights=inputs.topk_weights[:0],
        routing=nothing,
    )
    found = registry.prepare("marlin_moe", empty, STABLE)
    assert found == Support.no("needs at least 1 token, found 0")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"alignment": "best"}, 'params.alignment: expected one of native, stable for marlin_moe, found "best"'),
        (
            {"alignment": "native", "w2_thread_k": 64},
            "params.w2_thread_n: expected all or none of w2_thread_k, w2_thread_n, w2_blocks_per_sm, found nothing",
        ),
    ],
)
def test_parameters_that_no_layer_could_use(weights, installed, params, message):
    with pytest.raises(DataError) as caught:
        registry.prepare("marlin_moe", inputs_of(weights, 1), params)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((64, 256, 1), "w13: needs a tile of 128 x 128, 64 x 128, 128 x 64 in blocks of 8 rows, found 64 x 256"),
        (
            (128, 128, 5),
            "w13: needs up to 4 CUDA blocks per SM within 232448 bytes of shared memory, found 5 of 261120 bytes",
        ),
    ],
)
def test_configurations_that_do_not_fit(weights, installed, shape, reason):
    names = ("w13_thread_k", "w13_thread_n", "w13_blocks_per_sm")
    found = marlin.prepare(inputs_of(weights, 1), {**NATIVE, **dict(zip(names, shape, strict=True))})
    assert found == Support.no(reason)


def test_search_space(weights, installed):
    tried = list(registry.search_space("marlin_moe", inputs_of(weights, 1)))
    assert len(tried) == 10 * 10  # of 128 x 128 tiles an SM's registers hold two
    assert tried[0] == {
        "alignment": "native",
        "w13_thread_k": 128,
        "w13_thread_n": 128,
        "w13_blocks_per_sm": 1,
        "w2_thread_k": 128,
        "w2_thread_n": 128,
        "w2_blocks_per_sm": 1,
    }
    assert all(registry.param_problems("marlin_moe", params) == () for params in tried)
    prepared(inputs_of(weights, 1), tried[-1])
