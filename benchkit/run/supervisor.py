"""Has one fresh worker per process pair started (``benchkit.run.standby``), watches it, records how it ended, and seals the bundle. Imports no torch.

Rules (results/README.md, "Processes that end badly"):
1. A failed worker stays failed; one that ended together with the supervisor is interrupted and its pair is run again, at most three times.
2. Nothing appears under the final name before the bundle is complete: the rename is the last step. A run that was killed after it is sealed.
3. With locked looks the run ends at the first that shows the claim (protocols/README.md, "Statistics"); a resumed run looks again, at the
   same rows.
4. A worker that finds another machine than the run needs ends the run, and its attempt is as if it had never been.
5. A worker that cannot write its records (a full disk) ends the run, and its attempt is interrupted.
"""

import fcntl
import json
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, Protocol

from benchkit.bundle.reader import Bundle, bundle_table, open_sealed
from benchkit.bundle.sign import check_signature, signature_path
from benchkit.device.environment import git_state, machine_problems
from benchkit.device.fake import read_script
from benchkit.errors import BundleError, InterruptedRunError, MachineError, OutputError
from benchkit.fixture.traffic import asset_path
from benchkit.plan import Plan, StudyPlan, plan
from benchkit.protocol.lock import LockedProtocol, load_locked, lock_path, utc_now
from benchkit.protocol.study import LockedStudy
from benchkit.run import ledger
from benchkit.run.child import NOT_WRITTEN, run_identity
from benchkit.run.collect import build_bundle, first_processes
from benchkit.run.folder import MAX_ATTEMPTS, Outcome, RunFolder, RunSettings
from benchkit.run.locking import source_problems
from benchkit.run.records import Header, read_end, read_header
from benchkit.run.standby import Workers, kill

_POLL_S = 0.05
_SCRIPT = "fake.toml"
_MACHINE = 3
_WORKERS = {Plan: "benchkit.run.worker", StudyPlan: "benchkit.mechanism.worker"}
AnyPlan = Plan | StudyPlan


class Progress(Protocol):
    """Told how many samples of the run are written."""

    def advance_to(self, samples: int) -> None:
        """``samples`` rows of samples.parquet are written so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRun:
    """A bundle in its place, and which of its processes failed."""

    folder: Path
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What the user asked for."""

    out: Path
    exploratory: bool
    script: Path | None


def start(locked: LockedProtocol, request: RunRequest) -> tuple[RunFolder, Plan]:
    """Make the working folder of a new run and write its start into the ledger.

    Raises
    ------
    MachineError
        This machine does not satisfy ``[build.require]`` and the run is not exploratory.
    """
    planned = plan(locked)
    problems = []
    if request.script is None:
        rules = locked.protocol
        problems = [*source_problems(rules).values(), *machine_problems(rules.require, rules.timing.clock)]
    return open_run(planned, request, problems), planned


def open_run(planned: AnyPlan, request: RunRequest, problems: Sequence[str]) -> RunFolder:
    """Make the working folder of a planned run; ``problems`` are what this machine lacks for it (MachineError unless exploratory)."""
    locked = planned.locked
    if problems and not request.exploratory:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise MachineError(f"{locked.path}: this machine cannot run the protocol\n{lines}")
    if request.script is not None:
        read_script(request.script)
    signature = signature_path(lock_path(locked.path))
    if signature.exists():
        check_signature(signature, lock_path(locked.path))
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    folder = RunFolder.at(request.out, locked.protocol.id, run_id)
    settings = RunSettings(
        run_id=run_id,
        protocol_name=str(locked.path),
        exploratory=["started with --exploratory", *problems] if request.exploratory else [],
        script=_SCRIPT if request.script else None,
        git=git_state(Path(__file__).resolve().parent),
        identity=None,
    )
    try:
        folder.root.mkdir(parents=True)
        _furnish(folder, locked, request, signature)
        folder.write_settings(settings)
        note(folder, planned, "start")
    except OSError as error:
        folder.discard()
        raise OutputError(
            f"{folder.root}: cannot be made ({error.strerror}); give a place that can be written (--out); nothing was started"
        ) from error
    except BaseException:
        folder.discard()
        raise
    return folder


def _furnish(folder: RunFolder, locked: LockedProtocol | LockedStudy, request: RunRequest, signature: Path) -> None:
    """Copy everything that the run needs into its folder."""
    shutil.copyfile(locked.path, folder.protocol_path)
    shutil.copyfile(lock_path(locked.path), lock_path(folder.protocol_path))
    if signature.exists():
        shutil.copyfile(signature, folder.lock_signature)
    for asset in locked.protocol.assets:
        target = folder.root / asset.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(asset_path(locked.protocol, asset, locked.path.parent), target)
    if request.script is not None:
        shutil.copyfile(request.script, folder.root / _SCRIPT)


