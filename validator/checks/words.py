"""How the checks of rows say what they found: one finding, one place, one count."""

from collections.abc import Iterable, Iterator, Sized
from itertools import islice

from validator.findings import Finding
from validator.reading.processes import ProcessRecord
from validator.reading.rows import Segment
from validator.reasons import Reason

_MOST = 1000


def first(found: Iterable[Finding]) -> Iterator[Finding]:
    """Give as many findings of a check as anybody reads; where everything is wrong, the rest is not even looked for."""
    return islice(found, _MOST)


def finding(reason: Reason, where: str, expected: object, got: object) -> Finding:
    """Give a finding; a value is said as its text."""
    return Finding(reason=reason, where=where, expected=str(expected), got=str(got))


def at_row(column: str, segment: Segment, row: int, record: ProcessRecord) -> str:
    """Name a row of a process's samples, as ``samples.parquet:duration_ns[17] process=0``."""
    return f"samples.parquet:{column}[{segment.start + row}] {record.name}"


def rows_of(bad: Sized) -> str:
    """Say how many rows, as ``1 row`` or ``3 rows``."""
    return "1 row" if len(bad) == 1 else f"{len(bad)} rows"
