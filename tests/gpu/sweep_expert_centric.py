"""Finds the tiles of the expert-centric arms on a GPU, to be locked by value: ``PYTHONPATH=. python tests/gpu/sweep_expert_centric.py [format ...]``.

Each product alone at every batch size, best first; then both whole paths with the best tiles, with and without dependent launches, and their errors.
Times are medians of samples of 20 calls over rotated copies, in microseconds a call. Compilation is spread over processes and stays in Triton's cache.
"""

import functools
import itertools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence

from benchkit.device.cuda import CudaDevice
from benchkit.fixture.layer import MoeInputs, MoeWeights, make_inputs, make_weights
from benchkit.fixture.routing import route
from benchkit.kernels import expert_centric
from benchkit.kernels.expert_centric import EightStage, Fused, Path, as_float, compile_stages
from benchkit.kernels.expert_centric_tiles import Gemm, Shape, Tiles, gemm
from benchkit.kernels.reference import compare, moe_truth

LAYER = {"experts": 128, "hidden": 2048, "intermediate": 768}
TOP_K, BATCHES = 8, (1, 2, 4, 8, 16, 32, 64)
COPIES = {"bf16": 4, "mxfp8": 8}
CALLS = 24
FORMS: dict[str, type[Path]] = {"fused": Fused, "eight_stage": EightStage}
SHAPES: dict[str, list[Shape]] = {
    "bf16": [
        *((False, *each) for each in [(32, 128, 4, 4), (32, 256, 3, 4), (64, 128, 3, 4), (64, 128, 4, 4)]),
        *((True, *each) for each in [(64, 64, 4, 4), (64, 64, 6, 4), (64, 128, 3, 4), (64, 128, 4, 4)]),
        *((True, *each) for each in [(64, 256, 3, 4), (128, 64, 4, 4), (128, 128, 3, 8)]),
    ],
    "mxfp8": [
        *((False, *each) for each in [(32, 128, 4, 4), (32, 128, 3, 2), (64, 128, 3, 4), (64, 128, 4, 4)]),
        *((False, *each) for each in [(64, 64, 4, 4), (64, 256, 3, 8), (128, 128, 3, 8), (32, 256, 3, 4)]),
        *((False, *each) for each in [(64, 128, 2, 4), (128, 64, 3, 4), (128, 128, 2, 4), (16, 256, 4, 2)]),
        *((True, *each) for each in [(64, 128, 3, 4), (64, 256, 3, 4)]),
    ],
}
Job = tuple[str, int, str, Tiles, str]  # format, batch, form, tiles, stage or "all"


def text(shape: Gemm) -> str:
    return f"{'s' if shape.swap else ''}{shape.tile_n}x{shape.tile_k}/{shape.stages}/{shape.warps}"


@functools.cache
def layer(weight_format: str, copies: int) -> MoeWeights:
    return make_weights(seed=1, copies=copies, device="cuda", weight_format=weight_format, **LAYER)


def inputs_of(weights: MoeWeights, batch: int) -> MoeInputs:
    return make_inputs(weights, route("uniform", 7, batch, LAYER["experts"], TOP_K))


def build(job: Job) -> str:
    """Compile what the job needs, in a process of the pool; returns why that failed."""
    weight_format, batch, form, tiles, stage = job
    try:
        path = FORMS[form](inputs_of(layer(weight_format, 1), batch), tiles)
        if stage == "all":
            compile_stages(path)
        else:
            path.stage("align")(0)
            path.stage(stage)(0)
    except Exception as error:  # noqa: BLE001 - the shape is reported and left out
        return f"{job[:3]} {stage} {text(tiles.up)} {text(tiles.down)}: {type(error).__name__} {str(error)[:120]}"
    return ""


def us(device: CudaDevice, call: object, copies: int, samples: int) -> float:
    timer = device.timer(call, calls=CALLS, copies=copies, with_delay=False)
    return statistics.median(timer.sample(injected_ns=0).duration_ns for _ in range(samples)) / CALLS / 1e3


