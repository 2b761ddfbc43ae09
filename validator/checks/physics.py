"""Physics: what was recorded can have happened.

Rules (results/README.md and protocols/README.md):
1. Durations are positive; times agree with each other (``validator.checks.times``).
2. On a CUDA clock the stream was blocked, no work escaped the events, and rotated weights exceed the cache, which is no smaller
   than that of the GPU that is named, where its size is known.
3. No time is shorter than its bytes take at the locked peak.
4. A delay stands in timed rows of the positive control alone, in all of them, and is the one that the protocol derives from
   the baseline's warm-up in that process and point.
5. What was timed was correct: the locked tolerances are applied again to the logged errors.
6. Hundreds of readings of a GPU under load are not all the same: locked clocks do not lock temperature and power.
Checks that have no subject are listed as not applicable; nothing here drops a row.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from validator.checks.integrity import Outcome
from validator.checks.times import check_times
from validator.checks.words import at_row, finding, first, rows_of
from validator.findings import Finding, NotApplicable
from validator.reading.model import Arm
from validator.reading.processes import ProcessRecord
from validator.reading.routing import bytes_of_arm
from validator.reading.rows import Segment, View
from validator.reading.schema import FLUSH
from validator.reading.tables import Frame
from validator.reasons import Reason

_SPARE_NS = 100_000
_POST_SYNC_NS = 50_000  # a device synchronise behind the stop event takes 10 to 50 us of a quiet host
_DOSE = 1.5
_READINGS = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")
_LEAST_READINGS = 200
_MIB = 1 << 20
_LEAST_L2 = {  # some drivers say 60 MiB for 50; a part of a GPU (MIG) has less
    **dict.fromkeys(("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"), 50 * _MIB),
    **dict.fromkeys(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"), 40 * _MIB),
}
_WHOLE_LAYER = ("baseline", "candidate", "comparator", "aa_control", "positive_control")


def check_physics(view: View, not_applicable: list[NotApplicable]) -> Outcome:
    """Check times, stream, cache, floor, injections and errors."""
    findings: list[Finding] = list(check_times(view))
    notes: list[str] = []
    protocol = view.protocol
    cuda = protocol.clock == "cuda-event"
    for record, segment in view.records():
        findings.extend(_durations(view, record, segment))
        findings.extend(_injections(view, record, segment))
        findings.extend(_doses(view, record, segment))
        if cuda:
            findings.extend(_blocked(view, record, segment))
        findings.extend(_groups(view, record, segment))
    if not cuda:
        for check in ("stream blocked", "escaped work", "cold cache"):
            not_applicable.append(NotApplicable(check=check, why="the clock is host"))
    if protocol.peak_gb_per_s is None:
        not_applicable.append(NotApplicable(check="physical floor", why="no locked peak"))
    if protocol.cache == "cold-rotate":
        shortfalls = list(_cache(view))
        if cuda:
            findings.extend(shortfalls)
        else:
            notes.extend(f"CACHE_MAYBE_WARM {item.where}: {item.expected}, got {item.got}" for item in shortfalls[:1])
    elif protocol.cache == "cold-flush":
        findings.extend(_flushes(view))
    elif cuda:
        not_applicable.append(NotApplicable(check="cold cache", why=f"the cache is {protocol.cache}"))
    if protocol.cache in ("cold-rotate", "cold-flush"):
        findings.extend(_cache_sizes(view))
    findings.extend(_readings(view))
    correctness = view.bundle.frame("correctness")
    if correctness is not None:
        findings.extend(first(_correctness(view, correctness)))
        notes.append("errors against the truth come from the log: the locked tolerances were applied to them again")
    return Outcome(findings=tuple(findings), notes=tuple(notes))


def _durations(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    duration = view.rows.columns["duration_ns"][segment.rows].astype(np.int64, copy=False)
    bad = np.flatnonzero(duration <= 0)
    if len(bad):
        row = int(bad[0])
        where = at_row("duration_ns", segment, row, record)
        yield finding(Reason.NON_POSITIVE_DURATION, where, "more than 0 ns", f"{duration[row]} ns ({rows_of(bad)})")


def _injections(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    roles = np.array([arm.role == "positive_control" for arm in view.protocol.arms] + [False])
    dosed = roles[view.rows.arm[segment.rows]] & ~view.rows.flags("warmup", segment)
    injected = view.rows.ints("injected_ns", segment)
    bad = np.flatnonzero(np.where(dosed, injected <= 0, injected != 0))
    if len(bad):
        row = int(bad[0])
        expected = "more than 0 ns (positive control)" if dosed[row] else "0 ns"
        where = at_row("injected_ns", segment, row, record)
        yield finding(Reason.INJECTION_MISMATCH, where, expected, f"{injected[row]} ns ({rows_of(bad)})")


def _doses(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    """The delay is 1.5 x margin x the median of the baseline's warm-up, of the same process and point, rounded."""
    layout, roles = view.rows.layout, [arm.role for arm in view.protocol.arms]
    baseline = roles.index("baseline")
    warmup, injected = view.rows.flags("warmup", segment), view.rows.ints("injected_ns", segment)
    point, arm = view.rows.point[segment.rows], view.rows.arm[segment.rows]
    duration = view.rows.ints("duration_ns", segment)
    dosed = np.isin(arm, [at for at, role in enumerate(roles) if role == "positive_control"]) & ~warmup
    for at, name in enumerate(layout.points):
        warm = duration[warmup & (arm == baseline) & (point == at)]
        rows = np.flatnonzero(dosed & (point == at) & (injected > 0))
        if not len(warm) or not len(rows):
            continue
        expected = round(_DOSE * view.protocol.margin * float(np.median(warm)))
        bad = rows[np.abs(injected[rows] - expected) > 1]
        if len(bad):
            where = f"{at_row('injected_ns', segment, int(bad[0]), record)} point={name}"
            wanted = f"{expected} ns, from {len(warm)} warm-up samples of the baseline"
            yield finding(Reason.INJECTION_MISMATCH, where, wanted, f"{injected[bad[0]]} ns ({rows_of(bad)})")


