"""The report for people: validity and verdict first, then what they rest on.

Rules:
1. The first line says both axes: can the bundle be believed, and what do the data show.
2. Decisions are shown with enough digits to see them; one-sided alpha stands beside the level of its interval.
3. It says what it cannot know: the protocol's author, the honesty of the machine, other attempts elsewhere.
4. ASCII alone, so that every encoding can carry it; colour is the caller's choice.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from validator.findings import Comparison, Numbers, Report, Validity
from validator.reasons import Reason
from validator.report.extras import extra_tables
from validator.report.facts import change, headline, level, limits, reproducibility
from validator.report.table import against, ascii_only, number, relation, table

Paint = Callable[[str, Validity], str]

LIMIT_OF_A_LOG = (
    "A log can prove that nothing was changed since it was sealed and that its numbers follow from its samples; "
    "it cannot prove that the machine which wrote it was honest."
)
_AUTHOR = "The protocol was taken from the bundle, so margin and schedule are what its author says (--protocol FILE compares)."
_SAYS = {
    "relations": " (equal to the bit, or the number of elements that differ)",
    "exact trajectories": " (a letter is one tensor of its surface; several letters are several outcomes)",
    "more numbers": " (in no verdict, except those of a claim of equivalence)",
    "sensitivity": " (pre-specified, always shown, in no verdict)",
    "family: pooled": " (secondary, in no verdict)",
    "family: members": " (p adjusted as the protocol says)",
    "family: looks": " (the last one decided)",
    "launches and outputs": " (kernels of one call; scratch of the arm; outputs over all repeats and processes)",
    "accuracy against each truth": " (worst over processes; as recorded)",
    "stages": " (share of the sum of all stages at the point)",
    "bookkeeping": " (sort, pad, gather, scatter, combine: their share of the sum of the stages)",
    "kernels": " (of one call, in order)",
    "one token among others": " (token 0 of the largest batch among the first tokens of it; said of these batches alone)",
    "repacking": " (once a process, outside all samples: one weight copy from the checkpoint's layout into the arm's)",
    "ceilings": " (GB = 10^9 bytes, GiB = 2^30)",
    "uneven samples": " (kept: the largest timed sample of an arm in a process is more than 5 times its median)",
    "drift and dependence": " (within processes, in no verdict: Kendall's tau against time, second half / first, lag-1 autocorrelation, "
    "effective samples)",
    "software power cap": " (throttle bit 0x4, and the SM clocks that were seen; no gate)",
}
_MOST_OF_A_CODE = 5  # findings
_NOTHING_TO_CHECK = "remedy: give the folder or the URL of a sealed bundle; a newer format needs a newer validator"
_WITHHELD = (
    "The numbers of an INVALID bundle are not shown: no median, ratio or rate of it is to be quoted "
    "(--format json and html have them, marked)."
)
_SHOWN_ANYWAY = (Reason.SYNTHETIC, Reason.EXPLORATORY)


def render_text(report: Report, paint: Paint) -> str:
    """Render one report."""
    lines = list(_body(report))
    first = ascii_only(headline(report))
    return "\n".join([paint(first, report.validity), *(ascii_only(line) for line in lines)])


def _body(report: Report) -> Iterator[str]:
    bundle = report.bundle
    yield f"bundle    {bundle.path}"
    yield f"protocol  {bundle.protocol_id or '-'}  {bundle.protocol_digest or '-'}"
    yield f"run       {bundle.run_id or '-'}" + (f"  on {bundle.gpu}" if bundle.gpu else "")
    yield from _reasons(report)
    if report.numbers is not None and not believable(report):
        yield ""
        yield _WITHHELD
    elif report.numbers is not None:
        yield from _level(report)
        yield from _comparisons(report, report.numbers)
        yield from _arms(report.numbers)
        yield from _controls(report.numbers)
        yield from _more(report)
    elif report.study is not None:
        yield from _study(report)
    said = {item.blocked_by for item in report.not_checked}
    yield from _listed("notes", [note for note in report.notes if note not in said])
    yield from _listed("not applicable", [f"{item.check}: {item.why}" for item in report.not_applicable])
    yield ""
    if not report.context.protocol_given and report.validity is not Validity.COULD_NOT_CHECK:
        yield _AUTHOR
    others = report.context.other_attempts
    if others is not None:
        yield f"Other attempts known to this ledger: {others}. A fresh folder knows none."
    yield LIMIT_OF_A_LOG


def _study(report: Report) -> Iterator[str]:
    """Show a mechanism study; its verdicts are withheld where the bundle cannot be believed."""
    yield ""
    if report.study_facts is not None:
        yield report.study_facts.title
        yield report.study_facts.question
        yield ""
    if not believable(report):
        yield _WITHHELD
        return
    for item in extra_tables(report):
        yield item.title + _SAYS.get(item.title, "")
        yield from table(item.head, item.rows, left=item.text_columns)
        yield ""
    yield "Bits are compared, nothing is averaged. What holds for this fixture, build and device says nothing of others."


def believable(report: Report) -> bool:
    """Say whether the numbers follow from what was measured: valid, or stamped as no evidence and nothing else."""
    return not report.not_checked and all(code in _SHOWN_ANYWAY for code in report.codes)


def _more(report: Report) -> Iterator[str]:
    """Show diagnostics and everything that the protocol asked for beyond the default."""
    for item in extra_tables(report):
        yield ""
        yield item.title + _SAYS.get(item.title, "")
        yield from table(item.head, item.rows, left=item.text_columns)
    yield ""
    yield from limits(report)


def _listed(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield ""
        yield f"{title}:"
        yield from (f"  {item}" for item in items)


def _reasons(report: Report) -> Iterator[str]:
    if report.reasons:
        yield ""
        yield f"reasons ({len(report.reasons)}):"
        counts: Counter[str] = Counter()
        for finding in report.reasons:
            code = finding.reason.value
            counts[code] += 1
            if counts[code] <= _MOST_OF_A_CODE:
                yield f"  {code}  {finding.where}"
                yield f"    {finding.reason.meaning}: expected {finding.expected}, got {finding.got}"
                yield f"    remedy: {finding.reason.remedy}"
        for code, count in counts.items():
            if count > _MOST_OF_A_CODE:
                yield f"  ... and {count - _MOST_OF_A_CODE} more {code} (--format json lists all)"
    blocked: dict[str, list[str]] = {}
    for item in report.not_checked:
        blocked.setdefault(item.blocked_by, []).append(item.stage.value)
    yield from _listed("not checked", [f"{', '.join(stages)}: blocked by {why}" for why, stages in blocked.items()])
    if report.validity is Validity.COULD_NOT_CHECK:
        yield f"  {_NOTHING_TO_CHECK}"


def _level(report: Report) -> Iterator[str]:
    sentence = level(report)
    if sentence is not None:
        yield ""
        yield sentence


def _comparisons(report: Report, numbers: Numbers) -> Iterator[str]:
    standard = (
        "operating point",
        "ratio",
        "change",
        "lower",
        "upper",
        "upper : limit",
        "pairs",
        "p (non-inf.)",
        "verdict",
    )
    for (candidate, baseline, claim), group in groupby(
        numbers.comparisons, key=lambda item: (item.candidate, item.baseline, item.claim)
    ):
        items = list(group)
        repeats = [reproducibility(report, item) for item in items]
        moded = any(repeats)
        head = (*standard, "outputs (modes)") if moded else standard
        rows = [
            (*_comparison(item), *((shown or "-",) if moded else ()))
            for item, shown in zip(items, repeats, strict=True)
        ]
        yield ""
        yield f"{candidate} / {baseline}  (claim: {claim})"
        yield from table(head, rows)
        for item in items:
            yield from (f"    {item.operating_point}: gate {gate.gate}: {gate.detail}" for gate in item.gates)
            if item.numerical_tie:
                yield f"    {item.operating_point}: the upper bound equals the limit within 1e-9: a tie, inconclusive"


def _comparison(item: Comparison) -> tuple[str, ...]:
    limit = 1 + item.margin
    return (
        item.operating_point,
        number(item.ratio),
        change(item.ratio),
        against(item.lower, 1.0),
        "unbounded" if item.unbounded else against(item.upper, limit),
        "-" if item.upper is None else relation(item.upper, limit),
        str(item.pairs),
        number(item.p_non_inferior, 4),
        item.verdict.value + (" (guarded)" if item.guarded else ""),
    )


def _arms(numbers: Numbers) -> Iterator[str]:
    yield ""
    yield "arms (GB/s counts unique bytes: each distinct expert once; issued bytes beside them)"
    head = (
        *("operating point", "arm", "median us", "samples", "unique B", "issued B"),
        *("GB/s", "% copy", "% read", "min cosine"),
    )
    rows = [
        (
            item.operating_point,
            item.arm,
            number(None if item.median_ns is None else item.median_ns / 1000),
            str(item.samples),
            "-" if item.unique_bytes is None else str(item.unique_bytes),
            "-" if item.issued_bytes is None else str(item.issued_bytes),
            number(item.gb_per_s),
            number(item.percent_of_copy, 4),
            number(item.percent_of_read, 4),
            number(item.min_cosine, 8),
        )
        for item in numbers.arms
    ]
    yield from table(head, rows, left=2)


def _controls(numbers: Numbers) -> Iterator[str]:
    if not numbers.controls:
        return
    yield ""
    yield "controls (an A/A control must lie inside the margin, a positive control must be seen)"
    head = ("operating point", "arm", "of", "ratio", "lower", "upper", "pairs", "p (Holm)", "dose")
    rows = [
        (
            item.operating_point,
            item.arm,
            item.of,
            number(item.ratio),
            number(item.lower),
            "unbounded" if item.unbounded else number(item.upper),
            str(item.pairs),
            number(item.p_differs_holm, 4),
            number(item.dose, 4),
        )
        for item in numbers.controls
    ]
    yield from table(head, rows, left=3)
