"""README, "Read the samples": each snippet gives the ratios that the validator's report gives."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import forked
import pytest

ROOT = Path(__file__).parents[2]


def snippets(language: str) -> list[str]:
    """The section's code in a language."""
    readme = (ROOT / "README.md").read_text("utf-8")
    part = readme[readme.index("### Read the samples") : readme.index("## Limits")]
    return re.findall(rf"```{language}\n(.*?)```", part, flags=re.DOTALL)


@pytest.fixture(scope="module")
def expected() -> Any:
    """Ratio by point, from ``validator report`` on the bundle that the snippets name."""
    (path,) = set(
        re.findall(r'["\'](results/\S+)/samples\.parquet', "".join(map("".join, map(snippets, ("python", "sql", "r")))))
    )
    report = json.loads(forked.run("validator.cli", "report", ROOT / path, "--format", "json").stdout)
    assert report["validity"] == "VALID"
    return pytest.approx({row["operating_point"]: row["ratio"] for row in report["comparisons"]}, rel=1e-12)


def run_python(library: str) -> Any:
    """``ratios`` of the snippet that imports ``library``."""
    pytest.importorskip(library)
    (text,) = [text for text in snippets("python") if f"import {library}" in text]
    space: dict[str, Any] = {}
    exec(text, space)
    return space["ratios"]


def test_pandas(monkeypatch: pytest.MonkeyPatch, expected: Any) -> None:
    monkeypatch.chdir(ROOT)
    assert run_python("pandas").to_dict() == expected


def test_polars(monkeypatch: pytest.MonkeyPatch, expected: Any) -> None:
    monkeypatch.chdir(ROOT)
    assert dict(run_python("polars").iter_rows()) == expected


def test_duckdb(monkeypatch: pytest.MonkeyPatch, expected: Any) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(ROOT)
    (query,) = snippets("sql")
    assert dict(duckdb.sql(query).fetchall()) == expected


def test_r(expected: Any) -> None:
    rscript = shutil.which("Rscript")
    if rscript is None or subprocess.run([rscript, "-e", "library(arrow)"], capture_output=True).returncode != 0:
        pytest.skip("no R with the package arrow")
    (text,) = snippets("r")
    lines = subprocess.run(
        [rscript, "-e", f"options(digits = 17)\n{text}"], cwd=ROOT, capture_output=True, text=True, timeout=120
    ).stdout.splitlines()
    assert {point: float(ratio) for _, point, ratio in map(str.split, lines[1:])} == expected
