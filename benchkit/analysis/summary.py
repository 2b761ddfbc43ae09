"""What a run showed, as text: comparisons, family, the analyses that the protocol names, diagnostics, and what none of it can show.

Rules:
1. Everything that analysis.json claims and a reader needs for the verdict stands here, with enough digits to see why.
2. What is printed only (Fieller, Welch, drift, ...) never enters a verdict, and says so by standing under its own heading.
"""

from collections.abc import Iterator

import numpy as np

from benchkit.analysis.analyst import Analysis, ComparisonRow
from benchkit.analysis.evidence import Evidence
from benchkit.protocol.model import Point
from benchkit.statistics.bootstrap import bootstrap_key
from benchkit.statistics.dependence import autocorrelation, effective_samples
from benchkit.statistics.drift import half_ratio, time_tau
from benchkit.statistics.interval import exponential
from benchkit.statistics.noninferiority import distinct
from benchkit.statistics.sensitivity import CLAIMED, SensitivityRow, sensitivity

MOST_SERIES = 2000
LIMITS = (
    "Few processes and skewed process effects: where 1 process in 10 is 10 % slower, the t interval errs in 13 to 20 % of",
    "experiments with 5 to 20 pairs (nominal 5 %), and no method rescues it. Look at skewness and the largest process ratio.",
    "Scope: the claim holds for the device that was measured. Other devices, nodes or days are a higher level, not sampled here.",
    "Processes are taken as independent: each starts afresh, with its own allocator, compilation and tuning caches.",
)


def summarise(analysis: Analysis) -> str:
    """The summary of a bundle's analysis."""
    return "\n".join(_lines_of(analysis))


def _lines_of(analysis: Analysis) -> Iterator[str]:
    evidence = analysis.evidence
    rules, alpha = evidence.protocol.statistics, analysis.alpha_one_sided
    what = "latency" if rules.quantile is None else f"{100 * rules.quantile:g}th percentile latency"
    yield (
        f"{evidence.protocol.id}: {what} ratio candidate / baseline, limit {1 + rules.margin:g}, one-sided alpha "
        f"{alpha:.4g} ({100 * (1 - 2 * alpha):.4g} % interval)"
    )
    width = max(len(row.point.id) for row in analysis.claims.comparisons)
    for row in analysis.claims.comparisons:
        yield from _comparison(row, width)
    yield from _not_positive(evidence)
    yield from _family(analysis, width)
    if rules.sensitivity:
        yield "sensitivity (named in the protocol; enters no verdict):"
        for row in analysis.claims.comparisons:
            yield from _sensitivity(row, evidence, alpha)
    yield "diagnostics (enter no verdict):"
    for row in analysis.claims.comparisons:
        yield from _process_tail(row, alpha)
    yield from _series(analysis)
    yield "limits of these numbers:"
    yield from (f"  {line}" for line in LIMITS)


def _not_positive(evidence: Evidence) -> Iterator[str]:
    """Name the arms that have no numbers because a clock gave a duration of 0 or less."""
    for point in evidence.protocol.points:
        for arm in evidence.protocol.arms_at(point.id):
            found = evidence.samples.not_positive(point.id, arm.name)
            if found:
                rows = ", ".join(f"{count} in process {process}" for process, count in found.items())
                yield (
                    f"  {point.id}  {arm.name}: durations of 0 ns or less ({rows}): no number is computed from the arm there, and the "
                    "validator will say INVALID; find the fault of the clock, never drop the rows"
                )


def _comparison(row: ComparisonRow, width: int) -> Iterator[str]:
    result = row.result
    limit = 1.0 + result.margin
    ratio = "no ratio" if result.ratio is None else f"ratio {result.ratio:.4f}"
    interval = ""
    if result.lower is not None and result.upper is not None:
        interval = f" [{_against(result.lower, 1.0, limit)}, {_against(result.upper, 1.0, limit)}]"
    names = f"{row.comparison.candidate} / {row.comparison.baseline}"
    yield f"  {row.point.id:{width}}  {names}  {ratio}{interval}  {result.pairs} pairs  {result.verdict.value}"
    if row.equivalence is not None:
        found = row.equivalence
        p = "no p" if found.p_equivalence is None else f"p {found.p_equivalence:.3g}"
        shown = "shown" if found.equivalent else f"not shown, failing side {found.failing_side.value}"
        yield f"  {'':{width}}    equivalence within [{1 / limit:.5g}, {limit:g}]: {shown} ({p})"
    yield from (f"  {'':{width}}    gate {finding.gate.value}: {finding.detail}" for finding in result.gates)


def _against(bound: float, *references: float) -> str:
    """Four decimals, and more where the bound would else look equal to what it is judged by."""
    text = f"{bound:.4f}"
    for reference in references:
        if text == f"{reference:.4f}" and bound != reference:
            text = max(text, distinct(bound, reference), key=len)
    return text


