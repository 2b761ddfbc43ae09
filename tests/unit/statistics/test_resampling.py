"""Resampling: exact indices, bounded memory, no number that does not exist; and the other sensitivity analyses."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy.stats import ttest_ind

from benchkit.statistics import bootstrap
from benchkit.statistics.bootstrap import (
    all_resamples,
    bootstrap_bounds,
    bootstrap_key,
    high_word,
    key_from_text,
    resample_indices,
)
from benchkit.statistics.equivalence import Side, failing_side, paired_equivalence, two_one_sided_tests
from benchkit.statistics.fieller import fieller_paired, fieller_unpaired, ratio_test_unpaired
from benchkit.statistics.median_ratio import median_ratio, median_ratio_paired
from benchkit.statistics.permutation import sign_flip
from benchkit.statistics.quantile import lower_order_bound, process_quantile, process_tail, quantile, upper_order_bound
from benchkit.statistics.sensitivity import METHODS, sensitivity
from benchkit.statistics.signed_rank import Alternative, hodges_lehmann, null_distribution, signed_rank_p
from benchkit.statistics.welch import welch_ratio

KEY = key_from_text("test")
RATIOS = np.array([0.0123, 0.031, -0.0045, 0.0201, 0.0418])


class TestPhilox:
    def test_key_of_a_point(self) -> None:
        key = bootstrap_key(protocol_digest="ref-case", point="fieller8")
        assert key.text == "benchkit-boot-v1|ref-case|fieller8"
        assert (key.low, key.high) == (0x711E6B55EDBE764F, 0xAFC923E866E7C1D1)

    @pytest.mark.parametrize("count", [1, 3, 5, 8, 1000, (1 << 31) - 1, (1 << 32) - 1])
    def test_indices_are_the_high_word_of_the_product(self, count: int) -> None:
        words = np.random.Philox(counter=(1 << 256) - 1, key=KEY.low | KEY.high << 64).random_raw(500)
        words[:2] = [(1 << 64) - 1, 0]
        assert high_word(words, count).tolist() == [(int(word) * count) >> 64 for word in words]

    @pytest.mark.parametrize("batch", [1, 2, 7, 100, 1000])
    def test_the_batch_changes_nothing(self, batch: int) -> None:
        whole = np.concatenate(list(resample_indices(7, key=KEY, replicates=100, batch=100)))
        assert np.array_equal(np.concatenate(list(resample_indices(7, key=KEY, replicates=100, batch=batch))), whole)

    def test_nothing_to_draw_from(self) -> None:
        with pytest.raises(ValueError, match="count: expected 1 to"):
            next(resample_indices(0, key=KEY, replicates=1, batch=1))


class TestBootstrap:
    def test_few_pairs_are_warned_about(self) -> None:
        found = bootstrap_bounds(RATIOS, key=KEY, alpha_one_sided=0.05)
        assert found.warning == "5 pairs: percentile and BCa bounds are too short below 30"
        assert (found.replicates, found.key, found.bca.method) == (9999, "test", "BCa")

    def test_many_pairs_are_not(self) -> None:
        many = np.linspace(-0.01, 0.02, 30)
        assert bootstrap_bounds(many, key=KEY, alpha_one_sided=0.05, replicates=199).warning == ""

    def test_two_pairs_have_no_studentized_bound(self) -> None:
        """A quarter of the resamples of two pairs are the first one twice: minus infinity is the 5 % point."""
        assert bootstrap_bounds([0.0, 0.1], key=KEY, alpha_one_sided=0.05).bootstrap_t is None

    def test_no_spread_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least two that differ, found 3"):
            bootstrap_bounds([0.1, 0.1, 0.1], key=KEY, alpha_one_sided=0.05)

    def test_all_resamples(self) -> None:
        assert all_resamples(2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
        with pytest.raises(ValueError, match="count: expected 1 to 7"):
            all_resamples(8)

    def test_acceleration_without_spread(self) -> None:
        assert bootstrap.acceleration([1.0, 1.0]) is None
        assert bootstrap.acceleration([]) is None

    def test_bca_falls_back_to_the_percentile_and_says_so(self) -> None:
        replicates = np.arange(1.0, 10.0)
        for estimate, accelerated in ((5.0, None), (0.0, 0.01), (10.0, 0.01), (5.0, 1.0)):
            found = bootstrap.bca(replicates, 0.9, estimate=estimate, accelerated=accelerated, exhaustive=False)
            assert (found.method, found.value, found.z0) == ("percentile", 9.0, None)

    def test_memory_is_bounded_by_the_batch(self) -> None:
        tracemalloc.start()
        for _ in resample_indices(100_000, key=KEY, replicates=50, batch=1):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * 100_000 * 8  # a few rows; the whole matrix would be 40 MB


class TestSignedRank:
    def test_null_distribution_of_three(self) -> None:
        assert (null_distribution(3) * 8).tolist() == [1, 1, 1, 2, 1, 1, 1]

    def test_a_level_that_cannot_be_reached_has_no_bound(self) -> None:
        found = hodges_lehmann(RATIOS[:4], alpha_one_sided=0.05)
        assert (found.critical.c, found.lower, found.upper) == (-1, None, None)
        assert found.reason == "4 pairs reach no level below 0.0625"
        assert found.estimate is not None

    def test_nothing(self) -> None:
        found = hodges_lehmann([], alpha_one_sided=0.05)
        assert (found.pairs, found.estimate, found.upper) == (0, None, None)

    @pytest.mark.parametrize("null", [-0.02, 0.0, 0.0123, 0.02014, 0.0401, 0.05])
    def test_p_and_bound_agree(self, null: float) -> None:
        found = hodges_lehmann(RATIOS, alpha_one_sided=0.05)
        assert found.upper is not None
        assert found.lower is not None
        assert (signed_rank_p(RATIOS, null=null, alternative=Alternative.LESS) <= 0.05) == (found.upper < null)
        assert (signed_rank_p(RATIOS, null=null, alternative=Alternative.GREATER) <= 0.05) == (found.lower > null)


class TestSignFlip:
    def test_more_than_twenty_pairs_are_not_enumerated(self) -> None:
        found = sign_flip(np.linspace(-1, 1, 21))
        assert (found.p_less, found.at_most, found.vectors) == (None, None, 1 << 21)
        assert found.reason == "exact for up to 20 pairs, found 21"

    def test_ties_count(self) -> None:
        found = sign_flip([0.1, 0.2, -0.3])  # the sum is zero but for rounding: so are two of the eight
        assert (found.at_most, found.at_least, found.p_two_sided) == (5, 5, 1.0)


class TestFieller:
    def test_a_denominator_that_may_be_zero_has_no_bounds(self) -> None:
        found = fieller_paired([1.0, 2.0, 3.0], [-1.0, 1.0, 0.5], alpha_one_sided=0.05)
        assert (found.lower, found.upper, found.reason) == (None, None, "g >= 1: the denominator may be zero")
        assert found.g > 1

    @pytest.mark.parametrize("call", [fieller_paired, fieller_unpaired])
    def test_one_value_is_refused(self, call: object) -> None:
        with pytest.raises(ValueError, match="at least two"):
            call([1.0], [1.0], alpha_one_sided=0.05)  # type: ignore[operator]

    def test_lengths_spread_and_zero(self) -> None:
        with pytest.raises(ValueError, match="found 2 and 3"):
            fieller_paired([1.0, 2.0], [1.0, 2.0, 3.0], alpha_one_sided=0.05)
        with pytest.raises(ValueError, match="that differ within an arm"):
            ratio_test_unpaired([1.0, 1.0], [2.0, 2.0], rho=1.0)
        with pytest.raises(ValueError, match="a mean that is not zero"):
            fieller_paired([1.0, 2.0], [-1.0, 1.0], alpha_one_sided=0.05)


class TestEquivalence:
    def test_input(self) -> None:
        with pytest.raises(ValueError, match="a standard error above 0"):
            two_one_sided_tests(0.0, se=0.0, df=3, lower_bound=-1.0, upper_bound=1.0)
        with pytest.raises(ValueError, match="lower_bound < upper_bound"):
            two_one_sided_tests(0.0, se=1.0, df=3, lower_bound=1.0, upper_bound=1.0)
        with pytest.raises(ValueError, match="that differ, found 2"):
            paired_equivalence([0.1, 0.1], lower_ratio=0.9, upper_ratio=1.1)

    def test_swapping_the_sides_swaps_the_p_values(self) -> None:
        one = two_one_sided_tests(0.02, se=0.01, df=7, lower_bound=-0.05, upper_bound=0.03)
        other = two_one_sided_tests(-0.02, se=0.01, df=7, lower_bound=-0.03, upper_bound=0.05)
        assert (one.p_lower, one.p_upper) == (other.p_upper, other.p_lower)
        assert one.p_lower != one.p_upper

    @pytest.mark.parametrize(
        ("lower", "upper", "side"),
        [(0.96, 1.02, Side.NONE), (0.94, 1.02, Side.LOWER), (0.96, 1.05, Side.UPPER), (0.9, 1.1, Side.BOTH)],
    )
    def test_failing_side(self, lower: float, upper: float, side: Side) -> None:
        assert failing_side(lower=lower, upper=upper, region=(0.95, 1.05)) is side


class TestOrderStatistics:
    def test_known_sizes_of_the_95th_percentile(self) -> None:
        assert upper_order_bound(58, 0.95, alpha_one_sided=0.05).rank is None
        assert upper_order_bound(59, 0.95, alpha_one_sided=0.05).rank == 59

    def test_lower_is_the_mirror_image(self) -> None:
        assert lower_order_bound(10, 0.5, alpha_one_sided=0.05).rank == 2
        assert lower_order_bound(4, 0.5, alpha_one_sided=0.05).rank is None

    def test_a_million_samples(self) -> None:
        found = upper_order_bound(1_000_000, 0.5, alpha_one_sided=0.05)
        assert found.rank == 500_823  # scipy.stats.binom.ppf(0.95, 10**6, 0.5) + 1
        assert found.attained >= 0.95

    def test_tail_quantile_needs_five_samples_beyond_it(self) -> None:
        with pytest.raises(ValueError, match=r"expected n \(1 - p\) >= 5, found 4\.95 with 99 samples"):
            process_quantile(np.arange(1, 100), 0.95, hyndman_fan=8)
        assert process_quantile(np.arange(1, 101), 0.95, hyndman_fan=7) == pytest.approx(95.05)

    def test_quantile_input(self) -> None:
        with pytest.raises(ValueError, match="a type from 1 to 9, found 0"):
            quantile([1.0], 0.5, hyndman_fan=0)
        with pytest.raises(ValueError, match="at least one value"):
            quantile([], 0.5, hyndman_fan=7)

    @pytest.mark.parametrize(("pairs", "covered"), [(10, 0.74), (20, 0.86), (59, 0.95)])
    def test_process_tail(self, pairs: int, covered: float) -> None:
        found = process_tail(np.arange(pairs) / 1000, alpha_one_sided=0.05)
        assert round(found.covered, 2) == covered
        assert found.largest == (pairs - 1) / 1000
        assert found.skewness == pytest.approx(0.0, abs=1e-12)

    def test_process_tail_without_spread(self) -> None:
        assert process_tail([0.1, 0.1], alpha_one_sided=0.05).skewness is None
        with pytest.raises(ValueError, match="at least one"):
            process_tail([], alpha_one_sided=0.05)


def test_unpaired_and_median_ratio_input() -> None:
    with pytest.raises(ValueError, match="at least two medians"):
        welch_ratio([1.0], [1.0, 2.0], margin=0.1, alpha_one_sided=0.05)
    with pytest.raises(ValueError, match="that differ within an arm"):
        welch_ratio([1.0, 1.0], [2.0, 2.0], margin=0.1, alpha_one_sided=0.05)
    with pytest.raises(ValueError, match="at least two values"):
        median_ratio([1.0], [1.0, 2.0], alpha_one_sided=0.05)
    with pytest.raises(ValueError, match="found 3 and 2"):
        median_ratio_paired([1.0, 2.0, 3.0], [1.0, 2.0], alpha_one_sided=0.05)


class TestSensitivity:
    @pytest.mark.parametrize("pairs", [0, 1, 2, 3, 5, 21])
    @pytest.mark.parametrize("spread", [0.0, 0.001])
    def test_the_list_is_the_same_for_any_data(self, pairs: int, spread: float) -> None:
        base = np.full(pairs, 1000.0)
        candidate = base * np.exp(spread * np.sin(np.arange(pairs)))
        rows = sensitivity(candidate, base, methods=METHODS, margin=0.02, alpha_one_sided=0.05, key=KEY)
        assert tuple(row.method for row in rows) == METHODS
        for row in rows:
            numbers = (row.ratio, row.lower, row.upper, row.p_non_inferior)
            assert all(number is None or math.isfinite(number) for number in numbers)
            assert row.note

    def test_numbers(self) -> None:
        """The eight pairs of the Fieller and Philox cases."""
        base = np.array([101.2, 99.8, 103.1, 100.4, 98.9, 102.2, 100.9, 99.5])
        candidate = np.array([103, 101.9, 104.2, 103.3, 101, 103.9, 102.1, 101.8])
        key = bootstrap_key(protocol_digest="ref-case", point="fieller8")
        found = sensitivity(candidate, base, methods=METHODS, margin=0.05, alpha_one_sided=0.05, key=key)
        rows = {row.method: row for row in found}
        assert rows["fieller"].upper == pytest.approx(1.02290905309327, rel=1e-12)
        assert rows["bootstrap-t"].upper == pytest.approx(math.exp(0.02263142124857612), rel=1e-12)
        assert rows["percentile"].upper == pytest.approx(math.exp(0.02199345812373177), rel=1e-12)
        assert rows["bca"].upper == pytest.approx(math.exp(0.021996503123934193), rel=1e-12)
        assert rows["sign-flip"].p_non_inferior == 1 / 256
        assert rows["hodges-lehmann"].p_non_inferior == 1 / 256
        assert rows["order-statistic"].note == "order statistic 7 of 8"
        assert rows["welch"].p_non_inferior == pytest.approx(
            float(ttest_ind(np.log(candidate / 1.05), np.log(base), equal_var=False, alternative="less").pvalue),
            rel=1e-10,
        )
        assert rows["process-tail"].upper == pytest.approx(103.3 / 100.4, rel=1e-12)
