"""What a hostile bundle, place or name makes the validator say: one finding or message each, quickly, and nothing raw on a terminal."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import builder
import forked
import pytest
import rfc8785

from validator.findings import CouldNotCheckError
from validator.reading.records import read_manifest
from validator.report.markdown import render_markdown
from validator.report.text import render_text
from validator.validate import validate

Done = subprocess.CompletedProcess[str]
HOSTILE = "H200\nVALID; family (all-points, 9 comparisons): superior\r\x1b[2K\u202e\u0085"


def run(*arguments: object) -> Done:
    return forked.run("validator.cli", *arguments)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose machine has a name that would write lines of its own."""
    draft = builder.draft(clock="cuda-event")
    for row in draft.tables["processes"]:
        environment = json.loads(row["environment"])
        environment["gpu"]["name"] = HOSTILE
        row["environment"] = rfc8785.dumps(environment).decode()
        row["environment_sha256"] = builder.sha(row["environment"])
    return draft.seal(tmp_path_factory.mktemp("hostile") / "bundle")


def test_a_recorded_text_writes_no_line_of_its_own(hostile: Path) -> None:
    report = validate(hostile)
    assert report.bundle.gpu == HOSTILE
    text = render_text(report, lambda line, _: line)
    assert text.isascii()
    assert not {char for char in text if ord(char) < 32} - {"\n"}
    (shown,) = [line for line in text.splitlines() if "2K" in line and line.startswith("run ")]
    assert shown.endswith("  on H200\\x0aVALID; family (all-points, 9 comparisons): superior\\x0d\\x1b[2K\\u202e\\x85")
    assert [line for line in text.splitlines() if line.startswith("VALID")] == []
    marked = render_markdown([report])
    assert not {char for char in marked if ord(char) < 32} - {"\n"}
    assert "on `H200 VALID; family (all-points, 9 comparisons): superior \\x1b[2K\\u202e\\x85`" in marked
    done = run("report", hostile)
    assert (done.stdout, done.stderr) == (text + "\n", "")


def test_a_law_that_doubles_cannot_carry(tmp_path: Path) -> None:
    bundle = builder.draft(clock="cuda-event").seal(tmp_path / "bundle")
    path = bundle / "protocol.toml"
    assert '"routing" = "uniform"' in path.read_text()
    path.write_text(path.read_text().replace('"routing" = "uniform"', '"routing" = "zipf-400"'))
    done = run("report", bundle, "--format", "json")
    reasons = [(reason["code"], reason["where"]) for reason in json.loads(done.stdout)["reasons"]]
    assert ("PROTOCOL_INVALID", "protocol.toml:fixture.routing") in reasons
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "foo://x", "github://a:b@c/d"])
def test_a_scheme_that_is_not_read(url: str) -> None:
    done = run("report", url, "--format", "json")
    (why,) = json.loads(done.stdout)["notes"]
    assert (done.returncode, why) == (3, f"{url}: expected a folder or one of file://, http://, https://, s3://")


def test_a_manifest_with_too_many_names_is_not_gone_through(tmp_path: Path) -> None:
    bundle = builder.draft().seal(tmp_path / "bundle")
    value = json.loads((bundle / "manifest.json").read_text())
    value["files"] |= {f"f{i}": {"sha256": "0" * 64, "bytes": 1} for i in range(150_000)}
    begin = time.perf_counter()
    with pytest.raises(CouldNotCheckError) as refused:
        read_manifest(json.dumps(value).encode())
    assert str(refused.value) == "manifest.json: lists more than 10000 files: this is no bundle"
    assert time.perf_counter() - begin < 5
    value["files"] = dict(list(value["files"].items())[:10_000])
    (bundle / "manifest.json").write_text(json.dumps(value))
    begin = time.perf_counter()
    report = validate(bundle)
    assert time.perf_counter() - begin < 20  # it was quadratic: minutes
    missing = [finding.where for finding in report.reasons if finding.reason.value == "FILE_MISSING"]
    assert len(missing) == sum(name.startswith("f") for name in value["files"])


@pytest.mark.parametrize("kind", ["link", "dangling", "device", "pipe"])
def test_a_catalogue_replaces_nothing_but_a_file(tmp_path: Path, kind: str) -> None:
    target, bundle = tmp_path / "c.parquet", builder.draft().seal(tmp_path / "bundle")
    (tmp_path / "kept").write_text("kept")
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "device":
        target = Path("/dev/null")
    else:
        target.symlink_to(tmp_path / ("kept" if kind == "link" else "nothing"))
    before = target.lstat()
    done = run("index", bundle, "--output", target)
    found = "a link" if kind in ("link", "dangling") else "a special file"
    told = f"Error: --output {target}: expected a regular file or nothing, found {found}"
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (2, "", told)
    after = target.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert (tmp_path / "kept").read_text() == "kept"


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    bundle, target = builder.draft().seal(tmp_path / "bundle"), tmp_path / "r.txt"
    target.write_text("the report before")
    line = 'ulimit -f 1; exec "$@"'
    command = [
        sys.executable,
        "-m",
        "validator.cli",
        "report",
        str(bundle),
        "--format",
        "json",
        "--output",
        str(target),
    ]
    done = subprocess.run(["bash", "-c", line, "bash", *command], capture_output=True, text=True, timeout=60)
    told = f"Error: --output {target}: cannot be written (File too large); give a place that can be"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, told)
    assert target.read_text() == "the report before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "r.txt"]
    assert run("report", bundle, "--output", "/dev/stdout").stdout.startswith("VALID")
