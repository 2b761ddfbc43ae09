"""What a check finds, and the report that ``validator.report/1`` is made of.

Rules:
1. A finding carries its reason, where it is, what was expected and what was found; text alone is no finding.
2. Field names of the JSON report are the field names of these classes, in this order.
3. A number that does not exist is ``None``; NaN and infinity never enter a report.
4. What a protocol did not ask for is ``None`` and its key is left out; what is ``flat`` stands among its owner's keys.
"""

from dataclasses import dataclass, field, fields
from enum import StrEnum

from validator.outcomes import StudyFacts, StudyNumbers
from validator.reasons import Reason, Stage
from validator.supplement import Supplement

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class CouldNotCheckError(Exception):
    """The place cannot be read, or holds a schema that this version does not know."""


class Validity(StrEnum):
    """Whether a bundle can be believed; what it shows is another question."""

    VALID = "VALID"
    INVALID = "INVALID"
    COULD_NOT_CHECK = "COULD_NOT_CHECK"


class Verdict(StrEnum):
    """What the data show at one operating point, or for the family."""

    SUPERIOR = "superior"
    NON_INFERIOR = "non_inferior"
    NON_INFERIOR_BUT_SLOWER = "non_inferior_but_slower"
    INCONCLUSIVE = "inconclusive"
    INCONCLUSIVE_BUT_SLOWER = "inconclusive_but_slower"
    INFERIOR = "inferior"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason for which a bundle is INVALID."""

    reason: Reason
    where: str
    expected: str
    got: str
    message: str = ""

    def as_json(self) -> dict[str, Json]:
        """Give the entry of the report's ``reasons``."""
        return {
            "code": self.reason.value,
            "where": self.where,
            "expected": self.expected,
            "got": self.got,
            "message": self.message or f"{self.reason.meaning}: expected {self.expected}, got {self.got}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChecked:
    """A stage that could not be (fully) checked, and what stood in its way."""

    stage: Stage
    blocked_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplicable:
    """A check without a subject in this bundle."""

    check: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A gate that makes a point inconclusive; ``detail`` is text for people."""

    gate: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """What the interval of a comparison hides: shape and tail of its process ratios."""

    skewness: float | None
    largest_ratio: float | None
    tail_quantile: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One pre-specified analysis beside the primary one."""

    method: str
    ratio: float | None
    lower: float | None
    upper: float | None
    p_non_inferior: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Two one-sided tests of a ratio inside 1/(1+d) to 1+d."""

    p_lower: float | None
    p_upper: float | None
    p_equivalence: float | None
    equivalent: bool
    failing_side: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Candidate against baseline at one operating point."""

    operating_point: str
    candidate: str
    baseline: str
    claim: str
    ratio: float | None
    lower: float | None
    upper: float | None
    margin: float
    alpha_one_sided: float
    pairs: int
    p_non_inferior: float | None
    p_superior: float | None
    guarded: bool
    numerical_tie: bool
    unbounded: bool
    verdict: Verdict
    gates: tuple[Gate, ...]
    diagnostics: Diagnostics
    sensitivity: tuple[Sensitivity, ...] | None = field(default=None, metadata={"asked": True})
    equivalence: Equivalence | None = field(default=None, metadata={"asked": True, "flat": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A control against the arm that it controls, at one operating point."""

    operating_point: str
    arm: str
    of: str
    role: str
    ratio: float | None
    lower: float | None
    upper: float | None
    pairs: int
    guarded: bool
    unbounded: bool
    p_differs: float | None
    p_differs_holm: float | None
    dose: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """What one arm did at one operating point."""

    operating_point: str
    arm: str
    role: str
    median_ns: float | None
    samples: int
    unique_bytes: int | None
    issued_bytes: int | None
    gb_per_s: float | None
    percent_of_copy: float | None
    percent_of_read: float | None
    min_cosine: float | None
    max_abs_error: float | None
    kernels: int | None
    scratch_bytes: int | None
    repeats: int | None
    distinct_outputs: int | None
    distinct_modes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A claimed comparison within its family."""

    operating_point: str
    candidate: str
    baseline: str
    p_non_inferior_adjusted: float
    p_superior_adjusted: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A pair of arms over all points of the family: secondary, and in no verdict."""

    candidate: str
    baseline: str
    points: int
    pairs: int
    ratio: float | None
    lower: float | None
    upper: float | None
    p_non_inferior: float | None
    p_superior: float | None
    unbounded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A locked look at the first so many processes, at its own level."""

    processes: int
    alpha_one_sided: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The verdict over all comparisons of the family that claim something."""

    claim: str
    verdict: Verdict
    comparisons: int
    members: tuple[Member, ...] | None = field(default=None, metadata={"asked": True})
    pooled: tuple[Pooled, ...] | None = field(default=None, metadata={"asked": True})
    looks: tuple[Look, ...] | None = field(default=None, metadata={"asked": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """All that is recomputed from the samples."""

    comparisons: tuple[Comparison, ...]
    controls: tuple[Control, ...]
    arms: tuple[ArmSummary, ...]
    family: Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which bundle a report is about; ``None`` where that could not be read."""

    path: str
    protocol_id: str | None = None
    protocol_digest: str | None = None
    run_id: str | None = None
    gpu: str | None = None
    manifest_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the text report says beside the numbers."""

    protocol_given: bool = False
    margin: float | None = None
    alpha_one_sided: float | None = None
    other_attempts: int | None = None
    interrupted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer of the validator about one bundle."""

    bundle: Identity
    validity: Validity
    reasons: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    notes: tuple[str, ...] = ()
    numbers: Numbers | None = None
    supplement: Supplement | None = None
    study: StudyNumbers | None = None
    study_facts: StudyFacts | None = None
    context: Context = Context()

    @property
    def codes(self) -> tuple[Reason, ...]:
        """The reason codes in the order of the report."""
        return tuple(finding.reason for finding in self.reasons)


def plain(value: object) -> Json:
    """Turn a dataclass of this module (or a tuple of them) into JSON values, field by field."""
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Finding):
        return value.as_json()
    result: dict[str, Json] = {}
    for item in fields(value):  # type: ignore[arg-type]
        entry = getattr(value, item.name)
        if item.metadata.get("asked") and entry is None:
            continue
        shown = plain(entry)
        result |= shown if item.metadata.get("flat") and isinstance(shown, dict) else {item.name: shown}
    return result


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Sort findings by stage, then by the list of reasons, keeping table order within a code."""
    stages = list(Stage)
    codes = list(Reason)
    return tuple(sorted(findings, key=lambda f: (stages.index(f.reason.stage), codes.index(f.reason))))
