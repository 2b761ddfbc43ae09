"""Provenance: what was run is what was locked.

Rules:
1. Protocol digest and plan digest are derived again and must equal those of the lock and of the manifest.
2. [build.require] is judged on the version that was imported, its local label after ``+`` ignored.
3. A required binary is named by its file name; it may have been loaded from any folder.
4. On the fake device a required thing that is absent is not applicable; one that is recorded must satisfy.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from validator.checks.integrity import Outcome
from validator.findings import CouldNotCheckError, Finding, NotApplicable
from validator.reading.bundle import Bundle
from validator.reading.canonical import file_sha256, read_small
from validator.reading.model import Protocol
from validator.reading.processes import Environment
from validator.reading.protocol import read_protocol
from validator.reading.study import Study
from validator.reasons import Reason

_LATE = timedelta(hours=1)
_CLOCKS = timedelta(minutes=1)


def check_provenance(bundle: Bundle, expected_protocol: Path | None, not_applicable: list[NotApplicable]) -> Outcome:
    """Check protocol, lock, plan, assets, build and the time of locking."""
    findings = [
        *_digests(bundle),
        *_ledger(bundle),
        *_expected(bundle, expected_protocol),
        *_late(bundle),
        *_exploratory(bundle),
    ]
    if bundle.locked is not None and bundle.plan_digest is not None:
        findings.extend(_plan(bundle, bundle.plan_digest))
        findings.extend(_assets(bundle, bundle.locked, not_applicable))
        findings.extend(_build(bundle, bundle.locked, not_applicable))
    return Outcome(findings=tuple(findings))


def _digests(bundle: Bundle) -> Iterator[Finding]:
    digest = bundle.protocol_read.digest if bundle.protocol_read else None
    for name, record in (("protocol.lock", bundle.lock), ("manifest.json", bundle.manifest)):
        if record is None:
            continue
        if digest is not None and record.protocol_digest != digest:
            yield Finding(
                reason=Reason.PROTOCOL_CHANGED,
                where=f"{name}:protocol_digest",
                expected=record.protocol_digest,
                got=digest,
            )
        if bundle.locked is not None and record.protocol_id != bundle.locked.id:
            yield Finding(
                reason=Reason.PROTOCOL_CHANGED,
                where=f"{name}:protocol_id",
                expected=record.protocol_id,
                got=bundle.locked.id,
            )


def _ledger(bundle: Bundle) -> Iterator[Finding]:
    manifest = bundle.manifest
    for entry in bundle.ledger or ():
        if manifest and entry.run_id == manifest.run_id and entry.protocol_digest != manifest.protocol_digest:
            yield Finding(
                reason=Reason.PROTOCOL_CHANGED,
                where=f"attempts.jsonl:{entry.seq}",
                expected=manifest.protocol_digest,
                got=entry.protocol_digest,
            )


def _plan(bundle: Bundle, digest: str) -> Iterator[Finding]:
    for name, record in (("protocol.lock", bundle.lock), ("manifest.json", bundle.manifest)):
        if record is not None and record.plan_digest != digest:
            yield Finding(
                reason=Reason.PLAN_CHANGED,
                where=f"{name}:plan_digest",
                expected=record.plan_digest,
                got=digest,
            )


def _expected(bundle: Bundle, expected: Path | None) -> Iterator[Finding]:
    if expected is None:
        return
    try:
        read = read_protocol(read_small(expected))
    except OSError as error:
        raise CouldNotCheckError(f"{expected}: cannot be read ({error.strerror or error})") from error
    if read.digest is None:
        raise CouldNotCheckError(f"{expected}: is no TOML document ({'; '.join(read.problems)})")
    digest = bundle.protocol_read.digest if bundle.protocol_read else None
    if digest != read.digest:
        yield Finding(
            reason=Reason.PROTOCOL_NOT_THE_EXPECTED,
            where="protocol.toml",
            expected=read.digest,
            got=digest or "no protocol",
        )


def _late(bundle: Bundle) -> Iterator[Finding]:
    if bundle.lock is None or bundle.manifest is None:
        return
    ends = [e.utc for e in bundle.ledger or () if e.run_id == bundle.manifest.run_id and e.event == "end"]
    if ends and bundle.lock.locked > max(ends) + _CLOCKS:
        yield Finding(
            reason=Reason.LOCKED_AFTER_START,
            where="protocol.lock:locked_utc",
            expected=f"before the run ended at {max(ends).isoformat()}",
            got=bundle.lock.locked.isoformat(),
        )
        return
    for entry in bundle.ledger or ():
        if entry.run_id == bundle.manifest.run_id and entry.event == "start":
            if entry.utc < bundle.lock.locked - _LATE:
                yield Finding(
                    reason=Reason.LOCKED_AFTER_START,
                    where="protocol.lock:locked_utc",
                    expected=f"no later than an hour after {entry.utc.isoformat()}",
                    got=bundle.lock.locked.isoformat(),
                )
            return


def _exploratory(bundle: Bundle) -> Iterator[Finding]:
    for why in bundle.manifest.exploratory if bundle.manifest else ():
        yield Finding(reason=Reason.EXPLORATORY, where="manifest.json:exploratory", expected="no entry", got=why)


def _assets(bundle: Bundle, protocol: Protocol | Study, not_applicable: list[NotApplicable]) -> Iterator[Finding]:
    for asset in protocol.assets:
        name = f"assets/{asset.name}"
        if name not in bundle.files:
            outside = bundle.manifest is not None and asset.name in bundle.manifest.external
            if outside:
                not_applicable.append(NotApplicable(check=f"asset {asset.name}", why="asset not in bundle"))
            else:
                yield Finding(reason=Reason.ASSET_CHANGED, where=name, expected=asset.sha256, got="nothing")
            continue
        digest = bundle.files[name].sha256 or file_sha256(bundle.root / name)
        if digest != asset.sha256:
            yield Finding(reason=Reason.ASSET_CHANGED, where=name, expected=asset.sha256, got=digest)


def satisfies(version: str, required: str) -> bool:
    """Say whether a version lies in a PEP 440 range, its local label ignored; false where either is none."""
    try:
        return SpecifierSet(required).contains(Version(version).public, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False


def _build(bundle: Bundle, protocol: Protocol | Study, not_applicable: list[NotApplicable]) -> Iterator[Finding]:
    require = protocol.require
    needs = bool(require.ranges or require.gpu or require.compute_capability or require.sources or require.binaries)
    if not needs:
        not_applicable.append(NotApplicable(check="build requirements", why="the protocol requires nothing"))
    for record in bundle.processes or ():
        if not record.environment.known:
            continue
        for what, wanted, got, good in _pairs(protocol, record.environment, dict(record.binaries)):
            if good or (got is None and record.environment.device == "fake"):
                continue
            yield Finding(
                reason=Reason.BUILD_MISMATCH,
                where=f"{record.name}:{what}",
                expected=wanted,
                got=got or "nothing recorded",
            )


def _pairs(
    protocol: Protocol | Study, environment: Environment, binaries: dict[str, str]
) -> Iterator[tuple[str, str, str | None, bool]]:
    require = protocol.require
    versions, sources = dict(environment.versions), dict(environment.sources)
    for name, wanted in require.ranges:
        got = versions.get(name)
        yield name, wanted, got, got is not None and satisfies(got, wanted)
    if require.gpu is not None:
        yield "gpu", require.gpu, environment.gpu, environment.gpu == require.gpu
    if require.compute_capability is not None:
        got = environment.compute_capability
        yield "compute_capability", require.compute_capability, got, got == require.compute_capability
    for arm, wanted in require.sources:
        yield f"sources.{arm}", wanted, sources.get(arm), sources.get(arm) == wanted
    for file, wanted in require.binaries:
        loaded = sorted({digest for path, digest in binaries.items() if path.rpartition("/")[2] == file})
        yield f"binaries.{file}", wanted, ", ".join(loaded) or None, loaded == [wanted]
