"""The scorer of mechanism studies on the published CPU study: every mutation, verdicts that are no reasons, every format, bad input."""

import hashlib
import json
import shutil
import subprocess
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import forked
import numpy as np
import pinned
import pytest
from markupsafe import escape

from validator.catalogue import catalogue
from validator.findings import CouldNotCheckError, NotChecked, Report, Validity
from validator.mutations import STUDY_MUTATIONS, Mutation, selftest
from validator.mutations.provenance import edit_environment
from validator.mutations.selftest import Word
from validator.mutations.study import outcome_changed, relation_turned_after_the_run
from validator.mutations.workspace import WorkingCopy
from validator.outcomes import RelationVerdict
from validator.reading.bundle import open_bundle
from validator.reasons import Reason, Stage
from validator.report.trajectories import study_tables
from validator.reproduction import Run, reproduce
from validator.validate import _checked, validate

ROOT = Path(__file__).parents[2]
PROTOCOL = ROOT / "protocols" / "route-membership-cpu.toml"
(BUNDLE,) = (ROOT / "results" / "route-membership-cpu").glob("2*")
PREDECLARED = {  # the seven of the published study, each with its one reason
    "route-moved": Reason.MEMBERSHIP_MISMATCH,
    "expert-block-replaced": Reason.MEMBERSHIP_MISMATCH,
    "treatment-marker-of-the-other-history": Reason.TREATMENT_NOT_CONSUMED,
    "grid-marker-of-another-launch": Reason.GRID_NOT_CONSUMED,
    "stage-hash-replaced": Reason.SURFACE_MISSING,
    "raw-tensor-changed": Reason.SURFACE_CHANGED,
    "source-identity-differs": Reason.ENVIRONMENT_DRIFT,
}


@pytest.fixture
def copy(tmp_path: Path) -> WorkingCopy:
    """A copy of the bundle that a test may damage."""
    return WorkingCopy.of(BUNDLE, tmp_path / BUNDLE.name)


def report_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run("validator.cli", "report", *arguments)


def look(path: Path) -> Report:
    """The validator; the untouched bundle is looked at once."""
    if path != BUNDLE:
        return validate(path)
    if not SEEN:
        SEEN.append(validate(BUNDLE))
    return SEEN[0]


SEEN: list[Report] = []


ON_A_GPU = ("binary-identity-differs", "final-of-its-own")


@pytest.mark.large
def test_the_seven_mutations_of_a_bundle_from_a_gpu() -> None:
    """And what only its tensors show: there sources and binaries are locked, and the op decides the native order."""
    (published,) = (ROOT / "results" / "route-membership-h200").glob("2*")
    chosen = [mutation for mutation in STUDY_MUTATIONS if mutation.name in (*PREDECLARED, *ON_A_GPU)]
    found = {
        one.mutation: (one.word, one.detail)
        for one in selftest(published, validate=validate, mutations=chosen).outcomes
    }
    assert found == {mutation.name: (Word.REJECTED, mutation.expected) for mutation in chosen}
    assert len(found) == len(PREDECLARED) + len(ON_A_GPU)


