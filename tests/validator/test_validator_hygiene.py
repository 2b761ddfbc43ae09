"""Names, links, sizes and permissions of the members: every oddity is a finding, nothing outside is touched."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import builder
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from validator.findings import Validity
from validator.reading import limits, tables
from validator.reading.folder import is_plain
from validator.reading.limits import OversizedError
from validator.reading.pages import PageError, read_pages
from validator.reasons import Reason as R
from validator.validate import validate

COMPOSED, DECOMPOSED = "d\u00e9code.cu", "de\u0301code.cu"
WATCH = """
import sys, os, pathlib
bundle = os.path.realpath(sys.argv[1])
from validator.validate import validate
import validator.report.document, validator.report.text
validate(pathlib.Path(sys.argv[1]))
touched = []
def hook(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)) and "__pycache__" not in str(args[0]):
        touched.append(os.path.abspath(os.fsdecode(args[0])))
sys.addaudithook(hook)
report = validate(pathlib.Path(sys.argv[1]))
print(report.codes and report.codes[0].value)
print([path for path in touched if not path.startswith(bundle)])
"""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean bundle (never change it: copy it)."""
    return builder.draft().seal(tmp_path_factory.mktemp("clean") / "b")


@pytest.fixture
def bundle(clean: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(clean, tmp_path / "b"))


def list_files(bundle: Path, *names: str, digest: str | None = None) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    for name in names:
        manifest["files"][name] = {"sha256": digest or builder.sha(b"x"), "bytes": 1}
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_f03_another_unicode_form_shows_both_names_as_bytes(bundle: Path) -> None:
    list_files(bundle, COMPOSED)
    (bundle / DECOMPOSED).write_bytes(b"x")
    (finding,) = validate(bundle).reasons
    assert (finding.reason, finding.where) == (R.UNSAFE_PATH, COMPOSED)
    assert finding.expected == "the bytes 64 c3 a9 63 6f 64 65 2e 63 75 that the manifest lists"
    assert finding.got == "the bytes 64 65 cc 81 63 6f 64 65 2e 63 75"


def test_f03_both_forms_collide(bundle: Path) -> None:
    list_files(bundle, COMPOSED, DECOMPOSED)
    (bundle / DECOMPOSED).write_bytes(b"x")
    (bundle / COMPOSED).write_bytes(b"x")
    (finding,) = validate(bundle).reasons
    assert (finding.reason, finding.expected) == (R.UNSAFE_PATH, "distinct names on every file system")


@pytest.mark.parametrize("there", [["A.cu", "a.cu"], ["a.cu"]], ids=["both", "one"])
def test_f03_names_without_case_collide(bundle: Path, there: list[str]) -> None:
    list_files(bundle, "A.cu", "a.cu")
    for name in there:
        (bundle / name).write_bytes(b"x")
    report = validate(bundle)
    assert report.codes[0] is R.UNSAFE_PATH
    assert "collides" in report.reasons[0].got
    assert R.EXTRA_FILE not in report.codes


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/../x", "/x", "a//b", "./a", "a/", "C:x", "a\\b", "nul", "assets/AUX.txt", "a.", "a ", "a\n",
     "a\x00", "\ud800", "x" * 256, 'a"', "a|b"],
)  # fmt: skip
def test_names_that_are_not_plain(bundle: Path, name: str) -> None:
    assert not is_plain(name)
    list_files(bundle, name)
    report = validate(bundle)
    assert report.codes[0] is R.UNSAFE_PATH
    assert [finding.where.encode() for finding in report.reasons] != []


def test_plain_names() -> None:
    assert all(is_plain(name) for name in ("samples.parquet", "assets/routes-1.2.parquet", COMPOSED, "console.txt"))


def test_a_name_that_is_no_utf8(bundle: Path) -> None:
    Path(os.fsdecode(bytes(bundle) + b"/\xff\xfe")).write_bytes(b"x")
    report = validate(bundle)
    assert report.codes == (R.UNSAFE_PATH,)
    assert report.reasons[0].where == "\\udcff\\udcfe"


