"""Locks: made once, replaced only on request, never under a published bundle; and the plan that they name."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import rfc8785

from benchkit.errors import DataError, LockError, ProtocolError
from benchkit.kernels.registry import source_digest
from benchkit.plan import plan, schedule
from benchkit.protocol.lock import load_locked
from benchkit.run.locking import lock

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def protocol(tmp_path: Path) -> Path:
    """An unlocked copy of the host protocol in a ``protocols`` folder."""
    folder = tmp_path / "protocols"
    folder.mkdir()
    return Path(shutil.copyfile(DATA / "host.toml", folder / "host.toml"))


def edit(path: Path, old: str, new: str) -> None:
    """Change one place of a file."""
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_locking_again_changes_nothing(protocol: Path) -> None:
    first = lock(protocol, replace=False)
    before = protocol.with_suffix(".lock").read_bytes()
    edit(protocol, "[warmup]", "# a comment\n[warmup]")
    assert lock(protocol, replace=False) == first
    assert lock(protocol, replace=True) == first
    assert protocol.with_suffix(".lock").read_bytes() == before


def test_lock_states_bytes_and_digests(protocol: Path) -> None:
    made = lock(protocol, replace=False)
    document = json.loads(protocol.with_suffix(".lock").read_text("utf-8"))
    assert document["schema"] == "benchkit.lock/1"
    expert = 3 * 64 * 32 * 4
    assert made.bytes_by_point["batch=1"] == (2 * expert, 2 * expert)
    assert made.bytes_by_point["batch=4"][1] == 8 * expert
    assert made.bytes_by_point["batch=4"][0] % expert == 0
    assert load_locked(protocol).lock == made


def test_another_lock_is_replaced_on_request_only(protocol: Path) -> None:
    old = lock(protocol, replace=False)
    edit(protocol, 'margin = "5%"', 'margin = "4%"')
    with pytest.raises(LockError, match="changed after it was locked"):
        load_locked(protocol)
    with pytest.raises(LockError, match=old.protocol_digest):
        lock(protocol, replace=False)
    assert lock(protocol, replace=True).protocol_digest != old.protocol_digest


def test_a_published_lock_is_never_replaced(protocol: Path) -> None:
    old = lock(protocol, replace=False)
    bundle = protocol.parent.parent / "results" / "fake-host" / "20260101T000000Z-00000000"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text(json.dumps({"protocol_digest": old.protocol_digest}), "utf-8")
    edit(protocol, 'margin = "5%"', 'margin = "4%"')
    with pytest.raises(LockError, match="was published under the old lock"):
        lock(protocol, replace=True)


def test_sources_are_brought_up_to_date_and_locked(protocol: Path) -> None:
    named = f'[build.require.sources] # of two arms\nbase = "{"0" * 64}" # the baseline\ncand = "{"1" * 64}"\n'
    edit(protocol, "[fixture]", f"{named}\n[fixture]")
    old = lock(protocol, replace=False)
    before = protocol.read_bytes()
    with pytest.raises(LockError, match=r"use --replace if no published result needs the old lock"):
        lock(protocol, replace=False, sources=True)
    assert protocol.read_bytes() == before  # what could not be locked was not written either
    made = lock(protocol, replace=True, sources=True)
    expected = {
        name: source_digest(kernel) for name, kernel in (("base", "cpu_expert_centric"), ("cand", "cpu_output_centric"))
    }
    assert load_locked(protocol).protocol.require["sources"] == expected
    assert made.protocol_digest != old.protocol_digest
    text = named.replace("0" * 64, expected["base"]).replace("1" * 64, expected["cand"])
    assert protocol.read_text("utf-8") == before.decode().replace(named, text)
    assert lock(protocol, replace=False, sources=True) == made


def test_sources_that_are_not_named_are_not_filled_in(protocol: Path) -> None:
    with pytest.raises(DataError, match=r"expected \[build.require.sources\] with arm = digest, found none"):
        lock(protocol, replace=False, sources=True)


def test_unknown_kernels_and_parameters_are_refused_at_lock(protocol: Path) -> None:
    edit(protocol, 'kernel = "cpu_output_centric"', 'kernel = "cpu_outptu_centric"')
    edit(protocol, "params = { tile = 4 }", "params = { tiel = 4 }")
    with pytest.raises(ProtocolError) as caught:
        lock(protocol, replace=False)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "arm[0].params.tiel",
        "arm[0].params.tile",
        "arm[1].kernel",
    ]
    assert not protocol.with_suffix(".lock").exists()


def test_order_follows_from_digests_alone(protocol: Path) -> None:
    lock(protocol, replace=False)
    locked = load_locked(protocol)
    for process in plan(locked).processes:
        prefix = f"{locked.digest}/{process.index}"
        points = [point.point.id for point in process.points]
        assert points == sorted(points, key=lambda name: hashlib.sha256(f"{prefix}/{name}".encode()).hexdigest())
        for point in process.points:
            labels = ["warmup", "0", "1", "2"]
            for label, block in zip(labels, point.blocks, strict=True):
                start = f"{prefix}/{point.point.id}/{label}"
                keys = [hashlib.sha256(f"{start}/{arm}".encode()).hexdigest() for arm in block.arms]
                assert keys == sorted(keys)
                assert sorted(block.arms) == ["aa", "base", "cand", "copy", "delayed", "read"]


def test_plan_digest_is_the_documented_json(protocol: Path) -> None:
    made = lock(protocol, replace=False)
    processes = schedule(load_locked(protocol).protocol, made.protocol_digest)
    document = [
        "benchkit.plan/1",
        [[p.index, [[q.point.id, *[list(b.arms) for b in q.blocks]] for q in p.points]] for p in processes],
    ]
    assert hashlib.sha256(rfc8785.dumps(document)).hexdigest() == made.plan_digest
    edit(protocol.with_suffix(".lock"), made.plan_digest, "0" * 64)
    with pytest.raises(LockError, match="expected plan digest 0000"):
        plan(load_locked(protocol))


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"schema": "benchkit.lock/2"}', "null"])
def test_a_damaged_lock_is_one_message(protocol: Path, text: str) -> None:
    protocol.with_suffix(".lock").write_text(text, "utf-8")
    with pytest.raises(LockError, match="lock the protocol again"):
        load_locked(protocol)


@pytest.mark.parametrize("number", ["1e999", "[]", "null"])
def test_a_lock_of_odd_numbers_is_one_message(protocol: Path, number: str) -> None:
    made = lock(protocol, replace=False)
    first = next(iter(made.bytes_by_point.values()))[0]
    edit(protocol.with_suffix(".lock"), f'"unique_bytes": {first}', f'"unique_bytes": {number}')
    with pytest.raises(LockError, match="lock the protocol again"):
        load_locked(protocol)
