"""Tiles of ``moe_decode``: parsed, refused with numbers, and always such that they fit."""

from dataclasses import replace

import pytest

from benchkit.errors import DataError
from benchkit.kernels.warp_decode.configuration import (
    LAYOUTS,
    MAX_TOKENS,
    LayerShape,
    Tiles,
    as_params,
    parse_tiles,
    shape_problem,
)
from benchkit.kernels.warp_decode.dispatch import TABLE, down, fitted, rows, tiles_for, up, wide_rows
from benchkit.kernels.warp_decode.fit import (
    combine_grid,
    down_shared_bytes,
    launched_bytes,
    list_bytes,
    scratch_elements,
    tiles_problem,
    up_shared_bytes,
    up_warps,
)
from benchkit.kernels.warp_decode.search import candidates

H200 = {"sm_bytes": 233472, "cta_bytes": 232448}
TILES = Tiles(up=up(1, 2, 1, 4, 104), down=down(1, 2, 1, 1, 1, 12, 0, 96))
WIDE = Tiles(up=up(8, 3, 1, 4, 255, 1), down=wide_rows(3))


def shape(layout: str = "bf16", **sizes: int) -> LayerShape:
    return LayerShape(**{"experts": 128, "hidden": 2048, "intermediate": 768, "top_k": 8, **sizes}, layout=layout)


def test_parameters_there_and_back():
    params = as_params(TILES)
    assert params == {
        "up_groups": 1,
        "up_stages": 2,
        "up_tiles": 1,
        "up_flush": 4,
        "up_registers": 104,
        "up_ctas_per_sm": 2,
        "up_ahead": 0,
        "up_walk": 0,
        "down_groups": 1,
        "down_stages": 2,
        "down_tiles": 1,
        "down_row_tiles": 1,
        "down_cluster": 1,
        "down_warps": 12,
        "down_prefetch": 0,
        "down_registers": 96,
        "down_pairwise": 0,
        "down_ctas_per_sm": 1,
        "down_walk": 0,
        "chains": 1,
        "launch_pdl": True,
    }
    assert parse_tiles(params) == TILES
    two = Tiles(up=TILES.up, down=TILES.down, chains=2, launch_pdl=False)
    assert as_params(two)["chains"] == 2
    assert parse_tiles(as_params(two)) == two
    walk = Tiles(up=TILES.up, down=down(1, 2, 1, 1, 1, 12, 1, 168, walk=1))
    assert as_params(walk)["down_walk"] == 1
    assert parse_tiles(as_params(walk)) == walk
    product = Tiles(up=TILES.up, down=rows(2, 2, 1, 4, 136, 5))
    assert product.down.product == up(2, 2, 1, 4, 136, 5, walk=1)
    assert parse_tiles(as_params(product)) == product
    assert as_params(product).keys() == params.keys()
    published = {
        name: value
        for name, value in params.items()
        if name not in ("up_ahead", "up_walk", "down_walk", "chains", "launch_pdl")
    }
    assert parse_tiles(published) == TILES


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"up_groups": 3}, "params.up_groups: expected one of 1, 2, 4, 8, found 3"),
        ({"down_warps": 33}, "params.down_warps: expected an integer from 1 to 32, found 33"),
        ({"down_stages": True}, "params.down_stages: expected an integer from 1 to 32, found True"),
        ({"up_tiles": 2, "up_flush": 1}, "params.up_flush: expected a multiple of up_tiles = 2, found 1"),
        ({"down_tiles": 2}, "params.down_row_tiles: expected a multiple of down_tiles = 2, found 1"),
        (
            {"down_pairwise": 1, "down_prefetch": 2},
            "params.down_prefetch: expected 0 with down_pairwise = 1, found 2",
        ),
        (
            {"down_pairwise": 2, "down_cluster": 2},
            "params.down_cluster: expected 1 with down_pairwise = 2, found 2",
        ),
        ({"up_walk": 2}, "params.up_walk: expected an integer from 0 to 1, found 2"),
        ({"up_ahead": 7}, "params.up_ahead: expected one of 0, 8, 16, 32, 64, found 7"),
        ({"down_walk": 2}, "params.down_walk: expected an integer from 0 to 1, found 2"),
        (
            {"down_walk": 1, "down_groups": 2},
            "params.down_groups: expected 1 with down_walk = 1, found 2",
        ),
        (
            {"down_walk": 1, "down_prefetch": 2},
            "params.down_prefetch: expected at most 1 with down_walk = 1, found 2",
        ),
        (
            {"down_walk": 1, "down_pairwise": 1},
            "params.down_pairwise: expected 0 with down_walk = 1, found 1",
        ),
        ({"down_groups": 8}, "params.down_groups: expected at most 4 with down_pairwise below 2, found 8"),
        ({**as_params(WIDE), "up_flush": 8}, "params.up_flush: expected at most 4 with up_groups = 8, found 8"),
        ({**as_params(WIDE), "up_walk": 1}, "params.up_walk: expected 0 with up_groups = 8, found 1"),
        ({**as_params(WIDE), "down_tiles": 2}, "params.down_tiles: expected 1 with down_groups = 8, found 2"),
        ({**as_params(WIDE), "up_stages": 1}, "params.up_stages: expected 2 or more with up_groups = 8, found 1"),
        ({**as_params(WIDE), "down_stages": 1}, "params.down_stages: expected 2 or more with down_groups = 8, found 1"),
        ({"chains": 3}, "params.chains: expected an integer from 1 to 2, found 3"),
        ({"launch_pdl": 1}, "params.launch_pdl: expected a boolean, found 1"),
    ],
)
def test_parameters_out_of_range(change, text):
    with pytest.raises(DataError) as caught:
        parse_tiles({**as_params(TILES), **change})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("layer", "tokens", "text"),
    [
        (shape(hidden=2016), 1, "bf16 needs hidden to be a multiple of 64, found 2016"),
        (shape("awq-packed", intermediate=704), 1, "awq-packed needs intermediate to be a multiple of 128, found 704"),
        (shape(), 513, "needs tokens from 1 to 512, found 513"),
        (shape(), 0, "needs tokens from 1 to 512, found 0"),
        (shape(experts=513), 1, "needs experts from 1 to 512, found 513"),
        (shape(top_k=17), 1, "needs top_k from 1 to 16, found 17"),
        (shape(experts=4, top_k=5), 1, "needs top_k from 1 to 4, found 5"),
        (
            shape(hidden=16384, intermediate=65472),
            1,
            "needs hidden x intermediate (in whole tiles of 256) below 1073741824, found 16384 x 65536",
        ),
    ],
)
def test_layers_that_are_refused(layer, tokens, text):
    assert shape_problem(layer, tokens) == text


