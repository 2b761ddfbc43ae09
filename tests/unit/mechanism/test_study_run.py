"""The plans asset, the orders of the cells, and what a cell consumes: exact orders, markers by hand, the study's relations in one process."""

import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785

from benchkit.errors import DataError
from benchkit.fixture.alignment import fingerprint
from benchkit.fixture.awq import unpack
from benchkit.fixture.plans import capture, read_plans
from benchkit.fixture.study_layer import synthetic_layer
from benchkit.kernels.marlin_schedule import schedule
from benchkit.mechanism.cpu_engine import run_cell, treat
from benchkit.mechanism.native_order import native_orders
from benchkit.mechanism.orders import injected_plan, load_plans
from benchkit.mechanism.trajectory import plan_sha256, tensor_sha256
from benchkit.protocol.study import SURFACES, read_study

ROOT = Path(__file__).parents[3]
PROTOCOL = ROOT / "protocols" / "route-membership-cpu.toml"
ASSET = ROOT / "protocols" / "assets" / "route-membership-cpu-plans.json"
IDS = np.array([[0, 1], [1, 0], [1, 2]])
SHARES = np.full((3, 2), 0.5, dtype=np.float32)


@pytest.fixture(scope="module")
def study():
    return read_study(PROTOCOL)


@pytest.fixture(scope="module")
def plans(study):
    return load_plans(study, ASSET)


@pytest.fixture(scope="module")
def inputs(study):
    return synthetic_layer(study.layer)


@pytest.fixture(scope="module")
def made(study, plans, inputs):
    """Every place of the study, run once."""
    return {
        f"{cell.name}/{history}": run_cell(study, plans, inputs, cell, history, treat(study, plans, history))
        for cell in study.cells
        for history in ("H0", "H1")
    }


def test_captured_orders_become_plans():
    # an arrival, and what an op left in its buffer: blocks of 2 rows, 6 is padding
    orders = {"P0": ([5, 4, 3, 2, 1, 0], "arrived"), "P1": ([0, 3, 1, 2, 4, 6, 5, 6], "buffer")}
    plans = capture(IDS, SHARES, experts=3, block=2, orders=orders)
    assert {name: plan.tolist() for name, plan in plans.plans.items()} == {
        "P0": [3, 0, 4, 2, 1, 5],
        "P1": [0, 3, 1, 2, 4, 5],
    }
    assert dict(plans.origin) == {"P0": "arrived", "P1": "buffer"}


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 2, 3, 4], "order P1: plan: expected 6 valid routes, found [5]"),
        ([0, 1, 2, 3, 4, 4], "order P1: plan: expected each valid route once, found none of route 5"),
        ([0, 1, 2, 3, 4, 7], "order P1: expected routes 0 to 5, found 7"),
        ([0, 1, 2, 3, 4, 5], "order P1: expected another mode than P0, found the same, "),
    ],
)
def test_orders_that_are_none(order, message):
    orders = {"P0": ([3, 0, 1, 2, 4, 5], ""), "P1": (order, "")}
    with pytest.raises(DataError) as error:
        capture(IDS, SHARES, experts=3, block=2, orders=orders)
    assert str(error.value).startswith(message)


def test_weights_beyond_float32_are_not_captured():
    with pytest.raises(DataError, match=r"weights: expected finite weights"):
        capture(IDS, np.full(IDS.shape, 1e39), experts=3, block=2, orders={})


def test_native_orders_are_two_modes_or_an_answer():
    seen = []

    def capture_of(*orders):
        given = iter(orders)

        def fresh(history):
            seen.append(history)
            return next(given)

        return fresh

    sizes = {"experts": 3, "block": 2, "hidden": 8}
    one, alike, other = [0, 3, 1, 2, 4, 5], [3, 0, 1, 2, 4, 5], [0, 3, 1, 4, 2, 5]
    found = native_orders(IDS, **sizes, capture=capture_of([one, other], [alike, one], [alike, other]))
    assert found == {"P0": (one, "native, H0"), "P1": (other, "native, H0, process 2 after P0's, call 2")}
    assert seen == ["H0", "H1", "H0"]
    with pytest.raises(DataError, match=r"found [0-9a-f]{64} in all 21 processes of H0 and H1; that is a result"):
        native_orders(IDS, **sizes, capture=capture_of(*[[one]] * 21))


