"""What a protocol asks for beyond the default, from scripted runs to analysis.json and the summary."""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import ttest_1samp, wilcoxon

from benchkit.analysis.analyst import look_levels
from benchkit.analysis.document import write_analysis
from benchkit.analysis.summary import summarise
from benchkit.protocol.lock import protocol_digest
from benchkit.protocol.parse import parse_protocol
from benchkit.run.locking import lock
from benchkit.statistics.bootstrap import bootstrap_bounds, bootstrap_key
from benchkit.statistics.sequential import lan_demets

DATA = Path(__file__).parents[2] / "data"
TEXT = (DATA / "host.toml").read_text("utf-8")
SCRIPT = """
clock_tick_ns = 1
l2_bytes = 1048576
jitter_ns = 300
[ns_per_call]
base = 100000
"cand@batch=1" = {one}
"cand@batch=4" = {four}
copy = 210000
read = 105000
[process_ratio]
base = [1.0, 1.004, 0.998, 1.001, 1.003, 0.997, 1.002]
cand = [1.001, 1.0, 0.999, 1.004, 1.002, 1.003, 0.996, 1.005]
"""
NOTHING = {"ratio": None, "lower": None, "upper": None, "p_non_inferior": None}
Make = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Lock and run a changed host protocol; the bundle and its analysis.json."""
    from tests.conftest import benchkit

    def run(
        *changes: tuple[str, str], more: str = "", one: int = 99_000, four: int = 101_000
    ) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp("asked")
        text = TEXT
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        protocol, script = folder / "asked.toml", folder / "script.toml"
        protocol.write_text(text + more, "utf-8")
        script.write_text(SCRIPT.format(one=one, four=four), "utf-8")
        lock(protocol, replace=False)
        done = benchkit("run-protocol", protocol, "--synthetic", script, "--out", folder)
        assert done.returncode == 0, done.stderr
        (bundle,) = (folder / "fake-host").glob("2*")
        return bundle, json.loads((bundle / "analysis.json").read_text("utf-8"))

    return run


def log_ratios(bundle: Path, point: str, *, processes: int, typical: Callable[[Any], Any] = np.median) -> np.ndarray:
    """r by pandas, apart from the code under test."""
    rows = pq.read_table(bundle / "samples.parquet").to_pandas()
    rows = rows[~rows.warmup & (rows.point == point) & (rows.process < processes)]
    values = rows.groupby(["arm", "process"]).duration_ns.apply(typical)
    return np.log(values["cand"].to_numpy() / values["base"].to_numpy())


def at(document: dict[str, Any], point: str) -> dict[str, Any]:
    """The comparison at a point."""
    (row,) = [row for row in document["comparisons"] if row["operating_point"] == point]
    return row


def keys(rows: Sequence[dict[str, Any]]) -> set[str]:
    """All keys of a list of objects."""
    return set().union(*rows)


@pytest.fixture(scope="module")
def asked(make: Make) -> tuple[Path, dict[str, Any]]:
    """Named points, a pooled ratio, sensitivity analyses and a claim of equivalence, over eight processes."""
    return make(
        ("process_pairs = 5", "process_pairs = 8"),
        ('family = "all-points"', 'family = "named-points"\nnamed_points = ["batch=4", "batch=1"]'),
        ('claim = "non_inferior"', 'claim = "equivalent"'),
        ('margin = "5%"', 'margin = "1.4%"'),
        ("calls_per_sample = 64", "calls_per_sample = 640"),
        more="pooled = true\nsensitivity = "
        '["fieller", "sign-flip", "hodges-lehmann", "bootstrap-t", "welch", "bonett-price", "order-statistic", '
        '"percentile", "bca", "process-tail"]\n',
    )


def test_a_protocol_that_asks_for_nothing_gets_diagnostics_only(fake_bundle: Path) -> None:
    document = json.loads((fake_bundle / "analysis.json").read_text("utf-8"))
    assert document["family"] == {"claim": "all-points", "verdict": "superior", "comparisons": 2}
    assert keys(document["comparisons"]) == {
        *("operating_point", "candidate", "baseline", "claim", "ratio", "lower", "upper", "margin", "alpha_one_sided"),
        *("pairs", "p_non_inferior", "p_superior", "guarded", "numerical_tie", "unbounded", "verdict", "gates"),
        "diagnostics",
    }
    r = log_ratios(fake_bundle, "batch=1", processes=5)
    c = r - r.mean()
    assert at(document, "batch=1")["diagnostics"] == {
        "skewness": pytest.approx((c**3).mean() / (c**2).mean() ** 1.5, abs=1e-9),
        "largest_ratio": pytest.approx(math.exp(r.max()), rel=1e-12),
        "tail_quantile": pytest.approx(0.05 ** (1 / 5), rel=1e-12),
    }


def test_claimed_sensitivity(asked: tuple[Path, dict[str, Any]]) -> None:
    bundle, document = asked
    protocol = parse_protocol((bundle / "protocol.toml").read_bytes(), "x")
    limit = math.log1p(0.014)
    for point in ("batch=1", "batch=4"):
        r = log_ratios(bundle, point, processes=8)
        rows = {row["method"]: row for row in at(document, point)["sensitivity"]}
        assert list(rows) == ["sign-flip", "hodges-lehmann", "bootstrap-t"]
        ratio = pytest.approx(math.exp(r.mean()), rel=1e-12)
        d = r - limit
        sums = [
            sum(s * abs(x) for s, x in zip(signs, d, strict=True)) for signs in itertools.product((1, -1), repeat=8)
        ]
        p = sum(total <= d.sum() + 1e-12 * np.abs(d).sum() for total in sums) / 256
        assert rows["sign-flip"] == {"method": "sign-flip", **NOTHING, "ratio": ratio, "p_non_inferior": p}
        walsh = sorted((r[i] + r[j]) / 2 for i in range(8) for j in range(i, 8))
        assert rows["hodges-lehmann"] == {
            "method": "hodges-lehmann",
            "ratio": pytest.approx(math.exp((walsh[17] + walsh[18]) / 2), rel=1e-12),
            "lower": pytest.approx(math.exp(walsh[5]), rel=1e-12),
            "upper": pytest.approx(math.exp(walsh[30]), rel=1e-12),
            "p_non_inferior": pytest.approx(wilcoxon(d, alternative="less", method="exact").pvalue, rel=1e-10),
        }
        key = bootstrap_key(protocol_digest=protocol_digest(protocol), point=point)
        bound = bootstrap_bounds(r, key=key, alpha_one_sided=0.05).bootstrap_t
        assert bound is not None
        assert rows["bootstrap-t"] == {
            "method": "bootstrap-t",
            **NOTHING,
            "ratio": ratio,
            "upper": pytest.approx(math.exp(bound), rel=1e-12),
        }


def test_equivalence_members_and_pool(asked: tuple[Path, dict[str, Any]]) -> None:
    bundle, document = asked
    limit = math.log1p(0.014)
    p = {}
    for point in ("batch=1", "batch=4"):
        row, r = at(document, point), log_ratios(bundle, point, processes=8)
        assert (
            row["p_upper"]
            == row["p_non_inferior"]
            == pytest.approx(ttest_1samp(r, limit, alternative="less").pvalue, rel=1e-8)
        )
        assert row["p_lower"] == pytest.approx(ttest_1samp(r, -limit, alternative="greater").pvalue, rel=1e-8)
        p[point] = row["p_equivalence"]
        assert p[point] == max(row["p_lower"], row["p_upper"])
        inside = row["lower"] > 1 / 1.014, row["upper"] < 1.014
        assert row["failing_side"] == {(1, 1): "none", (1, 0): "upper", (0, 1): "lower", (0, 0): "both"}[inside]
        assert row["equivalent"] == (inside == (True, True) and not row["gates"])
    first, second = sorted(p, key=lambda point: p[point])
    adjusted = {first: 2 * p[first], second: max(2 * p[first], p[second])}
    family = document["family"]
    assert (family["claim"], family["comparisons"]) == ("named-points", 2)
    assert [m["operating_point"] for m in family["members"]] == ["batch=1", "batch=4"]
    assert [m["p_non_inferior_adjusted"] for m in family["members"]] == [
        pytest.approx(adjusted["batch=1"], rel=1e-12),
        pytest.approx(adjusted["batch=4"], rel=1e-12),
    ]
    assert [m["p_superior_adjusted"] for m in family["members"]] == [None, None]
    pooled = (log_ratios(bundle, "batch=1", processes=8) + log_ratios(bundle, "batch=4", processes=8)) / 2
    assert family["pooled"] == [
        {
            "candidate": "cand",
            "baseline": "base",
            "points": 2,
            "pairs": 8,
            "ratio": pytest.approx(math.exp(pooled.mean()), rel=1e-12),
            "lower": pytest.approx(math.exp(ttest_1samp(pooled, 0).confidence_interval(0.9).low), rel=1e-10),
            "upper": pytest.approx(math.exp(ttest_1samp(pooled, 0).confidence_interval(0.9).high), rel=1e-10),
            "p_non_inferior": pytest.approx(ttest_1samp(pooled, limit, alternative="less").pvalue, rel=1e-8),
            "p_superior": pytest.approx(ttest_1samp(pooled, 0, alternative="less").pvalue, rel=1e-8),
            "unbounded": False,
        }
    ]


def test_the_summary_shows_all_that_was_named(asked: tuple[Path, dict[str, Any]]) -> None:
    text = summarise(write_analysis(asked[0]))
    places = [
        text.index(f"    {name} ") for name in ("fieller", "sign-flip", "hodges-lehmann", "bootstrap-t", "welch", "bca")
    ]
    assert places == sorted(places)
    assert text.count("\n    process-tail ") == 2
    assert "family (named-points): " in text
    assert "pooled over 2 points (secondary): cand / base  ratio 1.00" in text
    assert "equivalence within [0.98619, 1.014]: " in text
    assert "Kendall tau against time" in text
    assert "limits of these numbers:\n  Few processes and skewed process effects" in text
    assert text.isascii()


def test_analysis_is_the_same_again(asked: tuple[Path, dict[str, Any]]) -> None:
    before = (asked[0] / "analysis.json").read_bytes()
    write_analysis(asked[0])
    assert (asked[0] / "analysis.json").read_bytes() == before


def test_looks_stop_at_the_first_that_shows_it(make: Make) -> None:
    looks = (("process_pairs = 5", "process_pairs = 12"),)
    bundle, document = make(*looks, more='looks = [6, 9, 12]\nsuperiority = "gatekeeping"\n')
    alpha = lan_demets([0.5, 0.75, 1.0], alpha_one_sided=0.05).nominal_p[0]
    assert alpha == pytest.approx(0.0056, abs=5e-5)
    family = document["family"]
    assert family["looks"] == [{"processes": 6, "alpha_one_sided": alpha, "verdict": family["verdict"]}]
    assert family["verdict"] == "non_inferior_but_slower"
    row, r = at(document, "batch=1"), log_ratios(bundle, "batch=1", processes=6)
    assert (row["pairs"], row["alpha_one_sided"], row["verdict"]) == (6, alpha, "superior")
    assert row["upper"] == pytest.approx(math.exp(ttest_1samp(r, 0).confidence_interval(1 - 2 * alpha).high), rel=1e-9)
    assert row["diagnostics"]["tail_quantile"] == pytest.approx(alpha ** (1 / 6), rel=1e-12)
    assert {control["pairs"] for control in document["controls"]} == {6}
    assert {arm["samples"] for arm in document["arms"]} == {6 * 6}
    members = {m["operating_point"]: m for m in family["members"]}
    verdicts = [members[point]["verdict"] for point in ("batch=1", "batch=4")]
    assert verdicts == ["superior", "non_inferior_but_slower"]
    assert members["batch=1"]["p_superior_adjusted"] == pytest.approx(2 * row["p_superior"], rel=1e-12)
    assert (
        "look at 6 pairs, one-sided alpha 0.005575: non_inferior_but_slower\n"
        "stopped after 6 of 12 planned pairs: this look shows the claim\n"
    ) in summarise(write_analysis(bundle))
    assert json.loads((bundle / "attempts.jsonl").read_text("utf-8").splitlines()[-1])["status"] == "stopped_at_look"


def test_looks_go_on_to_the_last_where_none_shows_it(make: Make) -> None:
    bundle, document = make(("process_pairs = 5", "process_pairs = 9"), more="looks = [6, 9]\n", four=108_000)
    assert [(look["processes"], look["verdict"]) for look in document["family"]["looks"]] == [
        (6, "inferior"),
        (9, "inferior"),
    ]
    assert at(document, "batch=4")["pairs"] == 9
    assert json.loads((bundle / "attempts.jsonl").read_text("utf-8").splitlines()[-1])["status"] == "complete"
    assert "stopped after" not in summarise(write_analysis(bundle))


def test_levels_of_the_looks_do_not_depend_on_the_integration() -> None:
    protocol = parse_protocol(
        (TEXT.replace("process_pairs = 5", "process_pairs = 20") + "looks = [10, 15, 20]\n").encode(), "x"
    )
    assert look_levels(protocol.statistics) == (
        (10, pytest.approx(0.0055750, abs=1e-6)),
        (15, pytest.approx(0.0219, abs=1e-4)),
        (20, pytest.approx(0.0427, abs=1e-4)),
    )


def test_a_quantile_claim(make: Make) -> None:
    quantiles = 'estimand = "geometric-mean-of-quantile-ratios"\nquantile = 0.9\nquantile_type = 8'
    bundle, document = make(
        ('estimand = "geometric-mean-of-median-ratios"', quantiles), ("blocks = 3", "blocks = 25"), one=98_000
    )

    def p90(values: Any) -> float:
        """Type 8 by hand: n = 50, h = (50 + 1/3) 0.9 + 1/3 = 45.6333."""
        x = np.sort(np.asarray(values, dtype=float))
        h = (x.size + 1 / 3) * 0.9 + 1 / 3
        assert (x.size, math.floor(h)) == (50, 45)
        return float(x[44] + (h - 45) * (x[45] - x[44]))

    row, r = at(document, "batch=1"), log_ratios(bundle, "batch=1", processes=5, typical=p90)
    assert row["ratio"] == pytest.approx(math.exp(r.mean()), rel=1e-12)
    medians = log_ratios(bundle, "batch=1", processes=5)
    assert abs(row["ratio"] - math.exp(medians.mean())) > 1e-7
    doses = [control["dose"] for control in document["controls"] if control["role"] == "positive_control"]
    assert doses == [pytest.approx(1.5, abs=0.01)] * 2
    assert summarise(write_analysis(bundle)).startswith(
        "fake-host: 90th percentile latency ratio candidate / baseline, limit 1.05"
    )
