"""Times: what the clocks said can have been said by clocks, and by those of one run.

Rules (results/README.md):
1. Host times ascend within a process, and from one process to the next; a machine that was started again between them
   starts anew, but no more often than the ledger has resumptions.
2. On the host clock a duration is the time between its host times. On an event clock it is no longer than that, and what the
   host waits beyond it, and then until the device is idle, is about the same for all arms of a point in a process: blocks
   take turns, so what disturbs one arm disturbs the others. An arm that stands out by more than 30 us, half a percent of its
   duration and three times its own scatter was not timed by what it claims.
3. Processes run one after the other between the ledger's start and end; no process, and no two after one another, has host
   times for longer than UTC says that they ran. UTC is set by people and servers: a minute is left for that.
4. An event clock counts in steps: where most durations of a bundle are whole ones, all are. The step is ``clock_tick_ns`` or
   what most arms' durations are whole multiples of: the larger, and the latter alone where the larger fits few. The driver's
   milliseconds are float32, so a duration may lie off its step by as much as that rounds.
5. No two processes or attempts have the same durations of an arm at a point, one after the other.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from validator.checks.words import at_row, finding, rows_of
from validator.findings import Finding
from validator.reading.canonical import sha256
from validator.reading.processes import ProcessRecord
from validator.reading.rows import Segment, View
from validator.reasons import Reason

_SPARE = timedelta(minutes=1)
_LEAST_TICK_NS = 8
_FLOAT32 = 2.0**-23
_EXACT_NS = 8_000_000  # below it float32 milliseconds are whole nanoseconds
_WAIT_NS, _WAIT_SHARE, _SCATTERS = 30_000.0, 0.005, 3.0
_ESCAPED_NS = 100_000
_LEAST_STEPS = 20
_LEAST_ARMS, _LEAST_ROWS, _LEAST_VALUES = 4, 12, 6


def check_times(view: View) -> Iterator[Finding]:
    """Check host times, UTC times and the steps of the clock."""
    for record, segment in view.records():
        disorder = list(_disorder(view, record, segment))
        yield from disorder
        if view.protocol.clock == "host" and not disorder:
            yield from _host_durations(view, record, segment)
        elif not disorder:
            yield from _waits(view, record, segment)
    yield from _restarts(view)
    yield from _run(view)
    yield from _repeated(view)
    if view.protocol.clock == "cuda-event":
        yield from _ticks(view)


def _disorder(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    start, end = view.rows.ints("host_start_ns", segment), view.rows.ints("host_end_ns", segment)
    post = view.rows.ints("post_sync_ns", segment)
    device = view.protocol.clock == "cuda-event" and record.environment.device == "cuda"
    least = 1 if device else 0  # a device synchronise takes some time
    backwards = (end < start) | (post < least)
    backwards[1:] |= start[1:] < end[:-1]
    bad = np.flatnonzero(backwards)
    if len(bad):
        row = int(bad[0])
        previous = f"after {end[row - 1]}" if row else "a start"
        got = f"start {start[row]}, end {end[row]}, post_sync {post[row]} ({rows_of(bad)})"
        where = at_row("host_start_ns", segment, row, record)
        yield finding(Reason.TIME_DISORDER, where, f"a start no earlier than the end before ({previous})", got)


def _host_durations(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    duration = view.rows.ints("duration_ns", segment)
    wall = view.rows.ints("host_end_ns", segment) - view.rows.ints("host_start_ns", segment)
    bad = np.flatnonzero((duration > 0) & (duration != wall))
    if len(bad):
        row = int(bad[0])
        where = at_row("duration_ns", segment, row, record)
        expected = f"{wall[row]} ns, from host_start_ns to host_end_ns"
        yield finding(Reason.TIME_DISORDER, where, expected, f"{duration[row]} ns ({rows_of(bad)})")


def _waits(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    """Compare what the host waits beyond the events, and then for the device, between the arms of a point."""
    duration = view.rows.ints("duration_ns", segment)
    wall = view.rows.ints("host_end_ns", segment) - view.rows.ints("host_start_ns", segment)
    bad = np.flatnonzero(duration > wall * 1.001 + 1000)
    if len(bad):
        row = int(bad[0])
        where = at_row("duration_ns", segment, row, record)
        yield finding(
            Reason.ESCAPED_WORK,
            where,
            f"events of at most the {wall[row]} ns of host time",
            f"{duration[row]} ns ({rows_of(bad)})",
        )
        return
    what = "a host that waits {} ns beyond the events"
    yield from _standing_out(view, record, segment, wall - duration, what, lambda whole: whole + _ESCAPED_NS)
    what, post = "a device that is idle {} ns after the stop event (post_sync)", view.rows.ints("post_sync_ns", segment)
    yield from _standing_out(view, record, segment, post, what, lambda whole: max(_ESCAPED_NS, 0.05 * whole))


def _standing_out(
    view: View,
    record: ProcessRecord,
    segment: Segment,
    times: NDArray[np.int64],
    what: str,
    most: Callable[[float], float],
) -> Iterator[Finding]:
    """Find arms whose times beyond the events are not those of the other arms; beyond ``most`` of a duration, validator.checks.physics says it."""
    duration, layout = view.rows.ints("duration_ns", segment), view.rows.layout
    points: dict[int, dict[int, tuple[float, float]]] = {}
    for cell, rows in view.rows.by_cell(segment):
        whole, middle = float(np.median(duration[rows])), float(np.median(times[rows]))
        if middle > most(whole):
            continue
        slack = _WAIT_NS + _WAIT_SHARE * whole + _SCATTERS * float(np.median(np.abs(times[rows] - middle)))
        point, arm = divmod(cell, len(layout.arms))
        points.setdefault(point, {})[arm] = (middle, slack)
    for point, arms in points.items():
        if len(arms) < _LEAST_ARMS:
            continue
        typical = float(np.median([middle for middle, _ in arms.values()]))
        for arm, (middle, slack) in arms.items():
            if abs(middle - typical) > slack:
                where = f"{record.name} point={layout.points[point]} arm={layout.arms[arm]}"
                expected = f"{what.format(f'{typical:.0f}')}, as for the other arms, give or take {slack:.0f} ns"
                yield finding(Reason.ESCAPED_WORK, where, expected, f"{middle:.0f} ns")


def _repeated(view: View) -> Iterator[Finding]:
    """Find durations of an arm at a point that stand in two processes or attempts, one after the other."""
    seen: dict[tuple[int, str], str] = {}
    for record, segment in view.records():
        if record.environment.device == "fake":
            continue
        duration = view.rows.ints("duration_ns", segment)
        for cell, rows in view.rows.by_cell(segment):
            mine = duration[rows]
            if len(mine) < _LEAST_ROWS or len(np.unique(mine)) < _LEAST_VALUES:
                continue
            first = seen.setdefault((cell, sha256(mine.tobytes())), record.name)
            if first != record.name:
                point, arm = divmod(cell, len(view.rows.layout.arms))
                where = f"{record.name} point={view.rows.layout.points[point]} arm={view.rows.layout.arms[arm]}"
                yield finding(
                    Reason.ROWS_DUPLICATED, where, "durations of its own", f"{len(mine)} durations, those of {first}"
                )
                return


def _restarts(view: View) -> Iterator[Finding]:
    """Compare the end of every process with the start of the next one."""
    bundle = view.bundle
    known = [(record, segment) for record, segment in view.records() if segment.stop > segment.start]
    earlier = []
    for (_, before), (record, after) in pairwise(known):
        end = int(view.rows.ints("host_end_ns", before)[-1])
        start = int(view.rows.ints("host_start_ns", after)[0])
        if start < end:
            earlier.append((record, after, end, start))
    run = bundle.manifest.run_id if bundle.manifest else None
    resumed = sum(entry.run_id == run and entry.event == "resume" for entry in bundle.ledger or ())
    if len(earlier) > resumed:
        record, segment, end, start = earlier[0]
        where = at_row("host_start_ns", segment, 0, record)
        times = "time" if len(earlier) == 1 else "times"
        got = f"{start} ({len(earlier)} {times} in the run, {resumed} resumptions in the ledger)"
        yield finding(Reason.TIME_DISORDER, where, f"a start after the process before ended ({end})", got)


def _run(view: View) -> Iterator[Finding]:
    """Check the UTC times of processes against each other, the ledger and the host's clock."""
    bundle = view.bundle
    run = bundle.manifest.run_id if bundle.manifest else None
    own = {entry.event: entry.utc for entry in bundle.ledger or () if entry.run_id == run}
    previous, last = own.get("start"), own.get("end")
    what = "the start of the run in the ledger"
    before: tuple[datetime, int] | None = None  # start and last host time of the process before
    for record, segment in view.records():
        started, ended = record.started, record.ended
        if started is None:
            continue
        if previous is not None and started < previous - _SPARE:
            expected = f"no earlier than {what} ({_utc(previous)})"
            yield finding(Reason.TIME_DISORDER, f"{record.name}:started_utc", expected, _utc(started))
        if ended is None:
            continue
        previous, what = ended, f"the end of {record.name}"
        if last is not None and ended > last + _SPARE:
            expected = f"no later than the end of the run in the ledger ({_utc(last)})"
            yield finding(Reason.TIME_DISORDER, f"{record.name}:ended_utc", expected, _utc(ended))
        if segment.stop > segment.start and record.environment.device != "fake":
            start, end = (
                int(view.rows.ints("host_start_ns", segment)[0]),
                int(view.rows.ints("host_end_ns", segment)[-1]),
            )
            ran = max(ended - started, timedelta(0))
            yield from _span(f"samples.parquet:host_end_ns[{segment.stop - 1}] {record.name}", end - start, ran)
            if before is not None and start > before[1]:
                gap = max(ended - before[0], timedelta(0))
                where = f"samples.parquet:host_start_ns[{segment.start}] {record.name}"
                yield from _span(where, start - before[1], gap)
            before = (started, end)
        if ended < started - _SPARE:
            expected = f"no earlier than started_utc ({_utc(started)})"
            yield finding(Reason.TIME_DISORDER, f"{record.name}:ended_utc", expected, _utc(ended))


