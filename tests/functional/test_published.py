"""Every bundle that the repository publishes is VALID under the protocol that lies beside it, and its analysis is what benchkit makes of it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchkit.analysis.document import write_analysis

ROOT = Path(__file__).parents[2]
BUNDLES = sorted(path.parent for path in (ROOT / "results").glob("*/*/manifest.json"))


def test_something_is_published() -> None:
    assert BUNDLES


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_published_bundle_is_valid(bundle: Path) -> None:
    protocol = ROOT / "protocols" / f"{bundle.parent.name}.toml"
    command = [sys.executable, "-m", "validator.cli", "report", str(bundle), "--format", "json", "--protocol", str(protocol)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    assert (done.returncode, report["validity"], report["reasons"]) == (0, "VALID", [])


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_analysis_is_reproduced(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / bundle.name
    shutil.copytree(bundle, copy)
    (copy / "analysis.json").unlink()
    write_analysis(copy)
    assert (copy / "analysis.json").read_bytes() == (bundle / "analysis.json").read_bytes()
