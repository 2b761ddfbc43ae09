"""Runs the Triton form of warp decode in Triton's interpreter and prints what it found as JSON; needs TRITON_INTERPRET=1.

A script of its own: Triton decides when it is first imported whether it compiles or interprets.
"""

import json
from dataclasses import replace

import torch

from benchkit.fixture.layer import MoeInputs, make_inputs, make_weights
from benchkit.fixture.routing import route
from benchkit.kernels.contract import Params, PreparedArm
from benchkit.kernels.reference import compare, moe_truth
from benchkit.kernels.warp_decode import portable

TILES = {
    "one shot": ((32, 128, 1, 1), (32, 128, 4, 1, 1)),
    "many steps": ((32, 32, 1, 1), (64, 32, 1, 1, 1)),
    "pairs of experts": ((32, 64, 1, 1), (64, 64, 2, 1, 1)),
}
REFUSED = {
    "up_tile_k": ((8, 256, 1, 1), (16, 128, 4, 1, 1)),
    "up_tile_n": ((64, 64, 1, 1), (16, 128, 4, 1, 1)),
    "down_tile_n": ((8, 64, 1, 1), (256, 64, 4, 1, 1)),
    "down_experts": ((8, 64, 1, 1), (16, 64, 8, 1, 1)),
    "down_tile_k": ((8, 64, 1, 1), (16, 16, 4, 1, 1)),
}


def run(inputs: MoeInputs, params: Params) -> PreparedArm:
    """The arm, after a call over poisoned buffers."""
    arm = portable.prepare(inputs, params)
    assert isinstance(arm, PreparedArm), arm
    arm.poison()
    arm.call(0)
    return arm


def main() -> None:
    """All cases."""
    found: dict[str, object] = {}
    for weight_format in ("bf16", "mxfp8"):
        weights = make_weights(seed=3, experts=6, hidden=128, intermediate=96, copies=2, weight_format=weight_format)
        for tokens, (name, tiles) in zip((1, 2, 3), TILES.items(), strict=True):
            inputs = make_inputs(weights, route("uniform", 7, tokens, 6, 4))
            arm = run(inputs, portable.params_of(*tiles, launch_pdl=False))
            first = arm.output_bytes()
            metrics = compare(arm.output(), arm.expected("stored"))
            arm.poison()
            arm.call(1)
            found[f"{weight_format} {name}"] = {
                "cosine": metrics.min_cosine,
                "same": arm.output_bytes() == first,
                "scratch": arm.scratch_bytes,
            }
        inputs = make_inputs(weights, route("uniform", 7, 1, 6, 4))
        swapped = replace(
            weights,
            w13=tuple(_swap(each) for each in weights.w13),
            w13_scale=tuple(_swap(each) for each in weights.w13_scale),
        )
        mixed = run(replace(inputs, weights=swapped), portable.params_of(*TILES["one shot"], launch_pdl=False))
        found[f"{weight_format} gate and up mixed up"] = compare(mixed.output(), moe_truth(inputs)).min_cosine
        for name, tiles in REFUSED.items():
            answer = portable.prepare(inputs, portable.params_of(*tiles, launch_pdl=False))
            found[f"{weight_format} refused {name}"] = getattr(answer, "reason", None)
        pdl = portable.prepare(inputs, portable.params_of(*TILES["one shot"], launch_pdl=True))
        found[f"{weight_format} refused pdl"] = getattr(pdl, "reason", None)
    print(json.dumps(found))


def _swap(rows: torch.Tensor) -> torch.Tensor:
    gate, up = rows.view(torch.uint8).chunk(2, dim=1) if rows.element_size() == 1 else rows.chunk(2, dim=1)
    return torch.cat((up, gate), dim=1).view(rows.dtype)


if __name__ == "__main__":
    main()
