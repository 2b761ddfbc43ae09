"""The tables of a bundle as Arrow schemas; results/README.md says what the columns mean.

Rules:
1. Column order, types and nullability here are the format ``benchkit.<table>/1``; a change is a new version.
2. ``samples`` ends with ``flush_ns`` where the cache is flushed before each sample (``cold-flush``), and only there.
3. ``processes`` ends with ``repacking``; earlier bundles have no such column.
4. Units stand in the column names and in the field metadata.
5. A comparison has TABLES, a study STUDY_TABLES; ``processes`` is the same in both.
"""

from collections.abc import Mapping

import pyarrow as pa

_UNITS = {
    "_ns": "ns",
    "_mhz": "mhz",
    "_bytes": "bytes",
    "temperature_c": "celsius",
    "power_w": "w",
}
_INT16, _INT32, _INT64 = pa.int16(), pa.int32(), pa.int64()
_FLOAT32, _FLOAT64, _STRING, _BOOL = pa.float32(), pa.float64(), pa.string(), pa.bool_()
_LAUNCH = {"thread_k": _INT32, "thread_n": _INT32, "grid": _INT32, "classes": _STRING, "cuts_sha256": _STRING}
_KEY = {"process": _INT32, "attempt": _INT16}
_ARM = {**_KEY, "point": _STRING, "arm": _STRING}

_COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {
    "samples": {
        **_KEY,
        "point": _STRING,
        "block": _INT32,
        "arm": _STRING,
        "sample": _INT32,
        "seq": _INT64,
        "warmup": _BOOL,
        "calls": _INT32,
        "duration_ns": _INT64,
        "host_start_ns": _INT64,
        "host_end_ns": _INT64,
        "post_sync_ns": _INT64,
        "injected_ns": _INT64,
        "blocked": _BOOL,
    },
    "processes": {
        **_KEY,
        "status": _STRING,
        "reason": _STRING,
        "environment": _STRING,
        "environment_sha256": _STRING,
        "fixture_sha256": _STRING,
        "clock": _STRING,
        "launch": _STRING,
        "event_order": _STRING,
        "clock_tick_ns": _INT64,
        "l2_bytes": _INT64,
        "copies": _STRING,
        "unsupported": _STRING,
        "binaries": _STRING,
        "started_utc": _STRING,
        "ended_utc": _STRING,
        "repacking": _STRING,
    },
    "telemetry": {
        **_KEY,
        "point": _STRING,
        "block": _INT32,
        "arm": _STRING,
        "edge": _STRING,
        "sm_clock_mhz": _INT32,
        "memory_clock_mhz": _INT32,
        "temperature_c": _INT32,
        "power_w": _FLOAT64,
        "throttle_reasons": _INT64,
    },
    "correctness": {
        **_ARM,
        "truth": _STRING,
        "stage": _STRING,
        "min_cosine": _FLOAT64,
        "max_abs_error": _FLOAT64,
        "rel_error": _FLOAT64,
        "output_sha256": _STRING,
    },
    "routing": {"point": _STRING, "token": _INT32, "slot": _INT32, "expert": _INT32, "weight": _FLOAT32},
    "kernels": {
        **_ARM,
        "position": _INT32,
        "name": _STRING,
        "grid": _STRING,
        "block": _STRING,
        "registers": _INT32,
        "shared_bytes": _INT32,
        "scratch_bytes": _INT64,
    },
    "repeats": {**_ARM, "repeat": _INT32, "mode_sha256": _STRING, "output_sha256": _STRING},
}
_STUDY_COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {
    "plans": {"plan_sha256": _STRING, "row": _INT32, "block": _INT32, "expert": _INT32, "route": _INT32},
    "surfaces": {"sha256": _STRING, "dtype": _STRING, "shape": _STRING, "bytes": pa.binary()},
    "trajectories": {
        **_KEY,
        "cell": _STRING,
        "history": _STRING,
        "replicate": _INT32,
        "treatment": _STRING,
        "treatment_sha256": _STRING,
        "injected": _BOOL,
        "plan_sha256": _STRING,
        "mode_sha256": _STRING,
        **{f"{gemm}_{name}": kind for gemm in ("w13", "w2") for name, kind in _LAUNCH.items()},
        **{f"{surface}_sha256": _STRING for surface in ("w13", "activation", "routed_w2", "final")},
        "elapsed_ns": _INT64,
    },
}
_FLUSH = {"flush_ns": _INT64}
_NULLABLE = {("processes", "reason"), ("processes", "ended_utc"), ("repeats", "mode_sha256")}

ADDED = {"processes": ("repacking",)}  # columns that an earlier version did not write
TABLES = tuple(_COLUMNS)
STUDY_TABLES = ("processes", *_STUDY_COLUMNS)


def table_schema(table: str, *, flushed: bool = False) -> pa.Schema:
    """The Arrow schema of a table, without the footer keys of a run; ``flushed``: of a run whose cache is flushed before each sample."""
    columns = {**(_COLUMNS.get(table) or _STUDY_COLUMNS[table]), **(_FLUSH if flushed and table == "samples" else {})}
    return pa.schema([_field(table, name, kind) for name, kind in columns.items()])


def _field(table: str, name: str, kind: pa.DataType) -> pa.Field:
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None)
    metadata = {"unit": unit} if unit else None
    return pa.field(name, kind, nullable=(table, name) in _NULLABLE, metadata=metadata)
