"""The members of a bundle's folder, by POSIX name, and whether their names are safe on every file system.

Rules:
1. A link or a special file is never opened or followed, and no name leaves the folder.
2. Two names that are one without case, or in one Unicode form (NFC), collide. A file that the manifest lists in another
   Unicode form is not quietly missing: the finding shows the bytes of both names.
3. What exceeds a limit (``validator.reading.limits``) or cannot be opened is a finding, and is not read.
"""

import os
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from validator.findings import CouldNotCheckError, Finding
from validator.reading.canonical import file_sha256, read_small
from validator.reading.limits import DEPTH, MEMBERS, OversizedError, check_size, most_bytes
from validator.reasons import Reason

_DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(1, 10))])
_LONGEST = 255


class Folder:
    """The regular files of a folder, with the findings that listing it gave."""

    def __init__(self, root: Path) -> None:
        """List a folder; raises CouldNotCheckError where there is none that can be listed."""
        self.root = root
        self.names: dict[str, int] = {}
        self._folders = 0
        self.findings: list[Finding] = []
        if not root.is_dir():
            raise CouldNotCheckError(f"{root}: expected the folder of a bundle, got {_what(root)}")
        try:
            self._scan(root, "", 0)
        except OSError as error:
            raise CouldNotCheckError(f"{root}: cannot be listed ({error.strerror or error})") from error
        for name in sorted(self.names):
            if not is_plain(name):
                self.unsafe(name, "a plain name", f"{name!r:.200}")
        self._collide(self.names)

    def unsafe(self, name: str, expected: str, got: str) -> None:
        """Record an unsafe name."""
        self._add(Reason.UNSAFE_PATH, name, expected, got)

    def unreadable(self, name: str, got: str, expected: str = "a readable file") -> None:
        """Record an unreadable member."""
        self._add(Reason.FILE_UNREADABLE, name, expected, got)

    def read(self, name: str) -> bytes | None:
        """Read a small member; None where it is absent or cannot be read."""
        if name not in self.names or not self._fits(name):
            return None
        try:
            return read_small(self.root / name)
        except OSError as error:
            self.unreadable(name, error.strerror or str(error))
            return None

    def digest(self, name: str) -> str | None:
        """Give the SHA-256 of a member; None where it is absent, none of the format's, too large or cannot be read."""
        if name not in self.names or most_bytes(name) is None or not self._fits(name):
            return None
        try:
            return file_sha256(self.root / name)
        except OSError as error:
            self.unreadable(name, error.strerror or str(error))
            return None

    def check_listed(self, names: Iterable[str]) -> None:
        """Check the names that a manifest lists: alone, among each other, and against those in the folder."""
        listed = list(names)
        for name in listed:
            if not is_plain(name):
                self.unsafe(name, "a plain name inside the bundle", f"{name!r:.200}")
        absent = [name for name in listed if name not in self.names]
        self._collide([name for name in listed if name in self.names] + absent)
        forms = {unicodedata.normalize("NFC", name): name for name in self.names}
        for name in absent:
            stored = forms.get(unicodedata.normalize("NFC", name))
            if stored is not None:
                self.unsafe(name, f"the bytes {_bytes(name)} that the manifest lists", f"the bytes {_bytes(stored)}")

    def _add(self, reason: Reason, where: str, expected: str, got: str) -> None:
        shown = where[:200].encode("utf-8", "backslashreplace").decode("utf-8")
        finding = Finding(reason=reason, where=shown, expected=expected[:300], got=got[:300])
        if finding not in self.findings:
            self.findings.append(finding)

    def _fits(self, name: str) -> bool:
        try:
            check_size(name, self.names[name])
        except OversizedError as error:
            self._add(Reason.OVERSIZED, name, error.expected, error.got)
            return False
        return True

    def _collide(self, names: Iterable[str]) -> None:
        seen: dict[str, str] = {}
        for name in sorted(names):
            folded = unicodedata.normalize("NFC", name)
            other = seen.setdefault(unicodedata.normalize("NFC", folded.casefold()), name)
            if other != name and (unicodedata.normalize("NFC", other) != folded or other in self.names):
                self.unsafe(name, "distinct names on every file system", f"a name that collides with {other!r:.200}")

    def _scan(self, folder: Path, prefix: str, depth: int) -> None:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda item: item.name)
        for entry in found:
            name = prefix + entry.name
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(info.st_mode):
                self.names[name] = info.st_size
            elif not stat.S_ISDIR(info.st_mode):
                self.unsafe(name, "a plain file", "a link" if stat.S_ISLNK(info.st_mode) else "a special file")
            elif depth >= DEPTH:
                self._add(Reason.OVERSIZED, name, f"at most {DEPTH} folders in each other", "another folder")
            else:
                self._inner(folder / entry.name, name, depth)
            if len(self.names) + self._folders > MEMBERS:
                raise CouldNotCheckError(f"{self.root}: more than {MEMBERS} files and folders: this is no bundle")

    def _inner(self, folder: Path, name: str, depth: int) -> None:
        self._folders += 1
        try:
            self._scan(folder, name + "/", depth + 1)
        except OSError as error:
            self.unreadable(name, error.strerror or str(error), "a folder that can be listed")


def _what(path: Path) -> str:
    return "a file" if path.exists() else "nothing"


def _bytes(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").hex(" ")


def is_plain(name: str) -> bool:
    """Say whether a name stays inside the bundle and means one file on every file system."""
    path = PurePosixPath(name)
    plain = not any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 or char in '\\:*?"<>|' for char in name)
    if not plain or not path.parts or path.is_absolute() or ".." in path.parts or str(path) != name:
        return False
    return all(
        len(part.encode()) <= _LONGEST and part[-1] not in ". " and part.partition(".")[0].casefold() not in _DEVICES
        for part in path.parts
    )