def _span(where: str, host_ns: int, utc: timedelta) -> Iterator[Finding]:
    """Hold a time of the host's clock against what UTC says."""
    seconds, limit = host_ns / 1e9, (utc + _SPARE).total_seconds()
    if seconds > limit:
        yield finding(Reason.TIME_DISORDER, where, f"host times over at most {limit:.0f} s", f"{seconds:.0f} s")


def _utc(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def _ticks(view: View) -> Iterator[Finding]:
    """Name the first row that is off the clock's steps, where most rows are on them: those recorded, or else those found."""
    step = _step(view)
    records = [(record, segment, view.rows.ints("duration_ns", segment)) for record, segment in view.records()]
    for recorded in (True, False):
        total, off = 0, []
        for record, segment, duration in records:
            tick = max(record.clock_tick_ns, step) if recorded else step
            if tick < _LEAST_TICK_NS:
                continue
            rest = duration % tick
            away = np.minimum(rest, tick - rest) > 0.5 + np.abs(duration) * _FLOAT32
            total += len(duration)
            off.append((record, segment, duration, np.flatnonzero(away & (duration > 0)), tick))
        count = sum(len(rows) for *_, rows, _ in off)
        if 2 * count >= total:
            continue
        for record, segment, duration, rows, tick in off:
            if len(rows):
                where = at_row("duration_ns", segment, int(rows[0]), record)
                got = f"{duration[rows[0]]} ns ({count} of {total} rows of the bundle are off)"
                yield finding(Reason.TICK_MISMATCH, where, f"a multiple of {tick} ns, the clock's step", got)
                break
        return


def _step(view: View) -> int:
    """Give the step that most arms' durations are whole multiples of; 1 where there is none."""
    common: dict[int, int] = {}
    arms = view.rows.arm
    duration = view.rows.columns["duration_ns"].astype(np.int64)
    exact = (duration > 0) & (duration < _EXACT_NS)
    for arm in range(len(view.rows.layout.arms)):
        mine = np.unique(duration[exact & (arms == arm)])
        if len(mine) >= _LEAST_STEPS:  # a few values may have more in common by chance
            common[arm] = int(np.gcd.reduce(mine))
    steps = sorted(common.values())
    return steps[len(steps) // 2] if steps else 1
