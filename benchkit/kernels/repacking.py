"""What it costs to bring one copy of a layer from the checkpoint's layout into the one that an arm reads."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from benchkit.kernels.contract import Repacking


class Sized(Protocol):
    """Weights that know their bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        ...


Packed = TypeVar("Packed", bound=Sized)


def timed(make: Callable[[], Packed]) -> tuple[Packed, Repacking]:
    """What ``make`` gives, with its bytes and the time that it took on an idle device."""
    _synchronize()
    start = time.perf_counter_ns()
    packed = make()
    _synchronize()
    return packed, Repacking(duration_ns=time.perf_counter_ns() - start, nbytes=packed.nbytes)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
