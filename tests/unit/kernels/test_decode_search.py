"""What ``benchkit tune`` tries: bounded, without what cannot be better, and never without the table's rows."""

import pytest

from benchkit.kernels.warp_decode.configuration import (
    LAYOUTS,
    LayerShape,
)
from benchkit.kernels.warp_decode.decode_source import COMBINE, DOWN, DOWN_ROWS, GATE_UP, kernels
from benchkit.kernels.warp_decode.dispatch import TABLE
from benchkit.kernels.warp_decode.fit import (
    tiles_problem,
)
from benchkit.kernels.warp_decode.search import candidates

H200 = {"sm_bytes": 233472, "cta_bytes": 232448}
# tokens of a batch and of its busiest expert: uniform from 1 to 64, Zipf 0.6 and Zipf 1.2 from 8 to 128 (experts 128, top-8)
UNIFORM = ((1, 1), (2, 2), (4, 2), (8, 3), (16, 4), (32, 6), (64, 10))
SKEWED = ((8, 4), (32, 14), (64, 27), (128, 57), (8, 8), (32, 30), (64, 60), (128, 122))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_rows_of_the_table_are_tried_everywhere(layout):
    for tokens, busiest in (*UNIFORM, *SKEWED, (512, 47)):
        tried = candidates(layout, tokens, busiest)
        assert len(set(tried)) == len(tried)
        assert {tiles for _, tiles in TABLE[layout]} <= set(tried)


def test_a_session_of_all_layouts_is_short():
    """Some forty milliseconds a trial."""
    count = sum(len(candidates(layout, *point)) for layout in LAYOUTS for point in (*UNIFORM, *SKEWED))
    assert 1000 < count < 3600


@pytest.mark.parametrize("layout", LAYOUTS)
def test_larger_groups_only_where_an_expert_has_as_many_tokens(layout):
    rows = {tiles for _, tiles in TABLE[layout]}
    for tokens, busiest, least, most in (
        (64, 8, 1, 1),
        (64, 9, 1, 2),
        (64, 17, 1, 4),
        (128, 16, 1, 2),
        (512, 47, 1, 8 if layout.startswith("bf16") else 4),
    ):
        tried = [tiles for tiles in candidates(layout, tokens, busiest) if tiles not in rows]
        found = {tiles.up.groups for tiles in tried}
        assert (min(found), max(found)) == (least, most)
        assert all(busiest > tiles.up.entry_tokens for tiles in tried if tiles.up.walk)
        assert all(busiest < 4 * tiles.up.entry_tokens for tiles in tried if not tiles.up.walk)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_form_of_down_is_tried_where_it_may_help(layout):
    table = {tiles for _, tiles in TABLE[layout]}

    def forms(tokens: int, busiest: int) -> set[tuple[str, ...]]:
        tried = [tiles for tiles in candidates(layout, tokens, busiest) if tiles not in table]
        return {(*kernels(tiles), "walk" * tiles.down.walk) for tiles in tried}

    one, walk, rows = (GATE_UP, DOWN, ""), (GATE_UP, DOWN, "walk"), (GATE_UP, DOWN_ROWS, COMBINE, "")
    assert forms(1, 1) == {one}
    assert forms(16, 4) >= {one, rows}
    assert forms(64, 60) == forms(128, 122) == {one, walk, rows}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_down_is_prefetched_in_several_amounts(layout):
    rows = {tiles for _, tiles in TABLE[layout]}
    for tokens in (1, 64):
        assert {tiles.up.ahead for tiles in candidates(layout, tokens, 9)} == {0, 16, 32}
    assert {tiles.up.ahead for tiles in candidates(layout, 128, 9) if tiles not in rows} == {0}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_most_of_it_fits(layout):
    shape = LayerShape(experts=128, hidden=2048, intermediate=768, top_k=8, layout=layout)
    for tokens, busiest in (*UNIFORM, *SKEWED):
        tried = candidates(layout, tokens, busiest)
        fitting = [tiles for tiles in tried if tiles_problem(shape, tiles, tokens, **H200) is None]
        assert len(fitting) >= (0.7 if tokens <= 64 else 0.4) * len(
            tried
        )  # sums of 128 tokens leave little room beside them
