"""``benchkit publish``: a sealed bundle to a place where others read it, by URL (results/README.md, "Sharing").

Rules:
1. The bundle goes to ``<URL>/<protocol id>/<run id>/``: what its manifest lists, analysis.json and the signatures, whatever else lies there.
   Its own digests are checked before the first byte leaves.
2. manifest.json goes last: a place without it is no bundle, so an interrupted upload is none. Publishing again goes on.
3. Nothing is overwritten. A member that is there already stays if it has the same bytes, and is refused if it has others.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchkit.bundle.reader import Sealed, open_sealed
from benchkit.bundle.seal import ANALYSIS, MANIFEST
from benchkit.bundle.sign import signature_path
from benchkit.errors import BenchkitError, DataError

SCHEMES = ("file", "s3")
_PIECE = 1 << 20


class PublishError(DataError):
    """The place cannot be written, or holds something else under the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where a bundle lies now, and how many of its members had to be sent."""

    url: str
    sent: int
    present: int


def publish(run: Path, url: str) -> Published:
    """Send a sealed bundle to a URL.

    Raises
    ------
    BundleError
        The folder is no sealed bundle, or one of its files was changed.
    PublishError
        The place cannot be written, or another bundle is there.
    """
    bundle = open_sealed(run)
    files, root = _place(url)
    target = f"{root.rstrip('/')}/{bundle.protocol_id}/{bundle.run_id}"
    sent = present = 0
    for name in _members(bundle):
        if _send(files, run / name, f"{target}/{name}"):
            sent += 1
        else:
            present += 1
    shown = f"{url.rstrip('/')}/{bundle.protocol_id}/{bundle.run_id}"
    return Published(url=shown, sent=sent, present=present)


def _members(bundle: Sealed) -> list[str]:
    """What belongs to the bundle in the order in which it is sent: claims and signatures before the manifest, which is last."""
    beside = (ANALYSIS, *(signature_path(Path(name)).name for name in (MANIFEST, "protocol.lock")))
    late = [name for name in beside if (bundle.folder / name).is_file()]
    return [*sorted(bundle.files), *late, MANIFEST]


def _place(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0] if "://" in url else "file"
    if not url.strip() or "::" in url or scheme not in SCHEMES:
        known = ", ".join(f"{name}://..." for name in SCHEMES)
        raise PublishError(f"expected a folder or a store that can be written ({known}), found {url!r}")
    try:
        from fsspec.core import url_to_fs

        files, root = url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        extra = "s3" if scheme == "s3" else "share"
        raise PublishError(f"{url}: {error}; install this tool with its extra [{extra}]") from error
    return files, str(root)


def _failures(files: Any) -> tuple[type[Exception], ...]:
    """Every way in which a store fails to answer: those of a file system, and for S3 those of its library."""
    if "s3" not in _protocols(files):
        return (OSError, ValueError)
    from botocore.exceptions import BotoCoreError

    return (OSError, ValueError, BotoCoreError)


def _protocols(files: Any) -> tuple[str, ...]:
    return files.protocol if isinstance(files.protocol, tuple) else (files.protocol,)


def _send(files: Any, source: Path, target: str) -> bool:
    """Send one file; False where the same bytes lie there already."""
    try:
        if files.exists(target):
            if _digest(files, target) == _digest(None, str(source)):
                return False
            raise PublishError(
                f"{target}: expected nothing, found another file; published bundles are never overwritten"
            )
        files.makedirs(target.rpartition("/")[0], exist_ok=True)
        _put(files, source, target)
    except BenchkitError:
        raise
    except _failures(files) as error:
        text = " ".join(str(error).split())
        raise PublishError(f"{target}: cannot be written ({type(error).__name__}: {text})") from error
    return True


def _put(files: Any, source: Path, target: str) -> None:
    """Write a file at once: a local one under another name and renamed, one in a store by a single put."""
    if "file" not in _protocols(files):
        files.put_file(str(source), target, mode="create")
        return
    part = Path(target).with_name(Path(target).name + ".part")
    try:
        shutil.copyfile(source, part)
        part.with_name(Path(target).name).hardlink_to(part)
    finally:
        part.unlink(missing_ok=True)


def _digest(files: Any, path: str) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") if files is None else files.open(path, "rb") as stream:
        while piece := stream.read(_PIECE):
            hasher.update(piece)
    return hasher.hexdigest()
