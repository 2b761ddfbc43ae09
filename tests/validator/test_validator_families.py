"""Families, equivalence, quantile claims and looks in whole bundles; and the strictness of the keys that ask for them."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builder
import pytest

from validator.findings import Numbers, Report, Verdict
from validator.reading.model import Statistics
from validator.reading.protocol import read_protocol
from validator.reasons import Reason
from validator.report.document import document
from validator.report.text import render_text
from validator.validate import validate

QUANTILES = "geometric-mean-of-quantile-ratios"
ALL = ["hodges-lehmann", "sign-flip", "bootstrap-t"]


def read(change: Callable[[builder.Row], object], pairs: int = 20) -> tuple[Statistics | None, list[str]]:
    value = builder.document(clock="host", pairs=pairs, alpha=0.05, margin="2%")
    value["schedule"]["blocks"] = 4
    change(value)
    found = read_protocol("".join(f"{key} = {builder.toml(item)}\n" for key, item in value.items()).encode())
    return found.protocol.statistics if found.protocol else None, [text.split(":")[0] for text in found.problems]


def asked(**keys: Any) -> Callable[[builder.Row], None]:
    return lambda value: value["statistics"].update(keys)


def test_nothing_asked() -> None:
    found, problems = read(lambda value: None)
    assert problems == []
    assert found == Statistics(alpha=0.05, margin=0.02)
    assert (found.family, found.lists_members) == ("all-points", False)


def test_everything_asked() -> None:
    def change(value: builder.Row) -> None:
        value["schedule"]["blocks"] = 20
        value["comparison"][0]["claim"] = "equivalent"
        asked(
            family="named-points", named_points=["mib=2"], superiority="gatekeeping", pooled=True,
            sensitivity=[*ALL, "fieller"], estimand=QUANTILES, quantile=0.9, quantile_type=8, looks=[6, 10, 20],
        )(value)  # fmt: skip

    found, problems = read(change)
    assert problems == []
    assert found == Statistics(
        alpha=0.05, margin=0.02, named_points=("mib=2",), gatekeeping=True, pooled=True,
        sensitivity=(*ALL, "fieller"), quantile=0.9, quantile_type=8, looks=(6, 10, 20),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"family": "some-points"}, "family"),
        ({"family": "named-points"}, "named_points"),
        ({"family": "named-points", "named_points": []}, "named_points"),
        ({"family": "named-points", "named_points": ["mib=3"]}, "named_points"),
        ({"family": "named-points", "named_points": ["mib=1", "mib=1"]}, "named_points"),
        ({"named_points": ["mib=1"]}, "named_points"),
        ({"superiority": "always"}, "superiority"),
        ({"superiority": True}, "superiority"),
        ({"pooled": False}, "pooled"),
        ({"pooled": 1}, "pooled"),
        ({"sensitivity": ["jackknife"]}, "sensitivity"),
        ({"sensitivity": ["bca", "bca"]}, "sensitivity"),
        ({"sensitivity": "bca"}, "sensitivity"),
        ({"estimand": QUANTILES, "quantile_type": 7}, "quantile"),
        ({"estimand": QUANTILES, "quantile": 0.5}, "quantile_type"),
        ({"estimand": QUANTILES, "quantile": 0.5, "quantile_type": 6}, "quantile_type"),
        ({"estimand": QUANTILES, "quantile": 0.49, "quantile_type": 7}, "quantile"),
        ({"estimand": QUANTILES, "quantile": 1, "quantile_type": 7}, "quantile"),
        ({"estimand": QUANTILES, "quantile": 0.95, "quantile_type": 7}, "quantile"),
        ({"quantile": 0.5}, "quantile"),
        ({"looks": [20]}, "looks"),
        ({"looks": [5, 20]}, "looks"),
        ({"looks": [10, 10, 20]}, "looks"),
        ({"looks": [15, 10, 20]}, "looks"),
        ({"looks": [10.0, 20]}, "looks"),
        ({"looks": [True, 20]}, "looks"),
        ({"looks": [10, 15]}, "looks"),
        ({"peeking": True}, "peeking"),
    ],
)
def test_strict_keys(keys: builder.Row, where: str) -> None:
    _, problems = read(asked(**keys))
    assert problems == [f"statistics.{where}"]


def test_a_named_point_needs_a_claim() -> None:
    def change(value: builder.Row) -> None:
        asked(family="named-points", named_points=["mib=1"])(value)
        value["comparison"][0]["claim"] = "descriptive"

    assert read(change) == (None, ["statistics.named_points"])


def test_controls_are_needed_in_the_family_alone() -> None:
    def change(value: builder.Row) -> None:
        next(arm for arm in value["arm"] if arm["name"] == "same")["points"] = ["mib=1"]

    def named(value: builder.Row) -> None:
        change(value)
        asked(family="named-points", named_points=["mib=1"])(value)

    assert read(change)[1] == ["arm"]
    assert read(named)[1] == []


# bundles


def by_arm(cand: float, spread: float = 0.002, points: dict[str, float] | None = None) -> builder.Duration:
    """Durations of 1 ms; the candidate differs by a factor that varies between processes."""

    def duration(process: int, point: str, block: int, arm: str, sample: int) -> int:
        own = (points or {}).get(point, cand)
        wobble = spread * math.sin(7.3 * process + len(point) + int(point[-1]))
        scale = {
            "base": 1.0,
            "cand": own * math.exp(wobble),
            "same": 1 + wobble / 4,
            "slow": 1.03 + wobble / 4,
            "copy": 0.5,
        }
        noise = int(builder.sha(f"{process}/{point}/{block}/{arm}/{sample}")[:4], 16) % 97
        return round(1_000_000 * scale[arm]) + noise

    return duration


def report(
    tmp_path: Path, keys: builder.Row, *, claim: str = "non_inferior", pairs: int = 6, blocks: int = 2, **options: Any
) -> Report:
    def change(value: builder.Row) -> None:
        value["statistics"].update(keys)
        value["comparison"][0]["claim"] = claim
        value["schedule"]["blocks"] = blocks

    found = validate(builder.draft(pairs=pairs, change=change, **options).seal(tmp_path / "b"))
    assert found.codes == ()
    return found


def numbers(found: Report) -> Numbers:
    assert found.numbers is not None
    return found.numbers


NAMED = {"family": "named-points", "named_points": ["mib=1", "mib=2"]}


def test_named_points_adjust_by_holm(tmp_path: Path) -> None:
    duration = by_arm(1.0, 0.02, {"mib=1": 0.99, "mib=2": 1.0})
    found = numbers(report(tmp_path, NAMED, duration=duration))
    p = [item.p_non_inferior for item in found.comparisons]
    assert None not in p
    members = found.family.members
    assert members is not None
    smaller, larger = sorted(value for value in p if value is not None)
    assert sorted(member.p_non_inferior_adjusted for member in members) == pytest.approx(
        [2 * smaller, max(2 * smaller, larger)], rel=1e-12
    )
    assert (found.family.claim, found.family.comparisons) == ("named-points", 2)


def test_points_outside_of_the_family_are_reported(tmp_path: Path) -> None:
    keys = {"family": "named-points", "named_points": ["mib=2"], "pooled": True}
    found = numbers(report(tmp_path, keys, duration=by_arm(1.0, points={"mib=1": 1.1, "mib=2": 0.99})))
    assert [item.verdict for item in found.comparisons] == [Verdict.INFERIOR, Verdict.SUPERIOR]
    assert found.family.verdict is Verdict.SUPERIOR
    assert found.family.members is not None
    assert [member.operating_point for member in found.family.members] == ["mib=2"]
    assert found.family.pooled is not None
    assert [(row.points, row.pairs) for row in found.family.pooled] == [(1, 6)]
    assert found.family.pooled[0].upper == pytest.approx(found.comparisons[1].upper, rel=1e-14)


def test_gatekeeping_closes_superiority(tmp_path: Path) -> None:
    keys = {"superiority": "gatekeeping"}
    duration = by_arm(1.0, points={"mib=1": 0.98, "mib=2": 1.1})
    found = numbers(report(tmp_path, keys, duration=duration))
    assert found.family.members is not None
    assert [(m.p_superior_adjusted, m.verdict) for m in found.family.members] == [
        (None, Verdict.NON_INFERIOR),
        (None, Verdict.INFERIOR),
    ]
    assert found.comparisons[0].verdict is Verdict.SUPERIOR
    assert found.family.verdict is Verdict.INFERIOR


def test_pooled_ratio(tmp_path: Path) -> None:
    found = numbers(report(tmp_path, {"pooled": True}, duration=by_arm(1.0, points={"mib=1": 0.98, "mib=2": 1.02})))
    assert found.family.members is None
    assert found.family.pooled is not None
    (row,) = found.family.pooled
    ratios = [item.ratio for item in found.comparisons]
    assert row.ratio == pytest.approx(math.sqrt((ratios[0] or 0) * (ratios[1] or 0)), rel=1e-12)
    assert (row.points, row.pairs, row.unbounded) == (2, 6, False)


def test_equivalence(tmp_path: Path) -> None:
    found = report(tmp_path, {}, claim="equivalent", duration=by_arm(1.0, points={"mib=1": 0.97, "mib=2": 1.0}))
    first, second = numbers(found).comparisons
    assert first.equivalence is not None
    assert second.equivalence is not None
    assert (first.verdict, first.equivalence.equivalent, first.equivalence.failing_side) == (
        Verdict.SUPERIOR,
        False,
        "lower",
    )
    assert (second.equivalence.equivalent, second.equivalence.failing_side) == (True, "none")
    assert second.equivalence.p_equivalence == max(second.equivalence.p_lower or 0, second.equivalence.p_upper or 0)
    assert numbers(found).family.verdict is Verdict.INCONCLUSIVE
    shown: Any = document(found)["comparisons"]
    assert list(shown[0])[-6:] == ["diagnostics", "p_lower", "p_upper", "p_equivalence", "equivalent", "failing_side"]


def test_quantile_claims(tmp_path: Path) -> None:
    keys = {"estimand": QUANTILES, "quantile": 0.9, "quantile_type": 7}

    def tail(process: int, point: str, block: int, arm: str, sample: int) -> int:
        slow = 1.2 if arm == "cand" and block >= 0 and (block + sample) % 5 == 0 else 1.0
        return round(by_arm(1.0)(process, point, block, arm, sample) * slow)

    options = {"duration": tail, "blocks": 20}
    claimed = numbers(report(tmp_path / "q", keys, **options))
    plain = numbers(report(tmp_path / "m", {}, **options))
    assert [item.verdict for item in claimed.comparisons] == [Verdict.INFERIOR] * 2
    assert [item.verdict for item in plain.comparisons] == [Verdict.NON_INFERIOR] * 2
    assert claimed.arms == plain.arms
    assert [item.dose for item in claimed.controls] == [item.dose for item in plain.controls]


def test_the_first_look_that_shows_decides(tmp_path: Path) -> None:
    """From the seventh process on the candidate is far slower; nobody looks there."""

    def later(process: int, point: str, block: int, arm: str, sample: int) -> int:
        return by_arm(0.99 if process < 6 else 1.3)(process, point, block, arm, sample)

    found = report(tmp_path, {"looks": [6, 8]}, pairs=8, duration=later)
    family = numbers(found).family
    assert family.looks is not None
    assert [(look.processes, look.verdict) for look in family.looks] == [(6, Verdict.SUPERIOR)]
    assert {item.alpha_one_sided for item in numbers(found).comparisons} == {family.looks[0].alpha_one_sided}
    assert {item.pairs for item in (*numbers(found).comparisons, *numbers(found).controls)} == {6}
    assert {arm.samples for arm in numbers(found).arms} == {8 * 6}
    assert "one-sided alpha 0.0236" in render_text(found, lambda text, _: text)


def test_a_look_without_an_answer_goes_on(tmp_path: Path) -> None:
    found = numbers(report(tmp_path, {"looks": [6, 7, 8]}, pairs=8, duration=by_arm(1.05)))
    assert found.family.looks is not None
    assert [(look.processes, look.verdict) for look in found.family.looks] == [
        (count, Verdict.INFERIOR) for count in (6, 7, 8)
    ]


def cut(tmp_path: Path, keys: builder.Row, *, held: int, pairs: int, status: str, cand: float) -> Report:
    """A run of which only the first processes are there, as if it had ended then."""
    draft = builder.draft(pairs=pairs, change=asked(**keys), duration=by_arm(cand))
    for rows in (draft.samples, *draft.tables.values()):
        rows[:] = [row for row in rows if row.get("process", 0) < held]
    draft.ledger[-1]["status"] = status
    return validate(draft.seal(tmp_path / "b"))


@pytest.mark.parametrize(
    ("held", "status", "cand", "codes"),
    [
        (6, "stopped_at_look", 0.99, ()),
        (9, "stopped_at_look", 0.99, ()),
        (6, "complete", 0.99, (Reason.LEDGER_BROKEN,)),
        (6, "stopped_at_look", 1.05, (Reason.STOP_UNWARRANTED,)),
        (9, "stopped_at_look", 1.05, (Reason.STOP_UNWARRANTED,)),
        (8, "stopped_at_look", 0.99, (Reason.PROCESS_MISSING,) * 4),
        (3, "complete", 0.99, (Reason.PROCESS_MISSING,) * 9),
    ],
)
def test_a_run_may_end_early_only_at_a_look_that_shows_the_claim(
    tmp_path: Path, held: int, status: str, cand: float, codes: tuple[Reason, ...]
) -> None:
    found = cut(tmp_path, {"looks": [6, 9, 12]}, held=held, pairs=12, status=status, cand=cand)
    assert found.codes == codes
    if codes == (Reason.STOP_UNWARRANTED,):
        (finding,) = found.reasons
        assert finding.expected == "12 process pairs, or an end at a look that shows the claim"
        assert finding.got == f"an end after {held} pairs, where the look says inferior"
    if held == 9 and not codes:
        assert found.notes[-1] == "looks: superior at 6 of 12 planned process pairs; 3 later pairs enter no verdict"


def test_without_looks_a_run_ends_with_its_last_pair(tmp_path: Path) -> None:
    found = cut(tmp_path, {}, held=6, pairs=8, status="complete", cand=0.99)
    assert found.codes == (Reason.PROCESS_MISSING,) * 2


def test_a_look_takes_the_timers_resolution_from_the_rows_so_far(tmp_path: Path) -> None:
    """Steps of 15 us are too coarse for a margin of 20 us; later processes read a finer timer, and change nothing of the first look."""

    def finer(process: int, point: str, block: int, arm: str, sample: int) -> int:
        exact = by_arm(0.9)(process, point, block, arm, sample)
        return exact if process >= 6 else round(exact / 15_000) * 15_000

    family = numbers(report(tmp_path, {"looks": [6, 8]}, pairs=8, duration=finer)).family
    assert family.looks is not None
    assert [(look.processes, look.verdict) for look in family.looks] == [
        (6, Verdict.INCONCLUSIVE),
        (8, Verdict.SUPERIOR),
    ]


def test_sensitivity_is_always_shown(tmp_path: Path) -> None:
    found = report(tmp_path, {"sensitivity": ["welch", *ALL]}, duration=by_arm(1.0), claim="descriptive")
    for item in numbers(found).comparisons:
        assert item.sensitivity is not None
        assert [row.method for row in item.sensitivity] == ALL
    text = render_text(found, lambda text, _: text)
    assert "sensitivity (pre-specified, always shown, in no verdict)" in text
    assert "below 40 pairs skewed process effects" in text


def test_claims_beyond_the_default(tmp_path: Path) -> None:
    """Everything on request stands in analysis.json, and each of its numbers is checked."""
    keys = NAMED | {"pooled": True, "sensitivity": ALL, "looks": [6, 7]}
    found = report(tmp_path, keys, pairs=7, duration=by_arm(1.0, 0.02), claim="equivalent")
    bundle, own = tmp_path / "b", document(found)
    right: Any = {key: own[key] for key in ("comparisons", "controls", "arms", "family")} | {
        "schema": "benchkit.analysis/1",
        "manifest_sha256": builder.sha((bundle / "manifest.json").read_bytes()),
        "protocol_digest": found.bundle.protocol_digest,
        "run_id": builder.RUN_ID,
    }

    def claim(*path: Any, value: Any) -> list[tuple[Reason, str]]:
        changed = json.loads(json.dumps(right))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value(place[path[-1]]) if callable(value) else value
        (bundle / "analysis.json").write_text(json.dumps(changed))
        return [(finding.reason, finding.where) for finding in validate(bundle).reasons]

    def mismatch(where: str) -> list[tuple[Reason, str]]:
        return [(Reason.CLAIM_MISMATCH, where)]

    assert claim("run_id", value=builder.RUN_ID) == []
    better: Callable[[float], float] = lambda x: x * (1 - 1e-7)  # noqa: E731
    first, row = ("comparisons", 0), ("comparisons", 0, "sensitivity", 0)
    assert claim(*row, "upper", value=better) == mismatch("$.comparisons[0].sensitivity[0].upper")
    assert claim(*row, "method", value="bca") == mismatch("$.comparisons[0].sensitivity[0].method")
    assert claim(*first, "p_equivalence", value=better) == mismatch("$.comparisons[0].p_equivalence")
    assert claim(*first, "failing_side", value="x") == mismatch("$.comparisons[0].failing_side")
    assert claim(*first, "diagnostics", "skewness", value=lambda x: x + 1e-8) == mismatch(
        "$.comparisons[0].diagnostics.skewness"
    )
    assert claim(*first, "diagnostics", "skewness", value=lambda x: x + 1e-10) == []
    assert claim(*first, "alpha_one_sided", value=lambda x: x + 5e-10) == []
    assert claim(*first, "alpha_one_sided", value=lambda x: x + 5e-9) == mismatch("$.comparisons[0].alpha_one_sided")
    member = ("family", "members", 1)
    assert claim(*member, "p_non_inferior_adjusted", value=better) == mismatch(
        "$.family.members[1].p_non_inferior_adjusted"
    )
    assert claim("family", "members", value=lambda x: x[:1]) == mismatch("$.family.members")
    assert claim("family", "pooled", 0, "ratio", value=better) == mismatch("$.family.pooled[0].ratio")
    assert claim("family", "looks", 0, "processes", value=7) == mismatch("$.family.looks[0].processes")


def test_requests_do_not_load_scipy_stats(tmp_path: Path) -> None:
    report(tmp_path, NAMED | {"sensitivity": ALL, "looks": [6, 7]}, pairs=7, duration=by_arm(1.0))
    code = (
        "import sys, pathlib\nfrom validator.validate import validate\nvalidate(pathlib.Path(sys.argv[1]))\n"
        "print([m for m in ('pandas', 'scipy.stats', 'scipy.optimize', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "b")], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
