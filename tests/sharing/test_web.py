"""Bundles by URL: what nginx serves is judged like a folder; what is cut off, missing or silent is said."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers

sys.path.insert(0, str(Path(__file__).parents[1] / "validator"))
import builder

from validator.remote import fetched


def report(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "validator.cli", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A web server, and the folder that it serves: bundles good, changed, half, hostile."""
    root, home = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("nginx")
    good = builder.draft().seal(root / "good")
    changed = Path(shutil.copytree(good, root / "changed"))
    (changed / "routing.parquet").write_bytes((good / "samples.parquet").read_bytes())
    half = Path(shutil.copytree(good, root / "half"))
    (half / "manifest.json").unlink()
    missing = Path(shutil.copytree(good, root / "missing"))
    (missing / "protocol.lock").unlink()
    hostile = Path(shutil.copytree(good, root / "hostile"))
    manifest = json.loads((hostile / "manifest.json").read_text())
    manifest["files"]["../../../../tmp/escaped"] = manifest["files"]["protocol.lock"]
    (hostile / "manifest.json").write_text(json.dumps(manifest))
    giant = Path(shutil.copytree(good, root / "giant"))
    os.truncate(giant / "protocol.toml", 1 << 30)
    with servers.nginx(root, home) as url:
        yield url, root


@pytest.mark.parametrize(
    ("name", "code", "first"),
    [
        ("good", 0, None),
        ("changed", 1, "FILE_CHANGED"),
        ("missing", 1, "FILE_MISSING"),
        ("hostile", 1, "UNSAFE_PATH"),
        ("giant", 1, "OVERSIZED"),
        ("half", 3, None),
        ("nothing", 3, None),
    ],
)
def test_over_http(site: tuple[str, Path], name: str, code: int, first: str | None) -> None:
    url = f"{site[0]}/{name}"
    done = report(url, "--format", "json")
    assert (done.returncode, done.stderr) == (code, "")
    value = json.loads(done.stdout)
    assert value["bundle"]["path"] == url
    assert (value["reasons"][0]["code"] if value["reasons"] else None) == first
    if name == "half":
        assert value["notes"] == [f"{url}: no manifest.json; an unfinished upload is no bundle"]


def test_the_same_numbers_as_in_the_folder(site: tuple[str, Path]) -> None:
    web, here = (
        json.loads(report(where, "--format", "json").stdout) for where in (f"{site[0]}/good/", site[1] / "good")
    )
    assert web["comparisons"] == here["comparisons"]


def test_what_is_fetched_goes_away(site: tuple[str, Path]) -> None:
    with fetched(f"{site[0]}/good") as folder:
        assert sorted(path.name for path in folder.iterdir()) == sorted(p.name for p in (site[1] / "good").iterdir())
    assert not folder.exists()
    with fetched(str(site[1] / "good")) as local:
        assert local == site[1] / "good"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x", "nosuch://x/y", "http://a/b?c=d", "simplecache::http://a/b", "http://a b"]
)
def test_places_that_cannot_be_read(url: str) -> None:
    done = report(url)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
    assert done.stdout.startswith("COULD_NOT_CHECK")
