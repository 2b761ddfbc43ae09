"""The assets of a mechanism protocol: its plans and, of a captured fixture, the digests; parsed by the validator's own code.

Rules (protocols/README.md, "Mechanism protocols"):
1. All problems of an asset are collected, and it is given only where there is none.
2. The plans asset is strict JSON of schema ``benchkit.plans/1``; a plan is any order of the valid routes, experts ascending; no
   two are of one mode. Weights are float32 numbers of at least 0.
3. Of a captured fixture the ``fixture.json`` is read, whose sizes are those of the protocol.
"""

import struct
from collections import Counter
from dataclasses import dataclass

from validator.reading.canonical import StrictJsonError, parse_object
from validator.reading.fields import Fields
from validator.reading.study import Sizes, Study

PLANS_SCHEMA = "benchkit.plans/1"
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The plans asset: the expert of each route (-1: skipped), float32 weights as written, and the orders by name."""

    experts: int
    block: int
    ids: tuple[int, ...]
    weights: tuple[float, ...]
    orders: tuple[tuple[str, tuple[int, ...]], ...]

    def order(self, name: str) -> tuple[int, ...]:
        """Give an order by name."""
        return dict(self.orders)[name]

    @property
    def stable(self) -> tuple[int, ...]:
        """The valid routes by (expert, route)."""
        return tuple(sorted((r for r, e in enumerate(self.ids) if e >= 0), key=lambda r: (self.ids[r], r)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured fixture's own digest, and those of its input and routing."""

    fixture_sha256: str
    x_sha256: str
    topk_ids_sha256: str
    topk_weights_sha256: str


def read_captured(data: bytes, study: Study) -> Captured | tuple[str, ...]:
    """Read the fixture.json of a study, or give its problems."""
    problems: list[str] = []
    try:
        top = Fields(parse_object(data), "", problems)
    except StrictJsonError as error:
        return (str(error),)
    top.choice("schema", ("benchkit.fixture/1",))
    sizes, arrays = top.table("sizes"), top.table("arrays")
    for name in ("experts", "hidden", "intermediate", "top_k", "tokens", "group"):
        stated, wanted = sizes.integer(name), getattr(study.sizes, name)
        if stated != wanted and not problems:
            problems.append(f"sizes.{name}: expected {wanted} as in [fixture], got {stated}")
    digests = {name: arrays.table(name).digest("sha256") for name in ("x", "topk_ids", "topk_weights")}
    found = Captured(
        fixture_sha256=top.digest("fixture_sha256"),
        x_sha256=digests["x"],
        topk_ids_sha256=digests["topk_ids"],
        topk_weights_sha256=digests["topk_weights"],
    )
    return tuple(problems) if problems else found


def read_plans(data: bytes, study: Study) -> Plans | tuple[str, ...]:
    """Read the plans asset of a study, or give its problems."""
    problems: list[str] = []
    try:
        top = Fields(parse_object(data), "", problems)
    except StrictJsonError as error:
        return (str(error),)
    sizes = study.sizes
    top.choice("schema", (PLANS_SCHEMA,))
    wanted = (sizes.experts, sizes.block)
    stated = (top.integer("experts", least=1), top.integer("block", least=1))
    if stated != wanted and not problems:
        problems.append(f"expected experts, block = {wanted} as in [fixture], got {stated}")
    ids = [e for e in _matrix(top, "topk_ids", sizes) if isinstance(e, int) and type(e) is int and -1 <= e < wanted[0]]
    weights = [w for w in _matrix(top, "topk_weights", sizes) if isinstance(w, float) and _is_weight(w)]
    if not problems and len(ids) != sizes.routes:
        problems.append(f"topk_ids: expected integers from -1 to {wanted[0] - 1}")
    if not problems and len(weights) != sizes.routes:
        problems.append("topk_weights: expected float32 values of at least 0")
    table, orders, modes = top.table("plans"), [], set()
    for name in table.names():
        order = _order(table.raw(name), ids)
        if order is None and not problems:
            problems.append(f"plans.{name}: expected every valid route once, experts ascending")
        orders.append((name, order or ()))
        modes.add(_mode(order or (), ids, wanted[1]))
    if not problems and len(modes) < len(orders):
        problems.append("plans: expected orders of as many modes")
    problems += [f"plans: expected {name}, got no such order" for name in study.modes if not table.has(name)]
    top.table("origin").names()
    top.finish()
    if problems:
        return tuple(problems)
    return Plans(experts=wanted[0], block=wanted[1], ids=tuple(ids), weights=tuple(weights), orders=tuple(orders))


def _order(value: object, ids: list[int]) -> tuple[int, ...] | None:
    """Give an order of all valid routes, experts ascending; None where it is none."""
    routes = [route for route in value if type(route) is int] if isinstance(value, list) else []
    valid = sorted(route for route, expert in enumerate(ids) if expert >= 0)
    if not isinstance(value, list) or len(routes) != len(value) or sorted(routes) != valid:
        return None
    experts = [ids[route] for route in routes]
    return tuple(routes) if experts == sorted(experts) else None


def _mode(order: tuple[int, ...], ids: list[int], block: int) -> frozenset[tuple[int, int]]:
    """Give every route with the number of its block among those of its expert."""
    before: Counter[int] = Counter()
    found = set()
    for route in order:
        found.add((route, before[ids[route]] // block))
        before[ids[route]] += 1
    return frozenset(found)


def _is_weight(value: float) -> bool:
    return 0 <= value <= _FLOAT32_MAX and struct.unpack("<f", struct.pack("<f", value)) == (value,)


def _matrix(top: Fields, key: str, sizes: Sizes) -> list[object]:
    value = top.raw(key)
    rows = value if isinstance(value, list) else []
    flat = [item for row in rows if isinstance(row, list) and len(row) == sizes.top_k for item in row]
    if len(rows) != sizes.tokens or len(flat) != sizes.routes:
        top.wrong(key, f"{sizes.tokens} rows of {sizes.top_k}", type(value).__name__)
    return flat
