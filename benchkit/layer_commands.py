"""Commands that look at one MoE layer and run nothing: ``benchkit fixture`` and ``benchkit mechanism``; the rules are those of ``benchkit.cli``."""

from hashlib import sha256
from pathlib import Path

import click

from benchkit.mechanism.limits import MAX_BLOCK, MAX_EXPERTS, MAX_GRID, MAX_SIZE
from benchkit.terminal import say


@click.group()
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
    from benchkit.fixture.capturing import capture_whole as capture
    from benchkit.mechanism.membership import read_routing

    routed = None if routing is None else read_routing(routing, point)
    made = capture(checkpoint, layer, hidden=hidden, routing=routed, output=output)
    say(f"checkpoint manifest: {made.manifest_sha256}")
    say(f"model identity:      {made.model_identity}")
    say(f"fixture:             {made.fixture_sha256}")
    sizes = ", ".join(f"{name} {size}" for name, size in made.sizes.items())
    say(f"{output}: layer {layer}, {sizes}")


@click.group()
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
        say(line)


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
    sorted_token_ids; the first becomes P0, the second P1. With --native, fresh processes of both histories align by the installed vLLM; P1 is
    of the mode nearest to P0's.
    """
    from benchkit.mechanism.study import capture_plans as capture
    from benchkit.mechanism.study import describe_plans
    from benchkit.protocol.files import write_text

    if len(orders) != (0 if native else 2):
        raise click.UsageError(f"expected two --order files, or --native and none, found {len(orders)}")
    plans = capture(routes, orders, experts=experts, block=block, point=point, hidden=hidden_size)
    write_text(output, plans.to_json())
    for line in describe_plans(plans):
        say(line)
    say(f"{output}: written, SHA-256 {sha256(output.read_bytes()).hexdigest()}")


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
        say(line)
