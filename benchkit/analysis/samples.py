"""The rows of samples.parquet, grouped as the statistics need them."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchkit.units import IntArray


class Samples:
    """Timed rows of the last attempts, grouped by process, point and arm."""

    def __init__(self, table: pa.Table, last: Mapping[int, int]) -> None:
        points, arms = _dictionary(table, "point"), _dictionary(table, "arm")
        process, attempt = integers(table, "process"), integers(table, "attempt")
        numbers, places = np.unique(process, return_inverse=True)
        counted = attempt == np.array([last.get(int(number), -1) for number in numbers], dtype=np.int64)[places]
        warmup = _flags(table, "warmup")
        self.rows = Counter(
            {(int(p), points[1][int(c)]): int(n) for (p, c), n in _counts(process[counted], points[0][counted]).items()}
        )
        timed = counted & ~warmup
        duration, injected = integers(table, "duration_ns"), integers(table, "injected_ns")
        self._duration: dict[tuple[int, str, str], IntArray] = {}
        self._injected: dict[tuple[int, str, str], IntArray] = {}
        index = np.flatnonzero(timed)
        keys = (process[index] * len(points[1]) + points[0][index]) * len(arms[1]) + arms[0][index]
        order = np.argsort(keys, kind="stable")
        for part in np.split(index[order], np.flatnonzero(np.diff(keys[order])) + 1):
            if part.size:
                row = int(part[0])
                key = (int(process[row]), points[1][int(points[0][row])], arms[1][int(arms[0][row])])
                self._duration[key], self._injected[key] = duration[part], injected[part]

    def duration_ns(self, process: int, point: str, arm: str) -> IntArray:
        """Durations of the timed samples."""
        return self._duration.get((process, point, arm), np.zeros(0, dtype=np.int64))

    def injected_ns(self, process: int, point: str, arm: str) -> IntArray:
        """Delays of the timed samples."""
        return self._injected.get((process, point, arm), np.zeros(0, dtype=np.int64))

    def sound(self, point: str, arm: str) -> bool:
        """Whether every duration of the arm at the point is above 0, in all processes."""
        return not self.not_positive(point, arm)

    def not_positive(self, point: str, arm: str) -> dict[int, int]:
        """Process -> how many of the arm's durations at the point are 0 or less; processes without one are left out."""
        counts = {
            process: int(np.count_nonzero(values <= 0))
            for (process, p, a), values in sorted(self._duration.items())
            if (p, a) == (point, arm)
        }
        return {process: count for process, count in counts.items() if count}

    def count(self, point: str, arm: str) -> int:
        """Timed samples over all processes."""
        return sum(int(v.size) for (_, p, a), v in self._duration.items() if (p, a) == (point, arm))


def _dictionary(table: pa.Table, name: str) -> tuple[IntArray, list[str]]:
    column = _whole(table, name).dictionary_encode()
    return _viewed(column.indices).astype(np.int64), column.dictionary.to_pylist()


def integers(table: pa.Table, name: str) -> IntArray:
    """A column of a table without nulls as int64."""
    return _viewed(_whole(table, name)).astype(np.int64, copy=False)


def _flags(table: pa.Table, name: str) -> NDArray[np.bool_]:
    column = _whole(table, name)
    bits = np.frombuffer(column.buffers()[1] or b"", dtype=np.uint8)
    start = column.offset
    return np.unpackbits(bits, count=start + len(column), bitorder="little")[start:].astype(np.bool_)


def _whole(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _viewed(array: pa.Array) -> NDArray[np.integer]:
    """Integers without nulls as they lie in memory: pyarrow's own ``to_numpy`` would import pandas."""
    kind = np.dtype(f"i{array.type.bit_width // 8}")
    return np.frombuffer(array.buffers()[1] or b"", dtype=kind)[array.offset : array.offset + len(array)]


def _counts(*columns: IntArray) -> Mapping[tuple[int, ...], int]:
    keys, numbers = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    return {tuple(map(int, key)): int(number) for key, number in zip(keys, numbers, strict=True)}
