"""What a mechanism study gave: places, relations and what follows from its protocol, as the report shows them.

The rules are those of ``validator.findings``: field names are those of the JSON report, a number that does not exist is None.
"""

from dataclasses import dataclass
from enum import StrEnum


class RelationVerdict(StrEnum):
    """What the tensors say of a relation that a study declared."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    NOT_REPRODUCIBLE = "not_reproducible"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSummary:
    """What the processes of a cell under a history gave; the distinct tensors of each surface by digest, ascending."""

    cell: str
    history: str
    processes: int
    distinct_outcomes: int
    modes: int
    w13: tuple[str, ...]
    activation: tuple[str, ...]
    routed_w2: tuple[str, ...]
    final: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationResult:
    """Two places at a surface: equal to the bit or not; ``rows`` and ``positions`` list the first elements that differ."""

    surface: str
    cell_a: str
    cell_b: str
    expected: str
    equal: bool | None
    differing: int | None
    max_abs: float | None
    rows: tuple[int, ...]
    positions: tuple[tuple[int, int], ...]
    verdict: RelationVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyNumbers:
    """All that is recomputed from the tensors of a study."""

    cells: tuple[PlaceSummary, ...]
    relations: tuple[RelationResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFact:
    """How a cell launches a GEMM, and the classes of its tiles."""

    cell: str
    gemm: str
    thread_k: int
    thread_n: int
    grid: int
    classes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapFact:
    """Where a swap's routes stood before it, and the classes of these blocks' W13 tiles."""

    cell: str
    history: str
    routes: tuple[int, ...]
    blocks: tuple[int, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """What follows from a study's protocol alone; in no verdict."""

    title: str
    question: str
    launches: tuple[LaunchFact, ...]
    swaps: tuple[SwapFact, ...]
