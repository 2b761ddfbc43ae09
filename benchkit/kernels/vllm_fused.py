"""The fused MoE layer of the installed vLLM (its Triton ``fused_experts``), as an arm: what a serving engine of today runs in bf16.

Rules:
1. vLLM's own Python runs here, unlike in ``vllm_ops``: tiles come from the tables that it ships for the device, scratch from its own workspaces.
2. What cannot be imported, or does not run on the inputs, is an answer (``Support.no``) with vLLM's version and its reason.
3. vLLM allocates the output itself; the arm keeps the last one, so a replayed graph fills the tensor that was captured.

Source: vllm.model_executor.layers.fused_moe.fused_experts (hidden_states, w1 [E, 2I, H] gate first, w2 [E, H, I], topk_weights, topk_ids).
"""

import importlib
import importlib.metadata
from collections.abc import Callable

import numpy as np
import torch

from benchkit.fixture.layer import MoeInputs, tensor_bytes
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.reference import moe_truth
from benchkit.kernels.vllm_ops import package_folder
from benchkit.kernels.warp_decode.layer import refusal
from benchkit.units import FloatArray

MODULE = "vllm.model_executor.layers.fused_moe"
FUNCTION = "fused_experts"


def prepare(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """vLLM's fused layer on ``inputs`` (bf16 weights in the checkpoint layout); it takes no parameters: vLLM chooses its tiles."""
    device = inputs.x.device
    if inputs.weights.weight_format != "bf16" or device.type != "cuda":
        return Support.no(f"needs bf16 weights on a GPU, found {inputs.weights.weight_format} on {device.type}")
    reason = refusal(inputs, rows_per_cta=1, capability=torch.cuda.get_device_capability(device))
    if reason is not None:
        return Support.no(reason)
    fused = find()
    if isinstance(fused, Support):
        return fused
    arm = FusedExperts(inputs, fused)
    try:
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        arm(0)
        torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001 - whatever vLLM raises on these inputs is why it cannot run
        return Support.no(f"vllm {_version()}: {FUNCTION} does not run here: {_one_line(error)}")
    return arm.prepared(torch.cuda.max_memory_allocated(device) - before - arm.output.nbytes)


def find() -> Callable[..., torch.Tensor] | Support:
    """vLLM's function, or why there is none."""
    if package_folder() is None:
        return Support.no("vllm is not installed: pip install benchkit-ni[vllm]")
    try:
        found: Callable[..., torch.Tensor] = getattr(importlib.import_module(MODULE), FUNCTION)
    except Exception as error:  # noqa: BLE001 - an import of vLLM can fail in any way: a missing package, another torch, no driver
        return Support.no(f"vllm {_version()}: cannot import {FUNCTION} from {MODULE}: {_one_line(error)}")
    return found


class FusedExperts:
    """One call of vLLM's function on a weight copy."""

    def __init__(self, inputs: MoeInputs, fused: Callable[..., torch.Tensor]) -> None:
        self.inputs = inputs
        self.fused = fused
        self.output = torch.empty_like(inputs.x)

    def __call__(self, copy: int) -> None:
        weights, inputs = self.inputs.weights, self.inputs
        self.output = self.fused(inputs.x, weights.w13[copy], weights.w2[copy], inputs.topk_weights, inputs.topk_ids)

    def prepared(self, scratch_bytes: int) -> PreparedArm:
        """The arm; ``scratch_bytes`` is what a call allocated beside its output."""

        def output() -> FloatArray:
            return np.array(self.output.double().cpu().numpy(), dtype=np.float64)

        def poison() -> None:
            with torch.inference_mode():
                self.output.fill_(float("nan"))

        return PreparedArm(
            call=self,
            output=output,
            poison=poison,
            expected=lambda truth: moe_truth(self.inputs, truth),
            output_bytes=lambda: tensor_bytes(self.output),
            scratch_bytes=scratch_bytes,
        )


def _version() -> str:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "without metadata"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
