"""Worker records -> the bundle's tables and manifest, put together in the run's folder; the supervisor renames it into place.

Rules:
1. Every row that any attempt wrote stays, under its process and attempt; nothing is sorted but by process and attempt.
2. The ledger's end line is written before the manifest, which covers it; the rename that publishes the bundle is the last step.
3. A look at the first processes sees the tables that a bundle of these processes alone would hold.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchkit.bundle.reader import Bundle
from benchkit.bundle.schema import STUDY_TABLES, TABLES
from benchkit.bundle.seal import MAX_ASSET_BYTES, External, SealRecord, seal
from benchkit.bundle.tables import TableEntry, build_table, write_table
from benchkit.fixture.traffic import asset_path, routing_at
from benchkit.plan import Plan, StudyPlan
from benchkit.protocol.lock import lock_path
from benchkit.protocol.model import Protocol
from benchkit.protocol.study import Study
from benchkit.run import ledger
from benchkit.run.folder import Attempt, RunFolder, RunSettings
from benchkit.run.records import TENSORS, read_rows
from benchkit.run.stored import damaged

_NO_ROWS = (ValueError, TypeError, OverflowError, pa.ArrowException)  # what a table cannot be made of
_EMPTY_SHA256 = hashlib.sha256(b"{}").hexdigest()  # of the environment of a worker that could not say more


def build_bundle(
    folder: RunFolder, plan: Plan | StudyPlan, settings: RunSettings, finish: Callable[[Path], object]
) -> Path:
    """Write all files of the bundle into ``folder.bundle``, let ``finish`` add the analysis, and return the folder."""
    protocol, bundle = plan.protocol, folder.bundle
    if bundle.exists():
        shutil.rmtree(bundle)  # left by a kill while sealing
    bundle.mkdir()
    shutil.copyfile(folder.protocol_path, bundle / "protocol.toml")
    shutil.copyfile(lock_path(folder.protocol_path), bundle / "protocol.lock")
    external = _copy_assets(protocol, folder.root, bundle)
    attempts = [attempt for process in plan.processes for attempt in folder.attempts(process.index)]
    if isinstance(plan, StudyPlan):
        entries = _write_study(bundle, plan, settings, attempts, folder.root)
    else:
        entries = _write_tables(bundle, plan, settings, attempts, folder.root)
    prefix = ledger.append(
        folder.root.parent,
        run_id=settings.run_id,
        protocol_digest=plan.locked.digest,
        event="end",
        status=_status(plan, attempts),
    )
    (bundle / ledger.LEDGER).write_bytes(prefix.data)
    problems = {problem for attempt in attempts if attempt.header for problem in attempt.header.problems}
    record = SealRecord(
        protocol_id=protocol.id,
        protocol_digest=plan.locked.digest,
        plan_digest=plan.locked.lock.plan_digest,
        run_id=settings.run_id,
        synthetic=settings.script is not None,
        exploratory=[*settings.exploratory, *sorted(problems)],
        tables=entries,
        ledger_lines=prefix.lines,
        ledger_tip=prefix.tip_sha256,
        external=external,
    )
    seal(bundle, record)
    if folder.lock_signature.exists():
        shutil.copyfile(folder.lock_signature, bundle / folder.lock_signature.name)  # signatures stand in no manifest
    finish(bundle)
    return bundle


def _status(plan: Plan | StudyPlan, attempts: Sequence[Attempt]) -> str:
    """How the run ended, as the ledger says it."""
    if any(attempt.outcome.status == "failed" for attempt in attempts):
        return "failed_processes"
    stopped = len({attempt.process for attempt in attempts}) < len(plan.processes)
    return "stopped_at_look" if stopped else "complete"


def first_processes(folder: RunFolder, plan: Plan, processes: int) -> Bundle:
    """The first so many processes as a look sees them: tables without a seal, in ``folder.look``."""
    look, settings = folder.look, folder.settings()
    look.mkdir(exist_ok=True)
    attempts = [attempt for process in plan.processes[:processes] for attempt in folder.attempts(process.index)]
    _write_tables(look, plan, settings, attempts, folder.root)
    return Bundle(
        folder=look,
        protocol=plan.protocol,
        protocol_digest=plan.locked.digest,
        run_id=settings.run_id,
        manifest_sha256="",
    )


def _copy_assets(protocol: Protocol | Study, source: Path, bundle: Path) -> list[External]:
    external = []
    for asset in protocol.assets:
        path = asset_path(protocol, asset, source)
        size = path.stat().st_size
        if size > MAX_ASSET_BYTES:
            external.append(External(name=asset.name, sha256=asset.sha256, bytes=size))
        else:
            (bundle / "assets").mkdir(exist_ok=True)
            shutil.copyfile(path, bundle / "assets" / asset.name)
    return external


def _write_tables(
    bundle: Path, plan: Plan, settings: RunSettings, attempts: Sequence[Attempt], folder: Path
) -> dict[str, TableEntry]:
    flushed = plan.protocol.timing.flushed
    return {
        name: write_table(
            bundle,
            name,
            (_table(name, *part, flushed=flushed) for part in _parts(name, plan, attempts, folder)),
            protocol_digest=plan.locked.digest,
            run_id=settings.run_id,
            flushed=flushed,
        )
        for name in TABLES
    }


def _write_study(
    bundle: Path, plan: StudyPlan, settings: RunSettings, attempts: Sequence[Attempt], folder: Path
) -> dict[str, TableEntry]:
    return {
        name: write_table(
            bundle,
            name,
            [_study_table(name, attempts, folder)],
            protocol_digest=plan.locked.digest,
            run_id=settings.run_id,
        )
        for name in STUDY_TABLES
    }


def _study_table(name: str, attempts: Sequence[Attempt], folder: Path) -> pa.Table:
    """A table of a study; StorageError, naming the run's folder, where what was recorded is none."""
    try:
        return build_table(name, _study_rows(name, attempts, folder))
    except (*_NO_ROWS, LookupError, OSError) as error:
        raise damaged(folder, f"rows of {name}: {error}") from error


