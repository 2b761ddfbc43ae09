"""Feeds the statistics with a bundle's evidence: comparisons, controls, family, looks.

Rules:
1. Where a timed duration of a pair is not positive, nothing is computed of that pair at that point: the validator says INVALID, and no number is
   made up.
2. With locked looks, the first that shows the claim decides, else the last that the run reached; what later processes did does not enter.
   ``shows`` is what a run asks at a look: from the same rows the sealed bundle says the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchkit.analysis.arms import ArmTable
from benchkit.analysis.evidence import Evidence, gather
from benchkit.bundle.reader import Bundle
from benchkit.protocol.model import Arm, Comparison, Point, StatisticsRules
from benchkit.statistics.bootstrap import bootstrap_key
from benchkit.statistics.diagnostics import Clocks, Outputs
from benchkit.statistics.estimand import log_ratios
from benchkit.statistics.family import (
    EquivalenceResult,
    Member,
    MemberResult,
    entering_verdict,
    judge_equivalence,
    judge_members,
)
from benchkit.statistics.interval import RatioInterval, paired_interval
from benchkit.statistics.noninferiority import SHOWN, Family, family_verdict
from benchkit.statistics.point import (
    ArmMedians,
    ControlResult,
    ControlRole,
    PointFlags,
    PointResult,
    judge_control,
    judge_point,
    with_holm,
)
from benchkit.statistics.pooled import pooled_log_ratios
from benchkit.statistics.quantile import ProcessTail, process_quantile, process_tail
from benchkit.statistics.sensitivity import CLAIMED, SensitivityRow, sensitivity
from benchkit.statistics.sequential import lan_demets
from benchkit.units import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparisonRow:
    """One comparison at one point, with its names, and the process medians that it rests on."""

    point: Point
    comparison: Comparison
    result: PointResult
    equivalence: EquivalenceResult | None
    tail: ProcessTail | None
    sensitivity: tuple[SensitivityRow, ...] | None
    candidate: ArmMedians
    baseline: ArmMedians
    processes: tuple[int, ...]

    @property
    def log_ratios(self) -> FloatArray:
        """r, one per process."""
        return log_ratios(self.candidate.per_call_ns, self.baseline.per_call_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """One control at one point, with its names."""

    point: Point
    arm: Arm
    result: ControlResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledRow:
    """The ratio of one pair of arms, pooled over the family's points."""

    candidate: str
    baseline: str
    points: int
    interval: RatioInterval


@dataclass(frozen=True, slots=True, kw_only=True)
class LookRow:
    """One look: how many processes it saw, its level, and the family's verdict then."""

    processes: int
    alpha_one_sided: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Everything that one look at the data says."""

    comparisons: tuple[ComparisonRow, ...]
    controls: tuple[ControlRow, ...]
    family: Family
    members: tuple[tuple[ComparisonRow, MemberResult], ...] | None
    pooled: tuple[PooledRow, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What the author of a bundle claims; ``arms`` are the finished rows of the report's table."""

    evidence: Evidence
    claims: Claims
    arms: tuple[dict[str, Any], ...]
    looks: tuple[LookRow, ...]

    @property
    def alpha_one_sided(self) -> float:
        """Level of the comparisons: that of the look that decided."""
        return self.looks[-1].alpha_one_sided if self.looks else self.evidence.protocol.statistics.alpha_one_sided


def analyse(bundle: Bundle) -> Analysis:
    """Everything that analysis.json says of a bundle."""
    evidence = gather(bundle)
    rules = evidence.protocol.statistics
    arms = ArmTable(evidence).rows()
    if not rules.looks:
        return Analysis(
            evidence=evidence, claims=Analyst(evidence, rules.alpha_one_sided).claims(), arms=arms, looks=()
        )
    looks: list[LookRow] = []
    reached = evidence.processes if evidence.processes in rules.looks else rules.looks[-1]
    for processes, alpha in look_levels(rules):
        if processes > reached:
            break
        claims = Analyst(gather(bundle, up_to=processes), alpha).claims()
        looks.append(LookRow(processes=processes, alpha_one_sided=alpha, verdict=claims.family.verdict.value))
        if claims.family.verdict in SHOWN:
            break
    return Analysis(evidence=evidence, claims=claims, arms=arms, looks=tuple(looks))


def shows(bundle: Bundle) -> bool:
    """Whether the look at the processes that the bundle holds shows the claim; it must be a locked look."""
    evidence = gather(bundle)
    alpha = dict(look_levels(bundle.protocol.statistics))[evidence.processes]
    return Analyst(evidence, alpha).claims().family.verdict in SHOWN


