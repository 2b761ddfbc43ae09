"""The validator's own statistics against reference cases of R, and the gates at their edges."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import builder
import pytest

from validator.findings import Numbers, Verdict
from validator.reading.protocol import read_protocol
from validator.recompute.numbers import compared
from validator.recompute.pairing import Pair
from validator.recompute.statistics import LogRatios, estimate, family_verdict, holm, median, moments, zone
from validator.validate import validate

CASES = {case["id"]: case for case in json.loads((Path(__file__).parents[1] / "cases" / "statistics.json").read_text())}


def ratios(candidate: list[float], baseline: list[float]) -> LogRatios:
    return LogRatios(plain=tuple(math.log(c / b) for c, b in zip(candidate, baseline, strict=True)))


@pytest.mark.parametrize("name", ["end_to_end_A", "end_to_end_B"])
def test_end_to_end(name: str) -> None:
    inputs, expected = CASES[name]["inputs"], CASES[name]["expected"]
    base, cand = ([median(row) for row in inputs[key]] for key in ("baseline", "candidate"))
    assert base == pytest.approx(expected["process_medians_base"], rel=1e-12)
    assert cand == pytest.approx(expected["process_medians_cand"], rel=1e-12)
    pairs = ratios(cand, base)
    assert pairs.plain == pytest.approx(expected["log_ratios"], rel=1e-10)
    found = estimate(pairs, alpha=inputs["alpha"], margin=inputs["margin"])
    assert found.ratio == pytest.approx(expected["ratio"], rel=1e-12)
    assert (found.lower, found.upper) == pytest.approx((expected["lcb95"], expected["ucb95"]), rel=1e-12)
    assert found.p_non_inferior == pytest.approx(expected["p_margin"], rel=1e-10)
    assert found.p_superior == pytest.approx(expected["p_superiority"], rel=1e-10)
    assert estimate(pairs, alpha=0.025, margin=0.03).upper == pytest.approx(expected["ucb975"], rel=1e-12)
    assert zone(found.lower, found.upper, inputs["margin"]).value == expected["verdict"]


@pytest.mark.parametrize("name", ["sas_ni_upper_only", "sas_ni_upper_only_alpha025"])
def test_sas(name: str) -> None:
    inputs, expected = CASES[name]["inputs"], CASES[name]["expected"]
    found = estimate(ratios(inputs["candidate"], inputs["baseline"]), alpha=inputs["alpha"], margin=inputs["margin"])
    assert (found.ratio, found.upper) == pytest.approx((expected["ratio"], expected["ucb"]), rel=1e-10)
    if "p" in expected:
        assert found.p_non_inferior == pytest.approx(expected["p"], rel=1e-10)
    assert (found.upper is not None and found.upper < 1 + inputs["margin"]) is expected["non_inferior"]


def test_sas_interval() -> None:
    case = CASES["sas_ttest_tost_lognormal_paired"]
    found = estimate(ratios(case["inputs"]["test"], case["inputs"]["reference"]), alpha=0.05, margin=0.25)
    assert found.ratio == pytest.approx(case["expected"]["gmr"], rel=1e-10)
    assert [found.lower, found.upper] == pytest.approx(case["expected"]["ci90"], rel=1e-10)
    assert found.p_non_inferior == pytest.approx(case["expected"]["p_upper"], rel=1e-10)


def test_verdict_zones() -> None:
    case = CASES["verdict_zones_consort"]
    found = [zone(row["lcb"], row["ucb"], row["margin"]).value for row in case["inputs"]["rows"]]
    assert found == case["expected"]["verdict"]


def test_holm_against_r() -> None:
    case = CASES["padjust_bh1995_25"]
    assert holm(case["inputs"]["p"]) == pytest.approx(case["expected"]["holm"], rel=1e-12)
    adjusted = holm([0.01, None, 0.04, 0.03])
    assert adjusted.pop(1) is None
    assert adjusted == pytest.approx([0.03, 0.06, 0.06], rel=1e-12)


def test_two_pass_variance() -> None:
    found = moments([1e8 + 0.1, 1e8 + 0.2, 1e8 + 0.3])
    assert found.error * math.sqrt(3) == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("count", [0, 1])
def test_d07_no_interval(count: int) -> None:
    found = estimate(LogRatios(plain=(0.01,) * count), alpha=0.05, margin=0.02)
    assert (found.lower, found.upper, found.p_non_inferior, found.p_superior) == (None, None, None, None)
    assert (found.ratio is None, found.pairs, found.unbounded) == (count == 0, count, False)


def test_zero_spread_shows_the_ratio_alone() -> None:
    found = estimate(LogRatios(plain=(0.01,) * 5), alpha=0.05, margin=0.02)
    assert found.zero_spread
    assert found.lower == found.upper == found.ratio == math.exp(0.01)
    assert found.p_non_inferior is None


def test_e06_median_of_integers() -> None:
    assert median([3, 4]) == 3.5
    assert median([4512.0, 0.21, 0.20, 0.21, 0.20, 0.21, 0.20, 0.21, 0.20, 0.21]) == 0.21
    assert median([3.1, 3.0, 294.0]) == 3.1


@pytest.mark.parametrize(
    ("upper", "tie", "verdict"),
    [
        (1.03 - 2e-9, False, Verdict.NON_INFERIOR),
        (1.03 - 5e-10, True, Verdict.INCONCLUSIVE),
        (1.03, True, Verdict.INCONCLUSIVE),
        (1.03 + 5e-10, True, Verdict.INCONCLUSIVE),
        (1.03 + 2e-9, False, Verdict.INCONCLUSIVE),
    ],
)
def test_tie(upper: float, tie: bool, verdict: Verdict) -> None:
    """An upper bound within 1e-9 of the limit is flagged, and is never below it."""
    value = builder.document(clock="host", pairs=5, alpha=0.05, margin="3%")
    protocol = read_protocol(
        "".join(f"{key} = {builder.toml(entry)}\n" for key, entry in value.items()).encode()
    ).protocol
    assert protocol is not None
    pairs = LogRatios(plain=(0.001, 0.002, 0.003, 0.004, 0.005))
    found = replace(estimate(pairs, alpha=0.05, margin=0.03), lower=0.99, upper=upper)
    item = Pair(
        point="mib=1",
        arm="cand",
        other="base",
        processes=(0, 1, 2, 3, 4),
        log_ratios=pairs.plain,
        estimate=found,
        fineness=None,
        guarded=False,
    )
    (locked,) = protocol.comparisons
    row = compared(locked, item, (), rules=protocol.statistics, alpha=0.05, digest=protocol.digest)
    assert (row.numerical_tie, row.verdict) == (tie, verdict)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], "inconclusive"),
        (["superior", "superior"], "superior"),
        (["superior", "non_inferior"], "non_inferior"),
        (["superior", "non_inferior_but_slower"], "non_inferior_but_slower"),
        (["superior", "inferior", "inconclusive_but_slower"], "inferior"),
        (["inconclusive", "inconclusive_but_slower"], "inconclusive_but_slower"),
        (["superior", "inconclusive"], "inconclusive"),
    ],
)
def test_family(verdicts: list[str], expected: str) -> None:
    assert family_verdict([Verdict(verdict) for verdict in verdicts]).value == expected


def numbers(tmp_path: Path, change: Any = None, **options: Any) -> Numbers:
    draft = builder.draft(**options)
    if change is not None:
        change(draft)
    report = validate(draft.seal(tmp_path / "b"))
    assert report.numbers is not None
    assert report.codes == ()
    return report.numbers


def gates(found: Numbers) -> list[list[str]]:
    return [[gate.gate for gate in item.gates] for item in found.comparisons]


def test_exact_numbers_of_a_scripted_run(tmp_path: Path) -> None:
    """Medians, bytes and bandwidth follow from the script by hand."""

    def duration(process: int, point: str, block: int, arm: str, sample: int) -> int:
        scale = {"base": 1.0, "cand": 1.01, "same": 1.0, "slow": 1.03, "copy": 0.5}[arm]
        return round(1_000_000 * scale) + 4 * process * (arm in ("cand", "same", "slow")) + (sample - 1) * 400

    found = numbers(tmp_path, duration=duration)
    item = found.comparisons[0]
    r = [math.log((1_010_000 + 4 * process) / 1_000_000) for process in range(5)]
    mean = math.fsum(r) / 5
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in r) / 4 / 5)
    assert item.ratio == pytest.approx(math.exp(mean), rel=1e-14)
    assert item.upper == pytest.approx(math.exp(mean + 2.131846786326649 * error), rel=1e-12)
    assert item.verdict is Verdict.NON_INFERIOR_BUT_SLOWER
    base = next(arm for arm in found.arms if (arm.operating_point, arm.arm) == ("mib=1", "base"))
    assert (base.median_ns, base.samples, base.unique_bytes) == (250_000.0, 30, 2**20)
    assert base.gb_per_s == pytest.approx(2**20 / 250_000, rel=1e-15)
    assert base.percent_of_copy == pytest.approx(100 * (2**20 / 250_000) / (2**21 / 125_000), rel=1e-14)
    slow = next(control for control in found.controls if control.arm == "slow")
    assert slow.dose == pytest.approx(1.5, rel=1e-3)


def test_too_few_pairs_is_refused_in_the_protocol(tmp_path: Path) -> None:
    report = validate(builder.draft(pairs=4).seal(tmp_path / "b"))
    assert [reason.value for reason in report.codes] == ["PROTOCOL_INVALID"]
    assert report.reasons[0].where == "protocol.toml:schedule.process_pairs"


def test_gate_zero_spread(tmp_path: Path) -> None:
    scale = {"base": 1.0, "cand": 1.01, "same": 1.001, "slow": 1.03, "copy": 0.5}
    found = numbers(
        tmp_path, duration=lambda p, _point, _block, arm, sample: round(1_000_000 * scale[arm]) + sample * 500
    )
    assert gates(found) == [["zero_spread"]] * 2
    item = found.comparisons[0]
    assert item.lower == item.upper == item.ratio


def coarse(tick: int) -> Any:
    return lambda *key: max(1, round(builder.script(*key) / tick)) * tick


def test_timer_resolution(tmp_path: Path) -> None:
    """d = 0.02 of 0.5 ms (the copy is in no pair) or 1 ms against the tick: g = 20000 / tick."""
    assert gates(numbers(tmp_path / "fine", duration=coarse(900))) == [[], []]
    guarded = numbers(tmp_path / "guarded", duration=coarse(4_000))
    assert [item.guarded for item in guarded.comparisons] == [True, True]
    assert gates(guarded) == [[], []]
    plain = numbers(tmp_path / "plain", duration=coarse(1))
    pairs = zip(guarded.comparisons, plain.comparisons, strict=True)
    assert all(g.upper is not None and p.upper is not None and g.upper > p.upper + 0.003 for g, p in pairs)


def test_gate_timer_resolution(tmp_path: Path) -> None:
    found = numbers(tmp_path, duration=coarse(20_000))
    assert all("timer_resolution" in item for item in gates(found))


def test_gate_positive_control(tmp_path: Path) -> None:
    def weak(process: int, point: str, block: int, arm: str, sample: int) -> int:
        return builder.script(process, point, block, "same" if arm == "slow" else arm, sample)

    assert gates(numbers(tmp_path, duration=weak)) == [["positive_control"]] * 2


def test_gate_aa_control(tmp_path: Path) -> None:
    def shaky(process: int, point: str, block: int, arm: str, sample: int) -> int:
        scale = 1 + 0.05 * (process % 2) * (arm == "same")
        return round(builder.script(process, point, block, arm, sample) * scale)

    assert gates(numbers(tmp_path, duration=shaky)) == [["aa_control"]] * 2


def test_gate_control_dose(tmp_path: Path) -> None:
    def slow_warmup(process: int, point: str, block: int, arm: str, sample: int) -> int:
        slow = (process, point, block, arm) == (1, "mib=2", -1, "base")
        return builder.script(process, point, block, arm, sample) * (2 if slow else 1)

    assert gates(numbers(tmp_path, duration=slow_warmup)) == [[], ["control_dose"]]


@pytest.mark.parametrize("stage", [0, 1])
def test_gate_determinism_sees_what_was_compared_with_the_truth(tmp_path: Path, stage: int) -> None:
    def differ(draft: builder.Draft, arm: str = "cand", process: int = 4) -> None:
        rows = [
            r for r in draft.tables["correctness"] if (r["process"], r["point"], r["arm"]) == (process, "batch=4", arm)
        ]
        assert [row["stage"] for row in rows] == ["eager", "replay"]
        rows[stage]["output_sha256"] = "0" * 64

    assert gates(numbers(tmp_path, change=differ, clock="cuda-event")) == [[], ["determinism"]]
    for number, harmless in enumerate((lambda d: differ(d, "copy"), of_another_truth)):
        assert gates(numbers(tmp_path / str(number), change=harmless, clock="cuda-event")) == [[], []]


def of_another_truth(draft: builder.Draft) -> None:
    """Outputs under another truth than the arm's, and of an attempt that is not analysed."""
    rows = [row for row in draft.tables["correctness"] if row["arm"] == "cand"]
    draft.tables["correctness"].extend(row | {"truth": "batch", "output_sha256": "1" * 64} for row in rows)
    draft.tables["correctness"].sort(key=lambda row: row["process"])
    builder.with_attempt(draft, 2, 33)
    at = next(i for i, row in enumerate(draft.tables["correctness"]) if row["process"] == 2)
    draft.tables["correctness"].insert(at, rows[-1] | {"process": 2, "attempt": 0, "output_sha256": "2" * 64})


