"""The engine ``cpu-emulation``: a cell of a study on the emulated layer. numpy alone.

The treatment ``recorded-order`` stands for what a GPU's history does to the op's atomics: under a history the native order is the recorded plan
of its mode. It is loaded first, before the layer is built; a cell that injects another order consumes that one instead.
"""

from pathlib import Path

import numpy as np

from benchkit.errors import WorkerError
from benchkit.fixture.alignment import Alignment
from benchkit.fixture.captured import layer_of
from benchkit.fixture.plans import Plans
from benchkit.fixture.study_layer import StudyLayer
from benchkit.kernels.marlin_schedule import Schedule
from benchkit.mechanism.emulation import Consumed, layer
from benchkit.mechanism.engine import EngineFacts
from benchkit.mechanism.orders import injected_plan, tile_schedule
from benchkit.mechanism.trajectory import LaunchMarker, Trajectory, cuts_sha256, order_sha256
from benchkit.protocol.study import GEMMS, NATIVE, SURFACES, Cell, Study
from benchkit.units import IntArray


class CpuEngine:
    """One process of a study on the emulated layer."""

    def __init__(self, study: Study, plans: Plans, folder: Path) -> None:
        self._study, self._plans, self._folder = study, plans, folder

    def treat(self, history: str) -> None:
        """Load the recorded order of the history."""
        self._treatment = treat(self._study, self._plans, history)

    def build(self) -> str:
        """The layer, synthetic or captured."""
        self._inputs = layer_of(self._study, self._folder)
        return self._inputs.sha256(self._plans.topk_ids, self._plans.topk_weights)

    def facts(self) -> EngineFacts:
        """The host, and numpy."""
        return EngineFacts(device={"device": "host"}, packages=("numpy",), binaries={}, threads=1, l2_bytes=0)

    def run(self, cell: Cell, history: str) -> Trajectory:
        """The cell, under the treatment that was applied."""
        return run_cell(self._study, self._plans, self._inputs, cell, history, self._treatment)


def treat(study: Study, plans: Plans, history: str) -> tuple[str, IntArray]:
    """Apply the history: its marker, and the order that the op gives from now on."""
    name = study.modes[history]
    return f"{study.treatment}:{name}", plans.plans[name].copy()


def run_cell(
    study: Study, plans: Plans, inputs: StudyLayer, cell: Cell, history: str, treatment: tuple[str, IntArray]
) -> Trajectory:
    """Run the layer as the cell says, and give what it made together with what it consumed."""
    native = cell.order == NATIVE
    plan = treatment[1] if native else injected_plan(study, plans, cell, history)
    asked = plans.alignment(plan)
    blocks = asked.blocks
    cut = {gemm: tile_schedule(study.layer, gemm, cell.launches[gemm], blocks) for gemm in GEMMS}
    consumed: tuple[list[Consumed], list[Consumed]] = ([], [])
    made = layer(inputs.x, plans.topk_weights, inputs.w13, inputs.w2, asked, (cut["w13"], cut["w2"]), consumed)
    taken = [_alignment(by_gemm, asked.block, asked.routes) for by_gemm in consumed]
    if not np.array_equal(taken[0].sorted_token_ids, taken[1].sorted_token_ids):
        raise WorkerError("W13 and W2 consumed different orders of routes")
    surfaces = (made.w13, made.activation, made.routed, made.final)
    return Trajectory(
        treatment=treatment[0],
        treatment_sha256=order_sha256(treatment[1]),
        injected=not native,
        alignment=taken[0],
        launches={gemm: _marker(cut[gemm], found) for gemm, found in zip(GEMMS, consumed, strict=True)},
        surfaces=dict(zip(SURFACES, surfaces, strict=True)),
    )


def _alignment(consumed: list[Consumed], block: int, routes: int) -> Alignment:
    """The alignment that a GEMM consumed, padding put back."""
    rows = np.full((len(consumed), block), routes, dtype=np.int32)
    for j, one in enumerate(consumed):
        rows[j, : len(one.routes)] = one.routes
    experts = np.array([one.expert for one in consumed], dtype=np.int32)
    return Alignment(sorted_token_ids=rows.ravel(), expert_ids=experts, block=block, routes=routes)


def _marker(plan: Schedule, consumed: list[Consumed]) -> LaunchMarker:
    cuts = [tile for one in consumed for tile in one.cuts]
    return LaunchMarker(
        thread_k=plan.thread_k,
        thread_n=plan.thread_n,
        grid=plan.grid,
        classes=",".join(f"{name}={count}" for name, count in plan.counts().items()),
        cuts_sha256=cuts_sha256(cuts),
    )
