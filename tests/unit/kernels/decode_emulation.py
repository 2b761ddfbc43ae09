"""The kernels of ``moe_decode`` compiled by g++ and run on the CPU by the machine in ``emulation``: what it finds stands in machine.cpp.

The host's code is the real one (``decode.launches``); only the module that a kernel is loaded into is another.
"""

import ctypes
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from benchkit.cuda_source import Argument
from benchkit.kernels.warp_decode.configuration import (
    LayerShape,
    Tiles,
)
from benchkit.kernels.warp_decode.decode import DecodeKernels, DeviceLimits, launches, scratch, shape_of
from benchkit.kernels.warp_decode.decode_source import file_text, files, kernels, macros
from benchkit.kernels.warp_decode.fit import (
    down_shared_bytes,
    up_shared_bytes,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))

from decode_cases import Layer

FOLDER = Path(__file__).parent / "emulation"
DEVICE = DeviceLimits(name="emulated", arch="sm_90", sm_count=3, sm_bytes=233472, cta_bytes=232448)
GUARD = 1024  # elements on either side of what a kernel writes
Patch = Callable[[str], str]


def missing() -> str | None:
    """What this machine lacks to run the kernels, or None."""
    if shutil.which("g++") is None:
        return "needs g++, found none"
    machine = f"{platform.system()} {platform.machine()}"
    return None if machine == "Linux x86_64" else f"needs Linux x86_64 (fibers), found {machine}"


def unchanged(text: str) -> str:
    """The patch that leaves a source as it is."""
    return text


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="warp-decode-")


def _compile(*arguments: str | Path) -> None:
    command = ["g++", "-std=c++20", "-fPIC", "-fno-gnu-unique", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@cache
def _object(source: str, *options: str) -> Path:
    """A source compiled; the same text with the same options once."""
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    (folder / "source.cpp").write_text(source, encoding="utf-8")
    _compile(*options, f"-I{FOLDER}", "-c", folder / "source.cpp", "-o", folder / "source.o")
    return folder / "source.o"


@cache
def build(shape: LayerShape, tiles: Tiles, patch: Patch = unchanged) -> ctypes.CDLL:
    """The kernels of a call and a machine for them; ``patch`` changes their text."""
    parts = [(FOLDER / name).read_text(encoding="utf-8") for name in ("machine.cpp", "operations.cpp")]
    objects = [_object(part, "-O2", "-Wall", "-Wextra", "-Werror") for part in parts]
    changed = False
    for kernel in kernels(tiles):
        names = files(shape.layout, kernel, tiles)[1:]
        text = "".join(['#include "device.h"\n', *map(file_text, names), f"\nEMULATED({kernel})\n"])
        changed |= patch(text) != text
        defined = (f"-D{name}={value}" for name, value in macros(shape, kernel, tiles).items())
        objects.append(_object(patch(text), "-O1", "-w", *defined))
    assert changed == (patch is not unchanged)
    target = Path(tempfile.mkdtemp(dir=_folder().name)) / "kernels.so"
    _compile("-shared", *objects, "-o", target)
    library = ctypes.CDLL(str(target))
    library.machine_new.restype = library.machine_run.restype = ctypes.c_void_p
    return library


class EmulatedModule:
    """A loaded kernel; a launch of it is queued on the machine."""

    def __init__(self, library: ctypes.CDLL, machine: ctypes.c_void_p, shared_bytes: int) -> None:
        self._library, self._machine, self._shared_bytes = library, machine, shared_bytes

    def attributed(
        self,
        name: str,
        *arguments: Argument,
        grid: int,
        block: int,
        shared_bytes: int,
        cluster: int = 1,
        dependent: bool = False,
    ) -> Callable[[int], None]:
        """As ``AttributedModule.attributed``, with exactly the shared memory that the kernel needs, so that nothing hides behind more."""
        assert self._shared_bytes <= shared_bytes
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        kernel = getattr(self._library, f"{name}_thread")

        def launch(stream: int, _held: object = arguments) -> None:
            shape = (grid, block, self._shared_bytes, cluster, int(dependent))
            self._library.machine_launch(self._machine, kernel, addresses, *shape)

        return launch


def emulate(
    layer: Layer,
    tiles: Tiles,
    x: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
    *,
    seed: int,
    calls: int = 1,
    patch: Patch = unchanged,
) -> tuple[torch.Tensor, str]:
    """The output of ``calls`` calls in a row on buffers full of NaN, and what the machine found, empty where nothing is wrong."""
    shape, tokens = shape_of(layer.weights, int(ids.shape[1]), x.dtype), int(x.shape[0])
    library = build(shape, tiles, patch)
    machine = ctypes.c_void_p(library.machine_new(ctypes.c_uint64(seed)))
    wholes = []
    for like in (scratch(shape, tiles, tokens, x.device), x):
        wholes.append(torch.full((like.numel() + 2 * GUARD,), 7.0, dtype=like.dtype))
        wholes[-1][GUARD:-GUARD] = float("nan")
    between, output = wholes[0][GUARD:-GUARD], wholes[1][GUARD:-GUARD].view_as(x)
    for each in (x, ids, shares, layer.weights.w13, layer.weights.w2, between):
        library.machine_buffer(machine, ctypes.c_void_p(each.data_ptr()), ctypes.c_int64(each.nbytes))
    sizes = (up_shared_bytes(shape, tiles.up, tokens), down_shared_bytes(shape, tiles.down, tokens), 0)
    modules = {name: EmulatedModule(library, machine, size) for name, size in zip(kernels(tiles), sizes, strict=False)}
    loaded = DecodeKernels(shape=shape, tiles=tiles, device=DEVICE, modules=modules, sha256={})
    queue = (
        launches(loaded, x, layer.weights, ids, shares, between, output) * calls
    )  # arguments live until the machine has run
    for launch in queue:
        launch(0)
    found = ctypes.string_at(library.machine_run(machine)).decode()
    library.machine_free(machine)
    if any(bool((whole[:GUARD] != 7.0).any() | (whole[-GUARD:] != 7.0).any()) for whole in wholes):
        found = found or "something was written beside a buffer"
    return output, found
