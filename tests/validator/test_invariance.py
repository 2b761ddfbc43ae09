"""One token among others, in bundles of a second writer: rows that a claim needs, what they show, and that they are held to no tolerance."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import builder
import memory
import pytest
from builder import Draft, Row

from validator.findings import Report
from validator.reading.bundle import open_bundle
from validator.reasons import Reason as R
from validator.recompute.invariance import invariance
from validator.validate import validate

POINTS = ("batch=1", "batch=4")


def claimed(
    digests: dict[str, str], *, process: int | None = None, change: Callable[[Row], object] = lambda protocol: None
) -> Draft:
    """A bundle whose candidate claims it: at each point the digest of token 0, in all processes or, where one is named, another in that one."""

    def claim(protocol: Row) -> None:
        next(arm for arm in protocol["arm"] if arm["name"] == "cand")["correctness"]["batch_invariant"] = True
        change(protocol)

    draft = builder.draft(clock="cuda-event", change=claim)
    rows = draft.tables["correctness"]
    for row in [each for each in rows if (each["arm"], each["stage"]) == ("cand", "eager")]:
        token = digests.get(row["point"])
        if token is None:
            continue
        if process is not None and row["process"] != process:
            token = "a"
        away = 0.0 if token == "a" else 0.25
        errors = {"min_cosine": 0.5, "max_abs_error": away, "rel_error": 2 * away}
        rows.insert(rows.index(row) + 1, row | errors | {"truth": "batch", "output_sha256": builder.sha(token)})
    return draft


def gates(report: Report) -> list[list[str]]:
    assert report.numbers is not None
    return [[gate.gate for gate in item.gates] for item in report.numbers.comparisons]


def test_equal_rows(tmp_path: Path) -> None:
    report = validate(claimed(dict.fromkeys(POINTS, "a")).seal(tmp_path / "b"))
    assert report.codes == ()  # a cosine of 0.5 under truth batch is no wrong output
    assert gates(report) == [[], []]
    assert report.numbers is not None
    assert {arm.min_cosine for arm in report.numbers.arms if arm.arm == "cand"} == {0.9999995}
    assert report.supplement is not None
    assert {item.truth for item in report.supplement.accuracy} == {"stored"}
    (item,) = report.supplement.invariance
    assert (item.tested, item.equal, item.outputs, item.max_abs_difference) == (2, 2, 1, 0.0)
    assert item.seen == "batch-invariant over these"


@pytest.mark.parametrize("process", [None, 3])
def test_another_output_at_one_batch_or_in_one_process(tmp_path: Path, process: int | None) -> None:
    report = validate(claimed({"batch=1": "a", "batch=4": "b"}, process=process).seal(tmp_path / "b"))
    assert report.codes == ()
    assert gates(report) == [["determinism"], ["determinism"]]
    assert report.supplement is not None
    (item,) = report.supplement.invariance
    assert (item.tested, item.equal, item.outputs, item.max_abs_difference, item.seen) == (
        2,
        1,
        2,
        0.25,
        "batch-variant",
    )


def test_a_claim_without_its_rows(tmp_path: Path) -> None:
    report = validate(claimed({"batch=1": "a"}).seal(tmp_path / "b"))
    assert set(report.codes) == {R.CORRECTNESS_MISSING}
    assert [(finding.where, finding.expected) for finding in report.reasons] == [
        (f"process={process} point=batch=4 arm=cand", "a row of stage eager under truth batch") for process in range(5)
    ]


def test_the_reference_is_the_first_row_of_the_smallest_batch(tmp_path: Path) -> None:
    def descending(protocol: Row) -> None:
        protocol["operating_points"]["batch"] = [4, 1]

    draft = claimed({"batch=1": "b", "batch=4": "a"}, process=0, change=descending)
    found = invariance(memory.seen(open_bundle(draft.seal(tmp_path / "b"))))
    item = found["cand", "batch=1"]
    assert found == dict.fromkeys([("cand", "batch=1"), ("cand", "batch=4")], item)
    # process 0 says b at batch 1, and all others say a: no point has the reference in all rows
    assert (item.batches, item.tested, item.equal, item.outputs) == ("1, 4", 2, 0, 2)


def test_points_without_rows_leave_the_others(tmp_path: Path) -> None:
    """Of two groups of points the first has none, as have all arms but one."""
    view = memory.seen(open_bundle(claimed({"batch=4": "a"}).seal(tmp_path / "b")))
    points = [replace(point, values=(*point.values, ("law", point.id))) for point in view.protocol.points]
    found = invariance(replace(view, protocol=replace(view.protocol, points=tuple(points))))
    assert list(found) == [("cand", "batch=4")]
    assert [(item.batches, item.others, item.tested) for item in found.values()] == [("4", "law=batch=4", 1)]
