"""A second writer of the bundle format, written from results/README.md and protocols/README.md alone.

It imports neither benchkit nor validator. A ``Draft`` is a bundle before sealing: tests change its rows or documents,
and ``seal`` writes files whose digests agree with whatever was changed, so that only a deeper check can see it.
"""

import copy
import hashlib
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import rfc8785

Row = dict[str, Any]
Duration = Callable[[int, str, int, str, int], int]

RUN_ID = "20260101T120000Z-0123abcd"
COLUMNS = {
    "samples": "process:i4 attempt:i2 point:s block:i4 arm:s sample:i4 seq:i8 warmup:b calls:i4 duration_ns:i8 "
    "host_start_ns:i8 host_end_ns:i8 post_sync_ns:i8 injected_ns:i8 blocked:b",
    "processes": "process:i4 attempt:i2 status:s reason:s? environment:s environment_sha256:s fixture_sha256:s clock:s "
    "launch:s event_order:s clock_tick_ns:i8 l2_bytes:i8 copies:s unsupported:s binaries:s started_utc:s ended_utc:s?",
    "telemetry": "process:i4 attempt:i2 point:s block:i4 arm:s edge:s sm_clock_mhz:i4 memory_clock_mhz:i4 "
    "temperature_c:i4 power_w:f8 throttle_reasons:i8",
    "correctness": "process:i4 attempt:i2 point:s arm:s truth:s stage:s min_cosine:f8 max_abs_error:f8 rel_error:f8 "
    "output_sha256:s",
    "routing": "point:s token:i4 slot:i4 expert:i4 weight:f4",
    "kernels": "process:i4 attempt:i2 point:s arm:s position:i4 name:s grid:s block:s registers:i4 shared_bytes:i4 "
    "scratch_bytes:i8",
    "repeats": "process:i4 attempt:i2 point:s arm:s repeat:i4 mode_sha256:s? output_sha256:s",
}
TYPES = {
    "i2": pa.int16(), "i4": pa.int32(), "i8": pa.int64(), "f4": pa.float32(), "f8": pa.float64(),
    "s": pa.string(), "b": pa.bool_(),
}  # fmt: skip
UNITS = {"_ns": "ns", "_mhz": "mhz", "temperature_c": "celsius", "power_w": "w", "_bytes": "bytes"}


