"""What the copy ceiling depends on beside its kernel, on a GPU: ``python tests/benchmarks/copy_placement.py [--json FILE]``.

One kernel (the ceilings' vector copy), one size, one stream; source and target are views of one allocation of 100 GiB. The rate
(read + write) is measured over the distance between them, the place of the pair, and the size: 15 seconds on an H200.
"""

import json
import statistics
import sys
from pathlib import Path

import torch

from benchkit.device.cuda import CudaDevice
from benchkit.fixture.arrays import ArrayInputs
from benchkit.kernels import ceilings_cuda
from benchkit.kernels.contract import Params, Support

GIB, MIB = 1 << 30, 1 << 20
SHAPE: Params = {"method": "vector", "ctas_per_sm": 0, "threads": 512, "unroll": 1, "streaming": True}
ARENA, SIZE = 100 * GIB, 2 * GIB
SAMPLES, WARMUPS = 7, 3


class Bench:
    """Copies between two places of one allocation."""

    def __init__(self) -> None:
        self.device = CudaDevice()
        self.arena = torch.empty(ARENA // 4, dtype=torch.float32, device="cuda").uniform_(0.5, 1.5)

    def _view(self, offset: int, size: int) -> torch.Tensor:
        return self.arena[offset // 4 : (offset + size) // 4]

    def gb_per_s(self, source: int, target: int, size: int = SIZE) -> float:
        """Bytes read and written a nanosecond, median of the samples; at least 4 GiB a sample."""
        pair = ArrayInputs(sources=(self._view(source, size),), targets=(self._view(target, size),), bytes=size, seed=0)
        arm = ceilings_cuda.prepare_copy(pair, SHAPE)
        if isinstance(arm, Support):
            raise SystemExit(str(arm.reason))
        calls = max(1, 4 * GIB // size)
        timer = self.device.timer(arm.call, calls=calls, copies=1, with_delay=False)
        times = [timer.sample(injected_ns=0).duration_ns for _ in range(WARMUPS + SAMPLES)][WARMUPS:]
        return round(2 * size * calls / statistics.median(times), 1)


def measured() -> dict[str, dict[str, float]]:
    """Sweep over sizes (MiB), distances and places (GiB)."""
    bench = Bench()
    distances = (2, 3, 4, 6, 8, 10, 12, 16, 17, 20, 24, 32, 40, 48, 64)
    return {
        "size in MiB, target behind source": {
            str(mib): bench.gb_per_s(0, mib * MIB, mib * MIB) for mib in (80, 200, 600, 1024, 2048, 4096)
        },
        "distance in GiB, 2 GiB": {str(gib): bench.gb_per_s(0, gib * GIB) for gib in distances},
        "place in GiB, 2 GiB, distance 2 GiB": {
            str(gib): bench.gb_per_s(gib * GIB, (gib + 2) * GIB) for gib in range(0, 100, 10)
        },
    }


def main(arguments: list[str]) -> None:
    """Print the sweeps, and write them where ``--json`` says."""
    found = measured()
    for title, rates in found.items():
        print(title)
        print("".join(f"  {at:>6}: {rate} GB/s\n" for at, rate in rates.items()), end="")
    if arguments[:1] == ["--json"]:
        Path(arguments[1]).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
