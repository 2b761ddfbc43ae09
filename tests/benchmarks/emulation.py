"""The CPU emulation beside a GPU's own bits: ``python tests/benchmarks/emulation.py BUNDLE [PLACE ...] [--json FILE]``, half a minute a place.

``BUNDLE`` is a study that ran on a GPU, ``PLACE`` a cell with an injected order and a history (``swap_across/H0``; default: both of ``reinjected``).
The emulation runs the layer under the order and the cut points that the place locks, and is compared with the surfaces of the bundle: words that are
equal, the largest difference beside the largest value, and, against the first place, how many elements differ in each of the two, and in which rows.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchkit.fixture.captured import layer_of
from benchkit.mechanism.emulation import layer
from benchkit.mechanism.orders import injected_plan, load_plans, tile_schedule
from benchkit.mechanism.outcome import Outcome, open_outcome
from benchkit.protocol.study import GEMMS, SURFACES

Surfaces = Mapping[str, NDArray[np.float16]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A surface of a place: how near the emulation is, and what differs from the first place in each (elements, rows)."""

    place: str
    surface: str
    equal_percent: float
    largest_difference: float
    largest_value: float
    differ_on_gpu: int
    differ_in_emulation: int
    rows_on_gpu: list[int]
    rows_in_emulation: list[int]


def recorded(outcome: Outcome, place: str) -> Surfaces:
    """The surfaces of the bundle; its replicates must agree."""
    found = {}
    for name in SURFACES:
        digests = set(outcome.digests[place][name])
        if len(digests) != 1:
            raise SystemExit(
                f"{place}: expected one outcome in all replicates, found {len(digests)}; take an injected cell"
            )
        found[name] = outcome.tensors[digests.pop(), "x".join(map(str, outcome.study.layer.surface(name)))]
    return found


def emulated(outcome: Outcome, folder: Path, place: str) -> Surfaces:
    """What the emulation makes of the same order, launch, layer and input."""
    study = outcome.study
    plans = load_plans(study, folder / "assets" / "plans")
    inputs = layer_of(study, folder)
    name, _, history = place.partition("/")
    cell = study.cell(name)
    order = plans.alignment(injected_plan(study, plans, cell, history))
    first, second = (tile_schedule(study.layer, gemm, cell.launches[gemm], order.blocks) for gemm in GEMMS)
    made = layer(inputs.x, plans.topk_weights, inputs.w13, inputs.w2, order, (first, second))
    return dict(zip(SURFACES, (made.w13, made.activation, made.routed, made.final), strict=True))


def differing(one: NDArray[np.float16], other: NDArray[np.float16]) -> tuple[int, list[int]]:
    """Elements that differ, and their rows."""
    unequal = one.view(np.uint16) != other.view(np.uint16)
    return int(unequal.sum()), np.flatnonzero(unequal.any(axis=1)).tolist()


def compare(folder: Path, places: list[str]) -> list[Compared]:
    """All surfaces of all places, in order."""
    outcome = open_outcome(folder)
    gpu = {place: recorded(outcome, place) for place in places}
    cpu = {place: emulated(outcome, folder, place) for place in places}
    found = []
    for place in places:
        for name in SURFACES:
            theirs, ours = gpu[place][name], cpu[place][name]
            on_gpu, in_emulation = (differing(each[place][name], each[places[0]][name]) for each in (gpu, cpu))
            found.append(
                Compared(
                    place=place,
                    surface=name,
                    equal_percent=100 * float((theirs.view(np.uint16) == ours.view(np.uint16)).mean()),
                    largest_difference=float(np.abs(theirs.astype(np.float64) - ours.astype(np.float64)).max()),
                    largest_value=float(np.abs(theirs).max()),
                    differ_on_gpu=on_gpu[0],
                    differ_in_emulation=in_emulation[0],
                    rows_on_gpu=on_gpu[1],
                    rows_in_emulation=in_emulation[1],
                )
            )
    return found


def main(arguments: list[str]) -> None:
    """Compare, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("places", nargs="*", default=["reinjected/H0", "reinjected/H1"])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    found = compare(asked.bundle, asked.places)
    for one in found:
        print(
            f"{one.place:16} {one.surface:10}  {one.equal_percent:8.4f} % of words equal, largest difference {one.largest_difference:g} "
            f"of {one.largest_value:g}; from {asked.places[0]}: {one.differ_on_gpu} elements differ on the GPU in rows {one.rows_on_gpu}, "
            f"{one.differ_in_emulation} in the emulation in rows {one.rows_in_emulation}"
        )
    if asked.json:
        document: dict[str, Any] = {"bundle": asked.bundle.as_posix(), "compared": [asdict(one) for one in found]}
        asked.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
