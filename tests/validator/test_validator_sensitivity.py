"""What a protocol may ask beyond the default: every reference case of R, SAS or rpact that the validator computes."""

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import kendalltau

from validator.findings import Comparison
from validator.reading.model import Pairing, Statistics
from validator.recompute import sensitivity as module
from validator.recompute.family import SHOWN, judge_family
from validator.recompute.looks import look_alphas
from validator.recompute.measure import quantile
from validator.recompute.numbers import compared, equivalence
from validator.recompute.pairing import Pair
from validator.recompute.philox import indices, philox, stream
from validator.recompute.sensitivity import (
    REPLICATES,
    bootstrap_t,
    critical,
    key_of,
    resamples,
    sensitivity,
    sign_flip,
    signed_rank_bounds,
    signed_rank_cdf,
    walsh,
)
from validator.recompute.series import autocorrelations, kendall, shape_of
from validator.recompute.shape import diagnostics, skewness
from validator.recompute.statistics import LogRatios, estimate, holm, median, moments

CASES = {case["id"]: case for case in json.loads((Path(__file__).parents[1] / "cases" / "statistics.json").read_text())}


def case(name: str) -> tuple[Any, Any, float]:
    found = CASES[name]
    return found["inputs"], found["expected"], found["tolerance"]["rel"]


def log_ratios(top: list[float], bottom: list[float]) -> list[float]:
    return [math.log(a / b) for a, b in zip(top, bottom, strict=True)]


def test_hodges_lehmann_ratio() -> None:
    inputs, expected, rel = case("sas_hl_ratio")
    r = log_ratios(inputs["candidate"], inputs["baseline"])
    found = sensitivity("hodges-lehmann", r, alpha=0.05, margin=0.05, key=(0, 0))
    assert found.ratio == pytest.approx(expected["hl_ratio"], rel=rel)
    assert (found.lower, found.upper) == pytest.approx((expected["lcb"], expected["ucb"]), rel=rel)
    assert critical(12, 0.05) == expected["critical_c"]


def test_signed_rank_test_and_bound() -> None:
    inputs, expected, rel = case("hollander_wolfe_depression")
    differences = [x - y for x, y in zip(inputs["x"], inputs["y"], strict=True)]
    averages = walsh(differences)
    assert sum(value > 0 for value in averages) == expected["V"]
    assert median(averages) == pytest.approx(expected["hl"], rel=rel)
    assert float(signed_rank_cdf(9)[45 - expected["V"]]) == pytest.approx(expected["p_greater"], rel=rel)
    assert signed_rank_bounds(differences, 0.025) == pytest.approx(expected["ci95"], rel=rel)
    assert signed_rank_bounds(differences, 0.05)[1] == pytest.approx(expected["ucb95_one_sided"], rel=rel)


def test_signed_rank_table() -> None:
    inputs, expected, rel = case("signed_rank_critical_values")
    found = [critical(pairs, 0.05) for pairs in inputs["K"]]
    assert found == expected["c_alpha05"]
    assert [critical(pairs, 0.025) for pairs in inputs["K"]] == expected["c_alpha025"]
    attained = [float(signed_rank_cdf(pairs)[c]) for pairs, c in zip(inputs["K"], found, strict=True)]
    assert attained == pytest.approx(expected["attained_p_alpha05"], rel=rel)
    assert signed_rank_bounds([0.1, 0.2, 0.3, 0.4], 0.05) == (None, None)
    assert [critical(5, alpha) for alpha in (0.031249, 1 / 32, 0.06249, 2 / 32)] == [-1, 0, 0, 1]


def test_an_average_on_the_margin_speaks_against_it() -> None:
    """Three ratios on the limit: none of the eight sign vectors has a smaller rank sum."""
    on = sensitivity("hodges-lehmann", [math.log1p(0.02)] * 3, alpha=0.05, margin=0.02, key=(0, 0))
    assert (on.p_non_inferior, on.ratio) == (1.0, pytest.approx(1.02))
    below = sensitivity("hodges-lehmann", [math.log1p(0.0199)] * 3, alpha=0.05, margin=0.02, key=(0, 0))
    assert below.p_non_inferior == 1 / 8


