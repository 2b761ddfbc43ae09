"""Signatures of manifest and lock: made by benchkit, verified and named by the validator, and never needed."""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import forked
import pytest

pytest.importorskip("securesystemslib")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402

Run = Callable[..., CompletedProcess[str]]


def new_key(folder: Path, name: str, form: str = "OpenSSH") -> tuple[Path, Path]:
    """A private key and its public one, as ssh-keygen leaves them."""
    key = Ed25519PrivateKey.generate()
    kind = serialization.PrivateFormat.OpenSSH if form == "OpenSSH" else serialization.PrivateFormat.PKCS8
    private, public = folder / name, folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public.write_bytes(line + b" somebody@lab\n")
    return private, public


def report(*arguments: object) -> CompletedProcess[str]:
    return forked.run("validator.cli", "report", *arguments)


def reasons(bundle: Path, *options: object) -> tuple[list[str], list[str]]:
    value = json.loads(report(bundle, "--format", "json", *options).stdout)
    return [item["code"] for item in value["reasons"]], [note for note in value["notes"] if "sign" in note]


@pytest.fixture
def signed(bundle_copy: Path, tmp_path: Path, run_benchkit: Run) -> Path:
    """A signed bundle; the key is ``key`` beside it."""
    private, _ = new_key(tmp_path, "key")
    done = run_benchkit("sign", bundle_copy, "--key", private)
    names = [bundle_copy / f"{name}.sig.json" for name in ("manifest.json", "protocol.lock")]
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"signed: {path}" for path in names])
    return bundle_copy


def test_unsigned_is_said_and_changes_nothing(bundle_copy: Path) -> None:
    assert reasons(bundle_copy) == (["SYNTHETIC"], ["unsigned: no key vouches for manifest.json"])


def test_the_key_is_named(signed: Path, tmp_path: Path) -> None:
    codes, notes = reasons(signed, "--signed-by", tmp_path / "key.pub")
    assert codes == ["SYNTHETIC"]
    assert [note.rpartition(" ")[0] for note in notes] == [
        "manifest.json is signed by the key",
        "protocol.lock is signed by the key",
    ]
    if shutil.which("ssh-keygen"):
        shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], capture_output=True, text=True).stdout
        assert shown.split()[1] == notes[0].rpartition(" ")[2]


def test_another_signer(signed: Path, tmp_path: Path) -> None:
    _, other = new_key(tmp_path, "other")
    assert reasons(signed, "--signed-by", other)[0] == ["SIGNER_NOT_THE_EXPECTED", "SYNTHETIC"]
    (signed / "manifest.json.sig.json").unlink()
    assert reasons(signed, "--signed-by", tmp_path / "key.pub")[0] == ["SIGNER_NOT_THE_EXPECTED", "SYNTHETIC"]
    assert report(signed, "--signed-by", signed / "protocol.toml").returncode == 3
    assert report(signed, "--signed-by", tmp_path / "nothing").returncode == 2


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def apply(bundle: Path) -> None:
        path = bundle / "manifest.json.sig.json"
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return apply


def foreign(value: dict[str, Any]) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    value["public_key"] = line.decode()


