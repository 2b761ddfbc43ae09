"""Families: Holm over named points, gatekeeping, equivalence as a member; pooled ratios."""

import math

import numpy as np
import pytest

from benchkit.statistics.equivalence import Side
from benchkit.statistics.family import (
    Member,
    MemberResult,
    entering_verdict,
    judge_equivalence,
    judge_members,
    largest_p,
)
from benchkit.statistics.noninferiority import Gate, GateFinding, Verdict, decide, family_verdict
from benchkit.statistics.point import ArmMedians, PointFlags, PointResult, judge_point
from benchkit.statistics.pooled import pooled_log_ratios

V = Verdict
FLAGS = PointFlags(failed_processes=(), unsupported=(), outputs=())


def point(
    *, lower: float, upper: float, p: float | None, p_superior: float | None = 1.0, gates: tuple[Gate, ...] = ()
) -> PointResult:
    """A point with these bounds and p-values at margin 2 %."""
    verdict = decide(lower=lower, upper=upper, margin=0.02).verdict
    return PointResult(
        ratio=math.sqrt(lower * upper),
        lower=lower,
        upper=upper,
        margin=0.02,
        alpha_one_sided=0.05,
        pairs=10,
        p_non_inferior=p,
        p_superior=p_superior,
        p_lower=0.001,
        guarded=False,
        numerical_tie=False,
        unbounded=False,
        verdict=V.INCONCLUSIVE if gates else verdict,
        gates=tuple(GateFinding(gate=gate, detail="") for gate in gates),
        reason="",
    )


def member(**numbers: object) -> Member:
    """A member that claims non-inferiority."""
    return Member(result=point(**numbers), equivalence=None)  # type: ignore[arg-type]


def equal(**numbers: object) -> Member:
    """A member that claims equivalence."""
    result = point(**numbers)  # type: ignore[arg-type]
    return Member(result=result, equivalence=judge_equivalence(result))


def result(p: float, p_superior: float | None, verdict: Verdict) -> MemberResult:
    """What is expected of a member."""
    return MemberResult(p_non_inferior_adjusted=p, p_superior_adjusted=p_superior, verdict=verdict)


GOOD = {"lower": 0.97, "upper": 0.99, "p": 0.001, "p_superior": 0.004}
FAIR = {"lower": 0.99, "upper": 1.01, "p": 0.012, "p_superior": 0.3}
SLOW = {"lower": 1.005, "upper": 1.018, "p": 0.03, "p_superior": 0.99}


def test_holm_over_named_points() -> None:
    found = judge_members([member(**SLOW), member(**FAIR), member(**GOOD)], named=True, alpha_one_sided=0.05)
    assert found == (
        result(0.03, 0.99, V.NON_INFERIOR_BUT_SLOWER),
        result(0.024, 0.6, V.NON_INFERIOR),
        result(0.003, pytest.approx(0.012), V.SUPERIOR),
    )


def test_a_point_that_holm_does_not_reach_is_inconclusive() -> None:
    found = judge_members([member(**SLOW), member(**SLOW), member(**GOOD)], named=True, alpha_one_sided=0.05)
    assert [entry.p_non_inferior_adjusted for entry in found] == [0.06, 0.06, 0.003]
    assert [entry.p_superior_adjusted for entry in found] == [None, None, None]
    assert [entry.verdict for entry in found] == [V.INCONCLUSIVE_BUT_SLOWER, V.INCONCLUSIVE_BUT_SLOWER, V.NON_INFERIOR]
    assert family_verdict([entry.verdict for entry in found], claim="named-points").verdict is V.INCONCLUSIVE_BUT_SLOWER


def test_a_gated_or_empty_member_counts_as_one() -> None:
    gated, empty = member(**GOOD, gates=(Gate.CLOCKS,)), member(**{**GOOD, "p": None})
    found = judge_members([gated, empty, member(**GOOD)], named=True, alpha_one_sided=0.05)
    assert [entry.p_non_inferior_adjusted for entry in found] == [1.0, 1.0, 0.003]
    assert [entry.verdict for entry in found] == [V.INCONCLUSIVE, V.INCONCLUSIVE, V.NON_INFERIOR]
    assert largest_p([gated, member(**GOOD)]) == 1.0


