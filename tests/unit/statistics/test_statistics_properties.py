"""Properties that hold for any data."""

import math
from random import Random

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from benchkit.statistics import multiplicity
from benchkit.statistics.estimand import log_ratios, process_median
from benchkit.statistics.interval import guarded_interval, paired_interval
from benchkit.statistics.noninferiority import TIE, Verdict, decide, family_verdict
from benchkit.statistics.permutation import sign_flip
from benchkit.statistics.point import ArmMedians, PointFlags, judge_point
from benchkit.statistics.signed_rank import hodges_lehmann

MARGINS = st.floats(0.001, 0.5)
ALPHAS = st.sampled_from([0.05, 0.025, 0.01])
MEDIANS = st.floats(900.0, 1100.0)
PAIRS = st.lists(st.tuples(MEDIANS, MEDIANS), min_size=2, max_size=15)
BOUNDS = st.none() | st.floats(0.5, 2.0)
P_VALUES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


def close(one: float | None, other: float | None, rel: float = 1e-9) -> bool:
    return one is not None and other is not None and math.isclose(one, other, rel_tol=rel, abs_tol=1e-300)


@given(PAIRS, MARGINS, ALPHAS)
def test_swapping_the_arms_inverts_ratio_and_bounds(
    pairs: list[tuple[float, float]], margin: float, alpha: float
) -> None:
    first, second = zip(*pairs, strict=True)
    one = paired_interval(log_ratios(first, second), margin=margin, alpha_one_sided=alpha)
    other = paired_interval(log_ratios(second, first), margin=margin, alpha_one_sided=alpha)
    assert one.zero_spread == other.zero_spread or max(first) / min(first) < 1 + 1e-12
    assume(not one.zero_spread and not other.zero_spread)
    assert one.ratio is not None
    assert one.lower is not None
    assert one.upper is not None
    assert close(other.ratio, 1 / one.ratio)
    assert close(other.lower, 1 / one.upper)
    assert close(other.upper, 1 / one.lower)
    assert close(one.p_differs, other.p_differs, rel=1e-6)


@given(PAIRS, MARGINS)
def test_a_smaller_alpha_gives_a_wider_interval(pairs: list[tuple[float, float]], margin: float) -> None:
    logs = log_ratios(*zip(*pairs, strict=True))
    found = [paired_interval(logs, margin=margin, alpha_one_sided=alpha) for alpha in (0.05, 0.025, 0.01)]
    uppers, lowers = [i.upper for i in found], [i.lower for i in found]
    assert uppers == sorted(uppers)  # type: ignore[type-var]
    assert lowers == sorted(lowers, reverse=True)  # type: ignore[type-var]


@given(PAIRS, MARGINS, ALPHAS, st.randoms())
def test_the_order_of_the_pairs_changes_no_digit(
    pairs: list[tuple[float, float]], margin: float, alpha: float, random: Random
) -> None:
    logs = log_ratios(*zip(*pairs, strict=True)).tolist()
    shuffled = random.sample(logs, len(logs))
    one = paired_interval(logs, margin=margin, alpha_one_sided=alpha)
    assert one == paired_interval(shuffled, margin=margin, alpha_one_sided=alpha)


@given(PAIRS, st.integers(1, 1000), MARGINS)
def test_scaling_all_durations_leaves_the_ratio(pairs: list[tuple[float, float]], factor: int, margin: float) -> None:
    first, second = (np.array(arm) for arm in zip(*pairs, strict=True))
    one = paired_interval(log_ratios(first, second), margin=margin, alpha_one_sided=0.05)
    other = paired_interval(log_ratios(first * factor, second * factor), margin=margin, alpha_one_sided=0.05)
    for name in ("ratio", "lower", "upper"):
        assert close(getattr(one, name), getattr(other, name), rel=1e-12)


@given(PAIRS, MARGINS, ALPHAS)
def test_bound_and_p_value_decide_alike(pairs: list[tuple[float, float]], margin: float, alpha: float) -> None:
    found = paired_interval(log_ratios(*zip(*pairs, strict=True)), margin=margin, alpha_one_sided=alpha)
    assume(found.p_non_inferior is not None and found.p_superior is not None and found.upper is not None)
    assert found.p_non_inferior is not None
    assert found.p_superior is not None
    assert found.upper is not None
    assert found.p_non_inferior <= found.p_superior
    if abs(found.upper - 1 - margin) > TIE:
        assert (found.upper < 1 + margin) == (found.p_non_inferior < alpha)
    if abs(found.upper - 1) > TIE:
        assert (found.upper < 1) == (found.p_superior < alpha)


@given(st.lists(st.tuples(MEDIANS, MEDIANS), min_size=5, max_size=15), st.floats(0.01, 25.0), ALPHAS)
def test_the_guarded_interval_contains_the_plain_one(
    pairs: list[tuple[float, float]], quantum: float, alpha: float
) -> None:
    first, second = zip(*pairs, strict=True)
    plain = paired_interval(log_ratios(first, second), margin=0.05, alpha_one_sided=alpha)
    guarded = guarded_interval(
        first, second, candidate_quantum=quantum, baseline_quantum=quantum, margin=0.05, alpha_one_sided=alpha
    )
    assert plain.lower is not None
    assert plain.upper is not None
    assert guarded.lower is not None
    assert guarded.upper is not None
    assert guarded.lower <= plain.lower
    assert plain.upper <= guarded.upper


