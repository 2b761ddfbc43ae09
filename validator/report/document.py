"""The report as one strict JSON document, ``validator.report/1``.

Rules:
1. One document for one bundle, a list for several; nothing else goes to standard output.
2. NaN and infinity cannot enter: a number that does not exist is null.
3. Names are stable within the major version.
"""

import json

from validator.findings import Json, Report, plain
from validator.report.facts import limits

SCHEMA = "validator.report/1"


def document(report: Report) -> dict[str, Json]:
    """Give the JSON values of a report."""
    numbers, beside = report.numbers, report.supplement
    listed = () if numbers is None else numbers
    result: dict[str, Json] = {
        "schema": SCHEMA,
        "bundle": plain(report.bundle),
        "validity": report.validity.value,
        "reasons": plain(report.reasons),
        "not_checked": plain(report.not_checked),
        "not_applicable": plain(report.not_applicable),
        "notes": plain(report.notes),
        "other_attempts": report.context.other_attempts,
        "protocol_given": report.context.protocol_given,
        "comparisons": plain(listed and listed.comparisons),
        "controls": plain(listed and listed.controls),
        "arms": plain(listed and listed.arms),
        "family": plain(numbers and numbers.family),
        "accuracy": plain(beside and beside.accuracy) or [],
        "stages": plain(beside and beside.stages) or [],
        "bookkeeping": plain(beside and beside.bookkeeping) or [],
        "launches": plain(beside and beside.launches) or [],
        "invariance": plain(beside and beside.invariance) or [],
        "repacking": plain(beside and beside.repacking) or [],
        "power_cap": plain(beside and beside.power_cap) or [],
        "ceilings": plain(beside and beside.ceilings) or [],
        "uneven": plain(beside and beside.uneven) or [],
        "series": plain(beside and beside.series) or [],
        "limits": list(limits(report)),
    }
    if report.study is not None:
        result |= {"cells": plain(report.study.cells), "relations": plain(report.study.relations)}
    if report.study_facts is not None:
        result |= {"launches": plain(report.study_facts.launches), "swaps": plain(report.study_facts.swaps)}
    return result


def render_json(reports: list[Report]) -> str:
    """Render one report as an object, several as a list."""
    documents = [document(report) for report in reports]
    value = documents[0] if len(documents) == 1 else documents
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=True)
