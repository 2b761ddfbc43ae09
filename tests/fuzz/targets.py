"""Every reader of an untrusted file, each with a clean document and the errors that it may raise.

``make test`` feeds them a few hundred damaged documents (hypothesis), ``make deep`` a hundred thousand and atheris.
"""

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "validator"))
import builder

from benchkit.bundle import reader as bench_reader
from benchkit.errors import BenchkitError
from benchkit.fixture import plans as bench_plans
from benchkit.protocol import lock as bench_lock
from benchkit.protocol import parse as bench_parse
from benchkit.protocol.study import parse_study
from benchkit.run import ledger as bench_ledger
from validator.findings import CouldNotCheckError, Report, Validity
from validator.reading import protocol, records, tables
from validator.reading.study_assets import read_plans
from validator.validate import validate


@dataclass(frozen=True)
class Target:
    """A reader: what it is fed, and what it may raise."""

    name: str
    seed: bytes
    read: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]


def targets(folder: Path) -> list[Target]:
    """All readers; each keeps to a folder of its own below ``folder``."""
    clean = builder.draft(clock="cuda-event").seal(folder / "clean")
    (clean / "analysis.json").write_text(json.dumps(_claims(clean)))
    kept = {path.name: path.read_bytes() for path in clean.iterdir()}

    def place(where: str, name: str) -> Path:
        root = folder / where
        root.mkdir(exist_ok=True)
        for member, data in kept.items():
            (root / member).write_bytes(data)
        return root / name

    def whole(name: str) -> Callable[[bytes], object]:
        path = place(f"validate-{name}", name)

        def read(data: bytes) -> object:
            path.write_bytes(data)
            return _validated(path.parent)

        return read

    def file(where: str, name: str, reader: Callable[[Path], object]) -> Callable[[bytes], object]:
        path = place(where, name)

        def read(data: bytes) -> object:
            path.write_bytes(data)
            return reader(path)

        return read

    def bench_table(path: Path) -> object:
        opened = bench_reader.Bundle(
            folder=path.parent, protocol=parsed, protocol_digest="", run_id="", manifest_sha256=""
        )
        return opened.table("samples")

    def append(path: Path) -> object:
        ledger = path.parent / "attempts.jsonl"
        digest = "0" * 64
        entry = bench_ledger.append(
            ledger.parent, run_id="20260101T000000Z-00000000", protocol_digest=digest, event="start", status=None
        )
        return entry.lines

    written = (Path(__file__).parents[1] / "data" / "cuda.toml").read_bytes()
    parsed = bench_parse.parse_protocol(written, "cuda.toml")
    theirs, ours = (CouldNotCheckError,), (BenchkitError,)
    return [
        Target("validator protocol", kept["protocol.toml"], protocol.read_protocol, theirs),
        Target("validator lock", kept["protocol.lock"], records.read_lock, theirs),
        Target("validator manifest", kept["manifest.json"], records.read_manifest, theirs),
        Target("validator ledger", kept["attempts.jsonl"], records.read_ledger, theirs),
        Target(
            "validator table",
            kept["samples.parquet"],
            file("table", "samples.parquet", lambda path: tables.read_table(path, "samples")),
            (),
        ),
        Target("validator bundle, manifest", kept["manifest.json"], whole("manifest.json"), ()),
        Target("validator bundle, analysis", kept["analysis.json"], whole("analysis.json"), ()),
        Target("validator bundle, processes", kept["processes.parquet"], whole("processes.parquet"), ()),
        Target("validator bundle, protocol", kept["protocol.toml"], whole("protocol.toml"), ()),
        Target("benchkit protocol", written, lambda data: bench_parse.parse_protocol(data, "x"), ours),
        Target("benchkit lock", kept["protocol.lock"], file("lock", "protocol.lock", bench_lock.read_lock), ours),
        Target(
            "benchkit manifest",
            kept["manifest.json"],
            file("manifest", "manifest.json", lambda path: bench_reader.open_bundle(path.parent)),
            ours,
        ),
        Target("benchkit table", kept["samples.parquet"], file("bench", "samples.parquet", bench_table), ours),
        Target("benchkit ledger", kept["attempts.jsonl"], file("ledger", "attempts.jsonl", append), ours),
        *_of_a_study(folder),
    ]


