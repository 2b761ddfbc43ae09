"""A mechanism study as tables: relations first, then the exact trajectories, what differs, launches and swaps.

Rules:
1. Trajectories are equal to the bit or they are not: a letter stands for one tensor of a surface, in the order of its first
   place; several letters in a cell are several outcomes.
2. A relation's row shows ``equal`` or the number of differing elements at each surface, and the verdict that all share, or each
   verdict with its surfaces.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from string import ascii_uppercase

from validator.findings import Report
from validator.outcomes import PlaceSummary, RelationResult, RelationVerdict, StudyFacts
from validator.reading.study import SURFACES
from validator.report.table import Extra

_RELATION = ("places", "expected", *SURFACES, "verdict")


def study_headline(report: Report) -> str:
    """Count the verdicts: ``52 relations: 52 confirmed, 0 refuted, 0 not reproducible``."""
    if report.study is None:
        return "no verdict could be computed"
    verdicts = [item.verdict for item in report.study.relations]
    counts = [f"{verdicts.count(verdict)} {verdict.value.replace('_', ' ')}" for verdict in RelationVerdict]
    return f"{len(verdicts)} relations at surfaces: {', '.join(counts)}"


def study_tables(report: Report) -> list[Extra]:
    """Give all tables of a study; none where nothing could be recomputed."""
    if report.study is None:
        return []
    relations = report.study.relations
    tables = [
        Extra(title="relations", head=_RELATION, rows=tuple(_relations(relations)), text_columns=2),
        Extra(
            title="exact trajectories",
            head=("place", *SURFACES, "processes", "outcomes", "modes"),
            rows=tuple(_places(report.study.cells)),
            text_columns=5,
        ),
    ]
    differing = tuple(_differing(relations))
    if differing:
        head = ("places", "surface", "rows", "first elements", "elements", "max |difference|")
        tables.append(Extra(title="what differs", head=head, rows=differing, text_columns=4))
    return tables + (_facts(report.study_facts) if report.study_facts is not None else [])


def _relations(relations: Sequence[RelationResult]) -> Iterator[tuple[str, ...]]:
    for (a, b), group in groupby(relations, key=lambda item: (item.cell_a, item.cell_b)):
        items = {item.surface: item for item in group}
        verdicts: dict[str, list[str]] = {}
        for item in items.values():
            verdicts.setdefault(item.verdict.value, []).append(item.surface)
        said = [f"{word} ({', '.join(surfaces)})" for word, surfaces in verdicts.items()]
        shown = [
            "" if item is None else "-" if item.equal is None else "equal" if item.equal else str(item.differing)
            for item in (items.get(surface) for surface in SURFACES)
        ]
        expected = next(iter(items.values())).expected
        yield f"{a} : {b}", expected, *shown, ", ".join(verdicts if len(verdicts) == 1 else said)


def _places(cells: Sequence[PlaceSummary]) -> Iterator[tuple[str, ...]]:
    letters: dict[str, dict[str, str]] = {surface: {} for surface in SURFACES}
    for item in cells:
        shown = []
        for surface in SURFACES:
            known = letters[surface]
            names = [known.setdefault(digest, _letter(len(known))) for digest in getattr(item, surface)]
            shown.append("/".join(names) or "-")
        counts = (item.processes, item.distinct_outcomes, item.modes)
        yield f"{item.cell}/{item.history}", *shown, *map(str, counts)


def _letter(place: int) -> str:
    return ascii_uppercase[place] if place < len(ascii_uppercase) else f"T{place + 1}"


def _differing(relations: Sequence[RelationResult]) -> Iterator[tuple[str, ...]]:
    for item in relations:
        if item.differing:
            rows = " ".join(map(str, item.rows))
            first = " ".join(f"[{row},{column}]" for row, column in item.positions[:3])
            where = f"{item.cell_a} : {item.cell_b}"
            yield (
                where,
                item.surface,
                rows,
                first,
                str(item.differing),
                "-" if item.max_abs is None else repr(item.max_abs),
            )


def _facts(facts: StudyFacts) -> list[Extra]:
    launches = tuple(
        (item.cell, item.gemm, item.classes, str(item.thread_k), str(item.thread_n), str(item.grid))
        for item in facts.launches
    )
    head = ("cell", "gemm", "tiles by class", "thread_k", "thread_n", "grid")
    tables = [Extra(title="launches", head=head, rows=launches, text_columns=3)]
    swapped = tuple(
        (
            f"{item.cell}/{item.history}",
            " and ".join(map(str, item.routes)),
            " and ".join(map(str, item.blocks)),
            " | ".join(item.classes),
        )
        for item in facts.swaps
    )
    if swapped:
        columns = ("place", "routes", "blocks before", "classes of their W13 tiles")
        tables.append(Extra(title="swapped routes", head=columns, rows=swapped, text_columns=4))
    return tables
