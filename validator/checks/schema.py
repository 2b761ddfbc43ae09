"""Schema: values are what a column may hold, and footers do not contradict the manifest.

Rules:
1. Columns, types, units and nulls are judged where a table is read (``validator.reading.tables``).
2. Names of points and arms are those of the protocol; enumerations are closed; a warm-up row has block -1.
3. Times of flushes are there where the protocol flushes the cache before each sample, and only there.
4. Errors against the truth are numbers that an error can be: a cosine up to 1, differences of 0 or more, none of them 0 alone;
   NaN, which a wrong output may give, is left to the tolerances.
5. Digests are 64 hexadecimal digits, launch shapes three numbers, clocks more than 0.
6. Rows ascend by process, then attempt, in every table that has them.
7. ``mode_sha256`` is null in all repeats of an arm at a point (an arm without an alignment) or in none.
8. Footer keys and field metadata are checked where they are present; their absence is a note.
"""

import re
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

_CLOSED: dict[str, dict[str, tuple[str, ...]]] = {
    "telemetry": {"edge": ("before", "after")},
    "correctness": {"truth": ("stored", "original", "batch"), "stage": ("eager", "replay")},
}
_DIGEST = (re.compile(r"[0-9a-f]{64}"), "64 hexadecimal digits")
_SHAPE = (re.compile(r"\d+,\d+,\d+"), "three numbers, as 132,1,1")
_PATTERNS = {
    "correctness": {"output_sha256": _DIGEST},
    "repeats": {"output_sha256": _DIGEST, "mode_sha256": _DIGEST},
    "kernels": {"grid": _SHAPE, "block": _SHAPE, "name": (re.compile(r".+", re.DOTALL), "a name")},
}
_LEAST = {
    "telemetry": {"sm_clock_mhz": 1, "memory_clock_mhz": 1, "temperature_c": -50, "power_w": 0, "throttle_reasons": 0},
    "kernels": {"registers": 0, "shared_bytes": 0, "scratch_bytes": 0},
}
_BY_PROCESS = ("processes", "telemetry", "correctness", "kernels", "repeats")
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
    yield from _patterns(frame)
    yield from _ascending(frame)
    if frame.name == "repeats":
        yield from _modes(frame)
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


def _patterns(frame: Frame) -> Iterator[Finding]:
    """Check what a text must look like, by distinct value: there are few of them."""
    for column, (pattern, expected) in _PATTERNS.get(frame.name, {}).items():
        text = frame.texts[column]
        wrong = np.array([pattern.fullmatch(value) is None for value in text.values] + [False])
        bad = wrong[text.codes]
        if bad.any():
            yield _first(frame, column, bad, expected, repr(frame.text(column, int(np.argmax(bad))))[:100])
    for column, least in _LEAST.get(frame.name, {}).items():
        numbers = frame.numbers[column].astype(np.float64)
        if (numbers < least).any():
            row = int(np.argmax(numbers < least))
            yield _first(frame, column, numbers < least, f"{least} or more", frame.numbers[column][row])


def _ascending(frame: Frame) -> Iterator[Finding]:
    if frame.name not in _BY_PROCESS:
        return
    process, attempt = (frame.numbers[name].astype(np.int64) for name in ("process", "attempt"))
    down = (process[1:] < process[:-1]) | ((process[1:] == process[:-1]) & (attempt[1:] < attempt[:-1]))
    if down.any():
        row = int(np.argmax(down)) + 1
        where = f"{frame.name}.parquet:process[{row}]"
        got = f"process {process[row]}, attempt {attempt[row]} after process {process[row - 1]}, attempt {attempt[row - 1]}"
        yield _value(where, "rows ascending by process and attempt", got)


def _modes(frame: Frame) -> Iterator[Finding]:
    """A null among digests: an arm has an alignment or has none. Nothing where the bundle holds no mode at all."""
    point, arm, mode = (frame.texts[column] for column in ("point", "arm", "mode_sha256"))
    null = mode.codes < 0
    place = point.codes.astype(np.int64) * len(arm.values) + arm.codes
    mixed = null & np.isin(place, place[~null])
    if mixed.any():
        row = int(np.argmax(mixed))
        expected = f"a digest, as in other repeats of {frame.text('arm', row)} at {frame.text('point', row)}"
        yield _first(frame, "mode_sha256", mixed, expected[:300], "null")


def _flush(frame: Frame, protocol: Protocol) -> Iterator[Finding]:
    wanted, present = protocol.cache == "cold-flush", FLUSH.name in frame.numbers
    if wanted != present:
        got = f"{'a' if present else 'no'} column {FLUSH.name}"
        expected = f"{'a' if wanted else 'no'} column {FLUSH.name} with cache {protocol.cache}"
        yield Finding(reason=Reason.SCHEMA_COLUMN, where="samples.parquet", expected=expected, got=got)


def _errors(frame: Frame) -> Iterator[tuple[str, NDArray[np.bool_], str]]:
    cosine = frame.numbers["min_cosine"].astype(np.float64)
    yield "min_cosine", np.abs(cosine) > 1 + _COSINE_SLACK, "a cosine between -1 and 1"
    largest, relative = (frame.numbers[column].astype(np.float64) for column in ("max_abs_error", "rel_error"))
    yield "max_abs_error", largest < 0, "0 or more"
    yield "rel_error", relative < 0, "0 or more"
    odd = np.isfinite(largest) & np.isfinite(relative) & ((largest == 0) != (relative == 0))
    yield "rel_error", odd, "0 where max_abs_error is 0, and nowhere else"
