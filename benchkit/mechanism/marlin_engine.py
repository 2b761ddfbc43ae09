"""The engine ``marlin-op``: a cell of a study on a GPU, by the compiled ops of the installed vLLM.

Rules:
1. History H1 allocates three CUDA tensors shaped like input, top-k weights and top-k ids, copies the fixture into them and synchronises once, before
   the layer is built; they are kept and are no operand of anything. Their marker is the digest of what stands in them after the run. H0 does nothing.
2. The grid is CUDA blocks per multiprocessor x multiprocessors, so a study's grids are multiples of these. The marker is the grid of the captured
   launch and the tile of the kernel that it names, and its threads must be those of that tile.
3. The order that was consumed is read back from the op's buffers behind the last kernel; it counts as injected when the op's alignment was not called.
   Surfaces are copied before what overwrites them.

Source of the kernel's template parameters: csrc/moe/marlin_moe_wna16/kernel.h of vLLM 0.22.0; thread_n_blocks and thread_k_blocks count 16 columns.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchkit.device.binaries import loaded_binaries
from benchkit.device.cuda import CudaDevice
from benchkit.device.ports import LaunchedKernel
from benchkit.errors import MachineError, WorkerError
from benchkit.fixture.awq import AwqMatrix
from benchkit.fixture.captured import layer_of
from benchkit.fixture.layer import AWQ, MoeInputs, MoeWeights
from benchkit.fixture.plans import Plans
from benchkit.fixture.routing import Routing
from benchkit.fixture.study_layer import StudyLayer
from benchkit.kernels import alignment, vllm_ops
from benchkit.kernels.contract import Support
from benchkit.kernels.marlin import Configuration, MarlinPath
from benchkit.kernels.marlin_buffers import multiprocessors
from benchkit.mechanism.engine import EngineFacts
from benchkit.mechanism.orders import injected_plan, tile_schedule
from benchkit.mechanism.trajectory import LaunchMarker, Trajectory, cuts_sha256, treatment_sha256
from benchkit.protocol.study import GEMMS, NATIVE, STABLE, SURFACES, Cell, Study, Tiling

_PACKAGES = ("torch", "numpy", "triton", "cuda-bindings", "nvidia-ml-py", "vllm")
_PARAMETERS = re.compile(
    r"MarlinI(?:Ll\d+E){4}Li(?P<threads>\d+)ELi\d+ELi(?P<thread_n>\d+)ELi(?P<thread_k>\d+)E"
)  # mangled
_UNIT = 16


class MarlinEngine:
    """One process on the first visible GPU."""

    def __init__(self, study: Study, plans: Plans, folder: Path) -> None:
        self._study, self._plans, self._folder = study, plans, folder
        self._layer: StudyLayer | None = None
        self._resident: tuple[torch.Tensor, ...] = ()

    def treat(self, history: str) -> None:
        """H1: three resident tensors; H0: nothing."""
        self._layer = layer_of(self._study, self._folder)
        if history == "H1":
            shapes = (np.array(self._layer.x), self._plans.topk_weights, self._plans.topk_ids)
            self._resident = tuple(torch.empty_like(torch.from_numpy(each), device="cuda") for each in shapes)
            for tensor, each in zip(self._resident, shapes, strict=True):
                tensor.copy_(torch.from_numpy(each))
            torch.cuda.synchronize()

    def build(self) -> str:
        """The device, vLLM's ops, and the layer on the GPU."""
        assert self._layer is not None  # treat comes first
        self._device = CudaDevice()
        found = vllm_ops.load()
        if isinstance(found, Support):
            raise MachineError(str(found.reason))
        self._ops = found
        self._inputs = moe_inputs(self._layer, self._plans, "cuda")
        self._multiprocessors = multiprocessors(self._device.torch_device)
        return self._layer.sha256(self._plans.topk_ids, self._plans.topk_weights)

    def facts(self) -> EngineFacts:
        """GPU, packages and loaded libraries."""
        return EngineFacts(
            device=self._device.describe(),
            packages=_PACKAGES,
            binaries={**loaded_binaries(self._folder / "binaries.json"), **self._device.binaries, **self._ops.binaries},
            threads=int(torch.get_num_threads()),
            l2_bytes=self._device.l2_bytes,
        )

    def run(self, cell: Cell, history: str) -> Trajectory:
        """The layer as the cell says."""
        path = self._path(cell, history)
        surfaces = run_path(path)
        self._device.synchronize()
        consumed = path.routes.read(self._plans.topk_ids)
        launches = {
            gemm: launch_marker(self._study, gemm, kernel, consumed.blocks)
            for gemm, kernel in self._launched(path).items()
        }
        held = [_copied(each).numpy() for each in self._resident]
        return Trajectory(
            treatment=f"{self._study.treatment}:{len(self._resident)}" if self._resident else "none",
            treatment_sha256=treatment_sha256(held),
            injected=not self._aligned_by_op,
            alignment=consumed,
            launches=launches,
            surfaces=surfaces,
        )

    def _path(self, cell: Cell, history: str) -> MarlinPath:
        shapes = {gemm: _per_sm(cell.launches[gemm], self._multiprocessors) for gemm in GEMMS}
        align = self._align(cell, history)
        return MarlinPath(self._inputs, self._ops, Configuration(**shapes), align, self._study.layer.block)

    def _launched(self, path: MarlinPath) -> dict[str, LaunchedKernel]:
        """What the path's GEMMs launch, from one captured call of each."""
        return {gemm: _marlin_kernel(self._device, call) for gemm, call in (("w13", path.w13), ("w2", path.w2))}

    def _align(self, cell: Cell, history: str) -> alignment.Align:
        self._aligned_by_op = False
        if cell.order == NATIVE:
            return alignment.native(self._op_align)
        if cell.order == STABLE:
            return alignment.stable
        return alignment.injected(self._plans.alignment(injected_plan(self._study, self._plans, cell, history)))

    def _op_align(self, *arguments: Any) -> None:
        self._ops.align(*arguments)
        self._aligned_by_op = True


