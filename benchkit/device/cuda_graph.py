"""What a captured CUDA graph launches: its nodes in topological order, with names, shapes and registers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchkit.cuda_source import bindings, checked
from benchkit.device.ports import LaunchedKernel
from benchkit.errors import WorkerError

_NOTHING = (0, 0, 0)


def topological_order(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Nodes 0 to count - 1 so that each stands behind those that it waits for; among equals the lower number first."""
    waiting = [0] * count
    for _, to in edges:
        waiting[to] += 1
    order: list[int] = []
    left = set(range(count))
    while left:
        ready = min((node for node in left if waiting[node] == 0), default=None)
        if ready is None:
            raise ValueError("expected a graph without cycles, found one")
        order.append(ready)
        left.remove(ready)
        for source, to in edges:
            waiting[to] -= source == ready
    return order


def graph_kernels(graph: int) -> tuple[LaunchedKernel, ...]:
    """The work of the ``CUgraph`` with this handle; child graphs are listed in place, empty nodes left out."""
    driver = bindings("driver")
    return tuple(_nodes(driver, driver.CUgraph(graph)))


def regrid(graph: int, grid: int) -> LaunchedKernel:
    """Give the kernel of the ``CUgraph`` with this handle ``grid`` CUDA blocks, all else as it is; returns what then stands in the graph.

    WorkerError where the graph holds anything but one kernel.
    """
    driver = bindings("driver")
    nodes = _listed(driver.cuGraphGetNodes, driver.CUgraph(graph), 1)[0]
    kinds = [checked(driver.cuGraphNodeGetType(node), "cuGraphNodeGetType") for node in nodes]
    if kinds != [driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL]:
        names = ", ".join(str(kind.name).removeprefix("CU_GRAPH_NODE_TYPE_").lower() for kind in kinds)
        raise WorkerError(f"expected a call that launches one kernel, found {names or 'nothing'}")
    params = checked(driver.cuGraphKernelNodeGetParams(nodes[0]), "cuGraphKernelNodeGetParams")
    params.gridDimX, params.gridDimY, params.gridDimZ = grid, 1, 1
    checked(driver.cuGraphKernelNodeSetParams(nodes[0], params), "cuGraphKernelNodeSetParams")
    return _kernel(driver, nodes[0])


def _nodes(driver: Any, graph: Any) -> Iterator[LaunchedKernel]:
    nodes = _listed(driver.cuGraphGetNodes, graph, 1)[0]
    if not nodes:
        return
    position = {int(node): index for index, node in enumerate(nodes)}
    # CUDA 12 names the form that also knows edges of programmatic launches _v2; CUDA 13 has only that form.
    get_edges = getattr(driver, "cuGraphGetEdges_v2", driver.cuGraphGetEdges)
    sources, targets = _listed(get_edges, graph, 2)
    edges = [(position[int(a)], position[int(b)]) for a, b in zip(sources, targets, strict=True)]
    kinds = driver.CUgraphNodeType
    for index in topological_order(len(nodes), edges):
        node = nodes[index]
        kind = checked(driver.cuGraphNodeGetType(node), "cuGraphNodeGetType")
        if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
            yield _kernel(driver, node)
        elif kind == kinds.CU_GRAPH_NODE_TYPE_GRAPH:
            yield from _nodes(driver, checked(driver.cuGraphChildGraphNodeGetGraph(node), "child graph"))
        elif kind != kinds.CU_GRAPH_NODE_TYPE_EMPTY:
            name = str(kind.name).removeprefix("CU_GRAPH_NODE_TYPE_").lower()
            yield LaunchedKernel(name=name, grid=_NOTHING, block=_NOTHING, registers=0, shared_bytes=0)


def _listed(function: Any, graph: Any, lists: int) -> tuple[list[Any], ...]:
    """The first ``lists`` results of a function that fills lists; it returns their length last and is asked twice."""
    found = function(graph)
    checked(found[:1], "listing a graph")
    count = int(found[-1])
    if count == 0:
        return ([],) * lists
    found = function(graph, count)
    checked(found[:1], "listing a graph")
    return tuple(list(found[1 + index])[:count] for index in range(lists))


def _kernel(driver: Any, node: Any) -> LaunchedKernel:
    params = checked(driver.cuGraphKernelNodeGetParams(node), "cuGraphKernelNodeGetParams")
    function = params.func
    if not int(function):  # a kernel of a library, not yet tied to a context
        function = checked(driver.cuKernelGetFunction(params.kern), "cuKernelGetFunction")
    kinds = driver.CUfunction_attribute
    attributes: Mapping[str, int] = {
        name: int(checked(driver.cuFuncGetAttribute(kind, function), "cuFuncGetAttribute"))
        for name, kind in {
            "registers": kinds.CU_FUNC_ATTRIBUTE_NUM_REGS,
            "shared": kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        }.items()
    }
    name = checked(driver.cuFuncGetName(function), "cuFuncGetName")
    return LaunchedKernel(
        name=name.decode() if isinstance(name, bytes) else str(name),
        grid=(int(params.gridDimX), int(params.gridDimY), int(params.gridDimZ)),
        block=(int(params.blockDimX), int(params.blockDimY), int(params.blockDimZ)),
        registers=attributes["registers"],
        shared_bytes=attributes["shared"] + int(params.sharedMemBytes),
    )
