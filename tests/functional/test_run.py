"""run-protocol over the fake device: order, rows, failures, interruptions and resumption, by the real command line."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import forked
import pyarrow.parquet as pq
import pytest
from pace import quicken

from benchkit.plan import plan
from benchkit.protocol.lock import load_locked

DATA = Path(__file__).parent.parent / "data"
PROTOCOL = DATA / "host.toml"
SCRIPT = (DATA / "fake-host.toml").read_text("utf-8")
Run = Callable[..., subprocess.CompletedProcess[str]]


def script(folder: Path, extra: str) -> Path:
    """The host script with more keys before its tables, and tables after them."""
    path = folder / "script.toml"
    tables = extra[extra.index("[[") :] if "[[" in extra else ""
    path.write_text(extra.removesuffix(tables) + "\n" + SCRIPT + "\n" + tables, "utf-8")
    return path


def only_bundle(out: Path) -> Path:
    """The one sealed bundle in ``out``."""
    (bundle,) = (out / "fake-host").glob("2*")
    return bundle


def rows(bundle: Path, table: str) -> list[dict[str, object]]:
    """A table as dictionaries."""
    return pq.read_table(bundle / f"{table}.parquet").to_pylist()


def test_rows_stand_in_the_planned_order(fake_bundle: Path) -> None:
    planned = plan(load_locked(PROTOCOL))
    expected = [
        (process.index, point.point.id, block.index, arm, sample)
        for process in planned.processes
        for point in process.points
        for block in point.blocks
        for arm in block.arms
        for sample in range(block.samples)
    ]
    found = rows(fake_bundle, "samples")
    assert [(r["process"], r["point"], r["block"], r["arm"], r["sample"]) for r in found] == expected
    assert [r["seq"] for r in found] == list(range(planned.samples_per_process)) * 5
    assert {r["warmup"] for r in found if r["block"] == -1} == {True}
    assert {r["calls"] for r in found} == {64}


def test_positive_control_gets_its_dose_from_the_warm_up(fake_bundle: Path) -> None:
    found = rows(fake_bundle, "samples")
    for process in range(5):
        for point in ("batch=1", "batch=4"):
            here = [r for r in found if (r["process"], r["point"]) == (process, point)]
            first, second = sorted(r["duration_ns"] for r in here if r["warmup"] and r["arm"] == "base")
            dose = round(1.5 * 0.05 * (first + second) / 2)
            assert {r["injected_ns"] for r in here if r["arm"] == "delayed" and not r["warmup"]} == {dose}
            assert {r["injected_ns"] for r in here if r["arm"] != "delayed" or r["warmup"]} == {0}


def test_the_flush_is_kept_apart_from_the_kernel(tmp_path: Path, run_benchkit: Run) -> None:
    # trial A01: a flush of 0.130 ms before a kernel of 0.050 ms
    script = tmp_path / "script.toml"
    script.write_text("clock_tick_ns = 10\nflush_ns = 130000\nns_per_call.base = 50000\n")
    done = run_benchkit("run-protocol", DATA / "flush.toml", "--synthetic", script, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (bundle,) = (tmp_path / "fake-flush").glob("2*")
    samples = rows(bundle, "samples")
    assert {row["duration_ns"] for row in samples if row["arm"] == "base"} == {4 * 50_000}
    assert {row["flush_ns"] for row in samples} == {130_000}
    assert {row["event_order"] for row in rows(bundle, "processes")} == {"flush,block,start,call*4,stop"}
    arms = json.loads((bundle / "analysis.json").read_text())["arms"]
    assert [arm["median_ns"] for arm in arms if arm["arm"] == "base"] == [50_000.0]


def test_two_runs_of_one_script_give_the_same_samples(tmp_path: Path, fake_bundle: Path, run_benchkit: Run) -> None:
    done = run_benchkit("run-protocol", PROTOCOL, "--synthetic", DATA / "fake-host.toml", "--out", tmp_path)
    assert done.returncode == 0
    assert rows(only_bundle(tmp_path), "samples") == rows(fake_bundle, "samples")


def test_analyse_again_gives_the_same_bytes(bundle_copy: Path, run_benchkit: Run) -> None:
    before = (bundle_copy / "analysis.json").read_bytes()
    (bundle_copy / "analysis.json").unlink()
    assert run_benchkit("analyse", bundle_copy).returncode == 0
    assert (bundle_copy / "analysis.json").read_bytes() == before


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ('[[fail]]\nprocess = 1\nafter = 10\nhow = "error"\n', "scripted failure"),
        ('[[fail]]\nprocess = 1\nafter = 10\nhow = "exit"\n', "ended with exit code 9: it printed nothing"),
    ],
)
def test_failed_worker_is_kept_and_said(tmp_path: Path, run_benchkit: Run, extra: str, reason: str) -> None:
    done = run_benchkit("run-protocol", PROTOCOL, "--synthetic", script(tmp_path, extra), "--out", tmp_path / "out")
    assert done.returncode == 1
    assert f"failed: process 1: {reason}" in done.stderr
    bundle = only_bundle(tmp_path / "out")
    statuses = [(r["process"], r["status"], r["reason"]) for r in rows(bundle, "processes")]
    assert statuses == [(0, "ok", None), (1, "failed", reason), (2, "ok", None), (3, "ok", None), (4, "ok", None)]
    kept = [r for r in rows(bundle, "samples") if r["process"] == 1]
    assert len(kept) == 8  # whole arm-blocks of two samples are written
    analysis = json.loads((bundle / "analysis.json").read_text("utf-8"))
    for comparison in analysis["comparisons"]:
        assert comparison["verdict"] == "inconclusive"
        assert [gate["gate"] for gate in comparison["gates"]][:2] == ["too_few_pairs", "failed_process"]
        assert comparison["pairs"] == 4
    assert json.loads((bundle / "attempts.jsonl").read_text("utf-8").splitlines()[-1])["status"] == "failed_processes"


def test_watchdog_ends_a_hanging_worker(tmp_path: Path, run_benchkit: Run) -> None:
    protocol = tmp_path / "host.toml"
    protocol.write_text(PROTOCOL.read_text("utf-8").replace("watchdog_s = 60", "watchdog_s = 2"), "utf-8")
    assert run_benchkit("lock", protocol).returncode == 0
    hang = script(tmp_path, '[[fail]]\nprocess = 0\nafter = 3\nhow = "hang"\n')
    done = run_benchkit("run-protocol", protocol, "--synthetic", hang, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "process 0: watchdog: the process took longer than 2 s" in done.stderr


def test_wrong_output_ends_the_process_before_any_timing(tmp_path: Path, run_benchkit: Run) -> None:
    wrong = script(tmp_path, 'wrong = ["cand"]')
    done = run_benchkit("run-protocol", PROTOCOL, "--synthetic", wrong, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "correctness (eager): cand at batch=" in done.stderr
    bundle = only_bundle(tmp_path / "out")
    assert rows(bundle, "samples") == []
    assert {r["status"] for r in rows(bundle, "processes")} == {"failed"}


def test_output_that_is_wrong_after_replay_alone_gives_no_timing(tmp_path: Path, run_benchkit: Run) -> None:
    text = (DATA / "fake-cuda.toml").read_text("utf-8")
    wrong = tmp_path / "script.toml"
    wrong.write_text('wrong_replay = ["cand"]\n' + text, "utf-8")
    done = run_benchkit("run-protocol", DATA / "cuda.toml", "--synthetic", wrong, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "correctness (replay): cand at mib=" in done.stderr
    (bundle,) = (tmp_path / "out" / "fake-cuda").glob("2*")
    stages = {(r["arm"], r["stage"]) for r in rows(bundle, "correctness")}
    assert ("cand", "eager") in stages
    assert not [r for r in rows(bundle, "samples") if r["arm"] == "cand"]


def test_false_source_digest_is_refused_before_anything_is_written(tmp_path: Path, run_benchkit: Run) -> None:
    protocol = tmp_path / "host.toml"
    text = PROTOCOL.read_text("utf-8")
    extra = '[build.require.sources]\nbase = "' + "0" * 64 + '"\n\n[fixture]'
    protocol.write_text(text.replace("[fixture]", extra, 1), "utf-8")
    assert run_benchkit("lock", protocol).returncode == 0
    for command in (["check", protocol], ["run-protocol", protocol, "--out", tmp_path / "out"]):
        done = run_benchkit(*command)
        assert done.returncode == 3
        assert f"sources.base: expected {'0' * 64}, found " in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_bug_of_ours_is_exit_70(run_benchkit: Run) -> None:
    code = (
        "import sys\nimport benchkit.run.survey as survey\nsurvey.list_protocols = lambda folder: 1 / 0\n"
        "sys.argv = ['benchkit', 'protocols']\nimport benchkit.cli\nbenchkit.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 70
    assert "this is a bug of benchkit; please report it" in done.stderr


def test_unsupported_arm_makes_its_point_inconclusive(tmp_path: Path, run_benchkit: Run) -> None:
    lacking = script(tmp_path, 'unsupported = ["cand@batch=4"]')
    done = run_benchkit("run-protocol", PROTOCOL, "--synthetic", lacking, "--out", tmp_path / "out")
    assert done.returncode == 0
    bundle = only_bundle(tmp_path / "out")
    comparisons = json.loads((bundle / "analysis.json").read_text("utf-8"))["comparisons"]
    assert [(c["operating_point"], c["verdict"]) for c in comparisons] == [
        ("batch=1", "superior"),
        ("batch=4", "inconclusive"),
    ]
    assert [gate["gate"] for gate in comparisons[1]["gates"]] == ["too_few_pairs", "unsupported"]
    assert comparisons[1]["ratio"] is None


def test_controls_are_unsupported_with_their_baseline(tmp_path: Path, run_benchkit: Run) -> None:
    lacking = script(tmp_path, 'unsupported = ["base@batch=4"]')
    done = run_benchkit("run-protocol", PROTOCOL, "--synthetic", lacking, "--out", tmp_path / "out")
    assert done.returncode == 0
    bundle = only_bundle(tmp_path / "out")
    why = "its baseline base is unsupported: the script says so"
    for row in rows(bundle, "processes"):
        assert sorted(json.loads(str(row["unsupported"]))) == [
            ["batch=4", "aa", why],
            ["batch=4", "base", "the script says so"],
            ["batch=4", "delayed", why],
        ]
    assert {r["arm"] for r in rows(bundle, "samples") if r["point"] == "batch=4"} == {"cand", "copy", "read"}
    report = json.loads(forked.run("validator.cli", "report", bundle, "--format", "json").stdout)
    assert [reason["code"] for reason in report["reasons"]] == ["SYNTHETIC"]


def start(arguments: list[str], errors: Path) -> "subprocess.Popen[bytes]":
    """Start ``benchkit run-protocol`` on the host protocol; its stderr goes to a file."""
    command = [sys.executable, "-m", "benchkit.cli", "run-protocol", str(PROTOCOL), *arguments]
    with errors.open("wb") as file:
        return subprocess.Popen(command, stderr=file, stdout=subprocess.DEVNULL, preexec_fn=_default_sigint)  # noqa: PLW1509


def _default_sigint() -> None:
    """A shell that starts tests in the background ignores SIGINT, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_slow_run(tmp_path: Path) -> tuple["subprocess.Popen[bytes]", Path]:
    """A run of about 5 x 1 s, started."""
    slow = script(tmp_path, "pace_ms = 8")
    return start(["--out", str(tmp_path / "out"), "--synthetic", str(slow)], tmp_path / "stderr"), tmp_path / "out"


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds; fail after 30 s."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited 30 s in vain"
        time.sleep(0.02)


