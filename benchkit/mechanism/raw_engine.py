"""The engine ``marlin-raw``: ``marlin-op`` with any number of CUDA blocks, also such that are no multiple of the multiprocessors.

Rules:
1. The op gives no say over its grid. Each of its calls is captured in a graph, the one kernel in it is given the study's grid, and that graph is run:
   code, arguments, threads and shared memory are those that vLLM's own host code chose for the tile (about the kernel's arguments this module knows
   nothing).
2. A multiprocessor is left as few CUDA blocks as the grid needs, so that all of them are there at once: a split tile waits for its other pieces.
3. Before the graph runs, what the op's own launch wrote is overwritten with NaN. The marker is read back from the graph that ran.

Source: csrc/moe/marlin_moe_wna16/ops.cu of vLLM 0.22.0: grid = multiprocessors x blocks_per_sm, which is the last argument of the op; partial sums
and lock words are sized for 4 CUDA blocks on each multiprocessor whatever it is. The published study's grids on 82 multiprocessors are 246 and 200.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchkit.device.cuda import CudaDevice
from benchkit.device.cuda_graph import regrid
from benchkit.device.ports import LaunchedKernel
from benchkit.errors import MachineError
from benchkit.kernels.marlin import Configuration, MarlinPath
from benchkit.kernels.marlin_buffers import MOST_PER_SM
from benchkit.kernels.vllm_ops import Op
from benchkit.mechanism.marlin_engine import MarlinEngine
from benchkit.protocol.study import GEMMS, Cell, Tiling

_SIZES = slice(20, 22)  # size_n and size_k among the op's arguments (benchkit.kernels.vllm_ops.SCHEMAS)
_C = 1


class RegriddedGemm:
    """vLLM's GEMM with other grids: (size_n, size_k) of a call -> CUDA blocks. ``launched`` has the kernel of the last call of each size."""

    def __init__(self, device: CudaDevice, op: Op, grids: Mapping[tuple[int, int], int]) -> None:
        self._device, self._op, self._grids = device, op, grids
        self.launched: dict[tuple[int, int], LaunchedKernel] = {}

    def __call__(self, *arguments: Any) -> None:
        """One call, done when it returns."""
        size_n, size_k = arguments[_SIZES]
        self._op(*arguments)  # the driver loads the kernel here, which it could not while a graph is captured
        arguments[_C].fill_(float("nan"))
        graph = self._device.capture(lambda: self._op(*arguments), keep=True)
        self.launched[size_n, size_k] = regrid(int(graph.raw_cuda_graph()), self._grids[size_n, size_k])
        graph.replay()
        self._device.synchronize()  # the partial sums go with the graph


class RawMarlinEngine(MarlinEngine):
    """One process on the first visible GPU, its grids free."""

    def _path(self, cell: Cell, history: str) -> MarlinPath:
        layer, count = self._study.layer, self._multiprocessors
        sizes = {gemm: layer.weight(gemm) for gemm in GEMMS}
        grids = {(size_n, size_k): cell.launches[gemm].grid for gemm, (size_k, size_n) in sizes.items()}
        shapes = {gemm: room_for(cell.launches[gemm], count) for gemm in GEMMS}
        self._gemm = RegriddedGemm(self._device, self._ops.gemm, grids)
        ops = replace(self._ops, gemm=self._gemm)
        return MarlinPath(self._inputs, ops, Configuration(**shapes), self._align(cell, history), layer.block)

    def _launched(self, path: MarlinPath) -> dict[str, LaunchedKernel]:
        """The kernels of the graphs that ran."""
        sizes = {gemm: self._study.layer.weight(gemm) for gemm in GEMMS}
        return {gemm: self._gemm.launched[size_n, size_k] for gemm, (size_k, size_n) in sizes.items()}


def room_for(tiling: Tiling, multiprocessors: int) -> tuple[int, int, int]:
    """(thread_k, thread_n, CUDA blocks per multiprocessor that the grid needs); MachineError where they are more than the kernel may have."""
    needed = -(-tiling.grid // multiprocessors)
    if needed > MOST_PER_SM:
        raise MachineError(
            f"grid {tiling.grid}: expected at most {MOST_PER_SM * multiprocessors} CUDA blocks, {MOST_PER_SM} on each of the "
            f"{multiprocessors} multiprocessors of this GPU; lock a study for it"
        )
    return tiling.thread_k, tiling.thread_n, needed
