"""The report as Markdown for a comment on a pull request: verdicts, gates, reasons, how to check it again.

Rules:
1. Whatever comes out of a bundle stands in a code span: no markup, link, mention or image can come from it.
2. Compact: long lists are cut, and say by how much; ``--format json`` has everything.
3. A bundle that is not VALID gives its reasons first, and its numbers are marked.
"""

import re
from collections.abc import Iterator, Sequence

from validator.findings import Comparison, Report, Validity
from validator.report.facts import (
    TITLES,
    UNTRUSTED,
    change,
    clean,
    command,
    confidence,
    headline,
    level,
    member_verdict,
    reproducibility,
    spread,
    tone,
    trusted,
)
from validator.report.table import Extra, against, number, relation
from validator.report.trajectories import study_tables

_MOST_ROWS, _MOST_GATES, _MOST_REASONS, _LONGEST = 60, 20, 10, 200
_LONGEST_TEXT = 2000
_MARKS = {"good": "\N{WHITE HEAVY CHECK MARK}", "open": "\N{WHITE QUESTION MARK ORNAMENT}", "bad": "\N{CROSS MARK}"}
_VALIDITY = {Validity.VALID: _MARKS["good"], Validity.INVALID: _MARKS["bad"], Validity.COULD_NOT_CHECK: _MARKS["open"]}


def code(text: str, *, cell: bool = False, longest: int = _LONGEST) -> str:
    """Quote a string of a bundle as a code span that nothing in it can end; ``cell`` is for a table's cell."""
    shown = clean(text)
    shown = shown if len(shown) <= longest else shown[:longest] + "..."
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    pad = " " if not shown.strip() or shown[0] in " `" or shown[-1] in " `" else ""
    return f"{fence}{pad}{shown or '-'}{pad}{fence}".replace("|", r"\|" if cell else "|")


def render_markdown(reports: Sequence[Report], beside: Sequence[Extra] = ()) -> str:
    """Render one section per bundle, and one per table of several runs of a protocol."""
    sections = [*(_section(report) for report in reports), *(_beside(each) for each in beside)]
    return "\n\n---\n\n".join("\n".join(section) for section in sections)


def _beside(each: Extra) -> Iterator[str]:
    yield f"### {code(each.title)}"
    yield ""
    yield "| " + " | ".join(code(cell, cell=True) for cell in each.head) + " |"
    yield "|" + "---|" * len(each.head)
    yield from ("| " + " | ".join(code(cell, cell=True) for cell in row) + " |" for row in each.rows[:_MOST_ROWS])
    if len(each.rows) > _MOST_ROWS:
        yield ""
        yield f"and {len(each.rows) - _MOST_ROWS} more comparisons"


def _section(report: Report) -> Iterator[str]:
    bundle = report.bundle
    yield f"### {_VALIDITY[report.validity]} {_headline(report)}"
    yield ""
    where = f" on {code(bundle.gpu)}" if bundle.gpu else ""
    yield f"protocol {code(bundle.protocol_id or '-')}, run {code(bundle.run_id or '-')}{where}"
    yield from _reasons(report)
    if report.numbers is not None:
        yield from _comparisons(report, report.numbers.comparisons)
        yield from _gates(report.numbers.comparisons)
    elif report.study is not None:
        yield from _study(report)
    yield from _recheck(report)


def _study(report: Report) -> Iterator[str]:
    """Show the relations of a mechanism study; text, json and html have the rest."""
    relations = study_tables(report)[0]
    yield ""
    if report.study_facts is not None:
        yield code(report.study_facts.title, longest=_LONGEST_TEXT)
        yield ""
        yield code(report.study_facts.question, longest=_LONGEST_TEXT)
        yield ""
    if not trusted(report):
        yield f"> **The bundle is {report.validity.value}: these verdicts are {UNTRUSTED}.**"
        yield ""
    yield "| " + " | ".join(relations.head) + " |"
    yield "|" + "---|" * len(relations.head)
    for row in relations.rows[:_MOST_ROWS]:
        yield "| " + " | ".join(code(cell, cell=True) if cell else "" for cell in row) + " |"
    if len(relations.rows) > _MOST_ROWS:
        yield ""
        yield f"and {len(relations.rows) - _MOST_ROWS} more relations"


