"""Trial B04: token 0 at 4, 16, 64 and 257 tokens. What was seen is said of these batches, and a claim that it contradicts makes its points inconclusive."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq
import pytest

from validator.findings import Report
from validator.reasons import Reason
from validator.report.text import render_text
from validator.supplement import Invariance
from validator.validate import validate

DATA = Path(__file__).parent.parent / "data"
Run = Callable[..., CompletedProcess[str]]
POINTS = ("batch=4", "batch=16", "batch=64", "batch=257")


def run(folder: Path, run_benchkit: Run, script: str, protocol: str = "") -> Report:
    """The report of a scripted run whose candidate claims to be batch-invariant."""
    path, scripted = folder / "b04.toml", folder / "script.toml"
    text = (DATA / "host.toml").read_text("utf-8").replace("batch = [1, 4]", "batch = [4, 16, 64, 257]")
    before, name, after = text.partition('name = "cand"')
    after = after.replace('truth = "stored"\n', 'truth = "stored"\nbatch_invariant = true\n', 1)
    path.write_text(before + name + after, "utf-8")
    scripted.write_text(script + (DATA / "fake-host.toml").read_text("utf-8"), "utf-8")
    assert run_benchkit("lock", path).returncode == 0
    done = run_benchkit("run-protocol", path, "--synthetic", scripted, "--out", folder)
    assert done.returncode == 0, done.stderr
    (bundle,) = (folder / "fake-host").glob("2*")
    return validate(bundle)


def gates(report: Report) -> dict[str, list[str]]:
    assert report.numbers is not None
    return {item.operating_point: [gate.gate for gate in item.gates] for item in report.numbers.comparisons}


def seen(report: Report) -> dict[str, Invariance]:
    assert report.supplement is not None
    return {item.arm: item for item in report.supplement.invariance}


def test_three_of_four_equal_is_batch_variant_and_correct_all_the_same(tmp_path: Path, run_benchkit: Run) -> None:
    report = run(tmp_path, run_benchkit, 'batch_variant = ["cand@batch=257"]\n')
    assert report.codes == (Reason.SYNTHETIC,)  # within its tolerance; benchkit and validator agree on every gate
    assert seen(report)["cand"] == Invariance(
        arm="cand",
        batches="4, 16, 64, 257",
        others="",
        tested=4,
        equal=3,
        outputs=2,
        max_abs_difference=9.765625e-4,
        seen="batch-variant",
    )
    assert gates(report) == {point: ["determinism"] for point in POINTS}
    assert report.numbers is not None
    assert {item.verdict for item in report.numbers.comparisons} == {"inconclusive"}
    details = {gate.detail for item in report.numbers.comparisons for gate in item.gates}
    assert details == {"cand claims to be batch-invariant: 3 of 4 batches equal, 2 outputs of token 0"}
    lines = render_text(report, lambda text, _: text).splitlines()
    title = next(index for index, line in enumerate(lines) if line.startswith("one token among others"))
    assert "said of these batches alone" in lines[title]
    assert [line.split() for line in lines[title + 2 : title + 4]] == [
        ["base", "4,", "16,", "64,", "257", "4", "4", "1", "0", "batch-invariant", "over", "these"],
        ["cand", "4,", "16,", "64,", "257", "4", "3", "2", "0.0009765625", "batch-variant"],
    ]


def test_four_equal_are_batch_invariant_over_these_batches(tmp_path: Path, run_benchkit: Run) -> None:
    report = run(tmp_path, run_benchkit, "")
    assert report.codes == (Reason.SYNTHETIC,)
    assert {name: (item.equal, item.seen) for name, item in seen(report).items()} == {
        "base": (4, "batch-invariant over these"),
        "cand": (4, "batch-invariant over these"),
    }
    assert gates(report) == {point: [] for point in POINTS}


def test_an_arm_that_claims_nothing_may_vary(tmp_path: Path, run_benchkit: Run) -> None:
    report = run(tmp_path, run_benchkit, 'batch_variant = ["base@batch=16", "base@batch=64"]\n')
    assert seen(report)["base"].equal == 2
    assert gates(report) == {point: [] for point in POINTS}


def test_without_a_claim_nothing_is_run_or_said(fake_bundle: Path) -> None:
    assert set(pq.read_table(fake_bundle / "correctness.parquet").column("truth").to_pylist()) <= {"stored", "original"}
    report = validate(fake_bundle)
    assert report.supplement is not None
    assert report.supplement.invariance == ()


@pytest.mark.parametrize(("batches", "code"), [("batch = [4]", 2), ("batch = [4, 16]", 0)])
def test_a_claim_needs_two_batches(tmp_path: Path, run_benchkit: Run, batches: str, code: int) -> None:
    text = (DATA / "host.toml").read_text("utf-8").replace("batch = [1, 4]", batches)
    path = tmp_path / "x.toml"
    path.write_text(text.replace("deterministic = true", "deterministic = true\nbatch_invariant = true", 1), "utf-8")
    done = run_benchkit("lock", path)
    assert done.returncode == code
    if code:
        assert (
            "arm[0].correctness.batch_invariant: needs a moe fixture and two batches at which base stands"
            in done.stderr
        )
