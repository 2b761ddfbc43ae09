"""What every command prints with."""

import errno

import click

from benchkit.errors import OutputError, printable


def say(text: str, *, err: bool = False) -> None:
    """Print lines; a character that a terminal would act on is shown as an escape (a title or a file name may hold any)."""
    shown = "\n".join(printable(line) for line in text.split("\n"))
    try:
        click.echo(shown, err=err)
    except OSError as error:
        if err:
            return  # nobody can be told
        if error.errno == errno.EPIPE:
            raise
        raise OutputError(f"standard output: cannot be written ({error.strerror})") from error
