"""``benchkit publish``: to a folder and to an S3-compatible store; nothing is overwritten, half a bundle is none."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import servers
from test_web import report

from benchkit.bundle import publish as publishing
from benchkit.bundle.publish import publish
from benchkit.errors import BundleError

fsspec = pytest.importorskip("fsspec")
Run = Callable[..., CompletedProcess[str]]


def place(bundle: Path) -> str:
    return f"{bundle.parent.name}/{bundle.name}"


def test_to_a_folder(fake_bundle: Path, tmp_path: Path, run_benchkit: Run) -> None:
    done = run_benchkit("publish", fake_bundle, tmp_path / "shared")
    assert done.returncode == 0, done.stderr
    target = tmp_path / "shared" / place(fake_bundle)
    names = sorted(path.name for path in fake_bundle.iterdir())
    assert done.stdout.startswith(f"published: {target} ({len(names)} files sent, 0 were there)")
    assert sorted(path.name for path in target.iterdir()) == names
    again = run_benchkit("publish", fake_bundle, tmp_path / "shared")
    assert f"(0 files sent, {len(names)} were there)" in again.stdout


def test_only_what_belongs_to_the_bundle_is_sent(bundle_copy: Path, tmp_path: Path, run_benchkit: Run) -> None:
    names = sorted(path.name for path in bundle_copy.iterdir())
    (bundle_copy / "manifest.json.sig.json").write_text("{}", "utf-8")
    for name in ("extra.txt", "report.html", "extra.sig.json", "inside/extra.txt"):
        (bundle_copy / name).parent.mkdir(exist_ok=True)
        (bundle_copy / name).write_text("x", "utf-8")
    done = run_benchkit("publish", bundle_copy, tmp_path / "shared")
    (target,) = (tmp_path / "shared").glob("*/*")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"published: {target} ({len(names) + 1} files sent, 0 were there)")
    assert sorted(path.name for path in target.iterdir()) == sorted([*names, "manifest.json.sig.json"])


def test_nothing_is_overwritten(fake_bundle: Path, tmp_path: Path, run_benchkit: Run) -> None:
    target = tmp_path / "shared" / place(fake_bundle)
    target.mkdir(parents=True)
    (target / "samples.parquet").write_bytes(b"another run")
    done = run_benchkit("publish", fake_bundle, tmp_path / "shared")
    assert (done.returncode, done.stdout) == (2, "")
    assert "published bundles are never overwritten" in done.stderr
    assert (target / "samples.parquet").read_bytes() == b"another run"
    assert not (target / "manifest.json").exists()


def test_an_interrupted_upload_is_no_bundle(fake_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, count = publishing._put, [0]

    def stops(files: Any, source: Path, target: str) -> None:
        count[0] += 1
        if count[0] == 5:
            raise KeyboardInterrupt
        put(files, source, target)

    monkeypatch.setattr(publishing, "_put", stops)
    with pytest.raises(KeyboardInterrupt):
        publish(fake_bundle, str(tmp_path))
    target = tmp_path / place(fake_bundle)
    assert json.loads(report(target, "--format", "json").stdout)["reasons"][0]["code"] == "MANIFEST_MISSING"
    monkeypatch.undo()
    done = publish(fake_bundle, str(tmp_path))
    assert (done.present, done.sent) == (4, len(list(fake_bundle.iterdir())) - 4)


def test_a_changed_bundle_is_not_published(bundle_copy: Path, tmp_path: Path, run_benchkit: Run) -> None:
    with (bundle_copy / "samples.parquet").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(BundleError, match="a sealed bundle is not edited"):
        publish(bundle_copy, str(tmp_path / "shared"))
    assert not (tmp_path / "shared").exists()
    assert run_benchkit("publish", bundle_copy, "http://127.0.0.1:1/x").returncode == 2


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """An S3-compatible store with the bucket ``lab``."""
    with servers.store() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in (("AWS_ENDPOINT_URL", endpoint), ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x"),
                            ("AWS_DEFAULT_REGION", "us-east-1"), ("AWS_EC2_METADATA_DISABLED", "true")):  # fmt: skip
            patch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("lab")
        yield endpoint


def test_to_a_store_and_back(bucket: str, fake_bundle: Path, run_benchkit: Run, tmp_path: Path) -> None:
    done = run_benchkit("publish", fake_bundle, "s3://lab/results")
    assert done.returncode == 0, done.stderr
    url = f"s3://lab/results/{place(fake_bundle)}"
    assert done.stdout.splitlines()[1] == f"check it: validator report {url}"
    value = json.loads(report(url, "--format", "json").stdout)
    assert ([reason["code"] for reason in value["reasons"]], value["bundle"]["path"]) == (["SYNTHETIC"], url)
    assert "(0 files sent" in run_benchkit("publish", fake_bundle, "s3://lab/results").stdout
    changed = Path(shutil.copytree(fake_bundle, tmp_path / fake_bundle.name))
    (changed / "analysis.json").write_text("{}")
    refused = run_benchkit("publish", changed, "s3://lab/results")
    assert (refused.returncode, "never overwritten" in refused.stderr) == (2, True)


def test_a_store_shows_files_that_nobody_listed(bucket: str, fake_bundle: Path) -> None:
    publish(fake_bundle, "s3://lab/more")
    import s3fs

    s3fs.S3FileSystem().pipe(f"lab/more/{place(fake_bundle)}/notes.txt", b"x")
    value = json.loads(report(f"s3://lab/more/{place(fake_bundle)}", "--format", "json").stdout)
    assert [reason["code"] for reason in value["reasons"]] == ["EXTRA_FILE", "SYNTHETIC"]


def test_half_a_bundle_in_a_store(bucket: str, fake_bundle: Path) -> None:
    publish(fake_bundle, "s3://lab/half")
    import s3fs

    s3fs.S3FileSystem().rm(f"lab/half/{place(fake_bundle)}/manifest.json")
    done = report(f"s3://lab/half/{place(fake_bundle)}")
    assert (done.returncode, "an unfinished upload is no bundle" in done.stdout) == (3, True)
    assert report("s3://nobucket/x").returncode == 3


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "expected a folder or a store that can be written (file://..., s3://...), found ''"),
        (" ", "expected a folder or a store that can be written (file://..., s3://...), found ' '"),
        ("ftp://x/y", "expected a folder or a store that can be written (file://..., s3://...), found 'ftp://x/y'"),
        ("/dev/null/x", "/dev/null/x/{}/attempts.jsonl: cannot be written (NotADirectoryError: [Errno 20] Not a directory: '/dev/null/x')"),
        ("s3://lab/x", "lab/x/{}/attempts.jsonl: cannot be written (NoCredentialsError: Unable to locate credentials)"),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_written(
    fake_bundle: Path, run_benchkit: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, message: str
) -> None:
    if url.startswith("s3"):
        pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    done = run_benchkit("publish", fake_bundle, url)
    expected = message.format(place(fake_bundle))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"benchkit: {expected}\n")
