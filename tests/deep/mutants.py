"""Mutants of the validator's own checks and numbers (cosmic-ray): which changes of its code do its tests not see?

Works on a copy of the tracked files, draws mutants by a seed until the time is over, and lists the survivors.
Usage: python tests/deep/mutants.py [--minutes M] [--seed N] [--list FILE.json]
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkResult

ROOT = Path(__file__).parents[2]
FILES = [f"tests/validator/test_validator_{name}.py" for name in ("reasons", "statistics", "families", "sensitivity")]
TESTS = " ".join([*FILES, "-k 'not scripted'"])
CONFIG = """[cosmic-ray]
module-path = ["validator/checks", "validator/recompute"]
timeout = 120.0
excluded-modules = ["validator/checks/__init__.py", "validator/recompute/__init__.py"]
test-command = "{python} -m pytest -x -q -p no:cacheprovider {tests}"
[cosmic-ray.distributor]
name = "local"
"""


def main() -> int:
    """Run a sample of the mutants; always 0: a survivor is read by a person."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deep-mutants-") as scratch:
        copy = Path(scratch) / "copy"
        _copy(copy)
        (copy / "mutants.toml").write_text(CONFIG.format(python=sys.executable, tests=TESTS))
        _call(copy, "-m", "cosmic_ray.cli", "init", "mutants.toml", "mutants.sqlite")
        with use_db(str(copy / "mutants.sqlite"), WorkDB.Mode.open) as base:
            everything = sorted(item.job_id for item in base.pending_work_items)
        chosen = random.Random(options.seed).sample(everything, len(everything))
        survivors, tried, begin = [], 0, time.monotonic()
        while chosen and time.monotonic() - begin < 60 * options.minutes:
            batch, chosen = chosen[:5], chosen[5:]
            survivors += _run(copy, set(batch), tried)
            tried += len(batch)
            print(f"{tried} of {len(everything)} mutants tried, {len(survivors)} survived", flush=True)
    for entry in survivors:
        print(f"SURVIVED {entry['module']}:{entry['line']} {entry['operator']}\n{entry['diff']}")
    if options.list:
        document = {"mutants": len(everything), "tried": tried, "seed": options.seed, "survivors": survivors}
        options.list.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _copy(target: Path) -> None:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def _call(copy: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=copy, check=True, capture_output=True)


def _run(copy: Path, batch: set[str], number: int) -> list[dict[str, object]]:
    """Try some mutants with a database of their own; give those that no test noticed."""
    database = copy / f"batch-{number}.sqlite"
    shutil.copyfile(copy / "mutants.sqlite", database)
    with use_db(str(database), WorkDB.Mode.open) as base:
        for item in list(base.pending_work_items):
            if item.job_id not in batch:
                base.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED, output="not drawn"))
    _call(copy, "-m", "cosmic_ray.cli", "exec", "mutants.toml", database.name)
    found = []
    with use_db(str(database), WorkDB.Mode.open) as base:
        for item, result in base.completed_work_items:
            if item.job_id in batch and not result.is_killed:
                (mutation,) = item.mutations
                found.append(
                    {
                        "module": str(mutation.module_path),
                        "line": mutation.start_pos[0],
                        "operator": mutation.operator_name.removeprefix("core/"),
                        "diff": result.diff,
                        "outcome": str(result.worker_outcome),
                    }
                )
    database.unlink()
    return found


if __name__ == "__main__":
    sys.exit(main())