def _of_a_study(folder: Path) -> list[Target]:
    """The readers of mechanism studies, on the published one."""
    (published,) = (Path(__file__).parents[2] / "results" / "route-membership-cpu").glob("2*")
    names = ("protocol.toml", "assets/plans", "plans.parquet", "surfaces.parquet", "trajectories.parquet")
    written, plans, *_ = (kept := {name: (published / name).read_bytes() for name in names}).values()
    study = protocol.read_protocol(written).study
    assert study is not None

    def label(name: str) -> str:
        return "plans table" if name == "plans.parquet" else Path(name).stem

    def whole(name: str) -> Callable[[bytes], object]:
        root = folder / f"study-{label(name)}"
        shutil.copytree(published, root)

        def read(data: bytes) -> object:
            (root / name).write_bytes(data)
            return _validated(root)

        return read

    def asset(data: bytes) -> object:
        path = folder / "fuzzed-plans.json"
        path.write_bytes(data)
        return bench_plans.read_plans(path)

    return [
        Target("validator study", written, protocol.read_protocol, (CouldNotCheckError,)),
        Target("validator plans", plans, lambda data: read_plans(data, study), ()),
        *(Target(f"validator bundle, study {label(name)}", kept[name], whole(name), ()) for name in names),
        Target("benchkit study", written, lambda data: parse_study(data, "x"), (BenchkitError,)),
        Target("benchkit plans", plans, asset, (BenchkitError,)),
    ]


def _validated(root: Path) -> Report:
    """The validator's report, which says why what it did not check was not checked."""
    report = validate(root)
    assert report.reasons or not report.not_checked or report.validity is Validity.COULD_NOT_CHECK
    return report


def _claims(clean: Path) -> dict[str, object]:
    from validator.report.document import document

    own = document(validate(clean))
    return {
        "schema": "benchkit.analysis/1",
        "manifest_sha256": builder.sha((clean / "manifest.json").read_bytes()),
        "protocol_digest": builder.draft(clock="cuda-event").digest,
        "run_id": builder.RUN_ID,
    } | {key: own[key] for key in ("comparisons", "controls", "arms", "family")}


ODD = [
    b"\x00", b"\xff", b'"', b"{", b"[", b"]]", b"=", b"\n", b"-1", b"1e999", b"NaN", b"null", b"true", b"9" * 30, b'""', b"{}",
    b"../../etc/passwd", b"\\ud800", b"1.5", b"[" * 300, b"inf", b"1979-05-27", b"'''", b"\xed\xa0\x80", b"%", b"\x15\x00",
]  # fmt: skip
VALUES = [
    None,
    True,
    -1,
    0,
    2**53,
    10**30,
    1.5,
    1e308,
    "",
    "../x",
    "\ud800",
    [],
    {},
    [[]],
    {"": None},
    "a" * 300,
    ["x", 1],
]


def damaged(seed: bytes, chooser: random.Random) -> bytes:
    """Give a document with a few things wrong: bytes cut, moved, doubled, flipped or replaced, or odd JSON values."""
    if seed.startswith(b"{") and chooser.random() < 0.5:
        document = _odd_value(seed, chooser)
        if document is not None:
            return document
    data = bytearray(seed)
    for _ in range(chooser.randint(1, 4)):
        at = chooser.randrange(len(data) + 1)
        end = min(len(data), at + chooser.choice((1, 1, 2, 4, 16, 200)))
        action = chooser.randrange(6)
        if action == 0:
            del data[at:end]
        elif action == 1:
            data[at:at] = chooser.choice(ODD)
        elif action == 2 and at < len(data):
            data[at] ^= 1 << chooser.randrange(8)
        elif action == 3:
            data[at:at] = data[at:end]
        elif action == 4:
            data[at:end] = chooser.choice(ODD)
        else:
            del data[len(data) - chooser.choice((1, 8, 100)) :]
    return bytes(data)


def _odd_value(seed: bytes, chooser: random.Random) -> bytes | None:
    try:
        value = json.loads(seed)
    except ValueError:
        return None  # several lines, or bytes that are no JSON
    node, parents = value, []
    while isinstance(node, dict | list) and node and chooser.random() < 0.85:
        key = chooser.choice(list(node) if isinstance(node, dict) else range(len(node)))
        parents.append((node, key))
        node = node[key]
    if parents:
        node, key = parents[-1]
        node[key] = chooser.choice(VALUES)
    return json.dumps(value).encode()


class Watch:
    """Notes every file that Python opens, moves or removes outside a folder while it is on."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.outside: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if self.folder is None or event not in ("open", "os.remove", "os.rename", "os.mkdir", "os.link", "os.symlink"):
            if self.folder is not None and event in ("socket.connect", "subprocess.Popen", "os.system"):
                self.outside.append(event)
            return
        if isinstance(args[0], str | bytes):
            path = os.path.realpath(os.fsdecode(args[0]))
            if not path.startswith(self.folder) and not path.endswith((".py", ".pyc", ".so")):
                self.outside.append(f"{event} {path}")

    @contextmanager
    def on(self, folder: Path) -> Iterator[None]:
        """Watch while the block runs."""
        self.folder = os.path.realpath(folder)
        try:
            yield
        finally:
            self.folder = None


def feed(target: Target, data: bytes) -> None:
    """Give a reader a document; anything that it did not declare goes through."""
    try:
        target.read(data)
    except target.declared:
        return
