"""The layer of trial C01, as inputs of an arm, and its right output."""

import numpy as np
import pytest
import torch

from benchkit.fixture.layer import MoeInputs, MoeWeights
from benchkit.fixture.routing import Routing


@pytest.fixture
def c01():
    """I = 4, gate-up accumulator [1, 2, 3, 4, 10, 20, 30, 40]: gate rows first, then up rows."""
    w13 = torch.zeros((1, 8, 4))
    w13[0, :, 0] = torch.tensor([1.0, 2, 3, 4, 10, 20, 30, 40])
    weights = MoeWeights(w13=(w13,), w2=(torch.eye(4).unsqueeze(0),), seed=0)
    ids = np.zeros((1, 1), dtype=np.int32)
    routing = Routing(topk_ids=ids, topk_weights=np.ones((1, 1), dtype=np.float32))
    return MoeInputs(
        weights=weights,
        x=torch.tensor([[1.0, 0, 0, 0]]),
        topk_ids=torch.from_numpy(ids),
        topk_weights=torch.ones((1, 1)),
        routing=routing,
    )


@pytest.fixture
def c01_right():
    """silu(gate) * up of that accumulator."""
    return [7.310586, 35.231883, 85.731671, 157.122206]
