"""Another run of the same protocol against the published one, and several runs side by side (results/README.md, "Reproduction").

Rules:
1. Runs are compared, never pooled: each is VALID by itself, with its own machine named.
2. The band is the one that the protocol locked before the data; without it nothing is judged.
3. Too fast is as far from the published result as too slow.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy.special import stdtrit

from validator.findings import Comparison, CouldNotCheckError, Json, Report, Validity, plain
from validator.report.table import Extra, number

SCHEMA = "validator.reproduction/1"


class Outcome(StrEnum):
    """What a repeat says about a published result."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A checked run: its report, its machine, and the band of its protocol."""

    report: Report
    machine: str
    band: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointOutcome:
    """One comparison at one point in both runs; ``change`` is repeat / published, with its interval."""

    operating_point: str
    candidate: str
    baseline: str
    claim: str
    published: float | None
    repeat: float | None
    change: float | None
    lower: float | None
    upper: float | None
    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A repeat against the published run."""

    published: str
    repeat: str
    published_machine: str
    repeat_machine: str
    protocol_digest: str
    band: float
    outcome: Outcome
    points: tuple[PointOutcome, ...]

    def as_json(self) -> dict[str, Json]:
        """Give the JSON document."""
        value = plain(self)
        assert isinstance(value, dict)
        return {"schema": SCHEMA, **value}


def reproduce(published: Run, repeat: Run) -> Reproduction:
    """Compare two valid runs of one protocol; raises CouldNotCheckError where they cannot be compared."""
    first, second = published.report, repeat.report
    for report in (first, second):
        if report.study is not None:
            why = "expected a comparison, got a mechanism study, whose relations stand in its report"
            raise CouldNotCheckError(f"{report.bundle.path}: {why}")
        if report.validity is not Validity.VALID or report.numbers is None:
            raise CouldNotCheckError(f"{report.bundle.path}: expected a VALID bundle, got {report.validity.value}")
    digest = first.bundle.protocol_digest
    if digest is None or digest != second.bundle.protocol_digest:
        raise CouldNotCheckError(
            f"{second.bundle.path}: expected a run of protocol {digest}, got {second.bundle.protocol_digest}"
        )
    if first.bundle.run_id == second.bundle.run_id:
        raise CouldNotCheckError(
            f"{second.bundle.path}: expected another run, got {second.bundle.run_id} itself; run the protocol again"
        )
    if published.band is None:
        raise CouldNotCheckError(
            f"protocol {first.bundle.protocol_id}: expected a locked [statistics] reproduction_band to judge by, got none; "
            "`validator report` shows both runs side by side"
        )
    assert first.numbers is not None
    assert second.numbers is not None
    pairs = zip(first.numbers.comparisons, second.numbers.comparisons, strict=True)
    points = tuple(_point(mine, theirs, published.band) for mine, theirs in pairs)
    return Reproduction(
        published=first.bundle.path,
        repeat=second.bundle.path,
        published_machine=published.machine,
        repeat_machine=repeat.machine,
        protocol_digest=digest,
        band=published.band,
        outcome=_overall([point.outcome for point in points if point.claim != "descriptive"]),
        points=points,
    )


def _overall(outcomes: Sequence[Outcome]) -> Outcome:
    if Outcome.NOT_REPRODUCED in outcomes:
        return Outcome.NOT_REPRODUCED
    return Outcome.REPRODUCED if outcomes and set(outcomes) == {Outcome.REPRODUCED} else Outcome.INCONCLUSIVE


def _point(mine: Comparison, theirs: Comparison, band: float) -> PointOutcome:
    change, reach, why = _change(mine, theirs)
    outcome = Outcome.INCONCLUSIVE
    if change is not None and reach is not None and not why:
        limit = math.log1p(band)
        if abs(change) + reach < limit - 1e-9:
            outcome = Outcome.REPRODUCED
        elif abs(change) - reach > limit + 1e-9:
            outcome, why = Outcome.NOT_REPRODUCED, "faster than the band" if change < 0 else "slower than the band"
        else:
            why = "the interval holds an end of the band"
    bounded = change is not None and reach is not None
    return PointOutcome(
        operating_point=mine.operating_point,
        candidate=mine.candidate,
        baseline=mine.baseline,
        claim=mine.claim,
        published=mine.ratio,
        repeat=theirs.ratio,
        change=None if change is None else math.exp(change),
        lower=math.exp(change - reach) if bounded else None,  # type: ignore[operator]
        upper=math.exp(change + reach) if bounded else None,  # type: ignore[operator]
        outcome=outcome,
        why=why,
    )


def _change(mine: Comparison, theirs: Comparison) -> tuple[float | None, float | None, str]:
    """Give the log change of the ratio, how far its interval reaches, and why nothing can be said."""
    gates = sorted({gate.gate for item in (mine, theirs) for gate in item.gates})
    why = "gates: " + ", ".join(gates) if gates else ""
    if not mine.ratio or not theirs.ratio:
        return None, None, why or "a ratio is missing"
    change = math.log(theirs.ratio) - math.log(mine.ratio)
    errors = [_error(item) for item in (mine, theirs)]
    if None in errors:
        return change, None, why or "an interval is missing"
    squares = [float(error) ** 2 for error in errors if error is not None]
    total = sum(squares)
    if total == 0:
        return change, 0.0, why
    parts = [square**2 / (item.pairs - 1) for square, item in zip(squares, (mine, theirs), strict=True)]
    return change, float(stdtrit(total**2 / sum(parts), 1 - mine.alpha_one_sided)) * math.sqrt(total), why


def _error(item: Comparison) -> float | None:
    """Give the standard error behind an interval; None where there is no bounded one."""
    if item.pairs < 2 or not item.lower or not item.upper:
        return None
    return math.log(item.upper / item.lower) / (2 * float(stdtrit(item.pairs - 1, 1 - item.alpha_one_sided)))


def render_reproduction(result: Reproduction) -> str:
    """Give the text: the word first, then every point."""
    lines = [
        f"{result.outcome.value}: band {100 * result.band:g} % either way",
        f"published {ascii(result.published)[1:-1]} on {ascii(result.published_machine)[1:-1]}",
        f"repeat    {ascii(result.repeat)[1:-1]} on {ascii(result.repeat_machine)[1:-1]}",
    ]
    for point in result.points:
        interval = "no interval" if point.lower is None else f"[{point.lower:.5f}, {point.upper:.5f}]"
        numbers = [
            "none" if value is None else f"{value:.5f}" for value in (point.published, point.repeat, point.change)
        ]
        lines.append(
            f"  {point.operating_point}  {point.candidate} / {point.baseline}: {numbers[0]} -> {numbers[1]}, "
            f"changed by {numbers[2]} {interval}: {point.outcome.value}" + (f" ({point.why})" if point.why else "")
        )
    return "\n".join(lines)


def _groups(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Give the runs of each protocol that has several, under a title."""
    for digest in dict.fromkeys(run.report.bundle.protocol_digest for run in runs):
        group = [run for run in runs if run.report.bundle.protocol_digest == digest and run.report.numbers is not None]
        if digest is not None and len(group) > 1:
            machines = len({run.machine for run in group})
            word = f"{machines} machines" if machines > 1 else "one machine"
            name = group[0].report.bundle.protocol_id
            yield f"{len(group)} runs of protocol {name} on {word}, side by side and never pooled", group


