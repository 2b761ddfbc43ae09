"""Bundles of scripted runs that many tests share, made once a session by the real command line."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
from hypothesis import HealthCheck, settings

# a gate does not fail by chance: the same examples each time, no limit of time; random ones are for `make deep`
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", _COMMON, derandomize=True, max_examples=60)
settings.register_profile("deep", _COMMON, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

os.environ["BENCHKIT_CACHE_DIR"] = ""  # what the tests compile is compiled

DATA = Path(__file__).parent / "data"


def benchkit(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the ``benchkit`` command in a process of its own."""
    return forked.run("benchkit.cli", *arguments, cwd=cwd)


def scripted_run(protocol: str, script: str, out: Path) -> Path:
    """A sealed bundle of ``tests/data/<protocol>.toml`` run by ``tests/data/<script>.toml``."""
    done = benchkit("run-protocol", DATA / f"{protocol}.toml", "--synthetic", DATA / f"{script}.toml", "--out", out)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("bundle: "))
    return Path(line.removeprefix("bundle: "))


@pytest.fixture(scope="session")
def fake_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scripted bundle on the host clock (never change it: copy it)."""
    return scripted_run("host", "fake-host", tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def fake_cuda_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scripted bundle on the event clock, with peak, telemetry and kernels (never change it: copy it)."""
    return scripted_run("cuda", "fake-cuda", tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def fake_flush_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scripted bundle whose cache is flushed before each sample (never change it: copy it)."""
    return scripted_run("flush", "fake-cuda", tmp_path_factory.mktemp("flush"))


@pytest.fixture(scope="session")
def stopped_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scripted run of at most 12 pairs that looks after 6 (too noisy to tell) and ends at its look after 9 (never change it: copy it)."""
    folder = tmp_path_factory.mktemp("stopped")
    protocol, script = folder / "stopped.toml", folder / "script.toml"
    text = (DATA / "host.toml").read_text("utf-8").replace("process_pairs = 5", "process_pairs = 12")
    protocol.write_text(text + "looks = [6, 9, 12]\n", "utf-8")
    text, ratios = (DATA / "fake-host.toml").read_text("utf-8"), [1.06, 0.97, 1.05, 0.98, 1.06, 0.96, 0.98, 0.99, 0.97]
    script.write_text(text[: text.index("cand = [")] + f"cand = {ratios}\n", "utf-8")
    assert benchkit("lock", protocol).returncode == 0
    done = benchkit("run-protocol", protocol, "--synthetic", script, "--out", folder)
    assert done.returncode == 0, done.stderr
    (bundle,) = (folder / "fake-host").glob("2*")
    return bundle


@pytest.fixture
def bundle_copy(tmp_path: Path, fake_bundle: Path) -> Path:
    """A copy of ``fake_bundle`` that a test may damage."""
    target = tmp_path / fake_bundle.name
    shutil.copytree(fake_bundle, target)
    return target


@pytest.fixture
def run_benchkit() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The ``benchkit`` command."""
    return benchkit
