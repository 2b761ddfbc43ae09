"""What stands beside the claims, on a bundle that was really measured: errors against both truths, stages, the power cap."""

import json
from pathlib import Path

import pytest

from validator.report.document import document
from validator.validate import validate

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def report() -> dict[str, list[dict[str, object]]]:
    """The JSON report of the published MXFP8 run."""
    (bundle,) = (RESULTS / "warp-decode-literal-mxfp8-h200").glob("2*")
    return json.loads(json.dumps(document(validate(bundle))))


def relative_error(report: dict[str, list[dict[str, object]]], arm: str, truth: str) -> float:
    """The recorded error of an arm at one token."""
    (row,) = [
        row
        for row in report["accuracy"]
        if (row["operating_point"], row["arm"], row["truth"]) == ("batch=1", arm, truth)
    ]
    return float(str(row["rel_error"]))


def test_both_truths_stand_beside_each_other(report: dict[str, list[dict[str, object]]]) -> None:
    stored = relative_error(report, "eight_stage", "stored") / relative_error(report, "literal", "stored")
    original = relative_error(report, "eight_stage", "original") / relative_error(report, "literal", "original")
    assert 15 < stored < 25  # activations through MXFP8 against bf16 rounding alone
    assert 1.35 < original < 1.48  # the source's "1.4 times closer", against the weights before quantisation


def test_stages_sum_to_the_whole(report: dict[str, list[dict[str, object]]]) -> None:
    for point in ("batch=1", "batch=8", "batch=32"):
        shares = [row for row in report["stages"] if row["operating_point"] == point]
        assert [row["arm"] for row in shares] == [
            f"stage_{name}" for name in ("sort", "pad", "gather", "up", "silu", "down", "scatter", "combine")
        ]
        assert sum(float(str(row["percent_of_stages"])) for row in shares) == pytest.approx(100)


def test_bookkeeping_is_five_of_the_eight_stages(report: dict[str, list[dict[str, object]]]) -> None:
    moved = ("stage_sort", "stage_pad", "stage_gather", "stage_scatter", "stage_combine")
    assert [(row["operating_point"], row["path"]) for row in report["bookkeeping"]] == [
        (f"batch={size}", "eight_stage") for size in (1, 8, 32)
    ]
    for row in report["bookkeeping"]:
        shares = [item for item in report["stages"] if item["operating_point"] == row["operating_point"]]
        expected = sum(float(str(item["percent_of_stages"])) for item in shares if item["arm"] in moved)
        assert row["percent_bookkeeping"] == pytest.approx(expected)
    assert (
        20 < float(str(report["bookkeeping"][0]["percent_bookkeeping"])) < 45
    )  # the source: 42 % at one token, in bf16


def test_launches_name_the_kernels_and_what_stays_in_memory(report: dict[str, list[dict[str, object]]]) -> None:
    (row,) = [row for row in report["launches"] if (row["operating_point"], row["arm"]) == ("batch=8", "literal")]
    assert row["kernels"] == "moe_gate_up_3d_batched + moe_down_3d_batched"
    assert row["scratch_bytes_per_token"] == 8 * 768 * 2  # h alone, in bf16
    (arm,) = [row for row in report["arms"] if (row["operating_point"], row["arm"]) == ("batch=8", "literal")]
    assert row["issued_gb_per_s"] == pytest.approx(float(str(arm["issued_bytes"])) / float(str(arm["median_ns"])))


def test_the_power_cap_is_printed_and_no_gate(report: dict[str, list[dict[str, object]]]) -> None:
    capped = {row["operating_point"]: float(str(row["percent_of_rows"])) for row in report["power_cap"]}
    assert set(capped) == {f"batch={size}" for size in (1, 2, 4, 8, 16, 32, 64)}
    assert 0 < max(capped.values()) <= 100
    assert all(not row["gates"] for row in report["comparisons"] if row["operating_point"] == "batch=1")
