"""Claims that do not follow from the samples: analysis.json edited, or samples edited under it."""

import json
import math
from typing import Any

from validator.mutations.mutation import all_of, collected, having, mutation, with_rows
from validator.mutations.schedule import PER_PROCESS
from validator.mutations.timing import arm_with, renumber, scale, subject
from validator.mutations.workspace import NoSubjectError, WorkingCopy
from validator.reasons import Reason

CLAIMED = having(has_analysis=True)


@mutation(Reason.ANALYSIS_INVALID, applies_to=CLAIMED)
def analysis_truncated(copy: WorkingCopy) -> None:
    """The second half of analysis.json is cut off."""
    data = copy.path("analysis.json").read_bytes()
    copy.path("analysis.json").write_bytes(data[: len(data) // 2])


@mutation(Reason.ANALYSIS_INVALID, applies_to=CLAIMED)
def analysis_without_family(copy: WorkingCopy) -> None:
    """The analysis does not say what it concludes."""
    analysis = copy.read_json("analysis.json")
    del analysis["family"]
    copy.write_json("analysis.json", analysis)


@mutation(Reason.ANALYSIS_INVALID, applies_to=CLAIMED)
def analysis_with_nan(copy: WorkingCopy) -> None:
    """A ratio is NaN, which is no JSON."""
    _edit(copy, "comparisons", ratio=lambda _: math.nan)


@mutation(Reason.ANALYSIS_INVALID, applies_to=CLAIMED)
def analysis_with_key_twice(copy: WorkingCopy) -> None:
    """The analysis states its family twice: readers differ on which one counts."""
    text = copy.path("analysis.json").read_bytes().decode()
    head, brace, tail = text.partition("{")
    family = '"family": {"claim": "all-points", "verdict": "superior", "comparisons": 1}'
    copy.path("analysis.json").write_bytes(f"{head}{brace}{family},{tail}".encode())


@mutation(Reason.ANALYSIS_STALE, applies_to=CLAIMED)
def analysis_of_another_manifest(copy: WorkingCopy) -> None:
    """The analysis names the digest of another manifest."""
    copy.write_json("analysis.json", {**copy.read_json("analysis.json"), "manifest_sha256": "0" * 64})


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def ratio_edited(copy: WorkingCopy) -> None:
    """A ratio is one percent better."""
    _edit(copy, "comparisons", ratio=lambda ratio: 0.99 * ratio)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def upper_bound_edited(copy: WorkingCopy) -> None:
    """An upper bound is better by one part in a billion."""
    _edit(copy, "comparisons", upper=lambda upper: (1 - 1e-9) * upper)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def margin_in_the_claim_edited(copy: WorkingCopy) -> None:
    """A comparison claims to have been judged by a wider margin."""
    _edit(copy, "comparisons", margin=lambda margin: 2 * margin)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def p_value_edited(copy: WorkingCopy) -> None:
    """A p-value is smaller."""
    _edit(copy, "comparisons", p_non_inferior=lambda p: p / 2 if p > 1e-290 else 1e-6)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def verdict_edited(copy: WorkingCopy) -> None:
    """A verdict is another one."""
    _edit(copy, "comparisons", verdict=_other_verdict)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def skewness_edited(copy: WorkingCopy) -> None:
    """A comparison calls its process ratios symmetric."""
    _edit(copy, "comparisons", diagnostics=lambda found: {**found, "skewness": 0.0})


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def largest_ratio_left_out(copy: WorkingCopy) -> None:
    """A comparison does not say how slow the candidate's worst process was."""
    _edit(copy, "comparisons", diagnostics=lambda found: {k: v for k, v in found.items() if k != "largest_ratio"})


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def analysis_nobody_asked_for(copy: WorkingCopy) -> None:
    """A comparison shows an analysis that the protocol did not name, because it came out well."""
    fine = [{"method": "hodges-lehmann", "ratio": 0.9, "lower": 0.8, "upper": 0.95, "p_non_inferior": 0.001}]
    analysis = copy.read_json("analysis.json")
    named = "sensitivity" in analysis["comparisons"][0]
    analysis["comparisons"][0]["sensitivity"] = [] if named else fine
    copy.write_json("analysis.json", analysis)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def gate_edited(copy: WorkingCopy) -> None:
    """A comparison hides its gates, or invents one."""
    _edit(copy, "comparisons", gates=lambda gates: [] if gates else [{"gate": "clocks", "detail": ""}])


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def comparison_left_out(copy: WorkingCopy) -> None:
    """The analysis does not mention one of the comparisons."""
    analysis = copy.read_json("analysis.json")
    copy.write_json("analysis.json", {**analysis, "comparisons": analysis["comparisons"][:-1]})


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def control_edited(copy: WorkingCopy) -> None:
    """A control's ratio is exactly one."""
    _edit(copy, "controls", ratio=lambda ratio: 1.0 if ratio != 1.0 else 1.001)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def median_edited(copy: WorkingCopy) -> None:
    """An arm's median is one percent shorter."""
    _edit(copy, "arms", median_ns=lambda median: 0.99 * median)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def bandwidth_edited(copy: WorkingCopy) -> None:
    """An arm's bandwidth is one percent higher."""
    _edit(copy, "arms", gb_per_s=lambda bandwidth: 1.01 * bandwidth)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def sample_count_edited(copy: WorkingCopy) -> None:
    """An arm claims one sample more."""
    _edit(copy, "arms", samples=lambda samples: samples + 1)


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def family_verdict_edited(copy: WorkingCopy) -> None:
    """The verdict over all points is another one."""
    analysis = copy.read_json("analysis.json")
    family = analysis["family"]
    copy.write_json("analysis.json", {**analysis, "family": {**family, "verdict": _other_verdict(family["verdict"])}})


@mutation(Reason.CLAIM_MISMATCH, applies_to=CLAIMED)
def analysis_of_another_run(copy: WorkingCopy) -> None:
    """The analysis is that of another run."""
    copy.write_json("analysis.json", {**copy.read_json("analysis.json"), "run_id": "20200101T000000Z-00000000"})


@mutation(Reason.CLAIM_MISMATCH, reseal=True, applies_to=CLAIMED)
def process_called_failed(copy: WorkingCopy) -> None:
    """A process whose last rows are cut off is said to have failed, everything resealed but the analysis."""
    key = subject(copy)
    copy.set_values("processes", copy.rows("processes", **key), status="failed", reason="killed")
    copy.drop("samples", copy.rows("samples", **key)[-1:])
    copy.write_ledger([*copy.ledger()[:-1], {**copy.ledger()[-1], "status": "failed_processes"}], chain=True)


@mutation(Reason.CLAIM_MISMATCH, reseal=True, applies_to=CLAIMED)
def candidate_called_unsupported(copy: WorkingCopy) -> None:
    """The candidate's rows at a point are gone: it is said not to be supported there."""
    arm, point = arm_with(copy, "candidate"), copy.column("samples", "point")[0]
    stated = [json.loads(text) for text in copy.column("processes", "unsupported")]
    texts = [json.dumps([*entries, [point, arm, "unsupported"]], separators=(",", ":")) for entries in stated]
    copy.set_columns("processes", unsupported=texts)
    for name in ("samples", "telemetry", "correctness", "kernels", "repeats"):
        copy.drop(name, copy.rows(name, point=point, arm=arm))
    renumber(copy)


@mutation(Reason.CLAIM_MISMATCH, reseal=True, applies_to=all_of(CLAIMED, with_rows("kernels")))
def kernels_emptied(copy: WorkingCopy) -> None:
    """Nothing is said about kernels any more, everything resealed but the analysis."""
    if copy.read_environment(0)["device"] == "cuda":
        raise NoSubjectError("a CUDA device has to say what it launched")
    copy.take("kernels", [])


@mutation(Reason.ROWS_MISSING, reseal=True, applies_to=all_of(CLAIMED, with_rows("repeats")))
def repeats_emptied(copy: WorkingCopy) -> None:
    """Nothing is said about repeated outputs any more, everything resealed but the analysis."""
    copy.take("repeats", [])


@mutation(Reason.CLAIM_MISMATCH, reseal=True, applies_to=all_of(CLAIMED, with_rows("repeats")))
def output_of_another_call(copy: WorkingCopy) -> None:
    """A deterministic arm's repeats are alike, but what was compared with the truth in one process was another output."""
    compared = {copy.protocol()["comparison"][0][side] for side in ("candidate", "baseline")}
    arms = {arm["name"]: arm["correctness"] for arm in copy.protocol()["arm"] if arm["name"] in compared}
    name = next((name for name, held in arms.items() if held.get("deterministic")), None)
    if name is None:
        raise NoSubjectError("no arm of the first comparison claims to be deterministic")
    rows = copy.rows("correctness", **subject(copy), arm=name, truth=arms[name]["truth"])
    copy.set_values("correctness", rows, output_sha256="0" * 64)


@mutation(Reason.CLAIM_MISMATCH, reseal=True, applies_to=CLAIMED)
def baseline_slowed(copy: WorkingCopy) -> None:
    """The baseline's samples of one process are three percent longer, everything resealed but the analysis."""
    rows = copy.rows("samples", **subject(copy), arm=arm_with(copy, "baseline"), warmup=False)
    scale(copy, rows, 1.03)


@mutation(Reason.CLAIM_MISMATCH, reseal=True, applies_to=all_of(CLAIMED, having(has_peak=False)))
def candidate_scaled(copy: WorkingCopy) -> None:
    """All samples of the candidate are three percent shorter, everything resealed but the analysis."""
    scale(copy, copy.rows("samples", arm=arm_with(copy, "candidate")), 0.97)


@mutation(Reason.STOP_UNWARRANTED, reseal=True, applies_to=all_of(CLAIMED, having(looks=True)))
def stopped_at_an_undecided_look(copy: WorkingCopy) -> None:
    """The run ends at a look that does not show the claim, its later processes gone; everything resealed, nothing claimed."""
    looks = copy.read_json("analysis.json")["family"]["looks"]
    if len(looks) == 1:
        raise NoSubjectError("no look before the one that decided")
    for name in PER_PROCESS:
        copy.drop(name, copy.rows(name, process=lambda process: process >= looks[0]["processes"]))
    copy.write_ledger([*copy.ledger()[:-1], {**copy.ledger()[-1], "status": "stopped_at_look"}], chain=True)
    copy.path("analysis.json").unlink()


@mutation(Reason.STOP_UNWARRANTED, reseal=True, applies_to=having(looks=True))
def slower_than_when_it_stopped(copy: WorkingCopy) -> None:
    """The candidate of a run that stopped early is three times as slow; everything resealed, nothing claimed."""
    if copy.ledger()[-1]["status"] != "stopped_at_look":
        raise NoSubjectError("the run took all planned pairs")
    scale(copy, copy.rows("samples", arm=arm_with(copy, "candidate")), 3.0)
    copy.path("analysis.json").unlink(missing_ok=True)


@mutation(Reason.SYNTHETIC, reseal=True)
def synthetic_mark_flipped(copy: WorkingCopy) -> None:
    """A real run is marked synthetic; or the mark of a synthetic one is removed, while its device is still the fake one."""
    manifest = copy.read_json("manifest.json")
    copy.write_json("manifest.json", {**manifest, "synthetic": not manifest["synthetic"]})


def _edit(copy: WorkingCopy, section: str, **changes: Any) -> None:
    """Change fields of the first entry of a section in which they are not null."""
    analysis = copy.read_json("analysis.json")
    for field, change in changes.items():
        entry = next((entry for entry in analysis[section] if entry[field] is not None), None)
        if entry is None:
            raise NoSubjectError(f"no {field} is claimed")
        entry[field] = change(entry[field])
    copy.write_json("analysis.json", analysis)


def _other_verdict(verdict: str) -> str:
    return "inferior" if verdict == "superior" else "superior"


MUTATIONS = collected(globals())
