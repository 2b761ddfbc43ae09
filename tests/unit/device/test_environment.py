"""The environment record, what is required of it, and the digests of loaded binaries."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchkit.device import binaries, environment, telemetry
from benchkit.device.binaries import loaded_binaries, shared_objects
from benchkit.device.environment import (
    environment_json,
    environment_record,
    environment_sha256,
    git_state,
    machine_problems,
    package_record,
    package_sha256,
    portable_path,
    record_problems,
)
from benchkit.device.telemetry import GpuFacts
from benchkit.errors import MachineError

GPU = {
    "name": "NVIDIA H200",
    "uuid": "GPU-aa",
    "compute_capability": "9.0",
    "memory_bytes": 150_754_820_096,
    "sm_count": 132,
}
DEVICE = {"device": "cuda", "driver": "580.159.03", "cuda_runtime": "13.0", "cuda_driver_max": "13.0", "gpu": GPU}
REQUIRE = {
    "python": ">=3.11",
    "torch": ">=2.11,<2.14",
    "driver": ">=580",
    "cuda": ">=13",
    "gpu": "NVIDIA H200",
    "compute_capability": "9.0",
    "sources": {"copy": "ab"},
    "binaries": {"libtorch.so": "cd"},
}
BINARIES = {"lib/python3.11/site-packages/torch/lib/libtorch.so": "cd"}


def made(**changes: object) -> dict[str, object]:
    """A record of this process on a GPU that is not here."""
    record = environment_record(
        DEVICE,
        packages=["torch", "no-such-package"],
        sources={"copy": "ab"},
        git={"commit": "1", "dirty": False},
        threads=2,
    )
    record["packages"]["torch"]["imported"] = "2.11.0+cu130"
    return {**record, **changes}


def test_the_keys_are_those_of_the_format():
    device = ["device", "driver", "cuda_runtime", "cuda_driver_max", "gpu"]
    process = ["python", "platform", "cpu", "cpu_count", "threads", "packages", "sources", "git"]
    assert sorted(made()) == sorted([*device, *process, "benchkit", "benchkit_sha256"])


def test_a_host_has_nulls_and_everything_is_json():
    record = environment_record({"device": "host"}, packages=["numpy"], sources={}, git=None, threads=1)
    assert [record[key] for key in ("driver", "cuda_runtime", "cuda_driver_max", "gpu", "git")] == [None] * 5
    text = environment_json(record)
    assert json.loads(text) == record
    assert environment_sha256(record) == hashlib.sha256(text.encode()).hexdigest()
    assert '":"' in text
    assert text == environment_json(dict(reversed(record.items())))


def test_the_imported_version_stands_beside_the_installed_one(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.9.9+local")
    found = package_record("torch")
    assert found["imported"] == "9.9.9+local"
    assert found["installed"] != "9.9.9+local"
    assert found["file"] is not None
    assert found["file"].endswith("site-packages/torch/__init__.py")


def test_a_package_that_is_not_there_has_nulls():
    assert package_record("no-such-package") == {"installed": None, "imported": None, "file": None}


def test_paths_do_not_name_the_machine(monkeypatch, tmp_path):
    assert portable_path(Path(sys.prefix) / "lib/x.so") == "lib/x.so"
    assert portable_path("/elsewhere/lib/python3/site-packages/torch/x.so") == "site-packages/torch/x.so"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert portable_path(tmp_path / "code/x.py") == "code/x.py"
    assert portable_path("/elsewhere/secret/x.py") == "x.py"


def test_a_record_that_fits_has_no_problems():
    assert record_problems(REQUIRE, made(), BINARIES) == []
    assert record_problems({}, made(gpu=None, driver=None)) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"python": "3.10.2"}, "python: expected >=3.11, found 3.10.2; use another Python"),
        (
            {"packages": {"torch": {"installed": "2.12.0", "imported": "2.14.0+cu130", "file": None}}},
            "torch: expected >=2.11,<2.14, found 2.14.0+cu130; install torch>=2.11,<2.14",
        ),
        (
            {"packages": {"torch": {"installed": "2.12.0", "imported": None, "file": None}}},
            "torch: expected >=2.11,<2.14, found none; install torch>=2.11,<2.14",
        ),
        ({"driver": "570.86.10"}, "driver: expected >=580, found 570.86.10; use a machine with another driver"),
        (
            {"driver": "a.b"},
            "driver: expected >=580, found a.b, which is no version number; use a machine with another driver",
        ),
        ({"cuda_runtime": "12.8"}, "cuda: expected >=13, found 12.8; install another build of torch"),
        (
            {"gpu": {**GPU, "name": "NVIDIA H200 NVL"}},
            "gpu: expected NVIDIA H200, found NVIDIA H200 NVL; run on that GPU, or lock a protocol for this one",
        ),
        (
            {"gpu": {**GPU, "compute_capability": "10.0"}},
            "compute_capability: expected 9.0, found 10.0; run on another GPU",
        ),
        ({"sources": {}}, "sources.copy: expected ab, found none; check out the sources that were locked"),
    ],
)
def test_what_does_not_fit_is_one_line(changes, line):
    assert record_problems(REQUIRE, made(**changes), BINARIES) == [line]


def test_a_missing_or_other_binary_is_a_problem():
    text = "binaries.libtorch.so: expected cd, found {}; install the build that was locked, and no other beside it"
    assert record_problems(REQUIRE, made()) == [text.format("none")]
    assert record_problems(REQUIRE, made(), {"a/libtorch.so": "ee", "b/notlibtorch.so": "cd"}) == [text.format("ee")]
    two = {"a/libtorch.so": "cd", "b/libtorch.so": "ee"}  # the other one may be what ran
    assert record_problems(REQUIRE, made(), two) == [text.format("cd, ee")]


def test_all_problems_at_once():
    problems = record_problems(REQUIRE, made(python="3.9", driver=None, gpu=None))
    assert [problem.split(":")[0] for problem in problems] == [
        "python",
        "driver",
        "gpu",
        "compute_capability",
        "binaries.libtorch.so",
    ]


def facts(**changes: str) -> telemetry.GpuTelemetry:
    """A GPU as NVML would describe it."""
    known = {
        "name": "NVIDIA H200",
        "uuid": "GPU-aa",
        "compute_capability": "9.0",
        "driver": "580.1",
        "cuda_driver_max": "13.0",
    }

    class Opened:
        def facts(self) -> GpuFacts:
            return GpuFacts(memory_bytes=1, **{**known, **changes})

    return Opened()


def test_a_machine_with_the_gpu_has_no_problems(monkeypatch):
    monkeypatch.setattr(telemetry, "open_first_visible", facts)
    monkeypatch.setattr(environment, "installed_version", lambda name: "2.12.0+cu130")
    require = {key: REQUIRE[key] for key in ("python", "torch", "driver", "gpu", "compute_capability")}
    assert machine_problems(require, "cuda-event") == []
    monkeypatch.setattr(telemetry, "open_first_visible", lambda: facts(name="NVIDIA L4", compute_capability="8.9"))
    assert machine_problems(require, "cuda-event") == [
        "gpu: expected NVIDIA H200, found NVIDIA L4; run on that GPU, or lock a protocol for this one",
        "compute_capability: expected 9.0, found 8.9; run on another GPU",
    ]


def test_a_machine_without_a_gpu_says_what_is_missing(monkeypatch):
    def absent() -> None:
        raise MachineError("expected an NVIDIA driver, found none")

    monkeypatch.setattr(telemetry, "open_first_visible", absent)
    monkeypatch.setattr(environment, "installed_version", lambda name: None)
    assert machine_problems({"torch": ">=2.11"}, "cuda-event") == [
        "torch: expected >=2.11, found none; install torch>=2.11",
        "cuda-bindings: expected it installed, found none; install this tool with its extra [cuda]",
        "nvidia-ml-py: expected it installed, found none; install this tool with its extra [cuda]",
        "gpu: expected an NVIDIA driver, found none",
    ]


def test_a_host_protocol_asks_nothing_of_a_gpu(monkeypatch):
    monkeypatch.setattr(telemetry, "open_first_visible", None)
    assert machine_problems({"python": ">=3.11", "torch": ">=2.11"}, "host") == []
    assert machine_problems({"python": ">=3.99"}, "host")[0].startswith("python: expected >=3.99, found 3.")


def test_looking_at_the_machine_does_not_import_torch():
    code = "import sys; from benchkit.device.environment import machine_problems as m; m({'torch': '>=2'}, 'cuda-event'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def git(folder: Path, *arguments: str) -> None:
    """git with an author."""
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True, capture_output=True)


def test_git_state(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("1")
    assert git_state(package) is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "a")
    state = git_state(package)
    assert state is not None
    assert (len(state["commit"]), state["dirty"]) == (40, False)
    (tmp_path / "untracked").write_text("x")
    assert git_state(package) == state
    (package / "a.py").write_text("2")
    assert git_state(package) == {**state, "dirty": True}
    (tmp_path / "site-packages").mkdir()
    assert git_state(tmp_path / "site-packages") is None


MAPS = """\
7f00-7f01 r-xp 00000000 00:01 12 {p}/lib/python3.11/site-packages/torch/lib/libc10.so
7f01-7f02 r--p 00000000 00:01 12 {p}/lib/python3.11/site-packages/torch/lib/libc10.so
7f02-7f03 r-xp 00000000 00:01 13 {p}/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13
7f03-7f04 r-xp 00000000 00:01 14 {p}/lib/python3.11/site-packages/numpy/_core/_multiarray_umath.so
7f04-7f05 r-xp 00000000 00:01 15 {p}/lib/python3.11/site-packages/vllm/_moe C.abi3.so
7f05-7f06 r-xp 00000000 00:01 16 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.03
7f06-7f07 r-xp 00000000 00:01 17 {p}/lib/python3.11/site-packages/torch/data.bin
7f07-7f08 rw-p 00000000 00:00 0
"""


def test_which_shared_objects_matter():
    site = "/p/lib/python3.11/site-packages"
    assert shared_objects(MAPS.format(p="/p"), ["/p"]) == [
        f"{site}/nvidia/cu13/lib/libnvrtc.so.13",
        f"{site}/torch/lib/libc10.so",
        f"{site}/vllm/_moe C.abi3.so",
    ]
    on_path = "7f00-7f01 r-xp 00000000 00:01 12 /opt/packages/vllm/_moe_C.abi3.so\n"
    assert shared_objects(on_path, ["/p"]) == []
    assert shared_objects(on_path, ["/p", "/opt/packages/"]) == ["/opt/packages/vllm/_moe_C.abi3.so"]


def test_digests_are_taken_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    library = tmp_path / "lib/libtorch.so"
    library.parent.mkdir()
    library.write_bytes(b"code")
    maps, cache = tmp_path / "maps", tmp_path / "run/cache.json"
    maps.write_text(f"7f00-7f01 r-xp 00000000 00:01 12 {library}\n")
    expected = {"lib/libtorch.so": hashlib.sha256(b"code").hexdigest()}
    assert loaded_binaries(cache, maps=maps) == expected
    monkeypatch.setattr(binaries.hashlib, "file_digest", None)
    assert loaded_binaries(cache, maps=maps) == expected
    monkeypatch.undo()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    library.write_bytes(b"other")
    assert loaded_binaries(cache, maps=maps) == {"lib/libtorch.so": hashlib.sha256(b"other").hexdigest()}
    cache.write_text("[")
    assert len(loaded_binaries(cache, maps=maps)) == 1
    assert [name for name in os.listdir(cache.parent) if name.endswith(".tmp")] == []


def test_no_map_no_binaries(tmp_path):
    assert loaded_binaries(maps=tmp_path / "absent") == {}


def test_the_digest_of_a_package_sees_names_and_bytes_of_sources_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "worker.py").write_text("a")
    (tmp_path / "x.cu").write_text("b")
    parts = [("run/worker.py", "a"), ("x.cu", "b")]
    text = "".join(f"{name}\0{hashlib.sha256(data.encode()).hexdigest()}\n" for name, data in parts)
    assert package_sha256(tmp_path) == hashlib.sha256(text.encode()).hexdigest()
    first = package_sha256(tmp_path)
    (tmp_path / "notes.txt").write_text("c")
    assert package_sha256(tmp_path) == first
    (tmp_path / "x.cu").rename(tmp_path / "y.cu")
    assert package_sha256(tmp_path) != first