def sweep_products(device: CudaDevice, weights: MoeWeights, batch: int, failed: set[str]) -> tuple[Gemm, Gemm]:
    """The best tiles of both products at one batch size."""
    inputs, best = inputs_of(weights, batch), []
    for stage in ("up", "down"):
        times = []
        for shape in map(gemm, SHAPES[weights.weight_format]):
            if f"{weights.weight_format} {stage} {text(shape)}" in failed:
                continue
            path = Fused(inputs, Tiles(tile_m=16, up=shape, down=shape, launch_pdl=False))
            path.stage("align")(0)
            times.append((us(device, path.stage(stage), weights.copies, 5), text(shape), shape))
        times.sort(key=lambda entry: entry[0])
        print(f"{weights.weight_format} B={batch} {stage}: " + "  ".join(f"{t:.1f} {name}" for t, name, _ in times[:7]))
        best.append(times[0][2])
    return best[0], best[1]


def report_paths(device: CudaDevice, weights: MoeWeights, batch: int, up: Gemm, down: Gemm) -> None:
    """Whole layers and their errors."""
    inputs, parts = inputs_of(weights, batch), []
    truth = moe_truth(inputs)
    for (name, form), pdl in itertools.product(FORMS.items(), (False, True)):
        path = form(inputs, Tiles(tile_m=16, up=up, down=down, launch_pdl=pdl))
        expert_centric.poison(path.y)
        path(0)
        found = compare(as_float(path.y), truth)
        time_us = us(device, path, weights.copies, 15)
        parts.append(
            f"{name}{'+pdl' if pdl else ''} {time_us:.1f} (cos {found.min_cosine:.6f} rel {found.rel_error:.1e})"
        )
        if batch in (1, 8, 32) and pdl:
            stages = {stage: us(device, path.stage(stage), weights.copies, 5) for stage in path.names}
            parts.append(" ".join(f"{stage}={value:.1f}" for stage, value in stages.items()))
    print(f"{weights.weight_format} B={batch} {text(up)} {text(down)}: " + "  ".join(parts), flush=True)


def main(formats: Sequence[str]) -> None:
    """Sweep, then measure."""
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 2)) as pool:
        jobs: list[Job] = []
        for weight_format in formats:
            for shape in map(gemm, SHAPES[weight_format]):
                tiles = Tiles(tile_m=16, up=shape, down=shape, launch_pdl=False)
                jobs += [(weight_format, 1, "fused", tiles, stage) for stage in ("up", "down")]
        answers = pool.map(build, jobs, chunksize=1)
        failed = {f"{j[0]} {j[4]} {text(j[3].up)}" for j, answer in zip(jobs, answers, strict=True) if answer}
        print(f"[{time.perf_counter() - start:.0f} s] compiled {len(jobs)}", *filter(None, answers), sep="\n")
        device = CudaDevice()
        best = {
            (weight_format, batch): sweep_products(device, layer(weight_format, COPIES[weight_format]), batch, failed)
            for weight_format in formats
            for batch in BATCHES
        }
        print(f"[{time.perf_counter() - start:.0f} s] swept", flush=True)
        jobs = []
        for (weight_format, batch), (up, down) in best.items():
            for form, pdl in itertools.product(FORMS, (False, True)):
                jobs.append((weight_format, batch, form, Tiles(tile_m=16, up=up, down=down, launch_pdl=pdl), "all"))
        print(*filter(None, pool.map(build, jobs, chunksize=1)), sep="\n")
    print(f"[{time.perf_counter() - start:.0f} s] compiled {len(jobs)}", flush=True)
    for (weight_format, batch), (up, down) in best.items():
        report_paths(device, layer(weight_format, COPIES[weight_format]), batch, up, down)
    print(f"[{time.perf_counter() - start:.0f} s] done")


if __name__ == "__main__":
    main(sys.argv[1:] or list(COPIES))
