"""What a worker says of arms that repack weights: each once, controls and unsupported arms never; and where it stands in processes.parquet."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchkit.bundle.reader import bundle_table
from benchkit.bundle.tables import build_table, write_table
from benchkit.kernels.contract import PreparedArm, Repacking, Support
from benchkit.protocol.parse import read_protocol
from benchkit.run.worker import ReadyArm, _repacking

PROTOCOL = Path(__file__).parents[3] / "protocols" / "awq-decode-h200.toml"
COST = Repacking(duration_ns=7, nbytes=9)


def prepared(repacking):
    return PreparedArm(
        call=lambda copy: None,
        output=lambda: np.zeros(1),
        poison=lambda: None,
        expected=lambda truth: np.zeros(1),
        output_bytes=lambda: b"",
        scratch_bytes=0,
        repacking=repacking,
    )


def test_each_arm_once_and_no_control():
    arms = {arm.name: arm for arm in read_protocol(PROTOCOL).arms}
    costs = {
        "marlin_auto": COST,
        "marlin_best": COST,
        "awq_warp_decode": replace(COST, nbytes=8),
        "marlin_again": COST,
        "slower": COST,
        "copy_ceiling": None,
    }
    points = [tuple(ReadyArm(arm=arms[name], prepared=prepared(cost)) for name, cost in costs.items())] * 2
    points.append(((arms["awq_warp_decode"], Support.no("needs another GPU")),))
    assert _repacking(points) == [["marlin_auto", 7, 9], ["marlin_best", 7, 9], ["awq_warp_decode", 7, 8]]


def test_an_earlier_table_without_the_column_can_be_read(tmp_path):
    texts = ["{}", "ab", "cd", "host", "eager", "start", 1, 2, "{}", "[]", "{}", "2026-01-01T00:00:00Z", None]
    row = [0, 0, "ok", None, *texts, json.dumps([["cand", 1, 2]])]
    table = build_table("processes", [row])
    assert table.column_names[-1] == "repacking"
    write_table(tmp_path, "processes", [table], protocol_digest="a", run_id="b")
    assert bundle_table(tmp_path, "processes").column("repacking").to_pylist() == ['[["cand", 1, 2]]']
    pq.write_table(table.drop_columns(["repacking"]), tmp_path / "processes.parquet")
    assert "repacking" not in bundle_table(tmp_path, "processes").column_names
    assert bundle_table(tmp_path, "processes", ("process", "status")).to_pylist() == [{"process": 0, "status": "ok"}]
