"""The CUDA C++ kernels of the published bundles, compiled again from the sources here without a GPU: the same code, to the last bit.

Only arms whose locked source digest is that of the sources here are compared, or for which what has changed since lies in a form that they
do not take, and only by the compiler of the published runs.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from benchkit import cuda_source
from benchkit.kernels import ceilings_cuda, registry
from benchkit.kernels.contract import Params
from benchkit.kernels.warp_decode import configuration, decode_source, literal
from benchkit.protocol.model import Arm, ArraysFixture, MoeFixture, Protocol
from benchkit.protocol.parse import read_protocol

ROOT = Path(__file__).parents[2]
COMPILER = "release 13.0, V13.0.88"
ARCH = "sm_90"
LAYOUTS = {"wd_bf16": "bf16", "wd_bf16_packed": "bf16-packed", "wd_mxfp8": "mxfp8-packed", "wd_awq": "awq-packed"}
SAME_CODE = {  # changed since: down_walk waits for its loads (down.cu), lists of many tokens (frame.cu), product_wide.cu, bf16 checkpoints
    ("awq-decode-h200", "awq_warp_decode"),
    ("warp-decode-skew-awq-h200", "warp_decode"),
    ("warp-decode-mxfp8-h200", "warp_decode"),
}
BUNDLES = [
    path.parent
    for path in sorted((ROOT / "results").glob("*/*/protocol.toml"))
    if 'clock = "cuda-event"' in path.read_text("utf-8")
]


def compiled(arm: Arm, params: Params, fixture: MoeFixture | ArraysFixture) -> Iterator[cuda_source.Cubin]:
    """The cubins of an arm that is written in CUDA C++; none of another."""
    if arm.kernel in ("cuda_copy", "cuda_read"):
        yield ceilings_cuda.compile_ceilings(ceilings_cuda.parse_shapes(params), ARCH)
    elif isinstance(fixture, MoeFixture) and arm.kernel == "wd_literal":
        form = fixture.weight_format
        shape = literal.LayerShape(weight_format=form, **sizes(fixture))
        yield literal.compile_literal(shape, literal.parse_stages(params, form), ARCH)
    elif isinstance(fixture, MoeFixture) and arm.kernel in LAYOUTS:
        layout = LAYOUTS[arm.kernel]
        x_bf16 = layout != "awq-packed"  # benchkit.fixture.layer, rule 6
        layer = configuration.LayerShape(experts=fixture.experts, layout=layout, x_bf16=x_bf16, **sizes(fixture))
        tiles = configuration.parse_tiles(params)
        for kernel in decode_source.kernels(tiles):
            yield decode_source.compile_decode(layer, kernel, tiles, ARCH)


def sizes(fixture: MoeFixture) -> dict[str, Any]:
    """What is compiled into every kernel of a layer."""
    return {"hidden": fixture.hidden, "intermediate": fixture.intermediate, "top_k": fixture.top_k}


def cubins(protocol: Protocol, unchanged: frozenset[str]) -> dict[str, set[str]]:
    """Arm -> digests of its cubins at all points."""
    result: dict[str, set[str]] = {}
    for arm in protocol.arms:
        if arm.name in unchanged and not arm.role.is_control:
            for point in protocol.points:
                if arm.stands_at(point.id):
                    found = compiled(arm, arm.params_at(point.id), protocol.fixture)
                    result.setdefault(arm.name, set()).update(cubin.sha256 for cubin in found)
    return {name: digests for name, digests in result.items() if digests}


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_published_cubins_follow_from_the_sources(bundle: Path) -> None:
    if COMPILER not in cuda_source._compiler():
        pytest.skip(f"the published runs had NVRTC of {COMPILER}")
    protocol = read_protocol(bundle / "protocol.toml")
    (first, *_) = pq.read_table(bundle / "processes.parquet", columns=["environment", "binaries"]).to_pylist()
    sources = json.loads(first["environment"])["sources"]
    unchanged = frozenset(
        arm.name
        for arm in protocol.arms
        if sources[arm.name] == registry.source_digest(arm.kernel) or (protocol.id, arm.name) in SAME_CODE
    )
    found = cubins(protocol, unchanged)
    if not found:
        pytest.skip("the sources have changed since: this bundle is to be measured again")
    recorded = set(json.loads(first["binaries"]).values())
    assert {name: digests - recorded for name, digests in found.items() if digests - recorded} == {}
