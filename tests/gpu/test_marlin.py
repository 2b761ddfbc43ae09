"""vLLM's Marlin path on a GPU, with its own and with stable alignment: right, legal, one output a mode, and the schedule that was predicted."""

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchkit.device.cuda import CudaDevice
from benchkit.fixture import alignment as reference
from benchkit.fixture.layer import MoeInputs, MoeWeights, make_inputs, make_weights
from benchkit.fixture.routing import Routing, route
from benchkit.kernels import alignment, marlin, registry, vllm_ops
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.marlin_repack import marlin_layer
from benchkit.kernels.marlin_selector import H200, block_size, select
from benchkit.kernels.reference import compare
from benchkit.kernels.warp_decode.configuration import as_params
from benchkit.kernels.warp_decode.dispatch import TABLE

pytestmark = pytest.mark.gpu

EXPERTS, HIDDEN, INTERMEDIATE, TOP_K = 128, 2048, 768, 8
BATCHES = (1, 2, 4, 8, 16, 21, 32, 64, 128)
ALIGNMENTS = ("native", "stable")
REPEATS = 30
LARGEST_TILES = as_params(TABLE["awq-packed"][-1][1])
REPACK = "_C::awq_marlin_repack"
REPACK_ARGUMENTS = "(Tensor b_q_weight, SymInt size_k, SymInt size_n, int num_bits, bool is_a_8bit) -> Tensor"


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


@pytest.fixture(scope="module")
def ops() -> vllm_ops.VllmOps:
    found = vllm_ops.load()
    if isinstance(found, Support):
        pytest.skip(str(found.reason))
    return found


@pytest.fixture(scope="module")
def weights() -> Iterator[MoeWeights]:
    yield layer(EXPERTS, HIDDEN, INTERMEDIATE)
    torch.cuda.empty_cache()


def layer(experts: int, hidden: int, intermediate: int) -> MoeWeights:
    sizes = {"experts": experts, "hidden": hidden, "intermediate": intermediate}
    return make_weights(seed=5, copies=2, device="cuda", weight_format="awq-int4-g128", **sizes)


def prepared(inputs: MoeInputs, params: Params) -> PreparedArm:
    arm = registry.prepare("marlin_moe", inputs, params)
    assert isinstance(arm, PreparedArm), arm
    return arm


def digest(arm: PreparedArm) -> str:
    return hashlib.sha256(arm.output_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("experts", "tokens", "top_k"),
    [
        *[
            (1, 3, 1),
            (5, 3, 2),
            (64, 200, 8),
            (127, 21, 8),
            (128, 1, 8),
            (128, 21, 8),
            (128, 128, 8),
            (128, 1024, 8),
            (40, 8200, 1),
        ],
        *[(129, 64, 8), (257, 33, 7), (512, 64, 10), (1024, 64, 8), (1025, 2, 2), (2049, 100, 8)],
    ],
)
@pytest.mark.parametrize("block", [8, 16, 48, 64])
def test_stable_alignment_is_the_reference(device, experts, tokens, top_k, block):
    for law in ("uniform", "zipf-1.2"):
        ids = route(law, 3, tokens, experts, top_k).topk_ids
        on_device = torch.from_numpy(ids.copy()).cuda()
        right = reference.align(ids, experts, block)
        into = alignment.allocate(ids.size, experts, block, "cuda")
        for junk in (0, 77, -1):
            for tensor in into.tensors:
                tensor.fill_(junk)
            alignment.stable(on_device, into)
            device.synchronize()
            rows = right.num_tokens_post_padded
            assert into.num_tokens_post_padded.tolist() == [rows]
            assert np.array_equal(into.sorted_token_ids[:rows].cpu().numpy(), right.sorted_token_ids)
            assert bool((into.sorted_token_ids[rows:] == ids.size).all())
            assert np.array_equal(into.expert_ids[: right.blocks].cpu().numpy(), right.expert_ids)
            assert bool((into.expert_ids[right.blocks :] == -1).all())


def test_stable_alignment_can_be_replayed_on_other_ids(device):
    first, second = (route("zipf-1.2", seed, 64, 128, 8).topk_ids for seed in (1, 2))
    on_device = torch.from_numpy(first.copy()).cuda()
    into = alignment.allocate(first.size, 128, 8, "cuda")
    timer = device.timer(lambda copy: alignment.stable(on_device, into), calls=1, copies=1, with_delay=False)
    for ids in (first, second, first):
        on_device.copy_(torch.from_numpy(ids))
        timer.run()
        assert reference.mode(into.read(ids)) == reference.mode(reference.align(ids, 128, 8))


def test_the_loaded_ops(ops):
    assert {name.rpartition("/")[2] for name in ops.binaries} == {"_moe_C.abi3.so", "_C_stable_libtorch.abi3.so"}
    assert all(len(value) == 64 for value in ops.binaries.values())


