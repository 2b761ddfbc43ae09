"""The declared limits of a reader: what a member of a bundle may weigh before it is not read at all.

Rules (results/README.md, "Limits of a reader"):
1. A limit is looked at before the bytes are: a size in the folder, then the footer, then the head of every page.
2. Sizes of a protocol (protocols/README.md, "Limits") are looked at before a point, an order or a route is derived.
3. Nothing that an honest run writes comes near a limit; what exceeds one is OVERSIZED and is not read.
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from validator.reading.pages import PageError, read_pages
from validator.reading.schema import ALL_TABLES

MIB = 1 << 20
MEMBERS = 10_000
ARMS, POINTS, LOOKS = 256, 4096, 32
PLANNED, ROWS, ROUTED = 1 << 20, 13_000_000, 1 << 24
EXPONENT = 32
DEPTH = 8
MOST_ROWS = {"processes": 40_000, "correctness": 1 << 21, "kernels": 1 << 20, "repeats": 1 << 20}
TABLE_FILE = 4096 * MIB
DECODED = 4096 * MIB
FREE_RATIO_BELOW = 256 * MIB
RATIO = 1000
PAGE = 64 * MIB
FOOTER = 4 * MIB
PAGES = 1_000_000
TEXT_VALUE = 4 * MIB
BATCH_TEXT = 1024 * MIB
_SMALL = {
    "manifest.json": 16 * MIB,
    "protocol.lock": 16 * MIB,
    "protocol.toml": 4 * MIB,
    "attempts.jsonl": 32 * MIB,
    "analysis.json": 32 * MIB,
}
_SIGNATURE, _ASSET = MIB, MIB
_WIDTH = {"string": 16, "binary": 16, "bool": 1, "int16": 2, "int32": 4, "int64": 8, "float32": 4, "float64": 8}


class OversizedError(Exception):
    """A member exceeds a limit; ``expected`` and ``got`` say which, and by how much."""

    def __init__(self, expected: str, got: str) -> None:
        """Take the two sides of the finding."""
        super().__init__(f"expected {expected}, got {got}")
        self.expected = expected
        self.got = got


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """What the footer and the pages of a Parquet file say that reading it takes."""

    rows: int
    decoded: int
    largest_page: int
    pages: int


def most_bytes(name: str) -> int | None:
    """Give the largest size of a member; None for a name that is none of the format's, which is never read."""
    if name in _SMALL:
        return _SMALL[name]
    if name.removesuffix(".parquet") in ALL_TABLES and name.endswith(".parquet"):
        return TABLE_FILE
    if name.startswith("assets/"):
        return _ASSET
    return _SIGNATURE if name.endswith(".sig.json") else None


def check_size(name: str, size: int) -> None:
    """Refuse a member that is larger than its kind may be."""
    most = most_bytes(name)
    if most is not None and size > most:
        raise OversizedError(f"at most {most} bytes", f"{size} bytes")


def check_footer(path: Path, size: int) -> None:
    """Refuse a Parquet file whose footer is larger than any that a run writes, before it is unpacked."""
    with path.open("rb") as stream:
        stream.seek(max(0, size - 8))
        tail = stream.read(8)
    length = int.from_bytes(tail[:4], "little")
    if FOOTER < length < size:  # one that exceeds the file is no footer
        raise OversizedError(f"a footer of at most {FOOTER} bytes", f"one of {length} bytes")


def check_parquet(file: pq.ParquetFile, path: str, table: str, size: int) -> Weight:
    """Refuse a Parquet file that would unpack to more than its limits, before any of its pages is read."""
    footer = file.metadata
    rows = int(footer.num_rows)
    if rows < 0 or sum(footer.row_group(i).num_rows for i in range(footer.num_row_groups)) != rows:
        raise PageError(f"{rows} rows, which are not those of the row groups")
    if rows > MOST_ROWS.get(table, rows):
        raise OversizedError(f"at most {MOST_ROWS[table]} rows", f"{rows} rows")
    width = sum(_WIDTH.get(column.type, 8) for column in ALL_TABLES[table])
    decoded = rows * width
    if decoded > DECODED:
        raise OversizedError(f"at most {DECODED} bytes when read", f"{rows} rows, {decoded} bytes")
    pages = read_pages(path, footer, size, most=PAGES)
    if pages.largest > PAGE:
        raise OversizedError(f"pages of at most {PAGE} bytes", f"a page of {pages.largest} bytes")
    unpacked = max(decoded, pages.unpacked)
    if unpacked > FREE_RATIO_BELOW and unpacked > RATIO * size:
        raise OversizedError(f"at most {RATIO} bytes for each that is stored", f"{unpacked} from {size}")
    return Weight(rows=rows, decoded=decoded, largest_page=pages.largest, pages=pages.count)
