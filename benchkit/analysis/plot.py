"""Power against process pairs, as a picture; needs the extra ``plot``."""

from collections.abc import Sequence
from pathlib import Path

from benchkit.analysis.planning import Question, Spread
from benchkit.errors import DataError, MachineError
from benchkit.protocol.rules import min_pairs
from benchkit.statistics.power import power

SUFFIXES = (".svg", ".png", ".pdf")


def plot_power(question: Question, spreads: Sequence[Spread], file: Path) -> None:
    """Write the curves of all spreads and true ratios; the same numbers give the same file."""
    if file.suffix not in SUFFIXES:
        raise DataError(f"--plot: expected a file name that ends in {', '.join(SUFFIXES)}, found {file.name}")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MachineError(
            "--plot: expected matplotlib, found none that can be imported; install this tool with its extra [plot]"
        ) from error
    plans = [question.pairs(s.sd, true_ratio=ratio, points=1).pairs for s in spreads for ratio in question.true_ratios]
    least, most = min_pairs(question.alpha_one_sided), max(30, round(1.3 * max(plans)))
    pairs = sorted({round(least + (most - least) * step / 199) for step in range(200)})
    with matplotlib.rc_context({"svg.hashsalt": "benchkit", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.0, 4.5), layout="constrained")
        axes = figure.subplots()
        for spread in spreads:
            for ratio in question.true_ratios:
                curve = [
                    power(
                        k,
                        sd_log_ratio=spread.sd,
                        margin=question.margin,
                        true_ratio=ratio,
                        alpha_one_sided=question.alpha_one_sided,
                    )
                    for k in pairs
                ]
                axes.plot(pairs, curve, label=f"{spread.label}: sd(r) {100 * spread.sd:.3g} %, true ratio {ratio:g}")
        axes.axhline(question.power, color="0.6", linewidth=0.8, linestyle="--")
        axes.set_xlabel("process pairs")
        axes.set_ylabel("power")
        axes.set_ylim(0.0, 1.02)
        axes.set_title(
            f"non-inferiority, margin {100 * question.margin:g} %, one-sided alpha {question.alpha_one_sided:g}"
        )
        axes.legend(fontsize="small")
        metadata = (
            {"Date": None} if file.suffix == ".svg" else {"CreationDate": None} if file.suffix == ".pdf" else None
        )
        figure.savefig(file, metadata=metadata)
