"""Changes of what was locked, and of what it says was run. All of them are resealed."""

import json
from datetime import datetime, timedelta
from typing import Any

import rfc8785

from validator.mutations.content import json_digest, plan_of, sha256
from validator.mutations.mutation import Facts, collected, having, mutation
from validator.mutations.timing import renumber
from validator.mutations.workspace import WorkingCopy
from validator.reasons import Reason


@mutation(Reason.PROTOCOL_INVALID, reseal=True)
def protocol_with_unknown_key(copy: WorkingCopy) -> None:
    """The protocol has a key that schema 1 does not know, and everything names the new digest."""
    protocol = copy.protocol()
    protocol["timing"]["outliers"] = "drop"
    copy.write_protocol(protocol)
    copy.relock()


@mutation(Reason.PROTOCOL_INVALID, reseal=True)
def protocol_with_boolean_for_integer(copy: WorkingCopy) -> None:
    """The number of blocks is `true`, which many parsers take for 1."""
    protocol = copy.protocol()
    protocol["schedule"]["blocks"] = True
    copy.write_protocol(protocol)


@mutation(Reason.PROTOCOL_INVALID, reseal=True)
def protocol_with_byte_order_mark(copy: WorkingCopy) -> None:
    """protocol.toml begins with a byte-order mark."""
    copy.path("protocol.toml").write_bytes(b"\xef\xbb\xbf" + copy.protocol_text().encode())


@mutation(Reason.LOCK_MISSING, reseal=True)
def lock_deleted(copy: WorkingCopy) -> None:
    """protocol.lock is deleted, and the manifest does not list it."""
    copy.path("protocol.lock").unlink()


@mutation(Reason.LOCK_INVALID, reseal=True)
def lock_without_time(copy: WorkingCopy) -> None:
    """The lock does not say when it was made."""
    lock = copy.read_json("protocol.lock")
    del lock["locked_utc"]
    copy.write_json("protocol.lock", lock)


@mutation(Reason.PROTOCOL_CHANGED, reseal=True)
def margin_widened(copy: WorkingCopy) -> None:
    """The margin is widened after the lock."""
    widen_margin(copy)


@mutation(Reason.PROTOCOL_CHANGED, reseal=True)
def warmup_lengthened(copy: WorkingCopy) -> None:
    """One more warm-up sample is asked for after the lock."""
    protocol = copy.protocol()
    protocol["warmup"]["samples"] += 1
    copy.write_protocol(protocol)


@mutation(Reason.PROTOCOL_CHANGED, reseal=True)
def lock_of_another_protocol(copy: WorkingCopy) -> None:
    """The lock names the digest of another protocol."""
    copy.write_json("protocol.lock", {**copy.read_json("protocol.lock"), "protocol_digest": "0" * 64})


@mutation(Reason.PLAN_CHANGED, reseal=True)
def lock_of_another_plan(copy: WorkingCopy) -> None:
    """The lock names the digest of another plan."""
    copy.write_json("protocol.lock", {**copy.read_json("protocol.lock"), "plan_digest": "0" * 64})


@mutation(Reason.PLAN_CHANGED, reseal=True)
def locked_bytes_raised(copy: WorkingCopy) -> None:
    """The lock claims twice the bytes that the protocol's routing touches."""
    lock = copy.read_json("protocol.lock")
    point = next(iter(lock["bytes"].values()))
    point["unique_bytes"] *= 2
    copy.write_json("protocol.lock", lock)


@mutation(Reason.LOCKED_AFTER_START, reseal=True)
def locked_after_start(copy: WorkingCopy) -> None:
    """The lock was made 61 minutes after the run's start."""
    run = copy.read_json("manifest.json")["run_id"]
    start = next(line["utc"] for line in copy.ledger() if line["run_id"] == run and line["event"] == "start")
    late = datetime.fromisoformat(start) + timedelta(minutes=61)
    locked = late.strftime("%Y-%m-%dT%H:%M:%SZ")
    copy.write_json("protocol.lock", {**copy.read_json("protocol.lock"), "locked_utc": locked})


@mutation(Reason.ASSET_CHANGED, reseal=True)
def asset_replaced(copy: WorkingCopy) -> None:
    """The protocol locks an asset, and the bundle holds another one under its name."""
    protocol = copy.protocol()
    if protocol.get("asset"):
        name = protocol["asset"][0]["name"]
    else:
        name = "notes"
        protocol["asset"] = [{"name": name, "path": "notes.txt", "sha256": sha256(b"as locked\n")}]
        copy.write_protocol(protocol)
        copy.relock()
        copy.path("assets").mkdir(exist_ok=True)
    copy.path(f"assets/{name}").write_bytes(b"as replaced\n")


