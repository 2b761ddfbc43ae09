"""Trials of tests/cases/trials.jsonl that no other file covers: the symptom of somebody's bug, and our answer."""

import json
import subprocess
import sys
from pathlib import Path

import builder
import pytest
from builder import Draft

from validator.findings import Report, Validity
from validator.reasons import Reason as R
from validator.validate import validate


def timed(draft: Draft, arm: str, process: int) -> list[builder.Row]:
    return [row for row in draft.samples if row["arm"] == arm and row["block"] >= 0 and row["process"] == process]


def median(report: Report, point: str, arm: str) -> float | None:
    assert report.numbers is not None
    return next(a.median_ns for a in report.numbers.arms if (a.operating_point, a.arm) == (point, arm))


def test_a07_one_huge_sample_is_kept_and_does_not_move_the_median(tmp_path: Path) -> None:
    def duration(process: int, point: str, block: int, arm: str, sample: int) -> int:
        spent = builder.script(process, point, block, arm, sample)
        return 4_512_000_000 if (arm, block, sample) == ("cand", 0, 0) else spent

    clean, first = (
        validate(d.seal(tmp_path / n)) for n, d in (("a", builder.draft()), ("b", builder.draft(duration=duration)))
    )
    assert first.validity is Validity.VALID
    shift = [median(first, point, "cand") / median(clean, point, "cand") for point in ("mib=1", "mib=2")]  # type: ignore[operator]
    assert shift == pytest.approx([1, 1], rel=1e-3)
    assert first.numbers is not None
    assert clean.numbers is not None
    assert [arm.samples for arm in first.numbers.arms] == [arm.samples for arm in clean.numbers.arms]
    assert first.supplement is not None
    assert clean.supplement is not None
    flagged = {(item.operating_point, item.arm, item.process) for item in first.supplement.uneven}
    assert flagged == {(point, "cand", process) for point in ("mib=1", "mib=2") for process in range(5)}
    assert clean.supplement.uneven == ()
    assert all(item.largest_ns == 4_512_000_000 for item in first.supplement.uneven)


def test_a08_a_ceiling_is_shown_in_both_units_and_one_way(tmp_path: Path) -> None:
    report = validate(builder.draft().seal(tmp_path / "b"))
    assert report.numbers is not None
    assert report.supplement is not None
    rates = {(a.operating_point, a.arm): a.gb_per_s for a in report.numbers.arms}
    assert report.supplement.ceilings
    for item in report.supplement.ceilings:
        rate = rates[(item.operating_point, item.arm)]
        assert rate is not None
        assert item.gib_per_s == pytest.approx(rate * 1e9 / 2**30, rel=1e-12)
        assert item.one_way_gb_per_s == pytest.approx(rate / (2 if item.counted == "read + write" else 1), rel=1e-12)


def test_a08_the_numbers_of_the_trial(tmp_path: Path) -> None:
    """2,147,483,648 counted bytes in 0.640 ms: an array of half as many, read and written."""

    def large(protocol: builder.Row) -> None:
        next(arm for arm in protocol["arm"] if arm["name"] == "copy")["bytes"] = 2_147_483_648 // 2

    def duration(process: int, point: str, block: int, arm: str, sample: int) -> int:
        return 4 * 640_000 if arm == "copy" else builder.script(process, point, block, arm, sample)

    report = validate(builder.draft(change=large, duration=duration).seal(tmp_path / "b"))
    assert report.supplement is not None
    assert [
        (c.operating_point, c.counted, *(round(rate, 2) for rate in (c.gb_per_s, c.gib_per_s, c.one_way_gb_per_s)))
        for c in report.supplement.ceilings
    ] == [(point, "read + write", 3355.44, 3125.0, 1677.72) for point in ("mib=1", "mib=2")]


def test_f04_the_first_three_rows_deleted(tmp_path: Path) -> None:
    draft = builder.draft()
    del draft.samples[:3]
    assert validate(draft.seal(tmp_path / "b")).codes == (R.WARMUP_COUNT, R.WARMUP_COUNT)


@pytest.mark.parametrize(("imported", "codes"), [("1.25.0", [R.BUILD_MISMATCH] * 5), ("1.21.0+cu128", [])])
def test_f06_the_imported_version_counts(tmp_path: Path, imported: str, codes: list[R]) -> None:
    draft = builder.draft(clock="cuda-event")
    draft.protocol["build"]["require"]["torch"] = "==1.21.0"
    draft = builder.relock(_again(draft))
    for row in draft.tables["processes"]:
        value = json.loads(row["environment"])
        value["packages"]["torch"] = {
            "installed": "1.21.0",
            "imported": imported,
            "file": "elsewhere/torch/__init__.py",
        }
        row["environment"] = json.dumps(value, sort_keys=True, separators=(",", ":"))
        row["environment_sha256"] = builder.sha(row["environment"])
    report = validate(draft.seal(tmp_path / "b"))
    assert list(report.codes) == codes
    if codes:
        assert report.reasons[0].where == "process=0:torch"
        assert "1.25.0" in report.reasons[0].got
    differs = [note for note in report.notes if note.startswith("INSTALLED_DIFFERS")]
    path = "elsewhere/torch/__init__.py"
    assert differs == ([f"INSTALLED_DIFFERS torch: installed 1.21.0, imported 1.25.0 from {path}"] if codes else [])


