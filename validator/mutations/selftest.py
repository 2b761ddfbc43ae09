"""`validator selftest`: every mutation on a copy of a clean bundle, and what the validator said to it.

1. A bundle that is not clean before mutation is refused: on it nothing could be told.
2. A mutation is rejected iff the bundle is not VALID and the first reason is the expected one; another reason is a miss.
3. A harmless change is accepted iff validity and reasons are those of the untouched bundle.
4. A mutation without a subject is skipped, with the reason, and counts for nothing.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from validator.findings import Report, Validity
from validator.mutations.corpus import MUTATIONS, STUDY_MUTATIONS
from validator.mutations.mutation import Facts, Mutation
from validator.mutations.workspace import NoSubjectError, WorkingCopy
from validator.reasons import Reason

Validate = Callable[[Path], Report]


class Word(StrEnum):
    """What became of a mutation."""

    REJECTED = "rejected"
    ACCEPTED = "accepted"
    MISSED = "missed"
    SKIPPED = "skipped"


class UncleanBundle(Exception):  # noqa: N818
    """The bundle has reasons before anything was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One line of a selftest."""

    word: Word
    mutation: str
    detail: str

    def __str__(self) -> str:
        """The line as it is printed."""
        return f"{self.word:<8}  {self.mutation:<36}  {self.detail}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestResult:
    """All outcomes, in the order of the corpus."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> int:
        """Mutations that were rejected or accepted as they must be."""
        return self._count(Word.REJECTED) + self._count(Word.ACCEPTED)

    @property
    def failed(self) -> int:
        """Mutations that were not."""
        return self._count(Word.MISSED)

    @property
    def skipped(self) -> int:
        """Mutations without a subject in this bundle."""
        return self._count(Word.SKIPPED)

    @property
    def lines(self) -> tuple[str, ...]:
        """What to print, the sum last."""
        total = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return (*(str(outcome) for outcome in self.outcomes), total)

    def __bool__(self) -> bool:
        """True iff something passed and nothing failed."""
        return self.failed == 0 and self.passed > 0

    def _count(self, word: Word) -> int:
        return sum(outcome.word is word for outcome in self.outcomes)


def selftest(
    bundle: Path,
    *,
    validate: Validate,
    keep: Path | None = None,
    baseline_reasons: tuple[Reason, ...] = (),
    mutations: Sequence[Mutation] | None = None,
) -> SelftestResult:
    """Try mutations on copies of a bundle; with ``keep`` the mutated copies stay there, one folder each."""
    _refuse_unclean(validate(bundle), baseline_reasons)
    facts = Facts.of(bundle)
    if mutations is None:
        mutations = STUDY_MUTATIONS if facts.kind == "mechanism" else MUTATIONS
    with tempfile.TemporaryDirectory(prefix="validator-selftest-") as scratch:
        trial = _Trial(
            bundle=bundle,
            facts=facts,
            folder=Path(scratch) if keep is None else keep,
            keep=keep is not None,
            validate=validate,
            baseline_reasons=baseline_reasons,
        )
        return SelftestResult(outcomes=tuple(trial.outcome(mutation) for mutation in mutations))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One bundle on which mutations are tried one after the other."""

    bundle: Path
    facts: Facts
    folder: Path
    keep: bool
    validate: Validate
    baseline_reasons: tuple[Reason, ...]

    def outcome(self, mutation: Mutation) -> Outcome:
        """Try one mutation."""
        if (reason := mutation.applies_to(self.facts)) is not None:
            return Outcome(word=Word.SKIPPED, mutation=mutation.name, detail=reason)
        home = self.folder / mutation.name
        home.mkdir(parents=True)
        copy = WorkingCopy.of(self.bundle, home / self.bundle.resolve().name)
        try:
            mutation.apply(copy)
        except NoSubjectError as error:
            word, detail = Word.SKIPPED, str(error)
        else:
            if mutation.reseal:
                copy.reseal()
            word, detail = self._judge(mutation, self.validate(copy.root))
        if not self.keep:
            shutil.rmtree(home)
        return Outcome(word=word, mutation=mutation.name, detail=detail)

    def _judge(self, mutation: Mutation, report: Report) -> tuple[Word, str]:
        found = report.codes
        shown = ", ".join(dict.fromkeys(found)) or f"no reason ({report.validity})"
        if mutation.expected is None:
            if is_clean(report, self.baseline_reasons):
                return Word.ACCEPTED, "harmless"
            return Word.MISSED, f"expected to be accepted, got {shown}"
        if report.validity is not Validity.VALID and found[:1] == (mutation.expected,):
            return Word.REJECTED, mutation.expected
        return Word.MISSED, f"expected {mutation.expected}, got {shown}"


def is_clean(report: Report, baseline_reasons: tuple[Reason, ...] = ()) -> bool:
    """Whether a report has exactly the reasons of the untouched bundle; without any it must be VALID."""
    found = report.codes
    return found == baseline_reasons and (report.validity is Validity.VALID) == (not baseline_reasons)


def _refuse_unclean(report: Report, baseline_reasons: tuple[Reason, ...]) -> None:
    if not is_clean(report, baseline_reasons):
        found = ", ".join(dict.fromkeys(report.codes)) or "no reason"
        raise UncleanBundle(f"expected a clean bundle, got {report.validity}: {found}")
