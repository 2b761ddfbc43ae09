"""A run with locked looks ends at the first that shows the claim, resumed or not, and the validator agrees."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq
import pytest

from benchkit.analysis.analyst import shows
from benchkit.analysis.evidence import gather
from benchkit.bundle.reader import open_bundle
from benchkit.run import supervisor
from benchkit.run.session import Session
from validator.reasons import Reason
from validator.validate import validate

Run = Callable[..., CompletedProcess[str]]


def last_line(bundle: Path) -> dict[str, object]:
    """The end line of the ledger."""
    line: dict[str, object] = json.loads((bundle / "attempts.jsonl").read_text("utf-8").splitlines()[-1])
    return line


def processes(bundle: Path) -> list[int]:
    """The processes that the bundle holds."""
    found: list[int] = pq.read_table(bundle / "processes.parquet").column("process").to_pylist()
    return found


def test_it_ends_at_the_look_that_shows_the_claim(stopped_bundle: Path) -> None:
    assert processes(stopped_bundle) == list(range(9))
    assert set(pq.read_table(stopped_bundle / "samples.parquet").column("process").to_pylist()) == set(range(9))
    end = last_line(stopped_bundle)
    assert (end["event"], end["status"]) == ("end", "stopped_at_look")
    looks = json.loads((stopped_bundle / "analysis.json").read_text("utf-8"))["family"]["looks"]
    assert [(look["processes"], look["verdict"]) for look in looks] == [(6, "inconclusive"), (9, "non_inferior")]


def test_the_plan_says_what_may_end_the_run(stopped_bundle: Path, run_benchkit: Run) -> None:
    done = run_benchkit("plan", stopped_bundle.parents[1] / "stopped.toml")
    assert (
        done.stdout.splitlines()[2]
        == "looks after 6, 9, 12 process pairs: the run ends at the first that shows the claim"
    )


def test_the_validator_recomputes_that_the_stop_was_warranted(stopped_bundle: Path) -> None:
    report = validate(stopped_bundle)
    assert report.codes == (Reason.SYNTHETIC,)
    assert report.notes[-1] == "looks: non_inferior at 9 of 12 planned process pairs; the run ended there"
    assert report.numbers is not None
    assert report.numbers.family.looks is not None
    assert [(look.processes, look.verdict) for look in report.numbers.family.looks] == [
        (6, "inconclusive"),
        (9, "non_inferior"),
    ]


def test_a_look_sees_the_first_processes_alone(stopped_bundle: Path) -> None:
    """Their timer's resolution, too: it is that of their rows."""
    bundle = open_bundle(stopped_bundle)
    evidence = gather(bundle, up_to=6)
    assert (evidence.processes, evidence.completed["batch=1"]) == (6, [0, 1, 2, 3, 4, 5])
    table = pq.read_table(stopped_bundle / "samples.parquet").to_pandas()
    durations = sorted(set(table[table.process < 6].duration_ns))
    assert evidence.quantum == min(b - a for a, b in pairwise(durations))
    assert {row["process"] for row in evidence.repeats} == set(range(6))
    assert shows(bundle)


class Stop(Exception):
    """The run dies here."""


def test_an_interrupted_run_ends_at_the_same_look(
    tmp_path: Path, stopped_bundle: Path, run_benchkit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the look that decides and the seal: resumed, it looks again at the same rows and starts no further process."""
    protocol, script = tmp_path / "stopped.toml", tmp_path / "script.toml"
    for source, target in (("protocol.toml", protocol), ("protocol.lock", tmp_path / "stopped.lock")):
        shutil.copyfile(stopped_bundle / source, target)
    shutil.copyfile(stopped_bundle.parents[1] / "script.toml", script)

    def die(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(supervisor, "build_bundle", die)
    session = Session(protocol=protocol, out=tmp_path, exploratory=False, script=script)
    with pytest.raises(Stop):
        session.run(None, shows=shows, finish=die)
    (partial,) = (tmp_path / "fake-host").glob(".*.partial")
    assert len(list(partial.glob("*.started"))) == 9
    done = run_benchkit("run-protocol", protocol, "--out", tmp_path, "--resume", partial.name[1 : -len(".partial")])
    assert done.returncode == 0, done.stderr
    assert "look at 9 pairs, one-sided alpha " in done.stdout
    assert "stopped after 9 of 12 planned pairs: this look shows the claim\n" in done.stdout
    (bundle,) = (tmp_path / "fake-host").glob("2*")
    assert processes(bundle) == list(range(9))
    assert last_line(bundle)["status"] == "stopped_at_look"
    same = [pq.read_table(b / "samples.parquet", columns=["duration_ns"]) for b in (bundle, stopped_bundle)]
    assert same[0].equals(same[1])
