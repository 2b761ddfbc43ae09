"""What the commands print about a routing, exactly, and one message for each bad file."""

import forked
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from benchkit.cli import cli
from benchkit.errors import DataError
from benchkit.fixture.alignment import align, fingerprint, small_batch_plan, study_ids
from benchkit.kernels.marlin_schedule import schedule
from benchkit.mechanism.exchanges import Exchange, Launch, describe_schedule, exchanges
from benchkit.mechanism.membership import Overflow, describe_membership, overflows, read_ids


def table_of(ids, **more):
    token, slot = np.divmod(np.arange(ids.size), ids.shape[1])
    return pa.table(
        {"token": pa.array(token, pa.int32()), "slot": pa.array(slot, pa.int32()), "expert": ids.ravel(), **more}
    )


@pytest.fixture
def write(tmp_path):
    def write(table):
        path = tmp_path / "routes.parquet"
        pq.write_table(table, path)
        return path

    return write


@pytest.fixture
def study(write):
    return write(table_of(study_ids()))


W13 = {"size_n": 1536, "size_k": 2048, "group": 128}
IN_40, IN_41 = (1, 13, 22, 28, 32, 47, 51, 58), (69, 73, 86)


def test_membership_of_the_study(study):
    lines = describe_membership(study, experts=128, block=8)
    assert lines[:5] == [
        f"{study}: 21 tokens x 8 = 168 routes (0 skipped), 128 experts, blocks of 8 rows",
        "aligned rows 400 (232 of padding), blocks 50, experts with routes 49",
        "",
        "block  expert  routes (stable order)",
        "    0       0  0 55 107 155",
    ]
    assert lines[44:46] == ["   40     106  1 13 22 28 32 47 51 58", "   41     106  69 73 86"]
    assert lines[54:] == [
        "",
        "experts that exceed one block: 1",
        "  expert 106: 11 routes in blocks 40 to 41",
        "native alignment can vary: yes, between 165 modes: at 168 routes and 128 experts the op orders an expert's routes by atomics",
        f"mode of the stable order: {fingerprint(align(study_ids(), 128, 8))}",
    ]


def test_overflows_of_the_study():
    (found,) = overflows(align(study_ids(), 128, 8))
    assert found == Overflow(expert=106, blocks=(40, 41), members=(IN_40, IN_41))
    assert (found.routes, found.ways) == (11, 165)


def test_no_expert_exceeds_a_block(study):
    lines = describe_membership(study, experts=128, block=16)
    assert lines[-3] == "experts that exceed one block: 0"
    assert (
        lines[-2]
        == "native alignment can vary: no: no expert exceeds one block, so that every order gives the same mode"
    )


def test_native_order_without_atomics(write):
    ids = np.zeros((40, 1), dtype=np.int32)
    lines = describe_membership(write(table_of(ids)), experts=4, block=8)
    native = fingerprint(align(ids, 4, 8, small_batch_plan(ids, 4)))
    assert lines[-2] == (
        "native alignment can vary: no: fewer than 1024 routes and at most 64 experts are ordered without atomics; "
        f"it gives another mode than the stable one, {native}"
    )
    lines = describe_membership(write(table_of(ids[:20])), experts=4, block=8)
    assert lines[-2].endswith("; it gives the stable mode")


def test_very_many_modes_are_given_as_a_power(write):
    lines = describe_membership(write(table_of(np.zeros((20_000, 1), dtype=np.int32))), experts=1, block=8)
    assert "yes, between about 10^65823 modes: at 20000 routes and 1 experts" in lines[-2]


