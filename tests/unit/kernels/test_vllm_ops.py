"""Finding vLLM's ops: nothing of its Python runs, and every way in which they are not the expected ones has one message."""

import hashlib
import sys

import pytest
import torch
import vllm_stand_in

from benchkit.kernels import vllm_ops
from benchkit.kernels.contract import Support

PIN = torch.__version__.partition("+")[0]
MOE_FILE, STABLE_FILE = "_moe_C.abi3.so", "_C_stable_libtorch.abi3.so"


@pytest.fixture
def registered(monkeypatch):
    """What stands for torch's table of ops; loading a file adds those that vLLM 0.22 has in it."""
    table, everything = {}, vllm_stand_in.ops()

    def load_library(path):
        space = "_moe_C" if path.endswith(MOE_FILE) else "_C"
        table.update({name: op for name, op in everything.items() if name.startswith(f"{space}::")})

    monkeypatch.setattr(vllm_ops, "_found", table.get)
    monkeypatch.setattr(torch.ops, "load_library", load_library)
    vllm_ops.load.cache_clear()
    yield table
    vllm_ops.load.cache_clear()


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_the_installed_ops(registered, site):
    vllm_stand_in.install(site, torch_pin=PIN)
    found = vllm_ops.load()
    assert isinstance(found, vllm_ops.VllmOps), found
    assert found.version == "0.22.0"
    assert found.gemm is registered["_moe_C::moe_wna16_marlin_gemm"]
    assert [found.align, found.sum, found.silu_and_mul] == [
        registered[name] for name in ("_moe_C::moe_align_block_size", "_moe_C::moe_sum", "_C::silu_and_mul")
    ]
    assert found.binaries == {
        f"vllm/{name}": hashlib.sha256(f"content of {name}".encode()).hexdigest() for name in (STABLE_FILE, MOE_FILE)
    }
    assert "vllm" not in sys.modules
    assert vllm_ops.load() is found


def test_no_file_is_loaded_without_need(registered, site):
    """_C.abi3.so holds silu_and_mul in 0.20 and the repack in 0.22; here everything is found before it."""
    vllm_stand_in.install(site, torch_pin=PIN, files=(MOE_FILE, STABLE_FILE, "_C.abi3.so"))
    found = vllm_ops.load()
    assert isinstance(found, vllm_ops.VllmOps)
    assert [path.rpartition("/")[2] for path in found.binaries] == [STABLE_FILE, MOE_FILE]


def test_without_vllm(registered):
    assert vllm_ops.load() == Support.no("vllm is not installed: pip install benchkit-ni[vllm]")


def test_a_folder_without_metadata(registered, site):
    (site / "vllm").mkdir()
    (site / "vllm" / "__init__.py").touch()
    found = vllm_ops.load()
    assert isinstance(found, Support)
    assert str(found.reason) == (
        "needs the metadata of vllm beside its folder, found none: pip install benchkit-ni[vllm]"
    )


def test_a_torch_that_it_was_not_built_for(registered, site):
    vllm_stand_in.install(site, torch_pin="1.2.3")
    found = vllm_ops.load()
    assert found == Support.no(f"vllm 0.22.0 needs torch==1.2.3, found {torch.__version__}; install that torch")
    assert registered == {}


def test_a_file_that_does_not_load(registered, site, monkeypatch):
    vllm_stand_in.install(site, torch_pin=PIN)

    def broken(path):
        raise OSError(f"{path}: undefined symbol:\n _ZN3c10")

    monkeypatch.setattr(torch.ops, "load_library", broken)
    assert vllm_ops.load() == Support.no(
        f"vllm 0.22.0: {MOE_FILE} does not load under torch {torch.__version__}: {MOE_FILE}: undefined symbol: _ZN3c10"
    )


def test_files_without_the_op(registered, site):
    vllm_stand_in.install(site, torch_pin=PIN, files=(MOE_FILE,))
    assert vllm_ops.load() == Support.no(
        "vllm 0.22.0: needs the op _C::silu_and_mul, found none in "
        "_moe_C.abi3.so, _moe_C_stable_libtorch.abi3.so, _C_stable_libtorch.abi3.so, _C.abi3.so"
    )


@pytest.mark.parametrize(
    ("changed", "to"),
    [
        ("int thread_k, int thread_n", "int thread_n, int thread_k"),
        ("Tensor! workspace", "Tensor workspace"),
        ("bool use_atomic_add, ", ""),
    ],
)
def test_another_schema(registered, site, monkeypatch, changed, to):
    name = "_moe_C::moe_wna16_marlin_gemm"
    schema = next(each for each in vllm_ops.SCHEMAS if each.startswith(name))
    assert changed in schema
    vllm_stand_in.install(site, torch_pin=PIN)
    other = {**vllm_stand_in.ops(), name: vllm_stand_in.Op(schema.replace(changed, to), None)}
    monkeypatch.setattr(vllm_ops, "_found", other.get)
    found = vllm_ops.load()
    assert isinstance(found, Support)
    assert str(found.reason) == (
        f"vllm 0.22.0: needs the schema {torch._C.parse_schema(schema)}, found {other[name]._schema}; use vllm 0.20 to 0.24"
    )


def test_an_op_that_nobody_registered():
    assert vllm_ops._found("_moe_C::moe_sum") is None
    assert vllm_ops._found("aten::relu") is torch.ops.aten.relu.default
