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
    content = (Path(benchkit.__file__).parent / "kernels" / "cpu.py").read_bytes()
    line = b"kernels/cpu.py\x00" + hashlib.sha256(content).hexdigest().encode() + b"\n"
    assert registry.source_digest("cpu_output_centric") == hashlib.sha256(line).hexdigest()
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
        ("cpu_expert_centric", {"tile": 4}, ()),
        ("cpu_output_centric", {}, ()),
        (
            "cpu_expert_centric",
            {"tiles": 4},
            (
                "tiles: unknown parameter of cpu_expert_centric; known: tile",
                "tile: expected an integer of at least 1 for cpu_expert_centric, found nothing",
            ),
        ),
        ("cpu_output_centric", {"tile": 4}, ("tile: unknown parameter of cpu_output_centric; known: none",)),
        (
            "cpu_expert_centric",
            {"tile": True},
            ("tile: expected an integer of at least 1 for cpu_expert_centric, found True",),
        ),
        (
            "cpu_expert_centric",
            {"tile": "4"},
            ("tile: expected an integer of at least 1 for cpu_expert_centric, found '4'",),
        ),
        ("cpu_read", {"segments": 0}, ("segments: expected an integer of at least 1 for cpu_read, found 0",)),
    ],
)
def test_parameters(kernel, params, problems):
    assert registry.param_problems(kernel, params) == problems
    if problems:
        with pytest.raises(DataError, match=r"params\.(tile|segments)"):
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
