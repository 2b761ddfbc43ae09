"""A mechanism protocol as frozen data, and how a TOML file becomes one (protocols/README.md, "Mechanism protocols").

Rules:
1. A study holds inputs and weights fixed and changes which routes share a block, or how tiles are cut: cells x two histories x replicates.
2. What a cell changes, and what is expected of it, is stated before the run: orders, swapped routes, launches, relations.
3. All problems of a file are reported at once; plans and routing are an asset and are looked at by ``benchkit.fixture.plans``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchkit.errors import DataError, LockError, ProtocolError
from benchkit.protocol.fields import Table, shown
from benchkit.protocol.files import TOML_BYTES, parse_toml, read_small
from benchkit.protocol.lock import Lock, lock_path, protocol_digest, read_lock
from benchkit.protocol.model import Asset
from benchkit.protocol.parse import ARM_NAME, SCHEMA, parse_asset, parse_require, refuse_unhashable

COMPARISON, MECHANISM = "comparison", "mechanism"
HISTORIES = ("H0", "H1")
SURFACES = ("w13", "activation", "routed_w2", "final")
GEMMS = ("w13", "w2")
NATIVE, OWN, OTHER, STABLE = "native", "own", "other", "stable"
ORDERS = (NATIVE, OWN, OTHER, STABLE)
CPU_EMULATION = "cpu-emulation"
MARLIN_OP, MARLIN_RAW = "marlin-op", "marlin-raw"
ENGINES = (CPU_EMULATION, MARLIN_OP, MARLIN_RAW)
RECORDED_ORDER, RESIDENT_TENSORS = "recorded-order", "resident-tensors"
TREATMENTS: Mapping[str, tuple[str, ...]] = {
    CPU_EMULATION: (RECORDED_ORDER,),
    MARLIN_OP: (RESIDENT_TENSORS,),
    MARLIN_RAW: (RESIDENT_TENSORS,),
}
STEPS = "treatment,fixture,alignment,w13,activation,w2,sum"  # of a process, in their order: its event_order


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """The layer and its input: sizes in elements, ``group`` rows that share a scale, ``block`` rows of a MoE block. Seeds of synthetic values, or the
    asset ``captured``, which holds real ones.
    """

    experts: int
    hidden: int
    intermediate: int
    top_k: int
    tokens: int
    group: int
    block: int
    weight_seed: int | None
    input_seed: int | None
    captured: str | None = None

    @property
    def routes(self) -> int:
        """tokens x top_k: also the padding sentinel."""
        return self.tokens * self.top_k

    def weight(self, gemm: str) -> tuple[int, int]:
        """(size_k, size_n) of W13 or W2."""
        return (self.hidden, 2 * self.intermediate) if gemm == "w13" else (self.intermediate, self.hidden)

    def surface(self, name: str) -> tuple[int, int]:
        """Shape of a surface."""
        return {
            "w13": (self.routes, 2 * self.intermediate),
            "activation": (self.routes, self.intermediate),
            "routed_w2": (self.routes, self.hidden),
            "final": (self.tokens, self.hidden),
        }[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How a GEMM is launched: K rows and columns of a tile, and CUDA blocks."""

    thread_k: int
    thread_n: int
    grid: int


