"""What arms do once to the weights: read where a bundle states it, shown beside the claims, and nothing where an earlier bundle does not."""

import json
from pathlib import Path

import builder
import pytest

from validator.reading.bundle import open_bundle
from validator.reasons import Reason as R
from validator.report.document import document
from validator.report.text import render_text
from validator.supplement import Repacking
from validator.validate import validate

STATED = [[["cand", 9_000_000, 512]], [["cand", 7_000_000, 512]], [["cand", 8_000_000, 512], ["base", 4_000_000, 640]]]


@pytest.fixture
def stating(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of bundles knows the column."""
    monkeypatch.setitem(builder.COLUMNS, "processes", builder.COLUMNS["processes"] + " repacking:s")


def stated(texts: list[str]) -> builder.Draft:
    """A bundle whose processes state these texts, the last one from there on."""
    draft = builder.draft()
    for row in draft.tables["processes"]:
        row["repacking"] = texts[min(row["process"], len(texts) - 1)]
    return draft


@pytest.mark.usefixtures("stating")
def test_the_cost_stands_beside_the_claims(tmp_path: Path) -> None:
    texts = [json.dumps(each) for each in STATED]
    report = validate(stated(texts).seal(tmp_path / "b"))
    assert report.codes == ()
    assert report.supplement is not None
    base = Repacking(arm="base", processes=3, median_ns=4e6, least_ns=4_000_000, most_ns=4_000_000, bytes=640)
    cand = Repacking(arm="cand", processes=5, median_ns=8e6, least_ns=7_000_000, most_ns=9_000_000, bytes=512)
    assert report.supplement.repacking == (base, cand)  # as the protocol lists the arms
    assert document(report)["repacking"][1] == {  # type: ignore[index]
        "arm": "cand",
        "processes": 5,
        "median_ns": 8e6,
        "least_ns": 7_000_000,
        "most_ns": 9_000_000,
        "bytes": 512,
    }
    lines = render_text(report, lambda text, _: text).splitlines()
    title = next(index for index, line in enumerate(lines) if line.startswith("repacking"))
    assert "once a process, outside all samples" in lines[title]
    assert lines[title + 3].split() == ["cand", "5", "8000000", "7000000", "9000000", "512"]


def test_a_bundle_without_the_column(tmp_path: Path) -> None:
    report = validate(builder.draft().seal(tmp_path / "b"))
    assert report.codes == ()
    assert report.supplement is not None
    assert report.supplement.repacking == ()
    assert document(report)["repacking"] == []


@pytest.mark.usefixtures("stating")
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '[["cand", 1]]',
        '[["cand", 1, 0]]',
        '[["cand", -1, 512]]',
        '[["cand", 1.5, 512]]',
        '[["cand", true, 512]]',
        "[[7, 1, 512]]",
        '[["cand", 1, 512], ["cand", 2, 512]]',
    ],
)
def test_a_text_that_states_no_cost(tmp_path: Path, text: str) -> None:
    report = validate(stated(["[]", text, "[]"]).seal(tmp_path / "b"))
    assert report.codes == (R.SCHEMA_VALUE,)
    (finding,) = report.reasons
    assert finding.where == "processes.parquet:repacking[1]"
    assert (finding.expected, finding.got) == ("a list of [arm, ns, bytes], an arm once", repr(text))


def test_benchkit_writes_it_last(fake_bundle: Path) -> None:
    frame = open_bundle(fake_bundle).frame("processes")
    assert frame is not None
    assert set(frame.texts["repacking"].values) == {"[]"}  # scripted arms repack nothing