def sha(data: bytes | str) -> str:
    """SHA-256 in lower-case hex."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def columns(table: str) -> list[tuple[str, str, bool]]:
    """Name, type and nullability of the columns of a table."""
    parsed = [item.split(":") for item in COLUMNS[table].split()]
    return [(name, kind.rstrip("?"), kind.endswith("?")) for name, kind in parsed]


def content_digest(table: str, rows: list[Row]) -> str:
    """The content digest, value by value."""
    listed: list[Any] = []
    for name, kind, nullable in columns(table):
        parts = []
        for row in rows:
            value = row[name]
            if value is None:
                parts.append(b"\x00")
                continue
            mark = b"\x01" if nullable else b""
            if kind[0] in "ib":
                parts.append(mark + struct.pack("<q", value))
            elif kind[0] == "f":
                parts.append(
                    mark + (bytes.fromhex("000000000000f87f") if math.isnan(value) else struct.pack("<d", value))
                )
            else:
                parts.append(mark + struct.pack("<I", len(value.encode())) + value.encode())
        word = {"i": "int", "b": "bool", "f": "float", "s": "string"}[kind[0]]
        listed.append([name, word, sha(b"".join(parts))])
    return sha(rfc8785.dumps(["benchkit.table/1", len(rows), *listed]))


def toml(value: Any) -> str:
    """A value as (inline) TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def document(*, clock: str, pairs: int, alpha: float, margin: str | float) -> Row:
    """A protocol: arrays on the host clock, a small MoE layer on CUDA events."""
    cuda = clock == "cuda-event"
    tolerance = {"min_cosine": 0.999, "max_rel_error": 0.01, "truth": "stored"}
    return {
        "schema": "benchkit.protocol/1",
        "protocol": {"id": "built", "kind": "comparison", "title": "t", "question": "q", "margin_rationale": "r"},
        "build": {"require": {"python": ">=3.11", **({"torch": ">=2.11,<2.14", "gpu": "NVIDIA H200"} if cuda else {})}},
        "fixture": {"kind": "moe", "experts": 8, "hidden": 256, "intermediate": 128, "top_k": 2, "weight_format": "bf16",
                    "routing": "uniform", "routing_seed": 7, "weight_seed": 1, "copies": 4}
        if cuda
        else {"kind": "arrays", "dtype": "fp32", "counted": "read", "seed": 1, "copies": 4},
        "operating_points": {"batch": [1, 4]} if cuda else {"mib": [1, 2]},
        "arm": [
            {"name": "base", "role": "baseline", "kernel": "a", "correctness": tolerance | {"deterministic": True}},
            {"name": "cand", "role": "candidate", "kernel": "b", "correctness": tolerance | {"deterministic": True}},
            {"name": "same", "role": "aa_control", "of": "base"},
            {"name": "slow", "role": "positive_control", "of": "base"},
            {"name": "copy", "role": "ceiling", "kernel": "c", "ceiling": "copy", "bytes": 1048576},
        ],
        "comparison": [{"candidate": "cand", "baseline": "base", "claim": "non_inferior"}],
        "schedule": {"process_pairs": pairs, "blocks": 2, "order": "digest", "watchdog_s": 60},
        "warmup": {"samples": 2, "ramp_ms": 0},
        "timing": {"clock": clock, "boundary": "calls", "launch": "graph" if cuda else "eager", "calls_per_sample": 4,
                   "samples_per_block": 3, "cache": "cold-rotate", "min_l2_multiple": 2,
                   **({"peak_gb_per_s": 4800} if cuda else {})},
        "correctness": {"reference": "fp64", "truths": ["stored"]},
        "statistics": {"estimand": "geometric-mean-of-median-ratios", "interval": "paired-t", "alpha_one_sided": alpha,
                       "margin": margin, "direction": "lower-is-better", "family": "all-points"},
    }  # fmt: skip


def script(process: int, point: str, block: int, arm: str, sample: int) -> int:
    """Whole-sample durations: the candidate 1 % faster, processes a little apart, every value its own."""
    scale = {"base": 1.0, "cand": 0.99, "same": 1.0001, "slow": 1.03, "copy": 0.5}[arm]
    noise = int(sha(f"{process}/{point}/{block}/{arm}/{sample}")[:4], 16) % 997
    return round(1_000_000 * scale * (1 + process / 500)) + noise


