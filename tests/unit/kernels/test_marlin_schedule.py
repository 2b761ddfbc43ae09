"""The schedule: closed form against a literal walk of every CUDA block, the two cases of the study, and refusals."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchkit.errors import DataError
from benchkit.kernels.marlin_schedule import PER_COLUMN, schedule


def up(a, b):
    return (a + b - 1) // b


class CudaBlock:
    """One CUDA block of the kernel, statement by statement (names as in marlin_template.h)."""

    def __init__(self, index, blocks, n_tiles, k_tiles, grid, ratio):
        self.index, self.n_tiles, self.k_tiles, self.grid = index, n_tiles, k_tiles, grid
        self.global_mn_tiles = blocks * n_tiles
        self.part2_mn_tiles, self.part1_mn_iters = self.global_mn_tiles, 0
        if self.global_mn_tiles > grid:
            self.part2_mn_tiles = self.global_mn_tiles % grid
            if self.part2_mn_tiles * 3 <= grid:
                self.part2_mn_tiles += grid
            self.part1_mn_iters = (self.global_mn_tiles - self.part2_mn_tiles) // grid
        self.iters = up(k_tiles * self.part2_mn_tiles, grid)
        if ratio >= 1:
            self.iters = ratio * up(self.iters, ratio)
        self.in_part2 = False
        self.slice_row, self.slice_col_par, self.slice_col, self.par_id = 0, index, 0, 0
        self.slice_iters = self.slice_count = self.slice_idx = 0

    def init_part2_slice(self):
        self.slice_iters = self.iters * (self.index + 1) - (self.k_tiles * self.slice_col_par + self.slice_row)
        if self.slice_iters < 0 or self.slice_col_par >= self.part2_mn_tiles:
            self.slice_iters = 0
        if self.slice_iters == 0:
            return
        if self.slice_row + self.slice_iters > self.k_tiles:
            self.slice_iters = self.k_tiles - self.slice_row
        self.slice_count, self.slice_idx = 1, 0
        col_first = self.iters * up(self.k_tiles * self.slice_col_par, self.iters)
        if col_first <= self.k_tiles * (self.slice_col_par + 1):
            col_off = col_first - self.k_tiles * self.slice_col_par
            self.slice_count = up(self.k_tiles - col_off, self.iters)
            if col_off > 0:
                self.slice_count += 1
            delta_first = self.iters * self.index - col_first
            if delta_first < 0 or (col_off == 0 and delta_first == 0):
                self.slice_idx = self.slice_count - 1
            else:
                self.slice_idx = self.slice_count - 1 - delta_first // self.iters
                if col_off > 0:
                    self.slice_idx -= 1
        if self.slice_col == self.n_tiles:
            self.slice_col = 0
            self.par_id += 1

    def init_slice(self):
        if not self.in_part2 and not self.part1_mn_iters:
            self.in_part2 = True
            self.slice_col_par = self.iters * self.index // self.k_tiles
            self.slice_row = self.iters * self.index % self.k_tiles
            tile = self.slice_col_par + self.global_mn_tiles - self.part2_mn_tiles
            self.slice_col, self.par_id = tile % self.n_tiles, tile // self.n_tiles
        if self.in_part2:
            self.init_part2_slice()
        else:
            self.part1_mn_iters -= 1
            self.par_id, self.slice_col = divmod(self.slice_col_par, self.n_tiles)
            self.slice_iters, self.slice_count, self.slice_idx = self.k_tiles, 1, 0

    def walk(self):
        """(tile, start, length, CUDA block, slice_idx, slice_count) of each slice, in order."""
        self.init_slice()
        while self.slice_iters:
            tile = self.par_id * self.n_tiles + self.slice_col
            yield tile, self.slice_row, self.slice_iters, self.index, self.slice_idx, self.slice_count
            self.slice_row = 0
            if self.in_part2:
                self.slice_col_par += 1
                self.slice_col += 1
            else:
                self.slice_col_par += self.grid
            self.init_slice()


def assert_walk_agrees(blocks, size_n, size_k, thread_n, thread_k, grid, group):
    found = schedule(
        blocks=blocks, size_n=size_n, size_k=size_k, thread_n=thread_n, thread_k=thread_k, grid=grid, group=group
    )
    ratio = 0 if group in (PER_COLUMN, size_k) else (group // 16) // (thread_k // 16)
    walked = {}
    for index in range(grid):
        for tile, *piece in CudaBlock(index, blocks, found.n_tiles, found.k_tiles, grid, ratio).walk():
            walked.setdefault(tile, []).append(tuple(piece))
    assert sorted(walked) == list(range(found.tiles))
    for tile, pieces in walked.items():
        pieces.sort()
        own = [(piece.start, piece.length, piece.cuda_block) for piece in found.slices(tile)]
        assert [piece[:3] for piece in pieces] == own
        assert [piece[3] for piece in pieces] == list(reversed(range(len(pieces))))  # 0 is the highest K
        assert {piece[4] for piece in pieces} == {len(pieces)}


SHAPES = [(1536, 2048), (2048, 768)]
TILES = [(128, 128), (128, 64), (64, 128), (256, 64)]  # (thread_n, thread_k)
GRIDS = [82, 132, 200, 246, 264, 396, 528]


@pytest.mark.parametrize("blocks", [1, 2, 8, 50, 94])
def test_closed_form_is_the_literal_walk(blocks):
    """5 x 2 x 4 x 7 = 280 configurations of the layer that was measured."""
    for (size_n, size_k), (thread_n, thread_k), grid in itertools.product(SHAPES, TILES, GRIDS):
        assert_walk_agrees(blocks, size_n, size_k, thread_n, thread_k, grid, 128)


@given(
    blocks=st.integers(1, 40),
    n_tiles=st.integers(1, 12),
    groups=st.integers(2, 12),
    group=st.sampled_from([32, 64, 128, PER_COLUMN]),
    tile=st.sampled_from(TILES),
    grid=st.integers(1, 160),
)
def test_closed_form_is_the_literal_walk_elsewhere(blocks, n_tiles, groups, group, tile, grid):
    thread_n, thread_k = tile
    size_k = groups * max(group, thread_k)
    assert_walk_agrees(blocks, n_tiles * thread_n, size_k, thread_n, thread_k, grid, group)


def of_the_study(grid):
    return schedule(blocks=50, size_n=1536, size_k=2048, thread_n=128, thread_k=64, grid=grid, group=128)


def test_study_grid_246():
    found = of_the_study(246)
    assert (found.n_tiles, found.k_tiles, found.tiles) == (12, 32, 600)
    assert (found.direct_tiles, found.stripe) == (492, 16)
    assert found.counts() == {"direct": 492, "split(2)": 108}
    assert found.block_classes(40) == ("direct",) * 12
    assert found.block_cuts(40) == (((0, 32),),) * 12
    for block in range(41, 50):
        assert found.block_classes(block) == ("split(2)",) * 12
        assert found.block_cuts(block) == (((0, 16), (16, 16)),) * 12


def test_study_grid_200():
    found = of_the_study(200)
    assert (found.direct_tiles, found.stripe) == (400, 32)
    assert found.counts() == {"direct": 400, "single-slice": 200}
    assert (
        found.block_classes(33) == ("direct",) * 4 + ("single-slice",) * 8
    )  # block 33 = 400 // 12 begins the remainder
    assert {cuts for block in range(50) for cuts in found.block_cuts(block)} == {((0, 32),)}
    assert found.block_cuts(40) == found.block_cuts(41)


@pytest.mark.parametrize(
    ("thread_k", "thread_n", "grid", "counts", "direct", "stripe"),
    [
        (128, 64, 528, {"direct": 528, "split(2)": 480, "single-slice": 192}, 528, 21),
        (64, 128, 396, {"direct": 396, "split(2)": 68, "split(3)": 136}, 396, 18),
    ],
)
def test_the_same_routing_on_an_h200(thread_k, thread_n, grid, counts, direct, stripe):
    found = schedule(blocks=50, size_n=1536, size_k=2048, thread_n=thread_n, thread_k=thread_k, grid=grid, group=128)
    assert dict(found.counts()) == counts
    assert (found.direct_tiles, found.stripe) == (direct, stripe)


def test_neighbouring_columns_of_one_block_can_differ():
    found = schedule(blocks=50, size_n=1536, size_k=2048, thread_n=64, thread_k=128, grid=528)
    assert found.direct_tiles // found.n_tiles == 22
    assert len(set(found.block_cuts(30))) > 1


GOOD = {"blocks": 50, "size_n": 1536, "size_k": 2048, "thread_n": 128, "thread_k": 64, "grid": 246, "group": 128}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": 0}, "blocks: expected at least 1, found 0"),
        ({"grid": -1}, "grid: expected at least 1, found -1"),
        ({"size_n": 1500}, "thread_n = 128: expected a divisor of size_n = 1500, found 1500 mod 128 = 92"),
        ({"size_k": 2000}, "thread_k = 64: expected a divisor of size_k = 2000"),
        ({"group": 96}, "group = 96: expected -1, or a divisor of size_k = 2048"),
        ({"group": 0}, "group = 0"),
        ({"size_k": 192, "group": 96}, "group = 96: .* divides thread_k = 64"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(DataError, match=message):
        schedule(**{**GOOD, **changes})


def test_places_outside():
    found = schedule(**GOOD)
    with pytest.raises(DataError, match="tile: expected 0 to 599, found 600"):
        found.cuts(600)
    with pytest.raises(DataError, match="block: expected 0 to 49, found -1"):
        found.block_classes(-1)
