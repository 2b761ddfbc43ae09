"""[statistics] of a protocol: level, margin, and everything that may be asked beyond the default.

Rules (protocols/README.md, "Statistics"):
1. A key that asks for nothing is refused (``pooled = false``), and so is one that another key contradicts.
2. ``named_points`` belongs to the family ``named-points``, ``quantile`` and ``quantile_type`` to the estimand of quantiles.
3. Looks ascend from at least 6 to ``process_pairs``.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise

from validator.reading.fields import Fields
from validator.reading.limits import LOOKS
from validator.reading.model import Protocol, Statistics

MEDIANS, QUANTILES = "geometric-mean-of-median-ratios", "geometric-mean-of-quantile-ratios"
CLAIMED = ("hodges-lehmann", "sign-flip", "bootstrap-t")
_PRINTED = ("order-statistic", "fieller", "bonett-price", "welch", "percentile", "bca", "process-tail")
_FIRST_LOOK, _BEYOND = 6, 5


def read_statistics(fields: Fields) -> Statistics:
    """Read the section; every problem is recorded."""
    estimand = fields.choice("estimand", (MEDIANS, QUANTILES))
    fields.choice("interval", ("paired-t",))
    fields.choice("direction", ("lower-is-better",))
    family = fields.choice("family", ("all-points", "named-points"))
    alpha = fields.number("alpha_one_sided")
    if fields.has("alpha_one_sided") and not 0 < alpha <= 0.05:
        fields.wrong("alpha_one_sided", "a number in (0, 0.05]", alpha)
    superiority = fields.has("superiority") and fields.choice("superiority", ("gatekeeping",)) == "gatekeeping"
    pooled = fields.has("pooled") and fields.truth("pooled")
    if fields.has("pooled") and fields.raw("pooled") is False:
        fields.wrong("pooled", "true, or no such key", False)
    quantile, kind = _quantile(fields, wanted=estimand == QUANTILES)
    result = Statistics(
        alpha=alpha,
        margin=_share(fields, "margin"),
        named_points=_named(fields, wanted=family == "named-points"),
        gatekeeping=superiority,
        pooled=pooled,
        sensitivity=_sensitivity(fields) if fields.has("sensitivity") else None,
        quantile=quantile,
        quantile_type=kind,
        looks=_looks(fields) if fields.has("looks") else (),
        reproduction_band=_share(fields, "reproduction_band") if fields.has("reproduction_band") else None,
    )
    fields.finish()
    return result


def _share(fields: Fields, key: str) -> float:
    value = fields.raw(key)
    margin = 0.0
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?%", value):
        margin = float(Decimal(value[:-1]) / 100)
    elif isinstance(value, float):
        margin = value
    if not 0 < margin < 1:
        fields.wrong(key, 'a share such as "2%" or 0.02', value)
        return 0.5
    return margin


def _named(fields: Fields, *, wanted: bool) -> tuple[str, ...] | None:
    if not wanted:
        if fields.has("named_points"):
            fields.wrong("named_points", 'no such key without family = "named-points"', fields.raw("named_points"))
        return None
    names = fields.texts("named_points")
    if fields.has("named_points") and not names:
        fields.wrong("named_points", "at least one point", fields.raw("named_points"))
    return names


def _sensitivity(fields: Fields) -> tuple[str, ...]:
    names = fields.texts("sensitivity")
    known = (*CLAIMED, *_PRINTED)
    for name in names:
        if name not in known:
            fields.wrong("sensitivity", "names out of " + ", ".join(known), name)
    return names


def _quantile(fields: Fields, *, wanted: bool) -> tuple[float | None, int]:
    if not wanted:
        for key in ("quantile", "quantile_type"):
            if fields.has(key):
                fields.wrong(key, f'no such key without estimand = "{QUANTILES}"', fields.raw(key))
        return None, 7
    share, kind = fields.raw("quantile"), fields.raw("quantile_type")
    if not isinstance(share, float) or not 0.5 <= share < 1:
        if fields.has("quantile"):
            fields.wrong("quantile", "a float in [0.5, 1)", share)
        share = None
    if isinstance(kind, bool) or not isinstance(kind, int) or kind not in (7, 8):
        if fields.has("quantile_type"):
            fields.wrong("quantile_type", "7 or 8", kind)
        kind = 7
    return share, kind


def _looks(fields: Fields) -> tuple[int, ...]:
    value = fields.raw("looks")
    numbers = (
        [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
        if isinstance(value, list)
        else []
    )
    whole = isinstance(value, list) and len(numbers) == len(value) and 2 <= len(value) <= LOOKS
    if not whole or not all(a < b for a, b in pairwise(numbers)) or not numbers[0] >= _FIRST_LOOK:
        fields.wrong("looks", f"2 to {LOOKS} ascending integers from {_FIRST_LOOK} on", value)
        return ()
    return tuple(numbers)


def check_statistics(protocol: Protocol, problems: list[str]) -> None:
    """Check what holds between this section and the others."""
    problems.extend(_contradictions(protocol))


def _contradictions(protocol: Protocol) -> Iterator[str]:
    rules, pairs = protocol.statistics, protocol.process_pairs
    least = 5 if rules.alpha > 0.025 else 6
    if pairs < least:
        yield f"schedule.process_pairs: expected at least {least}, got {pairs}"
    if rules.looks and rules.looks[-1] != pairs:
        yield f"statistics.looks: expected process_pairs = {pairs} as the last look, got {rules.looks[-1]}"
    points = {point.id for point in protocol.points}
    arms = {arm.name for arm in protocol.arms}
    for name in rules.named_points or ():
        if name not in points:
            yield f"statistics.named_points: no point {name!r}"
        elif arms and not protocol.claims_at(name):
            yield f"statistics.named_points: no claimed comparison stands at {name}"
    samples = protocol.blocks * protocol.samples_per_block
    if rules.quantile is not None and samples * (1 - rules.quantile) < _BEYOND - 1e-9:
        beyond = f"{samples * (1 - rules.quantile):.3g} of {samples}"
        yield f"statistics.quantile: expected at least {_BEYOND} samples beyond it in a process, got {beyond}"
