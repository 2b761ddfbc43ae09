"""Two packages, two code bases, one answer: 2,000 simulated comparisons as CONTRACT 6 says, and the same verdict always.

It imports both. The data are those of the calibration: its nulls, at true ratios on both sides of the
margin, timed by a fine, a coarse and a much too coarse clock.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchkit.calibration.nulls import NULLS, Medians, simulate
from benchkit.statistics import family as their_family
from benchkit.statistics.bootstrap import bootstrap_key as their_key
from benchkit.statistics.dependence import autocorrelation, effective_samples
from benchkit.statistics.drift import half_ratio, time_tau
from benchkit.statistics.estimand import log_ratios
from benchkit.statistics.interval import exponential, paired_interval
from benchkit.statistics.noninferiority import family_verdict
from benchkit.statistics.point import ArmMedians, PointFlags, judge_point
from benchkit.statistics.pooled import pooled_log_ratios
from benchkit.statistics.quantile import process_quantile, process_tail
from benchkit.statistics.sensitivity import sensitivity as their_sensitivity
from benchkit.statistics.sequential import lan_demets
from validator.compare import _differences
from validator.findings import Comparison, Family, Finding, plain
from validator.reading.model import Pairing, Statistics
from validator.recompute.family import judge_family
from validator.recompute.gates import spread, too_few_pairs
from validator.recompute.looks import look_alphas
from validator.recompute.measure import Cell, Measurements, quantile
from validator.recompute.numbers import compared
from validator.recompute.pairing import Pair, pair
from validator.recompute.series import shape_of

DIGEST = "0123456789abcdef" * 4
POINTS = ("batch=1", "batch=4", "batch=8", "batch=16")
EXPERIMENTS = 200
PAIRS = (4, 5, 10, 20)
TICKS = (1, 400, 5_000, 60_000)
METHODS = ("sign-flip", "hodges-lehmann", "bootstrap-t")
RATIOS = (1.0, 1.02, 0.98, 1.0, 1.05, 1.1, 0.97, 1.0, 1.01, 1.03)
CLAIMS = ("non_inferior", "superior", "equivalent", "non_inferior")


@dataclass(frozen=True, kw_only=True)
class Set:
    """One simulated comparison: whole-sample medians in ns, processes that are missing left out."""

    candidate: dict[int, float]
    baseline: dict[int, float]
    tick: int
    calls: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """Four points of one protocol."""

    sets: tuple[Set, ...]
    rules: Statistics
    claims: tuple[str, ...]


def groups() -> Iterator[Group]:
    """All data sets, in families of four points; every choice is a function of the running number."""
    number = 0
    for null, ratio in zip(NULLS, itertools.cycle(RATIOS), strict=False):
        made = simulate(null, experiments=EXPERIMENTS, pairs=max(PAIRS), label="|agree")
        for start in range(0, EXPERIMENTS, 4):
            alpha, margin = ((0.05, 0.05), (0.025, 0.02), (0.05, 0.02), (0.0056, 0.05))[number % 4]
            named = POINTS if number % 3 == 0 else None
            methods = METHODS if number % 12 == 0 else METHODS[:2] if number % 4 == 1 else METHODS[1:2]
            tick, pairs = TICKS[number // 3 % 4], PAIRS[number // 2 % 4]
            rules = Statistics(
                alpha=alpha, margin=margin, named_points=named, gatekeeping=True, pooled=True, sensitivity=methods
            )
            chosen = made.at(ratio).rows(start, start + 4).first(pairs)
            sets = tuple(_set(chosen, row, tick) for row in range(4))
            yield Group(sets=sets, rules=rules, claims=CLAIMS if number % 2 else CLAIMS[:2] * 2)
            number += 1


def _set(made: Medians, row: int, tick: int) -> Set:
    arms = []
    for logs in (made.candidate[row], made.baseline[row]):
        ns = np.round(1e6 * np.exp(logs) / tick) * tick
        arms.append({k: float(value) for k, value in enumerate(ns) if np.isfinite(value)})
    shared = arms[0].keys() & arms[1].keys()
    candidate, baseline = ({k: arm[k] for k in sorted(shared)} for arm in arms)
    return Set(candidate=candidate, baseline=baseline, tick=tick, calls=20)


def cell(ns: float, calls: int) -> Cell:
    return Cell(
        samples=1,
        whole_ns=ns,
        claimed_ns=ns,
        calls=calls,
        least_ns=1,
        most_ns=1,
        injected_low=0,
        injected_high=0,
        injected_ns=0.0,
    )


def ours(group: Group) -> tuple[list[Comparison], Family]:
    """What the validator says."""
    rules = group.rules
    judged: list[tuple[Comparison, Pair]] = []
    protocol: Any = SimpleNamespace(margin=rules.margin, alpha=rules.alpha)
    for point, data, claim in zip(POINTS, group.sets, group.claims, strict=True):
        cells = {(k, point, "cand"): cell(ns, data.calls) for k, ns in data.candidate.items()}
        cells |= {(k, point, "base"): cell(ns, data.calls) for k, ns in data.baseline.items()}
        records: Any = tuple(SimpleNamespace(process=k) for k in data.candidate)
        done = frozenset((k, point) for k in data.candidate)
        measured = Measurements(cells=cells, records=records, completed=done, resolution_ns=data.tick)
        item = pair(protocol, measured, point, "cand", "base", alpha=rules.alpha)
        gates = (*too_few_pairs(item, rules.alpha), *spread(item, data.tick))
        locked = Pairing(candidate="cand", baseline="base", claim=claim)
        judged.append((compared(locked, item, gates, rules=rules, alpha=rules.alpha, digest=DIGEST), item))
    return [item for item, _ in judged], judge_family(rules, judged, alpha=rules.alpha)


def theirs(group: Group) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What benchkit says."""
    rules = group.rules
    rows, members, by_process = [], [], []
    for point, data, claim in zip(POINTS, group.sets, group.claims, strict=True):
        top, bottom = (
            ArmMedians(duration_ns=np.array(list(arm.values())), calls=data.calls)
            for arm in (data.candidate, data.baseline)
        )
        result = judge_point(
            top, bottom, margin=rules.margin, alpha_one_sided=rules.alpha, quantum_ns=data.tick, controls=[],
            telemetry=None, flags=PointFlags(failed_processes=(), unsupported=(), outputs=()),
        )  # fmt: skip
        r = log_ratios(top.per_call_ns, bottom.per_call_ns)
        by_process.append(dict(zip(data.candidate, r.tolist(), strict=True)))
        equal = their_family.judge_equivalence(result) if claim == "equivalent" else None
        members.append(their_family.Member(result=result, equivalence=equal))
        rows.append(_row(point, claim, result, r, equal) | {"sensitivity": _sensitive(rules, top, bottom, point)})
    named = rules.named_points is not None
    judged = their_family.judge_members(members, named=named, alpha_one_sided=rules.alpha)
    verdicts = [found.verdict for found in judged] if named else [their_family.entering_verdict(m) for m in members]
    family = family_verdict(verdicts, claim=rules.family)
    pooled = paired_interval(pooled_log_ratios(by_process), margin=rules.margin, alpha_one_sided=rules.alpha)
    names = ("pairs", "ratio", "lower", "upper", "p_non_inferior", "p_superior", "unbounded")
    own = {"candidate": "cand", "baseline": "base"}
    return rows, {
        "claim": family.claim, "verdict": family.verdict.value, "comparisons": family.comparisons,
        "members": [
            {"operating_point": point, **own, "p_non_inferior_adjusted": found.p_non_inferior_adjusted,
             "p_superior_adjusted": found.p_superior_adjusted, "verdict": found.verdict.value}
            for point, found in zip(POINTS, judged, strict=True)
        ],
        "pooled": [own | {"points": 4} | {name: getattr(pooled, name) for name in names}],
    }  # fmt: skip


