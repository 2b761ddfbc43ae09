"""What is open in the kernels of ``moe_decode``: a layer's shape and the tiles. No torch.

Rules:
1. A layer is refused with one sentence (needed, found); parameters outside their range are a DataError.
2. Everything here is compiled in, except the number of tokens: one build serves all batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from benchkit.errors import DataError
from benchkit.kernels.contract import Params

TILE_ROWS, TILE_K, GROUP = 16, 256, 8
MAX_TOKENS, MAX_EXPERTS, MAX_TOP_K, MULTIPLE = 512, 512, 16, 64
MAX_MATRIX = 1 << 30  # weights of an expert's down: their bytes are counted in 32 bits
WIDE_GROUPS, WIDE_WARPS = 8, 8  # product_wide.cu: groups of an entry, warps of a CTA
_LARGEST_CLUSTER = 8  # what every device takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the kernels find weights.

    Parameters
    ----------
    weight_format:
        Name of the checkpoint format (benchkit.fixture.weights).
    source, macros:
        The file in this folder, and what it is compiled with.
    stage_bytes:
        Shared memory of one stage of one row tile.
    wide:
        Whether product_wide.cu takes it.
    paired:
        Row tiles that stand side by side in storage; the most that one stage takes.
    multiple:
        What hidden and intermediate are multiples of.
    """

    weight_format: str
    source: str
    macros: tuple[tuple[str, int], ...]
    stage_bytes: int
    paired: int
    multiple: int
    wide: bool = False


