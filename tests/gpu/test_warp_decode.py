"""Warp decode on a GPU, on the layer of the protocols: right at every batch and routing, eager and replayed, the same bits again."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchkit.device.cuda import CudaDevice
from benchkit.fixture.layer import MoeInputs, MoeWeights, make_inputs, make_weights
from benchkit.fixture.routing import Routing, route
from benchkit.kernels import registry
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.reference import compare
from benchkit.kernels.warp_decode import layer

pytestmark = pytest.mark.gpu

EXPERTS, HIDDEN, INTERMEDIATE, TOP_K = 128, 2048, 768, 8
BATCHES = (1, 2, 4, 8, 16, 32, 64)
MIN_COSINE = 0.999996
COPIES, REPEATS = 2, 20


def literal(load: int, up: tuple[int, int], down: tuple[int, int]) -> Params:
    return {
        "up_load_bytes": load,
        "up_depth": up[0],
        "up_ctas_per_sm": up[1],
        "down_load_bytes": load,
        "down_depth": down[0],
        "down_ctas_per_sm": down[1],
    }


def portable(up: tuple[int, int, int, int], down: tuple[int, int, int, int, int], *, pdl: bool) -> Params:
    names = ("up_tile_n", "up_tile_k", "up_warps", "up_stages")
    names += ("down_tile_n", "down_tile_k", "down_experts", "down_warps", "down_stages")
    return {**dict(zip(names, up + down, strict=True)), "launch_pdl": pdl}


ARMS: dict[str, tuple[str, str, Params]] = {
    "literal bf16": ("wd_literal", "bf16", literal(16, (2, 6), (6, 4))),
    "literal mxfp8": ("wd_literal", "mxfp8", literal(16, (4, 3), (6, 3))),
    "literal mxfp8 narrow": ("wd_literal", "mxfp8", literal(8, (2, 6), (6, 3))),
    "portable bf16": ("wd_portable", "bf16", portable((4, 1024, 4, 1), (2, 1024, 8, 8, 1), pdl=False)),
    "portable bf16 pdl": ("wd_portable", "bf16", portable((1, 2048, 1, 1), (4, 256, 2, 4, 1), pdl=True)),
    "portable bf16 steps": ("wd_portable", "bf16", portable((8, 512, 8, 2), (8, 256, 2, 4, 3), pdl=True)),
    "portable mxfp8": ("wd_portable", "mxfp8", portable((4, 2048, 4, 1), (2, 1024, 8, 8, 1), pdl=False)),
    "portable mxfp8 kept": (
        "wd_portable",
        "mxfp8",
        {**portable((2, 512, 1, 1), (8, 128, 8, 4, 1), pdl=True), "stream": False},
    ),
    "portable mxfp8 pdl": ("wd_portable", "mxfp8", portable((4, 512, 4, 1), (8, 128, 8, 4, 1), pdl=True)),
}


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


@pytest.fixture(scope="module", params=["bf16", "mxfp8"])
def weights(request: pytest.FixtureRequest) -> Iterator[MoeWeights]:
    yield make_weights(
        seed=5,
        experts=EXPERTS,
        hidden=HIDDEN,
        intermediate=INTERMEDIATE,
        copies=COPIES,
        device="cuda",
        weight_format=request.param,
    )
    torch.cuda.empty_cache()


def routes(law: str, tokens: int) -> Routing:
    if law == "one":  # every token takes the same experts, the last ones of the layer
        shares = route("uniform", 1, tokens, EXPERTS, TOP_K).topk_weights
        ids = np.tile(np.arange(EXPERTS - TOP_K, EXPERTS, dtype=np.int32), (tokens, 1))
        return Routing(topk_ids=ids, topk_weights=shares)
    return route(law, 1, tokens, EXPERTS, TOP_K)


def arms(weights: MoeWeights) -> dict[str, tuple[str, Params]]:
    return {name: (kernel, params) for name, (kernel, fmt, params) in ARMS.items() if fmt == weights.weight_format}


def prepared(kernel: str, inputs: MoeInputs, params: Params) -> PreparedArm:
    arm = registry.prepare(kernel, inputs, params)
    assert not isinstance(arm, Support), arm
    return arm


def check(arm: PreparedArm) -> None:
    found = compare(arm.output(), arm.expected("stored"))
    assert found.min_cosine > MIN_COSINE
    assert found.rel_error < 3e-3
    assert found.max_abs_error < 2**-6


@pytest.mark.parametrize("tokens", BATCHES)
@pytest.mark.parametrize("law", ["uniform", "zipf-1.2", "one"])
def test_right_eager_and_replayed(device, weights, tokens, law):
    inputs = make_inputs(weights, routes(law, tokens))
    for kernel, params in arms(weights).values():
        arm = prepared(kernel, inputs, params)
        assert arm.scratch_bytes == tokens * TOP_K * INTERMEDIATE * 2
        arm.poison()
        arm.call(1)
        device.synchronize()
        check(arm)
        first = arm.output_bytes()
        timer = device.timer(arm.call, calls=3, copies=COPIES, with_delay=False)
        arm.poison()
        timer.run()
        assert arm.output_bytes() == first


@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_the_same_bits_twenty_times(device, weights, tokens):
    inputs = make_inputs(weights, routes("uniform", tokens))
    for kernel, params in arms(weights).values():
        arm = prepared(kernel, inputs, params)
        seen = set()
        for repeat in range(REPEATS):
            arm.poison()
            arm.call(repeat % COPIES)
            device.synchronize()
            seen.add(arm.output_bytes())
        assert len(seen) == 1


def test_two_kernels(device, weights):
    inputs = make_inputs(weights, routes("uniform", 4))
    for name, (kernel, params) in arms(weights).items():
        arm = prepared(kernel, inputs, params)
        arm.call(0)
        device.synchronize()
        up, down = device.kernels(arm.call)
        if kernel == "wd_literal":
            assert (up.name, down.name) == ("moe_gate_up_3d_batched", "moe_down_3d_batched")
            assert up.grid == (4 * TOP_K * INTERMEDIATE // 8, 1, 1)
            assert down.grid == (4 * HIDDEN // 8, 1, 1)
            assert up.block == down.block == (256, 1, 1)
            assert up.shared_bytes == down.shared_bytes == 0
            assert len(arm.binaries) == 1
        else:
            assert (up.name, down.name) == ("moe_gate_up_tiles", "moe_down_tiles"), name


def test_nothing_is_written_beside_the_buffers(device, weights, monkeypatch):
    inputs, guards = make_inputs(weights, routes("uniform", 1)), []

    def guarded(like: MoeInputs) -> layer.Buffers:
        real = layer.Buffers(h=torch.empty((1, TOP_K, INTERMEDIATE)), output=torch.empty((1, HIDDEN)))
        made = []
        for tensor in (real.h, real.output):
            whole = torch.full((tensor.numel() + 2048,), 7.0, dtype=torch.bfloat16, device=like.x.device)
            guards.append(whole)
            made.append(whole[1024:-1024].view(tensor.shape))
        return layer.Buffers(h=made[0], output=made[1])

    for module in ("literal", "portable"):
        monkeypatch.setattr(f"benchkit.kernels.warp_decode.{module}.allocate", guarded)
    for kernel, params in arms(weights).values():
        arm = prepared(kernel, inputs, params)
        timer = device.timer(arm.call, calls=3, copies=COPIES, with_delay=False)
        arm.poison()
        timer.run()
        check(arm)
    for whole in guards:
        assert bool((whole[:1024] == 7.0).all())
        assert bool((whole[-1024:] == 7.0).all())


def test_shapes_with_tails(device):
    """Rows that are no multiple of 32 loads, tiles that reach beyond a row."""
    for weight_format, hidden, intermediate, top_k in [
        ("bf16", 136, 72, 3),
        ("mxfp8", 160, 96, 3),
        ("mxfp8", 1056, 800, 5),
    ]:
        weights = make_weights(
            seed=2,
            experts=9,
            hidden=hidden,
            intermediate=intermediate,
            copies=COPIES,
            device="cuda",
            weight_format=weight_format,
        )
        inputs = make_inputs(weights, route("uniform", 2, 5, 9, top_k))
        loads = (16,) if weight_format == "bf16" else (8, 16)
        cases = [("wd_literal", literal(load, (3, 2), (5, 2))) for load in loads]
        tile_k = 8 if weight_format == "bf16" else 32
        cases.append(("wd_portable", portable((8, tile_k, 2, 1), (8, 128, 1, 4, 2), pdl=False)))
        for kernel, params in cases:
            arm = prepared(kernel, inputs, params)
            arm.poison()
            arm.call(1)
            device.synchronize()
            check(arm)


def test_a_spill_is_refused(device):
    weights = make_weights(
        seed=2, experts=2, hidden=2048, intermediate=64, copies=1, device="cuda", weight_format="mxfp8"
    )
    inputs = make_inputs(weights, route("uniform", 2, 1, 2, 1))
    answer = registry.prepare("wd_literal", inputs, literal(16, (16, 8), (16, 8)))
    assert isinstance(answer, Support)
    assert "needs as many registers as ctas_per_sm leaves it" in str(answer.reason)