def run_path(path: MarlinPath) -> dict[str, NDArray[np.float16]]:
    """One layer, stage by stage, with its four surfaces; WorkerError where the GEMM left its lock words dirty."""
    path.poison()
    made = []
    with torch.inference_mode():
        path.align()
        path.w13(0)
        made.append(_copied(path.gate_up))  # W2 writes to the same memory
        path.silu_and_mul()
        path.w2(0)
        made += [_copied(path.activated), _copied(path.routed)]
        path.sum()
    path.output()
    return dict(zip(SURFACES, (each.numpy() for each in (*made, _copied(path.y))), strict=True))


def _marlin_kernel(device: CudaDevice, call: Callable[[int], None]) -> LaunchedKernel:
    """The one Marlin kernel of a call; WorkerError where there are others."""

    def inferring(copy: int) -> None:
        with torch.inference_mode():  # the tensors were made in it
            call(copy)

    kernels = device.kernels(inferring)
    found = [one for one in kernels if "marlin" in one.name.lower()]
    if len(found) != 1:
        raise WorkerError(f"expected a call of one Marlin kernel, found {', '.join(one.name for one in kernels)}")
    return found[0]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=True)


def launch_marker(study: Study, gemm: str, kernel: LaunchedKernel, blocks: int) -> LaunchMarker:
    """The marker of a captured launch; WorkerError where its kernel's name states no tile, or the launch has other threads than it."""
    found = _PARAMETERS.search(kernel.name)
    if found is None:
        raise WorkerError(f"{gemm}: expected a kernel named as in vLLM 0.22, with its tile, found {kernel.name:.200}")
    threads = int(found["threads"])
    if kernel.block != (threads, 1, 1) or kernel.grid[1:] != (1, 1):
        raise WorkerError(
            f"{gemm}: expected {threads} threads, as the kernel's name says, found {kernel.block} in a grid {kernel.grid}"
        )
    thread_k, thread_n = (int(found[name]) * _UNIT for name in ("thread_k", "thread_n"))
    launched = Tiling(thread_k=thread_k, thread_n=thread_n, grid=kernel.grid[0])
    plan = tile_schedule(study.layer, gemm, launched, blocks)
    return LaunchMarker(
        thread_k=plan.thread_k,
        thread_n=plan.thread_n,
        grid=plan.grid,
        classes=",".join(f"{name}={count}" for name, count in plan.counts().items()),
        cuts_sha256=cuts_sha256([plan.cuts(tile) for tile in range(plan.tiles)]),
    )


def moe_inputs(layer: StudyLayer, plans: Plans, device: str) -> MoeInputs:
    """The study's layer, input and routing as tensors of one weight copy."""
    with torch.inference_mode():
        parts = {"w13": _parts(layer.w13, device), "w2": _parts(layer.w2, device)}
        named = {f"{gemm}{part}": (tensor,) for gemm, tensors in parts.items() for part, tensor in tensors.items()}
        return MoeInputs(
            weights=MoeWeights(**named, seed=0, weight_format=AWQ),
            x=torch.from_numpy(np.array(layer.x)).to(device),
            topk_ids=torch.from_numpy(plans.topk_ids).to(device),
            topk_weights=torch.from_numpy(plans.topk_weights).to(device),
            routing=Routing(topk_ids=plans.topk_ids, topk_weights=plans.topk_weights),
        )


def _parts(matrix: AwqMatrix, device: str) -> dict[str, torch.Tensor]:
    arrays = {"": matrix.qweight, "_scale": matrix.scales, "_zero": matrix.qzeros}
    return {name: torch.from_numpy(np.array(array)).to(device) for name, array in arrays.items()}


def _per_sm(tiling: Tiling, multiprocessors: int) -> tuple[int, int, int]:
    """(thread_k, thread_n, CUDA blocks per multiprocessor); MachineError where the grid is no multiple of them."""
    count, rest = divmod(tiling.grid, multiprocessors)
    if rest or not count:
        raise MachineError(
            f"grid {tiling.grid}: expected a multiple of the {multiprocessors} multiprocessors of this GPU; lock a study for it"
        )
    return tiling.thread_k, tiling.thread_n, count
