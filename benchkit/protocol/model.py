"""A comparison protocol as frozen data; protocols/README.md says what each key means.

Rules:
1. Every value here was checked by ``parse``; nothing has a default that the file did not state, except keys that the format calls optional.
2. ``Protocol.document`` is the parsed TOML itself: the digest is taken over it, never over this model.
3. Points, planned arms and byte counts are derived here or in ``plan``; they are stored nowhere.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PointValue = int | str


class Role(StrEnum):
    """What an arm is for."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    COMPARATOR = "comparator"
    COMPONENT = "component"
    AA_CONTROL = "aa_control"
    POSITIVE_CONTROL = "positive_control"
    CEILING = "ceiling"

    @property
    def is_control(self) -> bool:
        """True of the A/A and the positive control."""
        return self in (Role.AA_CONTROL, Role.POSITIVE_CONTROL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One operating point: the value of every axis."""

    axes: tuple[tuple[str, PointValue], ...]  # sorted by name

    @property
    def id(self) -> str:
        """``name=value`` joined by commas, axes sorted by name."""
        return ",".join(f"{name}={value}" for name, value in self.axes)

    def integer(self, axis: str) -> int:
        """Value of an integer axis that ``parse`` has required to exist."""
        value = dict(self.axes)[axis]
        if not isinstance(value, int):
            raise TypeError(f"axis {axis} is not an integer: {value!r}")
        return value

    def beside(self, axis: str) -> tuple[tuple[str, PointValue], ...]:
        """The values of all other axes."""
        return tuple((name, value) for name, value in self.axes if name != axis)

    def text(self, axis: str) -> str | None:
        """Value of a string axis, or None where the protocol has no such axis."""
        value = dict(self.axes).get(axis)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFixture:
    """A synthetic mixture-of-experts layer; sizes in elements, seeds and laws as protocols/README.md says."""

    experts: int
    hidden: int
    intermediate: int
    top_k: int
    weight_format: str
    routing: str
    routing_seed: int
    weight_seed: int
    copies: int
    routing_asset: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraysFixture:
    """Plain arrays of ``mib`` MiB each; ``counted`` says whether a call's bytes are read, or read and written."""

    dtype: str
    counted: str
    seed: int
    copies: int


Fixture = MoeFixture | ArraysFixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What an arm's output must satisfy against the fp64 reference before it is timed."""

    min_cosine: float
    max_rel_error: float
    truth: str
    deterministic: bool = False
    batch_invariant: bool = False


CEILING_TOLERANCE = Tolerance(min_cosine=0.999999, max_rel_error=1e-5, truth="stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm. A control has the kernel, parameters and tolerance of the arm that it controls."""

    name: str
    role: Role
    kernel: str
    params: Mapping[str, PointValue | bool]
    by_point: Mapping[str, Mapping[str, PointValue | bool]]
    points: tuple[str, ...] | None
    calls_per_sample: int
    of: str | None
    part_of: str | None
    counted_bytes: str | None
    ceiling: str | None
    ceiling_bytes: int | None
    tolerance: Tolerance

    def stands_at(self, point_id: str) -> bool:
        """Whether the arm is measured at the point."""
        return self.points is None or point_id in self.points

    def params_at(self, point_id: str) -> Mapping[str, PointValue | bool]:
        """Parameters at the point: ``params`` with the point's overrides."""
        return {**self.params, **self.by_point.get(point_id, {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Which pair is compared, and what is claimed of it."""

    candidate: str
    baseline: str
    claim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How much is run: process pairs, blocks per process and point, and the longest that one process may take."""

    process_pairs: int
    blocks: int
    watchdog_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """Recorded warm-up samples per arm and point, and unrecorded baseline work before each point."""

    samples: int
    ramp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRules:
    """What lies between start and stop, and on which clock."""

    clock: str
    launch: str
    calls_per_sample: int
    samples_per_block: int
    cache: str
    min_l2_multiple: int | None
    peak_gb_per_s: int | None

    @property
    def flushed(self) -> bool:
        """Whether the cache is flushed before each sample; samples.parquet then has ``flush_ns``."""
        return self.cache == "cold-flush"

    @property
    def event_order(self) -> str:
        """The order of events of one sample, as processes.parquet records it."""
        parts = ["start", f"call*{self.calls_per_sample}", "stop"]
        if self.clock == "cuda-event":
            parts.insert(0, "block")
        if self.flushed:
            parts.insert(0, "flush")
        return ",".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsRules:
    """How the verdict is reached; ``margin`` is d, the limit of the ratio is 1 + d.

    Attributes
    ----------
    named_points:
        Point ids of the family ``named-points``; None is the family ``all-points``.
    gatekeeping:
        Superiority of single members is tested after non-inferiority of all of them.
    pooled:
        The ratio pooled over points is reported.
    sensitivity:
        Names of further analyses, in the order of the file; None where the protocol does not ask.
    quantile, quantile_type:
        A claim about this quantile of each process, by this Hyndman-Fan type; None is the median.
    looks:
        Numbers of process pairs at which the claim is tested; empty is once, at the end.
    reproduction_band:
        How far another run's ratio may lie from this one's, either way, to be called the same; None is not locked.
    """

    alpha_one_sided: float
    margin: float
    named_points: tuple[str, ...] | None
    gatekeeping: bool
    pooled: bool
    sensitivity: tuple[str, ...] | None
    quantile: float | None
    quantile_type: int | None
    looks: tuple[int, ...]
    reproduction_band: float | None = None

    @property
    def family(self) -> str:
        """Name of the family, as the file has it."""
        return "all-points" if self.named_points is None else "named-points"

    def in_family(self, point_id: str) -> bool:
        """Whether claims at the point belong to the family."""
        return self.named_points is None or point_id in self.named_points


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """An outside file and its digest."""

    name: str
    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A whole comparison protocol."""

    document: Mapping[str, object]
    id: str
    title: str
    question: str
    require: Mapping[str, Any]  # the [build.require] table, checked
    fixture: Fixture
    axes: tuple[tuple[str, tuple[PointValue, ...]], ...]
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    schedule: Schedule
    warmup: Warmup
    timing: TimingRules
    truths: tuple[str, ...]
    repeats: int
    statistics: StatisticsRules
    assets: tuple[Asset, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """All combinations of the axes, in the order of the file."""
        names = [name for name, _ in self.axes]
        combinations = itertools.product(*(values for _, values in self.axes))
        return tuple(
            Point(axes=tuple(sorted(zip(names, values, strict=True), key=lambda pair: pair[0])))
            for values in combinations
        )

    @property
    def baseline(self) -> Arm:
        """The one baseline."""
        return next(arm for arm in self.arms if arm.role is Role.BASELINE)

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def arms_at(self, point_id: str) -> tuple[Arm, ...]:
        """The arms that stand at the point, in the order of the file."""
        return tuple(arm for arm in self.arms if arm.stands_at(point_id))

    def comparisons_at(self, point_id: str) -> tuple[Comparison, ...]:
        """The comparisons both of whose arms stand at the point."""
        names = {arm.name for arm in self.arms_at(point_id)}
        return tuple(c for c in self.comparisons if {c.candidate, c.baseline} <= names)
