"""analysis.json against the validator's own numbers.

Rules (results/README.md, last paragraph):
1. Two numbers agree iff |a - b| <= 1e-12 x max(1, |a|, |b|); p-values to 1e-10 relative, or both below 1e-300; skewness
   and the level of a locked look to 1e-9.
2. Integers, strings, verdicts, booleans and nulls agree exactly; ``detail`` of a gate is not compared.
3. An analysis that names another manifest is stale, and its numbers are compared all the same.
"""

from collections.abc import Iterator
from itertools import islice

from validator.findings import Finding, Json, Numbers, plain
from validator.outcomes import StudyNumbers
from validator.reading.bundle import Bundle
from validator.reading.canonical import StrictJsonError, parse_object
from validator.reasons import Reason

SCHEMA = "benchkit.analysis/1"
_NUMBERS = ("comparisons", "controls", "arms", "family")
_STUDY = ("cells", "relations")
_HEAD = ("schema", "manifest_sha256", "protocol_digest", "run_id")
_FLOATS = frozenset(
    [
        "ratio",
        "lower",
        "upper",
        "margin",
        "dose",
        "median_ns",
        "gb_per_s",
        "percent_of_copy",
        "percent_of_read",
        "min_cosine",
        "max_abs_error",
        "largest_ratio",
        "tail_quantile",
    ]
)
_COARSE = frozenset(["skewness", "alpha_one_sided"])
_MOST = 100


def agree(own: float, claimed: float, tolerance: float = 1e-12) -> bool:
    """Say whether two numbers are the same number."""
    return abs(own - claimed) <= tolerance * max(1.0, abs(own), abs(claimed))


def agree_p(own: float, claimed: float) -> bool:
    """Say whether two p-values are the same p-value."""
    if own < 1e-300 and claimed < 1e-300:
        return claimed >= 0
    return abs(own - claimed) <= 1e-10 * max(abs(own), abs(claimed))


def check_claims(bundle: Bundle, numbers: Numbers | StudyNumbers) -> tuple[Finding, ...]:
    """Compare analysis.json, which must be there, with the recomputed numbers."""
    assert bundle.analysis is not None
    try:
        claimed = parse_object(bundle.analysis)
    except StrictJsonError as error:
        return (_invalid("analysis.json", "strict JSON", str(error)),)
    names = _NUMBERS if isinstance(numbers, Numbers) else _STUDY
    problems = tuple(islice(_shape(claimed, names), _MOST))
    if problems:
        return problems
    return (*_identity(bundle, claimed), *_claims(claimed, numbers, names))


def _invalid(where: str, expected: str, got: str) -> Finding:
    return Finding(reason=Reason.ANALYSIS_INVALID, where=where, expected=expected, got=got)


def _shape(claimed: dict[str, Json], names: tuple[str, ...]) -> Iterator[Finding]:
    keys = (*_HEAD, *names)
    if claimed.get("schema") != SCHEMA:
        yield _invalid("$.schema", SCHEMA, repr(claimed.get("schema"))[:80])
    for key in sorted(set(keys) ^ set(claimed)):
        yield _invalid(f"$.{key}", *(("a value", "nothing") if key in keys else ("no such key", "a value")))
    for key in names:
        if key in claimed and not isinstance(claimed[key], dict if key == "family" else list):
            yield _invalid(f"$.{key}", "an object" if key == "family" else "a list", type(claimed[key]).__name__)


def _identity(bundle: Bundle, claimed: dict[str, Json]) -> Iterator[Finding]:
    if claimed["manifest_sha256"] != bundle.manifest_sha256:
        yield Finding(
            reason=Reason.ANALYSIS_STALE,
            where="$.manifest_sha256",
            expected=str(bundle.manifest_sha256),
            got=str(claimed["manifest_sha256"])[:80],
        )
    if bundle.manifest is None:
        return
    for key, own in (("protocol_digest", bundle.manifest.protocol_digest), ("run_id", bundle.manifest.run_id)):
        if claimed[key] != own:
            yield Finding(reason=Reason.CLAIM_MISMATCH, where=f"$.{key}", expected=own, got=str(claimed[key])[:80])


def _claims(claimed: dict[str, Json], numbers: Numbers | StudyNumbers, names: tuple[str, ...]) -> Iterator[Finding]:
    found = [
        finding for key in names for finding in _differences(f"$.{key}", plain(getattr(numbers, key)), claimed[key])
    ]
    yield from found[:_MOST]
    if len(found) > _MOST:
        yield _mismatch("$", f"at most {_MOST} differences listed", f"{len(found) - _MOST} more")


def _mismatch(where: str, expected: object, got: object) -> Finding:
    return Finding(reason=Reason.CLAIM_MISMATCH, where=where, expected=str(expected)[:200], got=str(got)[:200])


def _differences(where: str, own: Json, claimed: Json) -> Iterator[Finding]:
    if isinstance(own, dict) and isinstance(claimed, dict):
        for key in own:
            if key not in claimed:
                yield _mismatch(f"{where}.{key}", own[key], "nothing")
            elif key != "detail":
                yield from _differences(f"{where}.{key}", own[key], claimed[key])
        for key in claimed:
            if key not in own:
                yield _mismatch(f"{where}.{key}", "no such key", claimed[key])
    elif isinstance(own, list) and isinstance(claimed, list):
        for i, (mine, theirs) in enumerate(zip(own, claimed, strict=False)):
            yield from _differences(f"{where}[{i}]", mine, theirs)
        if len(own) != len(claimed):
            yield _mismatch(where, f"{len(own)} entries", f"{len(claimed)} entries")
    elif not _same(where.rpartition(".")[2], own, claimed):
        yield _mismatch(where, repr(own), repr(claimed))


def _same(key: str, own: Json, claimed: Json) -> bool:
    real = key in _FLOATS or key in _COARSE or key.startswith("p_")
    numbers = [value for value in (own, claimed) if isinstance(value, int | float) and not isinstance(value, bool)]
    if not real or len(numbers) != 2:
        return type(own) is type(claimed) and own == claimed
    mine, theirs = float(numbers[0]), float(numbers[1])
    if key.startswith("p_"):
        return agree_p(mine, theirs)
    return agree(mine, theirs, 1e-9 if key in _COARSE else 1e-12)
