"""Reads a TOML table key by key and gathers every problem with its path.

Rules:
1. A wrong or missing value becomes a line ``path: expected ..., found ...`` and a stand-in of the right type; the caller raises once, at the end.
2. Booleans are no integers, integers are no floats; NaN, infinities and integers beyond 2**53 - 1 are refused, since the digest is taken over JSON.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time
from typing import Any

MAX_INTEGER = (1 << 53) - 1
_MISSING = object()
_LONG = 10**40
_FEW = 8


def as_toml(value: object) -> str:
    """A value as a protocol writes it; of an integer that is too long to show, its size."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {as_toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, int) and abs(value) > _LONG:
        return f"integer of {value.bit_length()} bits"
    return repr(value)


def shown(value: object) -> str:
    """A value as a message shows it: its type, and as much of it as fits."""
    names = {bool: "boolean", int: "integer", float: "float", str: "string", dict: "table", list: "array"}
    text = as_toml(value)
    if isinstance(value, int) and abs(value) > _LONG:
        return text
    return f"{names.get(type(value), type(value).__name__)} {text if len(text) <= 80 else text[:77] + '...'}"


def some(names: Iterable[str]) -> str:
    """Names for a message: the first few, in order."""
    ordered = sorted(names)
    return ", ".join(ordered[:_FEW]) + (f", ... ({len(ordered)} in all)" if len(ordered) > _FEW else "")


