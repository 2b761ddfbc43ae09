"""Every picture of a report with its caption and the table behind it.

Rules:
1. A picture that has nothing to show is not there; whoever looks finds out why in the caption of its section.
2. The table behind a picture holds what is drawn, in full; blocks of a long run are summarised by process, and said so.
3. Points beyond the first twelve have no picture of their own; every table of numbers has them all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from validator.findings import ArmSummary, Comparison, Control, Report
from validator.report.facts import TITLES, confidence, deciding_look, member_verdict, tone
from validator.report.figure import draw
from validator.report.material import Block, Material
from validator.report.plots import (
    POWER_CAP,
    SLOWDOWN,
    Interval,
    Rate,
    bandwidth,
    distributions,
    forest,
    process_ratios,
    rows_height,
    timeline,
)
from validator.report.table import against, number

MOST_POINTS = 12
_MOST_BLOCK_ROWS = 600

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure, what it shows, and the table behind it; ``text_columns`` are aligned to the left."""

    kind: str
    title: str
    svg: str
    note: str
    head: Cells
    rows: tuple[Cells, ...]
    text_columns: int = 1


@dataclass(slots=True)
class Gallery:
    """All pictures of one bundle, numbered as they come."""

    report: Report
    material: Material
    prefix: str
    count: int = 0

    def name(self) -> str:
        """Give the next identifier."""
        self.count += 1
        return f"{self.prefix}f{self.count}"

    def ratios(self) -> Iterator[Picture]:
        """Forest plot, then the process pairs, of every comparison."""
        numbers = self.report.numbers
        items = numbers.comparisons if numbers is not None else ()
        for (candidate, baseline), group in groupby(items, key=lambda item: (item.candidate, item.baseline)):
            listed = list(group)
            yield self._forest(f"{candidate} / {baseline}", listed)
            if any(self.material.ratios.get((candidate, baseline, item.operating_point)) for item in listed):
                yield self._processes(candidate, baseline, listed)

    def _forest(self, name: str, items: Sequence[Comparison]) -> Picture:
        rows = [_interval(item, item.operating_point, tone(member_verdict(self.report, item))) for item in items]
        spoken = "; ".join(
            f"{item.operating_point}: {row.words}, {TITLES[member_verdict(self.report, item)]}"
            for item, row in zip(items, rows, strict=True)
        )
        margin = items[0].margin
        title = f"Ratios of {name} with {confidence(self.report)} intervals"
        return Picture(
            kind="forest",
            title=title,
            svg=draw(
                rows_height(len(rows)),
                lambda figure: forest(figure, rows, margin=margin, band=False),
                title=title,
                description=f"Latency ratio, lower is better; limit {1 + margin:.12g}. {spoken}.",
                prefix=self.name(),
            ),
            note="Round: claim shown; diamond: inconclusive; square: inferior. An arrow stands for a bound without end.",
            head=(
                "operating point",
                "ratio",
                "lower",
                "upper",
                "limit",
                "pairs",
                "p (non-inf.)",
                "p (sup.)",
                "verdict",
            ),
            rows=tuple(
                (
                    item.operating_point,
                    number(item.ratio, 8),
                    number(item.lower, 8),
                    "unbounded" if item.unbounded else number(item.upper, 8),
                    f"{1 + item.margin:.12g}",
                    str(item.pairs),
                    number(item.p_non_inferior, 4),
                    number(item.p_superior, 4),
                    TITLES[item.verdict] + (" (guarded)" if item.guarded else ""),
                )
                for item in items
            ),
        )

    def _processes(self, candidate: str, baseline: str, items: Sequence[Comparison]) -> Picture:
        look = deciding_look(self.report)
        pairs = {
            item.operating_point: [
                pair
                for pair in self.material.ratios.get((candidate, baseline, item.operating_point), ())
                if look is None or pair.process < look
            ]
            for item in items
        }
        known = {point: found for point, found in pairs.items() if found}
        rows = [
            (point, f"{min(p.ratio for p in found):.5g} to {max(p.ratio for p in found):.5g}", found)
            for point, found in known.items()
        ]
        title = f"Process pairs of {candidate} / {baseline}"
        spoken = "; ".join(f"{point}: {len(found)} pairs, {words}" for point, words, found in rows)
        return Picture(
            kind="processes",
            title=title,
            svg=draw(
                rows_height(len(rows)),
                lambda figure: process_ratios(figure, rows, margin=items[0].margin),
                title=title,
                description=f"One ratio of medians per process pair. {spoken}.",
                prefix=self.name(),
            ),
            note="A process pair is one fresh process with both arms interleaved: the unit of inference. "
            "Process 0 is the highest dot of its row; a slant is drift from process to process.",
            head=("operating point", "process", f"{candidate} µs", f"{baseline} µs", "ratio"),
            rows=tuple(
                (
                    *(point, str(pair.process)),
                    *(number(pair.candidate_ns / 1000), number(pair.baseline_ns / 1000), number(pair.ratio, 7)),
                )
                for point, found in known.items()
                for pair in found
            ),
        )

    def controls(self) -> Iterator[Picture]:
        """Forest plot of the controls, one picture per control arm."""
        numbers = self.report.numbers
        items = numbers.controls if numbers is not None else ()
        margin = self.report.context.margin
        for arm, group in groupby(items, key=lambda item: item.arm):
            listed = list(group)
            if margin is None:
                return
            yield self._control(arm, listed, margin)

    def _control(self, arm: str, items: Sequence[Control], margin: float) -> Picture:
        rows = [_interval(item, item.operating_point, _control_tone(item, margin)) for item in items]
        of, role = items[0].of, items[0].role
        twin = role == "aa_control"
        title = f"{'A/A' if twin else 'Positive'} control: {arm} / {of}"
        spoken = "; ".join(f"{item.operating_point}: {row.words}" for item, row in zip(items, rows, strict=True))
        aim = "inside both dashed lines" if twin else "above 1, with its upper bound beyond the margin"
        return Picture(
            kind="controls",
            title=title,
            svg=draw(
                rows_height(len(rows)),
                lambda figure: forest(figure, rows, margin=margin, band=twin),
                title=title,
                description=f"The interval must lie {aim}. {spoken}.",
                prefix=self.name(),
            ),
            note=f"{arm} is {'the same kernel as' if twin else 'made slower on purpose, by 1.5 margins, than'} {of}: "
            f"its interval must lie {aim}.",
            head=("operating point", "ratio", "lower", "upper", "pairs", "p (differs)", "p (Holm)", "dose"),
            rows=tuple(
                (
                    item.operating_point,
                    number(item.ratio, 8),
                    number(item.lower, 8),
                    "unbounded" if item.unbounded else number(item.upper, 8),
                    str(item.pairs),
                    number(item.p_differs, 4),
                    number(item.p_differs_holm, 4),
                    number(item.dose, 4),
                )
                for item in items
            ),
        )

    def distributions(self) -> Iterator[Picture]:
        """All samples of every arm but the ceilings, one picture per point."""
        for point, spreads in list(self.material.spreads.items())[:MOST_POINTS]:
            quantiles = [
                np.quantile(spread.values_ns / 1000, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)) for spread in spreads
            ]
            title = f"Latency at {point}"
            spoken = "; ".join(
                f"{spread.arm}: median {found[3]:.6g}, quartiles {found[2]:.6g} and {found[4]:.6g}"
                for spread, found in zip(spreads, quantiles, strict=True)
            )
            yield Picture(
                kind="distributions",
                title=title,
                svg=draw(
                    rows_height(len(spreads)),
                    lambda figure, shown=spreads: distributions(figure, shown),  # type: ignore[misc]
                    title=title,
                    description=f"Microseconds a call over all timed samples of all processes. {spoken}.",
                    prefix=self.name(),
                ),
                note="",
                head=("arm", "samples", "least", "5 %", "25 %", "median", "75 %", "95 %", "most"),
                rows=tuple(
                    (spread.arm, str(len(spread.values_ns)), *(f"{value:.6g}" for value in found))
                    for spread, found in zip(spreads, quantiles, strict=True)
                ),
            )

    def timelines(self) -> Iterator[Picture]:
        """Block medians in the order they ran, with telemetry where there is some, one picture per point."""
        for point, blocks in list(self.material.blocks.items())[:MOST_POINTS]:
            present = {block.arm for block in blocks}
            arms = [arm for arm in self._arms() if arm in present]
            health = [block.health for block in blocks if block.health is not None]
            title = f"Latency over time at {point}"
            spoken = f"{len(blocks)} block medians of {len({block.process for block in blocks})} processes"
            if health:
                clocks = [item.sm_clock_mhz for item in health]
                heat = [item.temperature_c for item in health]
                slowed = sum(bool(item.throttle & SLOWDOWN) for item in health)
                capped = sum(bool(item.throttle & POWER_CAP) for item in health)
                spoken += (
                    f"; SM clock {min(clocks)} to {max(clocks)} MHz, {min(heat)} to {max(heat)} °C, slowed down by "
                    f"hardware or heat in {slowed} and held by the power cap in {capped} of {len(health)} block rows"
                )
            head, rows = _block_table(blocks)
            yield Picture(
                kind="timeline",
                title=title,
                svg=draw(
                    3.5 if health else 2.1,
                    lambda figure, shown=blocks, names=arms: timeline(figure, shown, names),  # type: ignore[misc]
                    title=title,
                    description=spoken + ".",
                    prefix=self.name(),
                ),
                note=spoken[0].upper() + spoken[1:] + "." if health else "",
                head=head,
                rows=rows,
                text_columns=3,
            )

    def _arms(self) -> list[str]:
        """Give the arms of the comparisons: candidates first, as everywhere."""
        pairs = list(self.material.ratios)
        return list(dict.fromkeys([*(pair[0] for pair in pairs), *(pair[1] for pair in pairs)]))

    def bandwidths(self) -> Iterator[Picture]:
        """Both byte accountings against the ceilings of the same point."""
        numbers = self.report.numbers
        arms = numbers.arms if numbers is not None else ()
        ceilings = {
            (item.operating_point, self.material.ceilings[item.arm]): item.gb_per_s
            for item in arms
            if item.arm in self.material.ceilings
        }
        rows = [
            _rate(item, ceilings)
            for item in arms
            if item.unique_bytes is not None and item.median_ns and item.role in ("candidate", "baseline", "comparator")
        ]
        if not rows:
            return
        title = "Bandwidth against the ceilings of the same run"
        yield Picture(
            kind="bandwidth",
            title=title,
            svg=draw(
                rows_height(len(rows), 0.72),
                lambda figure: bandwidth(figure, rows, peak=self.material.peak_gb_per_s),
                title=title,
                description="Gigabytes a second. " + "; ".join(f"{row.name}: {row.words}" for row in rows) + ".",
                prefix=self.name(),
            ),
            note="Unique bytes count each distinct expert once, issued bytes as often as it is asked for: a rate of issued "
            "bytes beyond the ceilings means that a cache served them. Ceilings are kernels of the same process and point.",
            head=("operating point, arm", "unique GB/s", "issued GB/s", "copy ceiling", "read ceiling"),
            rows=tuple(
                (row.name, *(number(value) for value in (row.unique, row.issued, row.copy, row.read))) for row in rows
            ),
        )


