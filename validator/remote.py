"""Bundles by URL: fetched into a temporary folder with limits, then checked like any other folder.

Rules:
1. What holds no ``://`` is a local path and is used where it lies; a chain of file systems (``::``) is refused.
2. manifest.json comes first; only plain names that it lists (and claims and signatures beside it) are asked for.
3. No member is fetched beyond its limit (``validator.reading.limits``), nor all together beyond TOTAL; what is cut off at
   a limit fails its digest. Whether the files are the sealed ones is the validator's business, as for a local folder.
4. A place that cannot be reached, or holds no manifest, raises CouldNotCheckError. So does one that never ends: a web server
   has 30 s for the next byte, a minute for the head of an answer, and then to send SLOWEST bytes a second.
5. A local folder by URL is read where it lies, like any other: a link in it is a link.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from validator.findings import CouldNotCheckError, Report
from validator.reading.folder import is_plain
from validator.reading.limits import MEMBERS, MIB, most_bytes
from validator.reading.records import Manifest, read_manifest

TOTAL = 8192 * MIB
SCHEMES = ("file", "http", "https", "s3")
BESIDE = ("analysis.json", "manifest.json.sig.json", "protocol.lock.sig.json")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9+._~:/@%=\[\]-]+\Z")
_LOCAL = "file://"
_PIECE, _SILENCE_S, _HEAD_S, _REQUEST_S = MIB, 30, 60, 3600
SLOWEST = 1024
_ABSENT = (401, 403, 404, 410)  # stores that may not be listed say 403 of a file that is not there


def is_url(location: str) -> bool:
    """Say whether a location is a URL; everything else is a local path."""
    return "://" in location


@contextmanager
def fetched(location: str) -> Iterator[Path]:
    """Give a local folder that holds the bundle at a location, for as long as the block runs."""
    if not is_url(location) or location.startswith(_LOCAL):
        yield Path(location.removeprefix(_LOCAL))
        return
    with TemporaryDirectory(prefix="validator-fetched-") as scratch:
        folder = Path(scratch) / "bundle"
        folder.mkdir()
        fetch(location, folder)
        yield folder


def named(report: Report, location: str) -> Report:
    """Give a report about a fetched bundle the name of the place that it came from."""
    return replace(report, bundle=replace(report.bundle, path=location)) if is_url(location) else report


def fetch(url: str, folder: Path) -> None:
    """Fetch the bundle at a URL into an empty folder."""
    source = _Source(url)
    data = source.read("manifest.json", 16 * MIB)
    if data is None:
        raise CouldNotCheckError(f"{url}: no manifest.json; an unfinished upload is no bundle")
    (folder / "manifest.json").write_bytes(data)
    manifest = read_manifest(data)
    listed = [item.name for item in manifest.files] if isinstance(manifest, Manifest) else []
    names = [name for name in dict.fromkeys([*listed, *BESIDE]) if is_plain(name) and name != "manifest.json"]
    if len(names) > MEMBERS:
        raise CouldNotCheckError(f"{url}: more than {MEMBERS} files: this is no bundle")
    left = TOTAL
    try:
        for name in names:
            left -= source.copy(name, folder / name, min(left, most_bytes(name) or MIB))
        for name in source.others(set(names)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    except OSError as error:
        raise CouldNotCheckError(f"{url}: cannot be stored here ({error.strerror or error})") from error


class _Source:
    """The members at a URL."""

    def __init__(self, url: str) -> None:
        if _URL.match(url) is None:
            raise CouldNotCheckError(f"{url!r}: expected a plain URL: no blank, query, fragment or chain in it")
        if url.partition("://")[0] not in SCHEMES:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise CouldNotCheckError(f"{url}: expected a folder or one of {known}")
        self.url = url.rstrip("/")
        try:
            from fsspec.core import url_to_fs

            self.files, self.root = url_to_fs(self.url, **_options(url))
        except (ImportError, ValueError) as error:
            extra = "s3" if url.startswith("s3://") else "share"
            raise CouldNotCheckError(f"{url}: {error}; install this tool with its extra [{extra}]") from error
        self.web = url.startswith(("http://", "https://"))

    def read(self, name: str, most: int) -> bytes | None:
        """Give up to ``most`` + 1 bytes of a member; None where it is absent."""
        return b"".join(self._pieces(name, most)) if self._exists(name) else None

    def copy(self, name: str, target: Path, most: int) -> int:
        """Copy up to ``most`` + 1 bytes of a member, if it is there; give their number."""
        if not self._exists(name):
            return 0
        target.parent.mkdir(parents=True, exist_ok=True)
        size = 0
        with target.open("wb") as stream:
            for piece in self._pieces(name, most):
                size += stream.write(piece)
        return size

    def others(self, known: set[str]) -> list[str]:
        """Name further members, where the place can list them; the web cannot."""
        if self.web:
            return []
        found = _reached(self.url, lambda: self.files.find(self.root))
        start = len(self.root.rstrip("/")) + 1
        names = [str(path)[start:] for path in found[: MEMBERS + 1]]
        return [name for name in names if name not in known and name != "manifest.json" and is_plain(name)]

    def _exists(self, name: str) -> bool:
        path = f"{self.root}/{name}"
        if not self.web:
            return bool(_reached(self.url, lambda: self.files.exists(path)))
        try:
            _reached(self.url, lambda: self._head(path))
        except CouldNotCheckError as error:
            if isinstance(error.__cause__, FileNotFoundError) and _absent(error.__cause__):
                return False
            raise
        return True

    def _head(self, path: str) -> None:
        """Ask a web server whether a member is there."""
        from fsspec.asyn import sync

        sync(self.files.loop, self.files._info, path, timeout=_HEAD_S)

    def _pieces(self, name: str, most: int) -> Iterator[bytes]:
        options: dict[str, Any] = {"block_size": 0} if self.web else {}
        stream = _reached(self.url, lambda: self.files.open(f"{self.root}/{name}", "rb", **options))
        left, began = most + 1, monotonic()
        with stream:
            while left > 0:
                piece: bytes = _reached(self.url, lambda: stream.read(min(_PIECE, left)))  # noqa: B023
                if not piece:
                    return
                piece = piece[:left]
                left -= len(piece)
                took = monotonic() - began
                if self.web and took > _HEAD_S and most + 1 - left < SLOWEST * took:
                    raise CouldNotCheckError(
                        f"{self.url}: cannot be read ({name}: expected at least {SLOWEST} bytes a second, got "
                        f"{most + 1 - left} in {took:.0f} s); fetch it in another way and check the folder"
                    )
                yield piece


def _absent(error: BaseException) -> bool:
    """Say whether a web server answered that a file is not there: fsspec calls every other failure so, too."""
    cause = error.__cause__ or error.__context__
    return cause is None or getattr(cause, "status", None) in _ABSENT


def _options(url: str) -> Mapping[str, Any]:
    """Options of a file system: on the web, a server that falls silent is given up."""
    if not url.startswith(("http://", "https://")):
        return {}
    import aiohttp

    return {
        "client_kwargs": {"timeout": aiohttp.ClientTimeout(total=_REQUEST_S, connect=_SILENCE_S, sock_read=_SILENCE_S)}
    }


def _reached(url: str, call: Any) -> Any:
    """Call a file system; every way in which a place fails to answer is one error."""
    errors: tuple[type[Exception], ...] = (OSError, ValueError, EOFError)
    if url.startswith(("http://", "https://")):
        from aiohttp import ClientError

        errors = (*errors, ClientError)
    if url.startswith("s3://"):
        from botocore.exceptions import BotoCoreError

        errors = (*errors, BotoCoreError)
    try:
        return call()
    except errors as error:
        cause = error.__cause__ or error.__context__
        inner = isinstance(error, FileNotFoundError) and url.startswith(("http://", "https://"))
        shown = cause if inner and cause is not None else error  # fsspec calls every failure on the web a missing file
        text = f"{type(shown).__name__}: {' '.join(str(shown).split())[:200]}".removesuffix(": ")
        raise CouldNotCheckError(f"{url}: cannot be read ({text}); look whether the place answers") from error
