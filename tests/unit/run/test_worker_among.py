"""Token 0 among others, by real CPU kernels: the worker runs every compared arm once a batch, ascending, and compares with the fewest tokens."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchkit.protocol.parse import parse_protocol
from benchkit.run.torch_bench import TorchBench
from benchkit.run.worker import Worker

TEXT = (Path(__file__).parents[2] / "data" / "host.toml").read_text("utf-8")


def rows_of(text: str, tmp_path: Path) -> list[list[object]]:
    protocol = parse_protocol(text.encode(), "x.toml")
    protocol = replace(protocol, fixture=replace(protocol.fixture, copies=1))
    written: dict[str, list[list[object]]] = {}
    writer = SimpleNamespace(rows=lambda table, rows: written.setdefault(table, []).extend(rows))
    bench = TorchBench(protocol, folder=tmp_path, digest_cache=tmp_path / "digests")
    Worker(protocol, bench, writer)._among(tuple(reversed(protocol.points)))
    return written.get("correctness", [])


def test_rows_of_both_arms(tmp_path: Path) -> None:
    text = TEXT.replace("batch = [1, 4]", "batch = [1, 3, 40]")
    text = text.replace("deterministic = true", "deterministic = true\nbatch_invariant = true", 1)
    rows = rows_of(text, tmp_path)
    places = [(arm, f"batch={batch}") for arm in ("base", "cand") for batch in (1, 3, 40)]
    assert [(row[1], row[0]) for row in rows] == places
    assert {(row[2], row[3]) for row in rows} == {("batch", "eager")}
    for row in rows:
        _, _, _, _, cosine, largest, relative, digest = row
        assert len(str(digest)) == 64
        assert cosine > 0.999999
        assert 0 <= largest < 1e-4
        assert relative < 1e-5
        same = digest == next(other[7] for other in rows if other[1] == row[1])
        assert same is (largest == 0.0)  # the digest and the difference say one thing
    assert [row[5] for row in rows if row[0] == "batch=1"] == [0.0, 0.0]


def test_nothing_without_a_claim(tmp_path: Path) -> None:
    assert rows_of(TEXT, tmp_path) == []


def test_the_digest_is_of_little_endian_doubles(tmp_path: Path) -> None:
    text = TEXT.replace("deterministic = true", "deterministic = true\nbatch_invariant = true", 1)
    protocol = parse_protocol(text.encode(), "x.toml")
    bench = TorchBench(protocol, folder=tmp_path, digest_cache=tmp_path / "digests")
    arm, (small, large) = protocol.baseline, protocol.points
    prepared = bench.among(arm, small, large)
    prepared.call(0)
    row = np.asarray(prepared.output())
    assert row.shape == (1, 64)
    assert rows_of(text, tmp_path)[0][7] == hashlib.sha256(row.astype("<f8").tobytes()).hexdigest()