def _blocked(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    bad = np.flatnonzero(~view.rows.flags("warmup", segment) & ~view.rows.flags("blocked", segment))
    if len(bad):
        where = at_row("blocked", segment, int(bad[0]), record)
        yield finding(Reason.STREAM_NOT_BLOCKED, where, "true in timed rows", f"false ({rows_of(bad)})")


def _groups(view: View, record: ProcessRecord, segment: Segment) -> Iterator[Finding]:
    """Check what is judged per (process, point, arm): escaped work and the physical floor."""
    cuda, peak = view.protocol.clock == "cuda-event", view.protocol.peak_gb_per_s
    layout = view.rows.layout
    cells = [(*divmod(cell, len(layout.arms)), rows) for cell, rows in view.rows.by_cell(segment, timed=True)]
    waits = _waits_of_host(view, segment, cells) if cuda else {}
    for point, arm, rows in cells:
        where = f"{record.name} point={layout.points[point]} arm={layout.arms[arm]}"
        if cuda:
            yield from _escaped(view, segment, rows, where, waits[point])
        if peak is not None:
            yield from _floor(view, segment, rows, where, view.protocol.arms[arm], layout.points[point], peak)


def _waits_of_host(view: View, segment: Segment, cells: list[tuple[int, int, NDArray[np.intp]]]) -> dict[int, float]:
    """What a synchronise takes of the host by itself, by point: the least median among the arms, which take turns."""
    post = view.rows.ints("post_sync_ns", segment)
    medians: dict[int, list[float]] = {}
    for point, _, rows in cells:
        medians.setdefault(point, []).append(float(np.median(post[rows])))
    return {point: min(found) for point, found in medians.items()}


def _escaped(view: View, segment: Segment, rows: NDArray[np.intp], where: str, wait: float) -> Iterator[Finding]:
    duration = view.rows.ints("duration_ns", segment)[rows]
    host = (view.rows.ints("host_end_ns", segment) - view.rows.ints("host_start_ns", segment))[rows]
    post = float(np.median(view.rows.ints("post_sync_ns", segment)[rows]))
    whole = float(np.median(duration))
    slow_host = min(2 * min(wait, _POST_SYNC_NS), 0.25 * whole)
    limit = max(_POST_SYNC_NS, 0.05 * whole, slow_host)
    total, wall = int(duration.sum()), int(host.sum())
    least = 0.5 * (wall - len(rows) * _SPARE_NS)
    if post > limit:
        yield finding(Reason.ESCAPED_WORK, where, f"a median post_sync of at most {limit:.0f} ns", f"{post:.0f} ns")
    elif total > wall:
        yield finding(Reason.ESCAPED_WORK, where, f"events of at most {wall} ns of host time", f"{total} ns")
    elif total < least:
        share = f"{total} ns, {100 * total / wall:.1f} % of host time"
        yield finding(Reason.ESCAPED_WORK, where, f"events of at least {least:.0f} ns ({wall} ns of host time)", share)


def _floor(
    view: View, segment: Segment, rows: NDArray[np.intp], where: str, arm: Arm, point: str, peak: float
) -> Iterator[Finding]:
    counted = bytes_of_arm(arm, view.layer[point]).unique
    if counted is None:
        return
    duration = view.rows.ints("duration_ns", segment)[rows]
    whole = arm.calls * counted / peak
    below = np.flatnonzero(duration < 0.9 * whole)
    median = float(np.median(duration))
    if len(below):
        least, rate = int(duration[below].min()), ""
        if least > 0:
            implied = arm.calls * counted / least
            rate = f", {implied:.0f} GB/s, {implied / peak:.2f} times the peak"
        got = f"{least} ns in the shortest of {len(below)} rows{rate}"
        yield finding(Reason.BELOW_FLOOR, where, f"at least {0.9 * whole:.0f} ns at {peak:g} GB/s", got)
    elif median < whole / 1.03:
        got = f"a median of {median:.0f} ns"
        yield finding(Reason.BELOW_FLOOR, where, f"a median of at least {whole / 1.03:.0f} ns at {peak:g} GB/s", got)


def _cache(view: View) -> Iterator[Finding]:
    protocol = view.protocol
    multiple = protocol.min_l2_multiple or 0.0
    for record in view.bundle.processes or ():
        if not record.environment.known:
            continue
        copies = dict(record.copies)
        for point in protocol.points:
            for arm in protocol.arms_at(point.id):
                unique = view.layer[point.id].unique
                if arm.role not in _WHOLE_LAYER or unique is None:
                    continue
                rotated = min(copies.get(point.id, 0), arm.calls) * unique
                if rotated < multiple * record.l2_bytes:
                    where = f"{record.name} point={point.id} arm={arm.name}"
                    expected = f"at least {multiple:g} x {record.l2_bytes} bytes of rotated weights"
                    yield finding(Reason.CACHE_NOT_COLD, where, expected, f"{rotated} bytes")
                    break


def _cache_sizes(view: View) -> Iterator[Finding]:
    for record in view.bundle.processes or ():
        gpu = record.environment
        least = 1 if gpu.mig else _LEAST_L2.get(str(gpu.gpu), 1)
        if gpu.device == "cuda" and record.l2_bytes < least:
            expected = f"a cache of at least {least} bytes for {gpu.gpu}"
            yield finding(Reason.CACHE_NOT_COLD, f"{record.name}:l2_bytes", expected, f"{record.l2_bytes} bytes")
            return


def _readings(view: View) -> Iterator[Finding]:
    frame = view.bundle.frame("telemetry")
    cuda = any(record.environment.device == "cuda" for record in view.bundle.processes or ())
    if not cuda or frame is None or frame.rows < _LEAST_READINGS:
        return
    if all(np.ptp(frame.numbers[name].astype(np.float64)) == 0 for name in _READINGS):
        got = ", ".join(f"{name} {frame.numbers[name][0]}" for name in _READINGS)
        expected = "readings of which two differ in clock, temperature or power"
        yield finding(Reason.TELEMETRY_FROZEN, "telemetry.parquet", expected, f"{frame.rows} rows of {got}")


def _flushes(view: View) -> Iterator[Finding]:
    """A flush writes twice the cache: that takes its time at the locked peak."""
    peak = view.protocol.peak_gb_per_s
    if FLUSH.name not in view.rows.columns or peak is None:
        return
    for record, segment in view.records():
        flush = view.rows.ints(FLUSH.name, segment)
        least = 0.9 * 2 * record.l2_bytes / peak
        bad = np.flatnonzero((flush <= 0) | (flush < least))
        if len(bad):
            where = at_row(FLUSH.name, segment, int(bad[0]), record)
            expected = f"at least {least:.0f} ns for twice {record.l2_bytes} bytes at {peak:g} GB/s"
            yield finding(Reason.CACHE_NOT_COLD, where, expected, f"{flush[bad[0]]} ns ({rows_of(bad)})")


def _correctness(view: View, frame: Frame) -> Iterator[Finding]:
    layout = view.rows.layout
    timed = set()
    for record, segment in view.records():
        for cell in view.rows.timed_cells(segment):
            at, number = divmod(cell, len(layout.arms))
            timed.add((record.process, record.attempt, layout.points[at], layout.arms[number]))
    tolerances = {arm.name: view.protocol.tolerance_of(arm) for arm in view.protocol.arms}
    for row in range(frame.rows):
        point, arm_name = frame.text("point", row), frame.text("arm", row)
        if (*frame.process(row), point, arm_name) not in timed:
            continue
        tolerance = tolerances[arm_name]
        if frame.text("truth", row) != tolerance.truth:
            continue
        cosine, error = frame.real("min_cosine", row), frame.real("rel_error", row)
        if not (cosine >= tolerance.min_cosine and error <= tolerance.max_rel_error):
            where = f"correctness.parquet[{row}] process={frame.integer('process', row)} point={point} arm={arm_name}"
            expected = f"min_cosine >= {tolerance.min_cosine!r}, rel_error <= {tolerance.max_rel_error!r}"
            got = f"min_cosine {cosine!r}, rel_error {error!r}"
            yield finding(Reason.CORRECTNESS_FAILED, where, expected, got)
