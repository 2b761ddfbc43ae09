"""The command line: exit codes, streams, encodings, pipes."""

import json
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import builder
import forked
import pytest

from validator.reasons import Reason
from validator.report.table import against, relation

Done = subprocess.CompletedProcess[str]


def run(*arguments: object) -> Done:
    return forked.run("validator.cli", *arguments)


def strict(text: str) -> object:
    def refuse(token: str) -> object:
        raise AssertionError(token)

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A superior, an inconclusive and an invalid bundle."""
    folder = tmp_path_factory.mktemp("bundles")
    good = builder.draft().seal(folder / "good")
    weak = builder.draft(
        duration=lambda p, point, b, arm, s: builder.script(p, point, b, {"slow": "same"}.get(arm, arm), s)
    )
    bad = builder.draft()
    bad.samples[-1]["duration_ns"] = 0
    return {"good": good, "weak": weak.seal(folder / "weak"), "bad": bad.seal(folder / "bad"), "none": folder / "none"}


@pytest.mark.parametrize(
    ("names", "options", "code"),
    [
        (["good"], [], 0),
        (["weak"], [], 0),
        (["bad"], [], 1),
        (["none"], [], 3),
        (["good"], ["--require", "superior"], 0),
        (["weak"], ["--require", "non-inferior"], 4),
        (["good", "weak"], ["--require", "non-inferior"], 4),
        (["weak", "none"], ["--require", "non-inferior"], 3),
        (["weak", "none", "bad"], ["--require", "non-inferior"], 1),
        (["good"], ["--format", "xml"], 2),
        (["good"], ["--protocol", "/nowhere.toml"], 2),
        ([], [], 2),
    ],
)
def test_exit_codes(bundles: dict[str, Path], names: list[str], options: list[str], code: int) -> None:
    done = run("report", *(bundles[name] for name in names), *options)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) is (code != 2)


def test_h01_help() -> None:
    bare, asked, unknown = run(), run("--help"), run("nosuch")
    assert (bare.returncode, bare.stdout, "Usage" in bare.stderr) == (2, "", True)
    assert (asked.returncode, "Usage" in asked.stdout, asked.stderr) == (0, True, "")
    assert (unknown.returncode, unknown.stdout) == (2, "")


def test_help_is_quick() -> None:
    begin = time.perf_counter()
    run("--help")
    assert time.perf_counter() - begin < 2
    code = "import sys, validator.cli; print([m for m in ('numpy', 'pyarrow', 'scipy', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_report_loads_neither_pandas_nor_scipy_stats(bundles: dict[str, Path]) -> None:
    code = (
        "import sys, pathlib; sys.modules['benchkit'] = None\nfrom validator.validate import validate\n"
        "validate(pathlib.Path(sys.argv[1]))\n"
        "print([m for m in ('pandas', 'scipy.stats', 'torch', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(bundles["good"])], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("name", ["good", "weak", "bad", "none"])
def test_h04_strict_json(bundles: dict[str, Path], name: str) -> None:
    done = run("report", bundles[name], "--format", "json")
    value = strict(done.stdout)
    assert isinstance(value, dict)
    assert list(value)[:4] == ["schema", "bundle", "validity", "reasons"]
    assert value["schema"] == "validator.report/1"
    assert done.stderr == ""


def test_several_bundles_are_a_list(bundles: dict[str, Path]) -> None:
    value = strict(run("report", bundles["good"], bundles["bad"], "--format", "json").stdout)
    assert isinstance(value, list)
    assert [item["validity"] for item in value] == ["VALID", "INVALID"]


def test_d09_no_ratio_from_a_zero(bundles: dict[str, Path]) -> None:
    value = strict(run("report", bundles["bad"], "--format", "json").stdout)
    assert isinstance(value, dict)
    assert value["reasons"][0]["code"] == "NON_POSITIVE_DURATION"
    assert value["reasons"][0]["where"] == "samples.parquet:duration_ns[399] process=4"
    row = builder.draft().samples[-1]
    spoiled = [arm for arm in value["arms"] if (arm["operating_point"], arm["arm"]) == (row["point"], row["arm"])]
    assert [arm["median_ns"] for arm in spoiled] == [None]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_h03_encodings(bundles: dict[str, Path], tmp_path: Path, encoding: str) -> None:
    odd = tmp_path / "b\u00fcndel\u2713"
    shutil.copytree(bundles["good"], odd)
    command = [sys.executable, "-m", "validator.cli", "report", str(odd)]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert done.stderr == ""


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
def test_h03_no_color(bundles: dict[str, Path], value: str, coloured: bool) -> None:
    primary, secondary = pty.openpty()
    command = [sys.executable, "-m", "validator.cli", "report", str(bundles["good"])]
    environment = os.environ | {"NO_COLOR": value, "TERM": "xterm"}
    done = subprocess.Popen(command, stdout=secondary, stderr=secondary, env=environment)
    os.close(secondary)
    shown = b""
    try:
        while piece := os.read(primary, 4096):
            shown += piece
    except OSError:
        pass
    os.close(primary)
    assert done.wait() == 0
    assert (b"\x1b" in shown) is coloured


def test_a_closed_pipe_ends_quietly(bundles: dict[str, Path]) -> None:
    many = " ".join([str(bundles["good"])] * 12)
    script = f"{sys.executable} -m validator.cli report {many} | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("VALID; family (all-points, 2 comparisons): superior\n", "")


def test_output_file(bundles: dict[str, Path], tmp_path: Path) -> None:
    done = run("report", bundles["good"], "--output", tmp_path / "r.txt")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "r.txt").read_text().startswith("VALID; family")
    assert run("report", bundles["good"], "--output", tmp_path / "no" / "r.txt").returncode == 2


def test_what_the_text_says(bundles: dict[str, Path]) -> None:
    text = run("report", bundles["good"]).stdout
    for part in (
        "one-sided alpha 0.05 = 90 % interval; margin 2 % slower: the upper bound is held against 1.02",
        "The protocol was taken from the bundle, so margin and schedule are what its author says",
        "Other attempts known to this ledger: 0.",
        "A log can prove",
    ):
        assert part in text
    given = run("report", bundles["good"], "--protocol", bundles["good"] / "protocol.toml").stdout
    assert "taken from the bundle" not in given
    bad = run("report", bundles["bad"]).stdout
    assert bad.startswith("INVALID; family (all-points, 2 comparisons): ")
    assert "remedy: find the fault of the clock; never drop the row" in bad


def test_d05_enough_digits() -> None:
    assert relation(1.03004, 1.03) == "1.03004 > 1.03"
    assert relation(1.0300004, 1.03) == "1.0300004 > 1.03"
    assert relation(1.0299996, 1.03) == "1.0299996 < 1.03"
    assert against(1.03, 1.03) == "1.03"


def test_reasons_lists_all() -> None:
    done = run("reasons")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")] == [
        r.value for r in Reason
    ]


def test_selftest_refuses_a_bundle_that_is_not_clean(bundles: dict[str, Path], tmp_path: Path) -> None:
    draft = builder.draft()
    draft.synthetic = True
    for bundle, found in ((bundles["bad"], "NON_POSITIVE_DURATION"), (draft.seal(tmp_path / "s"), "SYNTHETIC")):
        done = run("selftest", bundle)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == f"COULD_NOT_CHECK: expected a clean bundle, got INVALID: {found}\n"


def test_an_internal_error_is_one_line(bundles: dict[str, Path]) -> None:
    code = (
        "import sys, validator.validate as v\n"
        "def broken(*a, **k): raise RuntimeError('boom\\nbang')\n"
        "v.validate = broken\nsys.argv = ['validator', 'report', sys.argv[1]]\n"
        "import validator.cli; validator.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(bundles["good"])], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "COULD_NOT_CHECK: internal error, RuntimeError: boom bang\n"
