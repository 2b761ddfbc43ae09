"""One stage of the eight-stage path alone, on what the stages before it left: arms with the role ``component``.

Rules:
1. Preparation runs the whole path once on copy 0; after that only the stage runs, so that its inputs stay as they are.
2. A stage is compared with a reference of itself alone, from its own inputs: exactly for sort, pad, gather and scatter, in fp64 for the others.
   ``original``: up and down multiply the weights before quantisation; the other stages have no weights, and one truth.
3. Rows are compared in the order of the routes, padding is not compared. Where a table is wrong the output is NaN: it never passes.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch

from benchkit.errors import DataError
from benchkit.fixture.layer import MoeInputs
from benchkit.fixture.mxfp8 import dequantise, quantise
from benchkit.kernels.contract import Params, PreparedArm, Support
from benchkit.kernels.expert_centric import EightStage, as_float, compile_stages, poison, problem_of
from benchkit.kernels.expert_centric_tiles import parse_tiles
from benchkit.kernels.reference import expert_weights
from benchkit.units import FloatArray


class Order:
    """Where every route stands, derived here from the ids alone, in plain numpy."""

    def __init__(self, path: EightStage) -> None:
        ids = path.inputs.topk_ids.cpu().numpy().reshape(-1)
        experts, tile = path.inputs.weights.experts, path.tiles.tile_m
        self.ids = ids
        self.counts = np.bincount(ids, minlength=experts)
        blocks = -(-self.counts // tile)
        self.starts = (np.cumsum(blocks) - blocks) * tile
        self.rank = np.array([np.count_nonzero(ids[:route] == expert) for route, expert in enumerate(ids)])
        self.rows = self.starts[ids] + self.rank
        self.block_expert = np.full(path.blocks, -1)
        self.block_rows = np.zeros(path.blocks, dtype=np.int64)
        used = np.repeat(np.arange(experts), blocks)
        self.block_expert[: len(used)] = used
        within = np.arange(len(used)) - (self.starts // tile)[used]
        self.block_rows[: len(used)] = np.minimum(self.counts[used] - within * tile, tile)


Read: TypeAlias = Callable[[], FloatArray]
Expect: TypeAlias = Callable[[str], FloatArray]  # of a truth


class Stage:
    """A prepared path, the outputs of one of its stages, and how to read and to expect them."""

    def __init__(self, path: EightStage, name: str) -> None:
        self.path, self.name, self.order = path, name, Order(path)
        tables: Mapping[str, tuple[tuple[torch.Tensor, ...], Read, Expect]] = {
            "sort": ((path.rank, path.counts), self._sort, lambda _: _numbers(self.order.rank, self.order.counts)),
            "pad": ((path.starts, path.block_expert, path.block_rows), self._pad, self._expect_pad),
            "gather": ((path.row_of_route, path.gathered), self._gather, self._expect_gather),
            "up": ((path.gate_up,), lambda: self._rows(path.gate_up), lambda t: self._product(path.gathered, 0, t)),
            "silu": ((path.activated,), lambda: self._rows(path.activated), self._expect_silu),
            "down": ((path.padded,), lambda: self._rows(path.padded), lambda t: self._product(path.activated, 1, t)),
            "scatter": ((path.routed,), lambda: as_float(path.routed), lambda _: self._rows(path.padded)),
            "combine": ((path.y,), lambda: as_float(path.y), self._expect_combine),
        }
        self.outputs, self.read, self.expect = tables[name]

    def _rows(self, padded: torch.Tensor) -> FloatArray:
        return as_float(padded[torch.from_numpy(self.order.rows).to(padded.device)])

    def _through_mxfp8(self, values: torch.Tensor) -> torch.Tensor:
        return dequantise(*quantise(values.float())) if self.path.mxfp8 else values

    def _sort(self) -> FloatArray:
        return _numbers(self.path.rank.cpu().numpy(), self.path.counts.cpu().numpy())

    def _pad(self) -> FloatArray:
        path = self.path
        return _numbers(*(table.cpu().numpy() for table in (path.starts, path.block_expert, path.block_rows)))

    def _expect_pad(self, _: str) -> FloatArray:
        return _numbers(self.order.starts, self.order.block_expert, self.order.block_rows)

    def _gather(self) -> FloatArray:
        values = self._rows(self.path.gathered)
        values[self.path.row_of_route.cpu().numpy() != self.order.rows] = np.nan
        return values

    def _expect_gather(self, _: str) -> FloatArray:
        inputs = self.path.inputs
        return as_float(self._through_mxfp8(inputs.x).repeat_interleave(inputs.top_k, dim=0))

    def _product(self, padded: torch.Tensor, matrix: int, truth: str) -> FloatArray:
        """Rows of every route times their expert's w13 (``matrix`` 0) or w2 (1), in fp64."""
        rows = torch.from_numpy(self._rows(padded)).to(padded.device)
        weights = self.path.inputs.weights
        width = int((weights.w13, weights.w2)[matrix][0].shape[1])
        result = torch.zeros((len(rows), width), dtype=torch.float64, device=rows.device)
        for expert in np.unique(self.order.ids).tolist():
            routes = torch.from_numpy(np.flatnonzero(self.order.ids == expert)).to(rows.device)
            result[routes] = rows[routes] @ expert_weights(weights, expert, truth)[matrix].t()
        return as_float(result)

    def _expect_silu(self, _: str) -> FloatArray:
        gate, up = torch.from_numpy(self._rows(self.path.gate_up)).chunk(2, dim=1)
        return as_float(self._through_mxfp8(gate * torch.sigmoid(gate) * up))

    def _expect_combine(self, _: str) -> FloatArray:
        inputs = self.path.inputs
        routed = as_float(self.path.routed).reshape(inputs.tokens, inputs.top_k, -1)
        shares = as_float(inputs.topk_weights)
        return np.asarray(np.einsum("tk,tkh->th", shares, routed), dtype=np.float64)


def prepare_stage(inputs: MoeInputs, params: Params) -> PreparedArm | Support:
    """``stage``: a name of EightStage.names; the other parameters are those of the eight-stage path.

    Raises DataError on another stage.
    """
    name = params.get("stage")
    if name not in EightStage.names:
        raise DataError(f"params.stage: expected one of {', '.join(EightStage.names)}, found {name!r}")
    tiles = parse_tiles(params)
    problem = problem_of(inputs, tiles)
    if problem is not None:
        return Support.no(problem)
    path = EightStage(inputs, tiles)
    binaries = compile_stages(path)
    stage = Stage(path, str(name))
    launch = path.stage(str(name))

    def call(copy: int) -> None:
        launch(copy)

    return PreparedArm(
        call=call,
        output=stage.read,
        poison=lambda: poison(*stage.outputs),
        expected=stage.expect,
        output_bytes=lambda: stage.read().tobytes(),  # not those of the buffers: no stage defines their padding
        scratch_bytes=sum(buffer.nbytes for buffer in path.buffers.values()),
        binaries={key: value for key, value in binaries.items() if key.startswith(f"moe-{name}-")},
    )


def _numbers(*tables: "np.ndarray[tuple[int, ...], np.dtype[np.integer]]") -> FloatArray:
    """Whole numbers as fp64, one after the other; two is added, so that 0 and the poison -1 count in a relative error."""
    return np.concatenate([table.astype(np.float64) for table in tables]) + 2.0
