"""Memory and time of a bundle with ten million samples, by the real commands: ``.venv/bin/python tests/benchmarks/ten_million_rows.py [ROWS]``.

Makes the bundle with scripted durations (a few minutes), then measures ``benchkit analyse`` and ``validator report`` in processes of their own.
Exit code 1 where the validator needs more than 1.5 GB.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
LIMIT_BYTES = 1_500_000_000
CELLS, BLOCKS, WARMUPS = 60, 3, 2  # of tests/data/host.toml: 5 processes x 2 points x 6 arms


def make_bundle(folder: Path, rows: int) -> Path:
    """A sealed bundle with at least ``rows`` samples."""
    per_block = -(-(rows // CELLS - WARMUPS) // BLOCKS)
    text = (DATA / "host.toml").read_text("utf-8")
    text = text.replace("samples_per_block = 2", f"samples_per_block = {per_block}").replace(
        "watchdog_s = 60", "watchdog_s = 3600"
    )
    protocol = folder / "host.toml"
    protocol.write_text(text, "utf-8")
    benchkit = [sys.executable, "-m", "benchkit.cli"]
    subprocess.run([*benchkit, "lock", str(protocol)], check=True, stdout=subprocess.DEVNULL)
    script = str(DATA / "fake-host.toml")
    run = [*benchkit, "run-protocol", str(protocol), "--synthetic", script, "--out", str(folder / "out")]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
    (bundle,) = (folder / "out" / "fake-host").glob("2*")
    return bundle


def measure(command: list[str]) -> tuple[float, int, int]:
    """Wall time in seconds, largest resident set in bytes, and exit code of a command."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - start, usage.ru_maxrss * 1024, process.returncode


def main() -> int:
    """Make, measure, judge."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        bundle = make_bundle(Path(folder), rows)
        size = (bundle / "samples.parquet").stat().st_size
        print(f"made {rows} rows in {time.perf_counter() - start:.0f} s, samples.parquet {size / 1e6:.0f} MB")
        for command in (["benchkit.cli", "analyse", str(bundle)], ["validator.cli", "report", str(bundle)]):
            seconds, resident, code = measure(command)
            print(f"{command[0]} {command[1]}: {seconds:.1f} s, {resident / 1e9:.2f} GB resident, exit code {code}")
    return 0 if resident <= LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
