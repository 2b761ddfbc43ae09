"""The literal form compiles, and its machine code is what the text says: no spills, no shared memory, a butterfly. No GPU here."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from benchkit.fixture.layer import make_inputs, make_weights
from benchkit.fixture.routing import route
from benchkit.kernels.warp_decode.literal import (
    LayerShape,
    Stage,
    compile_literal,
    parse_stages,
    shape_of,
    space,
)

KERNELS = ("moe_gate_up_3d_batched", "moe_down_3d_batched")
UP, DOWN = Stage(load_bytes=16, depth=4, ctas_per_sm=3), Stage(load_bytes=16, depth=6, ctas_per_sm=3)
NARROW = Stage(load_bytes=8, depth=3, ctas_per_sm=4)

pytest.importorskip("cuda.bindings.nvrtc")


def shape(weight_format: str, hidden: int = 2048, intermediate: int = 768, top_k: int = 8) -> LayerShape:
    return LayerShape(hidden=hidden, intermediate=intermediate, top_k=top_k, weight_format=weight_format)


CASES = [
    (shape("bf16"), (UP, DOWN)),
    (shape("mxfp8"), (UP, DOWN)),
    (shape("mxfp8"), (NARROW, NARROW)),
    (shape("mxfp8"), (UP, NARROW)),
    (shape("bf16", 72, 24, 1), (UP, DOWN)),
    (shape("mxfp8", 96, 160, 3), (NARROW, DOWN)),
    (shape("bf16", 4096, 1536, 10), (UP, DOWN)),
]


@pytest.mark.parametrize(("layer", "stages"), CASES)
@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100"])
def test_compiles_without_spills(layer, stages, arch):
    cubin = compile_literal(layer, stages, arch)
    assert cubin.log == ""  # a spill would be a warning
    assert all(kernel.encode() in cubin.code for kernel in KERNELS)


@pytest.mark.parametrize(("layer", "stages"), CASES)
def test_no_shared_memory_no_stack_no_barrier(layer, stages):
    log = compile_literal(layer, stages, "sm_90", "--ptxas-options=-v").log
    assert log.count("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") == 2
    used = re.findall(r"Used \d+ registers(.*)", log)
    assert used == [", used 0 barriers"] * 2  # shared memory would stand behind it as "bytes smem"


def test_too_few_registers_are_a_warning():
    crowded = Stage(load_bytes=16, depth=16, ctas_per_sm=8)
    assert "spill" in compile_literal(shape("mxfp8"), (crowded, crowded), "sm_90").log


@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
def test_machine_code(weight_format, tmp_path):
    """Weights come in 16-byte loads past L1, lanes meet in shfl.bfly, and nothing touches shared or local memory."""
    code = sass(compile_literal(shape(weight_format), (UP, DOWN), "sm_90").code, tmp_path / "literal.cubin")
    assert set(code) == set(KERNELS)
    for kernel, weight_loads, values in (("moe_gate_up_3d_batched", 8, 2), ("moe_down_3d_batched", 6, 1)):
        names = code[kernel]
        assert names.count("LDG.E.NA.LTC256B.128.CONSTANT") == weight_loads
        assert names.count("SHFL.BFLY") == 5 * values
        assert names.count("STG.E.U16") == 1
        assert not [name for name in names if re.match(r"(LDS|STS|LDL|STL|BAR|ATOM|RED|HMMA)\b", name)]


def sass(code: bytes, path: Path) -> dict[str, list[str]]:
    """Instruction names of each kernel."""
    pattern = re.compile(r"(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)")
    return {kernel: [pattern.match(line)[1] for line in lines] for kernel, lines in disassembled(code, path).items()}


def disassembled(code: bytes, path: Path) -> dict[str, list[str]]:
    """The instructions of each kernel in order, by the disassembler that Triton brings along."""
    found = importlib.util.find_spec("triton")
    tool = Path(found.origin).parent / "backends/nvidia/bin/nvdisasm" if found and found.origin else None
    if tool is None or not tool.exists():
        pytest.skip("needs Triton's nvdisasm")
    path.write_bytes(code)
    text = subprocess.run([tool, path], capture_output=True, text=True, check=True).stdout
    sections = re.split(r"\.section\s+\.text\.", text)[1:]
    pattern = re.compile(r"/\*[0-9a-f]{4,}\*/\s+((?:@!?U?P\w+ )?[A-Z][^;]*)")
    return {re.split(r"[,\s]", part)[0]: pattern.findall(part) for part in sections}


@pytest.mark.parametrize("weight_format", ["bf16", "mxfp8"])
def test_the_search_space_is_valid(weight_format):
    weights = make_weights(seed=1, experts=4, hidden=64, intermediate=32, copies=1, weight_format=weight_format)
    inputs = make_inputs(weights, route("uniform", 1, 1, 4, 2))
    assert shape_of(inputs) == shape(weight_format, 64, 32, 2)
    tried = list(space(inputs))
    assert len({str(params) for params in tried}) == len(tried) > 10
    for params in tried:
        parse_stages(params, weight_format)