@given(st.lists(st.tuples(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300)), max_size=8), MARGINS, ALPHAS)
def test_every_number_is_finite_or_none(pairs: list[tuple[float, float]], margin: float, alpha: float) -> None:
    arms = [ArmMedians(duration_ns=np.array([pair[i] for pair in pairs]), calls=1) for i in (0, 1)]
    flags = PointFlags(failed_processes=(), unsupported=(), outputs=())
    found = judge_point(
        *arms, margin=margin, alpha_one_sided=alpha, quantum_ns=1.0, controls=(), telemetry=None, flags=flags
    )
    for number in (found.ratio, found.lower, found.upper, found.p_non_inferior, found.p_superior):
        assert number is None or math.isfinite(number)
    if found.gates:
        assert found.verdict is Verdict.INCONCLUSIVE


@given(BOUNDS, BOUNDS, MARGINS)
def test_zones_are_exhaustive_and_exclusive(lower: float | None, upper: float | None, margin: float) -> None:
    low, high, limit = lower or 0.0, math.inf if upper is None else upper, 1 + margin
    assume(low <= high)
    tie = abs(high - limit) < TIE
    zones = {
        Verdict.SUPERIOR: high < 1,
        Verdict.NON_INFERIOR: 1 <= high < limit and low <= 1,
        Verdict.NON_INFERIOR_BUT_SLOWER: 1 <= high < limit and low > 1,
        Verdict.INCONCLUSIVE: high >= limit and low <= 1,
        Verdict.INCONCLUSIVE_BUT_SLOWER: high >= limit and 1 < low < limit,
        Verdict.INFERIOR: high >= limit and low >= limit,
    }
    assert sum(zones.values()) == 1
    found = decide(lower=lower, upper=upper, margin=margin)
    assert found.numerical_tie == tie
    assert found.verdict is (Verdict.INCONCLUSIVE if tie else next(zone for zone, holds in zones.items() if holds))
    assert found.reason


@given(st.lists(st.sampled_from(Verdict), min_size=1, max_size=6))
def test_a_family_is_as_good_as_its_worst_point(verdicts: list[Verdict]) -> None:
    good = (Verdict.SUPERIOR, Verdict.NON_INFERIOR, Verdict.NON_INFERIOR_BUT_SLOWER)
    found = family_verdict(verdicts).verdict
    assert found == family_verdict(verdicts[::-1]).verdict
    assert found in verdicts
    assert (found in good) == all(verdict in good for verdict in verdicts)
    if found in good:
        assert good.index(found) == max(good.index(verdict) for verdict in verdicts)


@given(P_VALUES)
def test_adjusted_p_values(p: list[float]) -> None:
    holm, hochberg = multiplicity.holm(p), multiplicity.hochberg(p)
    bonferroni, discovery = multiplicity.bonferroni(p), multiplicity.benjamini_hochberg(p)
    slack = 1 + 1e-12
    for raw, b, h, u, d in zip(p, bonferroni, holm, hochberg, discovery, strict=True):
        assert raw <= d * slack
        assert d <= u * slack
        assert u <= h * slack
        assert h <= b * slack
        assert b <= 1
    order = np.argsort(p, kind="stable")
    for adjusted in (holm, hochberg, discovery):
        assert (np.diff(np.array(adjusted)[order]) >= 0).all()


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=10))
def test_sign_flip_mirrors(differences: list[float]) -> None:
    one, other = sign_flip(differences), sign_flip([-d for d in differences])
    assert (one.p_less, one.p_greater) == (other.p_greater, other.p_less)
    assert one.at_most is not None
    assert one.at_least is not None
    assert one.at_most >= 1
    assert one.at_most + one.at_least > one.vectors


@given(st.lists(st.floats(-1, 1), min_size=5, max_size=12), st.floats(-1, 1))
def test_the_pseudo_median_moves_with_the_data(values: list[float], shift: float) -> None:
    one = hodges_lehmann(values, alpha_one_sided=0.05)
    other = hodges_lehmann([value + shift for value in values], alpha_one_sided=0.05)
    for name in ("lower", "estimate", "upper"):
        assert math.isclose(getattr(one, name) + shift, getattr(other, name), abs_tol=1e-12)
    assert one.lower <= one.estimate <= one.upper  # type: ignore[operator]


@given(st.lists(st.integers(1, 2**52), min_size=1, max_size=30), st.integers(1, 100))
def test_process_median_is_the_middle(durations: list[int], calls: int) -> None:
    ordered, half = sorted(durations), len(durations) // 2
    exact = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    assert process_median(np.array(durations, dtype=np.int64), calls=calls) == exact / calls
