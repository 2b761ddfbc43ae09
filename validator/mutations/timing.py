"""Changes of samples that a careful tamperer would make: host times and sequence numbers follow."""

from collections.abc import Iterable, Mapping
from typing import Any

from validator.mutations.workspace import NoSubjectError, WorkingCopy


def subject(copy: WorkingCopy) -> dict[str, Any]:
    """Process and attempt of the last process that ended well."""
    rows = copy.table("processes").select(["process", "attempt", "status"]).to_pylist()
    last = next((row for row in reversed(rows) if row["status"] == "ok"), None)
    if last is None:
        raise NoSubjectError("no process ended well")
    return {"process": last["process"], "attempt": last["attempt"]}


def arm_with(copy: WorkingCopy, role: str) -> str:
    """The first arm of a role."""
    for arm in copy.protocol()["arm"]:
        if arm["role"] == role:
            return str(arm["name"])
    raise NoSubjectError(f"no arm is {role}")


def subject_rows(copy: WorkingCopy, role: str, *, warmup: bool = False) -> list[int]:
    """Rows of samples of an arm, at one point of the last process that ended well."""
    rows = copy.rows("samples", **subject(copy), arm=arm_with(copy, role), warmup=warmup)
    if not rows:
        raise NoSubjectError(f"no rows of the {role}")
    points = copy.column("samples", "point")
    return [row for row in rows if points[row] == points[rows[0]]]


def timed_rows(copy: WorkingCopy) -> list[int]:
    """Timed rows of the processes that ended well: elsewhere a shorter record is an honest one."""
    processes = copy.table("processes").select(["process", "attempt", "status"]).to_pylist()
    ended = {(row["process"], row["attempt"]) for row in processes if row["status"] == "ok"}
    keys = list(zip(copy.column("samples", "process"), copy.column("samples", "attempt"), strict=True))
    rows = [row for row in copy.rows("samples", warmup=False) if keys[row] in ended]
    if not rows:
        raise NoSubjectError("no process ended well")
    return rows


def retime(copy: WorkingCopy, durations: Mapping[int, int]) -> None:
    """Give rows new durations, in whole steps of the clock; their host times follow, and so do those of every later row of the process."""
    old, step = copy.column("samples", "duration_ns"), tick(copy)
    new = [round(durations[row] / step) * step if row in durations else duration for row, duration in enumerate(old)]
    shift_host_times(copy, {row: new[row] - old[row] for row in durations})
    copy.set_columns("samples", duration_ns=new)


def tick(copy: WorkingCopy) -> int:
    """The step of the event clock; 1 ns on a host."""
    if copy.protocol()["timing"]["clock"] == "host":
        return 1
    return int(max(copy.column("processes", "clock_tick_ns")))


def scale(copy: WorkingCopy, rows: Iterable[int], factor: float) -> None:
    """Multiply the durations of rows."""
    durations = copy.column("samples", "duration_ns")
    retime(copy, {row: round(durations[row] * factor) for row in rows})


def shift_host_times(copy: WorkingCopy, later: Mapping[int, int]) -> None:
    """Let rows end later by so many nanoseconds, and every later row of the process start and end later by the sum."""
    processes, attempts = copy.column("samples", "process"), copy.column("samples", "attempt")
    starts, ends = copy.column("samples", "host_start_ns"), copy.column("samples", "host_end_ns")
    shifts: dict[tuple[int, int], int] = {}
    for row, key in enumerate(zip(processes, attempts, strict=True)):
        starts[row] += shifts.get(key, 0)
        shifts[key] = shifts.get(key, 0) + later.get(row, 0)
        ends[row] += shifts[key]
    copy.set_columns("samples", host_start_ns=starts, host_end_ns=ends)


def renumber(copy: WorkingCopy) -> None:
    """Count seq from 0 again, per process and attempt."""
    counts: dict[tuple[int, int], int] = {}
    seqs: list[int] = []
    for key in zip(copy.column("samples", "process"), copy.column("samples", "attempt"), strict=True):
        seqs.append(counts.get(key, 0))
        counts[key] = seqs[-1] + 1
    copy.set_columns("samples", seq=seqs)
