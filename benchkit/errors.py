"""What can go wrong, as three roots: the caller's data, this machine, our own bug.

Rules:
1. An error's text says what was expected, what was found and what to do; no traceback reaches a user for the first two roots.
2. Each class names its exit code; only ``benchkit.cli.main`` turns an error into an exit.
3. Anything that is not a ``BenchkitError`` is a bug (exit code 70).
"""

from collections.abc import Sequence
from typing import ClassVar


def printable(text: str, *, most: int | None = None) -> str:
    """Text as one line that a terminal shows and does not act on: control and other unseen characters become escapes."""
    cut = text if most is None or len(text) <= most else text[: most - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


class BenchkitError(Exception):
    """Root of every error that a user can cause or meet."""

    exit_code: ClassVar[int] = 2


class DataError(BenchkitError):
    """A file or an option is not what it has to be."""


class OutputError(DataError):
    """A result cannot be written where it was asked for."""


MOST_PROBLEMS = 100


class ProtocolError(DataError):
    """One or more problems of a protocol file, each with its field path.

    Parameters
    ----------
    problems:
        One line each, ``path: what is wrong``; all problems of the file at once, of which the text shows ``MOST_PROBLEMS``.
    source:
        The file that they stand in.
    """

    def __init__(self, problems: Sequence[str], source: str) -> None:
        self.problems = tuple(problems)
        self.source = source
        lines = [f"  {printable(problem, most=400)}" for problem in self.problems[:MOST_PROBLEMS]]
        if len(self.problems) > MOST_PROBLEMS:
            lines.append(f"  and {len(self.problems) - MOST_PROBLEMS} more")
        super().__init__("\n".join([f"{source}: {len(self.problems)} problem(s)", *lines]))


class LockError(DataError):
    """The lock is missing, does not belong to the protocol, or may not be replaced."""


class BundleError(DataError):
    """A bundle or a run folder is missing, unreadable or not in the state that the command needs."""


class MachineError(BenchkitError):
    """This machine, or what is installed on it, cannot run the protocol."""

    exit_code = 3


class StorageError(MachineError):
    """In the middle of a run a disk is full, cannot be written for another reason, or gives back other bytes than were written."""


class WorkerError(BenchkitError):
    """A worker process cannot go on; the text becomes the reason in processes.parquet."""

    exit_code = 1


class InterruptedRunError(BenchkitError):
    """The user or a signal stopped the run; the text holds the command that resumes it."""

    exit_code = 130
