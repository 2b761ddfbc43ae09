"""Which configuration vLLM's Marlin-MoE op chooses by itself: block size, tile, CUDA blocks per multiprocessor, grid. No GPU.

Rules:
1. Candidates stand in a fixed order; a later one replaces an earlier one only where strictly more of its CUDA blocks fit on a multiprocessor.
2. What fits is bounded by registers (255 KiB), by shared memory, by 4 (blocks of up to 16 rows) or 2, and by the work there is.
3. Registers per thread depend on the compiler of the machine code: the wheels hold code for sm_80 alone, and a newer GPU's driver compiles
   its PTX again. The tables below are for AWQ (4 bits with zero points) and group 128.

Source: csrc/moe/marlin_moe_wna16/ops.cu of vLLM 0.20.0, lines 124-334 and 456-482; registers by cuobjdump (sm_80) and by ptxas 13.0.48 to
13.1.80 for sm_90, the same as the driver 580 gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from benchkit.errors import DataError

BLOCK_SIZES = (8, 16, 32, 48, 64)
_SMALL = ((128, 128, 256), (64, 128, 128), (128, 64, 128))  # (thread_k, thread_n, threads), blocks of up to 16 rows
_LARGE = ((64, 256, 256), (64, 128, 128), (128, 64, 128))
_STAGES = 4
_GROUP = 128
_SM_REGISTERS = 65_536

# registers of each candidate, in the order above, by (ceil(block / 16), block is 8)
_Registers = Mapping[tuple[int, bool], tuple[int, int, int]]
_SM80: _Registers = MappingProxyType(
    {
        (1, True): (122, 127, 127),
        (1, False): (155, 148, 156),
        (2, False): (218, 218, 222),
        (3, False): (244, 246, 246),
        (4, False): (255, 255, 255),
    }
)
_SM90_FP16: _Registers = MappingProxyType(
    {
        (1, True): (128, 128, 127),
        (1, False): (156, 150, 157),
        (2, False): (222, 220, 228),
        (3, False): (250, 250, 243),
        (4, False): (255, 255, 255),
    }
)
_SM90_BF16: _Registers = MappingProxyType({(1, True): (128, 127, 128), (1, False): (156, 144, 156)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What of a GPU the selector looks at: multiprocessors, bytes of shared memory that a block may ask for, registers by dtype."""

    name: str
    sms: int
    shared_bytes: int
    registers: Mapping[str, _Registers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A launch configuration: K rows and columns of a tile, threads of a CUDA block, CUDA blocks per multiprocessor and in all."""

    thread_k: int
    thread_n: int
    threads: int
    blocks_per_sm: int
    grid: int


RTX_3090 = Gpu(name="rtx-3090", sms=82, shared_bytes=101_376, registers=MappingProxyType({"float16": _SM80}))
H200 = Gpu(
    name="h200",
    sms=132,
    shared_bytes=232_448,
    registers=MappingProxyType({"float16": _SM90_FP16, "bfloat16": _SM90_BF16}),
)
GPUS: Mapping[str, Gpu] = MappingProxyType({gpu.name: gpu for gpu in (RTX_3090, H200)})


def block_size(tokens: int, top_k: int, experts: int) -> int:
    """Rows of a MoE block: the first of 8, 16, 32, 48, 64 that the mean routes of an expert fill to less than 90 %, else 64."""
    if min(tokens, top_k, experts) < 1:
        raise DataError(f"expected at least 1 token, route and expert, found {tokens}, {top_k}, {experts}")
    return next((size for size in BLOCK_SIZES if tokens * top_k / experts / size < 0.9), BLOCK_SIZES[-1])


def tiles(block: int) -> tuple[tuple[int, int, int], ...]:
    """The kernel's tiles for blocks of ``block`` rows, in the selector's order: (thread_k, thread_n, threads)."""
    return _SMALL if block <= 16 else _LARGE


def resident(thread_k: int, thread_n: int, block: int) -> int:
    """CUDA blocks of a tile that a multiprocessor's registers hold at once, by the counts of sm_90 in float16; at least 1.

    More than that wait for each other's locks while some are not there yet.
    """
    counts = _SM90_FP16[-(-block // 16), block == 8]
    registers, threads = next(
        (each, tile[2]) for tile, each in zip(tiles(block), counts, strict=True) if tile[:2] == (thread_k, thread_n)
    )
    return max(_SM_REGISTERS // (-(-registers // 8) * 8 * threads), 1)


def shared_bytes(thread_k: int, thread_n: int, row_blocks: int) -> int:
    """Shared memory of a candidate in bytes, for blocks of ``row_blocks`` x 16 rows, 4-bit weights with zero points, group 128."""
    rows = 16 * row_blocks
    weights = _STAGES * thread_k * thread_n // 2
    reduction = rows * (thread_n + 8) * 2
    buffer = max(weights, reduction, min(weights, reduction) + thread_n * 2)
    activations = _STAGES * rows * thread_k * 2
    scales = -(-thread_k // _GROUP) * thread_n * 2 * _STAGES
    return buffer + activations + scales + scales // 4 + rows * 16


def select(
    gpu: Gpu, *, tokens: int, top_k: int, size_n: int, size_k: int, block: int, dtype: str = "float16"
) -> Configuration:
    """The configuration that the op chooses for a GEMM; for W2 give tokens x top_k as ``tokens``, and top_k = 1.

    Raises DataError where no candidate fits the shape or no registers are known.
    """
    if block not in BLOCK_SIZES:
        raise DataError(f"block: expected one of {', '.join(map(str, BLOCK_SIZES))}, found {block}")
    row_blocks = -(-block // 16)
    registers = gpu.registers.get(dtype, {}).get((row_blocks, block == 8))
    if registers is None:
        raise DataError(f"no register counts of Marlin are known for {gpu.name}, {dtype}, blocks of {block} rows")
    best: Configuration | None = None
    for (thread_k, thread_n, threads), each in zip(tiles(block), registers, strict=True):
        shared = shared_bytes(thread_k, thread_n, row_blocks)
        if size_k % thread_k or size_n % thread_n or shared > gpu.shared_bytes - 512:
            continue
        fitting = min(255 * 1024 // (each * threads * 4), gpu.shared_bytes // (shared + 1536))
        fitting = max(min(fitting, 4 if row_blocks == 1 else 2), 1)
        work = size_n // thread_n * tokens * top_k * 4
        if work < gpu.sms * fitting:
            fitting = max(work // gpu.sms, 1)
        if best is None or fitting > best.blocks_per_sm:
            best = Configuration(
                thread_k=thread_k, thread_n=thread_n, threads=threads, blocks_per_sm=fitting, grid=gpu.sms * fitting
            )
    if best is None:
        raise DataError(
            f"size_n = {size_n}, size_k = {size_k}: no tile of Marlin fits; 128 x 64 or 64 x 128 must fill the matrix"
        )
    return best
