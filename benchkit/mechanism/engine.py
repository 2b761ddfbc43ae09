"""What a worker of a study drives: an engine applies a history, builds the layer, and runs one cell. Which one it is says the protocol."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchkit.fixture.plans import Plans
from benchkit.mechanism.trajectory import Trajectory
from benchkit.protocol.study import CPU_EMULATION, MARLIN_RAW, Cell, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the process header records of an engine: its device, packages, binaries (file -> SHA-256), threads and last-level cache."""

    device: Mapping[str, object]
    packages: tuple[str, ...]
    binaries: Mapping[str, str]
    threads: int
    l2_bytes: int


class StudyEngine(Protocol):
    """Called in this order: ``treat``, ``build``, ``facts``, ``run``."""

    def treat(self, history: str) -> None:
        """Apply the history, before anything of the layer is built."""

    def build(self) -> str:
        """Build layer and input, and give their digest."""
        ...

    def facts(self) -> EngineFacts:
        """What runs here."""
        ...

    def run(self, cell: Cell, history: str) -> Trajectory:
        """Run a cell once, and give what it made together with what it consumed."""
        ...


def engine_of(study: Study) -> Callable[[Study, Plans, Path], StudyEngine]:
    """What makes the engine that the study names, for a run in a folder; only its own modules are loaded."""
    if study.engine == CPU_EMULATION:
        from benchkit.mechanism.cpu_engine import CpuEngine

        return CpuEngine
    if study.engine == MARLIN_RAW:
        from benchkit.mechanism.raw_engine import RawMarlinEngine

        return RawMarlinEngine
    from benchkit.mechanism.marlin_engine import MarlinEngine

    return MarlinEngine
