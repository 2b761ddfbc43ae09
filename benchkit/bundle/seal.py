"""The manifest: what a sealed bundle consists of. Written last, under a temporary name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchkit import __version__
from benchkit.bundle.digest import file_sha256
from benchkit.bundle.tables import TableEntry
from benchkit.protocol.files import write_text

MANIFEST_SCHEMA = "benchkit.manifest/1"
MANIFEST = "manifest.json"
ANALYSIS = "analysis.json"
MAX_ASSET_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """An asset that is too large to travel in the bundle."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRecord:
    """What the manifest says beside the digests of the files."""

    protocol_id: str
    protocol_digest: str
    plan_digest: str
    run_id: str
    synthetic: bool
    exploratory: Sequence[str]
    tables: Mapping[str, TableEntry]
    ledger_lines: int
    ledger_tip: str
    external: Sequence[External]


def seal(folder: Path, record: SealRecord) -> None:
    """Write the manifest of all files that lie in ``folder`` now."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    document = {
        "schema": MANIFEST_SCHEMA,
        "protocol_id": record.protocol_id,
        "protocol_digest": record.protocol_digest,
        "plan_digest": record.plan_digest,
        "run_id": record.run_id,
        "tool_version": __version__,
        "synthetic": record.synthetic,
        "exploratory": list(record.exploratory),
        "files": {
            path.relative_to(folder).as_posix(): {"sha256": file_sha256(path), "bytes": path.stat().st_size}
            for path in files
        },
        "tables": {
            name: {"rows": entry.rows, "content_sha256": entry.content_sha256} for name, entry in record.tables.items()
        },
        "ledger": {"lines": record.ledger_lines, "tip_sha256": record.ledger_tip},
        "external": [{"name": e.name, "sha256": e.sha256, "bytes": e.bytes} for e in record.external],
    }
    write_text(folder / MANIFEST, json.dumps(document, indent=2) + "\n")
