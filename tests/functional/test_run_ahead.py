"""Runs whose next worker stands by, by the real command line: who stands by, what becomes of it, and that the bundle does not tell."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pace import quicken

from benchkit.run.session import Session

DATA = Path(__file__).parent.parent / "data"
Run = Callable[..., "subprocess.CompletedProcess[str]"]
STANDBY, WORKER = "benchkit.run.standby", "benchkit.run.worker"


def children(pid: int) -> dict[int, str]:
    """The living children of a process in the order of their start, and the module that each runs (none before it has begun)."""
    found, own = {}, Path(f"/proc/{pid}/cmdline").read_bytes()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text("utf-8").split():
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes()
            except FileNotFoundError:
                continue  # it has ended meanwhile
            words = [] if line == own else line.split(b"\0")  # forked, and nothing else yet
            found[int(child)] = words[2].decode() if len(words) > 2 and words[1] == b"-m" else ""
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds; fail after 30 s."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited 30 s in vain"
        time.sleep(0.01)


def samples_of(out: Path, process: int) -> bool:
    """Whether a process of the run that is going on has written samples."""
    paths = list(out.glob(f"*/.*.partial/process-{process:05d}-attempt-0.jsonl"))
    return bool(paths) and b'"samples"' in paths[0].read_bytes()


def slow(folder: Path, script: str) -> Path:
    """A script whose processes take about a second."""
    path = folder / "script.toml"
    path.write_text("pace_ms = 8\n" + (DATA / f"{script}.toml").read_text("utf-8"), "utf-8")
    return path


def rows(out: Path, table: str, columns: list[str]) -> list[tuple[object, ...]]:
    """Columns of a table of the one sealed bundle."""
    (bundle,) = out.glob("*/2*")
    return [tuple(row.values()) for row in pq.read_table(bundle / f"{table}.parquet", columns=columns).to_pylist()]


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``benchkit run-protocol``; what still runs at the end is killed."""
    started = []

    def begin(*arguments: object) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "benchkit.cli", "run-protocol", *map(str, arguments), "--out", str(tmp_path)]
        with (tmp_path / "stderr").open("wb") as errors:
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors))
        return started[-1]

    yield begin
    for run in started:
        run.kill()
        run.wait()


def on_events(tmp_path: Path, start: Start) -> "subprocess.Popen[bytes]":
    """A slow run on the event clock, in its second process, with the third standing by."""
    run = start(DATA / "cuda.toml", "--synthetic", slow(tmp_path, "fake-cuda"))
    wait_for(lambda: samples_of(tmp_path, 1) and list(children(run.pid).values()) == [STANDBY, STANDBY])
    return run


def test_on_the_event_clock_the_next_worker_stands_by(tmp_path: Path, start: Start, fake_cuda_bundle: Path) -> None:
    run = on_events(tmp_path, start)
    first, second = children(run.pid)
    (partial,) = tmp_path.glob("*/.*.partial")
    third = [path.name for path in partial.iterdir() if path.name.startswith("process-00002")]
    assert third == []  # no attempt before it is called
    wait_for(lambda: samples_of(tmp_path, 2))
    assert next(iter(children(run.pid))) == second
    assert not alive(first)
    quicken(tmp_path)
    assert run.wait(timeout=60) == 0
    states = rows(tmp_path, "processes", ["process", "attempt", "status"])
    assert states == [(index, 0, "ok") for index in range(6)]
    same = ["process", "seq", "arm", "duration_ns"]
    fast = pq.read_table(fake_cuda_bundle / "samples.parquet", columns=same).to_pylist()
    assert rows(tmp_path, "samples", same) == [tuple(row.values()) for row in fast]


def test_on_the_host_clock_a_worker_starts_when_the_one_before_has_ended(tmp_path: Path, start: Start) -> None:
    run = start(DATA / "host.toml", "--synthetic", slow(tmp_path, "fake-host"))
    seen: set[tuple[str, ...]] = set()

    def ended() -> bool:
        seen.add(tuple(name for name in children(run.pid).values() if name))
        return samples_of(tmp_path, 2)

    wait_for(ended)
    assert seen == {(), (WORKER,)}


