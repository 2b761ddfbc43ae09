"""Records of what cannot have happened, and of controls that betray the instrument; resealed, host times following."""

import math
from datetime import datetime, timedelta

from validator.mutations.mutation import all_of, collected, having, mutation, several_processes, with_roles, with_rows
from validator.mutations.timing import arm_with, retime, scale, shift_host_times, subject, subject_rows, tick
from validator.mutations.workspace import NoSubjectError, WorkingCopy
from validator.reasons import Reason

CUDA = having(clock="cuda-event")


@mutation(Reason.NON_POSITIVE_DURATION, reseal=True)
def duration_zero(copy: WorkingCopy) -> None:
    """A duration is zero."""
    retime(copy, {subject_rows(copy, "candidate")[-1]: 0})


@mutation(Reason.NON_POSITIVE_DURATION, reseal=True)
def duration_negative(copy: WorkingCopy) -> None:
    """A duration is negative."""
    copy.set_values("samples", subject_rows(copy, "candidate")[-1:], duration_ns=-1)


@mutation(Reason.TIME_DISORDER, reseal=True)
def host_times_exchanged(copy: WorkingCopy) -> None:
    """A sample ends before it starts."""
    row = subject_rows(copy, "candidate")[-1]
    start, end = copy.column("samples", "host_start_ns")[row], copy.column("samples", "host_end_ns")[row]
    copy.set_values("samples", [row], host_start_ns=end, host_end_ns=start)


@mutation(Reason.TIME_DISORDER, reseal=True)
def host_times_overlap(copy: WorkingCopy) -> None:
    """A sample starts while its predecessor runs."""
    row = subject_rows(copy, "candidate")[-1]
    copy.set_values("samples", [row], host_start_ns=copy.column("samples", "host_start_ns")[row - 1])


@mutation(Reason.TIME_DISORDER, reseal=True, applies_to=having(clock="host"))
def duration_shorter_than_its_host_times(copy: WorkingCopy) -> None:
    """The candidate's durations are 3 % shorter, and its host times are left as they were."""
    durations = copy.column("samples", "duration_ns")
    for row in copy.rows("samples", arm=arm_with(copy, "candidate")):
        durations[row] = round(0.97 * durations[row])
    copy.set_columns("samples", duration_ns=durations)


@mutation(Reason.TIME_DISORDER, reseal=True, applies_to=several_processes)
def process_of_another_time(copy: WorkingCopy) -> None:
    """The last process has the host times of the first one, as one has that was taken from another run."""
    starts, ends = copy.column("samples", "host_start_ns"), copy.column("samples", "host_end_ns")
    rows = copy.rows("samples", **subject(copy))
    back = starts[rows[0]] - starts[0]
    for row in rows:
        starts[row], ends[row] = starts[row] - back, ends[row] - back
    copy.set_columns("samples", host_start_ns=starts, host_end_ns=ends)


@mutation(Reason.TIME_DISORDER, reseal=True)
def process_of_yesterday(copy: WorkingCopy) -> None:
    """The first process ran a day before the run was started."""
    times = {name: copy.column("processes", name)[0] for name in ("started_utc", "ended_utc")}
    earlier = {name: _earlier(time) for name, time in times.items()}
    copy.set_values("processes", [0], **earlier)


@mutation(Reason.TIME_DISORDER, reseal=True)
def process_ended_before_it_started(copy: WorkingCopy) -> None:
    """The last process ended a day before it started."""
    last = len(copy.column("processes", "process")) - 1
    copy.set_values("processes", [last], ended_utc=_earlier(copy.column("processes", "started_utc")[last]))


@mutation(Reason.TIME_DISORDER, reseal=True)
def process_after_the_end(copy: WorkingCopy) -> None:
    """The last process ended a day after the end of the run."""
    last = len(copy.column("processes", "process")) - 1
    copy.set_values("processes", [last], ended_utc=_earlier(copy.column("processes", "ended_utc")[last], days=-1))


@mutation(Reason.TIME_DISORDER, reseal=True)
def host_times_longer_than_the_process(copy: WorkingCopy) -> None:
    """The last sample of the last process waited for an hour, in a process that ran for less."""
    if copy.read_environment(0)["device"] == "fake":
        raise NoSubjectError("the time of a scripted device is not the host's")
    shift_host_times(copy, {copy.rows("samples", **subject(copy))[-1]: 3_600_000_000_000})


