"""The environment record: what a run really had, and whether it is what the protocol requires; no torch at import.

Rules:
1. The version of the module that was *imported* counts; the installed version stands beside it.
2. No absolute path of the machine enters a record: paths are relative to the environment's prefix or the home folder.
3. Nothing that changes between two processes of one run on one machine enters a record.
4. A problem is one line: expected, found, and what to do.
"""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rfc8785
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

import benchkit
from benchkit.device import telemetry
from benchkit.errors import MachineError

# Distribution -> the module whose version counts, where the names differ.
MODULES: Mapping[str, str] = {"nvidia-ml-py": "pynvml", "cuda-bindings": "cuda.bindings", "cuda-core": "cuda.core"}
CUDA_PACKAGES = ("torch", "cuda-bindings", "nvidia-ml-py")  # what the clock `cuda-event` needs
DEVICE_KEYS = ("device", "driver", "cuda_runtime", "cuda_driver_max", "gpu")


def environment_record(
    device_description: Mapping[str, object],
    *,
    packages: Sequence[str],
    sources: Mapping[str, str],
    git: Mapping[str, object] | None,
    threads: int,
) -> dict[str, object]:
    """The record of this process, with the keys that results/README.md lists.

    Parameters
    ----------
    device_description:
        ``Device.describe()``; keys that a device lacks are null.
    packages:
        Distribution names to record (``torch``, ``nvidia-ml-py``, ...); one that is not installed has nulls.
    sources:
        Arm -> source digest.
    git:
        ``git_state`` of the code's folder.
    threads:
        Threads that computations of this process may use.
    """
    record: dict[str, object] = {key: device_description.get(key) for key in DEVICE_KEYS}
    record |= {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count() or 1,
        "threads": threads,
        "packages": {name: package_record(name) for name in packages},
        "sources": dict(sources),
        "git": None if git is None else dict(git),
        "benchkit": benchkit.__version__,
        "benchkit_sha256": package_sha256(Path(benchkit.__file__).parent),
    }
    return record


def package_sha256(folder: Path) -> str:
    """SHA-256 over ``path NUL sha256(bytes) LF`` of a package's Python and CUDA sources, sorted by path: the code that measured."""
    paths = [path for pattern in ("*.py", "*.cu", "*.cuh") for path in folder.rglob(pattern)]
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in paths):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def environment_json(record: Mapping[str, object]) -> str:
    """The record as RFC 8785 JSON."""
    return rfc8785.dumps(dict(record)).decode()  # type: ignore[arg-type]


def environment_sha256(record: Mapping[str, object]) -> str:
    """SHA-256 of ``environment_json``."""
    return hashlib.sha256(environment_json(record).encode()).hexdigest()


def package_record(name: str) -> dict[str, str | None]:
    """``installed``, ``imported`` and ``file`` of one distribution; null what does not exist."""
    module = sys.modules.get(MODULES.get(name, name.replace("-", "_")))
    imported = getattr(module, "__version__", None)
    file = getattr(module, "__file__", None)
    installed = installed_version(name)
    if module is not None and imported is None:
        imported = installed  # pynvml and a few others carry no version of their own
    return {
        "installed": installed,
        "imported": None if imported is None else str(imported),
        "file": None if file is None else portable_path(file),
    }


def installed_version(name: str) -> str | None:
    """The version that the package's metadata give, or None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def portable_path(path: str | Path) -> str:
    """``path`` relative to the environment's prefix, else to site-packages, else the home folder; else its name."""
    absolute = Path(os.path.abspath(path))
    for root in (sys.prefix, sys.base_prefix):
        if root != "/usr" and absolute.is_relative_to(root):
            return absolute.relative_to(root).as_posix()
    for folder in ("site-packages", "dist-packages"):
        if folder in absolute.parts:
            return Path(*absolute.parts[absolute.parts.index(folder) :]).as_posix()
    home = Path.home()
    return absolute.relative_to(home).as_posix() if absolute.is_relative_to(home) else absolute.name


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def git_state(folder: Path) -> dict[str, object] | None:
    """``commit`` and ``dirty`` (tracked files changed) of the repository that tracks ``folder``, or None."""
    tracked = _git(folder, "ls-files", "--error-unmatch", ".")
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if tracked is None or commit is None or status is None:
        return None
    return {"commit": commit.strip(), "dirty": bool(status.strip())}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def range_problem(name: str, wanted: str, found: str | None, remedy: str) -> str | None:
    """A problem line unless ``found`` lies in the PEP 440 range ``wanted``; the local label after ``+`` is ignored."""
    if found is None:
        return f"{name}: expected {wanted}, found none; {remedy}"
    try:
        version = Version(Version(found).public)
    except InvalidVersion:
        return f"{name}: expected {wanted}, found {found}, which is no version number; {remedy}"
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return None
    return f"{name}: expected {wanted}, found {found}; {remedy}"


