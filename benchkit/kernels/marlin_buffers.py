"""Memory that all Marlin arms of a process share, so that they differ in what they do and never in where their bytes stand.

Rules:
1. One workspace of lock words a layer, as vLLM has it; one set of buffers for each set of inputs and block. Both go with the fixture.
2. Calls of a process follow each other on one stream, and every check poisons, calls and reads: no arm sees what another one left.
3. Lock words are zeroed at every preparation: nothing that an earlier call left can hang the next.

Arms that launched the same kernels over buffers of their own differed by up to 2.8 % at one token within a process, each steady to about 0.3 %
(results/marlin-stable-alignment-h200). That the addresses did it is a suspicion; with shared memory it can be told.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from benchkit.fixture.layer import MoeInputs, MoeWeights
from benchkit.kernels import alignment
from benchkit.kernels.alignment import AlignedRoutes

MOST_PER_SM = 4  # the most CUDA blocks of an SM, and lock words that vLLM has for each


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarlinBuffers:
    """What a call writes, in the sizes that vLLM gives it.

    Parameters
    ----------
    routes:
        The alignment.
    products:
        float16, flat: the larger of W13's output [routes, 2 * intermediate] and W2's [routes, hidden], which share it.
    activated:
        float16 [routes, intermediate].
    y:
        float16 [tokens, hidden].
    """

    routes: AlignedRoutes
    products: torch.Tensor
    activated: torch.Tensor
    y: torch.Tensor


_buffers: WeakKeyDictionary[MoeInputs, dict[int, MarlinBuffers]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[MoeWeights, torch.Tensor] = WeakKeyDictionary()


def marlin_buffers(inputs: MoeInputs, block: int) -> MarlinBuffers:
    """The buffers of these inputs in blocks of ``block`` rows, made when first asked for."""
    made = _buffers.setdefault(inputs, {})
    if block not in made:
        weights, device, routes = inputs.weights, inputs.x.device, inputs.routing.routes
        width = max(2 * weights.intermediate, weights.hidden)
        made[block] = MarlinBuffers(
            routes=alignment.allocate(routes, weights.experts, block, device),
            products=torch.empty(routes * width, dtype=torch.float16, device=device),
            activated=torch.empty((routes, weights.intermediate), dtype=torch.float16, device=device),
            y=torch.empty_like(inputs.x),
        )
    return made[block]


def lock_words(weights: MoeWeights) -> torch.Tensor:
    """The layer's lock words of split tiles, int32 [multiprocessors * 4], all zero."""
    if weights not in _locks:
        device = weights.w13[0].device
        _locks[weights] = torch.empty(multiprocessors(device) * MOST_PER_SM, dtype=torch.int32, device=device)
    with torch.inference_mode():  # they may have been made in it
        return _locks[weights].zero_()


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 elsewhere."""
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
