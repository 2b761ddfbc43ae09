"""Two ways to compute a decode-sized MoE layer in fp32 on the host, each with torch alone.

``expert_centric`` is the traditional path: bucket the routes by expert, pad each bucket to a tile, gather, two grouped matrix products,
scatter, combine. ``output_centric`` lets every output accumulate its routed experts: no padding, nothing gathered, scattered or sorted.

Rules:
1. Ids and routing weights are read in every call: what follows from them is part of the call's work.
2. All tensors of the size of a buffer stand ready before the first call; views of weights are made once per copy.
3. Both arms add in a fixed order, so equal inputs give equal bytes.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn.functional import silu

from benchkit.fixture.layer import MoeInputs, tensor_bytes
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.reference import moe_truth
from benchkit.kernels.threads import choose_threads, use_threads
from benchkit.units import FloatArray


def expert_centric_space(inputs: MoeInputs) -> Iterator[Params]:
    """Tiles that are worth a try on one thread."""
    for tile in (1, 2, 3, 4, 6, 8):
        yield {"tile": tile, "threads": 1}


def prepare_expert_centric(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """The traditional path on ``threads`` threads; ``tile`` (rows, at least 1) is what each expert's rows are padded to."""
    threads, tile = _threads(inputs, params), int(params["tile"])
    if isinstance(threads, Support):
        return threads
    if tile < 1:
        return Support.no(f"tile: expected at least 1 row, found {tile}")
    arm = _ExpertCentric(inputs, tile, threads)
    return _prepared(inputs, arm, arm.output, arm.buffers)