def _study_rows(name: str, attempts: Sequence[Attempt], folder: Path) -> list[list[Any]]:
    """The rows of a table of a study; a plan and a tensor stand once, however many processes had them, ascending by digest."""
    if name == "processes":
        return [_process_row(attempt) for attempt in attempts]
    if name == "trajectories":
        return [[a.process, a.attempt, *row] for a in attempts for row in read_rows(a.records, name)]
    distinct = sorted({json.dumps(row) for a in attempts for row in read_rows(a.records, name)})
    found = [json.loads(row) for row in distinct]
    if name == "surfaces":
        return [[sha256, *rest, (folder / TENSORS / sha256).read_bytes()] for sha256, *rest in found]
    return [
        [sha256, row, row * len(experts) // len(rows), experts[row * len(experts) // len(rows)], route]
        for sha256, rows, experts in found
        for row, route in enumerate(rows)
    ]


def _table(name: str, source: Path, rows: list[list[Any]], *, flushed: bool) -> pa.Table:
    """The rows that came from ``source`` as a table; StorageError, naming it, where they are none of this table."""
    try:
        return build_table(name, rows, flushed=flushed)
    except _NO_ROWS as error:
        raise damaged(source, f"rows of {name}: {error}") from error


def _parts(name: str, plan: Plan, attempts: Sequence[Attempt], folder: Path) -> Iterator[tuple[Path, list[list[Any]]]]:
    """The rows of a table, an attempt at a time, and where they come from."""
    if name == "processes":
        yield folder, [_process_row(attempt) for attempt in attempts]
    elif name == "routing":
        yield folder, routing_rows(plan.protocol, folder)
    else:
        for attempt in attempts:
            rows = read_rows(attempt.records, name)
            yield attempt.records, [[attempt.process, attempt.attempt, *row] for row in rows]


def _process_row(attempt: Attempt) -> list[Any]:
    outcome, header = attempt.outcome, attempt.header
    known: list[Any] = ["{}", _EMPTY_SHA256, "", "", "", "", 0, 0, "{}", "[]", "{}"]
    if header is not None:
        known = [
            header.environment,
            header.environment_sha256,
            header.fixture_sha256,
            header.clock,
            header.launch,
            header.event_order,
            header.clock_tick_ns,
            header.l2_bytes,
            json.dumps(header.copies),
            json.dumps(header.unsupported),
            json.dumps(header.binaries),
        ]
    times = [outcome.started_utc, outcome.ended_utc]
    repacking = json.dumps(header.repacking if header is not None else [])
    return [attempt.process, attempt.attempt, outcome.status, outcome.reason, *known, *times, repacking]


def routing_rows(protocol: Protocol, folder: Path) -> list[list[Any]]:
    """Rows of routing.parquet: every route of every point, in the order of the protocol."""
    rows: list[list[Any]] = []
    for point in protocol.points:
        routing = routing_at(protocol, point, folder)
        if routing is None:
            continue
        ids, weights = routing.topk_ids.tolist(), routing.topk_weights.tolist()
        rows.extend(
            [point.id, token, slot, expert, weights[token][slot]]
            for token, experts in enumerate(ids)
            for slot, expert in enumerate(experts)
        )
    return rows
