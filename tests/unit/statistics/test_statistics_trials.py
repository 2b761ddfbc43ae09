"""Trials of tests/cases/trials.jsonl that the statistics answer, with their right answers.

In the words of the house: INSUFFICIENT_DATA is inconclusive with gate too_few_pairs; PASS is superior, non_inferior or
non_inferior_but_slower; FAIL is anything else.
"""

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import ttest_ind

from benchkit.statistics.bootstrap import bootstrap_bounds, exhaustive_percentile, key_from_text
from benchkit.statistics.equivalence import Side, failing_side, two_one_sided_tests
from benchkit.statistics.estimand import log_ratios, process_median
from benchkit.statistics.interval import paired_interval
from benchkit.statistics.median_ratio import median_ratio
from benchkit.statistics.noninferiority import Gate, Verdict, decide, family_verdict
from benchkit.statistics.point import ArmMedians, PointFlags, PointResult, judge_point
from benchkit.statistics.quantile import upper_order_bound

TRIALS = {
    trial["id"]: trial
    for trial in map(json.loads, (Path(__file__).parents[2] / "cases" / "trials.jsonl").read_text().splitlines())
}
PASS = (Verdict.SUPERIOR, Verdict.NON_INFERIOR, Verdict.NON_INFERIOR_BUT_SLOWER)


def judge(candidate: list[float], baseline: list[float], margin: float = 0.03, alpha: float = 0.05) -> PointResult:
    arms = [ArmMedians(duration_ns=np.array(values, dtype=np.float64), calls=1) for values in (candidate, baseline)]
    return judge_point(
        *arms,
        margin=margin,
        alpha_one_sided=alpha,
        quantum_ns=0.0,
        controls=(),
        telemetry=None,
        flags=PointFlags(failed_processes=(), unsupported=(), outputs=()),
    )


class TestD01DegenerateData:
    def test_equal_samples_on_both_sides(self) -> None:
        """35 samples of 10000.0: [1, 1] is shown, and without spread it is inconclusive."""
        medians = [process_median(np.full(35, 10000.0), calls=1)] * 5
        assert medians[0] == 10000.0
        found = judge(medians, medians)
        assert (found.lower, found.ratio, found.upper) == (1.0, 1.0, 1.0)
        assert [finding.gate for finding in found.gates] == [Gate.ZERO_SPREAD]
        assert found.verdict is Verdict.INCONCLUSIVE

    def test_median_that_no_single_value_moves(self) -> None:
        """[1, 2, 3, 3, 4, 5]: BCa does not exist, all 6^6 resamples give the percentile interval [1.5, 4.5]."""
        data = [1.0, 2.0, 3.0, 3.0, 4.0, 5.0]
        lower, upper, one_sided = (
            exhaustive_percentile(data, p, statistic=lambda rows: np.median(rows, axis=1)) for p in (0.025, 0.975, 0.95)
        )
        assert (lower.value, upper.value, one_sided.value) == (1.5, 4.5, 4.0)
        assert {bound.method for bound in (lower, upper, one_sided)} == {"percentile"}


class TestD03LargerPValue:
    def test_p_is_the_larger_of_the_two(self) -> None:
        bound = math.log(1.03)
        found = two_one_sided_tests(0.020, se=0.010, df=None, lower_bound=-bound, upper_bound=bound)
        assert found.p_lower == pytest.approx(3.60e-07, rel=2e-3)
        assert found.p_upper == pytest.approx(0.1696, abs=5e-5)
        assert found.p == found.p_upper
        assert found.failing(alpha_one_sided=0.05) is Side.UPPER

    def test_an_interval_says_which_side(self) -> None:
        assert failing_side(lower=-0.16, upper=0.36, region=(-0.4, 0.3)) is Side.UPPER


class TestD05AlphaAndHiddenDigits:
    @pytest.mark.parametrize(
        ("alpha", "upper", "passes", "reason"),
        [
            (0.05, 1.02680, True, "upper 1.02680 < limit 1.03"),
            (0.025, 1.03004, False, "upper 1.03004 >= limit 1.03"),
        ],
    )
    def test_alpha(self, alpha: float, upper: float, passes: bool, reason: str) -> None:
        assert float(ndtr((0.01 - math.log1p(0.03)) / 0.01)) == pytest.approx(0.02524, abs=5e-6)
        bound = math.exp(0.01 - float(ndtri(alpha)) * 0.01)
        assert bound == pytest.approx(upper, abs=5e-6)
        found = decide(lower=0.99, upper=bound, margin=0.03)
        assert (found.verdict in PASS, found.reason) == (passes, reason)

    @pytest.mark.parametrize(
        ("upper", "passes", "reason"),
        [(1.0299996, True, "upper 1.0299996 < limit 1.03"), (1.0300004, False, "upper 1.0300004 >= limit 1.03")],
    )
    def test_decided_on_unrounded_numbers_and_shown_so(self, upper: float, passes: bool, reason: str) -> None:
        found = decide(lower=0.99, upper=upper, margin=0.03)
        assert (found.verdict in PASS, found.numerical_tie, found.reason) == (passes, False, reason)


class TestD06RatiosAreNotPercent:
    def test_a_change_from_100_to_230_is_a_ratio_of_2_30(self) -> None:
        assert judge([230.0] * 5, [100.0] * 5).ratio == pytest.approx(2.30, rel=1e-14)

    @pytest.mark.parametrize("margin", [math.nan, math.inf, -0.02])
    def test_what_is_no_margin_is_refused(self, margin: float) -> None:
        with pytest.raises(ValueError, match="margin: expected a finite number above 0"):
            judge([1.0] * 5, [1.0] * 5, margin=margin)