def _again(draft: Draft) -> Draft:
    """Run a changed protocol: its digest decides the order of everything."""
    for rows in draft.tables.values():
        rows.clear()
    for process in range(draft.protocol["schedule"]["process_pairs"]):
        draft.tables["processes"].append(builder._process(draft.protocol, process))
        draft.samples.extend(builder._samples(draft, process, builder.script))
        builder._evidence(draft, process)
    builder._routing(draft)
    return draft


def test_g01_cached_results_are_faster_than_the_memory(tmp_path: Path) -> None:
    draft = builder.draft(clock="cuda-event")
    for process in range(5):
        for number, row in enumerate(timed(draft, "copy", process)):
            row["duration_ns"] = 1_500_000 if number % 15 == 14 else 2
    report = validate(draft.seal(tmp_path / "b"))
    assert R.BELOW_FLOOR in report.codes
    assert report.validity is Validity.INVALID


@pytest.mark.parametrize("tool", ["benchkit", "validator"])
def test_h01_help_is_asked_for_and_missing_arguments_are_usage(tool: str) -> None:
    def run(*arguments: str) -> tuple[int, bool]:
        done = subprocess.run([sys.executable, "-m", f"{tool}.cli", *arguments], capture_output=True, text=True)
        return done.returncode, bool(done.stdout)

    some = "lock" if tool == "benchkit" else "report"
    assert [run(), run("--help"), run(some), run("nosuch")] == [(2, False), (0, True), (2, False), (2, False)]


# what mutants of the checks showed to be untested (results/deep/README.md)


def test_a_process_with_one_kernel_more(tmp_path: Path) -> None:
    draft = builder.draft(clock="cuda-event")
    cell = {"process": 2, "point": "batch=4", "arm": "base"}
    own = [i for i, row in enumerate(draft.tables["kernels"]) if cell.items() <= row.items()]
    draft.tables["kernels"].insert(own[-1] + 1, draft.tables["kernels"][own[-1]] | {"position": len(own)})
    count = len(own) + 1
    (finding,) = validate(draft.seal(tmp_path / "b")).reasons
    told = (finding.reason, finding.expected, finding.got)
    assert told == (R.KERNEL_IDENTITY, f"{count - 1} kernels", f"{count} kernels")


def test_a_process_that_says_nothing_of_its_kernels(tmp_path: Path) -> None:
    draft = builder.draft(clock="cuda-event")
    draft.tables["kernels"][:] = [row for row in draft.tables["kernels"] if row["process"] != 3]
    report = validate(draft.seal(tmp_path / "b"))
    assert set(report.codes) == {R.KERNEL_IDENTITY}
    assert all(finding.where.startswith("process=3") for finding in report.reasons)


def test_the_missing_arm_is_named(tmp_path: Path) -> None:
    draft = builder.draft()
    draft.samples[:] = [r for r in draft.samples if (r["process"], r["point"], r["arm"]) != (1, "mib=2", "same")]
    found = validate(draft.seal(tmp_path / "b")).reasons
    assert [item.where for item in found if item.reason is R.ARM_MISSING] == ["process=1 point=mib=2 arm=same"]


def test_no_routing_of_a_point(tmp_path: Path) -> None:
    draft = builder.draft(clock="cuda-event")
    draft.tables["routing"][:] = [row for row in draft.tables["routing"] if row["point"] != "batch=4"]
    assert R.ROUTING_MISMATCH in validate(draft.seal(tmp_path / "b")).codes


@pytest.mark.parametrize(
    ("loaded", "codes"),
    [
        ("site-packages/vllm/_moe_C.abi3.so", []),
        ("_moe_C.abi3.so", []),
        ("site-packages/vllm/other_moe_C.abi3.so", [R.BUILD_MISMATCH] * 5),
    ],
)
def test_a_required_binary_is_found_by_its_file_name(tmp_path: Path, loaded: str, codes: list[R]) -> None:
    draft = builder.draft(clock="cuda-event")
    draft.protocol["build"]["require"]["binaries"] = {"_moe_C.abi3.so": "ab" * 32}
    draft = builder.relock(_again(draft))
    for row in draft.tables["processes"]:
        row["binaries"] = json.dumps({loaded: "ab" * 32})
    report = validate(draft.seal(tmp_path / "b"))
    assert list(report.codes) == codes
    if codes:
        assert (report.reasons[0].where, report.reasons[0].got) == (
            "process=0:binaries._moe_C.abi3.so",
            "nothing recorded",
        )