def _family(analysis: Analysis, width: int) -> Iterator[str]:
    claims = analysis.claims
    for look in analysis.looks:
        yield f"look at {look.processes} pairs, one-sided alpha {look.alpha_one_sided:.4g}: {look.verdict}"
    planned = analysis.evidence.protocol.schedule.process_pairs
    if analysis.looks and analysis.evidence.processes < planned:
        yield f"stopped after {analysis.evidence.processes} of {planned} planned pairs: this look shows the claim"
    yield f"family ({claims.family.claim}): {claims.family.verdict.value}"
    for row, found in claims.members or ():
        superior = "" if found.p_superior_adjusted is None else f", superior p {found.p_superior_adjusted:.3g}"
        names = f"{row.comparison.candidate} / {row.comparison.baseline}"
        yield (
            f"  {row.point.id:{width}}  {names}  adjusted p {found.p_non_inferior_adjusted:.3g}{superior}  "
            f"{found.verdict.value}"
        )
    for pooled in claims.pooled or ():
        interval = pooled.interval
        ratio = "no ratio" if interval.ratio is None else f"ratio {interval.ratio:.4f}"
        ends = "" if interval.lower is None else f" [{_number(interval.lower)}, {_number(interval.upper)}]"
        yield (
            f"pooled over {pooled.points} points (secondary): {pooled.candidate} / {pooled.baseline}  {ratio}{ends}  "
            f"{interval.pairs} pairs"
        )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _sensitivity(row: ComparisonRow, evidence: Evidence, alpha: float) -> Iterator[str]:
    wanted = evidence.protocol.statistics.sensitivity or ()
    printed = sensitivity(
        row.candidate.per_call_ns,
        row.baseline.per_call_ns,
        methods=[method for method in wanted if method not in CLAIMED],
        margin=row.result.margin,
        alpha_one_sided=alpha,
        key=bootstrap_key(protocol_digest=evidence.protocol_digest, point=row.point.id),
    )
    by_method = {found.method: found for found in (*(row.sensitivity or ()), *printed)}
    yield f"  {row.point.id}  {row.comparison.candidate} / {row.comparison.baseline}"
    yield from (_method_line(by_method[method]) for method in wanted)


def _method_line(found: SensitivityRow) -> str:
    p = "" if found.p_non_inferior is None else f"  p {found.p_non_inferior:.3g}"
    numbers = f"{_number(found.ratio)} [{_number(found.lower)}, {_number(found.upper)}]"
    return f"    {found.method:15}  {numbers}{p}  {found.note}"


def _process_tail(row: ComparisonRow, alpha: float) -> Iterator[str]:
    if row.tail is None:
        return
    skewness = "none" if row.tail.skewness is None else f"{row.tail.skewness:.2f}"
    largest = exponential(row.tail.largest)
    yield (
        f"  {row.point.id}  {row.comparison.candidate} / {row.comparison.baseline}: skewness of log ratios {skewness}, largest "
        f"process ratio {_number(largest)}: at {100 * (1 - alpha):.4g} % confidence, {100 * row.tail.covered:.3g} % of processes "
        f"stay below it"
    )


def _series(analysis: Analysis) -> Iterator[str]:
    """Drift and dependence within processes, of the arms that are compared."""
    evidence = analysis.evidence
    names = {
        name for row in analysis.claims.comparisons for name in (row.comparison.candidate, row.comparison.baseline)
    }
    for point in evidence.protocol.points:
        for arm in evidence.protocol.arms_at(point.id):
            if arm.name in names:
                yield from _arm_series(evidence, point, arm.name)


def _arm_series(evidence: Evidence, point: Point, arm: str) -> Iterator[str]:
    taus, halves, lags, shares = [], [], [], []
    for process in evidence.completed[point.id]:
        values = evidence.samples.duration_ns(process, point.id, arm)[:MOST_SERIES].astype(np.float64)
        if values.size < 4 or values.min() <= 0 or values.max() == values.min():
            continue
        taus.append(time_tau(values) or 0.0)
        halves.append(half_ratio(values) or 1.0)
        lags.append(float(autocorrelation(values, max_lag=1)[1]))
        shares.append(effective_samples(values) / values.size)
    if taus:
        yield (
            f"  {point.id}  {arm}: Kendall tau against time {np.median(taus):+.2f} (largest {max(taus, key=abs):+.2f}), second half / "
            f"first {np.median(halves):.4f}, lag-1 autocorrelation {np.median(lags):+.2f}, effective samples "
            f"{100 * np.median(shares):.0f} % (medians over {len(taus)} processes)"
        )