class Table:
    """One table of a protocol. Each reader takes its key out; ``close`` reports what is left."""

    def __init__(self, data: object, path: str, problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        self._taken: set[str] = set()
        if not isinstance(data, Mapping):
            if data is not _MISSING:
                self.say("", f"expected a table, found {shown(data)}")
            data = {}
        self._data: Mapping[str, Any] = data

    def say(self, key: str, text: str) -> None:
        """Note a problem of ``key`` (or of the table itself)."""
        path = ".".join(part for part in (self.path, key) if part)
        self.problems.append(f"{path}: {text}")

    def has(self, key: str) -> bool:
        """Whether the table states the key."""
        return key in self._data

    def keys(self) -> tuple[str, ...]:
        """All keys, in the order of the file."""
        return tuple(self._data)

    def _take(self, key: str, expected: str, *, optional: bool) -> Any:
        self._taken.add(key)
        value = self._data.get(key, _MISSING)
        if value is _MISSING and not optional:
            self.say(key, f"missing; expected {expected}")
        return value

    def text(
        self,
        key: str,
        *,
        choices: Sequence[str] = (),
        pattern: str | None = None,
        expected: str = "a non-empty string",
    ) -> str:
        """A string, one of ``choices`` or matching ``pattern`` as a whole where given."""
        if choices:
            expected = "one of " + ", ".join(f'"{choice}"' for choice in choices)
        value = self._take(key, expected, optional=False)
        if value is _MISSING:
            return ""
        if not isinstance(value, str) or not value.strip():
            self.say(key, f"expected {expected}, found {shown(value)}")
            return ""
        if (choices and value not in choices) or (pattern and not re.fullmatch(pattern, value)):
            self.say(key, f"expected {expected}, found {shown(value)}")
        return value

    def optional_text(self, key: str, **rules: Any) -> str | None:
        """``text`` where the key may be absent."""
        return self.text(key, **rules) if self.has(key) else None

    def integer(self, key: str, *, low: int, high: int = MAX_INTEGER) -> int:
        """An integer in [low, high]."""
        expected = f"an integer from {low}" + (f" to {high}" if high != MAX_INTEGER else "")
        value = self._take(key, expected, optional=False)
        if value is _MISSING:
            return low
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.say(key, f"expected {expected}, found {shown(value)}")
            return low
        return value

    def optional_integer(self, key: str, *, low: int, high: int = MAX_INTEGER) -> int | None:
        """``integer`` where the key may be absent."""
        return self.integer(key, low=low, high=high) if self.has(key) else None

    def number(self, key: str, *, low: float, high: float) -> float:
        """A float in (low, high]."""
        expected = f"a float above {low:g} and at most {high:g}"
        value = self._take(key, expected, optional=False)
        if value is _MISSING:
            return high
        if not isinstance(value, float) or not math.isfinite(value) or not low < value <= high:
            self.say(key, f"expected {expected}, found {shown(value)}")
            return high
        return value

    def flag(self, key: str) -> bool:
        """A boolean that is false where absent."""
        value = self._take(key, "true or false", optional=True)
        if value is _MISSING:
            return False
        if not isinstance(value, bool):
            self.say(key, f"expected true or false, found {shown(value)}")
            return False
        return value

    def texts(self, key: str, *, choices: Sequence[str] = ()) -> tuple[str, ...]:
        """A non-empty array of distinct strings."""
        expected = "a non-empty array of distinct strings" + (f" out of {', '.join(choices)}" if choices else "")
        value = self._take(key, expected, optional=False)
        if value is _MISSING:
            return ()
        good = isinstance(value, list) and value and all(isinstance(item, str) for item in value)
        if not good or len(set(value)) != len(value) or (choices and not set(value) <= set(choices)):
            self.say(key, f"expected {expected}, found {shown(value)}")
            return ()
        return tuple(value)

    def optional_texts(self, key: str) -> tuple[str, ...] | None:
        """``texts`` where the key may be absent."""
        return self.texts(key) if self.has(key) else None

    def table(self, key: str, *, optional: bool = False) -> "Table":
        """A table; an absent optional one reads as empty."""
        value = self._take(key, "a table", optional=optional)
        path = f"{self.path}.{key}" if self.path else key
        return Table(value, path, self.problems)

    def tables(self, key: str, *, optional: bool = False) -> tuple["Table", ...]:
        """An array of tables, non-empty unless optional."""
        value = self._take(key, f"at least one [[{key}]]", optional=optional)
        if value is _MISSING:
            return ()
        if not isinstance(value, list) or not value:
            self.say(key, f"expected at least one [[{key}]], found {shown(value)}")
            return ()
        prefix = f"{self.path}.{key}" if self.path else key
        return tuple(Table(item, f"{prefix}[{index}]", self.problems) for index, item in enumerate(value))

    def raw(self, key: str, expected: str) -> Any:
        """The value as it stands, or None where it is missing; the caller checks it."""
        value = self._take(key, expected, optional=False)
        return None if value is _MISSING else value

    def scalars(self, key: str) -> Mapping[str, str | int | bool]:
        """An optional table of strings, integers and booleans."""
        table = self.table(key, optional=True)
        return {name: table.scalar(name) for name in table.keys()}  # noqa: SIM118 - Table is no mapping

    def scalar(self, key: str) -> str | int | bool:
        """A string, an integer or a boolean."""
        value = self._take(key, "a string, an integer or a boolean", optional=False)
        bad_integer = isinstance(value, int) and abs(value) > MAX_INTEGER
        if not isinstance(value, str | int | bool) or bad_integer:
            self.say(key, f"expected a string, an integer or a boolean, found {shown(value)}")
            return 0
        return value

    def margin(self, key: str) -> float:
        """A margin as ``"2%"`` or ``0.02``: a fraction in (0, 1)."""
        expected = 'a margin such as "2%" or 0.02'
        value = self._take(key, expected, optional=False)
        if value is _MISSING:
            return 0.5
        if isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?%", value):
            fraction = float(value[:-1]) / 100
        elif isinstance(value, float) and math.isfinite(value):
            fraction = value
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            self.say(key, f'expected {expected}, found {value}, which could mean "{value}%" or {value}00 %: write one')
            return 0.5
        else:
            self.say(key, f"expected {expected}, found {shown(value)}")
            return 0.5
        if not 0 < fraction < 1:
            self.say(key, f"expected {expected} (between 0 and 100 %), found {shown(value)}")
            return 0.5
        return fraction

    def close(self) -> None:
        """Report every key that no reader took."""
        for key in self._data:
            if key not in self._taken:
                known = ", ".join(sorted(self._taken))
                self.say(key, f"unknown key; known here: {known}")