OUTSIDE: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "a link": (lambda b, o: ((b / "protocol.lock").unlink(), (b / "protocol.lock").symlink_to(o / "secret")), "UNSAFE_PATH"),
    "a table that is a link": (
        lambda b, o: ((b / "samples.parquet").rename(o / "s"), (b / "samples.parquet").symlink_to(o / "s")),
        "UNSAFE_PATH",
    ),
    "a linked folder": (lambda b, o: (b / "assets").symlink_to(o), "UNSAFE_PATH"),
    "a listed name outside": (lambda b, o: list_files(b, f"../{o.name}/secret", str(o / "secret")), "UNSAFE_PATH"),
    "a linked claim": (lambda b, o: (b / "analysis.json").symlink_to(o / "secret"), "UNSAFE_PATH"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_is_opened(bundle: Path, tmp_path: Path, name: str) -> None:
    change, reason = OUTSIDE[name]
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("{}")
    change(bundle, tmp_path / "outside")
    done = subprocess.run([sys.executable, "-c", WATCH, str(bundle)], capture_output=True, text=True, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == ([reason, "[]"], "")


@pytest.mark.parametrize("member", ["samples.parquet", "manifest.json", "protocol.toml", "attempts.jsonl", "extras"])
def test_without_permission(bundle: Path, member: str) -> None:
    (bundle / "extras").mkdir()
    (bundle / member).chmod(0)
    for folder in (bundle, *bundle.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    code = "import os, sys, pathlib\nfrom validator.validate import validate\nplace = pathlib.Path(sys.argv[1])\n"
    code += "validate(place)\nif os.geteuid() == 0: os.seteuid(65534)\nr = validate(place)\n"
    code += "print([c.value for c in dict.fromkeys(r.codes)], r.validity.value)"
    done = subprocess.run([sys.executable, "-c", code, str(bundle)], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    codes, _, validity = done.stdout.strip().rpartition(" ")
    assert (codes, validity) == ("['FILE_UNREADABLE']", "INVALID")
    (bundle / member).chmod(0o700)


def test_too_many_files_are_no_bundle(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.reading.folder.MEMBERS", 5)
    assert validate(bundle).validity is Validity.COULD_NOT_CHECK


def test_a_large_asset_is_not_read(bundle: Path) -> None:
    (bundle / "assets").mkdir()
    (bundle / "assets" / "routes").touch()
    os.truncate(bundle / "assets" / "routes", 1 << 40)
    list_files(bundle, "assets/routes")
    assert validate(bundle).codes == (R.OVERSIZED,)


def test_long_strings_are_refused() -> None:
    tables.check_texts("reason", [5, 1], [(0, 10), (1, 5)])
    with pytest.raises(OversizedError, match="strings of at most"):
        tables.check_texts("reason", [limits.TEXT_VALUE + 1], [(0, 1)])
    with pytest.raises(OversizedError, match="in a batch of rows"):
        tables.check_texts("reason", [1 << 20], [(0, 1025)])


def test_a_long_string_in_many_rows_takes_little_memory(bundle: Path) -> None:
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["0" * 3_000_000]))
    path = bundle / "repeats.parquet"
    count = pa.array([0] * 100_000)
    table = pa.table({
        "process": count.cast(pa.int32()), "attempt": count.cast(pa.int16()), "point": text, "arm": text,
        "repeat": count.cast(pa.int32()), "mode_sha256": text, "output_sha256": text,
    })  # fmt: skip
    pq.write_table(table, path, compression="zstd")
    code = (
        "import sys, pathlib, pyarrow as pa\nfrom validator.validate import validate\n"
        "report = validate(pathlib.Path(sys.argv[1]))\n"
        "print('OVERSIZED' in report.codes, pa.default_memory_pool().max_memory() < 200 << 20)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(bundle)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_pages_are_those_of_the_footer(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"a": list(range(50_000)), "s": [f"x{i % 7}" for i in range(50_000)]})
    for options in ({}, {"data_page_version": "2.0"}, {"write_page_checksum": True, "write_page_index": True}):
        pq.write_table(table, path, row_group_size=20_000, data_page_size=4096, **options)
        footer, size = pq.read_metadata(path), path.stat().st_size
        pages = read_pages(str(path), footer, size, most=10_000)
        groups = [footer.row_group(i).column(j) for i in range(3) for j in range(2)]
        heads = sum(group.total_uncompressed_size for group in groups) - pages.unpacked
        assert pages.count > 30
        assert 0 < heads < 200 * pages.count
        with pytest.raises(PageError, match="more than 5 pages"):
            read_pages(str(path), footer, size, most=5)
        with pytest.raises(PageError, match="in a file of"):
            read_pages(str(path), footer, size // 2, most=10_000)
