"""The schedule of a study: every planned process ran its cell under its history, in order, and consumed what it had to.

Rules (results/README.md, "Mechanism bundles"):
1. Each planned process has attempts 0, 1, ..., all but the last ``interrupted``; an ``ok`` one has one row in trajectories, of
   the planned replicate, cell and history. Rows ascend by process and attempt, and processes follow each other in time.
2. Environment, fixture and binaries are equal in all processes.
3. A treatment's marker, the consumed order and the consumed cut points are those that the protocol prescribes, derived here.
   A native order is any alignment of the routing; under ``recorded-order`` it is the recorded one.
4. Plans and tensors are named by their digests, and each that is stored is named by a trajectory; what tensors say of each
   other is in ``validator.checks.surfaces``.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from validator.checks.integrity import Outcome
from validator.checks.surfaces import contradictions
from validator.findings import Finding
from validator.reading.bundle import Bundle
from validator.reading.canonical import is_sha256, sha256
from validator.reading.processes import ProcessRecord
from validator.reading.study import ENGINES, HISTORIES, STEPS, SURFACES, Cell, PlannedRun, Study, StudyPlan
from validator.reading.study_assets import Captured, Plans
from validator.reading.tables import Frame
from validator.reasons import Reason
from validator.recompute.layer import Layer, derive_layer, input_bytes
from validator.recompute.marlin import Aligned, alignment_problems, laid_out, walk_tiles

_MOST_ATTEMPTS = 3
_UNTIMED = (1, (), (), ())  # clock_tick_ns, copies, unsupported, repacking: a study times no arm
_SLACK, _SETTINGS = timedelta(seconds=60), 2  # UTC can be set while a run goes on, but not again and again


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """A readable study: what was planned beside what was recorded."""

    bundle: Bundle
    study: Study
    plan: StudyPlan
    plans: Plans
    captured: Captured | None
    trajectories: Frame
    stored: Frame
    surfaces: Frame


def check_study(view: StudyView) -> Outcome:
    """Check processes, their order, and what they consumed."""
    layer = None if view.captured else derive_layer(view.study.sizes, view.plans)
    other = list(_fixture(view, layer))
    findings = [*_lock(view), *_processes(view), *_drift(view), *other, *_times(view), *_rows(view)]
    aligned = _aligned(view, findings)
    findings.extend(_swaps(view))
    records = {(record.process, record.attempt): record for record in view.bundle.processes or ()}
    runs = {run.process: run for run in view.plan.runs}
    walked: dict[tuple[str, str, int], tuple[str, str]] = {}
    for row in range(view.trajectories.rows):
        run = runs.get(view.trajectories.integer("process", row))
        if run is None or view.trajectories.process(row) not in records:
            continue  # said by _rows
        if _place(view, row) != (run.replicate, run.cell, run.history):
            continue
        findings.extend(_consumed(view, row, run, aligned, walked))
    findings.extend(_named(view, aligned))
    findings.extend(_tensors(view))
    ran = None if other else layer  # what ran another layer has other products
    findings.extend(contradictions(view.study, view.plans, ran, view.trajectories, view.surfaces))
    return Outcome(findings=tuple(findings))


def _finding(reason: Reason, where: str, expected: object, got: object) -> Finding:
    return Finding(reason=reason, where=where, expected=str(expected)[:300], got=str(got)[:300])


def _lock(view: StudyView) -> Iterator[Finding]:
    lock = view.bundle.lock
    if lock is not None and lock.bytes:
        yield _finding(Reason.PLAN_CHANGED, "protocol.lock:bytes", "no points in a study", len(lock.bytes))


def _processes(view: StudyView) -> Iterator[Finding]:
    attempts: dict[int, list[ProcessRecord]] = {}
    for record in view.bundle.processes or ():
        attempts.setdefault(record.process, []).append(record)
    for run in view.plan.runs:
        listed, where = attempts.get(run.process, []), f"process={run.process}"
        if not listed:
            yield _finding(Reason.PROCESS_MISSING, where, "a row in processes.parquet", "none")
            continue
        numbers = [record.attempt for record in listed]
        if numbers != list(range(len(listed))) or len(listed) > _MOST_ATTEMPTS:
            yield _finding(Reason.PROCESS_MISSING, where, f"attempts from 0 on, at most {_MOST_ATTEMPTS}", numbers)
        states = [record.status for record in listed]
        if any(state != "interrupted" for state in states[:-1]) or states[-1] == "interrupted":
            yield _finding(Reason.PROCESS_MISSING, where, "interrupted attempts, then one that is ok or failed", states)
    for process in sorted(set(attempts) - {run.process for run in view.plan.runs}):
        yield _finding(Reason.PROCESS_MISSING, f"process={process}", "no such process", "a row")
    manifest = view.bundle.manifest
    if manifest is not None and view.bundle.ledger is not None:
        resumed = sum(e.event == "resume" and e.run_id == manifest.run_id for e in view.bundle.ledger)
        again = max((len(listed) - 1 for listed in attempts.values()), default=0)
        if again > resumed:
            yield _finding(Reason.PROCESS_MISSING, "attempts.jsonl", f"{again} resumptions", resumed)


def _drift(view: StudyView) -> Iterator[Finding]:
    known = [record for record in view.bundle.processes or () if record.environment.known]
    for record in known:
        for what, own, first in (
            ("environment", record.environment.text, known[0].environment.text),
            ("fixture_sha256", record.fixture_sha256, known[0].fixture_sha256),
            ("binaries", record.binaries, known[0].binaries),
            ("l2_bytes", record.l2_bytes, known[0].l2_bytes),
        ):
            if own != first:
                yield _finding(Reason.ENVIRONMENT_DRIFT, f"{record.name}:{what}", *_apart(str(first), str(own)))
        wanted = ("none", view.study.engine, STEPS)
        got = (record.clock, record.launch, record.event_order)
        if record.status == "ok" and got != wanted:
            yield _finding(Reason.BOUNDARY_MISMATCH, f"{record.name}:clock, launch, event_order", wanted, got)
        device = ENGINES[view.study.engine]
        if record.status == "ok" and record.environment.device != device:
            yield _finding(Reason.BOUNDARY_MISMATCH, f"{record.name}:device", device, record.environment.device)
        untimed = (record.clock_tick_ns, record.copies, record.unsupported, record.repacking)
        if record.status == "ok" and untimed != _UNTIMED:
            what = f"{record.name}:clock_tick_ns, copies, unsupported, repacking"
            yield _finding(Reason.BOUNDARY_MISMATCH, what, _UNTIMED, untimed)
        if record.status == "ok" and device == "host" and record.l2_bytes:
            yield _finding(Reason.BOUNDARY_MISMATCH, f"{record.name}:l2_bytes", "0 on a host", record.l2_bytes)
        engine = dict(record.environment.sources).get(view.study.engine)
        if record.status == "ok" and not is_sha256(engine):
            where = f"{record.name}:sources.{view.study.engine}"
            yield _finding(
                Reason.BUILD_MISMATCH, where, "the source digest of the engine", engine or "nothing recorded"
            )


def _fixture(view: StudyView, layer: Layer | None) -> Iterator[Finding]:
    """The first process that could say what it multiplied had the layer of the seeds, or the captured one; the others had the same."""
    if view.captured is not None:
        ids, weights = _routing_digests(view)
        own = (view.captured.topk_ids_sha256, view.captured.topk_weights_sha256)
        if own != (ids, weights):
            yield _finding(
                Reason.FIXTURE_MISMATCH,
                f"assets/{view.study.sizes.captured}:topk_ids, topk_weights",
                (ids, weights),
                own,
            )
    known = [record for record in view.bundle.processes or () if record.environment.known]
    wanted = view.captured.fixture_sha256 if view.captured else layer.digest if layer else None
    if known and known[0].fixture_sha256 != wanted:
        yield _finding(Reason.FIXTURE_MISMATCH, f"{known[0].name}:fixture_sha256", wanted, known[0].fixture_sha256)


def _apart(first: str, own: str) -> tuple[str, str]:
    """Cut two long texts down to where they part."""
    at = next((i for i, (a, b) in enumerate(zip(first, own, strict=False)) if a != b), min(len(first), len(own)))
    start = max(0, at - 40)
    return first[start : start + 160], own[start : start + 160]


def _times(view: StudyView) -> Iterator[Finding]:
    """Processes run one after the other, between the ledger's start and end."""
    manifest = view.bundle.manifest
    own = [entry for entry in view.bundle.ledger or () if manifest and entry.run_id == manifest.run_id]
    latest = last = min((entry.utc for entry in own if entry.event == "start"), default=None)
    back = 0
    for record in view.bundle.processes or ():
        for when in (record.started, record.ended):
            if when is None:
                continue
            back += last is not None and when < last
            last = when
            if latest is not None and when < latest - _SLACK:
                yield _finding(
                    Reason.TIME_DISORDER, record.name, f"no earlier than {latest.isoformat()}", when.isoformat()
                )
            latest = when if latest is None else max(latest, when)
    if back > _SETTINGS:
        yield _finding(
            Reason.TIME_DISORDER, "processes.parquet", f"times that go back at most {_SETTINGS} times", f"{back} times"
        )
    end = max((entry.utc for entry in own if entry.event == "end"), default=None)
    if end is not None and latest is not None and latest > end + _SLACK:
        yield _finding(
            Reason.TIME_DISORDER, "processes.parquet", f"no later than {end.isoformat()}", latest.isoformat()
        )


