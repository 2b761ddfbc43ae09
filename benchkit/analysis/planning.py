"""How many process pairs a claim needs: from a guess of sd(r), or from a pilot bundle.

Rules:
1. Pairs are those of the primary method at the locked level; a guess is named as such, a pilot's sd stands beside its upper limit.
2. A pilot serves planning only: its data never enter the run that it planned.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.special import chdtri

from benchkit.analysis.analyst import analyse
from benchkit.bundle.reader import open_bundle
from benchkit.errors import DataError
from benchkit.protocol.rules import min_pairs
from benchkit.statistics.interval import moments
from benchkit.statistics.power import PairPlan, pairs_needed

UPPER = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Standard deviation of r at one point; ``upper`` is its one-sided 80 % limit, None for a guess."""

    label: str
    sd: float
    upper: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned: the claim, its level, and the power that it shall have."""

    margin: float
    alpha_one_sided: float
    power: float
    true_ratios: tuple[float, ...]
    points: int

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha_one_sided <= 0.05:
            raise DataError(
                f"--alpha: expected a one-sided level above 0 and at most 0.05, found {self.alpha_one_sided!r}"
            )
        if not 0.0 < self.power < 1.0:
            raise DataError(f"--power: expected a number between 0 and 1, found {self.power!r}")
        if self.points < 1:
            raise DataError(f"--points: expected at least 1, found {self.points}")
        for ratio in self.true_ratios:
            if not 0.0 < ratio < 1.0 + self.margin:
                limit = f"{1.0 + self.margin:g}"
                raise DataError(f"--true-ratio: expected a ratio above 0 and below the limit {limit}, found {ratio!r}")

    def pairs(self, sd: float, *, true_ratio: float, points: int, least: int | None = None) -> PairPlan:
        """Fewest pairs for one point, or for all of several."""
        try:
            return pairs_needed(
                self.power,
                sd_log_ratio=sd,
                margin=self.margin,
                true_ratio=true_ratio,
                alpha_one_sided=self.alpha_one_sided,
                least_pairs=min_pairs(self.alpha_one_sided) if least is None else least,
                points=points,
            )
        except ValueError as error:
            raise DataError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What a bundle says about the spread, and the claim that its protocol made."""

    margin: float
    alpha_one_sided: float
    spreads: tuple[Spread, ...]


def fraction(text: str, option: str) -> float:
    """``"2%"`` or ``0.02`` as 0.02; a bare ``2`` could be either and is refused."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?%", text):
        value = float(text[:-1]) / 100.0
    elif re.fullmatch(r"[1-9][0-9]*(\.0*)?", text):
        raise DataError(
            f'{option}: {text} could mean "{text}%" or {text}00 %: write "{text}%" or {float(text) / 100:g}'
        )
    elif re.fullmatch(r"0?\.[0-9]+|[0-9](\.[0-9]+)?e-[0-9]+", text):
        value = float(text)
    else:
        raise DataError(f'{option}: expected a fraction such as "2%" or 0.02, found {text!r}')
    if not 0.0 < value < 1.0:
        raise DataError(f"{option}: expected more than 0 and less than 100 %, found {text!r}")
    return value


def read_pilot(folder: Path) -> Pilot:
    """The spread of r in a sealed bundle, per claimed comparison and point of its family."""
    analysis = analyse(open_bundle(folder))
    rules = analysis.evidence.protocol.statistics
    spreads = []
    for row in analysis.claims.comparisons:
        if row.comparison.claim == "descriptive" or not rules.in_family(row.point.id):
            continue
        found = moments(row.log_ratios, name="log_ratios")
        if found.sd is None or found.constant:
            raise DataError(f"{folder}: expected at least two process pairs that differ at {row.point.id}")
        upper = found.sd * math.sqrt((found.count - 1) / float(chdtri(found.count - 1, UPPER)))
        names = f"{row.comparison.candidate} / {row.comparison.baseline}"
        spreads.append(Spread(label=f"{row.point.id}  {names}", sd=found.sd, upper=upper))
    return Pilot(margin=rules.margin, alpha_one_sided=rules.alpha_one_sided, spreads=tuple(spreads))


def plan_pairs(
    *,
    margin: str | None,
    sd: str | None,
    pilot: Path | None,
    true_ratios: tuple[float, ...],
    alpha: float | None,
    power: float,
    points: int | None,
) -> tuple[Question, tuple[Spread, ...]]:
    """The question and its spreads from the options of ``benchkit power``; None is an option that was not given."""
    if (sd is None) == (pilot is None):
        raise DataError(
            "expected either --sd (a guess) or --pilot (a bundle), found " + ("none" if sd is None else "both")
        )
    found = None if pilot is None else read_pilot(pilot)
    if found is None and margin is None:
        raise DataError('--margin: missing; expected a fraction such as "2%"')
    spreads: tuple[Spread, ...] = () if found is None else found.spreads
    if sd is not None:
        spreads = (Spread(label="guess", sd=fraction(sd, "--sd"), upper=None),)
    question = Question(
        margin=fraction(margin, "--margin") if margin is not None else found.margin if found is not None else 0.0,
        alpha_one_sided=alpha if alpha is not None else 0.05 if found is None else found.alpha_one_sided,
        power=power,
        true_ratios=true_ratios,
        points=points if points is not None else 1 if found is None else len(found.spreads),
    )
    return question, spreads


def power_table(question: Question, spreads: Sequence[Spread]) -> Iterator[str]:
    """The table of ``benchkit power``: pairs for one point, and for all points at once."""
    points = question.points
    yield (
        f"process pairs for non-inferiority at margin {100 * question.margin:g} %, one-sided alpha "
        f"{question.alpha_one_sided:g}, power {question.power:g}; at least {min_pairs(question.alpha_one_sided)}"
    )
    width = max(12, *(len(spread.label) for spread in spreads))
    header = f"{'':{width}}  {'sd(r)':>9}  {'true ratio':>10}  {'one point':>9}"
    yield header + (f"  {f'all {points} points':>14}" if points > 1 else "")
    for spread in spreads:
        for sd, name in ((spread.sd, spread.label), (spread.upper, "  80 % upper limit")):
            if sd is not None:
                yield from _rows(question, name, sd, width)
    if points > 1:
        yield f"all points: each at power {1 - (1 - question.power) / points:.4g}; the point that needs most decides"


def _rows(question: Question, name: str, sd: float, width: int) -> Iterator[str]:
    for ratio in question.true_ratios:
        one = question.pairs(sd, true_ratio=ratio, points=1).pairs
        line = f"{name:{width}}  {100 * sd:>7.3g} %  {ratio:>10g}  {one:>9}"
        if question.points > 1:
            line += f"  {question.pairs(sd, true_ratio=ratio, points=question.points).pairs:>14}"
        yield line
