"""Power, sample size, planned looks."""

import math

import pytest

from benchkit.statistics.power import (
    PairPlan,
    all_points_target,
    one_sided_power,
    pairs_needed,
    power,
    sd_from_components,
    sd_from_cv,
    tost_power,
)
from benchkit.statistics.sequential import crossing_probabilities, lan_demets, obrien_fleming


def plan(target: float = 0.9, points: int = 1, least_pairs: int = 2, **changes: float) -> PairPlan:
    options = {"sd_log_ratio": 0.02, "margin": 0.02, "true_ratio": 1.0, "alpha_one_sided": 0.05, **changes}
    return pairs_needed(target, points=points, least_pairs=least_pairs, **options)


class TestPairs:
    @pytest.mark.parametrize(
        ("sd", "margin", "ratio", "at_05", "at_025"),
        [
            (0.01, 0.02, 1.00, 4, 5),
            (0.01, 0.02, 1.01, 11, 13),
            (0.02, 0.02, 1.00, 11, 13),
            (0.02, 0.02, 1.01, 37, 46),
            (0.05, 0.02, 1.00, 56, 69),
            (0.05, 0.02, 1.01, 222, 273),
            (0.02, 0.05, 1.00, 4, 5),
            (0.02, 0.05, 1.01, 5, 6),
            (0.05, 0.05, 1.00, 11, 14),
            (0.05, 0.05, 1.01, 16, 20),
        ],
    )
    def test_planning_table(self, sd: float, margin: float, ratio: float, at_05: int, at_025: int) -> None:
        found = [
            plan(sd_log_ratio=sd, margin=margin, true_ratio=ratio, alpha_one_sided=alpha).pairs
            for alpha in (0.05, 0.025)
        ]
        assert found == [at_05, at_025]

    def test_all_points_ask_more_of_each(self) -> None:
        assert all_points_target(0.9, points=8) == pytest.approx(0.9875)
        one, eight = plan(), plan(points=8)
        assert eight.per_point == pytest.approx(0.9875)
        assert eight.pairs > one.pairs
        assert eight.power >= 0.9875

    def test_least_pairs(self) -> None:
        found = plan(sd_log_ratio=0.001, least_pairs=5)
        assert found.pairs == 5

    def test_what_cannot_be_planned_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"true_ratio: expected a ratio below the limit 1\.02, found 1\.02"):
            plan(true_ratio=1.02)
        with pytest.raises(ValueError, match="more than 1000000 pairs"):
            plan(true_ratio=1.0199, sd_log_ratio=0.5)
        with pytest.raises(ValueError, match="target"):
            plan(target=1.0)
        with pytest.raises(ValueError, match="points"):
            plan(points=0)
        with pytest.raises(ValueError, match="se: expected a number above 0"):
            one_sided_power(0.1, se=0.0, df=3, alpha_one_sided=0.05)

    def test_one_pair_has_no_power(self) -> None:
        assert power(1, sd_log_ratio=0.01, margin=0.02, true_ratio=1.0, alpha_one_sided=0.05) == 0.0

    def test_power_at_the_limit_is_alpha(self) -> None:
        found = power(9, sd_log_ratio=0.01, margin=0.02, true_ratio=1.02, alpha_one_sided=0.05)
        assert found == pytest.approx(0.05, rel=1e-10)

    def test_spread_from_parts(self) -> None:
        assert sd_from_components(process_sd=0.01, sample_sd=0.0, samples=1, inflation=1.0) == pytest.approx(
            0.01 * math.sqrt(2)
        )
        assert sd_from_components(process_sd=0.0, sample_sd=0.02, samples=100, inflation=4.0) == pytest.approx(
            math.sqrt(math.pi / 2 * 2 * 0.02**2 / 100 * 4)
        )
        assert sd_from_cv(0.02) == pytest.approx(0.02 * math.sqrt(2), rel=1e-3)

    def test_equivalence_of_a_region_that_is_too_narrow_has_no_power(self) -> None:
        found = tost_power(0.0, se=1.0, df=4, lower_bound=-0.01, upper_bound=0.01, alpha_one_sided=0.05)
        assert 0.0 <= found < 1e-3


class TestLooks:
    def test_planned_looks_at_10_15_and_20_pairs(self) -> None:
        found = lan_demets([0.5, 0.75, 1.0], alpha_one_sided=0.05)
        assert [round(p, 4) for p in found.nominal_p] == [0.0056, 0.0219, 0.0427]
        assert found.spent[-1] == pytest.approx(0.05, rel=1e-12)

    def test_spending_is_what_the_boundaries_spend(self) -> None:
        found = lan_demets([0.3, 0.6, 1.0], alpha_one_sided=0.025)
        assert crossing_probabilities(found.z, information=found.information) == pytest.approx(found.spent, rel=1e-9)

    def test_unadjusted_looks_cost_what_they_cost(self) -> None:
        """Three looks at the one-sided 5 % point, at 10, 15 and 20 pairs: SciPy's trivariate normal gives the same."""
        total = crossing_probabilities([1.6448536269514722] * 3, information=[0.5, 0.75, 1.0])[-1]
        assert total == pytest.approx(0.09184083, abs=1e-7)

    def test_one_look_is_the_fixed_design(self) -> None:
        assert obrien_fleming(1, alpha_one_sided=0.05).z[0] == pytest.approx(1.6448536269514722, rel=1e-9)
        assert lan_demets([1.0], alpha_one_sided=0.05).z[0] == pytest.approx(1.6448536269514722, rel=1e-9)

    def test_a_look_that_may_spend_nothing_cannot_stop(self) -> None:
        found = lan_demets([0.001, 1.0], alpha_one_sided=0.05)
        assert found.nominal_p[0] < 1e-100
        assert found.z[1] == pytest.approx(1.6448536269514722, rel=1e-6)

    @pytest.mark.parametrize("information", [[], [0.5], [0.5, 0.4, 1.0], [0.0, 1.0], [0.5, 0.5, 1.0], [0.5, math.nan]])
    def test_information(self, information: list[float]) -> None:
        with pytest.raises(ValueError, match="information: expected fractions"):
            lan_demets(information, alpha_one_sided=0.05)

    def test_input(self) -> None:
        with pytest.raises(ValueError, match="looks: expected at least 1"):
            obrien_fleming(0, alpha_one_sided=0.05)
        with pytest.raises(ValueError, match="found 1 and 2"):
            crossing_probabilities([1.0], information=[0.5, 1.0])