def resume(locked: LockedProtocol, out: Path, run_id: str) -> tuple[RunFolder, Plan]:
    """Open the working folder of an interrupted run."""
    folder = interrupted_run(locked, out, run_id)
    own = load_locked(folder.protocol_path)
    check_same(own.digest, locked, run_id)
    return folder, plan(own)


def interrupted_run(locked: LockedProtocol | LockedStudy, out: Path, run_id: str) -> RunFolder:
    """The working folder of an interrupted run; BundleError where there is none of this id."""
    folder = RunFolder.at(out, locked.protocol.id, run_id)
    if not folder.root.is_dir():
        known = sorted(path.name[1:-8] for path in folder.root.parent.glob(".*.partial"))
        raise BundleError(
            f"{folder.root.parent}: no interrupted run {run_id}; "
            + (f"there is {', '.join(known)}" if known else "there is none")
        )
    folder.settings()
    return folder


def check_same(digest: str, locked: LockedProtocol | LockedStudy, run_id: str) -> None:
    """Refuse to resume a run by another protocol than the one that it was started with, whose digest is given."""
    if digest != locked.digest:
        raise BundleError(
            f"{run_id} was started with protocol digest {digest}, found {locked.digest}; give the protocol that it was started with"
        )


def sealed_before(locked: LockedProtocol | LockedStudy, out: Path, run_id: str) -> SealedRun | None:
    """The bundle of a run that was killed after its last rename; what is left of the working folder goes. None where the run is not sealed.

    Raises
    ------
    BundleError
        What lies under the final name is no sealed bundle of this protocol, or one of its files was changed.
    """
    folder = RunFolder.at(out, locked.protocol.id, run_id)
    final = folder.root.parent / run_id
    if not (folder.root.is_dir() and final.is_dir()):
        return None
    check_same(open_sealed(final).protocol_digest, locked, run_id)
    with _alone(folder):
        folder.remove()
    return _sealed(final)


def execute(
    folder: RunFolder,
    planned: Plan,
    *,
    resumed: bool,
    shows: Callable[[Bundle], bool],
    finish: Callable[[Path], object],
    progress: Progress,
) -> SealedRun:
    """Run every process that has not ended yet, up to the first look that ``shows`` the claim, then seal.

    ``finish`` is called with the folder of the complete bundle before it gets its final name.
    """
    looks = planned.protocol.statistics.looks[:-1]
    with holding(folder, planned, resumed=resumed):
        with workers_of(folder, planned) as workers:
            for process in planned.processes:
                done = process.index * planned.samples_per_process
                run_process(folder, planned, process.index, workers, _Offset(progress, done))
                ended = process.index + 1
                if ended in looks and shows(first_processes(folder, planned, ended)):
                    break
        progress.advance_to(len(planned.processes) * planned.samples_per_process)
        return seal_run(folder, planned, finish)


def seal_run(folder: RunFolder, planned: AnyPlan, finish: Callable[[Path], object]) -> SealedRun:
    """Put the bundle of a complete run together, give it its final name, and remove the working folder."""
    settings = folder.settings()
    final = folder.root.parent / settings.run_id
    build_bundle(folder, planned, settings, finish).rename(final)
    sealed = _sealed(final)
    folder.remove()
    return sealed


def _sealed(bundle: Path) -> SealedRun:
    """A bundle in its place, and the processes whose last attempt failed."""
    rows = bundle_table(bundle, "processes", ("process", "status", "reason")).to_pylist()
    last = {row["process"]: row for row in rows}  # attempts stand in order
    failed = (row for row in last.values() if row["status"] == "failed")
    return SealedRun(folder=bundle, failed=tuple(f"process {row['process']}: {row['reason']}" for row in failed))


@contextmanager
def holding(folder: RunFolder, planned: AnyPlan, *, resumed: bool) -> Iterator[None]:
    """Hold the run's folder until its bundle is sealed, so that it is not resumed twice at once; then a resumption is noted."""
    with _alone(folder), _Signals():
        if resumed:
            note(folder, planned, "resume")
        yield


@contextmanager
def _alone(folder: RunFolder) -> Iterator[None]:
    try:
        file = (folder.root / "supervisor.lock").open("w")
    except FileNotFoundError as error:
        raise BundleError(f"{folder.root}: this run has ended meanwhile; look beside it for its bundle") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BundleError(f"{folder.root}: this run is going on in another process; wait for it") from error
        yield


def note(folder: RunFolder, planned: AnyPlan, event: str) -> None:
    """Write an event of the run into the ledger."""
    run_id = folder.settings().run_id
    ledger.append(folder.root.parent, run_id=run_id, protocol_digest=planned.locked.digest, event=event, status=None)


