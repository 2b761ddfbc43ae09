"""Warp decode: two kernels, no staging. ``literal`` as published (CUDA C++), ``portable`` in Triton, one output at a time both;
``moe_decode`` by experts, on tensor cores, each active expert's weights read once."""

from benchkit.kernels.warp_decode.decode import moe_decode
from benchkit.kernels.warp_decode.pack import (
    AwqTensors,
    DecodeWeights,
    checkpoint_bf16,
    pack_awq,
    pack_bf16,
    pack_mxfp8,
)

__all__ = ["AwqTensors", "DecodeWeights", "checkpoint_bf16", "moe_decode", "pack_awq", "pack_bf16", "pack_mxfp8"]
