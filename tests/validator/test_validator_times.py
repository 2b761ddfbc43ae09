"""Times, telemetry and physics, check by check: a clean bundle in memory with one thing changed, and exactly what is said."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import memory
import numpy as np
import pytest
from memory import Rows, edited, seen, surroundings, with_records, with_rows

from validator.checks.physics import check_physics
from validator.checks.telemetry import check_telemetry
from validator.checks.times import check_times
from validator.findings import NotApplicable
from validator.reading.bundle import Bundle
from validator.reading.processes import ProcessRecord
from validator.reading.rows import View
from validator.reasons import Reason as R


def host() -> Bundle:
    return memory.built("host")


def cuda() -> Bundle:
    return memory.built("cuda-event")


def samples(bundle: Bundle) -> Rows:
    frame = bundle.frame("samples")
    assert frame is not None
    return memory.rows_of(frame)


def with_samples(bundle: Bundle, change: Callable[[Rows], object]) -> Bundle:
    return with_rows(bundle, "samples", change)


def cells(rows: Rows, **wanted: Any) -> Rows:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def with_protocol(view: View, **values: Any) -> View:
    return replace(view, protocol=replace(view.protocol, **values))


def times(bundle: Bundle) -> memory.Said:
    return memory.said(check_times(seen(bundle)))


def telemetry(bundle: Bundle) -> memory.Said:
    frame = bundle.frame("telemetry")
    assert frame is not None
    return memory.said(check_telemetry(seen(bundle), frame, []))


def physics(view: View, *reasons: R) -> memory.Said:
    found = memory.said(check_physics(view, []).findings)
    return [item for item in found if item[0] in reasons or not reasons]


def test_clean_bundles_have_no_finding() -> None:
    for bundle in (host(), cuda()):
        assert (times(bundle), physics(seen(bundle))) == ([], [])
    assert telemetry(cuda()) == []


# times


@pytest.mark.parametrize("change", [{"post_sync_ns": -1}, {"host_end_ns": 0}])
def test_a_sample_against_itself(change: dict[str, int]) -> None:
    def edit(rows: Rows) -> None:
        rows[8].update(change)

    (found,) = times(with_samples(cuda(), edit))
    rows = samples(cuda())
    row = rows[8] | change
    assert found == (
        R.TIME_DISORDER,
        "samples.parquet:host_start_ns[8] process=0",
        f"a start no earlier than the end before (after {rows[7]['host_end_ns']})",
        f"start {row['host_start_ns']}, end {row['host_end_ns']}, post_sync {row['post_sync_ns']} (1 row)",
    )


@pytest.mark.parametrize(
    ("device", "post", "found"),
    [("cuda", 0, [R.TIME_DISORDER]), ("cuda", 1, []), ("fake", 0, [])],
)
def test_a_synchronise_takes_time_on_a_device(device: str, post: int, found: list[R]) -> None:
    idle = with_samples(cuda(), lambda rows: rows[8].update(post_sync_ns=post))
    on = with_records(idle, lambda r: r.__setitem__(slice(None), [surroundings(x, device=device) for x in r]))
    said = [item[0] for item in times(on) if item[1].startswith("samples.parquet:host_start_ns[8]")]
    assert said == found


def test_a_sample_may_end_when_it_starts() -> None:
    at_once = with_samples(cuda(), lambda rows: rows[8].update(host_end_ns=rows[8]["host_start_ns"]))
    assert [item for item in times(at_once) if item[0] is R.TIME_DISORDER] == []


def test_the_shortest_duration_on_a_host() -> None:
    (found,) = times(with_samples(host(), lambda rows: rows[8].update(duration_ns=1)))
    row = samples(host())[8]
    wall = row["host_end_ns"] - row["host_start_ns"]
    where = "samples.parquet:duration_ns[8] process=0"
    assert found == (R.TIME_DISORDER, where, f"{wall} ns, from host_start_ns to host_end_ns", "1 ns (1 row)")
    assert times(with_samples(host(), lambda rows: rows[8].update(duration_ns=0))) == []  # said elsewhere


@pytest.mark.parametrize(("more", "bad"), [(0, False), (1, True)])
def test_an_event_is_no_longer_than_the_host_waited(more: int, bad: bool) -> None:
    def change(rows: Rows) -> None:
        for at, row in enumerate(rows):
            row["duration_ns"], row["host_start_ns"], row["host_end_ns"] = 2_100_000, at * 10**7, at * 10**7 + 2_100_000
        rows[8]["duration_ns"] = 2_103_100 + more

    found = times(with_samples(cuda(), change))
    wanted = (
        R.ESCAPED_WORK,
        "samples.parquet:duration_ns[8] process=0",
        "events of at most the 2100000 ns of host time",
        f"{2_103_100 + more} ns (1 row)",
    )
    assert [item for item in found if item[0] is R.ESCAPED_WORK] == ([wanted] if bad else [])


def waiting(
    arms: dict[str, int], duration: int = 50_000, left_out: tuple[str, ...] = (), *, spread: bool = True
) -> Bundle:
    """Durations that differ by a few steps; the host waits 20 us beyond them, for some arms longer (at batch=4 in process 1)."""

    def change(rows: Rows) -> None:
        kept = [row for row in rows if not (row["arm"] in left_out and row["point"] == "batch=4")]
        now = 0
        for at, row in enumerate(kept):
            mine = (row["point"], row["process"]) == ("batch=4", 1)
            wait = 20_000 + (arms.get(row["arm"], 0) if mine else 0)
            row["duration_ns"] = duration + (at * 7 % 64 + row["process"] if spread else 0)
            row["host_start_ns"], row["host_end_ns"] = now, now + row["duration_ns"] + wait
            now = row["host_end_ns"] + 1000
        rows[:] = kept

    return with_samples(cuda(), change)


def standing_out(arm: str, wait: int) -> tuple[R, str, str, str]:
    expected = "a host that waits 20000 ns beyond the events, as for the other arms, give or take 30250 ns"
    return R.ESCAPED_WORK, f"process=1 point=batch=4 arm={arm}", expected, f"{wait} ns"


def waits(bundle: Bundle) -> memory.Said:
    return [item for item in times(bundle) if item[0] is R.ESCAPED_WORK]


def test_an_arm_for_which_the_host_waits_longer() -> None:
    assert waits(waiting({"cand": 30_000})) == []
    assert waits(waiting({"cand": 40_000})) == [standing_out("cand", 60_000)]
    # four arms are enough to say what is usual, three are not
    assert waits(waiting({"cand": 40_000}, left_out=("copy",))) == [standing_out("cand", 60_000)]
    assert waits(waiting({"cand": 40_000}, left_out=("copy", "same"))) == []
    # an arm whose work is mostly outside the events is said elsewhere, and the others are judged
    assert waits(waiting({"base": 300_000, "cand": 40_000})) == [standing_out("cand", 60_000)]


def test_a_host_that_waits_as_long_as_it_may() -> None:
    assert waits(waiting({"cand": 30_250}, spread=False)) == []
    assert waits(waiting({"cand": 30_251}, spread=False)) == [standing_out("cand", 50_251)]
    # 100 us more than the work itself are not yet another matter
    assert waits(waiting({"cand": 130_000}, spread=False)) == [standing_out("cand", 150_000)]
    assert waits(waiting({"cand": 130_001}, spread=False)) == []


def test_points_after_one_with_few_arms() -> None:
    def change(rows: Rows) -> None:
        rows[:] = [row for row in rows if row["arm"] in ("base", "cand") or row["point"] == "batch=4"]

    assert waits(with_samples(waiting({"slow": 40_000}), change)) == [standing_out("slow", 60_000)]


@pytest.mark.parametrize(("values", "found"), [(5, False), (6, True)])
def test_durations_of_another_process(values: int, found: bool) -> None:
    def change(rows: Rows) -> None:
        for process in (1, 3):
            for at, row in enumerate(cells(rows, process=process, arm="cand", point="mib=2")):
                row["duration_ns"] = 1_000_000 + at % values

    def more(rows: Rows) -> None:
        """So that there are twelve of them, and other arms with too few come before."""
        for process in range(5):
            own = cells(rows, process=process, arm="cand", point="mib=2")
            at = rows.index(own[-1])
            rows[at:at] = [dict(row) for row in own]
        change(rows)

    for edit, expected in ((change, []), (more, [R.ROWS_DUPLICATED] * found)):
        said = [item for item in times(with_samples(host(), edit)) if item[0] is R.ROWS_DUPLICATED]
        assert [item[0] for item in said] == expected
        if said:
            where = "process=3 point=mib=2 arm=cand"
            assert said[0][1:] == (where, "durations of its own", "16 durations, those of process=1")
    scripted = with_records(
        with_samples(host(), more), edited(1, environment=surroundings(records(host())[1], device="fake").environment)
    )
    assert [item for item in times(scripted) if item[0] is R.ROWS_DUPLICATED] == []


def records(bundle: Bundle) -> list[ProcessRecord]:
    return list(bundle.processes or ())


def test_a_copy_after_a_scripted_process() -> None:
    def change(rows: Rows) -> None:
        for process in (1, 3):
            own = cells(rows, process=process, arm="cand", point="mib=2")
            for at, row in enumerate(own):
                row["duration_ns"] = 1_000_000 + at
            rows[rows.index(own[-1]) : rows.index(own[-1])] = [dict(row) for row in own]

    bundle = with_records(with_samples(host(), change), lambda r: r.__setitem__(0, surroundings(r[0], device="fake")))
    assert [item[0] for item in times(bundle) if item[0] is R.ROWS_DUPLICATED] == [R.ROWS_DUPLICATED]


def test_processes_that_say_no_time() -> None:
    def change(found: list[ProcessRecord]) -> None:
        found[0] = replace(found[0], started=None)
        found[1] = replace(found[1], ended=None)
        assert found[3].started is not None
        found[3] = replace(found[3], started=found[3].started - timedelta(days=1))

    assert [item[:2] for item in times(with_records(host(), change))] == [
        (R.TIME_DISORDER, "process=3:started_utc"),
    ]


def test_host_times_longer_than_utc_says() -> None:
    def change(rows: Rows) -> None:
        last = cells(rows, process=4)[-1]
        last["host_end_ns"] += 200_000_000_000
        last["duration_ns"] += 200_000_000_000

    rows = samples(host())
    own = cells(rows, process=4)
    spent = (own[-1]["host_end_ns"] + 200_000_000_000 - own[0]["host_start_ns"]) / 1e9
    assert times(with_samples(host(), change)) == [
        (
            R.TIME_DISORDER,
            f"samples.parquet:host_end_ns[{len(rows) - 1}] process=4",
            "host times over at most 120 s",
            f"{spent:.0f} s",
        )
    ]


def test_times_a_minute_apart() -> None:
    """UTC may be set by a minute, and no more."""
    minute, second = timedelta(minutes=1), timedelta(seconds=1)
    ledger = host().ledger or ()
    first, last = records(host())[0], records(host())[-1]
    assert first.started is not None
    assert first.ended is not None
    assert last.ended is not None

    def found(at: int, **values: Any) -> list[str]:
        return [item[1] for item in times(with_records(host(), edited(at, **values)))]

    for more, said in ((0 * second, False), (second, True)):
        assert found(0, started=ledger[0].utc - minute - more) == ["process=0:started_utc"] * said
        assert found(4, ended=ledger[-1].utc + minute + more) == ["process=4:ended_utc"] * said
        assert found(0, started=ledger[0].utc, ended=ledger[0].utc - minute - more) == ["process=0:ended_utc"] * said


@pytest.mark.parametrize(("more", "said"), [(0, False), (1, True)])
def test_host_times_as_long_as_utc_says(more: int, said: bool) -> None:
    last = records(host())[-1]
    assert last.started is not None
    assert last.ended is not None
    spent = int((last.ended - last.started + timedelta(minutes=1)).total_seconds()) * 10**9 + more

    def change(rows: Rows) -> None:
        own = cells(rows, process=4)
        own[-1]["host_end_ns"] = own[0]["host_start_ns"] + spent
        own[-1]["duration_ns"] = own[-1]["host_end_ns"] - own[-1]["host_start_ns"]

    assert [item[0] for item in times(with_samples(host(), change))] == [R.TIME_DISORDER] * said


@pytest.mark.parametrize(("less", "said"), [(0, False), (1, True)])
def test_a_process_that_starts_where_the_last_one_ended(less: int, said: bool) -> None:
    def change(rows: Rows) -> None:
        before, own = cells(rows, process=2)[-1], cells(rows, process=3)
        away = own[0]["host_start_ns"] - before["host_end_ns"] + less
        for row in rows:
            if row["process"] >= 3:
                row.update(host_start_ns=row["host_start_ns"] - away, host_end_ns=row["host_end_ns"] - away)

    at = next(i for i, row in enumerate(samples(host())) if row["process"] == 3)
    found = [item[1] for item in times(with_samples(host(), change))]
    assert found == [f"samples.parquet:host_start_ns[{at}] process=3"] * said


def stepped(off: int, tick: tuple[int, ...] = (32,) * 5, step: int = 32, value: int = 5) -> Bundle:
    """Durations in steps, but for some rows; the first is a nanosecond long."""

    def change(rows: Rows) -> None:
        for at, row in enumerate(rows):
            row["duration_ns"] = row["duration_ns"] // step * step + (value if at < off else 0)

    bundle = with_samples(cuda(), change)
    return with_records(
        bundle,
        lambda r: r.__setitem__(slice(None), [replace(x, clock_tick_ns=t) for x, t in zip(r, tick, strict=True)]),
    )


def ticks(bundle: Bundle) -> memory.Said:
    return [item for item in times(bundle) if item[0] is R.TICK_MISMATCH]


def test_steps_of_the_clock() -> None:
    total = len(samples(cuda()))
    assert ticks(stepped(0)) == []
    half = total // 2
    assert ticks(stepped(half)) == []
    first = stepped(half - 1)
    got = f"{samples(first)[0]['duration_ns']} ns ({half - 1} of {total} rows of the bundle are off)"
    where = "samples.parquet:duration_ns[0] process=0"
    assert ticks(first) == [(R.TICK_MISMATCH, where, "a multiple of 32 ns, the clock's step", got)]


def test_a_duration_of_one_nanosecond_is_off_the_clock() -> None:
    bundle = with_samples(stepped(0), lambda rows: rows[3].update(duration_ns=1))
    assert [item[1] for item in ticks(bundle)] == ["samples.parquet:duration_ns[3] process=0"]
    assert ticks(with_samples(stepped(0), lambda rows: rows[3].update(duration_ns=-1))) == []


def test_a_process_whose_clock_counts_finely() -> None:
    bundle = stepped(0, tick=(1, 32, 32, 32, 32))

    def even(rows: Rows) -> None:
        for row in rows:
            row["duration_ns"] = row["duration_ns"] // 32 * 32 + (3 + row["sample"] if row["process"] == 0 else 0)
        cells(rows, process=4)[0]["duration_ns"] += 7

    at = next(i for i, row in enumerate(samples(cuda())) if row["process"] == 4)
    assert [item[1] for item in ticks(with_samples(bundle, even))] == [f"samples.parquet:duration_ns[{at}] process=4"]


def test_what_a_float_of_milliseconds_rounds() -> None:
    """At 2^22 ns a float32 is a nanosecond off at most, half of it its own rounding: 2^22 is 47127 steps of 89 ns and one more."""
    assert 2**22 % 89 == 1
    for duration, off in ((2**22, False), (2**22 + 1, True), (2**22 - 88, True), (67_415 * 89 - 1, False)):
        bundle = with_samples(
            stepped(0, tick=(89,) * 5, step=89), lambda rows, duration=duration: rows[3].update(duration_ns=duration)
        )  # type: ignore[misc]
        assert [item[1] for item in ticks(bundle)] == ["samples.parquet:duration_ns[3] process=0"] * off


def test_a_recorded_step_that_few_durations_have() -> None:
    """What most durations are multiples of is then the step, and one that is not is off."""
    bundle = stepped(0, tick=(1000,) * 5)
    assert ticks(bundle) == []
    odd = with_samples(bundle, lambda rows: rows[3].update(duration_ns=32 * 30_000 + 5))
    assert [item[1:3] for item in ticks(odd)] == [
        ("samples.parquet:duration_ns[3] process=0", "a multiple of 32 ns, the clock's step")
    ]


def test_a_recorded_step_that_most_durations_have() -> None:
    """It is the step, though three arms have durations on a third of it."""

    def change(rows: Rows) -> None:
        for arm in ("base", "cand", "same"):
            cells(rows, arm=arm, process=4)[0]["duration_ns"] += 32

    found = ticks(with_samples(stepped(0, tick=(96,) * 5, step=96), change))
    assert [item[2] for item in found] == ["a multiple of 96 ns, the clock's step"]


def test_the_least_step() -> None:
    for step, said in ((8, ["a multiple of 8 ns, the clock's step"]), (7, [])):
        bundle = stepped(0, tick=(step,) * 5, step=step)
        odd = with_samples(bundle, lambda rows, step=step: rows[3].update(duration_ns=step * 100_000 + 3))  # type: ignore[misc]
        assert [item[2] for item in ticks(odd)] == said


def test_only_durations_that_a_float_holds_exactly_say_the_step() -> None:
    """8 ms is the first that does not, and it is no multiple of 48 ns."""

    def change(rows: Rows) -> None:
        for arm in ("base", "cand", "same", "slow", "copy"):
            cells(rows, arm=arm)[0]["duration_ns"] = 8_000_000

    bundle = with_samples(stepped(0, tick=(1,) * 5, step=48), change)
    assert [item[2] for item in ticks(bundle)] == ["a multiple of 48 ns, the clock's step"]


# telemetry


def test_a_bundle_without_telemetry() -> None:
    def scripted(found: list[ProcessRecord]) -> None:
        found[:] = [surroundings(record, device="fake") for record in found]

    not_applicable: list[NotApplicable] = []
    empty = with_records(with_rows(cuda(), "telemetry", lambda rows: rows.clear()), scripted)
    frame = empty.frame("telemetry")
    assert frame is not None
    assert list(check_telemetry(seen(empty), frame, not_applicable)) == []
    assert [(item.check, item.why) for item in not_applicable] == [("clocks", "no telemetry")]
    other_clock = with_protocol(seen(with_rows(cuda(), "telemetry", lambda rows: rows.clear())), clock="host")
    assert list(check_telemetry(other_clock, frame, not_applicable)) == []


def cut_short(bundle: Bundle, process: int) -> tuple[Bundle, str]:
    """The process failed before the last sample of its last point; gives that point."""
    rows = samples(bundle)
    last = max(i for i, row in enumerate(rows) if row["process"] == process)
    short = with_samples(bundle, lambda found: found.__delitem__(last))
    return with_records(short, edited(process, status="failed")), rows[last]["point"]


def test_telemetry_of_a_point_that_was_not_completed() -> None:
    bundle, point = cut_short(cuda(), 3)
    assert telemetry(bundle) == []

    def drop(rows: Rows) -> None:
        rows[:] = [row for row in rows if (row["process"], row["point"]) != (3, point)]

    assert telemetry(with_rows(bundle, "telemetry", drop)) == []

    def drop_all(rows: Rows) -> None:
        rows[:] = [row for row in rows if row["process"] != 3]

    (found,) = telemetry(with_rows(bundle, "telemetry", drop_all))
    expected = "20 rows, before and after every timed block of every arm"
    assert (found[0], found[2], found[3]) == (R.ROWS_MISSING, expected, "20 rows missing")


def test_samples_of_unknown_points_arms_and_blocks_have_no_telemetry() -> None:
    at = next(i for i, row in enumerate(samples(cuda())) if row["block"] == 1)
    for change in ({"arm": "nobody"}, {"point": "nowhere"}, {"block": 7}, {"block": -5}):
        bundle = with_samples(cuda(), lambda rows, change=change: rows.append(rows[at] | change))  # type: ignore[misc]
        assert telemetry(bundle) == [], change


def test_samples_of_the_block_after_the_last_have_no_telemetry() -> None:
    rows = samples(cuda())
    blocks = 1 + max(row["block"] for row in rows)
    at = next(i for i, row in enumerate(rows) if (row["point"], row["block"]) == ("batch=4", blocks - 1))
    assert telemetry(with_samples(cuda(), lambda found: found.insert(at, found[at] | {"block": blocks}))) == []


def test_telemetry_of_the_block_after_the_last() -> None:
    frame = cuda().frame("telemetry")
    assert frame is not None
    rows = memory.rows_of(frame)
    blocks = 1 + max(row["block"] for row in rows)
    at = next(i for i, row in enumerate(rows) if (row["point"], row["block"]) == ("batch=1", blocks - 1))
    where, got = f"telemetry.parquet process={rows[at]['process']}", "a block that was not planned (1 rows)"
    assert telemetry(with_rows(cuda(), "telemetry", lambda found: found.insert(at, found[at] | {"block": blocks}))) == [
        (R.ORDER_NOT_AS_PLANNED, where, "rows of what was timed", got)
    ]


def test_telemetry_of_the_first_cell_where_it_was_not_timed() -> None:
    def drop(rows: Rows) -> None:
        rows[:] = [row for row in rows if (row["process"], row["point"], row["arm"]) != (2, "batch=1", "base")]

    bundle = with_records(with_samples(cuda(), drop), edited(2, unsupported=(("batch=1", "base"),)))

    def keep_one(rows: Rows) -> None:
        rows[:] = [
            row
            for row in rows
            if (row["process"], row["point"], row["arm"]) != (2, "batch=1", "base")
            or (row["block"], row["edge"]) == (0, "before")
        ]

    assert telemetry(with_rows(bundle, "telemetry", keep_one)) == [
        (
            R.ORDER_NOT_AS_PLANNED,
            "telemetry.parquet process=2",
            "rows of what was timed",
            "point=batch=1 block=0 arm=base edge=before (1 rows)",
        )
    ]


def test_only_timed_blocks_have_telemetry() -> None:
    def no_block(rows: Rows) -> None:
        rows[:] = [row for row in rows if row["block"] != 1]

    assert [item[0] for item in telemetry(with_rows(cuda(), "telemetry", no_block))] == [R.ROWS_MISSING] * 5

    # with its only block cut off, an arm has warm-up rows alone
    def warm(rows: Rows) -> None:
        rows[:] = [
            row for row in rows if row["warmup"] or (row["process"], row["point"], row["arm"]) != (2, "batch=1", "copy")
        ]

    bundle = with_records(with_samples(cuda(), warm), edited(2, status="failed"))
    (found,) = telemetry(bundle)
    assert found[0] is R.ORDER_NOT_AS_PLANNED
    assert found[3].endswith("(4 rows)")


# physics


def test_the_shortest_duration_is_positive() -> None:
    def view(duration: int) -> View:
        return seen(with_samples(cuda(), lambda rows: rows[60].update(duration_ns=duration)))

    assert physics(view(1), R.NON_POSITIVE_DURATION) == []
    where = "samples.parquet:duration_ns[60] process=0"
    assert physics(view(0), R.NON_POSITIVE_DURATION) == [
        (R.NON_POSITIVE_DURATION, where, "more than 0 ns", "0 ns (1 row)")
    ]


def dosed(rows: Rows, **wanted: Any) -> Rows:
    return cells(rows, arm="slow", warmup=False, **wanted)


def test_injections() -> None:
    def one(rows: Rows) -> None:
        dosed(rows)[0]["injected_ns"] = 1

    at = samples(cuda()).index(dosed(samples(cuda()))[0])
    point = samples(cuda())[at]["point"]
    dose = samples(cuda())[at]["injected_ns"]
    where = f"samples.parquet:injected_ns[{at}] process=0"
    wanted = f"{dose} ns, from 2 warm-up samples of the baseline"
    assert physics(seen(with_samples(cuda(), one))) == [
        (R.INJECTION_MISMATCH, f"{where} point={point}", wanted, "1 ns (1 row)")
    ]

    def two(rows: Rows) -> None:
        dosed(rows)[0]["injected_ns"], dosed(rows)[1]["injected_ns"] = dose + 1, dose + 2
        dosed(rows)[2]["injected_ns"] = dose - 3

    second = samples(cuda()).index(dosed(samples(cuda()))[1])
    assert physics(seen(with_samples(cuda(), two))) == [
        (
            R.INJECTION_MISMATCH,
            f"samples.parquet:injected_ns[{second}] process=0 point={point}",
            wanted,
            f"{dose + 2} ns (2 rows)",
        )
    ]

    def none(rows: Rows) -> None:
        dosed(rows)[0]["injected_ns"] = 0
        cells(rows, arm="base")[0]["injected_ns"] = 1

    found = physics(seen(with_samples(cuda(), none)))
    assert [item[2:] for item in found] == [("0 ns", "1 ns (2 rows)")]
    unknown = seen(with_samples(cuda(), lambda rows: cells(rows, arm="copy", warmup=False)[0].update(arm="nobody")))
    assert physics(unknown, R.INJECTION_MISMATCH) == []


def test_doses_without_a_warmup_of_the_baseline() -> None:
    def view(point: str) -> View:
        def change(rows: Rows) -> None:
            gone = [row for row in rows if (row["arm"], row["warmup"], row["point"]) == ("base", True, point)]
            dosed(rows, process=0, point="batch=1")[0]["injected_ns"] = 1
            dosed(rows, process=0, point="batch=4")[0]["injected_ns"] = 2
            rows[:] = [row for row in rows if row not in gone]

        return seen(with_samples(cuda(), change))

    for point, left in (("batch=1", "batch=4"), ("batch=4", "batch=1")):
        found = physics(view(point), R.INJECTION_MISMATCH)
        assert [item[1].rpartition(" ")[2] for item in found] == [f"point={left}"]


def test_a_device_that_is_busy_after_the_stop_event() -> None:
    def view(post: int) -> View:
        def change(rows: Rows) -> None:
            now = 0
            for row in rows:
                row["duration_ns"] = 2_000_000
                row["host_start_ns"], row["host_end_ns"] = now, now + 2_010_000
                row["post_sync_ns"] = post
                now = row["host_end_ns"] + 1_000_000

        return seen(with_samples(cuda(), change))

    assert physics(view(100_000), R.ESCAPED_WORK) == []
    found = physics(view(100_001), R.ESCAPED_WORK)
    assert len(found) == 50
    assert found[0][2:] == ("a median post_sync of at most 100000 ns", "100001 ns")


def synchronised(cand: int, others: int, quick: int, duration: int = 500_000) -> Bundle:
    """A synchronise takes as long behind every arm but two: the baseline, and the candidate at batch=4 in process 1."""

    def change(rows: Rows) -> None:
        now = 0
        for row in rows:
            mine = (row["process"], row["point"], row["arm"]) == (1, "batch=4", "cand")
            row["duration_ns"] = duration
            row["host_start_ns"], row["host_end_ns"] = now, now + duration + 10_000
            row["post_sync_ns"] = cand if mine else quick if row["arm"] == "base" else others
            now = row["host_end_ns"] + 1_000_000

    return with_samples(cuda(), change)


@pytest.mark.parametrize(
    ("quick", "others", "own", "limit"),
    [
        (20_000, 20_000, 50_000, None),
        (20_000, 20_000, 50_001, 50_000),
        (26_000, 26_000, 52_000, None),
        (26_000, 26_000, 52_001, 52_000),
        (49_000, 70_000, 98_000, None),
        (49_000, 70_000, 98_001, 98_000),
        (70_000, 70_000, 100_000, None),
        (70_000, 70_000, 100_001, 100_000),
    ],
)
def test_a_host_that_is_slow_for_all_arms(quick: int, others: int, own: int, limit: int | None) -> None:
    """A synchronise that takes long behind every arm is the host's; up to twice what it takes behind the quickest arm, of which 50 us count."""
    found = physics(seen(synchronised(own, others, quick)), R.ESCAPED_WORK)
    where = "process=1 point=batch=4 arm=cand"
    said = [(R.ESCAPED_WORK, where, f"a median post_sync of at most {limit} ns", f"{own} ns")]
    assert found == (said if limit else [])


