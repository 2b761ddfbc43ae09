"""What can run the cells of a study: engine -> the worker that runs it, and the files whose bytes are its identity."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from benchkit.kernels.registry import files_digest
from benchkit.protocol.study import CPU_EMULATION, MARLIN_OP, MARLIN_RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One line of the table: files relative to the package, and the device that its environment record names."""

    sources: tuple[str, ...]
    device: str


_STUDY = ("fixture/alignment.py", "fixture/awq.py", "fixture/captured.py", "fixture/plans.py", "fixture/study_layer.py")
_MARLIN = (
    "kernels/alignment.py",
    "kernels/alignment_triton.py",
    "kernels/marlin.py",
    "kernels/marlin_buffers.py",
    "kernels/marlin_repack.py",
    "kernels/marlin_schedule.py",
    "kernels/marlin_selector.py",
    "kernels/repacking.py",
    "kernels/vllm_ops.py",
)
ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        CPU_EMULATION: Engine(
            sources=(
                *_STUDY,
                "kernels/marlin_schedule.py",
                "mechanism/cpu_engine.py",
                "mechanism/emulation.py",
                "mechanism/orders.py",
            ),
            device="host",
        ),
        MARLIN_OP: Engine(
            sources=(*_STUDY, *_MARLIN, "mechanism/marlin_engine.py", "mechanism/orders.py"),
            device="cuda",
        ),
        MARLIN_RAW: Engine(
            sources=(
                *_STUDY,
                *_MARLIN,
                "device/cuda_graph.py",
                "mechanism/marlin_engine.py",
                "mechanism/orders.py",
                "mechanism/raw_engine.py",
            ),
            device="cuda",
        ),
    }
)


def engine_sources(engine: str) -> dict[str, str]:
    """Source digest of the engine, under its name."""
    return {engine: files_digest(engine, ENGINES[engine].sources)}
