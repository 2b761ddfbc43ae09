"""What ties the sections of a protocol together: roles, references between arms, points, sizes and the smallest schedule that can answer.

One line a problem, ``path: what is wrong and what to do``.
"""

from collections import Counter
from collections.abc import Iterator

from benchkit.protocol.fields import shown, some
from benchkit.protocol.limits import MAX_EXPONENT, is_derived_law
from benchkit.protocol.model import Arm, ArraysFixture, MoeFixture, Protocol, Role
from benchkit.protocol.rules import statistics_problems


def coherence_problems(protocol: Protocol) -> list[str]:
    """Every problem that shows only when sections are seen together."""
    return [
        *_sizes(protocol),
        *_timing(protocol),
        *_arms(protocol),
        *_controls(protocol),
        *_comparisons(protocol),
        *statistics_problems(protocol),
    ]


def _sizes(protocol: Protocol) -> Iterator[str]:
    fixture, axes = protocol.fixture, dict(protocol.axes)
    if isinstance(fixture, ArraysFixture):
        yield from _integer_axis(axes, "mib", "an arrays fixture needs the sizes of its arrays in MiB")
        return
    yield from _integer_axis(axes, "batch", "a moe fixture needs its numbers of tokens")
    if fixture.top_k > fixture.experts:
        yield f"fixture.top_k: {fixture.top_k} exceeds experts = {fixture.experts}"
    for law in axes.get("routing", ()):
        if not is_derived_law(law):
            yield f'operating_points.routing: expected "uniform" or "zipf-<a>" with an a of at most {MAX_EXPONENT}, found {shown(law)}'
    yield from _groups(fixture)
    if fixture.routing_asset and fixture.routing_asset not in {asset.name for asset in protocol.assets}:
        yield f'fixture.routing_asset: no [[asset]] is named "{fixture.routing_asset}"'


def _integer_axis(axes: dict[str, tuple[int | str, ...]], name: str, why: str) -> Iterator[str]:
    values = axes.get(name)
    if values is None:
        yield f"operating_points.{name}: missing; {why}"
    elif any(not isinstance(value, int) or value < 1 for value in values):
        yield f"operating_points.{name}: expected integers from 1, found {shown(list(values))}"


def _groups(fixture: MoeFixture) -> Iterator[str]:
    group = {"mxfp8": 32, "awq-int4-g128": 128}.get(fixture.weight_format, 1)
    for key, size in (("hidden", fixture.hidden), ("intermediate", fixture.intermediate)):
        if size % group:
            near = " or ".join(str(each) for each in (size - size % group, size - size % group + group) if each)
            yield (
                f"fixture.{key}: {size} mod {group} = {size % group}; {fixture.weight_format} needs multiples of {group}, "
                f"such as {near}"
            )


def _timing(protocol: Protocol) -> Iterator[str]:
    timing = protocol.timing
    cold = timing.cache != "warm"
    if timing.clock == "host":
        if timing.launch != "eager":
            yield 'timing.launch: clock "host" needs "eager"'
        if timing.cache == "cold-flush":
            yield 'timing.cache: "cold-flush" needs clock "cuda-event"; use "cold-rotate"'
        if timing.peak_gb_per_s is not None:
            yield 'timing.peak_gb_per_s: forbidden with clock "host": a CPU has no single memory peak'
    elif cold and timing.peak_gb_per_s is None:
        yield "timing.peak_gb_per_s: missing; a cold cuda-event protocol states the vendor's memory peak as a limit"
    if cold and timing.min_l2_multiple is None:
        yield f"timing.min_l2_multiple: missing; {timing.cache} states how many times the cache its bytes exceed"
    if not cold and timing.min_l2_multiple is not None:
        yield 'timing.min_l2_multiple: forbidden with cache "warm"'


