"""Markdown, LaTeX and JUnit: exact contents, escaping, and what becomes of a bundle that is not valid."""

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import builder
import pytest

from validator.findings import Finding, Gate, Identity, Report, Validity, Verdict
from validator.mutations import MUTATIONS, selftest
from validator.reasons import Reason
from validator.report.document import render_json
from validator.report.facts import change, claim_shown, clean, reproducibility
from validator.report.html import render_html
from validator.report.junit import render_junit
from validator.report.latex import escape, render_latex
from validator.report.markdown import code, render_markdown
from validator.report.material import gather
from validator.report.text import render_text
from validator.validate import could_not_check, validate

HOSTILE = "a|b`c``d <script>alert(1)</script> @everyone [x](http://evil) ![i](//e) \\input{x} $1 & #1 % ~^ \n| x |\r\x00\x1b\u202e"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return validate(builder.draft().seal(tmp_path_factory.mktemp("good") / "good"))


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Report:
    draft = builder.draft()
    draft.samples[-1]["duration_ns"] = 0
    return validate(draft.seal(tmp_path_factory.mktemp("bad") / "bad"))


def hostile(report: Report) -> Report:
    """The same report with strings that want to be markup."""
    assert report.numbers is not None
    finding = Finding(reason=Reason.EXTRA_FILE, where=HOSTILE, expected=HOSTILE, got=HOSTILE)
    gate = Gate(gate="clocks", detail=HOSTILE)
    comparisons = tuple(
        replace(item, operating_point=HOSTILE, candidate=HOSTILE, baseline=HOSTILE, gates=(gate,))
        for item in report.numbers.comparisons
    )
    return replace(
        report,
        bundle=Identity(path=HOSTILE, protocol_id=HOSTILE, protocol_digest=HOSTILE, run_id=HOSTILE, gpu=HOSTILE),
        reasons=(finding,),
        numbers=replace(report.numbers, comparisons=comparisons),
    )


def spans_removed(line: str) -> str:
    """What of a line of Markdown is not inside a code span."""
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", line)


def cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table, as GitHub cuts them."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize(
    ("ratio", "text"), [(230 / 100, "+130 %"), (0.5, "-50 %"), (1.0, "+0 %"), (1.00123, "+0.123 %"), (None, "-")]
)
def test_a_ratio_as_a_change(ratio: float | None, text: str) -> None:
    assert change(ratio) == text  # trial D06: from 100 to 230


def test_markdown_of_a_valid_bundle(good: Report) -> None:
    lines = render_markdown([good]).splitlines()
    assert lines[0] == "### ✅ VALID; ✅ superior (all-points, 2 comparisons)"
    assert lines[2] == "protocol `built`, run `20260101T120000Z-0123abcd`"
    rows = [cells(line) for line in lines if line.startswith("| `")]
    assert rows == [
        [
            "`mib=1`",
            "`cand` / `base`",
            "0.990009",
            "-0.999 %",
            "0.989748 to 0.99027",
            "0.99027 &lt; 1.02",
            "5",
            "✅ superior",
        ],
        [
            "`mib=2`",
            "`cand` / `base`",
            "0.990048",
            "-0.995 %",
            "0.989852 to 0.990245",
            "0.990245 &lt; 1.02",
            "5",
            "✅ superior",
        ],
    ]
    assert f"validator report {good.bundle.path}" in lines
    assert f"- protocol digest: `{good.bundle.protocol_digest}`" in lines
    manifest = builder.sha((Path(good.bundle.path) / "manifest.json").read_bytes())
    assert f"- SHA-256 of manifest.json: `{manifest}`" in lines
    assert "Reasons" not in "".join(lines)


def test_markdown_of_an_invalid_bundle_begins_with_reasons(bad: Report) -> None:
    text = render_markdown([bad])
    lines = text.splitlines()
    assert lines[0] == "### ❌ INVALID; inconclusive (not to be relied on) (all-points, 2 comparisons)"
    assert (
        text.index("**NON_POSITIVE_DURATION**") < text.index("not to be relied on.**") < text.index("| operating point")
    )
    assert "*Remedy:* find the fault of the clock; never drop the row." in text
    rows = [cells(line) for line in lines if line.startswith("| `")]
    assert [row[-1].endswith("(not to be relied on)") for row in rows] == [True, True]
    assert "✅" not in text


