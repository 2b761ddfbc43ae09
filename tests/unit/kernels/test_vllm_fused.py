"""vLLM's fused layer as an arm: every way in which it cannot be had, and the adapter over a stand-in that computes with torch.

vLLM itself does not run here (it needs a GPU); tests/gpu/test_expert_centric.py runs it where it can be imported.
"""

import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import silu

from benchkit.fixture.layer import make_inputs, make_weights
from benchkit.fixture.routing import route
from benchkit.kernels import vllm_fused
from benchkit.kernels.contract import Support
from benchkit.kernels.reference import compare, moe_truth


@pytest.fixture
def inputs():
    weights = make_weights(seed=1, experts=4, hidden=64, intermediate=32, copies=2, weight_format="bf16")
    return make_inputs(weights, route("uniform", 1, 3, 4, 2))


@pytest.fixture
def site(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def install(site: Path, source: str) -> None:
    """A package vllm 0.22.0 whose fused_moe module is ``source``."""
    folder = site / "vllm" / "model_executor" / "layers"
    folder.mkdir(parents=True)
    for part in (folder, folder.parent, folder.parent.parent):
        (part / "__init__.py").write_text("")
    (folder / "fused_moe.py").write_text(source)
    metadata = site / "vllm-0.22.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.22.0\n")
    assert importlib.metadata.version("vllm") == "0.22.0"


def fused(x, w1, w2, topk_weights, topk_ids):
    """What vLLM's function computes, in fp32."""
    output = torch.zeros_like(x)
    for token, experts in enumerate(topk_ids.tolist()):
        for slot, expert in enumerate(experts):
            gate, up = (w1[expert].float() @ x[token].float()).chunk(2)
            output[token] += (topk_weights[token, slot] * (w2[expert].float() @ (silu(gate) * up))).to(x.dtype)
    return output


def test_without_vllm():
    assert vllm_fused.find() == Support.no("vllm is not installed: pip install benchkit-ni[vllm]")


def test_a_host_is_refused(inputs):
    assert vllm_fused.prepare(inputs, {}) == Support.no("needs bf16 weights on a GPU, found bf16 on cpu")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("other = 1", "AttributeError: module 'vllm.model_executor.layers.fused_moe' has no attribute 'fused_experts'"),
        ("raise RuntimeError('built for\\n another torch')", "RuntimeError: built for another torch"),
    ],
)
def test_a_vllm_that_cannot_be_imported(site, source, reason):
    install(site, source)
    place = "cannot import fused_experts from vllm.model_executor.layers.fused_moe"
    assert vllm_fused.find() == Support.no(f"vllm 0.22.0: {place}: {reason}")


def test_the_installed_function_is_found(site):
    install(site, "def fused_experts(*arguments):\n    return arguments")
    found = vllm_fused.find()
    assert not isinstance(found, Support)
    assert found(1, 2) == (1, 2)


def test_the_adapter_hands_over_the_layer_as_vllm_takes_it(inputs):
    arm = vllm_fused.FusedExperts(inputs, fused).prepared(scratch_bytes=77)
    arm.poison()
    arm.call(1)
    assert compare(arm.output(), moe_truth(inputs)).min_cosine > 0.9999
    assert (arm.scratch_bytes, arm.output().shape) == (77, (3, 64))
    first = arm.output_bytes()
    arm.poison()
    assert arm.output_bytes() != first
    arm.call(0)
    assert arm.output_bytes() == first