@pytest.mark.parametrize("mutation", STUDY_MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation(mutation: Mutation) -> None:
    reports: list[Report] = []

    def remember(path: Path) -> Report:
        reports.append(look(path))
        return reports[-1]

    (outcome,) = selftest(BUNDLE, validate=remember, mutations=[mutation]).outcomes
    expected = (Word.ACCEPTED, "harmless") if mutation.expected is None else (Word.REJECTED, mutation.expected)
    assert (outcome.word, outcome.detail) == expected
    assert reports[-1].reasons or not reports[-1].not_checked
    if mutation.reseal:  # otherwise the words may be a library's
        pinned.compare("study", mutation.name, reports[-1])


def test_the_seven_mutations_of_the_published_study() -> None:
    found = {mutation.name: mutation.expected for mutation in STUDY_MUTATIONS if mutation.name in PREDECLARED}
    assert found == PREDECLARED
    names = [mutation.name for mutation in STUDY_MUTATIONS]
    assert len(set(names)) == len(names) == 100
    for name, reason in PREDECLARED.items():
        (mutation,) = (item for item in STUDY_MUTATIONS if item.name == name)
        assert mutation.reseal  # so that no digest of a file tells
        assert reason.stage is Stage.SCHEDULE


def test_the_published_study_is_valid_and_confirmed() -> None:
    report = validate(BUNDLE, expected_protocol=PROTOCOL)
    assert (report.validity, report.codes, report.not_checked) == (Validity.VALID, (), ())
    assert report.study is not None
    assert report.study_facts is not None
    assert [item.verdict for item in report.study.relations] == [RelationVerdict.CONFIRMED] * 52
    assert [
        (item.cell, item.history, item.processes, item.distinct_outcomes, item.modes) for item in report.study.cells
    ] == [
        (cell, history, 5, 1, 1)
        for cell in ("native", "reinjected", "cross_order", "swap_within", "swap_across", "whole_tiles", "stable")
        for history in ("H0", "H1")
    ]
    swaps = [(item.cell, item.history, item.blocks, item.classes) for item in report.study_facts.swaps]
    assert swaps == [
        ("swap_within", "H0", (7, 7), ("direct", "direct")),
        ("swap_within", "H1", (7, 7), ("direct", "direct")),
        ("swap_across", "H0", (7, 8), ("direct", "single-slice, split(2)")),
        ("swap_across", "H1", (8, 7), ("single-slice, split(2)", "direct")),
    ]


def test_a_changed_outcome_is_a_verdict_and_no_reason(copy: WorkingCopy) -> None:
    outcome_changed.apply(copy)
    copy.reseal()
    report = validate(copy.root)
    assert (report.validity, report.codes) == (Validity.VALID, ())
    assert report.study is not None
    last = report.study.cells[-2]  # replicate 4 begins with H0, so H0 of the last cell is not the last process
    assert [item.distinct_outcomes for item in report.study.cells].count(2) == 1
    place = next(f"{item.cell}/{item.history}" for item in report.study.cells if item.distinct_outcomes == 2)
    touched = [item for item in report.study.relations if place in (item.cell_a, item.cell_b)]
    assert {item.surface: item.verdict for item in touched}["w13"] is RelationVerdict.NOT_REPRODUCIBLE
    assert {item.verdict for item in touched if item.surface != "w13"} == {RelationVerdict.CONFIRMED}
    assert all(
        (item.equal, item.differing, item.max_abs) == (None, None, None) for item in touched if item.surface == "w13"
    )
    assert last.processes == 5
    (row,) = [row for row in study_tables(report)[0].rows if row[0] == f"{touched[0].cell_a} : {touched[0].cell_b}"]
    assert row[-1] == "not_reproducible (w13), confirmed (activation, routed_w2, final)"


def test_a_relation_that_does_not_hold_is_refuted(copy: WorkingCopy) -> None:
    relation_turned_after_the_run.apply(copy)
    copy.path("analysis.json").unlink()
    copy.reseal()
    report = validate(copy.root)
    assert report.validity is Validity.VALID
    assert report.study is not None
    assert [item.verdict for item in report.study.relations[:4]] == [RelationVerdict.REFUTED] * 4
    done = report_command(copy.root)
    assert done.returncode == 0
    assert done.stdout.startswith("VALID; 52 relations at surfaces: 48 confirmed, 4 refuted, 0 not reproducible\n")


def test_text_and_json() -> None:
    done = report_command(BUNDLE)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "VALID; 52 relations at surfaces: 52 confirmed, 0 refuted, 0 not reproducible"
    head = tomllib.loads(PROTOCOL.read_text("utf-8"))["protocol"]
    assert lines[lines.index(head["title"]) + 1] == head["question"]
    assert "  swap_across/H0 : native/H1       equal      equal       equal      equal  equal  confirmed" in lines
    assert "  cross_order/H0  B    B           B          B              5         1      1" in lines
    document = json.loads(report_command(BUNDLE, "--format", "json").stdout)
    claimed = json.loads((BUNDLE / "analysis.json").read_text("utf-8"))
    assert (document["cells"], document["relations"]) == (claimed["cells"], claimed["relations"])
    assert (document["comparisons"], document["family"]) == ([], None)
    assert document["launches"][0] == {
        "cell": "native",
        "gemm": "w13",
        "thread_k": 64,
        "thread_n": 64,
        "grid": 32,
        "classes": "direct=32,single-slice=16,split(2)=24",
    }


def test_the_other_formats_say_what_it_is() -> None:
    headline = "52 relations at surfaces: 52 confirmed, 0 refuted, 0 not reproducible"
    markdown = report_command(BUNDLE, "--format", "markdown").stdout
    assert headline in markdown.splitlines()[0]
    head = tomllib.loads(PROTOCOL.read_text("utf-8"))["protocol"]
    assert [f"`{head[key]}`" in markdown.splitlines() for key in ("title", "question")] == [True, True]
    assert "| `native/H0 : native/H1` | `different` | `2` | `2` | `43` | `13` | `confirmed` |" in markdown
    latex = report_command(BUNDLE, "--format", "latex").stdout
    assert "a mechanism study has no latency table: take --format text, json, html or markdown" in latex
    assert "tabular" not in latex
    suites = ET.fromstring(report_command(BUNDLE, "--format", "junit").stdout)
    assert (suites.get("tests"), suites.get("failures")) == ("53", "0")
    html = report_command(BUNDLE, "--format", "html").stdout
    assert headline in html
    assert "Exact trajectories" in html
    assert f"<h2>{escape(head['title'])}</h2>" in html
    assert f'<p class="question">{escape(head["question"])}</p>' in html
    assert "copies of the weights" not in html
    assert "No comparison could be computed" not in html


def test_a_study_shows_no_family_and_has_nothing_to_reproduce() -> None:
    assert report_command(BUNDLE, "--require", "non-inferior").returncode == 4
    run = Run(report=validate(BUNDLE), machine="", band=None)
    with pytest.raises(CouldNotCheckError, match="expected a comparison, got a mechanism study"):
        reproduce(run, run)


def test_the_catalogue_has_one_row_without_numbers(tmp_path: Path) -> None:
    table, reports = catalogue([str(BUNDLE)], base=tmp_path)
    (row,) = table.to_pylist()
    assert (row["protocol_id"], row["validity"], row["reasons"], row["device"]) == (
        "route-membership-cpu",
        "VALID",
        "",
        "host",
    )
    assert [row[name] for name in ("operating_point", "ratio", "family_verdict")] == [None, None, None]
    assert [report.validity for report in reports] == [Validity.VALID]


@pytest.mark.parametrize("name", ["plans", "surfaces", "trajectories", "processes"])
def test_a_table_that_cannot_be_read_blocks_what_needs_it(copy: WorkingCopy, name: str) -> None:
    path = copy.path(f"{name}.parquet")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    copy.reseal()
    report = validate(copy.root)
    assert (report.validity, report.codes[0]) == (Validity.INVALID, Reason.FILE_UNREADABLE)
    blocked = {item.stage: item.blocked_by for item in report.not_checked}
    stages = (Stage.SCHEMA, Stage.SCHEDULE, Stage.RECOMPUTE, Stage.COMPARE)
    assert blocked == dict.fromkeys(stages, f"{name}.parquet")
    assert report.study is None


def test_without_its_plans_nothing_is_scored(copy: WorkingCopy) -> None:
    asset = copy.path("assets/plans")
    asset.write_bytes(asset.read_bytes().replace(b'"benchkit.plans/1"', b'"benchkit.plans/9"'))
    copy.reseal()
    report = validate(copy.root)
    assert report.codes == (Reason.ASSET_CHANGED,)
    assert {item.blocked_by for item in report.not_checked} == {
        "assets/plans: schema: expected one of benchkit.plans/1, got 'benchkit.plans/9'"
    }
    shutil.rmtree(copy.path("assets"))
    copy.reseal()
    report = validate(copy.root)
    assert report.codes == (Reason.ASSET_CHANGED,)
    assert {item.blocked_by for item in report.not_checked} == {"assets/plans: not there"}


def test_what_is_not_checked_has_a_reason(copy: WorkingCopy) -> None:
    bundle = open_bundle(copy.root)
    left = NotChecked(stage=Stage.SCHEDULE, blocked_by="somewhere")
    report = _checked(bundle, [], [], [left])
    assert (report.validity, report.codes) == (Validity.INVALID, (Reason.FILE_UNREADABLE,))
    assert report.reasons[0].where == "somewhere"
    assert _checked(bundle, [], [], []).codes == ()
    assert _checked(bundle, list(report.reasons), [], [left]).codes == (Reason.FILE_UNREADABLE,)


def test_weights_beyond_float32_are_none(copy: WorkingCopy) -> None:
    asset = copy.path("assets/plans")
    plans = json.loads(asset.read_bytes())
    plans["topk_weights"][0][0] = 1e39
    asset.write_text(json.dumps(plans))
    copy.reseal()
    report = validate(copy.root)
    assert report.codes == (Reason.ASSET_CHANGED,)
    assert {item.blocked_by for item in report.not_checked} == {
        "assets/plans: topk_weights: expected float32 values of at least 0"
    }


def test_tables_of_the_other_kind_are_no_manifest(copy: WorkingCopy) -> None:
    manifest = copy.read_json("manifest.json")
    manifest["tables"] = dict.fromkeys(
        ("samples", "processes", "telemetry", "correctness"), manifest["tables"]["plans"]
    )
    manifest["tables"] |= dict.fromkeys(("routing", "kernels", "repeats"), manifest["tables"]["samples"])
    copy.write_json("manifest.json", manifest)
    report = validate(copy.root)
    assert report.codes[0] is Reason.MANIFEST_INVALID


@pytest.mark.parametrize(
    ("section", "key", "value", "problem"),
    [
        ("fixture", "block", True, "fixture.block: expected an integer, got True"),
        ("fixture", "experts", 3, "fixture: expected top_k within experts, and sizes of whole groups"),
        ("fixture", "hidden", 1 << 40, "fixture: larger sizes than this validator checks"),
        ("schedule", "replicates", 10**9, "fixture, schedule: more routes or processes than this validator checks"),
        ("histories", "H1", "P0", "histories: H0 and H1 select the same plan"),
        (
            "launch",
            "engine",
            "abacus",
            "launch.engine: expected one of cpu-emulation, marlin-op, marlin-raw, got 'abacus'",
        ),
    ],
)
def test_a_protocol_that_is_none(copy: WorkingCopy, section: str, key: str, value: object, problem: str) -> None:
    protocol = copy.protocol()
    protocol[section][key] = value
    copy.write_protocol(protocol)
    report = validate(copy.root)
    found = [
        f"{finding.where.partition(':')[2]}: {finding.got}"
        for finding in report.reasons
        if finding.reason is Reason.PROTOCOL_INVALID
    ]
    assert problem in found


def on_a_gpu(copy: WorkingCopy) -> str:
    """Make the copy a study of the engine ``marlin-op``; gives the digest that H1's resident tensors must have."""
    protocol = copy.protocol()
    protocol["launch"]["engine"] = "marlin-op"
    protocol["histories"]["treatment"] = "resident-tensors"
    copy.write_protocol(protocol)
    copy.relock()
    rows = len(copy.column("processes", "process"))
    gpu = {"name": "NVIDIA H200", "uuid": "GPU-0", "compute_capability": "9.0", "memory_bytes": 1, "sm_count": 132}
    around = {"device": "cuda", "driver": "580.95.05", "gpu": gpu, "sources": {"marlin-op": "a" * 64}}
    edit_environment(copy, around, rows=range(rows))
    copy.set_columns("processes", launch=["marlin-op"] * rows)
    plans, sizes = json.loads(copy.path("assets/plans").read_bytes()), protocol["fixture"]
    raw = np.random.PCG64(sizes["input_seed"]).random_raw(sizes["tokens"] * sizes["hidden"])
    halves = raw.astype("<u8").view("<u2").reshape(-1, 4).astype(np.int64).sum(axis=1)
    x = ((halves - 131070) / 32768).astype("<f2")
    weights, ids = np.array(plans["topk_weights"], dtype="<f4"), np.array(plans["topk_ids"], dtype="<i4")
    lines = [hashlib.sha256(array.tobytes()).hexdigest() for array in (x, weights, ids)]
    resident = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    for history, marker, digest in (
        ("H0", "none", hashlib.sha256(b"").hexdigest()),
        ("H1", "resident-tensors:3", resident),
    ):
        copy.set_values(
            "trajectories", copy.rows("trajectories", history=history), treatment=marker, treatment_sha256=digest
        )
    return resident


def test_on_a_gpu_the_op_decides_native_orders_and_resident_tensors_are_the_treatment(copy: WorkingCopy) -> None:
    on_a_gpu(copy)
    copy.reseal()
    report = validate(copy.root)
    assert (report.validity, report.codes) == (Validity.VALID, ())
    # a native process with another legal order: counted as a mode, and no reason
    stable = copy.rows("trajectories", cell="stable")[0]
    native = copy.rows("trajectories", cell="native", history="H0")[0]
    values = {name: copy.column("trajectories", name)[stable] for name in ("plan_sha256", "mode_sha256")}
    copy.set_values("trajectories", [native], **values)
    copy.path("analysis.json").unlink()
    copy.reseal()
    report = validate(copy.root)
    assert (report.validity, report.codes) == (Validity.VALID, ())
    assert report.study is not None
    assert [item.modes for item in report.study.cells] == [2] + [1] * 13


def test_on_a_gpu_tensors_that_were_not_resident_are_noticed(copy: WorkingCopy) -> None:
    resident = on_a_gpu(copy)
    assert resident in copy.column("trajectories", "treatment_sha256")
    row = copy.rows("trajectories", history="H1")[0]
    copy.set_values("trajectories", [row], treatment_sha256="0" * 64)
    copy.reseal()
    report = validate(copy.root)
    assert report.codes == (Reason.TREATMENT_NOT_CONSUMED,)
    assert "resident-tensors:3" in report.reasons[0].expected
