"""Files that a user names: read within limits, and written whole or not at all.

Rules:
1. Only a regular file is opened: a pipe would block, a device never ends, a folder is none.
2. A size is looked at before the bytes are, and no more than the limit is read.
3. A file is written under a temporary name and renamed; where that fails, nothing of it is left.
4. TOML is nested at most ``DEPTH`` deep, so that nothing that walks through it runs out of stack.
"""

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from benchkit.errors import DataError, OutputError, ProtocolError
from benchkit.units import MIB

TOML_BYTES = 4 * MIB
LOCK_BYTES = 16 * MIB
DEPTH = 32
_DOTS = 1 << 24
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path, what: str) -> BufferedReader:
    """A regular file, opened for reading; ``what`` names the kind of file that was expected.

    Raises
    ------
    DataError
        It is no regular file, or cannot be read.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a special file")
            raise DataError(f"{path}: expected {what}, found {kind}; give a regular file")
        return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")  # a pipe put there meanwhile does not block
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise DataError(f"{path}: expected {what}, found none that can be read ({reason})") from error


def read_small(path: Path, *, most: int, what: str) -> bytes:
    """The bytes of a regular file of at most ``most`` bytes.

    Raises
    ------
    DataError
        It is no regular file, cannot be read, or is larger.
    """
    with open_regular(path, what) as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise DataError(f"{path}: expected {what}, found none that can be read ({error.strerror})") from error
    if len(data) > most:
        raise DataError(f"{path}: expected {what} of at most {most} bytes, found more")
    return data


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it.

    Raises
    ------
    OutputError
        That is not possible; what stood there before still does.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise OutputError(f"{path}: cannot be written ({error.strerror}); give a place that can be") from error


def parse_toml(data: bytes, source: str) -> Mapping[str, object]:
    """TOML 1.0 (UTF-8, no byte-order mark), nested at most ``DEPTH`` deep.

    Raises
    ------
    ProtocolError
        It is none; ``source`` names it.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise ProtocolError(["file: expected UTF-8 without a byte-order mark; save it without one"], source)
    if sum(line.count(b".") ** 2 for line in data.split(b"\n")) > _DOTS:  # the time of the parser, for a key's parts
        expected = f"file: expected lines whose numbers of dots, squared, sum to at most {_DOTS}, found more"
        raise ProtocolError([f"{expected}; write shorter keys"], source)
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ProtocolError([f"file: expected UTF-8, found byte {error.start} that is not"], source) from error
    except RecursionError as error:
        raise ProtocolError([_TOO_DEEP], source) from error
    except tomllib.TOMLDecodeError as error:
        raise ProtocolError([f"file: expected TOML 1.0, found: {error}; mend the line"], source) from error
    except ValueError as error:  # Python's limit on the digits of an integer
        raise ProtocolError(
            ["file: expected integers of at most 2^53 - 1, found one of thousands of digits"], source
        ) from error
    level: list[object] = [document]
    for _ in range(DEPTH):
        level = [item for value in level for item in _inside(value)]
        if not level:
            return document
    raise ProtocolError([_TOO_DEEP], source)


_TOO_DEEP = f"file: expected at most {DEPTH} tables or arrays inside each other, found more"


def _inside(value: object) -> Iterator[object]:
    """The tables and arrays that stand directly in a value."""
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, Mapping | list))