def test_fp16_inputs():
    fp16 = {"experts": 8, "hidden": 256, "intermediate": 256, "top_k": 2, "x_bf16": False}
    assert shape_problem(LayerShape(**fp16, layout="bf16"), 1) == "needs x in bf16 beside bf16 weights, found fp16"
    assert shape_problem(LayerShape(**fp16, layout="awq-packed"), 1) is None
    assert shape_problem(LayerShape(**fp16, layout="mxfp8-packed"), 1) is None


@pytest.mark.parametrize(
    ("layer", "tiles", "tokens", "text"),
    [
        (shape(), Tiles(up=up(1, 2, 2, 4, 104), down=TILES.down), 1, "bf16 needs up_tiles of at most 1, found 2"),
        (shape(), Tiles(up=TILES.up, down=TILES.down, chains=2), 1, "needs chains = 1 with bf16, found 2"),
        (shape("mxfp8-packed"), WIDE, 1, "needs up_groups of at most 4 with mxfp8-packed, found 8"),
        (
            shape("awq-packed"),
            Tiles(up=TILES.up, down=WIDE.down),
            1,
            "needs down_groups of at most 4 with awq-packed, found 8",
        ),
        (
            shape(),
            Tiles(up=up(1, 2, 1, 1, 32, 7), down=TILES.down),
            1,
            "needs at most 1536 threads of an SM for up, found 256 x 7",
        ),
        (
            shape(),
            Tiles(up=up(1, 2, 1, 1, 129), down=TILES.down),
            1,
            "needs at most 12 warps of 129 registers on an SM for up, found 16",
        ),
        (  # 64,512 of 65,536 registers, but of each quarter's 16,384 three warps would need 21,504
            shape(),
            Tiles(up=TILES.up, down=down(1, 2, 1, 1, 1, 9, 0, 224)),
            1,
            "needs at most 8 warps of 224 registers on an SM for down, found 9",
        ),
        (
            shape(),
            TILES,
            512,
            "needs at most 232448 bytes of shared memory in a CTA for down, found 521672",
        ),
        (
            shape(),
            Tiles(up=up(1, 2, 1, 4, 80, 3), down=TILES.down),
            1,
            "needs 3 CTAs of gate/up in the 233472 bytes of an SM, found 98776 bytes each",
        ),
    ],
)
def test_tiles_that_do_not_fit(layer, tiles, tokens, text):
    assert tiles_problem(layer, tiles, tokens, **H200) == text


