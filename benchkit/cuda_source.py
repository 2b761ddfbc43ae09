"""CUDA C++ compiled at run time: NVRTC to a cubin, a module of the current context, launches on a given stream.

Rules:
1. Compiled code is a cubin for exactly this architecture: no driver compiles anything later, so the cubin's SHA-256 names what runs.
2. ``cuda.bindings`` is imported when something is compiled, never before; compiling needs no GPU and no driver, loading does.
3. A launch is prepared once (shape, arguments) and then only issued: nothing is allocated between samples.
"""

import ctypes
import hashlib
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from benchkit import cubin_cache
from benchkit.errors import MachineError

Shape = tuple[int, int, int]
Argument = ctypes.c_void_p | ctypes.c_int32 | ctypes.c_int64


def bindings(name: str) -> Any:
    """The module ``cuda.bindings.<name>``; MachineError where it is not installed or finds no library."""
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ImportError as error:
        raise MachineError(
            f"expected the package cuda-bindings, found none ({error}); install cuda-bindings"
        ) from error


def checked(result: Sequence[Any], doing: str) -> Any:
    """What a call of ``cuda.bindings`` returned after its error code; MachineError on an error.

    One value comes back bare, several as a tuple, none as None.
    """
    code, values = result[0], tuple(result[1:])
    if int(code) != 0:
        raise MachineError(f"CUDA failed in {doing}: {getattr(code, 'name', code)}")
    if len(values) == 1:
        return values[0]
    return values or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """Compiled code of one source and one set of options."""

    code: bytes
    log: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the code, lower-case hex."""
        return hashlib.sha256(self.code).hexdigest()


@lru_cache(maxsize=64)
def compile_cubin(source: str, *, name: str, arch: str, options: tuple[str, ...] = ()) -> Cubin:
    """CUDA C++ ``source`` as a cubin for ``arch`` (``sm_90``), compiled unless ``cubin_cache`` has it.

    Raises
    ------
    MachineError
        There is no compiler, or it does not compile the source: with its log.
    """
    key = cubin_cache.key(_compiler(), source, name, arch, *options)
    kept = cubin_cache.read(key)
    if kept is not None:
        code, log = kept
        return Cubin(code=code, log=log)
    with _program(source, name, arch, options) as (nvrtc, program, log):
        code = b" " * int(checked(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize"))
        checked(nvrtc.nvrtcGetCUBIN(program, code), "nvrtcGetCUBIN")
    cubin_cache.write(key, code, log)
    return Cubin(code=code, log=log)


@lru_cache(maxsize=1)
def _compiler() -> str:
    """The compiler as it names itself, with its build, at the head of the PTX of an empty program."""
    with _program("", "empty.cu", "compute_90", ()) as (nvrtc, program, _):
        text = b" " * int(checked(nvrtc.nvrtcGetPTXSize(program), "nvrtcGetPTXSize"))
        checked(nvrtc.nvrtcGetPTX(program, text), "nvrtcGetPTX")
    return text.decode()


@contextmanager
def _program(source: str, name: str, arch: str, options: tuple[str, ...]) -> Iterator[tuple[Any, Any, str]]:
    """NVRTC, a program that it has compiled, and its log."""
    nvrtc = bindings("nvrtc")
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []), "nvrtcCreateProgram")
    flags = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", *options]
    try:
        done = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        # NVRTC writes into the bytes: never into the one object that Python keeps for each single byte, which an empty log would be given
        log_bytes = b" " * (1 + int(checked(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")))
        checked(nvrtc.nvrtcGetProgramLog(program, log_bytes), "nvrtcGetProgramLog")
        log = log_bytes.decode(errors="replace").strip("\0 \n")
        if int(done[0]) != 0:
            raise MachineError(f"NVRTC does not compile {name} for {arch}:\n{log}")
        yield nvrtc, program, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


class Launch:
    """One kernel with its shape and arguments; call it with a stream's handle."""

    def __init__(self, function: Any, grid: Shape, block: Shape, shared_bytes: int, arguments: tuple[Argument, ...]):
        self._driver = bindings("driver")
        self._function = function
        self._shape = (*grid, *block, shared_bytes)
        self._arguments = arguments
        self._addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))

    def __call__(self, stream: int) -> None:
        """Issue the kernel on ``stream`` (a ``CUstream`` as an integer) and return."""
        driver = self._driver
        parameters = ctypes.addressof(self._addresses)
        handle = driver.CUstream(stream)
        checked(driver.cuLaunchKernel(self._function, *self._shape, handle, parameters, 0), "cuLaunchKernel")


class Module:
    """A cubin loaded into the current context; it stays loaded as long as the process."""

    def __init__(self, cubin: Cubin) -> None:
        self._driver = bindings("driver")
        self._image = ctypes.create_string_buffer(cubin.code, len(cubin.code))
        address = ctypes.addressof(self._image)
        self._module = checked(self._driver.cuModuleLoadData(address), "cuModuleLoadData")

    def launch(self, name: str, *arguments: Argument, grid: int, block: int, shared_bytes: int = 0) -> Launch:
        """Prepare a launch of the kernel ``name`` (declared ``extern "C"``) with one-dimensional shapes."""
        driver = self._driver
        function = checked(driver.cuModuleGetFunction(self._module, name.encode()), f"cuModuleGetFunction({name})")
        if shared_bytes:  # and the whole of the SM's memory as shared memory, so that several CTAs fit
            kinds = driver.CUfunction_attribute
            wanted = {
                kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: shared_bytes,
                kinds.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: 100,
            }
            for kind, value in wanted.items():
                checked(
                    driver.cuFuncSetAttribute(function, kind, value), f"cuFuncSetAttribute({name}, {kind}, {value})"
                )
        return Launch(function, (grid, 1, 1), (block, 1, 1), shared_bytes, arguments)
