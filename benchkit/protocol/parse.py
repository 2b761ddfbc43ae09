"""TOML text -> ``Protocol``, with every problem of the file at once.

Rules:
1. The caller gives text or a path; nothing else is read (assets are checked by ``lock``).
2. Structure first, section by section; what ties sections together is checked only once the structure is sound.
3. The checks here are those of protocols/README.md; whether a kernel id exists is the registry's business.
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from benchkit.errors import ProtocolError
from benchkit.protocol.coherence import coherence_problems
from benchkit.protocol.fields import MAX_INTEGER, Table, shown
from benchkit.protocol.files import TOML_BYTES, parse_toml, read_small
from benchkit.protocol.limits import MAX_EXPONENT, is_derived_law, size_problems
from benchkit.protocol.model import (
    CEILING_TOLERANCE,
    Arm,
    ArraysFixture,
    Asset,
    Comparison,
    Fixture,
    MoeFixture,
    PointValue,
    Protocol,
    Role,
    Schedule,
    TimingRules,
    Tolerance,
    Warmup,
)
from benchkit.protocol.rules import parse_statistics

SCHEMA = "benchkit.protocol/1"
RANGES = ("python", "torch", "triton", "driver", "cuda")
WEIGHT_FORMATS = ("fp32", "bf16", "mxfp8", "awq-int4-g128")
SHA256 = r"[0-9a-f]{64}"
ARM_NAME = r"[a-z][a-z0-9_]{0,63}"


def read_protocol(path: Path) -> Protocol:
    """Read and parse a protocol file.

    Raises
    ------
    DataError
        The file cannot be read.
    ProtocolError
        It is not a protocol; all problems at once.
    """
    return parse_protocol(read_small(path, most=TOML_BYTES, what="a protocol file"), str(path))


def parse_protocol(data: bytes, source: str) -> Protocol:
    """Parse the bytes of a protocol; ``source`` names them in messages."""
    document = parse_toml(data, source)
    problems: list[str] = []
    refuse_unhashable(document, "", problems)
    root = Table(document, "", problems)
    schema = root.text("schema", choices=(SCHEMA,))
    if problems and schema not in ("", SCHEMA):
        raise ProtocolError([f'schema: expected "{SCHEMA}", found "{schema}"; this version reads no other'], source)
    head = document.get("protocol")
    if isinstance(head, Mapping) and head.get("kind") == "mechanism":
        found = 'protocol.kind: expected "comparison", found "mechanism", which compares bits and has no samples'
        raise ProtocolError([found], source)
    protocol = _protocol(root, document)
    root.close()
    problems.extend(() if problems else size_problems(protocol))
    problems.extend(() if problems else coherence_problems(protocol))
    if problems:
        raise ProtocolError(problems, source)
    return protocol


def refuse_unhashable(value: object, path: str, problems: list[str]) -> None:
    """Refuse what RFC 8785 JSON cannot carry without loss: dates and huge integers."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            refuse_unhashable(item, f"{path}.{key}" if path else key, problems)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            refuse_unhashable(item, f"{path}[{index}]", problems)
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        problems.append(f"{path}: expected an integer of at most 2^53 - 1, found {shown(value)}")
    elif not isinstance(value, str | int | float | bool):
        problems.append(f"{path}: expected a string, number, boolean, array or table, found {shown(value)}")


def _protocol(root: Table, document: Mapping[str, object]) -> Protocol:
    head = root.table("protocol")
    protocol_id = head.text("id", pattern=r"[a-z0-9][a-z0-9-]{0,99}", expected="lower-case letters, digits and hyphens")
    head.text("kind", choices=("comparison",))
    title, question = head.text("title"), head.text("question")
    head.text("margin_rationale")
    head.close()
    timing = _timing(root.table("timing"))
    correctness = root.table("correctness")
    correctness.text("reference", choices=("fp64",))
    truths = correctness.texts("truths", choices=("stored", "original"))
    repeats = correctness.optional_integer("repeats", low=2, high=1000) or 0
    correctness.close()
    return Protocol(
        document=document,
        id=protocol_id,
        title=title,
        question=question,
        require=parse_require(root.table("build", optional=True)),
        fixture=_fixture(root.table("fixture")),
        axes=_axes(root.table("operating_points")),
        arms=_arms(root.tables("arm"), timing),
        comparisons=tuple(_comparison(table) for table in root.tables("comparison")),
        schedule=_schedule(root.table("schedule")),
        warmup=_warmup(root.table("warmup")),
        timing=timing,
        truths=truths,
        repeats=repeats,
        statistics=parse_statistics(root.table("statistics")),
        assets=tuple(parse_asset(table) for table in root.tables("asset", optional=True)),
    )


