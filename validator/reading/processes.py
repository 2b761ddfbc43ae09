"""processes.parquet as records: a handful of rows, their JSON columns parsed.

Rules:
1. Last attempts count; ``analysed`` is true for the row with the highest attempt of its process.
2. JSON columns are strict JSON of the documented shape; anything else is SCHEMA_VALUE.
3. The environment of an ``ok`` process says what it ran on; what is blank in all processes cannot be seen to differ.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from validator.findings import Finding, Json
from validator.reading.canonical import StrictJsonError, is_canonical, parse_json, sha256
from validator.reading.records import parse_utc
from validator.reading.schema import REPACKING
from validator.reading.tables import Frame
from validator.reasons import Reason

DIGEST = re.compile(r"[0-9a-f]{64}")
STATUSES = ("ok", "failed", "interrupted")
DEVICES = ("host", "cuda", "fake")
_KINDS: Mapping[type, str] = {str: "a text", int: "a positive number", dict: "an object"}
_SAID = {
    "python": str,
    "platform": str,
    "cpu": str,
    "cpu_count": int,
    "threads": int,
    "packages": dict,
    "sources": dict,
}
_GPU_SAYS = {"name": str, "uuid": str, "compute_capability": str, "memory_bytes": int, "sm_count": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the environment's JSON says, as far as a check uses it."""

    text: str
    device: str | None
    versions: tuple[tuple[str, str | None], ...]
    packages: tuple[tuple[str, str | None, str | None, str | None], ...]  # name, installed, imported, file
    gpu: str | None
    compute_capability: str | None
    mig: bool
    sources: tuple[tuple[str, str], ...]

    @property
    def known(self) -> bool:
        """False for a worker that ended before it could say anything."""
        return self.text != "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One process and attempt."""

    row: int
    process: int
    attempt: int
    analysed: bool
    status: str
    environment: Environment
    fixture_sha256: str
    clock: str
    launch: str
    event_order: str
    clock_tick_ns: int
    l2_bytes: int
    copies: tuple[tuple[str, int], ...]
    unsupported: tuple[tuple[str, str], ...]
    binaries: tuple[tuple[str, str], ...]
    repacking: tuple[tuple[str, int, int], ...]  # arm, ns, bytes
    started: datetime | None
    ended: datetime | None

    @property
    def name(self) -> str:
        """How a finding names it."""
        return f"process={self.process}" + (f",attempt={self.attempt}" if self.attempt else "")


def read_processes(frame: Frame) -> tuple[tuple[ProcessRecord, ...], tuple[Finding, ...]]:
    """Turn the table into records; bad values become findings."""
    findings: list[Finding] = []
    pairs = [frame.process(row) for row in range(frame.rows)]
    last: dict[int, int] = {}
    for process, attempt in pairs:
        last[process] = max(attempt, last.get(process, -1))
    records = []
    for row, (process, attempt) in enumerate(pairs):
        status = frame.text("status", row)
        if status not in STATUSES:
            findings.append(_wrong(row, "status", ", ".join(STATUSES), status))
        for column in ("started_utc", "ended_utc"):
            text = frame.text(column, row)
            if (text or status == "ok" or column == "started_utc") and parse_utc(text) is None:
                findings.append(_wrong(row, column, "a UTC time as 2026-01-31T12:00:00Z", text))
        if status == "ok":
            findings.extend(_silent(frame, row))
        elif status == "failed" and not frame.text("reason", row):
            findings.append(_wrong(row, "reason", "why the attempt failed", ""))
        records.append(
            ProcessRecord(
                row=row,
                process=process,
                attempt=attempt,
                analysed=attempt == last[process],
                status=status,
                environment=_environment(frame, row, findings),
                fixture_sha256=frame.text("fixture_sha256", row),
                clock=frame.text("clock", row),
                launch=frame.text("launch", row),
                event_order=frame.text("event_order", row),
                clock_tick_ns=frame.integer("clock_tick_ns", row),
                l2_bytes=frame.integer("l2_bytes", row),
                copies=_copies(frame, row, findings),
                unsupported=_unsupported(frame, row, findings),
                binaries=_binaries(frame, row, findings),
                repacking=_repacking(frame, row, findings),
                started=parse_utc(frame.text("started_utc", row)),
                ended=parse_utc(frame.text("ended_utc", row)),
            )
        )
    return tuple(records), tuple(findings)


def _silent(frame: Frame, row: int) -> Iterator[Finding]:
    """Find what a worker that ended well does not say; only one that ended early may be silent."""
    if frame.text("environment", row) == "{}":
        yield _wrong(row, "environment", "the environment of an ok process", "{}")
    for column in ("fixture_sha256", "clock", "launch", "event_order"):
        if not frame.text(column, row):
            yield _wrong(row, column, "a value in an ok process", "")
    if frame.text("reason", row):
        yield _wrong(row, "reason", "null in an ok process", frame.text("reason", row))
    if not DIGEST.fullmatch(frame.text("fixture_sha256", row)):
        yield _wrong(row, "fixture_sha256", "64 hexadecimal digits", frame.text("fixture_sha256", row))
    for column in ("clock_tick_ns", "l2_bytes"):
        value = frame.integer(column, row)
        if value < (1 if column == "clock_tick_ns" else 0):
            yield _wrong(row, column, "a positive number" if column == "clock_tick_ns" else "no negative number", value)


def _wrong(row: int, column: str, expected: str, got: object) -> Finding:
    where = f"processes.parquet:{column}[{row}]"
    return Finding(reason=Reason.SCHEMA_VALUE, where=where, expected=expected, got=repr(got)[:120])


