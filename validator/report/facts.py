"""The words that every format shares: verdicts, claims, headline, level, and how to check it again.

Rules:
1. A string of a bundle is hostile: ``clean`` makes every control, format and surrogate character visible.
2. Only a VALID bundle's numbers are relied on; every format says so beside them where that is not the case.
3. A claim is *shown* by the verdict (of the family's member where there is one); a descriptive comparison claims nothing.
"""

import shlex
import unicodedata
from collections.abc import Iterator, Sequence

from validator.findings import Comparison, Json, Report, Validity, Verdict, plain
from validator.report.trajectories import study_headline

_LIMITS = (
    "A mean over few processes says little of rare slow ones: below 40 pairs skewed process effects make the interval too short, whatever "
    "the method.",
    "largest_ratio bounds the tail_quantile of all process ratios.",
    "The claim holds for this machine; other machines, nodes or days are a higher level, which was not sampled.",
    "Processes are taken to be independent of each other.",
)
_LOOKS = "Looks that may end a run favour large effects: its ratio leans towards the claim, while its verdict keeps the level."
TITLES = {
    Verdict.SUPERIOR: "superior",
    Verdict.NON_INFERIOR: "non-inferior",
    Verdict.NON_INFERIOR_BUT_SLOWER: "non-inferior, but slower",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.INCONCLUSIVE_BUT_SLOWER: "inconclusive, but slower",
    Verdict.INFERIOR: "inferior",
}
MEANINGS = {
    Verdict.SUPERIOR: "the whole interval lies below 1",
    Verdict.NON_INFERIOR: "the whole interval lies below 1 + margin",
    Verdict.NON_INFERIOR_BUT_SLOWER: "slower, by less than the margin",
    Verdict.INCONCLUSIVE: "the interval holds 1 + margin, or a gate fired",
    Verdict.INCONCLUSIVE_BUT_SLOWER: "certainly slower, not certainly by more than the margin",
    Verdict.INFERIOR: "slower by at least the margin",
}
SHOWN = (Verdict.SUPERIOR, Verdict.NON_INFERIOR, Verdict.NON_INFERIOR_BUT_SLOWER)
UNTRUSTED = "not to be relied on"
_STANDARD = (
    *("operating_point", "candidate", "baseline", "claim", "ratio", "lower", "upper", "margin", "alpha_one_sided"),
    *("pairs", "p_non_inferior", "p_superior", "guarded", "numerical_tie", "unbounded", "verdict", "gates"),
)
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def clean(text: str) -> str:
    """Show every character that would not be seen, or that would change how the others are seen, as an escape."""
    if text.isprintable() and text.isascii():
        return text
    spaced = text.replace("\r", " ").replace("\n", " ").replace("\t", " ")
    return "".join(_escape(ord(char)) if unicodedata.category(char) in _UNSEEN else char for char in spaced)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def change(ratio: float | None) -> str:
    """Say a ratio as a change: 2.3 is ``+130 %``."""
    return "-" if ratio is None else f"{100 * (ratio - 1):+.3g} %"


def tone(verdict: Verdict) -> str:
    """Give the kind of a verdict: ``good``, ``open`` or ``bad``."""
    if verdict in SHOWN:
        return "good"
    return "bad" if verdict is Verdict.INFERIOR else "open"


def trusted(report: Report) -> bool:
    """Say whether the numbers of a report may be relied on."""
    return report.validity is Validity.VALID


def spread(items: Sequence[Comparison]) -> str | None:
    """Say what the intervals hide: the largest process ratio, the skewness, and what few pairs cannot rule out."""
    largest = [item.diagnostics.largest_ratio for item in items if item.diagnostics.largest_ratio is not None]
    if not largest:
        return None
    skews = [item.diagnostics.skewness for item in items if item.diagnostics.skewness is not None]
    shape = f"skewness of the log ratios from {min(skews):.2f} to {max(skews):.2f}; " if skews else ""
    return (
        f"largest process ratio {max(largest):.4f}; {shape}"
        "with few pairs and skewed process effects the t interval can be too narrow, and the claim holds for the device measured"
    )


