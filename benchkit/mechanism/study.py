"""``lock``, ``check``, ``plan`` and ``run-protocol`` for a mechanism protocol, and ``capture-plans``, which comes before them."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchkit.device.environment import machine_problems
from benchkit.errors import DataError, MachineError, ProtocolError
from benchkit.fixture.alignment import fingerprint
from benchkit.fixture.captured import captured_problems, link_arrays
from benchkit.fixture.plans import Plans, capture
from benchkit.fixture.traffic import asset_path
from benchkit.kernels.engines import ENGINES, engine_sources
from benchkit.kernels.marlin_selector import GPUS
from benchkit.mechanism.membership import read_routing, refuse_many_rows
from benchkit.mechanism.native_order import Captured, native_orders
from benchkit.mechanism.orders import tile_schedule
from benchkit.mechanism.plans_asset import load_asset
from benchkit.plan import StudyPlan, study_plan, study_plan_digest, study_schedule
from benchkit.protocol.files import read_small
from benchkit.protocol.lock import Lock, lock_path, make_lock, write_lock
from benchkit.protocol.study import GEMMS, LockedStudy, Study, load_locked_study, read_study
from benchkit.run.folder import RunFolder
from benchkit.run.locking import changed_sources, filled_sources
from benchkit.run.progress import progress_bar
from benchkit.run.session import resumable
from benchkit.run.supervisor import (
    RunRequest,
    SealedRun,
    check_same,
    holding,
    interrupted_run,
    open_run,
    run_process,
    seal_run,
    sealed_before,
    workers_of,
)
from benchkit.units import MIB

_MOST_PER_SM = 4  # CUDA blocks, as in benchkit.kernels.marlin_buffers, which imports torch


def lock_study(path: Path, *, replace: bool, sources: bool = False) -> Lock:
    """Lock the study at ``path``, its plans checked, as ``benchkit.run.locking.lock`` locks a comparison."""
    study = read_study(path)
    _plans(study, path)
    if sources:
        with filled_sources(path, engine_sources(study.engine)):
            return lock_study(path, replace=replace)
    return write_lock(path, _made(study, path), replace=replace)


def check_study(path: Path) -> list[str]:
    """Lines that say what is right; whatever is wrong is raised, as for a comparison."""
    study = read_study(path)
    plans = _plans(study, path)
    lines = [
        f"{path}: {study.id}: {len(study.cells)} cells x 2 histories x {study.schedule.replicates} replicates, "
        f"{len(study.relations)} relations, no problem found",
        *(f"plan {name}: mode {fingerprint(plans.alignment(plans.plans[name]))}" for name in study.modes.values()),
    ]
    if lock_path(path).exists():
        lines.append(f"{lock_path(path)}: belongs to it, locked at {load_locked_study(path).lock.locked_utc}")
    else:
        lines.append(f"{path}: not locked yet; when it says what you mean: benchkit lock {path}")
    lines += [f"source digest of {engine}: {digest}" for engine, digest in engine_sources(study.engine).items()]
    found = _machine_problems(study)
    if found:
        raise MachineError("\n".join([*lines, f"{path}: this machine cannot run it", *(f"  {line}" for line in found)]))
    return [*lines, "this machine can run it"]


def describe_study(path: Path, process: int) -> list[str]:
    """What a process runs, and the size of the whole study."""
    study = read_study(path)
    plans = _plans(study, path)
    planned = study_plan(_preview(study, path))
    if process >= len(planned.processes):
        raise DataError(f"--process {process}: the plan has processes 0 to {len(planned.processes) - 1}")
    blocks = plans.alignment(None).blocks
    run = planned.processes[process]
    cell = study.cell(run.place.cell)
    lines = [
        f"{study.id}: {len(planned.processes)} processes ({len(study.cells)} cells x 2 histories x "
        f"{study.schedule.replicates} replicates), at most {study.schedule.watchdog_s} s each",
        f"process {process}: cell {run.place.cell}, history {run.place.history}, replicate {run.replicate}, order {cell.order}",
    ]
    for gemm in GEMMS:
        plan = tile_schedule(study.layer, gemm, cell.launches[gemm], blocks)
        counts = ", ".join(f"{name} {count}" for name, count in plan.counts().items())
        lines.append(f"  {gemm}: tiles of {plan.thread_k} x {plan.thread_n}, grid {plan.grid}: {counts}")
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySession:
    """What the user asked ``run-protocol`` for."""

    protocol: Path
    out: Path
    exploratory: bool

    def run(self, resumed: str | None, finish: Callable[[Path], object]) -> SealedRun:
        """Run every process that has not ended yet, and seal. InterruptedRunError holds the command that goes on."""
        locked = load_locked_study(self.protocol)
        if resumed is not None and (sealed := sealed_before(locked, self.out, resumed)) is not None:
            return sealed
        folder, planned = self._start(locked) if resumed is None else self._resume(locked, resumed)
        total = len(planned.processes)
        with (
            resumable(self.protocol, self.out, folder),
            progress_bar(planned.protocol.id, total) as progress,
            holding(folder, planned, resumed=resumed is not None),
        ):
            with workers_of(folder, planned) as workers:
                for process in planned.processes:
                    run_process(folder, planned, process.index, workers, progress)
                    progress.advance_to(process.index + 1)
            return seal_run(folder, planned, finish)

    def _start(self, locked: LockedStudy) -> tuple[RunFolder, StudyPlan]:
        planned = study_plan(locked)
        _plans(locked.protocol, locked.path)
        request = RunRequest(out=self.out, exploratory=self.exploratory, script=None)
        folder = open_run(planned, request, _machine_problems(locked.protocol))
        link_arrays(locked.protocol, locked.path.parent, folder.root)
        return folder, planned

    def _resume(self, locked: LockedStudy, run_id: str) -> tuple[RunFolder, StudyPlan]:
        folder = interrupted_run(locked, self.out, run_id)
        own = load_locked_study(folder.protocol_path)
        check_same(own.digest, locked, run_id)
        return folder, study_plan(own)


def capture_plans(
    routing: Path, orders: Sequence[Path], *, experts: int, block: int, point: str | None, hidden: int
) -> Plans:
    """The plans asset of a recorded routing: P0 and P1 from two files of captured orders, or natively from this machine's GPU where none is given.

    Each file is a JSON array of routes: the order in which they arrived, or what the op left in sorted_token_ids (padding included).
    """
    ids, weights = read_routing(routing, point)
    refuse_many_rows(routing, ids.size, experts, block)
    captured: Captured
    if orders:
        captured = {f"P{index}": (_order(path), f"captured order {path.name}") for index, path in enumerate(orders)}
    else:
        captured = native_orders(ids, experts=experts, block=block, hidden=hidden)
    try:
        return capture(ids, weights, experts=experts, block=block, orders=captured)
    except DataError as error:
        raise DataError(f"{routing}: {error}") from error


def describe_plans(plans: Plans) -> list[str]:
    """The mode of each plan, and what P0 and P1 put into different blocks: the routes from which a study's swaps are chosen."""
    found = {name: plans.alignment(plan) for name, plan in plans.plans.items()}
    lines = [f"{name}: mode {fingerprint(alignment)}" for name, alignment in found.items()]
    one, other = found["P0"], found["P1"]
    for j, expert in enumerate(one.expert_ids.tolist()):
        mine, theirs = set(one.members(j)), set(other.members(j))
        if mine != theirs:
            routes = (sorted(mine - theirs), sorted(theirs - mine), sorted(mine & theirs))
            alone, instead, both = (" ".join(map(str, each)) or "none" for each in routes)
            lines.append(f"block {j}, expert {expert}: P0 has {alone} where P1 has {instead}; in both {both}")
    return lines


