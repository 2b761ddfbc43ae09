"""A bundle as it lies in a folder: everything that can be read, and a finding for everything that cannot.

Rules:
1. A link or a special file is never opened, and no name leaves the folder.
2. What cannot be read is None; whoever needs it says so in ``not_checked``.
3. A folder that cannot be listed, or a schema of another major, raises CouldNotCheckError.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from validator.findings import Finding
from validator.reading.canonical import sha256
from validator.reading.folder import Folder
from validator.reading.model import Protocol
from validator.reading.plan import Plan, derive_plan
from validator.reading.processes import ProcessRecord, read_processes
from validator.reading.protocol import ProtocolRead, read_protocol
from validator.reading.records import Entry, Lock, Manifest, read_ledger, read_lock, read_manifest
from validator.reading.schema import STUDY_TABLES, TABLES
from validator.reading.study import MECHANISM, Study, StudyPlan, derive_study_plan
from validator.reading.tables import Frame, TableRead, read_table
from validator.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFact:
    """A regular file of the bundle: its size and, where the manifest lists it, its SHA-256."""

    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Everything that could be read."""

    root: Path
    files: Mapping[str, FileFact]
    findings: tuple[Finding, ...]
    manifest: Manifest | None
    manifest_sha256: str | None
    protocol_read: ProtocolRead | None
    plan: Plan | None
    study_plan: StudyPlan | None
    table_names: tuple[str, ...]
    lock: Lock | None
    ledger: tuple[Entry, ...] | None
    ledger_problems: tuple[str, ...]
    tables: Mapping[str, TableRead]
    processes: tuple[ProcessRecord, ...] | None
    analysis: bytes | None

    @property
    def protocol(self) -> Protocol | None:
        """The protocol, None where protocol.toml is none."""
        return self.protocol_read.protocol if self.protocol_read else None

    @property
    def study(self) -> Study | None:
        """The study, None where protocol.toml is none."""
        return self.protocol_read.study if self.protocol_read else None

    @property
    def locked(self) -> Protocol | Study | None:
        """The protocol of either kind."""
        return self.protocol or self.study

    @property
    def plan_digest(self) -> str | None:
        """Digest of the derived plan, of either kind."""
        plan = self.plan or self.study_plan
        return plan.digest if plan else None

    @property
    def is_study(self) -> bool:
        """Say whether this is the bundle of a mechanism study."""
        return "trajectories" in self.table_names

    @property
    def required(self) -> tuple[str, ...]:
        """Files that every bundle of this kind has."""
        return ("protocol.toml", "protocol.lock", *(f"{name}.parquet" for name in self.table_names), "attempts.jsonl")

    def frame(self, name: str) -> Frame | None:
        """Give a table, None where it could not be read."""
        read = self.tables.get(name)
        return read.frame if read else None

    @property
    def analysed(self) -> Mapping[int, ProcessRecord]:
        """The last attempt of every process."""
        return {record.process: record for record in self.processes or () if record.analysed}


def open_bundle(root: Path) -> Bundle:
    """Read a bundle from a local folder."""
    folder = Folder(root)
    data = folder.read("manifest.json")
    manifest = _manifest(folder, data)
    protocol_read = _protocol(folder)
    names = _table_names(manifest, protocol_read)
    if manifest is not None and [table.name for table in manifest.tables] != list(names):
        got = "those of another kind"
        where = "manifest.json:tables"
        finding = Finding(reason=Reason.MANIFEST_INVALID, where=where, expected=", ".join(names), got=got)
        folder.findings.append(finding)
        manifest = None
    files = _facts(folder, manifest)
    study = protocol_read.study if protocol_read else None
    protocol = protocol_read.protocol if protocol_read else None
    ledger, problems = _ledger(folder)
    tables = {}
    for name in names:
        if f"{name}.parquet" in folder.names:
            tables[name] = read_table(root / f"{name}.parquet", name)
            folder.findings.extend(tables[name].findings)
    processes: tuple[ProcessRecord, ...] | None = None
    if "processes" in tables and (frame := tables["processes"].frame) is not None:
        processes, bad = read_processes(frame)
        folder.findings.extend(bad)
    lock = _lock(folder)
    analysis = folder.read("analysis.json")
    return Bundle(
        root=root,
        files=files,
        findings=tuple(folder.findings),
        manifest=manifest,
        manifest_sha256=None if data is None else sha256(data),
        protocol_read=protocol_read,
        plan=None if protocol is None else derive_plan(protocol),
        study_plan=None if study is None else derive_study_plan(study),
        table_names=names,
        lock=lock,
        ledger=ledger,
        ledger_problems=problems,
        tables=tables,
        processes=processes,
        analysis=analysis,
    )


