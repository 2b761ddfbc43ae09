"""What the kernels take: type and values of every parameter, and which parameters go together. Known before any kernel is imported.

Rules:
1. Nothing here imports torch. The files of the kernels are part of published digests and stay as they are: what their parsers take is said here
   again, and held against them by tests/unit/kernels/test_parameters.py.
2. What depends on a layer or on a device is no matter of this table: ``refusals`` and ``prepare`` answer it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchkit.errors import DataError
from benchkit.kernels.contract import Params
from benchkit.kernels.marlin_selector import BLOCK_SIZES, tiles
from benchkit.protocol.fields import as_toml

Together: TypeAlias = Callable[[Params], object]  # DataError, "params.<name>: ...", where parameters do not go together
_NOUNS = {int: "an integer", str: "a string", bool: "a boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter of a kernel.

    Parameters
    ----------
    kind, required:
        Its type, and whether it must be given.
    least, most:
        The bounds of an integer; None where there is none.
    choices:
        All its values, where not every one of the kind within the bounds is one; a range of integers is told as its multiples.
    """

    kind: type[int] | type[str] | type[bool]
    required: bool
    least: int | None = None
    most: int | None = None
    choices: Collection[int | str] = ()

    def takes(self, value: object) -> bool:
        """Whether a value is one of it; a boolean is no integer."""
        if type(value) is not self.kind or (self.choices and value not in self.choices):
            return False
        if not isinstance(value, int):
            return True
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def expected(self) -> str:
        """Its values in words."""
        if isinstance(self.choices, range):
            return f"a multiple of {self.choices.step} from {self.choices[0]} to {self.choices[-1]}"
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.least is None:
            return _NOUNS[self.kind]
        return (
            f"an integer of at least {self.least}"
            if self.most is None
            else f"an integer from {self.least} to {self.most}"
        )


def _among(values: Sequence[int], *, required: bool = True) -> Param:
    """An integer among ``values``: from the first to the last where none is left out."""
    least, most = min(values), max(values)
    if most - least + 1 == len(values):
        return Param(kind=int, required=required, least=least, most=most)
    return Param(kind=int, required=required, choices=values if isinstance(values, range) else tuple(values))


def _powers(least: int, most: int) -> Param:
    return _among([1 << bit for bit in range(most.bit_length()) if least <= 1 << bit <= most])


_FLAG = Param(kind=bool, required=False)
COUNT = Param(kind=int, required=True, least=1)
THREADS = Param(kind=int, required=False, least=1)

_METHODS = {  # of a ceiling, with the parameters that belong to each
    "vector": ("threads", "unroll"),
    "bulk": ("warps", "stages", "tile_bytes"),
}
CUDA_CEILING: Mapping[str, Param] = {  # benchkit.kernels.ceilings_cuda.parse_shapes says what each of them is
    "method": Param(kind=str, required=False, choices=tuple(_METHODS)),
    "ctas_per_sm": _among(range(33)),
    "streaming": _FLAG,
    "threads": _among(range(32, 1025, 32), required=False),
    "unroll": _among(range(1, 17), required=False),
    "warps": _among(range(1, 33), required=False),
    "stages": _among(range(2, 33), required=False),
    "tile_bytes": _among(range(512, 32769, 512), required=False),
}


def ceiling_together(params: Params) -> None:
    """A method with all its parameters and none of the other's."""
    method = str(params.get("method", "vector"))
    names = _METHODS[method]
    for name in (name for each in _METHODS.values() for name in each):
        if (name in names) is not (name in params):
            found = "nothing" if name in names else as_toml(params[name])
            expected = CUDA_CEILING[name].expected if name in names else "nothing"
            raise DataError(f'params.{name}: expected {expected} with method "{method}", found {found}')
    if method == "bulk" and params["ctas_per_sm"] == 0:
        raise DataError('params.ctas_per_sm: expected an integer from 1 to 32 with method "bulk", found 0')