@pytest.mark.parametrize(("duration", "bad"), [(280_000, False), (279_996, True)])
def test_a_slow_host_does_not_explain_what_is_as_long_as_the_sample(duration: int, bad: bool) -> None:
    """Events that were recorded on another stream leave all arms short, and all of their work to the synchronise."""
    found = physics(seen(synchronised(70_000, 70_000, 70_000, duration)), R.ESCAPED_WORK)
    assert {item[2] for item in found} == ({"a median post_sync of at most 69999 ns"} if bad else set())


@pytest.mark.parametrize(("own", "bad"), [(42_500, False), (42_501, True)])
def test_an_arm_for_which_the_device_is_busy_longer(own: int, bad: bool) -> None:
    """As for the host: 30 us and half a percent of its duration beyond the other arms, though 50 us are less than a synchronise may take."""
    where = "process=1 point=batch=4 arm=cand"
    expected = (
        "a device that is idle 10000 ns after the stop event (post_sync), as for the other arms, give or take 32500 ns"
    )
    said = [(R.ESCAPED_WORK, where, expected, f"{own} ns")]
    assert waits(synchronised(own, 10_000, 10_000)) == (said if bad else [])


@pytest.mark.parametrize(("own", "bad"), [(72_500, False), (72_501, True)])
def test_an_arm_for_which_the_device_is_busy_now_and_then(own: int, bad: bool) -> None:
    """Three times its own scatter, of 10 us, is beyond what is said above."""

    def scattered(rows: Rows) -> None:
        for at, row in enumerate(cells(rows, process=1, point="batch=4", arm="cand")):
            row["post_sync_ns"] = own + (10_000 if at % 2 else -10_000)

    assert len(waits(with_samples(synchronised(own, 10_000, 10_000), scattered))) == bad


