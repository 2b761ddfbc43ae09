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
from hashlib import sha256
from pathlib import Path

import click

from benchkit import __version__
from benchkit.errors import BenchkitError, InterruptedRunError, OutputError, printable
from benchkit.mechanism.limits import MAX_BLOCK, MAX_EXPERTS, MAX_GRID, MAX_SIZE

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


@cli.command()
@_PROTOCOL
@click.option("--replace", is_flag=True, help="Replace another lock, unless results were published under it.")
@click.option("--sources", is_flag=True, help="First bring [build.require.sources] up to the sources here.")
def lock(protocol: Path, replace: bool, sources: bool) -> None:
    """Write PROTOCOL's lock beside it: from then on a changed value is another protocol."""
    from benchkit.mechanism.study import lock_study
    from benchkit.run.locking import lock as lock_comparison

    made = (lock_study if _is_study(protocol) else lock_comparison)(protocol, replace=replace, sources=sources)
    _say(f"{protocol}: locked, digest {made.protocol_digest}, plan {made.plan_digest}, at {made.locked_utc}")


@cli.command()
@_PROTOCOL
def check(protocol: Path) -> None:
    """Report every problem of PROTOCOL, verify its lock, and say whether this machine can run it."""
    from benchkit.mechanism.study import check_study
    from benchkit.run.survey import check_protocol

    for line in (check_study if _is_study(protocol) else check_protocol)(protocol):
        _say(line)


@cli.command()
@_PROTOCOL
@click.option("--process", type=click.IntRange(min=0), default=0, show_default=True, help="The process to print.")
def plan(protocol: Path, process: int) -> None:
    """Print the order of points and arms of one process of PROTOCOL, and what the whole run amounts to."""
    from benchkit.mechanism.study import describe_study
    from benchkit.run.survey import describe_plan

    for line in (describe_study if _is_study(protocol) else describe_plan)(protocol, process):
        _say(line)


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("protocols"))
def protocols(folder: Path) -> None:
    """List the protocols in FOLDER: whether each is sound and locked, and its title. Exit code 2 if one is not sound."""
    from benchkit.run.survey import list_protocols

    listed = list_protocols(folder)
    for item in listed:
        _say(item.line)
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
        _say(summarise_outcome(sealed.folder))
    else:
        session = Session(protocol=protocol, out=out, exploratory=exploratory, script=synthetic)
        analyses: list[Analysis] = []
        sealed = session.run(resume, shows=shows, finish=lambda bundle: analyses.append(write_analysis(bundle)))
        _say(summarise(analyses[-1]))
    _say(f"bundle: {sealed.folder}")
    _say(f"check it: validator report {sealed.folder}")
    for line in sealed.failed:
        _say(f"failed: {line}", err=True)
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
    tuned = tune_arms(protocol, arms, _say)
    if write:
        write_into(protocol, tuned)
        _say(f"{protocol}: written; lock it with: benchkit lock {protocol}")


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("url")
def publish(run: Path, url: str) -> None:
    """Send the sealed bundle RUN to URL (a folder, s3://...), manifest last; nothing is overwritten."""
    from benchkit.bundle.publish import publish as publish_bundle

    done = publish_bundle(run, url)
    _say(f"published: {done.url} ({done.sent} files sent, {done.present} were there)")
    _say(f"check it: validator report {done.url}")


