"""Workers that stand by: what they print, how they end, what they become, and what is started in their place. The worker here is a module of the test."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchkit.run.folder import RunFolder
from benchkit.run.standby import Workers

ROOT = Path(__file__).parents[3]
WORKER = """
import os, sys, time
from pathlib import Path

print("imported", flush=True)

def load(folder):
    os.environ["LOADED"] = "yes"
    print("loaded", flush=True)
    {load}

def main(arguments):
    print("main", *arguments[1:3], os.environ.get("LOADED", "no"), repr(sys.stdin.read()), flush=True)
    return 7

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
Make = Callable[..., Workers]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture
def make(tmp_path: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Workers whose ``load`` ends with a statement."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))

    def made(load: str = "pass", *, ahead: bool = True) -> Workers:
        (tmp_path / "some_worker.py").write_text(WORKER.format(load=load), "utf-8")
        return Workers(folder, "some_worker", ahead=ahead)

    return made


def waiting(workers: Workers) -> "subprocess.Popen[bytes]":
    """The worker that stands by, once it has imported."""
    standby, log = workers._standby, workers._folder.root / "standby.log"
    assert standby is not None
    end = time.monotonic() + 30
    while standby.poll() is None and b"loaded" not in log.read_bytes():
        assert time.monotonic() < end
        time.sleep(0.01)
    return standby


def said(folder: RunFolder, worker: "subprocess.Popen[bytes]") -> tuple[int, list[str]]:
    """How the worker of process 3, attempt 1 ended, and its log."""
    return worker.wait(timeout=30), folder.log_path(3, 1).read_text("utf-8").splitlines()


def test_it_becomes_the_worker_that_is_called(make: Make, folder: RunFolder) -> None:
    with make() as workers:
        workers.stand_by()
        standby = waiting(workers)
        workers.stand_by()
        worker = workers.call(3, 1)
        assert worker is standby
        assert os.getsid(worker.pid) == worker.pid
        assert said(folder, worker) == (7, ["imported", "loaded", "main 3 1 yes ''"])
    assert os.listdir(folder.root) == [folder.log_path(3, 1).name]


def test_the_first_worker_comes_the_same_way(make: Make, folder: RunFolder) -> None:
    with make() as workers:
        assert said(folder, workers.call(3, 1)) == (7, ["imported", "loaded", "main 3 1 yes ''"])


def test_nothing_stands_by_where_the_host_measures(make: Make, folder: RunFolder) -> None:
    with make(ahead=False) as workers:
        workers.stand_by()
        assert workers._standby is None
        assert os.listdir(folder.root) == []
        assert said(folder, workers.call(3, 1)) == (7, ["imported", "main 3 1 no ''"])


@pytest.mark.parametrize("load", ["raise ImportError('no such library')", "os.kill(os.getpid(), 9)", "sys.exit(5)"])
def test_one_that_cannot_stand_by_is_replaced(make: Make, folder: RunFolder, load: str) -> None:
    with make(load) as workers:
        workers.stand_by()
        standby = waiting(workers)
        if "raise" not in load:
            standby.wait(timeout=30)
        code, lines = said(folder, workers.call(3, 1))
    assert (code, lines[-2:]) == (7, ["imported", "main 3 1 no ''"])  # of a fresh interpreter, in the first environment


def test_a_killed_one_is_replaced(make: Make, folder: RunFolder) -> None:
    with make() as workers:
        workers.stand_by()
        standby = waiting(workers)
        os.kill(standby.pid, signal.SIGKILL)
        standby.wait(timeout=30)
        assert said(folder, workers.call(3, 1)) == (7, ["imported", "main 3 1 no ''"])
        workers.stand_by()
        assert waiting(workers).poll() is None  # the next one stands by again


def test_a_worker_that_cannot_be_imported_says_why(make: Make, folder: RunFolder, tmp_path: Path) -> None:
    with make() as workers:
        (tmp_path / "some_worker.py").write_text("import no_such_library\n", "utf-8")
        code, lines = said(folder, workers.call(3, 1))
    assert (code, lines[-1]) == (1, "ModuleNotFoundError: No module named 'no_such_library'")


def test_where_none_can_be_started_the_error_comes_with_the_call(make: Make, folder: RunFolder) -> None:
    with make() as workers:
        folder.root.rmdir()
        workers.stand_by()
        with pytest.raises(FileNotFoundError):
            workers.call(3, 1)


@pytest.mark.parametrize("asleep", [False, True])
def test_it_is_gone_with_its_context(make: Make, folder: RunFolder, asleep: bool) -> None:
    with make("time.sleep(60)" if asleep else "pass") as workers:
        workers.stand_by()
        standby = waiting(workers)
    assert standby.returncode == -signal.SIGKILL
    assert not Path(f"/proc/{standby.pid}").exists()
    assert os.listdir(folder.root) == []


def test_it_ends_quietly_with_its_input(make: Make, folder: RunFolder) -> None:
    with make() as workers:
        workers.stand_by()
        standby = waiting(workers)
        assert standby.stdin is not None
        standby.stdin.close()
        assert standby.wait(timeout=30) == 0
        assert (folder.root / "standby.log").read_text("utf-8") == "imported\nloaded\n"


def test_imports_ahead_touch_no_gpu(tmp_path: Path) -> None:
    """All protocols on the event clock and all engines: nothing of CUDA is called, and no library of it loaded but for what torch brings."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    pytest.importorskip("cuda.bindings")
    code = """
import sys, types
from pathlib import Path
sys.modules.setdefault("pynvml", types.ModuleType("pynvml"))  # its functions are missing: a call would fail
import torch
def loaded():
    text = Path("/proc/self/maps").read_text()
    return {name for name in ("libcuda.so", "libnvrtc", "libnvidia-ml") if name in text}
def touched(*_, **__):
    raise AssertionError("a GPU was touched")
before = loaded()
for name in ("_lazy_init", "is_available", "init", "device_count", "current_device", "get_device_capability", "get_device_properties"):
    setattr(torch.cuda, name, touched)
from benchkit.kernels.engines import ENGINES
from benchkit.mechanism.engine import engine_of
from benchkit.protocol.parse import read_protocol
from benchkit.run.torch_bench import load_cuda
from benchkit.protocol.study import MECHANISM, protocol_kind
paths = [path for path in sorted(Path("protocols").glob("*-h200.toml")) if protocol_kind(path) != MECHANISM]
protocols = [read_protocol(path) for path in paths]
for protocol in protocols:
    load_cuda(protocol)
for engine in ENGINES:
    engine_of(types.SimpleNamespace(engine=engine))
assert len(protocols) > 3 and {"benchkit.kernels.marlin", "benchkit.mechanism.raw_engine", "cuda.bindings.nvrtc"} <= sys.modules.keys()
assert not torch.cuda.is_initialized()
assert loaded() == before, loaded()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
