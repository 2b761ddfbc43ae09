"""Two thousand simulated data sets through both packages: numbers as results/README.md says, verdicts always the same."""

import math

import numpy as np
import pytest

from benchkit.calibration.nulls import simulate
from benchkit.statistics.interval import paired_interval
from benchkit.statistics.noninferiority import decide
from benchkit.statistics.permutation import sign_flip
from benchkit.statistics.signed_rank import hodges_lehmann
from validator.compare import agree, agree_p
from validator.recompute import sensitivity as theirs
from validator.recompute.statistics import LogRatios, estimate, zone


@pytest.mark.parametrize("null", ["S1", "S2", "S6", "S7", "S9"])
@pytest.mark.parametrize(("pairs", "ratio"), [(5, 1.05), (10, 1.05), (10, 1.0), (20, 1.045)])
def test_both_packages_say_the_same(null: str, pairs: int, ratio: float) -> None:
    data = simulate(null, experiments=100, pairs=pairs, label="|both").at(ratio)
    verdicts = set()
    for row in data.log_ratios:
        for alpha in (0.05, 0.025):
            ours = paired_interval(row, margin=0.05, alpha_one_sided=alpha)
            other = estimate(LogRatios(plain=tuple(row.tolist())), alpha=alpha, margin=0.05)
            for name in ("ratio", "lower", "upper"):
                assert agree(getattr(ours, name), getattr(other, name)), name
            for name in ("p_non_inferior", "p_superior", "p_differs", "p_lower"):
                assert agree_p(getattr(ours, name), getattr(other, name)), name
            verdict = decide(lower=ours.lower, upper=ours.upper, margin=0.05).verdict.value
            assert verdict == zone(other.lower, other.upper, 0.05).value
            verdicts.add(verdict)
        bounds = hodges_lehmann(row, alpha_one_sided=0.05)
        assert (bounds.lower, bounds.upper) == theirs.signed_rank_bounds(row.tolist(), 0.05)
        if pairs <= 10:
            shifted = row - math.log1p(0.05)
            assert sign_flip(shifted).p_less == theirs.sign_flip(shifted.tolist())
    assert len(verdicts) >= 2
    assert np.isfinite(data.log_ratios).all()