@cli.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), required=True, help="Ed25519 private key, PEM or OpenSSH.")
def sign(target: Path, key: Path) -> None:
    """Sign manifest and lock of the bundle TARGET (or the file TARGET, as a lock); writes *.sig.json beside them."""
    from benchkit.bundle.sign import sign as sign_files

    for path in sign_files(target, key):
        _say(f"signed: {path}")


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
def analyse(run: Path) -> None:
    """Analyse the sealed bundle RUN again and write its analysis.json."""
    from benchkit.analysis.document import write_analysis
    from benchkit.analysis.summary import summarise
    from benchkit.mechanism.outcome import summarise_outcome, write_outcome

    if _is_study(run / "protocol.toml"):
        write_outcome(run)
        _say(summarise_outcome(run))
    else:
        _say(summarise(write_analysis(run)))


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
        _say(line)
    if plot is not None:
        plot_power(question, spreads, plot)
        _say(f"plot: {plot}")


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
    cells = study(grid, lambda line: _say(line, err=True))
    _say(markdown(grid, cells).removesuffix("\n"))
    if out is not None:
        _say(f"written: {', '.join(map(str, write_tables(grid, cells, out)))}", err=True)
    if failed(cells):
        sys.exit(1)


@cli.group()
def fixture() -> None:
    """Capture what a run multiplies from a real checkpoint."""


@fixture.command("capture")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--layer", type=click.IntRange(min=0), required=True, help="Number of the MoE layer.")
@click.option(
    "--hidden", type=click.Path(path_type=Path), required=True, help="Its input: float16 [tokens, hidden], .npy."
)
@click.option(
    "--routing", type=click.Path(path_type=Path), help="Recorded routing, *.parquet (default: the layer's router runs)."
)
@click.option("--point", metavar="ID", help="The routing's point, where the file holds several.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The folder to write.")
def capture_fixture(
    checkpoint: Path, layer: int, hidden: Path, routing: Path | None, point: str | None, output: Path
) -> None:
    """Read one MoE layer of an AWQ CHECKPOINT folder and write it as a fixture with its digests.

    CHECKPOINT holds config.json and safetensors shards with qweight, qzeros and scales of every expert. A routing has the columns token, slot,
    expert and weight.
    """
    from benchkit.fixture.captured import capture_fixture as capture
    from benchkit.mechanism.membership import read_routing

    routed = None if routing is None else read_routing(routing, point)
    made = capture(checkpoint, layer, hidden=hidden, routing=routed, output=output)
    _say(f"checkpoint manifest: {made.manifest_sha256}")
    _say(f"model identity:      {made.model_identity}")
    _say(f"fixture:             {made.fixture_sha256}")
    sizes = ", ".join(f"{name} {size}" for name, size in made.sizes.items())
    _say(f"{output}: layer {layer}, {sizes}")


@cli.group()
def mechanism() -> None:
    """Say which routes share a block, and which arithmetic their block gets."""


_ROUTES = click.argument("routes", metavar="FILE.parquet", type=click.Path(path_type=Path))
_EXPERTS = click.option("--experts", type=click.IntRange(1, MAX_EXPERTS), required=True, help="Experts of the layer.")
_BLOCK = click.option("--block", type=click.IntRange(1, MAX_BLOCK), required=True, help="Rows of a block.")
_POINT = click.option("--point", metavar="ID", help="The point, where the file holds several.")


@mechanism.command()
@_ROUTES
@_EXPERTS
@_BLOCK
@_POINT
def membership(routes: Path, experts: int, block: int, point: str | None) -> None:
    """Print the blocks of a routing, and whether native alignment can vary.

    FILE.parquet has the columns token, slot and expert, as routing.parquet of a bundle; -1 is a route of another device.
    """
    from benchkit.mechanism.membership import describe_membership

    for line in describe_membership(routes, experts=experts, block=block, point=point):
        _say(line)


