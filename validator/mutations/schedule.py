"""Runs that are not what was planned; resealed, with sequence numbers that look right."""

import json
from itertools import pairwise
from typing import Any

import pyarrow as pa

from validator.mutations.mutation import all_of, collected, having, mutation, several_processes, with_roles, with_rows
from validator.mutations.provenance import add_library, edit_environment
from validator.mutations.timing import arm_with, renumber, subject, subject_rows, timed_rows
from validator.mutations.workspace import NoSubjectError, WorkingCopy
from validator.reasons import Reason

PER_PROCESS = ("samples", "processes", "telemetry", "correctness", "kernels", "repeats")


@mutation(Reason.ENVIRONMENT_DRIFT, reseal=True, applies_to=several_processes)
def environment_differs(copy: WorkingCopy) -> None:
    """One process ran on another machine."""
    edit_environment(copy, {"platform": "another-machine"}, rows=range(1))


@mutation(Reason.ENVIRONMENT_DRIFT, reseal=True, applies_to=several_processes)
def weights_differ(copy: WorkingCopy) -> None:
    """One process measured other weights."""
    copy.set_values("processes", [0], fixture_sha256="0" * 64)


@mutation(Reason.ENVIRONMENT_DRIFT, reseal=True, applies_to=several_processes)
def binaries_differ(copy: WorkingCopy) -> None:
    """One process loaded one library more."""
    add_library(copy, row=0)


@mutation(Reason.BOUNDARY_MISMATCH, reseal=True)
def event_order_differs(copy: WorkingCopy) -> None:
    """All processes timed one call less between the events than is locked."""
    orders = copy.column("processes", "event_order")
    calls = copy.protocol()["timing"]["calls_per_sample"]
    changed = [order.replace(f"call*{calls}", f"call*{calls + 1}") for order in orders]
    copy.set_columns("processes", event_order=changed)


@mutation(Reason.BOUNDARY_MISMATCH, reseal=True)
def launch_differs(copy: WorkingCopy) -> None:
    """All processes launched in another way than is locked."""
    other = "eager" if copy.protocol()["timing"]["launch"] == "graph" else "graph"
    copy.set_columns("processes", launch=[other] * len(copy.column("processes", "launch")))


@mutation(Reason.BOUNDARY_MISMATCH, reseal=True)
def clock_differs(copy: WorkingCopy) -> None:
    """One process read another clock than is locked."""
    other = "cuda-event" if copy.protocol()["timing"]["clock"] == "host" else "host"
    copy.set_values("processes", [0], clock=other)


@mutation(Reason.BOUNDARY_MISMATCH, reseal=True)
def copies_fewer(copy: WorkingCopy) -> None:
    """All processes rotated fewer copies of the weights than are locked."""
    points = json.loads(copy.column("processes", "copies")[0])
    fewer = json.dumps(dict.fromkeys(points, copy.protocol()["fixture"]["copies"] - 1 or 7))
    copy.set_columns("processes", copies=[fewer] * len(copy.column("processes", "copies")))


@mutation(Reason.PROCESS_MISSING, reseal=True)
def interrupted_and_never_resumed(copy: WorkingCopy) -> None:
    """A process that was measured twice: the slower one is called interrupted, and the ledger has no resumption."""
    last = subject(copy)
    for name in PER_PROCESS:
        table = copy.table(name)
        mine = copy.rows(name, **last)
        again = table.take(pa.array(mine, type=pa.int64()))
        index = table.schema.get_field_index("attempt")
        later = pa.array([last["attempt"] + 1] * len(mine), type=table.schema.field(index).type)
        copy.write_table(name, pa.concat_tables([table, again.set_column(index, table.schema.field(index), later)]))
    rows = copy.rows("processes", **last)
    copy.set_values("processes", rows, status="interrupted", reason="interrupted")


@mutation(Reason.PROCESS_MISSING, reseal=True, applies_to=with_rows("correctness"))
def rows_of_a_stranger(copy: WorkingCopy) -> None:
    """A correctness row belongs to a process that no other table knows."""
    last = len(copy.column("correctness", "process")) - 1
    copy.set_values("correctness", [last], process=1000)


@mutation(Reason.ROUTING_MISMATCH, reseal=True, applies_to=with_rows("routing"))
def routing_to_another_expert(copy: WorkingCopy) -> None:
    """A token takes an expert that the locked law does not give it."""
    experts, tokens = copy.column("routing", "expert"), copy.column("routing", "token")
    last = tokens[-1]
    taken = {expert for expert, token in zip(experts, tokens, strict=True) if token == last}
    free = set(range(copy.protocol()["fixture"]["experts"])) - taken
    if not free:
        raise NoSubjectError("every token takes every expert")
    copy.set_values("routing", [len(experts) - 1], expert=min(free))


