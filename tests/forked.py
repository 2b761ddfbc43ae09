"""The command lines, each in a process of its own: forked from one that has loaded the libraries and nothing of ours, which is most of a start."""

import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

_LIBRARIES = [
    "click",
    "numpy",
    "packaging.specifiers",
    "pandas",  # which pyarrow loads to make an array, where it is installed
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "rfc8785",
    "scipy.special",
    "tomlkit",
    "tomllib",
]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_LIBRARIES)


def run(
    module: str, *arguments: object, cwd: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """What ``python -m MODULE ARGUMENTS`` says and ends with; TimeoutExpired after ``timeout`` seconds."""
    given = [*map(str, arguments)]
    with TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("stdout", "stderr")]
        process = _CONTEXT.Process(target=_main, args=(module, given, cwd or Path.cwd(), dict(os.environ), said))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([module, *given], timeout)
        stdout, stderr = (path.read_text("utf-8") for path in said)
        return subprocess.CompletedProcess([module, *given], process.exitcode or 0, stdout, stderr)


def _main(module: str, arguments: list[str], cwd: Path, environment: dict[str, str], said: list[Path]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
    os.chdir(cwd)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
