"""The fp64 truth of a MoE layer, and how far an output is from it.

Rules:
1. ``stored``: from the stored weights, mxfp8 and AWQ decoded, each widened to fp64, with no rounding in between. ``original``: from the weights before
   quantisation. Both start from x as the arms receive it.
2. For fp32 and bf16 checkpoints the stored weights are the original ones: both truths are the same array.
3. A value that is not finite never passes: the cosine is then -1 and both errors are infinite.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from benchkit.errors import DataError
from benchkit.fixture.layer import QUANTISED, MoeInputs, MoeWeights, original_expert, stored_expert
from benchkit.units import FloatArray

TRUTHS = ("stored", "original")
_truths: WeakKeyDictionary[MoeInputs, dict[str, FloatArray]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Distance of an output from its truth; the fields are columns of correctness.parquet.

    Parameters
    ----------
    min_cosine:
        The smallest cosine over tokens (rows), in [-1, 1]; two rows of zeros have 1, a row of zeros beside another 0.
    max_abs_error:
        The largest absolute difference; infinite where the output is not finite.
    rel_error:
        ||output - truth|| / ||truth|| over the whole array; infinite where the output is not finite or only the truth is 0.
    """

    min_cosine: float
    max_abs_error: float
    rel_error: float


NOT_FINITE = Metrics(min_cosine=-1.0, max_abs_error=float("inf"), rel_error=float("inf"))


def moe_truth(inputs: MoeInputs, truth: str = "stored") -> FloatArray:
    """y[t] = sum over j of w_j * W2_e @ (silu(W1_e x_t) * (W3_e x_t)) in fp64, [tokens, hidden]; once per inputs.

    Only routed experts are widened, on the device where the weights are. Raises DataError on an unknown truth.
    """
    if truth not in TRUTHS:
        raise DataError(f'truth: expected one of {", ".join(TRUTHS)}, found "{truth}"')
    kind = truth if inputs.weights.weight_format in QUANTISED else "stored"
    known = _truths.setdefault(inputs, {})
    if kind not in known:
        result = _moe_fp64(inputs, kind)
        result.setflags(write=False)
        known[kind] = result
    return known[kind]


def expert_weights(weights: MoeWeights, expert: int, truth: str) -> tuple[torch.Tensor, torch.Tensor]:
    """w13 [2 * I, H] and w2 [H, I] of one expert in fp64, as a truth has them."""
    quantised = weights.weight_format in QUANTISED
    return (original_expert if truth == "original" and quantised else stored_expert)(weights, expert)


def _moe_fp64(inputs: MoeInputs, truth: str) -> FloatArray:
    x = inputs.x.double()
    weights = inputs.topk_weights.double()
    output = torch.zeros_like(x)
    for expert in torch.unique(inputs.topk_ids).tolist():
        tokens, slots = torch.nonzero(inputs.topk_ids == expert, as_tuple=True)
        w13, w2 = expert_weights(inputs.weights, expert, truth)
        gate, up = (x[tokens] @ w13.t()).chunk(2, dim=1)
        down = (gate * torch.sigmoid(gate) * up) @ w2.t()
        output[tokens] += weights[tokens, slots].unsqueeze(1) * down
    return np.array(output.cpu().numpy(), dtype=np.float64)


def compare(output: FloatArray, truth: FloatArray) -> Metrics:
    """Metrics of ``output`` against ``truth`` of the same shape; rows are tokens, an array of one axis is one row.

    Raises ValueError where the shapes differ or the truth is not finite: that is a bug of ours, not of the arm.
    """
    if output.shape != truth.shape:
        raise ValueError(f"expected an output of shape {truth.shape}, found {output.shape}")
    if not truth.size or not np.isfinite(truth).all():
        raise ValueError("expected a truth of finite values")
    if not np.isfinite(output).all():
        return NOT_FINITE
    difference = np.abs(output - truth)
    largest = float(np.max(np.abs(truth)))
    if largest == 0.0:
        rel_error = 0.0 if not difference.any() else float("inf")
    else:
        rel_error = float(np.linalg.norm(difference / largest) / np.linalg.norm(truth / largest))
    return Metrics(
        min_cosine=float(np.min(_cosines(_rows(output), _rows(truth)))),
        max_abs_error=float(np.max(difference)),
        rel_error=rel_error,
    )


def _rows(values: FloatArray) -> FloatArray:
    return values.reshape(1 if values.ndim < 2 else values.shape[0], -1)


def _cosines(left: FloatArray, right: FloatArray) -> FloatArray:
    """Cosine of each pair of rows; every row is scaled by its largest value first, so that no square overflows."""
    units = []
    for rows in (left, right):
        largest = np.max(np.abs(rows), axis=1, keepdims=True)
        scaled = rows / np.where(largest == 0.0, 1.0, largest)
        length = np.linalg.norm(scaled, axis=1, keepdims=True)
        units.append(scaled / np.where(length == 0.0, 1.0, length))
    zero = ~left.any(axis=1) & ~right.any(axis=1)
    cosines = np.clip(np.sum(units[0] * units[1], axis=1), -1.0, 1.0)
    return np.asarray(np.where(zero, 1.0, cosines), dtype=np.float64)
