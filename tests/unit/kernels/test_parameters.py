"""What the table of parameters takes is what the kernels' own parsers take: value by value, around every bound."""

import subprocess
import sys

import pytest

from benchkit.errors import DataError
from benchkit.kernels import ceilings_cuda, expert_centric_tiles, marlin, marlin_buffers, parameters, registry
from benchkit.kernels.expert_centric import EightStage
from benchkit.kernels.warp_decode import configuration, literal, portable

DECODE = {"up_groups": 1, "up_stages": 2, "up_tiles": 1, "up_flush": 2, "up_registers": 128, "up_ctas_per_sm": 1}
DECODE |= {"down_groups": 1, "down_stages": 2, "down_tiles": 1, "down_row_tiles": 1, "down_cluster": 1, "down_warps": 8}
DECODE |= {"down_registers": 128, "down_ctas_per_sm": 1, "down_prefetch": 0, "down_pairwise": 0}
TILE = {"tile_n": 32, "tile_k": 64, "warps": 4, "stages": 2}
TILES = {f"{kernel}_{name}": value for kernel in ("up", "down") for name, value in TILE.items()}
STAGES = {f"{kernel}_{name}": 8 for kernel in ("up", "down") for name in ("load_bytes", "depth", "ctas_per_sm")}
MARLIN = {
    f"{gemm}_{name}": value
    for gemm in ("w13", "w2")
    for name, value in {"thread_k": 128, "thread_n": 64, "blocks_per_sm": 2}.items()
}
PARSERS = [
    ("wd_awq", DECODE, configuration.parse_tiles),
    ("wd_literal", STAGES, lambda params: literal.parse_stages(params, "mxfp8")),
    ("wd_portable", {**TILES, "down_experts": 2}, portable.parse_tiles),
    ("moe_fused", {**TILES, "tile_m": 16}, expert_centric_tiles.parse_tiles),
    ("cuda_copy", {"ctas_per_sm": 1, "threads": 256, "unroll": 4}, ceilings_cuda.parse_shapes),
    ("cuda_read", {"method": "vector", "ctas_per_sm": 0, "threads": 32, "unroll": 1}, ceilings_cuda.parse_shapes),
    (
        "cuda_read",
        {"method": "bulk", "ctas_per_sm": 1, "warps": 4, "stages": 4, "tile_bytes": 1024},
        ceilings_cuda.parse_shapes,
    ),
]


def accepted(parse, params):
    try:
        parse(params)
    except DataError:
        return False
    return True


@pytest.mark.parametrize(("kernel", "params", "parse"), PARSERS)
def test_every_value_around_the_bounds_is_taken_by_both_or_by_none(kernel, params, parse):
    assert accepted(parse, params)
    names = {name for name, param in registry.entry(kernel).params.items() if param.kind is int}
    values = {0, *(1 << bit for bit in range(18))}
    values |= {value + step for value in (*values, 160, 255, 1536) for step in (-1, 1)}
    answers = set()
    for name in sorted(names):
        for value in sorted(values):
            tried = {**params, name: value}
            takes = registry.param_problems(kernel, tried) == ()
            assert takes is accepted(parse, tried), tried
            answers.add(takes)
        without = {key: value for key, value in params.items() if key != name}
        assert (registry.param_problems(kernel, without) == ()) is accepted(parse, without), without
    assert answers == {True, False}


def test_values_of_warp_decode():
    for name, param in parameters.DECODE.items():
        if param.kind is int:
            allowed = configuration._ALLOWED[name.removeprefix("up_").removeprefix("down_")]
            assert [value for value in range(-1, 1000) if param.takes(value)] == list(allowed), name


def test_names_of_the_kernels_that_need_torch():
    assert tuple(parameters.MARLIN["alignment"].choices) == marlin.ALIGNMENTS
    assert parameters.MARLIN["w2_blocks_per_sm"].most == marlin_buffers.MOST_PER_SM
    assert tuple(parameters.STAGE["stage"].choices) == EightStage.names


