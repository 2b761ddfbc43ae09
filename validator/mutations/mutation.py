"""What a mutation is, and what it may know about the bundle before it is tried."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from validator.mutations.workspace import WorkingCopy
from validator.reading.schema import STUDY_TABLES, TABLES
from validator.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What decides whether a mutation has a subject in a bundle."""

    kind: str
    clock: str
    launch: str
    cache: str
    fixture: str
    has_peak: bool
    has_analysis: bool
    processes: int
    points: int
    looks: bool
    roles: frozenset[str]
    required: frozenset[str]
    rows: Mapping[str, int]

    @classmethod
    def of(cls, bundle: Path) -> "Facts":
        """Look at a clean bundle."""
        protocol = tomllib.loads((bundle / "protocol.toml").read_bytes().decode())
        if protocol["protocol"]["kind"] == "mechanism":
            return cls._of_study(bundle, protocol)
        timing, axes = protocol["timing"], protocol["operating_points"]
        points = 1
        for values in axes.values():
            points *= len(values)
        return cls(
            kind="comparison",
            clock=timing["clock"],
            launch=timing["launch"],
            cache=timing["cache"],
            fixture=protocol["fixture"]["kind"],
            has_peak="peak_gb_per_s" in timing,
            has_analysis=(bundle / "analysis.json").exists(),
            processes=protocol["schedule"]["process_pairs"],
            points=points,
            looks="looks" in protocol["statistics"],
            roles=frozenset(arm["role"] for arm in protocol["arm"]),
            required=frozenset(protocol.get("build", {}).get("require", {})),
            rows={name: _rows(bundle / f"{name}.parquet") for name in TABLES},
        )

    @classmethod
    def _of_study(cls, bundle: Path, protocol: Mapping[str, Any]) -> "Facts":
        return cls(
            kind="mechanism",
            clock="none",
            launch=protocol["launch"]["engine"],
            cache="none",
            fixture=protocol["fixture"]["kind"],
            has_peak=False,
            has_analysis=(bundle / "analysis.json").exists(),
            processes=2 * len(protocol["cell"]) * protocol["schedule"]["replicates"],
            points=0,
            looks=False,
            roles=frozenset(),
            required=frozenset(protocol.get("build", {}).get("require", {})),
            rows={name: _rows(bundle / f"{name}.parquet") for name in STUDY_TABLES},
        )


def _rows(path: Path) -> int:
    rows: int = pq.read_metadata(path).num_rows if path.exists() else 0
    return rows


Need = Callable[[Facts], str | None]
"""Why a mutation has no subject in this bundle, or None."""


def anywhere(facts: Facts) -> str | None:
    """Every bundle has a subject."""
    return None


def having(**wanted: Any) -> Need:
    """Facts must equal the wanted values."""

    def need(facts: Facts) -> str | None:
        for name, value in wanted.items():
            if (found := getattr(facts, name)) != value:
                return f"needs {name} {value}, found {found}"
        return None

    return need


def with_rows(table: str) -> Need:
    """A table must have rows."""
    return lambda facts: None if facts.rows[table] else f"{table} has no rows"


def with_roles(*roles: str) -> Need:
    """The protocol must have arms of these roles."""

    def need(facts: Facts) -> str | None:
        missing = [role for role in roles if role not in facts.roles]
        return f"no arm is {', '.join(missing)}" if missing else None

    return need


def several_processes(facts: Facts) -> str | None:
    """The run must have more than one process."""
    return None if facts.processes > 1 else "needs more than one process"


def all_of(*needs: Need) -> Need:
    """Every need must be met; the first that is not is the reason."""
    return lambda facts: next((reason for need in needs if (reason := need(facts)) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change of a bundle and the first reason that it must give; ``expected`` None means that it must be accepted."""

    name: str
    description: str
    applies_to: Need
    reseal: bool
    expected: Reason | None
    apply: Callable[[WorkingCopy], None]


def mutation(
    expected: Reason | None, *, reseal: bool = False, applies_to: Need = anywhere
) -> Callable[[Callable[[WorkingCopy], None]], Mutation]:
    """Make a function a mutation: its name is the mutation's, its docstring says what it does."""

    def wrap(apply: Callable[[WorkingCopy], None]) -> Mutation:
        description = (apply.__doc__ or "").strip()
        return Mutation(
            name=apply.__name__.replace("_", "-"),
            description=description,
            applies_to=applies_to,
            reseal=reseal,
            expected=expected,
            apply=apply,
        )

    return wrap


def collected(names: Mapping[str, object]) -> tuple[Mutation, ...]:
    """The mutations among a module's names, in the order in which they were written."""
    return tuple(value for value in names.values() if isinstance(value, Mutation))
