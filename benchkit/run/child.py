"""What every worker process of a run does, whatever it runs: it ends with its supervisor, says which machine and build it is, and how it ended."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchkit.errors import BenchkitError, MachineError, OutputError
from benchkit.run.records import End, RecordWriter

NOT_WRITTEN = 4


def run_identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a resumed run must find again: device, GPU, driver, the arms' sources and the code that measures."""
    gpu = record["gpu"]
    return {
        "device": record["device"],
        "gpu_uuid": gpu["uuid"] if gpu else None,
        "driver": record["driver"],
        "sources": record["sources"],
        "benchkit_sha256": record["benchkit_sha256"],
    }


def die_with(supervisor: int) -> None:
    """On Linux, have the kernel end this process when the supervisor dies; end now where it died before we could ask."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != supervisor:
        sys.exit("the supervisor is gone")


def recorded(records: Path, work: Callable[[RecordWriter], None]) -> int:
    """Do the work of one attempt and write how it ended; the exit code of the process (``benchkit.run.worker``, rule 3)."""
    try:
        with RecordWriter(records) as writer:
            try:
                work(writer)
                writer.end(End(status="ok", reason=None))
            except (MachineError, OutputError):
                raise
            except BenchkitError as error:
                writer.end(End(status="failed", reason=str(error)))
    except (MachineError, OutputError) as error:
        with suppress(OSError):  # the log may stand on the same full disk
            print(error, file=sys.stderr, flush=True)
        return NOT_WRITTEN if isinstance(error, OutputError) else error.exit_code
    return 0
