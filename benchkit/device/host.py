"""The host as a device: durations from ``time.perf_counter_ns``, nothing launched, no telemetry.

Rules:
1. Between start and stop stand the calls, and at the end of a positive control's sample its busy wait; nothing else.
2. The garbage collector is off during a sample; collecting happens between samples.
3. Nothing is asynchronous here: ``blocked`` is false and ``post_sync_ns`` is 0.
"""

import gc
import itertools
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchkit.device.ports import LaunchedKernel, Reading, Timing

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TICK_READS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimer:
    """Times ``calls`` calls in a row; ``with_delay`` samples may end with a busy wait."""

    call: Callable[[int], None]
    order: tuple[int, ...]
    with_delay: bool

    def sample(self, *, injected_ns: int) -> Timing:
        """One timed sample. ValueError on a negative delay, or on one that the timer was not prepared for."""
        if injected_ns < 0 or (injected_ns and not self.with_delay):
            raise ValueError(f"expected a delay of 0 ns (with_delay is {self.with_delay}), found {injected_ns}")
        call, order = self.call, self.order
        collecting = gc.isenabled()
        gc.disable()
        try:
            start = time.perf_counter_ns()
            for copy in order:
                call(copy)
            if injected_ns:
                release = time.perf_counter_ns() + injected_ns
                while time.perf_counter_ns() < release:
                    pass
            stop = time.perf_counter_ns()
        finally:
            if collecting:
                gc.enable()
        return Timing(duration_ns=stop - start, host_start_ns=start, host_end_ns=stop, post_sync_ns=0, blocked=False)

    def run(self) -> None:
        """The calls of one sample, untimed."""
        for copy in self.order:
            self.call(copy)


def clock_tick_ns() -> int:
    """The smallest positive difference between reads of ``perf_counter_ns`` in a row, at least 1 ns."""
    reads = [time.perf_counter_ns() for _ in range(_TICK_READS)]
    return min((later - earlier for earlier, later in itertools.pairwise(reads) if later > earlier), default=1)


def last_level_cache_bytes(caches: Path = _CACHES) -> int:
    """Size of the last-level cache as the system reports it (Linux: sysfs, macOS: sysctl); 0 where it reports none."""
    sizes: dict[int, int] = {}
    for index in sorted(caches.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = _size((index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            sizes[level] = max(size, sizes.get(level, 0))
    if sizes:
        return sizes[max(sizes)]
    return _sysctl_cache_bytes() if platform.system() == "Darwin" else 0


def _size(text: str) -> int:
    """Bytes of ``307200K``; ValueError on anything else."""
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)


def _sysctl_cache_bytes() -> int:
    for name in ("hw.l3cachesize", "hw.perflevel0.l2cachesize", "hw.l2cachesize"):
        try:
            found = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            return 0
        if found.returncode == 0 and found.stdout.strip().isdigit() and int(found.stdout) > 0:
            return int(found.stdout)
    return 0


@dataclass(slots=True, kw_only=True)
class HostDevice:
    """This machine's processor."""

    name: str = "host"
    clock_tick_ns: int = field(default_factory=clock_tick_ns)
    l2_bytes: int = field(default_factory=last_level_cache_bytes)
    binaries: Mapping[str, str] = field(default_factory=dict)

    def timer(self, call: Callable[[int], None], *, calls: int, copies: int, with_delay: bool) -> HostTimer:
        """A timer of ``calls`` calls over ``copies`` copies; ValueError on fewer than one of either."""
        if calls < 1 or copies < 1:
            raise ValueError(f"expected at least 1 call and 1 copy, found {calls} and {copies}")
        return HostTimer(call=call, order=tuple(i % copies for i in range(calls)), with_delay=with_delay)

    def kernels(self, call: Callable[[int], None]) -> tuple[LaunchedKernel, ...]:
        """Empty: a host launches no kernels."""
        return ()

    def synchronize(self) -> None:
        """Nothing to wait for: calls return when they are done."""

    def reading(self) -> Reading | None:
        """None: no telemetry that every host has."""
        return None

    def describe(self) -> Mapping[str, object]:
        """The device's part of the environment record."""
        return {"device": self.name, "driver": None, "cuda_runtime": None, "cuda_driver_max": None, "gpu": None}
