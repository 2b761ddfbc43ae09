"""The expert-centric arms on a GPU at the sizes of the protocols: ``pytest -m gpu tests/gpu/test_expert_centric.py``."""

import functools

import numpy as np
import pytest
import torch

from benchkit.device.cuda import CudaDevice
from benchkit.fixture.layer import MoeInputs, make_inputs, make_weights
from benchkit.fixture.mxfp8 import dequantise
from benchkit.fixture.routing import route
from benchkit.kernels import registry
from benchkit.kernels.contract import PreparedArm, Support
from benchkit.kernels.reference import compare

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
decode = pytest.importorskip("benchkit.kernels.expert_centric_triton")._decode

pytestmark = pytest.mark.gpu

LAYER = {"experts": 128, "hidden": 2048, "intermediate": 768}
FORMS = ["moe_eight_stage", "moe_fused"]
STAGES = ["sort", "pad", "gather", "up", "silu", "down", "scatter", "combine"]
EXACT = {"sort", "pad", "gather", "scatter"}
TILES = {"bf16": {"up_swap": True, "down_swap": True}, "mxfp8": {"up_swap": True, "down_swap": False}}
LEAST_COSINE = {"moe_eight_stage bf16": 0.99998, "moe_fused bf16": 0.99998, "moe_fused mxfp8": 0.99998}


@functools.cache
def inputs_of(weight_format: str, batch: int, law: str = "uniform") -> MoeInputs:
    return make_inputs(layer(weight_format), route(law, 7, batch, 128, 8))


@functools.cache
def layer(weight_format: str):
    return make_weights(seed=1, copies=2, device="cuda", weight_format=weight_format, **LAYER)


def prepared(kernel: str, inputs: MoeInputs, **params: object) -> PreparedArm:
    product = {"tile_n": 64, "tile_k": 128, "stages": 3, "warps": 4}
    tiles = {f"{name}_{key}": value for name in ("up", "down") for key, value in product.items()}
    weight_format = inputs.weights.weight_format
    arm = registry.prepare(
        kernel, inputs, {"tile_m": 16, **tiles, **TILES[weight_format], "launch_pdl": True, **params}
    )
    assert isinstance(arm, PreparedArm), arm
    return arm


@pytest.mark.parametrize("law", ["uniform", "zipf-1.2"])
@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
@pytest.mark.parametrize("kernel", FORMS)
def test_right_repeatable_and_right_after_replay(kernel, weight_format, batch, law):
    arm = prepared(kernel, inputs_of(weight_format, batch, law))
    seen = set()
    for call in range(20):
        arm.poison()
        arm.call(call % 2)
        seen.add(arm.output_bytes())
    assert len(seen) == 1
    least = LEAST_COSINE.get(f"{kernel} {weight_format}", 0.998)
    assert compare(arm.output(), arm.expected("stored")).min_cosine > least
    timer = CudaDevice(launch="graph").timer(arm.call, calls=4, copies=2, with_delay=False)
    arm.poison()
    timer.run()
    assert arm.output_bytes() in seen


@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
@pytest.mark.parametrize("kernel", FORMS)
def test_dependent_launches_change_nothing(kernel, weight_format):
    inputs = inputs_of(weight_format, 8)
    found = set()
    for pdl in (False, True):
        arm = prepared(kernel, inputs, launch_pdl=pdl)
        arm.call(0)
        found.add(arm.output_bytes())
    assert len(found) == 1


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
def test_stages_alone(weight_format, batch):
    for name in STAGES:
        arm = prepared("moe_stage", inputs_of(weight_format, batch), stage=name)
        expected = arm.expected("stored")
        arm.poison()
        arm.call(1)
        found = compare(arm.output(), expected)
        assert found.rel_error == 0.0 if name in EXACT else found.rel_error < 0.004, (name, found)


def test_mxfp8_has_two_truths():
    inputs = inputs_of("mxfp8", 8)
    errors = {}
    for kernel in FORMS:
        arm = prepared(kernel, inputs)
        arm.call(0)
        errors[kernel] = [compare(arm.output(), arm.expected(truth)).rel_error for truth in ("stored", "original")]
    fused, eight = errors["moe_fused"], errors["moe_eight_stage"]
    assert fused[0] < 0.006 < 0.03 < fused[1] < 0.06
    assert 0.03 < eight[0] < 0.06 < eight[1] < 0.09
    assert 1.3 < eight[1] / fused[1] < 1.5


def test_kernels_of_a_call():
    device = CudaDevice(launch="graph")
    for kernel, count in zip(FORMS, (8, 5), strict=True):
        arm = prepared(kernel, inputs_of("mxfp8", 4))
        arm.call(0)
        assert len(device.kernels(arm.call)) == count


def test_binaries_are_named():
    arm = prepared("moe_fused", inputs_of("bf16", 4))
    assert {name.split("-")[1] for name in arm.binaries} == {"align", "up", "silu", "down", "combine"}
    assert all(len(sha256) == 64 and sha256[:12] in name for name, sha256 in arm.binaries.items())


@triton.jit
def decode_all(elements, result):
    """Every element (columns) with every scale (rows)."""
    scale, column = tl.program_id(0), tl.arange(0, 256)
    values = tl.load(elements + column)
    tl.store(result + scale * 256 + column, decode(values, (scale + tl.zeros((256,), tl.int32)).to(tl.uint8)))


def test_decoding_is_exact_for_every_element_and_scale():
    elements = torch.arange(256, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    result = torch.zeros((135, 256), dtype=torch.bfloat16, device="cuda")
    decode_all[(135,)](elements, result)
    wide = torch.stack([dequantise(elements, torch.full((8,), scale, device="cuda")) for scale in range(135)])
    held = (wide.bfloat16().double() == wide) & (wide.abs() > 2.0**-126)
    assert int(held.sum()) > 125 * 250
    assert np.array_equal(result.double()[held].cpu().numpy(), wide[held].cpu().numpy())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # vLLM's own, while it is imported
@pytest.mark.parametrize("batch", [1, 4, 8, 32, 64])
def test_vllm_s_own_layer(batch):
    """Eager and replayed: rounded between its kernels as ours is (activations in bf16), so no nearer to the truth."""
    inputs = inputs_of("bf16", batch)
    arm = registry.prepare("vllm_fused_experts", inputs, {})
    if isinstance(arm, Support):
        pytest.skip(str(arm.reason))
    for replayed in (False, True):
        run = CudaDevice(launch="graph").timer(arm.call, calls=4, copies=2, with_delay=False).run if replayed else None
        arm.poison()
        arm.call(1) if run is None else run()
        found = compare(arm.output(), arm.expected("stored"))
        assert found.min_cosine > 0.99998
        assert found.rel_error < 6e-3
