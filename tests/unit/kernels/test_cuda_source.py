"""Compiling leaves Python's own objects alone, and is done once: what was compiled before is read."""

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from benchkit import cubin_cache, cuda_source
from benchkit.cuda_source import Cubin, compile_cubin

SOURCE = 'extern "C" __global__ void store(int* to) { int unused; *to = VALUE; }'  # which the compiler warns of


def test_an_empty_log_is_not_written_into_the_one_blank_that_python_keeps() -> None:
    cubin = compile_cubin('extern "C" __global__ void nothing() {}', name="nothing.cu", arch="sm_90")
    assert cubin.log == ""
    assert [bytes((value,))[0] for value in range(256)] == list(range(256))


def compiled(value: int, arch: str = "sm_90") -> Cubin:
    """The source with a value, as a new process would have it."""
    compile_cubin.cache_clear()
    return compile_cubin(SOURCE, name="store.cu", arch=arch, options=(f"-DVALUE={value}",))


def kept(folder: Path) -> list[Path]:
    """What lies in the cache."""
    return sorted(folder.rglob("cubin/*"))


def test_what_was_compiled_before_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHKIT_CACHE_DIR", str(tmp_path))
    first = compiled(1)
    assert 'variable "unused" was declared but never referenced' in first.log
    assert [len(path.name) for path in kept(tmp_path)] == [64]
    with monkeypatch.context() as without:
        without.setattr(cuda_source, "_program", None)  # no compiler is asked
        assert compiled(1) == first
    assert compiled(2).code != first.code
    assert compiled(1, "sm_100").code != first.code
    assert len(kept(tmp_path)) == 3
    monkeypatch.setattr(cuda_source, "_compiler", lambda: "another one")
    assert compiled(1) == first
    assert len(kept(tmp_path)) == 4


@pytest.mark.parametrize("damage", [b"", b"x", b"0" * 64 + b"\n", None])
def test_a_damaged_file_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    monkeypatch.setenv("BENCHKIT_CACHE_DIR", str(tmp_path))
    first = compiled(1)
    (path,) = kept(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if damage is None else damage)
    assert compiled(1) == first
    assert path.read_bytes() == whole
    assert kept(tmp_path) == [path]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("BENCHKIT_CACHE_DIR", str(tmp_path / "file"))
    assert compiled(1).code[:4] == b"\x7fELF"


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, expected in (
        ("BENCHKIT_CACHE_DIR", "", None),
        ("BENCHKIT_CACHE_DIR", "/here", Path("/here/cubin")),
        ("XDG_CACHE_HOME", "/there", Path("/there/benchkit/cubin")),
        ("HOME", "/home/someone", Path("/home/someone/.cache/benchkit/cubin")),
    ):
        for other in ("BENCHKIT_CACHE_DIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(other, raising=False)
        monkeypatch.setenv(name, value)
        assert cubin_cache.folder() == expected
