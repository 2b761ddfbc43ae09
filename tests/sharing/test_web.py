"""Bundles by URL: what nginx serves is judged like a folder; what is cut off, missing or silent is said."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import servers

sys.path.insert(0, str(Path(__file__).parents[1] / "validator"))
import builder

from validator.findings import CouldNotCheckError
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


class Slow(BaseHTTPRequestHandler):
    """A server that drips: /body sends a byte at a time, /head never ends the head; /broken, /round and /half answer badly."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer like a GET, without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer by the first part of the path."""
        kind = self.path.split("/")[1]
        if kind == "broken":
            self.send_error(500)
        elif kind == "round":
            self.send_response(302)
            self.send_header("Location", self.path)
            self.end_headers()
        elif kind == "body":
            self.send_response(200)
            self.end_headers()
            self._drip(b"x" if self.command == "GET" else b"")
        else:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            self._drip(b"X-A: b\r\n")

    def _drip(self, piece: bytes) -> None:
        with suppress(OSError):
            while piece:
                self.wfile.write(piece)
                time.sleep(0.2)


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (
            "body",
            r"cannot be read \(manifest\.json: expected at least 1024 bytes a second, got \d+ in 1 s\); fetch it in another",
        ),
        ("head", r"cannot be read \(FSTimeoutError\); look whether the place answers$"),
        ("broken", r"cannot be read \(ClientResponseError: 500, message='Internal Server Error', url='http.*'\); look"),
        ("round", r"cannot be read \(TooManyRedirects: .*\); look whether the place answers$"),
    ],
)
def test_a_server_that_never_ends_or_answers_badly(
    slow: str, monkeypatch: pytest.MonkeyPatch, kind: str, why: str
) -> None:
    monkeypatch.setattr("validator.remote._HEAD_S", 1)
    with pytest.raises(CouldNotCheckError, match=rf"^{slow}/{kind}: {why}"), fetched(f"{slow}/{kind}"):
        pass


def test_a_folder_by_url_is_read_in_place(site: tuple[str, Path], tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(site[1] / "good", tmp_path / "linked"))
    outside = tmp_path / "outside.jsonl"
    (bundle / "attempts.jsonl").rename(outside)
    (bundle / "attempts.jsonl").symlink_to(outside)
    os.mkfifo(bundle / "report.txt")
    done = report(f"file://{bundle}", "--format", "json")
    assert (done.returncode, done.stderr) == (1, "")
    value = json.loads(done.stdout)
    assert value["bundle"]["path"] == f"file://{bundle}"
    assert [(item["code"], item["where"], item["got"]) for item in value["reasons"]] == [
        ("UNSAFE_PATH", "attempts.jsonl", "a link"),
        ("UNSAFE_PATH", "report.txt", "a special file"),
    ]
