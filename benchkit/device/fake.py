"""A device whose durations are scripted: exact tests of everything above it, and no evidence of anything.

Rules:
1. Time is virtual: a sample takes what the script says, so two runs of one script give the same rows.
2. A call is a ``FakeCall`` that names its arm and point; nothing is computed.
3. Each process starts an hour of virtual time after the one before; durations are whole steps of ``clock_tick_ns``, as a real clock's are.
4. ``describe()["device"]`` is ``fake``; bundles made here are stamped synthetic and the validator refuses them as evidence.

The script is TOML and every key is optional: ``clock_tick_ns``, ``l2_bytes``, ``jitter_ns`` (amplitude per call), ``flush_ns`` (before each
sample of a ``cold-flush`` protocol, outside of its duration), ``pace_ms`` (real sleep per sample), ``[ns_per_call]`` arm or "arm@point" = ns,
``[process_ratio]`` arm = [factor per process], ``[throttle]`` point = reasons bit mask, ``unsupported = ["arm@point"]``, ``wrong = ["arm"]``
(fails its correctness gate), ``wrong_replay = ["arm"]`` (fails it after the graph's replay), ``batch_variant = ["arm@point"]`` (token 0 has
other bits among so many tokens), ``[[fail]]`` process, after (samples),
how = error | exit | hang. Numbers are bounded when the script is read; a process whose virtual time runs out of int64 fails.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchkit.device.ports import LaunchedKernel, Reading, Timing
from benchkit.errors import DataError, WorkerError
from benchkit.protocol.files import TOML_BYTES, parse_toml, read_small
from benchkit.units import NS_PER_S

_DEFAULT_NS_PER_CALL = 100_000
_HOST_OVERHEAD_NS = 3_000
_POST_SYNC_NS = 2_000
_PROCESS_APART_NS = 3600 * NS_PER_S
_LAST_NS = 1 << 62  # of the virtual clock
_MOST = {"clock_tick_ns": 10**9, "l2_bytes": 1 << 40, "jitter_ns": 10**12, "flush_ns": 10**12, "pace_ms": 60_000}
_MOST_NS_PER_CALL, _MOST_RATIO, _MOST_BITS = 10**12, 1000, (1 << 63) - 1
_FAILURES = ("error", "exit", "hang")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeScript:
    """What the fake device does; the fields are the keys of the script file."""

    clock_tick_ns: int = 1
    l2_bytes: int = 1 << 20
    jitter_ns: int = 0
    flush_ns: int = 60_000
    pace_ms: int = 0
    ns_per_call: Mapping[str, int] = field(default_factory=dict)
    process_ratio: Mapping[str, Sequence[float]] = field(default_factory=dict)
    throttle: Mapping[str, int] = field(default_factory=dict)
    unsupported: Sequence[str] = ()
    wrong: Sequence[str] = ()
    wrong_replay: Sequence[str] = ()
    batch_variant: Sequence[str] = ()
    fail: Sequence[Mapping[str, Any]] = ()


def read_script(path: Path) -> FakeScript:
    """Read a script file; ``DataError`` on no TOML, an unknown key, or a value that is out of bounds or of another kind."""
    document: Mapping[str, Any] = parse_toml(
        read_small(path, most=TOML_BYTES, what="a script of the fake device"), str(path)
    )
    try:
        script = FakeScript(**document)
    except TypeError as error:
        raise DataError(f"{path}: expected a script of the fake device, found: {error}") from error
    for problem in _problems(script):
        raise DataError(f"{path}: {problem}; mend the script")
    return script


def _problems(script: FakeScript) -> Iterator[str]:
    """What the fake device cannot do, in the order of the keys."""
    for name, most in _MOST.items():
        yield from _number(name, getattr(script, name), low=1 if name == "clock_tick_ns" else 0, most=most)
    for name, most, low in (("ns_per_call", _MOST_NS_PER_CALL, 1), ("throttle", _MOST_BITS, 0)):
        table = getattr(script, name)
        if not isinstance(table, dict):
            yield f"{name}: expected a table, found {table!r:.80}"
            continue
        for key, value in table.items():
            yield from _number(f"{name}.{key}", value, low=low, most=most)
    if not isinstance(script.process_ratio, dict):
        yield f"process_ratio: expected a table, found {script.process_ratio!r:.80}"
        return
    for arm, ratios in script.process_ratio.items():
        good = isinstance(ratios, list) and all(_is_ratio(ratio) for ratio in ratios)
        if not good:
            yield f"process_ratio.{arm}: expected an array of numbers above 0 and at most {_MOST_RATIO}, found {ratios!r:.80}"
    for name in ("unsupported", "wrong", "wrong_replay", "batch_variant"):
        value = getattr(script, name)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            yield f"{name}: expected an array of strings, found {value!r:.80}"
    if not isinstance(script.fail, list | tuple):
        yield f"fail: expected an array of tables, found {script.fail!r:.80}"
        return
    for failure in script.fail:
        if (
            not isinstance(failure, dict)
            or set(failure) != {"process", "after", "how"}
            or failure["how"] not in _FAILURES
        ):
            yield f"fail: expected process, after and how ({', '.join(_FAILURES)}), found {failure!r:.80}"
            return
        for name in ("process", "after"):
            yield from _number(f"fail.{name}", failure[name], low=0, most=_MOST_BITS)


def _number(name: str, value: object, *, low: int, most: int) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= most:
        yield f"{name}: expected an integer from {low} to {most}, found {value!r:.80}"


def _is_ratio(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MOST_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCall:
    """A call that does nothing but know whose it is."""

    arm: str
    of: str  # the arm whose duration it has: a control's baseline, else the arm itself
    point: str

    def __call__(self, copy: int) -> None:
        """Do nothing."""


class FakeDevice:
    """The device port over a script."""

    name = "fake"

    def __init__(self, script: FakeScript, *, clock: str, cache: str, process: int) -> None:
        self.script = script
        self.clock = clock
        self.flush_ns = script.flush_ns if cache == "cold-flush" else None
        self.process = process
        self.clock_tick_ns = script.clock_tick_ns
        self.l2_bytes = script.l2_bytes
        self.binaries: Mapping[str, str] = {}
        self.now_ns = NS_PER_S + process * _PROCESS_APART_NS
        self.samples = 0
        self._point = ""
        self.replayed: set[str] = set()  # arms whose timer has run

    def timer(self, call: Callable[[int], None], *, calls: int, copies: int, with_delay: bool) -> "FakeTimer":
        """A timer with scripted durations; ``call`` is a ``FakeCall``."""
        if not isinstance(call, FakeCall):
            raise TypeError("the fake device times FakeCall only")
        return FakeTimer(self, call, calls)

    def kernels(self, call: Callable[[int], None]) -> tuple[LaunchedKernel, ...]:
        """One kernel per call on the event clock, none on the host clock."""
        if self.clock == "host" or not isinstance(call, FakeCall):
            return ()
        kernel = LaunchedKernel(
            name=f"fake_{call.of}", grid=(132, 1, 1), block=(256, 1, 1), registers=32, shared_bytes=0
        )
        return (kernel,)

    def synchronize(self) -> None:
        """Nothing is ever in flight."""

    def reading(self) -> Reading | None:
        """Constant telemetry on the event clock; the throttle bits of the point being timed."""
        if self.clock == "host":
            return None
        return Reading(
            sm_clock_mhz=1980,
            memory_clock_mhz=3201,
            temperature_c=40,
            power_w=300.0,
            throttle_reasons=self.script.throttle.get(self._point, 0),
        )

    def describe(self) -> Mapping[str, object]:
        """Says that it is no real device."""
        return {"device": "fake", "driver": None, "cuda_runtime": None, "cuda_driver_max": None, "gpu": None}

    def duration_ns(self, call: FakeCall, calls: int, injected_ns: int = 0) -> int:
        """Scripted duration of the next sample of ``call``, in whole ticks."""
        script = self.script
        per_call = script.ns_per_call.get(f"{call.of}@{call.point}") or script.ns_per_call.get(
            call.of, _DEFAULT_NS_PER_CALL
        )
        ratios = script.process_ratio.get(call.arm, ())
        ratio = ratios[self.process] if self.process < len(ratios) else 1.0
        exact = round(per_call * ratio) * calls + self._jitter(call) * calls + injected_ns
        return round(exact / script.clock_tick_ns) * script.clock_tick_ns

    def _jitter(self, call: FakeCall) -> int:
        span = 2 * self.script.jitter_ns + 1
        text = f"{self.process}/{call.point}/{call.arm}/{self.samples}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % span - self.script.jitter_ns

    def advance(self, call: FakeCall) -> None:
        """Count a sample, sleep if the script asks for it, and fail where it says so."""
        self._point = call.point
        self.samples += 1
        if self.script.pace_ms:
            time.sleep(self.script.pace_ms / 1000)
        for failure in self.script.fail:
            if failure["process"] == self.process and failure["after"] == self.samples:
                _fail(str(failure["how"]))


def _fail(how: str) -> None:
    if how == "error":
        raise WorkerError("scripted failure")
    if how == "exit":
        os._exit(9)
    time.sleep(3600)


class FakeTimer:
    """A timer of scripted samples on the device's virtual clock."""

    def __init__(self, device: FakeDevice, call: FakeCall, calls: int) -> None:
        self._device = device
        self._call = call
        self._calls = calls

    def sample(self, *, injected_ns: int) -> Timing:
        """The next scripted sample."""
        device = self._device
        device.advance(self._call)
        duration = device.duration_ns(self._call, self._calls, injected_ns)
        events = device.clock == "cuda-event"
        start = device.now_ns + (device.flush_ns or 0)
        end = start + duration + (_HOST_OVERHEAD_NS if events else 0)
        post = _POST_SYNC_NS if events else 0
        device.now_ns = end + post + 1_000
        if device.now_ns > _LAST_NS:
            raise WorkerError(f"the script's virtual time exceeds {_LAST_NS} ns; give shorter durations")
        return Timing(
            duration_ns=duration,
            host_start_ns=start,
            host_end_ns=end,
            post_sync_ns=post,
            blocked=events,
            flush_ns=device.flush_ns,
        )

    def run(self) -> None:
        """Advance the virtual clock by one sample."""
        self._device.replayed.add(self._call.arm)
        self._device.now_ns += self._device.duration_ns(self._call, self._calls)