def test_what_is_more_than_a_twentieth_of_a_sample_is_said_once() -> None:
    bundle = synchronised(2_000_000, 20_000, 20_000, 20_000_000)
    assert waits(bundle) == []
    assert len(physics(seen(bundle), R.ESCAPED_WORK)) == 1


def test_the_end_of_the_work_outside_long_samples() -> None:
    """Four percent of a long sample after its stop event: less than 5 %, and far more than behind the other arms."""
    (found,) = physics(seen(synchronised(800_000, 20_000, 20_000, 20_000_000)), R.ESCAPED_WORK)
    assert found[1] == "process=1 point=batch=4 arm=cand"


@pytest.mark.parametrize(
    ("duration", "wall", "said"),
    [
        (2_000_000, 2_000_000, None),
        (2_000_001, 2_000_000, ("events of at most 12000000 ns of host time", "12000006 ns")),
        (1_000_000, 2_100_000, None),  # half of what the host waited, but for 100 us a sample
        (
            999_999,
            2_100_000,
            ("events of at least 6000000 ns (12600000 ns of host time)", "5999994 ns, 47.6 % of host time"),
        ),
    ],
)
def test_events_beside_the_time_of_the_host(duration: int, wall: int, said: tuple[str, str] | None) -> None:
    """Of the timed samples of an arm together; what its warm-ups say does not count."""

    def change(rows: Rows) -> None:
        for row in cells(rows, process=1, point="batch=4", arm="cand"):
            row["duration_ns"] = 10**9 if row["warmup"] else duration
            row["host_end_ns"] = row["host_start_ns"] + wall

    found = physics(seen(with_samples(cuda(), change)), R.ESCAPED_WORK)
    assert found == ([(R.ESCAPED_WORK, "process=1 point=batch=4 arm=cand", *said)] if said else [])


