"""What a study asks of its plans asset beyond ``benchkit.fixture.plans``, whose file is part of published digests and stays as it is.

Rules (protocols/README.md, "Mechanism protocols"):
1. Routes and experts are JSON integers, weights JSON floats that are float32 exactly and not negative; no key stands twice.
2. No two plans give the same mode: a history could not be told from the other.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchkit.errors import DataError
from benchkit.fixture.alignment import fingerprint
from benchkit.fixture.plans import SCHEMA, Plans
from benchkit.mechanism.orders import load_plans
from benchkit.protocol.files import read_small
from benchkit.protocol.study import Study
from benchkit.units import MIB


def load_asset(study: Study, path: Path) -> Plans:
    """The plans of a study; DataError where the asset is not what these rules and ``load_plans`` ask for."""
    problems = _problems_of(path)
    if problems:
        raise DataError(f"{path}: " + "; ".join(problems))
    plans = load_plans(study, path)
    modes: dict[str, str] = {}
    for name, plan in plans.plans.items():
        mode = fingerprint(plans.alignment(plan))
        if mode in modes:
            raise DataError(
                f"{path}: plan {name}: expected another mode than {modes[mode]}, found the same, {mode}; capture two modes"
            )
        modes[mode] = name
    return plans


def _problems_of(path: Path) -> list[str]:
    try:
        text = read_small(path, most=MIB, what="a plans asset")
        return list(_problems(json.loads(text, object_pairs_hook=_once)))
    except RecursionError as error:
        raise DataError(
            f"{path}: expected a plans asset ({SCHEMA}), found arrays or objects nested too deep to be read"
        ) from error
    except ValueError as error:
        raise DataError(f"{path}: expected a plans asset ({SCHEMA}), found no JSON ({error!s:.200})") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"the key {name!r:.60} stands twice")
        table[name] = value
    return table


def _problems(document: Any) -> Iterator[str]:
    """The first value of each matrix and plan that is of a wrong kind; whatever else is wrong ``read_plans`` says."""
    if not isinstance(document, dict):
        return
    plans = document.get("plans")
    orders = plans.items() if isinstance(plans, dict) else ()
    integers = [("topk_ids", document.get("topk_ids")), *((f"plans.{name:.60}", plan) for name, plan in orders)]
    for path, values in integers:
        for place, value in _leaves(path, values) if isinstance(values, list) else ():
            if type(value) is not int:
                yield f"{place}: expected an integer, found {value!r:.60}"
                break
    weights = document.get("topk_weights")
    for place, value in _leaves("topk_weights", weights) if isinstance(weights, list) else ():
        if type(value) is not float or not _is_weight(value):
            yield f"{place}: expected a float of at least 0 that is a float32 exactly{_nearest(value)}, found {value!r:.60}"
            break


def _leaves(path: str, values: Any) -> Iterator[tuple[str, Any]]:
    """Each value within arrays, with its place."""
    if isinstance(values, list):
        for index, value in enumerate(values):
            yield from _leaves(f"{path}[{index}]", value)
    else:
        yield path, values


def _is_weight(value: float) -> bool:
    return 0 <= value <= float(np.finfo(np.float32).max) and float(np.float32(value)) == value


def _nearest(value: Any) -> str:
    sound = type(value) is float and 0 <= value <= float(np.finfo(np.float32).max)
    return f", such as {float(np.float32(value))!r}" if sound else ""
