"""The expert-centric MoE path on a GPU, in Triton: routes are sorted by expert, and every expert multiplies its padded rows.

Rules:
1. ``moe_eight_stage``: sort, pad, gather, up (w13), silu, down (w2), scatter, combine, one launch each. Beside mxfp8 weights the activations go through
   MXFP8 in gather and in silu, as in the classical path.
2. ``moe_fused``: align (sort, pad, index), up with the gather inside, silu, down with the scatter inside, combine; activations stay bf16.
3. Tiles come from the protocol, by value (``expert_centric_tiles.parse_tiles``); nothing is tuned here.
4. Kernels read the ids in every call. Grids and buffers have the size that any routing of this many tokens needs.
5. All scratch is allocated in preparation; ``call`` allocates nothing and never waits: it can be captured in a graph.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import triton

from benchkit.fixture.layer import MoeInputs, tensor_bytes
from benchkit.kernels import expert_centric_triton as kernels
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.expert_centric_tiles import Tiles, combinations, parse_tiles
from benchkit.kernels.reference import moe_truth
from benchkit.kernels.warp_decode.layer import refusal
from benchkit.units import FloatArray

MAX_ROUTES = 4096
_ALIGN_PART = 8  # routes and blocks of a program that sorts
_THREADS_OF_SORT = 256
_SORT_WARPS = 8
_WIDE_PART = 1024  # values of a program of gather and scatter
_NARROW_PART = 256  # values of a program of silu and combine
_PDL_CAPABILITY = (9, 0)
_MAX_ELEMENTS = 2**31  # offsets within an expert are 32 bits wide


Stage = Callable[[int], Any]  # the launch on a weight copy; returns what Triton compiled


def problem_of(inputs: MoeInputs, tiles: Tiles) -> str | None:
    """Why the path cannot run on these inputs with these tiles, or None."""
    device, interpreted = inputs.x.device, bool(triton.knobs.runtime.interpret)
    if (device.type == "cpu") is not interpreted:
        expected = "the host (TRITON_INTERPRET is set)" if interpreted else "a GPU"
        return f"needs a layer on {expected}, found it on {device}"
    capability = None
    if not interpreted:
        properties = torch.cuda.get_device_properties(device)
        capability = (int(properties.major), int(properties.minor))
    if tiles.launch_pdl and (capability is None or capability < _PDL_CAPABILITY):
        found = "an interpreter" if capability is None else f"{capability[0]}.{capability[1]}"
        return f"launch_pdl needs compute capability 9.0, found {found}"
    problem = refusal(inputs, rows_per_cta=1, capability=capability)
    if problem is not None:
        return problem
    if inputs.topk_ids.numel() > MAX_ROUTES:
        return f"needs at most {MAX_ROUTES} routes (this is a decode path), found {inputs.topk_ids.numel()}"
    weights = inputs.weights
    if 2 * weights.intermediate * weights.hidden >= _MAX_ELEMENTS:
        return f"needs w13 of an expert below 2^31 weights, found {2 * weights.intermediate * weights.hidden}"
    for name, gemm, rows, depth in (
        ("up", tiles.up, 2 * weights.intermediate, weights.hidden),
        ("down", tiles.down, weights.hidden, weights.intermediate),
    ):
        if rows % gemm.tile_n:
            return f"{name}_tile_n = {gemm.tile_n} needs a multiple of it as weight rows, found {rows}"
        if depth % gemm.tile_k:
            return f"{name}_tile_k = {gemm.tile_k} needs a multiple of it as weight columns, found {depth}"
    largest = max((int(scale[0].max()) for scale in (weights.w13_scale, weights.w2_scale) if scale), default=0)
    if largest > kernels.MAX_SCALE:
        return f"needs scale bytes up to {kernels.MAX_SCALE} (a factor of 2^7), found {largest}"
    return None


def space(inputs: MoeInputs) -> Iterator[Params]:
    """The parameters that are worth a try on a layer of this format, with this routing."""
    busiest = int(inputs.topk_ids.flatten().clamp(min=0).bincount().max())
    yield from combinations(inputs.weights.weight_format, busiest)


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """One buffer, zeroed; the only place where the path takes memory."""
    return torch.zeros(shape, dtype=dtype, device=device)


class Path:
    """Buffers and launches that both forms share."""

    names: tuple[str, ...] = ()

    def __init__(self, inputs: MoeInputs, tiles: Tiles) -> None:
        weights = inputs.weights
        self.inputs, self.tiles = inputs, tiles
        self.mxfp8 = weights.weight_format == "mxfp8"
        self.routes = inputs.topk_ids.numel()
        spread = min(self.routes, weights.experts)  # so many experts give the most blocks
        self.blocks = spread + (self.routes - spread) // tiles.tile_m
        self.rows = self.blocks * tiles.tile_m
        self.buffers: dict[str, torch.Tensor] = {}
        self.block_expert = self._buffer("block_expert", (self.blocks,), torch.int32)
        self.block_rows = self._buffer("block_rows", (self.blocks,), torch.int32)
        self.y = scratch((inputs.tokens, weights.hidden), torch.bfloat16, inputs.x.device)
        self.launch: dict[str, Any] = {"pdl": tiles.launch_pdl}
        if tiles.launch_pdl:
            self.launch["launch_pdl"] = True
        self.sort_size: dict[str, Any] = {
            "experts": weights.experts,
            "experts_p": max(_THREADS_OF_SORT, triton.next_power_of_2(weights.experts + 1)),
            "part": _ALIGN_PART,
            "num_warps": _SORT_WARPS,
            **self.launch,
        }
        self.sort_grid = (triton.cdiv(self.routes, _ALIGN_PART),)
        self.routes_p = max(_THREADS_OF_SORT, triton.next_power_of_2(self.routes))

    def __call__(self, copy: int) -> None:
        """One layer on weight copy ``copy``."""
        for name in self.names:
            self.stage(name)(copy)

    def stage(self, name: str) -> Stage:
        """The launch of one stage."""
        stage: Stage = getattr(self, f"_{name}")
        return stage

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        self.buffers[name] = scratch(shape, dtype, self.inputs.x.device)
        return self.buffers[name]

    def _gemm(self, copy: int, *, up: bool, a: torch.Tensor, c: torch.Tensor, index: torch.Tensor | None) -> Any:
        """One product; with ``index`` (route of row) ``c`` stands in the order of the routes."""
        weights, gemm = self.inputs.weights, self.tiles.up if up else self.tiles.down
        w, scales = (weights.w13, weights.w13_scale) if up else (weights.w2, weights.w2_scale)
        rows, depth = int(w[copy].shape[1]), int(w[copy].shape[2])
        return kernels.moe_gemm[(rows // gemm.tile_n, self.blocks)](
            a,
            w[copy],
            scales[copy] if scales else self.block_rows,  # a place holder that no bf16 kernel reads
            c,
            self.block_expert,
            self.block_rows,
            self.block_rows if index is None else index,
            a_share=self.inputs.top_k if up else 1,
            width=rows,
            depth=depth,
            mxfp8=self.mxfp8,
            indexed=index is not None,
            swap=gemm.swap,
            tile_m=self.tiles.tile_m,
            tile_n=gemm.tile_n,
            tile_k=gemm.tile_k,
            stages=gemm.stages,
            num_warps=gemm.warps,
            **self.launch,
        )

    def _activate(self, gate_up: torch.Tensor, activated: torch.Tensor, rows: torch.Tensor | None, *, mx: bool) -> Any:
        """silu(gate) * up of every route; with ``rows`` in padded rows."""
        intermediate = self.inputs.weights.intermediate
        return kernels.moe_silu_mul[(self.routes, triton.cdiv(intermediate, _NARROW_PART))](
            gate_up,
            activated,
            self.block_rows if rows is None else rows,
            intermediate=intermediate,
            part=_NARROW_PART,
            padded=rows is not None,
            quantise=mx,
            num_warps=1,
            **self.launch,
        )

    def _sum(self, routed: torch.Tensor) -> Any:
        """y from the rows of all routes."""
        inputs, hidden = self.inputs, self.inputs.weights.hidden
        grid = (inputs.tokens, triton.cdiv(hidden, _NARROW_PART))
        sizes = {"top_k": inputs.top_k, "hidden": hidden, "part": _NARROW_PART}
        return kernels.moe_combine[grid](routed, inputs.topk_weights, self.y, **sizes, num_warps=1, **self.launch)


class EightStage(Path):
    """Every stage writes its whole result to memory."""

    names = ("sort", "pad", "gather", "up", "silu", "down", "scatter", "combine")

    def __init__(self, inputs: MoeInputs, tiles: Tiles) -> None:
        super().__init__(inputs, tiles)
        weights = inputs.weights
        self.rank = self._buffer("rank", (self.routes,), torch.int32)
        self.counts = self._buffer("counts", (weights.experts,), torch.int32)
        self.starts = self._buffer("starts", (weights.experts,), torch.int32)
        self.row_of_route = self._buffer("row_of_route", (self.routes,), torch.int32)
        self.gathered = self._buffer("gathered", (self.rows, weights.hidden))
        self.gate_up = self._buffer("gate_up", (self.rows, 2 * weights.intermediate))
        self.activated = self._buffer("activated", (self.rows, weights.intermediate))
        self.padded = self._buffer("padded", (self.rows, weights.hidden))
        self.routed = self._buffer("routed", (self.routes, weights.hidden))
        self.wide_grid = (self.routes, triton.cdiv(weights.hidden, _WIDE_PART))

    def _sort(self, copy: int) -> Any:
        ids, size = self.inputs.topk_ids, self.sort_size
        return kernels.moe_sort[self.sort_grid](
            ids, self.rank, self.counts, self.routes, routes_p=self.routes_p, **size
        )

    def _pad(self, copy: int) -> Any:
        return kernels.moe_pad[(triton.cdiv(self.blocks, _ALIGN_PART),)](
            self.counts,
            self.starts,
            self.block_expert,
            self.block_rows,
            self.blocks,
            tile_m=self.tiles.tile_m,
            **self.sort_size,
        )

    def _gather(self, copy: int) -> Any:
        inputs = self.inputs
        return kernels.moe_gather[self.wide_grid](
            inputs.x,
            inputs.topk_ids,
            self.rank,
            self.starts,
            self.row_of_route,
            self.gathered,
            top_k=inputs.top_k,
            hidden=inputs.weights.hidden,
            part=_WIDE_PART,
            quantise=self.mxfp8,
            **self.launch,
        )

    def _up(self, copy: int) -> Any:
        return self._gemm(copy, up=True, a=self.gathered, c=self.gate_up, index=None)

    def _silu(self, copy: int) -> Any:
        return self._activate(self.gate_up, self.activated, self.row_of_route, mx=self.mxfp8)

    def _down(self, copy: int) -> Any:
        return self._gemm(copy, up=False, a=self.activated, c=self.padded, index=None)

    def _scatter(self, copy: int) -> Any:
        sizes = {"hidden": self.inputs.weights.hidden, "part": _WIDE_PART}
        return kernels.moe_scatter[self.wide_grid](self.padded, self.row_of_route, self.routed, **sizes, **self.launch)

    def _combine(self, copy: int) -> Any:
        return self._sum(self.routed)


class Fused(Path):
    """What serving engines run: gather and scatter are addresses inside the products."""

    names = ("align", "up", "silu", "down", "combine")

    def __init__(self, inputs: MoeInputs, tiles: Tiles) -> None:
        super().__init__(inputs, tiles)
        weights = inputs.weights
        self.route_of_row = self._buffer("route_of_row", (self.rows,), torch.int32)
        self.gate_up = self._buffer("gate_up", (self.routes, 2 * weights.intermediate))
        self.activated = self._buffer("activated", (self.routes, weights.intermediate))
        self.routed = self._buffer("routed", (self.routes, weights.hidden))

    def _align(self, copy: int) -> Any:
        return kernels.moe_align[self.sort_grid](
            self.inputs.topk_ids,
            self.route_of_row,
            self.block_expert,
            self.block_rows,
            self.routes,
            self.blocks,
            routes_p=self.routes_p,
            tile_m=self.tiles.tile_m,
            **self.sort_size,
        )

    def _up(self, copy: int) -> Any:
        return self._gemm(copy, up=True, a=self.inputs.x, c=self.gate_up, index=self.route_of_row)

    def _silu(self, copy: int) -> Any:
        return self._activate(self.gate_up, self.activated, None, mx=False)

    def _down(self, copy: int) -> Any:
        return self._gemm(copy, up=False, a=self.activated, c=self.routed, index=self.route_of_row)

    def _combine(self, copy: int) -> Any:
        return self._sum(self.routed)


def prepare_eight_stage(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """The eight launches; ``parse_tiles`` says what it takes."""
    return _prepare(inputs, params, EightStage)


def prepare_fused(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """The five launches; ``parse_tiles`` says what it takes."""
    return _prepare(inputs, params, Fused)


def _prepare(inputs: MoeInputs, params: Params, form: type[Path]) -> PreparedArm | Support:
    tiles = parse_tiles(params)
    problem = problem_of(inputs, tiles)
    if problem is not None:
        return Support.no(problem)
    path = form(inputs, tiles)
    binaries = compile_stages(path)
    values = [buffer for buffer in path.buffers.values() if buffer.dtype is torch.bfloat16]

    return PreparedArm(
        call=path,
        output=lambda: as_float(path.y),
        poison=lambda: poison(path.y, *values),
        expected=lambda truth: moe_truth(inputs, truth),
        output_bytes=lambda: tensor_bytes(path.y),
        scratch_bytes=sum(buffer.nbytes for buffer in path.buffers.values()),
        binaries=binaries,
    )


def compile_stages(path: Path) -> Mapping[str, str]:
    """Run every stage once, which compiles it; name -> SHA-256 of the machine code, the name with the beginning of that."""
    binaries = {}
    for name in path.names:
        compiled = path.stage(name)(0)
        if compiled is not None:  # the interpreter compiles nothing
            sha256 = hashlib.sha256(compiled.asm["cubin"]).hexdigest()
            binaries[f"moe-{name}-{sha256[:12]}.cubin"] = sha256
    return binaries


def as_float(values: torch.Tensor) -> FloatArray:
    """In fp64 on the host."""
    return np.array(values.double().cpu().numpy(), dtype=np.float64)


def poison(*buffers: torch.Tensor) -> None:
    """NaN, or -1 in integers."""
    with torch.inference_mode():  # they may have been made in it
        for buffer in buffers:
            buffer.fill_(float("nan") if buffer.dtype.is_floating_point else -1)
