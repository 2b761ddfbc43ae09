"""One process pair, in a process of its own: ``python -m benchkit.run.worker FOLDER PROCESS ATTEMPT SUPERVISOR_PID``.

Order: environment -> inputs and support -> correctness of every arm at every point, before any timing -> per point: timers, one replay each (checked
again where a graph is replayed), ramp, recorded warm-up, blocks of samples with telemetry around each arm's samples.

Rules:
1. The worker reads the run's own copies of protocol and lock and writes only its own records.
2. A wrong output ends the process as failed before anything is timed; nothing is retried.
3. Exit codes: 0 ended by itself (its end line says how), 3 this machine is not what the run needs, 4 its records cannot be written; anything
   else is a failure whose reason is the last line of the log.
"""

import gc
import hashlib
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchkit.device.environment import environment_json, environment_record, environment_sha256, record_problems
from benchkit.device.fake import read_script
from benchkit.device.ports import Reading, Timer
from benchkit.errors import MachineError, WorkerError
from benchkit.kernels.contract import PreparedArm, Support
from benchkit.plan import PlannedBlock, PlannedPoint, plan
from benchkit.protocol.lock import load_locked
from benchkit.protocol.model import Arm, Point, Protocol, Role
from benchkit.run.bench import Bench
from benchkit.run.child import die_with, recorded, run_identity
from benchkit.run.fake_bench import FakeBench
from benchkit.run.folder import RunFolder, RunSettings
from benchkit.run.locking import arm_sources
from benchkit.run.records import Header, RecordWriter
from benchkit.units import NS_PER_MS, FloatArray

COMPARED = (Role.BASELINE, Role.CANDIDATE, Role.COMPARATOR)
DOSE = 1.5  # of the margin, see results/README.md "Timing boundary"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyArm:
    """An arm that is supported at a point."""

    arm: Arm
    prepared: PreparedArm


