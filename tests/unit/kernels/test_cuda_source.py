"""Compiling leaves Python's own objects alone."""

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from benchkit.cuda_source import compile_cubin


def test_an_empty_log_is_not_written_into_the_one_blank_that_python_keeps() -> None:
    cubin = compile_cubin('extern "C" __global__ void nothing() {}', name="nothing.cu", arch="sm_90")
    assert cubin.log == ""
    assert [bytes((value,))[0] for value in range(256)] == list(range(256))
