"""The small JSON members of a bundle: manifest, lock, ledger, each with its exact keys.

Rules:
1. Every key is required, no other is allowed, types are exact.
2. Another major of a schema raises CouldNotCheckError: this version does not know it.
3. Ledger lines are RFC 8785 JSON; a digest of a line leaves out its line end.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO

from validator.findings import CouldNotCheckError
from validator.reading.canonical import StrictJsonError, is_canonical, parse_object, sha256
from validator.reading.fields import Fields
from validator.reading.limits import MEMBERS
from validator.reading.schema import STUDY_TABLES, TABLES

RUN_ID = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}"
STATUSES = ("complete", "failed_processes", "stopped_at_look")
_UTC = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A file as the manifest lists it."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTable:
    """A table as the manifest lists it."""

    name: str
    rows: int
    content_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """manifest.json."""

    protocol_id: str
    protocol_digest: str
    plan_digest: str
    run_id: str
    synthetic: bool
    exploratory: tuple[str, ...]
    files: tuple[ListedFile, ...]
    tables: tuple[ListedTable, ...]
    ledger_lines: int
    ledger_tip: str
    external: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBytes:
    """The byte counts of a point as the lock states them."""

    point: str
    unique: int
    issued: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """protocol.lock."""

    protocol_id: str
    protocol_digest: str
    plan_digest: str
    bytes: tuple[LockedBytes, ...]
    locked: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the ledger."""

    seq: int
    run_id: str
    protocol_digest: str
    event: str
    utc: datetime
    status: str | None
    prev_sha256: str
    sha256: str


def _fields(data: bytes, schema: str, problems: list[str], name: str) -> Fields:
    try:
        value = parse_object(data)
    except StrictJsonError as error:
        problems.append(str(error))
        return Fields({}, "", [])
    stated = value.get("schema")
    major = schema.rpartition("/")[0] + "/"
    if isinstance(stated, str) and stated != schema and stated.startswith(major):
        raise CouldNotCheckError(f"{name}: expected schema {schema}, got {stated[:60]}; use a newer validator")
    fields = Fields(value, "", problems)
    fields.choice("schema", (schema,))
    return fields


def parse_utc(text: str) -> datetime | None:
    """Read a UTC time as ``2026-01-31T12:00:00Z``; None where it is none."""
    if re.fullmatch(_UTC, text) is None:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
    except ValueError:
        return None


def _utc(fields: Fields, key: str) -> datetime:
    text = fields.text(key, pattern=_UTC)
    value = parse_utc(text)
    if value is None and text:
        fields.wrong(key, "a UTC time", text)
    return value or datetime.fromtimestamp(0, tz=UTC)


def read_manifest(data: bytes) -> Manifest | tuple[str, ...]:
    """Read manifest.json, or give its problems."""
    problems: list[str] = []
    top = _fields(data, "benchkit.manifest/1", problems, "manifest.json")
    if problems:
        return tuple(problems)
    files = top.table("files")
    if len(files.names()) > MEMBERS:
        raise CouldNotCheckError(f"manifest.json: lists more than {MEMBERS} files: this is no bundle")
    listed = []
    for name in files.names():
        item = files.table(name)
        listed.append(ListedFile(name=name, sha256=item.digest("sha256"), bytes=item.integer("bytes")))
        item.finish()
    tables = top.table("tables")
    contents = []
    for name in STUDY_TABLES if tables.has("trajectories") else TABLES:
        item = tables.table(name)
        digest = item.digest("content_sha256")
        contents.append(ListedTable(name=name, rows=item.integer("rows"), content_sha256=digest))
        item.finish()
    tables.finish()
    ledger = top.table("ledger")
    external = []
    for item in top.tables("external"):
        external.append(item.text("name"))
        item.digest("sha256")
        item.integer("bytes")
        item.finish()
    top.text("tool_version")
    manifest = Manifest(
        protocol_id=top.text("protocol_id"),
        protocol_digest=top.digest("protocol_digest"),
        plan_digest=top.digest("plan_digest"),
        run_id=top.text("run_id", pattern=RUN_ID),
        synthetic=top.truth("synthetic"),
        exploratory=top.texts("exploratory"),
        files=tuple(listed),
        tables=tuple(contents),
        ledger_lines=ledger.integer("lines"),
        ledger_tip=ledger.digest("tip_sha256"),
        external=tuple(external),
    )
    ledger.finish()
    top.finish()
    return tuple(problems) if problems else manifest


def read_lock(data: bytes) -> Lock | tuple[str, ...]:
    """Read protocol.lock, or give its problems."""
    problems: list[str] = []
    top = _fields(data, "benchkit.lock/1", problems, "protocol.lock")
    if problems:
        return tuple(problems)
    table = top.table("bytes")
    points = []
    for name in table.names():
        item = table.table(name)
        points.append(LockedBytes(point=name, unique=item.integer("unique_bytes"), issued=item.integer("issued_bytes")))
        item.finish()
    top.text("tool_version")
    commit = top.raw("git_commit")
    if commit is not None and not isinstance(commit, str):
        top.wrong("git_commit", "a string or null", commit)
    lock = Lock(
        protocol_id=top.text("protocol_id"),
        protocol_digest=top.digest("protocol_digest"),
        plan_digest=top.digest("plan_digest"),
        bytes=tuple(points),
        locked=_utc(top, "locked_utc"),
    )
    top.finish()
    return tuple(problems) if problems else lock


def read_ledger(data: bytes) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Read attempts.jsonl: its entries up to the first bad line, and the problems."""
    entries: list[Entry] = []
    problems: list[str] = []
    for number, ended in enumerate(BytesIO(data)):
        line = ended.removesuffix(b"\n")
        found: list[str] = []
        try:
            value = parse_object(line)
        except StrictJsonError as error:
            return tuple(entries), (f"line {number}: {error}",)
        fields = Fields(value, f"line {number}", found)
        event = fields.choice("event", ("start", "resume", "end"))
        status = fields.raw("status")
        if status not in (STATUSES if event == "end" else (None,)):
            fields.wrong("status", f"{', '.join(STATUSES)} at the end, else null", status)
        entry = Entry(
            seq=fields.integer("seq"),
            run_id=fields.text("run_id", pattern=RUN_ID),
            protocol_digest=fields.digest("protocol_digest"),
            event=event,
            utc=_utc(fields, "utc"),
            status=status if isinstance(status, str) else None,
            prev_sha256=fields.digest("prev_sha256"),
            sha256=sha256(line),
        )
        fields.finish()
        if not found and not is_canonical(value, line):
            found.append(f"line {number}: not in canonical form")
        if found:
            return tuple(entries), tuple(found)
        entries.append(entry)
    return tuple(entries), tuple(problems)
