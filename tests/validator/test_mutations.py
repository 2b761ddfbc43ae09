"""Every mutation on a host-clock and on a CUDA-event bundle of the fake device: the exact first reason, or acceptance."""

import shutil
from collections.abc import Callable
from pathlib import Path

import builder
import pytest

from validator.findings import Finding, Identity, Report, Validity
from validator.mutations import MUTATIONS, STUDY_MUTATIONS, Mutation, UncleanBundle, selftest
from validator.mutations.mutation import Facts
from validator.mutations.selftest import Word
from validator.mutations.workspace import WorkingCopy
from validator.reasons import Reason
from validator.validate import validate as check_bundle

SYNTHETIC = (Reason.SYNTHETIC,)
BUNDLES = ("fake_bundle", "fake_cuda_bundle", "fake_flush_bundle", "stopped_bundle")
BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
# a bundle whose cache is flushed differs from the other one on the event clock in its flushes alone
CASES = [
    (bundle, mutation)
    for bundle in BUNDLES
    for mutation in MUTATIONS
    if bundle != "fake_flush_bundle" or "flush" in mutation.name or mutation.name.startswith("parquet-by")
    # the bomb takes long and knows nothing of looks
    if bundle != "stopped_bundle" or mutation.name != "table-is-a-bomb"
]
NOT_IN_A_LOG = {
    Reason.SIGNER_NOT_THE_EXPECTED: "needs a key from outside the bundle (--signed-by)",
    Reason.PROTOCOL_NOT_THE_EXPECTED: "needs a protocol from outside the bundle (--protocol)",
}


@pytest.fixture(scope="session")
def validate() -> Callable[[Path], Report]:
    """The validator, which looks at a bundle that nobody changes only once."""
    seen: dict[Path, Report] = {}

    def look(path: Path) -> Report:
        if "validator-selftest-" in str(path):
            return check_bundle(path)
        if path not in seen:
            seen[path] = check_bundle(path)
        return seen[path]

    return look


@pytest.mark.parametrize(("name", "mutation"), CASES, ids=[f"{name}-{mutation.name}" for name, mutation in CASES])
def test_mutation(
    request: pytest.FixtureRequest, name: str, mutation: Mutation, validate: Callable[[Path], Report]
) -> None:
    bundle: Path = request.getfixturevalue(name)
    reports: list[Report] = []

    def remember(path: Path) -> Report:
        reports.append(validate(path))
        return reports[-1]

    (outcome,) = selftest(bundle, validate=remember, baseline_reasons=SYNTHETIC, mutations=[mutation]).outcomes
    last = reports[-1]
    assert set(last.codes) - set(SYNTHETIC) or not last.not_checked or last.validity is Validity.COULD_NOT_CHECK
    if outcome.word is Word.SKIPPED:
        pytest.skip(outcome.detail)
    if mutation.expected is None:
        assert (outcome.word, outcome.detail) == (Word.ACCEPTED, "harmless")
    else:
        assert (outcome.word, outcome.detail) == (Word.REJECTED, mutation.expected)


ON_A_REAL_DEVICE = {
    "kernels-of-a-gpu-emptied": Reason.KERNEL_IDENTITY,
    "telemetry-emptied": Reason.ROWS_MISSING,
    "host-times-longer-than-the-process": Reason.TIME_DISORDER,
    "durations-scaled-off-the-clock": Reason.TICK_MISMATCH,
    "durations-scaled-under-a-coarse-clock": Reason.TICK_MISMATCH,
    "durations-scaled-on-the-clock": Reason.ESCAPED_WORK,
    "durations-of-another-process": Reason.ROWS_DUPLICATED,
    "events-longer-than-the-host-waited": Reason.ESCAPED_WORK,
    "end-of-the-work-after-the-stop-event": Reason.ESCAPED_WORK,
    "process-of-another-time": Reason.TIME_DISORDER,
    "aa-control-slower": Reason.CONTROL_FAILED,
    "cache-left-out": Reason.CACHE_NOT_COLD,
    "readings-all-alike": Reason.TELEMETRY_FROZEN,
    "output-of-another-call": Reason.CLAIM_MISMATCH,
}


@pytest.mark.parametrize("name", ON_A_REAL_DEVICE)
def test_mutation_of_a_published_bundle(name: str, validate: Callable[[Path], Report]) -> None:
    # what a scripted device does not have to say, or says more simply than a GPU
    (published,) = (Path(__file__).parents[2] / "results" / "copy-aa-h200").glob("2*")
    (outcome,) = selftest(published, validate=validate, mutations=[BY_NAME[name]]).outcomes
    assert (outcome.word, outcome.detail) == (Word.REJECTED, ON_A_REAL_DEVICE[name])


@pytest.mark.parametrize("name", ["stopped-at-an-undecided-look", "slower-than-when-it-stopped"])
def test_mutation_of_a_run_that_stopped_at_a_look(
    name: str, stopped_bundle: Path, validate: Callable[[Path], Report]
) -> None:
    (outcome,) = selftest(
        stopped_bundle, validate=validate, baseline_reasons=SYNTHETIC, mutations=[BY_NAME[name]]
    ).outcomes
    assert (outcome.word, outcome.detail) == (Word.REJECTED, Reason.STOP_UNWARRANTED)


def test_libraries_that_a_protocol_requires(tmp_path: Path) -> None:
    """That a process loaded another library is said first, not that it lacks a required one."""

    def change(protocol: builder.Row) -> None:
        protocol["build"]["require"]["binaries"] = {"x.so": "1" * 64}

    draft = builder.draft(clock="cuda-event", change=change)
    for row in draft.tables["processes"]:
        row["binaries"] = '{"x.so":"' + "1" * 64 + '"}'
    bundle = draft.seal(tmp_path / "b")
    (outcome,) = selftest(bundle, validate=check_bundle, mutations=[BY_NAME["binaries-differ"]]).outcomes
    assert (outcome.word, outcome.detail) == (Word.REJECTED, Reason.ENVIRONMENT_DRIFT)


