"""Bad input and bad places, by the real command line: one message, its exit code, no traceback, nothing half-written."""

import os
import pty
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

DATA = Path(__file__).parent.parent / "data"
ROOT = DATA.parents[1]
HOST = (DATA / "host.toml").read_text("utf-8")
Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
TOO_DEEP = "file: expected at most 32 tables or arrays inside each other, found more"


def shell(line: str, *arguments: object) -> Done:
    """A shell line; ``"$@"`` in it are the arguments."""
    command = ["sh", "-c", line, "sh", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (".".join(["a"] * 3000) + " = 1\n", TOO_DEEP),
        ("a = " + "[" * 3000 + "]" * 3000 + "\n", TOO_DEEP),
        ("a = " + "[" * 100 + "]" * 100 + "\n", TOO_DEEP),
        ("[" + ".".join(["a"] * 40) + "]\n", TOO_DEEP),
        ("a = " + "9" * 5000 + "\n", "file: expected integers of at most 2^53 - 1, found one of thousands of digits"),
    ],
)
def test_toml_that_no_protocol_is(run_benchkit: Run, tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text, "utf-8")
    for command in (["check"], ["lock"], ["plan"], ["run-protocol", "--out", tmp_path / "out"], ["tune"]):
        done = run_benchkit(*command, path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"benchkit: {path}: 1 problem(s)\n  {problem}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


def test_a_huge_integer_is_one_of_the_problems(run_benchkit: Run, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(HOST.replace("weight_seed = 1", "weight_seed = 0x" + "f" * 20_000), "utf-8")
    done = run_benchkit("check", tmp_path / "x.toml")
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        2,
        [
            "  fixture.weight_seed: expected an integer of at most 2^53 - 1, found integer of 80000 bits",
            "  fixture.weight_seed: expected an integer from 0, found integer of 80000 bits",
        ],
    )


def test_what_a_terminal_would_act_on_is_escaped(run_benchkit: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(HOST + '\n["a\\n\\u001b[31m"]\n', "utf-8")
    done = run_benchkit("check", path)
    assert (done.returncode, done.stderr.splitlines()[1].partition("; known")[0]) == (2, "  a\\n\\x1b[31m: unknown key")
    path.write_text(re.sub(r'title = ".*"', r'title = "a\\u001b[31mb"', HOST), "utf-8")
    assert run_benchkit("protocols", tmp_path).stdout == f"{path}  not locked  a\\x1b[31mb\n"


def place(folder: Path, kind: str) -> tuple[Path, str]:
    """Something that is no protocol file, and what a message says of it."""
    path = folder / "x.toml"
    if kind == "pipe":
        os.mkfifo(path)
        return path, "a protocol file, found a named pipe; give a regular file"
    if kind == "folder":
        path.mkdir()
        return path, "a protocol file, found a folder; give a regular file"
    if kind == "device":
        return Path("/dev/zero"), "a protocol file, found a device; give a regular file"
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
        return path, "a protocol file, found a socket; give a regular file"
    if kind == "large":
        path.touch()
        os.truncate(path, (4 << 20) + 1)
        return path, "a protocol file of at most 4194304 bytes, found more"
    if kind == "loop":
        path.symlink_to(path)
        return path, "a protocol file, found none that can be read (Too many levels of symbolic links)"
    return path / "y.toml", "a protocol file, found none that can be read (No such file or directory)"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket", "large", "loop", "absent"])
def test_what_is_no_protocol_file(run_benchkit: Run, tmp_path: Path, kind: str) -> None:
    path, expected = place(tmp_path, kind)
    for command in ("check", "lock", "plan"):
        done = run_benchkit(command, path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"benchkit: {path}: expected {expected}\n")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no such file here")
def test_a_file_that_opens_and_cannot_be_read(run_benchkit: Run) -> None:
    told = "benchkit: /proc/self/mem: expected a protocol file, found none that can be read (Input/output error)\n"
    for command in ("check", "lock", "plan"):
        done = run_benchkit(command, "/proc/self/mem")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


def test_a_calibration_that_cannot_be_written_is_not_begun(run_benchkit: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, reason in (("absent/x.json", "No such file or directory"), ("file/x.json", "Not a directory")):
        done = run_benchkit("calibrate", "--quick", "--out", tmp_path / place)
        told = f"benchkit: {tmp_path / place}: cannot be written ({reason}); give a place that can be\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    done = run_benchkit("calibrate", "--quick", "--out", tmp_path / "x.txt")
    told = "benchkit: --out: expected a file name that ends in .json (the Markdown goes beside it), found x.txt\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("surroundings", "escapes"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": ""}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)  # fmt: skip
def test_a_terminal_that_wants_no_escapes_gets_none(surroundings: dict[str, str], escapes: bool) -> None:
    program = (
        "from benchkit.run.progress import progress_bar\nwith progress_bar('title', 9) as bar:\n    bar.advance_to(9)\n"
    )
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", program], stderr=theirs, env=inherited | surroundings, timeout=60)
    os.write(theirs, b"end")
    shown = os.read(ours, 1 << 16)
    os.close(ours)
    os.close(theirs)
    assert (done.returncode, b"\x1b" in shown, b"title" in shown) == (0, escapes, escapes)


def test_routes_from_a_pipe(run_benchkit: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    os.mkfifo(path)
    done = run_benchkit("mechanism", "membership", path, "--experts", "4", "--block", "2")
    told = f"benchkit: {path}: expected a Parquet file with the columns token, slot, expert, found a named pipe; give a regular file\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(run_benchkit: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.touch(mode=0)
    assert run_benchkit("check", path).stderr.endswith("found none that can be read (Permission denied)\n")


@pytest.mark.parametrize("kind", ["pipe", "folder", "bytes", "deep", "digits"])
def test_what_is_no_lock_file(run_benchkit: Run, tmp_path: Path, kind: str) -> None:
    path, lock = tmp_path / "x.toml", tmp_path / "x.lock"
    path.write_text(HOST, "utf-8")
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.write_bytes({"bytes": b"\xff", "deep": b"[" * 100_000, "digits": b"9" * 5000}[kind])
    for command in ("check", "lock"):
        done = run_benchkit(command, path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"benchkit: {lock}: expected a lock file, found ")
        assert done.stderr.count("\n") == 1
    assert sorted(item.name for item in tmp_path.iterdir()) == ["x.lock", "x.toml"]


def test_the_list_goes_on_after_a_bad_file(run_benchkit: Run, tmp_path: Path) -> None:
    for name in ("a", "c", "e"):
        shutil.copyfile(DATA / "host.toml", tmp_path / f"{name}.toml")
    shutil.copyfile(DATA / "host.lock", tmp_path / "c.lock")
    (tmp_path / "b.toml").mkdir()
    (tmp_path / "d.toml").write_text("a = 1\nb = 2\n", "utf-8")
    shutil.copyfile(DATA / "cuda.lock", tmp_path / "e.lock")
    done = run_benchkit("protocols", tmp_path)
    lines = [line.removeprefix(f"{tmp_path}/") for line in done.stdout.splitlines()]
    assert [line.partition("  ")[0] for line in lines] == ["a.toml", "b.toml", "c.toml", "d.toml", "e.toml"]
    assert (done.returncode, done.stderr) == (2, "")
    assert lines[0].startswith("a.toml  not locked  ")
    assert lines[1] == "b.toml  expected a protocol file, found a folder; give a regular file"
    assert lines[2].startswith("c.toml  locked 2026-")
    assert re.fullmatch(r"d\.toml  \d+ problem\(s\): run benchkit check \S+", lines[3])
    assert lines[4].startswith("e.toml  its lock does not belong to it: run benchkit check ")
    for name in ("b.toml", "d.toml", "e.toml"):
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run_benchkit("protocols", tmp_path).returncode == 0


def test_the_list_says_whose_sources_have_changed(run_benchkit: Run, tmp_path: Path) -> None:
    sources = f'[build.require.sources]\nbase = "{"0" * 64}"\ncopy = "{"0" * 64}"\n\n[fixture]'
    path, study = tmp_path / "x.toml", tmp_path / "y.toml"
    path.write_text(HOST.replace("[fixture]", sources), "utf-8")
    known = (ROOT / "protocols" / "route-membership-h200.toml").read_text("utf-8")
    study.write_text(re.sub(r'(?m)^marlin-op = ".*"$', f'marlin-op = "{"0" * 64}"', known), "utf-8")
    shutil.copytree(ROOT / "protocols" / "assets", tmp_path / "assets")
    for each in (path, study):
        assert run_benchkit("lock", each).returncode == 0
    done = run_benchkit("protocols", tmp_path)
    assert [line.partition("sources changed since: ")[2].partition("  ")[0] for line in done.stdout.splitlines()] == [
        "base, copy",
        "marlin-op",
    ]
    assert (done.returncode, done.stderr) == (0, "")
    assert run_benchkit("lock", "--sources", "--replace", path).returncode == 0
    assert "changed" not in run_benchkit("protocols", tmp_path).stdout.splitlines()[0]
    path.write_text(HOST.replace('"cpu_output_centric"', '"cpu_output"'), "utf-8")
    assert run_benchkit("protocols", tmp_path).stdout.startswith(f"{path}  1 problem(s): run benchkit check {path}\n")


@pytest.mark.parametrize("tool", ["benchkit", "validator"])
@pytest.mark.parametrize("option", [["--help"], ["protocols", str(DATA)]])
def test_an_output_that_is_closed_or_full(tool: str, option: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        f"{tool}.cli",
        *(["reasons"] if (tool, option[0]) == ("validator", "protocols") else option),
    ]
    closed = shell('exec "$@" >&-', *command)
    told = f"{tool}: standard output: expected one that can be written, found it closed\n"
    assert (closed.returncode, closed.stderr) == (2, told)
    full = shell('exec "$@" >/dev/full', *command)
    assert (full.returncode, full.stderr.count("\n")) == (2, 1)
    assert full.stderr.startswith(f"{tool}: standard output: ")
    assert "No space left on device" in full.stderr
    assert shell('"$@" | head -n 1; exit 0', *command).stderr == ""


def test_an_error_that_nobody_can_be_told() -> None:
    for tool, code in (("benchkit", 2), ("validator", 3)):
        command = [sys.executable, "-m", f"{tool}.cli", {"benchkit": "check", "validator": "report"}[tool], "/nowhere"]
        assert shell('exec "$@" 2>&- >/dev/null', *command).returncode == code
        assert shell('exec "$@" 2>/dev/full >/dev/null', *command).returncode == code


@pytest.mark.parametrize("name", ["nofile", ""])
def test_a_script_that_is_none_starts_nothing(run_benchkit: Run, tmp_path: Path, name: str) -> None:
    script = tmp_path / name
    done = run_benchkit("run-protocol", DATA / "host.toml", "--synthetic", script, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"benchkit: {script}: expected a script of the fake device, found ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("flush_ns = 9000000000000000000", "flush_ns: expected an integer from 0 to 1000000000000, found 9000000000000000000"),
        ("ns_per_call.base = 9000000000000000000", "ns_per_call.base: expected an integer from 1 to 1000000000000, found 9000000000000000000"),
        ("ns_per_call = 1", "ns_per_call: expected a table, found 1"),
        ("l2_bytes = 9000000000000000000", "l2_bytes: expected an integer from 0 to 1099511627776, found 9000000000000000000"),
        ("clock_tick_ns = 0", "clock_tick_ns: expected an integer from 1 to 1000000000, found 0"),
        ("jitter_ns = 1.5", "jitter_ns: expected an integer from 0 to 1000000000000, found 1.5"),
        ("throttle.x = -1", "throttle.x: expected an integer from 0 to 9223372036854775807, found -1"),
        ("process_ratio.cand = [1, nan]", "process_ratio.cand: expected an array of numbers above 0 and at most 1000, found [1, nan]"),
        ("wrong = 'cand'", "wrong: expected an array of strings, found 'cand'"),
        ("[[fail]]\nprocess = 1", "fail: expected process, after and how (error, exit, hang), found {'process': 1}"),
    ],
)  # fmt: skip
def test_values_that_no_script_may_have(run_benchkit: Run, tmp_path: Path, text: str, problem: str) -> None:
    script = tmp_path / "script.toml"
    script.write_text(text + "\n", "utf-8")
    done = run_benchkit("run-protocol", DATA / "host.toml", "--synthetic", script, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"benchkit: {script}: {problem}; mend the script\n")
    assert not (tmp_path / "out").exists()


def test_virtual_time_that_runs_out_fails_the_process(run_benchkit: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    longest = "".join(f"{arm} = {[1000] * 5}\n" for arm in ("base", "cand", "aa", "delayed", "copy", "read"))
    calls = "".join(f"{arm} = 1000000000000\n" for arm in ("base", "cand", "copy", "read"))
    script.write_text(f"[ns_per_call]\n{calls}[process_ratio]\n{longest}", "utf-8")
    done = run_benchkit("run-protocol", DATA / "host.toml", "--synthetic", script, "--out", tmp_path / "out")
    reason = "the script's virtual time exceeds 4611686018427387904 ns; give shorter durations"
    assert (done.returncode, done.stderr) == (1, "".join(f"failed: process {n}: {reason}\n" for n in range(5)))


def test_a_run_folder_that_cannot_be_made(run_benchkit: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "fake-host").touch()
    done = run_benchkit(
        "run-protocol", DATA / "host.toml", "--synthetic", DATA / "fake-host.toml", "--out", tmp_path / "out"
    )
    place = re.escape(str(tmp_path / "out" / "fake-host"))
    told = rf"benchkit: {place}/\.\S+\.partial: cannot be made \(Not a directory\); give a place that can be written \(--out\); nothing was started\n"
    assert (done.returncode, bool(re.fullmatch(told, done.stderr))) == (2, True), done.stderr


def test_a_full_disk_ends_the_run_with_the_way_back(run_benchkit: Run, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the worker's records exceed it."""
    command = ["-m", "benchkit.cli", "run-protocol", DATA / "host.toml", "--out", tmp_path]
    done = subprocess.run(
        [sys.executable, *map(str, command), "--synthetic", str(DATA / "fake-host.toml")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    (partial,) = (tmp_path / "fake-host").glob(".*.partial")
    run_id = partial.name[1:-8]
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"benchkit: {partial}/process-00000-attempt-0.jsonl: cannot be written (File too large); what was recorded is kept. "
        f"Go on with: benchkit run-protocol {DATA / 'host.toml'} --out {tmp_path} --resume {run_id}\n"
    )
    assert [path.name for path in (tmp_path / "fake-host").iterdir() if not path.name.startswith(".")] == [
        "attempts.jsonl"
    ]
    assert run_benchkit("run-protocol", DATA / "host.toml", "--out", tmp_path, "--resume", run_id).returncode == 0
    rows = pq.read_table(tmp_path / "fake-host" / run_id / "processes.parquet").to_pylist()
    assert [(row["process"], row["attempt"], row["status"]) for row in rows][:3] == [
        (0, 0, "interrupted"),
        (0, 1, "ok"),
        (1, 0, "ok"),
    ]


def test_a_lock_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(HOST, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "benchkit.cli", "lock", str(path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        f"benchkit: {tmp_path / 'x.lock'}: cannot be written (File too large); give a place that can be\n",
    )
    assert [item.name for item in tmp_path.iterdir()] == ["x.toml"]
