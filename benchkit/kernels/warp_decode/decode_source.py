"""The two kernels of ``moe_decode`` compiled for one layer shape and one set of tiles."""

from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from benchkit.cuda_source import Cubin, compile_cubin
from benchkit.kernels.warp_decode.configuration import LAYOUTS, LayerShape, Tiles

GATE_UP, DOWN = "warp_decode_gate_up", "warp_decode_down"
_FOLDER = Path(__file__).parent
_FILES = {GATE_UP: "gate_up.cu", DOWN: "down.cu"}
_WARN = "--ptxas-options=--warn-on-spills"


def files(layout: str, kernel: str) -> tuple[str, ...]:
    """The files in this folder that make one kernel of one layout, in order; all but the first are plain C++."""
    return ("ptx.cu", "frame.cu", LAYOUTS[layout].source, _FILES[kernel])


@lru_cache(maxsize=16)
def source(layout: str, kernel: str) -> str:
    """The CUDA C++ text of one kernel of one layout."""
    return "".join(file_text(name) for name in files(layout, kernel))


def file_text(name: str) -> str:
    """A file's text, with the compiler told where it comes from."""
    return f'#line 1 "{name}"\n{(_FOLDER / name).read_text(encoding="utf-8")}'


def macros(shape: LayerShape, kernel: str, tiles: Tiles) -> dict[str, int]:
    """What a kernel is compiled with; two tiles that differ only in the other kernel give the same."""
    prefix, part = ("UP", tiles.up) if kernel == GATE_UP else ("DOWN", tiles.down)
    return {
        "HIDDEN": shape.hidden,
        "INTERMEDIATE": shape.intermediate,
        "EXPERTS": shape.experts,
        "TOP_K": shape.top_k,
        "X_BF16": int(shape.x_bf16),
        **dict(LAYOUTS[shape.layout].macros),
        "AWQ_CHAINS": tiles.chains,
        **{f"{prefix}_{each.name.upper()}": getattr(part, each.name) for each in fields(part)},
    }


def compile_decode(shape: LayerShape, kernel: str, tiles: Tiles, arch: str, *extra: str) -> Cubin:
    """The kernel ``GATE_UP`` or ``DOWN``; ``extra`` are further options of the compiler."""
    options = tuple(f"-D{name}={value}" for name, value in macros(shape, kernel, tiles).items())
    return compile_cubin(
        source(shape.layout, kernel), name=f"{kernel}.cu", arch=arch, options=(*options, _WARN, *extra)
    )