def test_text_lists_the_first_of_many_equal_reasons(bad: Report) -> None:
    claims = tuple(
        Finding(reason=Reason.CLAIM_MISMATCH, where=f"$.{i}", expected=str(i), got="0") for i in range(1, 64)
    )
    last = Finding(reason=Reason.SYNTHETIC, where="processes.parquet", expected="a device", got="a script")
    lines = render_text(replace(bad, reasons=(*claims, last)), lambda text, _: text).splitlines()
    assert "reasons (64):" in lines
    assert [line for line in lines if line.startswith(("  CLAIM", "  SYNTHETIC", "  ..."))] == [
        *(f"  CLAIM_MISMATCH  $.{i}" for i in range(1, 6)),
        "  SYNTHETIC  processes.parquet",
        "  ... and 58 more CLAIM_MISMATCH (--format json lists all)",
    ]


def test_markdown_shows_gates(good: Report) -> None:
    assert good.numbers is not None
    first = replace(good.numbers.comparisons[0], gates=(Gate(gate="clocks", detail="1980 | 1500 MHz"),))
    report = replace(good, numbers=replace(good.numbers, comparisons=(first,)))
    assert "- `mib=1`: `clocks`, `1980 | 1500 MHz`" in render_markdown([report])


def test_markdown_keeps_hostile_strings_in_code_spans(good: Report) -> None:
    text = render_markdown([hostile(good)])
    inside = False
    for line in text.splitlines():
        if re.match(r"`{3,}", line):
            inside = not inside
        elif not inside:
            rest = spans_removed(line)
            assert not re.search(r"[@\[\]\\]|<script|http|evil|\x00|\x1b|\u202e", rest), line
    rows = [line for line in text.splitlines() if line.startswith("| ") and "alert" in line]
    assert [len(cells(row)) for row in rows] == [8, 8]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "`plain`"), ("a`b", "``a`b``"), ("`", "`` ` ``"), ("", "` - `"), ("a\nb", "`a b`"), ("a|b", "`a\\|b`")],
)
def test_code_span(text: str, shown: str) -> None:
    assert code(text, cell=True) == shown


def test_clean_shows_what_cannot_be_seen() -> None:
    assert clean("a\x00b\u202ec\ud800 µ \N{SNOWMAN}") == "a\\x00b\\u202ec\\ud800 µ \N{SNOWMAN}"


def test_several_bundles_give_several_sections(good: Report, bad: Report) -> None:
    assert render_markdown([good, bad]).count("\n---\n") == 1
    assert render_latex([good, bad]).count(r"\begin{table}") == 2
    assert len(ET.fromstring(render_junit([good, bad]).encode())) == 2


@pytest.mark.parametrize("form", ["text", "json", "html", "markdown", "latex", "junit"])
def test_every_format_says_what_the_numbers_hide(good: Report, tmp_path: Path, form: str) -> None:
    """Skewness, the largest process ratio and the limits of the method; drift and dependence where there are tables."""
    assert good.numbers is not None
    folder = builder.draft().seal(tmp_path / "b")
    shown = {
        "text": lambda: render_text(good, lambda text, _: text),
        "json": lambda: render_json([good]),
        "html": lambda: render_html([good], [folder]),
        "markdown": lambda: render_markdown([good]),
        "latex": lambda: render_latex([good]),
        "junit": lambda: render_junit([good]),
    }[form]()
    first = good.numbers.comparisons[0].diagnostics
    assert first.skewness is not None
    assert first.largest_ratio is not None
    summary = form in ("markdown", "latex", "junit")
    assert (f"{first.skewness:.2f}" if summary else f"{first.skewness:.6g}") in shown
    assert (f"{first.largest_ratio:.4f}" if summary else f"{first.largest_ratio:.7g}") in shown
    assert "skewed process effects" in shown
    assert "device measured" in shown if summary else "The claim holds for this machine" in shown
    if not summary:
        assert re.search('drift and dependence|"series"', shown, re.IGNORECASE)


def test_drift_and_dependence_of_the_arms_that_are_compared(good: Report) -> None:
    assert good.supplement is not None
    found = {(row.operating_point, row.arm): row for row in good.supplement.series}
    assert list(found) == [(point, arm) for point in ("mib=1", "mib=2") for arm in ("base", "cand")]
    assert {row.processes for row in found.values()} == {5}
    for row in found.values():
        assert abs(row.tau) <= abs(row.largest_tau) <= 1
        assert row.half_ratio == pytest.approx(1, abs=1e-3)
        assert row.effective_percent > 0


