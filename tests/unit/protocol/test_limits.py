"""Sizes of a protocol: both packages refuse what lies beyond the limits of protocols/README.md, before anything is computed."""

import re
import time
from pathlib import Path

import pytest

from benchkit.errors import ProtocolError
from benchkit.fixture.traffic import routing_at
from benchkit.protocol import limits as ours
from benchkit.protocol.parse import parse_protocol
from validator.findings import CouldNotCheckError
from validator.reading import limits as theirs
from validator.reading.protocol import read_protocol
from validator.reading.routing import derive_routes
from validator.reading.schema import FLUSH, TABLES

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "tests" / "data" / "host.toml").read_text("utf-8")


def changed(**values: str) -> str:
    """The host protocol with other values of some keys (the first of that name)."""
    text = TEXT
    for key, value in values.items():
        text, count = re.subn(rf"^{key} = [^#\n]*", f"{key} = {value}", text, count=1, flags=re.MULTILINE)
        assert count == 1
    return text


@pytest.mark.parametrize(
    ("values", "problems", "seen"),
    [
        (
            {"batch": "[100000000]"},
            [
                "operating_points.batch: 100000000 tokens over all points x 8 experts = 800000000 digests of the routing; "
                "at most 16777216"
            ],
            "expected at most 16777216 digests of the routing, got 800000000",
        ),
        (
            {"process_pairs": "10000", "blocks": "100000"},
            [
                "schedule: 10000 process_pairs x 2 points x 6 arms x (100000 blocks + warm-up) = 12000120000 places in the "
                "order; at most 1048576",
                "schedule: 10000 process_pairs x 2 points x 6 arms x 200002 samples = 24000240000 rows; at most 13000000",
            ],
            "expected at most 1048576 places in the order, got 12000120000",
        ),
        (
            {"samples_per_block": "100000"},
            ["schedule: 5 process_pairs x 2 points x 6 arms x 300002 samples = 18000120 rows; at most 13000000"],
            "expected at most 13000000 rows, got 18000120",
        ),
        (
            {"repeats": "1000", "process_pairs": "1200"},
            [
                "correctness.repeats: 1200 process_pairs x 2 points x 6 arms x 1000 repeats = 14400000 rows; at most 1048576"
            ],
            "expected at most 1048576 repeats, got 14400000",
        ),
    ],
)
def test_sizes_that_are_refused(values: dict[str, str], problems: list[str], seen: str) -> None:
    text = changed(**values).encode()
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(text, "x.toml")
    assert list(caught.value.problems) == problems
    with pytest.raises(CouldNotCheckError) as refused:
        read_protocol(text)
    assert str(refused.value) == f"protocol.toml: {seen}: more than is checked"


def test_points_are_counted_and_not_made() -> None:
    axes = "\n".join(f"a{i} = [{', '.join(map(str, range(1000)))}]" for i in range(7))
    text = TEXT.replace("batch = [1, 4]", f"batch = [1]\n{axes}").encode()
    begin = time.perf_counter()
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(text, "x.toml")
    assert caught.value.problems[0] == f"operating_points: {1000**7} combinations; at most 4096 are planned"
    assert read_protocol(text).problems == ("operating_points: more than 4096 points",)
    assert time.perf_counter() - begin < 5


def test_arms_and_comparisons_are_counted() -> None:
    more = '\n[[comparison]]\ncandidate = "cand"\nbaseline = "base"\nclaim = "descriptive"\n' * 256
    with pytest.raises(ProtocolError) as caught:
        parse_protocol((TEXT + more).encode(), "x.toml")
    assert list(caught.value.problems) == ["comparison: 257 of them; at most 256"]
    assert read_protocol((TEXT + more).encode()).problems == ("arm: more than 256 arms or comparisons",)


def test_looks_are_few() -> None:
    looks = f"looks = [{', '.join(map(str, range(6, 40)))}]\n"
    text = changed(process_pairs="39").replace('family = "all-points"', f'family = "all-points"\n{looks}').encode()
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(text, "x.toml")
    assert caught.value.problems[0].startswith("statistics.looks: expected 2 to 32 ascending numbers of process pairs")
    assert read_protocol(text).problems[0].startswith("statistics.looks: expected 2 to 32 ascending integers from 6 on")


@pytest.mark.parametrize("law", ["zipf-400", "zipf-32.5", "zipf-" + "9" * 400])
def test_laws_that_doubles_cannot_carry(law: str) -> None:
    text = changed(routing=f'"{law}"').encode()
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(text, "x.toml")
    (problem,) = caught.value.problems
    assert problem.startswith(
        'fixture.routing: expected "uniform", "zipf-<a>" with an a of at most 32, or "recorded", found'
    )
    (seen,) = read_protocol(text).problems
    assert seen.startswith(
        "fixture.routing: expected uniform, recorded or zipf-<a> with an a of at most 32, got 'zipf-"
    )
    axis = TEXT.replace("batch = [1, 4]", f'batch = [1, 4]\nrouting = ["{law}"]').encode()
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(axis, "x.toml")
    assert caught.value.problems[0].startswith("operating_points.routing: expected ")
    assert read_protocol(axis).problems[0].startswith("operating_points.routing: no law 'zipf-")


def test_the_largest_law_is_routed_by_both() -> None:
    text = changed(routing='"zipf-32"').encode()
    made = parse_protocol(text, "x")
    seen = read_protocol(text).protocol
    assert seen is not None
    for mine, other in zip(made.points, seen.points, strict=True):
        routing, routes = routing_at(made, mine, ROOT), derive_routes(seen, other)
        assert routing is not None
        assert routes is not None
        assert routing.topk_ids.tolist() == routes.experts.tolist()


def test_messages_stay_short() -> None:
    names = ", ".join(f'"batch={i}"' for i in range(2000))
    text = TEXT.replace('family = "all-points"', f'family = "named-points"\nnamed_points = [{names}]').encode()
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(text, "x.toml")
    assert len(caught.value.problems) == 1998
    lines = str(caught.value).splitlines()
    assert (lines[0], len(lines), lines[-1]) == ("x.toml: 1998 problem(s)", 102, "  and 1898 more")
    assert max(map(len, lines)) <= 402


def test_the_limits_are_the_documented_ones() -> None:
    """What can be locked can be checked: the validator's limits are those, or larger."""
    assert ours.MAX_POINTS <= theirs.POINTS
    assert ours.MAX_ARMS <= theirs.ARMS
    assert ours.MAX_LOOKS <= theirs.LOOKS
    assert ours.MAX_PLANNED <= theirs.PLANNED
    assert ours.MAX_ROWS <= theirs.ROWS
    assert ours.MAX_ROUTED <= theirs.ROUTED
    assert ours.MAX_EXPONENT <= theirs.EXPONENT
    row = sum(
        {"string": 16, "bool": 1, "int16": 2, "int32": 4, "int64": 8}[c.type] for c in (*TABLES["samples"], FLUSH)
    )
    assert 3 * ours.MAX_ROWS * row <= theirs.DECODED
    text = (ROOT / "protocols" / "README.md").read_text("utf-8")
    for number in ("1,048,576", "13,000,000", "16,777,216", "4096; 256; 256; 32"):
        assert f"| {number} |" in text


def test_published_protocols_keep_to_them() -> None:
    for path in sorted((ROOT / "protocols").glob("*.toml")):
        assert read_protocol(path.read_bytes()).problems == ()
