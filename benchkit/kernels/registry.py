"""The one table of kernels: id -> where it is, what clock and fixture it belongs to, what it takes, which bytes it is made of.

Rules:
1. Nothing here imports torch: modules of kernels are imported when an arm is prepared, and only then.
2. Parameters have no defaults beyond "absent": what an entry requires stands in the protocol, and an unknown key is refused.
3. A source digest is SHA-256 over ``path NUL sha256(bytes) LF`` (hex, lower case) of the entry's files, sorted by path; paths are
   relative to the package ``benchkit`` with forward slashes (protocols/README.md, "Build").
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from benchkit.errors import DataError
from benchkit.kernels import parameters, refusals
from benchkit.kernels.contract import Params, Prepare, PreparedArm, Support
from benchkit.kernels.parameters import Param, Together
from benchkit.kernels.refusals import LayerSizes, Refuses
from benchkit.kernels.warp_decode.configuration import parse_tiles
from benchkit.protocol.fields import as_toml

Clock: TypeAlias = Literal["host", "cuda-event"]
Space: TypeAlias = Callable[[Any], Iterable[Params]]
Fixture: TypeAlias = Literal["moe", "arrays"]

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEntry:
    """One line of the table.

    Parameters
    ----------
    module, function:
        Where ``prepare(inputs, params)`` of this kernel is.
    clock:
        The clock that can time it.
    fixture:
        The inputs that it takes: ``moe`` (MoeInputs) or ``arrays`` (ArrayInputs).
    sources:
        Files relative to the package root whose bytes make the source digest.
    params:
        Name -> what it takes.
    together:
        Raises DataError where parameters, each one sound, do not go together; None: any do.
    refuses:
        Why these parameters are not for a layer of these sizes, or None; asked at the lock, and before the kernel's own module is.
    packages:
        Distributions beside torch whose code it runs; their versions stand in the environment record.
    space:
        The module's function ``space(inputs)`` that yields the parameters worth trying (``benchkit tune``); None: chosen by hand.
    """

    module: str
    function: str
    clock: Clock
    fixture: Fixture
    sources: tuple[str, ...]
    params: Mapping[str, Param] = field(default_factory=dict)
    together: Together | None = None
    refuses: Refuses | None = None
    packages: tuple[str, ...] = ()
    space: str | None = None


_CUDA_CEILING_SOURCES = ("cuda_source.py", "kernels/ceilings.cu", "kernels/ceilings_cuda.py")
_WARP_DECODE_LAYER = "kernels/warp_decode/layer.py"


def _decode_sources(weight_format: str) -> tuple[str, ...]:
    modules = ("arms", "configuration", "decode", "decode_source", "dispatch", "fit", "layer", "pack")
    device = ("ptx", "frame", f"format_{weight_format}", "products", "product", "product_wide", "down", "combine")
    names = (*(f"{name}.py" for name in modules), *(f"{name}.cu" for name in device))
    fixture = {"awq": ("fixture/awq.py", "fixture/awq_device.py")}.get(weight_format, ())
    return (
        "cuda_launch.py",
        "cuda_source.py",
        "kernels/repacking.py",
        *fixture,
        *(f"kernels/warp_decode/{name}" for name in names),
    )


_EXPERT_CENTRIC_SOURCES = (
    "kernels/expert_centric.py",
    "kernels/expert_centric_tiles.py",
    "kernels/expert_centric_triton.py",
    _WARP_DECODE_LAYER,
)

KERNELS: Mapping[str, KernelEntry] = MappingProxyType(
    {
        "cpu_expert_centric": KernelEntry(
            module="benchkit.kernels.cpu",
            function="prepare_expert_centric",
            clock="host",
            fixture="moe",
            sources=("kernels/cpu.py", "kernels/threads.py"),
            params={"tile": parameters.COUNT, "threads": parameters.THREADS},
            refuses=refusals.weights("fp32"),
            space="expert_centric_space",
        ),
        "cpu_output_centric": KernelEntry(
            module="benchkit.kernels.cpu",
            function="prepare_output_centric",
            clock="host",
            fixture="moe",
            sources=("kernels/cpu.py", "kernels/threads.py"),
            params={"threads": parameters.THREADS},
            refuses=refusals.weights("fp32"),
        ),
        "cpu_copy": KernelEntry(
            module="benchkit.kernels.ceilings",
            function="prepare_copy",
            clock="host",
            fixture="arrays",
            sources=("kernels/ceilings.py", "kernels/threads.py"),
            params={"threads": parameters.THREADS},
        ),
        "cpu_read": KernelEntry(
            module="benchkit.kernels.ceilings",
            function="prepare_read",
            clock="host",
            fixture="arrays",
            sources=("kernels/ceilings.py", "kernels/threads.py"),
            params={"segments": parameters.COUNT, "threads": parameters.THREADS},
        ),
        "cuda_copy": KernelEntry(
            module="benchkit.kernels.ceilings_cuda",
            function="prepare_copy",
            clock="cuda-event",
            fixture="arrays",
            sources=_CUDA_CEILING_SOURCES,
            params=parameters.CUDA_CEILING,
            together=parameters.ceiling_together,
            space="space",
        ),
        "cuda_read": KernelEntry(
            module="benchkit.kernels.ceilings_cuda",
            function="prepare_read",
            clock="cuda-event",
            fixture="arrays",
            sources=_CUDA_CEILING_SOURCES,
            params=parameters.CUDA_CEILING,
            together=parameters.ceiling_together,
            space="space",
        ),
        "marlin_moe": KernelEntry(
            module="benchkit.kernels.marlin",
            function="prepare",
            clock="cuda-event",
            fixture="moe",
            sources=(
                "kernels/alignment.py",
                "kernels/alignment_triton.py",
                "kernels/marlin.py",
                "kernels/marlin_buffers.py",
                "kernels/marlin_repack.py",
                "kernels/marlin_selector.py",
                "kernels/repacking.py",
                "kernels/vllm_ops.py",
            ),
            params=parameters.MARLIN,
            together=parameters.marlin_together,
            refuses=refusals.marlin,
            packages=("vllm",),
            space="space",
        ),
        "moe_eight_stage": KernelEntry(
            module="benchkit.kernels.expert_centric",
            function="prepare_eight_stage",
            clock="cuda-event",
            fixture="moe",
            sources=_EXPERT_CENTRIC_SOURCES,
            params=parameters.EXPERT_CENTRIC,
            refuses=refusals.expert_centric,
            space="space",
        ),
        "moe_fused": KernelEntry(
            module="benchkit.kernels.expert_centric",
            function="prepare_fused",
            clock="cuda-event",
            fixture="moe",
            sources=_EXPERT_CENTRIC_SOURCES,
            params=parameters.EXPERT_CENTRIC,
            refuses=refusals.expert_centric,
            space="space",
        ),
        "moe_stage": KernelEntry(
            module="benchkit.kernels.expert_centric_stages",
            function="prepare_stage",
            clock="cuda-event",
            fixture="moe",
            sources=("fixture/mxfp8.py", "kernels/expert_centric_stages.py", *_EXPERT_CENTRIC_SOURCES),
            params=parameters.STAGE,
            refuses=refusals.expert_centric,
        ),
        "vllm_fused_experts": KernelEntry(
            module="benchkit.kernels.vllm_fused",
            function="prepare",
            clock="cuda-event",
            fixture="moe",
            sources=("kernels/vllm_fused.py", "kernels/vllm_ops.py", _WARP_DECODE_LAYER),
            refuses=refusals.weights("bf16"),
            packages=("vllm",),
        ),
        "wd_awq": KernelEntry(
            module="benchkit.kernels.warp_decode.arms",
            function="prepare_awq",
            clock="cuda-event",
            fixture="moe",
            sources=_decode_sources("awq"),
            params=parameters.DECODE,
            together=parse_tiles,
            refuses=refusals.decode("awq-packed"),
            space="space_awq",
        ),
        "wd_bf16": KernelEntry(
            module="benchkit.kernels.warp_decode.arms",
            function="prepare_bf16",
            clock="cuda-event",
            fixture="moe",
            sources=_decode_sources("bf16"),
            params=parameters.DECODE,
            together=parse_tiles,
            refuses=refusals.decode("bf16"),
            space="space_bf16",
        ),
        "wd_bf16_packed": KernelEntry(
            module="benchkit.kernels.warp_decode.arms",
            function="prepare_bf16_packed",
            clock="cuda-event",
            fixture="moe",
            sources=_decode_sources("bf16"),
            params=parameters.DECODE,
            together=parse_tiles,
            refuses=refusals.decode("bf16-packed"),
            space="space_bf16_packed",
        ),
        "wd_literal": KernelEntry(
            module="benchkit.kernels.warp_decode.literal",
            function="prepare",
            clock="cuda-event",
            fixture="moe",
            sources=(
                "cuda_source.py",
                _WARP_DECODE_LAYER,
                "kernels/warp_decode/literal.cu",
                "kernels/warp_decode/literal.py",
            ),
            params=parameters.LITERAL,
            refuses=refusals.weights("bf16", "mxfp8"),
            space="space",
        ),
        "wd_mxfp8": KernelEntry(
            module="benchkit.kernels.warp_decode.arms",
            function="prepare_mxfp8",
            clock="cuda-event",
            fixture="moe",
            sources=_decode_sources("mxfp8"),
            params=parameters.DECODE,
            together=parse_tiles,
            refuses=refusals.decode("mxfp8-packed"),
            space="space_mxfp8",
        ),
        "wd_portable": KernelEntry(
            module="benchkit.kernels.warp_decode.portable",
            function="prepare",
            clock="cuda-event",
            fixture="moe",
            sources=(_WARP_DECODE_LAYER, "kernels/warp_decode/portable.py", "kernels/warp_decode/tiles.py"),
            params=parameters.PORTABLE,
            refuses=refusals.weights("bf16", "mxfp8"),
            space="space",
        ),
    }
)


def entry(kernel_id: str) -> KernelEntry:
    """The table's line of a kernel; DataError with the known ids on another."""
    if kernel_id not in KERNELS:
        raise DataError(f'kernel: expected one of {", ".join(sorted(KERNELS))}, found "{kernel_id}"')
    return KERNELS[kernel_id]