@dataclass
class Draft:
    """A bundle before sealing."""

    protocol: Row
    tables: dict[str, list[Row]]
    ledger: list[Row]
    synthetic: bool = False
    exploratory: list[str] = field(default_factory=list)
    lock: Row = field(default_factory=dict)
    analysis: Row | None = None
    protocol_text: str | None = None
    footer: Row = field(default_factory=dict)
    schema: Callable[[str, pa.Schema], pa.Schema] | None = None

    @property
    def digest(self) -> str:
        return sha(rfc8785.dumps(self.protocol))

    @property
    def samples(self) -> list[Row]:
        return self.tables["samples"]

    def seal(self, folder: Path) -> Path:
        """Write everything, manifest last."""
        folder.mkdir(parents=True)
        text = self.protocol_text or "".join(f"{key} = {toml(value)}\n" for key, value in self.protocol.items())
        (folder / "protocol.toml").write_text(text, newline="")
        (folder / "protocol.lock").write_text(json.dumps(self.lock))
        contents = {name: self._table(folder, name) for name in COLUMNS}
        lines: list[bytes] = []
        for seq, line in enumerate(self.ledger):
            chained = {"seq": seq, "prev_sha256": sha(lines[-1]) if lines else "0" * 64, **line}
            lines.append(rfc8785.dumps(chained))
        (folder / "attempts.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        listed = {
            path.name: {"sha256": sha(path.read_bytes()), "bytes": path.stat().st_size}
            for path in sorted(folder.iterdir())
        }
        manifest = {
            "schema": "benchkit.manifest/1", "protocol_id": "built", "protocol_digest": self.digest,
            "plan_digest": self.lock["plan_digest"], "run_id": RUN_ID, "tool_version": "0", "synthetic": self.synthetic,
            "exploratory": self.exploratory, "files": listed, "tables": contents,
            "ledger": {"lines": len(lines), "tip_sha256": sha(lines[-1])}, "external": [],
        }  # fmt: skip
        (folder / "manifest.json").write_text(json.dumps(manifest))
        if self.analysis is not None:
            stamp = {"manifest_sha256": sha((folder / "manifest.json").read_bytes())}
            (folder / "analysis.json").write_text(json.dumps(stamp | self.analysis))
        return folder

    def _table(self, folder: Path, name: str) -> Row:
        rows = self.tables[name]
        fields = []
        for column, kind, nullable in columns(name):
            unit = next((unit for ending, unit in UNITS.items() if column.endswith(ending)), None)
            fields.append(pa.field(column, TYPES[kind], nullable, {"unit": unit} if unit else None))
        footer = {
            "benchkit.schema": f"benchkit.{name}/1",
            "benchkit.protocol_digest": self.digest,
            "benchkit.run_id": RUN_ID,
        }
        schema = pa.schema(fields, metadata=footer | self.footer)
        schema = self.schema(name, schema) if self.schema else schema
        table = pa.Table.from_pylist(rows, schema=schema)
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd", write_page_checksum=True)
        try:
            digest = content_digest(name, rows)
        except (struct.error, AttributeError):
            digest = "0" * 64
        return {"rows": len(rows), "content_sha256": digest}


def order(digest: str, protocol: Row, process: int) -> list[tuple[str, list[tuple[int, list[str]]]]]:
    """The planned points of a process with the arms of warm-up (-1) and blocks."""
    (axis, values), names = next(iter(protocol["operating_points"].items())), [arm["name"] for arm in protocol["arm"]]
    points = sorted((f"{axis}={value}" for value in values), key=lambda point: sha(f"{digest}/{process}/{point}"))
    blocks = ["warmup", *range(protocol["schedule"]["blocks"])]
    return [
        (point, [(i - 1, sorted(names, key=lambda arm: sha(f"{digest}/{process}/{point}/{block}/{arm}")))
                 for i, block in enumerate(blocks)])
        for point in points
    ]  # fmt: skip


def draft(
    *,
    clock: str = "host",
    pairs: int = 5,
    alpha: float = 0.05,
    margin: str | float = "2%",
    duration: Duration = script,
    change: Callable[[Row], object] | None = None,
) -> Draft:
    """A clean draft of a finished run; ``change`` edits its protocol before anything is planned."""
    protocol = document(clock=clock, pairs=pairs, alpha=alpha, margin=margin)
    if change is not None:
        change(protocol)
    tables: dict[str, list[Row]] = {name: [] for name in COLUMNS}
    line = {"run_id": RUN_ID, "protocol_digest": sha(rfc8785.dumps(protocol)), "status": None}
    ledger = [
        line | {"event": "start", "utc": "2026-01-01T12:00:00Z"},
        line | {"event": "end", "utc": "2026-01-01T12:10:00Z", "status": "complete"},
    ]
    result = Draft(protocol=protocol, tables=tables, ledger=ledger)
    for process in range(pairs):
        tables["processes"].append(_process(protocol, process))
        tables["samples"].extend(_samples(result, process, duration))
        _evidence(result, process)
    _routing(result)
    _lock(result)
    return result


def relock(result: Draft) -> Draft:
    """Lock a changed protocol again; rows stay as they are."""
    _lock(result)
    for line in result.ledger:
        line["protocol_digest"] = result.digest
    return result


def _margin(protocol: Row) -> float:
    value = protocol["statistics"]["margin"]
    return float(value.rstrip("%")) / 100 if isinstance(value, str) else value


