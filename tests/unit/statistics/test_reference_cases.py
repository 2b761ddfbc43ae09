"""Every reference case of tests/cases/statistics.json, each at its stated tolerance.

The file names the source of each case (R 4.2.2, SAS, NIST StRD, PowerTOST, statpsych, rpact, published tables). A kind has one
function here that computes all the case's expected fields; a case without a function, and a field without a value, fail.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import betainc, ndtri
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import trim_mean

from benchkit.statistics import bootstrap, dependence, drift, fieller, hierarchy, multiplicity, quantile, signed_rank
from benchkit.statistics.equivalence import paired_equivalence, two_one_sided_tests
from benchkit.statistics.estimand import log_ratios, median, process_median
from benchkit.statistics.interval import moments, paired_interval, t_cdf, t_critical
from benchkit.statistics.median_ratio import median_ratio, median_ratio_paired
from benchkit.statistics.noninferiority import Verdict, decide
from benchkit.statistics.permutation import sign_flip
from benchkit.statistics.point import ArmMedians, PointFlags, judge_point
from benchkit.statistics.power import (
    noncentral_t_cdf,
    one_sided_power,
    pairs_needed,
    sd_from_cv,
    tost_power,
    two_sample_power,
    two_sample_size,
)
from benchkit.statistics.sequential import lan_demets, obrien_fleming
from benchkit.statistics.signed_rank import Alternative
from benchkit.statistics.welch import welch_difference, welch_ratio

CASES = json.loads((Path(__file__).parents[2] / "cases" / "statistics.json").read_text())
NO_FLAGS = PointFlags(failed_processes=(), unsupported=(), outputs=())

Values = dict[str, Any]
COMPUTE: dict[str, Callable[[Values], Values]] = {}


def computes(kind: str) -> Callable[[Callable[[Values], Values]], Callable[[Values], Values]]:
    """Register the function that computes one kind of case."""

    def register(function: Callable[[Values], Values]) -> Callable[[Values], Values]:
        COMPUTE[kind] = function
        return function

    return register


def assert_close(found: Any, expected: Any, *, rel: float, abs_: float, where: str) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected), where
        for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            assert_close(ours, theirs, rel=rel, abs_=abs_, where=f"{where}[{position}]")
    elif isinstance(expected, bool | str):
        assert found == expected, where
    else:
        assert math.isclose(found, expected, rel_tol=rel, abs_tol=abs_), f"{where}: {found!r} != {expected!r}"


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: Values) -> None:
    found = COMPUTE[case["kind"]](case["inputs"])
    assert found.keys() == case["expected"].keys()
    tolerance = case["tolerance"]
    for field, expected in case["expected"].items():
        assert_close(found[field], expected, rel=tolerance["rel"], abs_=tolerance["abs"], where=field)


def test_no_case_is_left_out() -> None:
    assert len(CASES) == 48
    assert len({case["id"] for case in CASES}) == 48
    assert {case["kind"] for case in CASES} == COMPUTE.keys()


@computes("paired_log_ratio_t")
def _paired_log_ratio_t(inputs: Values) -> Values:
    logs = log_ratios(inputs["test"], inputs["reference"])
    interval = paired_interval(logs, margin=0.25, alpha_one_sided=inputs["alpha"])
    tost = paired_equivalence(logs, lower_ratio=inputs["lower"], upper_ratio=inputs["upper"])
    return {
        "gmr": interval.ratio,
        "ci90": [interval.lower, interval.upper],
        "t_lower": tost.t_lower,
        "p_lower": tost.p_lower,
        "t_upper": tost.t_upper,
        "p_upper": tost.p_upper,
        "df": tost.df,
        "p_tost": tost.p,
    }


@computes("ni_log_ratio_t")
def _ni_log_ratio_t(inputs: Values) -> Values:
    logs = log_ratios(inputs["candidate"], inputs["baseline"])
    interval = paired_interval(logs, margin=inputs["margin"], alpha_one_sided=inputs["alpha"])
    decision = decide(lower=interval.lower, upper=interval.upper, margin=inputs["margin"])
    found = {
        "ratio": interval.ratio,
        "ucb": interval.upper,
        "p": interval.p_non_inferior,
        "non_inferior": decision.verdict in (Verdict.SUPERIOR, Verdict.NON_INFERIOR, Verdict.NON_INFERIOR_BUT_SLOWER),
    }
    assert interval.p_non_inferior is not None
    assert found["non_inferior"] == (interval.p_non_inferior < inputs["alpha"])
    if inputs["alpha"] == 0.025:  # this case states no p
        del found["p"]
    return found


@computes("hodges_lehmann_ratio")
def _hodges_lehmann_ratio(inputs: Values) -> Values:
    logs = log_ratios(inputs["candidate"], inputs["baseline"])
    found = signed_rank.hodges_lehmann(logs, alpha_one_sided=1.0 - inputs["conf_one_sided"])
    assert found.estimate is not None
    assert found.lower is not None
    assert found.upper is not None
    return {
        "hl_ratio": math.exp(found.estimate),
        "lcb": math.exp(found.lower),
        "ucb": math.exp(found.upper),
        "critical_c": found.critical.c,
    }


@computes("paired_t")
def _paired_t(inputs: Values) -> Values:
    differences = np.array(inputs["x"]) - np.array(inputs["y"])
    found = moments(differences, name="differences")
    assert found.mean is not None
    assert found.se is not None
    df = found.count - 1
    statistic = found.mean / found.se
    reach = t_critical(0.025, df) * found.se
    return {
        "t": statistic,
        "df": df,
        "p": 2.0 * t_cdf(-abs(statistic), df),
        "ci95": [found.mean - reach, found.mean + reach],
        "ucb95_less": found.mean + t_critical(0.05, df) * found.se,
    }


@computes("ni_unpaired_welch_log_ratio")
def _welch(inputs: Values) -> Values:
    found = welch_ratio(
        inputs["candidate"], inputs["baseline"], margin=inputs["margin"], alpha_one_sided=inputs["alpha"]
    )
    return {"ratio": found.ratio, "ucb": found.upper, "df": found.df, "p": found.p_non_inferior}


@computes("wilcoxon_signed_rank_hl")
def _wilcoxon(inputs: Values) -> Values:
    differences = np.array(inputs["x"]) - np.array(inputs["y"])
    two_sided = signed_rank.hodges_lehmann(differences, alpha_one_sided=0.025)
    return {
        "V": signed_rank.signed_rank_statistic(differences, null=0.0),
        "p_greater": signed_rank.signed_rank_p(differences, null=0.0, alternative=Alternative.GREATER),
        "p_two": signed_rank.signed_rank_p(differences, null=0.0, alternative=Alternative.TWO_SIDED),
        "hl": two_sided.estimate,
        "ci95": [two_sided.lower, two_sided.upper],
        "ucb95_one_sided": signed_rank.hodges_lehmann(differences, alpha_one_sided=0.05).upper,
    }


@computes("signed_rank_table")
def _signed_rank_table(inputs: Values) -> Values:
    high, low = ([signed_rank.critical_value(k, alpha_one_sided=a) for k in inputs["K"]] for a in inputs["alpha"])
    return {
        "c_alpha05": [value.c for value in high],
        "c_alpha025": [value.c for value in low],
        "attained_p_alpha05": [value.attained for value in high],
    }


@computes("quantile_types_1_to_9")
def _quantiles(inputs: Values) -> Values:
    x, probabilities = inputs["x"], inputs["p"]
    return {f"type{t}": [quantile.quantile(x, p, hyndman_fan=t) for p in probabilities] for t in range(1, 10)}


@computes("mad_iqr_trim")
def _robust(inputs: Values) -> Values:
    found = quantile.robust_summary(inputs["x"])
    return {
        "median": found.median,
        "mad_raw": found.mad,
        "mad_1_4826": found.mad_normal,
        "iqr_type7": found.iqr,
        "trimmed_mean_10": float(trim_mean(inputs["x"], 0.1)),
        "trimmed_mean_20": float(trim_mean(inputs["x"], 0.2)),
    }


@computes("univariate_summary")
def _univariate(inputs: Values) -> Values:
    found = moments(inputs["x"], name="x")
    lag1 = float(dependence.autocorrelation(inputs["x"], max_lag=1)[1])
    count = {"n": found.count} if found.count > 3 else {}  # NumAcc1 states no n
    return {**count, "mean": found.mean, "sd": found.sd, "lag1_autocorr": lag1}


@computes("quantile_order_statistic_ci")
def _order_statistics(inputs: Values) -> Values:
    if "conf_one_sided" in inputs:
        alpha = 1.0 - inputs["conf_one_sided"]
        bounds = [quantile.upper_order_bound(n, inputs["p"], alpha_one_sided=alpha) for n in inputs["n"]]
        return {"rank": [bound.rank for bound in bounds], "attained_conf": [bound.attained for bound in bounds]}
    alpha = (1.0 - inputs["conf_two_sided"]) / 2.0
    intervals = [quantile.order_interval(n, inputs["p"], alpha_one_sided=alpha) for n in inputs["n"]]
    assert [i.upper_rank for i in intervals] == [
        n + 1 - (i.lower_rank or 0) for n, i in zip(inputs["n"], intervals, strict=True)
    ]
    return {"lower_rank": [i.lower_rank for i in intervals], "attained_conf": [i.attained for i in intervals]}


@computes("ratio_of_medians_bonett_price")
def _bonett_price(inputs: Values) -> Values:
    found = median_ratio(inputs["y1"], inputs["y2"], alpha_one_sided=inputs["alpha"] / 2.0)
    return {
        "median1": found.median_candidate,
        "median2": found.median_baseline,
        "ratio": found.ratio,
        "ll": found.lower,
        "ul": found.upper,
    }


@computes("ratio_of_medians_paired_bonett_price")
def _bonett_price_paired(inputs: Values) -> Values:
    found = median_ratio_paired(inputs["y1"], inputs["y2"], alpha_one_sided=inputs["alpha"] / 2.0)
    return {
        "median1": found.median_candidate,
        "median2": found.median_baseline,
        "ratio": found.ratio,
        "ll": found.lower,
        "ul": found.upper,
    }


@computes("fieller_paired")
def _fieller_paired(inputs: Values) -> Values:
    alpha = 1.0 - inputs["conf_one_sided"]
    found = fieller.fieller_paired(inputs["candidate"], inputs["baseline"], alpha_one_sided=alpha)
    return {"ratio": found.ratio, "lcb": found.lower, "ucb": found.upper, "g": found.g}


@computes("fieller_two_sample_pooled")
def _fieller_unpaired(inputs: Values) -> Values:
    arms = (inputs["numerator"], inputs["denominator"])
    found = fieller.fieller_unpaired(*arms, alpha_one_sided=1.0 - inputs["conf_one_sided"])
    test = fieller.ratio_test_unpaired(*arms, rho=inputs["rho"])
    return {"ratio": found.ratio, "ucb": found.upper, "t": test.statistic, "p": test.p_less}


@computes("fieller_crossover_formula")
def _fieller_crossover(inputs: Values) -> Values:
    """2x2 crossover: within- and between-subject CV of the reference mean give variances and covariance."""
    between, within, count = inputs["CVb"] ** 2, inputs["CV"] ** 2, inputs["n"]
    found = fieller.fieller(
        inputs["pe"],
        1.0,
        var_numerator=(within + between) / count,
        var_denominator=(within + between) / count,
        covariance=between / count,
        critical=t_critical(inputs["alpha"], count - 2),
    )
    return {"ci95": [found.lower, found.upper]}


@computes("ni_sample_size_grid")
def _sample_sizes(inputs: Values) -> Values:
    plans = [
        pairs_needed(
            inputs["power"],
            sd_log_ratio=row["sd"],
            margin=row["margin"],
            true_ratio=row["theta0"],
            alpha_one_sided=inputs["alpha"],
            least_pairs=3,
            points=1,
        )
        for row in inputs["rows"]
    ]
    return {"K": [plan.pairs for plan in plans], "power": [plan.power for plan in plans]}


@computes("ni_sample_size_powertost_paired")
def _powertost_paired(inputs: Values) -> Values:
    plans = [
        pairs_needed(
            inputs["targetpower"],
            sd_log_ratio=sd_from_cv(cv),
            margin=margin - 1.0,
            true_ratio=inputs["theta0"],
            alpha_one_sided=inputs["alpha"],
            least_pairs=3,
            points=1,
        )
        for cv, margin in zip(inputs["cv"], inputs["margin"], strict=True)
    ]
    return {"n": [plan.pairs for plan in plans], "power": [plan.power for plan in plans]}


def _crossover_sd(cv: float) -> float:
    return math.sqrt(math.log1p(cv * cv))


@computes("ni_sample_size_powertost_2x2")
def _powertost_crossover(inputs: Values) -> Values:
    sd = _crossover_sd(inputs["CV"])

    def reached(n: int) -> float:
        effect = math.log(inputs["theta0"]) - math.log(inputs["margin"])
        return one_sided_power(effect, se=sd * math.sqrt(2.0 / n), df=n - 2, alpha_one_sided=inputs["alpha"])

    count = next(n for n in range(4, 1000, 2) if reached(n) >= inputs["targetpower"])
    return {"n": count, "power": reached(count), "se_log": sd}


@computes("tost_sample_size")
def _tost_size(inputs: Values) -> Values:
    sd = _crossover_sd(inputs["CV"])

    def reached(n: int) -> float:
        return tost_power(
            math.log(inputs["theta0"]),
            se=sd * math.sqrt(2.0 / n),
            df=n - 2,
            lower_bound=math.log(inputs["theta1"]),
            upper_bound=math.log(inputs["theta2"]),
            alpha_one_sided=inputs["alpha"],
        )

    count = next(n for n in range(4, 1000, 2) if reached(n) >= 0.8)
    return {"n": count, "power": reached(count)}


@computes("ni_sample_size_parallel")
def _julious(inputs: Values) -> Values:
    sizes = [
        two_sample_size(inputs["power"], difference=margin, sd=1.0, alpha_one_sided=inputs["alpha"])
        for margin in inputs["std_margin"]
    ]
    return {"n_per_group": [math.ceil(size) for size in sizes]}


@computes("t_power")
def _t_power(inputs: Values) -> Values:
    effect = {"difference": inputs["delta"], "sd": inputs["sd"], "alpha_one_sided": inputs["alpha"] / 2.0}
    return {
        "power_n20": two_sample_power(inputs["n"], **effect),
        "n_for_90": two_sample_size(inputs["power_target"], **effect),
        "paired_one_sided_n12_delta_04879_sd_05": one_sided_power(
            0.4879, se=0.5 / math.sqrt(12.0), df=11, alpha_one_sided=0.05
        ),
    }


@computes("distribution")
def _distribution(inputs: Values) -> Values:
    return {
        "t95_19": t_critical(0.05, 19),
        "t975_19": t_critical(0.025, 19),
        "t95_4": t_critical(0.05, 4),
        "t95_9": t_critical(0.05, 9),
        "z95": float(ndtri(0.95)),
        "z975": float(ndtri(0.975)),
        "pt_nc": noncentral_t_cdf(1.729132811521367, df=19, noncentrality=2.5),
        "pt_nc2": noncentral_t_cdf(2.0930240544082634, df=19, noncentrality=3.1),
        "pbeta": float(betainc(5.0, 7.0, 0.3)),
    }


@computes("welch_tost_summary")
def _welch_tost(inputs: Values) -> Values:
    found = welch_difference(
        mean_a=inputs["m1"],
        sd_a=inputs["sd1"],
        n_a=inputs["n1"],
        mean_b=inputs["m2"],
        sd_b=inputs["sd2"],
        n_b=inputs["n2"],
    )
    bound = inputs["eqb_d"] * math.sqrt((inputs["sd1"] ** 2 + inputs["sd2"] ** 2) / 2.0)
    tost = two_one_sided_tests(found.difference, se=found.se, df=found.df, lower_bound=-bound, upper_bound=bound)
    return {
        "df": tost.df,
        "t_lower": tost.t_lower,
        "t_upper": tost.t_upper,
        "p_lower": tost.p_lower,
        "p_upper": tost.p_upper,
    }


@computes("multiplicity_adjust")
def _adjust(inputs: Values) -> Values:
    p = inputs["p"]
    return {
        "holm": multiplicity.holm(p),
        "hochberg": multiplicity.hochberg(p),
        "bonferroni": multiplicity.bonferroni(p),
        "BH": multiplicity.benjamini_hochberg(p),
        "iut": multiplicity.intersection_union(p),
    }


@computes("group_sequential")
def _group_sequential(inputs: Values) -> Values:
    if inputs["type"] == "OF":
        return {"z": obrien_fleming(inputs["kMax"], alpha_one_sided=inputs["alpha"]).z}
    looks = lan_demets(inputs["information"], alpha_one_sided=inputs["alpha"])
    return {"z": looks.z, "alpha_spent": looks.spent}


@computes("sign_flip_exact")
def _sign_flip(inputs: Values) -> Values:
    found = sign_flip(inputs["d"])
    return {
        "sum": found.observed,
        "count_one_sided": found.at_least,
        "n_permutations": found.vectors,
        "p_one": found.p_greater,
        "p_two": found.p_two_sided,
    }


@computes("bca_acceleration")
def _acceleration(inputs: Values) -> Values:
    data = np.array(inputs["x"], dtype=np.float64)
    return {"mean": float(data.mean()), "accel": bootstrap.acceleration(-data)}


def _monte_carlo(data: np.ndarray, statistic: Callable[..., Any], p: tuple[float, float]) -> tuple[Values, float]:
    """Percentile and BCa by our index scheme: the statistic takes rows of indices."""
    count = len(data)
    key = bootstrap.key_from_text("reference cases")
    rows = list(bootstrap.resample_indices(count, key=key, replicates=19999, batch=4000))
    replicates = np.concatenate([statistic(indices) for indices in rows])
    everything = np.arange(count)
    left_out = np.array([statistic(np.delete(everything, i)[None, :])[0] for i in range(count)])
    estimate = float(statistic(everything[None, :])[0])
    accelerated = bootstrap.acceleration(left_out)
    found = {
        "percentile": [bootstrap.percentile(replicates, q, exhaustive=False).value for q in p],
        "bca": [
            bootstrap.bca(replicates, q, estimate=estimate, accelerated=accelerated, exhaustive=False).value for q in p
        ],
    }
    return found, bootstrap.spread(replicates)


@computes("bootstrap_bca_monte_carlo")
def _spatial(inputs: Values) -> Values:
    data = np.array(inputs["x"], dtype=np.float64)
    found, _ = _monte_carlo(data, lambda indices: data[indices].var(axis=1), (0.05, 0.95))
    return found


@computes("bootstrap_ratio_monte_carlo")
def _city(inputs: Values) -> Values:
    u, x = np.array(inputs["u"], dtype=np.float64), np.array(inputs["x"], dtype=np.float64)

    def ratio(indices: np.ndarray) -> np.ndarray:
        return np.asarray(x[indices].sum(axis=1) / u[indices].sum(axis=1))

    found, spread = _monte_carlo(u, ratio, (0.05, 0.95))
    return {"ratio": float(x.sum() / u.sum()), **found, "se_boot": spread}


def test_scipy_gives_the_same_bca_limits() -> None:
    """An independent implementation on the city data: within the Monte-Carlo tolerance of the case."""
    case = next(case for case in CASES if case["id"] == "boot_city_ratio")
    data = (np.array(case["inputs"]["u"], dtype=np.float64), np.array(case["inputs"]["x"], dtype=np.float64))

    def ratio(u: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(x.sum(axis=axis) / u.sum(axis=axis))

    interval = scipy_bootstrap(
        data, ratio, paired=True, vectorized=True, confidence_level=0.9, n_resamples=9999, rng=np.random.default_rng(1)
    ).confidence_interval
    found = COMPUTE[case["kind"]](case["inputs"])["bca"]
    assert_close(found, [float(interval.low), float(interval.high)], rel=0.02, abs_=0.0, where="bca")


@computes("bootstrap_exhaustive")
def _exhaustive(inputs: Values) -> Values:
    data = np.array(inputs["r"])
    rows = data[bootstrap.all_resamples(data.size)]
    means = np.array([math.fsum(row) / data.size for row in rows.tolist()])
    mean = math.fsum(data.tolist()) / data.size
    p = 1.0 - inputs["alpha"]
    corrected = bootstrap.bca(means, p, estimate=mean, accelerated=bootstrap.acceleration(-data), exhaustive=True)
    at_rank = bootstrap.percentile(means, p, exhaustive=True)
    assert at_rank.rank == 2969
    return {
        "mean": mean,
        "n_resamples": len(means),
        "q95_rank2969": at_rank.value,
        "q975_type7": quantile.quantile(means, 0.975, hyndman_fan=7),
        "q95_median_type1": quantile.quantile(np.median(rows, axis=1), 0.95, hyndman_fan=1),
        "z0_midp": corrected.z0,
        "accel": corrected.acceleration,
        "boot_sd": bootstrap.spread(means),
    }


@computes("philox_kat")
def _philox(inputs: Values) -> Values:
    """numpy's generator, as :mod:`bootstrap` uses it: it increments the counter before it generates."""
    words = []
    for vector in inputs["vectors"]:
        counter, key = (sum(int(word, 16) << 64 * i for i, word in enumerate(vector[n])) for n in ("counter", "key"))
        generator = np.random.Philox(counter=(counter - 1) % (1 << 256), key=key)
        words.append([f"{int(word):016x}" for word in generator.random_raw(4)])
    return {"out": words}


