"""The decision rule, the family and adjusted p-values."""

import math

import pytest

from benchkit.statistics.multiplicity import (
    benjamini_hochberg,
    bonferroni,
    hochberg,
    holm,
    holm_with_gaps,
    intersection_union,
    superiority_after_non_inferiority,
)
from benchkit.statistics.noninferiority import Gate, GateFinding, Verdict, decide, distinct, family_verdict, ordered

S, N, B = Verdict.SUPERIOR, Verdict.NON_INFERIOR, Verdict.NON_INFERIOR_BUT_SLOWER
U, IB, F = Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE_BUT_SLOWER, Verdict.INFERIOR


class TestDecide:
    @pytest.mark.parametrize(
        ("lower", "upper", "verdict"),
        [
            (None, None, U),
            (None, 0.99, S),
            (0.9, None, U),
            (1.01, None, IB),
            (1.06, None, F),
            (1.05, 1.2, F),
            (1.0, 1.0, N),
            (0.5, 1.0, N),
            (math.nextafter(1.0, 2.0), 1.04, B),
            (1.0, 1.06, U),
        ],
    )
    def test_zone(self, lower: float | None, upper: float | None, verdict: Verdict) -> None:
        assert decide(lower=lower, upper=upper, margin=0.05).verdict is verdict

    @pytest.mark.parametrize("lower", [0.9, 1.02, 1.05])
    @pytest.mark.parametrize("offset", [0.0, 9e-10, -9e-10])
    def test_tie_is_inconclusive_whatever_the_lower_bound_says(self, lower: float, offset: float) -> None:
        found = decide(lower=lower, upper=1.05 + offset, margin=0.05)
        assert (found.verdict, found.numerical_tie) == (U, True)
        assert "equals the limit" in found.reason

    @pytest.mark.parametrize(("offset", "verdict"), [(2e-9, U), (-2e-9, N)])
    def test_next_to_a_tie(self, offset: float, verdict: Verdict) -> None:
        found = decide(lower=0.9, upper=1.05 + offset, margin=0.05)
        assert (found.verdict, found.numerical_tie) == (verdict, False)

    @pytest.mark.parametrize(
        ("lower", "upper", "reason"),
        [
            (0.9, 0.95, "upper 0.95000 < 1"),
            (0.9, None, "no upper bound can be given"),
            (0.9, 1.0, "upper 1.00000 < limit 1.05"),
            (0.9, 1.0500004, "upper 1.0500004 >= limit 1.05"),
            (1.0000001, 1.01, "upper 1.01000 < limit 1.05, lower 1.0000001 > 1"),
            (1.06, 1.07, "lower 1.06000 >= limit 1.05"),
        ],
    )
    def test_reason_shows_why(self, lower: float, upper: float | None, reason: str) -> None:
        assert decide(lower=lower, upper=upper, margin=0.05).reason == reason

    @pytest.mark.parametrize("bad", [math.nan, -0.1])
    def test_a_bound_that_is_no_ratio_is_refused(self, bad: float) -> None:
        with pytest.raises(ValueError, match="upper: expected a ratio of at least 0"):
            decide(lower=0.9, upper=bad, margin=0.05)
        with pytest.raises(ValueError, match="lower: expected a ratio of at least 0"):
            decide(lower=bad, upper=1.0, margin=0.05)

    def test_digits_until_two_numbers_differ(self) -> None:
        assert distinct(1.03, 1.03) == "1.03000"
        assert distinct(1.0300400, 1.03) == "1.03004"
        assert distinct(math.nextafter(1.0, 2.0), 1.0) == "1.0000000000000002"


class TestFamily:
    @pytest.mark.parametrize(
        ("verdicts", "expected"),
        [
            ([S, S], S),
            ([S, N], N),
            ([N, N], N),
            ([S, N, B], B),
            ([B], B),
            ([S, F], F),
            ([IB, F, U], F),
            ([N, IB, U], IB),
            ([S, U], U),
            ([B, U], U),
            ([], U),
        ],
    )
    def test_verdict(self, verdicts: list[Verdict], expected: Verdict) -> None:
        found = family_verdict(verdicts)
        assert (found.claim, found.verdict, found.comparisons) == ("all-points", expected, len(verdicts))


def test_gates_are_reported_in_the_documented_order() -> None:
    assert [str(gate) for gate in Gate] == [
        "too_few_pairs",
        "failed_process",
        "unsupported",
        "determinism",
        "zero_spread",
        "timer_resolution",
        "aa_control",
        "positive_control",
        "control_dose",
        "clocks",
    ]
    findings = [GateFinding(gate=gate, detail="") for gate in Gate]
    assert list(ordered(findings[::-1])) == findings


class TestMultiplicity:
    def test_holm(self) -> None:
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))  # R p.adjust

    def test_empty(self) -> None:
        assert holm([]) == hochberg([]) == bonferroni([]) == benjamini_hochberg([]) == ()

    def test_gaps_do_not_count(self) -> None:
        assert holm_with_gaps([0.02, None, 0.03]) == (0.04, None, 0.04)
        assert holm_with_gaps([None]) == (None,)

    @pytest.mark.parametrize("bad", [math.nan, -0.1, 1.1])
    def test_what_is_no_probability_is_refused(self, bad: float) -> None:
        with pytest.raises(ValueError, match=r"p: expected numbers from 0 to 1, found .* at index 1"):
            holm([0.5, bad])

    def test_all_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one p-value"):
            intersection_union([])

    def test_superiority_waits_for_non_inferiority_at_all_points(self) -> None:
        assert superiority_after_non_inferiority([0.01, 0.05], [0.001, 0.2], alpha_one_sided=0.05) is None
        found = superiority_after_non_inferiority([0.01, 0.04], [0.001, 0.2], alpha_one_sided=0.05)
        assert found == pytest.approx((0.002, 0.2))
        with pytest.raises(ValueError, match="as many p-values of both"):
            superiority_after_non_inferiority([0.01], [0.001, 0.2], alpha_one_sided=0.05)
