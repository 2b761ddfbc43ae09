"""analysis.json: it holds no time and depends on the bundle alone, so the same bundle gives the same bytes."""

import json
from pathlib import Path
from typing import Any

from benchkit.analysis.analyst import Analysis, ComparisonRow, ControlRow, analyse
from benchkit.bundle.reader import Bundle, open_bundle
from benchkit.bundle.seal import ANALYSIS, write_text

ANALYSIS_SCHEMA = "benchkit.analysis/1"


def write_analysis(folder: Path) -> Analysis:
    """Analyse the sealed bundle in ``folder`` and write its analysis.json."""
    bundle = open_bundle(folder)
    analysis = analyse(bundle)
    write_text(folder / ANALYSIS, json.dumps(_document(bundle, analysis), indent=2, allow_nan=False) + "\n")
    return analysis


def _document(bundle: Bundle, analysis: Analysis) -> dict[str, Any]:
    return {
        "schema": ANALYSIS_SCHEMA,
        "manifest_sha256": bundle.manifest_sha256,
        "protocol_digest": bundle.protocol_digest,
        "run_id": bundle.run_id,
        "comparisons": [_comparison_document(row) for row in analysis.comparisons],
        "controls": [_control_document(row) for row in analysis.controls],
        "arms": list(analysis.arms),
        "family": {
            "claim": analysis.family.claim,
            "verdict": analysis.family.verdict.value,
            "comparisons": analysis.family.comparisons,
        },
    }


def _comparison_document(row: ComparisonRow) -> dict[str, Any]:
    result = row.result
    return {
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
    }


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
