"""Plain tables, and numbers with as many digits as a decision needs. ASCII alone."""

from collections.abc import Sequence
from dataclasses import dataclass

_NONE = "-"
_DIGITS = 6
_MOST_DIGITS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A table."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int


def number(value: float | None, digits: int = _DIGITS) -> str:
    """Show a number with significant digits; a dash where there is none."""
    return _NONE if value is None else f"{value:.{digits}g}"


def against(value: float | None, limit: float) -> str:
    """Show a number with so many digits that one sees on which side of the limit it lies."""
    if value is None:
        return _NONE
    for digits in range(_DIGITS, _MOST_DIGITS + 1):
        shown = f"{value:.{digits}g}"
        if value == limit or float(shown) != limit:
            return shown
    return repr(value)


def relation(value: float, limit: float) -> str:
    """Show on which side of a limit a number lies, for example ``1.03004 > 1.03``."""
    sign = "<" if value < limit else ">" if value > limit else "="
    return f"{against(value, limit)} {sign} {limit:.{_DIGITS}g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Lay out rows under a head; the first ``left`` columns are text, the others align to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [
            text.ljust(width) if i < left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def ascii_only(text: str) -> str:
    """Replace what a poor terminal cannot show in one line: every control character, line ends too."""
    shown = text.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(char if " " <= char <= "~" else f"\\x{ord(char):02x}" for char in shown)
