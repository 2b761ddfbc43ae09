"""LockedProtocol -> Plan: which arm is sampled when, in every process.

Rules (protocols/README.md, "Points, order, plan"):
1. Points of a process ascend by SHA-256("<digest>/<process>/<point>"), arms of a block by SHA-256("<digest>/<process>/<point>/<block>/<arm>"), as hex.
2. The warm-up of a point comes before its block 0 and is ordered as a block named ``warmup``; in tables it is block -1.
3. Only a locked protocol can be planned, and its plan must be the locked one.
4. A study runs one cell under one history in each process: replicate-major, cells as the file lists them, H0 first in even replicates and H1 in odd ones.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import rfc8785

from benchkit.errors import LockError
from benchkit.protocol.lock import LockedProtocol
from benchkit.protocol.model import Point, Protocol
from benchkit.protocol.study import HISTORIES, LockedStudy, Place, Study

WARMUP_BLOCK = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBlock:
    """One block (or the warm-up): its arms in order, and the consecutive samples that each takes."""

    index: int
    arms: tuple[str, ...]
    samples: int

    @property
    def is_warmup(self) -> bool:
        """True of the recorded warm-up."""
        return self.index == WARMUP_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """One point of one process: the warm-up, then the blocks."""

    point: Point
    blocks: tuple[PlannedBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProcess:
    """One process pair: its points in order."""

    index: int
    points: tuple[PlannedPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run has to do, in order."""

    locked: LockedProtocol
    processes: tuple[PlannedProcess, ...]

    @property
    def protocol(self) -> Protocol:
        """The protocol that is run."""
        return self.locked.protocol

    @property
    def samples_per_process(self) -> int:
        """Rows of samples.parquet that one process writes, warm-ups included."""
        blocks = (block for point in self.processes[0].points for block in point.blocks)
        return sum(len(block.arms) * block.samples for block in blocks)


def _digest_order(names: Iterator[str] | tuple[str, ...], prefix: str) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: hashlib.sha256(f"{prefix}/{name}".encode()).hexdigest()))


def schedule(protocol: Protocol, digest: str) -> tuple[PlannedProcess, ...]:
    """The planned processes of a protocol with that digest."""
    return tuple(_process(protocol, digest, index) for index in range(protocol.schedule.process_pairs))


def _process(protocol: Protocol, digest: str, index: int) -> PlannedProcess:
    by_id = {point.id: point for point in protocol.points}
    ordered = _digest_order(tuple(by_id), f"{digest}/{index}")
    points = tuple(
        PlannedPoint(point=by_id[name], blocks=tuple(_blocks(protocol, f"{digest}/{index}/{name}", name)))
        for name in ordered
    )
    return PlannedProcess(index=index, points=points)


def _blocks(protocol: Protocol, prefix: str, point_id: str) -> Iterator[PlannedBlock]:
    names = tuple(arm.name for arm in protocol.arms_at(point_id))
    yield PlannedBlock(
        index=WARMUP_BLOCK, arms=_digest_order(names, f"{prefix}/warmup"), samples=protocol.warmup.samples
    )
    for block in range(protocol.schedule.blocks):
        yield PlannedBlock(
            index=block, arms=_digest_order(names, f"{prefix}/{block}"), samples=protocol.timing.samples_per_block
        )


def plan_digest(processes: tuple[PlannedProcess, ...]) -> str:
    """SHA-256 of the RFC 8785 JSON ``["benchkit.plan/1", [[process, [[point, [arms], [arms], ...], ...]], ...]]``."""
    document: Any = [
        "benchkit.plan/1",
        [
            [
                process.index,
                [[point.point.id, *(list(block.arms) for block in point.blocks)] for point in process.points],
            ]
            for process in processes
        ],
    ]
    return hashlib.sha256(rfc8785.dumps(document)).hexdigest()


def plan(locked: LockedProtocol) -> Plan:
    """The plan of a locked protocol.

    Raises
    ------
    LockError
        The lock names another plan (it was edited, or made by another version of the rules).
    """
    processes = schedule(locked.protocol, locked.digest)
    found = plan_digest(processes)
    if found != locked.lock.plan_digest:
        raise LockError(
            f"{locked.path}: expected plan digest {locked.lock.plan_digest} (the lock), found {found}; lock the protocol anew"
        )
    return Plan(locked=locked, processes=processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One process of a study: a cell under a history."""

    index: int
    replicate: int
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """All processes of a study, in order."""

    locked: LockedStudy
    processes: tuple[PlannedRun, ...]

    @property
    def protocol(self) -> Study:
        """The study that is run."""
        return self.locked.protocol

    @property
    def samples_per_process(self) -> int:
        """What a process advances a progress bar by."""
        return 1


def study_schedule(study: Study) -> tuple[PlannedRun, ...]:
    """The planned processes of a study."""
    places = [
        (replicate, Place(cell=cell.name, history=history))
        for replicate in range(study.schedule.replicates)
        for cell in study.cells
        for history in (HISTORIES if replicate % 2 == 0 else HISTORIES[::-1])
    ]
    return tuple(PlannedRun(index=i, replicate=r, place=place) for i, (r, place) in enumerate(places))


def study_plan_digest(processes: tuple[PlannedRun, ...]) -> str:
    """SHA-256 of the RFC 8785 JSON ``["benchkit.study-plan/1", [[process, replicate, cell, history], ...]]``."""
    listed = [[run.index, run.replicate, run.place.cell, run.place.history] for run in processes]
    document: Any = ["benchkit.study-plan/1", listed]
    return hashlib.sha256(rfc8785.dumps(document)).hexdigest()


def study_plan(locked: LockedStudy) -> StudyPlan:
    """The plan of a locked study; LockError where the lock names another."""
    processes = study_schedule(locked.protocol)
    found = study_plan_digest(processes)
    if found != locked.lock.plan_digest:
        raise LockError(
            f"{locked.path}: expected plan digest {locked.lock.plan_digest} (the lock), found {found}; lock the protocol anew"
        )
    return StudyPlan(locked=locked, processes=processes)
