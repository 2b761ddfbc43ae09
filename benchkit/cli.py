"""The command line: each command parses, calls one function, prints, and ends with an exit code (results/README.md, "Validity").

Rules:
1. Nothing heavy is imported before a command needs it: ``benchkit --help`` loads click and nothing of the run.
2. Results go to stdout, progress and hints to stderr; our own text is plain ASCII, and what a terminal could not take or would act on is escaped.
3. ``main`` alone turns errors into messages and exit codes; a traceback is shown for our own bugs only, and asks to be reported.
"""

import errno
import io
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import click

from benchkit import __version__
from benchkit.errors import BenchkitError, InterruptedRunError, OutputError
from benchkit.layer_commands import fixture, mechanism
from benchkit.terminal import say

_PROTOCOL = click.argument("protocol", type=click.Path(path_type=Path))
_OUT = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder for bundles and the ledger.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, package_name="benchkit-ni")
def cli() -> None:
    """Lock a protocol, run it, share the raw samples: claims about GPU kernels that others can check."""


cli.add_command(fixture)
cli.add_command(mechanism)


@cli.command()
@_PROTOCOL
@click.option("--replace", is_flag=True, help="Replace another lock, unless results were published under it.")
@click.option("--sources", is_flag=True, help="First bring [build.require.sources] up to the sources here.")
def lock(protocol: Path, replace: bool, sources: bool) -> None:
    """Write PROTOCOL's lock beside it: from then on a changed value is another protocol."""
    from benchkit.mechanism.study import lock_study
    from benchkit.run.locking import lock as lock_comparison

    made = (lock_study if _is_study(protocol) else lock_comparison)(protocol, replace=replace, sources=sources)
    say(f"{protocol}: locked, digest {made.protocol_digest}, plan {made.plan_digest}, at {made.locked_utc}")


@cli.command()
@_PROTOCOL
def check(protocol: Path) -> None:
    """Report every problem of PROTOCOL, verify its lock, and say whether this machine can run it."""
    from benchkit.mechanism.study import check_study
    from benchkit.run.survey import check_protocol

    for line in (check_study if _is_study(protocol) else check_protocol)(protocol):
        say(line)


@cli.command()
@_PROTOCOL
@click.option("--process", type=click.IntRange(min=0), default=0, show_default=True, help="The process to print.")
def plan(protocol: Path, process: int) -> None:
    """Print the order of points and arms of one process of PROTOCOL, and what the whole run amounts to."""
    from benchkit.mechanism.study import describe_study
    from benchkit.run.survey import describe_plan

    for line in (describe_study if _is_study(protocol) else describe_plan)(protocol, process):
        say(line)


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("protocols"))
def protocols(folder: Path) -> None:
    """List the protocols in FOLDER: whether each is sound, when it was locked, which arms' sources have changed since, and its title. Exit code 2 if
    one is not sound."""
    from benchkit.run.survey import list_protocols

    listed = list_protocols(folder)
    for item in listed:
        say(item.line)
    if not all(item.sound for item in listed):
        sys.exit(2)


@cli.command("run-protocol")
@_PROTOCOL
@_OUT
@click.option("--resume", metavar="RUN", help="Go on with an interrupted run of this id.")
@click.option("--exploratory", is_flag=True, help="Run although the build is not the required one; never VALID.")
@click.option(
    "--synthetic",
    metavar="SCRIPT",
    type=click.Path(path_type=Path),
    help="Scripted durations instead of a measurement (for tests of tools); never VALID.",
)
def run_protocol(protocol: Path, out: Path, resume: str | None, exploratory: bool, synthetic: Path | None) -> None:
    """Run a locked PROTOCOL, seal the bundle and analyse it."""
    from benchkit.analysis.analyst import Analysis, shows
    from benchkit.analysis.document import write_analysis
    from benchkit.analysis.summary import summarise
    from benchkit.mechanism.outcome import summarise_outcome, write_outcome
    from benchkit.mechanism.study import StudySession
    from benchkit.run.session import Session

    if resume is not None and (exploratory or synthetic is not None):
        raise click.UsageError("--resume goes on as the run was started; give it alone")
    if _is_study(protocol):
        if synthetic is not None:
            raise click.UsageError("--synthetic scripts durations, and a mechanism protocol measures none")
        study = StudySession(protocol=protocol, out=out, exploratory=exploratory)
        sealed = study.run(resume, finish=write_outcome)
        say(summarise_outcome(sealed.folder))
    else:
        session = Session(protocol=protocol, out=out, exploratory=exploratory, script=synthetic)
        analyses: list[Analysis] = []
        sealed = session.run(resume, shows=shows, finish=lambda bundle: analyses.append(write_analysis(bundle)))
        say(summarise(analyses[-1]))
    say(f"bundle: {sealed.folder}")
    say(f"check it: validator report {sealed.folder}")
    for line in sealed.failed:
        say(f"failed: {line}", err=True)
    if sealed.failed:
        sys.exit(1)


@cli.command()
@_PROTOCOL
@click.option("--arm", "arms", multiple=True, metavar="NAME", help="Tune this arm (default: all with a search space).")
@click.option("--write", is_flag=True, help="Write the values into PROTOCOL, which must not be locked yet.")
def tune(protocol: Path, arms: tuple[str, ...], write: bool) -> None:
    """Find the best parameters of PROTOCOL's arms on this machine; they are then locked by value."""
    from benchkit.run.tuning import refuse_locked, write_into
    from benchkit.run.tuning import tune as tune_arms

    if write:
        refuse_locked(protocol)
    tuned = tune_arms(protocol, arms, say)
    if write:
        write_into(protocol, tuned)
        say(f"{protocol}: written; lock it with: benchkit lock {protocol}")


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("url")
def publish(run: Path, url: str) -> None:
    """Send the sealed bundle RUN to URL (a folder, s3://...), manifest last; nothing is overwritten."""
    from benchkit.bundle.publish import publish as publish_bundle

    done = publish_bundle(run, url)
    say(f"published: {done.url} ({done.sent} files sent, {done.present} were there)")
    say(f"check it: validator report {done.url}")


