"""The estimand and the paired interval: defined answers for every input, and nothing that is not finite."""

import math
import subprocess
import sys

import numpy as np
import pytest

from benchkit.statistics.estimand import geometric_ratio, log_ratios, median, process_median
from benchkit.statistics.interval import RatioInterval, guarded_interval, paired_interval

# Expected numbers of these five: mpmath at 40 digits, t distribution by the regularised incomplete beta function.
RATIOS = [0.01, -0.02, 0.015, 0.005, 0.0]


def plain(values: list[float], margin: float = 0.02, alpha: float = 0.05) -> RatioInterval:
    return paired_interval(values, margin=margin, alpha_one_sided=alpha)


class TestProcessMedian:
    def test_odd_number(self) -> None:
        assert process_median(np.array([30, 10, 20], dtype=np.int64), calls=1) == 20.0

    def test_even_number_is_the_mean_of_the_two_middle_ones(self) -> None:
        assert process_median(np.array([40, 10, 21, 30], dtype=np.int64), calls=1) == 25.5

    def test_calls_divide(self) -> None:
        assert process_median(np.array([40, 10, 21, 30], dtype=np.int64), calls=20) == 1.275

    def test_median_of_the_numbers_that_a_library_would_skip_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"found 1 of 4 that are not; first at index 2: nan"):
            process_median([1.0, 2.0, math.nan, 3.0], calls=1)

    @pytest.mark.parametrize("bad", [0, -1, math.inf, -math.inf, math.nan])
    def test_not_finite_and_positive_is_refused(self, bad: float) -> None:
        with pytest.raises(ValueError, match=r"expected finite and positive values, found 2 of 3 .*first at index 0"):
            process_median([bad, 1.0, bad], calls=1)

    def test_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="durations: expected at least one value, found none"):
            process_median([], calls=1)

    def test_no_call_is_refused(self) -> None:
        with pytest.raises(ValueError, match="calls: expected at least 1, found 0"):
            process_median([1], calls=0)

    def test_a_table_is_refused(self) -> None:
        with pytest.raises(ValueError, match="expected one dimension, found 2"):
            median(np.ones((2, 2)))


class TestLogRatios:
    def test_candidate_over_baseline(self) -> None:
        assert log_ratios([2.0, 1.0], [1.0, 4.0]).tolist() == [math.log(2.0), math.log(0.25)]

    @pytest.mark.parametrize(
        ("candidate", "baseline", "where"), [([5.0], [0.0], "baseline"), ([0.0], [0.0], "candidate")]
    )
    def test_zero_is_refused(self, candidate: list[float], baseline: list[float], where: str) -> None:
        with pytest.raises(ValueError, match=f"{where}: expected finite and positive values, found 1 of 1"):
            log_ratios(candidate, baseline)

    def test_different_lengths_are_refused(self) -> None:
        with pytest.raises(ValueError, match="as many candidate as baseline medians, found 2 and 1"):
            log_ratios([1.0, 2.0], [1.0])

    def test_geometric_ratio(self) -> None:
        assert geometric_ratio([math.log(2.0), math.log(8.0)]) == pytest.approx(4.0, rel=1e-15)
        assert geometric_ratio([]) is None