@mutation(Reason.ROUTING_MISMATCH, reseal=True, applies_to=with_rows("routing"))
def routing_weight_changed(copy: WorkingCopy) -> None:
    """A route has another weight than the locked law gives it."""
    copy.set_values("routing", [0], weight=0.5 * copy.column("routing", "weight")[0])


@mutation(Reason.PROCESS_MISSING, reseal=True)
def process_deleted(copy: WorkingCopy) -> None:
    """The last process is nowhere in the bundle."""
    process = subject(copy)["process"]
    for name in PER_PROCESS:
        copy.drop(name, copy.rows(name, process=process))


@mutation(Reason.PROCESS_MISSING, reseal=True)
def process_renumbered(copy: WorkingCopy) -> None:
    """The last process goes by a number that was not planned."""
    process = subject(copy)["process"]
    for name in PER_PROCESS:
        copy.set_values(name, copy.rows(name, process=process), process=process + 1000)


@mutation(Reason.PROCESS_MISSING, reseal=True)
def first_attempt_hidden(copy: WorkingCopy) -> None:
    """The last process is a second attempt, and nothing is there of the first."""
    process = subject(copy)["process"]
    for name in PER_PROCESS:
        copy.set_values(name, copy.rows(name, process=process), attempt=1000)


@mutation(Reason.POINT_MISSING, reseal=True, applies_to=lambda facts: None if facts.points > 1 else "needs two points")
def point_deleted(copy: WorkingCopy) -> None:
    """A process has no rows of one operating point."""
    rows = copy.rows("samples", **subject(copy))
    point = copy.column("samples", "point")[rows[0]]
    for name in ("samples", "telemetry", "correctness", "kernels", "repeats"):
        copy.drop(name, copy.rows(name, **subject(copy), point=point))
    renumber(copy)


@mutation(Reason.ARM_MISSING, reseal=True)
def candidate_deleted(copy: WorkingCopy) -> None:
    """A process has no rows of the candidate at one operating point."""
    _delete_arm(copy, "candidate")


@mutation(Reason.ARM_MISSING, reseal=True, applies_to=with_roles("aa_control"))
def control_deleted(copy: WorkingCopy) -> None:
    """A process has no rows of the A/A control at one operating point."""
    _delete_arm(copy, "aa_control")


@mutation(Reason.WARMUP_COUNT, reseal=True)
def first_row_deleted(copy: WorkingCopy) -> None:
    """The first row of a process, a warm-up, is deleted."""
    copy.drop("samples", copy.rows("samples", **subject(copy))[:1])
    renumber(copy)


@mutation(Reason.WARMUP_COUNT, reseal=True)
def warmup_row_deleted(copy: WorkingCopy) -> None:
    """An arm has one warm-up sample less."""
    copy.drop("samples", subject_rows(copy, "candidate", warmup=True)[-1:])
    renumber(copy)


@mutation(Reason.WARMUP_COUNT, reseal=True)
def slow_sample_called_warmup(copy: WorkingCopy) -> None:
    """The candidate's slowest sample is declared a warm-up."""
    durations = copy.column("samples", "duration_ns")
    slowest = max(subject_rows(copy, "candidate"), key=lambda row: durations[row])
    copy.set_values("samples", [slowest], warmup=True, block=-1, sample=copy.protocol()["warmup"]["samples"])


@mutation(Reason.CALLS_MISMATCH, reseal=True)
def calls_raised(copy: WorkingCopy) -> None:
    """The candidate's samples claim one call more than is locked."""
    rows = copy.rows("samples", arm=arm_with(copy, "candidate"))
    copy.set_values("samples", rows, calls=copy.column("samples", "calls")[rows[0]] + 1)


@mutation(Reason.ROWS_DUPLICATED, reseal=True)
def row_duplicated_and_resealed(copy: WorkingCopy) -> None:
    """A timed row stands twice."""
    row = subject_rows(copy, "candidate")[0]
    count = len(copy.column("samples", "seq"))
    copy.take("samples", [*range(row + 1), *range(row, count)])
    renumber(copy)


@mutation(Reason.ROWS_DUPLICATED, reseal=True)
def fast_sample_copied_over_slow(copy: WorkingCopy) -> None:
    """The candidate's fastest row replaces its slowest."""
    durations = copy.column("samples", "duration_ns")
    rows = sorted(subject_rows(copy, "candidate"), key=lambda row: durations[row])
    order = list(range(len(durations)))
    order[rows[-1]] = rows[0]
    copy.take("samples", order)
    renumber(copy)


