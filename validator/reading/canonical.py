"""Strict JSON, TOML and the canonical digests.

Rules:
1. JSON with NaN, Infinity, a duplicate key, bytes that are not UTF-8 or more than 3,000,000 values is no JSON.
2. The digest of a value is the SHA-256 (lower-case hex) of its RFC 8785 JSON.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import rfc8785

from validator.findings import Json

_HEX = re.compile(r"[0-9a-f]{64}\Z")
_MOST_DOTS = 1 << 24
_LARGEST_TEXT = 32 * 1024 * 1024
_MOST_VALUES = 3_000_000


class StrictJsonError(ValueError):
    """The text is not strict JSON; the message says why."""


def _refuse_constant(token: str) -> Json:
    raise StrictJsonError(f"{token} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise StrictJsonError(f"{text[:40]} does not fit a binary64")
    return value


def _integer(text: str) -> int:
    if len(text) > 40:
        raise StrictJsonError(f"an integer of {len(text)} digits")
    return int(text)


def _unique(pairs: Iterable[tuple[str, Json]]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for key, value in pairs:
        if key in result:
            raise StrictJsonError(f"duplicate key {key!r}")
        result[key] = value
    return result


def parse_json(data: bytes) -> Json:
    """Parse strict JSON, or raise StrictJsonError."""
    values = 1 + sum(data.count(mark) for mark in (b",", b"[", b"{"))  # at least as many as there are
    if values > _MOST_VALUES:
        raise StrictJsonError(f"expected at most {_MOST_VALUES} values, found up to {values}")
    try:
        value: Json = json.loads(
            data.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_float,
            parse_int=_integer,
            object_pairs_hook=_unique,
        )
    except StrictJsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise StrictJsonError(str(error)[:200]) from error
    return value


def parse_toml(data: bytes) -> dict[str, object]:
    """Parse TOML, or raise ValueError; the parser takes time by the square of a dotted key's parts, so that is looked at before."""
    if sum(line.count(b".") ** 2 for line in data.split(b"\n")) > _MOST_DOTS:
        raise ValueError(f"dots whose number in a line, squared, is more than {_MOST_DOTS} over all lines")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("tables or arrays that are nested too deeply") from error


def parse_object(data: bytes) -> dict[str, Json]:
    """Parse strict JSON that is an object."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise StrictJsonError(f"expected an object, got {type(value).__name__}")
    return value


def read_small(path: Path) -> bytes:
    """Read a text file of a sane size."""
    size = path.stat().st_size
    if size > _LARGEST_TEXT:
        raise OSError(f"{size} bytes are too many for a text file")
    return path.read_bytes()


def canonical(value: object) -> bytes:
    """Give the RFC 8785 JSON; raises rfc8785.CanonicalizationError (a ValueError) where there is none."""
    return bytes(rfc8785.dumps(value))  # type: ignore[arg-type]


def is_canonical(value: object, data: bytes) -> bool:
    """Say whether bytes are the RFC 8785 JSON of a value."""
    try:
        return canonical(value) == data
    except ValueError:
        return False


def digest_of(value: object) -> str:
    """Give the SHA-256 of the RFC 8785 JSON of a value."""
    return sha256(canonical(value))


def sha256(data: bytes) -> str:
    """Give the SHA-256 of bytes in lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """Give the SHA-256 of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_sha256(value: object) -> bool:
    """Say whether a value is a SHA-256 in lower-case hex."""
    return isinstance(value, str) and _HEX.match(value) is not None