def records(out: Path, process: int, attempt: int) -> Path:
    """A worker's file of the run that is going on."""
    (folder,) = (out / "fake-host").glob(".*.partial")
    return folder / f"process-{process:05d}-attempt-{attempt}.jsonl"


def running(out: Path, process: int, attempt: int = 0) -> bool:
    """Whether the worker has written samples."""
    folders = list((out / "fake-host").glob(".*.partial"))
    return (
        bool(folders)
        and records(out, process, attempt).exists()
        and b"samples" in records(out, process, attempt).read_bytes()
    )


def run_id(out: Path) -> str:
    """Id of the interrupted run."""
    (folder,) = (out / "fake-host").glob(".*.partial")
    return folder.name[1 : -len(".partial")]


def events(bundle: Path) -> list[str]:
    """The ledger's events."""
    return [json.loads(line)["event"] for line in (bundle / "attempts.jsonl").read_text("utf-8").splitlines()]


def test_sigkill_in_a_worker_then_resume(tmp_path: Path, run_benchkit: Run, fake_bundle: Path) -> None:
    run, out = start_slow_run(tmp_path)
    wait_for(lambda: running(out, 1))
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert list((out / "fake-host").glob("2*")) == []
    quicken(out)
    done = run_benchkit("run-protocol", PROTOCOL, "--out", out, "--resume", run_id(out))
    assert done.returncode == 0, done.stderr
    bundle = only_bundle(out)
    assert events(bundle) == ["start", "resume", "end"]
    statuses = [(r["process"], r["attempt"], r["status"]) for r in rows(bundle, "processes")]
    assert statuses == [(0, 0, "ok"), (1, 0, "interrupted"), (1, 1, "ok"), (2, 0, "ok"), (3, 0, "ok"), (4, 0, "ok")]
    last = {0: 0, 1: 1, 2: 0, 3: 0, 4: 0}
    kept = [r["duration_ns"] for r in rows(bundle, "samples") if r["attempt"] == last[r["process"]]]
    assert kept == [r["duration_ns"] for r in rows(fake_bundle, "samples")]
    assert any(r["process"] == 1 and r["attempt"] == 0 for r in rows(bundle, "samples"))
    assert not list((out / "fake-host").glob(".*.partial"))