def floor(view: View) -> memory.Said:
    """What is said of the candidate at batch=1 in process 0, whose samples take 4 x 393216 bytes at 1.572864 bytes a nanosecond: 1 ms."""
    return physics(with_protocol(view, peak_gb_per_s=1.572864), R.BELOW_FLOOR)


def timed_at(durations: list[int]) -> View:
    def change(rows: Rows) -> None:
        own = cells(rows, process=0, point="batch=1", arm="cand", warmup=False)
        assert len(own) == len(durations) == 6
        for row, duration in zip(own, durations, strict=True):
            row["duration_ns"] = duration
        for row in rows:
            if row["arm"] != "cand" or row["process"] != 0 or row["point"] != "batch=1":
                row["duration_ns"] = 10**9

    return seen(with_samples(cuda(), change))


def test_the_floor() -> None:
    where = "process=0 point=batch=1 arm=cand"
    view = timed_at([980_000] * 6)
    assert view.layer["batch=1"].unique == 393_216
    assert floor(view) == []
    assert floor(timed_at([970_873] * 6)) == [
        (R.BELOW_FLOOR, where, "a median of at least 970874 ns at 1.57286 GB/s", "a median of 970873 ns")
    ]
    # on the limit of a median: the bytes take 1030000 ns
    peak = 4 * 393_216 / 1_030_000
    assert 4 * 393_216 / peak / 1.03 == 10**6
    assert physics(with_protocol(timed_at([10**6] * 6), peak_gb_per_s=peak), R.BELOW_FLOOR) == []
    assert floor(timed_at([900_000] + [10**6] * 5)) == []
    assert floor(timed_at([899_999, 500_000] + [10**6] * 4)) == [
        (
            R.BELOW_FLOOR,
            where,
            "at least 900000 ns at 1.57286 GB/s",
            "500000 ns in the shortest of 2 rows, 3 GB/s, 2.00 times the peak",
        )
    ]
    (found,) = floor(timed_at([1] + [10**6] * 5))
    assert found[3] == "1 ns in the shortest of 1 rows, 1572864 GB/s, 1000000.00 times the peak"
    (found,) = floor(timed_at([0] + [10**6] * 5))
    assert found[3] == "0 ns in the shortest of 1 rows"