def test_marlin_takes_each_tile_of_any_block():
    for k, n in ((64, 128), (64, 256), (128, 64), (128, 128)):
        tried = {"alignment": "native", **MARLIN, "w13_thread_k": k, "w13_thread_n": n}
        assert registry.param_problems("marlin_moe", tried) == ()
        assert marlin.parse_configuration(tried).w13 == (k, n, 2)


@pytest.mark.parametrize(
    ("kernel", "params", "problem"),
    [
        ("marlin_moe", {"alignment": "foo"}, 'alignment: expected one of native, stable for marlin_moe, found "foo"'),
        (
            "marlin_moe",
            {"alignment": "native", **MARLIN, "w13_thread_k": 65},
            "w13_thread_k: expected one of 64, 128 for marlin_moe, found 65",
        ),
        (
            "marlin_moe",
            {"alignment": "native", **MARLIN, "w13_blocks_per_sm": 99},
            "w13_blocks_per_sm: expected an integer from 1 to 4 for marlin_moe, found 99",
        ),
        (
            "marlin_moe",
            {"alignment": "native", "w2_thread_k": 64, "w2_thread_n": 128},
            "w2_blocks_per_sm: expected all or none of w2_thread_k, w2_thread_n, w2_blocks_per_sm, found nothing",
        ),
        (
            "marlin_moe",
            {"alignment": "native", **MARLIN, "w13_thread_n": 256},
            "w13_thread_k: expected a tile 64 x 128, 64 x 256, 128 x 64, 128 x 128, found 128 x 256",
        ),
        (
            "wd_awq",
            {**DECODE, "down_warps": 1000},
            "down_warps: expected an integer from 1 to 32 for wd_awq, found 1000",
        ),
        ("wd_bf16", {**DECODE, "up_flush": 3}, "up_flush: expected one of 1, 2, 4, 8 for wd_bf16, found 3"),
        (
            "wd_awq",
            {**DECODE, "up_tiles": 2, "up_flush": 1},
            "up_flush: expected a multiple of up_tiles = 2, found 1",
        ),
        ("wd_literal", {**STAGES, "up_load_bytes": 4}, "up_load_bytes: expected one of 8, 16 for wd_literal, found 4"),
        (
            "wd_portable",
            {**TILES, "down_experts": 3},
            "down_experts: expected one of 1, 2, 4, 8, 16, 32 for wd_portable, found 3",
        ),
        ("moe_fused", {**TILES, "tile_m": 24}, "tile_m: expected one of 16, 32, 64, 128 for moe_fused, found 24"),
        (
            "moe_stage",
            {**TILES, "tile_m": 16, "stage": "sum"},
            'stage: expected one of sort, pad, gather, up, silu, down, scatter, combine for moe_stage, found "sum"',
        ),
        (
            "cuda_copy",
            {"method": "ring", "ctas_per_sm": 1},
            'method: expected one of vector, bulk for cuda_copy, found "ring"',
        ),
        (
            "cuda_copy",
            {"ctas_per_sm": 1, "threads": 256, "unroll": 4, "warps": 2},
            'warps: expected nothing with method "vector", found 2',
        ),
        (
            "cuda_copy",
            {"method": "bulk", "ctas_per_sm": 1, "warps": 2, "stages": 2},
            'tile_bytes: expected a multiple of 512 from 512 to 32768 with method "bulk", found nothing',
        ),
        (
            "cuda_copy",
            {"method": "bulk", "ctas_per_sm": 0, "warps": 2, "stages": 2, "tile_bytes": 512},
            'ctas_per_sm: expected an integer from 1 to 32 with method "bulk", found 0',
        ),
    ],
)
def test_what_a_kernel_would_refuse_is_refused_before(kernel, params, problem):
    assert registry.param_problems(kernel, params) == (problem,)


def test_the_values_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from benchkit.kernels import registry\n"
        "print(*registry.param_problems('marlin_moe', {'alignment': 'foo'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ('alignment: expected one of native, stable for marlin_moe, found "foo"\n', "")
