"""A repeat against the published run, and several runs in one report: compared per machine, never pooled."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import builder
import forked
import pytest
from scipy import stats

from validator.reading.protocol import read_protocol


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run("validator.cli", *arguments)


def measured(folder: Path, factor: float, **options: Any) -> Path:
    """A bundle as ``built`` makes it, of a run of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "RUN_ID", f"20260101T120000Z-{builder.sha(folder.name)[:8]}")
        return built(folder, factor, **options)


def built(folder: Path, factor: float, *, band: Any = "5%", cpu: str = "c", noise: float = 0.0) -> Path:
    """A bundle whose candidate takes ``factor`` times as long as in the script, each process off by up to ``noise``."""

    def duration(process: int, point: str, block: int, arm: str, sample: int) -> int:
        spent = builder.script(process, point, block, arm, sample)
        return round(spent * factor * (1 + noise * (process % 3 - 1))) if arm == "cand" else spent

    draft = builder.draft(duration=duration)
    if band is not None:
        draft.protocol["statistics"]["reproduction_band"] = band
        draft = restarted(draft, duration)
    for row in draft.tables["processes"]:
        text = json.dumps(json.loads(row["environment"]) | {"cpu": cpu}, sort_keys=True, separators=(",", ":"))
        row["environment"], row["environment_sha256"] = text, builder.sha(text)
    return draft.seal(folder)


def restarted(draft: builder.Draft, duration: builder.Duration) -> builder.Draft:
    """Plan and lock a changed protocol, and run it anew."""
    draft.samples[:] = [
        row for process in range(draft.protocol["schedule"]["process_pairs"])
        for row in builder._samples(draft, process, duration)
    ]  # fmt: skip
    for name in ("correctness", "telemetry", "kernels", "repeats", "routing"):
        draft.tables[name].clear()
    for process in range(draft.protocol["schedule"]["process_pairs"]):
        builder._evidence(draft, process)
    builder._routing(draft)
    return builder.relock(draft)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A published run and repeats of it."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "published": measured(folder / "published", 1.0),
        "same": measured(folder / "same", 1.01, cpu="another", noise=0.001),
        "faster": measured(folder / "faster", 1 / 1.7),
        "slower": measured(folder / "slower", 1.2),
        "noisy": measured(folder / "noisy", 1.04, noise=0.05),
        "other": measured(folder / "other", 1.0, band="6%"),
        "none": measured(folder / "none", 1.0, band=None),
        "none again": measured(folder / "none again", 1.0, band=None),
    }


@pytest.mark.parametrize(
    ("name", "code", "word", "why"),
    [
        ("same", 0, "reproduced", ""),
        ("faster", 4, "not_reproduced", "faster than the band"),
        ("slower", 4, "not_reproduced", "slower than the band"),
        ("noisy", 4, "inconclusive", "the interval holds an end of the band"),
    ],
)
def test_a_repeat(runs: dict[str, Path], name: str, code: int, word: str, why: str) -> None:
    done = run("reproduce", runs["published"], runs[name], "--format", "json")
    assert (done.returncode, done.stderr) == (code, "")
    value = json.loads(done.stdout)
    assert (value["schema"], value["outcome"], value["band"]) == ("validator.reproduction/1", word, 0.05)
    assert [(point["outcome"], point["why"]) for point in value["points"]] == [(word, why)] * 2
    text = run("reproduce", runs["published"], runs[name]).stdout
    assert text.startswith(f"{word}: band 5 % either way\n")