def param_problems(kernel_id: str, params: Params) -> tuple[str, ...]:
    """What is wrong with an arm's parameters, one ``name: what`` a problem; empty where nothing is.

    ``params`` are those of one point, ``by_point`` already applied. Raises DataError on an unknown kernel.
    """
    line = entry(kernel_id)
    known = line.params
    problems = []
    for name in sorted(params.keys() - known.keys()):
        names = ", ".join(sorted(known)) if known else "none"
        problems.append(f"{name}: unknown parameter of {kernel_id}; known: {names}")
    for name in sorted(known):
        wanted = known[name]
        if name not in params:
            if wanted.required:
                problems.append(f"{name}: expected {wanted.expected} for {kernel_id}, found nothing")
        elif not wanted.takes(params[name]):
            problems.append(f"{name}: expected {wanted.expected} for {kernel_id}, found {as_toml(params[name])}")
    if not problems and line.together is not None:
        try:
            line.together(params)
        except DataError as error:
            problems.append(str(error).removeprefix("params."))
    return tuple(problems)


def refusal(kernel_id: str, params: Params, layer: LayerSizes) -> str | None:
    """Why a kernel cannot run on a layer of these sizes, whatever the machine, or None; ``params`` are those that it takes."""
    refuses = entry(kernel_id).refuses
    return None if refuses is None else refuses(params, layer)


