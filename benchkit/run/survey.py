"""``benchkit check``, ``plan`` and ``protocols``: what a protocol would do, without doing it and without torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchkit.device.environment import machine_problems
from benchkit.errors import DataError, MachineError, ProtocolError, printable
from benchkit.fixture.traffic import asset_path, routing_at
from benchkit.kernels.engines import engine_sources
from benchkit.plan import Plan, plan
from benchkit.protocol.lock import load_locked, lock_path
from benchkit.protocol.model import Protocol
from benchkit.protocol.study import MECHANISM, load_locked_study, protocol_kind, read_study
from benchkit.run.locking import arm_sources, changed_sources, preview, sound_protocol, source_problems

_START_S = 4.0  # imports, inputs and correctness of one process, roughly


def check_protocol(path: Path) -> list[str]:
    """Lines that say what is right; whatever is wrong is raised.

    Raises
    ------
    ProtocolError, LockError
        The protocol or its lock is wrong.
    MachineError
        They are right, but this machine cannot run them.
    """
    protocol = sound_protocol(path)
    for asset in protocol.assets:
        asset_path(protocol, asset, path.parent)
    for point in protocol.points:
        routing_at(protocol, point, path.parent)
    lines = [f"{path}: {protocol.id}: {len(protocol.arms)} arms at {len(protocol.points)} points, no problem found"]
    planned = plan(preview(path))
    if lock_path(path).exists():
        lines.append(f"{lock_path(path)}: belongs to it, locked at {planned.locked.lock.locked_utc}")
    else:
        lines.append(f"{path}: not locked yet; when it says what you mean: benchkit lock {path}")
    lines += [f"source digest of {arm}: {digest}" for arm, digest in arm_sources(protocol).items()]
    found = [*source_problems(protocol).values(), *machine_problems(protocol.require, protocol.timing.clock)]
    if found:
        raise MachineError("\n".join([*lines, f"{path}: this machine cannot run it", *(f"  {line}" for line in found)]))
    lines.append("this machine can run it")
    return lines


def describe_plan(path: Path, process: int) -> list[str]:
    """The order of one process, and the size of the whole run; ProtocolError on what ``check_protocol`` refuses, too."""
    protocol = sound_protocol(path)
    planned = plan(preview(path))
    if process >= len(planned.processes):
        raise DataError(f"--process {process}: the plan has processes 0 to {len(planned.processes) - 1}")
    lines = [
        f"{protocol.id}: {len(planned.processes)} process pairs x {planned.samples_per_process} samples, "
        f"{protocol.schedule.blocks} blocks of {protocol.timing.samples_per_block} per arm and point",
        _estimate(planned),
        *_looks(protocol),
        f"process {process}:",
    ]
    for point in planned.processes[process].points:
        traffic = planned.locked.lock.bytes_by_point[point.point.id]
        lines.append(f"  {point.point.id}  (unique {traffic[0]} bytes, issued {traffic[1]} bytes a call)")
        for block in point.blocks:
            name = "warm-up" if block.is_warmup else f"block {block.index}"
            lines.append(f"    {name:9}{block.samples} x each: {' '.join(block.arms)}")
    return lines


def _looks(protocol: Protocol) -> Iterator[str]:
    """What may end the run before its last process."""
    if protocol.statistics.looks:
        numbers = ", ".join(map(str, protocol.statistics.looks))
        yield f"looks after {numbers} process pairs: the run ends at the first that shows the claim"


def _estimate(planned: Plan) -> str:
    """The time that the bytes take at a nominal bandwidth, plus the start of each process; and the watchdog's bound."""
    protocol = planned.protocol
    host = protocol.timing.clock == "host"
    bandwidth = 10e9 if host else float(protocol.timing.peak_gb_per_s or 2000) * 1e9
    per_arm = protocol.warmup.samples + protocol.schedule.blocks * protocol.timing.samples_per_block
    seconds = 0.0
    for point in protocol.points:
        unique, _ = planned.locked.lock.bytes_by_point[point.id]
        seconds += sum(
            per_arm * arm.calls_per_sample * (arm.ceiling_bytes or unique) / bandwidth
            for arm in protocol.arms_at(point.id)
        )
        seconds += protocol.warmup.ramp_ms / 1000
    per_process = _START_S + 2 * seconds
    return (
        f"estimate: about {per_process:.0f} s a process, {per_process * len(planned.processes) / 60:.1f} min in all "
        f"(bytes at {bandwidth / 1e9:g} GB/s, twice, plus start-up); at most {protocol.schedule.watchdog_s} s a process"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The line of one protocol file, and whether file and lock are sound (a file without a lock is)."""

    line: str
    sound: bool


def list_protocols(folder: Path) -> list[Listed]:
    """One line a protocol file; what is wrong with one stands in its line and stops no other."""
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise DataError(f"{folder}: expected protocol files (*.toml), found none")
    return [_listed(path) for path in paths]


def _listed(path: Path) -> Listed:
    try:
        study = protocol_kind(path) == MECHANISM
        title, changed = (_of_study if study else _of_comparison)(path)
    except ProtocolError as error:
        line = f"{path}  {len(error.problems)} problem(s): run benchkit check {path}"
        return Listed(line=line, sound=False)
    except DataError as error:
        return Listed(line=f"{path}  {str(error).removeprefix(f'{path}: ')}", sound=False)
    if not lock_path(path).exists():
        return Listed(line=f"{path}  not locked  {title}", sound=True)
    try:
        lock = (load_locked_study if study else load_locked)(path).lock
        since = f", sources changed since: {', '.join(changed)}" if changed else ""
        return Listed(line=f"{path}  locked {lock.locked_utc}{since}  {title}", sound=True)
    except DataError:
        line = f"{path}  its lock does not belong to it: run benchkit check {path}  {title}"
        return Listed(line=line, sound=False)


def _of_comparison(path: Path) -> tuple[str, list[str]]:
    """Title, and the arms whose sources are not the locked ones."""
    protocol = sound_protocol(path)
    return printable(protocol.title), list(source_problems(protocol))


def _of_study(path: Path) -> tuple[str, list[str]]:
    study = read_study(path)
    return printable(study.title), list(changed_sources(study.require, engine_sources(study.engine), "engine"))
