"""Changes that leave every value as it was: a validator that rejects one of them cries wolf."""

import importlib
import importlib.util

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as types

from validator.mutations.content import sha256
from validator.mutations.mutation import Need, collected, having, mutation
from validator.mutations.workspace import WorkingCopy

_KEYS = (b"benchkit.schema", b"benchkit.protocol_digest", b"benchkit.run_id")


@mutation(None)
def parquet_without_compression(copy: WorkingCopy) -> None:
    """All tables are written again without compression and dictionaries, in small row groups."""
    for name in copy.tables():
        copy.write_table(name, copy.table(name), compression="none", use_dictionary=False, row_group_size=50)


@mutation(None)
def parquet_without_checksums(copy: WorkingCopy) -> None:
    """All tables are written again with gzip, pages of version 2, no checksums and no statistics."""
    for name in copy.tables():
        table = copy.table(name)
        options = {"data_page_version": "2.0", "write_page_checksum": False, "write_statistics": False}
        copy.write_table(name, table, compression="gzip", **options)


@mutation(None)
def parquet_with_wide_types(copy: WorkingCopy) -> None:
    """All tables are written again with dictionaries and large strings as other engines have them."""
    for name in copy.tables():
        table = copy.table(name)
        for index, field in enumerate(table.schema):
            if types.is_string(field.type):
                wide = pa.dictionary(pa.int32(), pa.string()) if index % 2 else pa.large_string()
                table = table.set_column(index, field.with_type(wide), table.column(index).cast(wide))
        copy.write_table(name, table)


@mutation(None)
def parquet_without_metadata(copy: WorkingCopy) -> None:
    """All tables are written again without footer keys, units and not-null marks."""
    for name in copy.tables():
        table = copy.table(name)
        plain = pa.schema([pa.field(field.name, field.type) for field in table.schema])
        copy.write_table(name, pa.Table.from_arrays(table.columns, schema=plain))


@mutation(None)
def parquet_with_null_type(copy: WorkingCopy) -> None:
    """Text columns that hold nothing have the null type, as engines that infer types write them."""
    for name in copy.tables():
        table = copy.table(name)
        for index, field in enumerate(table.schema):
            column = table.column(index)
            if types.is_string(field.type) and column.null_count == len(column):
                nothing = pa.nulls(len(column))
                table = table.set_column(index, pa.field(field.name, pa.null()), nothing)
        copy.write_table(name, table)


def _installed(library: str) -> Need:
    """A library must be there to write the tables again."""
    return lambda facts: None if importlib.util.find_spec(library) else f"{library} is not installed"


@mutation(None, applies_to=_installed("pandas"))
def parquet_by_pandas(copy: WorkingCopy) -> None:
    """All tables are read and written again by pandas."""
    pandas = importlib.import_module("pandas")
    for name in copy.tables():
        path = copy.path(f"{name}.parquet")
        frame = pandas.read_parquet(path, engine="pyarrow")
        frame.to_parquet(path, engine="pyarrow", index=False)


@mutation(None, applies_to=_installed("polars"))
def parquet_by_polars(copy: WorkingCopy) -> None:
    """All tables are read and written again by Polars."""
    polars = importlib.import_module("polars")
    for name in copy.tables():
        path = copy.path(f"{name}.parquet")
        frame = polars.read_parquet(path.read_bytes())
        frame.write_parquet(path)


@mutation(None, applies_to=_installed("duckdb"))
def parquet_by_duckdb(copy: WorkingCopy) -> None:
    """All tables are read and written again by DuckDB, the footer keys kept."""
    duckdb = importlib.import_module("duckdb")
    with duckdb.connect() as connection:
        for name in copy.tables():
            path, part = copy.path(f"{name}.parquet"), copy.path(f"{name}.part")
            footer = copy.table(name).schema.metadata or {}
            keys = ", ".join(f"'{key.decode()}': '{value.decode()}'" for key, value in footer.items() if key in _KEYS)
            kept = f", KV_METADATA {{{keys}}}" if keys else ""
            connection.read_parquet(str(path)).create_view("rows", replace=True)
            connection.execute(f"COPY (SELECT * FROM rows) TO '{part}' (FORMAT parquet, COMPRESSION zstd{kept})")
            part.replace(path)


@mutation(None, reseal=True)
def parquet_reencoded_and_resealed(copy: WorkingCopy) -> None:
    """samples is written again and the manifest names the new file."""
    pq.write_table(copy.table("samples"), copy.path("samples.parquet"), compression="snappy")


@mutation(None)
def protocol_with_crlf(copy: WorkingCopy) -> None:
    """protocol.toml has the line ends of Windows."""
    text = copy.protocol_text().replace("\r\n", "\n").replace("\n", "\r\n")
    copy.path("protocol.toml").write_bytes(text.encode())


@mutation(None)
def protocol_with_comments(copy: WorkingCopy) -> None:
    """protocol.toml has another comment and blank lines."""
    copy.path("protocol.toml").write_bytes(f"# as locked\n\n{copy.protocol_text()}\n# end\n".encode())


@mutation(None)
def protocol_in_another_key_order(copy: WorkingCopy) -> None:
    """protocol.toml is spelled with inline tables, sections and keys in reverse order."""
    protocol = copy.protocol()
    turned = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in reversed(protocol.items())
    }
    copy.write_protocol(turned)


@mutation(None)
def reports_beside(copy: WorkingCopy) -> None:
    """Reports lie in the bundle."""
    for suffix in ("html", "md", "json", "txt"):
        copy.path(f"report.{suffix}").write_bytes(b"{}\n")


@mutation(None, reseal=True)
def another_attempt_before(copy: WorkingCopy) -> None:
    """The ledger knows an earlier attempt, which is counted and judged by nobody."""
    lines = copy.ledger()
    run = {"run_id": "20200101T000000Z-00000000", "protocol_digest": lines[0]["protocol_digest"]}
    start = {**run, "event": "start", "utc": "2020-01-01T00:00:00Z", "status": None}
    copy.write_ledger([start, {**start, "event": "end", "status": "complete"}, *lines], chain=True)


@mutation(None, applies_to=having(has_analysis=True))
def analysis_deleted(copy: WorkingCopy) -> None:
    """Nobody claims anything: the verdict is the validator's own."""
    copy.path("analysis.json").unlink()


@mutation(None, applies_to=having(has_analysis=True))
def analysis_in_another_layout(copy: WorkingCopy) -> None:
    """analysis.json has other blanks and key order."""
    copy.write_json("analysis.json", dict(reversed(copy.read_json("analysis.json").items())))


@mutation(None, applies_to=having(has_analysis=True))
def analysis_with_another_last_digit(copy: WorkingCopy) -> None:
    """A ratio differs in its last digit, as on another machine."""
    analysis = copy.read_json("analysis.json")
    for comparison in analysis["comparisons"]:
        if comparison["ratio"] is not None:
            comparison["ratio"] *= 1 + 3e-16
    copy.write_json("analysis.json", analysis)


@mutation(None, applies_to=having(has_analysis=True))
def manifest_in_another_layout(copy: WorkingCopy) -> None:
    """manifest.json has other blanks and key order, and the analysis names its new digest."""
    copy.write_json("manifest.json", dict(reversed(copy.read_json("manifest.json").items())))
    digest = sha256(copy.path("manifest.json").read_bytes())
    copy.write_json("analysis.json", {**copy.read_json("analysis.json"), "manifest_sha256": digest})


MUTATIONS = collected(globals())