class Worker:
    """Runs the planned work of one process on a bench and writes what happens."""

    def __init__(self, protocol: Protocol, bench: Bench, writer: RecordWriter) -> None:
        self._protocol = protocol
        self._bench = bench
        self._writer = writer
        self._seq = 0

    def run(self, points: tuple[PlannedPoint, ...], settings: RunSettings) -> None:
        """Everything, in order."""
        ready = {planned.point.id: self._prepare(planned.point) for planned in points}
        self._write_header(settings, ready)
        for planned in points:
            for arm in _supported(ready[planned.point.id]):
                self._check(arm, planned.point, stage="eager")
                self._repeat(arm, planned.point)
        self._among(tuple(planned.point for planned in points))
        for planned in points:
            self._time_point(planned, _supported(ready[planned.point.id]))

    def _prepare(self, point: Point) -> tuple[ReadyArm | tuple[Arm, Support], ...]:
        result: list[ReadyArm | tuple[Arm, Support]] = []
        for arm in self._protocol.arms_at(point.id):
            prepared = self._bench.arm(arm, point)
            if isinstance(prepared, Support):
                result.append((arm, prepared))
            else:
                result.append(ReadyArm(arm=arm, prepared=prepared))
        return tuple(_with_its_baseline(entry, result) for entry in result)

    def _write_header(
        self, settings: RunSettings, ready: Mapping[str, tuple[ReadyArm | tuple[Arm, Support], ...]]
    ) -> None:
        protocol, bench = self._protocol, self._bench
        record = environment_record(
            bench.device.describe(),
            packages=bench.packages(),
            sources=arm_sources(protocol),
            git=settings.git,
            threads=bench.threads(),
        )
        binaries = dict(bench.binaries())
        for arms in ready.values():
            for arm in _supported(arms):
                binaries |= arm.prepared.binaries
        problems = record_problems(protocol.require, record, binaries)
        identity = run_identity(record)
        if settings.identity is not None and identity != settings.identity:
            raise MachineError(
                "all processes of a run need one machine and one build: "
                + "; ".join(
                    f"{name}: expected {wanted}, found {identity[name]}"
                    for name, wanted in settings.identity.items()
                    if identity[name] != wanted
                )
                + "; resume where it was started, or start a new run"
            )
        if problems and not settings.exploratory:
            raise MachineError("the build is not the required one: " + "; ".join(problems))
        unsupported = [
            [point, entry[0].name, str(entry[1].reason)]
            for point, arms in ready.items()
            for entry in arms
            if isinstance(entry, tuple)
        ]
        self._writer.header(
            Header(
                environment=environment_json(record),
                environment_sha256=environment_sha256(record),
                fixture_sha256=bench.fixture_sha256(),
                clock=protocol.timing.clock,
                launch=protocol.timing.launch,
                event_order=protocol.timing.event_order,
                clock_tick_ns=bench.device.clock_tick_ns,
                l2_bytes=bench.device.l2_bytes,
                copies={point.id: protocol.fixture.copies for point in protocol.points},
                unsupported=unsupported,
                binaries=dict(sorted(binaries.items())),
                repacking=_repacking(ready.values()),
                problems=problems,
            )
        )

    def _check(self, ready: ReadyArm, point: Point, *, stage: str) -> None:
        """The correctness gate: compare the output of the last call with every locked truth."""
        arm, prepared = ready.arm, ready.prepared
        if stage == "eager":
            prepared.poison()
            prepared.call(0)
        self._bench.device.synchronize()
        output = prepared.output()
        digest = hashlib.sha256(prepared.output_bytes()).hexdigest()
        rows, failure = [], None
        for truth in self._protocol.truths:
            found = self._bench.accuracy(output, prepared.expected(truth))
            rows.append(
                [point.id, arm.name, truth, stage, found.min_cosine, found.max_abs_error, found.rel_error, digest]
            )
            tolerance = arm.tolerance
            right = found.min_cosine >= tolerance.min_cosine and found.rel_error <= tolerance.max_rel_error
            if truth == tolerance.truth and not right:
                failure = (
                    f"correctness ({stage}): {arm.name} at {point.id}: expected min_cosine >= {tolerance.min_cosine} and "
                    f"rel_error <= {tolerance.max_rel_error}, found {found.min_cosine:.9g} and {found.rel_error:.3g}; "
                    + first_wrong(output, prepared.expected(truth), tolerance.max_rel_error)
                )
        self._writer.rows("correctness", rows)
        if failure is not None:
            raise WorkerError(failure)

    def _repeat(self, ready: ReadyArm, point: Point) -> None:
        """Repeat the same call where repeats are locked, and keep mode and digest of every output."""
        prepared, rows = ready.prepared, []
        for repeat in range(self._protocol.repeats):
            prepared.poison()
            prepared.call(0)
            self._bench.device.synchronize()
            digest = hashlib.sha256(prepared.output_bytes()).hexdigest()
            mode = None if prepared.mode is None else prepared.mode()
            rows.append([point.id, ready.arm.name, repeat, mode, digest])
        self._writer.rows("repeats", rows)

    def _among(self, points: tuple[Point, ...]) -> None:
        """Where an arm claims to be batch-invariant: token 0 of the largest batch among fewer and fewer others, compared with the fewest."""
        protocol, rows = self._protocol, []
        if not any(arm.tolerance.batch_invariant for arm in protocol.arms if not arm.role.is_control):
            return
        groups: dict[object, list[Point]] = {}
        for point in sorted(points, key=lambda each: each.integer("batch")):
            groups.setdefault(point.beside("batch"), []).append(point)
        for arm in protocol.arms:
            for group in groups.values() if arm.role in COMPARED else ():
                first: FloatArray | None = None
                for point in group:
                    prepared = self._bench.among(arm, point, group[-1]) if arm.stands_at(point.id) else None
                    if not isinstance(prepared, PreparedArm):
                        continue
                    prepared.poison()
                    prepared.call(0)
                    self._bench.device.synchronize()
                    row = np.ascontiguousarray(prepared.output()[:1])
                    first = row if first is None else first
                    found = self._bench.accuracy(row, first)
                    digest = hashlib.sha256(row.astype("<f8").tobytes()).hexdigest()
                    errors = [found.min_cosine, found.max_abs_error, found.rel_error]
                    rows.append([point.id, arm.name, "batch", "eager", *errors, digest])
        self._writer.rows("correctness", rows)

    def _time_point(self, planned: PlannedPoint, ready: tuple[ReadyArm, ...]) -> None:
        point = planned.point
        arms = {entry.arm.name: entry for entry in ready}
        timers = {name: self._timer(entry) for name, entry in arms.items()}
        if self._protocol.timing.launch == "graph":
            for name, entry in arms.items():
                entry.prepared.poison()
                timers[name].run()
                self._check(entry, point, stage="replay")
        self._writer.rows("kernels", [row for entry in ready for row in self._kernel_rows(entry, point)])
        baseline = self._protocol.baseline.name
        if baseline in timers:
            self._ramp(timers[baseline])
        doses: dict[str, int] = {}
        for block in planned.blocks:
            durations = self._time_block(block, point, arms, timers, doses)
            if block.is_warmup and baseline in durations:
                dose = round(DOSE * self._protocol.statistics.margin * statistics.median(durations[baseline]))
                doses = {name: dose for name, entry in arms.items() if entry.arm.role is Role.POSITIVE_CONTROL}

    def _timer(self, ready: ReadyArm) -> Timer:
        return self._bench.device.timer(
            ready.prepared.call,
            calls=ready.arm.calls_per_sample,
            copies=self._protocol.fixture.copies,
            with_delay=ready.arm.role is Role.POSITIVE_CONTROL,
        )

    def _kernel_rows(self, ready: ReadyArm, point: Point) -> list[list[Any]]:
        return [
            [
                point.id,
                ready.arm.name,
                position,
                kernel.name,
                ",".join(map(str, kernel.grid)),
                ",".join(map(str, kernel.block)),
                kernel.registers,
                kernel.shared_bytes,
                ready.prepared.scratch_bytes,
            ]
            for position, kernel in enumerate(self._bench.device.kernels(ready.prepared.call))
        ]

    def _ramp(self, timer: Timer) -> None:
        end = time.perf_counter_ns() + self._protocol.warmup.ramp_ms * NS_PER_MS
        while time.perf_counter_ns() < end:
            timer.run()

    def _time_block(
        self,
        block: PlannedBlock,
        point: Point,
        arms: Mapping[str, ReadyArm],
        timers: Mapping[str, Timer],
        doses: Mapping[str, int],
    ) -> dict[str, list[int]]:
        """All samples of one block (or of the warm-up); returns the durations by arm."""
        durations: dict[str, list[int]] = {}
        for name in block.arms:
            if name not in timers:
                continue  # unsupported here, and said so in the header
            injected, calls = doses.get(name, 0), arms[name].arm.calls_per_sample
            before = self._bench.device.reading()
            rows: list[list[Any]] = []
            for sample in range(block.samples):
                timing = timers[name].sample(injected_ns=injected)
                place = [point.id, block.index, name, sample, self._seq, block.is_warmup, calls]
                host = [timing.host_start_ns, timing.host_end_ns, timing.post_sync_ns]
                flush = [] if timing.flush_ns is None else [timing.flush_ns]
                rows.append([*place, timing.duration_ns, *host, injected, timing.blocked, *flush])
                self._seq += 1
            durations[name] = [row[7] for row in rows]
            self._writer.rows("samples", rows)
            if not block.is_warmup:
                place = [point.id, block.index, name]
                edges = (("before", before), ("after", self._bench.device.reading()))
                self._writer.rows("telemetry", [_telemetry(place, edge, at) for edge, at in edges if at is not None])
        return durations