@mutation(Reason.ROWS_MISSING, reseal=True)
def first_timed_row_deleted(copy: WorkingCopy) -> None:
    """The first timed row is deleted."""
    _delete_timed(copy, 0.0)


@mutation(Reason.ROWS_MISSING, reseal=True)
def middle_timed_row_deleted(copy: WorkingCopy) -> None:
    """A timed row in the middle is deleted."""
    _delete_timed(copy, 0.5)


@mutation(Reason.ROWS_MISSING, reseal=True)
def last_row_deleted(copy: WorkingCopy) -> None:
    """The last row of a process is deleted."""
    _delete_timed(copy, 1.0)


@mutation(Reason.ROWS_MISSING, reseal=True)
def block_deleted(copy: WorkingCopy) -> None:
    """A process has no rows of its last block at one point."""
    rows = subject_rows(copy, "candidate")
    table = copy.table("samples").select(["point", "block"]).to_pylist()
    copy.drop("samples", copy.rows("samples", **subject(copy), **table[rows[-1]]))
    renumber(copy)


@mutation(Reason.ORDER_NOT_AS_PLANNED, reseal=True)
def rows_swapped_and_resealed(copy: WorkingCopy) -> None:
    """Two neighbouring rows of different arms are swapped."""
    arms, timed = copy.column("samples", "arm"), timed_rows(copy)
    row = next(row for row, after in pairwise(timed) if after == row + 1 and arms[row] != arms[after])
    order = list(range(len(arms)))
    order[row], order[row + 1] = row + 1, row
    copy.take("samples", order)
    renumber(copy)


@mutation(Reason.ORDER_NOT_AS_PLANNED, reseal=True)
def labels_exchanged(copy: WorkingCopy) -> None:
    """Baseline and candidate exchange their names in samples."""
    baseline, candidate = arm_with(copy, "baseline"), arm_with(copy, "candidate")
    other = {baseline: candidate, candidate: baseline}
    copy.set_columns("samples", arm=[other.get(arm, arm) for arm in copy.column("samples", "arm")])


@mutation(Reason.ORDER_NOT_AS_PLANNED, reseal=True)
def candidate_always_last(copy: WorkingCopy) -> None:
    """The candidate's samples stand at the end of every block."""
    rows = copy.table("samples").select(["process", "attempt", "point", "block", "arm"]).to_pylist()
    candidate = arm_with(copy, "candidate")
    blocks: dict[tuple[Any, ...], int] = {}
    for row in rows:
        blocks.setdefault((row["process"], row["attempt"], row["point"], row["block"]), len(blocks))
    keys = [
        (blocks[row["process"], row["attempt"], row["point"], row["block"]], row["arm"] == candidate) for row in rows
    ]
    copy.take("samples", sorted(range(len(rows)), key=lambda row: keys[row]))
    renumber(copy)