@pytest.mark.parametrize("law", ["uniform", "zipf-1.2"])
@pytest.mark.parametrize("tokens", BATCHES)
def test_right_eager_and_replayed(device, ops, weights, tokens, law):
    inputs = make_inputs(weights, route(law, 1, tokens, EXPERTS, TOP_K))
    for kind in ALIGNMENTS:
        arm = prepared(inputs, {"alignment": kind})
        arm.poison()
        arm.call(1)
        device.synchronize()
        found = compare(arm.output(), arm.expected("stored"))
        print(f"{kind} {law} M={tokens}: {found}")
        assert found.min_cosine > 0.999999
        assert found.rel_error < 1e-3
        assert len(arm.mode()) == 64  # the alignment is a legal one
        first = arm.output_bytes()
        timer = device.timer(arm.call, calls=3, copies=2, with_delay=False)
        arm.poison()
        timer.run()
        assert compare(arm.output(), arm.expected("stored")).rel_error < 1e-3
        assert kind == "native" or arm.output_bytes() == first


@pytest.mark.parametrize(
    ("law", "seed", "tokens"),
    [
        ("zipf-1.2", 1, 21),
        ("zipf-1.2", 1, 64),
        ("zipf-1.2", 1, 128),
        *[("uniform", 20260897, m) for m in (1, 16, 64, 128)],
    ],
)
def test_one_output_a_mode(device, ops, weights, law, seed, tokens):
    """Without a clock: how many modes and outputs each alignment gives, on the routing of marlin-stable-alignment-h200 among others."""
    routing = route(law, seed, tokens, EXPERTS, TOP_K)
    inputs = make_inputs(weights, routing)
    outputs: dict[str, dict[str, set[str]]] = {kind: {} for kind in ALIGNMENTS}
    arms = {kind: prepared(inputs, {"alignment": kind}) for kind in ALIGNMENTS}
    for repeat in range(REPEATS):
        for kind, arm in arms.items():
            arm.poison()
            arm.call(repeat % 2)
            device.synchronize()
            outputs[kind].setdefault(arm.mode(), set()).add(digest(arm))
    print(law, tokens, {kind: (len(found), len(set().union(*found.values()))) for kind, found in outputs.items()})
    block = block_size(tokens, TOP_K, EXPERTS)
    right = reference.fingerprint(reference.align(routing.topk_ids, EXPERTS, block))
    assert list(outputs["stable"]) == [right]
    assert all(len(each) == 1 for found in outputs.values() for each in found.values())
    if np.bincount(routing.topk_ids.ravel()).max() <= block:  # no expert fills more than one block: there is one mode
        assert outputs["native"] == outputs["stable"]
    for mode in outputs["native"].keys() & outputs["stable"].keys():
        assert outputs["native"][mode] == outputs["stable"][mode]


def test_arms_of_a_point_share_memory_and_outputs_do_not_pass_from_one_to_another(device, ops, weights):
    inputs = make_inputs(weights, route("zipf-1.2", 1, 64, EXPERTS, TOP_K))
    arms = [prepared(inputs, {"alignment": kind}) for kind in ALIGNMENTS]
    timers = [device.timer(arm.call, calls=2, copies=2, with_delay=False) for arm in arms]
    for arm, timer in zip(arms, timers, strict=True):
        arm.poison()
        assert np.isnan(arm.output()).all()
        timer.run()
        assert compare(arm.output(), arm.expected("stored")).rel_error < 1e-3
    listed = [device.kernels(arm.call) for arm in arms]
    assert [arm.scratch_bytes for arm in arms] == [arms[0].scratch_bytes] * 2
    assert all("Marlin" in "".join(kernel.name for kernel in each) for each in listed)


def test_the_native_order_injected_again(device, ops, weights):
    inputs = make_inputs(
        weights, Routing(topk_ids=reference.study_ids(), topk_weights=np.full((21, 8), 0.125, np.float32))
    )
    path = marlin.MarlinPath(inputs, ops, marlin.Configuration(), alignment.native(ops.align), 8)
    path(0)
    device.synchronize()
    seen, mode, output = path.routes.read(inputs.routing.topk_ids), path.mode(), path.output().tobytes()
    again = marlin.MarlinPath(inputs, ops, marlin.Configuration(), alignment.injected(seen), 8)
    again.poison()
    again(0)
    device.synchronize()
    assert (again.mode(), again.output().tobytes()) == (mode, output)


def test_the_configuration_that_was_predicted(device, ops, weights):
    for tokens in (1, 21, 128):
        inputs = make_inputs(weights, route("uniform", 1, tokens, EXPERTS, TOP_K))
        listed = {}
        for kind in ALIGNMENTS:
            arm = prepared(inputs, {"alignment": kind})
            arm.call(0)
            device.synchronize()
            listed[kind] = device.kernels(arm.call)
            for kernel in listed[kind]:
                print(tokens, kind, kernel)
        gemms = [kernel for kernel in listed["native"] if "Marlin" in kernel.name]
        assert [kernel.name for kernel in listed["stable"]].count("stable_align") == 1
        assert len(listed["stable"]) < len(listed["native"])
        assert gemms == [kernel for kernel in listed["stable"] if "Marlin" in kernel.name]
        if torch.cuda.get_device_properties(0).name == "NVIDIA H200":
            block = block_size(tokens, TOP_K, EXPERTS)
            right = [
                select(H200, tokens=tokens, top_k=TOP_K, size_n=2 * INTERMEDIATE, size_k=HIDDEN, block=block),
                select(H200, tokens=tokens * TOP_K, top_k=1, size_n=HIDDEN, size_k=INTERMEDIATE, block=block),
            ]
            assert [kernel.grid for kernel in gemms] == [(each.grid, 1, 1) for each in right]
            assert [kernel.block for kernel in gemms] == [(each.threads, 1, 1) for each in right]


