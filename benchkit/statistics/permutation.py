"""Sign-flip permutation test of the log ratios at the margin: a sensitivity analysis, exact or absent."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from benchkit.statistics.estimand import finite

EXACT_TO = 20
TIE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class SignFlip:
    """Counts over all sign vectors; p-values None where they were not enumerated.

    Attributes
    ----------
    observed:
        Sum of the differences.
    at_most, at_least:
        Sign vectors whose sum is at most, at least the observed one (ties within 1e-12 of the largest possible sum).
    vectors:
        2^K.
    """

    observed: float
    at_most: int | None
    at_least: int | None
    vectors: int
    p_less: float | None
    p_greater: float | None
    p_two_sided: float | None
    reason: str


def sign_flip(differences: ArrayLike) -> SignFlip:
    """Exact distribution of the sum under random signs.

    Parameters
    ----------
    differences:
        ``d_k = r_k - log1p(margin)`` for the test of non-inferiority, ``r_k`` for superiority.

    Notes
    -----
    ``p_less = #{sum <= observed} / 2^K`` over all 2^K sign vectors; exact for K <= 20, beyond that no p-value.

    References
    ----------
    Fisher, R. A. (1935), "The Design of Experiments", section 21.
    """
    data = finite(differences, name="differences")
    vectors = 1 << data.size
    if data.size > EXACT_TO:
        return SignFlip(
            observed=float(data.sum()),
            at_most=None,
            at_least=None,
            vectors=vectors,
            p_less=None,
            p_greater=None,
            p_two_sided=None,
            reason=f"exact for up to {EXACT_TO} pairs, found {data.size}",
        )
    sums = np.zeros(1)
    for value in np.abs(data).tolist():
        sums = np.concatenate([sums + value, sums - value])
    observed = float(data.sum())
    slack = TIE * float(np.abs(data).sum())
    at_most = int((sums <= observed + slack).sum())
    at_least = int((sums >= observed - slack).sum())
    return SignFlip(
        observed=observed,
        at_most=at_most,
        at_least=at_least,
        vectors=vectors,
        p_less=at_most / vectors,
        p_greater=at_least / vectors,
        p_two_sided=min(1.0, 2.0 * min(at_most, at_least) / vectors),
        reason=f"all {vectors} sign vectors",
    )
