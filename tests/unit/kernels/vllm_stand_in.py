"""A stand-in for the compiled ops of vLLM, in numpy: the same schemas, arguments by position, and the semantics that the real ones document."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchkit.fixture import alignment as reference
from benchkit.fixture.awq import dequantise_half
from benchkit.fixture.marlin_layout import MarlinMatrix, from_marlin
from benchkit.kernels import vllm_ops

METADATA = """Metadata-Version: 2.1
Name: vllm
Version: 0.22.0
Requires-Dist: torch=={torch}
Requires-Dist: triton==9; extra == "other"
"""


class Op:
    """A registered op: a schema and what it does."""

    def __init__(self, schema: str, function: Any) -> None:
        self._schema = torch._C.parse_schema(schema)
        self.function, self.calls = function, []

    def __call__(self, *arguments: Any) -> Any:
        """Takes exactly as many arguments as the schema has."""
        assert len(arguments) == len(self._schema.arguments)
        self.calls.append(arguments)
        return self.function(*arguments)


def install(
    folder: Path, *, torch_pin: str, files: tuple[str, ...] = ("_moe_C.abi3.so", "_C_stable_libtorch.abi3.so")
) -> None:
    """A package folder ``vllm`` that must not be imported, its metadata, and extension files."""
    package = folder / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('vllm was imported')\n", encoding="utf-8")
    for name in files:
        (package / name).write_bytes(f"content of {name}".encode())
    info = folder / "vllm-0.22.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format(torch=torch_pin), encoding="utf-8")


def align_last_first(topk_ids, experts, block, sorted_token_ids, expert_ids, rows, expert_map):
    """A legal order that is not the stable one: the routes of each expert descend."""
    assert expert_map is None
    ids = topk_ids.numpy()
    stable = reference.align(ids, experts, block).plan
    flat = ids.ravel()
    plan = np.concatenate([stable[flat[stable] == expert][::-1] for expert in np.unique(flat)])
    found = reference.align(ids, experts, block, plan)
    sorted_token_ids.fill_(ids.size)
    sorted_token_ids[: found.num_tokens_post_padded] = torch.from_numpy(found.sorted_token_ids)
    expert_ids.fill_(-1)
    expert_ids[: found.blocks] = torch.from_numpy(found.expert_ids)
    rows.fill_(found.num_tokens_post_padded)


def gemm(*arguments: Any) -> torch.Tensor:
    """The product of every block with its expert's weights in fp32, rounded to fp16, then times the fp16 routing weight."""
    a, c, weight, bias, scales, a_scales, global_scale, zeros, g_idx, perm, locks, ids, experts, rows, shares = (
        arguments[:15]
    )
    block, top_k, weighted, kind, size_m, size_n, size_k = arguments[15:22]
    assert [bias, a_scales, global_scale, g_idx, perm] == [None] * 5
    assert arguments[22:26] == (True, False, True, False)
    assert kind == 1125899906843648
    assert a.shape == (size_m, size_k)
    assert c.shape == (size_m * top_k, size_n)
    assert weight.shape[1:] == (size_k // 16, 2 * size_n)
    assert not locks.any()
    for index in range(int(rows) // block):
        expert = int(experts[index])
        packed = MarlinMatrix(weight=weight[expert].numpy(), scales=scales[expert].numpy(), zeros=zeros[expert].numpy())
        matrix = torch.from_numpy(dequantise_half(from_marlin(packed))).float()
        routes = [int(route) for route in ids[index * block : (index + 1) * block] if route < size_m * top_k]
        product = (a[[route // top_k for route in routes]].float() @ matrix).half()
        c[routes] = product * shares.flatten()[routes].half()[:, None] if weighted else product
    return c


def silu_and_mul(result, values):
    """SiLU rounded to fp16 before the product."""
    gate, up = values.chunk(2, dim=1)
    result.copy_(torch.nn.functional.silu(gate.float()).half() * up)


def moe_sum(values, result):
    """The sum over a token's routes in fp32."""
    result.copy_(values.float().sum(dim=1).half())


FUNCTIONS = (align_last_first, gemm, moe_sum, silu_and_mul)


def ops() -> dict[str, Op]:
    """Name -> op, as all files together register them."""
    named = zip(vllm_ops.SCHEMAS, FUNCTIONS, strict=True)
    return {schema.partition("(")[0]: Op(schema, function) for schema, function in named}
