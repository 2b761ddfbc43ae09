"""The model of a protocol: all of it that a check uses, as plain frozen data."""

from dataclasses import dataclass

ROLES = ("baseline", "candidate", "comparator", "component", "aa_control", "positive_control", "ceiling")
CONTROLS = ("aa_control", "positive_control")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """What every arm receives; the keys of the other kind are zero or empty."""

    kind: str
    copies: int
    experts: int = 0
    hidden: int = 0
    intermediate: int = 0
    top_k: int = 0
    weight_format: str = ""
    routing: str = ""
    routing_seed: int = 0
    routing_asset: str | None = None
    counted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An operating point: its id and its values by axis, axes ascending by name."""

    id: str
    values: tuple[tuple[str, int | str], ...]

    def value(self, axis: str) -> int | str | None:
        """Give the value of an axis, None where there is no such axis."""
        return dict(self.values).get(axis)

    def other_values(self, axis: str) -> tuple[tuple[str, int | str], ...]:
        """Give the values of all axes but one."""
        return tuple(pair for pair in self.values if pair[0] != axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What an arm's outputs are held to, and under which truth."""

    min_cosine: float
    max_rel_error: float
    truth: str
    deterministic: bool = False
    batch_invariant: bool = False


CEILING_TOLERANCE = Tolerance(min_cosine=0.999999, max_rel_error=1e-5, truth="stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arm; ``tolerance`` is None for controls, which have none of their own."""

    name: str
    role: str
    calls: int
    points: tuple[str, ...] | None
    of: str | None
    counted_bytes: str | None
    ceiling: str | None
    bytes: int | None
    tolerance: Tolerance | None
    part_of: str | None = None
    stage: str | None = None  # of a component: params.stage

    def stands_at(self, point: str) -> bool:
        """Say whether the arm stands at a point."""
        return self.points is None or point in self.points


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """A locked comparison."""

    candidate: str
    baseline: str
    claim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    """[build.require]: ranges by name, exact names, digests."""

    ranges: tuple[tuple[str, str], ...]
    gpu: str | None
    compute_capability: str | None
    sources: tuple[tuple[str, str], ...]
    binaries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """An outside file and its digest."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """[statistics]: level, margin, and what is asked beyond the default; None or empty where it is not asked."""

    alpha: float
    margin: float
    named_points: tuple[str, ...] | None = None
    gatekeeping: bool = False
    pooled: bool = False
    sensitivity: tuple[str, ...] | None = None
    quantile: float | None = None
    quantile_type: int = 7
    looks: tuple[int, ...] = ()
    reproduction_band: float | None = None

    @property
    def family(self) -> str:
        """What the family claims."""
        return "all-points" if self.named_points is None else "named-points"

    @property
    def lists_members(self) -> bool:
        """Say whether the family's members are listed one by one."""
        return self.gatekeeping or self.named_points is not None

    def in_family(self, point: str) -> bool:
        """Say whether claimed comparisons at a point are members of the family."""
        return self.named_points is None or point in self.named_points


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """All of a protocol that a check uses."""

    id: str
    digest: str
    require: Require
    fixture: Fixture
    points: tuple[Point, ...]
    arms: tuple[Arm, ...]
    comparisons: tuple[Pairing, ...]
    process_pairs: int
    blocks: int
    warmup_samples: int
    clock: str
    launch: str
    calls_per_sample: int
    samples_per_block: int
    cache: str
    min_l2_multiple: float | None
    peak_gb_per_s: float | None
    repeats: int | None
    statistics: Statistics
    assets: tuple[Asset, ...]

    @property
    def alpha(self) -> float:
        """The locked one-sided level."""
        return self.statistics.alpha

    @property
    def margin(self) -> float:
        """The locked margin."""
        return self.statistics.margin

    def arm(self, name: str) -> Arm:
        """Give an arm by name."""
        return next(arm for arm in self.arms if arm.name == name)

    def arms_at(self, point: str) -> tuple[Arm, ...]:
        """Give the arms that stand at a point, in the order of the protocol."""
        return tuple(arm for arm in self.arms if arm.stands_at(point))

    def claims_at(self, point: str) -> bool:
        """Say whether a claimed comparison stands at a point."""
        names = {arm.name for arm in self.arms_at(point)}
        return any(
            item.claim != "descriptive" and {item.candidate, item.baseline} <= names for item in self.comparisons
        )

    def tokens(self, point: Point) -> int:
        """Give the number of tokens at a point; 0 for arrays, whose axis ``batch`` may hold anything."""
        return int(point.value("batch") or 0) if self.fixture.kind == "moe" else 0

    def tolerance_of(self, arm: Arm) -> Tolerance:
        """Give the tolerance that an arm is held to; a control is held to that of its arm."""
        if arm.tolerance is not None:
            return arm.tolerance
        return self.tolerance_of(self.arm(str(arm.of)))
