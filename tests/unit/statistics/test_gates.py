"""Gates: where each fires, where it just does not, and what it says."""

from typing import Any

import numpy as np
import pytest

from benchkit.statistics import diagnostics
from benchkit.statistics.diagnostics import Clocks, Outputs
from benchkit.statistics.noninferiority import Gate, GateFinding


def gate(finding: GateFinding | None) -> Gate | None:
    return None if finding is None else finding.gate


class TestQuantum:
    def test_smallest_gap_between_distinct_durations(self) -> None:
        assert diagnostics.timer_quantum(np.array([1000, 1512, 1000, 2024, 1544]), clock_tick_ns=7) == 32

    @pytest.mark.parametrize("durations", [[], [1000], [1000, 1000]])
    def test_without_a_gap_the_clock_ticks(self, durations: list[int]) -> None:
        assert diagnostics.timer_quantum(np.array(durations, dtype=np.int64), clock_tick_ns=7) == 7


class TestTimerResolution:
    @pytest.mark.parametrize(
        ("quantum", "steps", "guarded", "fires"),
        [
            (1.0, 20.0, False, False),
            (1.01, 19.801980198019802, True, False),
            (10.0, 2.0, True, False),
            (10.1, 1.98, False, True),
        ],
    )
    def test_zones(self, quantum: float, steps: float, guarded: bool, fires: bool) -> None:
        found = diagnostics.timer_resolution([1100.0, 1200.0], [1000.0, 1300.0], quantum_ns=quantum, margin=0.02)
        assert found.steps == pytest.approx(steps, rel=1e-2)
        assert (found.guarded, gate(found.finding)) == (guarded, Gate.TIMER_RESOLUTION if fires else None)

    def test_the_smaller_arm_counts(self) -> None:
        found = diagnostics.timer_resolution([100.0], [1000.0], quantum_ns=1.0, margin=0.02)
        assert found.steps == 2.0

    def test_text(self) -> None:
        found = diagnostics.timer_resolution([1000.0], [1000.0], quantum_ns=500.0, margin=0.05)
        assert found.finding is not None
        assert found.finding.detail == (
            "the margin is 0.1 timer steps (0.05 of 1000 ns, step 500 ns), at least 2 are needed: put more calls into a sample"
        )

    @pytest.mark.parametrize(("medians", "quantum"), [([], 1.0), ([1000.0], 0.0)])
    def test_without_medians_or_step_there_is_no_gate(self, medians: list[float], quantum: float) -> None:
        found = diagnostics.timer_resolution(medians, medians, quantum_ns=quantum, margin=0.02)
        assert (found.steps, found.guarded, found.finding) == (None, False, None)


@pytest.mark.parametrize(
    ("pairs", "alpha", "fires"),
    [(4, 0.05, True), (5, 0.05, False), (5, 0.025, True), (6, 0.025, False), (0, 0.05, True), (5, 0.026, False)],
)
def test_too_few_pairs(pairs: int, alpha: float, fires: bool) -> None:
    assert gate(diagnostics.too_few_pairs(pairs, alpha_one_sided=alpha)) == (Gate.TOO_FEW_PAIRS if fires else None)


def test_failed_process() -> None:
    assert diagnostics.failed_process([]) is None
    found = diagnostics.failed_process([3, 7])
    assert found == GateFinding(gate=Gate.FAILED_PROCESS, detail="failed before the point was complete: process 3, 7")


def test_unsupported() -> None:
    assert diagnostics.unsupported([]) is None
    found = diagnostics.unsupported(["candidate: needs compute capability 9.0, found 8.6"])
    assert found == GateFinding(gate=Gate.UNSUPPORTED, detail="candidate: needs compute capability 9.0, found 8.6")


def test_determinism() -> None:
    same, other = Outputs(arm="base", output_sha256=("a", "a")), Outputs(arm="cand", output_sha256=("a", "b", "a"))
    assert diagnostics.determinism([]) is None
    assert diagnostics.determinism([same, Outputs(arm="x", output_sha256=())]) is None
    found = diagnostics.determinism([same, other])
    assert found == GateFinding(gate=Gate.DETERMINISM, detail="cand: 2 different outputs in 3 calls")


@pytest.mark.parametrize(
    ("lower", "upper", "fires"),
    [
        (0.99, 1.01, False),
        (1.0, 1.0, False),
        (1.001, 1.002, False),  # differs from 1 but lies inside the margins: no gate
        (0.98, 1.01, True),
        (1 / 1.02, 1.01, True),
        (0.99, 1.02, True),
        (None, None, True),
        (0.99, None, True),
    ],
)
def test_aa_control(lower: float | None, upper: float | None, fires: bool) -> None:
    found = diagnostics.aa_control(lower=lower, upper=upper, margin=0.02)
    assert gate(found) == (Gate.AA_CONTROL if fires else None)