def limits(report: Report) -> tuple[str, ...]:
    """Say what no number of this report can show; nothing where there is no number."""
    if report.numbers is None:
        return ()
    return (*_LIMITS, _LOOKS) if report.numbers.family.looks else _LIMITS


def headline(report: Report) -> str:
    """Say both axes in one line: can the bundle be believed, and what do the data show."""
    if report.study is not None:
        return f"{report.validity.value}; {study_headline(report)}" + ("" if trusted(report) else f" ({UNTRUSTED})")
    if report.numbers is None:
        return f"{report.validity.value}: no verdict could be computed"
    family = report.numbers.family
    count = f"{family.comparisons} comparison" + ("s" if family.comparisons != 1 else "")
    suffix = "" if trusted(report) else f" ({UNTRUSTED})"
    return f"{report.validity.value}; family ({family.claim}, {count}): {family.verdict.value}{suffix}"


def confidence(report: Report) -> str:
    """Name the level of the intervals, for example ``95 %``."""
    alpha = report.context.alpha_one_sided
    return "" if alpha is None else f"{100 * (1 - 2 * alpha):g} %"


def level(report: Report) -> str | None:
    """Say alpha, level and margin in one sentence; None where there is no protocol."""
    alpha, margin = report.context.alpha_one_sided, report.context.margin
    if alpha is None or margin is None:
        return None
    return (
        f"one-sided alpha {alpha:g} = {confidence(report)} interval; margin {100 * margin:g} % slower: "
        f"the upper bound is held against {1 + margin:.12g}; ratio = candidate / baseline, lower is better"
    )


def member_verdict(report: Report, item: Comparison) -> Verdict:
    """Give the verdict that counts for the claim: the family member's where the report has one, else its own."""
    family = plain(report.numbers.family) if report.numbers is not None else None
    members = family.get("members") if isinstance(family, dict) else None
    for member in members if isinstance(members, list) else ():
        same = isinstance(member, dict) and all(
            member.get(key) == getattr(item, key) for key in ("operating_point", "candidate", "baseline")
        )
        if same and isinstance(member, dict):
            return Verdict(str(member["verdict"]))
    return item.verdict


def reproducibility(report: Report, item: Comparison) -> str | None:
    """Say how many outputs, and in brackets how many modes, the repeats of candidate and baseline gave; None where no mode was recorded."""
    arms = report.numbers.arms if report.numbers is not None else ()
    found = {arm.arm: arm for arm in arms if arm.operating_point == item.operating_point}
    both = [found[name] for name in (item.candidate, item.baseline) if name in found]
    if not any(arm.distinct_modes is not None for arm in both):
        return None
    return " : ".join(
        "-" if arm.distinct_outputs is None else f"{arm.distinct_outputs} ({arm.distinct_modes or '-'})" for arm in both
    )


def deciding_look(report: Report) -> int | None:
    """Give the number of processes of the look that decided; None where the protocol has no looks."""
    family = plain(report.numbers.family) if report.numbers is not None else None
    looks = family.get("looks") if isinstance(family, dict) else None
    last = looks[-1] if isinstance(looks, list) and looks else None
    processes = last.get("processes") if isinstance(last, dict) else None
    return processes if isinstance(processes, int) else None


def claim_shown(report: Report, item: Comparison) -> bool | None:
    """Say whether the data show what a comparison claims; None for a descriptive one."""
    if item.claim == "descriptive":
        return None
    verdict = member_verdict(report, item)
    if item.claim == "superior":
        return verdict is Verdict.SUPERIOR
    return verdict in SHOWN and dict(extras(item)).get("equivalent") is not False


def extras(item: Comparison) -> Iterator[tuple[str, Json]]:
    """Give the numbers on request of a comparison, by name."""
    value = plain(item)
    for key, entry in value.items() if isinstance(value, dict) else ():
        if key not in _STANDARD and entry is not None:
            yield key, entry


def command(report: Report) -> str:
    """Give the command that checks a bundle again."""
    return f"validator report {shlex.quote(clean(report.bundle.path))}"