@mutation(Reason.TICK_MISMATCH, reseal=True, applies_to=CUDA)
def durations_scaled_off_the_clock(copy: WorkingCopy) -> None:
    """The candidate's durations are 3 % shorter, to the nanosecond, and its host times follow."""
    if tick(copy) < 8:
        raise NoSubjectError("the clock counts in finer steps")
    durations = copy.column("samples", "duration_ns")
    shorter = {row: round(0.97 * durations[row]) for row in copy.rows("samples", arm=arm_with(copy, "candidate"))}
    shift_host_times(copy, {row: new - durations[row] for row, new in shorter.items()})
    copy.set_columns("samples", duration_ns=[shorter.get(row, old) for row, old in enumerate(durations)])


@mutation(Reason.TICK_MISMATCH, reseal=True, applies_to=CUDA)
def durations_scaled_under_a_coarse_clock(copy: WorkingCopy) -> None:
    """The same, and the clock is said to count in steps that no duration keeps to."""
    if copy.read_environment(0)["device"] == "fake":
        raise NoSubjectError("a scripted device repeats too few durations to show its step")
    durations_scaled_off_the_clock.apply(copy)
    copy.set_columns("processes", clock_tick_ns=[1_000_003] * len(copy.column("processes", "clock_tick_ns")))


@mutation(Reason.STREAM_NOT_BLOCKED, reseal=True, applies_to=CUDA)
def stream_not_blocked(copy: WorkingCopy) -> None:
    """One timed sample began before all of it was enqueued."""
    copy.set_values("samples", subject_rows(copy, "candidate")[-1:], blocked=False)


@mutation(Reason.ESCAPED_WORK, reseal=True, applies_to=CUDA)
def work_after_the_stop_event(copy: WorkingCopy) -> None:
    """The device is still busy long after the candidate's stop events."""
    rows, durations = subject_rows(copy, "candidate"), copy.column("samples", "duration_ns")
    syncs = copy.column("samples", "post_sync_ns")
    for row in rows:
        syncs[row] = durations[row] + 100_000
    copy.set_columns("samples", post_sync_ns=syncs)


@mutation(Reason.ESCAPED_WORK, reseal=True, applies_to=CUDA)
def end_of_the_work_after_the_stop_event(copy: WorkingCopy) -> None:
    """The candidate's durations are shorter by 60 us and 2 %, in whole steps of the clock, and the device is busy for so long after them."""
    durations, syncs, step = copy.column("samples", "duration_ns"), copy.column("samples", "post_sync_ns"), tick(copy)
    rows = copy.rows("samples", **subject(copy), arm=arm_with(copy, "candidate"))
    if min(durations[row] for row in rows) < 500_000:
        raise NoSubjectError("samples are too short: a synchronise takes as much")
    late = {row: round((60_000 + 0.02 * durations[row]) / step) * step for row in rows}
    copy.set_columns("samples", post_sync_ns=[sync + late.get(row, 0) for row, sync in enumerate(syncs)])
    retime(copy, {row: durations[row] - more for row, more in late.items()})


@mutation(Reason.ESCAPED_WORK, reseal=True, applies_to=CUDA)
def work_outside_the_events(copy: WorkingCopy) -> None:
    """The host waits several times as long as the candidate's events say."""
    durations = copy.column("samples", "duration_ns")
    shift_host_times(copy, {row: 3 * durations[row] + 300_000 for row in subject_rows(copy, "candidate")})