@pytest.mark.parametrize(
    ("lower", "upper", "fires"),
    [
        (1.02, 1.04, False),
        (1.001, 1.02, False),
        (1.03, 1.03, False),
        (1.001, None, False),
        (1.0, 1.03, True),
        (1.01, 1.019, True),
        (None, None, True),
    ],
)
def test_positive_control(lower: float | None, upper: float | None, fires: bool) -> None:
    found = diagnostics.positive_control(lower=lower, upper=upper, margin=0.02)
    assert gate(found) == (Gate.POSITIVE_CONTROL if fires else None)


class TestDose:
    BASE = (1000.0, 2000.0)

    @pytest.mark.parametrize(
        ("first", "second", "fires"),
        [
            ((30, 30), (60,), False),
            ((24, 36), (48, 72), False),
            ((23,), (60,), True),
            ((30, 37), (60,), True),
            ((0,), (60,), True),
        ],
    )
    def test_gate(self, first: tuple[int, ...], second: tuple[int, ...], fires: bool) -> None:
        found = diagnostics.control_dose([np.array(first), np.array(second)], self.BASE, margin=0.02)
        assert gate(found) == (Gate.CONTROL_DOSE if fires else None)

    def test_text_names_pair_and_dose(self) -> None:
        found = diagnostics.control_dose([[30], [60, 90]], self.BASE, margin=0.02)
        assert found is not None
        assert found.detail == "delay outside 1.2 to 1.8 margins of the baseline: pair 1: 1 of 2 rows, such as 2.250"

    def test_median_dose(self) -> None:
        assert diagnostics.median_dose([[30], [64]], self.BASE, margin=0.02) == pytest.approx(1.55)
        assert diagnostics.median_dose([], [], margin=0.02) is None


class TestClocks:
    @staticmethod
    def telemetry(**changes: Any) -> Clocks:
        """20 (process, block) pairs of two rows each, no bit set, both arms at 1980 MHz."""
        fields = {
            "process": np.repeat(np.arange(4), 10),
            "block": np.tile(np.repeat(np.arange(5), 2), 4),
            "throttle_reasons": np.zeros(40, dtype=np.int64),
            "candidate_sm_mhz": np.full(20, 1980),
            "baseline_sm_mhz": np.full(20, 1980),
        }
        return Clocks(**{**fields, **changes})

    @staticmethod
    def bits(*rows: int, bit: int = 0x40) -> np.ndarray:
        reasons = np.zeros(40, dtype=np.int64)
        reasons[list(rows)] = bit
        return reasons

    def test_quiet(self) -> None:
        assert diagnostics.clocks(self.telemetry()) is None

    def test_one_block_of_twenty_is_not_more_than_five_percent(self) -> None:
        assert diagnostics.clocks(self.telemetry(throttle_reasons=self.bits(0, 1))) is None

    @pytest.mark.parametrize("bit", [0x8, 0x20, 0x40, 0x80, 0x44])
    def test_two_blocks_of_twenty_are(self, bit: int) -> None:
        assert gate(diagnostics.clocks(self.telemetry(throttle_reasons=self.bits(0, 2, bit=bit)))) is Gate.CLOCKS

    @pytest.mark.parametrize("bit", [0x1, 0x2, 0x4, 0x10])
    def test_other_reasons_are_no_gate(self, bit: int) -> None:
        telemetry = self.telemetry(throttle_reasons=self.bits(*range(40), bit=bit))
        assert diagnostics.clocks(telemetry) is None
        assert diagnostics.share_of_blocks(telemetry, bit=bit) == 1.0

    def test_text(self) -> None:
        found = diagnostics.clocks(self.telemetry(throttle_reasons=self.bits(0, 2, 4)))
        assert found == GateFinding(gate=Gate.CLOCKS, detail="hardware thermal in 3 of 20 blocks, more than 5 %")

    @pytest.mark.parametrize(
        ("mhz", "fires"), [(2000, False), (2040, False), (2041, True), (1960, False), (1959, True)]
    )
    def test_clock_difference(self, mhz: int, fires: bool) -> None:
        telemetry = self.telemetry(candidate_sm_mhz=np.full(20, mhz), baseline_sm_mhz=np.full(20, 2000))
        assert gate(diagnostics.clocks(telemetry)) == (Gate.CLOCKS if fires else None)

    def test_no_rows(self) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        telemetry = Clocks(
            process=nothing, block=nothing, throttle_reasons=nothing, candidate_sm_mhz=nothing, baseline_sm_mhz=nothing
        )
        assert diagnostics.clocks(telemetry) is None
        assert diagnostics.share_of_blocks(telemetry, bit=4) == 0.0

    def test_lengths(self) -> None:
        with pytest.raises(ValueError, match="of one length"):
            self.telemetry(block=np.zeros(3))
