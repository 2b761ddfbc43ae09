"""Host ceilings: right answers, every copy, poison, and a lazy kernel that is seen."""

import numpy as np
import pytest
import torch

from benchkit.fixture.arrays import make_arrays
from benchkit.kernels import registry
from benchkit.kernels.contract import Support
from benchkit.kernels.reference import compare

ARMS = [("cpu_copy", {"threads": 1}), ("cpu_read", {"segments": 8, "threads": 1})]


@pytest.mark.parametrize(("kernel", "params"), ARMS)
def test_right_on_every_copy(kernel, params):
    arm = registry.prepare(kernel, make_arrays(seed=1, bytes=1 << 20, copies=3), params)
    outputs = set()
    for copy in (0, 1, 2, 0):
        arm.poison()
        arm.call(copy)
        metrics = compare(arm.output(), arm.expected("stored"))
        assert metrics.min_cosine >= 0.999999
        assert metrics.rel_error < 1e-6
        outputs.add(arm.output_bytes())
    assert len(outputs) == 1


@pytest.mark.parametrize(("kernel", "params"), ARMS)
def test_a_call_that_did_not_happen_is_seen(kernel, params):
    with torch.inference_mode():
        arm = registry.prepare(kernel, make_arrays(seed=1, bytes=4096, copies=1), params)
    arm.call(0)
    arm.poison()
    assert compare(arm.output(), arm.expected("stored")).rel_error >= 1.0


def test_one_wrong_element_of_a_copy_is_seen():
    inputs = make_arrays(seed=1, bytes=1 << 16, copies=2)
    arm = registry.prepare("cpu_copy", inputs, {"threads": 1})
    arm.call(1)
    assert arm.output().tolist() == [1.0] * 64
    inputs.targets[1][300] += 0.25
    assert arm.output()[1] == 255 / 256
    assert compare(arm.output(), arm.expected("stored")).rel_error > 1e-5
    assert arm.scratch_bytes == 0


def test_read_sums_its_segments():
    inputs = make_arrays(seed=1, bytes=1 << 16, copies=1)
    arm = registry.prepare("cpu_read", inputs, {"segments": 4, "threads": 1})
    arm.call(0)
    expected = inputs.sources[0].numpy().astype(np.float64).reshape(4, -1).sum(axis=1)
    np.testing.assert_allclose(arm.expected("stored"), expected, rtol=1e-14)
    np.testing.assert_allclose(arm.output(), expected, rtol=1e-6)
    assert arm.scratch_bytes == 4 * 4096
    assert torch.equal(inputs.targets[0], -inputs.sources[0])


def test_segments_must_divide():
    answer = registry.prepare("cpu_read", make_arrays(seed=1, bytes=4000, copies=1), {"segments": 3, "threads": 1})
    assert isinstance(answer, Support)
    assert answer.reason == "segments: expected a divisor of 1000 elements, found 3"
