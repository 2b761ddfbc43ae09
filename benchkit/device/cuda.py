"""A CUDA GPU as a device: durations from CUDA events on a stream that was blocked first; imported in workers only.

Rules:
1. Before every sample persisting L2 lines are reset and, with ``cold-flush``, twice the L2 is overwritten between two events of their own.
   Then, in this order: the kernel that blocks the stream, the start event, the calls (one graph, or each launched on its own), the stop event, the release.
2. Everything runs on one stream of our own, which is torch's current stream from the moment that the device is made.
3. A graph is replayed once before it is timed. Events and graphs are made once per timer. All graphs take what a call allocates from one pool, so that
   equal calls find it at equal addresses: no two graphs run at once, and no call leaves anything there (``benchkit.kernels.contract``).
4. The block gives up after five seconds, so that nothing hangs; a sample whose block gave up is marked as not blocked.
5. A duration is the driver's float32 number of milliseconds x 1e6, rounded; zero and negative ones are passed on.
"""

import ctypes
import itertools
import os
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch

from benchkit.cuda_source import Cubin, Module, bindings, checked, compile_cubin
from benchkit.device import telemetry
from benchkit.device.cuda_graph import graph_kernels
from benchkit.device.ports import LaunchedKernel, Reading, Timing
from benchkit.errors import MachineError, WorkerError
from benchkit.units import NS_PER_MS

LAUNCH_MODES = ("graph", "eager")
CACHE_MODES = ("cold-rotate", "cold-flush", "warm")

SOURCE = r"""
typedef long long i64;

static __device__ __forceinline__ i64 now() {
    i64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t) :: "memory");
    return t;
}

// words[0]: the highest ticket that the host has released; words[1]: the last ticket whose wait was given up.
extern "C" __global__ void benchkit_block(volatile int* words, int ticket, i64 limit_ns) {
    const i64 start = now();
    while (words[0] < ticket) {
        if (now() - start > limit_ns) {
            words[1] = ticket;
            __threadfence_system();
            return;
        }
    }
}

extern "C" __global__ void benchkit_delay(const volatile i64* length_ns) {
    const i64 start = now(), length = *length_ns;
    if (length <= 0) return;
    while (now() - start < length) {}
}
"""

_BLOCK_LIMIT_NS = 5_000_000_000
_TICK_SAMPLES = 384
_TICK_STEP_NS = 37  # odd, so that the delays meet every phase of the event clock


def load_drivers() -> None:
    """Import what a device calls besides torch, and call nothing of it."""
    for name in ("driver", "nvrtc"):
        bindings(name)
    import_module("pynvml")


def compile_device(arch: str) -> Cubin:
    """The kernels that block and delay."""
    return compile_cubin(SOURCE, name="device.cu", arch=arch)


def duration_ns(milliseconds: float) -> int:
    """The driver's float32 milliseconds as whole nanoseconds."""
    return round(milliseconds * NS_PER_MS)


def smallest_step(values: list[int]) -> int:
    """The smallest positive difference between any two of ``values``; MachineError where all are equal."""
    distinct = sorted(set(values))
    steps = [later - earlier for earlier, later in itertools.pairwise(distinct)]
    if not steps:
        raise MachineError(
            f"expected an event clock that advances, found {len(values)} equal intervals of {values[0]} ns"
        )
    return min(steps)


class StreamBlock:
    """Blocks a stream until ``release``; one ticket a use, so that nothing has to be reset between samples."""

    def __init__(self, module: Module) -> None:
        self._words = torch.zeros(2, dtype=torch.int32, pin_memory=True)
        self._host = (ctypes.c_int32 * 2).from_address(self._words.data_ptr())
        self._ticket = ctypes.c_int32(0)
        pointer, limit = ctypes.c_void_p(self._words.data_ptr()), ctypes.c_int64(_BLOCK_LIMIT_NS)
        self._launch = module.launch("benchkit_block", pointer, self._ticket, limit, grid=1, block=1)

    def enqueue(self, stream: int) -> None:
        """Put the block on ``stream``."""
        self._ticket.value += 1
        self._launch(stream)

    def release(self) -> None:
        """Let the stream run on."""
        self._host[0] = self._ticket.value

    @property
    def gave_up(self) -> bool:
        """Whether the last block ended by itself; ask when the stream has been waited for."""
        return int(self._host[1]) == self._ticket.value