class TestD07TooFew:
    @pytest.mark.parametrize(("candidate", "baseline"), [([], []), ([101.0], [100.0])])
    def test_no_interval_of_none_or_one(self, candidate: list[float], baseline: list[float]) -> None:
        found = judge(candidate, baseline)
        assert (found.lower, found.upper, found.verdict) == (None, None, Verdict.INCONCLUSIVE)
        assert [finding.gate for finding in found.gates] == [Gate.TOO_FEW_PAIRS]

    @pytest.mark.parametrize("pairs", [2, 3, 4])
    def test_no_verdict_below_five(self, pairs: int) -> None:
        found = judge([101.0, 103.0, 102.0, 104.0][:pairs], [100.0, 102.0, 101.5, 103.0][:pairs])
        assert found.upper is not None
        assert (found.verdict, found.gates[0].gate) == (Verdict.INCONCLUSIVE, Gate.TOO_FEW_PAIRS)
        assert found.gates[0].detail == f"{pairs} complete pairs, at least 5 are needed at one-sided alpha 0.05"

    @pytest.mark.parametrize(("count", "rank", "attained"), [(2, None, 0.75), (4, None, 0.9375), (5, 5, 0.96875)])
    def test_order_statistic_bound_of_the_median(self, count: int, rank: int | None, attained: float) -> None:
        found = upper_order_bound(count, 0.5, alpha_one_sided=0.05)
        assert (found.rank, found.attained) == (rank, attained)


class TestD09NotFinite:
    def test_samples(self) -> None:
        with pytest.raises(ValueError, match=r"found 1 of 4 that are not; first at index 2: nan"):
            process_median([1.0, 2.0, math.nan, 3.0], calls=1)

    @pytest.mark.parametrize(
        ("candidate", "baseline", "where"),
        [(5.0, 0.0, "baseline"), (0.0, 0.0, "candidate"), (math.inf, 1.0, "candidate"), (1.0, math.nan, "baseline")],
    )
    def test_medians(self, candidate: float, baseline: float, where: str) -> None:
        with pytest.raises(ValueError, match=rf"{where}: expected finite and positive values, found 1 of 2 .* index 1"):
            log_ratios([1.0, candidate], [1.0, baseline])

    def test_three_good_points_do_not_outvote_a_bad_one(self) -> None:
        bad = judge([], [])  # nothing can be computed of the bad point
        found = family_verdict([Verdict.SUPERIOR] * 3 + [bad.verdict])
        assert found.verdict is Verdict.INCONCLUSIVE


class TestD10Memory:
    def test_the_batch_size_changes_no_digit(self) -> None:
        """The unit is the process pair, so a million samples become one median each, and the batch bounds the rest."""
        ratios = np.random.default_rng(1).normal(0.0, 0.01, 40)
        found = [
            bootstrap_bounds(ratios, key=key_from_text("seed 1"), alpha_one_sided=0.05, replicates=9999, batch=batch)
            for batch in (10, 1000)
        ]
        assert found[0] == found[1]
        assert (found[0].key, found[0].replicates, found[0].bca.method) == ("seed 1", 9999, "BCa")

    def test_a_million_samples_a_side(self) -> None:
        """Interval by order statistics: no matrix of resamples (which would be 80 GB)."""
        rng = np.random.default_rng(1)
        candidate, baseline = rng.gamma(9.0, 100.0, 1_000_000), rng.gamma(9.0, 100.0, 1_000_000)
        tracemalloc.start()
        found = median_ratio(candidate, baseline, alpha_one_sided=0.05)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 200_000_000
        assert 0.99 < found.lower < 1.0 < found.upper < 1.01
        assert upper_order_bound(1_000_000, 0.5, alpha_one_sided=0.05).reason == "order statistic 500823 of 1000000"


class TestG03RunsAreTheReplicates:
    ROUNDS = 200

    def runs(self, count: int) -> np.ndarray:
        """Rounds x arms x runs x samples of log latency: offset of a run 2 %, samples 0.2 %."""
        rng = np.random.default_rng(0)
        offset = rng.normal(0.0, 0.02, (self.ROUNDS, 2, count, 1))
        return np.asarray(np.exp(offset + rng.normal(0.0, 0.002, (self.ROUNDS, 2, count, 50))) * 1e6)

    def test_one_run_a_side_cannot_show_it(self) -> None:
        data = self.runs(1)
        verdicts = {judge(*(np.median(arm, axis=1).tolist() for arm in pair)).verdict for pair in data}
        assert verdicts == {Verdict.INCONCLUSIVE}
        naive = sum(ttest_ind(np.log(pair[0, 0]), np.log(pair[1, 0])).pvalue < 0.05 for pair in data)
        assert naive > 170  # samples taken for replicates claim a difference nearly always

    def test_ten_runs_a_side_claim_as_often_as_they_may(self) -> None:
        p_values = []
        for pair in self.runs(10):
            medians = [[process_median(run, calls=1) for run in arm] for arm in pair]
            p_values.append(paired_interval(log_ratios(*medians), margin=0.02, alpha_one_sided=0.025).p_differs)
        assert sum(p is not None and p < 0.05 for p in p_values) <= 18


def test_the_trials_exist() -> None:
    assert {"D01", "D03", "D05", "D06", "D07", "D09", "D10", "G03"} <= TRIALS.keys()
