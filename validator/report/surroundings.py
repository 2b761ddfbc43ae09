"""Where and how a bundle was measured, and the digests that name it: lists of name and value.

Rules:
1. Values are those of the first analysed process that said something; how many differ from it is said too.
2. Digests of tables are recomputed from their rows; digests of files are those that the manifest lists.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from validator.findings import Json
from validator.reading.bundle import Bundle
from validator.reading.canonical import StrictJsonError, parse_json
from validator.reading.processes import ProcessRecord

Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Lists of name and value."""

    machine: Rows = ()
    method: Rows = ()
    packages: Rows = ()
    processes: tuple[tuple[str, ...], ...] = ()
    digests: Rows = ()
    files: Rows = ()


def surroundings(bundle: Bundle) -> Surroundings:
    """Collect what a bundle says about its machine, its method and itself."""
    records = tuple(record for record in bundle.processes or () if record.analysed)
    known = [record for record in records if record.environment.known]
    value = _parsed(known[0]) if known else {}
    return Surroundings(
        machine=tuple(_machine(known, value)),
        method=tuple(_method(bundle, known)),
        packages=tuple(_packages(value)),
        processes=tuple(_processes(bundle)),
        digests=tuple(_digests(bundle)),
        files=tuple((item.name, item.sha256) for item in bundle.manifest.files) if bundle.manifest else (),
    )


def _parsed(record: ProcessRecord) -> Mapping[str, Json]:
    try:
        value = parse_json(record.environment.text.encode())
    except StrictJsonError:
        return {}
    return value if isinstance(value, dict) else {}


def _table(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _machine(known: list[ProcessRecord], value: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    gpu = _table(value.get("gpu"))
    memory = gpu.get("memory_bytes")
    git = _table(value.get("git"))
    listed: list[tuple[str, Json]] = [
        ("device", value.get("device")),
        ("GPU", gpu.get("name")),
        ("compute capability", gpu.get("compute_capability")),
        ("multiprocessors", gpu.get("sm_count")),
        ("GPU memory", f"{memory / 2**30:.1f} GiB" if isinstance(memory, int) else None),
        ("GPU UUID", gpu.get("uuid")),
        ("driver", value.get("driver")),
        ("CUDA runtime", value.get("cuda_runtime")),
        ("CPU", value.get("cpu")),
        ("CPU count", value.get("cpu_count")),
        ("threads", value.get("threads")),
        ("platform", value.get("platform")),
        ("Python", value.get("python")),
        ("benchkit", value.get("benchkit")),
        ("git commit", git.get("commit")),
        ("git", "dirty: uncommitted changes" if git.get("dirty") is True else None),
    ]
    yield from ((name, str(entry)) for name, entry in listed if entry is not None)
    distinct = len({record.environment.text for record in known})
    if known:
        yield "environments", f"{distinct} distinct over {len(known)} processes"


def _method(bundle: Bundle, known: list[ProcessRecord]) -> Iterator[tuple[str, str]]:
    protocol = bundle.protocol
    if protocol is not None:
        yield "process pairs", f"{protocol.process_pairs} planned"
        if protocol.statistics.looks:
            yield (
                "looks",
                f"at {', '.join(map(str, protocol.statistics.looks))} pairs; the first that shows the claim ends the run",
            )
        yield "blocks", str(protocol.blocks)
        yield "samples per block and arm", f"{protocol.samples_per_block} of {protocol.calls_per_sample} calls"
        yield "warm-up samples", str(protocol.warmup_samples)
        yield "clock, launch, cache", f"{protocol.clock}, {protocol.launch}, {protocol.cache}"
    if known:
        record = known[0]
        yield "event order", record.event_order
        yield "clock tick", f"{record.clock_tick_ns} ns"
        yield "last-level cache", f"{record.l2_bytes / 2**20:.0f} MiB"
        if not bundle.is_study:
            yield "copies of the weights", ", ".join(f"{point}: {count}" for point, count in record.copies)
    if bundle.manifest is not None and bundle.manifest.exploratory:
        yield "exploratory", "; ".join(bundle.manifest.exploratory)


def _packages(value: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for name, entry in _table(value.get("packages")).items():
        version = _table(entry).get("imported") or _table(entry).get("installed")
        if version is not None:
            yield name, str(version)
    for name, source in _table(value.get("sources")).items():
        yield f"source of {name}", str(source)


def _processes(bundle: Bundle) -> Iterator[tuple[str, ...]]:
    frame = bundle.frame("processes")
    for record in bundle.processes or () if frame is not None else ():
        assert frame is not None
        row = record.row
        yield (
            str(record.process),
            str(record.attempt),
            record.status + ("" if record.analysed else " (run again)"),
            frame.text("started_utc", row) or "-",
            frame.text("ended_utc", row) or "-",
            frame.text("reason", row) or "-",
        )


def _digests(bundle: Bundle) -> Iterator[tuple[str, str]]:
    if bundle.protocol_read is not None and bundle.protocol_read.digest:
        yield "protocol", bundle.protocol_read.digest
    if bundle.plan is not None:
        yield "plan (derived again)", bundle.plan.digest
    if bundle.manifest_sha256 is not None:
        yield "manifest.json", bundle.manifest_sha256
    for name, table in bundle.tables.items():
        if table.content_sha256 is not None:
            yield f"rows of {name} ({table.rows})", table.content_sha256