def _headline(report: Report) -> str:
    if report.study is not None:
        return headline(report)
    if report.numbers is None:
        return f"{report.validity.value}: no verdict could be computed"
    family = report.numbers.family
    suffix = "" if trusted(report) else f" ({UNTRUSTED})"
    count = f"{family.comparisons} comparison" + ("s" if family.comparisons != 1 else "")
    mark = f"{_MARKS[tone(family.verdict)]} " if trusted(report) else ""
    return f"{report.validity.value}; {mark}{TITLES[family.verdict]}{suffix} ({family.claim}, {count})"


def _reasons(report: Report) -> Iterator[str]:
    if report.reasons:
        yield ""
        yield f"**Reasons ({len(report.reasons)})**"
        yield ""
        for finding in report.reasons[:_MOST_REASONS]:
            yield (
                f"- **{finding.reason.value}** at {code(finding.where)}: {finding.reason.meaning}; expected "
                f"{code(finding.expected)}, got {code(finding.got)}. *Remedy:* {finding.reason.remedy}."
            )
        if len(report.reasons) > _MOST_REASONS:
            yield f"- and {len(report.reasons) - _MOST_REASONS} more"
    if report.not_checked:
        yield ""
        yield "**Not checked**"
        yield ""
        yield from (f"- {item.stage.value}: blocked by {code(item.blocked_by)}" for item in report.not_checked)


def _comparisons(report: Report, items: Sequence[Comparison]) -> Iterator[str]:
    if not items:
        return
    yield ""
    if not trusted(report):
        yield f"> **The bundle is {report.validity.value}: these numbers are {UNTRUSTED}.**"
        yield ""
    repeats = [reproducibility(report, item) for item in items[:_MOST_ROWS]]
    more = (" outputs (modes) |", "---|") if any(repeats) else ("", "")
    yield f"| operating point | candidate / baseline | ratio | change | {confidence(report)} interval | upper : limit | pairs | verdict |{more[0]}"
    yield f"|---|---|---:|---:|---:|---:|---:|---|{more[1]}"
    for item, shown in zip(items[:_MOST_ROWS], repeats, strict=True):
        yield "| " + " | ".join((*_row(report, item), *((shown or "-",) if any(repeats) else ()))) + " |"
    if len(items) > _MOST_ROWS:
        yield ""
        yield f"and {len(items) - _MOST_ROWS} more comparisons"
    for sentence in filter(None, (level(report), spread(items))):
        yield ""
        yield sentence[0].upper() + sentence[1:] + "."


def _row(report: Report, item: Comparison) -> tuple[str, ...]:
    limit = 1 + item.margin
    upper = "unbounded" if item.unbounded else against(item.upper, limit)
    verdict = member_verdict(report, item)
    words = (f"{_MARKS[tone(verdict)]} " if trusted(report) else "") + TITLES[verdict]
    words += " (descriptive)" if item.claim == "descriptive" else ""
    words += " (guarded)" if item.guarded else ""
    words += "" if trusted(report) else f" ({UNTRUSTED})"
    return (
        code(item.operating_point, cell=True),
        f"{code(item.candidate, cell=True)} / {code(item.baseline, cell=True)}",
        number(item.ratio),
        change(item.ratio),
        f"{against(item.lower, 1.0)} to {upper}",
        "-" if item.upper is None else relation(item.upper, limit).replace("<", "&lt;").replace(">", "&gt;"),
        str(item.pairs),
        words,
    )


def _gates(items: Sequence[Comparison]) -> Iterator[str]:
    fired = [(item, gate) for item in items for gate in item.gates]
    if not fired:
        return
    yield ""
    yield f"**Gates ({len(fired)})**: each makes its point inconclusive"
    yield ""
    for item, gate in fired[:_MOST_GATES]:
        yield f"- {code(item.operating_point)}: {code(gate.gate)}, {code(gate.detail)}"
    if len(fired) > _MOST_GATES:
        yield f"- and {len(fired) - _MOST_GATES} more"


def _recheck(report: Report) -> Iterator[str]:
    shown = command(report)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    yield ""
    yield "<details><summary>How to re-check it</summary>"
    yield ""
    yield f"{fence}sh"
    yield shown
    yield fence
    yield ""
    yield f"- protocol digest: {code(report.bundle.protocol_digest or '-')}"
    yield f"- SHA-256 of manifest.json: {code(report.bundle.manifest_sha256 or '-')}"
    if not report.context.protocol_given and report.validity is not Validity.COULD_NOT_CHECK:
        yield "- the protocol was taken from the bundle; compare it with yours by `--protocol FILE`"
    yield ""
    yield "</details>"
