"""The arm port: what a kernel has to offer to be measured.

Rules:
1. A kernel module offers functions ``prepare(inputs, params) -> PreparedArm | Support``; the registry names the function of each kernel id.
2. Everything that is not part of a call (repacking, workspaces, compilation, tuning tables) happens in ``prepare``, never in ``call``.
3. ``call(copy)`` does one complete call on weight copy ``copy`` and returns without waiting for the device; it allocates nothing that outlives it,
   reads only the fixture's inputs and overwrites its whole output.
4. ``call`` keeps alive all memory that it touches, also where nothing else of the arm is kept.
5. ``Support.no(reason)`` is an answer, not an error: the reason stands in the bundle.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchkit.units import FloatArray

Params: TypeAlias = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Whether an arm can run at a point, and if not, why."""

    reason: str | None

    @classmethod
    def no(cls, reason: str) -> "Support":
        """Not supported, because of ``reason`` (a sentence with the expected and the found value)."""
        if not reason:
            raise ValueError("an unsupported decision requires a reason")
        return cls(reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repacking:
    """What an arm does once to weights before it can be called: one copy of the layer from the checkpoint's layout into its own.

    Parameters
    ----------
    duration_ns:
        On the host's clock, the device idle before and after.
    nbytes:
        Bytes of the result.
    """

    duration_ns: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedArm:
    """An arm ready to be called at one operating point.

    Parameters
    ----------
    call:
        ``call(copy)``: one complete call on weight copy ``copy``.
    output:
        The output of the last call as fp64, any shape; ``poison`` must be undone by the next call.
    poison:
        Overwrites the output with NaN, so that a call that writes nothing is seen.
    expected:
        ``expected(truth)``: what ``output`` should be in fp64, for truth ``stored`` or ``original``.
    output_bytes:
        The raw bytes of the last output, for its digest.
    scratch_bytes:
        Device memory of this arm beside inputs, weights and output.
    binaries:
        Name -> SHA-256 of compiled code that the arm loads beside Python packages.
    mode:
        The mode that the last call ran in, where one set of inputs has several (SHA-256 of its route-block membership); None for an arm
        that has no such choice.
    repacking:
        What repacking the weights cost; None for an arm that reads them as the fixture has them.
    """

    call: Callable[[int], None]
    output: Callable[[], FloatArray]
    poison: Callable[[], None]
    expected: Callable[[str], FloatArray]
    output_bytes: Callable[[], bytes]
    scratch_bytes: int
    binaries: Mapping[str, str] = field(default_factory=dict)
    mode: Callable[[], str] | None = None
    repacking: Repacking | None = None


Prepare: TypeAlias = Callable[[Any, Params], PreparedArm | Support]