def exact_problem(name: str, wanted: str, found: object, remedy: str) -> str | None:
    """A problem line unless ``found`` is ``wanted``."""
    return None if found == wanted else f"{name}: expected {wanted}, found {found or 'none'}; {remedy}"


def machine_problems(require: Mapping[str, Any], clock: str) -> list[str]:
    """Why this machine cannot run a protocol with this ``[build.require]`` and clock; torch is not imported."""
    problems = [_python_problem(require)]
    for name in ("torch", "triton"):
        if name in require:
            found = installed_version(name)
            problems.append(range_problem(name, require[name], found, f"install {name}{require[name]}"))
    if clock == "cuda-event":
        missing = [name for name in CUDA_PACKAGES if name not in require and installed_version(name) is None]
        problems += [
            f"{name}: expected it installed, found none; install this tool with its extra [cuda]" for name in missing
        ]
    if clock == "cuda-event" or any(key in require for key in ("driver", "gpu", "compute_capability")):
        try:
            facts = telemetry.open_first_visible().facts()
        except MachineError as error:
            problems.append(f"gpu: {error}")
        else:
            problems += _gpu_problems(require, facts.driver, facts.name, facts.compute_capability)
    return [problem for problem in problems if problem is not None]


def record_problems(
    require: Mapping[str, Any], record: Mapping[str, Any], binaries: Mapping[str, str] | None = None
) -> list[str]:
    """How a worker's record, and the digests of the binaries that it loaded, differ from ``[build.require]``."""
    problems: list[str | None] = []
    if "python" in require:
        problems.append(range_problem("python", require["python"], record["python"], "use another Python"))
    for name in ("torch", "triton"):
        if name in require:
            found = record["packages"].get(name, {}).get("imported")
            problems.append(range_problem(name, require[name], found, f"install {name}{require[name]}"))
    if "cuda" in require:
        problems.append(
            range_problem("cuda", require["cuda"], record["cuda_runtime"], "install another build of torch")
        )
    gpu = record["gpu"] or {}
    problems += _gpu_problems(require, record["driver"], gpu.get("name"), gpu.get("compute_capability"))
    for arm, digest in require.get("sources", {}).items():
        remedy = "check out the sources that were locked"
        problems.append(exact_problem(f"sources.{arm}", digest, record["sources"].get(arm), remedy))
    for name, digest in require.get("binaries", {}).items():
        loaded = {value for path, value in (binaries or {}).items() if path == name or path.endswith(f"/{name}")}
        found, remedy = ", ".join(sorted(loaded)), "install the build that was locked, and no other beside it"
        problems.append(exact_problem(f"binaries.{name}", digest, found, remedy))
    return [problem for problem in problems if problem is not None]


def _python_problem(require: Mapping[str, Any]) -> str | None:
    if "python" not in require:
        return None
    return range_problem("python", require["python"], platform.python_version(), "use another Python")


def _gpu_problems(
    require: Mapping[str, Any], driver: str | None, name: str | None, capability: str | None
) -> list[str | None]:
    problems: list[str | None] = []
    if "driver" in require:
        problems.append(range_problem("driver", require["driver"], driver, "use a machine with another driver"))
    if "gpu" in require:
        problems.append(exact_problem("gpu", require["gpu"], name, "run on that GPU, or lock a protocol for this one"))
    if "compute_capability" in require:
        remedy = "run on another GPU"
        problems.append(exact_problem("compute_capability", require["compute_capability"], capability, remedy))
    return problems