def _interval(item: Comparison | Control, name: str, kind: str) -> Interval:
    upper = "no end" if item.unbounded else against(item.upper, 1.0)
    words = number(item.ratio) if item.lower is None else f"{number(item.ratio)} [{against(item.lower, 1.0)}, {upper}]"
    return Interval(
        name=name,
        words=words,
        ratio=item.ratio,
        lower=item.lower,
        upper=item.upper,
        unbounded=item.unbounded,
        tone=kind,
    )


def _control_tone(item: Control, margin: float) -> str:
    if item.lower is None:
        return "open"
    if item.role == "aa_control":
        inside = item.lower > 1 / (1 + margin) and item.upper is not None and item.upper < 1 + margin
        return "good" if inside else "bad"
    return "good" if item.lower > 1 and (item.upper is None or item.upper >= 1 + margin) else "bad"


def _rate(item: ArmSummary, ceilings: dict[tuple[str, str], float | None]) -> Rate:
    issued = item.issued_bytes / item.median_ns if item.issued_bytes is not None and item.median_ns else None
    share = [
        f"{percent:.4g} % of {kind}"
        for kind, percent in (("copy", item.percent_of_copy), ("read", item.percent_of_read))
        if percent is not None
    ]
    return Rate(
        name=f"{item.operating_point}, {item.arm}",
        words=", ".join(share) or f"{number(item.gb_per_s)} GB/s",
        unique=item.gb_per_s,
        issued=issued,
        copy=ceilings.get((item.operating_point, "copy")),
        read=ceilings.get((item.operating_point, "read")),
    )


