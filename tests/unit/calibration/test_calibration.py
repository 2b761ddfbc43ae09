"""Calibration: its vectorised methods are those of the statistics, its nulls are fixed, and it sees bad methods."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchkit.calibration import methods
from benchkit.calibration import study as study_module
from benchkit.calibration.methods import Level, rejections
from benchkit.calibration.nulls import NULLS, Medians, quantised, simulate
from benchkit.calibration.study import AGAIN, FULL, QUICK, Cell, Grid, settled, study
from benchkit.calibration.table import document, failed, markdown, refuse_place, write_tables
from benchkit.errors import DataError, OutputError
from benchkit.statistics.bootstrap import bootstrap_bounds, key_from_text
from benchkit.statistics.interval import paired_interval
from benchkit.statistics.noninferiority import SHOWN, decide
from benchkit.statistics.sensitivity import sensitivity

FIRST = [-0.023912523671692137, 0.035220372829913894]
SMALL = Grid(
    name="small",
    nulls=QUICK.nulls,
    pairs=(5, 10),
    margins=(0.05,),
    alphas=(0.05,),
    experiments=400,
    steps=(1.0, 4.0),
)


@pytest.fixture(scope="module")
def small() -> tuple[Cell, ...]:
    """All cells of a small grid."""
    return study(SMALL, lambda _: None)


def cell(cells: tuple[Cell, ...], kind: str, method: str, null: str = "S1") -> Cell:
    """The one cell of that name."""
    (found,) = [c for c in cells if (c.kind, c.method, c.null) == (kind, method, null)]
    return found


@pytest.mark.parametrize("pairs", [5, 10])
def test_methods_are_those_of_the_statistics(pairs: int) -> None:
    """Decision by decision, on data sets near the limit; the bootstraps with the same key and 999 resamples."""
    data = simulate("S7", experiments=60, pairs=pairs).at(1.04)
    level = Level(limit=math.log1p(0.05), alpha=0.05)
    found = {method: rejections(method, data, level).tolist() for method in methods.METHODS}
    expected: dict[str, list[bool]] = {method: [] for method in methods.METHODS}
    key = key_from_text(f"benchkit-calibrate-v1|weights|{pairs}")
    named = ("hodges-lehmann", "fieller", "order-statistic", "welch")
    for candidate, baseline in zip(np.exp(data.candidate), np.exp(data.baseline), strict=True):
        r = np.log(candidate / baseline)
        interval = paired_interval(r, margin=0.05, alpha_one_sided=0.05)
        expected["paired-t"].append(decide(lower=None, upper=interval.upper, margin=0.05).verdict in SHOWN)
        rows = sensitivity(
            candidate, baseline, methods=(*named, "sign-flip"), margin=0.05, alpha_one_sided=0.05, key=key
        )
        for row in rows[:4]:
            expected[row.method].append(row.upper is not None and row.upper < 1.05)
        p = rows[4].p_non_inferior
        expected["sign-flip"].append(p is not None and p <= 0.05)
        bounds = bootstrap_bounds(r, key=key, alpha_one_sided=0.05, replicates=methods.REPLICATES)
        assert bounds.bootstrap_t is not None or pairs == 5
        expected["bootstrap-t"].append(bounds.bootstrap_t is not None and bounds.bootstrap_t < level.limit)
        expected["percentile"].append(bounds.percentile.value < level.limit)
        expected["bca"].append(bounds.bca.value < level.limit)
    assert found == expected
    assert all(0 < sum(rows) < 60 for method, rows in found.items() if method != "welch")


def test_missing_pairs_are_left_out() -> None:
    r = np.array([[0.01, np.nan, 0.03, 0.02, 0.0, 0.015], [0.01, np.nan, np.nan, 0.02, 0.0, 0.015]])
    upper = methods.t_upper(r, 0.05)
    interval = paired_interval(r[0][np.isfinite(r[0])], margin=0.05, alpha_one_sided=0.05)
    assert interval.upper is not None
    assert upper[0] == pytest.approx(math.log(interval.upper), rel=1e-12)
    assert upper[1] == math.inf


@pytest.mark.parametrize("null", sorted(NULLS))
def test_nulls_are_fixed_and_have_the_ratio_that_they_say(null: str) -> None:
    """A part is a stream of its own: the first 250 experiments are the same whatever follows."""
    data = simulate(null, experiments=300, pairs=6)
    again = simulate(null, experiments=250, pairs=6)
    np.testing.assert_array_equal(data.candidate[:250], again.candidate)
    np.testing.assert_array_equal(data.baseline[:250], again.baseline)
    other = simulate(null, experiments=250, pairs=6, label="|other")
    assert not np.any(other.baseline == again.baseline)
    r = data.log_ratios[np.isfinite(data.log_ratios)]
    centre = -0.03 if null == "S5b" else 0.0  # 3 % on average between the middles of two blocks
    assert r.mean() == pytest.approx(centre, abs=4 * r.std() / math.sqrt(r.size) + 4e-4)
    assert np.isnan(data.log_ratios).mean() == pytest.approx(0.1 if null == "S10" else 0.0, abs=0.03)


def test_the_first_experiment_is_this_one() -> None:
    """Philox streams are fixed; numpy's normal numbers have been the same since 1.17."""
    assert simulate("S1", experiments=1, pairs=2).log_ratios[0].tolist() == pytest.approx(FIRST, rel=1e-12)