def test_shared_memory_is_what_the_kernels_lay_out():
    assert up_warps(shape(), TILES.up) == 8
    assert up_warps(shape(hidden=64), TILES.up) == 1
    assert up_warps(shape(hidden=7168), TILES.up) == 7  # 28 blocks of columns, 4 a warp
    assert up_warps(shape(hidden=4352), TILES.up) == 6  # 17 blocks, 3 a warp
    assert up_warps(shape(hidden=64), WIDE.up) == 8
    # lists of 8 tokens x 8: 64 entries at most, a token a pair, 128 offsets, the length
    assert list_bytes(shape(), 8, 8) == 64 * 8 + 64 * 2 + 128 * 2 + 8
    assert list_bytes(shape(), 64, 16) == (128 + 32) * 8 + 512 * 2 + 128 * 2 + 8
    assert up_shared_bytes(shape("bf16-packed"), TILES.up, 1) == 8 * 2 * 4104 + 2 * 8 * 4 * 512 + 8 * 8 + 16 + 256 + 8
    assert down_shared_bytes(shape("awq-packed"), TILES.down, 1) == 12 * 2 * 2184 + 12 * 64 + 64 + 32 + 16 + 256 + 8


def test_a_stage_of_64_tokens_holds_weights_and_inputs():
    lists = list_bytes(shape(), 512, 64)
    assert lists == (128 + 64) * 8 + 4096 * 2 + 128 * 2 + 8
    for of_part in (
        up_shared_bytes(shape("bf16-packed"), WIDE.up, 512),
        down_shared_bytes(shape("bf16-packed"), WIDE.down, 512),
    ):
        assert of_part == 3 * (8 * 4 * 16 + 64) * 64 * 2 + lists
    many = shape("bf16-packed", experts=512, top_k=16)
    # bits, 2 bytes a word of them, and the ids lie over the last stage
    small = up(8, 2, 1, 1, 128, 1)
    needed = 24576 + (16 * 512 * 6 + 2 * 8192) + list_bytes(many, 512, 64)
    assert up_shared_bytes(many, small, 512) == needed
    smaller = fitted(many, Tiles(up=replace(WIDE.up, stages=9), down=wide_rows(9)), 512, **H200)
    assert smaller is not None
    assert (smaller.up.groups, smaller.up.stages, smaller.down.stages) == (8, 2, 2)


def test_pairwise_needs_no_room_for_the_tokens():
    tiles = down(4, 3, 1, 2, 2, 8, 0, 248, 1)
    lists = list_bytes(shape(), 512, 32) + 2 * 4096
    assert (
        down_shared_bytes(shape(), tiles, 512) == 8 * 3 * 4104 + 16 * 128 * 6 + 2 * 4096 + lists
    )  # bits, 2 bytes a word of them, and the ids
    assert scratch_elements(shape(), tiles, 512) == 4096 * (768 + 2 * 2048)
    assert scratch_elements(shape(), TILES.down, 512) == 4096 * 768


