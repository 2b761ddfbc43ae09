"""What a worker keeps of repeats: the digest of every output, and the mode of arms that have several."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchkit.kernels.contract import PreparedArm
from benchkit.protocol.parse import read_protocol
from benchkit.run.worker import ReadyArm, Worker

PROTOCOL = Path(__file__).parents[3] / "protocols" / "marlin-stable-alignment-h200.toml"


class Rows:
    """A writer that keeps what it gets."""

    def __init__(self):
        self.tables = {}

    def rows(self, table, rows):
        self.tables.setdefault(table, []).extend(rows)


def repeats_of(*, with_mode: bool):
    """Rows of an arm whose every call gives another output, in modes m0, m1, m0, ..."""
    protocol, writer, calls, log = read_protocol(PROTOCOL), Rows(), [], []
    arm, point = protocol.baseline, protocol.points[0]
    prepared = PreparedArm(
        call=lambda copy: (calls.append(copy), log.append("call")),
        output=lambda: np.zeros(1),
        poison=lambda: log.append("poison"),
        expected=lambda truth: np.zeros(1),
        output_bytes=lambda: b"output %d" % len(calls),
        scratch_bytes=0,
        mode=(lambda: f"m{(len(calls) - 1) % 2}") if with_mode else None,
    )
    device = SimpleNamespace(synchronize=lambda: log.append("synchronize"))
    worker = Worker(protocol, SimpleNamespace(device=device), writer)
    worker._repeat(ReadyArm(arm=arm, prepared=prepared), point)
    assert log == ["poison", "call", "synchronize"] * 20
    return writer.tables["repeats"]


def test_modes_and_outputs():
    rows = repeats_of(with_mode=True)
    assert rows == [
        ["batch=1", "native", repeat, f"m{repeat % 2}", hashlib.sha256(f"output {repeat + 1}".encode()).hexdigest()]
        for repeat in range(20)
    ]


def test_an_arm_without_modes():
    assert [row[3] for row in repeats_of(with_mode=False)] == [None] * 20