def test_a_coarse_timer_has_coarse_medians() -> None:
    data, step = quantised(experiments=10, pairs=5, steps=4.0, margin=0.05)
    assert step == 0.0125
    ticks = np.exp(data.baseline) / step
    np.testing.assert_allclose(ticks, np.round(ticks), atol=1e-9)


def test_the_small_study_holds(small: tuple[Cell, ...]) -> None:
    """Looser than the quick grid: 400 experiments, four standard errors."""
    assert len(small) == len({(c.kind, c.null, c.method, c.pairs) for c in small})
    for found in small:
        if found.low is not None and found.high is not None and found.kind != "power-error":
            edge = found.high if found.rate > found.high else found.low
            slack = 4 * math.sqrt(edge * (1 - edge) / found.experiments)
            assert found.low - slack <= found.rate <= found.high + slack, found
    assert {c.kind for c in small} == {"type-1", "power", "power-error", "family", "gate", "control"}
    assert {c.status for c in small if c.null in ("S5a", "S7")} == {"reported"}


def test_bad_methods_are_seen(small: tuple[Cell, ...]) -> None:
    assert cell(small, "control", "bootstrap of iterations").rate > 0.2
    assert cell(small, "control", "paired-t", "S5b").rate > 0.9
    assert cell(small, "control", "percentile over processes").rate > 0.08
    assert cell(small, "control", "best of 8 points, unadjusted").rate > 0.25
    assert {c.status for c in small if c.kind == "control"} == {"pass"}
    skewed = [c.rate for c in small if (c.null, c.method) == ("S7", "paired-t")]
    assert min(skewed) > 0.12
    assert cell(small, "type-1", "plain t, margin of 4 timer steps", "S8").rate > 0.2
    assert cell(small, "type-1", "with gates, margin of 4 timer steps", "S8").rate < 0.05
    assert cell(small, "gate", "timer_resolution, margin of 1 timer steps", "S8").rate == 1.0


@pytest.mark.parametrize(
    ("rate", "low", "high", "status"),
    [
        (0.05689, 0.0, 0.05, "pass"),  # 0.05 + 2 sqrt(0.05 x 0.95 / 4000) = 0.056892
        (0.05690, 0.0, 0.05, "fail"),
        (0.0339, 0.04, 0.06, "pass"),
        (0.0337, 0.04, 0.06, "fail"),
        (0.138, 0.15, 1.0, "fail"),
        (0.139, 0.15, 1.0, "pass"),
        (0.9, None, None, "reported"),
    ],
)
def test_a_cell_and_its_band(rate: float, low: float | None, high: float | None, status: str) -> None:
    found = Cell(
        kind="type-1",
        null="S1",
        method="paired-t",
        pairs=10,
        margin=0.05,
        alpha=0.05,
        true_ratio=1.05,
        experiments=4000,
        rate=rate,
        low=low,
        high=high,
    )
    assert found.status == status


def judged(method: str, rate: float, grid: Grid, *, pairs: int = 10) -> Cell:
    """A cell of which at most 0.05 is allowed."""
    return Cell(
        kind="type-1",
        null="S1",
        method=method,
        pairs=pairs,
        margin=0.05,
        alpha=0.05,
        true_ratio=1.05,
        experiments=grid.experiments,
        rate=rate,
        low=0.0,
        high=0.05,
    )


def test_a_cell_outside_its_band_is_simulated_again_once_and_that_decides() -> None:
    """Chance passes the second time, a method that errs does not; nothing else is simulated twice."""
    asked: list[tuple[Grid, str]] = []
    said: list[str] = []

    def part(grid: Grid, label: str) -> Iterator[Cell]:
        asked.append((grid, label))
        rates = {"sign-flip": 0.05, "hodges-lehmann": 0.049 if label else 0.058, "order-statistic": 0.0569}
        for method, rate in rates.items():
            yield judged(method, rate, grid)

    plain, lucky, wrong = settled(part, QUICK, said.append)
    assert (plain.again, plain.status) == (None, "pass")
    assert lucky.again is not None
    assert (lucky.rate, lucky.again.rate, lucky.again.experiments, lucky.status) == (0.058, 0.049, 16_000, "pass")
    assert (wrong.within, wrong.status) == (False, "fail")
    narrow = replace(QUICK, pairs=(10,), methods=("hodges-lehmann", "order-statistic"), experiments=16_000)
    assert asked == [(QUICK, ""), (narrow, AGAIN)]
    assert said == [
        "  outside its band, simulated again: hodges-lehmann, K 10, alpha 0.05: 0.0580",
        "  outside its band, simulated again: order-statistic, K 10, alpha 0.05: 0.0569",
    ]


