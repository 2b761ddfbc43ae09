"""The recomputed numbers one function at a time: the edges that a whole bundle rarely stands on."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from validator.recompute.looks import look_alphas
from validator.recompute.measure import Cell, Measurements
from validator.recompute.pairing import Pair, pair
from validator.recompute.philox import stream
from validator.recompute.shape import skewness

KEY = (3, 5)


@pytest.mark.parametrize("start", [0, 1, 3, 4, 6, 7, 13])
def test_a_stream_goes_on_where_it_was_left(start: int) -> None:
    whole = stream(40, KEY)
    assert [stream(count, KEY, start=start).tolist() for count in (1, 4, 9)] == [
        whole[start : start + count].tolist() for count in (1, 4, 9)
    ]


def test_skewness_where_the_spread_vanishes() -> None:
    assert skewness([0.5, 0.5, 0.5]) is None
    assert skewness([0.0, 1e-200]) is None  # its third power is 0
    assert skewness([0.0, 0.0, 3.0]) == pytest.approx(2**-0.5, rel=1e-15)


@pytest.mark.parametrize("looks", [(5, 10), (999, 1000), (1, 1000)])
def test_two_looks_spend_what_was_locked(looks: tuple[int, int]) -> None:
    """P(Z2 > b2, Z1 <= b1) by adaptive quadrature, also where the second step is much shorter than the first path."""
    time, alpha = looks[0] / looks[1], 0.05
    first, second = (-norm.ppf(level) for level in look_alphas(looks, alpha))
    spent = 2 * norm.cdf(norm.ppf(alpha / 2) / math.sqrt(time))
    assert norm.sf(first) == pytest.approx(spent, rel=1e-12)

    def stays_then_crosses(z: float) -> float:
        return float(norm.pdf(z) * norm.sf((second - z * math.sqrt(time)) / math.sqrt(1 - time)))

    edge = min(first, second / math.sqrt(time))
    near = [edge - width * math.sqrt(1 - time) for width in (1, 4, 10) if edge - width * math.sqrt(1 - time) > -12]
    crossed, _ = quad(stays_then_crosses, -12, min(first, 12), points=near, epsabs=1e-14, epsrel=1e-12, limit=500)
    assert crossed == pytest.approx(alpha - spent, rel=1e-9)


def cell(ns: float, calls: int, least: int | None = None) -> Cell:
    return Cell(
        samples=3, whole_ns=ns, claimed_ns=ns, calls=calls, least_ns=int(ns) if least is None else least,
        most_ns=int(ns), injected_low=0, injected_high=0, injected_ns=0.0,
    )  # fmt: skip


def paired(candidate: list[float], baseline: list[float], *, tick: int, margin: float = 0.5, least: int = 1) -> Pair:
    cells = {(k, "p", "cand"): cell(ns, 4, least=least) for k, ns in enumerate(candidate)}
    cells |= {(k, "p", "base"): cell(ns, 2) for k, ns in enumerate(baseline)}
    records: Any = tuple(SimpleNamespace(process=k) for k in range(len(candidate)))
    done = frozenset((k, "p") for k in range(len(candidate)))
    measured = Measurements(cells=cells, records=records, completed=done, resolution_ns=tick)
    protocol: Any = SimpleNamespace(margin=margin)
    return pair(protocol, measured, "p", "cand", "base", alpha=0.05)


CANDIDATE, BASELINE = [404.0, 410.0], [202.0, 201.0]


@pytest.mark.parametrize(
    ("tick", "fineness", "guarded"),
    [
        (5, 20.1, False),
        (6, 16.75, True),
        (50, 2.01, True),
        (51, 1.9705882352941178, False),
        (1, 100.5, False),
        (0, None, False),
    ],
)
def test_the_timer_and_the_margin(tick: int, fineness: float | None, guarded: bool) -> None:
    found = paired(CANDIDATE, BASELINE, tick=tick)
    assert (found.fineness, found.guarded) == (fineness, guarded)
    assert found.log_ratios == (0.0, math.log(102.5 / 100.5))


@pytest.mark.parametrize(("tick", "guarded"), [(5, False), (50, True)])
def test_the_limits_of_the_timer_themselves(tick: int, guarded: bool) -> None:
    found = paired([400.0, 404.0], [200.0, 200.0], tick=tick)
    assert (found.fineness, found.guarded) == (100 / tick, guarded)


def test_a_coarse_timer_widens_by_half_a_step() -> None:
    plain, found = (paired(CANDIDATE, BASELINE, tick=tick) for tick in (5, 8))
    # half a step of 8 ns is 1 ns a call of the candidate (4 calls) and 2 ns of the baseline (2 calls)
    high = [math.log(102 / 99), math.log(103.5 / 98.5)]
    low = [math.log(100 / 103), math.log(101.5 / 102.5)]
    t = 6.313751514675043  # 95 % of Student's t with one degree of freedom (R: qt(0.95, 1))
    for bound, values, sign in ((found.estimate.upper, high, 1), (found.estimate.lower, low, -1)):
        mean, error = sum(values) / 2, abs(values[1] - values[0]) / 2
        assert bound == pytest.approx(math.exp(mean + sign * t * error), rel=1e-12)
    assert found.estimate.ratio == plain.estimate.ratio
    assert found.estimate.upper != plain.estimate.upper


def test_without_spread_nothing_is_guarded() -> None:
    assert paired([400.0], [200.0], tick=8).guarded is False
    assert paired([400.0, 400.0], [200.0, 200.0], tick=8).guarded is False
    assert paired([400.0, 404.0], [200.0, 200.0], tick=8).guarded is True


@pytest.mark.parametrize(("least", "pairs"), [(0, 0), (1, 2)])
def test_a_duration_of_nothing_leaves_no_pair(least: int, pairs: int) -> None:
    found = paired(CANDIDATE, BASELINE, tick=1, least=least)
    assert (found.estimate.pairs, len(found.processes), len(found.log_ratios)) == (pairs,) * 3
    assert (found.fineness is None) == (not pairs)
