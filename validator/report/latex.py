"""The comparisons as LaTeX tables for a paper: ``booktabs``, one ``table`` per bundle.

Rules:
1. Every string of a bundle is escaped; what an 8-bit font encoding cannot show is left to the reader's engine.
2. Bounds carry as many digits as it takes to see on which side of their limit they lie.
3. A bundle that is not VALID gives a table whose caption begins with that.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from validator.findings import Comparison, Report
from validator.report.facts import TITLES, UNTRUSTED, clean, confidence, headline, member_verdict, spread, trusted
from validator.report.table import against, number

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "^": r"\textasciicircum{}",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "%": r"\%",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
}
_LETTERS = 26
_HEAD = "% needs \\usepackage{booktabs}, \\usepackage{textcomp} and \\usepackage[T1]{fontenc}"


def escape(text: str) -> str:
    """Escape a string for text mode."""
    return "".join(_ESCAPES.get(char, char) for char in clean(text))


def render_latex(reports: Sequence[Report]) -> str:
    """Render one table per bundle."""
    return "\n\n".join([_HEAD, *("\n".join(_table(report, i)) for i, report in enumerate(reports, start=1))])


def _table(report: Report, place: int) -> Iterator[str]:
    if report.study is not None:
        yield f"% {escape(headline(report))}"
        yield "% a mechanism study has no latency table: take --format text, json, html or markdown"
        return
    items = report.numbers.comparisons if report.numbers is not None else ()
    notes = _notes(report, items)
    yield r"\begin{table}"
    yield r"  \centering"
    yield r"  \setlength{\belowcaptionskip}{6pt}"
    yield rf"  \caption{{{_caption(report)}}}"
    yield rf"  \label{{tab:benchkit-{place}}}"
    yield r"  \begin{tabular}{lrrrl}"
    yield r"    \toprule"
    yield rf"    Operating point & Ratio & {escape(confidence(report) or '-')} interval & Pairs & Verdict \\"
    for (candidate, baseline), group in groupby(items, key=lambda item: (item.candidate, item.baseline)):
        yield r"    \midrule"
        yield rf"    \multicolumn{{5}}{{l}}{{\emph{{{escape(candidate)} / {escape(baseline)}}}}} \\"
        for item in group:
            yield "    " + " & ".join(_row(report, item, notes)) + r" \\"
    if not items:
        yield r"    \midrule"
        yield r"    \multicolumn{5}{l}{no verdict could be computed} \\"
    yield r"    \bottomrule"
    for mark, text in notes.values():
        yield rf"    \multicolumn{{5}}{{l}}{{\footnotesize $^{{{mark}}}$ {text}}} \\"
    hidden = spread(items)
    if hidden is not None:
        yield rf"    \multicolumn{{5}}{{p{{0.9\linewidth}}}}{{\footnotesize {escape(hidden[0].upper() + hidden[1:])}.}} \\"
    yield r"  \end{tabular}"
    yield r"\end{table}"


def _notes(report: Report, items: Sequence[Comparison]) -> dict[tuple[str, ...], tuple[str, str]]:
    """Give the notes below a table with their marks: a letter for each set of gates, a dagger for what is not valid."""
    notes: dict[tuple[str, ...], tuple[str, str]] = {}
    for item in items:
        gates = tuple(gate.gate for gate in item.gates)
        if gates and gates not in notes:
            mark = chr(ord("a") + len(notes)) if len(notes) < _LETTERS else str(len(notes))
            notes[gates] = (mark, f"gate: {escape(', '.join(gates))}")
    if items and not trusted(report):
        notes[()] = (r"\dagger", f"{UNTRUSTED}: the bundle is {escape(report.validity.value)}")
    return notes


def _row(report: Report, item: Comparison, notes: dict[tuple[str, ...], tuple[str, str]]) -> tuple[str, ...]:
    upper = r"\infty" if item.unbounded else against(item.upper, 1 + item.margin)
    interval = "--" if item.lower is None else f"$[{_math(against(item.lower, 1.0))},\\ {_math(upper)}]$"
    gates = tuple(gate.gate for gate in item.gates)
    marks = [notes[key][0] for key in dict.fromkeys((gates, ())) if key in notes]
    mark = f"$^{{{','.join(marks)}}}$" if marks else ""
    return (
        escape(item.operating_point),
        "--" if item.ratio is None else f"${_math(number(item.ratio, 5))}$",
        interval,
        str(item.pairs),
        escape(TITLES[member_verdict(report, item)]) + mark,
    )


def _math(shown: str) -> str:
    """Turn ``1e+20`` into a power of ten."""
    if "e" not in shown:
        return shown
    base, _, power = shown.partition("e")
    return rf"{base} \times 10^{{{int(power)}}}"


def _caption(report: Report) -> str:
    bundle, context = report.bundle, report.context
    parts = []
    if not trusted(report):
        codes = sorted({finding.reason.value for finding in report.reasons})
        why = f": {', '.join(codes)}" if codes else ""
        parts.append(rf"\textbf{{{escape(report.validity.value + why)}; numbers {UNTRUSTED}.}}")
    parts.append(
        f"Latency ratios (candidate / baseline, lower is better) of protocol {escape(bundle.protocol_id or '-')}"
    )
    if bundle.gpu:
        parts[-1] += f" on {escape(bundle.gpu)}"
    parts[-1] += "."
    if context.margin is not None and context.alpha_one_sided is not None:
        parts.append(
            rf"Margin {100 * context.margin:g}\,\%, one-sided $\alpha = {context.alpha_one_sided:g}$, "
            "paired $t$ interval over process pairs."
        )
    if report.numbers is not None:
        family = report.numbers.family
        parts.append(f"Family ({escape(family.claim)}): {escape(TITLES[family.verdict])}.")
    if bundle.protocol_digest:
        parts.append(rf"Protocol SHA-256 \texttt{{{bundle.protocol_digest[:16]}}}, run {escape(bundle.run_id or '-')}.")
    return " ".join(parts)