def test_gate_determinism(tmp_path: Path) -> None:
    def differ(draft: builder.Draft) -> None:
        draft.tables["repeats"][0]["output_sha256"] = "0" * 64

    found = numbers(tmp_path, change=differ, clock="cuda-event")
    point = builder.draft(clock="cuda-event").tables["repeats"][0]["point"]
    assert {item.operating_point: [g.gate for g in item.gates] for item in found.comparisons}[point] == ["determinism"]
    base = next(arm for arm in found.arms if (arm.operating_point, arm.arm) == (point, "base"))
    # scratch is the arm's, not a sum over its kernels
    assert (base.repeats, base.distinct_outputs, base.distinct_modes, base.kernels, base.scratch_bytes) == (
        2,
        2,
        None,
        2,
        64,
    )


@pytest.mark.parametrize(("bits", "fires"), [(0x8, True), (0x20, True), (0x40, True), (0x80, True), (0x4, False)])
def test_gate_clocks(tmp_path: Path, bits: int, fires: bool) -> None:
    """A05: a throttled run keeps all its samples; a software power cap is no gate."""

    def throttle(draft: builder.Draft) -> None:
        for row in draft.tables["telemetry"]:
            row["throttle_reasons"] = bits

    found = numbers(tmp_path, change=throttle, clock="cuda-event")
    assert gates(found) == [["clocks"] if fires else []] * 2
    assert all(arm.samples == 30 for arm in found.arms)


def test_gate_clocks_apart(tmp_path: Path) -> None:
    def slower(draft: builder.Draft) -> None:
        for row in draft.tables["telemetry"]:
            row["sm_clock_mhz"] = 1900 if row["arm"] == "cand" else 1980

    assert gates(numbers(tmp_path, change=slower, clock="cuda-event")) == [["clocks"]] * 2
