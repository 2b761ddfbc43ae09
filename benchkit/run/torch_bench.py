"""The real bench: inputs by seed, kernels of the registry, the host or a CUDA device. Imports torch; only workers load it.

Rules:
1. Weights are made once per process and shared by all arms and points; scratch and output are an arm's own, or those of all arms of one kernel at a point.
2. The device follows from the protocol's clock: ``host`` runs on the CPU, ``cuda-event`` on the CUDA device.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import torch

from benchkit.device.binaries import loaded_binaries
from benchkit.device.host import HostDevice
from benchkit.device.ports import Device
from benchkit.fixture.arrays import ArrayInputs, arrays_sha256, make_arrays
from benchkit.fixture.layer import MoeInputs, MoeWeights, first_tokens, fixture_sha256, make_inputs, make_weights
from benchkit.fixture.traffic import routing_at
from benchkit.kernels import registry
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.reference import compare
from benchkit.protocol.model import Arm, ArraysFixture, Point, Protocol, Role
from benchkit.run.bench import Accuracy
from benchkit.units import MIB, FloatArray

_HOST_PACKAGES = ("torch", "numpy")
_CUDA_PACKAGES = (*_HOST_PACKAGES, "triton", "cuda-bindings", "nvidia-ml-py")
_CEILING_SEED = 0


class TorchBench:
    """Inputs and arms as torch tensors on the protocol's device."""

    def __init__(self, protocol: Protocol, *, folder: Path, digest_cache: Path) -> None:
        self._protocol = protocol
        self._folder = folder
        self._digest_cache = digest_cache
        self._on_cuda = protocol.timing.clock == "cuda-event"
        self.device: Device = _cuda_device(protocol) if self._on_cuda else HostDevice()
        self._weights: MoeWeights | None = None
        self._points: dict[str, MoeInputs | ArrayInputs] = {}
        self._ceilings: dict[int, ArrayInputs] = {}

    def packages(self) -> Sequence[str]:
        """torch, what stands around it, and what the arms run beside it."""
        ours = _CUDA_PACKAGES if self._on_cuda else _HOST_PACKAGES
        arms = {name for arm in self._protocol.arms for name in registry.entry(arm.kernel).packages}
        return (*ours, *sorted(arms))

    def threads(self) -> int:
        """torch's threads."""
        return int(torch.get_num_threads())

    def arm(self, arm: Arm, point: Point) -> PreparedArm | Support:
        """The registry's kernel with the locked parameters."""
        return self.prepare(arm, point, arm.params_at(point.id))

    def prepare(self, arm: Arm, point: Point, params: Params) -> PreparedArm | Support:
        """The registry's kernel with any parameters (tuning tries many)."""
        with torch.inference_mode():
            return registry.prepare(arm.kernel, self.inputs(arm, point), params)

    def among(self, arm: Arm, point: Point, largest: Point) -> PreparedArm | Support:
        """The registry's kernel with the parameters of ``point`` on as many tokens as it has, out of those of ``largest``."""
        inputs = self._inputs(largest)
        if not isinstance(inputs, MoeInputs):
            raise ValueError(f"{largest.id}: tokens are those of a moe fixture")
        with torch.inference_mode():
            part = first_tokens(inputs, point.integer("batch"))
            return registry.prepare(arm.kernel, part, arm.params_at(point.id))

    def inputs(self, arm: Arm, point: Point) -> MoeInputs | ArrayInputs:
        """What the arm gets at the point: a ceiling arrays of its own size, every other arm the fixture's inputs."""
        if arm.role is Role.CEILING and arm.ceiling_bytes is not None:
            return self._ceiling_inputs(arm.ceiling_bytes)
        return self._inputs(point)

    def accuracy(self, output: FloatArray, expected: FloatArray) -> Accuracy:
        """The metrics of ``benchkit.kernels.reference``."""
        return Accuracy(**asdict(compare(output, expected)))

    def fixture_sha256(self) -> str:
        """Digest of the layer and its inputs, or of the arrays of every point."""
        moe = {name: inputs for name, inputs in self._points.items() if isinstance(inputs, MoeInputs)}
        if self._weights is not None:
            return fixture_sha256(self._weights, moe)
        digest = hashlib.sha256()
        for name, inputs in sorted(self._points.items()):
            if isinstance(inputs, ArrayInputs):
                digest.update(f"{name} {arrays_sha256(inputs)}\n".encode())
        return digest.hexdigest()

    def binaries(self) -> Mapping[str, str]:
        """Loaded shared objects of torch, CUDA, NVRTC, Triton and vLLM, and the device's own code."""
        return {**loaded_binaries(self._digest_cache), **self.device.binaries}

    def _inputs(self, point: Point) -> MoeInputs | ArrayInputs:
        if point.id not in self._points:
            self._points[point.id] = self._make_inputs(point)
        return self._points[point.id]

    def _make_inputs(self, point: Point) -> MoeInputs | ArrayInputs:
        fixture, device = self._protocol.fixture, "cuda" if self._on_cuda else "cpu"
        if isinstance(fixture, ArraysFixture):
            size = point.integer("mib") * MIB
            return make_arrays(seed=fixture.seed, bytes=size, copies=fixture.copies, device=device)
        if self._weights is None:
            self._weights = make_weights(
                seed=fixture.weight_seed,
                experts=fixture.experts,
                hidden=fixture.hidden,
                intermediate=fixture.intermediate,
                copies=fixture.copies,
                device=device,
                weight_format=fixture.weight_format,
            )
        routing = routing_at(self._protocol, point, self._folder)
        if routing is None:
            raise ValueError(f"{point.id}: a moe fixture has a routing")
        return make_inputs(self._weights, routing)

    def _ceiling_inputs(self, size: int) -> ArrayInputs:
        if size not in self._ceilings:
            device = "cuda" if self._on_cuda else "cpu"
            copies = self._protocol.fixture.copies
            self._ceilings[size] = make_arrays(seed=_CEILING_SEED, bytes=size, copies=copies, device=device)
        return self._ceilings[size]


def _cuda_device(protocol: Protocol) -> Device:
    from benchkit.device.cuda import CudaDevice

    device: Device = CudaDevice(launch=protocol.timing.launch, cache=protocol.timing.cache)
    return device


def load_cuda(protocol: Protocol) -> None:
    """Import what the bench of a protocol on the event clock will use; no GPU is touched."""
    from benchkit.device.cuda import load_drivers

    load_drivers()
    for arm in protocol.arms:
        import_module(registry.entry(arm.kernel).module)