def _block_table(blocks: Sequence[Block]) -> tuple[Cells, tuple[Cells, ...]]:
    """Give the table of blocks; of a long run by process and arm."""
    first = min(block.start_s for block in blocks)
    health = any(block.health is not None for block in blocks)
    short = len(blocks) <= _MOST_BLOCK_ROWS
    head: Cells = ("process", "block" if short else "blocks", "arm", "start s", "median µs")
    head += ("SM MHz (least)", "°C (most)", "W (most)", "throttle bits") if health else ()
    groups: dict[tuple[int, str, str], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.process, str(block.block) if short else "all", block.arm), []).append(block)
    rows = []
    for (process, which, arm), items in groups.items():
        cells: Cells = (str(process), which, arm, f"{min(item.start_s for item in items) - first:.3f}")
        cells += (number(float(np.median([item.median_ns for item in items])) / 1000),)
        known = [item.health for item in items if item.health is not None]
        if health and known:
            bits = 0
            for entry in known:
                bits |= entry.throttle
            cells += (str(min(entry.sm_clock_mhz for entry in known)), str(max(entry.temperature_c for entry in known)))
            cells += (number(max(entry.power_w for entry in known), 4), f"0x{bits:x}")
        elif health:
            cells += ("-",) * 4
        rows.append(cells)
    return head, tuple(rows)
