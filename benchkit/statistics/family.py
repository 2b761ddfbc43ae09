"""Families beyond "at all points": named points by Holm, superiority by gatekeeping, equivalence as a member.

Rules (results/README.md, "Numbers on request"):
1. A member that a gate closed, or that has no p-value, counts with p = 1: naming a point cannot be undone by losing it.
2. Superiority of single members is tested only after all members are shown non-inferior, and then by Holm.
3. A p-value within 1e-9 of alpha is not below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchkit.statistics.equivalence import Side
from benchkit.statistics.multiplicity import holm, intersection_union
from benchkit.statistics.noninferiority import SHOWN, TIE, Verdict
from benchkit.statistics.point import PointResult


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivalenceResult:
    """Two one-sided tests of ``1 / (1 + d) < ratio < 1 + d`` at one point; None is a number that does not exist."""

    p_lower: float | None
    p_upper: float | None
    p_equivalence: float | None
    equivalent: bool
    failing_side: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One claimed comparison of a family; ``equivalence`` is None unless that is its claim."""

    result: PointResult
    equivalence: EquivalenceResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """A member within its family; ``p_superior_adjusted`` is None where the gate is closed or the claim is equivalence."""

    p_non_inferior_adjusted: float
    p_superior_adjusted: float | None
    verdict: Verdict


def judge_equivalence(result: PointResult) -> EquivalenceResult:
    """Equivalence from a point's interval: decided by the bounds, 1e-9 inside the region, and by no gate.

    References
    ----------
    Schuirmann, D. J. (1987), "A comparison of the two one-sided tests procedure and the power approach", J.
    Pharmacokinet. Biopharm. 15(6), 657-680.
    """
    limit = 1.0 + result.margin
    lower_holds = result.lower is not None and result.lower > 1.0 / limit + TIE
    upper_holds = result.upper is not None and result.upper < limit - TIE
    side = {
        (True, True): Side.NONE,
        (True, False): Side.UPPER,
        (False, True): Side.LOWER,
        (False, False): Side.BOTH,
    }[lower_holds, upper_holds]
    both = (result.p_lower, result.p_non_inferior)
    return EquivalenceResult(
        p_lower=result.p_lower,
        p_upper=result.p_non_inferior,
        p_equivalence=None if both[0] is None or both[1] is None else max(both[0], both[1]),
        equivalent=side is Side.NONE and not result.gates,
        failing_side=side,
    )


def entering_verdict(member: Member) -> Verdict:
    """The verdict with which a member enters the family's intersection-union test."""
    verdict = member.result.verdict
    if member.equivalence is None:
        return verdict
    if member.equivalence.equivalent:
        return verdict if verdict is Verdict.NON_INFERIOR_BUT_SLOWER else Verdict.NON_INFERIOR
    return Verdict.INCONCLUSIVE if verdict in SHOWN else verdict


def judge_members(members: Sequence[Member], *, named: bool, alpha_one_sided: float) -> tuple[MemberResult, ...]:
    """Every member within its family.

    Parameters
    ----------
    members:
        The claimed comparisons of the family.
    named:
        True: the claim is about each of these points (Holm); False: about all points (each at full alpha).
    alpha_one_sided:
        Level of the family.

    References
    ----------
    Holm, S. (1979), "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6, 65-70; Morikawa, T.
    and Yoshida, M. (1995), "A useful testing strategy in phase III trials", J. Biopharm. Stat. 5, 297-306.
    """
    plain = [_p_value(member) for member in members]
    adjusted = holm(plain) if named else tuple(plain)
    shown = [
        entering_verdict(member) in SHOWN and (not named or p < alpha_one_sided - TIE)
        for member, p in zip(members, adjusted, strict=True)
    ]
    superior = _superior(members) if members and all(shown) else [None] * len(members)
    return tuple(
        MemberResult(
            p_non_inferior_adjusted=p,
            p_superior_adjusted=p_superior,
            verdict=_verdict(member, shown=yes, p_superior=p_superior, alpha=alpha_one_sided),
        )
        for member, p, yes, p_superior in zip(members, adjusted, shown, superior, strict=True)
    )


def largest_p(members: Sequence[Member]) -> float:
    """p of "at all points": the largest."""
    return intersection_union([_p_value(member) for member in members])


def _p_value(member: Member) -> float:
    p = member.result.p_non_inferior if member.equivalence is None else member.equivalence.p_equivalence
    return 1.0 if p is None or member.result.gates else p


def _superior(members: Sequence[Member]) -> list[float | None]:
    tested = [member.equivalence is None for member in members]
    p = [member.result.p_superior for member, yes in zip(members, tested, strict=True) if yes]
    adjusted = iter(holm([1.0 if value is None else value for value in p]))
    return [next(adjusted) if yes else None for yes in tested]


def _verdict(member: Member, *, shown: bool, p_superior: float | None, alpha: float) -> Verdict:
    own = member.result.verdict
    if shown:
        if own is Verdict.SUPERIOR and p_superior is not None and p_superior < alpha - TIE:
            return own
        return own if own is Verdict.NON_INFERIOR_BUT_SLOWER else Verdict.NON_INFERIOR
    if own in (Verdict.INFERIOR, Verdict.INCONCLUSIVE_BUT_SLOWER):
        return own
    slower = own is Verdict.NON_INFERIOR_BUT_SLOWER
    return Verdict.INCONCLUSIVE_BUT_SLOWER if slower else Verdict.INCONCLUSIVE
