"""``benchkit tune`` on the CPU: it tries the kernel's own search space for real, and writes what it found into the protocol."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchkit.protocol.parse import read_protocol

DATA = Path(__file__).parent.parent / "data"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def protocol(tmp_path: Path) -> Path:
    """An unlocked copy of the host protocol."""
    return Path(shutil.copyfile(DATA / "host.toml", tmp_path / "host.toml"))


def test_the_best_tile_is_written_and_comments_stay(protocol: Path, run_benchkit: Run) -> None:
    text = protocol.read_text("utf-8").replace("[warmup]", "# a comment that stays\n[warmup]")
    protocol.write_text(text.replace("tile = 4", "tile = 64"), "utf-8")
    done = run_benchkit("tune", protocol, "--write")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["base at batch=1", "base at batch=4"]
    assert all("best of 6" in line for line in lines[:2])
    tuned = read_protocol(protocol)
    assert "# a comment that stays" in protocol.read_text("utf-8")
    for point in tuned.points:
        assert tuned.baseline.params_at(point.id)["tile"] in (1, 2, 3, 4, 6, 8)
    assert run_benchkit("lock", protocol).returncode == 0


def test_a_locked_protocol_is_not_written(protocol: Path, run_benchkit: Run) -> None:
    assert run_benchkit("lock", protocol).returncode == 0
    before = protocol.read_bytes()
    done = run_benchkit("tune", protocol, "--write")
    assert done.returncode == 2
    assert "is locked; tune a copy of it" in done.stderr
    assert protocol.read_bytes() == before


def test_an_arm_without_a_search_space_is_named(protocol: Path, run_benchkit: Run) -> None:
    done = run_benchkit("tune", protocol, "--arm", "cand")
    assert done.returncode == 2
    assert "--arm cand: expected an arm with a search space; here these are: base" in done.stderr