def _process(protocol: Row, process: int) -> Row:
    timing = protocol["timing"]
    cuda = timing["clock"] == "cuda-event"
    gpu = {
        "name": "NVIDIA H200",
        "uuid": "GPU-0",
        "compute_capability": "9.0",
        "memory_bytes": 1,
        "sm_count": 132,
        "mig": True,
    }
    package = {"installed": "2.12.0", "imported": "2.12.0+cu130", "file": "lib/torch/__init__.py"}
    environment = {
        "device": "cuda" if cuda else "host", "python": "3.11.7", "platform": "p", "cpu": "c", "cpu_count": 2, "threads": 1,
        "packages": {"torch": package} if cuda else {}, "driver": "580.95.05" if cuda else None, "cuda_runtime": None,
        "cuda_driver_max": None, "gpu": gpu if cuda else None, "sources": {}, "git": {"commit": None, "dirty": None},
        "benchkit": "0.1.0",
    }  # fmt: skip
    text = rfc8785.dumps(environment).decode()
    (axis, values) = next(iter(protocol["operating_points"].items()))
    return {
        "process": process, "attempt": 0, "status": "ok", "reason": None, "environment": text,
        "environment_sha256": sha(text), "fixture_sha256": sha("fixture"), "clock": timing["clock"],
        "launch": timing["launch"], "event_order": ("block," if cuda else "") + f"start,call*{timing['calls_per_sample']},stop",
        "clock_tick_ns": 32 if cuda else 1, "l2_bytes": 65536,
        "copies": json.dumps({f"{axis}={value}": 4 for value in values}), "unsupported": "[]", "binaries": "{}",
        "started_utc": f"2026-01-01T12:{process:02}:00Z", "ended_utc": f"2026-01-01T12:{process + 1:02}:00Z",
    }  # fmt: skip