def _arms(protocol: Protocol) -> Iterator[str]:
    names = Counter(arm.name for arm in protocol.arms)
    points = {point.id for point in protocol.points}
    for name, count in names.items():
        if count > 1:
            yield f"arm: the name {name} stands {count} times; names are distinct"
    baselines = [arm.name for arm in protocol.arms if arm.role is Role.BASELINE]
    if len(baselines) != 1:
        yield f"arm: expected exactly one arm with role baseline, found {len(baselines)}"
    for index, arm in enumerate(protocol.arms):
        for point in (*(arm.points or ()), *arm.by_point):
            if point not in points:
                yield f"arm[{index}]: {arm.name} names the point {point}, which is none of {some(points)}"
        if arm.part_of is not None and arm.part_of not in names:
            yield f"arm[{index}].part_of: no arm is named {arm.part_of}; expected one of {some(names)}"
        if arm.tolerance.truth not in protocol.truths:
            yield f'arm[{index}].correctness.truth: "{arm.tolerance.truth}" is not among correctness.truths'
        if arm.tolerance.deterministic and not protocol.repeats and not arm.role.is_control:
            yield f"arm[{index}].correctness.deterministic: needs correctness.repeats, from which it is judged"
        if arm.tolerance.batch_invariant and not arm.role.is_control and not _several_batches(protocol, arm):
            yield f"arm[{index}].correctness.batch_invariant: needs a moe fixture and two batches at which {arm.name} stands"


def _several_batches(protocol: Protocol, arm: Arm) -> bool:
    """Whether a token can be seen among different numbers of others."""
    points = [point for point in protocol.points if arm.stands_at(point.id)]
    moe = isinstance(protocol.fixture, MoeFixture) and arm.role is not Role.CEILING
    return moe and len({point.beside("batch") for point in points}) < len(points)


def _controls(protocol: Protocol) -> Iterator[str]:
    baselines = {arm.name: arm for arm in protocol.arms if arm.role is Role.BASELINE}
    for index, arm in enumerate(protocol.arms):
        if arm.role.is_control and arm.of not in baselines:
            yield f"arm[{index}].of: {arm.name} must be a control of the baseline, found {arm.of}"
        compared = arm.role in (Role.CANDIDATE, Role.BASELINE)
        if compared and arm.calls_per_sample != next(iter(baselines.values()), arm).calls_per_sample:
            yield f"arm[{index}].calls_per_sample: {arm.name} must take the baseline's number of calls"
    for point in protocol.points:
        if not any(c.claim != "descriptive" for c in protocol.comparisons_at(point.id)):
            continue
        roles = {arm.role for arm in protocol.arms_at(point.id)}
        for role in (Role.AA_CONTROL, Role.POSITIVE_CONTROL):
            if role not in roles:
                yield f"arm: no {role} stands at {point.id}; a claim needs both controls"
    for role in (Role.AA_CONTROL, Role.POSITIVE_CONTROL):
        if sum(arm.role is role for arm in protocol.arms) > 1:
            yield f"arm: expected at most one {role}"
    if protocol.warmup.samples < 1 and any(arm.role is Role.POSITIVE_CONTROL for arm in protocol.arms):
        yield "warmup.samples: a positive control takes its dose from the baseline's warm-up; expected at least 1"


def _comparisons(protocol: Protocol) -> Iterator[str]:
    arms: dict[str, Arm] = {arm.name: arm for arm in protocol.arms}
    seen: set[tuple[str, str]] = set()
    points = protocol.points
    for index, comparison in enumerate(protocol.comparisons):
        path = f"comparison[{index}]"
        pair = (comparison.candidate, comparison.baseline)
        missing = [name for name in pair if name not in arms]
        for name in missing:
            yield f"{path}: no arm is named {name}; expected one of {some(arms)}"
        if missing:
            continue
        if pair in seen:
            yield f"{path}: {pair[0]} against {pair[1]} is compared twice"
        seen.add(pair)
        if comparison.claim != "descriptive":
            if arms[comparison.candidate].role is not Role.CANDIDATE:
                yield f"{path}.candidate: a claim needs an arm with role candidate, found {arms[pair[0]].role}"
            if arms[comparison.baseline].role not in (Role.BASELINE, Role.COMPARATOR):
                yield f"{path}.baseline: a claim needs an arm with role baseline or comparator, found {arms[pair[1]].role}"
        if arms[pair[0]].calls_per_sample != arms[pair[1]].calls_per_sample:
            yield f"{path}: {pair[0]} and {pair[1]} take different calls_per_sample and cannot be compared"
        if not any(arms[pair[0]].stands_at(p.id) and arms[pair[1]].stands_at(p.id) for p in points):
            yield f"{path}: {pair[0]} and {pair[1]} stand at no common point"
    if protocol.comparisons and all(c.claim == "descriptive" for c in protocol.comparisons):
        yield "comparison: every claim is descriptive; expected at least one non_inferior, superior or equivalent"