LITERAL: Mapping[str, Param] = {  # benchkit.kernels.warp_decode.literal.Stage says what each of them is
    f"{kernel}_{name}": param
    for kernel in ("up", "down")
    for name, param in {
        "load_bytes": _among((8, 16)),
        "depth": _among(range(1, 17)),
        "ctas_per_sm": _among(range(1, 9)),
    }.items()
}

_PORTABLE_TILE = {
    "tile_n": _powers(1, 256),
    "tile_k": _powers(1, 4096),
    "warps": _powers(1, 16),
    "stages": _among(range(1, 9)),
}
PORTABLE: Mapping[str, Param] = {  # benchkit.kernels.warp_decode.portable.Tiles says what each of them is
    **{f"{kernel}_{name}": param for kernel in ("up", "down") for name, param in _PORTABLE_TILE.items()},
    "down_experts": _powers(1, 32),
    "launch_pdl": _FLAG,
    "stream": _FLAG,
}

_DECODE_TILE = {
    "groups": _powers(1, 8),
    "stages": _among(range(1, 33)),
    "tiles": _powers(1, 2),
    "registers": _among(range(32, 256)),
    "ctas_per_sm": _among(range(1, 17)),
}
DECODE: Mapping[str, Param] = {  # warp_decode.configuration.ProductTiles and DownTiles say what each of them is
    **{f"{kernel}_{name}": param for kernel in ("up", "down") for name, param in _DECODE_TILE.items()},
    "up_flush": _powers(1, 8),
    "up_ahead": _among((0, 8, 16, 32, 64), required=False),
    "up_walk": _among(range(2), required=False),
    "down_row_tiles": _powers(1, 4),
    "down_cluster": _powers(1, 8),
    "down_warps": _among(range(1, 33)),
    "down_prefetch": _among(range(3)),
    "down_pairwise": _among(range(3)),
    "down_walk": _among(range(2), required=False),
    "chains": _among((1, 2), required=False),
    "launch_pdl": _FLAG,
}

_GEMM = {"tile_n": _powers(16, 256), "tile_k": _powers(32, 256), "stages": _among(range(1, 9)), "warps": _powers(1, 16)}
EXPERT_CENTRIC: Mapping[str, Param] = {  # benchkit.kernels.expert_centric_tiles says what each of them is
    "tile_m": _powers(16, 128),
    **{f"{kernel}_{name}": param for kernel in ("up", "down") for name, param in _GEMM.items()},
    **dict.fromkeys(("up_swap", "down_swap", "launch_pdl"), _FLAG),
}
_STAGES = ("sort", "pad", "gather", "up", "silu", "down", "scatter", "combine")
STAGE: Mapping[str, Param] = {"stage": Param(kind=str, required=True, choices=_STAGES), **EXPERT_CENTRIC}

_TILES = sorted({(k, n) for block in BLOCK_SIZES for k, n, _ in tiles(block)})
_LAUNCH = {
    "thread_k": _among(sorted({k for k, _ in _TILES}), required=False),
    "thread_n": _among(sorted({n for _, n in _TILES}), required=False),
    "blocks_per_sm": _among(range(1, 5), required=False),
}
MARLIN: Mapping[str, Param] = {  # benchkit.kernels.marlin says what each of them is
    "alignment": Param(kind=str, required=True, choices=("native", "stable")),
    **{f"{gemm}_{name}": param for gemm in ("w13", "w2") for name, param in _LAUNCH.items()},
}


def marlin_together(params: Params) -> None:
    """A launch of a GEMM is given as a whole, or not at all; its tile is one of the op's."""
    for gemm in ("w13", "w2"):
        names = [f"{gemm}_{name}" for name in _LAUNCH]
        given = [params[name] for name in names if name in params]
        if given and len(given) < len(names):
            missing = next(name for name in names if name not in params)
            raise DataError(f"params.{missing}: expected all or none of {', '.join(names)}, found nothing")
        if given and (given[0], given[1]) not in _TILES:
            known = ", ".join(f"{k} x {n}" for k, n in _TILES)
            raise DataError(f"params.{gemm}_thread_k: expected a tile {known}, found {given[0]} x {given[1]}")
