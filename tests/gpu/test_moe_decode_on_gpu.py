"""``moe_decode`` on a GPU: every configuration that can be chosen against fp64, from one token to 512, and whatever the routing.

``compute-sanitizer --tool memcheck --report-api-errors no python3 -m pytest -m gpu tests/gpu/test_moe_decode_on_gpu.py -k sanitized`` looks at
its memory accesses on a small layer; without the option it also lists what torch asks of the driver in vain.

A process takes up to 15 GB: with pytest-xdist no more than eight workers on a GPU of 141 GB.
"""

from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from decode_cases import Layer, compile_ahead, distance, make_layer, poisoned_call, routes, truth

from benchkit.device.cuda import CudaDevice
from benchkit.errors import DataError
from benchkit.fixture.layer import make_inputs, make_weights
from benchkit.fixture.routing import route
from benchkit.kernels import registry
from benchkit.kernels.contract import PreparedArm, Support
from benchkit.kernels.reference import compare
from benchkit.kernels.warp_decode import moe_decode
from benchkit.kernels.warp_decode.configuration import LAYOUTS, Tiles, as_params
from benchkit.kernels.warp_decode.decode import decode_kernels, device_limits, fit_problem, launches, scratch, shape_of
from benchkit.kernels.warp_decode.dispatch import TABLE, fitted, tiles_for
from benchkit.kernels.warp_decode.search import candidates

pytestmark = pytest.mark.gpu

SIZES, TOP_K = (128, 2048, 768), 8
MIN_COSINE, MAX_REL_ERROR, REPEATS = 0.999996, 3e-3, 20
DTYPES = {
    layout: (torch.bfloat16,) if layout.startswith("bf16") else (torch.bfloat16, torch.float16) for layout in LAYOUTS
}
ARMS = {
    "wd_bf16": ("bf16", "bf16"),
    "wd_bf16_packed": ("bf16", "bf16-packed"),
    "wd_mxfp8": ("mxfp8", "mxfp8-packed"),
    "wd_awq": ("awq-int4-g128", "awq-packed"),
}


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


@pytest.fixture(scope="module", params=list(LAYOUTS))
def layer(request: pytest.FixtureRequest) -> Iterator[Layer]:
    made = make_layer(request.param, SIZES)
    wanted = [
        (shape_of(made.weights, TOP_K, dtype), tiles)
        for dtype in DTYPES[request.param]
        for _, tiles in TABLE[request.param]
    ]
    compile_ahead(wanted, device_limits(0).arch)
    yield made
    torch.cuda.empty_cache()


