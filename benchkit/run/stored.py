"""What a run stored in its working folder, read again: a file that is not as the run wrote it ends the command with one message."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from benchkit.errors import StorageError

_Stored = TypeVar("_Stored")


def damaged(path: Path, found: object) -> StorageError:
    """The error of a file that is not as the run wrote it."""
    return StorageError(
        f"{path}: expected a file as the run wrote it, found it damaged ({found}); "
        "a damaged run does not go on: keep its folder for whoever asks, and start a new run"
    )


def stored(kind: type[_Stored], document: object, path: Path) -> _Stored:
    """A dataclass of the members of a JSON object.

    Raises
    ------
    StorageError
        It is no object, or its members or their types are others; ``path`` names the file.
    """
    known = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(document, dict) or set(document) != set(known):
        raise damaged(path, f"expected an object with {', '.join(known)}")
    for name, wanted in known.items():
        if not _fits(document[name], wanted):
            raise damaged(path, f"{name} is {document[name]!r:.80}")
    return kind(**document)


def _fits(value: object, wanted: Any) -> bool:
    """Whether a JSON value is one of an annotated type."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return True
    if origin is Literal:
        return value in inner
    if origin is UnionType:
        return any(_fits(value, one) for one in inner)
    if origin is Sequence:
        return isinstance(value, list) and all(_fits(one, inner[0]) for one in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(one, inner[1]) for one in value.values())
    return isinstance(value, wanted)
