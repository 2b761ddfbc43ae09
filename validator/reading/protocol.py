"""The protocol as the validator needs it: protocol.toml parsed strictly, by its own code.

Rules (protocols/README.md):
1. TOML 1.0, UTF-8 without a byte-order mark; unknown keys, NaN, dates, booleans for integers are problems.
2. All problems are collected, each with its path.
3. The digest is that of the RFC 8785 JSON of the parsed document; it exists also where the document is no protocol.
4. Axes are taken in the order of their names, so that the order of keys in the file decides nothing.
"""

import math
import re
from dataclasses import dataclass
from itertools import product

from validator.findings import CouldNotCheckError
from validator.reading.canonical import digest_of, parse_toml
from validator.reading.fields import Fields
from validator.reading.limits import ARMS, EXPONENT, PLANNED, POINTS, ROUTED, ROWS
from validator.reading.model import (
    CEILING_TOLERANCE,
    CONTROLS,
    ROLES,
    Arm,
    Asset,
    Fixture,
    Pairing,
    Point,
    Protocol,
    Require,
    Tolerance,
)
from validator.reading.statistics import check_statistics, read_statistics
from validator.reading.study import MECHANISM, Study, read_study

SCHEMA = "benchkit.protocol/1"
_NAME = r"[a-z][a-z0-9_]*"
_POINT_VALUE = re.compile(r"[A-Za-z0-9_.-]+\Z")
_LAW = re.compile(r"uniform|recorded|zipf-([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRead:
    """What reading protocol.toml gave: a protocol or a study, or problems; a digest wherever the TOML parses."""

    protocol: Protocol | None
    digest: str | None
    problems: tuple[str, ...]
    kind: str | None = None
    study: Study | None = None


def read_protocol(data: bytes) -> ProtocolRead:
    """Parse protocol.toml of either kind; raises CouldNotCheckError for another version of the schema."""
    if data.startswith(b"\xef\xbb\xbf"):
        return ProtocolRead(protocol=None, digest=None, problems=("a byte-order mark: save the file without it",))
    try:
        document = parse_toml(data)
        digest = digest_of(document)
    except (ValueError, TypeError, RecursionError) as error:
        return ProtocolRead(protocol=None, digest=None, problems=(str(error)[:300],))
    schema = document.get("schema")
    if isinstance(schema, str) and schema != SCHEMA and schema.startswith("benchkit.protocol/"):
        raise CouldNotCheckError(f"protocol.toml: expected schema {SCHEMA}, got {schema[:60]}; use a newer validator")
    problems: list[str] = []
    head = document.get("protocol")
    if isinstance(head, dict) and head.get("kind") == MECHANISM:
        top = Fields(document, "", problems)
        requires, assets = _require(_build(top)), tuple(_asset(item) for item in top.tables("asset"))
        study = read_study(top, digest, requires, assets)
        found = None if problems else study
        return ProtocolRead(protocol=None, digest=digest, problems=tuple(problems), kind=MECHANISM, study=found)
    protocol = _document(Fields(document, "", problems), digest)
    return ProtocolRead(
        protocol=None if problems else protocol, digest=digest, problems=tuple(problems), kind="comparison"
    )


def _document(top: Fields, digest: str) -> Protocol:
    top.choice("schema", (SCHEMA,))
    head = top.table("protocol")
    identity = head.text("id", pattern=r"[a-z0-9][a-z0-9-]*")
    head.choice("kind", ("comparison",))
    for key in ("title", "question", "margin_rationale"):
        head.text(key)
    head.finish()
    fixture = _fixture(top.table("fixture"))
    points = _points(top.table("operating_points"))
    timing = top.table("timing")
    calls = timing.integer("calls_per_sample", least=1)
    arms = tuple(_arm(item, calls) for item in top.tables("arm"))
    comparisons = tuple(_pairing(item) for item in top.tables("comparison"))
    clock = timing.choice("clock", ("host", "cuda-event"))
    cache = timing.choice("cache", ("cold-rotate", "cold-flush", "warm"))
    timing.choice("boundary", ("calls",))
    cold = cache != "warm"
    peak = _optional_positive(timing, "peak_gb_per_s", required=cold and clock == "cuda-event")
    if clock == "host" and peak is not None:
        top.problems.append("timing.peak_gb_per_s: forbidden for clock host")
    schedule = top.table("schedule")
    pairs, blocks = schedule.integer("process_pairs", least=1), schedule.integer("blocks", least=1)
    schedule.choice("order", ("digest",))
    _positive(schedule, "watchdog_s")
    schedule.finish()
    warmup = top.table("warmup")
    warmup_samples = warmup.integer("samples")
    warmup.number("ramp_ms")
    warmup.finish()
    statistics = read_statistics(top.table("statistics"))
    result = Protocol(
        id=identity,
        digest=digest,
        require=_require(_build(top)),
        fixture=fixture,
        points=points,
        arms=arms,
        comparisons=comparisons,
        process_pairs=pairs,
        blocks=blocks,
        warmup_samples=warmup_samples,
        clock=clock,
        launch=timing.choice("launch", ("eager", "graph")),
        calls_per_sample=calls,
        samples_per_block=timing.integer("samples_per_block", least=1),
        cache=cache,
        min_l2_multiple=_optional_positive(timing, "min_l2_multiple", required=cold),
        peak_gb_per_s=peak,
        repeats=_correctness(top.table("correctness")),
        statistics=statistics,
        assets=tuple(_asset(item) for item in top.tables("asset", optional=True)),
    )
    timing.finish()
    top.finish()
    _cross_checks(result, top.problems)
    return result


def _build(top: Fields) -> Fields:
    """Give [build.require]; every key of it is optional, and so is the table."""
    if not top.has("build"):
        return Fields({}, "build.require", top.problems)
    build = top.table("build")
    require = build.table("require") if build.has("require") else Fields({}, "build.require", top.problems)
    build.finish()
    return require


def _positive(fields: Fields, key: str) -> float:
    value = fields.number(key)
    if fields.has(key) and value <= 0:
        fields.wrong(key, "a number above 0", value)
    return value


def _optional_positive(fields: Fields, key: str, *, required: bool) -> float | None:
    if not fields.has(key) and not required:
        fields.raw(key, optional=True)
        return None
    return _positive(fields, key)


def _fixture(fields: Fields) -> Fixture:
    kind = fields.choice("kind", ("moe", "arrays"))
    copies = fields.integer("copies", least=1)
    if kind == "arrays":
        fields.choice("dtype", ("fp32",))
        fields.integer("seed")
        result = Fixture(kind=kind, copies=copies, counted=fields.choice("counted", ("read", "read+write")))
        fields.finish()
        return result
    fields.integer("weight_seed")
    routing = fields.text("routing")
    if fields.has("routing") and not _is_law(routing):
        fields.wrong("routing", f"uniform, recorded or zipf-<a> with an a of at most {EXPONENT}", routing)
    result = Fixture(
        kind=kind,
        copies=copies,
        experts=fields.integer("experts", least=1),
        hidden=fields.integer("hidden", least=1),
        intermediate=fields.integer("intermediate", least=1),
        top_k=fields.integer("top_k", least=1),
        weight_format=fields.choice("weight_format", ("fp32", "bf16", "mxfp8", "awq-int4-g128")),
        routing=routing,
        routing_seed=fields.integer("routing_seed"),
        routing_asset=fields.text("routing_asset") if routing == "recorded" else fields.optional_text("routing_asset"),
    )
    if result.top_k > result.experts:
        fields.wrong("top_k", f"at most experts = {result.experts}", result.top_k)
    fields.finish()
    return result


def _is_law(text: str) -> bool:
    match = _LAW.fullmatch(text)
    return match is not None and float(match[1] or 0) <= EXPONENT


def _points(fields: Fields) -> tuple[Point, ...]:
    axes: list[tuple[str, list[int | str]]] = []
    for name in sorted(fields.names()):
        values = fields.raw(name)
        if re.fullmatch(r"[A-Za-z0-9_.-]+", name) is None:
            fields.wrong(name, "an axis name of letters, digits, _ . -", name)
        if not isinstance(values, list) or not values:
            fields.wrong(name, "a list of values", values)
            continue
        for value in values:
            integer = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
            if not integer and not (isinstance(value, str) and _POINT_VALUE.match(value)):
                fields.wrong(name, "integers or strings of letters, digits, _ . -", value)
        if len({str(value) for value in values}) != len(values):
            fields.wrong(name, "distinct values", values)
        axes.append((name, values))
    if not axes:
        fields.problems.append("operating_points: expected at least one axis")
        return ()
    if math.prod(len(values) for _, values in axes) > POINTS:
        fields.problems.append(f"operating_points: more than {POINTS} points")
        return ()
    names = [name for name, _ in axes]
    result = []
    for combination in product(*(values for _, values in axes)):
        pairs = tuple(zip(names, combination, strict=True))
        result.append(Point(id=",".join(f"{name}={value}" for name, value in pairs), values=pairs))
    return tuple(result)


def _arm(fields: Fields, default_calls: int) -> Arm:
    role = fields.choice("role", ROLES)
    own_calls = fields.optional_integer("calls_per_sample", least=1)
    stage = None
    control, component, ceiling = role in CONTROLS, role == "component", role == "ceiling"
    points = fields.texts("points") if fields.has("points") else None
    if not control:
        fields.text("kernel")
        stage = _params(fields)
    tolerance = None if control else CEILING_TOLERANCE
    if not control and (fields.has("correctness") or not ceiling):
        tolerance = _tolerance(fields.table("correctness"))
    result = Arm(
        name=fields.text("name", pattern=_NAME),
        role=role,
        calls=default_calls if own_calls is None else own_calls,
        points=points,
        of=fields.text("of", pattern=_NAME) if control else None,
        counted_bytes=fields.choice("counted_bytes", ("w13", "w2", "none")) if component else None,
        ceiling=fields.choice("ceiling", ("copy", "read")) if ceiling else None,
        bytes=fields.integer("bytes", least=1) if ceiling else None,
        tolerance=tolerance,
        part_of=fields.text("part_of", pattern=_NAME) if component else None,
        stage=stage if component else None,
    )
    fields.finish()
    return result


def _params(fields: Fields) -> str | None:
    """Check the parameters; give the one that names a stage, where there is one."""
    stage = None
    for key in ("params", "by_point"):
        if not fields.has(key):
            continue
        outer = fields.table(key)
        tables = [outer] if key == "params" else [outer.table(point) for point in outer.names()]
        for table in tables:
            for name in table.names():
                value = table.raw(name)
                if not isinstance(value, str | int):
                    table.wrong(name, "a string, an integer or a boolean", value)
                elif (key, name) == ("params", "stage"):
                    stage = str(value)
    return stage


def _tolerance(fields: Fields) -> Tolerance:
    result = Tolerance(
        min_cosine=fields.number("min_cosine"),
        max_rel_error=fields.number("max_rel_error"),
        truth=fields.choice("truth", ("stored", "original")),
        deterministic=fields.truth("deterministic") if fields.has("deterministic") else False,
        batch_invariant=fields.truth("batch_invariant") if fields.has("batch_invariant") else False,
    )
    fields.finish()
    return result


def _pairing(fields: Fields) -> Pairing:
    result = Pairing(
        candidate=fields.text("candidate", pattern=_NAME),
        baseline=fields.text("baseline", pattern=_NAME),
        claim=fields.choice("claim", ("non_inferior", "superior", "equivalent", "descriptive")),
    )
    fields.finish()
    return result


def _require(fields: Fields) -> Require:
    ranges = []
    for name in ("python", "torch", "triton", "driver", "cuda"):
        value = fields.optional_text(name)
        if value is not None:
            ranges.append((name, value))
    digests: dict[str, tuple[tuple[str, str], ...]] = {"sources": (), "binaries": ()}
    for key in digests:
        if fields.has(key):
            table = fields.table(key)
            digests[key] = tuple((name, table.digest(name)) for name in table.names())
    result = Require(
        ranges=tuple(ranges),
        gpu=fields.optional_text("gpu"),
        compute_capability=fields.optional_text("compute_capability"),
        sources=digests["sources"],
        binaries=digests["binaries"],
    )
    fields.finish()
    return result


def _correctness(fields: Fields) -> int | None:
    fields.choice("reference", ("fp64",))
    for truth in fields.texts("truths"):
        if truth not in ("stored", "original"):
            fields.wrong("truths", "stored or original", truth)
    repeats = fields.optional_integer("repeats", least=1)
    fields.finish()
    return repeats


def _asset(fields: Fields) -> Asset:
    fields.text("path")
    result = Asset(name=fields.text("name", pattern=r"[A-Za-z0-9][A-Za-z0-9_.-]*"), sha256=fields.digest("sha256"))
    fields.finish()
    return result


def _cross_checks(protocol: Protocol, problems: list[str]) -> None:
    """Check what holds between sections, so that later code may rely on it."""
    if max(len(protocol.arms), len(protocol.comparisons)) > ARMS:
        problems.append(f"arm: more than {ARMS} arms or comparisons")
        return
    names = [arm.name for arm in protocol.arms]
    points = {point.id for point in protocol.points}
    if len(set(names)) != len(names):
        problems.append("arm: two arms have the same name")
    baselines = [arm for arm in protocol.arms if arm.role == "baseline"]
    if len(baselines) != 1:
        problems.append(f"arm: expected exactly one baseline, got {len(baselines)}")
    if not protocol.comparisons:
        problems.append("comparison: expected at least one")
    for i, arm in enumerate(protocol.arms):
        if arm.of is not None and arm.of not in [baseline.name for baseline in baselines]:
            problems.append(f"arm[{i}].of: expected the baseline, got {arm.of!r}")
        problems.extend(f"arm[{i}].points: no point {name!r}" for name in arm.points or () if name not in points)
        alike = arm.role in ("candidate", *CONTROLS)
        if alike and baselines and arm.calls != baselines[0].calls:
            problems.append(
                f"arm[{i}].calls_per_sample: expected {baselines[0].calls} as the baseline, got {arm.calls}"
            )
    for i, pairing in enumerate(protocol.comparisons):
        problems.extend(
            f"comparison[{i}]: no arm {name!r}" for name in (pairing.candidate, pairing.baseline) if name not in names
        )
    check_statistics(protocol, problems)
    if not problems:
        _check_points(protocol, problems)
    if not problems:
        _refuse_giants(protocol)


def _refuse_giants(protocol: Protocol) -> None:
    """Refuse a plan that no run can have carried out, before it is derived."""
    arms = protocol.process_pairs * len(protocol.points) * len(protocol.arms)
    tokens = sum(map(protocol.tokens, protocol.points))
    sizes = (
        ("places in the order", arms * (protocol.blocks + 1), PLANNED),
        ("rows", arms * (protocol.warmup_samples + protocol.blocks * protocol.samples_per_block), ROWS),
        ("repeats", arms * (protocol.repeats or 0), PLANNED),
        ("digests of the routing", tokens * protocol.fixture.experts, ROUTED),
    )
    for what, found, most in sizes:
        if found > most:
            raise CouldNotCheckError(
                f"protocol.toml: expected at most {most} {what}, got {found}: more than is checked"
            )


def _check_points(protocol: Protocol, problems: list[str]) -> None:
    fixture = protocol.fixture
    axis = "batch" if fixture.kind == "moe" else "mib"
    for point in protocol.points:
        size = point.value(axis)
        if not isinstance(size, int) or size < 1:
            problems.append(f"operating_points: {fixture.kind} needs a positive integer axis {axis} ({point.id})")
        law = point.value("routing")
        if fixture.kind == "moe" and law is not None and not _is_law(str(law)):
            problems.append(f"operating_points.routing: no law {law!r:.80}")
    for point in protocol.points:
        if protocol.claims_at(point.id) and protocol.statistics.in_family(point.id):
            roles = [arm.role for arm in protocol.arms_at(point.id)]
            problems.extend(f"arm: no {role} at {point.id}" for role in CONTROLS if role not in roles)
