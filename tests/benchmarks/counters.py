"""Hardware counters of a protocol's arms, by ncu, on a GPU: ``python tests/benchmarks/counters.py PROTOCOL ARM[,ARM] [POINT ...] [--json FILE]``.

One call of each arm at each point, with the locked parameters, every kernel alone and behind flushed caches (ncu's replay), so that durations are longer
than in a run and dependent launches do not overlap: what counts are the shares. Clocks are left as they are.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

METRICS = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "read MB": ("dram__bytes_read.sum", 1e-6),
    "DRAM %": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    "issue %": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1.0),
    "tensor %": ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active", 1.0),
    "ALU %": ("sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active", 1.0),
    "FMA %": ("sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active", 1.0),
    "warps %": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1.0),
    "waves": ("launch__waves_per_multiprocessor", 1.0),
    "registers": ("launch__registers_per_thread", 1.0),
    "long scoreboard": ("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio", 1.0),
    "short scoreboard": ("smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio", 1.0),
    "barrier": ("smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", 1.0),
    "wait": ("smsp__average_warps_issue_stalled_wait_per_issue_active.ratio", 1.0),
    "math pipe": ("smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio", 1.0),
}


def call_all(path: Path, arms: list[str], points: list[str]) -> None:
    """In the profiled process: one profiled call of each case, and a line of JSON that says which and how many kernels."""
    import torch

    from benchkit.kernels.contract import PreparedArm
    from benchkit.protocol.parse import read_protocol
    from benchkit.run.torch_bench import TorchBench

    protocol = read_protocol(path)
    bench = TorchBench(protocol, folder=path.parent, digest_cache=path.parent / ".unused")
    for point in (each for each in protocol.points if not points or each.id in points):
        for arm in (each for each in protocol.arms if each.name in arms):
            prepared = bench.arm(arm, point)
            if not isinstance(prepared, PreparedArm):
                raise SystemExit(f"{arm.name} at {point.id}: {prepared.reason}")
            prepared.call(0)
            kernels = bench.device.kernels(prepared.call)
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            prepared.call(protocol.fixture.copies - 1)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
            print("case", json.dumps([point.id, arm.name, len(kernels)]), flush=True)


def profiled(arguments: list[str]) -> list[dict[str, Any]]:
    """A row for each kernel: point, arm, kernel, and the metrics in the units of METRICS."""
    names = ",".join(name for name, _ in METRICS.values())
    ncu = [
        "ncu",
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
        "--print-units",
        "base",
        "--csv",
        "--page",
        "raw",
    ]
    command = [*ncu, "--metrics", names, sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    cases = [json.loads(line[5:]) for line in lines if line.startswith("case ")]
    table = [line for line in lines if line.startswith('"')]
    if done.returncode or not table:
        raise SystemExit(f"ncu ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    rows = list(csv.DictReader(table))[1:]  # the first row holds the units
    wanted = [(point, arm) for point, arm, count in cases for _ in range(count)]
    if len(rows) != len(wanted):
        raise SystemExit(f"expected {len(wanted)} profiled kernels, found {len(rows)}")
    return [
        {"point": point, "arm": arm, "kernel": row["Kernel Name"]}
        | {short: round(float(row[name].replace(",", "")) * unit, 3) for short, (name, unit) in METRICS.items()}
        for (point, arm), row in zip(wanted, rows, strict=True)
    ]


def main(arguments: list[str]) -> None:
    """Print a table, and write it where ``--json`` says."""
    if arguments[:1] == ["--child"]:
        path, arms, *points = arguments[1:]
        call_all(Path(path), arms.split(","), points)
        return
    target = arguments.index("--json") if "--json" in arguments else len(arguments)
    rows = profiled(arguments[:target])
    for row in rows:
        print(row["point"], row["arm"], row["kernel"], *(f"{name} {row[name]:g}" for name in METRICS), sep="  ")
    if target < len(arguments):
        Path(arguments[target + 1]).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
