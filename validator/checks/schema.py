"""Schema: values are what a column may hold, and footers do not contradict the manifest.

Rules:
1. Columns, types, units and nulls are judged where a table is read (``validator.reading.tables``).
2. Names of points and arms are those of the protocol; enumerations are closed; a warm-up row has block -1.
3. Times of flushes are there where the protocol flushes the cache before each sample, and only there.
4. Errors against the truth are numbers that an error can be: a cosine up to 1, differences of 0 or more; NaN, which a wrong
   output may give, is left to the tolerances.
5. Footer keys and field metadata are checked where they are present; their absence is a note.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from validator.checks.integrity import Outcome
from validator.findings import Finding
from validator.reading.bundle import Bundle
from validator.reading.model import Protocol
from validator.reading.schema import FLUSH
from validator.reading.tables import Frame
from validator.reasons import Reason

_CLOSED = {
    "telemetry": {"edge": ("before", "after")},
    "correctness": {"truth": ("stored", "original"), "stage": ("eager", "replay")},
}
_COSINE_SLACK = 1e-9  # of rounding, in fp64
_NOT_NEGATIVE = ("process", "attempt", "sample", "seq", "token", "slot", "expert", "position", "repeat")


def check_schema(bundle: Bundle) -> Outcome:
    """Check the values of every table that could be read, and the footers of all."""
    findings: list[Finding] = []
    notes: list[str] = []
    for name, read in bundle.tables.items():
        findings.extend(_footer(bundle, name, read.footer))
        if read.rows and read.bare:
            notes.append(f"{name}.parquet: no units in the field metadata")
        if not read.footer:
            notes.append(f"{name}.parquet: no benchkit keys in the footer")
        if read.frame is not None and bundle.protocol is not None:
            findings.extend(_values(read.frame, bundle.protocol))
            if name == "samples":
                findings.extend(_flush(read.frame, bundle.protocol))
    return Outcome(findings=tuple(findings), notes=tuple(notes))


def _footer(bundle: Bundle, table: str, footer: tuple[tuple[str, str], ...]) -> Iterator[Finding]:
    manifest = bundle.manifest
    expected = {"benchkit.schema": f"benchkit.{table}/1"}
    if manifest is not None:
        expected |= {"benchkit.protocol_digest": manifest.protocol_digest, "benchkit.run_id": manifest.run_id}
    for key, value in footer:
        if key in expected and value != expected[key]:
            yield _value(f"{table}.parquet:footer {key}", expected[key], value[:100])


def _value(where: str, expected: str, got: str) -> Finding:
    return Finding(reason=Reason.SCHEMA_VALUE, where=where, expected=expected, got=got)


def _first(frame: Frame, column: str, bad: NDArray[np.bool_], expected: str, got: object) -> Finding:
    rows = np.flatnonzero(bad)
    count = f" ({len(rows)} rows)" if len(rows) > 1 else ""
    return _value(f"{frame.name}.parquet:{column}[{rows[0]}]", expected, f"{got}{count}")


def _values(frame: Frame, protocol: Protocol) -> Iterator[Finding]:
    allowed: dict[str, tuple[str, ...]] = dict(_CLOSED.get(frame.name, {}))
    if "point" in frame.texts:
        allowed["point"] = tuple(point.id for point in protocol.points)
    if "arm" in frame.texts:
        allowed["arm"] = tuple(arm.name for arm in protocol.arms)
    for column, names in allowed.items():
        bad = frame.texts[column].recoded(names) < 0
        if bad.any():
            got = repr(frame.text(column, int(np.argmax(bad))))[:100]
            yield _first(frame, column, bad, "one of " + ", ".join(names), got)
    for column in _NOT_NEGATIVE:
        if column in frame.numbers:
            numbers = frame.numbers[column]
            negative = np.asarray(numbers < 0)  # type: ignore[operator]
            if negative.any():
                yield _first(frame, column, negative, "0 or more", numbers[int(np.argmax(negative))])
    if frame.name == "telemetry":
        power = frame.numbers["power_w"]
        unreal = ~np.isfinite(power.astype(np.float64))
        if unreal.any():
            yield _first(frame, "power_w", unreal, "a finite number", power[int(np.argmax(unreal))])
    if frame.name == "correctness":
        for column, bad, expected in _errors(frame):
            if bad.any():
                yield _first(frame, column, bad, expected, frame.real(column, int(np.argmax(bad))))
    if frame.name == "samples":
        block = frame.numbers["block"].astype(np.int32)
        bad = (block < -1) | (frame.numbers["warmup"].astype(np.bool_) != (block == -1))
        if bad.any():
            row = int(np.argmax(bad))
            got = f"block {block[row]} with warmup {bool(frame.numbers['warmup'][row])}"
            yield _first(frame, "warmup", bad, "block -1 in warm-up rows alone", got)


def _flush(frame: Frame, protocol: Protocol) -> Iterator[Finding]:
    wanted, present = protocol.cache == "cold-flush", FLUSH.name in frame.numbers
    if wanted != present:
        got = f"{'a' if present else 'no'} column {FLUSH.name}"
        expected = f"{'a' if wanted else 'no'} column {FLUSH.name} with cache {protocol.cache}"
        yield Finding(reason=Reason.SCHEMA_COLUMN, where="samples.parquet", expected=expected, got=got)


def _errors(frame: Frame) -> Iterator[tuple[str, NDArray[np.bool_], str]]:
    cosine = frame.numbers["min_cosine"].astype(np.float64)
    yield "min_cosine", np.abs(cosine) > 1 + _COSINE_SLACK, "a cosine between -1 and 1"
    for column in ("max_abs_error", "rel_error"):
        yield column, frame.numbers[column].astype(np.float64) < 0, "0 or more"