def _order(path: Path) -> list[int]:
    try:
        routes = json.loads(read_small(path, most=16 * MIB, what="an order of routes"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected a JSON array of routes, found something else ({error})") from error
    if not isinstance(routes, list) or not all(type(route) is int and abs(route) < 2**31 for route in routes):
        raise DataError(f"{path}: expected a JSON array of integers, the routes in their order")
    return routes


def _plans(study: Study, path: Path) -> Plans:
    plans = None
    for asset in study.assets:
        found = asset_path(study, asset, path.parent)
        if asset.name == study.plans_asset:
            plans = found
    assert plans is not None  # parse has required the asset
    try:
        loaded = load_asset(study, plans)
    except DataError as error:
        raise ProtocolError([f"histories.plans: {error}"], str(path)) from error
    problems = [*captured_problems(study, path.parent, loaded), *_grid_problems(study)]
    if problems:
        raise ProtocolError(problems, str(path))
    return loaded


def _grid_problems(study: Study) -> Iterator[str]:
    """Grids that the required GPU could not launch, where its multiprocessors are known; the engines refuse them on any."""
    required = str(study.require.get("gpu", "")).lower().replace(" ", "-")
    sms = next((gpu.sms for name, gpu in GPUS.items() if name in required), None)
    if sms is None or not study.engine.startswith("marlin"):
        return
    launched = {(gemm, cell.launches[gemm].grid): cell.name for cell in reversed(study.cells) for gemm in GEMMS}
    for (gemm, grid), cell in launched.items():
        whole = study.engine == "marlin-raw" or grid % sms == 0
        if grid > _MOST_PER_SM * sms or not whole:
            kind = (
                "a grid"
                if study.engine == "marlin-raw"
                else f"a multiple of {sms} multiprocessors (engine marlin-raw takes others)"
            )
            yield f"cell {cell}: {gemm}: expected {kind} of at most {_MOST_PER_SM * sms} for {study.require['gpu']}, found {grid}"


def _made(study: Study, path: Path) -> Lock:
    digest = study_plan_digest(study_schedule(study))
    return make_lock(study, plan_digest=digest, bytes_by_point={}, folder=path.resolve().parent)


def _preview(study: Study, path: Path) -> LockedStudy:
    if lock_path(path).exists():
        return load_locked_study(path)
    return LockedStudy(path=path, protocol=study, lock=_made(study, path))


def _machine_problems(study: Study) -> list[str]:
    problems = changed_sources(study.require, engine_sources(study.engine), "engine").values()
    return [
        *problems,
        *machine_problems(study.require, "cuda-event" if ENGINES[study.engine].device == "cuda" else "none"),
    ]
