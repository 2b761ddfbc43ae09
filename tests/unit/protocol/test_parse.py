"""Parsing: every problem at once, with its path; the trials on margins (D06) and on what a digest sees (F01)."""

from pathlib import Path

import pytest

from benchkit.errors import ProtocolError
from benchkit.protocol.lock import protocol_digest
from benchkit.protocol.model import MoeFixture, Role
from benchkit.protocol.parse import parse_protocol, read_protocol
from benchkit.protocol.study import COMPARISON, MECHANISM, protocol_kind, read_study

TEXT = (Path(__file__).parents[2] / "data" / "host.toml").read_text("utf-8")


def problems(text: str) -> tuple[str, ...]:
    """The problems of a protocol text."""
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(text.encode(), "x.toml")
    return caught.value.problems


def changed(old: str, new: str) -> str:
    """The host protocol with one place changed."""
    assert TEXT.count(old) >= 1
    return TEXT.replace(old, new, 1)


def test_a_sound_protocol_becomes_a_model() -> None:
    protocol = parse_protocol(TEXT.encode(), "x.toml")
    assert [point.id for point in protocol.points] == ["batch=1", "batch=4"]
    assert [(arm.name, arm.role) for arm in protocol.arms] == [
        ("base", Role.BASELINE),
        ("cand", Role.CANDIDATE),
        ("aa", Role.AA_CONTROL),
        ("delayed", Role.POSITIVE_CONTROL),
        ("copy", Role.CEILING),
        ("read", Role.CEILING),
    ]
    control, baseline = protocol.arm("aa"), protocol.baseline
    assert (control.kernel, control.params, control.tolerance) == (baseline.kernel, baseline.params, baseline.tolerance)
    assert isinstance(protocol.fixture, MoeFixture)
    assert protocol.statistics.margin == 0.05
    assert protocol.timing.event_order == "start,call*64,stop"


@pytest.mark.parametrize(
    ("written", "margin"), [('"3%"', 0.03), ("0.03", 0.03), ('"0.5%"', 0.005), ('"12.5%"', 0.125), ("1e-2", 0.01)]
)
def test_margins_that_are_clear(written: str, margin: float) -> None:
    text = changed('margin = "5%"', f"margin = {written}")
    assert parse_protocol(text.encode(), "x.toml").statistics.margin == margin


@pytest.mark.parametrize(
    "written", ["3", "nan", "inf", "-0.02", "-inf", '"3"', '"-3%"', '"300%"', "0.0", "1.0", "true"]
)
def test_margins_that_are_not_clear(written: str) -> None:
    (problem,) = problems(changed('margin = "5%"', f"margin = {written}"))
    assert problem.startswith('statistics.margin: expected a margin such as "2%" or 0.02')
    if written == "3":
        assert 'found 3, which could mean "3%" or 300 %' in problem


def test_comments_line_ends_and_key_order_do_not_change_the_digest() -> None:
    digest = protocol_digest(parse_protocol(TEXT.encode(), "x"))
    warmup = "[warmup]\nsamples = 2\nramp_ms = 0\n"
    variants = [
        TEXT.replace("\n", "\r\n"),
        "# a comment\n\n" + TEXT,
        TEXT.replace("samples = 2\nramp_ms = 0", "ramp_ms = 0\nsamples = 2"),
        TEXT.replace(warmup, "") + "\n" + warmup,
    ]
    for text in variants:
        assert text != TEXT
        assert protocol_digest(parse_protocol(text.encode(), "x")) == digest
    other = changed("samples = 2\nramp_ms", "samples = 3\nramp_ms")
    assert protocol_digest(parse_protocol(other.encode(), "x")) != digest


def test_bom_duplicates_and_wrong_types_are_refused() -> None:
    assert problems("\ufeff" + TEXT) == ("file: expected UTF-8 without a byte-order mark; save it without one",)
    assert problems(changed("blocks = 3", "blocks = 3\nblocks = 4"))[0].startswith("file: expected TOML 1.0")
    assert problems(changed("samples = 2\nramp", "samples = 2.0\nramp")) == (
        "warmup.samples: expected an integer from 0 to 100000, found float 2.0",
    )
    assert problems(changed("blocks = 3", "blocks = true")) == (
        "schedule.blocks: expected an integer from 1 to 100000, found boolean true",
    )
    with pytest.raises(ProtocolError, match="byte 0"):
        parse_protocol(b"\xff\xfe", "x")
    assert problems(changed("weight_seed = 1", "weight_seed = 9007199254740993"))[0] == (
        "fixture.weight_seed: expected an integer of at most 2^53 - 1, found integer 9007199254740993"
    )
    assert (
        "fixture.weight_seed: expected a string, number"
        in problems(changed("weight_seed = 1", "weight_seed = 2026-01-01"))[0]
    )