def test_a_study_has_its_next_worker_stand_by(tmp_path: Path, start: Start) -> None:
    run = start(DATA / "study.toml")
    seen = []

    def several() -> bool:
        seen.append([name for name in children(run.pid).values() if name])
        return len(list(tmp_path.glob("*/.*.partial/*.outcome.json"))) > 4

    wait_for(several)
    assert [STANDBY, STANDBY] in seen
    assert {name for names in seen for name in names} == {STANDBY}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_orphan_is_left(tmp_path: Path, start: Start, run_benchkit: Run, number: signal.Signals) -> None:
    run = on_events(tmp_path, start)
    workers = list(children(run.pid))
    run.send_signal(number)
    run.wait(timeout=30)
    wait_for(lambda: not any(alive(pid) for pid in workers))
    (partial,) = tmp_path.glob("*/.*.partial")
    assert sorted(path.name for path in partial.glob("*.started")) == [
        f"process-{index:05d}-attempt-0.started" for index in range(2)
    ]
    run_id = partial.name[1 : -len(".partial")]
    quicken(tmp_path)
    done = run_benchkit("run-protocol", DATA / "cuda.toml", "--out", tmp_path, "--resume", run_id)
    assert done.returncode == 0, done.stderr
    states = rows(tmp_path, "processes", ["process", "attempt", "status"])
    assert states[:3] == [(0, 0, "ok"), (1, 0, "interrupted"), (1, 1, "ok")]
    assert [state[2] for state in states[3:]] == ["ok"] * 4


def test_a_standby_that_is_killed_costs_nothing(tmp_path: Path, start: Start) -> None:
    run = on_events(tmp_path, start)
    _, standby = children(run.pid)
    os.kill(standby, signal.SIGKILL)
    wait_for(lambda: samples_of(tmp_path, 2))
    assert list(children(run.pid).values()) == [WORKER, STANDBY]
    quicken(tmp_path)
    assert run.wait(timeout=60) == 0
    assert rows(tmp_path, "processes", ["process", "attempt", "status"]) == [(index, 0, "ok") for index in range(6)]


def test_a_called_worker_that_is_killed_has_failed(tmp_path: Path, start: Start) -> None:
    run = on_events(tmp_path, start)
    worker, _ = children(run.pid)
    os.kill(worker, signal.SIGKILL)
    quicken(tmp_path)
    assert run.wait(timeout=60) == 1
    assert rows(tmp_path, "processes", ["status", "reason"])[1] == ("failed", "ended by signal 9 (SIGKILL)")


@pytest.mark.parametrize(
    ("how", "reason"), [("error", "scripted failure"), ("exit", "ended with exit code 9: it printed nothing")]
)
def test_the_reason_of_a_failure_is_what_its_log_says(tmp_path: Path, start: Start, how: str, reason: str) -> None:
    failing, text = tmp_path / "script.toml", (DATA / "fake-cuda.toml").read_text("utf-8")
    failing.write_text(f'{text}\n[[fail]]\nprocess = 1\nafter = 10\nhow = "{how}"\n', "utf-8")
    assert start(DATA / "cuda.toml", "--synthetic", failing).wait(timeout=60) == 1
    found = rows(tmp_path, "processes", ["status", "reason"])
    assert found == [("ok", None), ("failed", reason), *[("ok", None)] * 4]


def test_a_run_that_ends_at_a_look_leaves_no_worker(tmp_path: Path, run_benchkit: Run) -> None:
    protocol, script = tmp_path / "cuda.toml", DATA / "fake-cuda.toml"
    text = (DATA / "cuda.toml").read_text("utf-8").replace("process_pairs = 6", "process_pairs = 12")
    text = text.replace("ctas_per_sm = 0 }", "ctas_per_sm = 0, threads = 256, unroll = 1 }")
    protocol.write_text(text + "looks = [6, 12]\n", "utf-8")
    assert run_benchkit("lock", protocol).returncode == 0
    before, seen = set(children(os.getpid())), []

    def look() -> None:
        seen.append([name for pid, name in children(os.getpid()).items() if pid not in before])

    def shows(_: object) -> bool:
        look()
        return True

    sealed = Session(protocol=protocol, out=tmp_path, exploratory=False, script=script).run(
        None, shows=shows, finish=lambda _: look()
    )
    assert seen == [[STANDBY], []]  # at the look, and while the bundle is sealed
    assert len(pq.read_table(sealed.folder / "processes.parquet")) == 6
    ledger = [json.loads(line)["event"] for line in (sealed.folder / "attempts.jsonl").read_text("utf-8").splitlines()]
    assert ledger == ["start", "end"]
