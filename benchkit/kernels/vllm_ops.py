"""The compiled ops of the installed vLLM package, without its Python: found, checked, loaded, and named by their digests.

Rules:
1. ``vllm`` is never imported. Its folder comes from ``importlib.util.find_spec``, its version and the torch it was built for from its metadata.
2. Only the extension files that hold an op of ours are loaded. Releases keep the ops in different files; a file that is not there is no error.
3. An op counts only with exactly the schema below (the same in vLLM 0.20 to 0.24): arguments are passed by position, and a changed one would be
   read as another.
4. Whatever is not as it should be is an answer (``Support.no``): nothing is launched.
"""

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from benchkit.kernels.contract import Support

Op: TypeAlias = Callable[..., Any]

FILES = ("_moe_C.abi3.so", "_moe_C_stable_libtorch.abi3.so", "_C_stable_libtorch.abi3.so", "_C.abi3.so")
SCHEMAS = (
    "_moe_C::moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, Tensor! sorted_token_ids, Tensor! experts_ids, "
    "Tensor! num_tokens_post_pad, Tensor? maybe_expert_map) -> ()",
    "_moe_C::moe_wna16_marlin_gemm(Tensor! a, Tensor? c_or_none, Tensor! b_q_weight, Tensor? b_bias_or_none, Tensor! b_scales, "
    "Tensor? a_scales, Tensor? global_scale, Tensor? b_zeros_or_none, Tensor? g_idx_or_none, Tensor? perm_or_none, Tensor! workspace, "
    "Tensor sorted_token_ids, Tensor! expert_ids, Tensor! num_tokens_past_padded, Tensor! topk_weights, int moe_block_size, int top_k, "
    "bool mul_topk_weights, int b_type_id, int size_m, int size_n, int size_k, bool is_full_k, bool use_atomic_add, bool use_fp32_reduce, "
    "bool is_zp_float, int thread_k, int thread_n, int blocks_per_sm) -> Tensor",
    "_moe_C::moe_sum(Tensor input, Tensor! output) -> ()",
    "_C::silu_and_mul(Tensor! result, Tensor input) -> ()",
)
_INSTALL = "pip install benchkit-ni[vllm]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VllmOps:
    """The ops that a MoE layer on Marlin takes, as vLLM ``version`` has them; ``binaries`` is vllm/file -> SHA-256 of what was loaded."""

    version: str
    align: Op
    gemm: Op
    sum: Op
    silu_and_mul: Op
    binaries: Mapping[str, str]


@lru_cache(maxsize=1)
def load() -> VllmOps | Support:
    """Load the ops of the installed package, once a process; Support.no with what is missing or different."""
    folder = package_folder()
    if folder is None:
        return Support.no(f"vllm is not installed: {_INSTALL}")
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return Support.no(f"needs the metadata of vllm beside its folder, found none: {_INSTALL}")
    problem = _torch_problem(version)
    if problem is not None:
        return Support.no(problem)
    binaries: dict[str, str] = {}
    for file in (folder / name for name in FILES):
        if not _missing():
            break
        if file.exists():
            try:
                torch.ops.load_library(str(file))
            except OSError as error:
                detail = " ".join(str(error.__cause__ or error).replace(f"{folder}/", "").split())
                return Support.no(
                    f"vllm {version}: {file.name} does not load under torch {torch.__version__}: {detail}"
                )
            with file.open("rb") as content:
                binaries[f"vllm/{file.name}"] = hashlib.file_digest(content, "sha256").hexdigest()
    problem = _schema_problem(version)
    if problem is not None:
        return Support.no(problem)
    align, gemm, total, silu_and_mul = (_found(_name(schema)) for schema in SCHEMAS)
    return VllmOps(
        version=version,
        align=align,
        gemm=gemm,
        sum=total,
        silu_and_mul=silu_and_mul,
        binaries=dict(sorted(binaries.items())),
    )


def package_folder() -> Path | None:
    """The folder of the installed package ``vllm``, or None; nothing of it is executed."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _torch_problem(version: str) -> str | None:
    """Whether torch is the one that vLLM's metadata demand: the extensions of 0.20 and 0.22 have no stable interface to it."""
    for line in importlib.metadata.requires("vllm") or ():
        wanted = Requirement(line)
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if wanted.name != "torch" or not applies:
            continue
        if not wanted.specifier.contains(Version(torch.__version__).public, prereleases=True):
            return f"vllm {version} needs torch{wanted.specifier}, found {torch.__version__}; install that torch"
    return None


def _missing() -> list[str]:
    return [name for name in map(_name, SCHEMAS) if _found(name) is None]


def _schema_problem(version: str) -> str | None:
    for schema in SCHEMAS:
        name = _name(schema)
        op = _found(name)
        if op is None:
            return f"vllm {version}: needs the op {name}, found none in {', '.join(FILES)}"
        expected, found = str(torch._C.parse_schema(schema)), str(op._schema)
        if found != expected:
            return f"vllm {version}: needs the schema {expected}, found {found}; use vllm 0.20 to 0.24"
    return None


def _name(schema: str) -> str:
    return schema.partition("(")[0]


def _found(name: str) -> Any:
    """The registered op, or None."""
    space, _, op = name.partition("::")
    try:
        return getattr(getattr(torch.ops, space), op).default
    except AttributeError:
        return None