def parse_require(build: Table) -> Mapping[str, Any]:
    """The checked table ``[build.require]``."""
    table = build.table("require", optional=True)
    require: dict[str, Any] = {key: table.text(key) for key in RANGES if table.has(key)}
    for key, text in require.items():
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            table.say(key, f'expected a version range such as ">=2.11,<3", found {shown(text)}')
    if table.has("gpu"):
        require["gpu"] = table.text("gpu")
    if table.has("compute_capability"):
        require["compute_capability"] = table.text(
            "compute_capability", pattern=r"[0-9]+\.[0-9]", expected='such as "9.0"'
        )
    for key in ("sources", "binaries"):
        digests = table.table(key, optional=True)
        names = digests.keys()
        require[key] = {name: digests.text(name, pattern=SHA256, expected="a SHA-256 in hex") for name in names}
        digests.close()
    table.close()
    build.close()
    return require


def _fixture(table: Table) -> Fixture:
    kind = table.text("kind", choices=("moe", "arrays"))
    fixture: Fixture
    if kind == "arrays":
        fixture = ArraysFixture(
            dtype=table.text("dtype", choices=("fp32",)),
            counted=table.text("counted", choices=("read", "read+write")),
            seed=table.integer("seed", low=0),
            copies=table.integer("copies", low=1, high=4096),
        )
    else:
        law = f'"uniform", "zipf-<a>" with an a of at most {MAX_EXPONENT}, or "recorded"'
        routing = table.text("routing", expected=law)
        if routing and routing != "recorded" and not is_derived_law(routing):
            table.say("routing", f"expected {law}, found {shown(routing)}")
        fixture = MoeFixture(
            experts=table.integer("experts", low=1, high=65536),
            hidden=table.integer("hidden", low=1, high=1 << 20),
            intermediate=table.integer("intermediate", low=1, high=1 << 20),
            top_k=table.integer("top_k", low=1, high=1024),
            weight_format=table.text("weight_format", choices=WEIGHT_FORMATS),
            routing=routing,
            routing_seed=table.integer("routing_seed", low=0),
            weight_seed=table.integer("weight_seed", low=0),
            copies=table.integer("copies", low=1, high=4096),
            routing_asset=table.text("routing_asset") if routing == "recorded" else None,
        )
    if kind:
        table.close()
    return fixture


def _axes(table: Table) -> tuple[tuple[str, tuple[PointValue, ...]], ...]:
    axes = []
    for name in table.keys():  # noqa: SIM118 - Table is no mapping
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
            table.say(name, "expected an axis name of at most 64 lower-case letters, digits and underscores")
        axes.append((name, _axis_values(table, name)))
    if not axes:
        table.say("", "expected at least one axis, such as batch = [1, 8]")
    return tuple(axes)