def prepare_output_centric(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """Outputs accumulate their routed experts, on ``threads`` threads."""
    threads = _threads(inputs, params)
    if isinstance(threads, Support):
        return threads
    arm = _OutputCentric(inputs, threads)
    return _prepared(inputs, arm, arm.output, arm.buffers)


class _ExpertCentric:
    """Bucket, gather, product, SiLU x up, product, scatter, combine."""

    def __init__(self, inputs: MoeInputs, tile: int, threads: int) -> None:
        weights, routing = inputs.weights, inputs.routing
        rows = routing.routes + min(weights.experts, routing.routes) * (tile - 1)
        self.tile = tile
        self.threads = threads
        self.top_k = routing.top_k
        self.x = inputs.x
        self.ids = inputs.topk_ids
        self.route_weights = inputs.topk_weights.unsqueeze(1)  # [tokens, 1, top_k]
        self.w13 = _views(weights.w13, transposed=True)
        self.w2 = _views(weights.w2, transposed=True)
        self.gathered = torch.zeros((rows, weights.hidden))
        self.gate_up = torch.zeros((rows, 2 * weights.intermediate))
        self.activated = torch.zeros((rows, weights.intermediate))
        self.down = torch.zeros((rows, weights.hidden))
        self.scattered = torch.zeros((routing.tokens, routing.top_k, weights.hidden))
        self.output = torch.empty((routing.tokens, weights.hidden))
        self.buffers = (self.gathered, self.gate_up, self.activated, self.down, self.scattered)
        self.intermediate = weights.intermediate

    def __call__(self, copy: int) -> None:
        """One layer on weight copy ``copy``."""
        use_threads(self.threads)
        w13, w2 = self.w13[copy], self.w2[copy]
        with torch.inference_mode():
            row_tokens, route_rows, experts, sizes = align(self.ids.flatten().tolist(), self.top_k, self.tile)
            rows = len(row_tokens)
            gathered, gate_up, down = self.gathered[:rows], self.gate_up[:rows], self.down[:rows]
            activated = self.activated[:rows]
            torch.index_select(self.x, 0, torch.tensor(row_tokens), out=gathered)
            for expert, rows_in, rows_out in zip(experts, gathered.split(sizes), gate_up.split(sizes), strict=True):
                torch.mm(rows_in, w13[expert], out=rows_out)
            gate, up = gate_up.split(self.intermediate, dim=1)
            torch.mul(silu(gate, inplace=True), up, out=activated)
            for expert, rows_in, rows_out in zip(experts, activated.split(sizes), down.split(sizes), strict=True):
                torch.mm(rows_in, w2[expert], out=rows_out)
            torch.index_select(down, 0, torch.tensor(route_rows), out=self.scattered.flatten(0, 1))
            torch.bmm(self.route_weights, self.scattered, out=self.output.unsqueeze(1))


class _OutputCentric:
    """Per token: a matrix-vector product per routed expert, SiLU x up, and products that add into the output's row.

    The routing weight is folded into the second product.
    """

    def __init__(self, inputs: MoeInputs, threads: int) -> None:
        weights, top_k = inputs.weights, inputs.top_k
        self.threads = threads
        self.tokens = tuple(inputs.x)
        self.ids = inputs.topk_ids
        self.route_weights = inputs.topk_weights
        self.w13 = _views(weights.w13, transposed=False)
        self.w2 = _views(weights.w2, transposed=False)
        gate_up = torch.zeros((top_k, 2 * weights.intermediate))
        activated = torch.zeros((top_k, weights.intermediate))
        self.gate, self.up = gate_up.split(weights.intermediate, dim=1)
        self.gate_up = tuple(gate_up)
        self.activated = activated
        self.activated_rows = tuple(activated)
        self.output = torch.empty_like(inputs.x)
        self.rows = tuple(self.output)
        self.buffers = (gate_up, activated)

    def __call__(self, copy: int) -> None:
        """One layer on weight copy ``copy``."""
        use_threads(self.threads)
        w13, w2 = self.w13[copy], self.w2[copy]
        with torch.inference_mode():
            routes = zip(self.tokens, self.rows, self.ids.tolist(), self.route_weights.tolist(), strict=True)
            for x, row, experts, shares in routes:
                for expert, gate_up in zip(experts, self.gate_up, strict=True):
                    torch.mv(w13[expert], x, out=gate_up)
                torch.mul(silu(self.gate, inplace=True), self.up, out=self.activated)
                kept = 0.0  # beta 0: the row's old values, NaN included, are not read
                for expert, share, activated in zip(experts, shares, self.activated_rows, strict=True):
                    torch.addmv(row, w2[expert], activated, beta=kept, alpha=share, out=row)
                    kept = 1.0


def align(flat_ids: Sequence[int], top_k: int, tile: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Rows of the routes ``flat_ids`` [tokens * top_k], bucketed by ascending expert and padded to ``tile``.

    Returns the token of every row (padding repeats its bucket's first token), the row of every route, and per bucket its
    expert and its rows, padding included.
    """
    buckets: dict[int, list[int]] = {}
    for route, expert in enumerate(flat_ids):
        buckets.setdefault(expert, []).append(route)
    row_tokens: list[int] = []
    route_rows = [0] * len(flat_ids)
    experts = sorted(buckets)
    sizes: list[int] = []
    for expert in experts:
        routes = buckets[expert]
        first = len(row_tokens)
        for route in routes:
            route_rows[route] = len(row_tokens)
            row_tokens.append(route // top_k)
        row_tokens.extend([row_tokens[first]] * (-len(routes) % tile))
        sizes.append(len(row_tokens) - first)
    return row_tokens, route_rows, experts, sizes


def _views(copies: Sequence[torch.Tensor], *, transposed: bool) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Per copy and expert a view of its matrix."""
    return tuple(tuple(each.t() if transposed else each for each in copy) for copy in copies)


def _threads(inputs: MoeInputs, params: Params) -> int | Support:
    """The threads of the arm's calls, or why it cannot run on these inputs."""
    found = inputs.weights.w13[0]
    if found.dtype is not torch.float32 or found.device.type != "cpu":
        return Support.no(f"needs fp32 weights on the host, found {found.dtype} on {found.device}")
    return choose_threads(params)


def _prepared(
    inputs: MoeInputs, call: Callable[[int], None], output: torch.Tensor, buffers: Sequence[torch.Tensor]
) -> PreparedArm:
    def expected(truth: str) -> FloatArray:
        return moe_truth(inputs, truth)

    def read() -> FloatArray:
        values: FloatArray = output.double().numpy()
        return values

    def poison() -> None:
        with torch.inference_mode():  # the output may have been made in it
            output.fill_(float("nan"))

    return PreparedArm(
        call=call,
        output=read,
        poison=poison,
        expected=expected,
        output_bytes=lambda: tensor_bytes(output),
        scratch_bytes=sum(buffer.nbytes for buffer in buffers),
    )
