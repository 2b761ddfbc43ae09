"""Warp decode: two kernels, no staging. ``literal`` as published (CUDA C++), ``portable`` in Triton, one output at a time both;
``moe_decode`` by experts, on tensor cores, each active expert's weights read once.

What is named here is imported when it is asked for: ``configuration`` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'decode' if name == 'moe_decode' else 'pack'}"), name)