def restate(value: dict[str, Any]) -> None:
    statement = json.loads(base64.b64decode(value["payload"]))
    statement["predicateType"] = "urn:another"
    value["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "another key": edit(foreign),
    "another payload": edit(restate),
    "no signature": edit(lambda v: v.update(signatures=[])),
    "another signature": edit(lambda v: v["signatures"][0].update(sig=base64.b64encode(bytes(64)).decode())),
    "no base64": edit(lambda v: v.update(payload="%")),
    "no key": edit(lambda v: v.update(public_key="")),
    "another type": edit(lambda v: v.update(payloadType="text/plain")),
    "odd signatures": edit(lambda v: v.update(signatures=7)),
    "odd values": edit(lambda v: v.update(signatures=[{"keyid": 1, "sig": None}])),
    "no JSON": lambda b: (b / "manifest.json.sig.json").write_bytes(b"\xff"),
    "of another file": lambda b: shutil.copyfile(b / "protocol.lock.sig.json", b / "manifest.json.sig.json"),
    "of a file that is not there": lambda b: shutil.copyfile(b / "protocol.lock.sig.json", b / "x.sig.json"),
    "a rewritten manifest": lambda b: (b / "manifest.json").write_text((b / "manifest.json").read_text() + " "),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_signature_that_does_not_hold(signed: Path, name: str) -> None:
    (signed / "analysis.json").unlink()
    DAMAGE[name](signed)
    assert reasons(signed)[0] == ["SIGNATURE_INVALID", "SYNTHETIC"]


def test_without_the_library_it_is_not_verified(signed: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; sys.modules['securesystemslib'] = None\nfrom validator.validate import validate\n"
        "r = validate(pathlib.Path(sys.argv[1]))\nprint(*r.codes, *[n for n in r.notes if 'verified' in n], sep='\\n')\n"
        "print(validate(pathlib.Path(sys.argv[1]), signed_by=pathlib.Path(sys.argv[2])).validity.value)"
    )
    command = [sys.executable, "-c", code, str(signed), str(tmp_path / "key.pub")]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    ending = "not verified, install this tool with its extra [sign]"
    assert lines == [
        "SYNTHETIC", f"manifest.json.sig.json: {ending}", f"protocol.lock.sig.json: {ending}", "COULD_NOT_CHECK"
    ]  # fmt: skip


def test_a_lock_alone_and_a_pem_key(tmp_path: Path, run_benchkit: Run, bundle_copy: Path) -> None:
    private, _ = new_key(tmp_path, "pem", form="PEM")
    lock = tmp_path / "x.lock"
    shutil.copyfile(bundle_copy / "protocol.lock", lock)
    assert run_benchkit("sign", lock, "--key", private).returncode == 0
    envelope = json.loads((tmp_path / "x.lock.sig.json").read_text())
    assert json.loads(base64.b64decode(envelope["payload"]))["subject"][0]["name"] == "x.lock"


def test_keys_that_cannot_be_used(tmp_path: Path, run_benchkit: Run, bundle_copy: Path) -> None:
    (tmp_path / "text").write_text("no key")
    for key in (tmp_path / "text", tmp_path / "nothing"):
        done = run_benchkit("sign", bundle_copy, "--key", key)
        assert (done.returncode, "private key" in done.stderr) == (2, True)
    private, _ = new_key(tmp_path, "key")
    assert run_benchkit("sign", tmp_path / "nofile", "--key", private).returncode == 2
    assert run_benchkit("sign", tmp_path, "--key", private).returncode == 2


def test_a_signed_lock_takes_its_signature_into_the_bundle(tmp_path: Path, run_benchkit: Run) -> None:
    data = Path(__file__).parents[1] / "data"
    protocol, lock = tmp_path / "host.toml", tmp_path / "host.lock"
    shutil.copyfile(data / "host.toml", protocol)
    shutil.copyfile(data / "host.lock", lock)
    private, _ = new_key(tmp_path, "key")
    assert run_benchkit("sign", lock, "--key", private).returncode == 0
    command = ["run-protocol", protocol, "--synthetic", data / "fake-host.toml", "--out", tmp_path / "out"]
    done = run_benchkit(*command)
    assert done.returncode == 0, done.stderr
    (bundle,) = (tmp_path / "out" / "fake-host").glob("2*")
    signature = tmp_path / "host.lock.sig.json"
    assert (bundle / "protocol.lock.sig.json").read_bytes() == signature.read_bytes()
    assert "protocol.lock.sig.json" not in json.loads((bundle / "manifest.json").read_text())["files"]
    codes, notes = reasons(bundle)
    assert codes == ["SYNTHETIC"]
    assert [note.rpartition(" ")[0] for note in notes] == [
        "protocol.lock is signed by the key",
        "unsigned: no key vouches for",
    ]
    shutil.copyfile(signature, bundle / "manifest.json.sig.json")
    assert reasons(bundle)[0] == ["SIGNATURE_INVALID", "SYNTHETIC"]


@pytest.mark.parametrize("damage", ["another lock", "another key", "no JSON", "a folder"])
def test_a_signature_that_does_not_hold_starts_no_run(tmp_path: Path, run_benchkit: Run, damage: str) -> None:
    data = Path(__file__).parents[1] / "data"
    protocol, lock = tmp_path / "host.toml", tmp_path / "host.lock"
    shutil.copyfile(data / "host.toml", protocol)
    shutil.copyfile(data / "host.lock", lock)
    private, _ = new_key(tmp_path, "key")
    assert run_benchkit("sign", lock, "--key", private).returncode == 0
    signature = tmp_path / "host.lock.sig.json"
    if damage == "another lock":
        lock.write_text(lock.read_text() + " ")
        expected = (
            f"expected a signature of host.lock with SHA-256 {hashlib.sha256(lock.read_bytes()).hexdigest()}, found "
        )
    elif damage == "another key":
        value = json.loads(signature.read_text())
        foreign(value)
        signature.write_text(json.dumps(value))
        expected = "expected a signature by its public_key, found none that holds; sign the file again, or remove its signature"
    elif damage == "no JSON":
        signature.write_bytes(b"\xff")
        expected = "expected a signature, found something else ("
    else:
        signature.unlink()
        signature.mkdir()
        expected = "expected a signature, found a folder; give a regular file"
    done = run_benchkit("run-protocol", protocol, "--synthetic", data / "fake-host.toml", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"benchkit: {signature}: {expected}")
    assert not (tmp_path / "out").exists()
