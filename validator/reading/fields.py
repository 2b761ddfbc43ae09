"""A reader of typed keys that collects every problem with its path.

Rules:
1. A boolean is no integer, an integer is no float unless a number is asked for, a NaN or infinity is nothing.
2. A key that nobody asked for is a problem.
3. A problem never raises: a neutral value stands in, and the caller looks at ``problems`` at the end.
4. Of a document that is wrong throughout, the first problems say enough.
"""

import math
import re
from collections.abc import Iterable, Mapping

from validator.reading.canonical import is_sha256

_MOST_PROBLEMS = 200


class Fields:
    """The keys of one table, read one by one."""

    def __init__(self, value: object, path: str, problems: list[str]) -> None:
        """Take a parsed value; anything but a table is a problem."""
        self.path = path
        self.problems = problems
        self._asked: set[str] = set()
        if isinstance(value, Mapping):
            self._table: Mapping[str, object] = value
        else:
            self._table = {}
            self._problem(f"{path or 'document'}: expected a table, got {type(value).__name__}")

    def _problem(self, text: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(text)

    def at(self, key: str) -> str:
        """Give the path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, expected: str, got: object) -> None:
        """Record a problem."""
        self._problem(f"{self.at(key)}: expected {expected}, got {got!r}"[:300])

    def has(self, key: str) -> bool:
        """Say whether a key is there, without asking for it."""
        return key in self._table

    def raw(self, key: str, *, optional: bool = False) -> object:
        """Give a value as it is; None where it is absent."""
        self._asked.add(key)
        if key not in self._table and not optional:
            self._problem(f"{self.at(key)}: missing")
        return self._table.get(key)

    def text(self, key: str, *, pattern: str | None = None) -> str:
        """Give a string, matching the whole pattern if there is one."""
        value = self.raw(key)
        if not self.has(key):
            return ""
        if not isinstance(value, str):
            self.wrong(key, "a string", value)
            return ""
        if pattern is not None and re.fullmatch(pattern, value) is None:
            self.wrong(key, f"a string like {pattern}", value)
        return value

    def optional_text(self, key: str, *, pattern: str | None = None) -> str | None:
        """Give a string, or None where the key is absent."""
        self._asked.add(key)
        return self.text(key, pattern=pattern) if self.has(key) else None

    def choice(self, key: str, allowed: Iterable[str]) -> str:
        """Give one of the allowed strings."""
        names = tuple(allowed)
        value = self.raw(key)
        if not isinstance(value, str) or value not in names:
            if self.has(key):
                self.wrong(key, "one of " + ", ".join(names), value)
            return names[0]
        return value

    def integer(self, key: str, *, least: int = 0) -> int:
        """Give an integer of at least ``least``."""
        value = self.raw(key)
        if not self.has(key):
            return least
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(key, "an integer", value)
            return least
        if not least <= value < 2**53:
            self.wrong(key, f"an integer from {least} to 2^53 - 1", value)
            return least
        return value

    def optional_integer(self, key: str, *, least: int = 0) -> int | None:
        """Give an integer, or None where the key is absent."""
        self._asked.add(key)
        return self.integer(key, least=least) if self.has(key) else None

    def number(self, key: str) -> float:
        """Give a finite number; an integer counts."""
        value = self.raw(key)
        if not self.has(key):
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.wrong(key, "a finite number", value)
            return 0.0
        return float(value)

    def truth(self, key: str) -> bool:
        """Give a boolean."""
        value = self.raw(key)
        if not isinstance(value, bool):
            if self.has(key):
                self.wrong(key, "true or false", value)
            return False
        return value

    def digest(self, key: str) -> str:
        """Give a SHA-256 in lower-case hex."""
        value = self.raw(key)
        if not is_sha256(value):
            if self.has(key):
                self.wrong(key, "a SHA-256 in lower-case hex", value)
            return ""
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Give a list of distinct strings."""
        value = self.raw(key)
        if not self.has(key):
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.wrong(key, "a list of strings", value)
            return ()
        if len(set(value)) != len(value):
            self.wrong(key, "distinct strings", value)
        return tuple(value)

    def table(self, key: str) -> "Fields":
        """Give a table; an absent one is empty."""
        value = self.raw(key)
        return Fields(value if self.has(key) else {}, self.at(key), self.problems)

    def tables(self, key: str, *, optional: bool = False) -> tuple["Fields", ...]:
        """Give a list of tables."""
        value = self.raw(key, optional=optional)
        if not self.has(key):
            return ()
        if not isinstance(value, list):
            self.wrong(key, "a list of tables", value)
            return ()
        return tuple(Fields(item, f"{self.at(key)}[{i}]", self.problems) for i, item in enumerate(value))

    def names(self) -> tuple[str, ...]:
        """Give all keys, and count them as asked for."""
        self._asked.update(self._table)
        return tuple(self._table)

    def finish(self) -> None:
        """Record every key that nobody asked for."""
        for key in self._table:
            if key not in self._asked:
                self._problem(f"{self.at(key)}: unknown key")
