"""The section [statistics] beyond its default: what may be asked, and every refusal with its path."""

from pathlib import Path

import pytest

from benchkit.errors import ProtocolError
from benchkit.protocol.lock import protocol_digest
from benchkit.protocol.model import StatisticsRules
from benchkit.protocol.parse import parse_protocol

TEXT = (Path(__file__).parents[2] / "data" / "host.toml").read_text("utf-8")
MEDIANS = 'estimand = "geometric-mean-of-median-ratios"'
QUANTILES = 'estimand = "geometric-mean-of-quantile-ratios"'
NAMED = ('family = "all-points"', 'family = "named-points"\nnamed_points = ["batch=4"]')


def rules(*changes: tuple[str, str], more: str = "") -> StatisticsRules:
    """The rules of the host protocol with places changed, and keys added to [statistics], which stands last."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return parse_protocol((text + more).encode(), "x.toml").statistics


def problems(*changes: tuple[str, str], more: str = "") -> tuple[str, ...]:
    """All problems of such a protocol."""
    with pytest.raises(ProtocolError) as caught:
        rules(*changes, more=more)
    return caught.value.problems


def test_the_default_asks_for_nothing_and_keeps_its_digest() -> None:
    assert rules() == StatisticsRules(
        alpha_one_sided=0.05,
        margin=0.05,
        named_points=None,
        gatekeeping=False,
        pooled=False,
        sensitivity=None,
        quantile=None,
        quantile_type=None,
        looks=(),
    )
    protocol = parse_protocol(TEXT.encode(), "x.toml")
    assert protocol_digest(protocol) == "65158b4b206c7c9f7ff875d760e550518d24eb399d9993479fda2f56693116b0"


def test_everything_that_may_be_asked() -> None:
    found = rules(
        (MEDIANS, QUANTILES + "\nquantile = 0.9\nquantile_type = 8"),
        NAMED,
        ("process_pairs = 5", "process_pairs = 12"),
        ("blocks = 3", "blocks = 25"),
        more='superiority = "gatekeeping"\npooled = true\nsensitivity = ["welch", "sign-flip"]\nlooks = [6, 9, 12]\n',
    )
    assert (found.family, found.named_points, found.in_family("batch=1")) == ("named-points", ("batch=4",), False)
    assert (found.gatekeeping, found.pooled, found.sensitivity) == (True, True, ("welch", "sign-flip"))
    assert (found.quantile, found.quantile_type, found.looks) == (0.9, 8, (6, 9, 12))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            "pooled = false",
            "statistics.pooled: expected true, found boolean false; leave the key out where no pooled ratio is wanted",
        ),
        (
            "pooled = 1",
            "statistics.pooled: expected true, found integer 1; leave the key out where no pooled ratio is wanted",
        ),
        ('superiority = "holm"', 'statistics.superiority: expected one of "gatekeeping", found string "holm"'),
        (
            'named_points = ["batch=4"]',
            'statistics.named_points: needs family = "named-points"; the family all-points names none',
        ),
        ("quantile = 0.9", f"statistics.quantile: needs {QUANTILES}"),
        ("quantile_type = 7", f"statistics.quantile_type: needs {QUANTILES}"),
        ("looks = [3, 5]", "statistics.looks: a look at 3 pairs cannot give a verdict; expected at least 6"),
        (
            "peeking = true",
            "statistics.peeking: unknown key; known here: alpha_one_sided, direction, estimand, family, interval, margin",
        ),
    ],
)
def test_refusals(more: str, problem: str) -> None:
    (found,) = problems(more=more + "\n")
    assert found == problem


@pytest.mark.parametrize("written", ["[]", '["sign-flip", "sign-flip"]', '["bootstrap"]', '"sign-flip"', "[1]"])
def test_sensitivity_names_are_known_and_distinct(written: str) -> None:
    (found,) = problems(more=f"sensitivity = {written}\n")
    assert found.startswith(
        "statistics.sensitivity: expected a non-empty array of distinct strings out of hodges-lehmann, "
    )


@pytest.mark.parametrize("written", ["[]", "[5]", "[12, 6]", "[6, 6]", "[6.0, 12]", "[true, 12]", '"6"'])
def test_looks_ascend(written: str) -> None:
    (found,) = problems(more=f"looks = {written}\n")
    assert found.startswith(
        "statistics.looks: expected 2 to 32 ascending numbers of process pairs, such as [10, 15, 20]"
    )


def test_the_last_look_is_the_last_pair() -> None:
    (found,) = problems(("process_pairs = 5", "process_pairs = 20"), more="looks = [10, 15]\n")
    assert (
        found
        == "statistics.looks: the last look is at 15 pairs, but schedule.process_pairs = 20; expected the same number"
    )


@pytest.mark.parametrize("written", ["1.0", "0.4", "nan", "inf", "1", '"95%"', "true"])
def test_quantiles_that_are_none(written: str) -> None:
    (found,) = problems((MEDIANS, f"{QUANTILES}\nquantile = {written}\nquantile_type = 7"))
    assert found.startswith("statistics.quantile: expected a float from 0.5 to below 1, such as 0.95, found ")


@pytest.mark.parametrize("written", ["6", "9", "7.0", "true", '"7"'])
def test_quantile_types_that_are_none(written: str) -> None:
    (found,) = problems((MEDIANS, f"{QUANTILES}\nquantile = 0.9\nquantile_type = {written}"))
    assert found.startswith("statistics.quantile_type: expected 7 or 8 (Hyndman-Fan), found ")


def test_a_quantile_needs_samples_beyond_it() -> None:
    (found,) = problems((MEDIANS, QUANTILES + "\nquantile = 0.95\nquantile_type = 7"), ("blocks = 3", "blocks = 49"))
    assert found == (
        "statistics.quantile: 0.95 of 98 samples per process leaves 4.9 beyond it; expected at least 5: blocks x samples_per_block >= 100"
    )
    quantile = (MEDIANS, QUANTILES + "\nquantile = 0.95\nquantile_type = 7")
    assert rules(quantile, ("blocks = 3", "blocks = 50")).quantile == 0.95


def test_both_keys_of_a_quantile_are_needed() -> None:
    assert problems((MEDIANS, QUANTILES)) == (
        "statistics.quantile: missing; expected a float from 0.5 to below 1, such as 0.95",
        "statistics.quantile_type: missing; expected 7 or 8 (Hyndman-Fan)",
    )


def test_named_points_are_points_with_a_claim() -> None:
    named = ('family = "all-points"', 'family = "named-points"\nnamed_points = ["batch=2", "batch=4"]')
    assert problems(named) == (
        "statistics.named_points: batch=2 is no operating point; expected some of batch=1, batch=4",
    )
    only_one = ('kernel = "cpu_output_centric"', 'kernel = "cpu_output_centric"\npoints = ["batch=1"]')
    assert problems(NAMED, only_one) == ("statistics.named_points: no claimed comparison stands at batch=4",)
    assert problems(('family = "all-points"', 'family = "named-points"')) == (
        "statistics.named_points: missing; expected a non-empty array of distinct strings",
    )


def test_claims() -> None:
    text = TEXT.replace('claim = "non_inferior"', 'claim = "equivalent"')
    assert parse_protocol(text.encode(), "x.toml").comparisons[0].claim == "equivalent"
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(TEXT.replace('claim = "non_inferior"', 'claim = "equal"').encode(), "x.toml")
    assert caught.value.problems == (
        'comparison[0].claim: expected one of "non_inferior", "superior", "equivalent", "descriptive", found string "equal"',
    )


@pytest.mark.parametrize(("text", "band"), [('"5%"', 0.05), ("0.05", 0.05)])
def test_a_reproduction_band(text: str, band: float) -> None:
    assert rules(more=f"reproduction_band = {text}\n").reproduction_band == band


@pytest.mark.parametrize("text", ["5", '"0%"', "1.5", "true"])
def test_a_reproduction_band_is_a_share(text: str) -> None:
    with pytest.raises(ProtocolError, match=r"statistics.reproduction_band: expected a margin"):
        rules(more=f"reproduction_band = {text}\n")
