"""How large a protocol may be (protocols/README.md, "Limits"): looked at before anything is computed from it.

Rules:
1. What keeps to these limits is parsed, planned and routed in seconds, and its bundle keeps to the validator's own limits, with three attempts of
   every process too.
2. Sizes are products of what the file states; no point, order or route is made to find them.
"""

import math
import re
from collections.abc import Iterator

from benchkit.protocol.model import MoeFixture, Protocol

MAX_POINTS = 4096
MAX_ARMS = 256
MAX_LOOKS = 32
MAX_PLANNED = 1 << 20
MAX_ROWS = 13_000_000
MAX_ROUTED = 1 << 24
MAX_MIB = 1 << 20
MAX_EXPONENT = 32
_ZIPF = re.compile(r"zipf-([0-9]+(?:\.[0-9]+)?)")


def is_derived_law(law: object) -> bool:
    """Whether this is ``uniform`` or ``zipf-<a>`` with an ``a`` that doubles can carry."""
    match = _ZIPF.fullmatch(law) if isinstance(law, str) else None
    return law == "uniform" or (match is not None and float(match[1]) <= MAX_EXPONENT)


def size_problems(protocol: Protocol) -> list[str]:
    """One line for each size that exceeds its limit."""
    points = math.prod(len(values) for _, values in protocol.axes)
    return [*_counts(protocol, points), *_planned(protocol, points), *_inputs(protocol, points)]


def _counts(protocol: Protocol, points: int) -> Iterator[str]:
    if points > MAX_POINTS:
        yield f"operating_points: {points} combinations; at most {MAX_POINTS} are planned"
    for name, found in (("arm", len(protocol.arms)), ("comparison", len(protocol.comparisons))):
        if found > MAX_ARMS:
            yield f"{name}: {found} of them; at most {MAX_ARMS}"


def _planned(protocol: Protocol, points: int) -> Iterator[str]:
    pairs, blocks, arms = protocol.schedule.process_pairs, protocol.schedule.blocks, len(protocol.arms)
    shown = f"{pairs} process_pairs x {points} points x {arms} arms"
    planned = pairs * points * arms * (blocks + 1)
    if planned > MAX_PLANNED:
        yield f"schedule: {shown} x ({blocks} blocks + warm-up) = {planned} places in the order; at most {MAX_PLANNED}"
    samples = protocol.warmup.samples + blocks * protocol.timing.samples_per_block
    if pairs * points * arms * samples > MAX_ROWS:
        yield f"schedule: {shown} x {samples} samples = {pairs * points * arms * samples} rows; at most {MAX_ROWS}"
    if pairs * points * arms * protocol.repeats > MAX_PLANNED:
        rows = pairs * points * arms * protocol.repeats
        yield f"correctness.repeats: {shown} x {protocol.repeats} repeats = {rows} rows; at most {MAX_PLANNED}"


def _inputs(protocol: Protocol, points: int) -> Iterator[str]:
    axes = {name: [value for value in values if isinstance(value, int)] for name, values in protocol.axes}
    if not isinstance(protocol.fixture, MoeFixture):
        largest = max(axes.get("mib", []), default=0)
        if largest > MAX_MIB:
            yield f"operating_points.mib: an array of {largest} MiB; at most {MAX_MIB}"
        return
    batches = axes.get("batch", [])
    tokens = sum(batches) * (points // len(batches)) if batches else 0
    routed = tokens * protocol.fixture.experts
    if routed > MAX_ROUTED:
        yield (
            f"operating_points.batch: {tokens} tokens over all points x {protocol.fixture.experts} experts = {routed} "
            f"digests of the routing; at most {MAX_ROUTED}"
        )