@pytest.mark.parametrize("name", ["end_to_end_A", "end_to_end_B"])
def test_end_to_end_hodges_lehmann(name: str) -> None:
    inputs, expected, rel = case(name)
    medians = [[median(row) for row in inputs[arm]] for arm in ("candidate", "baseline")]
    found = sensitivity("hodges-lehmann", log_ratios(*medians), alpha=0.05, margin=inputs["margin"], key=(0, 0))
    assert (found.ratio, found.upper) == pytest.approx((expected["hl_ratio"], expected["wilcoxon_ucb95"]), rel=rel)


def test_sign_flip() -> None:
    inputs, expected, rel = case("darwin_maize_signflip")
    p_less = sign_flip([-value for value in inputs["d"]])
    assert p_less == pytest.approx(expected["p_one"], rel=rel)
    assert p_less == expected["count_one_sided"] / expected["n_permutations"]
    assert sign_flip([-0.1]) == 0.5
    assert sign_flip([0.1] * 20) == 1.0
    assert sign_flip([-0.1] * 20) == 2.0**-20
    assert sign_flip([-0.1] * 21) is None


def test_sign_flip_counts_all_vectors() -> None:
    random = np.random.default_rng(7)
    for count in range(1, 11):
        d = random.normal(size=count)
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        assert sign_flip(d.tolist()) == np.mean(signs @ np.abs(d) <= d.sum() + 1e-12)


def test_philox_known_answers() -> None:
    inputs, expected, _ = case("philox4x64_10_kat")
    for vector, out in zip(inputs["vectors"], expected["out"], strict=True):
        counter = tuple(np.array([int(word, 16)], dtype=np.uint64) for word in vector["counter"])
        k0, k1 = (int(word, 16) for word in vector["key"])
        assert [f"{int(word[0]):016x}" for word in philox(counter, (k0, k1))] == out  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 2, 5, 7, 20, 1000, 2**31])
def test_philox_against_numpy(size: int) -> None:
    key = key_of(f"a text of {size}")
    theirs = np.random.Philox(counter=2**256 - 1, key=key[0] | key[1] << 64).random_raw(1003)
    raw = stream(1003, key)
    assert np.array_equal(raw, theirs)
    assert indices(raw, size).tolist() == [(int(word) * size) >> 64 for word in raw]


def test_bootstrap_t() -> None:
    inputs, expected, rel = case("philox_bootstrap_fieller8")
    key = key_of(inputs["key_string"])
    assert [f"{word:016x}" for word in key] == inputs["key"]
    assert inputs["B"] == REPLICATES
    drawn = resamples(len(inputs["r"]), key)
    assert drawn[:3].tolist() == expected["first_indices"]
    assert int(drawn.sum()) == expected["index_sum"]
    found = bootstrap_t(inputs["r"], alpha=inputs["alpha"], key=key)
    assert found == pytest.approx(expected["boot_t_ucb"], rel=rel, abs=1e-14)