def _samples(result: Draft, process: int, duration: Duration) -> list[Row]:
    protocol, rows, now = result.protocol, [], 1_000_000_000 + process * 60_000_000_000
    timing, cuda = protocol["timing"], protocol["timing"]["clock"] == "cuda-event"
    counts = {-1: protocol["warmup"]["samples"]}
    for point, blocks in order(result.digest, protocol, process):
        warm = sorted(duration(process, point, -1, "base", sample) for sample in range(counts[-1]))
        middle = (warm[(len(warm) - 1) // 2] + warm[len(warm) // 2]) / 2 if warm else 1_000_000
        dose = round(1.5 * _margin(protocol) * middle)
        for block, arms in blocks:
            for arm in arms:
                for sample in range(counts.get(block, timing["samples_per_block"])):
                    spent = duration(process, point, block, arm, sample)
                    end = now + max(spent, 0) + (20_000 if cuda else 0)
                    rows.append({
                        "process": process, "attempt": 0, "point": point, "block": block, "arm": arm, "sample": sample,
                        "seq": len(rows), "warmup": block == -1, "calls": timing["calls_per_sample"], "duration_ns": spent,
                        "host_start_ns": now, "host_end_ns": end, "post_sync_ns": 5_000 if cuda else 0,
                        "injected_ns": dose if arm == "slow" and block >= 0 else 0, "blocked": cuda,
                    })  # fmt: skip
                    now = end + 50_000
    return rows


def _evidence(result: Draft, process: int) -> None:
    """Correctness, telemetry, kernels and repeats of a process."""
    key = {"process": process, "attempt": 0}
    cuda = result.protocol["timing"]["clock"] == "cuda-event"
    for point, blocks in order(result.digest, result.protocol, process):
        for arm in ("base", "cand", "same", "slow", "copy"):
            cell = key | {"point": point, "arm": arm}
            errors = {"min_cosine": 0.9999995, "max_abs_error": 0.001, "rel_error": 1e-6, "output_sha256": sha(arm)}
            for stage in ("eager", "replay") if cuda else ("eager",):
                result.tables["correctness"].append(cell | {"truth": "stored", "stage": stage} | errors)
            if cuda:
                shape = {"grid": "1,1,1", "block": "128,1,1", "registers": 32, "shared_bytes": 0, "scratch_bytes": 64}
                for position in range(2):
                    result.tables["kernels"].append(cell | {"position": position, "name": arm} | shape)
                outputs = {"mode_sha256": None, "output_sha256": sha(arm)}
                result.tables["repeats"].extend(cell | {"repeat": repeat} | outputs for repeat in range(2))
        for block, arms in blocks if cuda else ():
            for arm in arms if block >= 0 else ():
                for edge in ("before", "after"):
                    clocks = {
                        "sm_clock_mhz": 1980,
                        "memory_clock_mhz": 3201,
                        "temperature_c": 40 + process,
                        "power_w": 300.0,
                    }
                    place = {"point": point, "block": block, "arm": arm, "edge": edge}
                    result.tables["telemetry"].append(key | place | clocks | {"throttle_reasons": 0})


def experts_of(fixture: Row, batch: int, token: int) -> list[int]:
    """The uniform law."""
    order = sorted(range(fixture["experts"]), key=lambda e: sha(f"{fixture['routing_seed']}/{batch}/{token}/{e}"))
    return order[: fixture["top_k"]]


def _routing(result: Draft) -> None:
    fixture = result.protocol["fixture"]
    for batch in result.protocol["operating_points"].get("batch", ()):
        for token in range(batch):
            chosen = experts_of(fixture, batch, token)
            stem = f"{fixture['routing_seed']}/{batch}/{token}"
            heads = [int(sha(f"{stem}/{e}/weight")[:16], 16) >> 11 for e in chosen]
            shares = [(head + 0.5) / 2**53 for head in heads]
            for slot, (expert, share) in enumerate(zip(chosen, shares, strict=True)):
                weight = struct.unpack("<f", struct.pack("<f", share / math.fsum(shares)))[0]
                row = {"point": f"batch={batch}", "token": token, "slot": slot, "expert": expert, "weight": weight}
                result.tables["routing"].append(row)


def _lock(result: Draft) -> None:
    protocol, fixture = result.protocol, result.protocol["fixture"]
    sizes = {}
    for axis, values in protocol["operating_points"].items():
        for value in values:
            unique = issued = value * 2**20
            if axis == "batch":
                size = 3 * fixture["hidden"] * fixture["intermediate"] * 2
                distinct = {expert for token in range(value) for expert in experts_of(fixture, value, token)}
                unique, issued = len(distinct) * size, value * fixture["top_k"] * size
            sizes[f"{axis}={value}"] = {"unique_bytes": unique, "issued_bytes": issued}
    processes = [
        [process, [[point, *(arms for _, arms in blocks)] for point, blocks in order(result.digest, protocol, process)]]
        for process in range(protocol["schedule"]["process_pairs"])
    ]
    result.lock = {
        "schema": "benchkit.lock/1", "protocol_id": "built", "protocol_digest": result.digest,
        "plan_digest": sha(rfc8785.dumps(["benchkit.plan/1", processes])), "bytes": sizes,
        "locked_utc": "2026-01-01T11:00:00Z", "tool_version": "0", "git_commit": None,
    }  # fmt: skip


def with_attempt(result: Draft, process: int, rows: int) -> Draft:
    """Give a process an interrupted attempt 0 of so many rows before its other attempts, which a resumption made."""
    old = [row for row in result.samples if row["process"] == process]
    at = result.samples.index(old[0])
    for table in ("samples", "correctness", "telemetry", "kernels", "repeats", "processes"):
        for row in result.tables[table]:
            if row["process"] == process:
                row["attempt"] += 1
    result.samples[at:at] = [copy.deepcopy(row) | {"attempt": 0} for row in old[:rows]]
    index = next(i for i, row in enumerate(result.tables["processes"]) if row["process"] == process)
    early = result.tables["processes"][index] | {"attempt": 0, "status": "interrupted", "ended_utc": None}
    result.tables["processes"].insert(index, early)
    result.ledger.insert(-1, result.ledger[0] | {"event": "resume"})
    return result
