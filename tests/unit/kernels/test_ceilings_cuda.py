"""CUDA ceilings: shapes, the witness of a copy, the sums of a read; every CUDA source compiles. No GPU here."""

import struct

import numpy as np
import pytest
import torch

from benchkit.cuda_source import compile_cubin
from benchkit.errors import DataError, MachineError
from benchkit.fixture.arrays import make_arrays
from benchkit.kernels import ceilings_cuda
from benchkit.kernels.ceilings_cuda import checksum, cta_sums, differing_elements, parse_shapes, sample
from benchkit.kernels.contract import Support

VECTOR = {"ctas_per_sm": 8, "threads": 256, "unroll": 4}
BULK = {"method": "bulk", "ctas_per_sm": 1, "warps": 8, "stages": 8, "tile_bytes": 2048}


def test_shapes_of_vector():
    shapes = parse_shapes(VECTOR)
    assert shapes.options == ("-DTHREADS=256", "-DUNROLL=4", "-DSTREAMING=0")
    assert (shapes.tile_bytes, shapes.shared_bytes, shapes.streams) == (16384, 0, 1)
    assert shapes.grid(80 << 20, 132) == 1056
    assert parse_shapes({**VECTOR, "ctas_per_sm": 0}).grid((80 << 20) + 16, 132) == 5121


def test_shapes_of_bulk():
    shapes = parse_shapes({**BULK, "streaming": True})
    assert shapes.options == ("-DWARPS=8", "-DSTAGES=8", "-DTILE=2048", "-DSTREAMING=1")
    assert (shapes.shared_bytes, shapes.streams, shapes.grid(1 << 30, 132)) == (8 * 8 * 2056, 8, 132)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (
            {**VECTOR, "threads": 100},
            "params.threads: expected an integer from 32 to 1024, a multiple of 32, found 100",
        ),
        ({**VECTOR, "unroll": True}, "params.unroll: expected an integer from 1 to 16, found True"),
        ({"threads": 256, "unroll": 4}, "params.ctas_per_sm: expected an integer from 0 to 32, found None"),
        ({**BULK, "ctas_per_sm": 0}, "params.ctas_per_sm: expected an integer from 1 to 32, found 0"),
        ({**BULK, "unroll": 4}, "params: expected stages, tile_bytes, warps with method bulk, found unroll"),
        ({**VECTOR, "method": "tma"}, 'params.method: expected "vector" or "bulk", found \'tma\''),
        ({**VECTOR, "streaming": 1}, "params.streaming: expected a boolean, found 1"),
    ],
)
def test_wrong_shapes(params, text):
    with pytest.raises(DataError) as found:
        parse_shapes(params)
    assert str(found.value) == text


@pytest.mark.parametrize("prepare", [ceilings_cuda.prepare_copy, ceilings_cuda.prepare_read])
def test_arrays_on_the_host_are_no_case_for_a_gpu(prepare):
    answer = prepare(make_arrays(seed=1, bytes=4096, copies=1), VECTOR)
    assert answer == Support.no("needs arrays on a GPU, found them on cpu")


@pytest.mark.parametrize("inference", [True, False])
def test_witness_of_a_copy(inference, monkeypatch):
    monkeypatch.setattr(ceilings_cuda, "_CHUNK", 1000)
    with torch.inference_mode(inference):
        inputs = make_arrays(seed=1, bytes=4 * 10_001, copies=1)
    source, target = inputs.sources[0], inputs.sources[0].clone()
    assert (sample(source)[0], sample(source)[-1], sample(source).numel()) == (source[0], source[-1], 4096)
    assert differing_elements(target, source) == 0
    bits = source.numpy().view(np.int32)
    assert checksum(source) == sum((2 * i + 1) * int(b) for i, b in enumerate(bits)) % (1 << 64)
    with torch.inference_mode():
        target[[5, 7]] = target[[7, 5]]
    assert differing_elements(target, source) == 2
    assert checksum(target) != checksum(source)
    assert struct.pack("<qQ", 2, checksum(target))  # fits


@pytest.mark.parametrize(("elements", "tile", "grid", "streams"), [(1000, 64, 3, 1), (1024, 64, 2, 4), (100, 64, 5, 2)])
def test_sums_of_ctas(elements, tile, grid, streams):
    values = torch.arange(elements, dtype=torch.float32)
    expected = np.zeros(grid)
    for start in range(0, elements, tile):
        owner = start // tile % (grid * streams) // streams
        expected[owner] += float(values[start : start + tile].double().sum())
    np.testing.assert_array_equal(cta_sums(values, tile, grid, streams).numpy(), expected)


def _nvrtc() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")


@pytest.mark.parametrize(
    "params",
    [
        VECTOR,
        {**VECTOR, "threads": 512, "unroll": 16, "streaming": True},
        {**VECTOR, "threads": 32, "unroll": 1},
        BULK,
        {**BULK, "stages": 2, "warps": 1, "tile_bytes": 512, "streaming": True},
        {**BULK, "stages": 3, "tile_bytes": 4096},
    ],
)
def test_ceilings_compile(params):
    _nvrtc()
    cubin = ceilings_cuda.compile_ceilings(parse_shapes(params), "sm_90")
    method = params.get("method", "vector")
    assert cubin.log == ""
    assert cubin.code[:4] == b"\x7fELF"
    for kernel in ("copy", "read"):
        assert f"benchkit_{kernel}_{method}".encode() in cubin.code


def test_compiling_again_gives_the_same_code():
    _nvrtc()
    first = ceilings_cuda.compile_ceilings(parse_shapes(BULK), "sm_90")
    compile_cubin.cache_clear()
    assert ceilings_cuda.compile_ceilings(parse_shapes(BULK), "sm_90").sha256 == first.sha256


def test_the_log_of_the_compiler_is_shown():
    _nvrtc()
    with pytest.raises(MachineError, match=r'NVRTC does not compile wrong.cu for sm_90:\n.*"nothing" is undefined'):
        compile_cubin("int f() { return nothing; }", name="wrong.cu", arch="sm_90")