@mutation(Reason.EXPLORATORY, reseal=True)
def stamped_exploratory(copy: WorkingCopy) -> None:
    """The run is stamped exploratory."""
    stamp = ["python: required <3, found 3.11"]
    copy.write_json("manifest.json", {**copy.read_json("manifest.json"), "exploratory": stamp})


@mutation(Reason.BUILD_MISMATCH, reseal=True)
def build_requirement_added(copy: WorkingCopy) -> None:
    """The protocol requires a Python that did not run, and everything names the new digest."""
    protocol = copy.protocol()
    protocol.setdefault("build", {}).setdefault("require", {})["python"] = "<3"
    copy.write_protocol(protocol)
    copy.relock()


def _requires_python(facts: Facts) -> str | None:
    return None if "python" in facts.required else "no Python is required"


@mutation(Reason.BUILD_MISMATCH, reseal=True, applies_to=_requires_python)
def build_not_as_required(copy: WorkingCopy) -> None:
    """All processes ran another Python than the protocol requires."""
    edit_environment(copy, {"python": "2.7.18"}, rows=range(len(copy.column("processes", "environment"))))


@mutation(Reason.BUILD_MISMATCH, reseal=True)
def source_not_as_required(copy: WorkingCopy) -> None:
    """An arm ran from another source than the protocol requires, and everything names the protocol's digest."""
    protocol = copy.protocol()
    arm = protocol["arm"][0]["name"]
    protocol.setdefault("build", {}).setdefault("require", {}).setdefault("sources", {})[arm] = "1" * 64
    copy.write_protocol(protocol)
    copy.relock()
    ran = {**copy.read_environment(0)["sources"], arm: "0" * 64}
    edit_environment(copy, {"sources": ran}, rows=range(len(copy.column("processes", "environment"))))


@mutation(Reason.ORDER_NOT_AS_PLANNED, reseal=True)
def relocked_after_the_run(copy: WorkingCopy) -> None:
    """The margin is widened and everything names the new digest, but the order that was run is the old one's."""
    widen_margin(copy)
    copy.relock()


@mutation(Reason.TIME_DISORDER, reseal=True)
def relocked_and_reordered(copy: WorkingCopy) -> None:
    """The margin is widened, everything names the new digest and the rows are sorted anew: host times still tell."""
    widen_margin(copy)
    copy.relock()
    planned = plan_of(copy.protocol(), json_digest(copy.protocol()))
    place = {
        (process, point, block - 1, arm): (process, at, block, arms.index(arm))
        for process, points in planned
        for at, (point, *blocks) in enumerate(points)
        for block, arms in enumerate(blocks)
        for arm in arms
    }
    rows = copy.table("samples").select(["process", "point", "block", "arm"]).to_pylist()
    places = [place[row["process"], row["point"], row["block"], row["arm"]] for row in rows]
    copy.take("samples", sorted(range(len(rows)), key=places.__getitem__))
    renumber(copy)


@mutation(Reason.ORDER_NOT_AS_PLANNED, reseal=True, applies_to=having(has_peak=True))
def peak_raised_after_the_run(copy: WorkingCopy) -> None:
    """The locked peak is raised and everything names the new digest, but the order that was run is the old one's."""
    protocol = copy.protocol()
    protocol["timing"]["peak_gb_per_s"] *= 2
    copy.write_protocol(protocol)
    copy.relock()


def widen_margin(copy: WorkingCopy) -> None:
    """Give the protocol another, wider margin."""
    protocol = copy.protocol()
    protocol["statistics"]["margin"] = "10%" if protocol["statistics"]["margin"] in ("5%", 0.05) else "5%"
    copy.write_protocol(protocol)


def edit_environment(copy: WorkingCopy, changes: dict[str, Any], *, rows: range) -> None:
    """Change keys of the environments of these rows of processes, with their digest."""
    texts, digests = copy.column("processes", "environment"), copy.column("processes", "environment_sha256")
    for row in rows:
        encoded = rfc8785.dumps({**copy.read_environment(row), **changes})
        texts[row], digests[row] = encoded.decode(), sha256(encoded)
    copy.set_columns("processes", environment=texts, environment_sha256=digests)


def add_library(copy: WorkingCopy, *, row: int) -> None:
    """Let one process have loaded a library more; those that the protocol requires stay."""
    loaded = {**json.loads(copy.column("processes", "binaries")[row]), "libother.so": "0" * 64}
    copy.set_values("processes", [row], binaries=rfc8785.dumps(loaded).decode())


MUTATIONS = collected(globals())