LAYOUTS: Mapping[str, Layout] = {
    "bf16": Layout(
        weight_format="bf16",
        source="format_bf16.cu",
        macros=(("CHECKPOINT", 1),),
        stage_bytes=4096,
        paired=1,
        multiple=MULTIPLE,
        wide=True,
    ),
    "bf16-packed": Layout(
        weight_format="bf16",
        source="format_bf16.cu",
        macros=(("CHECKPOINT", 0),),
        stage_bytes=4096,
        paired=1,
        multiple=MULTIPLE,
        wide=True,
    ),
    "mxfp8-packed": Layout(
        weight_format="mxfp8",
        source="format_mxfp8.cu",
        macros=(),
        stage_bytes=4224,
        paired=1,
        multiple=MULTIPLE,
    ),
    "awq-packed": Layout(
        weight_format="awq-int4-g128",
        source="format_awq.cu",
        macros=(),
        stage_bytes=2176,
        paired=2,
        multiple=128,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What is compiled in of a layer; ``x_bf16``: x and the output are bf16, else fp16."""

    experts: int
    hidden: int
    intermediate: int
    top_k: int
    layout: str
    x_bf16: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTiles:
    """Gate/up, or down whose rows combine.cu adds (``DownTiles.product``): product.cu says what each of them is.

    Parameters
    ----------
    groups:
        Groups of 8 tokens for which a staged tile is decoded once: 1, 2, 4, or 8 by product_wide.cu, where the warps of a CTA share the rows
        instead of the columns.
    stages, tiles:
        Stages of a warp's ring, row tiles of a stage; with 8 groups 2 or more stages of a CTA.
    flush:
        Row tiles between two meetings of the warps; with 8 groups those that a warp has at a time, 1, 2 or 4.
    registers:
        Registers of a thread. Where a CTA of each kernel fits an SM together, one starts while the other ends.
    ctas_per_sm:
        CTAs that an SM gets: the grid, and through shared memory the most that fit.
    ahead:
        KiB of down's first weights that a CTA of gate/up asks L2 for at its end.
    walk:
        1: the token groups of an expert pass over its weights side by side, on several CTAs; for experts with many tokens.
    """

    groups: int
    stages: int
    tiles: int
    flush: int
    registers: int
    ctas_per_sm: int
    ahead: int = 0
    walk: int = 0

    @property
    def entry_tokens(self) -> int:
        """Tokens of an expert that one entry of the routing lists takes."""
        return self.groups * GROUP

    @property
    def wide(self) -> bool:
        """Whether product_wide.cu multiplies."""
        return self.groups == WIDE_GROUPS


@dataclass(frozen=True, slots=True, kw_only=True)
class DownTiles:
    """Down: down.cu says what each of them is.

    Parameters
    ----------
    groups, stages, tiles, registers:
        As in ``ProductTiles``.
    row_tiles, cluster, warps:
        A cluster of ``cluster`` CTAs of ``warps`` warps owns 16 x ``row_tiles`` rows of the output.
    prefetch:
        Tasks whose h is loaded ahead: 0, 1 or 2; 0 with ``pairwise``.
    pairwise:
        0: warps keep sums in shared memory; 1: the rows of each pair go through global memory and are added per token, for many tokens;
        2: the same, but the rows come from gate/up's kernel (product.cu) on all SMs, and a third kernel adds them (combine.cu). Then
        ``row_tiles`` lie between two meetings of the warps, ``warps`` are those that share the columns, ``cluster`` is 1, ``prefetch`` 0.
    ctas_per_sm:
        The most CTAs that fit an SM: with one, none lands beside another while gate/up drains. With ``pairwise`` 2 as in ``ProductTiles``.
    walk:
        1: a warp keeps staged weights in registers while all tokens of their expert pass by, 8 at a time (``groups`` 1, ``pairwise`` 0,
        ``prefetch`` of at most 1 group); for skewed routing.
    """

    groups: int
    stages: int
    tiles: int
    row_tiles: int
    cluster: int
    warps: int
    prefetch: int
    registers: int
    pairwise: int
    ctas_per_sm: int
    walk: int = 0

    @property
    def entry_tokens(self) -> int:
        """Tokens of an expert that one entry of the routing lists takes."""
        return MAX_TOKENS if self.walk else self.groups * GROUP

    @property
    def product(self) -> ProductTiles | None:
        """With ``pairwise`` 2 the tiles of product.cu."""
        if self.pairwise < 2:
            return None
        return ProductTiles(
            groups=self.groups,
            stages=self.stages,
            tiles=self.tiles,
            flush=self.row_tiles,
            registers=self.registers,
            ctas_per_sm=self.ctas_per_sm,
            walk=int(self.groups < WIDE_GROUPS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """All kernels. ``chains``: independent sums of an AWQ group, 1 or 2. ``launch_pdl``: programmatic dependent launches."""

    up: ProductTiles
    down: DownTiles
    chains: int = 1
    launch_pdl: bool = True


_ALLOWED: Mapping[str, tuple[int, ...]] = {
    "groups": (1, 2, 4, WIDE_GROUPS),
    "stages": tuple(range(1, 33)),
    "tiles": (1, 2),
    "flush": (1, 2, 4, 8),
    "row_tiles": (1, 2, 4),  # 64 rows at most: hidden is a multiple of 64
    "cluster": (1, 2, 4, _LARGEST_CLUSTER),
    "warps": tuple(range(1, 33)),
    "prefetch": (0, 1, 2),
    "pairwise": (0, 1, 2),
    "walk": (0, 1),
    "ahead": (0, 8, 16, 32, 64),
    "registers": tuple(range(32, 256)),
    "ctas_per_sm": tuple(range(1, 17)),
    "chains": (1, 2),
}


def parse_tiles(params: Params) -> Tiles:
    """``up_*`` and ``down_*`` with the fields of ``ProductTiles`` and ``DownTiles``; ``up_ahead``, ``up_walk``, ``down_walk``, ``chains`` and
    ``launch_pdl`` may be absent."""
    given = {"up_ahead": 0, "up_walk": 0, "down_walk": 0, "chains": 1, "launch_pdl": True, **params}
    up = ProductTiles(**{each.name: _integer(given, "up_", each.name) for each in fields(ProductTiles)})
    down = DownTiles(**{each.name: _integer(given, "down_", each.name) for each in fields(DownTiles)})
    if up.flush % up.tiles:
        raise DataError(f"params.up_flush: expected a multiple of up_tiles = {up.tiles}, found {up.flush}")
    for prefix, part in (("up_", up), ("down_", down)):
        if part.groups == WIDE_GROUPS and part.stages < 2:
            raise DataError(
                f"params.{prefix}stages: expected 2 or more with {prefix}groups = {WIDE_GROUPS}, found {part.stages}"
            )
    if down.row_tiles % down.tiles:
        raise DataError(
            f"params.down_row_tiles: expected a multiple of down_tiles = {down.tiles}, found {down.row_tiles}"
        )
    few = {"tiles": 1, "walk": 0}
    forms: tuple[tuple[str, bool, str, ProductTiles | DownTiles, Mapping[str, int]], ...] = (
        ("up_groups = 8", up.wide, "up_", up, {"flush": 4, "ahead": 0, **few}),
        ("down_pairwise below 2", down.pairwise < 2, "down_", down, {"groups": 4}),
        ("down_groups = 8", down.groups == WIDE_GROUPS, "down_", down, few),
        ("down_pairwise = 1", down.pairwise == 1, "down_", down, {"prefetch": 0}),
        ("down_pairwise = 2", down.pairwise == 2, "down_", down, {"cluster": 1, "prefetch": 0}),
        ("down_walk = 1", down.walk == 1, "down_", down, {"groups": 1, "prefetch": 1, "pairwise": 0}),
    )
    for form, chosen, prefix, part, most in forms:
        for name, limit in most.items():
            found = getattr(part, name)
            if chosen and found > limit:
                expected = f"at most {limit}" if limit > min(_ALLOWED[name]) else f"{limit}"
                raise DataError(f"params.{prefix}{name}: expected {expected} with {form}, found {found}")
    if not isinstance(given["launch_pdl"], bool):
        raise DataError(f"params.launch_pdl: expected a boolean, found {given['launch_pdl']!r}")
    return Tiles(up=up, down=down, chains=_integer(given, "", "chains"), launch_pdl=given["launch_pdl"])


def as_params(tiles: Tiles) -> dict[str, str | int | bool]:
    """The inverse of ``parse_tiles``, always with the same names, so that the points of a protocol can differ in any of them."""
    params: dict[str, str | int | bool] = {}
    for prefix, part in (("up_", tiles.up), ("down_", tiles.down)):
        params |= {prefix + each.name: getattr(part, each.name) for each in fields(part)}
    return {**params, "chains": tiles.chains, "launch_pdl": tiles.launch_pdl}


def _integer(params: Params, prefix: str, name: str) -> int:
    value, allowed = params.get(prefix + name), _ALLOWED[name]
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        whole = allowed == tuple(range(allowed[0], allowed[-1] + 1))
        expected = (
            f"an integer from {allowed[0]} to {allowed[-1]}" if whole else f"one of {', '.join(map(str, allowed))}"
        )
        raise DataError(f"params.{prefix}{name}: expected {expected}, found {value!r}")
    return value


def shape_problem(shape: LayerShape, tokens: int) -> str | None:
    """Why the kernels do not take this layer and number of tokens, or None."""
    layout = LAYOUTS[shape.layout]
    for name, size in (("hidden", shape.hidden), ("intermediate", shape.intermediate)):
        if size < 1 or size % layout.multiple:
            return f"{shape.layout} needs {name} to be a multiple of {layout.multiple}, found {size}"
    for name, size, most in (
        ("tokens", tokens, MAX_TOKENS),
        ("experts", shape.experts, MAX_EXPERTS),
        ("top_k", shape.top_k, min(MAX_TOP_K, shape.experts)),
    ):
        if not 1 <= size <= most:
            return f"needs {name} from 1 to {most}, found {size}"
    whole = -(-shape.intermediate // TILE_K) * TILE_K
    if shape.hidden * whole >= MAX_MATRIX:
        return f"needs hidden x intermediate (in whole tiles of {TILE_K}) below {MAX_MATRIX}, found {shape.hidden} x {whole}"
    if not shape.x_bf16 and layout.weight_format == "bf16":
        return "needs x in bf16 beside bf16 weights, found fp16"
    return None
