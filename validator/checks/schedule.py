"""Schedule: everything that was planned was done, on one machine, with one build, within the locked boundary.

Rules:
1. Each planned process (of a run that ended at a locked look: each up to there) has attempts 0, 1, ..., three at most; all but
   the last are ``interrupted``, the last is ``ok`` or ``failed``. Only a resumption makes another attempt, so the ledger has at
   least as many. No table speaks of another process.
2. Environment, weights, binaries and kernels are equal in all processes that could say what they had.
3. The routing is the derived one, row by row and weight by weight.
4. Every arm that was timed at a point in an analysed attempt, controls and ceilings included, has a correctness row of
   stage ``eager`` under the truth that it is judged by, and one of stage ``replay`` where graphs are launched.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from validator.checks.integrity import Outcome
from validator.checks.order import check_order
from validator.checks.telemetry import check_telemetry
from validator.checks.words import first
from validator.findings import Finding, NotApplicable
from validator.reading.routing import law_at
from validator.reading.rows import View
from validator.reading.tables import Frame, read_table
from validator.reasons import Reason

_MOST_ATTEMPTS = 3
_SIDE_TABLES = ("telemetry", "correctness", "kernels", "repeats")


def check_schedule(view: View, not_applicable: list[NotApplicable]) -> Outcome:
    """Check processes, boundary, routing, rows, kernels and correctness against plan and protocol."""
    checks: list[Iterator[Finding]] = [
        _processes(view),
        _strangers(view),
        _unplanned(view),
        _drift(view),
        _boundary(view),
        _locked_bytes(view),
    ]
    bundle = view.bundle
    routing, kernels, correctness = (bundle.frame(name) for name in ("routing", "kernels", "correctness"))
    telemetry = bundle.frame("telemetry")
    if routing is not None:
        checks.append(_routing(view, routing, not_applicable))
    checks.append(check_order(view))
    if kernels is not None:
        checks.append(_kernels(view, kernels, not_applicable))
    if telemetry is not None:
        checks.append(check_telemetry(view, telemetry, not_applicable))
    if correctness is not None:
        checks.append(_correctness(view, correctness))
    repeats = bundle.frame("repeats")
    if repeats is not None and view.protocol.repeats:
        checks.append(_repeats(view, repeats, view.protocol.repeats))
    findings = [finding for check in checks for finding in first(check)]
    return Outcome(findings=tuple(findings))


def _finding(reason: Reason, where: str, expected: object, got: object) -> Finding:
    return Finding(reason=reason, where=where, expected=str(expected)[:300], got=str(got)[:300])


def _processes(view: View) -> Iterator[Finding]:
    planned = range(view.pairs)
    attempts: dict[int, list[tuple[int, str]]] = {}
    for record in view.bundle.processes or ():
        attempts.setdefault(record.process, []).append((record.attempt, record.status))
    for process in planned:
        listed = attempts.get(process, [])
        where = f"process={process}"
        if not listed:
            yield _finding(Reason.PROCESS_MISSING, where, "a row in processes.parquet", "none")
            continue
        if [attempt for attempt, _ in listed] != list(range(len(listed))):
            got = ", ".join(str(attempt) for attempt, _ in listed)
            yield _finding(Reason.PROCESS_MISSING, where, "attempts from 0 on, once each", got)
        if any(status != "interrupted" for _, status in listed[:-1]):
            yield _finding(Reason.PROCESS_MISSING, where, "only interrupted attempts before the last", listed)
        if len(listed) > _MOST_ATTEMPTS:
            yield _finding(Reason.PROCESS_MISSING, where, f"at most {_MOST_ATTEMPTS} attempts", len(listed))
        if listed[-1][1] == "interrupted":
            yield _finding(Reason.PROCESS_MISSING, where, "a last attempt that is ok or failed", "interrupted")
    for process in sorted(set(attempts) - set(planned)):
        yield _finding(Reason.PROCESS_MISSING, f"process={process}", "no such process", "a row")
    for record, segment in view.records():
        if record.status == "ok" and record.analysed and segment.stop == segment.start and record.process in planned:
            yield _finding(Reason.PROCESS_MISSING, record.name, "rows in samples.parquet", "none")
    interrupted = sum(len(listed) - 1 for listed in attempts.values())
    run = view.bundle.manifest.run_id if view.bundle.manifest else None
    resumed = sum(entry.run_id == run and entry.event == "resume" for entry in view.bundle.ledger or ())
    if view.bundle.ledger is not None and interrupted > resumed:
        expected = f"a resumption in the ledger for each of {interrupted} interrupted attempts"
        yield _finding(Reason.PROCESS_MISSING, "processes.parquet:status", expected, f"{resumed} resumptions")
    listed_pairs = {(record.process, record.attempt) for record in view.bundle.processes or ()}
    for item in view.rows.segments:
        if (item.process, item.attempt) not in listed_pairs:
            where = f"process={item.process},attempt={item.attempt}"
            got = f"only {item.stop - item.start} rows in samples.parquet"
            yield _finding(Reason.PROCESS_MISSING, where, "a row in processes.parquet", got)


def _strangers(view: View) -> Iterator[Finding]:
    """Find rows of the side tables that belong to no attempt of the bundle, unless the process is missing altogether."""
    listed = {(record.process, record.attempt) for record in view.bundle.processes or ()}
    missing = set(range(view.protocol.process_pairs)) - {process for process, _ in listed}
    for name in _SIDE_TABLES:
        frame = view.bundle.frame(name)
        if frame is None:
            continue
        pairs = np.stack([frame.numbers[key].astype(np.int64) for key in ("process", "attempt")], axis=1)
        for process, attempt in np.unique(pairs, axis=0).tolist():
            if (process, attempt) not in listed and process not in missing:
                where = f"{name}.parquet process={process},attempt={attempt}"
                yield _finding(Reason.PROCESS_MISSING, where, "a row in processes.parquet", "none")


def _unplanned(view: View) -> Iterator[Finding]:
    """Find rows of the side tables for an arm that was not to run at a point, and names that the protocol does not have."""
    planned = {(point.id, arm.name) for point in view.protocol.points for arm in view.protocol.arms_at(point.id)}
    for record in view.bundle.processes or ():
        for pair in record.unsupported:
            if pair not in planned:
                yield _finding(
                    Reason.SCHEMA_VALUE, f"{record.name}:unsupported", "an arm that stands at the point", pair
                )
    absent = {(record.process, record.attempt): set(record.unsupported) for record in view.bundle.processes or ()}
    for name in ("correctness", "kernels", "repeats"):
        frame = view.bundle.frame(name)
        for row in range(frame.rows if frame is not None else 0):
            assert frame is not None
            pair = (frame.text("point", row), frame.text("arm", row))
            if pair not in planned or pair in absent.get(frame.process(row), ()):
                where = f"{name}.parquet[{row}]"
                yield _finding(Reason.ORDER_NOT_AS_PLANNED, where, "rows of arms that were to run", " ".join(pair))
                break


def _drift(view: View) -> Iterator[Finding]:
    known = [record for record in view.bundle.processes or () if record.environment.known]
    records = sorted(known, key=lambda record: record.status != "ok")
    for record in records[1:]:
        first = records[0]
        pairs = (
            ("environment", first.environment.text, record.environment.text),
            ("fixture_sha256", first.fixture_sha256, record.fixture_sha256),
            ("binaries", first.binaries, record.binaries),
            ("l2_bytes", first.l2_bytes, record.l2_bytes),
        )
        for what, expected, got in pairs:
            ended_early = record.status != "ok" and got in ("", (), 0)
            if expected != got and not ended_early:
                where = f"{record.name}:{what}"
                yield _finding(Reason.ENVIRONMENT_DRIFT, where, *_difference(str(expected), str(got)))


def _difference(expected: str, got: str) -> tuple[str, str]:
    """Cut two texts to the part where they begin to differ."""
    at = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), 0)
    start = max(0, at - 40)
    return expected[start : start + 120], got[start : start + 120]


def _boundary(view: View) -> Iterator[Finding]:
    protocol = view.protocol
    calls = f"start,call*{protocol.calls_per_sample},stop"
    order = calls if protocol.clock == "host" else f"block,{calls}"
    if protocol.cache == "cold-flush":
        order = f"flush,{order}"
    for record in view.bundle.processes or ():
        if not (record.clock or record.launch or record.event_order):
            continue
        pairs = (
            ("clock", protocol.clock, record.clock),
            ("launch", protocol.launch, record.launch),
            ("event_order", order, record.event_order),
        )
        for what, expected, got in pairs:
            if expected != got:
                yield _finding(Reason.BOUNDARY_MISMATCH, f"{record.name}:{what}", expected, got)
        copies = {point.id: protocol.fixture.copies for point in protocol.points}
        if dict(record.copies) != copies:
            yield _finding(Reason.BOUNDARY_MISMATCH, f"{record.name}:copies", copies, dict(record.copies))
        devices = ("cuda", "fake") if protocol.clock == "cuda-event" else ("host", "fake")
        if record.environment.known and record.environment.device not in devices:
            where, wanted = f"{record.name}:environment.device", " or ".join(devices)
            yield _finding(
                Reason.BOUNDARY_MISMATCH, where, f"{wanted} for clock {protocol.clock}", record.environment.device
            )


def _locked_bytes(view: View) -> Iterator[Finding]:
    if view.bundle.lock is None:
        return
    derived = {name: (item.unique, item.issued) for name, item in view.layer.items()}
    locked = {item.point: (item.unique, item.issued) for item in view.bundle.lock.bytes}
    for name in sorted(derived.keys() | locked.keys()):
        if derived.get(name) != locked.get(name):
            where = f"protocol.lock:bytes.{name}"
            yield _finding(Reason.PLAN_CHANGED, where, f"{locked.get(name)} as locked", f"{derived.get(name)} derived")


def _routing(view: View, frame: Frame, not_applicable: list[NotApplicable]) -> Iterator[Finding]:
    protocol = view.protocol
    recorded = _recorded(view, not_applicable)
    codes = frame.texts["point"].recoded([point.id for point in protocol.points])
    if np.any(np.diff(codes) < 0):
        yield _finding(Reason.ROUTING_MISMATCH, "routing.parquet", "points in the order of the protocol", "another")
    for code, point in enumerate(protocol.points):
        here = np.flatnonzero(codes == code)
        got = np.stack([frame.numbers[name][here].astype(np.int64) for name in ("token", "slot", "expert")], axis=1)
        weights = frame.numbers["weight"][here].astype(np.float32)
        if point.id in view.routes:
            routes = view.routes[point.id]
            tokens, slots = np.indices(routes.experts.shape)
            expected = np.stack([tokens.ravel(), slots.ravel(), routes.experts.ravel()], axis=1)
            wanted = routes.weights.ravel()
        elif protocol.fixture.kind == "moe":
            if recorded is None:
                continue
            there = np.flatnonzero(recorded.texts["point"].recoded([point.id]) == 0)
            columns = [recorded.numbers[name][there].astype(np.int64) for name in ("token", "slot", "expert")]
            expected, wanted = np.stack(columns, axis=1), recorded.numbers["weight"][there].astype(np.float32)
        else:
            expected, wanted = np.empty((0, 3), dtype=np.int64), np.empty(0, dtype=np.float32)
        if got.shape != expected.shape:
            where = f"routing.parquet point={point.id}"
            yield _finding(Reason.ROUTING_MISMATCH, where, f"{len(expected)} routes", f"{len(got)} routes")
            continue
        bad = np.flatnonzero((got != expected).any(axis=1) | (weights != wanted))
        if len(bad):
            row = int(bad[0])
            where = f"routing.parquet[{here[row]}] point={point.id}"
            text = "token {} slot {} expert {} weight {!r}"
            yield _finding(
                Reason.ROUTING_MISMATCH,
                where,
                text.format(*expected[row].tolist(), float(wanted[row])),
                text.format(*got[row].tolist(), float(weights[row])) + f" ({len(bad)} rows differ)",
            )


def _recorded(view: View, not_applicable: list[NotApplicable]) -> Frame | None:
    """Read the asset of a recorded routing, where there is one in the bundle."""
    protocol = view.protocol
    if protocol.fixture.kind != "moe" or all(law_at(protocol, point) != "recorded" for point in protocol.points):
        return None
    path = view.bundle.root / "assets" / str(protocol.fixture.routing_asset)
    if f"assets/{path.name}" not in view.bundle.files:
        not_applicable.append(NotApplicable(check="recorded routing", why="asset not in bundle"))
        return None
    return read_table(path, "routing").frame


def _kernels(view: View, frame: Frame, not_applicable: list[NotApplicable]) -> Iterator[Finding]:
    cuda = any(record.environment.device == "cuda" for record in view.bundle.processes or ())
    if not frame.rows and not cuda:
        not_applicable.append(NotApplicable(check="kernel identity", why="no kernels were recorded"))
        return
    launches: dict[tuple[str, str], dict[tuple[int, int], list[tuple[object, ...]]]] = {}
    for row in range(frame.rows):
        cell = (frame.text("point", row), frame.text("arm", row))
        launch = (
            frame.integer("position", row),
            *(frame.text(name, row) for name in ("name", "grid", "block")),
            *(frame.integer(name, row) for name in ("registers", "shared_bytes", "scratch_bytes")),
        )
        launches.setdefault(cell, {}).setdefault(frame.process(row), []).append(launch)
    for (point, arm), by_process in launches.items():
        processes = iter(by_process.items())
        _, first = next(processes)
        for (process, _), other in processes:
            if other != first:
                at = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), -1)
                pair = (first[at], other[at]) if at >= 0 else (f"{len(first)} kernels", f"{len(other)} kernels")
                yield _finding(Reason.KERNEL_IDENTITY, f"process={process} point={point} arm={arm}", *pair)
    yield from _unsaid(view, launches, everywhere=cuda)


def _unsaid(
    view: View, launches: Mapping[tuple[str, str], Mapping[tuple[int, int], object]], *, everywhere: bool
) -> Iterator[Finding]:
    """Find processes that timed an arm and say nothing of its kernels: where others do, and on a CUDA device always."""
    layout = view.rows.layout
    for record, segment in view.records():
        if record.status != "ok":
            continue
        for cell in view.rows.timed_cells(segment):
            at, number = divmod(cell, len(layout.arms))
            names = (layout.points[at], layout.arms[number])
            expected = everywhere or names in launches
            if expected and (record.process, record.attempt) not in launches.get(names, {}):
                where = f"{record.name} point={names[0]} arm={names[1]}"
                yield _finding(Reason.KERNEL_IDENTITY, where, "kernels as in the other processes", "none recorded")


def _repeats(view: View, frame: Frame, locked: int) -> Iterator[Finding]:
    """Every arm that was timed at a point has the locked repeats there, once each."""
    layout = view.rows.layout
    found: dict[tuple[int, int, str, str], list[int]] = {}
    for row in range(frame.rows):
        key = (*frame.process(row), frame.text("point", row), frame.text("arm", row))
        found.setdefault(key, []).append(frame.integer("repeat", row))
    for record, segment in view.records():
        for cell in view.rows.timed_cells(segment) if record.analysed else ():
            at, number = divmod(cell, len(layout.arms))
            names = (layout.points[at], layout.arms[number])
            got = found.get((record.process, record.attempt, *names), [])
            if got != list(range(locked)):
                where = f"repeats.parquet {record.name} point={names[0]} arm={names[1]}"
                yield _finding(Reason.ROWS_MISSING, where, f"repeats 0 to {locked - 1}", f"{len(got)} rows: {got[:8]}")


def _correctness(view: View, frame: Frame) -> Iterator[Finding]:
    layout = view.rows.layout
    stages = ("eager", "replay") if view.protocol.launch == "graph" else ("eager",)
    known: set[tuple[object, ...]] = set()
    truths: Mapping[str, str] = {arm.name: view.protocol.tolerance_of(arm).truth for arm in view.protocol.arms}
    for row in range(frame.rows):
        arm = frame.text("arm", row)
        key = (*frame.process(row), frame.text("point", row), arm, frame.text("stage", row), frame.text("truth", row))
        if key in known:
            yield _finding(Reason.ROWS_DUPLICATED, f"correctness.parquet[{row}]", "one row a truth and stage", key[2:])
        known.add(key)
    for record, segment in view.records():
        for cell in view.rows.timed_cells(segment) if record.analysed else ():
            at, number = divmod(cell, len(layout.arms))
            names = (layout.points[at], layout.arms[number])
            mine, truth = (record.process, record.attempt, *names), truths[names[1]]
            absent = [stage for stage in stages if (*mine, stage, truth) not in known]
            where = f"{record.name} point={names[0]} arm={names[1]}"
            if absent:
                expected = f"a row of stage {' and '.join(stages)} under truth {truth}"
                yield _finding(Reason.CORRECTNESS_MISSING, where, expected, f"none of stage {' and '.join(absent)}")
            own = view.protocol.arm(names[1]).tolerance
            if own is not None and own.batch_invariant and (*mine, "eager", "batch") not in known:
                yield _finding(Reason.CORRECTNESS_MISSING, where, "a row of stage eager under truth batch", "none")
