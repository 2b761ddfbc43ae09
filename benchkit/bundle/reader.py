"""A sealed bundle, opened for analysis. It trusts nothing that it can check in passing: the manifest must name the files that it reads."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import rfc8785

from benchkit.bundle.digest import file_sha256
from benchkit.bundle.schema import ADDED, table_schema
from benchkit.bundle.seal import MANIFEST, MANIFEST_SCHEMA
from benchkit.errors import BundleError
from benchkit.protocol.files import TOML_BYTES, parse_toml, read_small
from benchkit.protocol.model import Protocol
from benchkit.protocol.parse import read_protocol

_LARGEST_MANIFEST = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An opened bundle."""

    folder: Path
    protocol: Protocol
    protocol_digest: str
    run_id: str
    manifest_sha256: str

    def table(self, name: str, columns: tuple[str, ...] | None = None) -> pa.Table:
        """A table of the bundle (some columns of it, where named)."""
        return bundle_table(self.folder, name, columns, flushed=self.protocol.timing.flushed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A sealed bundle of any kind whose files are those of its manifest, and whose protocol has the digest that it names; ``files`` are the names listed."""

    folder: Path
    protocol_id: str
    protocol_digest: str
    run_id: str
    manifest_sha256: str
    files: tuple[str, ...]


def bundle_table(folder: Path, name: str, columns: tuple[str, ...] | None = None, *, flushed: bool = False) -> pa.Table:
    """A table in a bundle's folder (some columns of it, where named); BundleError where it is none."""
    path = folder / f"{name}.parquet"
    try:
        with pq.ParquetFile(path) as file:  # read_table would import pandas on the way
            table = file.read(columns=list(columns) if columns else None)
        absent = {column for column in ADDED.get(name, ()) if column not in table.column_names}
        return table.cast(_fields(table_schema(name, flushed=flushed), columns, absent))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BundleError(f"{path}: expected table benchkit.{name}/1, found something else: {error}") from error


def _fields(schema: pa.Schema, columns: tuple[str, ...] | None, absent: set[str]) -> pa.Schema:
    wanted = schema.names if columns is None else columns
    return pa.schema([field for field in schema if field.name in wanted and field.name not in absent])


def open_bundle(folder: Path) -> Bundle:
    """Open the sealed bundle of a comparison; BundleError as ``open_sealed``."""
    sealed = open_sealed(folder)
    return Bundle(
        folder=folder,
        protocol=read_protocol(folder / "protocol.toml"),
        protocol_digest=sealed.protocol_digest,
        run_id=sealed.run_id,
        manifest_sha256=sealed.manifest_sha256,
    )


def open_sealed(folder: Path) -> Sealed:
    """Open a sealed bundle of any kind.

    Raises
    ------
    BundleError
        There is no manifest of a known schema, or a file differs from it.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise BundleError(
            f"{folder}: expected a sealed bundle, found no {MANIFEST}; give the folder that run-protocol printed"
        )
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise ValueError(f"{path.stat().st_size} bytes")
        manifest: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
        schema, files = manifest["schema"], dict(manifest["files"])
        run_id, digest = str(manifest["run_id"]), str(manifest["protocol_digest"])
        protocol_id = str(manifest["protocol_id"])
        expected = {str(name): str(entry["sha256"]) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path}: expected a manifest, found something else ({error})") from error
    if schema != MANIFEST_SCHEMA:
        raise BundleError(f'{path}: expected schema "{MANIFEST_SCHEMA}", found "{schema}"; use a newer benchkit')
    for name, sha256 in expected.items():
        if not _is_plain(name):
            raise BundleError(f"{path}: expected plain names inside the bundle, found {name!r:.100}; do not use it")
        member = folder / name
        if not _is_the_file(member, sha256):
            raise BundleError(
                f"{member}: expected SHA-256 {sha256}, found another file or none; a sealed bundle is not edited"
            )
    found = _document_digest(folder / "protocol.toml")
    if found != digest:
        raise BundleError(f"{folder}: protocol.toml has digest {found}, the manifest names {digest}")
    return Sealed(
        folder=folder,
        protocol_id=protocol_id,
        protocol_digest=digest,
        run_id=run_id,
        manifest_sha256=file_sha256(path),
        files=tuple(expected),
    )


def _document_digest(path: Path) -> str:
    """Digest of a protocol of any kind."""
    try:
        document: Any = parse_toml(read_small(path, most=TOML_BYTES, what="a protocol"), str(path))
        return hashlib.sha256(rfc8785.dumps(document)).hexdigest()
    except ValueError as error:
        raise BundleError(f"{path}: expected a protocol, found something else ({error})") from error


def _is_the_file(member: Path, sha256: str) -> bool:
    """Whether a member is a plain file with these bytes; one that cannot be read is not."""
    try:
        return not member.is_symlink() and member.is_file() and file_sha256(member) == sha256
    except OSError:
        return False


def _is_plain(name: str) -> bool:
    """Whether a name of a manifest stays inside the bundle."""
    path = PurePosixPath(name)
    inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts and str(path) == name
    return inside and name.isprintable() and "\\" not in name and ":" not in name
