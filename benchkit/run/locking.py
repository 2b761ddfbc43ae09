"""``benchkit lock``: from a protocol file to its lock, with the plan and the bytes that follow from it; without torch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomlkit

from benchkit.errors import DataError, ProtocolError
from benchkit.fixture.traffic import asset_path, point_traffic, routing_at
from benchkit.kernels import registry
from benchkit.kernels.refusals import LayerSizes
from benchkit.plan import plan_digest, schedule
from benchkit.protocol.fields import some
from benchkit.protocol.files import write_text
from benchkit.protocol.lock import (
    Lock,
    LockedProtocol,
    load_locked,
    lock_path,
    make_lock,
    protocol_digest,
    write_lock,
)
from benchkit.protocol.model import Arm, MoeFixture, Protocol, Role
from benchkit.protocol.parse import read_protocol


def lock(path: Path, *, replace: bool, sources: bool = False) -> Lock:
    """Lock the protocol at ``path``, ``sources`` brought up to date first if asked, and return the lock that holds from now on.

    Raises
    ------
    ProtocolError
        The protocol, a kernel id or a parameter is wrong; all problems at once.
    LockError
        Another lock is there and may not be replaced.
    """
    protocol = sound_protocol(path)
    for asset in protocol.assets:
        asset_path(protocol, asset, path.parent)
    if sources:
        with filled_sources(path, arm_sources(protocol)):
            return lock(path, replace=replace)
    return write_lock(path, _made(protocol, path), replace=replace)


def sound_protocol(path: Path) -> Protocol:
    """The protocol at ``path``; ProtocolError where it, a kernel id or a parameter is wrong, all problems at once."""
    protocol = read_protocol(path)
    problems = kernel_problems(protocol)
    if problems:
        raise ProtocolError(problems, str(path))
    return protocol


def preview(path: Path) -> LockedProtocol:
    """The protocol with the lock beside it, or, where none is there yet, with the lock that ``lock`` would write; nothing is written."""
    if lock_path(path).exists():
        return load_locked(path)
    protocol = read_protocol(path)
    return LockedProtocol(path=path, protocol=protocol, lock=_made(protocol, path))


def _made(protocol: Protocol, path: Path) -> Lock:
    digest = plan_digest(schedule(protocol, protocol_digest(protocol)))
    traffic = bytes_by_point(protocol, path.parent)
    return make_lock(protocol, plan_digest=digest, bytes_by_point=traffic, folder=path.resolve().parent)


def bytes_by_point(protocol: Protocol, folder: Path) -> dict[str, tuple[int, int]]:
    """Unique and issued bytes of a whole-layer call at every point."""
    result = {}
    for point in protocol.points:
        traffic = point_traffic(protocol.fixture, point, routing_at(protocol, point, folder))
        result[point.id] = (traffic.unique_bytes or 0, traffic.issued_bytes or 0)
    return result


def kernel_problems(protocol: Protocol) -> list[str]:
    """What the registry has against the arms: unknown kernels, parameters that they do not take, the wrong clock or fixture, and, where
    nothing of that kind is wrong, points at which the baseline or all candidates could not run on any machine.
    """
    problems = [
        f"arm[{index}].{problem}"
        for index, arm in enumerate(protocol.arms)
        if not arm.role.is_control
        for problem in _arm_problems(protocol, arm)
    ]
    return problems or _refused_points(protocol)


def _refused_points(protocol: Protocol) -> list[str]:
    fixture = protocol.fixture
    if not isinstance(fixture, MoeFixture):
        return []
    found: dict[tuple[str, str], list[str]] = {}  # who cannot run, and why -> points
    for point in protocol.points:
        layer = LayerSizes(
            experts=fixture.experts,
            hidden=fixture.hidden,
            intermediate=fixture.intermediate,
            top_k=fixture.top_k,
            weight_format=fixture.weight_format,
            tokens=point.integer("batch"),
        )
        for role, who in ((Role.BASELINE, "the baseline cannot"), (Role.CANDIDATE, "no candidate can")):
            arms = [arm for arm in protocol.arms_at(point.id) if arm.role is role]
            reasons = {arm.name: registry.refusal(arm.kernel, arm.params_at(point.id), layer) for arm in arms}
            if arms and all(reasons.values()):
                why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
                found.setdefault((who, why), []).append(point.id)
    return [
        f"operating_points: {who} run at {some(points)} ({why}); leave such points out, or change the fixture or the kernel"
        for (who, why), points in found.items()
    ]


def _arm_problems(protocol: Protocol, arm: Arm) -> list[str]:
    if arm.kernel not in registry.KERNELS:
        return [f'kernel: expected one of {", ".join(sorted(registry.KERNELS))}, found "{arm.kernel}"']
    entry, problems = registry.entry(arm.kernel), []
    fixture = "moe" if isinstance(protocol.fixture, MoeFixture) and arm.role is not Role.CEILING else "arrays"
    if entry.clock != protocol.timing.clock:
        problems.append(
            f'kernel: {arm.kernel} is timed by clock "{entry.clock}", the protocol has "{protocol.timing.clock}"'
        )
    if entry.fixture != fixture:
        problems.append(f'kernel: {arm.kernel} takes a fixture "{entry.fixture}", this arm gets "{fixture}"')
    points = [point.id for point in protocol.points if arm.stands_at(point.id)]
    found = {problem for point in points for problem in registry.param_problems(arm.kernel, arm.params_at(point))}
    problems.extend(f"params.{problem}" for problem in sorted(found))
    return problems


def source_problems(protocol: Protocol) -> dict[str, str]:
    """By arm, how its installed sources differ from ``[build.require.sources]``; none that do not."""
    return changed_sources(protocol.require, arm_sources(protocol), "arm")


def changed_sources(require: Mapping[str, Any], found: Mapping[str, str], what: str) -> dict[str, str]:
    """The same for the sources found of arms or engines, which ``what`` says."""
    return {
        name: f"sources.{name}: expected {digest}, found {found.get(name, f'no such {what}')}; check out the sources that were locked"
        for name, digest in require.get("sources", {}).items()
        if found.get(name) != digest
    }


def arm_sources(protocol: Protocol) -> dict[str, str]:
    """Source digest of every arm's kernel."""
    return {arm.name: registry.source_digest(arm.kernel) for arm in protocol.arms}


@contextmanager
def filled_sources(path: Path, found: Mapping[str, str]) -> Iterator[None]:
    """Write ``found`` over the digests in ``[build.require.sources]`` of the protocol at ``path``; taken back where the block raises.

    Raises
    ------
    DataError
        The protocol names no sources.
    """
    text = path.read_text("utf-8")
    document = tomlkit.parse(text)
    named = document.get("build", {}).get("require", {}).get("sources", {})
    if not named:
        raise DataError(
            f"{path}: expected [build.require.sources] with arm = digest, found none; --sources fills in what is named there"
        )
    for name in named:
        named[name] = found.get(name, named[name])
    write_text(path, tomlkit.dumps(document))
    try:
        yield
    except BaseException:
        write_text(path, text)
        raise
