"""The section ``[statistics]``: keys that every protocol states, and what it may ask beyond them (protocols/README.md, "Statistics").

Rules:
1. What was not declared before the data is not done: there is no default for a family, a quantile or a look.
2. An absent optional key leaves the digest and analysis.json as they are without it.
"""

import itertools
import math
from collections.abc import Iterator

from benchkit.protocol.fields import MAX_INTEGER, Table, shown, some
from benchkit.protocol.limits import MAX_LOOKS
from benchkit.protocol.model import Protocol, StatisticsRules

MIN_PAIRS_AT_05 = 5
MIN_PAIRS_AT_025 = 6
MEDIANS, QUANTILES = "geometric-mean-of-median-ratios", "geometric-mean-of-quantile-ratios"
CLAIMED = ("hodges-lehmann", "sign-flip", "bootstrap-t")
PRINTED = ("order-statistic", "fieller", "bonett-price", "welch", "percentile", "bca", "process-tail")
QUANTILE_TYPES = (7, 8)
TAIL_SAMPLES = 5


def min_pairs(alpha_one_sided: float) -> int:
    """Fewest complete process pairs from which a verdict may be drawn (results/README.md, gate too_few_pairs)."""
    return MIN_PAIRS_AT_05 if alpha_one_sided > 0.025 else MIN_PAIRS_AT_025


def parse_statistics(table: Table) -> StatisticsRules:
    """The section as data; every problem of its own is noted in the table."""
    estimand = table.text("estimand", choices=(MEDIANS, QUANTILES))
    table.text("interval", choices=("paired-t",))
    table.text("direction", choices=("lower-is-better",))
    family = table.text("family", choices=("all-points", "named-points"))
    quantile, quantile_type = _quantile(table, estimand)
    rules = StatisticsRules(
        alpha_one_sided=table.number("alpha_one_sided", low=0.0, high=0.05),
        margin=table.margin("margin"),
        named_points=_named_points(table, family),
        gatekeeping=table.optional_text("superiority", choices=("gatekeeping",)) is not None,
        pooled=_pooled(table),
        sensitivity=table.texts("sensitivity", choices=(*CLAIMED, *PRINTED)) if table.has("sensitivity") else None,
        quantile=quantile,
        quantile_type=quantile_type,
        looks=_looks(table),
        reproduction_band=table.margin("reproduction_band") if table.has("reproduction_band") else None,
    )
    table.close()
    return rules


def _named_points(table: Table, family: str) -> tuple[str, ...] | None:
    if family == "named-points":
        return table.texts("named_points")
    if table.has("named_points"):
        table.texts("named_points")
        table.say("named_points", 'needs family = "named-points"; the family all-points names none')
    return None


def _pooled(table: Table) -> bool:
    if not table.has("pooled"):
        return False
    value = table.raw("pooled", "true")
    if value is not True:
        table.say("pooled", f"expected true, found {shown(value)}; leave the key out where no pooled ratio is wanted")
    return True


def _quantile(table: Table, estimand: str) -> tuple[float | None, int | None]:
    wanted = estimand == QUANTILES
    for key in ("quantile", "quantile_type"):
        if table.has(key) and not wanted:
            table.raw(key, "")
            table.say(key, f'needs estimand = "{QUANTILES}"')
    if not wanted:
        return None, None
    share = table.raw("quantile", "a float from 0.5 to below 1, such as 0.95")
    if share is not None and (not isinstance(share, float) or not 0.5 <= share < 1.0):
        table.say("quantile", f"expected a float from 0.5 to below 1, such as 0.95, found {shown(share)}")
        share = None
    kind = table.raw("quantile_type", "7 or 8 (Hyndman-Fan)")
    if kind is not None and (isinstance(kind, bool) or not isinstance(kind, int) or kind not in QUANTILE_TYPES):
        table.say("quantile_type", f"expected 7 or 8 (Hyndman-Fan), found {shown(kind)}")
        kind = None
    return share, kind


def _looks(table: Table) -> tuple[int, ...]:
    if not table.has("looks"):
        return ()
    expected = f"2 to {MAX_LOOKS} ascending numbers of process pairs, such as [10, 15, 20]"
    values = table.raw("looks", expected)
    sound = isinstance(values, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    if (
        not sound
        or not 2 <= len(values) <= MAX_LOOKS
        or any(a >= b for a, b in itertools.pairwise(values))
        or values[-1] > MAX_INTEGER
    ):
        table.say("looks", f"expected {expected}, found {shown(values)}")
        return ()
    return tuple(values)


def statistics_problems(protocol: Protocol) -> Iterator[str]:
    """Problems of the section that show only beside the schedule, the points and the claims."""
    rules, schedule = protocol.statistics, protocol.schedule
    least = min_pairs(rules.alpha_one_sided)
    if schedule.process_pairs < least:
        yield (
            f"schedule.process_pairs: {schedule.process_pairs} cannot give a verdict at alpha_one_sided = "
            f"{rules.alpha_one_sided}; expected at least {least}"
        )
    if rules.looks and rules.looks[0] < MIN_PAIRS_AT_025:
        yield f"statistics.looks: a look at {rules.looks[0]} pairs cannot give a verdict; expected at least {MIN_PAIRS_AT_025}"
    if rules.looks and rules.looks[-1] != schedule.process_pairs:
        yield (
            f"statistics.looks: the last look is at {rules.looks[-1]} pairs, but schedule.process_pairs = "
            f"{schedule.process_pairs}; expected the same number"
        )
    yield from _family_problems(protocol)
    samples = schedule.blocks * protocol.timing.samples_per_block
    if rules.quantile is not None and samples * (1.0 - rules.quantile) < TAIL_SAMPLES - 1e-9:
        needed = math.ceil(TAIL_SAMPLES / (1.0 - rules.quantile) - 1e-9)
        yield (
            f"statistics.quantile: {rules.quantile} of {samples} samples per process leaves "
            f"{samples * (1.0 - rules.quantile):.3g} beyond it; expected at least {TAIL_SAMPLES}: blocks x samples_per_block "
            f">= {needed}"
        )


def _family_problems(protocol: Protocol) -> Iterator[str]:
    points = {point.id for point in protocol.points}
    for name in protocol.statistics.named_points or ():
        if name not in points:
            yield f"statistics.named_points: {name} is no operating point; expected some of {some(points)}"
        elif all(comparison.claim == "descriptive" for comparison in protocol.comparisons_at(name)):
            yield f"statistics.named_points: no claimed comparison stands at {name}"
