"""Diagnostics of a series and of levels: defined answers where a number does not exist."""

import numpy as np
import pytest

from benchkit.statistics.dependence import autocorrelation, autocovariance, block_length, dependence, effective_samples
from benchkit.statistics.drift import Drift, changepoint, drift
from benchkit.statistics.hierarchy import level_variances, optimal_repetitions, variance_components


def ar1(count: int, rho: float, seed: int) -> np.ndarray:
    """A series with autocorrelation rho, around 100."""
    noise = np.random.default_rng(seed).standard_normal(count)
    values = np.zeros(count)
    for i in range(1, count):
        values[i] = rho * values[i - 1] + noise[i]
    return values + 100.0


class TestDependence:
    def test_constant_series_has_no_autocorrelation(self) -> None:
        found = dependence(np.full(50, 7.0))
        assert (found.samples, found.lag1, found.effective_samples, found.block_circular) == (50, None, None, None)
        for call in (effective_samples, block_length):
            with pytest.raises(ValueError, match="values that differ"):
                call(np.full(50, 7.0))

    def test_short_series_has_no_block_length(self) -> None:
        found = dependence([1.0, 2.0, 4.0])
        assert found.block_stationary is None
        assert found.lag1 is not None
        with pytest.raises(ValueError, match="at least 12"):
            block_length([1.0, 2.0])

    def test_every_length_from_the_smallest_on_has_one(self) -> None:
        for count in range(12, 120):
            stationary, circular = block_length(ar1(count, 0.5, count))
            assert 0.0 <= stationary <= circular <= np.ceil(min(3 * np.sqrt(count), count / 3))

    def test_dependent_samples_count_less(self) -> None:
        assert effective_samples(ar1(1000, 0.0, 1)) > 800
        assert effective_samples(ar1(1000, 0.9, 1)) < 250

    def test_effective_samples_by_hand(self) -> None:
        """n = 5: L = floor(4 (5 / 100)^(2/9)) = 2, weights 2/3 and 1/3."""
        data = [1.0, 2.0, 4.0, 3.0, 5.0]
        rho = autocorrelation(data, max_lag=2)
        assert effective_samples(data) == pytest.approx(5 / (1 + 2 * (2 / 3 * rho[1] + 1 / 3 * rho[2])), rel=1e-14)
        assert rho.tolist() == pytest.approx([1.0, 0.1, 0.0], abs=1e-15)

    def test_max_lag(self) -> None:
        with pytest.raises(ValueError, match="max_lag: expected 0 to 2, found 3"):
            autocovariance([1.0, 2.0, 3.0], max_lag=3)


class TestDrift:
    def test_trend(self) -> None:
        found = drift([1.0, 2.0, 3.0, 4.0, 50.0])
        assert found.tau == pytest.approx(1.0, rel=1e-14)
        assert found.half_ratio == 27.0 / 1.5
        assert found.p_two_sided == pytest.approx(2 / 120)

    @pytest.mark.parametrize(("values", "ratio"), [([], None), ([3.0], None), ([3.0, 3.0, 3.0], 1.0)])
    def test_no_trend_to_see(self, values: list[float], ratio: float | None) -> None:
        assert drift(values) == Drift(tau=None, p_two_sided=None, half_ratio=ratio)

    def test_changepoint(self) -> None:
        found = changepoint([1.0, 1.0, 1.0, 5.0, 5.0])
        assert (found.before, found.mean_before, found.mean_after, found.rss) == (3, 1.0, 5.0, 0.0)
        assert found.rss_null == pytest.approx(19.2)
        with pytest.raises(ValueError, match="at least two"):
            changepoint([1.0])

    def test_changepoint_is_the_best_of_all_splits(self) -> None:
        data = ar1(60, 0.3, 5)
        every = [
            ((data[:k] - data[:k].mean()) ** 2).sum() + ((data[k:] - data[k:].mean()) ** 2).sum() for k in range(1, 60)
        ]
        found = changepoint(data)
        assert found.rss == pytest.approx(min(every), rel=1e-12)
        assert found.before == int(np.argmin(every)) + 1


class TestHierarchy:
    def test_a_level_without_variance_of_its_own_asks_for_none_above(self) -> None:
        data = [[1.0, 3.0], [1.0, 3.0]]  # processes do not differ: repeat samples only
        variances = level_variances(data)
        assert variances.unbiased == (2.0, -1.0)
        assert optimal_repetitions(variances, costs=[1.0, 10.0]) == (None,)

    def test_a_level_without_variance_need_not_be_repeated(self) -> None:
        variances = level_variances([[1.0, 1.0], [3.0, 3.0]])
        assert optimal_repetitions(variances, costs=[1.0, 10.0]) == (0.0,)

    def test_input(self) -> None:
        with pytest.raises(ValueError, match="costs: expected 2 numbers above 0"):
            optimal_repetitions(level_variances([[1.0, 2.0], [3.0, 5.0]]), costs=[1.0])
        with pytest.raises(ValueError, match="of at least two repetitions"):
            level_variances([[1.0], [2.0]])
        with pytest.raises(ValueError, match="finite values"):
            level_variances([[1.0, np.nan], [2.0, 1.0]])
        with pytest.raises(ValueError, match="expected a table"):
            variance_components(np.ones((2, 2, 2)))
        with pytest.raises(ValueError, match="differ within a process"):
            variance_components([[1.0, 1.0], [2.0, 2.0]])
