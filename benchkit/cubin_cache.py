"""Cubins that were compiled before, on disk: a process that runs the same kernels again compiles nothing.

Rules:
1. A name is the SHA-256 of all that decides a cubin's bytes: the compiler as it names itself, architecture, options and source.
2. A file that is not whole, or not what was written, is as if it were not there; one that cannot be written is no error.
3. ``BENCHKIT_CACHE_DIR`` is the folder, else ``benchkit`` in the user's cache folder; set and empty, nothing is kept.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path


def folder() -> Path | None:
    """Where the cubins lie, or None where none are kept."""
    named = os.environ.get("BENCHKIT_CACHE_DIR")
    if named is not None:
        return Path(named) / "cubin" if named else None
    root = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return root / "benchkit" / "cubin" if root.is_absolute() else None


def key(*parts: str) -> str:
    """The name of what follows from ``parts``."""
    return _digest(json.dumps(parts).encode())


def read(name: str) -> tuple[bytes, str] | None:
    """Code and compiler's log that are kept under ``name``, or None."""
    place = folder()
    if place is None:
        return None
    try:
        digest, _, kept = (place / name).read_bytes().partition(b"\n")
    except OSError:
        return None
    if digest != _digest(kept).encode():
        return None
    log, _, code = kept.partition(b"\n")
    return code, str(json.loads(log))


def write(name: str, code: bytes, log: str) -> None:
    """Keep code and log under ``name``; whoever else writes them at the same time writes the same."""
    place = folder()
    if place is None:
        return
    kept = json.dumps(log).encode() + b"\n" + code
    temporary = place / f".{name}.{os.getpid()}"
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(_digest(kept).encode() + b"\n" + kept)
            temporary.replace(place / name)
        finally:
            temporary.unlink(missing_ok=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