def _json(frame: Frame, row: int, column: str, findings: list[Finding]) -> Json:
    text = frame.text(column, row)
    try:
        return parse_json(text.encode())
    except StrictJsonError as error:
        findings.append(_wrong(row, column, "strict JSON", str(error)))
        return None


def _package(name: str, entry: Mapping[str, Json]) -> tuple[str, str | None, str | None, str | None]:
    return name, _text(entry.get("installed")), _text(entry.get("imported")), _text(entry.get("file"))


def _environment(frame: Frame, row: int, findings: list[Finding]) -> Environment:
    text = frame.text("environment", row)
    value = _json(frame, row, "environment", findings)
    if not isinstance(value, dict):
        findings.append(_wrong(row, "environment", "a JSON object", text[:60]))
        value = {}
    elif not is_canonical(value, text.encode()):
        findings.append(_wrong(row, "environment", "RFC 8785 JSON", text[:60]))
    stated, digest = frame.text("environment_sha256", row), sha256(text.encode())
    if stated != digest:
        findings.append(_wrong(row, "environment_sha256", digest, stated))
    if value and frame.text("status", row) == "ok":
        findings.extend(_unsaid(value, row))
    packages = _mapping(value.get("packages"))
    versions: dict[str, str | None] = {
        name: _text(_mapping(entry).get("imported")) for name, entry in packages.items() if isinstance(entry, dict)
    }
    versions["python"] = _text(value.get("python"))
    versions["driver"] = _text(value.get("driver"))
    versions["cuda"] = _text(value.get("cuda_runtime"))
    gpu = _mapping(value.get("gpu"))
    return Environment(
        text=text,
        device=_text(value.get("device")),
        versions=tuple(versions.items()),
        packages=tuple(_package(name, _mapping(entry)) for name, entry in packages.items()),
        gpu=_text(gpu.get("name")),
        compute_capability=_text(gpu.get("compute_capability")),
        mig=gpu.get("mig") is True,
        sources=_strings(value.get("sources")),
    )


def _unsaid(value: Mapping[str, Json], row: int) -> Iterator[Finding]:
    """Find what the environment of a process that ended well leaves out, or says in another type."""
    device, gpu, own = value.get("device"), _mapping(value.get("gpu")), value.get("benchkit_sha256")
    if device not in DEVICES:
        yield _wrong(row, "environment", f"device: one of {', '.join(DEVICES)}", device)
    entries = [(key, kind, value.get(key)) for key, kind in (*_SAID.items(), ("benchkit", str))]
    if device == "cuda":
        entries += [("driver", str, value.get("driver"))]
        entries += (
            [(f"gpu.{key}", kind, gpu.get(key)) for key, kind in _GPU_SAYS.items()] if gpu else [("gpu", dict, None)]
        )
    for key, kind, found in entries:
        if type(found) is not kind or found in ("", 0) or (isinstance(found, int) and found < 0):
            yield _wrong(row, "environment", f"{key}: {_KINDS[kind]}", found)
    if "benchkit_sha256" in value and not (isinstance(own, str) and DIGEST.fullmatch(own)):
        yield _wrong(row, "environment", "benchkit_sha256: 64 hexadecimal digits", own)


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _strings(value: Json) -> tuple[tuple[str, str], ...]:
    return tuple((key, item) for key, item in _mapping(value).items() if isinstance(item, str))


def _copies(frame: Frame, row: int, findings: list[Finding]) -> tuple[tuple[str, int], ...]:
    value = _json(frame, row, "copies", findings)
    pairs = tuple((key, item) for key, item in _mapping(value).items() if type(item) is int and item >= 1)
    if not isinstance(value, dict) or len(pairs) != len(value):
        findings.append(_wrong(row, "copies", "an object of point and copies", frame.text("copies", row)))
    return pairs


def _unsupported(frame: Frame, row: int, findings: list[Finding]) -> tuple[tuple[str, str], ...]:
    value = _json(frame, row, "unsupported", findings)
    listed = value if isinstance(value, list) else []
    pairs = tuple(
        (str(item[0]), str(item[1]))
        for item in listed
        if isinstance(item, list) and len(item) == 3 and all(isinstance(part, str) for part in item)
    )
    if not isinstance(value, list) or len(pairs) != len(value):
        got = frame.text("unsupported", row)
        findings.append(_wrong(row, "unsupported", "a list of [point, arm, reason]", got))
    return pairs


def _repacking(frame: Frame, row: int, findings: list[Finding]) -> tuple[tuple[str, int, int], ...]:
    if REPACKING.name not in frame.texts:
        return ()  # an earlier version
    value = _json(frame, row, REPACKING.name, findings)
    listed = value if isinstance(value, list) else []
    found = tuple(
        (item[0], item[1], item[2])
        for item in listed
        if isinstance(item, list)
        and len(item) == 3
        and isinstance(item[0], str)
        and type(item[1]) is int
        and type(item[2]) is int
        and min(item[1], item[2]) >= 1
    )
    if not isinstance(value, list) or len(found) != len(value) or len({name for name, _, _ in found}) != len(found):
        got = frame.text(REPACKING.name, row)
        findings.append(_wrong(row, REPACKING.name, "a list of [arm, ns, bytes], an arm once", got))
    return found


def _binaries(frame: Frame, row: int, findings: list[Finding]) -> tuple[tuple[str, str], ...]:
    value = _json(frame, row, "binaries", findings)
    pairs = _strings(value)
    if not isinstance(value, dict) or len(pairs) != len(value) or not all(DIGEST.fullmatch(each) for _, each in pairs):
        findings.append(_wrong(row, "binaries", "an object of file and SHA-256", frame.text("binaries", row)))
    return pairs
