"""Telemetry: bit masks, which GPU is meant, readings of a scripted NVML."""

from types import SimpleNamespace

import pytest

from benchkit.device import telemetry
from benchkit.device.ports import Reading
from benchkit.device.telemetry import GpuFacts, GpuTelemetry, cuda_version_text, nvml_uuid, reason_names, visible_gpu
from benchkit.errors import MachineError


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0, ()),
        (0x1, ("idle",)),
        (0x4 | 0x40, ("software power cap", "hardware thermal slowdown")),
        (0x80 | 0x400, ("hardware power brake", "0x400")),
    ],
)
def test_reason_names(mask, names):
    assert reason_names(mask) == names


def test_the_gate_counts_slowdowns_alone():
    assert telemetry.SLOWDOWN_MASK == 0xE8


@pytest.mark.parametrize(
    ("environment", "gpu"),
    [
        ({}, 0),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, 3),
        ({"CUDA_VISIBLE_DEVICES": " GPU-8f9e , 1"}, "GPU-8f9e"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, None),
    ],
)
def test_visible_gpu(environment, gpu):
    assert visible_gpu(environment) == gpu


def test_spellings():
    assert nvml_uuid("8f9e") == nvml_uuid("GPU-8f9e") == "GPU-8f9e"
    assert nvml_uuid("MIG-1") == "MIG-1"
    assert (cuda_version_text(13000), cuda_version_text(12090)) == ("13.0", "12.9")


class NvmlError(Exception):
    """NVML's only exception."""


def scripted_nvml(**changes: object) -> SimpleNamespace:
    """An NVML with two GPUs, GPU-aa and GPU-bb; handles are their UUIDs."""

    def known(handle: str) -> str:
        if handle not in ("GPU-aa", "GPU-bb"):
            raise NvmlError("not found")
        return handle

    nvml = SimpleNamespace(
        NVMLError=NvmlError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: ("GPU-aa", "GPU-bb")[index],
        nvmlDeviceGetHandleByUUID=known,
        nvmlDeviceGetHandleByPciBusId=lambda bus: "GPU-bb",
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetName=lambda handle: b"NVIDIA H200",
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=150_754_820_096),
        nvmlSystemGetDriverVersion=lambda: "580.159.03",
        nvmlSystemGetCudaDriverVersion=lambda: 13000,
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetTemperature=lambda handle, kind: 41,
        nvmlDeviceGetPowerUsage=lambda handle: 123_456,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 4,
    )
    for name, value in changes.items():
        setattr(nvml, name, value)
    return nvml


def refuse(*arguments: object) -> None:
    """What NVML does with a query that the GPU does not support."""
    raise NvmlError("not supported")


def test_reading():
    assert GpuTelemetry(scripted_nvml(), "GPU-aa").reading() == Reading(
        sm_clock_mhz=1980, memory_clock_mhz=3201, temperature_c=41, power_w=123.456, throttle_reasons=4
    )


def test_the_newer_name_of_the_reasons_wins():
    nvml = scripted_nvml(nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 8)
    reading = GpuTelemetry(nvml, "GPU-aa").reading()
    assert reading is not None
    assert reading.throttle_reasons == 8


def test_a_refused_reading_is_none_and_no_zero():
    assert GpuTelemetry(scripted_nvml(nvmlDeviceGetPowerUsage=refuse), "GPU-aa").reading() is None


def test_facts():
    assert GpuTelemetry(scripted_nvml(), "GPU-bb").facts() == GpuFacts(
        name="NVIDIA H200",
        uuid="GPU-bb",
        compute_capability="9.0",
        memory_bytes=150_754_820_096,
        driver="580.159.03",
        cuda_driver_max="13.0",
    )


def test_what_an_operator_may_have_set():
    nvml = scripted_nvml(
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {1: 1980}[kind],
        nvmlDeviceGetEccMode=lambda handle: (1, 0),
        nvmlDeviceGetMigMode=refuse,
    )
    assert GpuTelemetry(nvml, "GPU-aa").settings() == {
        "power_limit_w": 700.0,
        "max_sm_clock_mhz": 1980,
        "ecc": True,
        "mig": None,
    }


def opened(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> str:
    """UUID of the first visible GPU of the scripted NVML."""
    monkeypatch.setattr(telemetry, "_nvml", scripted_nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    return telemetry.open_first_visible().facts().uuid


@pytest.mark.parametrize(
    ("visible", "uuid"), [(None, "GPU-aa"), ("1", "GPU-bb"), ("GPU-bb", "GPU-bb"), ("GPU-b", "GPU-bb")]
)
def test_the_first_visible_gpu(visible, uuid, monkeypatch):
    assert opened(monkeypatch, visible) == uuid


@pytest.mark.parametrize(("visible", "text"), [("", "found none in CUDA_VISIBLE_DEVICES"), ("GPU-c", "a GPU GPU-c")])
def test_no_such_gpu(visible, text, monkeypatch):
    with pytest.raises(MachineError, match=text):
        opened(monkeypatch, visible)


def test_by_uuid_then_by_bus(monkeypatch):
    monkeypatch.setattr(telemetry, "_nvml", scripted_nvml)
    assert telemetry.open_by_uuid("aa").facts().uuid == "GPU-aa"
    assert telemetry.open_by_uuid("cc", "00000000:17:00.0").facts().uuid == "GPU-bb"
    with pytest.raises(MachineError, match="expected NVML to know the GPU GPU-cc, found: not found"):
        telemetry.open_by_uuid("cc")