def test_d10_bootstrap_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows drawn a few at a time are those drawn at once, to the last digit; 10,000 pairs would take gigabytes at once."""
    key = key_of("seed 1")
    assert np.array_equal(resamples(7, key, first=123, count=5), resamples(7, key)[123:128])
    ratios = np.random.default_rng(1).normal(0.0, 0.01, 40).tolist()
    found = []
    for at_once in (10 * 40, 1000 * 40, 9999 * 40):
        monkeypatch.setattr(module, "_AT_ONCE", at_once)
        found.append(bootstrap_t(ratios, alpha=0.05, key=key))
    assert found[0] is not None
    assert found == [found[0]] * 3
    monkeypatch.undo()
    tracemalloc.start()
    many = bootstrap_t(np.random.default_rng(2).normal(0.0, 0.01, 1000).tolist(), alpha=0.05, key=key)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert many is not None
    assert peak < 70_000_000  # an array of all rows of 1000 pairs has 80 MB, and there would be several


def test_bootstrap_t_without_a_bound() -> None:
    assert bootstrap_t([0.1], alpha=0.05, key=(1, 2)) is None
    assert bootstrap_t([0.1, 0.1, 0.1], alpha=0.05, key=(1, 2)) is None
    assert bootstrap_t([0.1, 0.2, 0.3], alpha=0.05, key=(1, 2)) is None  # a ninth of the resamples has no spread


@pytest.mark.parametrize("method", ["hodges-lehmann", "sign-flip", "bootstrap-t"])
def test_d07_no_pair_no_number(method: str) -> None:
    found = sensitivity(method, [], alpha=0.05, margin=0.02, key=(0, 0))
    assert (found.ratio, found.lower, found.upper, found.p_non_inferior) == (None, None, None, None)
    one = sensitivity(method, [0.01], alpha=0.05, margin=0.02, key=(0, 0))
    assert one.ratio == pytest.approx(math.exp(0.01), rel=1e-15)
    assert (one.lower, one.upper) == (None, None)


@pytest.mark.parametrize("kind", [7, 8])
def test_quantiles(kind: int) -> None:
    inputs, expected, rel = case("hyndman_fan_1")
    ordered = np.array([round(10 * value) for value in inputs["x"]], dtype=np.int64)
    found = [quantile(ordered, p, kind) / 10 for p in inputs["p"]]
    assert found == pytest.approx(expected[f"type{kind}"], rel=rel)


def test_looks_against_rpact() -> None:
    inputs, expected, rel = case("gs_lan_demets_of_5")
    found = look_alphas([round(10 * t) for t in inputs["information"]], inputs["alpha"])
    from scipy.special import ndtri

    assert [-float(ndtri(alpha)) for alpha in found] == pytest.approx(expected["z"], rel=rel)
    assert found[0] == pytest.approx(expected["alpha_spent"][0], rel=rel)


def test_looks_spend_alpha() -> None:
    """STATISTICS 1.5: nominal p 0.0056, 0.0219, 0.0427 at 10, 15, 20 pairs; simulated crossings agree."""
    found = look_alphas([10, 15, 20], 0.05)
    assert found == pytest.approx([0.0056, 0.0219, 0.0427], abs=5e-5)
    steps = np.random.default_rng(3).standard_normal((200_000, 20)).cumsum(axis=1)
    z = steps[:, [9, 14, 19]] / np.sqrt([10, 15, 20])
    from scipy.special import ndtri

    crossed = (z > -ndtri(np.array(found))).any(axis=1).mean()
    assert crossed == pytest.approx(0.05, abs=0.0015)


def test_equivalence_against_sas() -> None:
    inputs, expected, rel = case("sas_ttest_tost_lognormal_paired")
    found = estimate(
        LogRatios(plain=tuple(log_ratios(inputs["test"], inputs["reference"]))), alpha=inputs["alpha"], margin=0.25
    )
    judged = equivalence(found, 0.25, closed=False)
    assert judged.p_lower == pytest.approx(expected["p_lower"], rel=rel)
    assert judged.p_upper == pytest.approx(expected["p_upper"], rel=rel)
    assert judged.p_equivalence == pytest.approx(expected["p_tost"], rel=rel)
    assert (judged.equivalent, judged.failing_side) == (True, "none")
    assert equivalence(found, 0.25, closed=True).equivalent is False
    assert equivalence(found, 0.1, closed=False).failing_side == "lower"


def test_paired_t_of_student() -> None:
    inputs, expected, rel = case("student_sleep_paired")
    differences = tuple((x - y) / 10 for x, y in zip(inputs["x"], inputs["y"], strict=True))
    found = estimate(LogRatios(plain=differences), alpha=0.025, margin=0.02)
    assert found.p_differs == pytest.approx(expected["p"], rel=rel)
    assert found.lower is not None
    assert found.upper is not None
    assert [10 * math.log(found.lower), 10 * math.log(found.upper)] == pytest.approx(expected["ci95"], rel=rel)
    one_sided = estimate(LogRatios(plain=differences), alpha=0.05, margin=0.02).upper
    assert one_sided is not None
    assert 10 * math.log(one_sided) == pytest.approx(expected["ucb95_less"], rel=rel)


@pytest.mark.parametrize("name", ["nist_strd_lottery", "nist_strd_mavro", "nist_numacc1"])
def test_nist_moments(name: str) -> None:
    inputs, expected, rel = case(name)
    found = moments(inputs["x"])
    assert found.mean == pytest.approx(expected["mean"], rel=rel)
    assert found.error * math.sqrt(len(inputs["x"])) == pytest.approx(expected["sd"], rel=rel)


def test_t_quantiles() -> None:
    _, expected, rel = case("distribution_quantiles")
    for key, pairs, alpha in (("t95_19", 20, 0.05), ("t975_19", 20, 0.025), ("t95_4", 5, 0.05), ("t95_9", 10, 0.05)):
        values = [0.0] * (pairs - 1) + [pairs / 1000]  # mean 0.001
        found = moments(values)
        upper = found.bound(alpha, 1)
        assert upper is not None
        assert (math.log(upper) - found.mean) / found.error == pytest.approx(expected[key], rel=rel)


def claimed(p: float, rules: Statistics) -> tuple[Comparison, Pair]:
    """A comparison of six pairs whose test of non-inferiority has this p-value."""
    spread = [-0.02, -0.01, -0.005, 0.0, 0.015, 0.02]  # mean 0
    shift = math.log1p(rules.margin) + moments(spread).error * float(stdtrit(len(spread) - 1, p))
    logs = tuple(value + shift for value in spread)
    found = estimate(LogRatios(plain=logs), alpha=rules.alpha, margin=rules.margin)
    pair = Pair(point="mib=1", arm="cand", other="base", processes=tuple(range(len(logs))), log_ratios=logs,
                estimate=found, fineness=None, guarded=False)  # fmt: skip
    locked = Pairing(candidate="cand", baseline="base", claim="non_inferior")
    return compared(locked, pair, (), rules=rules, alpha=rules.alpha, digest="0" * 64), pair


def test_all_points_is_an_intersection_union_test() -> None:
    """The family is shown at a level just above the largest p-value, and not just below it; p-values a twentieth of R's, for levels in use."""
    inputs, expected, rel = case("padjust_bh1995_25")
    for away, shown in ((1e-6, True), (-1e-6, False)):
        rules = Statistics(alpha=expected["iut"] / 20 + away, margin=0.02, gatekeeping=True)
        family = judge_family(rules, [claimed(p / 20, rules) for p in inputs["p"]], alpha=rules.alpha)
        assert family.members is not None
        found = [20 * m.p_non_inferior_adjusted for m in family.members]
        assert found == pytest.approx(inputs["p"], rel=rel)
        assert (family.comparisons, family.verdict in SHOWN) == (25, shown)
        assert sum(m.verdict not in SHOWN for m in family.members) == (0 if shown else 1)


