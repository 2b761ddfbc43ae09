"""The correctness gate of a worker, with kernels that are wrong: trials C01 and C03."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import silu

from benchkit.errors import WorkerError
from benchkit.fixture.layer import MoeInputs
from benchkit.kernels import registry
from benchkit.kernels.contract import Params, PreparedArm
from benchkit.kernels.reference import moe_truth
from benchkit.plan import Plan, plan
from benchkit.run.folder import RunSettings
from benchkit.run.locking import preview
from benchkit.run.records import RecordWriter, read_rows
from benchkit.run.torch_bench import TorchBench
from benchkit.run.worker import Worker, first_wrong

DEMO = Path(__file__).parents[3] / "protocols" / "moe-decode-cpu.toml"
SMALLER = {"experts = 64": "experts = 8", "hidden = 512": "hidden = 32", "intermediate = 256": "intermediate = 16"}
SETTINGS = RunSettings(
    run_id="20260101T000000Z-00000000", protocol_name="small.toml", exploratory=(), script=None, git=None, identity=None
)


@pytest.fixture
def small(tmp_path: Path) -> Plan:
    """The demo's plan over a layer of a few kilobytes."""
    text = DEMO.read_text("utf-8")
    for large, little in SMALLER.items():
        assert large in text
        text = text.replace(large, little)
    path = tmp_path / "small.toml"
    path.write_text(text, "utf-8")
    return plan(preview(path))


class Arm:
    """An output-centric arm over a layer; what it does with gate and up is its subclass's."""

    def __init__(self, inputs: MoeInputs) -> None:
        self.inputs = inputs
        self.output = torch.empty_like(inputs.x)

    def activated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Gate rows come first, as the reference has it."""
        gate, up = gate_up.chunk(2)
        return silu(gate) * up

    def __call__(self, copy: int) -> None:
        weights, self.output[:] = self.inputs.weights, 0
        for token, experts in enumerate(self.inputs.topk_ids.tolist()):
            for expert, share in zip(experts, self.inputs.topk_weights[token].tolist(), strict=True):
                gate_up = weights.w13[copy][expert] @ self.inputs.x[token]
                self.output[token] += share * (weights.w2[copy][expert] @ self.activated(gate_up))

    def prepared(self) -> PreparedArm:
        return PreparedArm(
            call=self,
            output=lambda: self.output.double().numpy(),
            poison=lambda: self.output.__setitem__(slice(None), float("nan")),
            expected=lambda truth: moe_truth(self.inputs, truth),
            output_bytes=lambda: self.output.numpy().tobytes(),
            scratch_bytes=0,
        )


class Neighbours(Arm):
    """Takes even columns for gate and odd ones for up (C01)."""

    def activated(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.view(-1, 2).t()
        return silu(gate) * up


def run_with(kind: Callable[[MoeInputs], Arm], small: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run process 0 with this arm as the candidate; returns the worker's records."""
    prepare = registry.prepare

    def stub(kernel_id: str, inputs: object, params: Params) -> object:
        if kernel_id == "cpu_output_centric" and isinstance(inputs, MoeInputs):
            return kind(inputs).prepared()
        return prepare(kernel_id, inputs, params)

    monkeypatch.setattr(registry, "prepare", stub)
    bench = TorchBench(small.protocol, folder=folder, digest_cache=folder / "digests.json")
    records = folder / "records.jsonl"
    with RecordWriter(records) as writer, torch.inference_mode():
        Worker(small.protocol, bench, writer).run(small.processes[0].points, SETTINGS)
    return records


def test_a_right_arm_is_timed(small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = run_with(Arm, small, tmp_path, monkeypatch)
    assert len(read_rows(records, "samples")) == small.samples_per_process


def test_a_swapped_layout_is_stopped_before_any_timing(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WorkerError) as caught:
        run_with(Neighbours, small, tmp_path, monkeypatch)
    assert re.fullmatch(
        r"correctness \(eager\): output_centric at batch=\d+: expected min_cosine >= 0\.99999 and rel_error <= 1e-05, "
        r"found -?0\.\d+ and \d\.\d+; first wrong element \[0, 0\]: expected -?\d\.\d+, found -?\d\.\d+",
        str(caught.value),
    )
    records = tmp_path / "records.jsonl"
    assert read_rows(records, "samples") == []
    (row,) = [row for row in read_rows(records, "correctness") if row[1] == "output_centric"]
    assert row[4] < 0.9  # the errors that stopped it are kept


def test_c01_names_the_first_element() -> None:
    right = np.array([[7.310586, 35.231883, 85.731671, 157.122206]])
    stub = np.array([[1.462117, 11.430890, 199.990920, 1200.0]])
    assert first_wrong(stub, right, 1e-3) == "first wrong element [0, 0]: expected 7.310586, found 1.462117"
    assert first_wrong(right + np.array([[0, 0, 2.0, 9]]), right, 1e-2) == (
        "first wrong element [0, 2]: expected 85.731671, found 87.731671"
    )


def test_the_first_element_of_an_output_that_is_nan_or_off_in_its_direction_alone() -> None:
    right = np.array([1.0, 2.0, 4.0])
    assert first_wrong(np.array([1.0, np.nan, 9.0]), right, 1e-3) == "first wrong element [1]: expected 2, found nan"
    assert first_wrong(np.array([1.0, 2.5, 4.1]), right, 1.0) == "first wrong element [1]: expected 2, found 2.5"
