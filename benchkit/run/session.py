"""One ``run-protocol`` from start (or resumption) to the sealed and analysed bundle, with progress and the way back after an interruption."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchkit.bundle.reader import Bundle
from benchkit.errors import InterruptedRunError
from benchkit.protocol.lock import load_locked
from benchkit.run.folder import RunFolder
from benchkit.run.progress import progress_bar
from benchkit.run.supervisor import RunRequest, SealedRun, execute, resume, start


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
        """
        locked = load_locked(self.protocol)
        if resumed is None:
            request = RunRequest(out=self.out, exploratory=self.exploratory, script=self.script)
            folder, planned = start(locked, request)
        else:
            folder, planned = resume(locked, self.out, resumed)
        total = len(planned.processes) * planned.samples_per_process
        try:
            with progress_bar(planned.protocol.id, total) as progress:
                return execute(folder, planned, shows=shows, finish=finish, progress=progress)
        except (KeyboardInterrupt, InterruptedRunError) as error:
            raise InterruptedRunError(self._way_back(folder)) from error

    def _way_back(self, folder: RunFolder) -> str:
        run_id = folder.settings().run_id
        command = f"benchkit run-protocol {self.protocol} --out {self.out} --resume {run_id}"
        return f"interrupted; nothing is lost. Go on with: {command}"
