"""The CPU study end to end, by the two command lines: 70 processes, the sealed bundle, the scorer; and a run that is interrupted."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "protocols" / "route-membership-cpu.toml"
SMALL = ROOT / "tests" / "data" / "study.toml"
CELLS = ("native", "reinjected", "cross_order", "swap_within", "swap_across", "whole_tiles", "stable")
LETTERS = {  # which trajectory each place takes, as in the published study: cross-order and the swap across classes carry the other one over
    "native": "AB",
    "reinjected": "AB",
    "cross_order": "BA",
    "swap_within": "AB",
    "swap_across": "BA",
    "whole_tiles": "CC",
    "stable": "DD",
}


def run(package: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run one of the two command lines."""
    return forked.run(f"{package}.cli", *arguments, timeout=900)


def rows(bundle: Path, table: str) -> list[dict[str, object]]:
    """A table as dictionaries."""
    return pq.read_table(bundle / f"{table}.parquet").to_pylist()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published CPU study, run here (never change it: copy it)."""
    out = tmp_path_factory.mktemp("study")
    done = run("benchkit", "run-protocol", PUBLISHED, "--out", out)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.endswith("52 confirmed, 0 refuted, 0 not_reproducible")
    (found,) = (out / "route-membership-cpu").glob("2*")
    return found


def test_seventy_fresh_processes_in_the_planned_order(bundle: Path) -> None:
    processes, trajectories = rows(bundle, "processes"), rows(bundle, "trajectories")
    assert [(row["process"], row["attempt"], row["status"]) for row in processes] == [(i, 0, "ok") for i in range(70)]
    starts = [row["started_utc"] for row in processes]
    assert starts == sorted(starts)  # type: ignore[type-var]
    found = [(row["process"], row["replicate"], row["cell"], row["history"]) for row in trajectories]
    histories = ("H0", "H1")
    wanted = [
        (replicate, cell, history)
        for replicate in range(5)
        for cell in CELLS
        for history in (histories if replicate % 2 == 0 else histories[::-1])
    ]
    assert found == [(index, *place) for index, place in enumerate(wanted)]
    assert (
        len({row["environment_sha256"] for row in processes}) == len({row["fixture_sha256"] for row in processes}) == 1
    )
    assert {(row["clock"], row["launch"]) for row in processes} == {("none", "cpu-emulation")}


def test_five_exact_outcomes_and_the_relations_of_the_study(bundle: Path) -> None:
    outcomes: dict[str, set[str]] = {}
    for row in rows(bundle, "trajectories"):
        outcomes.setdefault(f"{row['cell']}/{row['history']}", set()).add(str(row["w13_sha256"]))
    assert {place: len(found) for place, found in outcomes.items()} == dict.fromkeys(outcomes, 1)
    names: dict[str, str] = {}
    for cell, letters in LETTERS.items():
        for history, letter in zip(("H0", "H1"), letters, strict=True):
            (digest,) = outcomes[f"{cell}/{history}"]
            assert names.setdefault(letter, digest) == digest, (cell, history)
    assert len(set(names.values())) == 4


def test_a_tensor_and_a_plan_stand_once(bundle: Path) -> None:
    surfaces = rows(bundle, "surfaces")
    assert (
        len({row["sha256"] for row in surfaces}) == len(surfaces) == 15
    )  # four trajectories; one final surface is shared
    assert (bundle / "surfaces.parquet").stat().st_size < 200_000
    plans = rows(bundle, "plans")
    assert len({row["plan_sha256"] for row in plans}) == 7  # P0, P1, each with either swap, and the stable one
    assert len(plans) == 7 * 18 * 8


def test_the_analysis_can_be_redone(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / bundle.name
    shutil.copytree(bundle, copy)
    before = (copy / "analysis.json").read_bytes()
    (copy / "analysis.json").unlink()
    assert run("benchkit", "analyse", copy).returncode == 0
    assert (copy / "analysis.json").read_bytes() == before


def test_the_separate_scorer_agrees(bundle: Path) -> None:
    done = run("validator", "report", bundle, "--protocol", PUBLISHED, "--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["validity"], report["reasons"]) == (0, "VALID", [])
    claimed = json.loads((bundle / "analysis.json").read_text("utf-8"))
    assert (report["cells"], report["relations"]) == (claimed["cells"], claimed["relations"])
    assert {item["verdict"] for item in report["relations"]} == {"confirmed"}
    native = [item for item in report["relations"] if (item["cell_a"], item["cell_b"]) == ("native/H0", "native/H1")]
    assert [(item["surface"], item["rows"]) for item in native] == [
        ("w13", [10, 39]),
        ("activation", [10, 39]),
        ("routed_w2", [10, 39]),
        ("final", [2, 9]),
    ]


def wait_for(folder: Path, process: int) -> None:
    """Until a process of the run has ended."""
    end = time.monotonic() + 300
    while not list(folder.glob(f"study/.*.partial/process-{process:05d}-attempt-0.outcome.json")):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchkit.cli", "run-protocol", str(SMALL), "--out", str(tmp_path)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path, 1)
    os.kill(started.pid, signal.SIGTERM)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 130
    run_id = errors.rstrip().rpartition(" ")[2]
    assert f"--resume {run_id}" in errors
    done = run("benchkit", "run-protocol", SMALL, "--out", tmp_path, "--resume", run_id)
    assert done.returncode == 0, done.stderr
    bundle = tmp_path / "study" / run_id
    states = [(row["process"], row["attempt"], row["status"]) for row in rows(bundle, "processes")]
    again = [state for state in states if state[2] == "interrupted"]
    assert [state for state in states if state[2] == "ok"] == [
        (i, 1 if any(s[0] == i for s in again) else 0, "ok") for i in range(14)
    ]
    checked = run("validator", "report", bundle, "--format", "json")
    assert json.loads(checked.stdout)["validity"] == "VALID"
    partial, ledger = tmp_path / "study" / f".{run_id}.partial", (tmp_path / "study" / "attempts.jsonl").read_bytes()
    partial.mkdir()  # as left by a kill after the last rename
    again_done = run("benchkit", "run-protocol", SMALL, "--out", tmp_path, "--resume", run_id)
    assert (again_done.returncode, again_done.stdout, again_done.stderr) == (0, done.stdout, "")
    assert (partial.exists(), (tmp_path / "study" / "attempts.jsonl").read_bytes()) == (False, ledger)
    assert run("benchkit", "run-protocol", SMALL, "--out", tmp_path, "--synthetic", SMALL).returncode == 2


def test_a_worker_that_fails_is_kept_and_its_relations_are_not_reproducible(tmp_path: Path) -> None:
    """The watchdog ends a process: its place lacks a replicate, which is a verdict and no reason."""
    (tmp_path / "assets").mkdir()
    shutil.copy(SMALL.parent / "assets" / "study-plans.json", tmp_path / "assets")
    protocol = tmp_path / "study.toml"
    # a layer of which the emulation takes longer than the watchdog allows
    text = (
        SMALL.read_text("utf-8")
        .replace("watchdog_s = 60", "watchdog_s = 1")
        .replace("intermediate = 128", "intermediate = 8192")
    )
    protocol.write_text(
        "\n\n".join(
            block
            for block in text.split("\n\n")
            if not block.startswith("[[cell]]") or "native" in block or "stable" in block
        )
    )
    kept = protocol.read_text("utf-8")
    relations = [block for block in kept.split("\n\n") if block.startswith("[[relation]]")]
    for block in relations[1:]:
        kept = kept.replace(block + "\n\n", "")
    protocol.write_text(kept.replace("thread_n = 64, grid = 32", "thread_n = 64, grid = 512"))
    assert run("benchkit", "lock", protocol).returncode == 0
    done = run("benchkit", "run-protocol", protocol, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "failed: process 0: watchdog: the process took longer than 1 s" in done.stderr
    (bundle,) = (tmp_path / "out" / "study").glob("2*")
    report = json.loads(run("validator", "report", bundle, "--format", "json").stdout)
    assert (report["validity"], report["reasons"]) == ("VALID", [])
    assert {item["verdict"] for item in report["relations"]} == {"not_reproducible"}
    assert {item["processes"] for item in report["cells"]} == {0}


def test_a_study_of_a_captured_layer(tmp_path: Path) -> None:
    """From an AWQ checkpoint folder to a VALID bundle: capture, lock, run, score; equality holds for these weights too."""
    pytest.importorskip("safetensors")
    sys.path.insert(0, str(ROOT / "tests" / "unit" / "fixture"))
    import checkpoint_cases as cases

    config = {
        **cases.CONFIG,
        "hidden_size": 256,
        "moe_intermediate_size": 128,
        "num_experts": 16,
        "num_experts_per_tok": 4,
    }
    config["quantization_config"] = {**cases.CONFIG["quantization_config"], "group_size": 64}
    tensors = cases.layer_arrays(experts=16, hidden=256, intermediate=128, group=64)
    tensors = {name: array / 64 if name.endswith("scales") else array for name, array in tensors.items()}
    checkpoint = cases.write_checkpoint(tmp_path / "model", tensors, config, cases.router_weight(16, 256))
    hidden, _ = cases.hidden_states(tmp_path, 16, 256)
    plans = json.loads((SMALL.parent / "assets" / "study-plans.json").read_text("utf-8"))
    flat = [(token, slot) for token in range(16) for slot in range(4)]
    columns = {
        name: [plans[key][token][slot] for token, slot in flat]
        for name, key in (("expert", "topk_ids"), ("weight", "topk_weights"))
    }
    table = pa.table({"token": [token for token, _ in flat], "slot": [slot for _, slot in flat], **columns})
    pq.write_table(table, tmp_path / "routing.parquet")
    (tmp_path / "assets").mkdir()
    shutil.copy(SMALL.parent / "assets" / "study-plans.json", tmp_path / "assets")
    arguments = ["--layer", cases.LAYER, "--hidden", hidden, "--routing", tmp_path / "routing.parquet"]
    done = run("benchkit", "fixture", "capture", checkpoint, *arguments, "--output", tmp_path / "assets" / "layer6")
    assert done.returncode == 0, done.stderr
    fixture = tmp_path / "assets" / "layer6" / "fixture.json"
    digest = hashlib.sha256(fixture.read_bytes()).hexdigest()
    asset = f'\n[[asset]]\nname = "layer6"\npath = "assets/layer6/fixture.json"\nsha256 = "{digest}"\n'
    text = SMALL.read_text("utf-8").replace("weight_seed = 15\ninput_seed = 4", 'captured = "layer6"') + asset
    protocol = tmp_path / "study.toml"
    protocol.write_text(text.replace("tokens = 16", "tokens = 15"))
    refused = run("benchkit", "lock", protocol)
    assert refused.returncode == 2
    protocol.write_text(text)
    assert run("benchkit", "lock", protocol).returncode == 0
    done = run("benchkit", "run-protocol", protocol, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (bundle,) = (tmp_path / "out" / "study").glob("2*")
    stated = json.loads(fixture.read_text("utf-8"))["fixture_sha256"]
    assert {row["fixture_sha256"] for row in rows(bundle, "processes")} == {stated}
    assert (bundle / "assets" / "layer6").read_bytes() == fixture.read_bytes()
    report = json.loads(run("validator", "report", bundle, "--protocol", protocol, "--format", "json").stdout)
    assert (report["validity"], report["reasons"]) == ("VALID", [])
    assert {item["verdict"] for item in report["relations"] if item["expected"] == "equal"} == {"confirmed"}
    # one array changed under the digests: the worker refuses, and says which
    scales = np.load(fixture.parent / "w2_scales.npy")
    scales[0, 0, 0] *= 2
    np.save(fixture.parent / "w2_scales.npy", scales)
    refused = run("benchkit", "check", protocol)
    assert refused.returncode == 2
    assert "w2_scales.npy: expected" in refused.stderr
