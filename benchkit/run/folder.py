"""The working folder of a run, ``<out>/<protocol id>/.<run id>.partial``: everything that resuming it needs. It vanishes when the run is sealed.

Rules:
1. ``run.json`` and the outcome of each attempt are written under a temporary name and renamed; a worker's records are appended by that worker alone.
2. An attempt without an outcome file ended together with its supervisor: it is ``interrupted``, unless its own end line says more.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchkit.protocol.files import write_text
from benchkit.run.records import Header, read_end, read_header
from benchkit.run.stored import damaged, stored

MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended, as the supervisor saw it."""

    status: Literal["ok", "failed", "interrupted"]
    reason: str | None
    started_utc: str
    ended_utc: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run was started with; ``identity`` is what a resumed run must find again."""

    run_id: str
    protocol_name: str
    exploratory: Sequence[str]
    script: str | None
    git: Mapping[str, Any] | None
    identity: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of one process pair."""

    process: int
    attempt: int
    outcome: Outcome
    header: Header | None
    records: Path


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths and state of an unsealed run."""

    root: Path

    @classmethod
    def at(cls, out: Path, protocol_id: str, run_id: str) -> "RunFolder":
        """The working folder of that run."""
        return cls(out / protocol_id / f".{run_id}.partial")

    @property
    def protocol_path(self) -> Path:
        """The run's own copy of the protocol."""
        return self.root / "protocol.toml"

    @property
    def lock_signature(self) -> Path:
        """The run's own copy of the lock's signature, where the lock is signed."""
        return self.root / "protocol.lock.sig.json"

    @property
    def bundle(self) -> Path:
        """Where the bundle is put together before it is renamed."""
        return self.root / "bundle"

    @property
    def look(self) -> Path:
        """Where a look at the first processes finds their tables."""
        return self.root / "look"

    @property
    def digest_cache(self) -> Path:
        """Digests of loaded binaries, shared by the workers of the run."""
        return self.root / "binaries.json"

    def settings(self) -> RunSettings:
        """Read ``run.json``."""
        path = self.root / "run.json"
        return stored(RunSettings, _json(path), path)

    def write_settings(self, settings: RunSettings) -> None:
        """Write ``run.json``."""
        write_text(self.root / "run.json", json.dumps(asdict(settings), indent=2) + "\n")

    def records_path(self, process: int, attempt: int) -> Path:
        """The worker's own file."""
        return self.root / f"process-{process:05d}-attempt-{attempt}.jsonl"

    def log_path(self, process: int, attempt: int) -> Path:
        """What the worker printed."""
        return self.root / f"process-{process:05d}-attempt-{attempt}.log"

    def begin(self, process: int, attempt: int, started_utc: str) -> None:
        """Note that an attempt starts."""
        write_text(self.root / f"process-{process:05d}-attempt-{attempt}.started", started_utc)

    def finish(self, process: int, attempt: int, outcome: Outcome) -> None:
        """Note how an attempt ended."""
        path = self.root / f"process-{process:05d}-attempt-{attempt}.outcome.json"
        write_text(path, json.dumps(asdict(outcome)) + "\n")

    def forget(self, process: int, attempt: int) -> None:
        """Remove an attempt that was refused before it did anything."""
        for path in self.root.glob(f"process-{process:05d}-attempt-{attempt}.*"):
            path.unlink()

    def attempts(self, process: int) -> list[Attempt]:
        """All attempts of a process pair, in order; StorageError, naming the file, where one is damaged."""
        stem = f"process-{process:05d}-attempt-"
        starts = sorted(self.root.glob(f"{stem}*.started"))  # numbers of one digit: at most MAX_ATTEMPTS
        for number, path in enumerate(starts):
            if path.name != f"{stem}{number}.started":
                raise damaged(path, f"expected {stem}{number}.started in its place")
        return [self._attempt(process, number, path) for number, path in enumerate(starts)]

    def _attempt(self, process: int, attempt: int, started: Path) -> Attempt:
        records = self.records_path(process, attempt)
        path = self.root / f"process-{process:05d}-attempt-{attempt}.outcome.json"
        started_utc = _text(started)
        if path.exists():
            outcome = stored(Outcome, _json(path), path)
        elif (end := read_end(records)) is not None:
            outcome = Outcome(status=end.status, reason=end.reason, started_utc=started_utc, ended_utc=None)
        else:
            reason = "the run was stopped from outside"
            outcome = Outcome(status="interrupted", reason=reason, started_utc=started_utc, ended_utc=None)
        return Attempt(process=process, attempt=attempt, outcome=outcome, header=read_header(records), records=records)

    def remove(self) -> None:
        """Remove the working folder of a sealed run."""
        shutil.rmtree(self.root)

    def discard(self) -> None:
        """Remove the working folder of a run that could not be started, and the protocol's folder if nothing else is in it."""
        shutil.rmtree(self.root, ignore_errors=True)
        with suppress(OSError):
            self.root.parent.rmdir()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error


def _json(path: Path) -> object:
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error
