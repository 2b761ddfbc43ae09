"""The lock of a protocol: its digest, and the file ``x.lock`` beside ``x.toml``.

Rules:
1. Digest = SHA-256 of the RFC 8785 canonical JSON of the parsed document.
2. Two locks are the same iff protocol digest and plan digest are; locking again changes nothing.
3. A different lock is replaced only on request, and never while a bundle of the old digest is published in ``results/`` beside the protocol's folder.
"""

import hashlib
import json
import re
import subprocess
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rfc8785

from benchkit import __version__
from benchkit.errors import LockError
from benchkit.protocol.files import LOCK_BYTES, read_small, write_text
from benchkit.protocol.model import Protocol
from benchkit.protocol.parse import read_protocol

LOCK_SCHEMA = "benchkit.lock/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """What a lock file states; ``bytes_by_point`` maps a point to (unique_bytes, issued_bytes)."""

    protocol_id: str
    protocol_digest: str
    plan_digest: str
    bytes_by_point: Mapping[str, tuple[int, int]]
    locked_utc: str
    tool_version: str
    git_commit: str | None

    def same_as(self, other: "Lock") -> bool:
        """Whether both lock the same protocol to the same plan."""
        return (self.protocol_digest, self.plan_digest) == (other.protocol_digest, other.plan_digest)

    def to_json(self) -> str:
        """The text of the lock file."""
        document = {
            "schema": LOCK_SCHEMA,
            "protocol_id": self.protocol_id,
            "protocol_digest": self.protocol_digest,
            "plan_digest": self.plan_digest,
            "bytes": {
                point: {"unique_bytes": unique, "issued_bytes": issued}
                for point, (unique, issued) in self.bytes_by_point.items()
            },
            "locked_utc": self.locked_utc,
            "tool_version": self.tool_version,
            "git_commit": self.git_commit,
        }
        return json.dumps(document, indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedProtocol:
    """A protocol together with the lock that belongs to it; only this can be planned and run."""

    path: Path
    protocol: Protocol
    lock: Lock

    @property
    def digest(self) -> str:
        """The protocol digest."""
        return self.lock.protocol_digest


class Documented(typing.Protocol):
    """What a lock is made of: the id and the parsed document of a protocol of either kind."""

    @property
    def id(self) -> str:
        """The protocol's id."""
        ...

    @property
    def document(self) -> Mapping[str, object]:
        """The parsed TOML."""
        ...


def protocol_digest(protocol: Documented) -> str:
    """SHA-256 of the RFC 8785 JSON of the parsed document, lower-case hex."""
    document: Any = protocol.document
    return hashlib.sha256(rfc8785.dumps(document)).hexdigest()


def lock_path(protocol_path: Path) -> Path:
    """Where the lock of a protocol lies."""
    return protocol_path.with_suffix(".lock")


def utc_now() -> str:
    """The time now as ``YYYY-MM-DDTHH:MM:SSZ``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_lock(path: Path) -> Lock:
    """Read a lock file; ``LockError`` where it is none, ``DataError`` where it cannot be read."""
    try:
        document = json.loads(read_small(path, most=LOCK_BYTES, what="a lock file").decode("utf-8"))
        schema = document["schema"]
        if schema != LOCK_SCHEMA:
            raise LockError(f'{path}: expected schema "{LOCK_SCHEMA}", found "{schema}"; lock the protocol again')
        lock = Lock(
            protocol_id=document["protocol_id"],
            protocol_digest=document["protocol_digest"],
            plan_digest=document["plan_digest"],
            bytes_by_point={
                point: (int(entry["unique_bytes"]), int(entry["issued_bytes"]))
                for point, entry in document["bytes"].items()
            },
            locked_utc=document["locked_utc"],
            tool_version=document["tool_version"],
            git_commit=document["git_commit"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise LockError(
            f"{path}: expected a lock file, found something else ({error}); lock the protocol again"
        ) from error
    digests = (lock.protocol_digest, lock.plan_digest)
    if not all(isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests):
        raise LockError(f"{path}: expected digests of 64 hex digits, found {digests}; lock the protocol again")
    return lock


def load_locked(path: Path) -> LockedProtocol:
    """Read a protocol and the lock beside it.

    Raises
    ------
    LockError
        There is no lock, or it belongs to another text of the protocol.
    """
    protocol = read_protocol(path)
    beside = lock_path(path)
    if not beside.exists():
        raise LockError(f"{path}: not locked (no {beside.name}); run: benchkit lock {path}")
    lock = read_lock(beside)
    digest = protocol_digest(protocol)
    if lock.protocol_digest != digest:
        raise LockError(
            f"{path}: changed after it was locked: expected digest {lock.protocol_digest}, found {digest}; "
            f"restore the locked text, or lock it anew as another file"
        )
    return LockedProtocol(path=path, protocol=protocol, lock=lock)


def write_lock(path: Path, lock: Lock, *, replace: bool) -> Lock:
    """Write ``lock`` beside the protocol at ``path`` and return the lock that holds from now on (the old one, if it is the same)."""
    beside = lock_path(path)
    if beside.exists():
        old = read_lock(beside)
        if old.same_as(lock):
            return old
        if not replace:
            raise LockError(
                f"{beside}: locks digest {old.protocol_digest}, the protocol now has {lock.protocol_digest}; "
                "use --replace if no published result needs the old lock, or save the protocol as another file"
            )
        published = _published(path, old.protocol_digest)
        if published:
            raise LockError(
                f"{beside}: {published[0]} was published under the old lock; save the protocol as another file"
            )
    write_text(beside, lock.to_json())
    return lock


def _published(protocol_path: Path, digest: str) -> list[Path]:
    """Bundles in ``results/`` beside the protocol's folder that carry the digest."""
    folder = protocol_path.resolve().parent.parent / "results"
    return [
        manifest.parent
        for manifest in sorted(folder.glob("*/*/manifest.json"))
        if manifest.is_file() and digest.encode("ascii") in manifest.read_bytes()
    ]


def make_lock(
    protocol: Documented, *, plan_digest: str, bytes_by_point: Mapping[str, tuple[int, int]], folder: Path
) -> Lock:
    """A lock of the protocol as of now; ``folder`` is where the git commit is looked up."""
    return Lock(
        protocol_id=protocol.id,
        protocol_digest=protocol_digest(protocol),
        plan_digest=plan_digest,
        bytes_by_point=bytes_by_point,
        locked_utc=utc_now(),
        tool_version=__version__,
        git_commit=_git_commit(folder),
    )


def _git_commit(folder: Path) -> str | None:
    """The commit checked out in ``folder``; None outside a repository or without git."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