class CudaTimer:
    """Times ``calls`` calls of one arm at one point; made by ``CudaDevice.timer``."""

    def __init__(self, device: "CudaDevice", call: Callable[[int], None], order: tuple[int, ...], with_delay: bool):
        self._device, self._call, self._order = device, call, order
        self._start, self._stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._length = torch.zeros(1, dtype=torch.int64, device=device.torch_device) if with_delay else None
        self._delay = None if self._length is None else device.delay_launch(self._length.data_ptr())
        with torch.cuda.stream(device.stream):
            for copy in sorted(set(order)):  # whatever is loaded or allocated on first use happens here
                call(copy)
            device.synchronize()
            self._graph = device.capture(self._work) if device.launch == "graph" else None
            self.run()

    def _work(self) -> None:
        for copy in self._order:
            self._call(copy)
        if self._delay is not None:
            self._delay(self._device.stream.cuda_stream)

    def _set_delay(self, length_ns: int) -> None:
        if self._length is not None:
            with torch.inference_mode():  # the cell may have been made in it
                self._length.fill_(length_ns)

    def _enqueue(self) -> None:
        if self._graph is None:
            self._work()
        else:
            self._graph.replay()

    def run(self) -> None:
        """The work of one sample once, untimed; returns when it is done."""
        device = self._device
        with torch.cuda.stream(device.stream):
            self._set_delay(0)
            self._enqueue()
        device.synchronize()

    def sample(self, *, injected_ns: int) -> Timing:
        """One timed sample. ValueError on a negative delay, or on one that the timer was not prepared for."""
        if injected_ns < 0 or (injected_ns and self._length is None):
            raise ValueError(
                f"expected a delay of 0 ns (with_delay is {self._length is not None}), found {injected_ns}"
            )
        device = self._device
        with torch.cuda.stream(device.stream):
            device.prepare_caches()
            self._set_delay(injected_ns)
            device.block.enqueue(device.stream.cuda_stream)
            self._start.record(device.stream)
            self._enqueue()
            self._stop.record(device.stream)
            blocked = not self._start.query()
            host_start = time.perf_counter_ns()
            device.block.release()
            self._stop.synchronize()
            host_end = time.perf_counter_ns()
            device.synchronize()
            post_sync = time.perf_counter_ns()
        return Timing(
            duration_ns=duration_ns(self._start.elapsed_time(self._stop)),
            host_start_ns=host_start,
            host_end_ns=host_end,
            post_sync_ns=post_sync - host_end,
            blocked=blocked and not device.block.gave_up,
            flush_ns=device.flush_ns(),
        )


