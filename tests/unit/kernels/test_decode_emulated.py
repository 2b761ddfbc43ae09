"""``moe_decode``'s kernels run on the CPU (decode_emulation.py): right against fp64, the same bits in whatever order, and bugs are found."""

import ctypes
from dataclasses import asdict, dataclass, replace
from functools import cache

import pytest
import torch
from decode_emulation import DEVICE, Layer, build, emulate, missing

# isort: split
from decode_cases import Sizes, distance, make_layer, routes, truth

from benchkit.kernels.warp_decode.configuration import (
    LAYOUTS,
    DownTiles,
    ProductTiles,
    Tiles,
)
from benchkit.kernels.warp_decode.decode import shape_of
from benchkit.kernels.warp_decode.dispatch import TABLE, down, rows, tiles_for, up
from benchkit.kernels.warp_decode.fit import (
    tiles_problem,
)

if missing():
    pytest.skip(str(missing()), allow_module_level=True)

MIN_COSINE, MAX_REL_ERROR = 0.99999, 3e-3  # of the tests on a GPU, for layers of this size
SEEDS = (0, 1, 2)  # copies arrive when nothing else can go on, at any time, at once
BATCHES = (("uniform", 1), ("uniform", 5), ("zipf-1.2", 33), ("one", 17))
WIDE = (("uniform", 1), ("zipf-1.2", 70), ("one", 47), ("one", 130))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The layers are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
        parts = (self.tiles.up, self.tiles.down)
        first, second = ("".join(str(value) for value in asdict(part).values()) for part in parts)
        return f"{self.layout}-{'x'.join(map(str, self.sizes))}-up{first}-down{second}"


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


def case(layout: str, sizes: Sizes, top_k: int, first: ProductTiles, second: DownTiles, **more) -> Case:
    return Case(
        layout=layout,
        sizes=sizes,
        top_k=top_k,
        tiles=Tiles(up=first, down=second, chains=more.pop("chains", 1)),
        **more,
    )