def test_the_nearest_native_mode_is_taken():
    """Three routes of five a block exchanged, then two, then one; without the last it is the second, after four processes that saw another mode."""
    ids = np.zeros((10, 1), dtype=np.int32)
    sizes = {"experts": 1, "block": 5, "hidden": 8}
    first = list(range(10))
    three, two, one = (
        [*first[count:5], *first[5 : 5 + count], *first[:count], *first[5 + count :]] for count in (3, 2, 1)
    )
    near = iter([[first], [three], [first, two], [one]])
    found = native_orders(ids, **sizes, capture=lambda history: next(near))
    assert found["P1"] == (one, "native, H1, process 3 after P0's, call 1")
    far = iter([[first], [first], [three], [first, two], [two], [three], [one]])
    found = native_orders(ids, **sizes, capture=lambda history: next(far))
    assert found["P1"] == (two, "native, H1, process 3 after P0's, call 2")
    assert next(far) == [one]


def test_the_asset_survives_a_round_trip(tmp_path, plans):
    (tmp_path / "again.json").write_text(plans.to_json())
    again = read_plans(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == ASSET.read_bytes()
    assert np.array_equal(again.topk_weights, plans.topk_weights)
    assert again.topk_weights.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "benchkit.plans/2"}, "expected schema \"benchkit.plans/1\", found 'benchkit.plans/2'"),
        ({"topk_weights": [[0.5]]}, "topk_weights: expected finite weights [16, 4], as topk_ids"),
        ({"topk_weights": [[1e39] * 4] * 16}, "topk_weights: expected finite weights [16, 4], as topk_ids"),
        ({"plans": {"P0": [1, 2]}}, "plan P0: plan: expected 64 valid routes, found [2]"),
        ({"experts": None}, "expected a plans asset (benchkit.plans/1), found something else"),
    ],
)
def test_an_asset_that_is_none(tmp_path, change, message):
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({**json.loads(ASSET.read_text()), **change}))
    with pytest.raises(DataError) as error:
        read_plans(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_the_orders_of_the_cells(study, plans):
    def expert_6(name, history):
        plan = injected_plan(study, plans, study.cell(name), history)
        return [route for route in plan.tolist() if plans.topk_ids.ravel()[route] == 6]

    p0, p1 = [26, 29, 42, 7, 10, 13, 16, 23, 32, 39, 0], [7, 13, 16, 23, 26, 29, 39, 42, 32, 10, 0]
    assert (expert_6("reinjected", "H0"), expert_6("reinjected", "H1")) == (p0, p1)
    assert (expert_6("cross_order", "H0"), expert_6("cross_order", "H1")) == (p1, p0)
    assert expert_6("swap_within", "H0") == [26, 29, 42, 7, 10, 16, 13, 23, 32, 39, 0]
    assert expert_6("swap_across", "H1") == [7, 13, 16, 23, 26, 29, 10, 42, 32, 39, 0]
    assert injected_plan(study, plans, study.cell("stable"), "H0") is None
    with pytest.raises(DataError, match="a native order is the op's"):
        injected_plan(study, plans, study.cell("native"), "H0")


def test_the_relations_of_the_study(study, made):
    wrong = []
    for relation in study.relations:
        for surface in relation.surfaces:
            a, b = (made[str(place)].surfaces[surface] for place in (relation.a, relation.b))
            if np.array_equal(a.view(np.uint16), b.view(np.uint16)) is not relation.equal:
                wrong.append((str(relation.a), str(relation.b), surface))
    assert wrong == []


def test_what_differs_lies_in_the_moved_rows(made):
    one, other = (made[f"native/{history}"].surfaces for history in ("H0", "H1"))
    rows = {
        name: np.flatnonzero((one[name].view(np.uint16) != other[name].view(np.uint16)).any(axis=1)).tolist()
        for name in SURFACES
    }
    assert rows == {"w13": [10, 39], "activation": [10, 39], "routed_w2": [10, 39], "final": [2, 9]}


def test_other_membership_changes_between_blocks_of_one_class_leave_the_bits(made):
    """P0 swapped at routes 10 and 39 is not P1: expert 2 still has another route in its second block, and both are direct."""
    swapped, native = made["swap_across/H0"], made["native/H1"]
    assert fingerprint(swapped.alignment) != fingerprint(native.alignment)
    assert [swapped.alignment.members(3), native.alignment.members(3)] == [(62,), (46,)]
    assert all(tensor_sha256(swapped.surfaces[name]) == tensor_sha256(native.surfaces[name]) for name in SURFACES)


def test_markers_by_hand(study, plans, made):
    trajectory = made["swap_across/H0"]
    row = trajectory.row(["swap_across", "H0", 3], 12345)
    order = plans.plans["P0"].tolist()
    assert row[:5] == [
        "swap_across",
        "H0",
        3,
        "recorded-order:P0",
        hashlib.sha256(struct.pack("<64i", *order)).hexdigest(),
    ]
    first, second = order.index(10), order.index(39)
    order[first], order[second] = order[second], order[first]
    aligned = plans.alignment(order)
    rows, experts = aligned.sorted_token_ids.tolist(), aligned.expert_ids.tolist()
    plan = hashlib.sha256(struct.pack(f"<{len(rows) + len(experts)}i", *rows, *experts)).hexdigest()
    assert row[5:8] == [True, plan, fingerprint(aligned)]
    assert plan_sha256(aligned) == plan
    walked = schedule(blocks=18, size_n=256, size_k=256, thread_n=64, thread_k=64, grid=32, group=64)
    cuts = [[list(piece) for piece in walked.cuts(tile)] for tile in range(walked.tiles)]
    digest = hashlib.sha256(rfc8785.dumps(cuts)).hexdigest()
    assert row[8:13] == [64, 64, 32, "direct=32,single-slice=16,split(2)=24", digest]
    assert row[13:17] == [64, 64, 32, "direct=32,single-slice=27,split(2)=13"]
    assert row[18:] == [hashlib.sha256(trajectory.surfaces[name].tobytes()).hexdigest() for name in SURFACES] + [12345]
    assert made["native/H0"].injected is False


def test_the_layer_by_hand(study, inputs):
    """The first words of the generator, and where they go."""
    words = np.random.PCG64(study.layer.weight_seed).random_raw(4).tolist()
    halves = [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
    assert inputs.w13.qweight.ravel()[:8].view(np.uint32).tolist() == halves
    zeros = unpack(inputs.w13.qzeros)
    assert (int(zeros.min()), int(zeros.max())) == (4, 11)
    assert (float(inputs.w2.scales.min()), float(inputs.w2.scales.max())) == pytest.approx((1 / 64, 2 / 64), rel=1e-2)
    raw = np.random.PCG64(study.layer.input_seed).random_raw(1).tolist()[0]
    total = sum((raw >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
    assert inputs.x[0, 0] == np.float16((total - 131070) / 32768)
    assert float(inputs.x.astype(np.float64).std()) == pytest.approx(1.155, rel=0.02)


def test_a_cpu_worker_loads_numpy_and_nothing_heavier():
    code = (
        "import sys; import benchkit.mechanism.worker\n"
        "print([name for name in ('torch', 'pyarrow', 'pandas', 'scipy', 'triton') if name in sys.modules], 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[] True", "")


def capture_plans(*arguments):
    return forked.run("benchkit.cli", "mechanism", "capture-plans", *arguments)


def test_the_command_writes_what_is_locked(tmp_path):
    plans = json.loads(ASSET.read_text())
    ids, weights = np.array(plans["topk_ids"]), np.array(plans["topk_weights"], dtype=np.float32)
    token, slot = np.divmod(np.arange(64), 4)
    table = pa.table(
        {"token": token, "slot": slot, "expert": ids.ravel(), "weight": pa.array(weights.ravel(), pa.float32())}
    )
    pq.write_table(table, tmp_path / "routing.parquet")
    for name in ("P0", "P1"):
        (tmp_path / f"{name}.json").write_text(json.dumps(plans["plans"][name]))
    options = ["--experts", 16, "--block", 8, "--output", tmp_path / "made.json"]
    orders = [f"--order={tmp_path / name}.json" for name in ("P0", "P1")]
    done = capture_plans(tmp_path / "routing.parquet", *options, *orders)
    assert (done.returncode, done.stderr) == (0, "")
    made = json.loads((tmp_path / "made.json").read_text())
    assert made == {**plans, "origin": {"P0": "captured order P0.json", "P1": "captured order P1.json"}}
    lines = done.stdout.splitlines()
    assert [line[:24] for line in lines[:2]] == ["P0: mode 3b32d1b739bfa55", "P1: mode db9cb254ab1fe02"]
    assert lines[2:-1] == [
        "block 2, expert 2: P0 has 46 where P1 has 62; in both 30 33 36 43 49 52 59",
        "block 3, expert 2: P0 has 62 where P1 has 46; in both none",
        "block 7, expert 6: P0 has 10 where P1 has 39; in both 7 13 16 23 26 29 42",
        "block 8, expert 6: P0 has 39 where P1 has 10; in both 0 32",
    ]
    done = capture_plans(tmp_path / "routing.parquet", *options, orders[0])
    assert done.returncode == 2
    assert "expected two --order files, or --native and none, found 1" in done.stderr
    (tmp_path / "P1.json").write_text('{"a": 1}')
    done = capture_plans(tmp_path / "routing.parquet", *options, *orders)
    assert (done.returncode, done.stderr) == (
        2,
        f"benchkit: {tmp_path / 'P1.json'}: expected a JSON array of integers, the routes in their order\n",
    )


def test_more_routes_than_are_looked_at_are_refused(tmp_path):
    token, slot = np.divmod(np.arange(2048), 4)
    weight = pa.array(np.full(2048, 0.25), pa.float32())
    path = tmp_path / "routing.parquet"
    pq.write_table(pa.table({"token": token, "slot": slot, "expert": slot, "weight": weight}), path)
    options = ["--experts", "65536", "--block", "1024", "--order=absent0.json", "--order=absent1.json"]
    done = capture_plans(path, "--output", tmp_path / "made.json", *options)
    told = f"benchkit: {path}: aligned rows of 2048 routes: expected at most 1048576, found 2097152; give a smaller --block, or fewer routes\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    assert not (tmp_path / "made.json").exists()


@pytest.mark.parametrize(
    ("name", "grid", "changed", "expected"),
    [
        ("route-membership-h200", 132, 500, "a multiple of 132 multiprocessors (engine marlin-raw takes others)"),
        ("route-membership-h200", 132, 660, "a multiple of 132 multiprocessors (engine marlin-raw takes others)"),
        ("route-membership-raw-h200", 200, 529, "a grid"),
        ("route-membership-raw-h200", 200, 528, None),
    ],
)
def test_a_grid_that_the_required_gpu_cannot_launch(tmp_path, name, grid, changed, expected):
    source = ROOT / "protocols" / f"{name}.toml"
    (tmp_path / "assets").symlink_to(source.with_name("assets"))
    study = tmp_path / source.name
    head, launch, tail = source.read_text("utf-8").rpartition(f"grid = {grid} }}")  # w2 of whole_tiles
    study.write_text(f"{head}{launch.replace(str(grid), str(changed))}{tail}", "utf-8")
    done = forked.run("benchkit.cli", "lock", study)
    said = f"cell whole_tiles: w2: expected {expected} of at most 528 for NVIDIA H200, found {changed}"
    assert (done.returncode, said in done.stderr) == ((2, True) if expected else (0, False))
