"""Every bundle that the repository publishes is VALID under the protocol that lies beside it."""

import json
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).parents[2]
BUNDLES = sorted(path.parent for path in (ROOT / "results").glob("*/*/manifest.json"))


def test_something_is_published() -> None:
    assert BUNDLES


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_published_bundle_is_valid(bundle: Path) -> None:
    protocol = ROOT / "protocols" / f"{bundle.parent.name}.toml"
    done = forked.run("validator.cli", "report", bundle, "--format", "json", "--protocol", protocol)
    report = json.loads(done.stdout)
    assert (done.returncode, report["validity"], report["reasons"]) == (0, "VALID", [])