UP = up(1, 2, 1, 4, 104)
CASES = [
    # bf16 in the checkpoint layout
    case("bf16", (6, 320, 128), 2, up(1, 2, 1, 2, 104, ahead=32), down(1, 2, 1, 1, 1, 12, 0, 96)),
    case("bf16", (5, 64, 64), 5, up(2, 2, 1, 1, 128), down(2, 2, 1, 2, 2, 4, 0, 168, 1)),
    case("bf16", (4, 192, 320), 1, up(4, 3, 1, 2, 248, 1), down(4, 3, 1, 2, 2, 3, 0, 248, 1)),
    case("bf16", (6, 192, 64), 5, UP, rows(1, 2, 1, 2, 104, 3, warps=1)),
    case("bf16", (5, 128, 320), 3, UP, down(1, 3, 1, 1, 2, 5, 1, 168, walk=1)),
    # bf16 repacked
    case("bf16-packed", (8, 512, 128), 3, UP, down(1, 2, 1, 1, 1, 5, 0, 80)),
    case("bf16-packed", (16, 128, 256), 8, up(4, 3, 1, 2, 248, 1), down(2, 2, 1, 1, 1, 12, 0, 128)),
    case("bf16-packed", (6, 128, 384), 3, UP, down(1, 2, 1, 1, 1, 12, 0, 136, walk=1)),
    case(
        "bf16-packed",
        (2, 2304, 64),  # more than 8 blocks of columns: several passes of a warp, the last warp with fewer
        2,
        up(1, 2, 1, 2, 104),
        down(1, 2, 1, 4, 2, 2, 0, 80),
        batches=(("uniform", 1), ("one", 9)),
    ),
    case("bf16-packed", (9, 192, 320), 4, UP, rows(2, 3, 1, 2, 248, 2, warps=2)),
    # MXFP8
    case("mxfp8-packed", (8, 256, 192), 3, up(1, 2, 1, 4, 96, ahead=64), down(1, 2, 1, 1, 1, 12, 0, 88)),
    case("mxfp8-packed", (7, 192, 128), 3, up(2, 2, 1, 2, 128), down(2, 2, 1, 2, 2, 6, 0, 168, 1)),
    case("mxfp8-packed", (4, 320, 64), 2, up(4, 4, 1, 2, 248, 1), down(2, 2, 1, 1, 1, 7, 0, 168), fp16=True),
    case("mxfp8-packed", (6, 128, 320), 3, UP, down(1, 2, 1, 2, 2, 5, 1, 240, walk=1)),
    case("mxfp8-packed", (6, 128, 192), 2, UP, rows(4, 2, 1, 4, 248, 1, warps=1)),
    # AWQ
    case("awq-packed", (8, 256, 256), 3, UP, down(1, 2, 1, 1, 1, 12, 0, 96)),
    case("awq-packed", (6, 128, 256), 2, up(1, 2, 2, 4, 120, ahead=8), down(1, 2, 2, 2, 2, 5, 1, 168), chains=2),
    case("awq-packed", (5, 256, 128), 2, up(4, 3, 2, 2, 248, 1), down(1, 2, 2, 4, 1, 3, 2, 168), fp16=True),
    case("awq-packed", (6, 256, 128), 4, up(2, 2, 2, 2, 128), down(4, 3, 2, 2, 2, 4, 0, 248, 1)),
    case("awq-packed", (6, 128, 384), 3, UP, down(1, 3, 2, 4, 2, 6, 1, 232, walk=1)),
    case("awq-packed", (5, 128, 128), 2, UP, down(1, 2, 1, 2, 1, 4, 0, 168, walk=1)),
    case("awq-packed", (6, 256, 384), 3, UP, rows(1, 2, 2, 4, 104, 5, warps=2)),
    # more than 32 tokens an entry: the warps of a CTA share the rows
    case("bf16", (7, 64, 128), 2, up(8, 2, 1, 1, 248, 1), rows(8, 3, 1, 2, 248, 1, warps=8), batches=WIDE),
    case("bf16", (6, 320, 192), 3, up(8, 3, 1, 2, 248, 1), rows(8, 2, 1, 1, 248, 1, warps=8), batches=WIDE),
    case("bf16", (4, 704, 320), 2, up(8, 3, 1, 4, 248, 1), rows(8, 2, 1, 4, 248, 1, warps=8), batches=WIDE),
    case("bf16-packed", (5, 576, 128), 3, up(8, 4, 1, 1, 248, 1), rows(8, 4, 1, 2, 248, 1, warps=8), batches=WIDE),
    case("bf16-packed", (6, 640, 384), 3, up(8, 3, 1, 4, 248, 1), rows(8, 3, 1, 4, 248, 1, warps=8), batches=WIDE),
    # gate/up by all entries of an expert side by side
    case("bf16", (6, 320, 128), 2, up(1, 2, 1, 2, 104, walk=1), down(1, 2, 1, 1, 1, 12, 0, 96)),
    case("bf16-packed", (9, 128, 320), 4, up(2, 2, 1, 2, 128, walk=1), down(2, 2, 1, 1, 1, 12, 0, 128)),
    case("mxfp8-packed", (7, 192, 64), 3, up(1, 1, 1, 2, 80, 3, walk=1), down(1, 2, 1, 1, 1, 12, 0, 88)),
    case("awq-packed", (16, 256, 256), 8, up(1, 2, 2, 8, 120, walk=1), down(1, 2, 1, 1, 1, 12, 0, 96)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right_in_any_order(case):
    shape = shape_of(layer_of(case.layout, case.sizes).weights, case.top_k, torch.bfloat16)
    for law, tokens in case.batches:
        assert tiles_problem(shape, case.tiles, tokens, sm_bytes=DEVICE.sm_bytes, cta_bytes=DEVICE.cta_bytes) is None
        check(case, *batch(case, law, tokens))


@pytest.mark.parametrize("case", [case for case in CASES if case.sizes[0] in (6, 16)], ids=str)
def test_experts_of_other_devices_are_skipped(case):
    for tokens in (1, 9):
        x, ids, shares = batch(case, "uniform", tokens)
        ids[ids % 3 == 0] = -1
        ids[ids == 1] = case.sizes[0] + 7
        ids[-1, 0] = 0
        check(case, x, ids, shares)
        ids[:] = -1
        assert bool((run(case, x, ids, shares, seed=0) == 0).all())


@pytest.mark.parametrize("case", [case for case in CASES if case.sizes == (6, 256, 384)] + CASES[5:6], ids=str)
def test_few_pairs_are_listed_by_one_warp(case):
    """Up to 8 tokens and 32 pairs, with experts that several tokens share, and more than that."""
    for tokens in (2, 4, 8, 11):
        for law in ("uniform", "one"):
            check(case, *batch(case, law, tokens))


def test_an_expert_that_stands_twice_counts_once():
    """Not allowed, but never worse than one lost routing weight: here the weights of both slots are the same."""
    products = [case for case in CASES if case.tiles.down.product]
    for case in (CASES[5], products[0], next(case for case in products if case.tiles.down.product.wide)):
        for tokens in (2, 12):
            x, ids, shares = batch(case, "uniform", tokens)
            ids[1, 1], shares[1, 1] = ids[1, 0], shares[1, 0]
            once = ids.clone()
            once[1, 1] = -1
            twice, expected = (run(case, x, each, shares, seed=0) for each in (ids, once))
            assert torch.equal(twice.view(torch.int16), expected.view(torch.int16))


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


def test_numbers_of_the_machine():
    """Its conversions are torch's, for every number of 16 bits and what lies between fp16's."""
    library = build(shape_of(layer_of("bf16", (5, 64, 64)).weights, 5, torch.bfloat16), CASES[1].tiles)
    to_fp16, from_fp16 = library.number_to_fp16, library.number_from_fp16
    to_fp16.argtypes, from_fp16.restype = [ctypes.c_float], ctypes.c_float
    halves = torch.arange(0, 1 << 16, 7, dtype=torch.int32).to(torch.int16).view(torch.float16)
    finite = halves[torch.isfinite(halves)]
    assert [from_fp16(bits & 0xFFFF) for bits in finite.view(torch.int16).tolist()] == finite.float().tolist()
    between = torch.cat([finite.float() * factor for factor in (1.0, 1.0002, 0.9998, 0.25)])
    expected = between.half().clamp(-65504, 65504).view(torch.int16).tolist()
    assert [to_fp16(value) for value in between.tolist()] == [bits & 0xFFFF for bits in expected]
    values = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).half()
    for bits, value in enumerate(values.tolist()):
        found = from_fp16(library.number_from_e4m3(bits))
        assert found == value or value != value != found
    assert [library.number_to_bf16(ctypes.c_float(v)) for v in (1.0, -1.00390625, 1.01171875)] == [
        0x3F80,
        0xBF80,
        0x3F82,
    ]


@dataclass(frozen=True)
class Bug:
    """A text put in the place of another, and what is found then: the machine's message, or "" for an output that is not right."""

    old: str
    new: str
    found: str

    def __call__(self, text: str) -> str:
        return text.replace(self.old, self.new)


SYNC = "        __syncthreads();\n"
REFILLED, WRONG = "a stage is filled again before its last bytes have arrived", ""
OVER = "a copy over one that is on its way"
BUGS = {
    "a wait is missing": Bug("if (phase_ended(bars + read * 8, phase))", "if (true)", REFILLED),
    "a phase is wrong": Bug("read = 0; phase ^= 1;", "read = 0;", REFILLED),
    "the first phase is wrong": Bug("read(0), phase(0)", "read(0), phase(1)", REFILLED),
    "entries end early": Bug("min(PAIRS_OF_ENTRY, count - k", "min(PAIRS_OF_ENTRY - 1, count - k", WRONG),
    "bytes are not announced": Bug(
        "arrive_expecting(bars", "if (false) arrive_expecting(bars", "deadlock: 128 threads wait for a copy"
    ),
    "h is read too soon": Bug("wait_for_predecessor();  // h, and the right to write y", "", WRONG),
    "lists are read too soon": Bug(f"scan(thread);\n{SYNC}", "scan(thread);\n", "a load of "),
    "lists are written too soon": Bug(
        f"(u32*)length + 1, 1u);\n        }});\n{SYNC}", "(u32*)length + 1, 1u);\n        });\n", WRONG
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

LANES_BUGS = {  # of stages whose bytes every lane asks for
    "nobody says that all was asked for": Bug(
        "arrive_after_copies(bars + filled * 8);", "", "deadlock: 128 threads wait for a copy"
    ),
    "one lane speaks for all": Bug("init_barrier<PRODUCERS>(", "init_barrier<1>(", OVER),
    "columns behind a row are asked for": Bug("* 8 < columns)", ">= 0)", "a load of 16 bytes outside of all buffers"),
    "halves change places on one side": Bug("(i / 2 ^ lane / 4 % 2) * 64", "i / 2 * 64", WRONG),
    "rows of up in place of gate": Bug("(UP ? INTERMEDIATE : 8)) * K", "(UP ? 8 : 8)) * K", WRONG),
}
WIDE_BUGS = {  # of product_wide.cu
    "a step is read too soon": Bug("__syncthreads();  // the stage is there", "//", WRONG),
    "a step that is on its way is read": Bug(
        "wait_for_copies<AHEAD - 1>();", "wait_for_copies<AHEAD>();", "CTA 0 ended with 1160 copies"
    ),
    "copies are no group": Bug("                    commit_copies();\n", "", OVER),
    "a stage is filled while it is read": Bug(
        "place == first_place + OVER ?", "place == first_place + OVER - WIDE_STAGE_BYTES ?", WRONG
    ),
    "inputs of other columns": Bug("at.quarter() * QUARTER +", "at.step * QUARTER +", WRONG),
    "a tile of a warp is another's": Bug(
        "at.now.tile + k * WIDE_WARPS + warp;", "at.now.tile + k * WIDE_WARPS + (warp ^ 1);", WRONG
    ),
    "rows before their inputs": Bug("if (!PRODUCT_UP) wait_for_predecessor();", "", WRONG),
}


WIDE_CASE = next(each for each in CASES if each.tiles.up.wide and each.sizes[1] == 576)


@pytest.mark.parametrize(
    ("case", "name", "bug"),
    [
        pytest.param(case, name, bug, id=name)
        for case, bugs in ((CASES[5], BUGS), (CASES[0], LANES_BUGS), (WIDE_CASE, WIDE_BUGS))
        for name, bug in bugs.items()
    ],
)
def test_bugs_are_found(case, name, bug):
    x, ids, shares = batch(case, "one", 17)
    expected = truth(layer_of(case.layout, case.sizes), x, ids, shares)
    output, problem = emulate(layer_of(case.layout, case.sizes), case.tiles, x, ids, shares, seed=0, patch=bug)
    print(name, "|", problem, distance(output, expected))
    if bug.found:
        assert problem.startswith(bug.found)
    else:
        assert problem == ""
        assert not distance(output, expected)[1] < MAX_REL_ERROR