class CudaDevice:
    """The first visible GPU.

    Parameters
    ----------
    launch:
        ``graph``: the calls of a sample are one CUDA graph; ``eager``: each call launches its own work.
    cache:
        ``cold-flush`` overwrites twice the L2 before each sample; ``cold-rotate`` and ``warm`` leave it to the calls.
    """

    name = "cuda"

    def __init__(self, *, launch: str = "graph", cache: str = "cold-rotate") -> None:
        if launch not in LAUNCH_MODES or cache not in CACHE_MODES:
            raise ValueError(f"expected one of {LAUNCH_MODES} and one of {CACHE_MODES}, found {launch} and {cache}")
        if not torch.cuda.is_available():
            raise MachineError("expected a GPU that torch can use, found none; run on a machine with one")
        if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0":
            raise MachineError("expected launches that return at once, found CUDA_LAUNCH_BLOCKING set; unset it")
        self.launch, self.cache = launch, cache
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._properties = torch.cuda.get_device_properties(self.torch_device)
        self.l2_bytes = int(self._properties.L2_cache_size)
        flushed = 2 * self.l2_bytes if cache == "cold-flush" else 0
        self._flush = torch.empty(flushed, dtype=torch.uint8, device=self.torch_device)
        self._flush_events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.stream = torch.cuda.Stream(self.torch_device)
        torch.cuda.set_stream(self.stream)
        self._driver = bindings("driver")
        cubin = compile_device(f"sm_{self._properties.major}{self._properties.minor}")
        self.binaries: Mapping[str, str] = {"device.cubin": cubin.sha256}
        self._module = Module(cubin)
        self._pool: Any = None
        self._keeps_pool = self._empty_graph()
        self._pool = self._keeps_pool.pool()
        self.block = StreamBlock(self._module)
        self._telemetry = telemetry.open_by_uuid(str(self._properties.uuid), self._pci_bus_id())
        self.clock_tick_ns = self._measure_tick()

    def timer(self, call: Callable[[int], None], *, calls: int, copies: int, with_delay: bool) -> CudaTimer:
        """A timer of ``calls`` calls over ``copies`` copies; ValueError on fewer than one of either."""
        if calls < 1 or copies < 1:
            raise ValueError(f"expected at least 1 call and 1 copy, found {calls} and {copies}")
        self.synchronize()
        return CudaTimer(self, call, tuple(i % copies for i in range(calls)), with_delay)

    def kernels(self, call: Callable[[int], None]) -> tuple[LaunchedKernel, ...]:
        """What one call launches, from its captured graph; the call has to have run before."""
        with torch.cuda.stream(self.stream):
            graph = self.capture(lambda: call(0), keep=True)
        return graph_kernels(int(graph.raw_cuda_graph()))

    def synchronize(self) -> None:
        """Wait for all work on the GPU."""
        torch.cuda.synchronize(self.torch_device)

    def reading(self) -> Reading | None:
        """Clocks, temperature and power now."""
        return self._telemetry.reading()

    def describe(self) -> Mapping[str, object]:
        """The device's part of the environment record."""
        properties, facts = self._properties, self._telemetry.facts()
        version = int(checked(self._driver.cuDriverGetVersion(), "cuDriverGetVersion"))
        return {
            "device": self.name,
            "driver": facts.driver,
            "cuda_runtime": torch.version.cuda,
            "cuda_driver_max": telemetry.cuda_version_text(version),
            "gpu": {
                "name": str(properties.name),
                "uuid": telemetry.nvml_uuid(str(properties.uuid)),
                "compute_capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": int(properties.total_memory),
                "sm_count": int(properties.multi_processor_count),
                **self._telemetry.settings(),
            },
        }

    def capture(self, work: Callable[[], None], *, keep: bool = False) -> Any:
        """``work`` as a CUDA graph on this device's stream; ``keep`` keeps the graph's nodes to be read."""
        graph = torch.cuda.CUDAGraph(keep_graph=True) if keep else torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self.stream):
                work()
        except RuntimeError as error:
            raise WorkerError(f"expected calls that a CUDA graph can capture, found: {error}") from error
        return graph

    def prepare_caches(self) -> None:
        """What stands before the block of every sample: no persisting lines, and the flush where the protocol wants it."""
        checked(self._driver.cuCtxResetPersistingL2Cache(), "cuCtxResetPersistingL2Cache")
        if self._flush.numel():
            with torch.inference_mode():
                self._flush_events[0].record(self.stream)
                self._flush.zero_()
                self._flush_events[1].record(self.stream)

    def flush_ns(self) -> int | None:
        """How long the last flush took; None where the protocol wants none."""
        first, last = self._flush_events
        return duration_ns(first.elapsed_time(last)) if self._flush.numel() else None

    def delay_launch(self, length: int) -> Callable[[int], None]:
        """A launch that waits as many nanoseconds as the int64 at device address ``length`` says."""
        return self._module.launch("benchkit_delay", ctypes.c_void_p(length), grid=1, block=1)

    def _empty_graph(self) -> Any:
        """A graph that does nothing; as long as it is there, so is the pool that others share."""
        length = torch.zeros(1, dtype=torch.int64, device=self.torch_device)
        wait = self.delay_launch(length.data_ptr())
        wait(self.stream.cuda_stream)  # what is loaded on first use cannot be in a capture
        return self.capture(lambda: wait(self.stream.cuda_stream))

    def _pci_bus_id(self) -> str | None:
        parts = [getattr(self._properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        if any(part is None for part in parts):
            return None
        return "{:08X}:{:02X}:{:02X}.0".format(*(int(part or 0) for part in parts))

    def _measure_tick(self) -> int:
        """The step of the event clock: the smallest difference among intervals around delays of 0 ns, 37 ns, 74 ns, ..."""
        lengths = torch.arange(_TICK_SAMPLES, dtype=torch.int64, device=self.torch_device) * _TICK_STEP_NS
        self.synchronize()
        pairs = []
        for index in range(_TICK_SAMPLES):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(self.stream)
            self.delay_launch(lengths.data_ptr() + 8 * index)(self.stream.cuda_stream)
            stop.record(self.stream)
            pairs.append((start, stop))
        self.synchronize()
        return smallest_step([duration_ns(start.elapsed_time(stop)) for start, stop in pairs])
