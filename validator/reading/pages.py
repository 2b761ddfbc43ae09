"""The heads of all pages of a Parquet file, read without unpacking a page: what each would unpack to.

Rules:
1. The footer's totals are claims; only the head of a page says how much memory its reader will take.
2. Heads are Thrift structs in the compact protocol. Everything that is no such struct raises PageError.
"""

from dataclasses import dataclass
from typing import BinaryIO

import pyarrow.parquet as pq

_WINDOW = 1 << 16
_LARGEST_HEAD = 1 << 24
_STOP, _TRUE, _FALSE, _BYTE, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 6, 7, 8, 9, 10, 12
_UNPACKED, _PACKED = 2, 3
_DEEPEST = 8


class PageError(ValueError):
    """The bytes are no chain of pages."""


class _ShortError(Exception):
    """The window ends before the head does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """All pages of a file together."""

    count: int
    unpacked: int
    largest: int


def read_pages(path: str, footer: pq.FileMetaData, size: int, *, most: int) -> Pages:
    """Walk over every page of every column chunk."""
    count = unpacked = largest = 0
    with open(path, "rb") as stream:
        for group in range(footer.num_row_groups):
            for index in range(footer.num_columns):
                chunk = footer.row_group(group).column(index)
                starts = (chunk.data_page_offset, chunk.dictionary_page_offset or 0)
                at = min((start for start in starts if start > 0), default=0)
                end = at + chunk.total_compressed_size
                if not 0 <= at <= end <= size:
                    raise PageError(f"a column chunk from {at} to {end} in a file of {size} bytes")
                while at < end:
                    head, length = _head(stream, at, end)
                    count += 1
                    unpacked += head[_UNPACKED]
                    largest = max(largest, head[_UNPACKED])
                    at += length + head[_PACKED]
                    if count > most:
                        raise PageError(f"more than {most} pages")
                if at != end:
                    raise PageError(f"a page ends at {at}, its column chunk at {end}")
    return Pages(count=count, unpacked=unpacked, largest=largest)


def _head(stream: BinaryIO, at: int, end: int) -> tuple[dict[int, int], int]:
    """Read the head of the page at an offset: its integers by field, and its own length."""
    window = _WINDOW
    while True:
        stream.seek(at)
        data = stream.read(min(window, end - at))
        try:
            numbers, length = _Thrift(data).page_head()
        except _ShortError:
            if len(data) < window or window >= _LARGEST_HEAD:
                raise PageError(f"the head of the page at {at} does not end") from None
            window *= 16
            continue
        if numbers.get(_UNPACKED, -1) < 0 or numbers.get(_PACKED, -1) < 0:
            raise PageError(f"the page at {at} has no size")
        return numbers, length


class _Thrift:
    """A reader of Thrift's compact protocol that keeps the integers of the outermost struct."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def page_head(self) -> tuple[dict[int, int], int]:
        """Read one struct from the start: integers by field, and the struct's length in bytes."""
        numbers: dict[int, int] = {}
        self._struct(numbers, 0)
        return numbers, self.at

    def _byte(self) -> int:
        if self.at >= len(self.data):
            raise _ShortError
        self.at += 1
        return self.data[self.at - 1]

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise _ShortError

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise PageError("an integer of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _struct(self, numbers: dict[int, int] | None, depth: int) -> None:
        if depth > _DEEPEST:
            raise PageError("structs are nested too deeply")
        field = 0
        while (byte := self._byte()) != _STOP:
            field = field + (byte >> 4) if byte >> 4 else self._zigzag()
            kind = byte & 0x0F
            if _BYTE < kind <= _I64:
                value = self._zigzag()
                if numbers is not None:
                    numbers[field] = value
            else:
                self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self._skip(1)
        elif kind <= _I64:
            self._varint()
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind == _BINARY:
            self._skip(self._varint())
        elif kind in (_LIST, _SET):
            self._list(depth)
        elif kind == _STRUCT:
            self._struct(None, depth + 1)
        else:
            raise PageError(f"a value of type {kind}")

    def _list(self, depth: int) -> None:
        byte = self._byte()
        count, kind = byte >> 4, byte & 0x0F
        if count == 15:
            count = self._varint()
        if count > len(self.data) or depth > _DEEPEST:
            raise PageError(f"a list of {count} values")
        for _ in range(count):
            if kind in (_TRUE, _FALSE):
                self._skip(1)
            else:
                self._value(kind, depth + 1)
