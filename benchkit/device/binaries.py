"""SHA-256 of the third-party shared objects that a process has loaded; no torch.

Rules:
1. Only files below the environment's prefix count, or below a place where Python looks for packages (``PYTHONPATH``): the driver's own libraries are
   named by the driver's version.
2. Digests of large files are cached by path, size and time of change; a cache that cannot be read is made anew.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchkit.device.environment import portable_path

_WANTED = re.compile(r"(^|/)(torch|triton|vllm)/|[^/]*(torch|cuda|nvrtc|triton|vllm)[^/]*$")
_SHARED = re.compile(r"\.so(\.\d+)*$")


def shared_objects(maps: str, places: Sequence[str]) -> list[str]:
    """The shared objects below ``places`` that matter, from the text of ``/proc/<pid>/maps``; sorted, each once."""
    roots = [f"{place.rstrip('/')}/" for place in places if place]
    found = set()
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        path = fields[5] if len(fields) == 6 and _SHARED.search(fields[5]) else ""
        inner = min((path.removeprefix(root) for root in roots if path.startswith(root)), key=len, default="")
        if inner and _WANTED.search(inner.partition("site-packages/")[2] or inner):
            found.add(path)
    return sorted(found)


def loaded_binaries(cache: Path | None = None, *, maps: Path = Path("/proc/self/maps")) -> dict[str, str]:
    """Path relative to the prefix -> SHA-256 of each loaded shared object of torch, CUDA, NVRTC, Triton and vLLM.

    Parameters
    ----------
    cache:
        JSON file with digests of earlier processes; libtorch alone has more than a gigabyte.
    maps:
        The process's memory map; a system without one gives an empty result.
    """
    if not maps.exists():
        return {}
    places = [sys.prefix, *(os.path.abspath(each) for each in sys.path if each)]
    paths = shared_objects(maps.read_text(encoding="utf-8", errors="replace"), places)
    known = _read_cache(cache)
    digests = {}
    for path in paths:
        status = os.stat(path)
        key = f"{portable_path(path)}|{status.st_size}|{status.st_mtime_ns}"
        if key not in known:
            with open(path, "rb") as file:
                known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        digests[portable_path(path)] = known[key]
    _write_cache(cache, known)
    return digests


def _read_cache(cache: Path | None) -> dict[str, str]:
    if cache is None or not cache.exists():
        return {}
    try:
        content = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in content.items()} if isinstance(content, dict) else {}


def _write_cache(cache: Path | None, known: dict[str, str]) -> None:
    if cache is None or known == _read_cache(cache):
        return
    cache.parent.mkdir(parents=True, exist_ok=True)
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(known, sort_keys=True, indent=1), encoding="utf-8")
    os.replace(temporary, cache)
