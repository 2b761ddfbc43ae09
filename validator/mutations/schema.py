"""Tables that are not what the format says; resealed, so that only their schema can tell."""

import math

import pyarrow as pa

from validator.mutations.mutation import collected, having, mutation, with_rows
from validator.mutations.provenance import edit_environment
from validator.mutations.workspace import WorkingCopy
from validator.reasons import Reason


@mutation(Reason.SCHEMA_COLUMN, reseal=True)
def column_dropped(copy: WorkingCopy) -> None:
    """samples has no column post_sync_ns."""
    copy.write_table("samples", copy.table("samples").drop_columns(["post_sync_ns"]))


@mutation(Reason.SCHEMA_COLUMN, reseal=True)
def column_added(copy: WorkingCopy) -> None:
    """samples has a column that marks outliers."""
    table = copy.table("samples")
    field = pa.field("outlier", pa.bool_(), nullable=False)
    copy.write_table("samples", table.append_column(field, pa.array([False] * table.num_rows)))


@mutation(Reason.SCHEMA_COLUMN, reseal=True)
def columns_swapped(copy: WorkingCopy) -> None:
    """Two columns of samples stand in each other's place."""
    table = copy.table("samples")
    names = list(table.column_names)
    first, second = names.index("host_start_ns"), names.index("host_end_ns")
    names[first], names[second] = names[second], names[first]
    copy.write_table("samples", table.select(names))


@mutation(Reason.SCHEMA_COLUMN, reseal=True)
def duration_in_microseconds(copy: WorkingCopy) -> None:
    """The duration's column is named for another unit."""
    table = copy.table("samples")
    names = ["duration_us" if name == "duration_ns" else name for name in table.column_names]
    copy.write_table("samples", table.rename_columns(names))


@mutation(Reason.SCHEMA_TYPE, reseal=True)
def duration_as_float(copy: WorkingCopy) -> None:
    """Durations are floats."""
    _float_duration(copy, None)


@mutation(Reason.SCHEMA_TYPE, reseal=True)
def duration_nan(copy: WorkingCopy) -> None:
    """A duration is NaN."""
    _float_duration(copy, math.nan)


@mutation(Reason.SCHEMA_TYPE, reseal=True)
def duration_infinite(copy: WorkingCopy) -> None:
    """A duration is infinite."""
    _float_duration(copy, math.inf)


@mutation(Reason.SCHEMA_UNIT, reseal=True)
def unit_changed(copy: WorkingCopy) -> None:
    """The duration's column declares microseconds."""
    table = copy.table("samples")
    index = table.schema.get_field_index("duration_ns")
    field = table.schema.field(index).with_metadata({"unit": "us"})
    copy.write_table("samples", table.set_column(index, field, table.column(index)))


@mutation(Reason.SCHEMA_NULL, reseal=True)
def duration_null(copy: WorkingCopy) -> None:
    """A duration is null."""
    table = copy.table("samples")
    index = table.schema.get_field_index("duration_ns")
    field = table.schema.field(index).with_nullable(True)
    values = table.column(index).to_pylist()
    values[-1] = None
    copy.write_table("samples", table.set_column(index, field, pa.array(values, type=field.type)))


@mutation(Reason.SCHEMA_VALUE, reseal=True)
def status_unknown(copy: WorkingCopy) -> None:
    """A process has a status that the format does not know."""
    copy.set_values("processes", [0], status="fine")


@mutation(Reason.SCHEMA_VALUE, reseal=True)
def point_unknown(copy: WorkingCopy) -> None:
    """A sample was taken at a point that the protocol does not have."""
    copy.set_values("samples", [len(copy.column("samples", "seq")) - 1], point="batch=1000003")


@mutation(Reason.SCHEMA_VALUE, reseal=True)
def timed_row_in_the_warmup(copy: WorkingCopy) -> None:
    """A sample of block 0 is declared a warm-up where it stands."""
    copy.set_values("samples", copy.rows("samples", block=0)[:1], warmup=True)


@mutation(Reason.SCHEMA_VALUE, reseal=True)
def environment_not_its_digest(copy: WorkingCopy) -> None:
    """The digest beside an environment is another one's."""
    copy.set_values("processes", [0], environment_sha256="0" * 64)


@mutation(Reason.SCHEMA_VALUE, reseal=True)
def environment_without_its_platform(copy: WorkingCopy) -> None:
    """No process says which platform it ran on, so none differs."""
    edit_environment(copy, {"platform": ""}, rows=range(len(copy.column("processes", "process"))))


@mutation(Reason.SCHEMA_VALUE, reseal=True, applies_to=with_rows("correctness"))
def stage_unknown(copy: WorkingCopy) -> None:
    """A correctness row has a stage that the format does not know."""
    copy.set_values("correctness", [0], stage="later")


@mutation(Reason.SCHEMA_VALUE, reseal=True, applies_to=with_rows("telemetry"))
def power_nan(copy: WorkingCopy) -> None:
    """A reading of the power is NaN."""
    copy.set_values("telemetry", [0], power_w=math.nan)


@mutation(Reason.SCHEMA_VALUE, reseal=True)
def footer_of_another_run(copy: WorkingCopy) -> None:
    """samples comes from another run, as its footer says."""
    table = copy.table("samples")
    footer = {**(table.schema.metadata or {}), b"benchkit.run_id": b"20200101T000000Z-00000000"}
    copy.write_table("samples", table.replace_schema_metadata(footer))


def _float_duration(copy: WorkingCopy, last: float | None) -> None:
    table = copy.table("samples")
    index = table.schema.get_field_index("duration_ns")
    field = table.schema.field(index).with_type(pa.float64())
    values = [float(value) for value in table.column(index).to_pylist()]
    if last is not None:
        values[-1] = last
    copy.write_table("samples", table.set_column(index, field, pa.array(values, type=field.type)))


@mutation(Reason.SCHEMA_VALUE, reseal=True, applies_to=with_rows("correctness"))
def cosine_above_one(copy: WorkingCopy) -> None:
    """The candidate's output is more alike to the truth than the truth itself."""
    copy.set_values("correctness", [0], min_cosine=1.5)


@mutation(Reason.SCHEMA_VALUE, reseal=True, applies_to=with_rows("correctness"))
def error_below_zero(copy: WorkingCopy) -> None:
    """A relative error is negative."""
    copy.set_values("correctness", [0], rel_error=-1.0)


@mutation(Reason.SCHEMA_VALUE, reseal=True, applies_to=with_rows("correctness"))
def errors_contradict(copy: WorkingCopy) -> None:
    """An output differs from the truth by 2, and not at all."""
    copy.set_values("correctness", [0], max_abs_error=2.0, rel_error=0.0)


@mutation(Reason.SCHEMA_COLUMN, reseal=True, applies_to=having(cache="cold-flush"))
def flush_times_dropped(copy: WorkingCopy) -> None:
    """Nothing is said of how long the cache was flushed."""
    copy.write_table("samples", copy.table("samples").drop_columns(["flush_ns"]))


@mutation(
    Reason.SCHEMA_COLUMN,
    reseal=True,
    applies_to=lambda facts: "the cache is flushed" if facts.cache == "cold-flush" else None,
)
def flush_times_without_a_flush(copy: WorkingCopy) -> None:
    """There are flush times, and the protocol flushes nothing."""
    table = copy.table("samples")
    field = pa.field("flush_ns", pa.int64(), nullable=False, metadata={"unit": "ns"})
    copy.write_table("samples", table.append_column(field, pa.array([50_000] * table.num_rows)))


MUTATIONS = collected(globals())
