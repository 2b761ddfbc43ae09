"""Changes of a mechanism study. The first seven are those of the published study: route, expert block, treatment marker, grid
marker, stage hash, raw tensor, source identity. All are resealed, so that only the scorer can see them."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from validator.mutations.content import sha256
from validator.mutations.mutation import collected, having, mutation
from validator.mutations.provenance import add_library, edit_environment
from validator.mutations.workspace import NoSubjectError, WorkingCopy
from validator.reasons import Reason
from validator.recompute.surfaces import activated

CLAIMED = having(has_analysis=True)
SURFACES = ("w13", "activation", "routed_w2", "final")


@mutation(Reason.MEMBERSHIP_MISMATCH, reseal=True)
def route_moved(copy: WorkingCopy) -> None:
    """Two routes of one expert are exchanged between its blocks in a stored plan, which keeps its name."""
    first, second = _split_expert(copy)
    routes = copy.column("plans", "route")
    routes[first], routes[second] = routes[second], routes[first]
    copy.set_columns("plans", route=routes)


@mutation(Reason.MEMBERSHIP_MISMATCH, reseal=True)
def expert_block_replaced(copy: WorkingCopy) -> None:
    """A block of a stored plan names the next expert."""
    plans, blocks = copy.column("plans", "plan_sha256"), copy.column("plans", "block")
    rows = [row for row in range(len(plans)) if (plans[row], blocks[row]) == (plans[0], blocks[0])]
    copy.set_values("plans", rows, expert=copy.column("plans", "expert")[0] + 1)


@mutation(Reason.TREATMENT_NOT_CONSUMED, reseal=True)
def treatment_marker_of_the_other_history(copy: WorkingCopy) -> None:
    """A process of one history carries the treatment marker of the other."""
    row = copy.rows("trajectories", history="H0")[0]
    other = copy.rows("trajectories", history="H1")[0]
    copy.set_values("trajectories", [row], **_values(copy, other, "treatment", "treatment_sha256"))


@mutation(Reason.GRID_NOT_CONSUMED, reseal=True)
def grid_marker_of_another_launch(copy: WorkingCopy) -> None:
    """A process says that it launched W13 on one CUDA block more."""
    copy.set_values("trajectories", [0], w13_grid=copy.column("trajectories", "w13_grid")[0] + 1)


@mutation(Reason.SURFACE_MISSING, reseal=True)
def stage_hash_replaced(copy: WorkingCopy) -> None:
    """A process names an activation that nobody captured."""
    copy.set_values("trajectories", [0], activation_sha256=sha256(b"another activation"))


@mutation(Reason.SURFACE_CHANGED, reseal=True)
def raw_tensor_changed(copy: WorkingCopy) -> None:
    """One bit of a stored tensor is flipped."""
    tensors = copy.column("surfaces", "bytes")
    tensors[0] = bytes([tensors[0][0] ^ 1]) + tensors[0][1:]
    copy.set_columns("surfaces", bytes=tensors)


@mutation(Reason.ENVIRONMENT_DRIFT, reseal=True)
def source_identity_differs(copy: WorkingCopy) -> None:
    """One process had one source more, which no protocol requires."""
    ran = copy.read_environment(0)["sources"]
    edit_environment(copy, {"sources": {**ran, "other": "0" * 64}}, rows=range(1))


@mutation(Reason.BUILD_MISMATCH, reseal=True)
def source_identity_not_as_required(copy: WorkingCopy) -> None:
    """The protocol requires an engine of another source, and everything names the protocol's digest."""
    protocol = copy.protocol()
    engine = protocol["launch"]["engine"]
    protocol.setdefault("build", {}).setdefault("require", {})["sources"] = {engine: "1" * 64}
    copy.write_protocol(protocol)
    copy.relock()


@mutation(Reason.ENVIRONMENT_DRIFT, reseal=True)
def binary_identity_differs(copy: WorkingCopy) -> None:
    """One process loaded one library more."""
    add_library(copy, row=0)


@mutation(Reason.ENVIRONMENT_DRIFT, reseal=True)
def fixture_differs(copy: WorkingCopy) -> None:
    """One process multiplied other weights."""
    copy.set_values("processes", [0], fixture_sha256="0" * 64)


@mutation(Reason.FIXTURE_MISMATCH, reseal=True)
def another_fixture(copy: WorkingCopy) -> None:
    """All processes multiplied other weights than the seeds derive."""
    copy.set_columns("processes", fixture_sha256=["0" * 64] * len(copy.column("processes", "process")))


