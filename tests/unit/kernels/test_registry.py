"""The table of kernels: digests derived by hand, parameters refused with the known ones, and no torch in sight."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

import benchkit
from benchkit.errors import DataError
from benchkit.kernels import registry

HOST = {"cpu_expert_centric", "cpu_output_centric", "cpu_copy", "cpu_read"}


def test_source_digest_by_hand():
    lines = b""
    for path in ("kernels/cpu.py", "kernels/threads.py"):
        content = (Path(benchkit.__file__).parent / path).read_bytes()
        lines += path.encode() + b"\x00" + hashlib.sha256(content).hexdigest().encode() + b"\n"
    assert registry.source_digest("cpu_output_centric") == hashlib.sha256(lines).hexdigest()
    assert registry.source_digest("cpu_output_centric") == registry.source_digest("cpu_expert_centric")
    assert registry.source_digest("cpu_output_centric") != registry.source_digest("cpu_copy")


def test_lines_of_the_host():
    assert set(registry.KERNELS) >= HOST
    assert {kernel for kernel, line in registry.KERNELS.items() if line.clock == "host"} == HOST
    assert registry.entry("cpu_expert_centric").fixture == "moe"
    assert registry.entry("cpu_read").fixture == "arrays"


@pytest.mark.parametrize("ask", [registry.entry, registry.source_digest, lambda name: registry.prepare(name, None, {})])
def test_an_unknown_kernel_lists_the_known(ask):
    with pytest.raises(DataError, match=r'expected one of cpu_copy, cpu_expert_centric, .*, found "cpu_best"'):
        ask("cpu_best")


@pytest.mark.parametrize(
    ("kernel", "params", "problems"),
    [
        ("cpu_expert_centric", {"tile": 4, "threads": 1}, ()),
        ("cpu_output_centric", {"threads": 1}, ()),
        (
            "cpu_expert_centric",
            {"tiles": 4, "threads": 1},
            (
                "tiles: unknown parameter of cpu_expert_centric; known: threads, tile",
                "tile: expected an integer of at least 1 for cpu_expert_centric, found nothing",
            ),
        ),
        (
            "cpu_output_centric",
            {"tile": 4, "threads": 1},
            ("tile: unknown parameter of cpu_output_centric; known: threads",),
        ),
        (
            "cpu_expert_centric",
            {"tile": True, "threads": "4"},
            (
                'threads: expected an integer of at least 1 for cpu_expert_centric, found "4"',
                "tile: expected an integer of at least 1 for cpu_expert_centric, found true",
            ),
        ),
        (
            "cpu_read",
            {"segments": 0, "threads": 1},
            ("segments: expected an integer of at least 1 for cpu_read, found 0",),
        ),
        ("cuda_copy", {"ctas_per_sm": 8, "threads": 256, "unroll": 4, "streaming": True}, ()),
        (
            "cuda_copy",
            {"streaming": 1, "ctas_per_sm": 8},
            ("streaming: expected a boolean for cuda_copy, found 1",),
        ),
    ],
)
def test_parameters(kernel, params, problems):
    assert registry.param_problems(kernel, params) == problems
    if problems:
        with pytest.raises(DataError, match=r"params\.(tile|segments|threads|streaming)"):
            registry.prepare(kernel, None, params)


def test_the_table_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from benchkit.kernels import registry\n"
        "from benchkit.fixture import routing, weights\n"
        "from benchkit.device import host\n"
        "registry.source_digest('cpu_copy'); registry.param_problems('cpu_read', {}); routing.route('uniform', 1, 1, 4, 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == 0


def test_every_source_exists_and_names_its_module():
    root = Path(benchkit.__file__).parent
    for kernel, line in registry.KERNELS.items():
        assert line.module.replace(".", "/").removeprefix("benchkit/") + ".py" in line.sources
        assert all((root / path).is_file() for path in line.sources), kernel