def test_holm_and_robust_median() -> None:
    inputs, expected, rel = case("padjust_bh1995_25")
    assert holm(inputs["p"]) == pytest.approx(expected["holm"], rel=rel)
    inputs, expected, rel = case("robust_scale")
    assert median(inputs["x"]) == pytest.approx(expected["median"], rel=rel)


def test_autocorrelation_against_r() -> None:
    inputs, expected, rel = case("lh_acf")
    found = autocorrelations(np.array(inputs["x"]), inputs["max_lag"])
    assert [1.0, *found.tolist()] == pytest.approx(expected["acf"], rel=rel)


def test_drift_against_r() -> None:
    inputs, expected, rel = case("kendall_drift_10")
    assert kendall(np.array(inputs["x"])) == pytest.approx(expected["tau"], rel=rel)
    tied = np.array([3.0, 1.0, 2.0, 2.0, 5.0])
    assert kendall(tied) == pytest.approx(kendalltau(np.arange(5), tied).statistic, rel=1e-12)


def test_series_by_hand() -> None:
    """n = 4: L = 1 with weight 1/2; c = -3, -1, 1, 3; sums of products 20 and 5."""
    found = shape_of(np.array([1.0, 3.0, 5.0, 7.0]))
    assert found is not None
    assert (found.tau, found.half_ratio, found.lag1) == (1.0, 3.0, 0.25)
    assert found.effective_share == pytest.approx(1 / (1 + 2 * 0.5 * 0.25), rel=1e-12)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [2.0] * 9, [1.0, 0.0, 2.0, 3.0]])
def test_series_without_numbers(values: list[float]) -> None:
    assert shape_of(np.array(values)) is None


def test_shape() -> None:
    """STATISTICS 1.3: the largest of K ratios bounds the 74th percentile for K = 10, the 86th for 20, the 95th for 59."""
    for pairs, share in ((10, 0.74), (20, 0.86), (59, 0.95)):
        found = diagnostics([k / 1000 for k in range(pairs)], alpha=0.05)
        assert found.tail_quantile == pytest.approx(share, abs=0.005)
        assert found.largest_ratio == math.exp((pairs - 1) / 1000)
        assert found.skewness == pytest.approx(0, abs=1e-9)
    assert skewness([0.0, 0.0, 0.0, 1.0]) == pytest.approx(2 / math.sqrt(3), rel=1e-12)
    nothing = diagnostics([], alpha=0.05)
    assert (nothing.skewness, nothing.largest_ratio, nothing.tail_quantile) == (None, None, None)
    assert diagnostics([0.1, 0.1], alpha=0.05).skewness is None
