"""One token among different numbers of others: does it keep its bits?

Rules:
1. Rows are those of ``correctness`` under truth ``batch``: token 0 of the largest batch among the first tokens of that batch, at every batch of the
   protocol, compared with itself at the smallest (results/README.md, "Tables").
2. Points that differ in the batch alone belong together; the reference is the first row at the smallest batch. A point is equal where all its rows,
   of all analysed attempts, have the reference's digest.
3. What was seen is said of the batches that were tested, and of no other.
"""

import math

from validator.reading.rows import View
from validator.supplement import Invariance

TRUTH = "batch"


def invariance(view: View) -> dict[tuple[str, str], Invariance]:
    """Give what was seen of each (arm, point) that has such rows; points of one group share one entry."""
    frame = view.bundle.frame("correctness")
    if frame is None:
        return {}
    analysed = {(record.process, record.attempt) for record, _ in view.records() if record.analysed}
    rows: dict[tuple[str, str], list[int]] = {}
    for row in range(frame.rows):
        if frame.text("truth", row) == TRUTH and frame.process(row) in analysed:
            rows.setdefault((frame.text("arm", row), frame.text("point", row)), []).append(row)
    groups: dict[tuple[tuple[str, int | str], ...], list[str]] = {}
    for point in sorted(view.protocol.points, key=view.protocol.tokens):
        groups.setdefault(point.other_values("batch"), []).append(point.id)
    batches = {point.id: str(point.value("batch")) for point in view.protocol.points}
    found: dict[tuple[str, str], Invariance] = {}
    for arm in view.protocol.arms:
        for others, group in groups.items():
            tested = [point for point in group if (arm.name, point) in rows]
            if not tested:
                continue
            digests = {point: [frame.text("output_sha256", row) for row in rows[arm.name, point]] for point in tested}
            reference = digests[tested[0]][0]
            equal = sum(set(each) == {reference} for each in digests.values())
            errors = [frame.real("max_abs_error", row) for point in tested for row in rows[arm.name, point]]
            entry = Invariance(
                arm=arm.name,
                batches=", ".join(batches[point] for point in tested),
                others=",".join(f"{name}={value}" for name, value in others),
                tested=len(tested),
                equal=equal,
                outputs=len({digest for each in digests.values() for digest in each}),
                max_abs_difference=max(errors) if all(map(math.isfinite, errors)) else None,
                seen="batch-invariant over these" if equal == len(tested) else "batch-variant",
            )
            found |= {(arm.name, point): entry for point in tested}
    return found
