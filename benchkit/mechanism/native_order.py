"""Native orders of a routing, captured on a GPU: ``python -m benchkit.mechanism.native_order HISTORY`` aligns in a fresh process, some times.

Rules:
1. The routing comes as JSON on stdin, the orders go as JSON to stdout: the valid routes as vLLM's own alignment left them, in the order of the calls.
2. Under H1 three tensors shaped like input, weights and ids are resident before the op is loaded, as in a study's treatment.
3. P0 is the first order of a process of H0. P1 is of the mode nearest to it (fewest exchanges of two routes between blocks, the first seen of several)
   among those of fresh processes of H1, H0, H1, ..., which end with a mode one exchange away, or with ``ENOUGH`` processes that saw another mode at all.
   One mode in all tries is an answer, and no asset.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchkit.errors import DataError, MachineError
from benchkit.fixture.alignment import Alignment, align, fingerprint
from benchkit.protocol.study import HISTORIES

TRIES = 20
ENOUGH = 4
ALIGNMENTS = 64  # of a process
Captured = Mapping[str, tuple[list[int], str]]


def native_orders(
    ids: NDArray[np.integer],
    *,
    experts: int,
    block: int,
    hidden: int,
    capture: Callable[[str], list[list[int]]] | None = None,
) -> Captured:
    """P0 and P1 of two different modes; ``capture`` gives the orders of a fresh process of a history (default: of this machine's GPU).

    Raises DataError where all processes gave one mode.
    """
    request = {"ids": ids.tolist(), "experts": experts, "block": block, "hidden": hidden}
    fresh = capture or (lambda history: _fresh(history, request))
    first = fresh("H0")[0]
    mode = align(ids, experts, block, first)
    nearest: tuple[int, list[int], str] | None = None
    others = 0
    for attempt in range(TRIES):
        history = HISTORIES[1 - attempt % 2]
        for call, order in enumerate(fresh(history)):
            apart = exchanges_between(mode, align(ids, experts, block, order))
            if apart and (nearest is None or apart < nearest[0]):
                nearest = apart, order, f"native, {history}, process {attempt + 1} after P0's, call {call + 1}"
        others += nearest is not None
        if nearest is not None and (nearest[0] == 1 or others == ENOUGH):
            break
    if nearest is None:
        raise DataError(
            f"native alignment: expected two modes, found {fingerprint(mode)} in all {TRIES + 1} processes of H0 and H1; "
            "that is a result: give two orders with --order to study what another mode would do"
        )
    return {"P0": (first, "native, H0"), "P1": nearest[1:]}


def exchanges_between(one: Alignment, other: Alignment) -> int:
    """Exchanges of two routes that make the blocks of one alignment those of another of the same routes."""
    moved = sum(len(set(one.members(j)) - set(other.members(j))) for j in range(one.blocks))
    return -(-moved // 2)


def _fresh(history: str, request: Mapping[str, Any]) -> list[list[int]]:
    command = [sys.executable, "-m", "benchkit.mechanism.native_order", history]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=300)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise MachineError(f"native alignment under {history}: {lines[-1] if lines else 'it printed nothing'}")
    orders: list[list[int]] = json.loads(done.stdout)
    return orders


def main(history: str) -> None:
    """Align on the GPU, and print the order of each call."""
    import torch

    from benchkit.kernels import alignment, vllm_ops
    from benchkit.kernels.contract import Support

    request = json.load(sys.stdin)
    ids = np.array(request["ids"], dtype=np.int32)
    if not torch.cuda.is_available():
        sys.exit("expected a GPU that torch can use, found none; give captured orders with --order")
    resident: list[torch.Tensor] = []
    if history == "H1":
        shapes = (((len(ids), request["hidden"]), torch.float16), (ids.shape, torch.float32), (ids.shape, torch.int32))
        resident = [torch.zeros(shape, dtype=dtype, device="cuda") for shape, dtype in shapes]
        torch.cuda.synchronize()
    ops = vllm_ops.load()
    if isinstance(ops, Support):
        sys.exit(str(ops.reason))
    routes = alignment.allocate(ids.size, request["experts"], request["block"], "cuda")
    on_gpu, call, orders = torch.from_numpy(ids).cuda(), alignment.native(ops.align), []
    for _ in range(ALIGNMENTS):
        call(on_gpu, routes)
        orders.append(routes.read(ids).plan.tolist())
    print(json.dumps(orders))
    del resident  # kept until here


if __name__ == "__main__":
    main(sys.argv[1])