def first_wrong(output: FloatArray, expected: FloatArray, max_rel_error: float) -> str:
    """Name the first element that is further from the truth than ``max_rel_error`` of its largest value, or the furthest one."""
    away = np.abs(output - expected)
    away[~np.isfinite(output)] = np.inf
    off = np.flatnonzero(away > max_rel_error * np.max(np.abs(expected)))
    at = int(off[0]) if len(off) else int(np.argmax(away))
    index = [int(i) for i in np.unravel_index(at, output.shape)]
    return f"first wrong element {index}: expected {expected.flat[at]:.9g}, found {output.flat[at]:.9g}"


def _repacking(points: Iterable[tuple[ReadyArm | tuple[Arm, Support], ...]]) -> list[list[str | int]]:
    """[arm, ns, bytes] of every arm that repacked its weights; controls are the baseline again."""
    found = {
        entry.arm.name: entry.prepared.repacking
        for arms in points
        for entry in _supported(arms)
        if entry.prepared.repacking is not None and not entry.arm.role.is_control
    }
    return [[name, each.duration_ns, each.nbytes] for name, each in found.items()]


def _supported(arms: tuple[ReadyArm | tuple[Arm, Support], ...]) -> tuple[ReadyArm, ...]:
    return tuple(entry for entry in arms if isinstance(entry, ReadyArm))