def test_another_instrument_does_not_go_on(tmp_path: Path, run_benchkit: Run) -> None:
    run, out = start_slow_run(tmp_path)
    wait_for(lambda: running(out, 1))
    run.send_signal(signal.SIGKILL)
    run.wait()
    quicken(out)
    settings = out / "fake-host" / f".{run_id(out)}.partial" / "run.json"
    stored = json.loads(settings.read_text("utf-8"))
    stored["identity"]["benchkit_sha256"] = "0" * 64
    settings.write_text(json.dumps(stored), "utf-8")
    done = run_benchkit("run-protocol", PROTOCOL, "--out", out, "--resume", run_id(out))
    assert done.returncode == 3
    assert "all processes of a run need one machine and one build: benchkit_sha256: expected 0000" in done.stderr
    assert "device" not in done.stderr  # only what differs is named
    assert list((out / "fake-host").glob("2*")) == []


def test_killed_before_the_worker_said_anything_then_resume(tmp_path: Path, run_benchkit: Run) -> None:
    run, out = start_slow_run(tmp_path)
    wait_for(lambda: list((out / "fake-host").glob(".*.partial/process-00000-attempt-0.started")) != [])
    run.send_signal(signal.SIGKILL)
    run.wait()
    time.sleep(0.5)  # until the worker is gone, too
    quicken(out)
    name = run_id(out)
    (folder,) = (out / "fake-host").glob(".*.partial")
    (folder / "process-00000-attempt-0.jsonl").unlink(missing_ok=True)  # so early that it wrote nothing
    assert run_benchkit("run-protocol", PROTOCOL, "--out", out, "--resume", name).returncode == 0
    bundle = only_bundle(out)
    first = rows(bundle, "processes")[0]
    assert (first["status"], first["environment"]) == ("interrupted", "{}")
    report = json.loads(forked.run("validator.cli", "report", bundle, "--format", "json").stdout)
    assert [reason["code"] for reason in report["reasons"]] == ["SYNTHETIC"]


