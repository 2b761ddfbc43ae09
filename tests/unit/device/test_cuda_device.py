"""What of the CUDA device needs no GPU: its source, its arithmetic, the order of a graph, the refusal of a machine without one."""

from types import SimpleNamespace

import pytest
import torch

from benchkit.cuda_source import checked
from benchkit.device import cuda_graph
from benchkit.device.cuda import CudaDevice, compile_device, duration_ns, smallest_step
from benchkit.device.ports import LaunchedKernel
from benchkit.errors import MachineError, WorkerError


def test_the_source_compiles():
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin = compile_device("sm_90")
    assert cubin.log == ""
    assert b"benchkit_block" in cubin.code
    assert b"benchkit_delay" in cubin.code


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_refused():
    with pytest.raises(MachineError, match="expected a GPU that torch can use, found none"):
        CudaDevice()


def test_milliseconds_become_whole_nanoseconds():
    assert duration_ns(0.005407999712973833) == 5408
    assert duration_ns(6.123456954956055) == 6123457
    assert duration_ns(0.0) == 0
    assert duration_ns(-0.000032) == -32


def test_smallest_step():
    assert smallest_step([96, 32, 64, 64, 160]) == 32
    with pytest.raises(MachineError, match="found 2 equal intervals of 5 ns"):
        smallest_step([5, 5])


def test_what_cuda_returns():
    ok = 0
    assert checked((ok,), "x") is None
    assert checked((ok, 5), "x") == 5
    assert checked((ok, 5, 6), "x") == (5, 6)
    with pytest.raises(MachineError, match="CUDA failed in x: 700"):
        checked((700, None), "x")


@pytest.mark.parametrize(
    ("count", "edges", "order"),
    [
        (3, [], [0, 1, 2]),
        (3, [(2, 1), (1, 0)], [2, 1, 0]),
        (4, [(3, 0), (0, 1), (0, 2)], [3, 0, 1, 2]),
    ],
)
def test_topological_order(count, edges, order):
    assert cuda_graph.topological_order(count, edges) == order


def test_a_cycle_is_no_graph():
    with pytest.raises(ValueError, match="without cycles"):
        cuda_graph.topological_order(2, [(0, 1), (1, 0)])


class Kind(int):
    """An enumeration value as cuda.bindings has it."""

    def __new__(cls, value: int, name: str) -> "Kind":
        made = super().__new__(cls, value)
        made.name = name
        return made


def scripted_driver(with_edge_data: bool) -> SimpleNamespace:
    """A driver with one graph: a memset (node 9), then a kernel (node 4), then nothing (node 7)."""
    kinds = {
        name: Kind(i, f"CU_GRAPH_NODE_TYPE_{name}")
        for i, name in enumerate(["KERNEL", "MEMCPY", "MEMSET", "EMPTY", "GRAPH"])
    }
    nodes = {4: kinds["KERNEL"], 7: kinds["EMPTY"], 9: kinds["MEMSET"]}
    params = SimpleNamespace(
        func=0,
        kern=1,
        gridDimX=132,
        gridDimY=2,
        gridDimZ=1,
        blockDimX=256,
        blockDimY=1,
        blockDimZ=1,
        sharedMemBytes=100,
    )
    data = ([],) if with_edge_data else ()
    return SimpleNamespace(
        CUgraph=lambda handle: handle,
        CUgraphNodeType=SimpleNamespace(**{f"CU_GRAPH_NODE_TYPE_{name}": kind for name, kind in kinds.items()}),
        CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_NUM_REGS=4, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1),
        cuGraphGetNodes=lambda graph, count=0: (0, list(nodes)[:count], 3),
        cuGraphGetEdges=lambda graph, count=0: (0, [9, 4][:count], [4, 7][:count], *data, 2),
        cuGraphNodeGetType=lambda node: (0, nodes[node]),
        cuGraphKernelNodeGetParams=lambda node: (0, params),
        cuKernelGetFunction=lambda kernel: (0, kernel + 1),
        cuFuncGetAttribute=lambda kind, function: (0, {4: 40, 1: 1024}[kind]),
        cuFuncGetName=lambda function: (0, b"benchkit_copy"),
    )


@pytest.mark.parametrize("with_edge_data", [True, False])
def test_nodes_of_a_graph(with_edge_data, monkeypatch):
    driver = scripted_driver(with_edge_data)
    monkeypatch.setattr(cuda_graph, "bindings", lambda name: driver)
    assert cuda_graph.graph_kernels(1) == (
        LaunchedKernel(name="memset", grid=(0, 0, 0), block=(0, 0, 0), registers=0, shared_bytes=0),
        LaunchedKernel(name="benchkit_copy", grid=(132, 2, 1), block=(256, 1, 1), registers=40, shared_bytes=1124),
    )


def one_kernel_driver(kinds: list[str]) -> tuple[SimpleNamespace, list[object]]:
    """A driver with one graph of nodes of these kinds, and what it was told to set."""
    driver, told = scripted_driver(with_edge_data=False), []
    nodes = {index: getattr(driver.CUgraphNodeType, f"CU_GRAPH_NODE_TYPE_{kind}") for index, kind in enumerate(kinds)}
    driver.cuGraphGetNodes = lambda graph, count=0: (0, list(nodes)[:count], len(nodes))
    driver.cuGraphNodeGetType = lambda node: (0, nodes[node])
    driver.cuGraphKernelNodeSetParams = lambda node, params: (
        told.append((node, params.gridDimX, params.gridDimY)),
        (0,),
    )[1]
    return driver, told


def test_a_kernel_gets_another_grid(monkeypatch):
    driver, told = one_kernel_driver(["KERNEL"])
    monkeypatch.setattr(cuda_graph, "bindings", lambda name: driver)
    found = cuda_graph.regrid(1, 246)
    assert told == [(0, 246, 1)]
    assert (found.name, found.grid, found.block, found.shared_bytes) == (
        "benchkit_copy",
        (246, 1, 1),
        (256, 1, 1),
        1124,
    )


@pytest.mark.parametrize(
    ("kinds", "found"), [([], "nothing"), (["MEMSET", "KERNEL"], "memset, kernel"), (["KERNEL"] * 2, "kernel, kernel")]
)
def test_only_a_call_of_one_kernel_gets_another_grid(kinds, found, monkeypatch):
    driver, told = one_kernel_driver(kinds)
    monkeypatch.setattr(cuda_graph, "bindings", lambda name: driver)
    with pytest.raises(WorkerError) as caught:
        cuda_graph.regrid(1, 246)
    assert str(caught.value) == f"expected a call that launches one kernel, found {found}"
    assert told == []