def _place(view: StudyView, row: int) -> tuple[int, str, str]:
    frame = view.trajectories
    return frame.integer("replicate", row), frame.text("cell", row), frame.text("history", row)


def _rows(view: StudyView) -> Iterator[Finding]:
    frame, runs = view.trajectories, {run.process: run for run in view.plan.runs}
    records = {(record.process, record.attempt): record for record in view.bundle.processes or ()}
    seen: list[tuple[int, int]] = []
    for row in range(frame.rows):
        key, where = frame.process(row), f"trajectories.parquet[{row}]"
        run = runs.get(key[0])
        if key not in records or run is None:
            yield _finding(
                Reason.PROCESS_MISSING, where, "a process of processes.parquet", f"process={key[0]},attempt={key[1]}"
            )
        elif key in seen:
            yield _finding(
                Reason.ROWS_DUPLICATED, where, "one trajectory of a process and attempt", f"process={key[0]} again"
            )
        elif seen and key < seen[-1]:
            yield _finding(Reason.ORDER_NOT_AS_PLANNED, where, f"a process after {seen[-1][0]}", f"process {key[0]}")
        elif _place(view, row) != (run.replicate, run.cell, run.history):
            wanted = f"replicate {run.replicate}, cell {run.cell}, history {run.history}"
            got = "replicate {}, cell {}, history {}".format(*_place(view, row))
            yield _finding(Reason.ORDER_NOT_AS_PLANNED, f"{where} process={key[0]}", wanted, got)
        if frame.integer("elapsed_ns", row) <= 0:
            yield _finding(
                Reason.NON_POSITIVE_DURATION, f"{where}:elapsed_ns", "above 0", frame.integer("elapsed_ns", row)
            )
        if key in records:
            yield from _too_long(records[key], where, frame.integer("elapsed_ns", row))
        seen.append(key)
    for key, record in records.items():
        if record.status == "ok" and key not in seen:
            yield _finding(Reason.ROWS_MISSING, f"trajectories.parquet {record.name}", "a row", "none")


