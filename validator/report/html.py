"""The report as one self-contained HTML page: no script, no network, no date.

Rules:
1. Jinja2 escapes every string, and a content security policy forbids the page to load or run anything.
2. The validity and its reasons come first; in a bundle that is not VALID every number is marked as not to be relied on.
3. The same bundle gives the same bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from validator.findings import ArmSummary, Comparison, Finding, Gate, Report, Validity
from validator.report.extras import extra_tables
from validator.report.facts import (
    MEANINGS,
    TITLES,
    UNTRUSTED,
    clean,
    command,
    confidence,
    level,
    limits,
    member_verdict,
    tone,
    trusted,
)
from validator.report.material import Material, gather
from validator.report.picture import MOST_POINTS, Gallery, Picture
from validator.report.table import Extra, against, number, relation
from validator.report.text import LIMIT_OF_A_LOG
from validator.report.trajectories import study_headline

_VALIDITY_TONE = {Validity.VALID: "good", Validity.INVALID: "bad", Validity.COULD_NOT_CHECK: "open"}
_VALIDITY_WORDS = {
    Validity.VALID: "nothing was changed since it was sealed, and its numbers follow from its samples",
    Validity.INVALID: "its numbers are not to be relied on: the reasons are below",
    Validity.COULD_NOT_CHECK: "it could not be read as a bundle that this version knows",
}

_MOST_FINDINGS = 6  # of one reason, before the rest is folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The verdict line of one comparison at one point."""

    point: str
    tone: str
    verdict: str
    meaning: str
    ratio: str
    interval: str
    bound: str
    pairs: int
    remarks: tuple[str, ...]
    gates: tuple[Gate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The verdict lines of one comparison."""

    candidate: str
    baseline: str
    claim: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All findings of one reason."""

    code: str
    meaning: str
    remedy: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the template shows of one bundle."""

    prefix: str
    report: Report
    material: Material
    trusted: bool
    tone: str
    believed: str
    family_tone: str
    family: str
    family_words: str
    confidence: str
    level: str | None
    command: str
    reasons: tuple[Findings, ...]
    groups: tuple[Group, ...]
    ratios: tuple[Picture, ...]
    distributions: tuple[Picture, ...]
    timelines: tuple[Picture, ...]
    bandwidths: tuple[Picture, ...]
    controls: tuple[Picture, ...]
    arms: tuple[tuple[str, ...], ...]
    extras: tuple[Extra, ...]
    limits: tuple[str, ...]
    more_points: int


def render_html(reports: Sequence[Report], sources: Sequence[Path], beside: Sequence[Extra] = ()) -> str:
    """Render all bundles as one page; ``sources`` are the folders that the reports are about, ``beside`` tables of several runs."""
    pages = [
        page(report, gather(source), f"b{place}-")
        for place, (report, source) in enumerate(zip(reports, sources, strict=True), start=1)
    ]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalize
    )
    folder = files("validator.report")
    template = environment.from_string((folder / "page.html.j2").read_text("utf-8"))
    style = Markup((folder / "page.css").read_text("utf-8"))
    text = template.render(
        pages=pages,
        beside=beside,
        style=style,
        svg=Markup,
        untrusted=UNTRUSTED,
        limit_of_a_log=LIMIT_OF_A_LOG,
        most_findings=_MOST_FINDINGS,
    )
    return text.strip()


def _finalize(value: object) -> object:
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def page(report: Report, material: Material, prefix: str) -> Page:
    """Collect what the page shows of one bundle."""
    gallery = Gallery(report=report, material=material, prefix=prefix)
    numbers = report.numbers
    family = numbers.family if numbers is not None else None
    return Page(
        prefix=prefix,
        report=report,
        material=material,
        trusted=trusted(report),
        tone=_VALIDITY_TONE[report.validity],
        believed=_VALIDITY_WORDS[report.validity],
        family_tone=tone(family.verdict) if family is not None else "open",
        family=TITLES[family.verdict] if family is not None else "a mechanism study" if report.study else "no verdict",
        family_words=_family_words(report),
        confidence=confidence(report),
        level=level(report),
        command=command(report),
        reasons=tuple(_reasons(report)),
        groups=tuple(_groups(report)),
        ratios=tuple(gallery.ratios()),
        distributions=tuple(gallery.distributions()),
        timelines=tuple(gallery.timelines()),
        bandwidths=tuple(gallery.bandwidths()),
        controls=tuple(gallery.controls()),
        arms=tuple(_arm(item) for item in (numbers.arms if numbers is not None else ())),
        extras=tuple(extra_tables(report)),
        limits=limits(report),
        more_points=max(0, len(material.points) - MOST_POINTS),
    )


def _reasons(report: Report) -> Iterator[Findings]:
    for reason in dict.fromkeys(report.codes):
        found = tuple(finding for finding in report.reasons if finding.reason is reason)
        yield Findings(code=reason.value, meaning=reason.meaning, remedy=reason.remedy, findings=found)


def _family_words(report: Report) -> str:
    if report.numbers is None:
        return study_headline(report)
    family = report.numbers.family
    count = f"{family.comparisons} comparison" + ("s" if family.comparisons != 1 else "")
    return f"family {family.claim}, {count}"


def _groups(report: Report) -> list[Group]:
    items = report.numbers.comparisons if report.numbers is not None else ()
    return [
        Group(candidate=candidate, baseline=baseline, claim=claim, lines=tuple(_line(report, item) for item in group))
        for (candidate, baseline, claim), group in groupby(
            items, key=lambda item: (item.candidate, item.baseline, item.claim)
        )
    ]


def _line(report: Report, item: Comparison) -> Line:
    limit = 1 + item.margin
    verdict = member_verdict(report, item)
    remarks = []
    if verdict is not item.verdict:
        remarks.append(f"on its own: {TITLES[item.verdict]}; adjusted for the family: {TITLES[verdict]}")
    if item.guarded:
        remarks.append("guarded: half a step of the timer counts against the candidate")
    if item.numerical_tie:
        remarks.append("the upper bound equals the limit within 1e-9: a tie, inconclusive")
    upper = "no end" if item.unbounded else against(item.upper, limit)
    return Line(
        point=item.operating_point,
        tone=tone(verdict),
        verdict=TITLES[verdict],
        meaning=MEANINGS[verdict],
        ratio=number(item.ratio),
        interval="no interval" if item.lower is None else f"{against(item.lower, 1.0)} to {upper}",
        bound="-" if item.upper is None else relation(item.upper, limit),
        pairs=item.pairs,
        remarks=tuple(remarks),
        gates=item.gates,
    )


def _arm(item: ArmSummary) -> tuple[str, ...]:
    issued = item.issued_bytes / item.median_ns if item.issued_bytes is not None and item.median_ns else None
    return (
        item.operating_point,
        item.arm,
        item.role.replace("_", " "),
        number(None if item.median_ns is None else item.median_ns / 1000),
        str(item.samples),
        "-" if item.unique_bytes is None else f"{item.unique_bytes:,}",
        "-" if item.issued_bytes is None else f"{item.issued_bytes:,}",
        number(item.gb_per_s),
        number(issued),
        number(item.percent_of_copy, 4),
        number(item.percent_of_read, 4),
        number(item.min_cosine, 8),
        number(item.max_abs_error, 4),
        "-" if item.kernels is None else str(item.kernels),
        "-" if item.distinct_outputs is None else str(item.distinct_outputs),
    )