class TestPairedInterval:
    def test_numbers(self) -> None:
        found = plain(RATIOS)
        assert found.pairs == 5
        assert found.ratio == pytest.approx(1.0020020013340003, rel=1e-14)
        assert found.upper == pytest.approx(1.0149908537444334, rel=1e-14)
        assert found.lower == pytest.approx(0.98917936745284512, rel=1e-14)
        assert found.p_non_inferior == pytest.approx(0.021053425383390287, rel=1e-13)
        assert found.p_superior == pytest.approx(0.62138582503125526, rel=1e-13)
        assert found.p_differs == pytest.approx(0.75722834993748948, rel=1e-13)
        assert (found.guarded, found.unbounded, found.zero_spread) == (False, False, False)

    def test_no_pair_gives_nothing(self) -> None:
        found = plain([])
        numbers = (found.ratio, found.lower, found.upper, found.p_non_inferior, found.p_superior, found.p_differs)
        assert numbers == (None,) * 6
        assert (found.pairs, found.unbounded, found.reason) == (0, False, "no complete process pair")

    def test_one_pair_gives_the_ratio_alone(self) -> None:
        found = plain([math.log(1.01)])
        assert found.ratio == pytest.approx(1.01, rel=1e-15)
        assert (found.lower, found.upper, found.p_non_inferior, found.p_superior, found.p_differs) == (None,) * 5
        assert found.reason == "one process pair: a ratio, no interval"

    def test_equal_ratios_give_a_point_and_no_p(self) -> None:
        found = plain([math.log(1.01)] * 7)
        assert found.zero_spread
        assert found.lower == found.upper == found.ratio
        assert (found.p_non_inferior, found.p_superior, found.p_differs) == (None, None, None)
        assert found.reason == "all 7 log ratios are equal: no spread to judge by"

    def test_equality_is_that_of_the_ratios_not_of_their_rounded_deviation(self) -> None:
        value = 0.1  # the mean of 3 is not 0.1 in binary, so the deviations are not exactly zero
        assert plain([value] * 3).zero_spread
        assert not plain([value, value, math.nextafter(value, 1)]).zero_spread

    def test_a_bound_beyond_the_largest_number_is_unbounded(self) -> None:
        found = plain([-300.0, 300.0])
        assert found.upper is None
        assert found.unbounded
        assert found.lower == 0.0
        assert found.ratio == 1.0

    @pytest.mark.parametrize("alpha", [0.0, 0.5, -0.1, math.nan])
    def test_alpha(self, alpha: float) -> None:
        with pytest.raises(ValueError, match="alpha_one_sided"):
            plain(RATIOS, alpha=alpha)

    @pytest.mark.parametrize("margin", [0.0, -0.02, math.inf, math.nan])
    def test_margin(self, margin: float) -> None:
        with pytest.raises(ValueError, match="margin"):
            plain(RATIOS, margin=margin)

    def test_nan_is_refused(self) -> None:
        with pytest.raises(
            ValueError, match=r"log_ratios: expected finite values, found 1 of 3 .*first at index 1: nan"
        ):
            plain([0.0, math.nan, 0.1])


class TestGuardedInterval:
    CANDIDATE = (101.0, 103.0, 99.0, 102.0, 100.0)
    BASELINE = (100.0, 101.0, 100.0, 99.0, 102.0)

    def guarded(self, quantum: float, candidate: tuple[float, ...] = CANDIDATE) -> RatioInterval:
        return guarded_interval(
            candidate,
            self.BASELINE,
            candidate_quantum=quantum,
            baseline_quantum=quantum,
            margin=0.05,
            alpha_one_sided=0.05,
        )

    def test_bounds_are_those_of_the_shifted_medians(self) -> None:
        found = self.guarded(2.0)
        slow = plain(log_ratios([c + 1 for c in self.CANDIDATE], [b - 1 for b in self.BASELINE]).tolist(), margin=0.05)
        fast = plain(log_ratios([c - 1 for c in self.CANDIDATE], [b + 1 for b in self.BASELINE]).tolist(), margin=0.05)
        middle = plain(log_ratios(self.CANDIDATE, self.BASELINE).tolist(), margin=0.05)
        assert found.guarded
        assert (found.upper, found.lower, found.ratio) == (slow.upper, fast.lower, middle.ratio)
        assert (found.p_non_inferior, found.p_superior) == (slow.p_non_inferior, slow.p_superior)
        assert found.p_differs == middle.p_differs

    def test_a_quantum_of_zero_is_the_plain_interval(self) -> None:
        found, middle = self.guarded(0.0), plain(log_ratios(self.CANDIDATE, self.BASELINE).tolist(), margin=0.05)
        assert (found.lower, found.upper, found.p_non_inferior) == (middle.lower, middle.upper, middle.p_non_inferior)

    def test_a_quantum_beyond_the_medians_bounds_nothing(self) -> None:
        found = self.guarded(300.0)
        assert (found.lower, found.upper, found.unbounded) == (0.0, None, True)
        assert (found.p_non_inferior, found.p_superior) == (1.0, 1.0)

    def test_equal_ratios_have_nothing_to_guard(self) -> None:
        found = self.guarded(2.0, candidate=self.BASELINE)
        assert (found.lower, found.upper, found.guarded, found.zero_spread) == (1.0, 1.0, False, True)

    def test_quantum(self) -> None:
        with pytest.raises(ValueError, match="quantum"):
            self.guarded(math.nan)


def test_the_path_of_a_verdict_imports_neither_scipy_stats_nor_frames() -> None:
    code = (
        "import sys, benchkit.statistics.point;"
        "print([m for m in ('scipy.stats', 'scipy.optimize', 'pyarrow', 'pandas', 'torch', 'click') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