def look_levels(rules: StatisticsRules) -> tuple[tuple[int, float], ...]:
    """Processes and nominal level of each locked look; empty without looks."""
    if not rules.looks:
        return ()
    spent = lan_demets([look / rules.looks[-1] for look in rules.looks], alpha_one_sided=rules.alpha_one_sided)
    return tuple(zip(rules.looks, spent.nominal_p, strict=True))


class Analyst:
    """Judges one look at a bundle's evidence at one level."""

    def __init__(self, evidence: Evidence, alpha_one_sided: float) -> None:
        self.evidence = evidence
        self.protocol = evidence.protocol
        self.samples = evidence.samples
        self.rules = evidence.protocol.statistics
        self.alpha = alpha_one_sided

    def claims(self) -> Claims:
        """Comparisons, controls and the family."""
        controls = self._controls()
        by_point = {point.id: [row.result for row in controls if row.point == point] for point in self.protocol.points}
        comparisons = tuple(
            self._row(comparison, point, by_point[point.id])
            for comparison in self.protocol.comparisons
            for point in self.protocol.points
            if comparison in self.protocol.comparisons_at(point.id)
        )
        rows = [
            row for row in comparisons if row.comparison.claim != "descriptive" and self.rules.in_family(row.point.id)
        ]
        family, members = self._family(rows)
        return Claims(
            comparisons=comparisons,
            controls=controls,
            family=family,
            members=members,
            pooled=tuple(self._pooled(rows)) if self.rules.pooled else None,
        )

    def _family(
        self, rows: Sequence[ComparisonRow]
    ) -> tuple[Family, tuple[tuple[ComparisonRow, MemberResult], ...] | None]:
        named = self.rules.named_points is not None
        members = [Member(result=row.result, equivalence=row.equivalence) for row in rows]
        results = judge_members(members, named=named, alpha_one_sided=self.alpha)
        verdicts = [found.verdict for found in results] if named else [entering_verdict(member) for member in members]
        family = family_verdict(verdicts, claim=self.rules.family)
        listed = named or self.rules.gatekeeping
        return family, tuple(zip(rows, results, strict=True)) if listed else None

    def _pooled(self, rows: Sequence[ComparisonRow]) -> Iterator[PooledRow]:
        for comparison in self.protocol.comparisons:
            own = [row for row in rows if row.comparison == comparison]
            if own:
                pooled = pooled_log_ratios(
                    [dict(zip(row.processes, row.log_ratios.tolist(), strict=True)) for row in own]
                )
                yield PooledRow(
                    candidate=comparison.candidate,
                    baseline=comparison.baseline,
                    points=len(own),
                    interval=paired_interval(pooled, margin=self.rules.margin, alpha_one_sided=self.alpha),
                )

    def _typical(self, process: int, point: Point, arm: Arm) -> float:
        """The process median of whole samples, or the quantile that the protocol claims."""
        durations = self.samples.duration_ns(process, point.id, arm.name)
        if self.rules.quantile is None or self.rules.quantile_type is None:
            return float(np.median(durations))
        return process_quantile(durations, self.rules.quantile, hyndman_fan=self.rules.quantile_type)

    def pair(self, one: Arm, other: Arm, point: Point) -> tuple[ArmMedians, ArmMedians, list[int]]:
        """Process medians of two arms at a point, and the processes that they come from."""
        processes = self.evidence.processes_of(point.id, one, other)
        if any(np.any(self.samples.duration_ns(p, point.id, a.name) <= 0) for p in processes for a in (one, other)):
            processes = []
        first, second = (
            ArmMedians(
                duration_ns=np.array([self._typical(p, point, arm) for p in processes], dtype=np.float64),
                calls=arm.calls_per_sample,
            )
            for arm in (one, other)
        )
        return first, second, processes

    def _controls(self) -> tuple[ControlRow, ...]:
        rows: list[ControlRow] = []
        for arm in self.protocol.arms:
            if not arm.role.is_control:
                continue
            points = [point for point in self.protocol.points if arm.stands_at(point.id)]
            results = with_holm([self._control(arm, point) for point in points])
            rows.extend(
                ControlRow(point=point, arm=arm, result=result) for point, result in zip(points, results, strict=True)
            )
        return tuple(rows)

    def _control(self, arm: Arm, point: Point) -> ControlResult:
        control, baseline, processes = self.pair(arm, self.protocol.baseline, point)
        name = self.protocol.baseline.name
        return judge_control(
            control,
            baseline,
            role=ControlRole(arm.role.value),
            margin=self.rules.margin,
            alpha_one_sided=self.rules.alpha_one_sided,
            quantum_ns=self.evidence.quantum,
            injected_ns=[self.samples.injected_ns(process, point.id, arm.name) for process in processes],
            median_ns=np.array(
                [np.median(self.samples.duration_ns(process, point.id, name)) for process in processes],
                dtype=np.float64,
            ),
        )

    def _row(self, comparison: Comparison, point: Point, controls: Sequence[ControlResult]) -> ComparisonRow:
        candidate, baseline = self.protocol.arm(comparison.candidate), self.protocol.arm(comparison.baseline)
        ours, theirs, processes = self.pair(candidate, baseline, point)
        result = judge_point(
            ours,
            theirs,
            margin=self.rules.margin,
            alpha_one_sided=self.alpha,
            quantum_ns=self.evidence.quantum,
            controls=controls,
            telemetry=self._clocks(candidate, baseline, point),
            flags=self._flags(candidate, baseline, point),
        )
        ratios = log_ratios(ours.per_call_ns, theirs.per_call_ns)
        wanted = self.rules.sensitivity
        return ComparisonRow(
            point=point,
            comparison=comparison,
            result=result,
            equivalence=judge_equivalence(result) if comparison.claim == "equivalent" else None,
            tail=process_tail(ratios, alpha_one_sided=self.alpha) if ratios.size else None,
            sensitivity=None
            if wanted is None
            else sensitivity(
                ours.per_call_ns,
                theirs.per_call_ns,
                methods=[method for method in wanted if method in CLAIMED],
                margin=self.rules.margin,
                alpha_one_sided=self.alpha,
                key=bootstrap_key(protocol_digest=self.evidence.protocol_digest, point=point.id),
            ),
            candidate=ours,
            baseline=theirs,
            processes=tuple(processes),
        )

    def _flags(self, candidate: Arm, baseline: Arm, point: Point) -> PointFlags:
        involved = [candidate, baseline, *(arm for arm in self.protocol.arms_at(point.id) if arm.role.is_control)]
        reasons = [(arm.name, self.evidence.why_unsupported(point.id, arm.name)) for arm in involved]
        return PointFlags(
            failed_processes=tuple(self.evidence.failed[point.id]),
            unsupported=tuple(f"{name}: {reason}" for name, reason in reasons if reason is not None),
            outputs=tuple(claimed for arm in (candidate, baseline) for claimed in self._claimed(arm, point)),
        )

    def _claimed(self, arm: Arm, point: Point) -> Iterator[Outputs]:
        """The outputs of which the arm claims that they are one."""
        if arm.tolerance.deterministic:
            yield Outputs(arm=arm.name, output_sha256=tuple(self._outputs(arm, point)))
        if arm.tolerance.batch_invariant:
            others = point.beside("batch")
            alike = {each.id for each in self.protocol.points if each.beside("batch") == others}
            rows = [row for row in self.evidence.correctness if row["arm"] == arm.name and row["truth"] == "batch"]
            digests = tuple(row["output_sha256"] for row in rows if row["point"] in alike)
            yield Outputs(arm=arm.name, output_sha256=digests, of="batches and processes for token 0")

    def _outputs(self, arm: Arm, point: Point) -> list[str]:
        """The outputs of the repeats, and those that were compared with the truth: all of one call."""
        checked = (row for row in self.evidence.correctness if row["truth"] == arm.tolerance.truth)
        rows = (*self.evidence.repeats, *checked)
        return [row["output_sha256"] for row in rows if (row["point"], row["arm"]) == (point.id, arm.name)]

    def _clocks(self, candidate: Arm, baseline: Arm, point: Point) -> Clocks | None:
        rows = [row for row in self.evidence.telemetry if row["point"] == point.id and row["block"] >= 0]
        if not rows:
            return None

        def column(name: str, arm: Arm | None = None) -> IntArray:
            return np.array([row[name] for row in rows if arm is None or row["arm"] == arm.name], dtype=np.int64)

        return Clocks(
            process=column("process"),
            block=column("block"),
            throttle_reasons=column("throttle_reasons"),
            candidate_sm_mhz=column("sm_clock_mhz", candidate),
            baseline_sm_mhz=column("sm_clock_mhz", baseline),
        )
