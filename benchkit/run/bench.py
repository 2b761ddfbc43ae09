"""The bench port: everything that a worker needs of fixture, kernels and device, in one place.

A worker knows plans and tables; a bench knows inputs, arms and clocks. ``torch_bench`` is the real one, ``fake_bench`` the scripted one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchkit.device.ports import Device
from benchkit.kernels.contract import PreparedArm, Support
from benchkit.protocol.model import Arm, Point
from benchkit.units import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How an output differs from the truth: worst cosine over tokens, largest absolute error, relative error in the 2-norm."""

    min_cosine: float
    max_abs_error: float
    rel_error: float


class Bench(Protocol):
    """Inputs, arms and device of one process."""

    device: Device

    def packages(self) -> Sequence[str]:
        """Distributions whose versions belong into the environment record."""

    def threads(self) -> int:
        """Threads that a call may use."""

    def arm(self, arm: Arm, point: Point) -> PreparedArm | Support:
        """The arm, ready to be called at the point, or why it cannot be."""

    def among(self, arm: Arm, point: Point, largest: Point) -> PreparedArm | Support:
        """The arm as at ``point``, on the first tokens of the inputs of ``largest``."""

    def accuracy(self, output: FloatArray, expected: FloatArray) -> Accuracy:
        """Compare an output with the truth."""

    def fixture_sha256(self) -> str:
        """Digest of weights and inputs of all points."""

    def binaries(self) -> Mapping[str, str]:
        """Loaded third-party binaries and their SHA-256."""