def _row(point: str, claim: str, result: Any, r: Any, equal: Any) -> dict[str, Any]:
    names = (
        "ratio", "lower", "upper", "margin", "alpha_one_sided", "pairs", "p_non_inferior", "p_superior", "guarded",
        "numerical_tie", "unbounded",
    )  # fmt: skip
    tail = process_tail(r, alpha_one_sided=result.alpha_one_sided) if r.size else None
    row = {"operating_point": point, "candidate": "cand", "baseline": "base", "claim": claim}
    row |= {name: getattr(result, name) for name in names}
    row |= {
        "verdict": result.verdict.value,
        "gates": [{"gate": found.gate.value, "detail": ""} for found in result.gates],
        "diagnostics": {
            "skewness": tail and tail.skewness,
            "largest_ratio": tail and exponential(tail.largest),
            "tail_quantile": tail and tail.covered,
        },
    }
    if equal is not None:
        row |= {name: getattr(equal, name) for name in ("p_lower", "p_upper", "p_equivalence", "equivalent")}
        row["failing_side"] = equal.failing_side.value
    return row


def _sensitive(rules: Statistics, top: ArmMedians, bottom: ArmMedians, point: str) -> list[dict[str, Any]]:
    found = their_sensitivity(
        top.per_call_ns, bottom.per_call_ns, methods=list(rules.sensitivity or ()), margin=rules.margin,
        alpha_one_sided=rules.alpha, key=their_key(protocol_digest=DIGEST, point=point),
    )  # fmt: skip
    names = ("method", "ratio", "lower", "upper", "p_non_inferior")
    return [{name: getattr(row, name) for name in names} for row in found]


