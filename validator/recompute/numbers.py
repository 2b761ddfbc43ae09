"""All numbers of a bundle, and the findings that they can give: a control that shows what noise cannot, a stop without a reason.

Rules:
1. Comparisons are ordered by comparison, then point; controls by arm, then point; arms by point, then arm.
2. A gate makes a point's verdict inconclusive; the family looks at every comparison of it that claims something.
3. With locked looks the first that shows the claim decides, else the last that the run reached; arms are those of all processes.
   STOP_UNWARRANTED: the run ended at a look before the last, and none so far shows the claim.
4. CONTROL_FAILED: an A/A interval wholly beyond the margin, or a positive control seen as faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from validator.findings import (
    Comparison,
    Control,
    Equivalence,
    Family,
    Finding,
    Gate,
    Look,
    Numbers,
    Sensitivity,
    Verdict,
)
from validator.reading.model import CONTROLS, Pairing, Statistics
from validator.reading.rows import View
from validator.reading.statistics import CLAIMED
from validator.reasons import Reason
from validator.recompute.arms import arms_table
from validator.recompute.family import SHOWN, judge_family
from validator.recompute.gates import gates_of
from validator.recompute.measure import Measurements, measure, resolution
from validator.recompute.pairing import Pair, pair
from validator.recompute.shape import diagnostics
from validator.recompute.statistics import TIE, Estimate, holm, median, zone


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The numbers, and the findings of this stage."""

    numbers: Numbers
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Everything that one look at the data says."""

    comparisons: tuple[Comparison, ...]
    controls: tuple[Control, ...]
    family: Family
    findings: tuple[Finding, ...]


def recompute(view: View) -> Recomputed:
    """Recompute everything that a report publishes."""
    measured = measure(view)
    found = _decided(view, measured) if view.protocol.statistics.looks else _look(view, measured, view.protocol.alpha)
    numbers = Numbers(
        comparisons=found.comparisons,
        controls=found.controls,
        arms=arms_table(view, measured),
        family=found.family,
    )
    return Recomputed(numbers=numbers, findings=found.findings)


def _decided(view: View, measured: Measurements) -> _Look:
    """Look after look, until one shows the claim or none is left."""
    from validator.recompute.looks import look_alphas

    locked = view.protocol.statistics.looks
    looks: list[Look] = []
    for processes, alpha in zip(locked, look_alphas(locked, view.protocol.alpha), strict=True):
        if processes > view.pairs:
            break
        so_far = measured.up_to(processes, resolution_ns=resolution(view, up_to=processes))
        found = _look(view, so_far, alpha)
        looks.append(Look(processes=processes, alpha_one_sided=alpha, verdict=found.family.verdict))
        if found.family.verdict in SHOWN:
            break
    found = replace(found, family=replace(found.family, looks=tuple(looks)))
    if view.pairs < view.protocol.process_pairs and found.family.verdict not in SHOWN:
        found = replace(found, findings=(*found.findings, _unwarranted(view, looks[-1])))
    return found


def _unwarranted(view: View, last: Look) -> Finding:
    return Finding(
        reason=Reason.STOP_UNWARRANTED,
        where="processes.parquet",
        expected=f"{view.protocol.process_pairs} process pairs, or an end at a look that shows the claim",
        got=f"an end after {view.pairs} pairs, where the look says {last.verdict}",
    )


def _look(view: View, measured: Measurements, alpha: float) -> _Look:
    protocol = view.protocol
    pairs = {
        (arm.name, point.id): pair(protocol, measured, point.id, arm.name, str(arm.of), alpha=protocol.alpha)
        for arm in protocol.arms
        if arm.role in CONTROLS
        for point in protocol.points
        if arm.stands_at(point.id) and protocol.arm(str(arm.of)).stands_at(point.id)
    }
    judged = tuple(_comparisons(view, measured, pairs, alpha))
    return _Look(
        comparisons=tuple(item for item, _ in judged),
        controls=tuple(_controls(view, measured, pairs)),
        family=judge_family(protocol.statistics, judged, alpha=alpha),
        findings=tuple(_failed(view, pairs)),
    )


def _comparisons(
    view: View, measured: Measurements, pairs: dict[tuple[str, str], Pair], alpha: float
) -> Iterator[tuple[Comparison, Pair]]:
    protocol = view.protocol
    for locked in protocol.comparisons:
        for point in protocol.points:
            both = (protocol.arm(locked.candidate), protocol.arm(locked.baseline))
            if all(arm.stands_at(point.id) for arm in both):
                item = pair(protocol, measured, point.id, locked.candidate, locked.baseline, alpha=alpha)
                controls = tuple(control for (_, at), control in pairs.items() if at == point.id)
                gates = gates_of(view, measured, item, controls, alpha=alpha)
                yield (
                    compared(locked, item, gates, rules=protocol.statistics, alpha=alpha, digest=protocol.digest),
                    item,
                )


def compared(
    locked: Pairing, item: Pair, gates: tuple[Gate, ...], *, rules: Statistics, alpha: float, digest: str
) -> Comparison:
    """Give the row of a comparison at a point, from its pairs and the gates that fired."""
    found = item.estimate
    verdict = zone(found.lower, found.upper, rules.margin)
    return Comparison(
        operating_point=item.point,
        candidate=locked.candidate,
        baseline=locked.baseline,
        claim=locked.claim,
        ratio=found.ratio,
        lower=found.lower,
        upper=found.upper,
        margin=rules.margin,
        alpha_one_sided=alpha,
        pairs=len(item.processes),
        p_non_inferior=found.p_non_inferior,
        p_superior=found.p_superior,
        guarded=item.guarded,
        numerical_tie=found.upper is not None and abs(found.upper - (1 + rules.margin)) < TIE,
        unbounded=found.unbounded,
        verdict=Verdict.INCONCLUSIVE if gates else verdict,
        gates=gates,
        diagnostics=diagnostics(item.log_ratios, alpha=alpha),
        sensitivity=_sensitivity(rules, item, alpha, digest),
        equivalence=equivalence(found, rules.margin, closed=bool(gates)) if locked.claim == "equivalent" else None,
    )


def _sensitivity(rules: Statistics, item: Pair, alpha: float, digest: str) -> tuple[Sensitivity, ...] | None:
    if rules.sensitivity is None:
        return None
    from validator.recompute.sensitivity import bootstrap_key, sensitivity

    key = bootstrap_key(digest, item.point)
    wanted = [method for method in rules.sensitivity if method in CLAIMED]
    return tuple(sensitivity(method, item.log_ratios, alpha=alpha, margin=rules.margin, key=key) for method in wanted)


def equivalence(found: Estimate, margin: float, *, closed: bool) -> Equivalence:
    """Judge a ratio inside 1/(1+d) to 1+d; ``closed`` says that a gate fired."""
    lower = found.lower is not None and found.lower > 1 / (1 + margin) + TIE
    upper = found.upper is not None and found.upper < 1 + margin - TIE
    both = (found.p_lower, found.p_non_inferior)
    side = {(True, True): "none", (False, True): "lower", (True, False): "upper", (False, False): "both"}[lower, upper]
    return Equivalence(
        p_lower=found.p_lower,
        p_upper=found.p_non_inferior,
        p_equivalence=None if both[0] is None or both[1] is None else max(both[0], both[1]),
        equivalent=side == "none" and not closed,
        failing_side=side,
    )


def _controls(view: View, measured: Measurements, pairs: dict[tuple[str, str], Pair]) -> Iterator[Control]:
    for arm in view.protocol.arms:
        mine = [item for (name, _), item in pairs.items() if name == arm.name]
        rows = [
            Control(
                operating_point=item.point,
                arm=item.arm,
                of=item.other,
                role=arm.role,
                ratio=item.estimate.ratio,
                lower=item.estimate.lower,
                upper=item.estimate.upper,
                pairs=len(item.processes),
                guarded=item.guarded,
                unbounded=item.estimate.unbounded,
                p_differs=item.estimate.p_differs,
                p_differs_holm=None,
                dose=_dose(view, measured, item) if arm.role == "positive_control" else None,
            )
            for item in mine
        ]
        for row, adjusted in zip(rows, holm([row.p_differs for row in rows]), strict=True):
            yield replace(row, p_differs_holm=adjusted)


def _dose(view: View, measured: Measurements, item: Pair) -> float | None:
    doses = []
    for process in item.processes:
        base = measured.cells[(process, item.point, item.other)].whole_ns
        if base <= 0:
            return None
        doses.append(measured.cells[(process, item.point, item.arm)].injected_ns / (view.protocol.margin * base))
    return median(doses) if doses else None


def _failed(view: View, pairs: dict[tuple[str, str], Pair]) -> Iterator[Finding]:
    limit = 1 + view.protocol.margin
    for (arm, point), item in pairs.items():
        lower, upper = item.estimate.lower, item.estimate.upper
        role = view.protocol.arm(arm).role
        far = role == "aa_control" and (
            (lower is not None and lower >= limit) or (upper is not None and upper <= 1 / limit)
        )
        faster = role == "positive_control" and upper is not None and upper < 1
        if far or faster:
            expected = f"not wholly beyond {1 / limit:.6g} to {limit:.6g}" if far else "slower than its baseline"
            yield Finding(
                reason=Reason.CONTROL_FAILED,
                where=f"point={point} arm={arm}",
                expected=expected,
                got=f"ratio {item.estimate.ratio!r}, interval {lower!r} to {upper!r}",
            )