def test_all_points_need_no_adjustment_and_open_the_gate() -> None:
    found = judge_members([member(**FAIR), member(**GOOD)], named=False, alpha_one_sided=0.05)
    assert found == (result(0.012, 0.3, V.NON_INFERIOR), result(0.001, 0.008, V.SUPERIOR))


def test_superior_only_below_the_adjusted_level() -> None:
    barely = {**GOOD, "p_superior": 0.02}
    found = judge_members([member(**barely)] * 3, named=False, alpha_one_sided=0.05)
    assert [(entry.p_superior_adjusted, entry.verdict) for entry in found] == [(0.06, V.NON_INFERIOR)] * 3


def test_a_tie_with_alpha_is_not_below_it() -> None:
    found = judge_members([member(**{**FAIR, "p": 0.025}), member(**GOOD)], named=True, alpha_one_sided=0.025)
    assert (found[0].p_non_inferior_adjusted, found[0].verdict) == (0.025, V.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("lower", "upper", "side", "enters"),
    [
        (0.99, 1.01, Side.NONE, V.NON_INFERIOR),
        (0.985, 0.99, Side.NONE, V.NON_INFERIOR),
        (1.005, 1.018, Side.NONE, V.NON_INFERIOR_BUT_SLOWER),
        (0.97, 0.99, Side.LOWER, V.INCONCLUSIVE),
        (0.95, 1.03, Side.BOTH, V.INCONCLUSIVE),
        (1.005, 1.03, Side.UPPER, V.INCONCLUSIVE_BUT_SLOWER),
        (1.03, 1.05, Side.UPPER, V.INFERIOR),
        (1 / 1.02 + 5e-10, 1.0, Side.LOWER, V.INCONCLUSIVE),
        (1.0, 1.02 - 5e-10, Side.UPPER, V.INCONCLUSIVE),
    ],
)
def test_equivalence_enters_the_family(lower: float, upper: float, side: Side, enters: Verdict) -> None:
    found = equal(lower=lower, upper=upper, p=0.01)
    assert found.equivalence is not None
    assert (found.equivalence.failing_side, found.equivalence.equivalent) == (side, side is Side.NONE)
    assert entering_verdict(found) is enters


def test_a_gate_closes_equivalence_and_names_no_side() -> None:
    found = equal(lower=0.99, upper=1.01, p=0.01, gates=(Gate.AA_CONTROL,))
    assert found.equivalence is not None
    assert (found.equivalence.failing_side, found.equivalence.equivalent) == (Side.NONE, False)


def test_equivalent_members_take_no_part_in_superiority() -> None:
    found = judge_members([equal(lower=0.985, upper=0.99, p=0.0001), member(**GOOD)], named=True, alpha_one_sided=0.05)
    assert found == (result(0.002, None, V.NON_INFERIOR), result(0.002, 0.004, V.SUPERIOR))


def test_equivalence_of_asymmetric_data() -> None:
    """Two one-sided t tests by scipy."""
    from scipy.stats import ttest_1samp

    r = np.array([0.011, 0.018, 0.009, 0.021, 0.014, 0.016])
    found = judge_equivalence(
        judge_point(
            ArmMedians(duration_ns=1e6 * np.exp(r), calls=1),
            ArmMedians(duration_ns=np.full(6, 1e6), calls=1),
            margin=0.02,
            alpha_one_sided=0.05,
            quantum_ns=1,
            controls=(),
            telemetry=None,
            flags=FLAGS,
        )
    )
    below = ttest_1samp(r, math.log1p(0.02), alternative="less").pvalue
    above = ttest_1samp(r, -math.log1p(0.02), alternative="greater").pvalue
    assert found.p_upper == pytest.approx(below, rel=1e-9)
    assert found.p_lower == pytest.approx(above, rel=1e-6)
    assert found.p_equivalence == found.p_upper
    assert (found.equivalent, found.failing_side) == (True, Side.NONE)


def test_pooled_over_points_takes_shared_processes() -> None:
    points = [{0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.3, 2: 0.1, 3: 9.0}]
    assert pooled_log_ratios(points).tolist() == [0.2, 0.2]
    assert pooled_log_ratios([{0: 1.0}, {}]).size == 0
    assert pooled_log_ratios([]).size == 0