def test_points_and_order_of_rows(write):
    ids = np.array([[3, 1], [0, 2], [1, -1]])
    first, other = (
        table_of(ids + add * (ids >= 0)).append_column("point", pa.array([name] * 6))
        for name, add in (("a", 0), ("b", 1))
    )
    mixed = pa.concat_tables([first, other]).take([11, 0, 3, 7, 2, 9, 1, 10, 4, 8, 5, 6])
    path = write(mixed)
    assert read_ids(path, "a").tolist() == ids.tolist()
    assert read_ids(path, "b").tolist() == [[4, 2], [1, 3], [2, -1]]
    with pytest.raises(DataError, match="holds 2 points, choose one with --point: a, b"):
        read_ids(path)
    with pytest.raises(DataError, match="expected one of the points a, b, found c"):
        read_ids(path, "c")
    assert read_ids(write(first)).tolist() == ids.tolist()
    assert describe_membership(path, experts=4, block=8, point="a")[0].endswith(
        "6 routes (1 skipped), 4 experts, blocks of 8 rows"
    )


IDS = np.array([[0, 1], [1, 2]])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (table_of(IDS).drop_columns("expert"), "missing expert; found token, slot"),
        (table_of(IDS).slice(0, 3), "expected 2 tokens x 2 slots = 4 routes, found 3"),
        (table_of(IDS).take([0, 1, 3, 3]), r"expected each \(token, slot\) once"),
        (table_of(IDS).slice(0, 0), "expected at least one route, found none"),
        (table_of(IDS).set_column(0, "token", pa.array([-1, 0, 1, 1])), "tokens and slots from 0, found -1"),
        (table_of(IDS).set_column(0, "token", pa.array([0, 0, 10**15, 10**15])), r"= 2000000000000002 routes, found 4"),
        (table_of(IDS + 3), "token 0, slot 1: expected experts 0 to 3, or -1 for a route of another device, found 4"),
    ],
)
def test_bad_files(write, table, message):
    path = write(table)
    with pytest.raises(DataError, match=message) as caught:
        describe_membership(path, experts=4, block=8)
    assert str(caught.value).startswith(f"{path}: ")


def test_routes_of_other_devices_alone_have_no_schedule(write):
    path = write(table_of(np.full((2, 2), -1)))
    with pytest.raises(DataError, match="expected a route of an expert of this device, found -1 alone") as caught:
        describe_schedule(path, Launch(gpu="h200", **W13), experts=4, block=8)
    assert str(caught.value).startswith(f"{path}: ")


def test_schedule_of_the_study_on_its_gpu(study):
    lines = describe_schedule(study, Launch(**W13, gpu="rtx-3090"), experts=128, block=8)
    assert lines[2:4] == [
        "tiles of 64 x 128 (K x N): 12 along N, 32 along K, 600 in all; grid 246",
        "direct 492, split(2) 108; 16 K tiles to a CUDA block in the shared part",
    ]
    assert lines[46:48] == ["   40     106       8  direct", "   41     106       3  split(2)"]
    assert lines[-2:] == [
        "routes (stable order) that a swap would cut differently along K:",
        "  expert 106: block 40 (1 13 22 28 32 47 51 58) with block 41 (69 73 86), in 12 of 12 N tiles",
    ]
    assert lines == describe_schedule(study, Launch(**W13, thread_k=64, thread_n=128, grid=246), experts=128, block=8)


def test_schedule_of_the_study_at_grid_200(study):
    lines = describe_schedule(study, Launch(**W13, thread_k=64, thread_n=128, grid=200), experts=128, block=8)
    assert lines[39] == "   33      87       3  direct x 4, single-slice x 8"
    assert lines[-1] == "no swap of two routes of one expert changes how they are cut along K"


