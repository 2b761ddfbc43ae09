"""Memory ceilings of the host: how fast torch copies an array, and how fast it reads one.

Rules:
1. A copy counts read + write = 2 x bytes, a read counts bytes; call i works on array i mod copies.
2. What is checked is every element: a copy by its bits, a read by the sums of its segments.
"""

from collections.abc import Callable

import numpy as np
import torch

from benchkit.fixture.arrays import ArrayInputs
from benchkit.fixture.layer import tensor_bytes
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.threads import choose_threads, use_threads
from benchkit.units import FloatArray

_SEGMENTS = 64  # of a copy's check


def prepare_copy(inputs: ArrayInputs, params: Params) -> PreparedArm | Support:
    """``target.copy_(source)`` on ``threads`` threads.

    Its output: per segment the share of elements with exactly the source's bits.
    """
    threads = _threads(inputs, params)
    if isinstance(threads, Support):
        return threads
    last = 0

    def call(copy: int) -> None:
        nonlocal last
        last = copy
        use_threads(threads)
        with torch.inference_mode():
            inputs.targets[copy].copy_(inputs.sources[copy])

    def poison() -> None:
        with torch.inference_mode():
            for target in inputs.targets:
                target.fill_(float("nan"))

    def output() -> FloatArray:
        same = inputs.targets[last].view(torch.int32) == inputs.sources[last].view(torch.int32)
        return np.array([float(part.double().mean()) for part in same.tensor_split(_segments(inputs))])

    return PreparedArm(
        call=call,
        output=output,
        poison=poison,
        expected=lambda truth: np.ones(_segments(inputs)),
        output_bytes=lambda: tensor_bytes(inputs.targets[last]),
        scratch_bytes=0,
    )


def prepare_read(inputs: ArrayInputs, params: Params) -> PreparedArm | Support:
    """The sum of each of ``segments`` equal parts on ``threads`` threads.

    It is a product with ones: of torch's reductions the fastest reader.
    """
    threads, segments = _threads(inputs, params), int(params["segments"])
    if isinstance(threads, Support):
        return threads
    elements = inputs.sources[0].numel()
    if segments < 1 or elements % segments:
        return Support.no(f"segments: expected a divisor of {elements} elements, found {segments}")
    views = tuple(source.view(segments, -1) for source in inputs.sources)
    ones = torch.ones(elements // segments)
    sums = torch.empty(segments)

    def call(copy: int) -> None:
        use_threads(threads)
        with torch.inference_mode():
            torch.mv(views[copy], ones, out=sums)

    def poison() -> None:
        with torch.inference_mode():
            sums.fill_(float("nan"))

    return PreparedArm(
        call=call,
        output=lambda: _float64(sums),
        poison=poison,
        expected=_once(lambda: _float64(views[0].sum(dim=1, dtype=torch.float64))),
        output_bytes=lambda: tensor_bytes(sums),
        scratch_bytes=int(ones.nbytes),
    )


def _once(make: Callable[[], FloatArray]) -> Callable[[str], FloatArray]:
    """``expected`` for arms with one truth, computed when first asked for."""
    made: list[FloatArray] = []

    def expected(truth: str) -> FloatArray:
        if not made:
            made.append(make())
        return made[0]

    return expected


def _segments(inputs: ArrayInputs) -> int:
    return min(_SEGMENTS, int(inputs.sources[0].numel()))


def _float64(values: torch.Tensor) -> FloatArray:
    return np.array(values.numpy(), dtype=np.float64)


def _threads(inputs: ArrayInputs, params: Params) -> int | Support:
    """The threads of the arm's calls, or why it cannot run on these inputs."""
    device = inputs.sources[0].device
    if device.type != "cpu":
        return Support.no(f"needs arrays on the host, found them on {device}")
    return choose_threads(params)
