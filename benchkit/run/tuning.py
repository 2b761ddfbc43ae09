"""``benchkit tune``: find an arm's best parameters on this device, to be locked by value before a run.

Rules:
1. The candidates come from the kernel's own search space (the registry names it); every one is checked against the truth before it is timed.
2. One set of parameters serves all points; a point gets its own where that is faster there by more than ``GAIN``.
3. Nothing is tuned inside a run: the values go into the protocol, which is then locked.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomlkit

from benchkit.errors import DataError, LockError
from benchkit.kernels import registry
from benchkit.kernels.contract import Params, PreparedArm
from benchkit.protocol.files import write_text
from benchkit.protocol.lock import lock_path
from benchkit.protocol.model import Arm, Point, Protocol, Role
from benchkit.protocol.parse import read_protocol

if TYPE_CHECKING:
    from benchkit.run.torch_bench import TorchBench

GAIN = 0.005
SAMPLES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One set of parameters at one point: median time per call, or why it was left out."""

    params: Params
    ns_per_call: float | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The choice for one arm: parameters for all points, and overrides where a point has its own."""

    arm: str
    params: Params
    by_point: Mapping[str, Params]
    trials: Mapping[str, tuple[Trial, ...]]


def tune(path: Path, arms: tuple[str, ...], progress: Callable[[str], None]) -> list[Tuned]:
    """Tune the named arms of a protocol (all that have a search space, where none is named).

    Raises
    ------
    DataError
        An arm does not exist, has no search space, or no candidate of it works at some point.
    """
    protocol = read_protocol(path)
    chosen = [_named(protocol, name) for name in arms] if arms else _tunable(protocol)
    if not chosen:
        raise DataError(f"{path}: no arm has a search space; its parameters are to be chosen by hand")
    from benchkit.run.torch_bench import TorchBench  # slow to import, and what is refused needs none

    bench = TorchBench(protocol, folder=path.parent, digest_cache=path.parent / ".unused")
    return [_tune_arm(protocol, bench, arm, progress) for arm in chosen]


def _tunable(protocol: Protocol) -> list[Arm]:
    return [arm for arm in protocol.arms if not arm.role.is_control and registry.entry(arm.kernel).space]


def _named(protocol: Protocol, name: str) -> Arm:
    found = [arm for arm in _tunable(protocol) if arm.name == name]
    if not found:
        names = ", ".join(arm.name for arm in _tunable(protocol)) or "none"
        raise DataError(f"--arm {name}: expected an arm with a search space; here these are: {names}")
    return found[0]


def _tune_arm(protocol: Protocol, bench: "TorchBench", arm: Arm, progress: Callable[[str], None]) -> Tuned:
    points = [point for point in protocol.points if arm.stands_at(point.id)]
    if arm.role is Role.CEILING:
        points = points[:1]  # its arrays are the same everywhere
    trials = {}
    for point in points:
        trials[point.id] = tuple(_trials(protocol, bench, arm, point))
        best = _best(trials[point.id])
        if best is None:
            reasons = sorted({trial.reason or "" for trial in trials[point.id]})
            raise DataError(f"{arm.name} at {point.id}: no parameters work: {'; '.join(reasons[:3])}")
        progress(
            f"{arm.name} at {point.id}: {best[1] / 1000:.2f} us with {_shown(best[0])}, best of {len(trials[point.id])}"
        )
    params = _overall(trials)
    by_point = {name: own for name, own in ((name, _own(rows, params)) for name, rows in trials.items()) if own}
    return Tuned(arm=arm.name, params=params, by_point=by_point, trials=trials)


def _trials(protocol: Protocol, bench: "TorchBench", arm: Arm, point: Point) -> Iterator[Trial]:
    for params in registry.search_space(arm.kernel, bench.inputs(arm, point)):
        prepared = bench.prepare(arm, point, params)
        if not isinstance(prepared, PreparedArm):
            yield Trial(params=params, ns_per_call=None, reason=prepared.reason)
        elif not _right(bench, arm, prepared):
            yield Trial(params=params, ns_per_call=None, reason="its output is wrong")
        else:
            yield Trial(params=params, ns_per_call=_time(protocol, bench, arm, prepared), reason=None)


def _right(bench: "TorchBench", arm: Arm, prepared: PreparedArm) -> bool:
    prepared.poison()
    prepared.call(0)
    bench.device.synchronize()
    found = bench.accuracy(prepared.output(), prepared.expected(arm.tolerance.truth))
    return found.min_cosine >= arm.tolerance.min_cosine and found.rel_error <= arm.tolerance.max_rel_error


def _time(protocol: Protocol, bench: "TorchBench", arm: Arm, prepared: PreparedArm) -> float:
    calls = arm.calls_per_sample
    timer = bench.device.timer(prepared.call, calls=calls, copies=protocol.fixture.copies, with_delay=False)
    timer.run()
    return statistics.median(timer.sample(injected_ns=0).duration_ns for _ in range(SAMPLES)) / calls


def _best(trials: Sequence[Trial]) -> tuple[Params, float] | None:
    timed = [(trial.params, trial.ns_per_call) for trial in trials if trial.ns_per_call is not None]
    return min(timed, key=lambda pair: pair[1]) if timed else None


def _overall(trials: Mapping[str, tuple[Trial, ...]]) -> Params:
    """The parameters with the smallest geometric mean over the points at all of which they work; else the first point's best."""
    logs: dict[str, list[float]] = {}
    params: dict[str, Params] = {}
    for rows in trials.values():
        for trial in rows:
            if trial.ns_per_call is not None:
                logs.setdefault(_shown(trial.params), []).append(math.log(trial.ns_per_call))
                params[_shown(trial.params)] = trial.params
    everywhere = {key: sum(values) for key, values in logs.items() if len(values) == len(trials)}
    if everywhere:
        return params[min(everywhere, key=lambda key: everywhere[key])]
    best = _best(next(iter(trials.values())))
    return best[0] if best else {}


def _own(rows: tuple[Trial, ...], params: Params) -> Params | None:
    """The point's own parameters, where they are faster than the common ones by more than GAIN."""
    best = _best([trial for trial in rows if trial.params.keys() == params.keys()])
    common = next((trial.ns_per_call for trial in rows if trial.params == params), None)
    if best is None or (common is not None and best[1] > common * (1 - GAIN)):
        return None
    return best[0]


def _shown(params: Params) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(params.items()))


def refuse_locked(path: Path) -> None:
    """Raise LockError where the protocol has a lock: tuning changes it, so it has to be another file, or unlocked first."""
    if lock_path(path).exists():
        raise LockError(
            f"{path}: is locked; tune a copy of it under another name, or remove {lock_path(path).name} first"
        )


def write_into(path: Path, tuned: list[Tuned]) -> None:
    """Write the choices into the protocol file, keeping its comments and layout.

    Raises
    ------
    LockError
        The protocol is locked: tuning changes it, so it has to be another file, or unlocked first.
    """
    refuse_locked(path)
    document = tomlkit.parse(path.read_text("utf-8"))
    for choice in tuned:
        for table in document["arm"]:
            if table["name"] == choice.arm:
                _fill(table, choice)
    write_text(path, tomlkit.dumps(document))


def _fill(table: Any, choice: Tuned) -> None:
    table["params"] = _inline(choice.params)
    table.pop("by_point", None)
    for point, params in choice.by_point.items():
        own = {k: v for k, v in params.items() if choice.params.get(k) != v}
        table.append(tomlkit.key(["by_point", point]), _inline(own))


def _inline(params: Params) -> Any:
    inline = tomlkit.inline_table()
    inline.update(dict(params))
    return inline
