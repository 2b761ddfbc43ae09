"""The sensitivity analyses that are always printed beside the primary one, in a fixed order, whatever they say.

Rules:
1. None of them enters a verdict, and none is chosen after seeing the data: the list is the same for every comparison.
2. A row that cannot be computed stays in the list, with the reason.
"""

import math
from dataclasses import dataclass

from benchkit.statistics.bootstrap import Key, bootstrap_bounds
from benchkit.statistics.estimand import geometric_ratio, log_ratios, median
from benchkit.statistics.fieller import fieller_paired
from benchkit.statistics.interval import check_alpha, check_margin, exponential
from benchkit.statistics.median_ratio import median_ratio_paired
from benchkit.statistics.permutation import sign_flip
from benchkit.statistics.quantile import lower_order_bound, process_tail, upper_order_bound
from benchkit.statistics.signed_rank import Alternative, hodges_lehmann, signed_rank_p
from benchkit.units import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityRow:
    """One analysis: bounds one-sided at ``1 - alpha``, None where they do not exist or are infinite."""

    method: str
    estimand: str
    ratio: float | None
    lower: float | None
    upper: float | None
    p_non_inferior: float | None
    note: str


def sensitivity(
    candidate: FloatArray, baseline: FloatArray, *, margin: float, alpha_one_sided: float, key: Key
) -> tuple[SensitivityRow, ...]:
    """All analyses of one comparison at one point, from process medians of either arm."""
    check_alpha(alpha_one_sided)
    check_margin(margin)
    ratios = log_ratios(candidate, baseline)
    return (
        _signed_rank(ratios, margin, alpha_one_sided),
        _sign_flip(ratios, margin),
        _sign(ratios, alpha_one_sided),
        _fieller(candidate, baseline, alpha_one_sided),
        _medians(candidate, baseline, alpha_one_sided),
        *_bootstrap(ratios, alpha_one_sided, key),
        _tail(ratios, alpha_one_sided),
    )


def _row(
    method: str,
    estimand: str,
    *,
    note: str,
    ratio: float | None = None,
    lower: float | None = None,
    upper: float | None = None,
    p: float | None = None,
) -> SensitivityRow:
    return SensitivityRow(
        method=method, estimand=estimand, ratio=ratio, lower=lower, upper=upper, p_non_inferior=p, note=note
    )


def _exp(value: float | None) -> float | None:
    return None if value is None else exponential(value)


def _spread(ratios: FloatArray) -> str:
    """Why there is no interval; empty where there is one."""
    if ratios.size < 2:
        return f"at least two pairs are needed, found {ratios.size}"
    return "all log ratios are equal" if ratios.max() == ratios.min() else ""


def _signed_rank(ratios: FloatArray, margin: float, alpha: float) -> SensitivityRow:
    found = hodges_lehmann(ratios, alpha_one_sided=alpha)
    p = signed_rank_p(ratios, null=math.log1p(margin), alternative=Alternative.LESS) if ratios.size else None
    return _row(
        "Hodges-Lehmann",
        "pseudo-median of process ratios",
        ratio=_exp(found.estimate),
        lower=_exp(found.lower),
        upper=_exp(found.upper),
        p=p,
        note=found.reason,
    )


def _sign_flip(ratios: FloatArray, margin: float) -> SensitivityRow:
    found = sign_flip(ratios - math.log1p(margin))
    p = found.p_less if ratios.size else None
    ratio = geometric_ratio(ratios)
    return _row("sign-flip permutation", "geometric mean of process ratios", ratio=ratio, p=p, note=found.reason)


def _sign(ratios: FloatArray, alpha: float) -> SensitivityRow:
    estimand = "median of process ratios"
    if not ratios.size:
        return _row("order statistic", estimand, note="no pair")
    ordered = sorted(ratios.tolist())
    upper = upper_order_bound(ratios.size, 0.5, alpha_one_sided=alpha)
    lower = lower_order_bound(ratios.size, 0.5, alpha_one_sided=alpha)
    return _row(
        "order statistic",
        estimand,
        ratio=_exp(median(ratios)),
        lower=None if lower.rank is None else _exp(ordered[lower.rank - 1]),
        upper=None if upper.rank is None else _exp(ordered[upper.rank - 1]),
        note=upper.reason,
    )


def _fieller(candidate: FloatArray, baseline: FloatArray, alpha: float) -> SensitivityRow:
    estimand = "ratio of mean process medians"
    if candidate.size < 2:
        return _row("Fieller", estimand, note=f"at least two pairs are needed, found {candidate.size}")
    found = fieller_paired(candidate, baseline, alpha_one_sided=alpha)
    return _row("Fieller", estimand, ratio=found.ratio, lower=found.lower, upper=found.upper, note=found.reason)


def _medians(candidate: FloatArray, baseline: FloatArray, alpha: float) -> SensitivityRow:
    estimand = "ratio of median process medians"
    if candidate.size < 2:
        return _row("Bonett-Price", estimand, note=f"at least two pairs are needed, found {candidate.size}")
    found = median_ratio_paired(candidate, baseline, alpha_one_sided=alpha)
    note = "normal approximation on the log scale"
    return _row("Bonett-Price", estimand, ratio=found.ratio, lower=found.lower, upper=found.upper, note=note)


def _bootstrap(ratios: FloatArray, alpha: float, key: Key) -> tuple[SensitivityRow, ...]:
    estimand = "geometric mean of process ratios"
    names = ("bootstrap-t", "bootstrap percentile", "bootstrap BCa")
    why = _spread(ratios)
    if why:
        return tuple(_row(name, estimand, note=why) for name in names)
    ratio = geometric_ratio(ratios)
    found = bootstrap_bounds(ratios, key=key, alpha_one_sided=alpha)
    note = f"{found.replicates} resamples of processes"
    shown = f"for display only; method used: {found.bca.method}"
    return (
        _row(names[0], estimand, ratio=ratio, upper=_exp(found.bootstrap_t), note=note),
        _row(names[1], estimand, ratio=ratio, upper=_exp(found.percentile.value), note=found.warning or note),
        _row(names[2], estimand, ratio=ratio, upper=_exp(found.bca.value), note=found.warning or shown),
    )


def _tail(ratios: FloatArray, alpha: float) -> SensitivityRow:
    if not ratios.size:
        return _row("process tail", "quantile of process ratios", note="no pair")
    found = process_tail(ratios, alpha_one_sided=alpha)
    skewness = "none" if found.skewness is None else f"{found.skewness:.3g}"
    return _row(
        "process tail",
        f"{100.0 * found.covered:.3g}th percentile of process ratios",
        upper=_exp(found.largest),
        note=f"largest of {ratios.size} process ratios; skewness {skewness}",
    )
