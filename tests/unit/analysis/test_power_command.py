"""benchkit power: the table of the specification, options that are refused, pilots, the picture."""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchkit.analysis.planning import Question, Spread, fraction, plan_pairs, power_table, read_pilot
from benchkit.analysis.plot import plot_power
from benchkit.errors import DataError, MachineError


def question(**changes: object) -> Question:
    """A question with some of its parts changed."""
    plain = {"margin": 0.02, "alpha_one_sided": 0.05, "power": 0.9, "true_ratios": (1.0,), "points": 1}
    return Question(**{**plain, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sd", "margin", "alpha", "formula", "pairs"),
    [(0.01, 0.02, 0.05, 4, 5), (0.01, 0.02, 0.025, 5, 6), (0.05, 0.05, 0.025, 14, 14)],
)
def test_never_fewer_pairs_than_a_verdict_needs(
    sd: float, margin: float, alpha: float, formula: int, pairs: int
) -> None:
    """The formula's table stands in tests/unit/statistics/test_planning.py; a verdict needs 5 pairs, or 6 at alpha 0.025."""
    asked = question(margin=margin, alpha_one_sided=alpha)
    assert asked.pairs(sd, true_ratio=1.0, points=1, least=2).pairs == formula
    assert asked.pairs(sd, true_ratio=1.0, points=1).pairs == pairs


def test_the_text() -> None:
    spreads = (Spread(label="guess", sd=0.01, upper=None),)
    assert list(power_table(question(true_ratios=(1.0, 1.01), points=8), spreads)) == [
        "process pairs for non-inferiority at margin 2 %, one-sided alpha 0.05, power 0.9; at least 5",
        "                  sd(r)  true ratio  one point    all 8 points",
        "guess               1 %           1          5               6",
        "guess               1 %        1.01         11              18",
        "all points: each at power 0.9875; the point that needs most decides",
    ]


@pytest.mark.parametrize(
    ("text", "value"), [("2%", 0.02), ("0.5%", 0.005), ("0.02", 0.02), (".02", 0.02), ("1e-2", 0.01)]
)
def test_fractions_that_are_clear(text: str, value: float) -> None:
    assert fraction(text, "--margin") == value


@pytest.mark.parametrize("text", ["nan", "inf", "-0.02", "-2%", "0", "0.0", "0%", "100%", "200%", "", "2 %", "x"])
def test_fractions_that_are_none(text: str) -> None:
    with pytest.raises(DataError, match="--margin: expected "):
        fraction(text, "--margin")


@pytest.mark.parametrize("text", ["3", "3.0", "30"])
def test_a_bare_number_shows_both_readings(text: str) -> None:
    with pytest.raises(DataError) as caught:
        fraction(text, "--margin")
    assert (
        str(caught.value)
        == f'--margin: {text} could mean "{text}%" or {text}00 %: write "{text}%" or {float(text) / 100:g}'
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"alpha_one_sided": math.nan}, "--alpha: expected a one-sided level above 0 and at most 0.05, found nan"),
        ({"alpha_one_sided": 0.1}, "--alpha: expected a one-sided level above 0 and at most 0.05, found 0.1"),
        ({"power": 1.0}, "--power: expected a number between 0 and 1, found 1.0"),
        ({"power": math.nan}, "--power: expected a number between 0 and 1, found nan"),
        ({"points": 0}, "--points: expected at least 1, found 0"),
        ({"true_ratios": (1.02,)}, "--true-ratio: expected a ratio above 0 and below the limit 1.02, found 1.02"),
        ({"true_ratios": (math.inf,)}, "--true-ratio: expected a ratio above 0 and below the limit 1.02, found inf"),
    ],
)
def test_questions_that_are_none(changes: dict[str, object], text: str) -> None:
    with pytest.raises(DataError) as caught:
        question(**changes)
    assert str(caught.value) == text


def test_a_margin_that_no_number_of_pairs_shows() -> None:
    with pytest.raises(DataError, match="more than 1000000 pairs would be needed"):
        question(true_ratios=(1.0199999,)).pairs(0.5, true_ratio=1.0199999, points=1)


def test_either_a_guess_or_a_pilot(fake_bundle: Path) -> None:
    def plan(sd: str | None, pilot: Path | None, margin: str | None = None) -> tuple[Question, tuple[Spread, ...]]:
        return plan_pairs(margin=margin, sd=sd, pilot=pilot, true_ratios=(1.0,), alpha=None, power=0.9, points=None)

    for sd, pilot, word in ((None, None, "none"), ("1%", fake_bundle, "both")):
        with pytest.raises(DataError, match=f"expected either --sd .* or --pilot .*, found {word}"):
            plan(sd, pilot)
    with pytest.raises(DataError, match="--margin: missing"):
        plan("1%", None)
    asked, spreads = plan(None, fake_bundle)
    assert (asked.margin, asked.alpha_one_sided, asked.points, len(spreads)) == (0.05, 0.05, 2, 2)
    assert plan(None, fake_bundle, "1%")[0].margin == 0.01


def test_a_pilot_tells_its_spread_and_how_sure_it_is(fake_bundle: Path) -> None:
    """Five pairs: the upper limit is sd sqrt(4 / chi2(0.2, 4)), chi2(0.2, 4) = 1.648777 (tables)."""
    pilot = read_pilot(fake_bundle)
    first = pilot.spreads[0]
    assert first.label == "batch=1  cand / base"
    assert 0.002 < first.sd < 0.004
    assert first.upper == pytest.approx(first.sd * math.sqrt(4 / 1.648777), rel=1e-6)


def test_the_picture_is_the_same_again(tmp_path: Path) -> None:
    spreads = (Spread(label="guess", sd=0.02, upper=None),)
    asked = question(true_ratios=(1.0, 1.01))
    files = [tmp_path / name for name in ("a.svg", "b.svg")]
    for file in files:
        plot_power(asked, spreads, file)
    text = files[0].read_text("utf-8")
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "guess: sd(r) 2 %, true ratio 1.01" in text
    assert "non-inferiority, margin 2 %, one-sided alpha 0.05" in text
    with pytest.raises(DataError, match=r"--plot: expected a file name that ends in \.svg, \.png, \.pdf, found p\.bmp"):
        plot_power(asked, spreads, tmp_path / "p.bmp")


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MachineError, match=r"install this tool with its extra \[plot\]"):
        plot_power(question(), (Spread(label="guess", sd=0.02, upper=None),), tmp_path / "p.svg")


def test_the_command(run_benchkit: Callable[..., object], tmp_path: Path) -> None:
    done = run_benchkit("power", "--margin", "2%", "--sd", "1%", "--plot", tmp_path / "p.svg")
    assert done.returncode == 0  # type: ignore[attr-defined]
    assert (tmp_path / "p.svg").stat().st_size > 1000
    done = run_benchkit("power", "--margin", "3", "--sd", "1%")
    assert done.returncode == 2  # type: ignore[attr-defined]
    assert done.stderr == 'benchkit: --margin: 3 could mean "3%" or 300 %: write "3%" or 0.03\n'  # type: ignore[attr-defined]
