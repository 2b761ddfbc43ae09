"""The bench of scripted runs: nothing is computed, every duration comes from the script (``benchkit.device.fake``)."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchkit.device.fake import FakeCall, FakeDevice, FakeScript
from benchkit.device.ports import Device
from benchkit.kernels.contract import PreparedArm, Support
from benchkit.protocol.model import Arm, Point, Protocol
from benchkit.run.bench import Accuracy
from benchkit.units import FloatArray

_RIGHT = np.array([[1.0, 2.0]])
_WRONG = np.array([[2.0, -1.0]])
_HALF_STEP = 2.0**-10  # of float16 above 1


class FakeBench:
    """Arms that do nothing on a device that says how long it took."""

    def __init__(self, protocol: Protocol, script: FakeScript, *, process: int) -> None:
        self._protocol = protocol
        self._script = script
        timing = protocol.timing
        self._fake = FakeDevice(script, clock=timing.clock, cache=timing.cache, process=process)
        self.device: Device = self._fake

    def packages(self) -> Sequence[str]:
        """No package takes part."""
        return ()

    def threads(self) -> int:
        """One."""
        return 1

    def arm(self, arm: Arm, point: Point) -> PreparedArm | Support:
        """A call that names its arm; wrong or unsupported where the script says so."""
        if f"{arm.name}@{point.id}" in self._script.unsupported:
            return Support.no("the script says so")

        def output() -> FloatArray:
            replayed_wrong = arm.name in self._script.wrong_replay and arm.name in self._fake.replayed
            return _WRONG if replayed_wrong or arm.name in self._script.wrong else _RIGHT

        return PreparedArm(
            call=FakeCall(arm=arm.name, of=arm.of or arm.name, point=point.id),
            output=output,
            poison=lambda: None,
            expected=lambda truth: _RIGHT,
            output_bytes=lambda: output().tobytes(),
            scratch_bytes=0,
        )

    def among(self, arm: Arm, point: Point, largest: Point) -> PreparedArm | Support:
        """The arm, one half-precision step away where the script says so."""
        prepared = self.arm(arm, point)
        if isinstance(prepared, Support) or f"{arm.name}@{point.id}" not in self._script.batch_variant:
            return prepared
        return replace(prepared, output=lambda: _RIGHT + _HALF_STEP)

    def accuracy(self, output: FloatArray, expected: FloatArray) -> Accuracy:
        """Right or wrong."""
        if np.array_equal(output, expected):
            return Accuracy(min_cosine=1.0, max_abs_error=0.0, rel_error=0.0)
        return Accuracy(min_cosine=0.0, max_abs_error=float(np.abs(output - expected).max()), rel_error=1.4)

    def fixture_sha256(self) -> str:
        """Digest of nothing."""
        return hashlib.sha256(b"fake").hexdigest()

    def binaries(self) -> Mapping[str, str]:
        """None."""
        return {}
