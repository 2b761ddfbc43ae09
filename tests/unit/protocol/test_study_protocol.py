"""Mechanism protocols: what a sound one says, the plan that follows from it, and every problem with its path."""

import hashlib
from pathlib import Path

import pytest
import rfc8785

from benchkit.errors import LockError, ProtocolError
from benchkit.mechanism.study import check_study, describe_study, lock_study
from benchkit.plan import study_plan, study_plan_digest, study_schedule
from benchkit.protocol.parse import parse_protocol
from benchkit.protocol.study import (
    COMPARISON,
    MECHANISM,
    SURFACES,
    Swap,
    Tiling,
    load_locked_study,
    parse_study,
    protocol_kind,
    read_study,
)

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "protocols" / "route-membership-cpu.toml"
TEXT = (ROOT / "tests" / "data" / "study.toml").read_text("utf-8")
CELLS = ("native", "reinjected", "cross_order", "swap_within", "swap_across", "whole_tiles", "stable")


def problems(text: str) -> tuple[str, ...]:
    """The problems of a protocol text."""
    with pytest.raises(ProtocolError) as caught:
        parse_study(text.encode(), "x.toml")
    return caught.value.problems


def changed(old: str, new: str) -> str:
    """The small study with one place changed."""
    assert TEXT.count(old) >= 1
    return TEXT.replace(old, new, 1)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The small study and its asset in a folder of their own, not locked."""
    (tmp_path / "assets").mkdir()
    asset = ROOT / "tests" / "data" / "assets" / "study-plans.json"
    (tmp_path / "assets" / asset.name).write_bytes(asset.read_bytes())
    (tmp_path / "study.toml").write_text(TEXT)
    return tmp_path / "study.toml"


def test_a_sound_study_becomes_a_model() -> None:
    study = read_study(PUBLISHED)
    assert tuple(cell.name for cell in study.cells) == CELLS
    assert (study.engine, study.treatment, dict(study.modes)) == (
        "cpu-emulation",
        "recorded-order",
        {"H0": "P0", "H1": "P1"},
    )
    assert (study.layer.routes, study.layer.weight("w13"), study.layer.weight("w2")) == (64, (256, 256), (128, 256))
    assert [study.layer.surface(name) for name in SURFACES] == [(64, 256), (64, 128), (64, 256), (16, 256)]
    assert study.cell("swap_across").swap == Swap(first=10, second=39, same_block=False)
    assert study.cell("native").launches["w2"] == Tiling(thread_k=64, thread_n=64, grid=32)
    assert study.cell("whole_tiles").launches["w13"] == Tiling(thread_k=64, thread_n=64, grid=72)
    assert len(study.relations) == 14
    first = study.relations[0]
    assert (str(first.a), str(first.b), first.equal, first.surfaces) == ("native/H0", "native/H1", False, SURFACES)


def test_seventy_processes_replicate_major_with_histories_alternated() -> None:
    runs = study_schedule(read_study(PUBLISHED))
    assert [run.index for run in runs] == list(range(70))
    assert [run.replicate for run in runs] == [index // 14 for index in range(70)]
    assert [run.place.cell for run in runs] == [cell for _ in range(5) for cell in CELLS for _ in range(2)]
    even, odd = ["H0", "H1"] * 7, ["H1", "H0"] * 7
    assert [run.place.history for run in runs] == even + odd + even + odd + even


def test_the_plan_digest_by_hand() -> None:
    runs = study_schedule(read_study(PUBLISHED))
    listed = [[run.index, run.replicate, run.place.cell, run.place.history] for run in runs]
    assert listed[14] == [14, 1, "native", "H1"]
    digest = hashlib.sha256(rfc8785.dumps(["benchkit.study-plan/1", listed])).hexdigest()
    assert study_plan_digest(runs) == digest == load_locked_study(PUBLISHED).lock.plan_digest


def test_kinds_are_told_apart(tmp_path: Path) -> None:
    assert protocol_kind(PUBLISHED) == MECHANISM
    assert protocol_kind(ROOT / "protocols" / "moe-decode-cpu.toml") == COMPARISON
    (tmp_path / "x.toml").write_text("nothing = [")
    assert protocol_kind(tmp_path / "x.toml") == protocol_kind(tmp_path / "none.toml") == COMPARISON
    with pytest.raises(ProtocolError, match=r'protocol\.kind: expected "comparison", found "mechanism"'):
        parse_protocol(TEXT.encode(), "x.toml")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            'order = "native"',
            'order = "random"',
            'cell[0].order: expected one of "native", "own", "other", "stable", found string "random"',
        ),
        (
            "[13, 16]",
            "[13, 13]",
            "cell[3].swap.routes: expected two different routes, such as [22, 28], found array [13, 13]",
        ),
        (
            "[13, 16]",
            "[13, true]",
            "cell[3].swap.routes: expected two different routes, such as [22, 28], found array [13, true]",
        ),
        ("[13, 16]", "[13, 64]", "cell[3].swap.routes: expected routes 0 to 63"),
        ('H1 = "P1"', 'H1 = "P0"', "histories.H1: expected another plan than that of H0, found the same"),
        ('plans = "plans"', 'plans = "orders"', 'histories.plans: no [[asset]] is named "orders"'),
        ('name = "reinjected"', 'name = "native"', "cell: the name native stands twice"),
        ('b = "native/H1"', 'b = "nature/H1"', "relation[0].b: no cell is named nature"),
        ('b = "native/H1"', 'b = "native/H0"', "relation[0].b: expected another place than native/H0"),
        (
            'b = "native/H1"',
            'b = "native/H2"',
            'relation[0].b: expected a cell and a history, such as "native/H0", found string "native/H2"',
        ),
        (
            'a = "reinjected/H0"\nb = "native/H0"',
            'a = "native/H1"\nb = "native/H0"',
            "relation[1]: native/H1 and native/H0 are related at a surface twice",
        ),
        ("group = 64", "group = 96", "fixture.hidden: 256 mod group 96 is not 0"),
        ("top_k = 4", "top_k = 17", "fixture.top_k: 17 exceeds experts = 16"),
        (
            "thread_n = 64, grid = 32 }",
            "thread_n = 96, grid = 32 }",
            "cell[0].launch.w13.thread_n: expected a divisor of 256, found 96; so in 5 other cell(s)",
        ),
        (
            "replicates = 1",
            "replicates = 1.5",
            "schedule.replicates: expected an integer from 1 to 1000, found float 1.5",
        ),
        (
            "watchdog_s = 60",
            "watchdog_s = 60\npairs = 3",
            "schedule.pairs: unknown key; known here: order, replicates, watchdog_s",
        ),
        (
            'treatment = "recorded-order"',
            'treatment = "prayer"',
            'histories.treatment: expected one of "recorded-order", found string "prayer"',
        ),
    ],
)
def test_a_problem_is_named_with_its_path(old: str, new: str, problem: str) -> None:
    assert problem in problems(changed(old, new))


def test_a_fault_of_launches_that_cells_share_is_told_once() -> None:
    assert problems(changed("group = 64", "group = 100")) == (
        "fixture.hidden: 256 mod group 100 is not 0",
        "fixture.intermediate: 128 mod group 100 is not 0",
        "cell[0].launch.w13.thread_k: expected a multiple or a divisor of group 100, found 64; so in 6 other cell(s)",
        "cell[0].launch.w2.thread_k: expected a multiple or a divisor of group 100, found 64; so in 6 other cell(s)",
    )


def test_a_swap_needs_an_injected_order() -> None:
    text = changed(
        'name = "native"\norder = "native"',
        'name = "native"\norder = "native"\nswap = { routes = [1, 2], blocks = "same" }',
    )
    assert problems(text) == ('cell[0].swap: needs order "own" or "other", found "native"',)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            'swap = { routes = [13, 16], blocks = "same" }',
            'swap = { routes = [13, 16], blocks = "different" }',
            "cell swap_within: swap: expected blocks to be different under H0, found blocks [7, 7]",
        ),
        (
            "[13, 16]",
            "[13, 30]",
            "cell swap_within: swap: expected two valid routes of one expert, found experts [6, 2]",
        ),
        (
            "block = 8",
            "block = 16",
            "expected experts, block, [tokens, top_k] = (16, 16, (16, 4)) as in [fixture], found (16, 8, (16, 4))",
        ),
        ('H0 = "P0"', 'H0 = "P7"', "histories: no plan is named P7; there are P0, P1"),
    ],
)
def test_plans_and_swaps_are_checked_before_the_lock(copied: Path, old: str, new: str, problem: str) -> None:
    copied.write_text(changed(old, new))
    with pytest.raises(ProtocolError) as caught:
        lock_study(copied, replace=False)
    assert problem in str(caught.value)
    assert not copied.with_suffix(".lock").exists()


def test_lock_check_and_plan(copied: Path) -> None:
    lock = lock_study(copied, replace=False)
    assert (lock.protocol_id, dict(lock.bytes_by_point)) == ("study", {})
    assert lock_study(copied, replace=False) == lock
    lines = check_study(copied)
    assert lines[0] == f"{copied}: study: 7 cells x 2 histories x 1 replicates, 14 relations, no problem found"
    assert lines[-1] == "this machine can run it"
    assert describe_study(copied, 10)[1:] == [
        "process 10: cell whole_tiles, history H0, replicate 0, order own",
        "  w13: tiles of 64 x 64, grid 72: single-slice 72",
        "  w2: tiles of 64 x 64, grid 72: single-slice 72",
    ]
    copied.write_text(copied.read_text().replace("replicates = 1", "replicates = 2"))
    with pytest.raises(LockError, match="changed after it was locked"):
        study_plan(load_locked_study(copied))
