"""Which layers a kernel refuses by their sizes: each limit from both sides, and the numbers of the modules that need torch."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchkit.kernels import expert_centric, refusals, registry
from benchkit.kernels.contract import Support
from benchkit.kernels.refusals import LayerSizes
from benchkit.kernels.warp_decode import layer as warp_decode_layer

LAYER = LayerSizes(experts=512, hidden=2048, intermediate=768, top_k=8, weight_format="bf16", tokens=512)
MARLIN = {"alignment": "native"}
DECODE = ["wd_bf16", "wd_bf16_packed", "wd_mxfp8", "wd_awq"]
EXPERT_CENTRIC = ["moe_fused", "moe_eight_stage", "moe_stage"]
FORMATS = {
    "cpu_expert_centric": ("fp32",),
    "cpu_output_centric": ("fp32",),
    "marlin_moe": ("awq-int4-g128",),
    "vllm_fused_experts": ("bf16",),
    "wd_awq": ("awq-int4-g128",),
    "wd_bf16": ("bf16",),
    "wd_bf16_packed": ("bf16",),
    "wd_mxfp8": ("mxfp8",),
    **dict.fromkeys((*EXPERT_CENTRIC, "wd_literal", "wd_portable"), ("bf16", "mxfp8")),
}


def test_every_kernel_of_a_layer_says_which_weights_it_takes():
    assert sorted(FORMATS) == [name for name, line in registry.KERNELS.items() if line.fixture == "moe"]
    for kernel, formats in FORMATS.items():
        for weight_format in ("fp32", "bf16", "mxfp8", "awq-int4-g128"):
            found = registry.refusal(kernel, MARLIN, replace(LAYER, weight_format=weight_format))
            wanted = f"needs {' or '.join(formats)} weights, found {weight_format}"
            assert found == (None if weight_format in formats else wanted), kernel


@pytest.mark.parametrize("kernel", DECODE)
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"tokens": 512}, None),
        ({"tokens": 513}, "needs tokens from 1 to 512, found 513"),
        ({"experts": 512}, None),
        ({"experts": 5000}, "needs experts from 1 to 512, found 5000"),
        ({"top_k": 16}, None),
        ({"top_k": 17}, "needs top_k from 1 to 16, found 17"),
    ],
)
def test_moe_decode(kernel, sizes, reason):
    layer = replace(LAYER, weight_format=FORMATS[kernel][0], **sizes)
    assert registry.refusal(kernel, {}, layer) == reason


def test_moe_decode_takes_whole_tiles():
    assert registry.refusal("wd_bf16", {}, replace(LAYER, hidden=2016)) == (
        "bf16 needs hidden to be a multiple of 64, found 2016"
    )


@pytest.mark.parametrize("kernel", EXPERT_CENTRIC)
def test_the_expert_centric_path_sorts_so_many_routes(kernel):
    assert registry.refusal(kernel, {}, LAYER) is None
    assert registry.refusal(kernel, {}, replace(LAYER, tokens=513)) == (
        "needs at most 4096 routes (this is a decode path), found 4104"
    )


@pytest.mark.parametrize(
    ("alignment", "experts", "refused"), [("native", 992, False), ("native", 993, True), ("stable", 1100, False)]
)
def test_native_alignment_takes_no_more_experts_than_the_op(alignment, experts, refused):
    params = {"alignment": alignment}
    layer = replace(LAYER, weight_format="awq-int4-g128", experts=experts)
    wanted = f"native alignment needs at most 992 experts (stable alignment takes any number), found {experts}"
    assert registry.refusal("marlin_moe", params, layer) == (wanted if refused else None)
    if refused:
        weights = SimpleNamespace(experts=experts, hidden=2048, intermediate=768, weight_format="awq-int4-g128")
        inputs = SimpleNamespace(weights=weights, top_k=8, tokens=4)
        assert registry.prepare("marlin_moe", inputs, params) == Support.no(wanted)


def test_limits_of_the_modules_that_need_torch():
    assert refusals.MAX_ROUTES == expert_centric.MAX_ROUTES
    assert FORMATS["moe_fused"] == tuple(warp_decode_layer.FORMATS)


def test_no_refusal_needs_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from benchkit.kernels import refusals, registry\n"
        "layer = refusals.LayerSizes(experts=8, hidden=64, intermediate=64, top_k=2, weight_format='fp32', tokens=1)\n"
        "print(sum(registry.refusal(name, {}, layer) is not None for name in registry.KERNELS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("11\n", "")
