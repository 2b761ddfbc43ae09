"""Memory ceilings of a GPU: the fastest copy and the fastest read that we know how to write, in CUDA C++.

Rules:
1. Two methods, both with all shapes given by the protocol. ``vector``: 16-byte loads, ``unroll`` of them in flight in every thread.
   ``bulk``: every warp streams tiles through a ring in shared memory with bulk copies (compute capability 9.0 and later).
2. A copy counts read + write = 2 x bytes, a read counts bytes; call i works on array i mod copies.
3. A read adds in a fixed order and uses no atomics: the same shapes give the same bits.
4. The arrays are large, so what is checked is an exact witness. Copy: 4096 elements spread over the target, and 1 + the number of
   elements of the whole target whose bits differ from the source (counted on the GPU): a single wrong element is an error of more
   than 1 %. Its bytes are these elements, that number, and a checksum of all bits of the target weighted by their position.
   Read: the sum of every CTA, which together cover every element once.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchkit.cuda_source import Cubin, Launch, Module, compile_cubin
from benchkit.errors import DataError
from benchkit.fixture.arrays import ArrayInputs
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.units import FloatArray

SOURCE = Path(__file__).with_name("ceilings.cu").read_text(encoding="utf-8")
_SAMPLED = 4096
_CHUNK = 1 << 24
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The shapes of one ceiling, from its parameters."""

    method: str  # vector | bulk
    ctas_per_sm: int  # 0 (vector only): one tile a CTA, as many CTAs as there are tiles
    warps: int
    tile_bytes: int
    depth: int  # vector: unroll; bulk: stages
    streaming: bool

    @property
    def options(self) -> tuple[str, ...]:
        """Macros for the compiler."""
        flag = f"-DSTREAMING={int(self.streaming)}"
        if self.method == "vector":
            return (f"-DTHREADS={self.warps * 32}", f"-DUNROLL={self.depth}", flag)
        return (f"-DWARPS={self.warps}", f"-DSTAGES={self.depth}", f"-DTILE={self.tile_bytes}", flag)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        return self.warps * self.depth * (self.tile_bytes + 8) if self.method == "bulk" else 0

    @property
    def streams(self) -> int:
        """Independent sequences of tiles in a CTA."""
        return self.warps if self.method == "bulk" else 1

    def grid(self, size: int, sm_count: int) -> int:
        """CTAs for an array of ``size`` bytes."""
        return self.ctas_per_sm * sm_count if self.ctas_per_sm else -(-size // self.tile_bytes)


def space(inputs: ArrayInputs) -> Iterator[Params]:
    """The shapes that are worth a try, for copy and read alike."""
    vector = [(0, 256, 4), (0, 512, 4), (0, 1024, 4), (0, 256, 8), (0, 512, 2), (0, 1024, 1), (0, 1024, 2), (0, 512, 1)]
    vector += [(0, 256, 2), (8, 256, 4), (4, 512, 4), (2, 1024, 4), (2, 512, 8), (4, 256, 8), (1, 1024, 8)]
    bulk = [(1, 8, 8, 2048), (2, 8, 4, 2048), (1, 4, 8, 4096), (2, 4, 4, 4096), (1, 4, 4, 8192), (1, 2, 6, 16384)]
    bulk += [(2, 1, 6, 16384), (1, 8, 4, 4096), (2, 4, 6, 2048)]
    for streaming in (False, True):
        for ctas, threads, unroll in vector:
            yield {
                "method": "vector",
                "ctas_per_sm": ctas,
                "threads": threads,
                "unroll": unroll,
                "streaming": streaming,
            }
        for ctas, warps, stages, tile in bulk:
            ring: Params = {"ctas_per_sm": ctas, "warps": warps, "stages": stages, "tile_bytes": tile}
            yield {"method": "bulk", **ring, "streaming": streaming}


def parse_shapes(params: Params) -> Shapes:
    """``method`` (default ``vector``), ``ctas_per_sm``, ``streaming`` (default false), and of ``vector`` ``threads`` and
    ``unroll``, of ``bulk`` ``warps``, ``stages`` and ``tile_bytes``; DataError on anything else."""
    method = params.get("method", "vector")
    if method == "vector":
        threads = _integer(params, "threads", 32, 1024, 32)
        warps, depth = threads // 32, _integer(params, "unroll", 1, 16)
        tile_bytes, least, names = threads * depth * 16, 0, {"threads", "unroll"}
    elif method == "bulk":
        warps, depth = _integer(params, "warps", 1, 32), _integer(params, "stages", 2, 32)
        tile_bytes, least, names = _integer(params, "tile_bytes", 512, 32768, 512), 1, {"warps", "stages", "tile_bytes"}
    else:
        raise DataError(f'params.method: expected "vector" or "bulk", found {method!r}')
    unknown = params.keys() - names - {"method", "ctas_per_sm", "streaming"}
    if unknown:
        raise DataError(f"params: expected {', '.join(sorted(names))} with method {method}, found {sorted(unknown)[0]}")
    ctas_per_sm = _integer(params, "ctas_per_sm", least, 32)
    streaming = params.get("streaming", False)
    if not isinstance(streaming, bool):
        raise DataError(f"params.streaming: expected a boolean, found {streaming!r}")
    return Shapes(
        method=method, ctas_per_sm=ctas_per_sm, warps=warps, tile_bytes=tile_bytes, depth=depth, streaming=streaming
    )


def _integer(params: Params, name: str, low: int, high: int, multiple: int = 1) -> int:
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high or value % multiple:
        of = f", a multiple of {multiple}" if multiple > 1 else ""
        raise DataError(f"params.{name}: expected an integer from {low} to {high}{of}, found {value!r}")
    return value


def shapes_problem(shapes: Shapes, inputs: ArrayInputs) -> str | None:
    """Why these shapes cannot run on these arrays, or None."""
    device = inputs.sources[0].device
    if device.type != "cuda":
        return f"needs arrays on a GPU, found them on {device}"
    if inputs.bytes % 16:
        return f"needs arrays of whole 16-byte vectors, found {inputs.bytes} bytes"
    properties = torch.cuda.get_device_properties(device)
    if shapes.method == "bulk" and properties.major < 9:
        return f"bulk copies need compute capability 9.0, found {properties.major}.{properties.minor}"
    most = int(properties.shared_memory_per_block_optin) - 256  # the sums of the warps stand there too
    if shapes.shared_bytes > most:
        return f"needs {shapes.shared_bytes} bytes of shared memory in a CTA, found {most}"
    return None


def compile_ceilings(shapes: Shapes, arch: str) -> Cubin:
    """Both kernels of one method and shape."""
    return compile_cubin(SOURCE, name="ceilings.cu", arch=arch, options=shapes.options)


class _Prepared:
    """What copy and read share: the loaded code, one launch per copy, the name and digest of the code."""

    def __init__(self, inputs: ArrayInputs, shapes: Shapes, kernel: str, outputs: tuple[torch.Tensor, ...], grid: int):
        properties = torch.cuda.get_device_properties(inputs.sources[0].device)
        cubin = compile_ceilings(shapes, f"sm_{properties.major}{properties.minor}")
        self.touched = (inputs.sources, outputs)  # what the launches point to lives as long as they do
        module = Module(cubin)
        size = inputs.bytes // 16 if shapes.method == "vector" else inputs.bytes
        self.launches: tuple[Launch, ...] = tuple(
            module.launch(
                f"benchkit_{kernel}_{shapes.method}",
                ctypes.c_void_p(source.data_ptr()),
                ctypes.c_void_p(output.data_ptr()),
                ctypes.c_int64(size),
                grid=grid,
                block=shapes.warps * 32,
                shared_bytes=shapes.shared_bytes,
            )
            for source, output in zip(inputs.sources, outputs, strict=True)
        )
        options = "".join(option.removeprefix("-D").replace("=", "").lower() for option in shapes.options)
        self.binaries = {f"ceilings-{shapes.method}-{options}.cubin": cubin.sha256}

    def issue(self, copy: int) -> None:
        """The kernel on array ``copy``, on torch's current stream."""
        self.launches[copy](torch.cuda.current_stream().cuda_stream)


def _grid(inputs: ArrayInputs, shapes: Shapes) -> int:
    properties = torch.cuda.get_device_properties(inputs.sources[0].device)
    return shapes.grid(inputs.bytes, properties.multi_processor_count)


def prepare_copy(inputs: ArrayInputs, params: Params) -> PreparedArm | Support:
    """Copy a source to its target; ``parse_shapes`` says what it takes."""
    shapes = parse_shapes(params)
    problem = shapes_problem(shapes, inputs)
    if problem is not None:
        return Support.no(problem)
    prepared = _Prepared(inputs, shapes, "copy", inputs.targets, _grid(inputs, shapes))
    last = 0

    def call(copy: int) -> None:
        nonlocal last
        last = copy
        prepared.issue(copy)

    def output() -> FloatArray:
        differing = differing_elements(inputs.targets[last], inputs.sources[last])
        return np.append(_float64(sample(inputs.targets[last])), 1.0 + differing)

    def output_bytes() -> bytes:
        target = inputs.targets[last]
        numbers = struct.pack("<qQ", differing_elements(target, inputs.sources[last]), checksum(target))
        return bytes(sample(target).cpu().numpy().tobytes()) + numbers

    return PreparedArm(
        call=call,
        output=output,
        poison=lambda: _poison(*inputs.targets),
        expected=_once(lambda: np.append(_float64(sample(inputs.sources[0])), 1.0)),
        output_bytes=output_bytes,
        scratch_bytes=0,
        binaries=prepared.binaries,
    )


def prepare_read(inputs: ArrayInputs, params: Params) -> PreparedArm | Support:
    """Sum a source, one fp32 sum a CTA; ``parse_shapes`` says what it takes."""
    shapes = parse_shapes(params)
    problem = shapes_problem(shapes, inputs)
    if problem is not None:
        return Support.no(problem)
    grid = _grid(inputs, shapes)
    sums = torch.empty(grid, dtype=torch.float32, device=inputs.sources[0].device)
    prepared = _Prepared(inputs, shapes, "read", (sums,) * inputs.copies, grid)
    return PreparedArm(
        call=prepared.issue,
        output=lambda: _float64(sums),
        poison=lambda: _poison(sums),
        expected=_once(lambda: _float64(cta_sums(inputs.sources[0], shapes.tile_bytes // 4, grid, shapes.streams))),
        output_bytes=lambda: bytes(sums.cpu().numpy().tobytes()),
        scratch_bytes=0,
        binaries=prepared.binaries,
    )


def sample(values: torch.Tensor) -> torch.Tensor:
    """Elements spread evenly over ``values``, its first and last among them."""
    count = min(_SAMPLED, values.numel())
    positions = torch.arange(count, device=values.device, dtype=torch.int64)
    return values[positions * (values.numel() - 1) // max(1, count - 1)]


def differing_elements(target: torch.Tensor, source: torch.Tensor) -> int:
    """How many elements of ``target`` differ in their bits from ``source``."""
    pairs = zip(target.view(torch.int32).split(_CHUNK), source.view(torch.int32).split(_CHUNK), strict=True)
    return sum(int((a != b).sum()) for a, b in pairs)


def checksum(values: torch.Tensor) -> int:
    """Sum over i of (2 i + 1) x the bits of element i, mod 2^64: any one changed element changes it."""
    total, start = 0, 0
    for chunk in values.view(torch.int32).split(_CHUNK):
        weights = torch.arange(start, start + chunk.numel(), device=values.device, dtype=torch.int64).mul_(2).add_(1)
        total += int(weights.mul_(chunk).sum())
        start += chunk.numel()
    return total & _MASK


def cta_sums(values: torch.Tensor, tile: int, grid: int, streams: int) -> torch.Tensor:
    """Per CTA the fp64 sum of its tiles of ``tile`` elements: sequence s = tile index mod (grid x streams) is CTA s / streams."""
    whole = values.numel() // tile
    tiles = values[: whole * tile].view(whole, tile).sum(dim=1, dtype=torch.float64)
    if whole * tile < values.numel():
        tiles = torch.cat([tiles, values[whole * tile :].sum(dtype=torch.float64).view(1)])
    rounds = -(-tiles.numel() // (grid * streams))
    padded = torch.zeros(rounds * grid * streams, dtype=torch.float64, device=values.device)
    padded[: tiles.numel()] = tiles
    return padded.view(rounds, grid, streams).sum(dim=(0, 2))


def _once(make: Callable[[], FloatArray]) -> Callable[[str], FloatArray]:
    """``expected`` for arms with one truth, computed when first asked for."""
    made: list[FloatArray] = []

    def expected(truth: str) -> FloatArray:
        if not made:
            made.append(make())
        return made[0]

    return expected


def _poison(*outputs: torch.Tensor) -> None:
    with torch.inference_mode():  # outputs may have been made in it
        for output in outputs:
            output.fill_(float("nan"))


def _float64(values: torch.Tensor) -> FloatArray:
    return np.array(values.cpu().numpy(), dtype=np.float64)
