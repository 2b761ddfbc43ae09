"""What every worker process of a run does first, whatever it runs: it ends with its supervisor, and says which machine and build it is."""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

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
