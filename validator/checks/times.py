"""Times: what the clocks said can have been said by clocks, and by those of one run.

Rules (results/README.md):
1. Host times ascend within a process, and from one process to the next; a machine that was started again between them
   starts anew, but no more often than the ledger has resumptions.
2. On the host clock a duration is the time between its host times.
3. Processes run one after the other between the ledger's start and end; none has host times for longer than it ran. UTC is
   set by people and servers: a minute is left for that.
4. An event clock counts in steps of ``clock_tick_ns``: where most durations of a bundle are whole steps, all are. The
   driver's milliseconds are float32, so a duration may lie off its step by as much as that rounds.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np

from validator.checks.words import at_row, finding, rows_of
from validator.findings import Finding
from validator.reading.processes import ProcessRecord
from validator.reading.rows import Segment, View
from validator.reasons import Reason

_SPARE = timedelta(minutes=1)
_LEAST_TICK_NS = 8
_FLOAT32 = 2.0**-23


def check_times(view: View) -> Iterator[Finding]:
    """Check host times, UTC times and the steps of the clock."""
    for record, segment in view.records():
        disorder = list(_disorder(view, record, segment))
        yield from disorder
        if view.protocol.clock == "host" and not disorder:
            yield from _host_durations(view, record, segment)
    yield from _restarts(view)
    yield from _run(view)
    if view.protocol.clock == "cuda-event":
        yield from _ticks(view)


def _disorder(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    start, end = view.rows.ints("host_start_ns", segment), view.rows.ints("host_end_ns", segment)
    post = view.rows.ints("post_sync_ns", segment)
    backwards = (end < start) | (post < 0)
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
        if ended < started:
            expected = f"no earlier than started_utc ({_utc(started)})"
            yield finding(Reason.TIME_DISORDER, f"{record.name}:ended_utc", expected, _utc(ended))
        elif segment.stop > segment.start and record.environment.device != "fake":
            yield from _span(view, record, segment, ended - started)


def _span(view: View, record: ProcessRecord, segment: Segment, ran: timedelta) -> Iterator[Finding]:
    start, end = view.rows.ints("host_start_ns", segment)[0], view.rows.ints("host_end_ns", segment)[-1]
    seconds, limit = int(end - start) / 1e9, (ran + _SPARE).total_seconds()
    if seconds > limit:
        where = f"samples.parquet:host_end_ns[{segment.stop - 1}] {record.name}"
        yield finding(Reason.TIME_DISORDER, where, f"host times over at most {limit:.0f} s", f"{seconds:.0f} s")


def _utc(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def _ticks(view: View) -> Iterator[Finding]:
    """Name the first row of every arm that is off the clock's steps, where most rows are on them."""
    total, off = 0, []
    for record, segment in view.records():
        tick = record.clock_tick_ns
        if tick < _LEAST_TICK_NS:
            continue
        duration = view.rows.ints("duration_ns", segment)
        rest = duration % tick
        away = np.minimum(rest, tick - rest) > 0.5 + np.abs(duration) * _FLOAT32
        total += len(duration)
        rows = np.flatnonzero(away & (duration > 0))
        off.append((record, segment, duration, rows))
    count = sum(len(rows) for *_, rows in off)
    if 2 * count >= total:
        return
    for record, segment, duration, rows in off:
        if len(rows):
            where = at_row("duration_ns", segment, int(rows[0]), record)
            got = f"{duration[rows[0]]} ns ({count} of {total} rows of the bundle are off)"
            yield finding(Reason.TICK_MISMATCH, where, f"a multiple of clock_tick_ns, {record.clock_tick_ns} ns", got)
            return
