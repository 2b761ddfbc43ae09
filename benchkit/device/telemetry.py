"""Clocks, temperature, power and throttle reasons through NVML; no torch.

Rules:
1. A reading is of one moment; nothing is averaged or smoothed.
2. A GPU is found by its UUID or PCI bus id, never by torch's index: ``CUDA_VISIBLE_DEVICES`` renumbers indices for CUDA, not for NVML.
3. A machine that refuses one of the readings has no telemetry at all: a made-up number would look like a result.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchkit.device.ports import Reading
from benchkit.errors import MachineError

# NVML's bit mask of reasons why clocks are below their maximum.
REASONS: Mapping[int, str] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
SLOWDOWN_MASK = 0x8 | 0x20 | 0x40 | 0x80  # what the gate `clocks` counts


def reason_names(mask: int) -> tuple[str, ...]:
    """Words for the set bits of ``mask``, lowest bit first; unknown bits as hexadecimal numbers."""
    bits = [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
    return tuple(REASONS.get(bit, hex(bit)) for bit in bits)


def nvml_uuid(uuid: str) -> str:
    """The UUID as NVML spells it: torch gives it without the prefix ``GPU-``."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def visible_gpu(environment: Mapping[str, str]) -> int | str | None:
    """The first GPU that CUDA may see: an index, a UUID (or its beginning), or None where none is visible."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return 0
    first = listed.split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return first
    return int(first) if first.isdigit() else None


def cuda_version_text(number: int) -> str:
    """``13000`` as ``13.0``."""
    return f"{number // 1000}.{number % 1000 // 10}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What NVML says about a GPU that does not change during a run."""

    name: str
    uuid: str
    compute_capability: str
    memory_bytes: int
    driver: str
    cuda_driver_max: str


class GpuTelemetry:
    """One GPU seen through NVML. Make it with ``open_by_uuid`` or ``open_first_visible``."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        self._reasons = next(getattr(nvml, name) for name in names if hasattr(nvml, name))

    def reading(self) -> Reading | None:
        """A reading now, or None where the machine refuses one of its numbers."""
        nvml, handle = self._nvml, self._handle
        try:
            return Reading(
                sm_clock_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                memory_clock_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
                temperature_c=int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
                throttle_reasons=int(self._reasons(handle)),
            )
        except nvml.NVMLError:
            return None

    def facts(self) -> GpuFacts:
        """Name, UUID, compute capability, memory, driver."""
        nvml, handle = self._nvml, self._handle
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return GpuFacts(
            name=_text(nvml.nvmlDeviceGetName(handle)),
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            compute_capability=f"{major}.{minor}",
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
            cuda_driver_max=cuda_version_text(int(nvml.nvmlSystemGetCudaDriverVersion())),
        )

    def settings(self) -> Mapping[str, object]:
        """What an operator may have set: ``power_limit_w``, ``max_sm_clock_mhz``, ``ecc``, ``mig``; None where the GPU has or tells none."""
        nvml, handle = self._nvml, self._handle
        reads: Mapping[str, Callable[[], object]] = {
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000.0,
            "max_sm_clock_mhz": lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
            "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
        }
        return {name: self._asked(read) for name, read in reads.items()}

    def _asked(self, read: Callable[[], object]) -> object:
        try:
            return read()
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _nvml() -> Any:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise MachineError(
            'expected the package nvidia-ml-py, found none; install this tool with its extra [cuda] (README.md, "Installing")'
        ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise MachineError(f"expected an NVIDIA driver, found none ({error}); run on a machine with a GPU") from error
    return nvml


def open_by_uuid(uuid: str, pci_bus_id: str | None = None) -> GpuTelemetry:
    """Telemetry of the GPU with this UUID (with or without ``GPU-``), else of the one at this PCI bus id."""
    nvml = _nvml()
    try:
        return GpuTelemetry(nvml, nvml.nvmlDeviceGetHandleByUUID(nvml_uuid(uuid)))
    except nvml.NVMLError as error:
        if pci_bus_id is None:
            raise MachineError(f"expected NVML to know the GPU {nvml_uuid(uuid)}, found: {error}") from error
    try:
        return GpuTelemetry(nvml, nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id))
    except nvml.NVMLError as error:
        raise MachineError(f"expected NVML to know the GPU {nvml_uuid(uuid)} ({pci_bus_id}), found: {error}") from error


def open_first_visible() -> GpuTelemetry:
    """Telemetry of the GPU that a worker will use: the first in ``CUDA_VISIBLE_DEVICES``, else the machine's first."""
    wanted = visible_gpu(os.environ)
    if wanted is None:
        raise MachineError("expected a visible GPU, found none in CUDA_VISIBLE_DEVICES; unset the variable")
    nvml = _nvml()
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(wanted) if isinstance(wanted, int) else _by_prefix(nvml, wanted)
    except nvml.NVMLError as error:
        raise MachineError(f"expected a GPU {wanted}, found: {error}") from error
    return GpuTelemetry(nvml, handle)


def _by_prefix(nvml: Any, uuid: str) -> Any:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    for handle in handles:
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(uuid):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(uuid)