def test_exchanges_of_the_study():
    alignment = align(study_ids(), 128, 8)
    plan = schedule(blocks=50, size_n=1536, size_k=2048, thread_n=128, thread_k=64, grid=246)
    assert exchanges(alignment, plan) == (
        Exchange(expert=106, first=40, second=41, first_routes=IN_40, second_routes=IN_41, tiles=12),
    )
    plan = schedule(blocks=50, size_n=1536, size_k=2048, thread_n=64, thread_k=128, grid=528)
    (found,) = exchanges(alignment, plan)
    differing = sum(left != right for left, right in zip(plan.block_cuts(40), plan.block_cuts(41), strict=True))
    assert 0 < found.tiles == differing <= 24


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({}, "expected --gpu, or all of --thread-k, --thread-n and --grid"),
        ({"thread_k": 64, "grid": 246}, "expected --gpu, or all of"),
        ({"gpu": "h200", "grid": 246}, "expected --gpu or --thread-k, --thread-n and --grid, found both"),
        ({"gpu": "a100"}, "--gpu: expected one of rtx-3090, h200, found a100"),
        ({"thread_k": 64, "thread_n": 100, "grid": 246}, "thread_n = 100: expected a divisor of size_n = 1536"),
    ],
)
def test_launches_that_are_refused(study, launch, message):
    with pytest.raises(DataError, match=message):
        describe_schedule(study, Launch(**W13, **launch), experts=128, block=8)


def command(*arguments):
    return forked.run("benchkit.cli", "mechanism", *arguments)


@pytest.mark.parametrize(
    ("option", "value", "range_"),
    [
        ("--experts", 99999999999999999999, "1<=x<=65536"),
        ("--experts", 2000000000, "1<=x<=65536"),
        ("--block", 99999999999999999999, "1<=x<=1024"),
        ("--size-n", 10000000000000, "1<=x<=1048576"),
        ("--size-k", 1000000000000, "1<=x<=1048576"),
        ("--thread-k", 99999999999999999999, "1<=x<=1048576"),
        ("--thread-n", 99999999999999999999, "1<=x<=1048576"),
        ("--grid", 99999999999999999999, "1<=x<=65536"),
    ],
)
def test_options_have_upper_bounds(study, option, value, range_):
    shared, gemm = {"--experts": 128, "--block": 8}, {"--size-n": 1536, "--size-k": 2048}
    commands = {"schedule": shared | gemm} | ({"membership": shared} if option in shared else {})
    for command, options in commands.items():
        words = [str(word) for pair in (options | {option: value}).items() for word in pair]
        done = CliRunner().invoke(cli, ["mechanism", command, str(study), *words])
        assert done.exit_code == 2
        assert done.output.endswith(f"Error: Invalid value for '{option}': {value} is not in the range {range_}.\n")


def test_what_follows_from_options_and_routes_is_bounded(write):
    routes = write(table_of(np.zeros((2904, 1), dtype=np.int32)))
    launch = {"size_n": 1536, "size_k": 2048, "group": 128, "thread_k": 64, "thread_n": 128, "grid": 246}
    for found, options, block, message in (
        (describe_membership, (), 1024, "aligned rows of 2904 routes: expected at most 1048576, found 2973696; give a smaller --block, or fewer routes"),
        (describe_schedule, (Launch(**launch),), 8,
         "pairs of blocks of one expert: expected at most 65536, found 65703; give a larger --block, or fewer routes"),
    ):  # fmt: skip
        with pytest.raises(DataError) as caught:
            found(routes, *options, experts=65536, block=block)
        assert str(caught.value) == f"{routes}: {message}"
    with pytest.raises(DataError) as caught:
        describe_schedule(routes, Launch(**launch | {"thread_n": 1}), experts=1, block=16)
    assert (
        str(caught.value)
        == "tiles of 182 blocks x 1536 along N: expected at most 262144, found 279552; give a larger --thread-n"
    )


def test_the_commands(study):
    done = command("membership", study, "--experts", 128, "--block", 8)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == describe_membership(study, experts=128, block=8)
    sizes = ("--size-n", 1536, "--size-k", 2048)
    done = command("schedule", study, "--experts", 128, "--block", 8, *sizes, "--gpu", "h200")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == describe_schedule(study, Launch(**W13, gpu="h200"), experts=128, block=8)
    done = command("schedule", study, "--experts", 100, "--block", 8, *sizes, "--gpu", "h200")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"benchkit: {study}: topk_ids: token 0, slot 1: expected experts 0 to 99, or -1 for a route of another device, found 106\n"
    )