def test_explicit_configurations(device, ops, weights):
    inputs = make_inputs(weights, route("uniform", 1, 21, EXPERTS, TOP_K))
    tried = list(registry.search_space("marlin_moe", inputs))
    for params in tried[:: len(tried) // 12]:
        arm = prepared(inputs, params)
        arm.poison()
        arm.call(0)
        device.synchronize()
        assert compare(arm.output(), arm.expected("stored")).rel_error < 1e-3, params


def test_b03_six_repeats_of_a_split_product(device, ops):
    """(m, n, k) = (16, 512, 3584) in W13: six digests, all equal, with partial sums in series."""
    inputs = make_inputs(layer(8, 3584, 256), route("uniform", 3, 16, 8, 1))
    arm = prepared(inputs, {"alignment": "stable"})
    digests = []
    for _ in range(6):
        arm.poison()
        arm.call(0)
        device.synchronize()
        digests.append(digest(arm))
    assert digests == digests[:1] * 6


@pytest.mark.parametrize(
    ("kernel", "params"),
    [("marlin_moe", {"alignment": "stable"}), ("marlin_moe", {"alignment": "native"}), ("wd_awq", LARGEST_TILES)],
    ids=["stable", "native", "wd_awq"],
)
def test_b04_a_token_among_others(device, ops, weights, kernel, params):
    """Token 0 alone decides its values within the tolerance; whether its bits depend on the batch is said of the tested M, not assumed.

    The split of K depends on how many blocks there are, so Marlin's may; the tiles of ``wd_awq`` are those of its largest batch throughout.
    """
    rows, largest_batch = {}, route("uniform", 9, 257, EXPERTS, TOP_K)
    x = make_inputs(weights, largest_batch).x
    for tokens in (4, 16, 64, 257):
        ids, shares = largest_batch.topk_ids[:tokens].copy(), largest_batch.topk_weights[:tokens].copy()
        routing = Routing(topk_ids=ids, topk_weights=shares)
        on_device = {"topk_ids": torch.from_numpy(ids).cuda(), "topk_weights": torch.from_numpy(shares).cuda()}
        inputs = MoeInputs(weights=weights, x=x[:tokens].clone(), routing=routing, **on_device)
        arm = registry.prepare(kernel, inputs, params)
        assert isinstance(arm, PreparedArm), arm
        arm.poison()
        arm.call(0)
        device.synchronize()
        assert compare(arm.output(), arm.expected("stored")).rel_error < 1e-3
        rows[tokens] = arm.output()[0]
    equal = [tokens for tokens, row in rows.items() if np.array_equal(row, rows[4])]
    largest = max(float(np.abs(row - rows[4]).max()) for row in rows.values())
    word = "batch-invariant over these M" if len(equal) == len(rows) else "batch-variant"
    print(f"B04: {kernel}: {word}: token 0 has the bits of M = 4 at {equal}; largest difference {largest:.9g}")
    assert largest < 1e-2


def test_the_repack_is_that_of_the_op(ops, weights):
    """In 0.20 and 0.22 the op stands in a file that no arm needs."""
    folder = vllm_ops.package_folder()
    assert folder is not None
    if vllm_ops._found(REPACK) is None and (folder / "_C.abi3.so").exists():
        torch.ops.load_library(str(folder / "_C.abi3.so"))
    repack = vllm_ops._found(REPACK)
    if repack is None:
        pytest.skip(f"the installed files have no {REPACK}: _C.abi3.so is needed beside the others")
    assert str(repack._schema) == str(torch._C.parse_schema(f"{REPACK}{REPACK_ARGUMENTS}"))
    ours = marlin_layer(weights).copies[0]
    for name, gemm, size_k, size_n in (
        ("w13", ours.w13, HIDDEN, 2 * INTERMEDIATE),
        ("w2", ours.w2, INTERMEDIATE, HIDDEN),
    ):
        for expert in range(EXPERTS):
            found = repack(weights.parts()[name][0][expert], size_k, size_n, 4, False)
            assert torch.equal(found, gemm.weight[expert]), (name, expert)


def test_what_repacking_costs(ops, weights):
    """Said, not judged: the first copy of the layer, in the memory that the checkpoint's weights take."""
    layer_of_marlin = marlin_layer(weights)
    print(f"repacking: {layer_of_marlin.repacking}")
    assert layer_of_marlin.repacking.nbytes == sum(int(each[0].nbytes) for each in weights.parts().values())
