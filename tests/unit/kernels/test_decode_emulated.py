"""``moe_decode``'s two kernels run on the CPU (decode_emulation.py): right against fp64, the same bits in whatever order, and bugs are found."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from decode_emulation import DEVICE, Layer, emulate, missing

# isort: split
from decode_cases import Sizes, distance, make_layer, routes, truth

from benchkit.kernels.warp_decode.configuration import LAYOUTS, Tiles, tiles_problem
from benchkit.kernels.warp_decode.decode import shape_of
from benchkit.kernels.warp_decode.dispatch import TABLE, down, tiles_for, up

if missing():
    pytest.skip(str(missing()), allow_module_level=True)

MIN_COSINE, MAX_REL_ERROR = 0.99999, 3e-3  # of the tests on a GPU, for layers of this size
SEEDS = (0, 1, 2)  # copies arrive when nothing else can go on, at any time, at once
BATCHES = (("uniform", 1), ("uniform", 5), ("zipf-1.2", 33), ("one", 17))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One build of the kernels: its layer, its tiles, and the batches that it runs."""

    layout: str
    sizes: Sizes
    top_k: int
    tiles: Tiles
    batches: tuple[tuple[str, int], ...] = BATCHES
    fp16: bool = False

    def __str__(self) -> str:
        first, second = self.tiles.up, self.tiles.down
        return (
            f"{self.layout}-{'x'.join(map(str, self.sizes))}-up{first.groups}{first.stages}{first.tiles}-down"
            + "".join(
                str(getattr(second, name))
                for name in ("groups", "stages", "tiles", "row_tiles", "cluster", "prefetch", "pairwise")
            )
        )


def tiles(first, second, chains: int = 1) -> Tiles:
    return Tiles(up=first, down=second, chains=chains)


@cache
def layer_of(layout: str, sizes: Sizes) -> Layer:
    return make_layer(layout, sizes, device="cpu")


