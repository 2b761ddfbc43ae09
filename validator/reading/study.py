"""A mechanism protocol and its plan, as the scorer needs them; parsed by the validator's own code.

Rules (protocols/README.md, "Mechanism protocols"):
1. Unknown keys are problems, all problems are collected.
2. Process i runs replicate, cell and history by counting: replicates, then cells as listed, then H0 before H1 in even
   replicates and H1 before H0 in odd ones.
"""

from dataclasses import dataclass

from validator.reading.canonical import digest_of
from validator.reading.fields import Fields
from validator.reading.model import Asset, Require

MECHANISM = "mechanism"
HISTORIES = ("H0", "H1")
SURFACES = ("w13", "activation", "routed_w2", "final")
GEMMS = ("w13", "w2")
ENGINES = {
    "cpu-emulation": "host",
    "marlin-op": "cuda",
    "marlin-raw": "cuda",
}  # and the device that their processes record
TREATMENTS = {
    "cpu-emulation": ("recorded-order",),
    "marlin-op": ("resident-tensors",),
    "marlin-raw": ("resident-tensors",),
}
STEPS = "treatment,fixture,alignment,w13,activation,w2,sum"
_NAME = r"[a-z][a-z0-9_]*"
_MOST_PROCESSES, _MOST_ROUTES, _MOST_SIZE, _MOST_TILES = 100_000, 1_000_000, 1 << 20, 10_000_000
_MOST_WEIGHTS = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the layer and its input; the seeds are 0 where an asset holds captured values."""

    experts: int
    hidden: int
    intermediate: int
    top_k: int
    tokens: int
    group: int
    block: int
    weight_seed: int
    input_seed: int
    captured: str | None = None

    @property
    def routes(self) -> int:
        """Routes, and so the padding sentinel."""
        return self.tokens * self.top_k

    def reduction(self, gemm: str) -> int:
        """Rows of a GEMM's weight."""
        return self.hidden if gemm == "w13" else self.intermediate

    def columns(self, gemm: str) -> int:
        """Columns of a GEMM's weight."""
        return 2 * self.intermediate if gemm == "w13" else self.hidden

    def shape(self, surface: str) -> tuple[int, int]:
        """Shape of a surface."""
        if surface == "final":
            return self.tokens, self.hidden
        width = {"w13": 2 * self.intermediate, "activation": self.intermediate, "routed_w2": self.hidden}
        return self.routes, width[surface]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A launch: tile rows and columns, CUDA blocks."""

    thread_k: int
    thread_n: int
    grid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Two routes to exchange, and what is said of their blocks: ``same`` or ``different``."""

    routes: tuple[int, int]
    blocks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell with its effective launches, by GEMM."""

    name: str
    order: str
    swap: Swap | None
    launches: tuple[tuple[str, Tile], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Two places (``cell/history``), what is expected of them, and at which surfaces."""

    a: str
    b: str
    expected: str
    surfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All of a mechanism protocol that a check uses."""

    id: str
    title: str
    question: str
    digest: str
    require: Require
    sizes: Sizes
    engine: str
    treatment: str
    plans_asset: str
    modes: tuple[str, str]
    cells: tuple[Cell, ...]
    relations: tuple[Relation, ...]
    replicates: int
    assets: tuple[Asset, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """All places, as cells and histories are listed."""
        return tuple(f"{cell.name}/{history}" for cell in self.cells for history in HISTORIES)

    def cell(self, name: str) -> Cell:
        """Give a cell by name."""
        return next(cell for cell in self.cells if cell.name == name)

    def mode(self, cell: Cell, history: str) -> str:
        """Name the plan that a cell starts from."""
        index = HISTORIES.index(history)
        return self.modes[1 - index if cell.order == "other" else index]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """What one process has to run."""

    process: int
    replicate: int
    cell: str
    history: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """All processes, and the digest of the plan."""

    runs: tuple[PlannedRun, ...]
    digest: str


def derive_study_plan(study: Study) -> StudyPlan:
    """Derive the plan of a study."""
    runs: list[PlannedRun] = []
    for replicate in range(study.replicates):
        histories = HISTORIES if replicate % 2 == 0 else tuple(reversed(HISTORIES))
        for cell in study.cells:
            for history in histories:
                run = PlannedRun(process=len(runs), replicate=replicate, cell=cell.name, history=history)
                runs.append(run)
    listed = [[run.process, run.replicate, run.cell, run.history] for run in runs]
    return StudyPlan(runs=tuple(runs), digest=digest_of(["benchkit.study-plan/1", listed]))


def read_study(top: Fields, digest: str, require: Require, assets: tuple[Asset, ...]) -> Study:
    """Read a mechanism protocol, whose requirements and assets were read before."""
    top.choice("schema", ("benchkit.protocol/1",))
    head = top.table("protocol")
    identity = head.text("id", pattern=r"[a-z0-9][a-z0-9-]*")
    head.choice("kind", (MECHANISM,))
    title, question, _ = (head.text(key) for key in ("title", "question", "selection"))
    head.finish()
    launch = top.table("launch")
    engine = launch.choice("engine", ENGINES)
    launches = {gemm: read_tile(launch.table(gemm)) for gemm in GEMMS}
    launch.finish()
    histories = top.table("histories")
    treatment, plans = histories.choice("treatment", TREATMENTS[engine]), histories.text("plans")
    modes = (histories.text("H0"), histories.text("H1"))
    histories.finish()
    schedule = top.table("schedule")
    schedule.choice("order", ("replicate-major",))
    schedule.integer("watchdog_s", least=1)
    replicates = schedule.integer("replicates", least=1)
    schedule.finish()
    result = Study(
        id=identity,
        title=title,
        question=question,
        digest=digest,
        require=require,
        sizes=read_sizes(top.table("fixture")),
        engine=engine,
        treatment=treatment,
        plans_asset=plans,
        modes=modes,
        cells=tuple(read_cell(item, launches) for item in top.tables("cell")),
        relations=tuple(read_relation(item) for item in top.tables("relation")),
        replicates=replicates,
        assets=assets,
    )
    top.finish()
    if not top.problems:
        check_study(result, top.problems)
    return result


def read_sizes(fields: Fields) -> Sizes:
    """Read [fixture]."""
    fields.choice("kind", ("awq-layer",))
    names = ("experts", "hidden", "intermediate", "top_k", "tokens", "group", "block")
    captured = fields.optional_text("captured")
    seeds = {name: 0 if captured else fields.integer(name) for name in ("weight_seed", "input_seed")}
    sizes = Sizes(**{name: fields.integer(name, least=1) for name in names}, **seeds, captured=captured)
    fields.finish()
    return sizes


def read_tile(fields: Fields) -> Tile:
    """Read a launch."""
    tile = Tile(**{name: fields.integer(name, least=1) for name in ("thread_k", "thread_n", "grid")})
    fields.finish()
    return tile


def read_cell(fields: Fields, launches: dict[str, Tile]) -> Cell:
    """Read one [[cell]]."""
    own = dict(launches)
    if fields.has("launch"):
        table = fields.table("launch")
        own |= {gemm: read_tile(table.table(gemm)) for gemm in GEMMS if table.has(gemm)}
        table.finish()
    cell = Cell(
        name=fields.text("name", pattern=_NAME),
        order=fields.choice("order", ("native", "own", "other", "stable")),
        swap=_swap(fields.table("swap")) if fields.has("swap") else None,
        launches=tuple((gemm, own[gemm]) for gemm in GEMMS),
    )
    fields.finish()
    return cell


def _swap(fields: Fields) -> Swap:
    routes = fields.raw("routes")
    pair = (0, 0)
    if isinstance(routes, list) and len(routes) == 2 and all(type(route) is int and route >= 0 for route in routes):
        pair = (routes[0], routes[1])
    elif fields.has("routes"):
        fields.wrong("routes", "two routes", routes)
    swap = Swap(routes=pair, blocks=fields.choice("blocks", ("same", "different")))
    fields.finish()
    return swap


def read_relation(fields: Fields) -> Relation:
    """Read one [[relation]]."""
    surfaces = fields.texts("surfaces") if fields.has("surfaces") else SURFACES
    for name in surfaces:
        if name not in SURFACES:
            fields.wrong("surfaces", "some of " + ", ".join(SURFACES), name)
    relation = Relation(
        a=fields.text("a", pattern=rf"{_NAME}/H[01]"),
        b=fields.text("b", pattern=rf"{_NAME}/H[01]"),
        expected=fields.choice("expected", ("equal", "different")),
        surfaces=surfaces,
    )
    fields.finish()
    return relation


def check_study(study: Study, problems: list[str]) -> None:
    """Check what holds between sections, so that later code may rely on it."""
    sizes, names = study.sizes, [cell.name for cell in study.cells]
    if len(set(names)) != len(names) or not names:
        problems.append("cell: expected at least one, with distinct names")
    if sizes.top_k > sizes.experts or sizes.hidden % sizes.group or sizes.intermediate % sizes.group:
        problems.append("fixture: expected top_k within experts, and sizes of whole groups")
    if sizes.routes > _MOST_ROUTES or study.replicates * len(names) * 2 > _MOST_PROCESSES:
        problems.append("fixture, schedule: more routes or processes than this validator checks")
    if max(sizes.experts, sizes.hidden, sizes.intermediate, sizes.block) > _MOST_SIZE:
        problems.append("fixture: larger sizes than this validator checks")
    if sizes.experts * sizes.hidden * sizes.intermediate > _MOST_WEIGHTS:
        problems.append("fixture: more weights than this validator derives again")
    if study.modes[0] == study.modes[1]:
        problems.append("histories: H0 and H1 select the same plan")
    for key, name in (("histories.plans", study.plans_asset), ("fixture.captured", sizes.captured)):
        if name is not None and name not in [asset.name for asset in study.assets]:
            problems.append(f"{key}: no asset {name!r}")
    for i, cell in enumerate(study.cells):
        for gemm, tile in cell.launches:
            whole = sizes.reduction(gemm) % tile.thread_k == 0 and sizes.columns(gemm) % tile.thread_n == 0
            if not whole or (sizes.group % tile.thread_k and tile.thread_k % sizes.group):
                problems.append(f"cell[{i}].launch.{gemm}: tiles do not fill the weight")
            tiles = sizes.routes * sizes.columns(gemm) // tile.thread_n
            pieces = tiles * sizes.reduction(gemm) // tile.thread_k
            if max(tile.grid, tiles, pieces) > _MOST_TILES:
                problems.append(f"cell[{i}].launch.{gemm}: more tiles than this validator checks")
        if cell.swap is not None and (cell.order not in ("own", "other") or max(cell.swap.routes) >= sizes.routes):
            problems.append(f"cell[{i}].swap: expected routes of an injected plan")
        if cell.swap is not None and cell.swap.routes[0] == cell.swap.routes[1]:
            problems.append(f"cell[{i}].swap: expected two different routes")
    seen: set[tuple[str, str, str]] = set()
    for i, relation in enumerate(study.relations):
        strangers = [place for place in (relation.a, relation.b) if place not in study.places]
        problems.extend(f"relation[{i}]: no place {place}" for place in strangers)
        low, high = sorted((relation.a, relation.b))
        keys = {(low, high, surface) for surface in relation.surfaces}
        if relation.a == relation.b or keys & seen:
            problems.append(f"relation[{i}]: expected two places, related once at a surface")
        seen |= keys
