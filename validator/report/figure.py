"""Figures as inline SVG: one canvas, one palette, and what makes a figure readable for everybody.

Rules:
1. Colours are those of Okabe and Ito, never alone: every series has its shape too. Ink and paper follow the page, by
   CSS variables, so that one picture serves light, dark and print.
2. Every picture has a title and a description; its identifiers carry a prefix, so that several fit into one document.
3. The same data give the same bytes: no date, a fixed salt, no reference to anything outside.
"""

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from validator.report.facts import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.2  # inches: 302 units, so that text stays readable on a screen of 360 pixels
INK, MUTED, LINE, PAPER = "#010101", "#010102", "#010103", "#010104"
BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"
TONES = {"good": (GREEN, "o"), "open": (ORANGE, "D"), "bad": (VERMILLION, "s")}
SERIES = (
    (BLUE, "o"),
    (ORANGE, "s"),
    (GREEN, "^"),
    (PURPLE, "v"),
    (SKY, "D"),
    (VERMILLION, "P"),
)
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    PAPER: "var(--paper)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    VERMILLION: "var(--vermillion)",
    SKY: "var(--sky)",
    PURPLE: "var(--purple)",
}
_STYLE: dict[Any, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "validator",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.unicode_minus": False,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.markeredgewidth": 0.7,
}
_COLOUR = re.compile("|".join(map(re.escape, _VARIABLES)))
_LONGEST_LABEL = 30


def label(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Make a name fit into a figure; the table behind it has the whole name."""
    shown = clean(text)
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def rows_axes(figure: Figure, rows: int, *, foot: float = 0.5, head: float = 0.08) -> "Axes":
    """Give axes for labelled rows from top to bottom, over the whole width; ``foot`` inches are left for the scale."""
    height = figure.get_figheight()
    axes = figure.add_axes((0.015, foot / height, 0.95, (height - foot - head) / height))
    axes.set_ylim(rows - 0.4, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    return axes


def row_label(axes: "Axes", row: float, left: str, right: str) -> None:
    """Write a name and its numbers above a row."""
    place = axes.get_yaxis_transform()
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
    axes.text(
        *(1.0, row - 0.36, right), transform=place, ha="right", va="center", color=MUTED, fontsize=8.5, bbox=behind
    )
    axes.text(*(0.0, row - 0.36, left), transform=place, ha="left", va="center", fontweight="bold", bbox=behind)


def scale(axes: "Axes", low: float, high: float, *, logarithmic: bool = False) -> None:
    """Set the horizontal scale, a little wider than the data, with plain numbers on it."""
    if logarithmic:
        axes.set_xscale("log")
        pad = (high / low) ** 0.06
        axes.set_xlim(low / pad, high * pad)
        axes.xaxis.set_major_locator(_log_locator())
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    else:
        pad = (high - low) * 0.06 or abs(high) * 0.01 or 1.0
        axes.set_xlim(low - pad, high + pad)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    plain(axes)


def _log_locator() -> mpl.ticker.Locator:
    return mpl.ticker.LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=6)


def plain(axes: "Axes") -> None:
    """Show whole numbers on both axes instead of an offset."""
    for axis in (axes.xaxis, axes.yaxis):
        formatter = ScalarFormatter(useOffset=False, useMathText=False)
        formatter.set_scientific(False)
        axis.set_major_formatter(formatter)


def draw(height: float, paint: Callable[[Figure], None], *, title: str, description: str, prefix: str) -> str:
    """Draw a figure and give it as an ``svg`` element."""
    stream = io.StringIO()
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        warnings.simplefilter("ignore")  # a glyph that matplotlib's own font lacks is drawn by the browser's
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasSVG(figure)
        paint(figure)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    return _inline(stream.getvalue(), title=clean(title), description=clean(description), prefix=prefix)


def _inline(text: str, *, title: str, description: str, prefix: str) -> str:
    """Turn an SVG document into an element of a page."""
    root = ET.fromstring(text)
    for parent in root.iter():
        for child in [child for child in parent if child.tag.endswith(("}style", "}metadata"))]:
            parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {_attribute(name): _value(name, value, prefix) for name, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update(attributes)
        if element.tag != "text":
            element.text = (element.text or "").strip() or None
        element.tail = None
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{prefix}-title {prefix}-desc",
        "id": prefix,
    }
    for place, (tag, words) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(tag, id=f"{prefix}-{tag}")
        element.text = words
        root.insert(place, element)
    return ET.tostring(root, encoding="unicode")


def _attribute(name: str) -> str:
    return name.rpartition("}")[2]


def _value(name: str, value: str, prefix: str) -> str:
    name = _attribute(name)
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href":
        return f"#{prefix}-{value.removeprefix('#')}"
    if name == "clip-path":
        return value.replace("url(#", f"url(#{prefix}-")
    if name == "style":
        value = re.sub(r"font-family: [^;]*;?", "", value)
        return _COLOUR.sub(lambda found: _VARIABLES[found[0]], value)
    return " ".join(value.split())
