"""What a study showed: its trajectories as a table of relations, in analysis.json and as text (results/README.md, "Mechanism bundles").

Rules:
1. A place (cell/history) is reproducible at a surface where all replicates of the plan ended well and left one tensor there.
2. A relation at a surface is ``not_reproducible`` unless both its places are; else ``confirmed`` where the tensors are equal as it says, or else
   ``refuted``. Nothing is averaged: tensors are equal to the bit, or their differing elements are counted and the largest difference is given.
3. Only the last attempt of a process counts.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchkit.bundle.reader import Sealed, bundle_table, open_sealed
from benchkit.bundle.seal import ANALYSIS
from benchkit.errors import BundleError
from benchkit.protocol.files import write_text
from benchkit.protocol.study import HISTORIES, SURFACES, Place, Study, read_study

ANALYSIS_SCHEMA = "benchkit.analysis/1"
CONFIRMED, REFUTED, NOT_REPRODUCIBLE = "confirmed", "refuted", "not_reproducible"
MOST_PLACES = 16  # rows and positions that a relation lists


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """An opened bundle of a study: the tensors' digests by place and surface, ascending, and the tensors."""

    sealed: Sealed
    study: Study
    complete: Mapping[str, int]  # place -> processes that left a trajectory
    modes: Mapping[str, int]  # place -> distinct route-block modes
    digests: Mapping[str, Mapping[str, tuple[str, ...]]]  # place -> surface -> distinct tensors
    outcomes: Mapping[str, int]  # place -> distinct quadruples of tensors
    tensors: Mapping[tuple[str, str], NDArray[np.float16]]  # by digest and shape


def open_outcome(folder: Path) -> Outcome:
    """Open the sealed bundle of a study; BundleError as ``open_sealed``."""
    sealed, study = open_sealed(folder), read_study(folder / "protocol.toml")
    rows = _analysed(folder)
    by_place: dict[str, list[Mapping[str, Any]]] = {str(place): [] for place in places(study)}
    for row in rows:
        place = f"{row['cell']}/{row['history']}"
        if place not in by_place:
            expected = f"expected places of the protocol, such as {next(iter(by_place))}"
            raise BundleError(f"{folder / 'trajectories.parquet'}: {expected}, found {place[:80]!r}")
        by_place[place].append(row)
    names = [f"{surface}_sha256" for surface in SURFACES]
    tensors = _tensors(folder)
    for row in rows:
        _stored(folder, study, row, tensors)
    return Outcome(
        sealed=sealed,
        study=study,
        complete={place: len(found) for place, found in by_place.items()},
        modes={place: len({row["mode_sha256"] for row in found}) for place, found in by_place.items()},
        digests={
            place: {
                surface: tuple(sorted({row[name] for row in found}))
                for surface, name in zip(SURFACES, names, strict=True)
            }
            for place, found in by_place.items()
        },
        outcomes={
            place: len({tuple(row[name] for name in names) for row in found}) for place, found in by_place.items()
        },
        tensors=tensors,
    )


def places(study: Study) -> Iterator[Place]:
    """All cells under both histories, in the order of the file."""
    for cell in study.cells:
        for history in HISTORIES:
            yield Place(cell=cell.name, history=history)


def _analysed(folder: Path) -> list[Mapping[str, Any]]:
    """The trajectories of the last attempts that ended well."""
    last: dict[int, Mapping[str, Any]] = {}
    for row in bundle_table(folder, "processes", ("process", "attempt", "status")).to_pylist():
        last[row["process"]] = row  # attempts ascend
    good = {(row["process"], row["attempt"]) for row in last.values() if row["status"] == "ok"}
    rows = bundle_table(folder, "trajectories").to_pylist()
    return [row for row in rows if (row["process"], row["attempt"]) in good]


def _tensors(folder: Path) -> dict[tuple[str, str], NDArray[np.float16]]:
    """The stored tensors by digest and shape; BundleError where one does not fill its shape."""
    found = {}
    for row in bundle_table(folder, "surfaces").to_pylist():
        try:
            shape = tuple(map(int, row["shape"].split("x")))
            found[row["sha256"], row["shape"]] = np.frombuffer(row["bytes"], dtype="<f2").reshape(shape)
        except ValueError as error:
            where = f"{folder / 'surfaces.parquet'}: tensor {row['sha256'][:16]!r}"
            got = f"shape {row['shape'][:32]!r}, {len(row['bytes'])} bytes"
            raise BundleError(f"{where}: expected float16 values that fill their shape, found {got}") from error
    return found


