"""The host device: what lies inside the boundary, the order of copies, the cache that the system reports."""

import gc
import time

import pytest

from benchkit.device.host import HostDevice, clock_tick_ns, last_level_cache_bytes


def timer(call, *, calls=1, copies=1, with_delay=False):
    return HostDevice(clock_tick_ns=1, l2_bytes=0).timer(call, calls=calls, copies=copies, with_delay=with_delay)


def test_calls_rotate_over_copies():
    seen = []
    rotating = timer(seen.append, calls=7, copies=3)
    rotating.sample(injected_ns=0)
    assert seen == [0, 1, 2, 0, 1, 2, 0]
    rotating.run()
    assert seen[7:] == [0, 1, 2, 0, 1, 2, 0]


def test_a_delay_is_inside_the_boundary():
    sample = timer(lambda copy: None, with_delay=True).sample(injected_ns=2_000_000)
    assert sample.duration_ns >= 2_000_000
    assert sample.duration_ns == sample.host_end_ns - sample.host_start_ns
    assert (sample.post_sync_ns, sample.blocked) == (0, False)
    short = min(timer(lambda copy: None, with_delay=True).sample(injected_ns=0).duration_ns for _ in range(20))
    assert 0 <= short < 1_000_000


def test_the_delay_comes_after_the_calls():
    ends = []
    sample = timer(lambda copy: ends.append(time.perf_counter_ns()), calls=2, with_delay=True).sample(
        injected_ns=500_000
    )
    assert sample.host_start_ns <= ends[0] <= ends[1] <= sample.host_end_ns - 500_000


def test_a_call_takes_as_long_as_it_takes():
    sample = timer(lambda copy: time.sleep(0.003), calls=2).sample(injected_ns=0)
    assert sample.duration_ns >= 6_000_000
    before, after = time.perf_counter_ns(), timer(lambda copy: None).sample(injected_ns=0)
    assert before <= after.host_start_ns <= after.host_end_ns <= time.perf_counter_ns()


def test_no_collection_during_a_sample():
    states = []
    assert gc.isenabled()
    timer(lambda copy: states.append(gc.isenabled()), calls=2).sample(injected_ns=0)
    assert states == [False, False]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        timer(lambda copy: copy / 0).sample(injected_ns=0)
    assert gc.isenabled()


def test_a_delay_needs_a_timer_with_delay():
    with pytest.raises(ValueError, match="expected a delay of 0 ns"):
        timer(lambda copy: None).sample(injected_ns=1)
    with pytest.raises(ValueError, match="found -1"):
        timer(lambda copy: None, with_delay=True).sample(injected_ns=-1)
    with pytest.raises(ValueError, match="at least 1 call and 1 copy"):
        timer(lambda copy: None, calls=0)


def test_the_device():
    device = HostDevice()
    assert device.name == "host"
    assert 1 <= device.clock_tick_ns < 1_000_000
    assert device.l2_bytes >= 0
    assert device.reading() is None
    assert device.kernels(lambda copy: None) == ()
    assert device.describe() == {
        "device": "host",
        "driver": None,
        "cuda_runtime": None,
        "cuda_driver_max": None,
        "gpu": None,
    }
    device.synchronize()


def test_tick_is_the_smallest_step(monkeypatch):
    steps = iter([0, 0, 70, 100, 100, 130] * 10_000)
    reads = [0]

    def fake():
        reads[0] += next(steps)
        return reads[0]

    monkeypatch.setattr(time, "perf_counter_ns", fake)
    assert clock_tick_ns() == 70
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 5)
    assert clock_tick_ns() == 1


def test_the_largest_level_that_holds_data(tmp_path):
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"), ("3", "Unified", "307200K")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert last_level_cache_bytes(tmp_path) == 300 << 20
    (tmp_path / "index3" / "size").write_text("?\n")
    assert last_level_cache_bytes(tmp_path) == 2 << 20


def test_no_report_is_zero(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert last_level_cache_bytes(tmp_path) == 0
