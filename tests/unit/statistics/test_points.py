"""One comparison, one control: fields, gates over intervals, Holm over points."""

from typing import Any

import numpy as np
import pytest

from benchkit.statistics.diagnostics import Clocks, Outputs
from benchkit.statistics.interval import paired_interval
from benchkit.statistics.noninferiority import Gate, Verdict
from benchkit.statistics.point import (
    ArmMedians,
    ControlResult,
    ControlRole,
    PointFlags,
    PointResult,
    judge_control,
    judge_point,
    with_holm,
)

BASE = np.array([40000.0, 40100.0, 39900.0, 40050.0, 39950.0, 40020.0])
FAST = BASE * np.array([0.98, 0.981, 0.979, 0.982, 0.978, 0.98])
NO_FLAGS = PointFlags(failed_processes=(), unsupported=(), outputs=())


def arm(values: Any, calls: int = 20) -> ArmMedians:
    return ArmMedians(duration_ns=np.asarray(values, dtype=np.float64), calls=calls)


def judge(candidate: Any = FAST, baseline: Any = BASE, **changes: Any) -> PointResult:
    options = {
        "margin": 0.02,
        "alpha_one_sided": 0.05,
        "quantum_ns": 32,
        "controls": (),
        "telemetry": None,
        "flags": NO_FLAGS,
    }
    return judge_point(arm(candidate), arm(baseline), **{**options, **changes})


def control(values: Any, role: ControlRole = ControlRole.AA_CONTROL, injected: Any = ()) -> ControlResult:
    return judge_control(
        arm(values), arm(BASE), role=role, margin=0.02, alpha_one_sided=0.05, quantum_ns=1, injected_ns=injected
    )


def gates(result: PointResult) -> list[Gate]:
    return [finding.gate for finding in result.gates]


def test_clean_point() -> None:
    found = judge()
    assert (found.verdict, found.gates, found.pairs, found.guarded) == (Verdict.SUPERIOR, (), 6, False)
    assert found.reason == f"upper {found.upper:.5f} < 1"
    expected = paired_interval(np.log(FAST / BASE), margin=0.02, alpha_one_sided=0.05)
    assert found.upper == pytest.approx(expected.upper, rel=1e-14)
    assert (found.margin, found.alpha_one_sided, found.numerical_tie, found.unbounded) == (0.02, 0.05, False, False)


def test_no_pair() -> None:
    found = judge([], [])
    assert (found.ratio, found.lower, found.upper, found.p_non_inferior, found.p_superior) == (None,) * 5
    assert (found.pairs, found.verdict, gates(found)) == (0, Verdict.INCONCLUSIVE, [Gate.TOO_FEW_PAIRS])


def test_one_pair() -> None:
    found = judge([98000.0], [100000.0])
    assert found.ratio == pytest.approx(0.98, rel=1e-14)
    assert (found.lower, found.upper, found.verdict) == (None, None, Verdict.INCONCLUSIVE)


def test_equal_ratios_show_the_ratio_and_are_inconclusive() -> None:
    found = judge(BASE, BASE)
    assert (found.lower, found.ratio, found.upper, found.p_non_inferior) == (1.0, 1.0, 1.0, None)
    assert (found.verdict, gates(found)) == (Verdict.INCONCLUSIVE, [Gate.ZERO_SPREAD])


def test_coarse_timer_guards() -> None:
    found = judge(quantum_ns=64)
    assert found.guarded
    assert found.upper is not None
    plain = judge().upper
    assert plain is not None
    assert found.upper > plain


def test_guard_uses_one_calls_share_of_the_quantum() -> None:
    found = judge(quantum_ns=64)
    shift = 64 / 2
    slow = paired_interval(np.log((FAST + shift) / (BASE - shift)), margin=0.02, alpha_one_sided=0.05)
    assert found.upper == pytest.approx(slow.upper, rel=1e-13)


def test_hopeless_timer_is_a_gate() -> None:
    found = judge(quantum_ns=500)
    assert (found.guarded, found.verdict, gates(found)) == (False, Verdict.INCONCLUSIVE, [Gate.TIMER_RESOLUTION])


def test_every_gate_at_once_stands_in_order_and_the_interval_is_shown() -> None:
    hot = Clocks(
        process=np.zeros(2), block=np.arange(2), throttle_reasons=np.array([0x8, 0x8]),
        candidate_sm_mhz=np.array([1980]), baseline_sm_mhz=np.array([1200]),
    )  # fmt: skip
    slow = control(BASE * 1.05)
    weak = control(BASE * np.linspace(1.0, 1.001, 6), ControlRole.POSITIVE_CONTROL, [[1]] * 6)
    flags = PointFlags(
        failed_processes=(5,),
        unsupported=("aa: no",),
        outputs=(Outputs(arm="candidate", output_sha256=("a", "b")),),
    )
    found = judge([100.0, 100.0], [100.0, 100.0], controls=(weak, slow), telemetry=hot, flags=flags, quantum_ns=100)
    assert gates(found) == list(Gate)
    assert (found.ratio, found.upper, found.verdict) == (1.0, 1.0, Verdict.INCONCLUSIVE)
    assert found.reason == "gate " + ", ".join(Gate)


def test_good_controls_close_nothing() -> None:
    same = control(BASE * [1.0, 1.001, 0.999, 1.0005, 0.9995, 1.0])
    slower = control(BASE * np.linspace(1.029, 1.031, 6), ControlRole.POSITIVE_CONTROL, [[1200]] * 6)
    assert judge(controls=(same, slower)).gates == ()
    assert same.dose is None
    assert slower.dose == pytest.approx(1.5, rel=1e-2)


def test_p_differs_is_two_sided_and_adjusted_over_points() -> None:
    first, second = control(BASE * np.linspace(1.0, 1.002, 6)), control(BASE * np.linspace(0.999, 1.0015, 6))
    none = control(BASE)
    assert none.p_differs is None
    adjusted = with_holm([first, none, second])
    assert first.p_differs is not None
    assert second.p_differs is not None
    assert [result.p_differs_holm for result in adjusted] == [2 * first.p_differs, None, second.p_differs]
    assert first.p_differs < second.p_differs


def test_calls_and_durations_are_checked() -> None:
    with pytest.raises(ValueError, match="calls: expected at least 1"):
        arm([1.0], calls=0)
    with pytest.raises(ValueError, match="duration_ns: expected finite and positive values, found 1 of 2"):
        arm([1.0, 0.0])
