"""Finds the shapes of the ceilings on a GPU, to be locked by value: ``PYTHONPATH=. python tests/gpu/sweep_ceilings.py [MiB ...]``.

Prints GB/s (a copy counts read + write) of the median of five samples of 20 calls over 4 rotated arrays, best first.
"""

import statistics
import sys
from collections.abc import Iterator

import torch

from benchkit.device.cuda import CudaDevice
from benchkit.fixture.arrays import ArrayInputs, make_arrays
from benchkit.kernels import ceilings_cuda
from benchkit.kernels.contract import Params, PreparedArm, Support

CALLS, COPIES, SAMPLES, SHOWN = 20, 4, 5, 6
MIB = 1 << 20


def shapes() -> Iterator[Params]:
    """Everything that is worth a try."""
    for streaming in (False, True):
        for ctas, threads, unroll in [(0, 256, 4), (0, 512, 4), (0, 1024, 4), (0, 256, 8), (0, 512, 2), (0, 1024, 1)]:
            yield {"ctas_per_sm": ctas, "threads": threads, "unroll": unroll, "streaming": streaming}
        for ctas, threads, unroll in [(8, 256, 4), (4, 512, 4), (2, 1024, 4), (2, 512, 8), (4, 256, 8), (1, 1024, 8)]:
            yield {"ctas_per_sm": ctas, "threads": threads, "unroll": unroll, "streaming": streaming}
        for ctas, warps, stages, tile in [
            (1, 8, 8, 2048),
            (2, 8, 4, 2048),
            (1, 4, 8, 4096),
            (2, 4, 4, 4096),
            (1, 4, 4, 8192),
            (1, 2, 6, 16384),
            (2, 1, 6, 16384),
            (1, 8, 4, 4096),
            (2, 4, 6, 2048),
        ]:
            bulk = {"method": "bulk", "ctas_per_sm": ctas, "warps": warps, "stages": stages, "tile_bytes": tile}
            yield {**bulk, "streaming": streaming}


def gb_per_s(device: CudaDevice, arm: PreparedArm, counted: int) -> float:
    """Rate of the median sample."""
    timer = device.timer(arm.call, calls=CALLS, copies=COPIES, with_delay=False)
    return counted * CALLS / statistics.median(timer.sample(injected_ns=0).duration_ns for _ in range(SAMPLES))


def sweep(device: CudaDevice, inputs: ArrayInputs, kind: str) -> list[tuple[float, str]]:
    """All shapes of one kind at one size, best first."""
    prepare = {"copy": ceilings_cuda.prepare_copy, "read": ceilings_cuda.prepare_read}[kind]
    counted = inputs.bytes * (2 if kind == "copy" else 1)
    rates = []
    for params in shapes():
        arm = prepare(inputs, params)
        if isinstance(arm, Support):
            print(f"{kind} {params}: {arm.reason}")
            continue
        rates.append((gb_per_s(device, arm, counted), " ".join(f"{name}={value}" for name, value in params.items())))
    return sorted(rates, reverse=True)


def main() -> None:
    """Sweep both kinds at each size."""
    device = CudaDevice()
    for size in [int(text) for text in sys.argv[1:]] or [80, 200, 600]:
        inputs = make_arrays(seed=1, bytes=size * MIB, copies=COPIES, device="cuda")
        for kind in ("copy", "read"):
            rates = sweep(device, inputs, kind)
            print(f"{kind} {size} MiB, {len(rates)} shapes, worst {rates[-1][0]:.0f} {rates[-1][1]}")
            for rate, text in rates[:SHOWN]:
                print(f"  {rate:.0f} GB/s  {text}")
        del inputs
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