def test_two_packages_agree() -> None:
    """Every number, and every verdict, of at least 2,000 comparisons and of the families that they make."""
    seen: dict[str, set[Any]] = {"verdict": set(), "family": set(), "guarded": set(), "gates": set()}
    count = 0
    found: list[Finding] = []
    for group in groups():
        items, family = ours(group)
        rows, their_rows = theirs(group)
        found += _differences("$.comparisons", [plain(item) for item in items], rows)  # type: ignore[arg-type]
        found += _differences("$.family", plain(family), their_rows)
        count += len(items)
        seen["family"].add(family.verdict.value)
        for item in items:
            seen["verdict"].add(item.verdict.value)
            seen["guarded"].add(item.guarded)
            seen["gates"] |= {gate.gate for gate in item.gates}
    assert [(item.where, item.expected, item.got) for item in found] == []
    assert count == EXPERIMENTS * len(NULLS) >= 2000
    assert len(seen["verdict"]) == 6
    assert len(seen["family"]) >= 5
    assert seen["guarded"] == {True, False}
    assert seen["gates"] == {"too_few_pairs", "timer_resolution", "zero_spread"}


@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.01])
def test_looks_agree(alpha: float) -> None:
    """Levels of looks agree much better than the 1e-9 that the format asks for, so bounds at them agree to 1e-12."""
    for count in (1, 2, 3):
        for early in itertools.combinations((6, 7, 10, 12, 19), count):
            looks = (*early, 20)
            own = look_alphas(looks, alpha)
            other = lan_demets([look / 20 for look in looks], alpha_one_sided=alpha).nominal_p
            assert own == pytest.approx(other, rel=1e-11)


@pytest.mark.parametrize("kind", [7, 8])
def test_quantiles_agree(kind: int) -> None:
    random = np.random.default_rng(kind)
    for p in (0.5, 0.75, 0.9, 0.95, 0.99):
        values = np.sort(random.integers(1, 10**9, size=random.integers(500, 2000)))
        own, other = quantile(values, p, kind), process_quantile(values, p, hyndman_fan=kind)
        assert own == pytest.approx(other, rel=1e-12)


def test_drift_and_dependence_agree() -> None:
    """Integers with ties, trends and alternation, of 4 to 1200 samples (beyond 1000 the other side has another algorithm)."""
    random = np.random.default_rng(5)
    for size in (4, 5, 60, 101, 1200):
        for trend, swing in ((0.0, 0), (3.0, 0), (-0.5, 40)):
            noise = random.integers(1000, 1040, size) + trend * np.arange(size) + swing * (np.arange(size) % 2)
            values = np.round(noise)
            own = shape_of(values)
            assert own is not None
            other = (
                time_tau(values),
                half_ratio(values),
                autocorrelation(values, max_lag=1)[1],
                effective_samples(values) / size,
            )
            assert (own.tau, own.half_ratio, own.lag1, own.effective_share) == pytest.approx(other, rel=1e-9)