@dataclass(frozen=True, slots=True)
class _Offset:
    """Progress of one process within the run."""

    progress: Progress
    done: int

    def advance_to(self, samples: int) -> None:
        self.progress.advance_to(self.done + samples)


def workers_of(folder: RunFolder, planned: AnyPlan) -> Workers:
    """What starts the workers of a run: ahead of their processes unless the host's clock measures."""
    ahead = isinstance(planned, StudyPlan) or planned.protocol.timing.clock != "host"
    return Workers(folder, _WORKERS[type(planned)], ahead=ahead)


def run_process(folder: RunFolder, planned: AnyPlan, process: int, workers: Workers, progress: Progress) -> None:
    """Run one process unless it has ended already; what was interrupted is run again."""
    attempts = folder.attempts(process)
    for attempt in attempts:  # an attempt without an outcome ended with an earlier supervisor: say so for good
        folder.finish(process, attempt.attempt, attempt.outcome)
    if attempts and attempts[-1].outcome.status != "interrupted":
        return
    if len(attempts) >= MAX_ATTEMPTS:
        last = attempts[-1].outcome
        reason = f"interrupted in {len(attempts)} attempts"
        folder.finish(process, attempts[-1].attempt, replace(last, status="failed", reason=reason))
        return
    _run_attempt(folder, planned, process, len(attempts), workers, progress)


def _run_attempt(
    folder: RunFolder, planned: AnyPlan, process: int, attempt: int, workers: Workers, progress: Progress
) -> None:
    started = utc_now()
    folder.begin(process, attempt, started)
    worker = workers.call(process, attempt)
    try:
        if process + 1 < len(planned.processes):
            workers.stand_by()
        code = _wait(worker, folder, process, attempt, planned.protocol.schedule.watchdog_s, progress)
    except BaseException:
        kill(worker)
        raise
    end = read_end(folder.records_path(process, attempt))
    if code == NOT_WRITTEN and end is None:  # without an outcome the attempt counts as interrupted
        records, said = folder.records_path(process, attempt), _last_line(folder.log_path(process, attempt))
        raise OutputError(said if str(records) in said else f"{records}: cannot be written ({said})")
    if code == _MACHINE and end is None:
        message = _last_line(folder.log_path(process, attempt))
        folder.forget(process, attempt)
        raise MachineError(message)
    outcome = Outcome(status="ok", reason=None, started_utc=started, ended_utc=utc_now())
    if end is None:
        outcome = replace(outcome, status="failed", reason=_why(code, folder, process, attempt, planned))
    elif end.status != "ok":
        outcome = replace(outcome, status="failed", reason=end.reason)
    folder.finish(process, attempt, outcome)
    _keep_identity(folder, read_header(folder.records_path(process, attempt)))


def _wait(
    worker: subprocess.Popen[bytes], folder: RunFolder, process: int, attempt: int, watchdog_s: int, progress: Progress
) -> int | None:
    """Wait for the worker and report its progress; None where the watchdog ended it."""
    end = time.monotonic() + watchdog_s
    counter = _SampleCounter(folder.records_path(process, attempt))
    while worker.poll() is None:
        if time.monotonic() > end:
            kill(worker)
            return None
        progress.advance_to(counter.count())
        time.sleep(_POLL_S)
    return worker.returncode


class _SampleCounter:
    """Counts the sample rows in a worker's file as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rows = 0

    def count(self) -> int:
        """Rows so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            complete = data.rfind(b"\n") + 1
            self._offset += complete
            for line in data[:complete].splitlines():
                if line.startswith(b'{"kind":"rows","table":"samples"'):
                    self._rows += line.count(b"],[") + 1
        return self._rows


def _why(code: int | None, folder: RunFolder, process: int, attempt: int, planned: AnyPlan) -> str:
    if code is None:
        return f"watchdog: the process took longer than {planned.protocol.schedule.watchdog_s} s"
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}: {_last_line(folder.log_path(process, attempt))}"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def _keep_identity(folder: RunFolder, header: Header | None) -> None:
    """Remember what the first process ran on, so that a resumed run can demand the same."""
    settings = folder.settings()
    if settings.identity is None and header is not None:
        environment = json.loads(header.environment)
        folder.write_settings(replace(settings, identity=run_identity(environment)))


class _Signals:
    """Turns SIGTERM and SIGHUP into an interruption while a run goes on, as Ctrl-C is one."""

    _CAUGHT: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> None:
        self._old = {number: signal.signal(number, _interrupt) for number in self._CAUGHT}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise InterruptedRunError(f"stopped by {signal.Signals(number).name}")
