"""What a run shows while it lasts: a bar with the remaining time on a terminal that takes escape sequences, nothing elsewhere."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchkit.run.supervisor import Progress


class _Silent:
    """Shows nothing."""

    def advance_to(self, samples: int) -> None:
        """Do nothing."""


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Progress]:
    """A progress bar on stderr over ``total`` samples; silent where stderr is no terminal, or with NO_COLOR (not empty) or TERM=dumb."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("samples, elapsed"),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bars(*columns, console=console) as bars:
        task = bars.add_task(title, total=total)

        class _Bar:
            def advance_to(self, samples: int) -> None:
                bars.update(task, completed=samples)

        yield _Bar()