def _sizes(inputs: Any) -> LayerSizes:
    weights = inputs.weights
    return LayerSizes(
        experts=weights.experts,
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        top_k=inputs.top_k,
        weight_format=weights.weight_format,
        tokens=inputs.tokens,
    )


def prepare(kernel_id: str, inputs: object, params: Params) -> PreparedArm | Support:
    """Import the kernel's module and prepare it on ``inputs`` (of the entry's fixture).

    Raises DataError on an unknown kernel and on parameters that it does not take.
    """
    problems = param_problems(kernel_id, params)
    if problems:
        raise DataError("; ".join(f"params.{problem}" for problem in problems))
    line = entry(kernel_id)
    reason = refusal(kernel_id, params, _sizes(inputs)) if line.refuses else None
    if reason is not None:
        return Support.no(reason)
    function = cast(Prepare, getattr(import_module(line.module), line.function))
    return function(inputs, params)


def search_space(kernel_id: str, inputs: object) -> Iterator[Params]:
    """The parameters of a kernel that are worth trying on ``inputs``; nothing for a kernel without a search space."""
    line = entry(kernel_id)
    if line.space is not None:
        yield from cast(Space, getattr(import_module(line.module), line.space))(inputs)


def source_digest(kernel_id: str) -> str:
    """SHA-256 (lower-case hex) of the kernel's source files. Raises DataError on an unknown kernel or a missing file."""
    return files_digest(kernel_id, entry(kernel_id).sources)


def files_digest(owner: str, paths: Iterable[str]) -> str:
    """The source digest (rule 3) of files of the package; DataError, naming their ``owner``, where one is missing."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        try:
            content = (_ROOT / path).read_bytes()
        except OSError as error:
            raise DataError(f"sources of {owner}: cannot read {path} of the package: {error.strerror}") from error
        digest.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()
