"""What one surface of a study says of the next, on numbers that can be added by hand."""

from typing import Any

import numpy as np
import pytest

from validator.reading.study import Sizes
from validator.reading.study_assets import Plans
from validator.recompute.layer import Expert, derive_layer
from validator.recompute.surfaces import apart, strangers, summed

STEP = 2.0**-24
"""The smallest float16."""


def halves(*values: float) -> Any:
    return np.array([values], dtype="<f2")


@pytest.mark.parametrize(
    ("slots", "total"),
    [
        ((2048, 1, 1), 2048),  # in float16 each 1 is lost: the even neighbour is taken
        ((2048, 1, 1, 1), 2048),
        ((2048, 1, 1, 1, 1), 2052),  # in float32 none is
        ((1, 1, 2048), 2050),
    ],
)
def test_slots_are_added_in_their_order(slots: tuple[float, ...], total: float) -> None:
    layer = {"experts": 8, "hidden": 1, "intermediate": 1, "group": 1, "block": 8, "weight_seed": 0, "input_seed": 0}
    sizes = Sizes(**layer, tokens=1, top_k=len(slots))
    assert summed(halves(*slots).reshape(-1, 1), sizes).tolist() == [[total]]


@pytest.mark.parametrize(
    ("one", "other", "steps"),
    [
        (0.0, -0.0, 0),
        (STEP, -STEP, 2),
        (STEP, 0.0, 1),
        (-STEP, -0.0, 1),
        (-1.0, -1.0 - 2.0**-10, 1),
        (1.0, 1.0 + 2.0**-9, 2),
        (-1.0, 1.0, 2 * 0x3C00),
        (65504.0, np.inf, 1),
        (np.nan, np.nan, 0),
        (np.nan, -np.nan, 0),
        (np.nan, 1.0, 0x7E00 - 0x3C00),
        (-1.0, np.nan, 0x7E00 + 0x3C00),
    ],
)
def test_float16_numbers_from_one_to_another(one: float, other: float, steps: int) -> None:
    assert apart(halves(one), halves(other)).tolist() == apart(halves(other), halves(one)).tolist() == [[steps]]


def test_weights_of_the_experts_that_are_used() -> None:
    sizes = Sizes(experts=3, hidden=8, intermediate=8, group=8, block=8, tokens=2, top_k=2, weight_seed=1, input_seed=2)
    plans = Plans(experts=3, block=8, ids=(0, -1, 2, 0), weights=(1.0,) * 4, orders=())
    layer = derive_layer(sizes, plans)
    assert {gemm: sorted(of) for gemm, of in layer.weights.items()} == {"w13": [0, 2], "w2": [0, 2]}


def strange(found: float, row: float, scale: float, *, number: int, zero: int) -> bool:
    """Of an expert of 1 x 8 weights, each ``number - zero``."""
    expert = Expert(
        packed=np.full((1, 1, 4), number * 0x11, dtype=np.uint8),
        zeros=np.full((1, 8), zero, dtype=np.uint32),
        scales=np.ones((1, 8), dtype=np.float16),
    )
    stored = np.full((1, 8), found, dtype=np.float16)
    with np.errstate(over="ignore"):
        said, exact = strangers(stored, np.float32([[row]]), expert, np.float32([scale]))
    assert exact.tolist() == [[row * (number - zero) * scale] * 8]
    assert len(set(said[0].tolist())) == 1
    return bool(said[0, 0])


@pytest.mark.parametrize(
    ("scale", "most"),
    [(1.0, 15 * 64 + 2 + 2), (2.0, 2 * (15 * 64 + 2) + 2), (-2.0, 2 * (15 * 64 + 2) + 2), (0.5, 15 * 32 + 1 + 2)],
)
def test_sums_that_cancel(scale: float, most: int) -> None:
    """A product of 0, to which a row of 1 and a weight of 15 at most were added: 15 x 2^-18 + 2^-23, times the route's weight, and 2^-23."""
    for sign in (1, -1):
        assert not strange(sign * most * STEP, 1.0, scale, number=0, zero=0)
        assert strange(sign * (most + 1) * STEP, 1.0, scale, number=0, zero=0)


def test_products_are_rounded_twice() -> None:
    assert not strange(1 + 2 * 2.0**-10, 1.0, 1.0, number=1, zero=0)
    assert strange(1 + 3 * 2.0**-10, 1.0, 1.0, number=1, zero=0)


@pytest.mark.parametrize(
    ("row", "scale", "found", "number", "strangely"),
    [
        (40000.0, 1.0, 0.0, 1, True),
        (40000.0, 2.0, 0.0, 1, False),  # 80,000 is no float16
        (40000.0, 0.5, 0.0, 1, True),
        (80000.0, 0.5, 0.0, 1, False),  # nor is it before it is scaled
        (65500.0, 1.0, 0.0, 1, False),  # what rounding may add is
        (65000.0, 1.0, 0.0, 1, True),
        (65503 * 2.0**15, 1.0, np.inf, 8, True),
        (65504 * 2.0**15, 1.0, np.inf, 8, False),
        (1.0, 1.0, np.nan, 1, True),
    ],
)
def test_products_that_may_leave_float16(row: float, scale: float, found: float, number: int, strangely: bool) -> None:
    """Of these nothing is said; a weight of 8 - 8 is 0, and adds 8 x 2^-18 of the row to what rounding may do."""
    assert strange(found, row, scale, number=number, zero=8 if number == 8 else 0) is strangely
