"""Launches with attributes: clusters of CTAs and programmatic dependent launches (compute capability 9.0), beside ``cuda_source.Launch``."""

import ctypes
from typing import Any

from benchkit.cuda_source import Argument, Cubin, Module, bindings, checked


class AttributedLaunch:
    """One kernel with its shape, attributes and arguments; call it with a stream's handle."""

    def __init__(self, function: Any, config: Any, arguments: tuple[Argument, ...]) -> None:
        self._driver = bindings("driver")
        self._function, self._config = function, config
        self._arguments = arguments  # their addresses are what the driver is given
        self._addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))

    def __call__(self, stream: int) -> None:
        """Issue the kernel on ``stream`` (a ``CUstream`` as an integer) and return."""
        self._config.hStream = self._driver.CUstream(stream)
        parameters = ctypes.addressof(self._addresses)
        checked(self._driver.cuLaunchKernelEx(self._config, self._function, parameters, 0), "cuLaunchKernelEx")


class AttributedModule(Module):
    """A loaded cubin whose kernels may take all of a CTA's shared memory, ``cta_bytes``, and are launched with attributes."""

    def __init__(self, cubin: Cubin, cta_bytes: int) -> None:
        super().__init__(cubin)
        self._cta_bytes = cta_bytes
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """The kernel ``name``, with its limits raised."""
        if name not in self._functions:
            driver, kinds = self._driver, self._driver.CUfunction_attribute
            function = checked(driver.cuModuleGetFunction(self._module, name.encode()), f"cuModuleGetFunction({name})")
            wanted = {
                kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: self._cta_bytes,
                kinds.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: 100,
            }
            for kind, value in wanted.items():
                checked(
                    driver.cuFuncSetAttribute(function, kind, value), f"cuFuncSetAttribute({name}, {kind}, {value})"
                )
            self._functions[name] = function
        return self._functions[name]

    def attributed(
        self,
        name: str,
        *arguments: Argument,
        grid: int,
        block: int,
        shared_bytes: int,
        cluster: int = 1,
        dependent: bool = False,
    ) -> AttributedLaunch:
        """Prepare a launch with one-dimensional shapes.

        Parameters
        ----------
        cluster:
            CTAs of a cluster; it divides ``grid``.
        dependent:
            The kernel may start before the one ahead of it in the stream has ended (it waits by ``griddepcontrol.wait``).
        """
        driver = self._driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared_bytes
        attributes = []
        if cluster > 1:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
            attributes.append(attribute)
        if dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return AttributedLaunch(self.function(name), config, arguments)
