"""From a folder to a report: the stages in their order.

Rules:
1. integrity -> provenance -> schema -> schedule -> physics -> recompute -> compare -> nature. A finding blocks no stage;
   only what cannot be read does, and then ``not_checked`` says so.
2. VALID iff there is no reason and nothing is left unchecked; what is left unchecked always has a reason. COULD_NOT_CHECK: another schema, an unreadable place.
3. SYNTHETIC is reported last and changes nothing else.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from validator.checks.integrity import Outcome, check_integrity
from validator.checks.physics import check_physics
from validator.checks.provenance import check_provenance
from validator.checks.schedule import check_schedule
from validator.checks.schema import check_schema
from validator.checks.signatures import check_signatures
from validator.checks.study import StudyView, check_study
from validator.compare import check_claims
from validator.findings import (
    Context,
    CouldNotCheckError,
    Finding,
    Identity,
    NotApplicable,
    NotChecked,
    Numbers,
    Report,
    Validity,
    in_order,
)
from validator.reading.bundle import Bundle, open_bundle
from validator.reading.canonical import read_small
from validator.reading.model import Protocol
from validator.reading.rows import View, view
from validator.reading.schema import TABLES
from validator.reading.study import Study
from validator.reading.study_assets import Captured, Plans, read_captured, read_plans
from validator.reasons import Reason, Stage
from validator.recompute.numbers import recompute
from validator.recompute.supplement import supplement
from validator.recompute.trajectories import recompute_study, study_facts

_NEEDS = {
    Stage.SCHEDULE: ("routing", "kernels", "correctness", "telemetry"),
    Stage.PHYSICS: ("correctness",),
    Stage.RECOMPUTE: ("routing", "telemetry", "correctness", "kernels", "repeats"),
    Stage.COMPARE: ("routing", "telemetry", "correctness", "kernels", "repeats"),
}


def validate(bundle: Path, *, expected_protocol: Path | None = None, signed_by: Path | None = None) -> Report:
    """Check a bundle in a local folder, and never raise for what is wrong with it."""
    try:
        return _report(open_bundle(bundle), expected_protocol, signed_by)
    except CouldNotCheckError as error:
        return could_not_check(bundle, str(error))


def could_not_check(bundle: Path, why: str) -> Report:
    """Give the report for a place that cannot be checked at all."""
    left = tuple(NotChecked(stage=stage, blocked_by=why) for stage in Stage if stage is not Stage.NATURE)
    return Report(bundle=Identity(path=str(bundle)), validity=Validity.COULD_NOT_CHECK, not_checked=left, notes=(why,))


def _report(bundle: Bundle, expected_protocol: Path | None, signed_by: Path | None) -> Report:
    not_applicable: list[NotApplicable] = []
    outcomes = [
        check_integrity(bundle),
        check_signatures(bundle, signed_by),
        check_provenance(bundle, expected_protocol, not_applicable),
        check_schema(bundle),
    ]
    if bundle.is_study:
        return _study_report(bundle, expected_protocol, outcomes, not_applicable)
    findings = list(bundle.findings)
    numbers, beside = None, None
    not_checked = list(_blocked(bundle))
    blocked = {item.stage for item in not_checked}
    seen = _view(bundle)
    if seen is not None:
        outcomes.append(check_schedule(seen, not_applicable))
        outcomes.append(check_physics(seen, not_applicable))
        if Stage.RECOMPUTE not in blocked:
            result = recompute(seen)
            numbers, beside = result.numbers, supplement(seen, result.numbers)
            findings.extend(result.findings)
    if bundle.analysis is None:
        not_applicable.append(NotApplicable(check="claims", why="no analysis.json: the verdict is the validator's own"))
        not_checked = [item for item in not_checked if item.stage is not Stage.COMPARE]
    elif numbers is not None:
        findings.extend(check_claims(bundle, numbers))
    checked = _checked(bundle, findings, outcomes, not_checked, _stopped(seen, numbers))
    return replace(
        checked,
        not_applicable=tuple(not_applicable),
        numbers=numbers,
        supplement=beside,
        context=_context(bundle, expected_protocol, numbers),
    )


def _study_report(
    bundle: Bundle, expected_protocol: Path | None, outcomes: list[Outcome], not_applicable: list[NotApplicable]
) -> Report:
    """Give the report about a mechanism study: its scorer in place of schedule, physics and statistics."""
    findings = list(bundle.findings)
    seen = _study_view(bundle)
    not_checked = list(_study_blocked(bundle, seen))
    numbers, facts = None, None
    if isinstance(seen, str):
        findings.extend(_no_asset(bundle, seen, outcomes))
    else:
        outcomes.append(check_study(seen))
        numbers, facts = recompute_study(bundle, seen.study), study_facts(seen.study, seen.plans)
        if bundle.analysis is not None:
            findings.extend(check_claims(bundle, numbers))
    if bundle.analysis is None:
        why = "no analysis.json: the verdicts are the validator's own"
        not_applicable.append(NotApplicable(check="claims", why=why))
        not_checked = [item for item in not_checked if item.stage is not Stage.COMPARE]
    not_applicable.append(NotApplicable(check="timing", why="a study's times are telemetry and are not analysed"))
    checked = _checked(bundle, findings, outcomes, not_checked)
    return replace(
        checked,
        not_applicable=tuple(not_applicable),
        study=numbers,
        study_facts=facts,
        context=_context(bundle, expected_protocol, None),
    )


def _checked(
    bundle: Bundle,
    findings: list[Finding],
    outcomes: list[Outcome],
    not_checked: list[NotChecked],
    stopped: Iterable[str] = (),
) -> Report:
    """Give the part of a report that is the same for every kind of bundle: what is wrong with it, and what else was seen."""
    found = [*findings, *(finding for outcome in outcomes for finding in outcome.findings)]
    if not found and not_checked:
        where = not_checked[0].blocked_by
        found.append(Finding(reason=Reason.FILE_UNREADABLE, where=where, expected="something to check", got="nothing"))
    found.extend(_synthetic(bundle))
    notes = [note for outcome in outcomes for note in outcome.notes]
    return Report(
        bundle=_identity(bundle),
        validity=Validity.INVALID if found or not_checked else Validity.VALID,
        reasons=in_order(found),
        not_checked=tuple(not_checked),
        notes=(*notes, *_interruptions(bundle), *stopped, *_installed(bundle)),
    )


def _study_view(bundle: Bundle) -> StudyView | str:
    """Give the readable study, or say what is in its way."""
    frames = [bundle.frame(name) for name in ("trajectories", "plans", "surfaces")]
    if bundle.study is None or bundle.study_plan is None:
        return "protocol.toml"
    unread = [f"{name}.parquet" for name in bundle.table_names if bundle.frame(name) is None]
    if unread:
        return ", ".join(unread)
    asset = f"assets/{bundle.study.plans_asset}"
    try:
        plans = read_plans(read_small(bundle.root / asset), bundle.study) if asset in bundle.files else ("not there",)
    except OSError as error:
        plans = (error.strerror or str(error),)
    if not isinstance(plans, Plans):
        return f"{asset}: {'; '.join(plans)}"[:300]
    captured = _captured(bundle, bundle.study)
    if isinstance(captured, str):
        return captured
    trajectories, stored, surfaces = (frame for frame in frames if frame is not None)
    return StudyView(
        bundle=bundle,
        study=bundle.study,
        plan=bundle.study_plan,
        plans=plans,
        captured=captured,
        trajectories=trajectories,
        stored=stored,
        surfaces=surfaces,
    )


def _no_asset(bundle: Bundle, why: str, outcomes: list[Outcome]) -> Iterator[Finding]:
    """Say that an asset is not what the study takes it for; one that is not the locked one was said to be changed."""
    where, _, got = why.partition(": ")
    said = {finding.where for outcome in outcomes for finding in outcome.findings}
    if bundle.study is not None and where.startswith("assets/") and where not in said:
        expected = "plans, or a captured fixture, of schema 1 for [fixture]"
        yield Finding(reason=Reason.PROTOCOL_INVALID, where=where, expected=expected, got=got)


def _captured(bundle: Bundle, study: Study) -> Captured | str | None:
    """Give the captured fixture of a study, None where it has none, or what is in the way."""
    if study.sizes.captured is None:
        return None
    asset = f"assets/{study.sizes.captured}"
    try:
        found = read_captured(read_small(bundle.root / asset), study) if asset in bundle.files else ("not there",)
    except OSError as error:
        found = (error.strerror or str(error),)
    return found if isinstance(found, Captured) else f"{asset}: {'; '.join(found)}"[:300]


def _study_blocked(bundle: Bundle, seen: StudyView | str) -> Iterator[NotChecked]:
    if bundle.manifest is None:
        yield NotChecked(stage=Stage.INTEGRITY, blocked_by="manifest.json")
    if bundle.study is None:
        yield NotChecked(stage=Stage.PROVENANCE, blocked_by="protocol.toml")
    unread = [f"{name}.parquet" for name in bundle.table_names if bundle.frame(name) is None]
    if unread:
        yield NotChecked(stage=Stage.SCHEMA, blocked_by=", ".join(unread))
    if isinstance(seen, str):
        for stage in (Stage.SCHEDULE, Stage.RECOMPUTE, Stage.COMPARE):
            yield NotChecked(stage=stage, blocked_by=seen)


def _view(bundle: Bundle) -> View | None:
    samples = bundle.frame("samples")
    if bundle.protocol is None or bundle.plan is None or samples is None or bundle.processes is None:
        return None
    return view(bundle, bundle.protocol, bundle.plan, samples)


def _blocked(bundle: Bundle) -> Iterator[NotChecked]:
    """Name the stages that lack something readable, and what is in their way."""
    if bundle.manifest is None:
        yield NotChecked(stage=Stage.INTEGRITY, blocked_by="manifest.json")
    if bundle.protocol is None:
        yield NotChecked(stage=Stage.PROVENANCE, blocked_by="protocol.toml")
    unread = [name for name in TABLES if bundle.frame(name) is None]
    if unread:
        yield NotChecked(stage=Stage.SCHEMA, blocked_by=", ".join(f"{name}.parquet" for name in unread))
    basic = ["protocol.toml"] if bundle.protocol is None else []
    basic += [f"{name}.parquet" for name in ("samples", "processes") if name in unread]
    for stage, tables in _NEEDS.items():
        lacking = basic + [f"{name}.parquet" for name in tables if name in unread]
        if lacking:
            yield NotChecked(stage=stage, blocked_by=", ".join(lacking))


def _is_synthetic(bundle: Bundle) -> str | None:
    if bundle.manifest is not None and bundle.manifest.synthetic:
        return "manifest.json:synthetic is true"
    for record in bundle.processes or ():
        if record.environment.device == "fake":
            return f"{record.name}: device fake"
    return None


def _synthetic(bundle: Bundle) -> Iterator[Finding]:
    why = _is_synthetic(bundle)
    if why is not None:
        yield Finding(reason=Reason.SYNTHETIC, where="manifest.json", expected="a real device", got=why)


def _installed(bundle: Bundle) -> Iterator[str]:
    """Note packages whose imported version is not the installed one (the local label after + aside): the imported one counts."""
    found = {}
    for record in bundle.processes or ():
        for name, installed, imported, file in record.environment.packages:
            if installed and imported and installed.partition("+")[0] != imported.partition("+")[0]:
                found[name] = f"INSTALLED_DIFFERS {name}: installed {installed}, imported {imported} from {file or '-'}"
    yield from found.values()


def _interruptions(bundle: Bundle) -> Iterator[str]:
    count = sum(record.status == "interrupted" for record in bundle.processes or ())
    if count:
        yield f"{count} interrupted attempt{'s' if count > 1 else ''} kept beside the attempts that were analysed"


def _stopped(seen: View | None, numbers: Numbers | None) -> Iterator[str]:
    """Note how many pairs a run with locked looks took, and which look decided, where that is not the last planned one."""
    looks = numbers.family.looks if numbers is not None else None
    if seen is None or not looks or looks[-1].processes == seen.protocol.process_pairs:
        return
    look, pairs = looks[-1], seen.pairs
    after = (
        "the run ended there" if look.processes == pairs else f"{pairs - look.processes} later pairs enter no verdict"
    )
    yield f"looks: {look.verdict} at {look.processes} of {seen.protocol.process_pairs} planned process pairs; {after}"


def _identity(bundle: Bundle) -> Identity:
    gpus = [record.environment.gpu for record in bundle.processes or () if record.environment.gpu]
    digest = bundle.protocol_read.digest if bundle.protocol_read else None
    manifest = bundle.manifest
    return Identity(
        path=str(bundle.root),
        protocol_id=bundle.locked.id if bundle.locked else manifest.protocol_id if manifest else None,
        protocol_digest=digest or (manifest.protocol_digest if manifest else None),
        run_id=manifest.run_id if manifest else None,
        gpu=gpus[0] if gpus else None,
        manifest_sha256=bundle.manifest_sha256,
    )


def _alpha(protocol: Protocol | None, numbers: Numbers | None) -> float | None:
    """Give the level of the comparisons' intervals: the locked one, or that of the look that decided."""
    if numbers is not None and numbers.family.looks:
        return numbers.family.looks[-1].alpha_one_sided
    return protocol.alpha if protocol else None


def _context(bundle: Bundle, expected_protocol: Path | None, numbers: Numbers | None) -> Context:
    others = None
    if bundle.ledger is not None and bundle.manifest is not None:
        starts = {entry.run_id for entry in bundle.ledger if entry.event == "start"}
        others = len(starts - {bundle.manifest.run_id})
    protocol = bundle.protocol
    return Context(
        protocol_given=expected_protocol is not None,
        margin=protocol.margin if protocol else None,
        alpha_one_sided=_alpha(protocol, numbers),
        other_attempts=others,
        interrupted=sum(record.status == "interrupted" for record in bundle.processes or ()),
    )