Launches = Mapping[str, Tiling]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Two routes that are exchanged in the injected plan; ``same_block`` is what the author says of their blocks."""

    first: int
    second: int
    same_block: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell: the order of routes that it runs, and the launches of its GEMMs."""

    name: str
    order: str
    swap: Swap | None
    launches: Launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A cell under a history."""

    cell: str
    history: str

    def __str__(self) -> str:
        """As protocols and reports write it, ``native/H0``."""
        return f"{self.cell}/{self.history}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """What is expected of two places at some surfaces: the same bits, or others."""

    a: Place
    b: Place
    equal: bool
    surfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySchedule:
    """Replicates of each cell and history, and the longest that one process may take."""

    replicates: int
    watchdog_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A whole mechanism protocol; ``modes`` maps each history to the plan that it selects."""

    document: Mapping[str, object]
    id: str
    title: str
    question: str
    require: Mapping[str, Any]
    engine: str
    layer: LayerSizes
    plans_asset: str
    treatment: str
    modes: Mapping[str, str]
    cells: tuple[Cell, ...]
    relations: tuple[Relation, ...]
    schedule: StudySchedule
    assets: tuple[Asset, ...]

    def cell(self, name: str) -> Cell:
        """The cell of that name."""
        return next(cell for cell in self.cells if cell.name == name)

    @property
    def plans(self) -> Asset:
        """The asset with routing and plans."""
        return self.asset(self.plans_asset)

    def asset(self, name: str) -> Asset:
        """The asset of that name."""
        return next(asset for asset in self.assets if asset.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedStudy:
    """A study together with its lock; only this can be planned and run."""

    path: Path
    protocol: Study
    lock: Lock

    @property
    def digest(self) -> str:
        """The protocol digest."""
        return self.lock.protocol_digest


def protocol_kind(path: Path) -> str:
    """``mechanism`` for a file that says so; anything else, also a file that is none, is read as a comparison, which names its problems."""
    try:
        head = parse_toml(read_small(path, most=TOML_BYTES, what="a protocol file"), str(path)).get("protocol")
    except DataError:
        return COMPARISON
    return MECHANISM if isinstance(head, Mapping) and head.get("kind") == MECHANISM else COMPARISON


def load_locked_study(path: Path) -> LockedStudy:
    """Read a study and the lock beside it; LockError where there is none, or one of another text."""
    study = read_study(path)
    beside = lock_path(path)
    if not beside.exists():
        raise LockError(f"{path}: not locked (no {beside.name}); run: benchkit lock {path}")
    lock, digest = read_lock(beside), protocol_digest(study)
    if lock.protocol_digest != digest:
        raise LockError(
            f"{path}: changed after it was locked: expected digest {lock.protocol_digest}, found {digest}; "
            "restore the locked text, or lock it anew as another file"
        )
    return LockedStudy(path=path, protocol=study, lock=lock)


def read_study(path: Path) -> Study:
    """Read and parse a mechanism protocol; ProtocolError with all problems at once."""
    return parse_study(read_small(path, most=TOML_BYTES, what="a protocol file"), str(path))


def parse_study(data: bytes, source: str) -> Study:
    """Parse the bytes of a mechanism protocol; ``source`` names them in messages."""
    document = parse_toml(data, source)
    problems: list[str] = []
    refuse_unhashable(document, "", problems)
    root = Table(document, "", problems)
    root.text("schema", choices=(SCHEMA,))
    study = _study(root, document)
    root.close()
    if not problems:
        problems.extend(_coherence(study))
    if problems:
        raise ProtocolError(problems, source)
    return study


def _study(root: Table, document: Mapping[str, object]) -> Study:
    head = root.table("protocol")
    identity = head.text("id", pattern=r"[a-z0-9][a-z0-9-]{0,99}", expected="lower-case letters, digits and hyphens")
    head.text("kind", choices=(MECHANISM,))
    title, question = head.text("title"), head.text("question")
    head.text("selection")  # how the swapped routes were chosen: from which earlier data
    head.close()
    launch = root.table("launch")
    engine = launch.text("engine", choices=ENGINES)
    launches = {gemm: _tiling(launch.table(gemm)) for gemm in GEMMS}
    launch.close()
    histories = root.table("histories")
    treatment = histories.text("treatment", choices=TREATMENTS.get(engine, TREATMENTS[CPU_EMULATION]))
    plans_asset = histories.text("plans")
    modes = {history: histories.text(history) for history in HISTORIES}
    histories.close()
    schedule = root.table("schedule")
    schedule.text("order", choices=("replicate-major",))
    planned = StudySchedule(
        replicates=schedule.integer("replicates", low=1, high=1000),
        watchdog_s=schedule.integer("watchdog_s", low=1, high=86_400),
    )
    schedule.close()
    return Study(
        document=document,
        id=identity,
        title=title,
        question=question,
        require=parse_require(root.table("build", optional=True)),
        engine=engine,
        layer=_layer(root.table("fixture")),
        plans_asset=plans_asset,
        treatment=treatment,
        modes=modes,
        cells=tuple(_cell(table, launches) for table in root.tables("cell")),
        relations=tuple(_relation(table) for table in root.tables("relation")),
        schedule=planned,
        assets=tuple(parse_asset(table) for table in root.tables("asset")),
    )


def _layer(table: Table) -> LayerSizes:
    table.text("kind", choices=("awq-layer",))
    captured = table.optional_text("captured")
    layer = LayerSizes(
        experts=table.integer("experts", low=1, high=65536),
        hidden=table.integer("hidden", low=64, high=1 << 20),
        intermediate=table.integer("intermediate", low=64, high=1 << 20),
        top_k=table.integer("top_k", low=1, high=1024),
        tokens=table.integer("tokens", low=1, high=1 << 20),
        group=table.integer("group", low=8, high=1 << 20),
        block=table.integer("block", low=1, high=64),
        weight_seed=None if captured else table.integer("weight_seed", low=0),
        input_seed=None if captured else table.integer("input_seed", low=0),
        captured=captured,
    )
    table.close()
    return layer


def _tiling(table: Table) -> Tiling:
    tiling = Tiling(
        thread_k=table.integer("thread_k", low=32, high=1024),
        thread_n=table.integer("thread_n", low=8, high=4096),
        grid=table.integer("grid", low=1, high=1 << 20),
    )
    table.close()
    return tiling


def _cell(table: Table, launches: Launches) -> Cell:
    own = table.table("launch", optional=True)
    cell = Cell(
        name=table.text("name", pattern=ARM_NAME, expected="lower-case letters, digits and underscores"),
        order=table.text("order", choices=ORDERS),
        swap=_swap(table.table("swap")) if table.has("swap") else None,
        launches={gemm: _tiling(own.table(gemm)) if own.has(gemm) else launches[gemm] for gemm in GEMMS},
    )
    own.close()
    table.close()
    return cell


def _swap(table: Table) -> Swap:
    expected = "two different routes, such as [22, 28]"
    routes = table.raw("routes", expected)
    sound = isinstance(routes, list) and len(routes) == 2
    sound = sound and all(isinstance(r, int) and not isinstance(r, bool) and r >= 0 for r in routes)
    if routes is not None and (not sound or routes[0] == routes[1]):
        table.say("routes", f"expected {expected}, found {shown(routes)}")
        sound = False
    blocks = table.text("blocks", choices=("same", "different"))
    table.close()
    first, second = routes if sound else (0, 0)
    return Swap(first=first, second=second, same_block=blocks == "same")


def _relation(table: Table) -> Relation:
    relation = Relation(
        a=_place(table, "a"),
        b=_place(table, "b"),
        equal=table.text("expected", choices=("equal", "different")) == "equal",
        surfaces=table.texts("surfaces", choices=SURFACES) if table.has("surfaces") else SURFACES,
    )
    table.close()
    return relation


def _place(table: Table, key: str) -> Place:
    text = table.text(key, pattern=r"[a-z][a-z0-9_]*/H[01]", expected='a cell and a history, such as "native/H0"')
    cell, _, history = text.partition("/")
    return Place(cell=cell, history=history)


def _coherence(study: Study) -> list[str]:
    problems = []
    layer, names = study.layer, [cell.name for cell in study.cells]
    if layer.top_k > layer.experts:
        problems.append(f"fixture.top_k: {layer.top_k} exceeds experts = {layer.experts}")
    for size in ("hidden", "intermediate"):
        if getattr(layer, size) % layer.group:
            problems.append(f"fixture.{size}: {getattr(layer, size)} mod group {layer.group} is not 0")
    if study.plans_asset not in {asset.name for asset in study.assets}:
        problems.append(f'histories.plans: no [[asset]] is named "{study.plans_asset}"')
    if layer.captured is not None and layer.captured not in {asset.name for asset in study.assets}:
        problems.append(f'fixture.captured: no [[asset]] is named "{layer.captured}"')
    if study.modes["H0"] == study.modes["H1"]:
        problems.append("histories.H1: expected another plan than that of H0, found the same")
    problems += [f"cell: the name {name} stands twice" for name in sorted({n for n in names if names.count(n) > 1})]
    found: dict[str, list[int]] = {}
    for index, cell in enumerate(study.cells):
        for line in _cell_problems(cell, layer):
            found.setdefault(line, []).append(index)
    for line, (first, *others) in found.items():  # cells mostly share their launches: a fault is told once
        problems.append(f"cell[{first}].{line}" + (f"; so in {len(others)} other cell(s)" if others else ""))
    seen: set[tuple[str, str, str]] = set()
    for index, relation in enumerate(study.relations):
        for key, place in (("a", relation.a), ("b", relation.b)):
            if place.cell not in names:
                problems.append(f"relation[{index}].{key}: no cell is named {place.cell}")
        if relation.a == relation.b:
            problems.append(f"relation[{index}].b: expected another place than {relation.a}")
        pairs = {(*sorted((str(relation.a), str(relation.b))), surface) for surface in relation.surfaces}
        if pairs & seen:
            problems.append(f"relation[{index}]: {relation.a} and {relation.b} are related at a surface twice")
        seen |= pairs  # type: ignore[arg-type]
    return problems


def _cell_problems(cell: Cell, layer: LayerSizes) -> list[str]:
    problems = []
    if cell.swap is not None and cell.order not in (OWN, OTHER):
        problems.append(f'swap: needs order "{OWN}" or "{OTHER}", found "{cell.order}"')
    if cell.swap is not None and max(cell.swap.first, cell.swap.second) >= layer.routes:
        problems.append(f"swap.routes: expected routes 0 to {layer.routes - 1}")
    for gemm, tiling in cell.launches.items():
        size_k, size_n = layer.weight(gemm)
        for name, size, tile in (("thread_k", size_k, tiling.thread_k), ("thread_n", size_n, tiling.thread_n)):
            if size % tile:
                problems.append(f"launch.{gemm}.{name}: expected a divisor of {size}, found {tile}")
        if layer.group % tiling.thread_k and tiling.thread_k % layer.group:
            problems.append(
                f"launch.{gemm}.thread_k: expected a multiple or a divisor of group {layer.group}, found {tiling.thread_k}"
            )
    return problems