@mutation(Reason.ESCAPED_WORK, reseal=True, applies_to=CUDA)
def events_longer_than_the_host_waited(copy: WorkingCopy) -> None:
    """The baseline's durations are tripled, but the host did not wait so long."""
    durations = copy.column("samples", "duration_ns")
    starts, ends = copy.column("samples", "host_start_ns"), copy.column("samples", "host_end_ns")
    step = tick(copy)
    for row in subject_rows(copy, "baseline"):
        durations[row] = 3 * (max(durations[row], ends[row] - starts[row]) // step + 1) * step
    copy.set_columns("samples", duration_ns=durations)


@mutation(Reason.ESCAPED_WORK, reseal=True, applies_to=CUDA)
def durations_scaled_on_the_clock(copy: WorkingCopy) -> None:
    """The candidate's durations are 10 % shorter, in whole steps of the clock, and its host times are left as they were."""
    durations, step = copy.column("samples", "duration_ns"), tick(copy)
    rows = copy.rows("samples", arm=arm_with(copy, "candidate"))
    if min(durations[row] for row in rows) < 500_000:
        raise NoSubjectError("samples are too short: what a host waits beyond them is as much")
    for row in rows:
        durations[row] = round(0.9 * durations[row] / step) * step
    copy.set_columns("samples", duration_ns=durations)


@mutation(Reason.ROWS_DUPLICATED, reseal=True, applies_to=all_of(CUDA, several_processes))
def durations_of_another_process(copy: WorkingCopy) -> None:
    """The candidate has in one process the durations that it had in the first, host times following."""
    if copy.read_environment(0)["device"] == "fake":
        raise NoSubjectError("a scripted device gives every process the same durations")
    key = ("point", "block", "sample")
    table = copy.table("samples").select(["process", *key, "arm", "duration_ns"]).to_pylist()
    arm, last = arm_with(copy, "candidate"), subject(copy)["process"]
    first = {
        tuple(row[name] for name in key): row["duration_ns"]
        for row in table
        if (row["process"], row["arm"]) == (0, arm)
    }
    mine = [at for at, row in enumerate(table) if (row["process"], row["arm"]) == (last, arm)]
    retime(copy, {at: first[tuple(table[at][name] for name in key)] for at in mine})


@mutation(Reason.CACHE_NOT_COLD, reseal=True, applies_to=all_of(CUDA, having(cache="cold-rotate")))
def cache_larger(copy: WorkingCopy) -> None:
    """The device's cache is larger than all weight copies together."""
    sizes = copy.column("processes", "l2_bytes")
    copy.set_columns("processes", l2_bytes=[size * 1_000_000 for size in sizes])


@mutation(Reason.CACHE_NOT_COLD, reseal=True, applies_to=all_of(CUDA, having(cache="cold-rotate")))
def cache_left_out(copy: WorkingCopy) -> None:
    """The device is said to have no cache, which any weights exceed."""
    if copy.read_environment(0)["device"] != "cuda":
        raise NoSubjectError("a scripted device may have no cache")
    copy.set_columns("processes", l2_bytes=[0] * len(copy.column("processes", "l2_bytes")))


@mutation(Reason.CACHE_NOT_COLD, reseal=True, applies_to=all_of(CUDA, having(cache="cold-flush", has_peak=True)))
def flush_too_short(copy: WorkingCopy) -> None:
    """One flush took a nanosecond."""
    copy.set_values("samples", subject_rows(copy, "candidate")[-1:], flush_ns=1)


@mutation(Reason.BELOW_FLOOR, reseal=True, applies_to=having(has_peak=True))
def sample_below_floor(copy: WorkingCopy) -> None:
    """One sample of the candidate took half the time that its bytes take at the peak."""
    row = subject_rows(copy, "candidate")[-1]
    retime(copy, {row: round(0.5 * _floor_ns(copy, row))})


@mutation(Reason.BELOW_FLOOR, reseal=True, applies_to=having(has_peak=True))
def process_below_floor(copy: WorkingCopy) -> None:
    """All samples of the candidate in one process took 95 % of the time that their bytes take at the peak."""
    rows = subject_rows(copy, "candidate")
    retime(copy, {row: round(0.95 * _floor_ns(copy, row)) for row in rows})


@mutation(Reason.INJECTION_MISMATCH, reseal=True)
def delay_in_the_baseline(copy: WorkingCopy) -> None:
    """A delay was injected into a sample of the baseline."""
    copy.set_values("samples", subject_rows(copy, "baseline")[-1:], injected_ns=1000)


@mutation(Reason.INJECTION_MISMATCH, reseal=True, applies_to=with_roles("positive_control"))
def delay_in_a_warmup(copy: WorkingCopy) -> None:
    """A delay was injected into a warm-up sample of the positive control."""
    copy.set_values("samples", subject_rows(copy, "positive_control", warmup=True)[-1:], injected_ns=1000)


@mutation(Reason.INJECTION_MISMATCH, reseal=True, applies_to=with_roles("positive_control"))
def delay_left_out(copy: WorkingCopy) -> None:
    """A timed sample of the positive control has no delay."""
    copy.set_values("samples", subject_rows(copy, "positive_control")[-1:], injected_ns=0)


@mutation(Reason.INJECTION_MISMATCH, reseal=True, applies_to=with_roles("positive_control"))
def delay_larger_than_planned(copy: WorkingCopy) -> None:
    """The delay is 1.75 margins where 1.5 were planned, within what the dose's gate allows."""
    rows = copy.rows("samples", arm=arm_with(copy, "positive_control"), warmup=False)
    delays = copy.column("samples", "injected_ns")
    for row in rows:
        delays[row] = round(delays[row] * 1.75 / 1.5)
    copy.set_columns("samples", injected_ns=delays)


@mutation(Reason.TELEMETRY_FROZEN, reseal=True, applies_to=all_of(CUDA, with_rows("telemetry")))
def readings_all_alike(copy: WorkingCopy) -> None:
    """Every reading of the device is the first one again."""
    rows = len(copy.column("telemetry", "power_w"))
    if copy.read_environment(0)["device"] != "cuda" or rows < 200:
        raise NoSubjectError("a scripted device has no sensors, and a few readings may be alike")
    names = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttle_reasons")
    copy.set_columns("telemetry", **{name: copy.column("telemetry", name)[:1] * rows for name in names})


@mutation(Reason.CORRECTNESS_FAILED, reseal=True, applies_to=with_rows("correctness"))
def output_wrong(copy: WorkingCopy) -> None:
    """The candidate's output points elsewhere."""
    copy.set_values("correctness", _checked(copy, "candidate"), min_cosine=0.5)


@mutation(Reason.CORRECTNESS_FAILED, reseal=True, applies_to=with_rows("correctness"))
def output_inexact(copy: WorkingCopy) -> None:
    """The candidate's relative error is above its tolerance."""
    arms = copy.protocol()["arm"]
    limit = next(arm for arm in arms if arm["role"] == "candidate")["correctness"]["max_rel_error"]
    copy.set_values("correctness", _checked(copy, "candidate"), rel_error=1.01 * limit, max_abs_error=limit)


@mutation(Reason.CORRECTNESS_FAILED, reseal=True, applies_to=with_rows("correctness"))
def output_nan(copy: WorkingCopy) -> None:
    """The candidate's error is NaN, which no comparison finds too large."""
    copy.set_values("correctness", _checked(copy, "candidate"), rel_error=math.nan, max_abs_error=math.nan)


@mutation(Reason.CONTROL_FAILED, reseal=True, applies_to=with_roles("aa_control"))
def aa_control_slower(copy: WorkingCopy) -> None:
    """The A/A control took half as long again as the baseline that it is."""
    scale(copy, copy.rows("samples", arm=arm_with(copy, "aa_control"), warmup=False), 1.5)


@mutation(Reason.CONTROL_FAILED, reseal=True, applies_to=with_roles("positive_control"))
def positive_control_faster(copy: WorkingCopy) -> None:
    """All other arms took twice as long, so that the baseline with a delay is faster than the baseline."""
    delayed = arm_with(copy, "positive_control")
    scale(copy, copy.rows("samples", arm=lambda arm: arm != delayed, warmup=False), 2.0)


def _floor_ns(copy: WorkingCopy, row: int) -> float:
    """The time that the bytes of one sample of a whole-layer arm take at the locked peak."""
    point, calls = copy.column("samples", "point")[row], copy.column("samples", "calls")[row]
    unique: int = copy.read_json("protocol.lock")["bytes"][point]["unique_bytes"]
    peak: float = copy.protocol()["timing"]["peak_gb_per_s"]
    return float(calls * unique / peak)


def _earlier(utc: str, days: int = 1) -> str:
    """A UTC time so many days before."""
    time = datetime.fromisoformat(utc.replace("Z", "+00:00")) - timedelta(days=days)
    return time.isoformat().replace("+00:00", "Z")


def _checked(copy: WorkingCopy, role: str) -> list[int]:
    """The last correctness row of an arm under its own truth."""
    arm = next(arm for arm in copy.protocol()["arm"] if arm["role"] == role)
    return copy.rows("correctness", arm=arm["name"], truth=arm["correctness"]["truth"])[-1:]


MUTATIONS = collected(globals())