def inputs(tokens: int, hidden: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(1000 * tokens + seed)
    return torch.randn((tokens, hidden), generator=generator, device="cuda").to(dtype)


def check(layer: Layer, tiles: Tiles, law: str, tokens: int, dtype: torch.dtype, top_k: int = TOP_K) -> torch.Tensor:
    """Right from poisoned buffers; returns the output."""
    x = inputs(tokens, layer.weights.hidden, dtype)
    ids, shares = routes(law, tokens, layer.weights.experts, top_k)
    output, h = poisoned_call(layer, tiles, x, ids, shares)
    cosine, error = distance(output, truth(layer, x, ids, shares))
    where = (layer.weights.layout, tiles, law, tokens, dtype)
    assert cosine > (MIN_COSINE if layer.weights.hidden >= 1024 else 0.99999), (
        where
    )  # few outputs of a token scatter more
    assert error < MAX_REL_ERROR, where
    assert not bool(torch.isnan(h).any()), where
    return output


@pytest.mark.parametrize("law", ["uniform", "zipf-0.6", "zipf-1.2", "one"])
def test_every_configuration_is_right(layer, law):
    """At the ends of its range and for the smallest numbers of tokens."""
    before = 0
    for most, tiles in TABLE[layer.weights.layout]:
        for dtype in DTYPES[layer.weights.layout]:
            for tokens in sorted({1, min(3, most), before + 1, most}):
                check(layer, tiles, law, tokens, dtype)
        before = most


@pytest.mark.parametrize("law", ["uniform", "zipf-1.2", "one"])
def test_what_a_search_tries_is_right(layer, law):
    """Every form of the kernels that tuning can put into the table or a protocol."""
    limits, shape = device_limits(0), shape_of(layer.weights, TOP_K, torch.bfloat16)
    for tokens, busiest in ((1, 1), (4, 2), (16, 4), (64, 64), (128, 128)):
        tried = candidates(layer.weights.layout, tokens, busiest)
        fitting = [tiles for tiles in tried if fit_problem(shape, tiles, tokens, limits) is None]
        compile_ahead([(shape, tiles) for tiles in fitting], limits.arch)
        x = inputs(tokens, layer.weights.hidden, torch.bfloat16)
        ids, shares = routes(law, tokens, layer.weights.experts, TOP_K)
        expected = truth(layer, x, ids, shares)
        for tiles in fitting:
            output, h = poisoned_call(layer, tiles, x, ids, shares)
            cosine, error = distance(output, expected)
            assert cosine > MIN_COSINE, tiles
            assert error < MAX_REL_ERROR, tiles
            assert not bool(torch.isnan(h).any()), tiles
            assert torch.equal(
                poisoned_call(layer, tiles, x, ids, shares)[0].view(torch.int16), output.view(torch.int16)
            )


@pytest.mark.parametrize("law", ["uniform", "zipf-1.2"])
def test_the_same_bits_twenty_times_with_and_without_pdl(layer, law):
    for most, tiles in TABLE[layer.weights.layout]:
        x = inputs(most, layer.weights.hidden, torch.bfloat16)
        ids, shares = routes(law, most, layer.weights.experts, TOP_K)
        alone = Tiles(up=tiles.up, down=tiles.down, chains=tiles.chains, launch_pdl=False)
        found = {
            bytes(poisoned_call(layer, each, x, ids, shares)[0].view(torch.int16).cpu().numpy().tobytes())
            for each in [tiles] * REPEATS + [alone]
        }
        assert len(found) == 1


def test_the_user_function(layer):
    """Any number of tokens, a given output, fresh inputs on every call of one captured graph."""
    weights = layer.weights
    for tokens in (1, 2, 5, 8, 17, 33, 64, 100, 129, 300, 512):
        x = inputs(tokens, weights.hidden, torch.bfloat16, seed=1)
        ids, shares = routes("zipf-0.6", tokens, weights.experts, TOP_K)
        expected = truth(layer, x, ids, shares)
        y = moe_decode(x, weights, ids, shares)
        assert distance(y, expected)[0] > MIN_COSINE
        out = torch.full_like(x, float("nan"))
        assert moe_decode(x, weights, ids, shares, out=out).data_ptr() == out.data_ptr()
        assert torch.equal(out.view(torch.int16), y.view(torch.int16))
    x, out = (
        inputs(4, weights.hidden, torch.bfloat16),
        torch.empty((4, weights.hidden), dtype=torch.bfloat16, device="cuda"),
    )
    ids, shares = routes("uniform", 4, weights.experts, TOP_K)
    moe_decode(x, weights, ids, shares, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):  # the next call's gate/up overlaps the end of the one before
            moe_decode(x, weights, ids, shares, out=out)
    for seed in range(5):
        x.copy_(inputs(4, weights.hidden, torch.bfloat16, seed=seed))
        ids.copy_(routes("uniform", 4 + seed, weights.experts, TOP_K)[0][:4])
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert distance(out, truth(layer, x, ids, shares))[0] > MIN_COSINE


def test_experts_of_other_devices_are_skipped(layer):
    weights = layer.weights
    for tokens in (1, 9, 64):
        x = inputs(tokens, weights.hidden, torch.bfloat16)
        ids, shares = routes("uniform", tokens, weights.experts, TOP_K)
        ids[ids % 3 == 0] = -1
        ids[ids % 5 == 0] = weights.experts + 7
        y = moe_decode(x, weights, ids, shares)
        assert distance(y, truth(layer, x, ids, shares))[0] > MIN_COSINE
        ids[0] = -1
        assert bool((moe_decode(x, weights, ids, shares)[0] == 0).all())


def test_large_inputs_saturate_and_nan_stays(layer):
    x = inputs(2, layer.weights.hidden, torch.bfloat16)
    ids, shares = routes("uniform", 2, layer.weights.experts, TOP_K)
    x[0] *= 2.0**110
    x[1, 5] = float("nan")
    y = moe_decode(x, layer.weights, ids, shares)
    assert bool(torch.isnan(y[1]).all())
    assert layer.weights.layout.startswith("bf16") or not bool(torch.isnan(y[0]).any())


SHAPES = [
    ((9, 64, 64), 3),  # less than a block of columns
    ((5, 320, 192), 2),  # blocks with tails
    ((33, 1152, 640), 5),
    ((512, 1024, 128), 16),
    ((6, 4352, 512), 4),  # several blocks of columns a warp, the last warp fewer
]


@pytest.mark.parametrize(("sizes", "top_k"), SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layers(layout, sizes, top_k):
    multiple = LAYOUTS[layout].multiple
    sizes = (sizes[0], *(-(-size // multiple) * multiple for size in sizes[1:]))
    small, limits = make_layer(layout, sizes), device_limits(0)
    batches = (1, 7, 65, 512)
    shape = shape_of(small.weights, top_k, torch.bfloat16)
    fit = {"sm_bytes": limits.sm_bytes, "cta_bytes": limits.cta_bytes}
    wanted = {tokens: tiles_for(shape, tokens, **fit) for tokens in batches}
    compile_ahead([(shape, tiles) for tiles in wanted.values() if tiles], limits.arch)
    for tokens, tiles in wanted.items():
        assert tiles is not None
        for law in ("uniform", "one"):
            check(small, tiles, law, tokens, torch.bfloat16, top_k)


def test_sanitized():
    """Small, so that compute-sanitizer can follow it."""
    for layout in LAYOUTS:
        small, limits = make_layer(layout, (6, 384, 256)), device_limits(0)
        shape = shape_of(small.weights, 2, torch.bfloat16)
        for most, tiles in TABLE[layout]:
            for tokens in {1, min(most, 90)}:
                chosen = fitted(shape, tiles, tokens, sm_bytes=limits.sm_bytes, cta_bytes=limits.cta_bytes)
                assert chosen is not None
                check(small, chosen, "zipf-1.2", tokens, torch.bfloat16, 2)


@pytest.mark.parametrize("tokens", [3, 512])
def test_nothing_is_written_beside_the_buffers(layer, tokens):
    weights = layer.weights
    x = inputs(tokens, weights.hidden, torch.bfloat16)
    ids, shares = routes("uniform", tokens, weights.experts, TOP_K)
    tiles = next(tiles for most, tiles in TABLE[weights.layout] if tokens <= most)
    shape = shape_of(weights, TOP_K, x.dtype)
    like = scratch(shape, tiles, tokens, x.device)
    wholes = [torch.full((each.numel() + 2048,), 7.0, dtype=each.dtype, device="cuda") for each in (like, x)]
    between, output = wholes[0][1024:-1024], wholes[1][1024:-1024].view_as(x)
    for launch in launches(decode_kernels(shape, tiles, 0), x, weights, ids, shares, between, output):
        launch(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    assert distance(output, truth(layer, x, ids, shares))[0] > MIN_COSINE
    for whole in wholes:
        assert bool((whole[:1024] == 7.0).all())
        assert bool((whole[-1024:] == 7.0).all())


@lru_cache(maxsize=1)
def fixture_weights(weight_format: str):
    return make_weights(
        seed=5, experts=128, hidden=2048, intermediate=768, copies=2, device="cuda", weight_format=weight_format
    )


@pytest.mark.parametrize("kernel", ARMS)
def test_arms(device, kernel):
    weight_format, layout = ARMS[kernel]
    weights = fixture_weights(weight_format)
    for tokens in (1, 8, 64):
        given = make_inputs(weights, route("uniform", 1, tokens, 128, TOP_K))
        tiles = next(tiles for most, tiles in TABLE[layout] if tokens <= most)
        arm = registry.prepare(kernel, given, as_params(tiles))
        assert isinstance(arm, PreparedArm)
        assert arm.scratch_bytes == tokens * TOP_K * 768 * 2
        assert len(arm.binaries) == 2
        arm.poison()
        arm.call(1)
        device.synchronize()
        found = compare(arm.output(), arm.expected("stored"))
        assert found.min_cosine > MIN_COSINE
        assert found.rel_error < MAX_REL_ERROR
        first = arm.output_bytes()
        timer = device.timer(arm.call, calls=4, copies=2, with_delay=False)
        arm.poison()
        timer.run()
        assert arm.output_bytes() == first
        up, down = device.kernels(arm.call)
        assert (up.name, down.name) == ("warp_decode_gate_up", "warp_decode_down")
        assert up.grid == (132 * tiles.up.ctas_per_sm, 1, 1)
        assert down.block == (tiles.down.warps * 32, 1, 1)


def test_arms_refuse_with_the_reason():
    given = make_inputs(fixture_weights("bf16"), route("uniform", 1, 4, 128, TOP_K))
    params = as_params(TABLE["bf16"][0][1])
    assert registry.prepare("wd_mxfp8", given, params) == Support.no("needs mxfp8 weights, found bf16")
    answer = registry.prepare("wd_bf16", given, {**params, "down_warps": 32, "down_registers": 64})
    assert answer == Support.no("needs at most 232448 bytes of shared memory in a CTA for down, found 271560")
    given.topk_ids[2, 3] = -1
    answer = registry.prepare("wd_bf16", given, params)
    assert answer == Support.no("token 2, slot 3: needs an expert from 0 to 127, found -1")
    given.topk_ids[2, 3] = given.topk_ids[2, 4]
    answer = registry.prepare("wd_bf16", given, params)
    assert isinstance(answer, Support)
    assert str(answer.reason).startswith("token 2: needs distinct experts, found expert")


def test_an_output_over_an_input_is_refused():
    small = make_layer("bf16", (4, 128, 64))
    x = inputs(2, 128, torch.bfloat16)
    ids, shares = routes("uniform", 2, 4, 2)
    with pytest.raises(DataError, match="needs an out that shares no memory with its inputs, found it over x"):
        moe_decode(x, small.weights, ids, shares, out=x)