def test_with_walk_an_entry_is_an_expert():
    tiles = down(1, 2, 1, 1, 1, 12, 1, 168, walk=1)
    rings, parts = 12 * 2 * (4096 + 8), 12 * 64 * 16 * 4
    assert down_shared_bytes(shape(), tiles, 64) == rings + parts + 4 * 512 + (128 + 1) * 8 + 512 * 2 + 128 * 2 + 8


def test_rows_that_a_third_kernel_adds():
    down_tiles = rows(1, 2, 1, 4, 104, 5)  # 768 columns are 3 blocks, so 3 warps
    tiles = Tiles(up=TILES.up, down=down_tiles)
    lists = (128 + 64) * 8 + 512 * 2 + 128 * 2 + 8
    assert down_shared_bytes(shape("awq-packed"), down_tiles, 64) == 3 * 2 * (2176 + 8) + 2 * 3 * 4 * 32 * 16 + lists
    assert scratch_elements(shape(), down_tiles, 512) == 4096 * (768 + 2 * 2048)
    assert combine_grid(shape(), 64) == 64 * 2048 // 512
    assert combine_grid(shape(hidden=64), 1) == 1
    assert tiles_problem(shape("awq-packed"), tiles, 64, **H200) is None
    crowded = Tiles(up=TILES.up, down=rows(1, 8, 1, 4, 80, 6))
    assert tiles_problem(shape("awq-packed"), crowded, 64, **H200) == (
        "needs 6 CTAs of down in the 233472 bytes of an SM, found 67528 bytes each"
    )
    wide = shape("awq-packed", intermediate=14336)  # 56 blocks, 7 each for 8 warps
    fit = fitted(wide, tiles, 64, **H200)
    assert fit is not None
    assert (fit.down.warps, fit.down.ctas_per_sm) == (8, 1)
    assert tiles_problem(wide, tiles, 64, **H200) == "needs down_warps = 8 with down_pairwise = 2, found 3"


def test_no_more_ctas_than_wanted_fit():
    for ctas in (1, 2, 3):
        bytes_of_cta = launched_bytes(1000, ctas, **H200) + 1024
        assert ctas * bytes_of_cta <= H200["sm_bytes"] < (ctas + 1) * bytes_of_cta
    assert launched_bytes(200000, 1, **H200) == 200000


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_row_of_the_table_fits_the_tuned_layer(layout):
    assert TABLE[layout][-1][0] == MAX_TOKENS
    assert [most for most, _ in TABLE[layout]] == sorted({most for most, _ in TABLE[layout]})
    for tokens in range(1, MAX_TOKENS + 1):
        chosen = next(tiles for most, tiles in TABLE[layout] if tokens <= most)
        assert tiles_problem(shape(layout), chosen, tokens, **H200) is None
        assert tiles_for(shape(layout), tokens, **H200) == chosen


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tokens", [1, 4, 8, 64, 128, 512])
def test_nothing_but_shared_memory_keeps_a_search_from_a_try(layout, tokens):
    tried = candidates(layout, tokens, tokens)
    problems = [tiles_problem(shape(layout), tiles, tokens, **H200) for tiles in tried]
    assert None in problems
    assert all(problem is None or "bytes" in problem for problem in problems)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tokens", [1, 7, 64, 512])
def test_any_layer_gets_tiles_that_fit(layout, tokens):
    multiple = LAYOUTS[layout].multiple
    for sizes in [
        {"hidden": multiple, "intermediate": multiple, "experts": 2, "top_k": 1},
        {"hidden": 7168, "intermediate": 2048, "experts": 256},
        {"hidden": 2944, "intermediate": 2944, "experts": 32, "top_k": 4},
        {"hidden": 4096, "intermediate": 14336, "experts": 8, "top_k": 2},
        {"hidden": 1024, "intermediate": 512, "experts": 512, "top_k": 16},
    ]:
        layer = shape(layout, **sizes)
        assert shape_problem(layer, tokens) is None
        tiles = tiles_for(layer, tokens, **H200)
        assert tiles is not None
        assert tiles_problem(layer, tiles, tokens, **H200) is None


def test_a_device_without_shared_memory_gets_nothing():
    assert tiles_for(shape(), 512, sm_bytes=50000, cta_bytes=49152) is None
