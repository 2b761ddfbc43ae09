"""Starts a run's workers, each one's imports beside the process before it: ``python -m benchkit.run.standby FOLDER WORKER SUPERVISOR_PID``.

Rules (results/README.md, "Order of processes"):
1. Where the host's clock measures, nothing runs beside a process. Elsewhere (CUDA events, studies) a standby worker imports what it will use while the
   process before it runs, and waits. It touches no GPU, writes no record and is no attempt.
2. A line ``PROCESS ATTEMPT`` on its standard input makes it that worker, and its log that worker's log. The first worker of a run comes this way, too:
   all load the same modules in the same order.
3. It ends with its standard input, is killed with its supervisor, and is killed where the run needs no more workers.
4. One that died before it was called is replaced by an ordinary worker; one that cannot import becomes an ordinary worker: what is wrong is said as ever.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Self

from benchkit.run.child import die_with
from benchkit.run.folder import RunFolder

_STANDBY = "benchkit.run.standby"


class Workers:
    """The workers of one run; none stands by where its context ends.

    Parameters
    ----------
    module:
        The worker: ``main`` takes FOLDER PROCESS ATTEMPT SUPERVISOR_PID, ``load`` imports what ``main`` will use for the run in a folder.
    ahead:
        Whether imports may run beside a process (rule 1).
    """

    def __init__(self, folder: RunFolder, module: str, *, ahead: bool) -> None:
        self._folder, self._module, self._ahead = folder, module, ahead
        self._log = folder.root / "standby.log"
        self._standby: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._standby is not None:
            kill(self._standby)
            with suppress(OSError):
                self._log.unlink(missing_ok=True)

    def stand_by(self) -> None:
        """Start a worker that waits, unless one does; where none can be started there is none."""
        if self._ahead and self._standby is None:
            with suppress(OSError):
                self._standby = self._start(_STANDBY, self._module, log=self._log, stdin=subprocess.PIPE)

    def call(self, process: int, attempt: int) -> "subprocess.Popen[bytes]":
        """The worker of an attempt, which has begun."""
        self.stand_by()
        log, called = self._folder.log_path(process, attempt), self._standby
        if called is not None:
            try:
                assert called.stdin is not None
                self._log.replace(log)
                called.stdin.write(f"{process} {attempt}\n".encode())
                called.stdin.close()
            except OSError:  # it is dead
                kill(called)
                called = None
            self._standby = None
        return called or self._start(self._module, str(process), str(attempt), log=log, stdin=subprocess.DEVNULL)

    def _start(self, module: str, *arguments: str, log: Path, stdin: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", module, str(self._folder.root), *arguments, str(os.getpid())]
        with log.open("wb") as file:
            return subprocess.Popen(command, bufsize=0, stdin=stdin, stdout=file, stderr=file, start_new_session=True)


def kill(worker: "subprocess.Popen[bytes]") -> None:
    """End a worker and everything that it started."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    if worker.stdin is not None:
        worker.stdin.close()


def main(arguments: list[str]) -> int:
    """Import, wait, and be the worker that is called; 0 where none is."""
    folder, module, supervisor = arguments
    die_with(int(supervisor))
    environment = dict(os.environ)  # which imports may change
    try:
        worker = import_module(module)
        worker.load(Path(folder))
    except Exception:  # noqa: BLE001 - the ordinary worker meets it again, and says it
        worker = None
    called = sys.stdin.readline().split()
    if not called:
        return 0
    place = [folder, *called, supervisor]
    if worker is None:
        os.execve(sys.executable, [sys.executable, "-m", module, *place], environment)
    code: int = worker.main(place)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
