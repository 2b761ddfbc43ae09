"""The columns of the seven tables of a comparison and the four of a study, as results/README.md lists them.

Rules:
1. Columns stand in this order; ``nullable`` is true for the columns marked ``?``.
2. Dictionary, large and view encodings count as their plain type; anything else must match exactly.
3. The unit of a column follows from its name.
4. ``flush_ns`` is the last column of samples where the cache is flushed before each sample; whether it has to be there
   is judged by ``validator.checks.schema``, so that a table can be read beside a protocol that cannot.
5. ``repacking`` is the last column of processes; earlier bundles have no such column.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSchema:
    """One column: its Arrow type by name, whether it may be null, its unit."""

    name: str
    type: str
    nullable: bool

    @property
    def kind(self) -> str:
        """The type as the content digest names it."""
        if self.type.startswith("int"):
            return "int"
        return "float" if self.type.startswith("float") else self.type

    @property
    def unit(self) -> str | None:
        """The unit that the name says, None for a column without one."""
        for ending, unit in _UNITS:
            if self.name.endswith(ending):
                return unit
        return None


_UNITS = (("_ns", "ns"), ("_mhz", "mhz"), ("temperature_c", "celsius"), ("power_w", "w"), ("_bytes", "bytes"))

_KEY = "process:int32 attempt:int16 "
_LINES = {
    "samples": _KEY + "point:string block:int32 arm:string sample:int32 seq:int64 warmup:bool calls:int32 "
    "duration_ns:int64 host_start_ns:int64 host_end_ns:int64 post_sync_ns:int64 injected_ns:int64 blocked:bool",
    "processes": _KEY + "status:string reason:string? environment:string environment_sha256:string "
    "fixture_sha256:string clock:string launch:string event_order:string clock_tick_ns:int64 l2_bytes:int64 "
    "copies:string unsupported:string binaries:string started_utc:string ended_utc:string?",
    "telemetry": _KEY + "point:string block:int32 arm:string edge:string sm_clock_mhz:int32 memory_clock_mhz:int32 "
    "temperature_c:int32 power_w:float64 throttle_reasons:int64",
    "correctness": _KEY + "point:string arm:string truth:string stage:string min_cosine:float64 "
    "max_abs_error:float64 rel_error:float64 output_sha256:string",
    "routing": "point:string token:int32 slot:int32 expert:int32 weight:float32",
    "kernels": _KEY + "point:string arm:string position:int32 name:string grid:string block:string registers:int32 "
    "shared_bytes:int32 scratch_bytes:int64",
    "repeats": _KEY + "point:string arm:string repeat:int32 mode_sha256:string? output_sha256:string",
}


def _parse(line: str) -> tuple[ColumnSchema, ...]:
    columns = []
    for item in line.split():
        name, kind = item.split(":")
        columns.append(ColumnSchema(name=name, type=kind.removesuffix("?"), nullable=kind.endswith("?")))
    return tuple(columns)


_LAUNCH = "thread_k:int32 thread_n:int32 grid:int32 classes:string cuts_sha256:string"
_STUDY_LINES = {
    "processes": _LINES["processes"],
    "plans": "plan_sha256:string row:int32 block:int32 expert:int32 route:int32",
    "surfaces": "sha256:string dtype:string shape:string bytes:binary",
    "trajectories": _KEY + "cell:string history:string replicate:int32 treatment:string treatment_sha256:string "
    "injected:bool plan_sha256:string mode_sha256:string "
    + " ".join(f"{gemm}_{column}" for gemm in ("w13", "w2") for column in _LAUNCH.split())
    + " w13_sha256:string activation_sha256:string routed_w2_sha256:string final_sha256:string elapsed_ns:int64",
}

FLUSH = ColumnSchema(name="flush_ns", type="int64", nullable=False)
REPACKING = ColumnSchema(name="repacking", type="string", nullable=False)
_LAST = {"samples": FLUSH, "processes": REPACKING}
TABLES = {name: _parse(line) for name, line in _LINES.items()}
STUDY_TABLES = {name: _parse(line) for name, line in _STUDY_LINES.items()}
ALL_TABLES = {**TABLES, **STUDY_TABLES}


def columns_of(table: str, present: list[str]) -> tuple[ColumnSchema, ...]:
    """Give the columns that a table should have: with the one that may stand last where it is among those present."""
    last = _LAST.get(table)
    return (*ALL_TABLES[table], last) if last is not None and last.name in present else ALL_TABLES[table]