@cli.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), required=True, help="Ed25519 private key, PEM or OpenSSH.")
def sign(target: Path, key: Path) -> None:
    """Sign manifest and lock of the bundle TARGET (or the file TARGET, as a lock); writes *.sig.json beside them."""
    from benchkit.bundle.sign import sign as sign_files

    for path in sign_files(target, key):
        say(f"signed: {path}")


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
def analyse(run: Path) -> None:
    """Analyse the sealed bundle RUN again and write its analysis.json."""
    from benchkit.analysis.document import write_analysis
    from benchkit.analysis.summary import summarise
    from benchkit.mechanism.outcome import summarise_outcome, write_outcome

    if _is_study(run / "protocol.toml"):
        write_outcome(run)
        say(summarise_outcome(run))
    else:
        say(summarise(write_analysis(run)))


@cli.command()
@click.option("--margin", metavar="FRACTION", help='Margin, as "2%" or 0.02 (default: the pilot\'s).')
@click.option(
    "--sd", metavar="FRACTION", help='Guess of the standard deviation of log ratios between processes, as "1%".'
)
@click.option("--pilot", metavar="BUNDLE", type=click.Path(path_type=Path), help="Take the spread from this bundle.")
@click.option("--true-ratio", type=float, multiple=True, default=(1.0,), show_default=True, help="Ratio to detect at.")
@click.option("--alpha", type=float, help="One-sided level (default: the pilot's, or 0.05).")
@click.option("--power", "target", type=float, default=0.9, show_default=True, help="Power of the whole claim.")
@click.option("--points", type=int, help="Points of an all-points claim (default: the pilot's, or 1).")
@click.option("--plot", metavar="FILE.svg", type=click.Path(path_type=Path), help="Draw power against pairs.")
def power(
    margin: str | None,
    sd: str | None,
    pilot: Path | None,
    true_ratio: tuple[float, ...],
    alpha: float | None,
    target: float,
    points: int | None,
    plot: Path | None,
) -> None:
    """Say how many process pairs a margin needs, at one point and at all points."""
    from benchkit.analysis.planning import plan_pairs, power_table
    from benchkit.analysis.plot import plot_power

    question, spreads = plan_pairs(
        margin=margin, sd=sd, pilot=pilot, true_ratios=true_ratio, alpha=alpha, power=target, points=points
    )
    for line in power_table(question, spreads):
        say(line)
    if plot is not None:
        plot_power(question, spreads, plot)
        say(f"plot: {plot}")


@cli.command()
@click.option("--quick", is_flag=True, help="The small grid, a few minutes (default: the full one, much longer).")
@click.option("--out", metavar="FILE.json", type=click.Path(path_type=Path), help="Write the tables here, and FILE.md.")
def calibrate(quick: bool, out: Path | None) -> None:
    """Simulate experiments with a known truth: does the method keep its promise? Exit code 1 if a rate is out of band."""
    from benchkit.calibration.study import FULL, QUICK, study
    from benchkit.calibration.table import failed, markdown, refuse_place, write_tables

    if out is not None:
        refuse_place(out)
    grid = QUICK if quick else FULL
    cells = study(grid, lambda line: say(line, err=True))
    say(markdown(grid, cells).removesuffix("\n"))
    if out is not None:
        say(f"written: {', '.join(map(str, write_tables(grid, cells, out)))}", err=True)
    if failed(cells):
        sys.exit(1)


def _is_study(protocol: Path) -> bool:
    from benchkit.protocol.study import MECHANISM, protocol_kind

    return protocol_kind(protocol) == MECHANISM


def main() -> None:
    """Console entry point: run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:]
    if sys.stdout is None:
        say("benchkit: standard output: expected one that can be written, found it closed", err=True)
        sys.exit(OutputError.exit_code)
    if not arguments:
        with click.Context(cli, info_name="benchkit") as context:
            say(cli.get_help(context), err=True)
        sys.exit(2)
    code = _guarded(arguments)
    try:
        sys.stdout.flush()
    except OSError:  # said already, or the reader of a pipe went away: what is still buffered is lost
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _guarded(arguments: list[str]) -> int:
    """Run and translate every ending into an exit code."""
    try:
        result = cli.main(args=arguments, prog_name="benchkit", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SystemExit as error:
        if type(sys.stdout).__name__.endswith(
            "PacifyFlushWrapper"
        ):  # click's own way out when the reader of a pipe went away
            return 0
        return error.code if isinstance(error.code, int) else 1
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        say("benchkit: stopped", err=True)
        return InterruptedRunError.exit_code
    except BenchkitError as error:
        say(f"benchkit: {error}", err=True)
        return error.exit_code
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of a pipe went away
            return 0
        say(f"benchkit: {error.filename or 'standard output'}: {error.strerror}", err=True)
        return OutputError.exit_code
    except Exception:  # noqa: BLE001 - one of the two places that may catch everything
        traceback.print_exc()
        say("benchkit: this is a bug of benchkit; please report it with the lines above", err=True)
        return 70


if __name__ == "__main__":
    main()
