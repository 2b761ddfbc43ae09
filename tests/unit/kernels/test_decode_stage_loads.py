"""A stage of a warp's ring is filled again only after its bytes have been loaded: by the machine code of every form, without a GPU.

A copy does not wait for the warp's own loads, and an instruction is issued when the registers that it reads are there. So between the wait
for a stage and the next copy something has to read what each load of the stage brings. A sanitizer sees nothing of this, and a GPU
shows it only where the next bytes come from L2 at once.
"""

import re

import pytest
from test_warp_decode_literal import disassembled

pytest.importorskip("cuda.bindings.nvrtc")

from benchkit.cuda_source import Cubin, compile_cubin
from benchkit.kernels.warp_decode.configuration import LAYOUTS, LayerShape, Tiles
from benchkit.kernels.warp_decode.decode_source import COMBINE, DOWN, compile_decode, files, kernels, macros, source
from benchkit.kernels.warp_decode.dispatch import TABLE, down, rows, up

WALKING = {
    "bf16": (down(1, 2, 1, 1, 1, 12, 0, 136, walk=1),),
    "bf16-packed": (down(1, 3, 1, 1, 1, 12, 1, 168, walk=1),),
    "mxfp8-packed": (down(1, 2, 1, 1, 1, 12, 0, 144, walk=1), down(1, 2, 1, 2, 2, 8, 1, 248, walk=1)),
    "awq-packed": (down(1, 2, 1, 1, 1, 12, 1, 144, walk=1), down(1, 2, 2, 2, 2, 12, 1, 168, walk=1)),
}


def shape(layout: str) -> LayerShape:
    return LayerShape(experts=128, hidden=2048, intermediate=768, top_k=8, layout=layout)


def unread_loads(code: list[str]) -> list[str]:
    """Wide loads from shared memory behind the wait for a stage that nothing has read when the next copy is issued."""
    found = []
    for copy in (i for i, line in enumerate(code) if re.search("UBLKCP|LDGSTS", line)):
        wait = max((i for i in range(copy) if "PHASECHK" in code[i]), default=copy)
        pending: dict[str, range] = {}
        for line in code[wait:copy]:
            name, _, operands = re.sub(r"^@!?U?P\w+ ", "", line).partition(" ")
            if name in ("LDS.64", "LDS.128"):
                first = int(re.match(r"\s*R(\d+)", operands)[1])
                written = range(first, first + (4 if name == "LDS.128" else 2))
            else:
                written = range(0)
            read = registers_read(name, operands)
            pending = {load: to for load, to in pending.items() if not read & set(to) and not set(written) & set(to)}
            if written:
                pending[line] = written
        found += pending
    return found


def registers_read(name: str, operands: str) -> set[int]:
    """Registers that an instruction reads; of a tensor-core product and a wide store four from each operand on."""
    parts = operands.split(",")
    if not name.startswith(("ST", "RED", "SYNCS")):
        parts = parts[1:]  # the first one is written
    width = 4 if name.startswith("HMMA") or ".128" in name else 2 if "WIDE" in name or ".64" in name else 1
    return {int(register) + i for part in parts for register in re.findall(r"\bR(\d+)", part) for i in range(width)}


def misplaced(code: list[str]) -> list[str]:
    """Asynchronous copies to an address that ptxas 13.0.88 split into what a lane and what the whole warp adds to it: it encodes them wrongly,
    on an H200 an illegal instruction."""
    good = re.compile(r"LDGSTS\S* \[R\d+(\+0x[0-9a-f]+)?\], desc\[UR\d*[02468]\]")
    return [line for line in code if "LDGSTS" in line and "LDGSTSBAR" not in line and not good.search(line)]


def forms(layout: str) -> list[Tiles]:
    """The table's, down that keeps weights in registers, gate/up side by side, and rows that a third kernel adds."""
    table = [tiles for _, tiles in TABLE[layout]]
    walking = [Tiles(up=up(2, 2, 1, 2, 128, walk=1), down=each) for each in WALKING[layout]]
    added = Tiles(up=table[0].up, down=rows(2, 2, 1, 2, 136, 4))
    return [*table, *walking, added]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_loaded_is_read_before_its_place_is_filled(layout, tmp_path):
    for tiles in forms(layout):
        for kernel in kernels(tiles):
            if kernel != COMBINE and "product_wide.cu" not in files(layout, kernel, tiles):
                code = instructions(compile_decode(shape(layout), kernel, tiles, "sm_90"), kernel, tmp_path)
                assert any(("LDGSTS" if layout == "bf16" else "UBLKCP") in line for line in code)
                assert misplaced(code) == []
                assert unread_loads(code) == [], (tiles, kernel)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if LAYOUTS[layout].wide])
def test_asynchronous_copies_go_where_the_hardware_takes_them(layout, tmp_path):
    """In product_wide.cu, whose stages are guarded by barriers of the CTA, behind which a copy does wait."""
    for flush in (1, 2, 4):
        tiles = Tiles(up=up(8, 3, 1, flush, 255, 1), down=rows(8, 2, 1, flush, 255, 1, warps=8))
        for kernel in kernels(tiles)[:2]:
            code = instructions(compile_decode(shape(layout), kernel, tiles, "sm_90"), kernel, tmp_path)
            assert sum("LDGSTS" in line for line in code) >= 2 * (4 * flush + 1)
            assert misplaced(code) == []
            assert not any("UBLKCP" in line for line in code)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_that_does_not_wait_is_found(layout, tmp_path):
    """As the form that keeps weights in registers once was."""
    tiles = Tiles(up=TABLE[layout][0][1].up, down=WALKING[layout][0])
    text, old = source(files(layout, DOWN, tiles)), "source += loaded & zero, issue();"
    assert text.count(old) == 1
    options = tuple(f"-D{name}={value}" for name, value in macros(shape(layout), DOWN, tiles).items())
    cubin = compile_cubin(text.replace(old, "issue();"), name=f"{DOWN}.cu", arch="sm_90", options=options)
    assert len(unread_loads(instructions(cubin, DOWN, tmp_path))) >= 5


def instructions(cubin: Cubin, kernel: str, folder) -> list[str]:
    """The machine code of one kernel."""
    return disassembled(cubin.code, folder / "kernel.cubin")[kernel]