def test_latex_table(good: Report) -> None:
    lines = render_latex([good]).splitlines()
    assert r"    mib=1 & $0.99001$ & $[0.989748,\ 0.99027]$ & 5 & superior \\" in lines
    assert r"    mib=2 & $0.99005$ & $[0.989852,\ 0.990245]$ & 5 & superior \\" in lines
    assert r"    \multicolumn{5}{l}{\emph{cand / base}} \\" in lines
    rules = [line.strip() for line in lines if "rule" in line]
    assert rules == [r"\toprule", r"\midrule", r"\bottomrule"]
    caption = next(line for line in lines if r"\caption{" in line)
    assert r"Margin 2\,\%, one-sided $\alpha = 0.05$" in caption
    assert "Family (all-points): superior." in caption


def test_latex_of_an_invalid_bundle_says_so(bad: Report) -> None:
    text = render_latex([bad])
    assert r"\caption{\textbf{INVALID: NON\_POSITIVE\_DURATION; numbers not to be relied on.}" in text
    assert text.count(r"inconclusive$^{a,\dagger}$") == 1
    assert r"\footnotesize $^{a}$ gate: aa\_control" in text
    assert r"\footnotesize $^{\dagger}$ not to be relied on: the bundle is INVALID" in text


def test_latex_is_escaped(good: Report) -> None:
    assert escape("a_b & 50% #1 $x$ {y} ~^ \\z") == (
        r"a\_b \& 50\% \#1 \$x\$ \{y\} \textasciitilde{}\textasciicircum{} \textbackslash{}z"
    )
    text = render_latex([hostile(good)])
    assert r"\input" not in text
    depth = 0
    for token in re.findall(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(token, 0)
        assert depth >= 0
    assert depth == 0


def suite(report: Report) -> ET.Element:
    return ET.fromstring(render_junit([report]).encode())[0]


def test_junit_of_a_valid_bundle(good: Report) -> None:
    found = suite(good)
    assert {key: found.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "0",
        "errors": "0",
    }
    assert [case.get("name") for case in found.iter("testcase")] == [
        "validity",
        "cand / base at mib=1 (non_inferior)",
        "cand / base at mib=2 (non_inferior)",
    ]
    (text,) = [case.findtext("system-out") for case in found.iter("testcase") if "mib=1" in str(case.get("name"))]
    assert str(text).splitlines() == [
        "verdict superior; ratio 0.990009, interval 0.989748 to 0.99027, limit 1.02, 5 pairs",
        "largest process ratio 0.9903; skewness of the log ratios from -0.07 to -0.07; with few pairs and skewed process "
        "effects the t interval can be too narrow, and the claim holds for the device measured",
    ]


def test_junit_of_a_claim_that_is_not_shown(good: Report) -> None:
    assert good.numbers is not None
    first, second = good.numbers.comparisons
    items = (
        replace(first, verdict=Verdict.INCONCLUSIVE),
        replace(second, claim="descriptive", verdict=Verdict.INFERIOR),
    )
    found = suite(replace(good, numbers=replace(good.numbers, comparisons=items)))
    failed = [(case.get("name"), case.find("failure")) for case in found.iter("testcase")]
    assert [name for name, failure in failed if failure is not None] == ["cand / base at mib=1 (non_inferior)"]
    assert failed[1][1] is not None
    assert failed[1][1].get("message") == "claim non_inferior not shown: inconclusive"


def test_junit_of_an_invalid_bundle_passes_nothing(bad: Report) -> None:
    found = suite(bad)
    assert (found.get("tests"), found.get("failures"), found.get("errors")) == ("3", "1", "2")
    failure = found.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "NON_POSITIVE_DURATION"
    assert "Remedy: find the fault of the clock" in str(failure.text)


def test_junit_of_what_could_not_be_checked() -> None:
    found = suite(could_not_check(Path("nowhere"), "no such folder"))
    error = found.find("testcase/error")
    assert error is not None
    assert (error.get("type"), found.get("tests")) == ("COULD_NOT_CHECK", "1")


def test_junit_of_hostile_strings_is_xml(good: Report) -> None:
    found = suite(replace(hostile(good), validity=Validity.INVALID))
    assert found.get("name") == clean(HOSTILE)


@pytest.mark.parametrize(
    ("claim", "verdict", "shown"),
    [
        ("non_inferior", Verdict.NON_INFERIOR_BUT_SLOWER, True),
        ("non_inferior", Verdict.INCONCLUSIVE_BUT_SLOWER, False),
        ("superior", Verdict.NON_INFERIOR, False),
        ("superior", Verdict.SUPERIOR, True),
        ("descriptive", Verdict.INFERIOR, None),
    ],
)
def test_which_claims_are_shown(good: Report, claim: str, verdict: Verdict, shown: bool | None) -> None:
    assert good.numbers is not None
    item = replace(good.numbers.comparisons[0], claim=claim, verdict=verdict)
    assert claim_shown(good, item) is shown


def test_no_mutation_stops_a_format(fake_cuda_bundle: Path) -> None:
    def look(path: Path) -> Report:
        report = validate(path)
        gather(path)
        assert render_text(report, lambda text, _: text)
        ET.fromstring(render_junit([report]).encode())
        assert render_markdown([report]).startswith("### ")
        assert render_latex([report]).endswith(r"\end{table}")
        return report

    assert selftest(fake_cuda_bundle, validate=look, baseline_reasons=(Reason.SYNTHETIC,), mutations=MUTATIONS[::4])


@pytest.mark.parametrize(
    ("form", "begins"), [("markdown", "### "), ("latex", "% needs"), ("junit", "<?xml"), ("html", "<!DOCTYPE html>")]
)
def test_command_line_writes_utf8_whatever_the_terminal(fake_bundle: Path, form: str, begins: str) -> None:
    command = [sys.executable, "-m", "validator.cli", "report", str(fake_bundle), "--format", form]
    done = subprocess.run(command, capture_output=True, env={"LC_ALL": "C", "PYTHONUTF8": "0", "PATH": "/nowhere"})
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.decode("utf-8").startswith(begins)


def test_html_without_its_packages_says_what_to_install(fake_bundle: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.util as u, sys; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name in ('matplotlib', 'jinja2') else real(name, *rest)\n"
        f"sys.argv = ['validator', 'report', {str(fake_bundle)!r}, '--format', 'html']\n"
        "from validator.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs matplotlib and jinja2: python -m pip install matplotlib jinja2" in done.stderr


def test_the_other_formats_load_no_pictures(fake_bundle: Path) -> None:
    code = (
        "import sys\nfor form in ('text', 'json', 'markdown', 'latex', 'junit'):\n"
        "    sys.argv = ['validator', 'report', sys.argv[-1], '--format', form, '--output', '/dev/null', sys.argv[-1]][:-1] + [sys.argv[-1]]\n"
        "    from validator.cli import cli; cli.main(sys.argv[1:], standalone_mode=False)\n"
        "print([name for name in ('matplotlib', 'jinja2', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(fake_bundle)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_changed_copy_is_reported_too(tmp_path: Path, fake_bundle: Path) -> None:
    copy = shutil.copytree(fake_bundle, tmp_path / "copy")
    (copy / "stray.txt").write_text("x")
    assert "**EXTRA_FILE** at `stray.txt`" in render_markdown([validate(copy)])


def test_outputs_and_modes_stand_beside_the_verdict(tmp_path: Path) -> None:
    """B03: five of six digests differ on the base, one on the candidate; six modes against one."""
    draft = builder.draft(clock="cuda-event", pairs=6)
    digests = iter("abcade")
    for row in draft.tables["repeats"]:
        if row["point"] == "batch=1" and row["arm"] in ("base", "cand"):
            base = row["arm"] == "base"
            row["mode_sha256"] = builder.sha(f"mode {row['process'] if base else 0}")
            if base:
                row["output_sha256"] = builder.sha("a" if row["repeat"] else next(digests))
    report = validate(draft.seal(tmp_path / "moded"))
    assert report.numbers is not None
    shown = {item.operating_point: reproducibility(report, item) for item in report.numbers.comparisons}
    assert shown == {"batch=1": "1 (1) : 5 (6)", "batch=4": None}
    lines = render_text(report, lambda text, _: text).splitlines()
    start = lines.index("cand / base  (claim: non_inferior)") + 1
    assert [line.split("  ")[-1] for line in lines[start : start + 3]] == ["outputs (modes)", "1 (1) : 5 (6)", "-"]
    rows = [cells(line) for line in render_markdown([report]).splitlines() if line.startswith("| ")]
    assert [row[-1] for row in rows[:3]] == ["outputs (modes)", "1 (1) : 5 (6)", "-"]
    gates = {item.operating_point: [gate.gate for gate in item.gates] for item in report.numbers.comparisons}
    assert gates == {"batch=1": ["determinism"], "batch=4": []}  # the base claims to be deterministic