def _axis_values(table: Table, name: str) -> tuple[PointValue, ...]:
    values = table.raw(name, "an array")
    expected = (
        "a non-empty array of distinct integers, or of distinct strings of at most 64 letters, digits, '_', '.', '-'"
    )
    good = isinstance(values, list) and bool(values)
    integers = good and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)
    strings = good and all(isinstance(v, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", v) for v in values)
    if not (integers or strings) or len(set(values)) != len(values):
        table.say(name, f"expected {expected}, found {shown(values)}")
        return ()
    return tuple(values)


def _tolerance(table: Table) -> Tolerance:
    tolerance = Tolerance(
        min_cosine=table.number("min_cosine", low=0.0, high=1.0),
        max_rel_error=table.number("max_rel_error", low=0.0, high=1.0),
        truth=table.text("truth", choices=("stored", "original")),
        deterministic=table.flag("deterministic"),
        batch_invariant=table.flag("batch_invariant"),
    )
    table.close()
    return tolerance


def _arms(tables: tuple[Table, ...], timing: TimingRules) -> tuple[Arm, ...]:
    arms = [_arm(table, timing) for table in tables]
    by_name = {arm.name: arm for arm in arms}
    return tuple(_as_controlled(arm, by_name.get(arm.of or "")) for arm in arms)


def _as_controlled(arm: Arm, of: Arm | None) -> Arm:
    """A control with the kernel, parameters, points and tolerance of its arm."""
    if not arm.role.is_control or of is None:
        return arm
    return Arm(
        name=arm.name,
        role=arm.role,
        kernel=of.kernel,
        params=of.params,
        by_point=of.by_point,
        points=of.points if arm.points is None else arm.points,
        calls_per_sample=of.calls_per_sample,
        of=arm.of,
        part_of=None,
        counted_bytes=None,
        ceiling=None,
        ceiling_bytes=None,
        tolerance=of.tolerance,
    )


def _arm(table: Table, timing: TimingRules) -> Arm:
    name = table.text("name", pattern=ARM_NAME, expected="at most 64 lower-case letters, digits and underscores")
    role_text = table.text("role", choices=tuple(role.value for role in Role))
    role = Role(role_text) if role_text in set(Role) else Role.COMPARATOR
    points = table.optional_texts("points")
    kernel, params, by_point, calls = "", {}, {}, timing.calls_per_sample
    tolerance = CEILING_TOLERANCE
    if not role.is_control:
        kernel = table.text("kernel", pattern=ARM_NAME, expected="a kernel id")
        params = dict(table.scalars("params"))
        overrides = table.table("by_point", optional=True)
        by_point = {key: overrides.scalars(key) for key in overrides.keys()}  # noqa: SIM118
        calls = table.optional_integer("calls_per_sample", low=1, high=100_000) or timing.calls_per_sample
        if role is not Role.CEILING or table.has("correctness"):
            tolerance = _tolerance(table.table("correctness"))
    arm = Arm(
        name=name,
        role=role,
        kernel=kernel,
        params=params,
        by_point=by_point,
        points=points,
        calls_per_sample=calls,
        of=table.text("of") if role.is_control else None,
        part_of=table.text("part_of") if role is Role.COMPONENT else None,
        counted_bytes=table.text("counted_bytes", choices=("w13", "w2", "none")) if role is Role.COMPONENT else None,
        ceiling=table.text("ceiling", choices=("copy", "read")) if role is Role.CEILING else None,
        ceiling_bytes=table.integer("bytes", low=1024) if role is Role.CEILING else None,
        tolerance=tolerance,
    )
    if role_text in set(Role):
        table.close()
    return arm


def _comparison(table: Table) -> Comparison:
    comparison = Comparison(
        candidate=table.text("candidate"),
        baseline=table.text("baseline"),
        claim=table.text("claim", choices=("non_inferior", "superior", "equivalent", "descriptive")),
    )
    table.close()
    return comparison


def _schedule(table: Table) -> Schedule:
    table.text("order", choices=("digest",))
    schedule = Schedule(
        process_pairs=table.integer("process_pairs", low=1, high=10_000),
        blocks=table.integer("blocks", low=1, high=100_000),
        watchdog_s=table.integer("watchdog_s", low=1, high=86_400),
    )
    table.close()
    return schedule


def _warmup(table: Table) -> Warmup:
    warmup = Warmup(
        samples=table.integer("samples", low=0, high=100_000), ramp_ms=table.integer("ramp_ms", low=0, high=60_000)
    )
    table.close()
    return warmup


def _timing(table: Table) -> TimingRules:
    table.text("boundary", choices=("calls",))
    rules = TimingRules(
        clock=table.text("clock", choices=("host", "cuda-event")),
        launch=table.text("launch", choices=("eager", "graph")),
        calls_per_sample=table.integer("calls_per_sample", low=1, high=100_000),
        samples_per_block=table.integer("samples_per_block", low=1, high=100_000),
        cache=table.text("cache", choices=("cold-rotate", "cold-flush", "warm")),
        min_l2_multiple=table.optional_integer("min_l2_multiple", low=1, high=1000),
        peak_gb_per_s=table.optional_integer("peak_gb_per_s", low=1),
    )
    table.close()
    return rules


def parse_asset(table: Table) -> Asset:
    """One ``[[asset]]``."""
    name = table.text("name", pattern=r"[A-Za-z0-9][A-Za-z0-9_.-]*", expected="letters, digits, '_', '.', '-'")
    path = table.text("path")
    pure = PurePosixPath(path)
    if path and (pure.is_absolute() or ".." in pure.parts or "\\" in path):
        table.say("path", f"expected a path below the protocol's folder, found {shown(path)}")
    asset = Asset(name=name, path=path, sha256=table.text("sha256", pattern=SHA256, expected="a SHA-256 in hex"))
    table.close()
    return asset