@computes("philox_bootstrap")
def _philox_bootstrap(inputs: Values) -> Values:
    key = bootstrap.key_from_text(inputs["key_string"])
    assert [f"{key.low:016x}", f"{key.high:016x}"] == inputs["key"]
    rows = np.concatenate(list(bootstrap.resample_indices(8, key=key, replicates=inputs["B"], batch=777)))
    found = bootstrap.bootstrap_bounds(
        inputs["r"], key=key, alpha_one_sided=inputs["alpha"], replicates=inputs["B"], batch=500
    )
    return {
        "first_indices": rows[:3].tolist(),
        "index_sum": int(rows.sum()),
        "percentile_ucb": found.percentile.value,
        "boot_t_ucb": found.bootstrap_t,
        "bca_ucb": found.bca.value,
        "bca_rank": found.bca.rank,
        "z0": found.bca.z0,
        "accel": found.bca.acceleration,
        "boot_mean_sd": found.sd,
    }


@computes("autocorrelation")
def _autocorrelation(inputs: Values) -> Values:
    return {"acf": dependence.autocorrelation(inputs["x"], max_lag=inputs["max_lag"]).tolist()}


@computes("block_length")
def _block_length(inputs: Values) -> Values:
    return {name: list(dependence.block_length(series)) for name, series in inputs["series"].items()}


