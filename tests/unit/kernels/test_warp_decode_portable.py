"""The Triton form of warp decode in Triton's interpreter: right, the same bits again, and refusals. No GPU here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchkit.errors import DataError

SCRIPT = Path(__file__).with_name("warp_decode_interpreted.py")
GOOD = {
    "up_tile_n": 4,
    "up_tile_k": 1024,
    "up_warps": 4,
    "up_stages": 1,
    "down_tile_n": 2,
    "down_tile_k": 1024,
    "down_experts": 8,
    "down_warps": 8,
    "down_stages": 1,
}

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)


@pytest.fixture(scope="module")
def found():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
@pytest.mark.parametrize(("tiles", "tokens"), [("one shot", 1), ("many steps", 2), ("pairs of experts", 3)])
def test_right_and_repeatable(found, weight_format, tiles, tokens):
    case = found[f"{weight_format} {tiles}"]
    assert case["cosine"] > 0.999996 - 3e-6  # the interpreter truncates to bf16 where a GPU rounds
    assert case["same"] is True
    assert case["scratch"] == tokens * 4 * 96 * 2


@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
def test_a_mix_up_of_gate_and_up_is_far_from_the_truth(found, weight_format):
    assert found[f"{weight_format} gate and up mixed up"] < 0.9


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("up_tile_k", "up_tile_k = 256 needs hidden to be a multiple of it, found 128"),
        ("up_tile_n", "up_tile_n = 64 needs the outputs to be a multiple of it, found 96"),
        ("down_tile_n", "down_tile_n = 256 needs the outputs to be a multiple of it, found 128"),
        ("down_experts", "down_experts = 8 needs top_k to be a multiple of it, found 4"),
        ("pdl", "launch_pdl needs compute capability 9.0, found an interpreter"),
    ],
)
def test_tiles_that_do_not_fit(found, name, text):
    assert found[f"bf16 refused {name}"] == text
    assert found[f"mxfp8 refused {name}"] == text


def test_blocks_of_mxfp8_are_whole(found):
    assert found["mxfp8 refused down_tile_k"] == "down_tile_k needs a multiple of 32 with mxfp8, found 16"
    assert found["bf16 refused down_tile_k"] is None


def test_tiles_from_parameters():
    from benchkit.kernels.warp_decode.portable import Tiles, params_of, parse_tiles

    up, down = parse_tiles(GOOD)
    assert up == Tiles(n=4, k=1024, experts=1, warps=4, stages=1)
    assert down == Tiles(n=2, k=1024, experts=8, warps=8, stages=1)
    assert params_of((4, 1024, 4, 1), (2, 1024, 8, 8, 1), launch_pdl=True) == {**GOOD, "launch_pdl": True}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"up_tile_n": 3}, "params.up_tile_n: expected a power of two, found 3"),
        ({"down_warps": 32}, "params.down_warps: expected an integer from 1 to 16, found 32"),
        ({"down_experts": None}, "params.down_experts: expected an integer from 1 to 32, found None"),
        ({"up_stages": True}, "params.up_stages: expected an integer from 1 to 8, found True"),
    ],
)
def test_wrong_tiles(change, text):
    from benchkit.kernels.warp_decode.portable import parse_tiles

    with pytest.raises(DataError) as error:
        parse_tiles({**GOOD, **change})
    assert str(error.value) == text


@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
@pytest.mark.parametrize(("tokens", "tried"), [(1, 1), (4, 2)])
def test_the_search_space_fits_the_layer_of_the_protocols(weight_format, tokens, tried):
    from benchkit.fixture.layer import make_inputs, make_weights
    from benchkit.fixture.routing import route
    from benchkit.kernels import registry
    from benchkit.kernels.warp_decode.portable import parse_tiles, space, tiles_problem

    weights = make_weights(seed=1, experts=16, hidden=2048, intermediate=32, copies=1, weight_format=weight_format)
    inputs = make_inputs(weights, route("uniform", 1, tokens, 16, 8))
    found = list(space(inputs))
    assert len({str(params) for params in found}) == len(found) > 40
    assert len({params["stream"] for params in found}) == tried
    for params in found:
        assert registry.param_problems("wd_portable", params) == ()
        assert tiles_problem(*parse_tiles(params), inputs) is None