def _table_names(manifest: Manifest | None, read: ProtocolRead | None) -> tuple[str, ...]:
    """Name the tables of the bundle's kind, which the protocol says, or the manifest where there is no protocol."""
    if read is not None and read.kind is not None:
        return tuple(STUDY_TABLES if read.kind == MECHANISM else TABLES)
    return tuple(TABLES) if manifest is None else tuple(table.name for table in manifest.tables)


def _manifest(folder: Folder, data: bytes | None) -> Manifest | None:
    if data is None:
        within = sorted(name.removesuffix("/manifest.json") for name in folder.names if name.endswith("/manifest.json"))
        got = f"nothing here, and one in {', '.join(within)[:200]}: each is a bundle by itself" if within else "nothing"
        if "manifest.json" not in folder.names:  # else it could not be read, which is said
            finding = Finding(reason=Reason.MANIFEST_MISSING, where="manifest.json", expected="a file", got=got)
            folder.findings.append(finding)
        return None
    manifest = read_manifest(data)
    if isinstance(manifest, Manifest):
        return manifest
    for problem in manifest:
        where, _, text = problem.partition(": expected ")
        expected, _, got = text.partition(", got ")
        folder.findings.append(
            Finding(
                reason=Reason.MANIFEST_INVALID,
                where=f"manifest.json:{where[:120]}",
                expected=expected or "a manifest of schema 1",
                got=got or problem,
            )
        )
    return None


def _facts(folder: Folder, manifest: Manifest | None) -> Mapping[str, FileFact]:
    listed = [item.name for item in manifest.files] if manifest else []
    folder.check_listed(listed)
    digests = {name: folder.digest(name) for name in listed}
    return {name: FileFact(bytes=size, sha256=digests.get(name)) for name, size in folder.names.items()}


def _protocol(folder: Folder) -> ProtocolRead | None:
    data = folder.read("protocol.toml")
    if data is None:
        return None
    read = read_protocol(data)
    for problem in read.problems:
        where, _, text = problem.partition(": ")
        if not text:
            where, text = "", problem
        where = f"protocol.toml:{where}" if where else "protocol.toml"
        folder.findings.append(
            Finding(reason=Reason.PROTOCOL_INVALID, where=where, expected="a protocol of schema 1", got=text)
        )
    return read


def _lock(folder: Folder) -> Lock | None:
    if "protocol.lock" not in folder.names:
        finding = Finding(reason=Reason.LOCK_MISSING, where="protocol.lock", expected="a file", got="nothing")
        folder.findings.append(finding)
        return None
    data = folder.read("protocol.lock")
    lock = read_lock(data) if data is not None else None
    if lock is None or isinstance(lock, Lock):
        return lock
    for problem in lock:
        folder.findings.append(
            Finding(reason=Reason.LOCK_INVALID, where="protocol.lock", expected="a lock of schema 1", got=problem)
        )
    return None


def _ledger(folder: Folder) -> tuple[tuple[Entry, ...] | None, tuple[str, ...]]:
    data = folder.read("attempts.jsonl")
    return (None, ()) if data is None else read_ledger(data)