def test_names_and_descriptions() -> None:
    assert len(MUTATIONS) >= 40
    assert len(BY_NAME) == len(MUTATIONS)
    assert all(mutation.description.endswith(".") for mutation in MUTATIONS)


def test_every_reason_has_a_mutation() -> None:
    covered = {mutation.expected for mutation in (*MUTATIONS, *STUDY_MUTATIONS)} - {None}
    assert set(Reason) - covered == set(NOT_IN_A_LOG)


def test_every_mutation_has_a_subject(request: pytest.FixtureRequest) -> None:
    facts = [Facts.of(request.getfixturevalue(name)) for name in BUNDLES]
    homeless = {m.name: [m.applies_to(known) for known in facts] for m in MUTATIONS}
    assert {name: why for name, why in homeless.items() if None not in why} == {}


def test_no_mutation_touches_the_original(fake_bundle: Path, validate: Callable[[Path], Report]) -> None:
    before = {path: path.read_bytes() for path in fake_bundle.rglob("*") if path.is_file()}
    chosen = [BY_NAME["file-is-a-link"], BY_NAME["parquet-by-pandas"], BY_NAME["relocked-after-the-run"]]
    assert selftest(fake_bundle, validate=validate, baseline_reasons=SYNTHETIC, mutations=chosen)
    assert {path: path.read_bytes() for path in fake_bundle.rglob("*") if path.is_file()} == before


def scripted(validity: Validity, *reasons: Reason) -> Callable[[Path], Report]:
    """A validator that says the same of everything but an untouched bundle, which it calls valid."""
    found = tuple(Finding(reason=reason, where="", expected="", got="") for reason in reasons)

    def validate(path: Path) -> Report:
        touched = any(part in BY_NAME for part in path.parts)
        return Report(
            bundle=Identity(path=str(path)),
            validity=validity if touched else Validity.VALID,
            reasons=found if touched else (),
        )

    return validate


CHOSEN = [BY_NAME["manifest-deleted"], BY_NAME["stream-not-blocked"], BY_NAME["reports-beside"]]


def test_a_validator_that_accepts_everything_fails(fake_bundle: Path) -> None:
    result = selftest(fake_bundle, validate=scripted(Validity.VALID), mutations=CHOSEN)
    assert result.lines == (
        "missed    manifest-deleted                      expected MANIFEST_MISSING, got no reason (VALID)",
        "skipped   stream-not-blocked                    needs clock cuda-event, found host",
        "accepted  reports-beside                        harmless",
        "1 passed, 1 failed, 1 skipped",
    )
    assert (result.passed, result.failed, result.skipped, bool(result)) == (1, 1, 1, False)


def test_a_validator_that_rejects_everything_fails(fake_bundle: Path) -> None:
    validate = scripted(Validity.INVALID, Reason.MANIFEST_MISSING, Reason.EXTRA_FILE)
    result = selftest(fake_bundle, validate=validate, mutations=CHOSEN)
    assert result.lines == (
        "rejected  manifest-deleted                      MANIFEST_MISSING",
        "skipped   stream-not-blocked                    needs clock cuda-event, found host",
        "missed    reports-beside                        expected to be accepted, got MANIFEST_MISSING, EXTRA_FILE",
        "1 passed, 1 failed, 1 skipped",
    )


def test_the_right_reason_must_come_first_and_count(fake_bundle: Path) -> None:
    for validate in (
        scripted(Validity.INVALID, Reason.EXTRA_FILE, Reason.MANIFEST_MISSING),
        scripted(Validity.VALID, Reason.MANIFEST_MISSING),
    ):
        result = selftest(fake_bundle, validate=validate, mutations=CHOSEN[:1])
        assert (result.passed, result.failed) == (0, 1)


def test_a_mutation_that_finds_nothing_to_change_is_skipped(fake_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "failed"
    shutil.copytree(fake_bundle, bundle)
    copy = WorkingCopy(root=bundle)
    copy.set_columns("processes", status=["failed"] * len(copy.column("processes", "status")))
    result = selftest(bundle, validate=scripted(Validity.VALID), mutations=[BY_NAME["last-row-deleted"]])
    assert result.lines == (
        "skipped   last-row-deleted                      no process ended well",
        "0 passed, 0 failed, 1 skipped",
    )


def test_nothing_passed_is_no_success(fake_bundle: Path) -> None:
    assert not selftest(fake_bundle, validate=scripted(Validity.INVALID), mutations=CHOSEN[1:2])


def test_an_unclean_bundle_is_refused(fake_bundle: Path, validate: Callable[[Path], Report]) -> None:
    with pytest.raises(UncleanBundle, match=r"^expected a clean bundle, got INVALID: SYNTHETIC$"):
        selftest(fake_bundle, validate=validate)


def test_copies_are_kept_where_asked(fake_bundle: Path, tmp_path: Path) -> None:
    selftest(fake_bundle, validate=scripted(Validity.VALID), keep=tmp_path / "kept", mutations=CHOSEN)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["manifest-deleted", "reports-beside"]
    copy = tmp_path / "kept" / "manifest-deleted" / fake_bundle.name
    assert not (copy / "manifest.json").exists()
    assert (copy / "samples.parquet").read_bytes() == (fake_bundle / "samples.parquet").read_bytes()