@mutation(Reason.ORDER_NOT_AS_PLANNED, reseal=True)
def seq_with_a_gap(copy: WorkingCopy) -> None:
    """The numbers of a process's rows have a gap, as if a row had been taken out."""
    rows, seqs = copy.rows("samples", **subject(copy)), copy.column("samples", "seq")
    for row in rows[len(rows) // 2 :]:
        seqs[row] += 1
    copy.set_columns("samples", seq=seqs)


@mutation(Reason.KERNEL_IDENTITY, reseal=True, applies_to=all_of(several_processes, with_rows("kernels")))
def kernel_differs(copy: WorkingCopy) -> None:
    """An arm launched another kernel in one process."""
    copy.set_values("kernels", [0], name=copy.column("kernels", "name")[0] + "_fallback")


@mutation(Reason.KERNEL_IDENTITY, reseal=True, applies_to=all_of(several_processes, with_rows("kernels")))
def kernel_grid_differs(copy: WorkingCopy) -> None:
    """An arm launched another grid in one process."""
    copy.set_values("kernels", [0], grid="1,1,7")


@mutation(Reason.KERNEL_IDENTITY, reseal=True, applies_to=all_of(several_processes, with_rows("kernels")))
def kernels_of_a_process_deleted(copy: WorkingCopy) -> None:
    """Nothing is said about the kernels of one process."""
    copy.drop("kernels", copy.rows("kernels", **subject(copy)))


@mutation(Reason.KERNEL_IDENTITY, reseal=True, applies_to=with_rows("kernels"))
def kernels_of_a_gpu_emptied(copy: WorkingCopy) -> None:
    """Nothing is said about kernels at all, on a device that launched them."""
    if copy.read_environment(0)["device"] != "cuda":
        raise NoSubjectError("the device is scripted: it need not say what it launched")
    copy.take("kernels", [])


@mutation(Reason.CORRECTNESS_MISSING, reseal=True, applies_to=with_rows("correctness"))
def correctness_deleted(copy: WorkingCopy) -> None:
    """The candidate was timed at a point without having been checked there."""
    row = subject_rows(copy, "candidate")[0]
    point = copy.column("samples", "point")[row]
    arm = arm_with(copy, "candidate")
    copy.drop("correctness", copy.rows("correctness", **subject(copy), point=point, arm=arm))


@mutation(Reason.CORRECTNESS_MISSING, reseal=True, applies_to=with_rows("correctness"))
def correctness_of_a_control_deleted(copy: WorkingCopy) -> None:
    """The A/A control was timed without having been checked."""
    copy.drop("correctness", copy.rows("correctness", **subject(copy), arm=arm_with(copy, "aa_control")))


@mutation(Reason.CORRECTNESS_MISSING, reseal=True, applies_to=all_of(with_rows("correctness"), having(launch="graph")))
def replay_unchecked(copy: WorkingCopy) -> None:
    """The candidate's graph was timed, and only its eager launch was checked."""
    arm = arm_with(copy, "candidate")
    copy.drop("correctness", copy.rows("correctness", **subject(copy), arm=arm, stage="replay"))


@mutation(Reason.ROWS_MISSING, reseal=True, applies_to=with_rows("telemetry"))
def telemetry_row_deleted(copy: WorkingCopy) -> None:
    """The clocks after the last block of a process are not there."""
    copy.drop("telemetry", copy.rows("telemetry", **subject(copy))[-1:])


@mutation(Reason.ROWS_MISSING, reseal=True, applies_to=with_rows("telemetry"))
def telemetry_of_an_arm_deleted(copy: WorkingCopy) -> None:
    """Nothing is said of the clocks while the candidate ran, in any process."""
    copy.drop("telemetry", copy.rows("telemetry", arm=arm_with(copy, "candidate")))


@mutation(Reason.ROWS_MISSING, reseal=True, applies_to=all_of(several_processes, with_rows("telemetry")))
def telemetry_of_a_process_deleted(copy: WorkingCopy) -> None:
    """Nothing is said of the clocks of one process."""
    copy.drop("telemetry", copy.rows("telemetry", **subject(copy)))


@mutation(Reason.ROWS_DUPLICATED, reseal=True, applies_to=with_rows("telemetry"))
def telemetry_row_doubled(copy: WorkingCopy) -> None:
    """A good reading of the clocks stands twice."""
    count = len(copy.column("telemetry", "process"))
    copy.take("telemetry", [0, *range(count)])


@mutation(Reason.ORDER_NOT_AS_PLANNED, reseal=True, applies_to=with_rows("telemetry"))
def telemetry_of_no_block(copy: WorkingCopy) -> None:
    """There are readings of a block that was never planned."""
    table = copy.table("telemetry")
    index = table.schema.get_field_index("block")
    more = pa.array([copy.protocol()["schedule"]["blocks"] + 5], type=table.schema.field(index).type)
    copy.write_table(
        "telemetry",
        pa.concat_tables([table, table.slice(table.num_rows - 1).set_column(index, table.schema.field(index), more)]),
    )


@mutation(Reason.ROWS_DUPLICATED, reseal=True, applies_to=with_rows("correctness"))
def correctness_row_doubled(copy: WorkingCopy) -> None:
    """A check of an output stands twice."""
    count = len(copy.column("correctness", "process"))
    copy.take("correctness", [0, *range(count)])


@mutation(Reason.ROWS_MISSING, reseal=True, applies_to=all_of(having(clock="cuda-event"), with_rows("telemetry")))
def telemetry_emptied(copy: WorkingCopy) -> None:
    """Nothing is said of the clocks at all, on a machine that can tell them."""
    if copy.read_environment(0)["device"] != "cuda":
        raise NoSubjectError("the device is scripted: it need not have telemetry")
    copy.take("telemetry", [])


@mutation(Reason.CORRECTNESS_MISSING, reseal=True, applies_to=with_rows("correctness"))
def correctness_emptied(copy: WorkingCopy) -> None:
    """No arm was ever checked."""
    copy.take("correctness", [])


def _delete_arm(copy: WorkingCopy, role: str) -> None:
    row = subject_rows(copy, role)[0]
    point = copy.column("samples", "point")[row]
    copy.drop("samples", copy.rows("samples", **subject(copy), point=point, arm=arm_with(copy, role)))
    renumber(copy)


def _delete_timed(copy: WorkingCopy, where: float) -> None:
    timed = timed_rows(copy)
    copy.drop("samples", [timed[round(where * (len(timed) - 1))]])
    renumber(copy)


MUTATIONS = collected(globals())