def _with_its_baseline(
    entry: ReadyArm | tuple[Arm, Support], entries: list[ReadyArm | tuple[Arm, Support]]
) -> ReadyArm | tuple[Arm, Support]:
    """The entry; a control whose baseline is unsupported is unsupported, too: it controls nothing, and a dose needs the baseline's time."""
    lacking = {other[0].name: other[1].reason for other in entries if isinstance(other, tuple)}
    if isinstance(entry, tuple) or not entry.arm.role.is_control or entry.arm.of not in lacking:
        return entry
    return entry.arm, Support.no(f"its baseline {entry.arm.of} is unsupported: {lacking[entry.arm.of]}")


def _telemetry(place: list[Any], edge: str, at: Reading) -> list[Any]:
    clocks = [at.sm_clock_mhz, at.memory_clock_mhz]
    return [*place, edge, *clocks, at.temperature_c, at.power_w, at.throttle_reasons]


def _make_bench(protocol: Protocol, settings: RunSettings, folder: RunFolder, process: int) -> Bench:
    if settings.script is not None:
        return FakeBench(protocol, read_script(folder.root / settings.script), process=process)
    with _importing():
        from benchkit.run.torch_bench import TorchBench
    return TorchBench(protocol, folder=folder.root, digest_cache=folder.digest_cache)


@contextmanager
def _importing() -> Iterator[None]:
    gc.disable()  # importing torch makes a million objects and no garbage
    yield
    gc.enable()


def load(folder: Path) -> None:
    """Import what the processes of the run in ``folder`` use; nothing is done (``benchkit.run.standby``)."""
    run = RunFolder(folder)
    if run.settings().script is None:
        with _importing():
            from benchkit.run.torch_bench import load_cuda

            load_cuda(load_locked(run.protocol_path).protocol)


def main(arguments: list[str]) -> int:
    """Run one attempt of one process; see the module's rules for the exit codes."""
    die_with(int(arguments[3]))
    folder, process, attempt = RunFolder(Path(arguments[0])), int(arguments[1]), int(arguments[2])
    settings = folder.settings()
    locked = load_locked(folder.protocol_path)
    planned = plan(locked).processes[process]

    def work(writer: RecordWriter) -> None:
        bench = _make_bench(locked.protocol, settings, folder, process)
        Worker(locked.protocol, bench, writer).run(planned.points, settings)

    return recorded(folder.records_path(process, attempt), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
