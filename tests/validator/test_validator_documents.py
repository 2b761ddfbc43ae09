"""Whole reports of bundles that differ in what they have: every number, note and gate is the one that is kept."""

import json
from collections.abc import Callable
from pathlib import Path

import builder
import pinned
import pytest
from builder import Draft

from validator.validate import validate


def rules(**changed: object) -> Callable[[builder.Row], object]:
    return lambda protocol: protocol["statistics"].update(changed)


def failed(draft: Draft) -> Draft:
    """The last process ended by the watchdog, in its last point."""
    draft.tables["processes"][-1].update(status="failed", reason="watchdog")
    draft.ledger[-1].update(status="failed_processes")
    draft.samples[:] = draft.samples[:-50]
    return draft


def unsupported(draft: Draft) -> Draft:
    """One arm is not supported at one point."""
    for row in draft.tables["processes"]:
        row["unsupported"] = json.dumps([["batch=4", "cand", "needs more"]], separators=(",", ":"))
    for table in ("samples", "correctness", "telemetry", "kernels", "repeats"):
        draft.tables[table][:] = [r for r in draft.tables[table] if (r["point"], r["arm"]) != ("batch=4", "cand")]
    for process in range(5):
        for seq, row in enumerate(row for row in draft.samples if row["process"] == process):
            row["seq"] = seq
    return draft


def throttled(draft: Draft) -> Draft:
    """Clocks, power and temperatures of their own, and throttling in one process."""
    for number, row in enumerate(draft.tables["telemetry"]):
        row.update(sm_clock_mhz=1980 - number % 7, memory_clock_mhz=3201 - number % 3, temperature_c=40 + number % 11)
        row.update(power_w=300.0 + number % 13, throttle_reasons=4 if row["process"] == 2 and number % 5 == 0 else 0)
    for number, row in enumerate(draft.tables["correctness"]):
        row.update(min_cosine=1 - number % 17 * 1e-8, max_abs_error=0.001 + number % 19 * 1e-4)
        row.update(rel_error=1e-6 + number % 23 * 1e-7)
    for row in draft.tables["kernels"]:
        row.update(scratch_bytes=64 * (1 + len(row["arm"]) + row["position"]), registers=32 + row["position"])
    return draft


def slow_warming(process: int, point: str, block: int, arm: str, sample: int) -> int:
    """Durations that grow from sample to sample."""
    return builder.script(process, point, block, arm, sample) + 1000 * sample + 2500 * block


def equivalent_by_quantiles(protocol: builder.Row) -> None:
    """The claim is about the 90 % quantile, on both sides of the margin."""
    protocol["comparison"][0]["claim"] = "equivalent"
    protocol["schedule"]["blocks"] = 20
    rules(estimand="geometric-mean-of-quantile-ratios", quantile=0.9, quantile_type=8)(protocol)


BUNDLES: dict[str, Callable[[], Draft]] = {
    "host": builder.draft,
    "cuda": lambda: builder.draft(clock="cuda-event"),
    "an interrupted attempt": lambda: builder.with_attempt(builder.draft(pairs=6, duration=slow_warming), 2, 33),
    "a failed process": lambda: failed(builder.draft(pairs=6)),
    "an unsupported arm": lambda: unsupported(builder.draft(clock="cuda-event")),
    "clocks of their own": lambda: throttled(builder.draft(clock="cuda-event", duration=slow_warming)),
    "methods beside": lambda: builder.draft(
        pairs=6, alpha=0.025, margin="5%", change=rules(sensitivity=["sign-flip", "hodges-lehmann", "bootstrap-t"])
    ),
    "named points": lambda: builder.draft(
        change=rules(family="named-points", named_points=["mib=2"], superiority="gatekeeping", pooled=True)
    ),
    "equivalence by quantiles": lambda: builder.draft(change=equivalent_by_quantiles, duration=slow_warming),
    "a coarse clock": lambda: builder.draft(
        duration=lambda *place: round(builder.script(*place), -3), change=rules(pooled=True)
    ),
}


@pytest.mark.parametrize("name", BUNDLES)
def test_document(tmp_path: Path, name: str) -> None:
    pinned.compare_document(name, validate(BUNDLES[name]().seal(tmp_path / "b")))
