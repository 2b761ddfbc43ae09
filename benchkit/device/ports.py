"""The device port: what a worker asks of a machine that runs and times calls.

Rules:
1. A device knows nothing of protocols, arms or bundles; it gets callables and gives timings and readings.
2. ``Timer.sample`` is one timed sample: ``calls`` calls between start and stop, and nothing else (results/README.md, "Timing boundary").
3. Nothing is dropped or corrected here: zero and negative durations are passed on as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One timed sample; the fields are the columns of samples.parquet.

    ``duration_ns`` is the time on the device's clock of all calls of the sample together; the host times are of ``time.perf_counter_ns``.
    ``flush_ns``: how long the cache was flushed before the sample, never part of its duration; None where nothing is flushed.
    """

    duration_ns: int
    host_start_ns: int
    host_end_ns: int
    post_sync_ns: int
    blocked: bool
    flush_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Clocks, temperature, power and throttle reasons (NVML bit mask) at one moment."""

    sm_clock_mhz: int
    memory_clock_mhz: int
    temperature_c: int
    power_w: float
    throttle_reasons: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedKernel:
    """One node of the graph of one call: a kernel, or ``memcpy`` / ``memset`` as its name."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared_bytes: int


class Timer(Protocol):
    """Times one arm at one point. ``sample`` may be called any number of times."""

    def sample(self, *, injected_ns: int) -> Timing:
        """Time one sample; ``injected_ns`` > 0 adds a delay of that length at its end, inside the boundary (positive control only)."""

    def run(self) -> None:
        """Do the work of one sample once, untimed, and wait for it (ramp, check after replay)."""


class Device(Protocol):
    """A machine that runs calls and times them."""

    name: str  # "host" | "cuda" | "fake"
    clock_tick_ns: int  # smallest step of the clock that durations come from
    l2_bytes: int  # last-level cache as the system reports it
    binaries: Mapping[str, str]  # code that the device itself compiled or loaded: name -> SHA-256

    def timer(self, call: Callable[[int], None], *, calls: int, copies: int, with_delay: bool) -> Timer:
        """Prepare a timer of ``calls`` calls; call i is ``call(i % copies)``. ``with_delay``: the sample ends with a delay (0 ns unless asked)."""

    def kernels(self, call: Callable[[int], None]) -> tuple[LaunchedKernel, ...]:
        """What one call launches, in order; empty where the device launches no kernels."""

    def synchronize(self) -> None:
        """Wait for all work on the device."""

    def reading(self) -> Reading | None:
        """Telemetry now; None where the machine has none."""

    def describe(self) -> Mapping[str, object]:
        """The device's part of the environment record: ``device``, ``driver``, ``cuda_runtime``, ``cuda_driver_max``, ``gpu``."""