def beside_tables(runs: Sequence[Run]) -> list[Extra]:
    """Give one table per protocol with several runs: a row per comparison and point, a column per run."""
    return [
        Extra(
            title=title,
            head=("operating point", "comparison", *(f"{run.report.bundle.run_id} ({run.machine})" for run in group)),
            rows=tuple(_beside_rows(group)),
            text_columns=2,
        )
        for title, group in _groups(runs)
    ]


def _beside_rows(group: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    listed = [run.report.numbers.comparisons for run in group if run.report.numbers is not None]
    for items in zip(*listed, strict=True):
        first: Comparison = items[0]
        cells = [
            f"{number(item.ratio)} [{number(item.lower)}, {number(item.upper)}] {item.verdict.value}" for item in items
        ]
        marks = ["" if run.report.validity is Validity.VALID else f"{run.report.validity.value}: " for run in group]
        yield (
            first.operating_point,
            f"{first.candidate} / {first.baseline}",
            *(mark + cell for mark, cell in zip(marks, cells, strict=True)),
        )


def side_by_side(runs: Sequence[Run]) -> Iterator[str]:
    """Give lines that set the runs of each protocol beside each other; none for a protocol with a single run."""
    for title, group in _groups(runs):
        yield title
        for run in group:
            yield f"  {run.report.bundle.run_id}  {run.report.validity.value}  {ascii(run.machine)[1:-1]}"
            assert run.report.numbers is not None
            for item in run.report.numbers.comparisons:
                interval = (
                    "no interval" if None in (item.lower, item.upper) else f"[{item.lower:.5f}, {item.upper:.5f}]"
                )
                ratio = "none" if item.ratio is None else f"{item.ratio:.5f}"
                yield (
                    f"    {item.operating_point}  {item.candidate} / {item.baseline}  {ratio} {interval}  {item.verdict.value}"
                )
