"""The tables of a calibration: JSON with every cell, Markdown to read."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchkit.calibration.nulls import NAMES
from benchkit.calibration.study import TIMES, Cell, Grid
from benchkit.errors import DataError, OutputError
from benchkit.protocol.files import write_text

SCHEMA = "benchkit.calibration/1"


def failed(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells outside their band."""
    return tuple(cell for cell in cells if cell.status == "fail")


def document(grid: Grid, cells: Sequence[Cell]) -> dict[str, Any]:
    """Everything, without a time: the same versions give the same bytes."""
    return {
        "schema": SCHEMA,
        "grid": grid.name,
        "experiments": grid.experiments,
        "counts": {status: sum(cell.status == status for cell in cells) for status in ("pass", "fail", "reported")},
        "cells": [_cell(cell) for cell in cells],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "kind": cell.kind,
        "null": cell.null,
        "method": cell.method,
        "pairs": cell.pairs,
        "margin": cell.margin,
        "alpha_one_sided": cell.alpha,
        "true_ratio": cell.true_ratio,
        "experiments": cell.experiments,
        "rate": round(cell.rate, 6),
        "low": cell.low,
        "high": cell.high,
        "status": cell.status,
        "again": None
        if cell.again is None
        else {"experiments": cell.again.experiments, "rate": round(cell.again.rate, 6)},
    }


def markdown(grid: Grid, cells: Sequence[Cell]) -> str:
    """Type I error by method and null, then everything else with its band."""
    return "\n".join(_markdown(grid, cells)) + "\n"


def _markdown(grid: Grid, cells: Sequence[Cell]) -> Iterator[str]:
    yield f"# Calibration, {grid.name} grid: {grid.experiments} experiments a cell, 101 samples an arm and process"
    yield ""
    bad = failed(cells)
    judged = sum(cell.status != "reported" for cell in cells)
    yield f"{judged - len(bad)} of {judged} judged cells lie in their band (widened by two standard errors). **Bold**: outside."
    yield from _again([cell for cell in cells if cell.again is not None])
    plain = [cell for cell in cells if cell.kind == "type-1" and cell.null != "S8"]
    for alpha in grid.alphas:
        for margin in grid.margins:
            yield from _rates([c for c in plain if (c.alpha, c.margin) == (alpha, margin)], alpha, margin)
    yield from ("", "## Everything else", "", "| kind | null | method | K | true ratio | rate | band | |")
    yield "|---|---|---|---|---|---|---|---|"
    for cell in cells:
        if cell not in plain:
            band = "" if cell.low is None else f"{cell.low:g} to {cell.high:g}"
            yield (
                f"| {cell.kind} | {cell.null} | {cell.method} | {cell.pairs} | {cell.true_ratio:g} | {_shown(cell)} | {band} | "
                f"{cell.status} |"
            )
    yield ""
    yield "Nulls: " + "; ".join(f"{null} {NAMES[null]}" for null in dict.fromkeys(cell.null for cell in cells)) + "."


def _again(cells: Sequence[Cell]) -> Iterator[str]:
    """Both results of every cell that was simulated twice."""
    yield ""
    yield (
        f"A cell outside its band is simulated again, once, with fresh fixed keys and {TIMES} times the experiments; that second result "
        f"decides and stands after an arrow. Cells simulated again: {len(cells) or 'none'}."
    )
    if cells:
        yield from (
            "",
            "| kind | null | method | K | margin | alpha | band | first | again | |",
            "|---|---|---|---|---|---|---|---|---|---|",
        )
    for cell in cells:
        second = cell.again or cell
        yield (
            f"| {cell.kind} | {cell.null} | {cell.method} | {cell.pairs} | {cell.margin:g} | {cell.alpha:g} | {cell.low:g} to {cell.high:g} | "
            f"{cell.rate:.4f} of {cell.experiments} | {second.rate:.4f} of {second.experiments} | {cell.status} |"
        )


def _rates(cells: Sequence[Cell], alpha: float, margin: float) -> Iterator[str]:
    pairs = list(dict.fromkeys(cell.pairs for cell in cells))
    nulls = list(dict.fromkeys(cell.null for cell in cells))
    yield ""
    yield f"## Type I error at margin {100 * margin:g} %, one-sided alpha {alpha:g}, K = {' / '.join(map(str, pairs))}"
    yield ""
    yield f"| method | {' | '.join(nulls)} |"
    yield "|---|" + "---|" * len(nulls)
    found = {(cell.method, cell.null, cell.pairs): cell for cell in cells}
    for method in dict.fromkeys(cell.method for cell in cells):
        columns = []
        for null in nulls:
            own = [found.get((method, null, k)) for k in pairs]
            columns.append(" / ".join("-" if cell is None else _shown(cell) for cell in own) if any(own) else "")
        yield f"| {method} | {' | '.join(columns)} |"


def _shown(cell: Cell) -> str:
    text = f"{cell.rate:.3f}" if cell.again is None else f"{cell.rate:.3f} → {cell.again.rate:.3f}"
    return f"**{text}**" if cell.status == "fail" else text


def refuse_place(file: Path) -> None:
    """Raise DataError where the tables could not be written to ``file``: known before hours of simulation."""
    if file.suffix != ".json":
        raise DataError(
            f"--out: expected a file name that ends in .json (the Markdown goes beside it), found {file.name}"
        )
    for path in (file, file.with_suffix(".md")):
        try:
            path.with_name(path.name + ".tmp").touch()
            path.with_name(path.name + ".tmp").unlink()
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror}); give a place that can be") from error


def write_tables(grid: Grid, cells: Sequence[Cell], file: Path) -> tuple[Path, Path]:
    """Write ``file`` (JSON) and the Markdown beside it."""
    beside = file.with_suffix(".md")
    write_text(file, json.dumps(document(grid, cells), indent=1, allow_nan=False) + "\n")
    write_text(beside, markdown(grid, cells))
    return file, beside