def _stored(
    folder: Path, study: Study, row: Mapping[str, Any], tensors: Mapping[tuple[str, str], NDArray[np.float16]]
) -> None:
    """Refuse a trajectory that names a tensor which is not stored in the shape of its surface."""
    for surface in SURFACES:
        name, shape = row[f"{surface}_sha256"], "x".join(map(str, study.layer.surface(surface)))
        if (name, shape) not in tensors:
            where = f"{folder / 'surfaces.parquet'}: {surface} of process {row['process']}"
            raise BundleError(f"{where}: expected the tensor {name[:16]!r} in the shape {shape}, found none")


def document(outcome: Outcome) -> dict[str, Any]:
    """The values of analysis.json."""
    sealed = outcome.sealed
    return {
        "schema": ANALYSIS_SCHEMA,
        "manifest_sha256": sealed.manifest_sha256,
        "protocol_digest": sealed.protocol_digest,
        "run_id": sealed.run_id,
        "cells": [_cell(outcome, place) for place in places(outcome.study)],
        "relations": list(_relations(outcome)),
    }


def _cell(outcome: Outcome, place: Place) -> dict[str, Any]:
    name = str(place)
    return {
        "cell": place.cell,
        "history": place.history,
        "processes": outcome.complete[name],
        "distinct_outcomes": outcome.outcomes[name],
        "modes": outcome.modes[name],
        **{surface: list(outcome.digests[name][surface]) for surface in SURFACES},
    }


def _relations(outcome: Outcome) -> Iterator[dict[str, Any]]:
    for relation in outcome.study.relations:
        for surface in relation.surfaces:
            a, b = str(relation.a), str(relation.b)
            found = _differences(outcome, a, b, surface)
            verdict = NOT_REPRODUCIBLE
            if found is not None:
                verdict = CONFIRMED if found["equal"] is relation.equal else REFUTED
            nothing: dict[str, Any] = {"equal": None, "differing": None, "max_abs": None, "rows": [], "positions": []}
            yield {
                "surface": surface,
                "cell_a": a,
                "cell_b": b,
                "expected": "equal" if relation.equal else "different",
                **(found or nothing),
                "verdict": verdict,
            }


def _differences(outcome: Outcome, a: str, b: str, surface: str) -> dict[str, Any] | None:
    """How the tensors of two places differ; None unless both are reproducible."""
    digests = [outcome.digests[place][surface] for place in (a, b)]
    planned = outcome.study.schedule.replicates
    if any(len(found) != 1 or outcome.complete[place] != planned for place, found in zip((a, b), digests, strict=True)):
        return None
    shape = "x".join(map(str, outcome.study.layer.surface(surface)))
    first, second = (outcome.tensors[found[0], shape] for found in digests)
    where = np.argwhere(first.view("<u2") != second.view("<u2"))
    gaps = np.abs(first.astype(np.float64) - second.astype(np.float64))
    return {
        "equal": digests[0] == digests[1],
        "differing": len(where),
        "max_abs": float(gaps.max()) if np.isfinite(gaps).all() else None,
        "rows": sorted(set(where[:, 0].tolist()))[:MOST_PLACES],
        "positions": where[:MOST_PLACES].tolist(),
    }


def write_outcome(folder: Path) -> Outcome:
    """Analyse the sealed bundle in ``folder`` and write its analysis.json."""
    outcome = open_outcome(folder)
    write_text(folder / ANALYSIS, json.dumps(document(outcome), indent=2, allow_nan=False) + "\n")
    return outcome


def summarise_outcome(folder: Path) -> str:
    """The study as text: outcomes of each place, then the relations."""
    outcome = open_outcome(folder)
    found = document(outcome)
    verdicts = [row["verdict"] for row in found["relations"]]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in (CONFIRMED, REFUTED, NOT_REPRODUCIBLE))
    lines = [f"{outcome.study.id}: {len(verdicts)} relations at surfaces (equal, or elements that differ): {counts}"]
    for row in found["cells"]:
        lines.append(
            f"  {row['cell'] + '/' + row['history']:<18} {row['processes']} processes, {row['distinct_outcomes']} outcome(s), "
            f"{row['modes']} mode(s)"
        )
    for (a, b), group in groupby(found["relations"], key=lambda row: (row["cell_a"], row["cell_b"])):
        rows = list(group)
        shown = ", ".join(f"{row['surface']} {_shown(row)}" for row in rows)
        lines.append(f"  {a + ' : ' + b:<34} expected {rows[0]['expected']:<9}  {shown}")
    return "\n".join(lines)


def _shown(row: Mapping[str, Any]) -> str:
    """``equal`` or how many elements differ, and the verdict where it is not ``confirmed``."""
    found = "" if row["equal"] is None else "equal" if row["equal"] else str(row["differing"])
    return found if row["verdict"] == CONFIRMED else f"{found} ({row['verdict']})".strip()