def test_all_problems_at_once_with_their_paths() -> None:
    text = (
        TEXT.replace("top_k = 2", 'top_k = "two"')
        .replace("blocks = 3", "")
        .replace('clock = "host"', 'clock = "wall"')
        .replace('order = "digest"', 'order = "digest"\ncolour = 3')
        .replace("batch = [1, 4]", "batch = [1, 1]")
        .replace('truth = "stored"', 'truth = "sotred"', 1)
    )
    found = problems(text)
    assert [problem.split(":")[0] for problem in found] == [
        "timing.clock",
        "fixture.top_k",
        "operating_points.batch",
        "arm[0].correctness.truth",
        "schedule.blocks",
        "schedule.colour",
    ]
    assert found[4] == "schedule.blocks: missing; expected an integer from 1 to 100000"
    assert found[5] == "schedule.colour: unknown key; known here: blocks, order, process_pairs, watchdog_s"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("top_k = 2", "top_k = 9", "fixture.top_k: 9 exceeds experts = 8"),
        ('name = "cand"', 'name = "base"', "arm: the name base stands 2 times; names are distinct"),
        (
            'role = "candidate"',
            'role = "comparator"',
            "comparison[0].candidate: a claim needs an arm with role candidate",
        ),
        (
            'role = "aa_control"',
            'role = "positive_control"',
            "arm: no aa_control stands at batch=1; a claim needs both controls",
        ),
        ('of = "base"', 'of = "cand"', "arm[2].of: aa must be a control of the baseline, found cand"),
        ('claim = "non_inferior"', 'claim = "descriptive"', "comparison: every claim is descriptive"),
        (
            'candidate = "cand"',
            'candidate = "nobody"',
            "comparison[0]: no arm is named nobody; expected one of aa, base, cand",
        ),
        (
            "process_pairs = 5",
            "process_pairs = 4",
            "schedule.process_pairs: 4 cannot give a verdict at alpha_one_sided = 0.05",
        ),
        ("alpha_one_sided = 0.05", "alpha_one_sided = 0.025", "schedule.process_pairs: 5 cannot give a verdict"),
        ('launch = "eager"', 'launch = "graph"', 'timing.launch: clock "host" needs "eager"'),
        ('cache = "cold-rotate"', 'cache = "cold-flush"', 'timing.cache: "cold-flush" needs clock "cuda-event"'),
        ("min_l2_multiple = 1", "", "timing.min_l2_multiple: missing; cold-rotate states"),
        (
            "min_l2_multiple = 1",
            "min_l2_multiple = 1\npeak_gb_per_s = 100",
            'timing.peak_gb_per_s: forbidden with clock "host"',
        ),
        ('clock = "host"', 'clock = "cuda-event"', "timing.peak_gb_per_s: missing; a cold cuda-event protocol"),
        ("samples = 2\nramp", "samples = 0\nramp", "warmup.samples: a positive control takes its dose"),
        ("repeats = 2", "", "arm[0].correctness.deterministic: needs correctness.repeats"),
        (
            "batch = [1, 4]",
            "tokens = [1, 4]",
            "operating_points.batch: missing; a moe fixture needs its numbers of tokens",
        ),
        ("batch = [1, 4]", 'batch = [1, 4]\nrouting = ["zipf"]', "operating_points.routing: expected"),
        (
            'weight_format = "fp32"',
            'weight_format = "awq-int4-g128"',
            "fixture.hidden: 64 mod 128 = 64; awq-int4-g128 needs multiples of 128",
        ),
        (
            'kernel = "cpu_copy"',
            'kernel = "cpu_copy"\npoints = ["batch=2"]',
            "arm[4]: copy names the point batch=2, which is none of",
        ),
    ],
)
def test_what_ties_the_sections_together(old: str, new: str, problem: str) -> None:
    assert any(found.startswith(problem) for found in problems(changed(old, new)))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("1979-05-27T07:32:00Z", "datetime 1979-05-27T07:32:00+00:00"),
        ("07:32:00", "time 07:32:00"),
        ("[true, false, -0.5, inf]", "array [true, false, -0.5, inf]"),
        ('{ a = "b", c = [{ d = true }] }', 'table {a = "b", c = [{d = true}]}'),
        ('"it\'s \\"\\u001b\\" \u00fc"', 'string "it\'s \\"\\u001b\\" \u00fc"'),
        ("[0x1" + "0" * 4000 + "]", "array [integer of 16001 bits]"),
        ('"' + "a" * 100 + '"', 'string "' + "a" * 76 + "..."),
    ],
)
def test_a_found_value_is_shown_as_it_is_written(written: str, text: str) -> None:
    found = problems(changed("blocks = 3", f"blocks = {written}"))
    assert f"schedule.blocks: expected an integer from 1 to 100000, found {text}" in found


def test_routings_and_batches_are_shown_as_they_are_written() -> None:
    assert problems(changed("batch = [1, 4]", 'batch = [1, 4]\nrouting = ["zipf"]')) == (
        'operating_points.routing: expected "uniform" or "zipf-<a>" with an a of at most 32, found string "zipf"',
    )
    assert problems(changed("batch = [1, 4]", 'batch = ["1", "4"]'))[0] == (
        'operating_points.batch: expected integers from 1, found array ["1", "4"]'
    )


def test_an_arm_that_is_not_there_is_told_beside_those_that_are() -> None:
    there = "aa, base, cand, copy, delayed, read"
    assert problems(
        changed('candidate = "cand"', 'candidate = "nobody"').replace("baseline = ", 'baseline = "no" #')
    ) == (
        f"comparison[0]: no arm is named nobody; expected one of {there}",
        f"comparison[0]: no arm is named no; expected one of {there}",
    )
    component = 'role = "component"\npart_of = "whole"\ncounted_bytes = "w13"'
    assert f"arm[1].part_of: no arm is named whole; expected one of {there}" in problems(
        changed('role = "candidate"', component)
    )


def test_unknown_schema_is_named_alone() -> None:
    (problem,) = problems(changed("benchkit.protocol/1", "benchkit.protocol/2"))
    assert problem == 'schema: expected "benchkit.protocol/1", found "benchkit.protocol/2"; this version reads no other'


def test_published_protocols_are_sound() -> None:
    folder = Path(__file__).parents[3] / "protocols"
    readers = {COMPARISON: read_protocol, MECHANISM: read_study}
    ids = {path.stem: readers[protocol_kind(path)](path).id for path in folder.glob("*.toml")}
    assert ids
    assert all(stem == protocol_id for stem, protocol_id in ids.items())
