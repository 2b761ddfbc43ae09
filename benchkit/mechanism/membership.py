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
from typing import TypeVar

import numpy as np
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
from benchkit.fixture.recorded_routes import ROUTE, read_routes
from benchkit.mechanism.limits import MAX_ALIGNED, refuse_beyond

_Number = TypeVar("_Number", bound=np.generic)
_LN10 = math.log(10)
_EXACT = 12  # decimal digits to which numbers of modes are shown exactly


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


def read_ids(path: Path, point: str | None = None) -> NDArray[np.int64]:
    """Expert ids [tokens, top_k] of ``point``, or of the file's only point.

    Raises DataError, naming the file, as ``read_routes``, and where not every (token, slot) stands there once.
    """
    token, slot, expert = read_routes(path, ROUTE, point)
    routes, shape = _places(path, token, slot)
    return _placed(expert, routes, shape)


def read_routing(path: Path, point: str | None = None) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Expert ids and float32 weights, both [tokens, top_k], of a file that has a column weight too.

    Raises DataError as ``read_ids``, and on a weight that no float32 of at least 0 is near, or an expert twice for one token.
    """
    token, slot, expert, weight = read_routes(path, (*ROUTE, "weight"), point)
    routes, shape = _places(path, token, slot)
    with np.errstate(over="ignore"):  # beyond float32 is not finite, which is said below
        ids, weights = _placed(expert, routes, shape), _placed(weight.astype(np.float32), routes, shape)
    _check_routes(path, ids, weights)
    return ids, weights


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


def _places(path: Path, token: NDArray[np.int64], slot: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[int, int]]:
    """The route (token x top_k + slot) of each row, and (tokens, top_k); DataError unless each stands there once."""
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
    return routes, (tokens, top_k)


def _placed(values: NDArray[_Number], routes: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[_Number]:
    placed = np.empty_like(values)
    placed[routes] = values
    return placed.reshape(shape)


def _listed(routes: tuple[int, ...]) -> str:
    return " ".join(map(str, routes))
