"""The report as JUnit XML for dashboards of continuous integration: one suite per bundle.

Rules:
1. One case says whether the bundle can be believed: reasons fail it, what could not be checked is an error.
2. One case per comparison and operating point: it fails when its claim is not shown, a descriptive one never does.
3. Nothing passes in a bundle that is not VALID: its comparisons are errors, whatever their numbers say.
"""

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from validator.findings import Comparison, Report, Validity
from validator.outcomes import RelationResult, RelationVerdict
from validator.report.facts import UNTRUSTED, claim_shown, clean, command, headline, member_verdict, spread, trusted
from validator.report.table import against, number


def render_junit(reports: Sequence[Report]) -> str:
    """Render all bundles as one document."""
    root = ET.Element("testsuites", name="validator")
    for report in reports:
        root.append(_suite(report))
    _count(root, list(root.iter("testcase")))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")


def _suite(report: Report) -> ET.Element:
    bundle = report.bundle
    suite = ET.Element("testsuite", name=clean(bundle.protocol_id or bundle.path))
    properties = ET.SubElement(suite, "properties")
    values = {
        "bundle": bundle.path,
        "protocol_digest": bundle.protocol_digest,
        "run_id": bundle.run_id,
        "gpu": bundle.gpu,
        "headline": headline(report),
        "command": command(report),
    }
    for name, value in values.items():
        if value is not None:
            ET.SubElement(properties, "property", name=name, value=clean(value))
    suite.append(_validity(report))
    for item in report.numbers.comparisons if report.numbers is not None else ():
        suite.append(_comparison(report, item))
    for relation in report.study.relations if report.study is not None else ():
        suite.append(_relation(report, relation))
    _count(suite, list(suite.iter("testcase")))
    return suite


def _count(element: ET.Element, cases: list[ET.Element]) -> None:
    element.set("tests", str(len(cases)))
    for name in ("failure", "error"):
        element.set(f"{name}s", str(sum(case.find(name) is not None for case in cases)))
    if element.tag == "testsuite":
        element.set("skipped", "0")
    element.set("time", "0")


def _case(report: Report, name: str) -> ET.Element:
    group = f"validator.{report.bundle.protocol_id or 'bundle'}"
    return ET.Element("testcase", classname=clean(group), name=clean(name), time="0")


def _relation(report: Report, item: RelationResult) -> ET.Element:
    case = _case(report, f"{item.cell_a} : {item.cell_b} at {item.surface} (expected {item.expected})")
    if item.verdict is not RelationVerdict.CONFIRMED or not trusted(report):
        found = "no outcome" if item.equal is None else "equal" if item.equal else f"{item.differing} elements differ"
        message = item.verdict.value if trusted(report) else f"{item.verdict.value} ({UNTRUSTED})"
        ET.SubElement(case, "failure", type=item.verdict.value, message=message).text = found
    return case


def _validity(report: Report) -> ET.Element:
    case = _case(report, "validity")
    left = [f"not checked: {item.stage.value}, blocked by {item.blocked_by}" for item in report.not_checked]
    lines = [
        f"{finding.reason.value} {finding.where}: {finding.reason.meaning}: expected {finding.expected}, "
        f"got {finding.got}. Remedy: {finding.reason.remedy}"
        for finding in report.reasons
    ]
    if report.validity is Validity.VALID:
        return case
    codes = sorted({finding.reason.value for finding in report.reasons})
    tag = "failure" if report.validity is Validity.INVALID else "error"
    problem = ET.SubElement(case, tag, type=report.validity.value, message=", ".join(codes) or "not all was checked")
    problem.text = "\n".join(clean(line) for line in (*lines, *left, *report.notes))
    return case


def _comparison(report: Report, item: Comparison) -> ET.Element:
    case = _case(report, f"{item.candidate} / {item.baseline} at {item.operating_point} ({item.claim})")
    verdict = member_verdict(report, item)
    upper = "unbounded" if item.unbounded else against(item.upper, 1 + item.margin)
    numbers = (
        f"verdict {verdict.value}; ratio {number(item.ratio)}, interval {against(item.lower, 1.0)} to {upper}, "
        f"limit {1 + item.margin:.12g}, {item.pairs} pairs"
    )
    lines = [
        numbers,
        spread([item]) or "no process ratios",
        *(f"gate {gate.gate}: {gate.detail}" for gate in item.gates),
    ]
    text = "\n".join(clean(line) for line in lines)
    if not trusted(report):
        message = f"the bundle is {report.validity.value}: {UNTRUSTED}"
        ET.SubElement(case, "error", type=report.validity.value, message=message).text = text
    elif claim_shown(report, item) is False:
        message = f"claim {item.claim} not shown: {verdict.value}"
        ET.SubElement(case, "failure", type=verdict.value, message=clean(message)).text = text
    else:
        ET.SubElement(case, "system-out").text = text
    return case
