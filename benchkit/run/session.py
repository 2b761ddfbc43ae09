"""One ``run-protocol`` from start (or resumption) to the sealed and analysed bundle, with progress and the way back after an interruption."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchkit.bundle.reader import Bundle
from benchkit.errors import InterruptedRunError, OutputError, StorageError
from benchkit.protocol.lock import load_locked
from benchkit.run.folder import RunFolder
from benchkit.run.progress import progress_bar
from benchkit.run.supervisor import RunRequest, SealedRun, execute, resume, sealed_before, start


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What the user asked ``run-protocol`` for."""

    protocol: Path
    out: Path
    exploratory: bool
    script: Path | None

    def run(
        self, resumed: str | None, *, shows: Callable[[Bundle], bool], finish: Callable[[Path], object]
    ) -> SealedRun:
        """Run to the end, or to the first locked look that shows the claim.

        Raises
        ------
        InterruptedRunError
            Stopped by a signal; the text holds the command that goes on.
        StorageError
            A file of the run cannot be written; the text names it, and the command that goes on.
        """
        locked = load_locked(self.protocol)
        if resumed is not None and (sealed := sealed_before(locked, self.out, resumed)) is not None:
            finish(sealed.folder)
            return sealed
        if resumed is None:
            request = RunRequest(out=self.out, exploratory=self.exploratory, script=self.script)
            folder, planned = start(locked, request)
        else:
            folder, planned = resume(locked, self.out, resumed)
        total = len(planned.processes) * planned.samples_per_process
        with resumable(self.protocol, self.out, folder), progress_bar(planned.protocol.id, total) as progress:
            return execute(folder, planned, resumed=resumed is not None, shows=shows, finish=finish, progress=progress)


@contextmanager
def resumable(protocol: Path, out: Path, folder: RunFolder) -> Iterator[None]:
    """Turn whatever stops a run into an error that holds the command which goes on."""
    run_id = folder.root.name.removeprefix(".").removesuffix(".partial")  # which needs no reading
    words = ["benchkit", "run-protocol", str(protocol), "--out", str(out), "--resume", run_id]
    way_back = f"Go on with: {shlex.join(words)}"
    try:
        yield
    except (KeyboardInterrupt, InterruptedRunError) as error:
        raise InterruptedRunError(f"interrupted; nothing is lost. {way_back}") from error
    except (OSError, OutputError) as error:
        reason = error if isinstance(error, OutputError) else f"{error.filename or folder.root}: {error.strerror}"
        raise StorageError(f"{reason}; what was recorded is kept. {way_back}") from error
