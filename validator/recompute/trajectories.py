"""The trajectories of a study: what each place gave, and the declared relations, from raw tensors.

Rules (results/README.md, "Mechanism bundles"):
1. The last attempt of a process counts, if it is ``ok``.
2. A relation at a surface is ``not_reproducible`` unless both places have all their replicates and one tensor there; else
   ``confirmed`` or ``refuted``. A changed outcome is a verdict, never a reason.
3. Elements are compared as 16-bit words; the largest difference is that of the exact values, None where one is not finite.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validator.outcomes import (
    LaunchFact,
    PlaceSummary,
    RelationResult,
    RelationVerdict,
    StudyFacts,
    StudyNumbers,
    SwapFact,
)
from validator.reading.bundle import Bundle
from validator.reading.study import HISTORIES, SURFACES, Study
from validator.reading.study_assets import Plans
from validator.reading.tables import Frame
from validator.recompute.marlin import laid_out, walk_tiles

_LISTED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One row of trajectories.parquet that counts."""

    mode: str
    tensors: tuple[str, ...]


def recompute_study(bundle: Bundle, study: Study) -> StudyNumbers:
    """Recompute cells and relations; the tables must be readable."""
    trajectories, surfaces = bundle.frame("trajectories"), bundle.frame("surfaces")
    assert trajectories is not None
    assert surfaces is not None
    by_place = _by_place(bundle, study, trajectories)
    tensors = _tensors(surfaces)
    return StudyNumbers(
        cells=tuple(_summary(place, found) for place, found in by_place.items()),
        relations=tuple(_relations(study, by_place, tensors)),
    )


def _by_place(bundle: Bundle, study: Study, frame: Frame) -> dict[str, list[Trajectory]]:
    good = {(r.process, r.attempt) for r in bundle.analysed.values() if r.status == "ok"}
    found: dict[str, list[Trajectory]] = {place: [] for place in study.places}
    for row in range(frame.rows):
        place = f"{frame.text('cell', row)}/{frame.text('history', row)}"
        if place in found and frame.process(row) in good:
            tensors = tuple(frame.text(f"{surface}_sha256", row) for surface in SURFACES)
            found[place].append(Trajectory(mode=frame.text("mode_sha256", row), tensors=tensors))
    return found


def _tensors(frame: Frame) -> dict[tuple[str, str], bytes]:
    return {
        (frame.text("sha256", row), frame.text("shape", row)): frame.blobs["bytes"][row]
        for row in range(frame.rows)
        if frame.text("dtype", row) == "float16"
    }


def _distinct(found: list[Trajectory], surface: str) -> tuple[str, ...]:
    return tuple(sorted({item.tensors[SURFACES.index(surface)] for item in found}))


def _summary(place: str, found: list[Trajectory]) -> PlaceSummary:
    cell, _, history = place.partition("/")
    return PlaceSummary(
        cell=cell,
        history=history,
        processes=len(found),
        distinct_outcomes=len({item.tensors for item in found}),
        modes=len({item.mode for item in found}),
        **{surface: _distinct(found, surface) for surface in SURFACES},
    )


def _relations(
    study: Study, by_place: Mapping[str, list[Trajectory]], tensors: Mapping[tuple[str, str], bytes]
) -> Iterator[RelationResult]:
    for relation in study.relations:
        for surface in relation.surfaces:
            shape = study.sizes.shape(surface)
            pair = []
            for place in (relation.a, relation.b):
                digests = _distinct(by_place[place], surface)
                whole = len(by_place[place]) == study.replicates and len(digests) == 1
                data = tensors.get((digests[0], f"{shape[0]}x{shape[1]}")) if whole else None
                if data is not None and len(data) == 2 * shape[0] * shape[1]:
                    pair.append(np.frombuffer(data, dtype="<u2").reshape(shape))
            yield _relation(relation.a, relation.b, relation.expected, surface, pair)


def _relation(a: str, b: str, expected: str, surface: str, pair: list[NDArray[np.uint16]]) -> RelationResult:
    names = {"surface": surface, "cell_a": a, "cell_b": b, "expected": expected}
    if len(pair) < 2:
        return RelationResult(
            **names,
            equal=None,
            differing=None,
            max_abs=None,
            rows=(),
            positions=(),
            verdict=RelationVerdict.NOT_REPRODUCIBLE,
        )
    rows, columns = (pair[0] != pair[1]).nonzero()
    values = [words.view("<f2").astype(np.float64) for words in pair]
    finite = bool(np.isfinite(values).all())
    equal = rows.size == 0
    good = equal == (expected == "equal")
    return RelationResult(
        **names,
        equal=equal,
        differing=int(rows.size),
        max_abs=float(np.abs(values[0] - values[1]).max()) if finite else None,
        rows=tuple(np.unique(rows)[:_LISTED].tolist()),
        positions=tuple(zip(rows[:_LISTED].tolist(), columns[:_LISTED].tolist(), strict=True)),
        verdict=RelationVerdict.CONFIRMED if good else RelationVerdict.REFUTED,
    )


def study_facts(study: Study, plans: Plans) -> StudyFacts:
    """Say how each cell launches, and where its swapped routes stand."""
    launches, swaps = [], []
    blocks = len(laid_out(plans.ids, plans.stable, plans.block).experts)
    for cell in study.cells:
        for gemm, tile in cell.launches:
            walked = walk_tiles(study.sizes, gemm, tile, blocks)
            launches.append(
                LaunchFact(
                    cell=cell.name,
                    gemm=gemm,
                    thread_k=tile.thread_k,
                    thread_n=tile.thread_n,
                    grid=tile.grid,
                    classes=walked.counts,
                )
            )
        for history in HISTORIES if cell.swap is not None else ():
            assert cell.swap is not None
            before = laid_out(plans.ids, plans.order(study.mode(cell, history)), plans.block)
            places = tuple(before.block_of(route) or 0 for route in cell.swap.routes)
            walked = walk_tiles(study.sizes, "w13", dict(cell.launches)["w13"], blocks)
            classes = tuple(", ".join(dict.fromkeys(walked.of_block(j))) for j in places)
            swap = SwapFact(cell=cell.name, history=history, routes=cell.swap.routes, blocks=places, classes=classes)
            swaps.append(swap)
    return StudyFacts(title=study.title, question=study.question, launches=tuple(launches), swaps=tuple(swaps))