def test_a_run_is_not_resumed_twice_at_once(tmp_path: Path, run_benchkit: Run) -> None:
    run, out = start_slow_run(tmp_path)
    wait_for(lambda: running(out, 0))
    done = run_benchkit("run-protocol", PROTOCOL, "--out", out, "--resume", run_id(out))
    assert done.returncode == 2
    assert "this run is going on in another process; wait for it" in done.stderr
    quicken(out)
    assert run.wait(timeout=60) == 0
    assert events(only_bundle(out)) == ["start", "end"]  # what was refused left nothing


def test_worker_dies_with_its_supervisor(tmp_path: Path) -> None:
    run, out = start_slow_run(tmp_path)
    wait_for(lambda: running(out, 0))
    run.send_signal(signal.SIGKILL)
    run.wait()
    size = records(out, 0, 0).stat().st_size
    time.sleep(0.3)
    assert records(out, 0, 0).stat().st_size == size


def test_killed_worker_is_failed_and_the_run_goes_on(tmp_path: Path) -> None:
    run, out = start_slow_run(tmp_path)
    wait_for(lambda: running(out, 1))
    workers = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text("utf-8").split()
    os.kill(int(workers[0]), signal.SIGKILL)
    quicken(out)
    assert run.wait(timeout=60) == 1
    errors = (tmp_path / "stderr").read_text("utf-8")
    assert "failed: process 1: ended by signal 9 (SIGKILL)" in errors
    statuses = [r["status"] for r in rows(only_bundle(out), "processes")]
    assert statuses == ["ok", "failed", "ok", "ok", "ok"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_prints_the_way_back(tmp_path: Path, run_benchkit: Run, number: signal.Signals) -> None:
    run, out = start_slow_run(tmp_path)
    wait_for(lambda: running(out, 0))
    run.send_signal(number)
    assert run.wait(timeout=60) == 130
    errors = (tmp_path / "stderr").read_text("utf-8")
    match = re.search(r"benchkit run-protocol (\S+) --out (\S+) --resume (\S+)", errors)
    assert match
    quicken(out)
    done = run_benchkit("run-protocol", match[1], "--out", match[2], "--resume", match[3])
    assert done.returncode == 0
    assert events(only_bundle(out)) == ["start", "resume", "end"]


def test_three_interrupted_attempts_are_a_failure(tmp_path: Path, run_benchkit: Run) -> None:
    run, out = start_slow_run(tmp_path)
    for attempt in range(3):
        wait_for(lambda attempt=attempt: running(out, 0, attempt))
        run.send_signal(signal.SIGKILL)
        run.wait()
        if attempt == 2:
            quicken(out)
        run = start(["--out", str(out), "--resume", run_id(out)], tmp_path / "stderr")
    assert run.wait(timeout=60) == 1
    statuses = [(r["process"], r["attempt"], r["status"]) for r in rows(only_bundle(out), "processes")]
    assert statuses[:4] == [(0, 0, "interrupted"), (0, 1, "interrupted"), (0, 2, "failed"), (1, 0, "ok")]


def patched_run(out: Path, patch: str, scripted: Path = DATA / "fake-host.toml") -> list[str]:
    """The command of a run with some lines of Python before it; ``die`` kills the run, ``sleep`` stops it for a minute."""
    arguments = ["benchkit", "run-protocol", str(PROTOCOL), "--synthetic", str(scripted), "--out", str(out)]
    program = f"""
import os, sys, time
import benchkit.analysis.document as document
import benchkit.cli
import benchkit.run.collect as collect
import benchkit.run.folder as folder
import benchkit.run.ledger as ledger
append = ledger.append
def die(*a, **k):
    os.kill(os.getpid(), 9)
def sleep(*a, **k):
    print("asleep", flush=True)
    time.sleep(60)
{patch}
sys.argv = {arguments!r}
sys.exit(benchkit.cli.main())
"""
    return [sys.executable, "-c", program]


def run_and_die(out: Path, patch: str, scripted: Path = DATA / "fake-host.toml") -> None:
    """A run that is killed where ``patch`` says so."""
    killed = subprocess.run(patched_run(out, patch, scripted), capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


@pytest.mark.parametrize("step", ["tables", "ledger", "manifest", "finish"])
def test_killed_while_sealing_then_resume(tmp_path: Path, run_benchkit: Run, step: str) -> None:
    patches = {
        "tables": "collect.write_table = die",
        "ledger": "ledger.append = lambda *a, event, **k: die() if event == 'end' else append(*a, event=event, **k)",
        "manifest": "collect.seal = die",
        "finish": "document.write_analysis = die",
    }
    out = tmp_path / "out"
    run_and_die(out, patches[step])
    assert list((out / "fake-host").glob("2*")) == []
    done = run_benchkit("run-protocol", PROTOCOL, "--out", out, "--resume", run_id(out))
    assert done.returncode == 0, done.stderr
    expected = ["start", "resume", "end"] if step in ("tables", "ledger") else ["start", "end", "resume", "end"]
    assert events(only_bundle(out)) == expected
    assert (only_bundle(out) / "analysis.json").exists()


@pytest.mark.parametrize("left", ["everything", "nothing"])
@pytest.mark.parametrize("fails", [False, True])
def test_killed_after_the_last_rename_then_resume(tmp_path: Path, run_benchkit: Run, left: str, fails: bool) -> None:
    extra = '[[fail]]\nprocess = 1\nafter = 10\nhow = "error"\n' if fails else ""
    out = tmp_path / "out"
    run_and_die(out, "folder.RunFolder.remove = die", script(tmp_path, extra))
    bundle, name = only_bundle(out), run_id(out)
    (partial,) = (out / "fake-host").glob(".*.partial")
    if left == "nothing":  # killed as its files were removed
        shutil.rmtree(partial)
        partial.mkdir()
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}
    ledger = (out / "fake-host" / "attempts.jsonl").read_bytes()
    done = run_benchkit("run-protocol", PROTOCOL, "--out", out, "--resume", name)
    assert (done.returncode, done.stderr) == ((1, "failed: process 1: scripted failure\n") if fails else (0, ""))
    assert done.stdout.splitlines()[-2:] == [f"bundle: {bundle}", f"check it: validator report {bundle}"]
    assert (out / "fake-host" / "attempts.jsonl").read_bytes() == ledger
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before
    assert not partial.exists()


@pytest.mark.parametrize("step", ["collect.seal", "folder.RunFolder.remove"])
def test_sealing_is_held_and_interrupted_as_running_is(tmp_path: Path, run_benchkit: Run, step: str) -> None:
    out = tmp_path / "out"
    command = patched_run(out, f"{step} = sleep")
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "asleep\n"
    name = run_id(out)
    done = run_benchkit("run-protocol", PROTOCOL, "--out", out, "--resume", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this run is going on in another process; wait for it" in done.stderr
    run.terminate()
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    assert (
        f"interrupted; nothing is lost. Go on with: benchkit run-protocol {PROTOCOL} --out {out} --resume {name}"
        in stderr
    )
    assert run_benchkit("run-protocol", PROTOCOL, "--out", out, "--resume", name).returncode == 0
    assert events(only_bundle(out)) == (
        ["start", "end", "resume", "end"] if step == "collect.seal" else ["start", "end"]
    )


OUTCOME, RECORDS = "process-00000-attempt-0.outcome.json", "process-00000-attempt-0.jsonl"
DAMAGE = {
    "empty outcome": (OUTCOME, "", "Expecting value: line 1 column 1 (char 0)"),
    "no key": (OUTCOME, "{}", "expected an object with status, reason, started_utc, ended_utc"),
    "no object": (OUTCOME, "[]", "expected an object with status, reason, started_utc, ended_utc"),
    "status": (OUTCOME, '{"status":"x","reason":null,"started_utc":"","ended_utc":""}', "status is 'x'"),
    "stray": ("process-00000-attempt-y.started", "", "expected process-00000-attempt-1.started in its place"),
    "settings": ("run.json", "{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    "header": (RECORDS, '{"kind":"header","problems":[]}\n', "expected an object with environment, environment_sha256, "
               "fixture_sha256, clock, launch, event_order, clock_tick_ns, l2_bytes, copies, unsupported, binaries, repacking, problems"),
    "end": (RECORDS, '{"kind":"end","status":1,"reason":null}\n', "status is 1"),
    "line": (RECORDS, '{"kind":"rows","table":"samples",\n', "Expecting property name enclosed in double quotes: line 2 column 1 (char 34)"),
    "rows": (RECORDS, '{"kind":"rows","table":"samples","rows":[1]}\n', "rows of samples: [1]"),
    "row": (RECORDS, '{"kind":"rows","table":"samples","rows":[[1],[1,2]]}\n', "rows of samples: zip() argument 2 is longer than argument 1"),
    "type": (RECORDS, '{"kind":"rows","table":"repeats","rows":[["a","b",99999999999,null,"c"]]}\n',
             "rows of repeats: Value 99999999999 too large to fit in C integer type"),
}  # fmt: skip


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run that was killed while its tables were written."""
    out = tmp_path_factory.mktemp("killed") / "out"
    run_and_die(out, "collect.write_table = die")
    return out


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_folder_is_named_and_does_not_go_on(
    tmp_path: Path, run_benchkit: Run, killed_run: Path, kind: str
) -> None:
    out = Path(shutil.copytree(killed_run, tmp_path / "out"))
    (partial,) = (out / "fake-host").glob(".*.partial")
    name, text, found = DAMAGE[kind]
    if kind == "end":
        (partial / "process-00000-attempt-0.outcome.json").unlink()
    (partial / name).write_text(text, "utf-8")
    done = run_benchkit("run-protocol", PROTOCOL, "--out", out, "--resume", run_id(out))
    told = (
        f"benchkit: {partial / name}: expected a file as the run wrote it, found it damaged ({found}); "
        "a damaged run does not go on: keep its folder for whoever asks, and start a new run\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", told)
    assert list((out / "fake-host").glob("2*")) == []


def test_resume_refuses_another_protocol(tmp_path: Path, run_benchkit: Run) -> None:
    run, out = start_slow_run(tmp_path)
    wait_for(lambda: running(out, 0))
    run.send_signal(signal.SIGKILL)
    run.wait()
    other = tmp_path / "other.toml"
    other.write_text(PROTOCOL.read_text("utf-8").replace("ramp_ms = 0", "ramp_ms = 1"), "utf-8")
    assert run_benchkit("lock", other).returncode == 0
    done = run_benchkit("run-protocol", other, "--out", out, "--resume", run_id(out))
    assert done.returncode == 2
    assert "was started with protocol digest" in done.stderr


def test_resume_of_nothing_names_what_there_is(tmp_path: Path, run_benchkit: Run) -> None:
    done = run_benchkit("run-protocol", PROTOCOL, "--out", tmp_path, "--resume", "20260101T000000Z-00000000")
    assert done.returncode == 2
    assert "no interrupted run 20260101T000000Z-00000000; there is none" in done.stderr


def test_edited_ledger_stops_the_run(tmp_path: Path, run_benchkit: Run, fake_bundle: Path) -> None:
    folder = tmp_path / "fake-host"
    folder.mkdir()
    ledger = (fake_bundle / "attempts.jsonl").read_text("utf-8")
    (folder / "attempts.jsonl").write_text(ledger.replace('"event":"start"', '"event":"resume"'), "utf-8")
    done = run_benchkit("run-protocol", PROTOCOL, "--synthetic", DATA / "fake-host.toml", "--out", tmp_path)
    assert done.returncode == 2
    assert "does not continue the chain" in done.stderr


def test_a_draft_can_be_checked_and_planned(tmp_path: Path, run_benchkit: Run) -> None:
    protocol = tmp_path / "draft.toml"
    shutil.copyfile(PROTOCOL, protocol)
    checked = run_benchkit("check", protocol)
    assert (checked.returncode, "not locked yet" in checked.stdout) == (0, True)
    planned = run_benchkit("plan", protocol)
    assert planned.returncode == 0
    assert run_benchkit("plan", PROTOCOL).stdout == planned.stdout
    assert not protocol.with_suffix(".lock").exists()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "tile = 4",
            "tile = true",
            "arm[0].params.tile: expected an integer of at least 1 for cpu_expert_centric, found true",
        ),
        (
            'kernel = "cpu_output_centric"',
            'kernel = "cpu_copy"',
            'arm[1].kernel: cpu_copy takes a fixture "arrays", this arm gets "moe"',
        ),
        (
            'weight_format = "fp32"',
            'weight_format = "bf16"',
            "operating_points: the baseline cannot run at batch=1, batch=4 (base: needs fp32 weights, found bf16); "
            "leave such points out, or change the fixture or the kernel",
        ),
    ],
)
def test_check_lock_and_plan_refuse_alike(tmp_path: Path, run_benchkit: Run, old: str, new: str, problem: str) -> None:
    protocol = tmp_path / "draft.toml"
    protocol.write_text(PROTOCOL.read_text("utf-8").replace(old, new, 1), "utf-8")
    said = {command: run_benchkit(command, protocol) for command in ("check", "lock", "plan")}
    assert {(done.returncode, done.stdout, done.stderr) for done in said.values()} == {(2, "", said["check"].stderr)}
    assert f"  {problem}\n" in said["check"].stderr
    assert [path.name for path in tmp_path.iterdir()] == ["draft.toml"]


def test_unlocked_and_edited_protocols_do_not_run(tmp_path: Path, run_benchkit: Run) -> None:
    protocol = tmp_path / "host.toml"
    shutil.copyfile(PROTOCOL, protocol)
    done = run_benchkit("run-protocol", protocol, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "not locked" in done.stderr
    shutil.copyfile(PROTOCOL.with_suffix(".lock"), protocol.with_suffix(".lock"))
    protocol.write_text(protocol.read_text("utf-8").replace('margin = "5%"', 'margin = "10%"'), "utf-8")
    done = run_benchkit("run-protocol", protocol, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "changed after it was locked" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_machine_that_does_not_satisfy_the_build_is_refused(tmp_path: Path, run_benchkit: Run) -> None:
    protocol = tmp_path / "host.toml"
    protocol.write_text(PROTOCOL.read_text("utf-8").replace('python = ">=3.11"', 'python = ">=4"'), "utf-8")
    assert run_benchkit("lock", protocol).returncode == 0
    for command in (["check", protocol], ["run-protocol", protocol, "--out", tmp_path / "out"]):
        done = run_benchkit(*command)
        assert done.returncode == 3, done.stderr
        assert "python: expected >=4, found 3." in done.stderr
    assert not (tmp_path / "out").exists()
