"""The family: what its members show together, one by one, and pooled.

Rules (results/README.md, "Numbers on request"):
1. ``all-points``: an intersection-union test over the comparisons' own verdicts. ``named-points``: Holm over the members.
2. A member whose gate fired, or that has no p-value, counts with p = 1. A p within 1e-9 of alpha is not below it.
3. Which members are superior is said by Holm, and only if all are shown; a claim of equivalence takes no part in that.
4. The pooled ratio is the paired t of R_k, the mean of a process's log ratios over the family's points; never guarded.
"""

import math
from collections.abc import Sequence

from validator.findings import Comparison, Family, Member, Pooled, Verdict
from validator.reading.model import Statistics
from validator.recompute.pairing import Pair
from validator.recompute.statistics import TIE, LogRatios, estimate, family_verdict, holm

SHOWN = (Verdict.SUPERIOR, Verdict.NON_INFERIOR, Verdict.NON_INFERIOR_BUT_SLOWER)


def judge_family(rules: Statistics, judged: Sequence[tuple[Comparison, Pair]], *, alpha: float) -> Family:
    """Judge the claimed comparisons that are members of the family."""
    mine = [
        (item, pair) for item, pair in judged if item.claim != "descriptive" and rules.in_family(item.operating_point)
    ]
    items = [item for item, _ in mine]
    members = _members(items, named=rules.named_points is not None, alpha=alpha)
    verdicts = [entering(item) for item in items] if rules.named_points is None else [m.verdict for m in members]
    return Family(
        claim=rules.family,
        verdict=family_verdict(verdicts),
        comparisons=len(items),
        members=members if rules.lists_members else None,
        pooled=_pooled(mine, alpha=alpha, margin=rules.margin) if rules.pooled else None,
    )


def entering(item: Comparison) -> Verdict:
    """Give the verdict with which a comparison enters an intersection-union test."""
    if item.equivalence is None:
        return item.verdict
    if not item.equivalence.equivalent:
        return Verdict.INCONCLUSIVE if item.verdict in SHOWN else item.verdict
    slower = item.verdict is Verdict.NON_INFERIOR_BUT_SLOWER
    return item.verdict if slower else Verdict.NON_INFERIOR


def _p(item: Comparison) -> float:
    p = item.p_non_inferior if item.equivalence is None else item.equivalence.p_equivalence
    return 1.0 if p is None or item.gates else p


def _members(items: Sequence[Comparison], *, named: bool, alpha: float) -> tuple[Member, ...]:
    own = [_p(item) for item in items]
    adjusted = [1.0 if p is None else p for p in holm(own)] if named else own
    shown = [
        entering(item) in SHOWN and (not named or p < alpha - TIE) for item, p in zip(items, adjusted, strict=True)
    ]
    superior: list[float | None] = [None] * len(items)
    if all(shown):
        tested = [i for i, item in enumerate(items) if item.equivalence is None]
        values = [items[i].p_superior for i in tested]
        for i, p in zip(tested, holm([1.0 if value is None else value for value in values]), strict=True):
            superior[i] = p
    return tuple(
        Member(
            operating_point=item.operating_point,
            candidate=item.candidate,
            baseline=item.baseline,
            p_non_inferior_adjusted=p,
            p_superior_adjusted=better,
            verdict=_verdict(item.verdict, shown=yes, superior=better is not None and better < alpha - TIE),
        )
        for item, p, better, yes in zip(items, adjusted, superior, shown, strict=True)
    )


def _verdict(own: Verdict, *, shown: bool, superior: bool) -> Verdict:
    slower = own is Verdict.NON_INFERIOR_BUT_SLOWER
    if shown:
        return own if slower or (own is Verdict.SUPERIOR and superior) else Verdict.NON_INFERIOR
    if own in (Verdict.INFERIOR, Verdict.INCONCLUSIVE_BUT_SLOWER):
        return own
    return Verdict.INCONCLUSIVE_BUT_SLOWER if slower else Verdict.INCONCLUSIVE


def _pooled(mine: Sequence[tuple[Comparison, Pair]], *, alpha: float, margin: float) -> tuple[Pooled, ...]:
    """Pool every claimed pair of arms over the points at which it stands in the family."""
    groups: dict[tuple[str, str], list[dict[int, float]]] = {}
    for item, pair in mine:
        by_process = dict(zip(pair.processes, pair.log_ratios, strict=True))
        groups.setdefault((item.candidate, item.baseline), []).append(by_process)
    result = []
    for (candidate, baseline), points in groups.items():
        shared = [process for process in sorted(points[0]) if all(process in point for point in points)]
        means = tuple(math.fsum(point[process] for point in points) / len(points) for process in shared)
        found = estimate(LogRatios(plain=means), alpha=alpha, margin=margin)
        result.append(
            Pooled(
                candidate=candidate,
                baseline=baseline,
                points=len(points),
                pairs=found.pairs,
                ratio=found.ratio,
                lower=found.lower,
                upper=found.upper,
                p_non_inferior=found.p_non_inferior,
                p_superior=found.p_superior,
                unbounded=found.unbounded,
            )
        )
    return tuple(result)