@mechanism.command("capture-plans")
@_ROUTES
@_EXPERTS
@_BLOCK
@_POINT
@click.option(
    "--order", "orders", type=click.Path(path_type=Path), multiple=True, help="A captured order, *.json; give two."
)
@click.option("--native", is_flag=True, help="Capture two native orders on this machine's GPU instead.")
@click.option(
    "--hidden-size", type=click.IntRange(1, MAX_SIZE), default=2048, show_default=True, help="Width of the input."
)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The plans asset to write, *.json.")
def capture_plans(
    routes: Path,
    experts: int,
    block: int,
    point: str | None,
    orders: tuple[Path, ...],
    native: bool,
    hidden_size: int,
    output: Path,
) -> None:
    """Write the plans P0 and P1 of a routing as an asset that a study locks.

    FILE.parquet has the columns token, slot, expert and weight. Each --order is a JSON array of routes as they arrived, or as the op left them in
    sorted_token_ids; the first becomes P0, the second P1. With --native, fresh processes of both histories align by the installed vLLM until two
    modes were seen.
    """
    from benchkit.mechanism.study import capture_plans as capture
    from benchkit.mechanism.study import describe_plans
    from benchkit.protocol.files import write_text

    if len(orders) != (0 if native else 2):
        raise click.UsageError(f"expected two --order files, or --native and none, found {len(orders)}")
    plans = capture(routes, orders, experts=experts, block=block, point=point, hidden=hidden_size)
    write_text(output, plans.to_json())
    for line in describe_plans(plans):
        _say(line)
    _say(f"{output}: written, SHA-256 {sha256(output.read_bytes()).hexdigest()}")


@mechanism.command("schedule")
@_ROUTES
@_EXPERTS
@_BLOCK
@_POINT
@click.option("--size-n", type=click.IntRange(1, MAX_SIZE), required=True, help="Columns of the weight.")
@click.option("--size-k", type=click.IntRange(1, MAX_SIZE), required=True, help="Rows of the weight: the reduction.")
@click.option("--group", type=int, default=128, show_default=True, help="Rows that share a scale; -1 for all.")
@click.option("--gpu", metavar="NAME", help="What the op chooses by itself there: rtx-3090 or h200.")
@click.option("--thread-k", type=click.IntRange(1, MAX_SIZE), help="K rows of a tile.")
@click.option("--thread-n", type=click.IntRange(1, MAX_SIZE), help="Columns of a tile.")
@click.option("--grid", type=click.IntRange(1, MAX_GRID), help="CUDA blocks of the launch.")
def mechanism_schedule(
    routes: Path,
    experts: int,
    block: int,
    point: str | None,
    size_n: int,
    size_k: int,
    group: int,
    gpu: str | None,
    thread_k: int | None,
    thread_n: int | None,
    grid: int | None,
) -> None:
    """Print Marlin's class of each block, and the swaps that change bits.

    FILE.parquet has the columns token, slot and expert, as routing.parquet of a bundle. Give --gpu, or --thread-k, --thread-n and --grid.
    """
    from benchkit.mechanism.exchanges import Launch, describe_schedule

    launch = Launch(size_n=size_n, size_k=size_k, group=group, gpu=gpu, thread_k=thread_k, thread_n=thread_n, grid=grid)
    for line in describe_schedule(routes, launch, experts=experts, block=block, point=point):
        _say(line)


def _is_study(protocol: Path) -> bool:
    from benchkit.protocol.study import MECHANISM, protocol_kind

    return protocol_kind(protocol) == MECHANISM


def _say(text: str, *, err: bool = False) -> None:
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


def main() -> None:
    """Console entry point: run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:]
    if sys.stdout is None:
        _say("benchkit: standard output: expected one that can be written, found it closed", err=True)
        sys.exit(OutputError.exit_code)
    if not arguments:
        with click.Context(cli, info_name="benchkit") as context:
            _say(cli.get_help(context), err=True)
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
        _say("benchkit: stopped", err=True)
        return InterruptedRunError.exit_code
    except BenchkitError as error:
        _say(f"benchkit: {error}", err=True)
        return error.exit_code
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of a pipe went away
            return 0
        _say(f"benchkit: {error.filename or 'standard output'}: {error.strerror}", err=True)
        return OutputError.exit_code
    except Exception:  # noqa: BLE001 - one of the two places that may catch everything
        traceback.print_exc()
        _say("benchkit: this is a bug of benchkit; please report it with the lines above", err=True)
        return 70


if __name__ == "__main__":
    main()
