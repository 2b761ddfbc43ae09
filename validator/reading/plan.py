"""The plan that a protocol stands for, derived again.

Rules (protocols/README.md "Points, order, plan"):
1. Points of a process ascend by SHA-256 of ``<digest>/<process>/<point>``.
2. Arms of a block ascend by SHA-256 of ``<digest>/<process>/<point>/<block>/<arm>``; a warm-up is the block ``warmup``.
3. The plan digest is that of ``["benchkit.plan/1", [[process, [[point, [warm-up arms], [arms of block 0], ...]]]]]``.
"""

from dataclasses import dataclass

from validator.reading.canonical import digest_of, sha256
from validator.reading.model import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """One point of one process: arms of the warm-up and of each block, in planned order."""

    point: str
    warmup: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProcess:
    """One process of the plan, its points in planned order."""

    process: int
    points: tuple[PlannedPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole plan, and its digest."""

    processes: tuple[PlannedProcess, ...]
    digest: str


def _key(*parts: object) -> str:
    return sha256("/".join(map(str, parts)).encode())


def derive_plan(protocol: Protocol) -> Plan:
    """Derive the plan of a protocol from its digest."""
    processes = []
    names = {point.id: [arm.name for arm in protocol.arms_at(point.id)] for point in protocol.points}
    for process in range(protocol.process_pairs):
        order = sorted(names, key=lambda point, p=process: _key(protocol.digest, p, point))  # type: ignore[misc]
        points = []
        for point in order:

            def arms(block: int | str, at: str = point, p: int = process) -> tuple[str, ...]:
                return tuple(sorted(names[at], key=lambda arm: _key(protocol.digest, p, at, block, arm)))

            blocks = tuple(arms(block) for block in range(protocol.blocks))
            points.append(PlannedPoint(point=point, warmup=arms("warmup"), blocks=blocks))
        processes.append(PlannedProcess(process=process, points=tuple(points)))
    listed = [
        [item.process, [[point.point, point.warmup, *point.blocks] for point in item.points]] for item in processes
    ]
    return Plan(processes=tuple(processes), digest=digest_of(["benchkit.plan/1", listed]))
