"""One process of a study, in a process of its own: ``python -m benchkit.mechanism.worker FOLDER PROCESS ATTEMPT SUPERVISOR_PID``.

Order: treatment of the history -> layer and input -> environment -> the cell -> tensors, each under its digest -> rows. A CPU engine loads numpy
and nothing heavier. Exit codes are those of ``benchkit.run.worker``.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchkit.device.environment import environment_json, environment_record, environment_sha256, record_problems
from benchkit.errors import MachineError, OutputError
from benchkit.fixture.plans import Plans
from benchkit.kernels.engines import ENGINES, engine_sources
from benchkit.mechanism.engine import EngineFacts, engine_of
from benchkit.mechanism.orders import load_plans
from benchkit.mechanism.trajectory import Trajectory, plan_sha256, tensor_bytes, tensor_sha256
from benchkit.plan import PlannedRun, study_plan
from benchkit.protocol.study import STEPS, SURFACES, Study, load_locked_study
from benchkit.run.child import die_with, recorded, run_identity
from benchkit.run.records import TENSORS, Header, RecordWriter


def run(study: Study, plans: Plans, planned: PlannedRun, folder: Path, writer: RecordWriter) -> None:
    """Everything, in order."""
    place = planned.place
    engine = engine_of(study)(study, plans, folder)
    engine.treat(place.history)
    fixture_sha256 = engine.build()
    settings: Mapping[str, Any] = json.loads((folder / "run.json").read_text("utf-8"))
    writer.header(_header(study, engine.facts(), fixture_sha256, settings))
    start = time.perf_counter_ns()
    made = engine.run(study.cell(place.cell), place.history)
    elapsed_ns = time.perf_counter_ns() - start
    _keep(made, folder / TENSORS, writer)
    writer.rows("trajectories", [made.row([place.cell, place.history, planned.replicate], elapsed_ns)])


def _header(study: Study, facts: EngineFacts, fixture_sha256: str, settings: Mapping[str, Any]) -> Header:
    record = environment_record(
        facts.device,
        packages=facts.packages,
        sources=engine_sources(study.engine),
        git=settings["git"],
        threads=facts.threads,
    )
    problems = record_problems(study.require, record, facts.binaries)
    identity = run_identity(record)
    if settings["identity"] is not None and identity != settings["identity"]:
        raise MachineError(
            f"all processes of a run need one machine and one build: expected {settings['identity']}, found {identity}"
        )
    if problems and not settings["exploratory"]:
        raise MachineError("the build is not the required one: " + "; ".join(problems))
    return Header(
        environment=environment_json(record),
        environment_sha256=environment_sha256(record),
        fixture_sha256=fixture_sha256,
        clock="none",
        launch=study.engine,
        event_order=STEPS,
        clock_tick_ns=1,
        l2_bytes=facts.l2_bytes,
        copies={},
        unsupported=[],
        binaries=dict(sorted(facts.binaries.items())),
        repacking=[],
        problems=problems,
    )


def _keep(made: Trajectory, folder: Path, writer: RecordWriter) -> None:
    """Write each distinct tensor once, under its digest, and name tensors and the consumed plan in the records."""
    folder.mkdir(exist_ok=True)
    rows = []
    for name in SURFACES:
        tensor = made.surfaces[name]
        digest = tensor_sha256(tensor)
        if not (folder / digest).exists():
            _write(folder / digest, tensor_bytes(tensor))
        rows.append([digest, str(tensor.dtype), "x".join(map(str, tensor.shape))])
    writer.rows("surfaces", rows)
    alignment = made.alignment
    plan = [plan_sha256(alignment), alignment.sorted_token_ids.tolist(), alignment.expert_ids.tolist()]
    writer.rows("plans", [plan])


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def load(folder: Path) -> None:
    """Import what the processes of the run in ``folder`` use; nothing is done (``benchkit.run.standby``)."""
    study = load_locked_study(folder / "protocol.toml").protocol
    engine_of(study)
    if ENGINES[study.engine].device == "cuda":
        from benchkit.device.cuda import load_drivers

        load_drivers()


def main(arguments: list[str]) -> int:
    """Run one attempt of one process."""
    die_with(int(arguments[3]))
    folder, process, attempt = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    locked = load_locked_study(folder / "protocol.toml")
    study, planned = locked.protocol, study_plan(locked).processes[process]

    def work(writer: RecordWriter) -> None:
        run(study, load_plans(study, folder / study.plans.path), planned, folder, writer)

    return recorded(folder / f"process-{process:05d}-attempt-{attempt}.jsonl", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
