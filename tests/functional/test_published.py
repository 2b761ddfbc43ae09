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
