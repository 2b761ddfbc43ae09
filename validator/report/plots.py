"""The pictures themselves: data in, paint on a figure. Nothing here reads, decides or rounds a number that is shown.

Rules:
1. Rows run from top to bottom in the order of the protocol, each with its name and its numbers in words above it.
2. Every difference that a colour shows, a shape or a line style shows as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from validator.report.figure import (
    BLUE,
    INK,
    LINE,
    MUTED,
    ORANGE,
    PAPER,
    SERIES,
    SKY,
    TONES,
    VERMILLION,
    label,
    plain,
    row_label,
    rows_axes,
    scale,
)
from validator.report.material import Block, ProcessRatio, Spread

SLOWDOWN, POWER_CAP = 0x8 | 0x20 | 0x40 | 0x80, 0x4
_ROW = 0.5  # inches
_WIDE = 3.0  # beyond this range of ratios the scale is logarithmic
_BINS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A row of a forest plot."""

    name: str
    words: str
    ratio: float | None
    lower: float | None
    upper: float | None
    unbounded: bool
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A row of the bandwidth figure, in GB/s."""

    name: str
    words: str
    unique: float | None
    issued: float | None
    copy: float | None
    read: float | None


def rows_height(rows: int, foot: float = 0.5) -> float:
    """Give the height in inches of a figure of so many rows."""
    return foot + 0.08 + _ROW * (rows + 0.35)


def _ratio_scale(axes: Axes, values: Sequence[float]) -> None:
    low, high = min(values), max(values)
    scale(axes, low, high, logarithmic=low > 0 and high / low > _WIDE)


def forest(figure: Figure, rows: Sequence[Interval], *, margin: float, band: bool) -> None:
    """Ratios with their intervals, the line of no difference and the line (or band) of the margin."""
    axes = rows_axes(figure, len(rows))
    limit = 1 + margin
    known = [value for row in rows for value in (row.ratio, row.lower, row.upper) if value is not None]
    _ratio_scale(axes, [*known, 1.0, limit, *([1 / limit] if band else [])])
    right = axes.get_xlim()[1]
    if band:
        axes.axvspan(1 / limit, limit, color=MUTED, alpha=0.12, linewidth=0)
        axes.axvline(1 / limit, color=VERMILLION, linestyle=(0, (4, 2)), linewidth=1.1)
    axes.axvline(1.0, color=MUTED, linewidth=1.0)
    axes.axvline(limit, color=VERMILLION, linestyle=(0, (4, 2)), linewidth=1.1)
    for place, row in enumerate(rows):
        colour, marker = TONES[row.tone]
        row_label(axes, place, label(row.name), row.words)
        if row.lower is not None:
            end = right if row.upper is None else row.upper
            axes.plot([row.lower, end], [place, place], color=INK, linewidth=1.4, solid_capstyle="butt")
            for value in (row.lower, row.upper):
                if value is not None:
                    axes.plot([value, value], [place - 0.1, place + 0.1], color=INK, linewidth=1.4)
            if row.unbounded:
                axes.plot([right], [place], marker=">", color=INK, markersize=6, clip_on=False)
        if row.ratio is not None:
            axes.plot([row.ratio], [place], marker=marker, color=colour, markeredgecolor=INK, markersize=6.5)
    axes.set_xlabel(f"ratio: candidate / baseline (dashed: margin {limit:.6g})")


def process_ratios(figure: Figure, rows: Sequence[tuple[str, str, Sequence[ProcessRatio]]], *, margin: float) -> None:
    """One dot per process pair, the first process at the top of its row."""
    axes = rows_axes(figure, len(rows))
    limit = 1 + margin
    known = [pair.ratio for _, _, pairs in rows for pair in pairs]
    _ratio_scale(axes, [*known, 1.0, limit])
    axes.axvline(1.0, color=MUTED, linewidth=1.0)
    axes.axvline(limit, color=VERMILLION, linestyle=(0, (4, 2)), linewidth=1.1)
    for place, (name, words, pairs) in enumerate(rows):
        row_label(axes, place, label(name), words)
        heights = place + np.linspace(-0.13, 0.3, len(pairs)) if len(pairs) > 1 else [place]
        ratios = [pair.ratio for pair in pairs]
        axes.plot(ratios, heights, color=LINE, linewidth=0.8)
        axes.plot(ratios, heights, "o", color=BLUE, markeredgecolor=PAPER, markersize=5, linestyle="none")
    axes.set_xlabel(f"ratio of one process pair (dashed: margin {limit:.6g})")


def distributions(figure: Figure, spreads: Sequence[Spread]) -> None:
    """A histogram per arm, with its quartiles and median below; what lies beyond the scale is named at its end."""
    axes = rows_axes(figure, len(spreads))
    values = [spread.values_ns / 1000 for spread in spreads]
    low = min(float(item[0]) for item in values)
    high = max(_far(item) for item in values)
    high = high if high > low else low + max(abs(low) * 0.01, 0.001)
    for place, (spread, item) in enumerate(zip(spreads, values, strict=True)):
        colour, _ = SERIES[{"candidate": 0, "baseline": 1}.get(spread.role, 4)]
        first, middle, third = np.quantile(item, (0.25, 0.5, 0.75)).tolist()
        row_label(axes, place, label(spread.arm), f"median {middle:.6g} µs, {len(item)} samples")
        counts, edges = np.histogram(item, bins=_BINS, range=(low, high))
        heights = place + 0.22 - 0.36 * counts / max(int(counts.max()), 1)
        axes.stairs(heights, edges, baseline=place + 0.22, fill=True, color=colour, alpha=0.55)
        axes.plot([first, third], [place + 0.3] * 2, color=INK, linewidth=2.2, solid_capstyle="butt")
        axes.plot([middle], [place + 0.3], marker="|", color=INK, markersize=8, markeredgewidth=1.6)
        beyond = int((item > high).sum())
        if beyond:
            axes.text(
                *(1.0, place + 0.08, f"{beyond} more, to {float(item[-1]):.5g} >"),
                transform=axes.get_yaxis_transform(),
                ha="right",
                fontsize=8,
                color=MUTED,
            )
    scale(axes, low, high)
    axes.set_xlabel("µs a call (bar: quartiles, tick: median)")


def _far(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """Give the end of a scale that a single outlier does not flatten."""
    low, high = np.quantile(values, (0.01, 0.99)).tolist()
    return float(min(values[-1], high + 3 * (high - low)))


def timeline(figure: Figure, blocks: Sequence[Block], arms: Sequence[str]) -> None:
    """Block medians in the order in which they ran; with telemetry the clock, the temperature and throttling too."""
    health = any(block.health is not None for block in blocks)
    places, bounds, names = _places(blocks)
    panels = figure.subplots(
        3 if health else 1, 1, sharex=True, squeeze=False, height_ratios=[2.2, 1, 1] if health else [1]
    )[:, 0]
    foot = 0.48 / figure.get_figheight()
    marked = any(block.health is not None and block.health.throttle & (SLOWDOWN | POWER_CAP) for block in blocks)
    head = (0.48 if marked else 0.3) / figure.get_figheight()
    figure.subplots_adjust(left=0.15, right=0.985, top=1 - head, bottom=foot, hspace=0.16)
    shown: list[tuple[str, float]] = []
    for place, arm in enumerate(arms):
        colour, marker = SERIES[place % len(SERIES)]
        mine = [(x, block) for x, block in zip(places, blocks, strict=True) if block.arm == arm]
        style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "none"}
        hollow = {"markersize": 4.2, "markerfacecolor": "none", "markeredgewidth": 1.0}
        style |= hollow if place else {"markersize": 3.8, "markeredgewidth": 0}
        xs = [x for x, _ in mine]
        panels[0].plot(xs, [block.median_ns / 1000 for _, block in mine], label=label(arm, 22), **style)
        if health:
            known = [(x, block.health) for x, block in mine if block.health is not None]
            xs = [x for x, _ in known]
            panels[1].plot(xs, [item.sm_clock_mhz for _, item in known], **style)
            panels[2].plot(xs, [item.temperature_c for _, item in known], **style)
            shown += [("slow", x) for x, item in known if item.throttle & SLOWDOWN]
            shown += [("cap", x) for x, item in known if item.throttle & POWER_CAP]
    _throttled(panels[0], shown)
    panels[0].legend(loc="lower left", bbox_to_anchor=(0, 0.99), ncols=2, borderaxespad=0, handletextpad=0.2)
    titles = ("µs a call", "SM MHz", "°C")
    for axes, title in zip(panels, titles, strict=False):
        axes.set_ylabel(title)
        axes.grid(axis="y")
        axes.margins(y=0.14)
        plain(axes)
        axes.yaxis.set_major_locator(MaxNLocator(4, min_n_ticks=2, integer=axes is not panels[0]))
        _room(axes)
        for bound in bounds:
            axes.axvline(bound, color=LINE, linewidth=0.8)
    every = -(-len(names) // 12)
    panels[-1].set_xticks([x for x, _ in names][::every], [text for _, text in names][::every])
    panels[-1].tick_params(axis="x", length=0)
    panels[-1].set_xlabel("process, each with its blocks in the order they ran")


def _room(axes: Axes) -> None:
    """Keep a scale from showing rounding as if it were change."""
    low, high = axes.get_ylim()
    middle = (low + high) / 2
    least = abs(middle) * 0.005
    if high - low < 2 * least:
        axes.set_ylim(middle - least, middle + least)


def _places(blocks: Sequence[Block]) -> tuple[list[float], list[float], list[tuple[float, str]]]:
    """Give the place of every block on the axis, the bounds between processes, and where processes are named."""
    places: list[float] = []
    bounds, names = [], []
    start = 0
    for process, group in groupby(blocks, key=lambda block: block.process):
        count = len(list(group))
        places += [start + i for i in range(count)]
        names.append((start + (count - 1) / 2, str(process)))
        start += count
        bounds.append(start - 0.5)
    return places, bounds[:-1], names


def _throttled(axes: Axes, marks: Sequence[tuple[str, float]]) -> None:
    place = axes.get_xaxis_transform()
    for kind, colour, marker, height, words in (
        ("slow", VERMILLION, "v", 0.94, "slowdown"),
        ("cap", ORANGE, "x", 0.85, "power cap"),
    ):
        xs = [x for name, x in marks if name == kind]
        if xs:
            axes.plot(
                *(xs, [height] * len(xs)),
                color=colour,
                marker=marker,
                linestyle="none",
                markersize=4.5,
                transform=place,
                label=words,
                clip_on=False,
            )


def bandwidth(figure: Figure, rows: Sequence[Rate], *, peak: float | None) -> None:
    """Unique and issued bytes over the median, against the ceilings of the same point."""
    axes = rows_axes(figure, len(rows), foot=0.72)
    known = [value for row in rows for value in (row.unique, row.issued, row.copy, row.read) if value is not None]
    scale(axes, 0.0, max([*known, peak or 0.0, 1e-9]))
    axes.set_xlim(left=0)
    if peak is not None:
        axes.axvline(peak, color=INK, linestyle=":", linewidth=1.0, label="locked peak")
    for place, row in enumerate(rows):
        row_label(axes, place, label(row.name, 34), row.words)
        axes.plot([0, max(row.unique or 0, row.issued or 0)], [place] * 2, color=LINE, linewidth=1.0)
        for value, style, colour in ((row.copy, (0, (2, 1)), INK), (row.read, "-", SKY)):
            if value is not None:
                axes.plot([value] * 2, [place - 0.18, place + 0.22], color=colour, linestyle=style, linewidth=1.8)
        if row.issued is not None:
            axes.plot(
                [row.issued], [place], "D", color=PAPER, markeredgecolor=ORANGE, markeredgewidth=1.4, markersize=6
            )
        if row.unique is not None:
            axes.plot([row.unique], [place], "o", color=BLUE, markeredgecolor=PAPER, markersize=6)
    _bandwidth_legend(axes, peak)


def _bandwidth_legend(axes: Axes, peak: float | None) -> None:
    handles = [
        Line2D([], [], color=BLUE, marker="o", linestyle="none", label="unique"),
        Line2D([], [], color=PAPER, marker="D", markeredgecolor=ORANGE, linestyle="none", label="issued"),
        Line2D([], [], color=INK, linestyle=(0, (2, 1)), linewidth=1.8, label="copy ceiling"),
        Line2D([], [], color=SKY, linewidth=1.8, label="read ceiling"),
    ]
    if peak is not None:
        handles.append(Line2D([], [], color=INK, linestyle=":", linewidth=1.0, label="peak"))
    axes.set_xlabel("GB/s")
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.36 / (_ROW * (axes.get_ylim()[0] + 0.75))),
        ncols=len(handles),
        handlelength=1.3,
        handletextpad=0.3,
        columnspacing=0.9,
        borderaxespad=0,
    )