@mutation(Reason.FIXTURE_MISMATCH, reseal=True)
def seed_changed_after_the_run(copy: WorkingCopy) -> None:
    """The protocol has another seed, and everything names its new digest."""
    protocol = copy.protocol()
    protocol["fixture"]["weight_seed"] += 1
    copy.write_protocol(protocol)
    copy.relock()


@mutation(Reason.SURFACE_CONTRADICTION, reseal=True)
def final_of_its_own(copy: WorkingCopy) -> None:
    """One replicate has another final tensor, stored under its own digest, beside the routed one of before."""
    _another_tensor(copy, "final_sha256", _flipped)


@mutation(Reason.SURFACE_CONTRADICTION, reseal=True)
def activation_of_its_own(copy: WorkingCopy) -> None:
    """One replicate has an activation of zeros, stored under its own digest."""
    _another_tensor(copy, "activation_sha256", _zero)


@mutation(Reason.SURFACE_CONTRADICTION, reseal=True)
def routed_of_its_own(copy: WorkingCopy) -> None:
    """One replicate has routed outputs of zeros and their sum, which no layer gives."""
    for column in ("routed_w2_sha256", "final_sha256"):
        _another_tensor(copy, column, _zero)


@mutation(Reason.SURFACE_CONTRADICTION, reseal=True)
def surfaces_of_no_number(copy: WorkingCopy) -> None:
    """One replicate has NaN on all its surfaces, which agree with each other."""
    for surface in SURFACES:
        _another_tensor(copy, f"{surface}_sha256", lambda data, columns: b"\xff\x7f" * (len(data) // 2))


@mutation(Reason.BUILD_MISMATCH, reseal=True)
def source_identity_absent(copy: WorkingCopy) -> None:
    """No process says from which source its engine ran."""
    edit_environment(copy, {"sources": {}}, rows=range(len(copy.column("processes", "process"))))


@mutation(Reason.BOUNDARY_MISMATCH, reseal=True)
def treatment_after_the_fixture(copy: WorkingCopy) -> None:
    """All processes built the layer before their treatment."""
    orders = copy.column("processes", "event_order")
    changed = [order.replace("treatment,fixture", "fixture,treatment") for order in orders]
    copy.set_columns("processes", event_order=changed)


@mutation(Reason.PROCESS_MISSING, reseal=True)
def process_removed(copy: WorkingCopy) -> None:
    """The last process is in no table."""
    last = copy.column("processes", "process")[-1]
    for name in ("processes", "trajectories"):
        copy.drop(name, copy.rows(name, process=last))


@mutation(Reason.ROWS_MISSING, reseal=True)
def trajectory_deleted(copy: WorkingCopy) -> None:
    """A process that ended well left no trajectory."""
    copy.drop("trajectories", [len(copy.column("trajectories", "process")) - 1])


@mutation(Reason.ROWS_DUPLICATED, reseal=True)
def trajectory_twice(copy: WorkingCopy) -> None:
    """A trajectory stands twice."""
    copy.take("trajectories", [0, *range(len(copy.column("trajectories", "process")))])


@mutation(Reason.ORDER_NOT_AS_PLANNED, reseal=True)
def trajectories_reordered(copy: WorkingCopy) -> None:
    """The first two trajectories change places."""
    copy.take("trajectories", [1, 0, *range(2, len(copy.column("trajectories", "process")))])


@mutation(Reason.ORDER_NOT_AS_PLANNED, reseal=True)
def histories_relabelled(copy: WorkingCopy) -> None:
    """Two processes of a cell change the names of their histories."""
    histories = copy.column("trajectories", "history")
    histories[:2] = reversed(histories[:2])
    copy.set_columns("trajectories", history=histories)


@mutation(Reason.TIME_DISORDER, reseal=True)
def processes_out_of_time(copy: WorkingCopy) -> None:
    """The last process started before the run did."""
    last = len(copy.column("processes", "process")) - 1
    copy.set_values("processes", [last], started_utc="2020-01-01T00:00:00Z")


@mutation(Reason.TIME_DISORDER, reseal=True)
def trajectory_longer_than_its_process(copy: WorkingCopy) -> None:
    """A trajectory took a day, and its process some seconds."""
    copy.set_values("trajectories", [0], elapsed_ns=86_400 * 10**9)


@mutation(Reason.PROTOCOL_INVALID, reseal=True)
def plan_of_no_permutation(copy: WorkingCopy) -> None:
    """The locked plans name a route twice, and everything names their digest."""
    _other_plans(copy, lambda order: [order[1], *order[1:]])


@mutation(Reason.PROTOCOL_INVALID, reseal=True)
def plan_with_a_boolean(copy: WorkingCopy) -> None:
    """The locked plans have ``true`` for route 1, and everything names their digest."""
    _other_plans(copy, lambda order: [True if route == 1 else route for route in order])


def _other_plans(copy: WorkingCopy, change: Callable[[list[int]], list[int]]) -> None:
    protocol = copy.protocol()
    name = protocol["histories"]["plans"]
    path = copy.path(f"assets/{name}")
    document = json.loads(path.read_bytes())
    first = protocol["histories"]["H0"]
    document["plans"][first] = change(document["plans"][first])
    path.write_text(json.dumps(document))
    asset = next(item for item in protocol["asset"] if item["name"] == name)
    asset["sha256"] = sha256(path.read_bytes())
    copy.write_protocol(protocol)
    copy.relock()


@mutation(Reason.ORDER_NOT_CONSUMED, reseal=True)
def intervention_marker_absent(copy: WorkingCopy) -> None:
    """A process of an injected order says that it ran the native one."""
    copy.set_values("trajectories", [_injected(copy)], injected=False)


@mutation(Reason.ORDER_NOT_CONSUMED, reseal=True)
def plan_of_another_cell(copy: WorkingCopy) -> None:
    """A process consumed another stored plan than its cell prescribes."""
    row = _injected(copy)
    plans = copy.column("trajectories", "plan_sha256")
    other = next((r for r, plan in enumerate(plans) if plan != plans[row]), None)
    if other is None:
        raise NoSubjectError("all processes consumed one plan")
    copy.set_values("trajectories", [row], **_values(copy, other, "plan_sha256", "mode_sha256"))


@mutation(Reason.MEMBERSHIP_MISMATCH, reseal=True)
def mode_fingerprint_replaced(copy: WorkingCopy) -> None:
    """The mode of a process is not that of the plan that it consumed."""
    copy.set_values("trajectories", [0], mode_sha256="0" * 64)


@mutation(Reason.MEMBERSHIP_MISMATCH, reseal=True)
def plan_deleted(copy: WorkingCopy) -> None:
    """A process's plan is deleted."""
    gone = copy.column("plans", "plan_sha256")[0]
    copy.drop("plans", copy.rows("plans", plan_sha256=gone))


@mutation(Reason.GRID_NOT_CONSUMED, reseal=True)
def schedule_classes_edited(copy: WorkingCopy) -> None:
    """A process says that all tiles of W13 are direct."""
    copy.set_values("trajectories", [0], w13_classes="direct=1")


@mutation(Reason.GRID_NOT_CONSUMED, reseal=True)
def cut_points_edited(copy: WorkingCopy) -> None:
    """The cut points of a process's W2 are not those of its launch."""
    copy.set_values("trajectories", [0], w2_cuts_sha256="0" * 64)


@mutation(Reason.SURFACE_MISSING, reseal=True)
def tensor_deleted(copy: WorkingCopy) -> None:
    """A tensor that trajectories name is not stored."""
    copy.drop("surfaces", [0])


@mutation(Reason.SURFACE_MISSING, reseal=True)
def tensor_in_another_shape(copy: WorkingCopy) -> None:
    """A stored tensor has its axes exchanged."""
    shapes = copy.column("surfaces", "shape")
    shapes[0] = "x".join(reversed(shapes[0].split("x")))
    copy.set_columns("surfaces", shape=shapes)


@mutation(Reason.PLAN_CHANGED, reseal=True)
def lock_counts_bytes(copy: WorkingCopy) -> None:
    """The lock of a study counts bytes of a point that it does not have."""
    counted = {"batch=1": {"unique_bytes": 1, "issued_bytes": 1}}
    copy.write_json("protocol.lock", {**copy.read_json("protocol.lock"), "bytes": counted})


@mutation(Reason.CLAIM_MISMATCH, reseal=True, applies_to=CLAIMED)
def relation_turned_after_the_run(copy: WorkingCopy) -> None:
    """The first relation expects the contrary, and everything names the new digest."""
    protocol = copy.protocol()
    relation = protocol["relation"][0]
    relation["expected"] = "equal" if relation["expected"] == "different" else "different"
    copy.write_protocol(protocol)
    copy.relock()


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def relation_verdict_edited(copy: WorkingCopy) -> None:
    """The verdict of a relation is another one."""
    analysis = copy.read_json("analysis.json")
    entry = analysis["relations"][0]
    entry["verdict"] = "refuted" if entry["verdict"] == "confirmed" else "confirmed"
    copy.write_json("analysis.json", analysis)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def differing_elements_edited(copy: WorkingCopy) -> None:
    """One element less is said to differ."""
    analysis = copy.read_json("analysis.json")
    entry = next((item for item in analysis["relations"] if item["differing"]), None)
    if entry is None:
        raise NoSubjectError("nothing differs")
    entry["differing"] -= 1
    copy.write_json("analysis.json", analysis)


@mutation(Reason.CLAIM_MISMATCH, reseal=True, applies_to=CLAIMED)
def outcome_changed_under_the_claims(copy: WorkingCopy) -> None:
    """One replicate gave another tensor, in full agreement with itself, and the analysis is that of before."""
    _another_outcome(copy)


@mutation(None, reseal=True)
def outcome_changed(copy: WorkingCopy) -> None:
    """One replicate gave another tensor and nobody claims anything: a verdict, and no reason."""
    _another_outcome(copy)
    copy.path("analysis.json").unlink(missing_ok=True)


def _another_outcome(copy: WorkingCopy) -> None:
    """Give the last trajectory a W13 surface of its own, which no other surface contradicts: the last bit of a gate whose silu rounds it away."""

    def change(data: bytes, columns: int) -> bytes:
        words = np.frombuffer(data, dtype="<u2").reshape(-1, columns).copy()
        other = words.copy()
        other[:, : columns // 2] ^= 1
        same = activated(words.view("<f2")) == activated(other.view("<f2"))
        if not same.any():
            raise NoSubjectError("every bit of every gate reaches the activation")
        row, column = np.argwhere(same)[-1]
        words[row, column] ^= 1
        return bytes(words.tobytes())

    _another_tensor(copy, "w13_sha256", change)


def _flipped(data: bytes, columns: int) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _zero(data: bytes, columns: int) -> bytes:
    return bytes(len(data))


def _another_tensor(copy: WorkingCopy, column: str, change: Callable[[bytes, int], bytes]) -> None:
    row = len(copy.column("trajectories", "process")) - 1
    name = copy.column("trajectories", column)[row]
    stored = copy.table("surfaces").to_pylist()
    old = next(item for item in stored if item["sha256"] == name)
    data = change(old["bytes"], int(old["shape"].partition("x")[2]))
    new: dict[str, Any] = {**old, "sha256": sha256(data), "bytes": data}
    others = copy.column("trajectories", column)[:row]
    kept = [item for item in stored if item is not old or name in others]
    more = [] if any((item["sha256"], item["shape"]) == (new["sha256"], new["shape"]) for item in kept) else [new]
    table = copy.table("surfaces")
    copy.write_table("surfaces", type(table).from_pylist([*kept, *more], schema=table.schema))
    copy.set_values("trajectories", [row], **{column: new["sha256"]})


def _values(copy: WorkingCopy, row: int, *columns: str) -> dict[str, Any]:
    return {column: copy.column("trajectories", column)[row] for column in columns}


def _injected(copy: WorkingCopy) -> int:
    rows = copy.rows("trajectories", injected=True)
    if not rows:
        raise NoSubjectError("no cell injects an order")
    return rows[0]


def _split_expert(copy: WorkingCopy) -> tuple[int, int]:
    """Rows of the first plan that hold routes of one expert in different blocks."""
    columns = zip(*(copy.column("plans", name) for name in ("plan_sha256", "block", "expert", "route")), strict=True)
    routes = copy.column("plans", "route")
    seen: dict[int, tuple[int, int]] = {}
    for row, (plan, block, expert, route) in enumerate(columns):
        if plan != copy.column("plans", "plan_sha256")[0] or route == max(routes):
            continue  # padding is the largest number there is
        first, where = seen.setdefault(expert, (row, block))
        if where != block:
            return first, row
    raise NoSubjectError("no expert exceeds one block")


MUTATIONS = collected(globals())
