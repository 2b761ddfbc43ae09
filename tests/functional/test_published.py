"""Every bundle that the repository publishes is VALID under the protocol that lies beside it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUNDLES = sorted(path.parent for path in (ROOT / "results").glob("*/*/manifest.json"))


def test_something_is_published() -> None:
    assert BUNDLES


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_published_bundle_is_valid(bundle: Path) -> None:
    protocol = ROOT / "protocols" / f"{bundle.parent.name}.toml"
    command = [
        sys.executable,
        "-m",
        "validator.cli",
        "report",
        str(bundle),
        "--format",
        "json",
        "--protocol",
        str(protocol),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    assert (done.returncode, report["validity"], report["reasons"]) == (0, "VALID", [])


def test_the_emulation_beside_the_bits_of_a_bundle(tmp_path: Path) -> None:
    """Of the study that the emulation itself made, every word is its own; swapping across classes differs as in the bundle."""
    (bundle,) = (ROOT / "results" / "route-membership-cpu").glob("*/")
    script, written = ROOT / "tests" / "benchmarks" / "emulation.py", tmp_path / "found.json"
    command = [sys.executable, str(script), str(bundle), "reinjected/H0", "swap_across/H0", "--json", str(written)]
    subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(written.read_text("utf-8"))["compared"]
    assert [(one["equal_percent"], one["largest_difference"]) for one in found] == [(100.0, 0.0)] * 8
    moved = {one["surface"]: one["rows_on_gpu"] for one in found if one["place"] == "swap_across/H0"}
    assert moved == {one["surface"]: one["rows_in_emulation"] for one in found if one["place"] == "swap_across/H0"}
    assert moved["w13"] == [10, 39]