def _too_long(record: ProcessRecord, where: str, elapsed: int) -> Iterator[Finding]:
    """A trajectory takes no longer than its process ran."""
    if record.started is not None and record.ended is not None:
        most = max(record.ended - record.started, timedelta()) + _SLACK
        if elapsed > most // timedelta(microseconds=1) * 1000:
            yield _finding(Reason.TIME_DISORDER, f"{where}:elapsed_ns", f"at most {most} ({record.name})", elapsed)


def _aligned(view: StudyView, findings: list[Finding]) -> dict[str, Aligned]:
    """Put the stored plans together; each is an alignment of the locked routing, and has the digest that names it."""
    frame, found = view.stored, {}
    names = frame.texts["plan_sha256"]
    for code, name in enumerate(names.values):
        rows = np.flatnonzero(names.codes == code)
        numbers = {key: frame.numbers[key][rows].tolist() for key in ("row", "block", "expert", "route")}
        where = f"plans.parquet plan {name[:16]}"
        block = view.plans.block
        count = len(rows)
        most = len(view.plans.ids) + view.plans.experts * block
        if count > most:
            findings.append(_finding(Reason.MEMBERSHIP_MISMATCH, where, f"at most {most} rows", f"{count} rows"))
            continue
        whole = count % block == 0 and numbers["row"] == list(range(count))
        if not whole or numbers["block"] != [row // block for row in range(count)]:
            findings.append(
                _finding(Reason.MEMBERSHIP_MISMATCH, where, f"whole blocks of {block} rows from 0", f"{count} rows")
            )
            continue
        experts = numbers["expert"][::block]
        if numbers["expert"] != [expert for expert in experts for _ in range(block)]:
            findings.append(_finding(Reason.MEMBERSHIP_MISMATCH, where, "one expert in a block", "several"))
            continue
        aligned = Aligned(rows=tuple(numbers["route"]), experts=tuple(experts), block=block, routes=len(view.plans.ids))
        found[name] = aligned
        problems = list(alignment_problems(aligned, view.plans.ids))
        findings.extend(_finding(Reason.MEMBERSHIP_MISMATCH, where, *pair) for pair in problems)
        if aligned.digest != name:
            findings.append(_finding(Reason.MEMBERSHIP_MISMATCH, f"{where}:plan_sha256", aligned.digest, name))
    return found


def _swaps(view: StudyView) -> Iterator[Finding]:
    """The two routes of a swap belong to one expert, and stand in the same block or not, as the protocol says."""
    for cell in view.study.cells:
        for history in HISTORIES if cell.swap is not None else ():
            assert cell.swap is not None
            first, second = cell.swap.routes
            before = laid_out(view.plans.ids, view.plans.order(view.study.mode(cell, history)), view.plans.block)
            blocks = (before.block_of(first), before.block_of(second))
            said = "same" if blocks[0] == blocks[1] else "different"
            alike = view.plans.ids[first] == view.plans.ids[second] >= 0
            if not alike or said != cell.swap.blocks:
                where = f"protocol.toml:cell {cell.name}.swap under {history}"
                expected = f"routes of one expert, blocks {cell.swap.blocks}"
                yield _finding(Reason.MEMBERSHIP_MISMATCH, where, expected, f"blocks {blocks}")


def prescribed(view: StudyView, cell: Cell, history: str) -> Aligned | None:
    """Give the alignment that a cell has to consume; None where the op decides."""
    plans, study = view.plans, view.study
    if cell.order == "native" and study.treatment != "recorded-order":
        return None
    order = list(plans.stable if cell.order == "stable" else plans.order(study.mode(cell, history)))
    if cell.swap is not None and set(cell.swap.routes) <= set(order):
        first, second = (order.index(route) for route in cell.swap.routes)
        order[first], order[second] = order[second], order[first]
    return laid_out(plans.ids, order, plans.block)


def _treatment(view: StudyView, history: str) -> tuple[str, str]:
    """Give the marker that a history has to leave, and the digest of what it applied."""
    if view.study.treatment == "recorded-order":
        mode = view.study.modes[HISTORIES.index(history)]
        order = view.plans.order(mode)
        return f"recorded-order:{mode}", sha256(struct.pack(f"<{len(order)}i", *order))
    if history == "H0":
        return "none", sha256(b"")
    ids, weights = _routing_digests(view)
    x = view.captured.x_sha256 if view.captured else sha256(input_bytes(view.study.sizes))
    return "resident-tensors:3", sha256("\n".join((x, weights, ids)).encode())


def _routing_digests(view: StudyView) -> tuple[str, str]:
    """Give the digests of ids and weights as arrays."""
    ids, weights = np.array(view.plans.ids, dtype="<i4"), np.array(view.plans.weights, dtype="<f4")
    return sha256(ids.tobytes()), sha256(weights.tobytes())


def _consumed(
    view: StudyView,
    row: int,
    run: PlannedRun,
    aligned: dict[str, Aligned],
    walked: dict[tuple[str, str, int], tuple[str, str]],
) -> Iterator[Finding]:
    frame, cell = view.trajectories, view.study.cell(run.cell)
    where = f"trajectories.parquet[{row}] {run.cell}/{run.history}"
    treatment = _treatment(view, run.history)
    got = (frame.text("treatment", row), frame.text("treatment_sha256", row))
    if got != treatment:
        yield _finding(Reason.TREATMENT_NOT_CONSUMED, f"{where}:treatment", treatment, got)
    injected = bool(frame.numbers["injected"][row])
    if injected is not (cell.order != "native"):
        yield _finding(Reason.ORDER_NOT_CONSUMED, f"{where}:injected", cell.order != "native", injected)
    name = frame.text("plan_sha256", row)
    own = aligned.get(name)
    if own is None:
        yield _finding(Reason.MEMBERSHIP_MISMATCH, f"{where}:plan_sha256", "a plan of plans.parquet", name)
        return
    if own.mode != frame.text("mode_sha256", row):
        yield _finding(Reason.MEMBERSHIP_MISMATCH, f"{where}:mode_sha256", own.mode, frame.text("mode_sha256", row))
    wanted = prescribed(view, cell, run.history)
    if wanted is not None and wanted.digest != name:
        yield _finding(Reason.ORDER_NOT_CONSUMED, f"{where}:plan_sha256", wanted.digest, name)
    for gemm, tile in cell.launches:
        key = (cell.name, gemm, len(own.experts))
        if key not in walked:
            schedule = walk_tiles(view.study.sizes, gemm, tile, len(own.experts))
            walked[key] = schedule.counts, schedule.digest
        marker = (tile.thread_k, tile.thread_n, tile.grid, *walked[key])
        numbers = (frame.integer(f"{gemm}_{column}", row) for column in ("thread_k", "thread_n", "grid"))
        texts = (frame.text(f"{gemm}_{column}", row) for column in ("classes", "cuts_sha256"))
        found = (*numbers, *texts)
        if found != marker:
            yield _finding(Reason.GRID_NOT_CONSUMED, f"{where}:{gemm}", marker, found)


def _named(view: StudyView, aligned: dict[str, Aligned]) -> Iterator[Finding]:
    used = set(view.trajectories.texts["plan_sha256"].values)
    for name in sorted(set(aligned) - used):
        yield _finding(
            Reason.MEMBERSHIP_MISMATCH, f"plans.parquet plan {name[:16]}", "a trajectory that used it", "none"
        )


def _tensors(view: StudyView) -> Iterator[Finding]:
    stored, sizes = view.surfaces, view.study.sizes
    held = set()
    for row in range(stored.rows):
        name, shape = stored.text("sha256", row), stored.text("shape", row)
        data, where = stored.blobs["bytes"][row], f"surfaces.parquet[{row}]"
        digest = sha256(data)
        if digest != name:
            yield _finding(Reason.SURFACE_CHANGED, f"{where}:bytes", f"SHA-256 {name}", digest)
        if (name, shape) in held:
            yield _finding(Reason.ROWS_DUPLICATED, where, "one row for a tensor", f"{name[:16]} again")
        sizes_of = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", shape)
        length = 2 * int(sizes_of[1]) * int(sizes_of[2]) if sizes_of else -1
        if stored.text("dtype", row) != "float16" or length != len(data):
            got = f"{stored.text('dtype', row)} {shape} of {len(data)} bytes"
            yield _finding(Reason.SURFACE_MISSING, where, "float16 values that fill the shape", got)
        held.add((name, shape))
    named = set()
    for surface in SURFACES:
        shape = "{}x{}".format(*sizes.shape(surface))
        for name in view.trajectories.texts[f"{surface}_sha256"].values:
            named.add((name, shape))
            if (name, shape) not in held:
                where = f"trajectories.parquet:{surface}_sha256"
                yield _finding(Reason.SURFACE_MISSING, where, f"a stored tensor of {shape}", name)
    for name, shape in sorted(held - named):
        yield _finding(
            Reason.SURFACE_MISSING, "surfaces.parquet", "a trajectory that names the tensor", f"{name} {shape}"
        )
