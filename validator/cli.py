"""The command line: ``validator report``, ``validator reasons``, ``validator selftest``.

Rules:
1. Standard output carries the report alone; hints and errors go to standard error.
2. Exit codes: 0 valid, 1 invalid, 2 usage, 3 could not check, 4 ``--require`` not met; of several bundles 1 before 3
   before 4 before 0.
3. A closed pipe ends quietly; NO_COLOR with a value disables colour; no traceback ever reaches a user.
4. Heavy imports wait until a command needs them.
"""

import io
import os
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from validator.findings import Report, Validity
    from validator.report.table import Extra
    from validator.reproduction import Run

_CONTEXT = {"help_option_names": ["-h", "--help"]}
FORMATS = ("text", "json", "html", "markdown", "latex", "junit")


@click.group(context_settings=_CONTEXT, invoke_without_command=True)
@click.version_option(package_name="benchkit-ni")
@click.pass_context
def cli(context: click.Context) -> None:
    """Recompute every number of a benchkit bundle from its raw samples, and say what holds."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@cli.command("report")
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", help="How to show the report.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the report to a file instead.")
@click.option("--require", type=click.Choice(["non-inferior", "superior"]), help="Exit 4 unless the family shows this.")
@click.option("--protocol", type=click.Path(path_type=Path), help="The protocol that the bundle must have been run by.")
@click.option("--signed-by", type=click.Path(path_type=Path), help="The public key (OpenSSH) that must have signed it.")
@click.pass_context
def report_command(
    context: click.Context,
    bundles: tuple[str, ...],
    form: str,
    output: Path | None,
    require: str | None,
    protocol: Path | None,
    signed_by: Path | None,
) -> None:
    """Check bundles, in folders or by URL, and report what holds."""
    if protocol is not None and not protocol.is_file():
        raise click.UsageError(f"--protocol {protocol}: expected the file of a protocol, found none; give its path")
    if signed_by is not None and not signed_by.is_file():
        raise click.UsageError(
            f"--signed-by {signed_by}: expected a public key (OpenSSH), found no file; give its path"
        )
    if form == "html":
        _need_pictures()
    with ExitStack() as stack:
        checked = [_checked(bundle, protocol, stack, signed_by) for bundle in bundles]
        reports, folders = [report for report, _ in checked], tuple(folder for _, folder in checked)
        text = _rendered(reports, folders, form, colour=output is None)
    code = exit_code(reports, require)
    try:
        _write(text, output, ascii_alone=form in ("text", "json"))
    except BrokenPipeError:  # whoever reads has seen enough; what was found stays what was found
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    context.exit(code)


@cli.command("reproduce")
@click.argument("published")
@click.argument("repeats", metavar="REPEAT...", nargs=-1, required=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to show the answer.")
@click.pass_context
def reproduce_command(context: click.Context, published: str, repeats: tuple[str, ...], form: str) -> None:
    """Compare REPEATs with the PUBLISHED run of the same protocol, by the band that the protocol locked.

    Exit code 0 if every repeat reproduces it, 4 if one does not (or cannot be told), 1 if a bundle is invalid.
    """
    import json

    from validator.findings import CouldNotCheckError
    from validator.reproduction import Outcome, render_reproduction, reproduce

    with ExitStack() as stack:
        checked = [_checked(location, None, stack) for location in (published, *repeats)]
        code = exit_code([report for report, _ in checked], None)
        for report, _ in checked if code else ():
            click.echo(ascii(f"{report.bundle.path}: {report.validity.value}")[1:-1], err=True)
        if code:
            context.exit(code)
        first, *others = _runs(*zip(*checked, strict=True))
        try:
            found = [reproduce(first, other) for other in others]
        except CouldNotCheckError as error:
            click.echo(ascii(f"COULD_NOT_CHECK: {error}")[1:-1], err=True)
            context.exit(3)
    values = [item.as_json() for item in found]
    texts = [render_reproduction(item) for item in found]
    click.echo(json.dumps(values if len(values) > 1 else values[0], indent=2) if form == "json" else "\n\n".join(texts))
    context.exit(0 if {item.outcome for item in found} == {Outcome.REPRODUCED} else 4)


@cli.command("index")
@click.argument("locations", metavar="LOCATION...", nargs=-1, required=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("catalogue.parquet"),
    show_default=True,
    help="The Parquet file to write.",
)
@click.pass_context
def index_command(context: click.Context, locations: tuple[str, ...], output: Path) -> None:
    """Check all bundles at LOCATIONs (folders, or the URLs of bundles) and write what holds as one Parquet file."""
    from validator.catalogue import DEEPEST, bundles_at, catalogue, write_catalogue
    from validator.findings import Validity
    from validator.remote import is_url

    if output.is_symlink() or (output.exists() and not output.is_file()):
        kind = "a link" if output.is_symlink() else "a special file"
        raise click.UsageError(f"--output {output}: expected a regular file or nothing, found {kind}")
    lacking = [location for location in locations if not is_url(location) and not Path(location).is_dir()]
    if lacking:
        raise click.UsageError("expected folders with bundles, found none at " + ", ".join(lacking))
    found = [bundle for location in locations for bundle in bundles_at(location)]
    if not found:
        raise click.UsageError(
            f"expected a manifest.json at most {DEEPEST} folders below, found no bundle at "
            + ", ".join(locations)
            + "; give the place of sealed bundles"
        )
    table, reports = catalogue(found, base=output.parent)
    try:
        write_catalogue(table, output)
    except OSError as error:
        raise click.UsageError(
            f"--output {output}: cannot be written ({error.strerror or error}); give a place that can be"
        ) from error
    for report in reports:
        click.echo(ascii(f"{report.validity.value:<15}  {report.bundle.path}")[1:-1], err=True)
    click.echo(f"{output}: {table.num_rows} rows of {len(reports)} bundles")
    context.exit(3 if Validity.COULD_NOT_CHECK in [report.validity for report in reports] else 0)


@cli.command("reasons")
def reasons_command() -> None:
    """List every reason code: what it means, and what to do."""
    from validator.reasons import Reason

    for reason in Reason:
        click.echo(f"{reason.value}  [{reason.stage.value}]\n    {reason.meaning}\n    remedy: {reason.remedy}")


@cli.command("selftest")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep the mutated bundles here.")
@click.pass_context
def selftest_command(context: click.Context, bundle: Path, keep: Path | None) -> None:
    """Tamper with copies of a clean bundle in every known way, and show that each is noticed."""
    from validator.mutations import UncleanBundle, selftest
    from validator.validate import validate

    try:
        result = selftest(bundle, validate=validate, keep=keep)
    except UncleanBundle as error:
        click.echo(f"COULD_NOT_CHECK: {error}", err=True)
        context.exit(3)
    for line in result.lines:
        click.echo(line)
    context.exit(0 if result.failed == 0 and result.passed > 0 else 1)


def exit_code(reports: "list[Report]", require: str | None) -> int:
    """Give the exit code for reports: 1 before 3 before 4 before 0."""
    from validator.findings import Validity, Verdict

    validities = [report.validity for report in reports]
    if Validity.INVALID in validities:
        return 1
    if Validity.COULD_NOT_CHECK in validities:
        return 3
    if require is None:
        return 0
    met = {
        "superior": (Verdict.SUPERIOR,),
        "non-inferior": (Verdict.SUPERIOR, Verdict.NON_INFERIOR, Verdict.NON_INFERIOR_BUT_SLOWER),
    }[require]
    good = all(report.numbers is not None and report.numbers.family.verdict in met for report in reports)
    return 0 if good else 4


def _checked(
    location: str, protocol: Path | None, stack: ExitStack, signed_by: Path | None = None
) -> "tuple[Report, Path]":
    """Check one bundle; a fetched one stays in its temporary folder until the stack is closed."""
    from validator.findings import CouldNotCheckError
    from validator.remote import fetched, named
    from validator.validate import could_not_check, validate

    try:
        folder = stack.enter_context(fetched(location))
    except CouldNotCheckError as error:
        return named(could_not_check(Path(location), str(error)), location), Path(location)
    return named(validate(folder, expected_protocol=protocol, signed_by=signed_by), location), folder


def _runs(reports: "Sequence[Report]", folders: "Sequence[Path]") -> "list[Run]":
    from validator.catalogue import machine
    from validator.findings import Validity
    from validator.reproduction import Run

    known = [(r, f) for r, f in zip(reports, folders, strict=True) if r.validity is not Validity.COULD_NOT_CHECK]
    return [Run(report=report, machine=name, band=band) for report, f in known for name, band in [machine(f)]]


def _several(reports: "list[Report]", folders: "Sequence[Path]") -> "list[Run]":
    """Give the runs, where a protocol has several of them."""
    digests = [report.bundle.protocol_digest for report in reports]
    return [] if len(set(digests)) == len(digests) else _runs(reports, folders)


def _need_pictures() -> None:
    from importlib.util import find_spec

    lacking = [name for name in ("matplotlib", "jinja2") if find_spec(name) is None]
    if lacking:
        names = " and ".join(lacking)
        raise click.UsageError(f"--format html needs {names}: python -m pip install {' '.join(lacking)}")


def _rendered(reports: "list[Report]", bundles: tuple[Path, ...], form: str, *, colour: bool) -> str:
    if form == "json":
        from validator.report.document import render_json

        return render_json(reports)
    if form == "html":
        from validator.report.html import render_html

        return render_html(reports, bundles, _beside(reports, bundles))
    if form == "markdown":
        from validator.report.markdown import render_markdown

        return render_markdown(reports, _beside(reports, bundles))
    if form == "latex":
        from validator.report.latex import render_latex

        return render_latex(reports)
    if form == "junit":
        from validator.report.junit import render_junit

        return render_junit(reports)
    from validator.report.text import render_text

    paint = _colour if colour and wants_colour() else _plain
    texts = [render_text(report, paint) for report in reports]
    if several := _several(reports, bundles):
        from validator.reproduction import side_by_side

        texts.append("\n".join(side_by_side(several)))
    return "\n\n".join(texts)


def _beside(reports: "list[Report]", folders: "Sequence[Path]") -> "list[Extra]":
    """Give the tables of several runs of one protocol."""
    several = _several(reports, folders)
    if not several:
        return []
    from validator.reproduction import beside_tables

    return beside_tables(several)


def wants_colour() -> bool:
    """Say whether standard output is a terminal that may be coloured; NO_COLOR counts when it is not empty."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _colour(text: str, validity: "Validity") -> str:
    return click.style(text, bold=True, fg={"VALID": "green", "INVALID": "red"}.get(validity.value, "yellow"))


