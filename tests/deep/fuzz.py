"""A hundred thousand damaged documents for every reader together, then atheris where it is installed (``make deep``).

Usage: python tests/deep/fuzz.py [--inputs N] [--atheris SECONDS] [--seed N]
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

if "--only" in sys.argv:
    import atheris

    with atheris.instrument_imports(include=["validator", "benchkit"]):
        import targets as fuzz
else:
    import targets as fuzz

SLOW_S = 10.0


def main() -> int:
    """Feed all targets in turn; 0 iff nothing undeclared was raised, hung or touched outside."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--atheris", type=float, default=60.0, help="seconds per target; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="atheris on this target, in this process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deep-fuzz-") as scratch:
        known = fuzz.targets(Path(scratch))
        if options.only:
            return _guided(next(target for target in known if target.name == options.only), options.atheris)
        bad = _random(known, Path(scratch), options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")
    if options.atheris > 0:
        bad += _atheris([target.name for target in known], options.atheris)
    return 1 if bad or peak > 1024 else 0


def _random(known: list[fuzz.Target], folder: Path, options: argparse.Namespace) -> int:
    watch, bad = fuzz.Watch(), 0
    cheap = [target for target in known if "bundle" not in target.name]
    for target in known:
        share = options.inputs // (len(cheap) + 1)
        count = share if target in cheap else share // (len(known) - len(cheap))
        begin, slowest, failures = time.perf_counter(), 0.0, 0
        for number in range(count):
            data = fuzz.damaged(target.seed, random.Random(f"{options.seed}/{target.name}/{number}"))
            start = time.perf_counter()
            try:
                with watch.on(folder):
                    fuzz.feed(target, data)
            except Exception:  # noqa: BLE001 - a fuzzer reports whatever comes
                failures += 1
                if failures <= 3:
                    print(f"FAILED {target.name} input {number}: {traceback.format_exc(limit=-4)}")
            slowest = max(slowest, time.perf_counter() - start)
        bad += failures + len(watch.outside) + (slowest > SLOW_S)
        spent = time.perf_counter() - begin
        print(
            f"{target.name}: {count} inputs, {failures} undeclared errors, {len(watch.outside)} files outside, "
            f"slowest {slowest:.2f} s, {spent:.0f} s in all",
            flush=True,
        )
        watch.outside.clear()
    return bad


def _atheris(names: list[str], seconds: float) -> int:
    """Run each target in a process of its own, because libFuzzer ends its process."""
    bad = 0
    for name in names:
        command = [sys.executable, __file__, "--only", name, "--atheris", str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10 * seconds + 120)
        if "No module named 'atheris'" in done.stderr:
            print("atheris is not installed: left out")
            return bad
        lines = [line for line in done.stderr.splitlines() if line.startswith(("Done", "#")) or "ERROR" in line]
        print(f"atheris {name}: exit {done.returncode}; {lines[-1] if lines else done.stderr[-300:]}", flush=True)
        bad += done.returncode != 0
    return bad


def _guided(target: fuzz.Target, seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="deep-corpus-") as corpus:
        (Path(corpus) / "seed").write_bytes(target.seed)
        for number in range(50):
            data = fuzz.damaged(target.seed, random.Random(number))
            (Path(corpus) / f"damaged-{number}").write_bytes(data)
        limits = [
            f"-max_total_time={seconds:.0f}",
            "-rss_limit_mb=1024",
            "-timeout=20",
            f"-max_len={4 * len(target.seed)}",
        ]
        atheris.Setup([sys.argv[0], *limits, corpus], lambda data: fuzz.feed(target, data))
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
