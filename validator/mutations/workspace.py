"""A copy of a bundle that a mutation may change, and what has to be rewritten so that only a deeper check sees it.

1. The original is never touched: every mutation gets a fresh copy.
2. ``reseal`` makes files, manifest and analysis agree again, whatever the files hold now.
3. ``relock`` makes lock, manifest, footers, ledger and analysis agree with the protocol as it stands now.
"""

import json
import operator
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import rfc8785

from validator.mutations.content import content_digest, json_digest, plan_digest, sha256
from validator.reading.schema import ALL_TABLES

UNLISTED = ("manifest.json", "analysis.json")


class NoSubjectError(Exception):
    """A mutation finds nothing in this bundle that it could change; the text says what is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingCopy:
    """A writable copy of a bundle at ``root``."""

    root: Path

    @classmethod
    def of(cls, bundle: Path, root: Path) -> "WorkingCopy":
        """Copy a bundle to ``root``, writable whatever the original's modes are, and without signatures, which a forger drops."""
        shutil.copytree(bundle, root, symlinks=True, copy_function=shutil.copyfile)
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
        for signature in root.glob("*.sig.json"):
            signature.unlink()
        return cls(root=root)

    def path(self, name: str) -> Path:
        """Where a file of the bundle lies."""
        return self.root / name

    # tables

    def table(self, name: str) -> pa.Table:
        """Read a table with its metadata."""
        return pq.ParquetFile(self.path(f"{name}.parquet")).read()

    def write_table(self, name: str, table: pa.Table, **options: Any) -> None:
        """Write a table as benchkit does, unless ``options`` say otherwise."""
        settings: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True, **options}
        pq.write_table(table, self.path(f"{name}.parquet"), **settings)

    def column(self, name: str, column: str) -> list[Any]:
        """The values of one column, in row order."""
        table = pq.ParquetFile(self.path(f"{name}.parquet")).read(columns=[column])
        values: list[Any] = table.column(column).to_pylist()
        return values

    def set_columns(self, name: str, /, **columns: Sequence[Any]) -> None:
        """Replace the values of columns, keeping types and metadata."""
        table = self.table(name)
        for column, values in columns.items():
            index = table.schema.get_field_index(column)
            field = table.schema.field(index)
            table = table.set_column(index, field, pa.array(values, type=field.type))
        self.write_table(name, table)

    def set_values(self, name: str, rows: Sequence[int], /, **values: Any) -> None:
        """Give the chosen rows one new value in each of the named columns."""
        chosen = set(rows)
        changed = {
            column: [value if row in chosen else old for row, old in enumerate(self.column(name, column))]
            for column, value in values.items()
        }
        self.set_columns(name, **changed)

    def take(self, name: str, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self.write_table(name, self.table(name).take(pa.array(rows, type=pa.int64())))

    def drop(self, name: str, rows: Sequence[int]) -> None:
        """Delete rows."""
        gone = set(rows)
        self.take(name, [row for row in range(self.table(name).num_rows) if row not in gone])

    def rows(self, name: str, /, **wanted: Any) -> list[int]:
        """Numbers of the rows that hold the wanted values; a wanted function must be true of the value."""
        table = pq.ParquetFile(self.path(f"{name}.parquet")).read(columns=list(wanted))
        chosen: list[int] = list(range(table.num_rows))
        for column, value in wanted.items():
            values = table.column(column).to_pylist()
            holds = value if callable(value) else partial(operator.eq, value)
            chosen = [row for row in chosen if holds(values[row])]
        return chosen

    def read_environment(self, row: int) -> dict[str, Any]:
        """The environment of one row of processes."""
        value: dict[str, Any] = json.loads(self.column("processes", "environment")[row])
        return value

    # other files

    def read_json(self, name: str) -> dict[str, Any]:
        """Parse a JSON object."""
        value: dict[str, Any] = json.loads(self.path(name).read_bytes())
        return value

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON object."""
        self.path(name).write_bytes(json.dumps(value, indent=1).encode() + b"\n")

    def protocol(self) -> dict[str, Any]:
        """The parsed protocol."""
        return tomllib.loads(self.protocol_text())

    def protocol_text(self) -> str:
        """The protocol as it stands in the file, line ends kept."""
        return self.path("protocol.toml").read_bytes().decode()

    def write_protocol(self, value: Mapping[str, Any]) -> None:
        """Write a protocol, every section as an inline table."""
        lines = (f"{_toml(key)} = {_toml(entry)}\n" for key, entry in value.items())
        self.path("protocol.toml").write_bytes("".join(lines).encode())

    def ledger(self) -> list[dict[str, Any]]:
        """The lines of the ledger."""
        return [json.loads(line) for line in self.path("attempts.jsonl").read_bytes().splitlines()]

    def write_ledger(self, lines: Sequence[Mapping[str, Any]], *, chain: bool) -> None:
        """Write the ledger; with ``chain`` each line is numbered and names its predecessor's digest."""
        written: list[bytes] = []
        for seq, line in enumerate(lines):
            previous = sha256(written[-1]) if written else "0" * 64
            written.append(rfc8785.dumps({**line, "seq": seq, "prev_sha256": previous} if chain else dict(line)))
        self.path("attempts.jsonl").write_bytes(b"".join(line + b"\n" for line in written))

    # agreement

    def relock(self) -> None:
        """Make everything name the digest of the protocol as it stands now."""
        protocol = self.protocol()
        digest = json_digest(protocol)
        names = {"protocol_digest": digest, "plan_digest": plan_digest(protocol, digest)}
        self.write_json("protocol.lock", {**self.read_json("protocol.lock"), **names})
        self.write_json("manifest.json", {**self.read_json("manifest.json"), **names})
        self.write_ledger([{**line, "protocol_digest": digest} for line in self.ledger()], chain=True)
        for name in self.tables():
            table = self.table(name)
            footer = {**(table.schema.metadata or {}), b"benchkit.protocol_digest": digest.encode()}
            self.write_table(name, table.replace_schema_metadata(footer))
        if self.path("analysis.json").exists():
            self.write_json("analysis.json", {**self.read_json("analysis.json"), "protocol_digest": digest})

    def reseal(self) -> None:
        """Rewrite digests, sizes and counts in the manifest, and the manifest's digest in the analysis."""
        manifest = self.read_json("manifest.json")
        before = manifest["files"]
        manifest["files"] = {
            name: {"sha256": sha256(self.path(name).read_bytes()), "bytes": self.path(name).stat().st_size}
            for name in self._listed()
        }
        for name in self.tables():
            if before.get(f"{name}.parquet") == manifest["files"][f"{name}.parquet"]:
                continue
            try:
                table = self.table(name)
            except pa.ArrowException:
                continue  # an unreadable table keeps the digest that it had
            listed = manifest["tables"].setdefault(name, {})
            listed["rows"] = table.num_rows
            bomb = table.num_rows > manifest["files"][f"{name}.parquet"]["bytes"]  # no row of it is to be read
            if not bomb or "content_sha256" not in listed:
                listed["content_sha256"] = content_digest(name, table)
        if self.path("attempts.jsonl").exists():
            lines = self.path("attempts.jsonl").read_bytes().splitlines()
            manifest["ledger"] = {"lines": len(lines), "tip_sha256": sha256(lines[-1]) if lines else "0" * 64}
        self.write_json("manifest.json", manifest)
        if self.path("analysis.json").exists():
            digest = sha256(self.path("manifest.json").read_bytes())
            self.write_json("analysis.json", {**self.read_json("analysis.json"), "manifest_sha256": digest})

    def tables(self) -> list[str]:
        """Name the tables that are there."""
        return [name for name in ALL_TABLES if self.path(f"{name}.parquet").exists()]

    def _listed(self) -> list[str]:
        names = sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())
        return [
            name
            for name in names
            if name not in UNLISTED and not name.startswith("report.") and not name.endswith(".sig.json")
        ]


def _toml(value: Any) -> str:
    """One TOML value or key; strings and arrays as in JSON, tables inline."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return json.dumps(value, ensure_ascii=False)