def test_both_results_stand_in_the_tables() -> None:
    first = judged("hodges-lehmann", 0.058, QUICK)
    cells = (
        replace(first, again=judged("hodges-lehmann", 0.049, FULL)),
        replace(judged("sign-flip", 0.06, QUICK), again=judged("sign-flip", 0.0561, FULL)),
        judged("order-statistic", 0.01, QUICK),
    )
    assert [cell["again"] for cell in document(QUICK, cells)["cells"]] == [
        {"experiments": 20_000, "rate": 0.049},
        {"experiments": 20_000, "rate": 0.0561},
        None,
    ]
    assert [cell["status"] for cell in document(QUICK, cells)["cells"]] == ["pass", "fail", "pass"]
    lines = markdown(QUICK, cells).splitlines()
    assert lines[2].startswith("2 of 3 judged cells lie in their band")
    assert lines[4].endswith("Cells simulated again: 2.")
    assert (
        "| type-1 | S1 | hodges-lehmann | 10 | 0.05 | 0.05 | 0 to 0.05 | 0.0580 of 4000 | 0.0490 of 20000 | pass |"
        in lines
    )
    assert "| hodges-lehmann | 0.058 → 0.049 |" in lines
    assert "| sign-flip | **0.060 → 0.056** |" in lines


def test_a_bad_method_is_found_out_by_its_second_simulation_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The percentile bound, handed in as one that keeps its level exactly."""
    monkeypatch.setattr(study_module, "EXACT_LEVEL", ("percentile",))
    grid = replace(SMALL, nulls=("S1",), steps=(), methods=("paired-t", "percentile"))
    found = [c for c in study(grid, lambda _: None) if (c.kind, c.method) == ("type-1", "percentile")]
    assert [(c.pairs, c.within, c.status) for c in found] == [(5, False, "fail"), (10, False, "fail")]
    for bad in found:
        assert bad.again is not None
        assert (bad.again.experiments, bad.again.name) == (1600, bad.name)
        assert bad.again.rate != bad.rate


def test_tables(small: tuple[Cell, ...], tmp_path: Path) -> None:
    file, beside = write_tables(SMALL, small, tmp_path / "small.json")
    written = json.loads(file.read_text("utf-8"))
    assert written == document(SMALL, small)
    assert (written["schema"], written["grid"], sum(written["counts"].values())) == (
        "benchkit.calibration/1",
        "small",
        len(small),
    )
    text = beside.read_text("utf-8")
    assert text == markdown(SMALL, small)
    assert "| method | S1 | S2 | S3 | S4 | S5 | S5a | S6 | S7 |" in text
    assert text.count("**") == 2 * len(failed(small)) + 2
    with pytest.raises(DataError, match=r"--out: expected a file name that ends in \.json"):
        refuse_place(tmp_path / "small.csv")
    with pytest.raises(
        OutputError, match=r"cannot be written \(No such file or directory\); give a place that can be$"
    ):
        refuse_place(tmp_path / "absent" / "small.json")


def test_the_published_quick_tables_hold() -> None:
    folder = Path(__file__).parents[3] / "results" / "calibration"
    written = json.loads((folder / "quick.json").read_text("utf-8"))
    assert (written["grid"], written["experiments"], written["counts"]["fail"]) == ("quick", QUICK.experiments, 0)
    rates = {(c["null"], c["method"], c["pairs"]): c["rate"] for c in written["cells"] if c["kind"] == "type-1"}
    assert {null for null, _, _ in rates} == set(QUICK.nulls)
    assert all(
        0.04 <= rates[null, "paired-t", k] <= 0.0675
        for null in QUICK.nulls
        if null not in ("S5a", "S7")
        for k in (10, 20)
    )


def test_the_published_full_tables_hold() -> None:
    """Every cell within its band, those that chance had put outside by their second result, which is shown."""
    folder = Path(__file__).parents[3] / "results" / "calibration"
    written = json.loads((folder / "full.json").read_text("utf-8"))
    assert (written["grid"], written["experiments"], written["counts"]["fail"]) == ("full", 20_000, 0)
    assert FULL.experiments == 20_000
    again = {(c["null"], c["method"], c["pairs"], c["alpha_one_sided"]) for c in written["cells"] if c["again"]}
    assert again == {("S5", "hodges-lehmann", 20, 0.05)}
    assert {c["again"]["experiments"] for c in written["cells"] if c["again"]} == {80_000}


def test_experiments_can_be_cut_and_moved() -> None:
    data = Medians(candidate=np.array([[0.1, 0.2], [0.3, 0.4]]), baseline=np.zeros((2, 2)))
    assert data.first(1).log_ratios.tolist() == [[0.1], [0.3]]
    assert data.rows(1, 2).log_ratios.tolist() == [[0.3, 0.4]]
    np.testing.assert_allclose(data.at(math.e).log_ratios, [[1.1, 1.2], [1.3, 1.4]])
