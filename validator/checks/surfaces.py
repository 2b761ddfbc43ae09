"""The surfaces of a study belong together: each follows from the one before, and the products from the layer.

Rules (results/README.md, "Mechanism bundles"):
1. Final surfaces are held to the bit; so are activations of ``cpu-emulation``, and to two float16 numbers on a GPU, whose
   exponential is approximate.
2. W13 and routed W2 are held to the exact products, where the layer is synthetic and the one that ran; rows of skipped routes are 0.
3. Tensors that several processes name are held together once. What is not stored in its shape is said elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validator.findings import Finding
from validator.reading.canonical import sha256
from validator.reading.study import Study
from validator.reading.study_assets import Plans
from validator.reading.tables import Frame
from validator.reasons import Reason
from validator.recompute.layer import Floats, Layer, input_bytes
from validator.recompute.surfaces import Halves, activated, apart, strangers, summed

_STEPS_OF_A_GPU = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pair:
    """A surface and the one that it follows from, of the first trajectory that names both."""

    row: int
    before: str
    name: str
    source: Halves
    found: Halves

    def finding(self, surface: str, expected: str, got: str) -> Finding:
        where = f"trajectories.parquet[{self.row}]:{surface}_sha256"
        return Finding(reason=Reason.SURFACE_CONTRADICTION, where=where, expected=expected, got=got)

    def element(self, surface: str, wrong: NDArray[np.bool_], exact: Halves | Floats, rule: str) -> Finding:
        """Name the first element that is wrong, and say how many are."""
        at = tuple(int(places[0]) for places in wrong.nonzero())
        expected = f"{rule}: {float(exact[at]):.4g} at [{at[0]},{at[1]}]"
        return self.finding(
            surface, expected, f"{float(self.found[at])!r}, {int(wrong.sum())} such elements in {self.name}"
        )


def contradictions(
    study: Study, plans: Plans, layer: Layer | None, trajectories: Frame, surfaces: Frame
) -> Iterator[Finding]:
    """Say which surfaces contradict each other or the layer; None is a layer whose weights are not known."""
    stored = {
        (surfaces.text("sha256", row), surfaces.text("shape", row)): surfaces.blobs["bytes"][row]
        for row in range(surfaces.rows)
    }

    def pairs(before: str, surface: str) -> list[_Pair]:
        seen: dict[tuple[str, str], int] = {}
        for row in range(trajectories.rows):
            names = trajectories.text(f"{before}_sha256", row), trajectories.text(f"{surface}_sha256", row)
            seen.setdefault(names, row)
        shapes = study.sizes.shape(before), study.sizes.shape(surface)
        found = []
        for names, row in seen.items():
            data = [stored.get((name, "{}x{}".format(*shape)), b"") for name, shape in zip(names, shapes, strict=True)]
            if all(len(item) == 2 * shape[0] * shape[1] for item, shape in zip(data, shapes, strict=True)):
                source, own = (np.frombuffer(d, dtype="<f2").reshape(s) for d, s in zip(data, shapes, strict=True))
                found.append(_Pair(row=row, before=names[0], name=names[1], source=source, found=own))
        return found

    for pair in pairs("routed_w2", "final"):
        wanted = sha256(summed(pair.source, study.sizes).tobytes())
        if wanted != sha256(pair.found.tobytes()):
            yield pair.finding("final", f"{wanted}, the sum of {pair.before}", pair.name)
    steps = 0 if study.engine == "cpu-emulation" else _STEPS_OF_A_GPU
    for pair in pairs("w13", "activation"):
        exact = activated(pair.source)
        wrong = apart(exact, pair.found) > steps
        if wrong.any():
            yield pair.element("activation", wrong, exact, f"silu(gate) * up of {pair.before}, {steps} steps aside")
    ids = np.array(plans.ids)
    skipped = np.flatnonzero(ids < 0)
    for surface in ("w13", "routed_w2"):
        for pair in pairs(surface, surface):
            wrong = np.zeros(pair.found.shape, dtype=np.bool_)
            wrong[skipped] = pair.found[skipped] != 0
            if wrong.any():
                yield pair.element(surface, wrong, np.zeros_like(pair.found), "nothing of a skipped route")
    if layer is not None:
        x = np.frombuffer(input_bytes(study.sizes), dtype="<f2").reshape(study.sizes.tokens, -1).astype(np.float32)
        x = np.repeat(x, study.sizes.top_k, axis=0)
        with np.errstate(over="ignore"):
            scale = np.array(plans.weights, dtype=np.float32).astype(np.float16).astype(np.float32)
        yield from _products("w13", pairs("w13", "w13"), layer, ids, np.ones_like(scale), x)
        yield from _products("w2", pairs("activation", "routed_w2"), layer, ids, scale)


def _products(
    gemm: str,
    pairs: list[_Pair],
    layer: Layer,
    ids: NDArray[np.int64],
    scale: Floats,
    x: Floats | None = None,
) -> Iterator[Finding]:
    """Hold products of all pairs to the exact ones, expert by expert; the input is ``x``, or else each pair's own source."""
    wrong = [np.zeros(pair.found.shape, dtype=np.bool_) for pair in pairs]
    exact = [np.zeros(pair.found.shape, dtype=np.float32) for pair in pairs]
    for expert, weight in layer.weights[gemm].items() if pairs else ():
        routes = np.flatnonzero(ids == expert)
        inputs = [(pair.source if x is None else x)[routes].astype(np.float32) for pair in pairs]
        found = np.concatenate([pair.found[routes] for pair in pairs])
        said = strangers(found, np.concatenate(inputs), weight, np.tile(scale[routes], len(pairs)))
        for i in range(len(pairs)):
            own = slice(i * len(routes), (i + 1) * len(routes))
            wrong[i][routes], exact[i][routes] = said[0][own], said[1][own]
    surface, source = ("w13", "the input") if x is not None else ("routed_w2", "its activation")
    for pair, marks, values in zip(pairs, wrong, exact, strict=True):
        if marks.any():
            yield pair.element(surface, marks, values, f"near the product of {source} and the layer")
