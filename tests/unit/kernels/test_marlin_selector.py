"""The selector: what the RTX 3090 of the study and an H200 were seen to choose, and refusals."""

import pytest

from benchkit.errors import DataError
from benchkit.kernels.marlin_selector import GPUS, H200, RTX_3090, Configuration, block_size, select, shared_bytes


def w13(gpu, tokens, **more):
    return select(gpu, tokens=tokens, top_k=8, size_n=1536, size_k=2048, block=block_size(tokens, 8, 128), **more)


def w2(gpu, tokens):
    return select(gpu, tokens=8 * tokens, top_k=1, size_n=2048, size_k=768, block=block_size(tokens, 8, 128))


def test_block_sizes():
    tokens = (1, 21, 115, 116, 230, 231, 460, 461, 691, 692, 5000)
    assert [block_size(m, 8, 128) for m in tokens] == [8, 8, 8, 16, 16, 32, 32, 48, 48, 64, 64]


def test_shared_memory():
    assert [shared_bytes(*tile, 1) for tile in ((128, 128), (64, 128), (128, 64))] == [50_688, 26_112, 33_664]


def test_the_study():
    assert w13(RTX_3090, 21) == Configuration(thread_k=64, thread_n=128, threads=128, blocks_per_sm=3, grid=246)


def test_h200():
    assert w13(H200, 21) == Configuration(thread_k=128, thread_n=64, threads=128, blocks_per_sm=4, grid=528)
    seen = Configuration(thread_k=64, thread_n=128, threads=128, blocks_per_sm=3, grid=396)
    assert (w13(H200, 128), w2(H200, 128)) == (seen, seen)
    for tokens in (21, 64, 115):
        assert w13(H200, tokens) == w2(H200, tokens) == w13(H200, 21)
    assert w13(H200, 21, dtype="bfloat16") == Configuration(
        thread_k=64, thread_n=128, threads=128, blocks_per_sm=4, grid=528
    )
    assert list(GPUS) == ["rtx-3090", "h200"]


def test_little_work_leaves_few_blocks():
    assert w13(H200, 1) == Configuration(thread_k=128, thread_n=64, threads=128, blocks_per_sm=4, grid=528)
    tiny = select(H200, tokens=1, top_k=1, size_n=128, size_k=128, block=8)
    assert (tiny.blocks_per_sm, tiny.grid) == (1, 132)


def test_refusals():
    with pytest.raises(DataError, match="block: expected one of 8, 16, 32, 48, 64, found 12"):
        select(H200, tokens=1, top_k=1, size_n=128, size_k=128, block=12)
    with pytest.raises(DataError, match="no tile of Marlin fits"):
        select(H200, tokens=1, top_k=1, size_n=64, size_k=64, block=8)
    with pytest.raises(
        DataError, match="no register counts of Marlin are known for rtx-3090, bfloat16, blocks of 8 rows"
    ):
        select(RTX_3090, tokens=1, top_k=1, size_n=128, size_k=128, block=8, dtype="bfloat16")
    with pytest.raises(DataError, match="at least 1 token, route and expert, found 0, 8, 128"):
        block_size(0, 8, 128)
