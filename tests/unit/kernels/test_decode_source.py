"""The kernels of ``moe_decode`` compile in every configuration that can be chosen, and their machine code is what the text says. No GPU."""

import re
from dataclasses import replace

import pytest
from test_warp_decode_literal import sass

from benchkit.kernels.warp_decode.configuration import LAYOUTS, LayerShape, Tiles
from benchkit.kernels.warp_decode.decode_source import DOWN, GATE_UP, compile_decode, files, kernels, source
from benchkit.kernels.warp_decode.dispatch import TABLE, down, rows, tiles_for

pytest.importorskip("cuda.bindings.nvrtc")

VERBOSE = "--ptxas-options=-v"  # one option everywhere: equal compilations are made once
MAX_SPILL = 64  # bytes of a thread, outside the stream; tuning found those worth it
ROWS = [(layout, most) for layout, rows in TABLE.items() for most, _ in rows]


def shape(layout: str, **sizes: int) -> LayerShape:
    return LayerShape(**{"experts": 128, "hidden": 2048, "intermediate": 768, "top_k": 8, **sizes}, layout=layout)


def row(layout: str, most: int) -> Tiles:
    return dict(TABLE[layout])[most]


@pytest.mark.parametrize(("layout", "most"), ROWS)
@pytest.mark.parametrize("which", [0, 1])
def test_every_configuration_compiles(layout, most, which):
    kernel = kernels(row(layout, most))[which]
    cubin = compile_decode(shape(layout), kernel, row(layout, most), "sm_90", VERBOSE)
    assert kernel.encode() in cubin.code
    assert "error" not in cubin.log
    spills = [int(size) for size in re.findall(r"(\d+) bytes spill stores", cubin.log)]
    assert max(spills) <= MAX_SPILL


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_other_forms_of_down_compile(layout):
    """Weights that stay in registers, and rows that a third kernel adds."""
    paired = LAYOUTS[layout].paired
    walking = Tiles(up=row(layout, 64).up, down=down(1, 2, paired, paired, paired, 12, 1, 168, walk=1))
    product = Tiles(up=row(layout, 64).up, down=rows(2, 2, paired, 2, 136, 4))
    for tiles in (walking, product):
        for kernel in kernels(tiles)[1:]:
            cubin = compile_decode(shape(layout), kernel, tiles, "sm_90", VERBOSE)
            assert kernel.encode() in cubin.code
            spills = [int(size) for size in re.findall(r"(\d+) bytes spill stores", cubin.log)]
            assert max(spills) <= MAX_SPILL


@pytest.mark.parametrize("kernel", [GATE_UP, DOWN])
def test_fp16_inputs_compile(kernel):
    for layout in ("awq-packed", "mxfp8-packed"):
        assert compile_decode(replace(shape(layout), x_bf16=False), kernel, row(layout, 64), "sm_90", VERBOSE).code


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layers_and_devices_compile(layout):
    multiple = LAYOUTS[layout].multiple
    for arch, tokens, sizes in [
        ("sm_90", 1, {"hidden": multiple, "intermediate": multiple, "experts": 3, "top_k": 2}),
        ("sm_90", 512, {"hidden": 7168, "intermediate": 2048, "experts": 256}),
        ("sm_100", 16, {"hidden": 2944, "intermediate": 1408, "experts": 511, "top_k": 16}),
    ]:
        layer = shape(layout, **sizes)
        tiles = tiles_for(layer, tokens, sm_bytes=233472, cta_bytes=232448)
        assert tiles is not None
        for kernel in (GATE_UP, DOWN):
            assert compile_decode(layer, kernel, tiles, arch).code


def test_two_tiles_that_differ_in_one_kernel_share_the_other():
    tiles = row("bf16", 64)
    other = Tiles(up=tiles.up, down=replace(tiles.down, warps=6))
    first, second = (compile_decode(shape("bf16"), GATE_UP, each, "sm_90", VERBOSE) for each in (tiles, other))
    assert first is second


@pytest.mark.parametrize("layout", LAYOUTS)
def test_machine_code(layout, tmp_path):
    """Weights come by bulk copies, from the checkpoint by asynchronous ones of 16 bytes, products are of tensor cores, nothing is added by
    atomics beyond the masks of the routing lists."""
    tiles = row(layout, 64)
    for kernel in (GATE_UP, DOWN):
        code = sass(compile_decode(shape(layout), kernel, tiles, "sm_90", VERBOSE).code, tmp_path / f"{kernel}.cubin")
        names = code[kernel]
        assert [name for name in names if name.startswith("LDGSTS" if layout == "bf16" else "UBLKCP")]
        kinds = {name for name in names if name.startswith("HMMA")}
        assert kinds == {"HMMA.16816.F32.BF16" if layout.startswith("bf16") else "HMMA.16816.F32"}
        assert {name for name in names if name.startswith(("ATOM", "RED"))} <= {"ATOMS.OR"}
        assert "ACQBULK" in names  # griddepcontrol.wait


def test_the_prologue_is_not_unrolled():
    """ptxas 13.0.88 adds the step twice where it unrolls the loop that fills the ring."""
    for layout in LAYOUTS:
        for tiles in (tiles for _, tiles in TABLE[layout]):
            for kernel in kernels(tiles)[:2]:
                stages = "DOWN_STAGES" if kernel == DOWN else "PRODUCT_STAGES"
                names = files(layout, kernel, tiles)
                filled = "AHEAD && ahead.more" if "product_wide.cu" in names else f"{stages} && producer"
                loops = rf"#pragma unroll 1[^\n]*\n    for \(int i = 0; i < {re.escape(filled)}"
                assert len(re.findall(loops, source(names))) == 1
