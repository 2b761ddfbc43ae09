"""What a routing means for reproducibility: its blocks, the experts that exceed one, and whether native alignment can vary.

Rules:
1. Ids come from a Parquet file with the integer columns token, slot and expert (and point, where it holds several): routing.parquet of a bundle is one.
2. Only experts with more routes than a block has rows can change their membership. The native op orders an expert's routes by atomics,
   except where ``alignment.native_is_fixed``; there its order is known, if not the stable one.
3. Modes at most = product over experts of n! / product over the expert's blocks of (routes in the block)!.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchkit.errors import DataError
from benchkit.fixture.alignment import (
    SKIPPED,
    Alignment,
    align,
    capacity,
    fingerprint,
    native_is_fixed,
    small_batch_plan,
)
from benchkit.mechanism.limits import MAX_ALIGNED, MAX_ROWS, refuse_beyond
from benchkit.protocol.files import open_regular

_LN10 = math.log(10)
_EXACT = 12  # decimal digits to which numbers of modes are shown exactly
_COLUMNS = ("token", "slot", "expert")
_SHOWN = 12  # names of columns in a message
_WHAT = f"a Parquet file with the columns {', '.join(_COLUMNS)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """An expert whose routes fill more than one block: its blocks, ascending, and their routes in the alignment at hand."""

    expert: int
    blocks: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]

    @property
    def routes(self) -> int:
        """Routes of the expert."""
        return sum(map(len, self.members))

    @property
    def log10_ways(self) -> float:
        """Decimal logarithm of ``ways``, which may have millions of digits."""
        return (math.lgamma(self.routes + 1) - sum(math.lgamma(len(members) + 1) for members in self.members)) / _LN10

    @property
    def ways(self) -> int:
        """Distinct ways to spread the routes over the blocks."""
        ways = math.factorial(self.routes)
        for members in self.members:
            ways //= math.factorial(len(members))
        return ways


def overflows(alignment: Alignment) -> tuple[Overflow, ...]:
    """The experts that exceed one block, ascending."""
    blocks_of: dict[int, list[int]] = {}
    for block, expert in enumerate(alignment.expert_ids.tolist()):
        blocks_of.setdefault(expert, []).append(block)
    return tuple(
        Overflow(expert=expert, blocks=tuple(blocks), members=tuple(alignment.members(block) for block in blocks))
        for expert, blocks in blocks_of.items()
        if len(blocks) > 1
    )


def _read(path: Path, wanted: tuple[str, ...]) -> pa.Table:
    """The wanted columns of a file, and point where it has one; what the footer shows to be wrong is refused before a row is read.

    It is read by this thread alone: a thread that still holds a Python file when the interpreter ends aborts the process.
    """
    import pyarrow.parquet as pq

    try:
        with open_regular(path, _WHAT) as file, pq.ParquetFile(file, pre_buffer=False) as parquet:
            schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
            names = [name for name in (*wanted, "point") if name in schema.names]
            _check_columns(path, schema, wanted)
            refuse_beyond(MAX_ROWS, rows, f"{path}: rows", "give a file with the points at hand alone")
            table = parquet.read(columns=names, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: expected {_WHAT}: {error}") from error
    for name in wanted:
        if table.column(name).null_count:
            found = f"{table.column(name).type}, {table.column(name).null_count} null(s)"
            raise DataError(f"{path}: {name}: expected {_kind(name)} without nulls, found {found}")
    return table


def _check_columns(path: Path, schema: pa.Schema, wanted: tuple[str, ...]) -> None:
    """Refuse columns that are not there, stand there twice or hold something else."""
    names = list(schema.names)
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise DataError(
            f"{path}: expected the columns {', '.join(wanted)}, missing {', '.join(missing)}; found {shown or 'none'}"
        )
    twice = [name for name in (*wanted, "point") if names.count(name) > 1]
    if twice:
        raise DataError(f"{path}: expected {_WHAT}, found {', '.join(twice)} more than once")
    for name in wanted:
        kind = schema.field(name).type
        if not (pa.types.is_floating(kind) if name == "weight" else pa.types.is_integer(kind)):
            raise DataError(f"{path}: {name}: expected {_kind(name)} without nulls, found {kind}")


def _kind(name: str) -> str:
    return "floats" if name == "weight" else "integers"


def read_ids(path: Path, point: str | None = None) -> NDArray[np.int64]:
    """Expert ids [tokens, top_k] of ``point``, or of the file's only point.

    Raises DataError, naming the file, where it is no Parquet file, lacks a column, holds no integers there, or where not every
    (token, slot) stands there once.
    """
    table = _read(path, _COLUMNS)
    try:
        token, slot, expert = (np.asarray(column, dtype=np.int64) for column in _columns(table, path, point))
    except OverflowError as error:
        raise DataError(f"{path}: expected integers of at most 2^63 - 1, found a larger one") from error
    return _matrix(path, token, slot, expert)


def read_routing(path: Path, point: str | None = None) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Expert ids and float32 weights, both [tokens, top_k], of a file that has a column weight too.

    Raises DataError as ``read_ids``, and on a weight that no float32 of at least 0 is near, or an expert twice for one token.
    """
    ids = read_ids(path, point)
    table = _read(path, (*_COLUMNS, "weight"))
    token, slot, _ = (np.asarray(column, dtype=np.int64) for column in _columns(table, path, point))
    names = table.column("point").to_pylist() if "point" in table.column_names else [point] * table.num_rows
    chosen = [
        w for w, name in zip(table.column("weight").to_pylist(), names, strict=True) if point in (None, str(name))
    ]
    weights = np.zeros(ids.size, dtype=np.float32)
    with np.errstate(over="ignore"):  # beyond float32 is not finite, which is said below
        weights[token * ids.shape[1] + slot] = np.array(chosen, dtype=np.float64).astype(np.float32)
    _check_routes(path, ids, weights.reshape(ids.shape))
    return ids, weights.reshape(ids.shape)