def _plain(text: str, validity: "Validity") -> str:
    return text


def _write(text: str, output: Path | None, *, ascii_alone: bool) -> None:
    """Write the report; a document that is more than ASCII is UTF-8, whatever the terminal."""
    if output is None:
        if ascii_alone:
            sys.stdout.write(text + "\n")
        else:
            sys.stdout.buffer.write((text + "\n").encode("utf-8"))
        sys.stdout.flush()
        return
    whole = not output.is_symlink() and (output.is_file() or not output.exists())
    part = output.with_name(output.name + ".part") if whole else output  # a device or a link is written where it is
    try:
        part.write_text(text + "\n", encoding="utf-8")
        if whole:
            part.replace(output)
    except OSError as error:
        if whole:
            part.unlink(missing_ok=True)
        raise click.UsageError(
            f"--output {output}: cannot be written ({error.strerror or error}); give a place that can be"
        ) from error


def main() -> None:
    """Run the command line; the only place that catches everything."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        click.echo("validator: standard output: expected one that can be written, found it closed", err=True)
        sys.exit(2)
    code = _guarded()
    try:
        sys.stdout.flush()
    except OSError:  # said already, or the reader of a pipe went away: what is still buffered is lost
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _guarded() -> int:
    """Run and translate every ending into an exit code."""
    try:
        return int(cli.main(standalone_mode=False) or 0)
    except SystemExit as error:
        if type(sys.stdout).__name__.endswith(
            "PacifyFlushWrapper"
        ):  # click's way out when the reader of a pipe went away
            return 0
        return error.code if isinstance(error.code, int) else 1
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        _tell("aborted")
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        _tell(f"validator: {error.filename or 'standard output'}: cannot be used ({error.strerror or error})")
        return 2
    except Exception as error:  # noqa: BLE001
        text = " ".join(str(error).split())[:300]
        _tell(f"COULD_NOT_CHECK: internal error, {type(error).__name__}: {text}")
        return 3


def _tell(text: str) -> None:
    """Print a line to standard error, if anybody can be told."""
    with suppress(OSError):
        click.echo(ascii(text)[1:-1], err=True)


if __name__ == "__main__":
    main()
