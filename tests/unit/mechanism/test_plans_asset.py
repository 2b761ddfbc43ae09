"""The plans asset as a study's lock takes it: each fault refused with one message."""

import json
from pathlib import Path

import pytest

from benchkit.errors import DataError
from benchkit.mechanism.plans_asset import load_asset
from benchkit.protocol.study import read_study

ROOT = Path(__file__).parents[3]
ASSET = ROOT / "protocols" / "assets" / "route-membership-cpu-plans.json"
MODE = "3b32d1b739bfa5506d4339592a09813dcafcea33e12904ccc11cc84a1ac3b6c7"
WEIGHT = "topk_weights[2][1]: expected a float of at least 0 that is a float32 exactly"


@pytest.fixture(scope="module")
def study():
    return read_study(ROOT / "protocols" / "route-membership-cpu.toml")


def test_the_published_asset(study):
    assert sorted(load_asset(study, ASSET).plans) == ["P0", "P1"]


def put(*place, value):
    def edit(document):
        *path, last = place
        for step in path:
            document = document[step]
        document[last] = value

    return edit


def same(document):
    document["plans"]["P1"] = document["plans"]["P0"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (put("plans", "P0", 3, value=True), "plans.P0[3]: expected an integer, found True"),
        (put("plans", "P1", 0, value="0"), "plans.P1[0]: expected an integer, found '0'"),
        (put("topk_ids", 1, 2, value=1.5), "topk_ids[1][2]: expected an integer, found 1.5"),
        (put("topk_ids", 0, 0, value=False), "topk_ids[0][0]: expected an integer, found False"),
        (put("topk_weights", 2, 1, value=0.1), f"{WEIGHT}, such as 0.10000000149011612, found 0.1"),
        (put("topk_weights", 2, 1, value=-0.5), f"{WEIGHT}, found -0.5"),
        (put("topk_weights", 2, 1, value=True), f"{WEIGHT}, found True"),
        (put("topk_weights", 2, 1, value=1), f"{WEIGHT}, found 1"),
        (put("topk_weights", 2, 1, value=float("nan")), f"{WEIGHT}, found nan"),
        (put("topk_weights", 2, 1, value=1e39), f"{WEIGHT}, found 1e+39"),
        (same, f"plan P1: expected another mode than P0, found the same, {MODE}; capture two modes"),
        (put("topk_weights", value=[[0.5]]), "topk_weights: expected finite weights [16, 4], as topk_ids"),
    ],
)
def test_a_fault_is_named(tmp_path, study, edit, message):
    document, path = json.loads(ASSET.read_text()), tmp_path / "plans.json"
    edit(document)
    path.write_text(json.dumps(document))
    with pytest.raises(DataError) as error:
        load_asset(study, path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"topk_ids": ' + "[" * 960 + "1.5" + "]" * 960 + "}", "arrays or objects nested too deep to be read"),
        ("[" * 100_000, "arrays or objects nested too deep to be read"),
        ('{"experts": 1, "experts": 2}', "no JSON (the key 'experts' stands twice)"),
        ("{", "no JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
    ],
)
def test_text_that_is_no_asset(tmp_path, study, text, found):
    path = tmp_path / "plans.json"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        load_asset(study, path)
    assert str(error.value) == f"{path}: expected a plans asset (benchkit.plans/1), found {found}"