def batch(case: Case, law: str, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn((tokens, case.sizes[1]), generator=generator).to(torch.float16 if case.fp16 else torch.bfloat16)
    return x, *routes(law, tokens, case.sizes[0], case.top_k, device="cpu")


def run(
    case: Case, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor, seed: int, calls: int = 1
) -> torch.Tensor:
    output, problem = emulate(layer_of(case.layout, case.sizes), case.tiles, x, ids, shares, seed=seed, calls=calls)
    assert problem == ""
    return output


def check(case: Case, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> None:
    """Right, and the same bits whenever copies arrive and whoever comes first; small batches once more as two calls that overlap."""
    few = len(x) < 9
    outputs = [run(case, x, ids, shares, seed, calls=1 + (few and seed == 1)) for seed in SEEDS[: 3 if few else 2]]
    expected = truth(layer_of(case.layout, case.sizes), x, ids, shares)
    routed = ((ids >= 0) & (ids < case.sizes[0])).any(dim=-1)
    assert bool((outputs[0][~routed] == 0).all())
    cosine, error = distance(outputs[0][routed], expected[routed])
    assert cosine > MIN_COSINE
    assert error < MAX_REL_ERROR
    for other in outputs[1:]:
        assert torch.equal(outputs[0].view(torch.int16), other.view(torch.int16))


CASES = [
    # bf16 in the checkpoint layout
    Case(layout="bf16", sizes=(6, 320, 128), top_k=2, tiles=tiles(up(1, 2, 1, 2, 104), down(1, 2, 1, 1, 1, 12, 0, 96))),
    Case(
        layout="bf16", sizes=(5, 64, 64), top_k=5, tiles=tiles(up(2, 2, 1, 1, 128), down(2, 2, 1, 2, 2, 4, 0, 168, 1))
    ),
    Case(
        layout="bf16",
        sizes=(4, 192, 320),
        top_k=1,
        tiles=tiles(up(4, 3, 1, 2, 248, 1), down(4, 3, 1, 2, 2, 3, 0, 248, 1)),
    ),
    # bf16 repacked
    Case(
        layout="bf16-packed",
        sizes=(8, 512, 256),
        top_k=3,
        tiles=tiles(up(1, 2, 1, 4, 104), down(1, 2, 1, 1, 1, 5, 0, 80)),
    ),
    Case(
        layout="bf16-packed",
        sizes=(16, 128, 320),
        top_k=8,
        tiles=tiles(up(4, 3, 1, 2, 248, 1), down(2, 2, 1, 1, 1, 12, 0, 128)),
    ),
    Case(
        layout="bf16-packed",
        sizes=(2, 2304, 64),  # more than 8 blocks of columns: several passes of a warp, the last warp with fewer
        top_k=2,
        tiles=tiles(up(1, 2, 1, 2, 104), down(1, 2, 1, 4, 2, 2, 0, 80)),
        batches=(("uniform", 1), ("one", 9)),
    ),
    # MXFP8
    Case(
        layout="mxfp8-packed",
        sizes=(8, 256, 320),
        top_k=3,
        tiles=tiles(up(1, 2, 1, 4, 96), down(1, 2, 1, 1, 1, 12, 0, 88)),
    ),
    Case(
        layout="mxfp8-packed",
        sizes=(7, 192, 128),
        top_k=3,
        tiles=tiles(up(2, 2, 1, 2, 128), down(2, 2, 1, 2, 2, 6, 0, 168, 1)),
    ),
    Case(
        layout="mxfp8-packed",
        sizes=(4, 320, 64),
        top_k=2,
        tiles=tiles(up(4, 4, 1, 2, 248, 1), down(2, 2, 1, 1, 1, 7, 0, 168)),
        fp16=True,
    ),
    # AWQ
    Case(
        layout="awq-packed",
        sizes=(8, 256, 384),
        top_k=4,
        tiles=tiles(up(1, 2, 1, 4, 104), down(1, 2, 1, 1, 1, 12, 0, 96)),
    ),
    Case(
        layout="awq-packed",
        sizes=(6, 128, 256),
        top_k=2,
        tiles=tiles(up(1, 2, 2, 4, 120), down(1, 2, 2, 2, 2, 5, 1, 168), 2),
    ),
    Case(
        layout="awq-packed",
        sizes=(5, 256, 128),
        top_k=2,
        tiles=tiles(up(4, 3, 2, 2, 248, 1), down(1, 2, 2, 4, 1, 3, 2, 168)),
        fp16=True,
    ),
    Case(
        layout="awq-packed",
        sizes=(6, 384, 128),
        top_k=4,
        tiles=tiles(up(2, 2, 2, 2, 128), down(4, 3, 2, 2, 2, 4, 0, 248, 1)),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right_in_any_order(case):
    shape = shape_of(layer_of(case.layout, case.sizes).weights, case.top_k, torch.bfloat16)
    for law, tokens in case.batches:
        assert tiles_problem(shape, case.tiles, tokens, sm_bytes=DEVICE.sm_bytes, cta_bytes=DEVICE.cta_bytes) is None
        check(case, *batch(case, law, tokens))


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[7], CASES[12]], ids=str)
def test_experts_of_other_devices_are_skipped(case):
    for tokens in (1, 9):
        x, ids, shares = batch(case, "uniform", tokens)
        ids[ids % 3 == 0] = -1
        ids[ids == 1] = case.sizes[0] + 7
        ids[-1, 0] = 0
        check(case, x, ids, shares)
        ids[:] = -1
        assert bool((run(case, x, ids, shares, seed=0) == 0).all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_table_on_a_small_layer(layout):
    """What the table chooses for a small layer, at its widest rows."""
    for most, _ in TABLE[layout]:
        tokens = min(most, 64)
        case = Case(layout=layout, sizes=(4, 128, 128), top_k=1, tiles=TABLE[layout][0][1])
        shape = shape_of(layer_of(layout, case.sizes).weights, case.top_k, torch.bfloat16)
        chosen = tiles_for(shape, most, sm_bytes=DEVICE.sm_bytes, cta_bytes=DEVICE.cta_bytes)
        assert chosen is not None
        check(replace(case, tiles=chosen), *batch(case, "zipf-1.2", tokens))


@dataclass(frozen=True)
class Bug:
    """A text put in the place of another, and what is found then: the machine's message, or "" for an output that is not right."""

    old: str
    new: str
    found: str

    def __call__(self, text: str) -> str:
        assert self.old in text
        return text.replace(self.old, self.new)


SYNC = "        __syncthreads();\n"
REFILLED, WRONG = "a stage is filled again before its last bytes have arrived", ""
BUGS = {
    "a wait is missing": Bug("if (phase_ended(bars + read * 8, phase))", "if (true)", REFILLED),
    "a phase is wrong": Bug("read = 0; phase ^= 1;", "read = 0;", REFILLED),
    "the first phase is wrong": Bug("read(0), phase(0)", "read(0), phase(1)", REFILLED),
    "entries end early": Bug("min(PAIRS_OF_ENTRY, count - k", "min(PAIRS_OF_ENTRY - 1, count - k", WRONG),
    "bytes are not announced": Bug(
        "ring.expect(", "if (false) ring.expect(", "deadlock: 128 threads wait for a bulk copy"
    ),
    "h is read too soon": Bug("wait_for_predecessor();  // h,", "//", WRONG),
    "lists are read too soon": Bug(
        f"scan(thread);\n{SYNC}", "scan(thread);\n", "a load of 16 bytes outside of all buffers"
    ),
    "lists are written too soon": Bug(
        f"1u << token % 32);\n        }});\n{SYNC}", "1u << token % 32);\n        });\n", WRONG
    ),
    "sums are added too soon": Bug("__syncthreads();  // one barrier a flush", "//", WRONG),
    "an output too far": Bug(
        "y[(i64)(i / DOWN_ROWS) * HIDDEN +",
        "y[(i64)(i / DOWN_ROWS + 1) * HIDDEN +",
        "something was written beside a buffer",
    ),
    "barriers lie over sums": Bug(
        "DOWN_RING_BYTES + over;", "DOWN_RING_BYTES + over - 16;", "the barrier at shared address 47408 was"
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_bugs_are_found(name):
    bug, case = BUGS[name], CASES[3]
    x, ids, shares = batch(case, "one", 17)
    expected = truth(layer_of(case.layout, case.sizes), x, ids, shares)
    output, problem = emulate(layer_of(case.layout, case.sizes), case.tiles, x, ids, shares, seed=0, patch=bug)
    print(name, "|", problem, distance(output, expected))
    if bug.found:
        assert problem.startswith(bug.found)
    else:
        assert problem == ""
        assert not distance(output, expected)[1] < MAX_REL_ERROR
