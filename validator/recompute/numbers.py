"""All numbers of a bundle, and the one finding that they can give: a control that shows what noise cannot.

Rules:
1. Comparisons are ordered by comparison, then point; controls by arm, then point; arms by point, then arm.
2. A gate makes a point's verdict inconclusive; the family looks at every comparison that claims something.
3. CONTROL_FAILED: an A/A interval wholly beyond the margin, or a positive control seen as faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from validator.findings import Comparison, Control, Family, Finding, Numbers, Verdict
from validator.reading.model import CONTROLS
from validator.reading.rows import View
from validator.reasons import Reason
from validator.recompute.arms import arms_table
from validator.recompute.gates import gates_of
from validator.recompute.measure import Measurements, measure
from validator.recompute.pairing import Pair, pair
from validator.recompute.statistics import TIE, family_verdict, holm, median, zone


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The numbers, and the findings of this stage."""

    numbers: Numbers
    findings: tuple[Finding, ...]


def recompute(view: View) -> Recomputed:
    """Recompute everything that a report publishes."""
    measured = measure(view)
    protocol = view.protocol
    pairs = {
        (arm.name, point.id): pair(protocol, measured, point.id, arm.name, str(arm.of))
        for arm in protocol.arms
        if arm.role in CONTROLS
        for point in protocol.points
        if arm.stands_at(point.id) and protocol.arm(str(arm.of)).stands_at(point.id)
    }
    comparisons = tuple(_comparisons(view, measured, pairs))
    verdicts = [item.verdict for item in comparisons if item.claim != "descriptive"]
    family = Family(claim="all-points", verdict=family_verdict(verdicts), comparisons=len(verdicts))
    numbers = Numbers(
        comparisons=comparisons,
        controls=tuple(_controls(view, measured, pairs)),
        arms=arms_table(view, measured),
        family=family,
    )
    return Recomputed(numbers=numbers, findings=tuple(_failed(view, pairs)))


def _comparisons(view: View, measured: Measurements, pairs: dict[tuple[str, str], Pair]) -> Iterator[Comparison]:
    protocol = view.protocol
    limit = 1 + protocol.margin
    for locked in protocol.comparisons:
        for point in protocol.points:
            both = (protocol.arm(locked.candidate), protocol.arm(locked.baseline))
            if not all(arm.stands_at(point.id) for arm in both):
                continue
            item = pair(protocol, measured, point.id, locked.candidate, locked.baseline)
            controls = tuple(control for (_, at), control in pairs.items() if at == point.id)
            gates = gates_of(view, measured, item, controls)
            found = item.estimate
            verdict = zone(found.lower, found.upper, protocol.margin)
            yield Comparison(
                operating_point=point.id,
                candidate=locked.candidate,
                baseline=locked.baseline,
                claim=locked.claim,
                ratio=found.ratio,
                lower=found.lower,
                upper=found.upper,
                margin=protocol.margin,
                alpha_one_sided=protocol.alpha,
                pairs=len(item.processes),
                p_non_inferior=found.p_non_inferior,
                p_superior=found.p_superior,
                guarded=item.guarded,
                numerical_tie=found.upper is not None and abs(found.upper - limit) < TIE,
                unbounded=found.unbounded,
                verdict=Verdict.INCONCLUSIVE if gates else verdict,
                gates=gates,
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