def test_the_numbers(runs: dict[str, Path]) -> None:
    value = json.loads(run("reproduce", runs["published"], runs["noisy"], "--format", "json").stdout)
    both = [json.loads(run("report", runs[n], "--format", "json").stdout) for n in ("published", "noisy")]
    a, b = (report["comparisons"][0] for report in both)
    errors = [math.log(c["upper"] / c["lower"]) / 2 / stats.t.ppf(0.95, c["pairs"] - 1) for c in (a, b)]
    total = sum(error**2 for error in errors)
    freedom = total**2 / sum(error**4 / (c["pairs"] - 1) for error, c in zip(errors, (a, b), strict=True))
    change = math.log(b["ratio"] / a["ratio"])
    reach = stats.t.ppf(0.95, freedom) * math.sqrt(total)
    point = value["points"][0]
    expected = [math.exp(change), math.exp(change - reach), math.exp(change + reach)]
    assert [point["change"], point["lower"], point["upper"]] == pytest.approx(expected, rel=1e-12)
    assert (point["published"], point["repeat"]) == (a["ratio"], b["ratio"])


def test_what_cannot_be_compared(runs: dict[str, Path], tmp_path: Path) -> None:
    other = run("reproduce", runs["published"], runs["other"])
    assert (other.returncode, "expected a run of protocol" in other.stderr) == (3, True)
    bandless = run("reproduce", runs["none"], runs["none again"])
    assert (bandless.returncode, "expected a locked [statistics] reproduction_band" in bandless.stderr) == (3, True)
    itself = run("reproduce", runs["published"], runs["published"])
    name = f"20260101T120000Z-{builder.sha('published')[:8]}"
    assert (itself.returncode, itself.stdout) == (3, "")
    assert itself.stderr == (
        f"COULD_NOT_CHECK: {runs['published']}: expected another run, got {name} itself; run the protocol again\n"
    )
    bad = builder.draft()
    bad.samples[-1]["duration_ns"] = 0
    assert run("reproduce", runs["published"], bad.seal(tmp_path / "bad")).returncode == 1
    assert run("reproduce", runs["published"], tmp_path / "nothing").returncode == 3
    assert run("reproduce", runs["published"]).returncode == 2


def test_several_repeats(runs: dict[str, Path]) -> None:
    done = run("reproduce", runs["published"], runs["same"], runs["faster"], "--format", "json")
    assert done.returncode == 4
    assert [item["outcome"] for item in json.loads(done.stdout)] == ["reproduced", "not_reproduced"]
    assert [item["repeat_machine"] for item in json.loads(done.stdout)] == ["another, p", "c, p"]


def test_side_by_side(runs: dict[str, Path]) -> None:
    text = run("report", runs["published"], runs["same"], runs["other"]).stdout
    part = text[text.index("2 runs of protocol") :].splitlines()
    assert part[0] == "2 runs of protocol built on 2 machines, side by side and never pooled"
    assert [line.split("  ")[-1] for line in part if line.startswith("  2026")] == ["c, p", "another, p"]
    assert len(part) == 7
    assert "side by side" not in run("report", runs["published"], runs["other"]).stdout


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_side_by_side_in_a_document(runs: dict[str, Path], form: str) -> None:
    text = run("report", runs["published"], runs["same"], "--format", form).stdout
    assert "2 runs of protocol built on 2 machines, side by side and never pooled" in text
    first, second = (json.loads(run("report", runs[name], "--format", "json").stdout) for name in ("published", "same"))
    ratios = [report["comparisons"][0]["ratio"] for report in (first, second)]
    row = next(line for line in text.splitlines() if all(f"{ratio:.6g} [" in line for ratio in ratios))
    assert all(f"] {report['comparisons'][0]['verdict']}" in row for report in (first, second))
    assert "side by side" not in run("report", runs["published"], runs["other"], "--format", form).stdout


@pytest.mark.parametrize(
    ("band", "value"), [("5%", 0.05), (0.05, 0.05), (5, None), ("0%", None), (1.5, None), (True, None)]
)
def test_the_key(band: Any, value: float | None) -> None:
    document = builder.document(clock="host", pairs=5, alpha=0.05, margin="2%")
    document["statistics"]["reproduction_band"] = band
    read = read_protocol("".join(f"{key} = {builder.toml(item)}\n" for key, item in document.items()).encode())
    assert (read.protocol.statistics.reproduction_band if read.protocol else None) == value
