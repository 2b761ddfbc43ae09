"""analysis.json: it holds no time and depends on the bundle alone, so the same bundle gives the same bytes."""

import json
from pathlib import Path
from typing import Any

from benchkit.analysis.analyst import Analysis, ComparisonRow, ControlRow, PooledRow, analyse
from benchkit.bundle.reader import Bundle, open_bundle
from benchkit.bundle.seal import ANALYSIS
from benchkit.protocol.files import write_text
from benchkit.statistics.family import MemberResult
from benchkit.statistics.interval import exponential

ANALYSIS_SCHEMA = "benchkit.analysis/1"


def write_analysis(folder: Path) -> Analysis:
    """Analyse the sealed bundle in ``folder`` and write its analysis.json."""
    bundle = open_bundle(folder)
    analysis = analyse(bundle)
    write_text(folder / ANALYSIS, json.dumps(_document(bundle, analysis), indent=2, allow_nan=False) + "\n")
    return analysis


def _document(bundle: Bundle, analysis: Analysis) -> dict[str, Any]:
    claims = analysis.claims
    return {
        "schema": ANALYSIS_SCHEMA,
        "manifest_sha256": bundle.manifest_sha256,
        "protocol_digest": bundle.protocol_digest,
        "run_id": bundle.run_id,
        "comparisons": [_comparison_document(row) for row in claims.comparisons],
        "controls": [_control_document(row) for row in claims.controls],
        "arms": list(analysis.arms),
        "family": _family_document(analysis),
    }


def _family_document(analysis: Analysis) -> dict[str, Any]:
    claims = analysis.claims
    document: dict[str, Any] = {
        "claim": claims.family.claim,
        "verdict": claims.family.verdict.value,
        "comparisons": claims.family.comparisons,
    }
    if claims.members is not None:
        document["members"] = [_member_document(row, found) for row, found in claims.members]
    if claims.pooled is not None:
        document["pooled"] = [_pooled_document(row) for row in claims.pooled]
    if analysis.looks:
        document["looks"] = [
            {"processes": look.processes, "alpha_one_sided": look.alpha_one_sided, "verdict": look.verdict}
            for look in analysis.looks
        ]
    return document


def _member_document(row: ComparisonRow, found: MemberResult) -> dict[str, Any]:
    return {
        "operating_point": row.point.id,
        "candidate": row.comparison.candidate,
        "baseline": row.comparison.baseline,
        "p_non_inferior_adjusted": found.p_non_inferior_adjusted,
        "p_superior_adjusted": found.p_superior_adjusted,
        "verdict": found.verdict.value,
    }


def _pooled_document(row: PooledRow) -> dict[str, Any]:
    interval = row.interval
    return {
        "candidate": row.candidate,
        "baseline": row.baseline,
        "points": row.points,
        "pairs": interval.pairs,
        "ratio": interval.ratio,
        "lower": interval.lower,
        "upper": interval.upper,
        "p_non_inferior": interval.p_non_inferior,
        "p_superior": interval.p_superior,
        "unbounded": interval.unbounded,
    }


def _comparison_document(row: ComparisonRow) -> dict[str, Any]:
    result = row.result
    document: dict[str, Any] = {
        "operating_point": row.point.id,
        "candidate": row.comparison.candidate,
        "baseline": row.comparison.baseline,
        "claim": row.comparison.claim,
        "ratio": result.ratio,
        "lower": result.lower,
        "upper": result.upper,
        "margin": result.margin,
        "alpha_one_sided": result.alpha_one_sided,
        "pairs": result.pairs,
        "p_non_inferior": result.p_non_inferior,
        "p_superior": result.p_superior,
        "guarded": result.guarded,
        "numerical_tie": result.numerical_tie,
        "unbounded": result.unbounded,
        "verdict": result.verdict.value,
        "gates": [{"gate": finding.gate.value, "detail": finding.detail} for finding in result.gates],
        "diagnostics": {
            "skewness": None if row.tail is None else row.tail.skewness,
            "largest_ratio": None if row.tail is None else exponential(row.tail.largest),
            "tail_quantile": None if row.tail is None else row.tail.covered,
        },
    }
    if row.sensitivity is not None:
        document["sensitivity"] = [
            {
                "method": found.method,
                "ratio": found.ratio,
                "lower": found.lower,
                "upper": found.upper,
                "p_non_inferior": found.p_non_inferior,
            }
            for found in row.sensitivity
        ]
    if row.equivalence is not None:
        document |= {
            "p_lower": row.equivalence.p_lower,
            "p_upper": row.equivalence.p_upper,
            "p_equivalence": row.equivalence.p_equivalence,
            "equivalent": row.equivalence.equivalent,
            "failing_side": row.equivalence.failing_side.value,
        }
    return document


def _control_document(row: ControlRow) -> dict[str, Any]:
    result = row.result
    return {
        "operating_point": row.point.id,
        "arm": row.arm.name,
        "of": row.arm.of,
        "role": result.role.value,
        "ratio": result.ratio,
        "lower": result.lower,
        "upper": result.upper,
        "pairs": result.pairs,
        "guarded": result.guarded,
        "unbounded": result.unbounded,
        "p_differs": result.p_differs,
        "p_differs_holm": result.p_differs_holm,
        "dose": result.dose,
    }