@computes("changepoint_least_squares")
def _changepoint(inputs: Values) -> Values:
    found = drift.changepoint(inputs["x"])
    return {
        "k": found.before,
        "mean_before": found.mean_before,
        "mean_after": found.mean_after,
        "rss": found.rss,
        "rss_null": found.rss_null,
    }


@computes("drift_kendall")
def _kendall(inputs: Values) -> Values:
    found = drift.drift(inputs["x"])
    return {"tau": found.tau, "p_two_sided": found.p_two_sided}


@computes("kalibera_jones_variance")
def _kalibera_jones(inputs: Values) -> Values:
    found = hierarchy.level_variances(inputs["data"])
    return {
        "mean": found.mean,
        "S1sq": found.biased[0],
        "S2sq": found.biased[1],
        "T1sq": found.unbiased[0],
        "T2sq": found.unbiased[1],
        "ci95_half_width": found.half_width(alpha_one_sided=0.025),
    }


@computes("kalibera_jones_optimal_reps")
def _optimal(inputs: Values) -> Values:
    variances = hierarchy.level_variances(inputs["data"])
    first, second = hierarchy.optimal_repetitions(variances, costs=inputs["costs_high_to_low"][::-1])
    assert first is not None
    assert second is not None
    t1, t2, t3 = variances.unbiased
    return {
        "T1sq": t1,
        "T2sq": t2,
        "T3sq": t3,
        "r1": first,
        "r2": second,
        "r1_ceil": math.ceil(first),
        "r2_ceil": math.ceil(second),
    }


