"""Integrity: the files are those that were sealed.

Rules:
1. Every file that the manifest lists is there with its digest, and no other file is there.
2. A table is judged by its content digest (another encoding is the note RE_ENCODED), protocol.toml by the protocol
   digest in the same way, every other file by its SHA-256.
3. The ledger's chain verifies from its first line, this run's events are in it in the order of a run (one start first, its
   end as the last line), and the end says ``failed_processes`` iff the last attempt of a process failed, else
   ``stopped_at_look`` iff the processes are those of a look before the last, else ``complete``.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from validator.findings import Finding
from validator.reading.bundle import Bundle
from validator.reading.folder import is_plain
from validator.reading.processes import ProcessRecord
from validator.reading.records import ListedFile, Manifest
from validator.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a check found: reasons, and notes that change nothing."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()


_LIFE = re.compile(r"start( resume)* end(( resume)+ end)*")  # a kill while sealing leaves an end before a resumption
_REPORT = re.compile(r"report\.(txt|json|html|md|tex|xml|pdf)")


def check_integrity(bundle: Bundle) -> Outcome:
    """Check files, contents and ledger against the manifest."""
    manifest = bundle.manifest
    findings: list[Finding] = []
    notes: list[str] = []
    if manifest is not None:
        findings.extend(_names(bundle, manifest))
        for listed in manifest.files:
            findings.extend(_bytes(bundle, manifest, listed, notes))
        findings.extend(_contents(bundle, manifest))
        findings.extend(_tip(bundle, manifest))
    findings.extend(_chain(bundle))
    return Outcome(findings=tuple(findings), notes=tuple(notes))


def _unlisted(name: str) -> bool:
    """Say whether a file is one that the manifest does not list: itself, claims, signatures, rendered reports."""
    reserved = name in ("manifest.json", "analysis.json") or name.endswith(".sig.json")
    return (reserved or _REPORT.fullmatch(name) is not None) and "/" not in name


def _form(name: str) -> str:
    """Give the Unicode form by which names are one; a file that is listed in another form is a finding of its own."""
    return unicodedata.normalize("NFC", name)


def _names(bundle: Bundle, manifest: Manifest) -> Iterator[Finding]:
    listed = {item.name for item in manifest.files}
    odd = {name for name in (*listed, *bundle.files) if not is_plain(name)}
    unsafe = odd | {finding.where for finding in bundle.findings if finding.reason is Reason.UNSAFE_PATH}
    needed = [*listed, *(name for name in bundle.required if name not in listed and name != "protocol.lock")]
    for name in sorted(set(needed)):
        if name not in bundle.files and name not in unsafe:
            yield Finding(reason=Reason.FILE_MISSING, where=name, expected="a file", got="nothing")
    for name in sorted(listed - {*bundle.required}):
        if not unsafe and not name.startswith("assets/"):  # an unsafe name says enough of its folder
            where, expected = f"manifest.json:files.{name}", "files of the format, and assets"
            yield Finding(reason=Reason.EXTRA_FILE, where=where, expected=expected, got="another one")
    forms = {_form(name) for name in listed}
    for name in sorted(bundle.files):
        if name not in listed and name not in unsafe and not _unlisted(name) and _form(name) not in forms:
            yield Finding(reason=Reason.EXTRA_FILE, where=name, expected="no such file", got="a file")


def _bytes(bundle: Bundle, manifest: Manifest, listed: ListedFile, notes: list[str]) -> Iterator[Finding]:
    fact = bundle.files.get(listed.name)
    if fact is None or fact.sha256 is None or (fact.sha256 == listed.sha256 and fact.bytes == listed.bytes):
        return
    table = listed.name.removesuffix(".parquet")
    if table in bundle.tables and listed.name != table:
        read = bundle.tables[table]
        if read.content_sha256 is not None:
            stated = next(item.content_sha256 for item in manifest.tables if item.name == table)
            if read.content_sha256 == stated and fact.sha256 != listed.sha256:
                notes.append(f"RE_ENCODED {listed.name}: another file, the same rows")
                return
            if read.content_sha256 != stated:
                return
    digest = bundle.protocol_read.digest if bundle.protocol_read else None
    if listed.name == "protocol.toml" and fact.sha256 != listed.sha256 and digest == manifest.protocol_digest:
        notes.append("RE_ENCODED protocol.toml: another file, the same protocol digest")
        return
    yield Finding(
        reason=Reason.FILE_CHANGED,
        where=listed.name,
        expected=f"{listed.bytes} bytes, sha256 {listed.sha256}",
        got=f"{fact.bytes} bytes, sha256 {fact.sha256}",
    )


def _contents(bundle: Bundle, manifest: Manifest) -> Iterator[Finding]:
    for stated in manifest.tables:
        read = bundle.tables.get(stated.name)
        if read is None or read.content_sha256 is None:
            continue
        if (read.rows, read.content_sha256) != (stated.rows, stated.content_sha256):
            yield Finding(
                reason=Reason.CONTENT_CHANGED,
                where=f"{stated.name}.parquet",
                expected=f"{stated.rows} rows, content {stated.content_sha256}",
                got=f"{read.rows} rows, content {read.content_sha256}",
            )


def _broken(where: str, expected: object, got: object) -> Finding:
    return Finding(reason=Reason.LEDGER_BROKEN, where=where, expected=str(expected), got=str(got))


def _tip(bundle: Bundle, manifest: Manifest) -> Iterator[Finding]:
    if not bundle.ledger or bundle.ledger_problems:
        return
    if len(bundle.ledger) != manifest.ledger_lines:
        yield _broken("attempts.jsonl", f"{manifest.ledger_lines} lines", f"{len(bundle.ledger)} lines")
    elif bundle.ledger[-1].sha256 != manifest.ledger_tip:
        yield _broken("attempts.jsonl", f"tip {manifest.ledger_tip}", f"tip {bundle.ledger[-1].sha256}")
    own = [entry.event for entry in bundle.ledger if entry.run_id == manifest.run_id]
    if "start" not in own:
        yield _broken("attempts.jsonl", f"a start of {manifest.run_id}", "none")
    elif _LIFE.fullmatch(" ".join(own)) is None and own[-1] == "end":
        expected = f"{manifest.run_id}: start, any resumptions, end; after an end, a resumption before another"
        yield _broken("attempts.jsonl", expected, ", ".join(own))
    last = bundle.ledger[-1]
    if last.event != "end" or last.run_id != manifest.run_id:
        yield _broken("attempts.jsonl", f"the end of {manifest.run_id} in the last line", f"{last.event} {last.run_id}")
    elif bundle.processes is not None:
        wanted = _statuses(bundle, bundle.processes)
        if last.status not in wanted:
            expected = f"status {' or '.join(wanted)}, as in processes.parquet"
            yield _broken("attempts.jsonl", expected, f"status {last.status}")


def _statuses(bundle: Bundle, processes: Sequence[ProcessRecord]) -> tuple[str, ...]:
    """Give the statuses that the ledger's end line may have; more than one where processes are missing, which is said elsewhere."""
    if any(record.analysed and record.status == "failed" for record in processes):
        return ("failed_processes",)
    if bundle.is_study:
        return ("complete",)
    looks = bundle.protocol.statistics.looks if bundle.protocol else ()
    held = len({record.process for record in processes})
    if (bundle.protocol and not looks) or held in looks[-1:]:
        return ("complete",)
    return ("stopped_at_look",) if held in looks else ("complete", "stopped_at_look")


def _chain(bundle: Bundle) -> Iterator[Finding]:
    for problem in bundle.ledger_problems:
        yield _broken("attempts.jsonl", "RFC 8785 JSON lines of the ledger", problem)
    if bundle.ledger is not None and not bundle.ledger and not bundle.ledger_problems:
        yield _broken("attempts.jsonl", "at least a start and an end", "no line")
    previous = "0" * 64
    for number, entry in enumerate(bundle.ledger or ()):
        if entry.seq != number:
            yield _broken(f"attempts.jsonl:{number}", f"seq {number}", f"seq {entry.seq}")
            return
        if entry.prev_sha256 != previous:
            yield _broken(f"attempts.jsonl:{number}", f"prev_sha256 {previous}", entry.prev_sha256)
            return
        previous = entry.sha256
