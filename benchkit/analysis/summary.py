"""What a run showed, as text: one line per comparison and point, the family's verdict, and what stood in its way."""

from pathlib import Path

from benchkit.analysis.analyst import Analysis, ComparisonRow, analyse
from benchkit.bundle.reader import open_bundle


def summarise(folder: Path) -> str:
    """The summary of a sealed bundle."""
    bundle = open_bundle(folder)
    analysis = analyse(bundle)
    rules = bundle.protocol.statistics
    head = (
        f"{bundle.protocol.id}: latency ratio candidate / baseline, limit {1 + rules.margin:g}, one-sided alpha "
        f"{rules.alpha_one_sided:g} ({100 * (1 - 2 * rules.alpha_one_sided):g} % interval)"
    )
    return "\n".join([head, *_rows(analysis), f"family ({analysis.family.claim}): {analysis.family.verdict.value}"])


def _rows(analysis: Analysis) -> list[str]:
    width = max(len(row.point.id) for row in analysis.comparisons)
    return [line for row in analysis.comparisons for line in _lines(row, width)]


def _lines(row: ComparisonRow, width: int) -> list[str]:
    result = row.result
    ratio = "no ratio" if result.ratio is None else f"ratio {result.ratio:.4f}"
    ends = [None if end is None else f"{end:.4f}" for end in (result.lower, result.upper)]
    interval = "" if None in ends else f" [{ends[0]}, {ends[1]}]"
    names = f"{row.comparison.candidate} / {row.comparison.baseline}"
    line = f"  {row.point.id:{width}}  {names}  {ratio}{interval}  {result.pairs} pairs  {result.verdict.value}"
    return [line, *(f"  {'':{width}}    gate {finding.gate.value}: {finding.detail}" for finding in result.gates)]