def test_rotated_weights_and_the_cache() -> None:
    def larger(size: int) -> View:
        bundle = with_records(cuda(), lambda r: r.__setitem__(slice(None), [replace(x, l2_bytes=size) for x in r]))
        return seen(bundle)

    rotated = 4 * 393_216
    assert physics(larger(rotated // 2), R.CACHE_NOT_COLD) == []
    found = physics(larger(rotated // 2 + 1), R.CACHE_NOT_COLD)
    assert found[0] == (
        R.CACHE_NOT_COLD,
        "process=0 point=batch=1 arm=base",
        f"at least 2 x {rotated // 2 + 1} bytes of rotated weights",
        f"{rotated} bytes",
    )
    assert [item[1] for item in found] == [f"process={process} point=batch=1 arm=base" for process in range(5)]
    assert physics(with_protocol(larger(10**12), min_l2_multiple=None), R.CACHE_NOT_COLD) == []


def test_only_arms_with_the_whole_layer_rotate_it() -> None:
    view = seen(cuda())
    few = tuple(replace(arm, calls=1) if arm.role == "ceiling" else arm for arm in view.protocol.arms)
    once = with_protocol(view, arms=few, min_l2_multiple=6.0)
    assert physics(once, R.CACHE_NOT_COLD) == []
    # whichever arm is listed first
    bundle = cuda()
    read = bundle.protocol_read
    assert read is not None
    assert read.protocol is not None
    order = tuple(sorted(read.protocol.arms, key=lambda arm: arm.role != "ceiling"))
    turned = replace(read, protocol=replace(read.protocol, arms=order, min_l2_multiple=60.0))
    found = physics(seen(replace(bundle, protocol_read=turned)), R.CACHE_NOT_COLD)
    assert found[0][1] == "process=0 point=batch=1 arm=base"


def test_copies_that_a_process_does_not_state() -> None:
    def change(found: list[ProcessRecord]) -> None:
        found[0] = surroundings(found[0], text="{}")
        found[2] = replace(found[2], copies=(("batch=4", 4),))

    assert physics(seen(with_records(cuda(), change)), R.CACHE_NOT_COLD) == [
        (R.CACHE_NOT_COLD, "process=2 point=batch=1 arm=base", "at least 2 x 65536 bytes of rotated weights", "0 bytes")
    ]


def test_flushes() -> None:
    def view(flush: int, l2_bytes: int) -> View:
        bundle = with_records(cuda(), lambda r: r.__setitem__(slice(None), [replace(x, l2_bytes=l2_bytes) for x in r]))
        frame = bundle.frame("samples")
        assert frame is not None
        flushes = np.full(frame.rows, 10**9, dtype=np.int64)
        flushes[[7, 9]] = flush
        read = replace(bundle.tables["samples"], frame=replace(frame, numbers={**frame.numbers, "flush_ns": flushes}))
        return with_protocol(seen(replace(bundle, tables={**bundle.tables, "samples": read})), cache="cold-flush")

    size = 4_800_000
    where = "samples.parquet:flush_ns[7] process=0"
    expected = f"at least 1800 ns for twice {size} bytes at 4800 GB/s"
    assert physics(view(1800, size)) == []
    assert physics(view(1799, size)) == [(R.CACHE_NOT_COLD, where, expected, "1799 ns (2 rows)")]
    assert physics(view(1, 1)) == []
    assert physics(view(0, 1)) == [
        (R.CACHE_NOT_COLD, where, "at least 0 ns for twice 1 bytes at 4800 GB/s", "0 ns (2 rows)")
    ]
    assert physics(with_protocol(view(0, 1), peak_gb_per_s=None), R.CACHE_NOT_COLD) == []
    # no flush takes no time at all, whatever the cache
    nothing = (R.CACHE_NOT_COLD, where, "at least 0 ns for twice 0 bytes at 4800 GB/s", "0 ns (2 rows)")
    assert nothing in physics(view(0, 0))
    assert [item for item in physics(view(1, 0)) if "flush_ns" in item[1]] == []


def test_the_least_cache_is_asked_where_it_matters() -> None:
    none = seen(with_records(cuda(), lambda r: r.__setitem__(slice(None), [replace(x, l2_bytes=0) for x in r])))
    for cache, asked in (("cold-rotate", True), ("cold-flush", True), ("warm", False)):
        found = physics(with_protocol(none, cache=cache), R.CACHE_NOT_COLD)
        assert [item[1] for item in found] == ["process=0:l2_bytes"] * asked
    scripted = with_records(
        none.bundle, lambda r: r.__setitem__(slice(None), [surroundings(x, device="fake") for x in r])
    )
    assert physics(seen(scripted), R.CACHE_NOT_COLD) == []


@pytest.mark.parametrize(
    ("gpu", "mig", "least"),
    [
        ("NVIDIA H200", False, 50 << 20),
        ("NVIDIA A100-SXM4-80GB", False, 40 << 20),
        ("NVIDIA H200", True, 1),
        ("another", False, 1),
    ],
)
def test_the_least_cache_of_a_gpu(gpu: str, mig: bool, least: int) -> None:
    for size, said in ((least, []), (least - 1, [f"a cache of at least {least} bytes for {gpu}"])):

        def change(found: list[ProcessRecord], size: int = size) -> None:
            found[:] = [surroundings(replace(x, l2_bytes=size), gpu=gpu, mig=mig) for x in found]

        found = physics(seen(with_records(cuda(), change)), R.CACHE_NOT_COLD)
        assert [item[2] for item in found if item[1].endswith(":l2_bytes")] == said


def test_readings_that_never_change() -> None:
    alike = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "temperature_c": 40, "power_w": 300.0}

    def frozen(rows: Rows) -> None:
        for row in rows:
            row.update(alike)

    def found(change: Callable[[Rows], object], bundle: Bundle) -> memory.Said:
        frame = with_rows(with_rows(bundle, "telemetry", frozen), "telemetry", change)
        return physics(seen(frame), R.TELEMETRY_FROZEN)

    got = "200 rows of sm_clock_mhz 1980, memory_clock_mhz 3201, temperature_c 40, power_w 300.0"
    expected = "readings of which two differ in clock, temperature or power"
    assert found(lambda rows: None, cuda()) == [(R.TELEMETRY_FROZEN, "telemetry.parquet", expected, got)]
    assert found(lambda rows: rows.pop(), cuda()) == []  # too few to say
    for name, value in alike.items():
        assert found(lambda rows, name=name, value=value: rows[7].update({name: value + 1}), cuda()) == []  # type: ignore[misc]
    scripted = with_records(cuda(), lambda r: r.__setitem__(slice(None), [surroundings(x, device="fake") for x in r]))
    assert found(lambda rows: None, scripted) == []
    assert physics(seen(memory.without(cuda(), "telemetry")), R.TELEMETRY_FROZEN) == []


def test_tolerances_of_what_was_timed() -> None:
    frame = cuda().frame("correctness")
    assert frame is not None
    rows = memory.rows_of(frame)
    at = next(i for i, row in enumerate(rows) if (row["process"], row["arm"]) == (2, "cand"))

    def wrong(found: Rows) -> None:
        found[at]["rel_error"] = 0.5
        found[0].update(arm="cand", rel_error=0.5, process=9)  # of no process: said elsewhere
        found[1].update(truth="original", rel_error=0.5)  # held to no tolerance

    row = rows[at]
    assert physics(seen(with_rows(cuda(), "correctness", wrong))) == [
        (
            R.CORRECTNESS_FAILED,
            f"correctness.parquet[{at}] process=2 point={row['point']} arm=cand",
            "min_cosine >= 0.999, rel_error <= 0.01",
            "min_cosine 0.9999995, rel_error 0.5",
        )
    ]
    limit = {"min_cosine": 0.999, "rel_error": 0.01}
    assert physics(seen(with_rows(cuda(), "correctness", lambda found: found[at].update(limit)))) == []
