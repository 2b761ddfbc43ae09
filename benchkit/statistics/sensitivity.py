"""The sensitivity analyses that a protocol names: shown beside the primary one, whatever they say.

Rules:
1. None of them enters a verdict, and none is chosen after seeing the data: the list is the same for every comparison.
2. A row that cannot be computed stays in the list, with the reason.
3. Those of ``CLAIMED`` stand in analysis.json and are recomputed by others; the rest is printed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchkit.statistics.bootstrap import Key, bootstrap_bounds
from benchkit.statistics.estimand import geometric_ratio, log_ratios, median
from benchkit.statistics.fieller import fieller_paired
from benchkit.statistics.interval import check_alpha, check_margin, exponential
from benchkit.statistics.median_ratio import median_ratio_paired
from benchkit.statistics.permutation import sign_flip
from benchkit.statistics.quantile import lower_order_bound, process_tail, upper_order_bound
from benchkit.statistics.signed_rank import Alternative, hodges_lehmann, signed_rank_p
from benchkit.statistics.welch import welch_ratio
from benchkit.units import FloatArray

CLAIMED = ("hodges-lehmann", "sign-flip", "bootstrap-t")


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
    candidate: FloatArray,
    baseline: FloatArray,
    *,
    methods: Sequence[str],
    margin: float,
    alpha_one_sided: float,
    key: Key,
) -> tuple[SensitivityRow, ...]:
    """The named analyses of one comparison at one point, from process medians of either arm, in the order of the names."""
    check_alpha(alpha_one_sided)
    check_margin(margin)
    unknown = set(methods) - set(METHODS)
    if unknown:
        raise ValueError(f"methods: expected some of {', '.join(METHODS)}, found {', '.join(sorted(unknown))}")
    data = _Data(
        candidate=candidate,
        baseline=baseline,
        ratios=log_ratios(candidate, baseline),
        margin=margin,
        alpha=alpha_one_sided,
    )
    resampled = _bootstrap(data.ratios, data.alpha, key) if set(methods) & set(RESAMPLED) else {}
    return tuple(resampled[method] if method in resampled else _DIRECT[method](data) for method in methods)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Data:
    candidate: FloatArray
    baseline: FloatArray
    ratios: FloatArray
    margin: float
    alpha: float


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


def _signed_rank(data: _Data) -> SensitivityRow:
    ratios = data.ratios
    found = hodges_lehmann(ratios, alpha_one_sided=data.alpha)
    p = signed_rank_p(ratios, null=math.log1p(data.margin), alternative=Alternative.LESS) if ratios.size else None
    return _row(
        "hodges-lehmann",
        "pseudo-median of process ratios",
        ratio=_exp(found.estimate),
        lower=_exp(found.lower),
        upper=_exp(found.upper),
        p=p,
        note=found.reason,
    )


def _sign_flip(data: _Data) -> SensitivityRow:
    ratios = data.ratios
    found = sign_flip(ratios - math.log1p(data.margin))
    p = found.p_less if ratios.size else None
    ratio = geometric_ratio(ratios)
    return _row("sign-flip", "geometric mean of process ratios", ratio=ratio, p=p, note=found.reason)


def _sign(data: _Data) -> SensitivityRow:
    ratios, alpha = data.ratios, data.alpha
    estimand = "median of process ratios"
    if not ratios.size:
        return _row("order-statistic", estimand, note="no pair")
    ordered = sorted(ratios.tolist())
    upper = upper_order_bound(ratios.size, 0.5, alpha_one_sided=alpha)
    lower = lower_order_bound(ratios.size, 0.5, alpha_one_sided=alpha)
    return _row(
        "order-statistic",
        estimand,
        ratio=_exp(median(ratios)),
        lower=None if lower.rank is None else _exp(ordered[lower.rank - 1]),
        upper=None if upper.rank is None else _exp(ordered[upper.rank - 1]),
        note=upper.reason,
    )


def _fieller(data: _Data) -> SensitivityRow:
    candidate, baseline, alpha = data.candidate, data.baseline, data.alpha
    estimand = "ratio of mean process medians"
    if candidate.size < 2:
        return _row("fieller", estimand, note=f"at least two pairs are needed, found {candidate.size}")
    found = fieller_paired(candidate, baseline, alpha_one_sided=alpha)
    return _row("fieller", estimand, ratio=found.ratio, lower=found.lower, upper=found.upper, note=found.reason)


def _medians(data: _Data) -> SensitivityRow:
    candidate, baseline, alpha = data.candidate, data.baseline, data.alpha
    estimand = "ratio of median process medians"
    if candidate.size < 2:
        return _row("bonett-price", estimand, note=f"at least two pairs are needed, found {candidate.size}")
    found = median_ratio_paired(candidate, baseline, alpha_one_sided=alpha)
    note = "normal approximation on the log scale"
    return _row("bonett-price", estimand, ratio=found.ratio, lower=found.lower, upper=found.upper, note=note)


def _welch(data: _Data) -> SensitivityRow:
    estimand = "geometric mean ratio of unpaired arms"
    sizes = {data.candidate.size, data.baseline.size}
    if min(sizes) < 2:
        return _row("welch", estimand, note=f"at least two pairs are needed, found {min(sizes)}")
    if all(arm.max() == arm.min() for arm in (data.candidate, data.baseline)):
        return _row("welch", estimand, note="no medians differ within an arm")
    found = welch_ratio(data.candidate, data.baseline, margin=data.margin, alpha_one_sided=data.alpha)
    return _row(
        "welch",
        estimand,
        ratio=found.ratio,
        lower=found.lower,
        upper=found.upper,
        p=found.p_non_inferior,
        note=f"ignores the pairing; {found.df:.4g} degrees of freedom",
    )


def _bootstrap(ratios: FloatArray, alpha: float, key: Key) -> dict[str, SensitivityRow]:
    estimand = "geometric mean of process ratios"
    ratio = geometric_ratio(ratios)
    why = _spread(ratios)
    if why:
        return {name: _row(name, estimand, ratio=ratio, note=why) for name in RESAMPLED}
    found = bootstrap_bounds(ratios, key=key, alpha_one_sided=alpha)
    note = f"{found.replicates} resamples of processes"
    shown = f"for display only; method used: {found.bca.method}"
    bounds = (
        (found.bootstrap_t, note),
        (found.percentile.value, found.warning or note),
        (found.bca.value, found.warning or shown),
    )
    return {
        name: _row(name, estimand, ratio=ratio, upper=_exp(bound), note=text)
        for name, (bound, text) in zip(RESAMPLED, bounds, strict=True)
    }


def _tail(data: _Data) -> SensitivityRow:
    ratios, alpha = data.ratios, data.alpha
    if not ratios.size:
        return _row("process-tail", "quantile of process ratios", note="no pair")
    found = process_tail(ratios, alpha_one_sided=alpha)
    skewness = "none" if found.skewness is None else f"{found.skewness:.3g}"
    return _row(
        "process-tail",
        f"{100.0 * found.covered:.3g}th percentile of process ratios",
        upper=_exp(found.largest),
        note=f"largest of {ratios.size} process ratios; skewness {skewness}",
    )


RESAMPLED = ("bootstrap-t", "percentile", "bca")
_DIRECT: dict[str, Callable[[_Data], SensitivityRow]] = {
    "hodges-lehmann": _signed_rank,
    "sign-flip": _sign_flip,
    "order-statistic": _sign,
    "fieller": _fieller,
    "bonett-price": _medians,
    "welch": _welch,
    "process-tail": _tail,
}
METHODS = (*_DIRECT, *RESAMPLED)