@computes("variance_components")
def _variance_components(inputs: Values) -> Values:
    found = hierarchy.variance_components(inputs["M"])
    return {
        "msb": found.mean_square_between,
        "msw": found.mean_square_within,
        "s2_process": found.process_variance,
        "icc": found.intraclass_correlation,
        "design_effect": found.design_effect,
        "F": found.f_statistic,
        "p": found.p,
    }


@computes("end_to_end_point")
def _end_to_end(inputs: Values) -> Values:
    base = np.array([process_median(row, calls=1) for row in inputs["baseline"]])
    cand = np.array([process_median(row, calls=1) for row in inputs["candidate"]])
    logs = log_ratios(cand, base)
    alpha, margin = inputs["alpha"], inputs["margin"]
    point = judge_point(
        ArmMedians(duration_ns=cand, calls=1),
        ArmMedians(duration_ns=base, calls=1),
        margin=margin,
        alpha_one_sided=alpha,
        quantum_ns=0.0,
        controls=(),
        telemetry=None,
        flags=NO_FLAGS,
    )
    spread = moments(logs, name="logs")
    ranked = signed_rank.hodges_lehmann(logs, alpha_one_sided=alpha)
    means = fieller.fieller_paired(cand, base, alpha_one_sided=alpha)
    sign = quantile.upper_order_bound(logs.size, 0.5, alpha_one_sided=alpha)
    assert ranked.estimate is not None
    assert ranked.upper is not None
    assert sign.rank is not None
    return {
        "process_medians_base": base.tolist(),
        "process_medians_cand": cand.tolist(),
        "log_ratios": logs.tolist(),
        "ratio": point.ratio,
        "sd_log_ratio": spread.sd,
        "se_log_ratio": spread.se,
        "lcb95": point.lower,
        "ucb95": point.upper,
        "ucb975": paired_interval(logs, margin=margin, alpha_one_sided=0.025).upper,
        "p_margin": point.p_non_inferior,
        "p_superiority": point.p_superior,
        "hl_ratio": math.exp(ranked.estimate),
        "wilcoxon_ucb95": math.exp(ranked.upper),
        "fieller_ratio": means.ratio,
        "fieller_ucb95": means.upper,
        "sign_ucb_rank": sign.rank,
        "sign_ucb95": math.exp(sorted(logs.tolist())[sign.rank - 1]),
        "pooled_ratio_of_medians": median(np.ravel(inputs["candidate"])) / median(np.ravel(inputs["baseline"])),
        "verdict_non_inferior": point.verdict in (Verdict.SUPERIOR, Verdict.NON_INFERIOR),
        "verdict": str(point.verdict),
    }


@computes("verdict_logic")
def _verdicts(inputs: Values) -> Values:
    rows = inputs["rows"]
    decisions = [decide(lower=row["lcb"], upper=row["ucb"], margin=row["margin"]) for row in rows]
    return {"verdict": [str(decision.verdict) for decision in decisions]}