def _check_routes(path: Path, ids: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
    unsound = np.argwhere(~(np.isfinite(weights) & (weights >= 0)))
    if len(unsound):
        token, slot = unsound[0].tolist()
        raise DataError(
            f"{path}: token {token}, slot {slot}: expected a finite weight of at least 0, found {float(weights[token, slot])!r}"
        )
    for token, experts in enumerate(ids.tolist()):
        seen: dict[int, int] = {}
        for slot, expert in enumerate(experts):
            if expert != SKIPPED and expert in seen:
                raise DataError(
                    f"{path}: token {token}, slot {slot}: expected another expert than in slot {seen[expert]}, found {expert} again"
                )
            seen[expert] = slot


def refuse_many_rows(path: Path, routes: int, experts: int, block: int) -> None:
    """Raise DataError where so many routes could have more aligned rows than are looked at."""
    rows, what = capacity(routes, experts, block), f"{path}: aligned rows of {routes} routes"
    refuse_beyond(MAX_ALIGNED, rows, what, "give a smaller --block, or fewer routes")


def align_file(path: Path, experts: int, block: int, point: str | None = None) -> tuple[NDArray[np.int64], Alignment]:
    """Ids and stable alignment of a file; DataError, naming it, on ids out of range too."""
    ids = read_ids(path, point)
    refuse_many_rows(path, ids.size, experts, block)
    try:
        return ids, align(ids, experts, block)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def describe_membership(path: Path, *, experts: int, block: int, point: str | None = None) -> list[str]:
    """The lines of ``benchkit mechanism membership``."""
    ids, alignment = align_file(path, experts, block, point)
    exceeding = overflows(alignment)
    return [
        *heading(path, ids, alignment, experts),
        "",
        "block  expert  routes (stable order)",
        *(f"{j:>5}  {expert:>6}  {_listed(alignment.members(j))}" for j, expert in enumerate(alignment.expert_ids)),
        "",
        f"experts that exceed one block: {len(exceeding)}",
        *(
            f"  expert {one.expert}: {one.routes} routes in blocks {one.blocks[0]} to {one.blocks[-1]}"
            for one in exceeding
        ),
        f"native alignment can vary: {_verdict(ids, experts, alignment, exceeding)}",
        f"mode of the stable order: {fingerprint(alignment)}",
    ]


def heading(path: Path, ids: NDArray[np.int64], alignment: Alignment, experts: int) -> Iterator[str]:
    """Two lines that say what was aligned."""
    valid = int(alignment.plan.size)
    rows = alignment.num_tokens_post_padded
    tokens, top_k = ids.shape
    yield (
        f"{path}: {tokens} tokens x {top_k} = {alignment.routes} routes ({alignment.routes - valid} skipped), "
        f"{experts} experts, blocks of {alignment.block} rows"
    )
    yield f"aligned rows {rows} ({rows - valid} of padding), blocks {alignment.blocks}, experts with routes {len(set(alignment.expert_ids.tolist()))}"


def _verdict(ids: NDArray[np.int64], experts: int, alignment: Alignment, exceeding: tuple[Overflow, ...]) -> str:
    if not exceeding:
        return "no: no expert exceeds one block, so that every order gives the same mode"
    if native_is_fixed(alignment.routes, experts):
        native = align(ids, experts, alignment.block, small_batch_plan(ids, experts))
        same = fingerprint(native) == fingerprint(alignment)
        which = (
            "it gives the stable mode" if same else f"it gives another mode than the stable one, {fingerprint(native)}"
        )
        return f"no: fewer than 1024 routes and at most 64 experts are ordered without atomics; {which}"
    digits = sum(one.log10_ways for one in exceeding)
    shown = f"{math.prod(one.ways for one in exceeding)}" if digits < _EXACT else f"about 10^{round(digits)}"
    return f"yes, between {shown} modes: at {alignment.routes} routes and {experts} experts the op orders an expert's routes by atomics"


def _columns(table: pa.Table, path: Path, point: str | None) -> tuple[list[int], ...]:
    columns = [table.column(name).to_pylist() for name in _COLUMNS]
    if "point" not in table.column_names:
        if point is not None:
            raise DataError(f"{path}: expected a column point to look for {point} in, found none")
        return tuple(columns)
    points = table.column("point").to_pylist()
    known = sorted(set(map(str, points)))
    if point is None and len(known) > 1:
        raise DataError(f"{path}: holds {len(known)} points, choose one with --point: {', '.join(known)}")
    if point is not None and point not in known:
        raise DataError(f"{path}: expected one of the points {', '.join(known) or '(none)'}, found {point}")
    chosen = [index for index, name in enumerate(points) if point is None or str(name) == point]
    return tuple([column[index] for index in chosen] for column in columns)


def _matrix(
    path: Path, token: NDArray[np.int64], slot: NDArray[np.int64], expert: NDArray[np.int64]
) -> NDArray[np.int64]:
    if token.size == 0:
        raise DataError(f"{path}: expected at least one route, found none")
    if min(int(token.min()), int(slot.min())) < 0:
        raise DataError(f"{path}: expected tokens and slots from 0, found {min(int(token.min()), int(slot.min()))}")
    tokens, top_k = int(token.max()) + 1, int(slot.max()) + 1
    if tokens * top_k != token.size:
        raise DataError(
            f"{path}: expected {tokens} tokens x {top_k} slots = {tokens * top_k} routes, found {token.size}"
        )
    routes = token * top_k + slot
    if np.unique(routes).size != routes.size:
        raise DataError(f"{path}: expected each (token, slot) once, found one twice")
    ids = np.full(tokens * top_k, SKIPPED, dtype=np.int64)
    ids[routes] = expert
    return ids.reshape(tokens, top_k)


def _listed(routes: tuple[int, ...]) -> str:
    return " ".join(map(str, routes))
