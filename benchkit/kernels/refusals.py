"""Which layers a kernel cannot take, told by their sizes alone: asked when a protocol is locked, and again before an arm is prepared.

Rules:
1. Nothing here imports torch or asks a device: what depends on either is answered by ``prepare``.
2. A refusal is one sentence: what is needed, what was found. The limits of kernels whose modules need torch stand here again, and are held against
   theirs by tests/unit/kernels/test_refusals.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from benchkit.kernels.contract import Params
from benchkit.kernels.warp_decode.configuration import LAYOUTS, LayerShape, shape_problem

NATIVE_EXPERTS = 992
MAX_ROUTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """A layer and how many tokens it gets at a point."""

    experts: int
    hidden: int
    intermediate: int
    top_k: int
    weight_format: str
    tokens: int


Refuses: TypeAlias = Callable[[Params, LayerSizes], str | None]


def weights(*formats: str) -> Refuses:
    """Any layer in these formats."""

    def refuses(params: Params, layer: LayerSizes) -> str | None:
        if layer.weight_format in formats:
            return None
        return f"needs {' or '.join(formats)} weights, found {layer.weight_format}"

    return refuses


def decode(layout: str) -> Refuses:
    """What ``moe_decode`` takes in a layout."""
    right_format = weights(LAYOUTS[layout].weight_format)

    def refuses(params: Params, layer: LayerSizes) -> str | None:
        shape = LayerShape(
            experts=layer.experts,
            hidden=layer.hidden,
            intermediate=layer.intermediate,
            top_k=layer.top_k,
            layout=layout,
        )
        return right_format(params, layer) or shape_problem(shape, layer.tokens)

    return refuses


def expert_centric(params: Params, layer: LayerSizes) -> str | None:
    """The expert-centric path sorts a limited number of routes."""
    problem = weights("bf16", "mxfp8")(params, layer)
    routes = layer.tokens * layer.top_k
    if problem is None and routes > MAX_ROUTES:
        return f"needs at most {MAX_ROUTES} routes (this is a decode path), found {routes}"
    return problem


def marlin(params: Params, layer: LayerSizes) -> str | None:
    """vLLM's own alignment pads the number of experts to a multiple of 32 and takes fewer than 1024."""
    problem = weights("awq-int4-g128")(params, layer)
    if problem is None and params["alignment"] == "native" and layer.experts > NATIVE_EXPERTS:
        return (
            f"native alignment needs at most {NATIVE_EXPERTS} experts (stable alignment takes any number), "
            f"found {layer.experts}"
        )
    return problem
