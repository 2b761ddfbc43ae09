"""Points at which nothing could be compared, whatever the machine: told before a protocol is locked."""

from pathlib import Path

import pytest

from benchkit.protocol.parse import parse_protocol
from benchkit.run.locking import kernel_problems

TEXT = (Path(__file__).parents[3] / "protocols" / "warp-decode-large-bf16-h200.toml").read_text("utf-8")
BATCH = "batch = [128, 256, 512]"
FUSED = "fused: needs at most 4096 routes (this is a decode path), found 4104"
DO = "; leave such points out, or change the fixture or the kernel"


def no_candidate(needs: str) -> str:
    """What the two candidates need."""
    return f"(warp_decode: {needs}; warp_decode_packed: {needs}){DO}"


def problems(*changes: tuple[str, str]) -> list[str]:
    """What is said of the protocol with these changes."""
    text = TEXT
    for old, new in changes:
        assert text.count(old) >= 1
        text = text.replace(old, new, 1)
    return kernel_problems(parse_protocol(text.encode(), "x.toml"))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ([], []),
        (
            [(BATCH, "batch = [128, 256, 512, 513]"), ("top_k = 8", "top_k = 4")],
            [
                f"operating_points: no candidate can run at batch=513 {no_candidate('needs tokens from 1 to 512, found 513')}"
            ],
        ),
        (
            [(BATCH, "batch = [128, 256, 512, 513]")],
            [
                f"operating_points: the baseline cannot run at batch=513 ({FUSED}){DO}",
                f"operating_points: no candidate can run at batch=513 {no_candidate('needs tokens from 1 to 512, found 513')}",
            ],
        ),
        (
            [("experts = 128", "experts = 5000")],
            [
                "operating_points: no candidate can run at batch=128, batch=256, batch=512 "
                f"{no_candidate('needs experts from 1 to 512, found 5000')}"
            ],
        ),
        (
            [
                (BATCH, "batch = [128, 256, 512, 513]"),
                ("top_k = 8", "top_k = 4"),
                ('name = "warp_decode"\n', 'name = "warp_decode"\npoints = ["batch=128", "batch=256", "batch=512"]\n'),
            ],
            [
                "operating_points: no candidate can run at batch=513 "
                f"(warp_decode_packed: needs tokens from 1 to 512, found 513){DO}"
            ],
        ),
        (
            [(BATCH, "batch = [128, 256, 512, 513]"), ("tile_m = 32", "tile_m = 24")],
            ["arm[0].params.tile_m: expected one of 16, 32, 64, 128 for moe_fused, found 24"],
        ),
    ],
)
def test_points_at_which_nothing_can_be_compared(changes: list[tuple[str, str]], found: list[str]) -> None:
    assert problems(*changes) == found


def test_a_candidate_beside_one_that_can_run_is_left_to_the_run() -> None:
    fused = TEXT[TEXT.index("params = {tile_m") : TEXT.index("[arm.correctness]")]
    start = TEXT.index('kernel = "wd_bf16_packed"')
    packed = TEXT[start : TEXT.index("[arm.correctness]", start)]
    changes = [(packed, f'kernel = "moe_eight_stage"\n{fused}'), ("top_k = 8", "top_k = 4")]
    assert problems(*changes, (BATCH, "batch = [128, 256, 512, 513]")) == []
