"""The kernels of ``moe_decode`` compiled for one layer shape and one set of tiles."""

from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from benchkit.cuda_source import Cubin, compile_cubin
from benchkit.kernels.warp_decode.configuration import LAYOUTS, DownTiles, LayerShape, ProductTiles, Tiles

GATE_UP, DOWN = "warp_decode_gate_up", "warp_decode_down"
DOWN_ROWS, COMBINE = "warp_decode_down_rows", "warp_decode_combine"  # down in two kernels
_FOLDER = Path(__file__).parent
_WARN = "--ptxas-options=--warn-on-spills"


def files(layout: str, kernel: str, tiles: Tiles) -> tuple[str, ...]:
    """The files in this folder that make one kernel of one layout, in order; all but the first are plain C++."""
    if kernel == COMBINE:
        return ("ptx.cu", "frame.cu", "combine.cu")
    part = _part(kernel, tiles)[1]
    body = "product_wide.cu" if isinstance(part, ProductTiles) and part.wide else "product.cu"
    product = ("products.cu", body)
    return ("ptx.cu", "frame.cu", LAYOUTS[layout].source, *(("down.cu",) if kernel == DOWN else product))


@lru_cache(maxsize=16)
def source(names: tuple[str, ...]) -> str:
    """The CUDA C++ text of ``files``."""
    return "".join(map(file_text, names))


def file_text(name: str) -> str:
    """A file's text, with the compiler told where it comes from."""
    return f'#line 1 "{name}"\n{(_FOLDER / name).read_text(encoding="utf-8")}'


def _part(kernel: str, tiles: Tiles) -> tuple[str, ProductTiles | DownTiles | None]:
    """The tiles that a kernel is compiled with, and what their macros begin with."""
    parts: dict[str, tuple[str, ProductTiles | DownTiles | None]] = {
        GATE_UP: ("PRODUCT", tiles.up),
        DOWN: ("DOWN", tiles.down),
        DOWN_ROWS: ("PRODUCT", tiles.down.product),
    }
    return parts.get(kernel, ("", None))


def macros(shape: LayerShape, kernel: str, tiles: Tiles) -> dict[str, int]:
    """What a kernel is compiled with; two tiles that differ only in another kernel give the same."""
    prefix, part = _part(kernel, tiles)
    open_values: dict[str, int] = {}
    if part is not None:
        open_values = {f"{prefix}_{each.name.upper()}": getattr(part, each.name) for each in fields(part)}
        open_values |= {"PRODUCT_UP": int(kernel == GATE_UP), "AWQ_CHAINS": tiles.chains}
    return {
        "HIDDEN": shape.hidden,
        "INTERMEDIATE": shape.intermediate,
        "EXPERTS": shape.experts,
        "TOP_K": shape.top_k,
        "X_BF16": int(shape.x_bf16),
        **dict(LAYOUTS[shape.layout].macros),
        **open_values,
    }


def kernels(tiles: Tiles) -> tuple[str, ...]:
    """The kernels of one call, in order."""
    return (GATE_UP, DOWN_ROWS, COMBINE) if tiles.down.product else (GATE_UP, DOWN)


def compile_decode(shape: LayerShape, kernel: str, tiles: Tiles, arch: str, *extra: str) -> Cubin:
    """One of ``kernels(tiles)``; ``extra`` are further options of the compiler."""
    options = tuple(f"-D{name}={value}" for name, value in macros(shape, kernel, tiles).items())
    return compile_cubin(
        source(files(shape.layout, kernel, tiles)), name=f"{kernel}.cu", arch=arch, options=(*options, _WARN, *extra)
    )
