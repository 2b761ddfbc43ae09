"""What a report says beside verdicts and validity: accuracy, stages, launches, repacking, clocks, ceilings; each class is a table of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The worst errors of an arm at a point against one truth."""

    operating_point: str
    arm: str
    truth: str
    min_cosine: float | None
    max_abs_error: float | None
    rel_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """A component's time, and its share of the sum of all components at the point."""

    operating_point: str
    arm: str
    median_ns: float
    percent_of_stages: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookkeeping:
    """How much of a path's stages only moves and orders what the others compute: sort, pad, gather, scatter, combine."""

    operating_point: str
    path: str
    path_ns: float | None
    stages_ns: float
    percent_bookkeeping: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What one call of an arm launches, its scratch for each token, and its rate in issued bytes."""

    operating_point: str
    arm: str
    kernels: str
    scratch_bytes_per_token: float | None
    issued_gb_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariance:
    """Whether a token kept its bits among different numbers of others: how many of the tested batches are equal to the smallest."""

    arm: str
    batches: str
    others: str
    tested: int
    equal: int
    outputs: int
    max_abs_difference: float | None
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repacking:
    """What an arm does once a process to the weights: one copy from the checkpoint's layout into its own."""

    arm: str
    processes: int
    median_ns: float
    least_ns: int
    most_ns: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCap:
    """How often the software power cap was active at a point, and the SM clocks that were seen."""

    operating_point: str
    percent_of_rows: float
    least_sm_mhz: int
    median_sm_mhz: float
    most_sm_mhz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """A measured ceiling with every way of counting it: bytes moved, in both units, and one way."""

    operating_point: str
    arm: str
    counted: str
    gb_per_s: float
    gib_per_s: float
    one_way_gb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """Samples that are kept and flagged: the largest of an arm in a process is many times its median."""

    operating_point: str
    arm: str
    process: int
    samples: int
    median_ns: float
    largest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Drift and dependence of an arm's samples within processes: medians over them, and the largest trend."""

    operating_point: str
    arm: str
    processes: int
    tau: float
    largest_tau: float
    half_ratio: float
    lag1: float
    effective_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplement:
    """What the tables say beyond the claims; in no verdict."""

    accuracy: tuple[Accuracy, ...]
    stages: tuple[StageShare, ...]
    bookkeeping: tuple[Bookkeeping, ...]
    launches: tuple[Launches, ...]
    repacking: tuple[Repacking, ...]
    invariance: tuple[Invariance, ...]
    power_cap: tuple[PowerCap, ...]
    ceilings: tuple[Ceiling, ...]
    uneven: tuple[Uneven, ...]
    series: tuple[Series, ...]
