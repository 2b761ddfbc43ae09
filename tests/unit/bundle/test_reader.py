"""Opening a bundle that somebody sent: its manifest may not lead outside, nor swallow the memory."""

import json
import os
from pathlib import Path

import pytest

from benchkit.bundle.reader import open_bundle
from benchkit.errors import BundleError


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret", "", "a\\b", "a\nb", "\ud800"])
def test_a_name_outside_is_refused(bundle_copy: Path, name: str) -> None:
    (bundle_copy.parent / "secret").write_text("x")
    path = bundle_copy / "manifest.json"
    document = json.loads(path.read_text())
    document["files"][name] = {"sha256": "0" * 64, "bytes": 1}
    path.write_text(json.dumps(document))
    with pytest.raises(BundleError, match="expected plain names inside the bundle"):
        open_bundle(bundle_copy)


def test_a_link_is_refused(bundle_copy: Path) -> None:
    (bundle_copy / "protocol.lock").rename(bundle_copy.parent / "outside.lock")
    (bundle_copy / "protocol.lock").symlink_to(bundle_copy.parent / "outside.lock")
    with pytest.raises(BundleError, match="a sealed bundle is not edited"):
        open_bundle(bundle_copy)


def test_a_giant_manifest_is_refused(bundle_copy: Path) -> None:
    os.truncate(bundle_copy / "manifest.json", 1 << 40)
    with pytest.raises(BundleError, match="1099511627776 bytes"):
        open_bundle(bundle_copy)


def test_a_name_that_no_file_can_have(bundle_copy: Path) -> None:
    path = bundle_copy / "manifest.json"
    document = json.loads(path.read_text())
    document["files"]["x" * 300] = {"sha256": "0" * 64, "bytes": 1}
    path.write_text(json.dumps(document))
    with pytest.raises(BundleError, match="a sealed bundle is not edited"):
        open_bundle(bundle_copy)
