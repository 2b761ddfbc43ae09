"""Signatures made here from DSSE and in-toto alone: who is named, and what exactly is said of one that does not hold."""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builder
import pytest

from validator.checks import signatures
from validator.findings import Report, Validity
from validator.reading.bundle import open_bundle
from validator.reasons import Reason as R
from validator.validate import validate

SSlibKey = pytest.importorskip("securesystemslib.signer").SSlibKey
pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: E402

TYPE = "application/vnd.in-toto+json"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
NAME = "manifest.json.sig.json"
Envelope = dict[str, Any]


def line(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + " somebody@lab"


def named(key: Ed25519PrivateKey) -> str:
    """The fingerprint of OpenSSH: SHA-256 of the key's blob, base64 without padding."""
    blob = base64.b64decode(line(key).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def envelope(payload: bytes, key: Ed25519PrivateKey = KEY) -> Envelope:
    """DSSE v1: the signature is over the type and the payload with their lengths."""
    signed = b"DSSEv1 %d %s %d %s" % (len(TYPE), TYPE.encode(), len(payload), payload)
    signature = {
        "keyid": SSlibKey.from_crypto(key.public_key()).keyid,
        "sig": base64.b64encode(key.sign(signed)).decode(),
    }
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": TYPE,
        "signatures": [signature],
        "public_key": line(key),
    }


def statement(file: Path, name: str, **changed: object) -> bytes:
    subject = [{"name": name, "digest": {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}]
    kind = "https://in-toto.io/Statement/v1"
    return json.dumps({"_type": kind, "subject": subject, "predicateType": "x", "predicate": {}} | changed).encode()


def sign(bundle: Path, name: str, *, subject: str | None = None, key: Ed25519PrivateKey = KEY) -> None:
    value = envelope(statement(bundle / name, subject or name), key)
    (bundle / f"{name}.sig.json").write_text(json.dumps(value))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A clean bundle with a signed manifest."""
    folder = builder.draft().seal(tmp_path / "b")
    sign(folder, "manifest.json")
    return folder


def said(report: Report) -> list[str]:
    return [note for note in report.notes if "sign" in note or "verified" in note]


def test_the_key_is_named(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(line(KEY))
    report = validate(bundle, signed_by=tmp_path / "key.pub")
    assert (report.codes, said(report)) == ((), [f"manifest.json is signed by the key {named(KEY)}"])


@pytest.mark.parametrize("name", ["protocol.lock", "host.lock"])
def test_a_lock_is_signed_under_its_own_name_too(bundle: Path, name: str) -> None:
    sign(bundle, "protocol.lock", subject=name, key=OTHER)
    report = validate(bundle)
    assert (report.codes, said(report)) == (
        (),
        [
            f"manifest.json is signed by the key {named(KEY)}",
            f"protocol.lock is signed by the key {named(OTHER)}",
        ],
    )


@pytest.mark.parametrize(("file", "name"), [("protocol.lock", "host.txt"), ("protocol.toml", "host.lock")])
def test_no_other_file_has_another_name(bundle: Path, file: str, name: str) -> None:
    sign(bundle, file, subject=name)
    (finding,) = validate(bundle).reasons
    digest = hashlib.sha256((bundle / file).read_bytes()).hexdigest()
    assert (finding.reason, finding.where) == (R.SIGNATURE_INVALID, f"{file}.sig.json")
    assert finding.expected == f"a statement about {file} with sha256 {digest}"
    assert finding.got == str([{"name": name, "digest": {"sha256": digest}}])


def test_unsigned_is_said(tmp_path: Path) -> None:
    report = validate(builder.draft().seal(tmp_path / "b"))
    assert (report.codes, said(report)) == ((), ["unsigned: no key vouches for manifest.json"])


@pytest.mark.parametrize(("signed", "got"), [(True, f"one by {named(KEY)}"), (False, "none that holds")])
def test_another_signer(bundle: Path, tmp_path: Path, signed: bool, got: str) -> None:
    (tmp_path / "other.pub").write_text(line(OTHER))
    if not signed:
        (bundle / NAME).unlink()
    (finding,) = validate(bundle, signed_by=tmp_path / "other.pub").reasons
    assert (finding.reason, finding.where) == (R.SIGNER_NOT_THE_EXPECTED, NAME)
    assert (finding.expected, finding.got) == (f"a signature by {named(OTHER)}", got)


def restated(bundle: Path, **changed: object) -> Envelope:
    return envelope(statement(bundle / "manifest.json", "manifest.json", **changed))


BLOB = base64.b64decode(line(KEY).split()[1])
SHORT = "ssh-ed25519 " + base64.b64encode(BLOB[:-1]).decode()
OF_A_KIND = "ssh-ed25519 " + base64.b64encode(b"\x00\x00\x00\x0bssh-ed25518" + BLOB[15:]).decode()
FORM = "an Ed25519 public key in OpenSSH form"
HOLDS = "a signature by its public_key"
KEYS = "a DSSE envelope with payload, payloadType, signatures, public_key"
# what is changed, then the whole of what is expected and the beginning of what was found
WRONG: dict[str, tuple[Callable[[Path, Envelope], object], str, str]] = {
    "no JSON": (lambda b, e: (b / NAME).write_bytes(b"\xff"), "a DSSE envelope", ""),
    "nothing in it": (lambda b, e: e.clear(), KEYS, "{}"),
    "a key too many": (lambda b, e: e.update(more=1), KEYS, "payload, payloadType, signatures, public_key, more"),
    "a key too few": (lambda b, e: e.pop("signatures"), KEYS, "payload, payloadType, public_key"),
    "another payload type": (lambda b, e: e.update(payloadType="text/plain"), f"payloadType {TYPE}", "text/plain"),
    "no base64": (lambda b, e: e.update(payload="%%%%"), "base64", ""),
    "no statement": (lambda b, e: e.update(envelope(b"[]")), "an in-toto statement", ""),
    "another statement": (lambda b, e: e.update(restated(b, _type="x")), "a statement about manifest.json", "[{'name'"),
    "no subject": (lambda b, e: e.update(restated(b, subject=[])), "a statement about manifest.json", "[]"),
    "another key": (lambda b, e: e.update(public_key=line(OTHER)), HOLDS, "VerificationError: "),
    "no signature": (lambda b, e: e.update(signatures=[]), HOLDS, ""),
    "signatures of no kind": (lambda b, e: e.update(signatures=7), HOLDS, "TypeError: "),
    "no public key": (lambda b, e: e.update(public_key=""), FORM, ""),
    "another kind of key": (lambda b, e: e.update(public_key=line(KEY).replace("ed25519", "rsa")), FORM, "ssh-rsa "),
    "a key cut short": (lambda b, e: e.update(public_key=SHORT), FORM, SHORT),
    "a key of another kind inside": (lambda b, e: e.update(public_key=OF_A_KIND), FORM, OF_A_KIND),
    "a long key": (lambda b, e: e.update(public_key="x " * 300), "base64", ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_signature_that_does_not_hold(bundle: Path, name: str) -> None:
    change, expected, got = WRONG[name]
    before = (bundle / NAME).read_bytes()
    value = json.loads(before)
    change(bundle, value)
    if (bundle / NAME).read_bytes() == before:
        (bundle / NAME).write_text(json.dumps(value))
    report = validate(bundle)
    (finding,) = report.reasons
    assert (finding.reason, finding.where) == (R.SIGNATURE_INVALID, NAME)
    digest = f" with sha256 {hashlib.sha256((bundle / 'manifest.json').read_bytes()).hexdigest()}"
    assert finding.expected == expected + digest * expected.startswith("a statement about")
    assert finding.got.startswith(got[:80])
    assert len(finding.got) <= (80 if expected == FORM else 200)
    assert said(report) == ["unsigned: no key vouches for manifest.json"]


@pytest.mark.parametrize(("size", "holds"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_a_signature_has_a_largest_size(bundle: Path, size: int, holds: bool) -> None:
    text = (bundle / NAME).read_text()
    (bundle / NAME).write_text(text + " " * (size - len(text)))
    assert ("unsigned: no key vouches for manifest.json" not in validate(bundle).notes) is holds


def test_a_signature_of_nothing(bundle: Path) -> None:
    (bundle / NAME).rename(bundle / "x.sig.json")
    (finding,) = validate(bundle).reasons
    assert (finding.reason, finding.where) == (R.SIGNATURE_INVALID, "x.sig.json")
    assert finding.expected == "a statement about x with sha256 None"


def test_without_the_library(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_holds", lambda envelope: False)
    (tmp_path / "key.pub").write_text(line(KEY))
    report = validate(bundle)
    assert (report.codes, said(report)) == (
        (),
        [f"{NAME}: not verified, install this tool with its extra [sign]"],
    )
    report = validate(bundle, signed_by=tmp_path / "key.pub")
    assert report.validity is Validity.COULD_NOT_CHECK
    assert report.notes == ("--signed-by needs a library: install this tool with its extra [sign]",)


@pytest.mark.parametrize("text", ["", "no key at all", "ssh-ed25519 %"])
def test_a_file_that_holds_no_key(bundle: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "key.pub").write_text(text)
    report = validate(bundle, signed_by=tmp_path / "key.pub")
    assert report.validity is Validity.COULD_NOT_CHECK
    assert report.notes[0].startswith(f"{tmp_path / 'key.pub'}: expected an Ed25519 public key in OpenSSH form (")


def test_a_file_that_is_not_there(bundle: Path, tmp_path: Path) -> None:
    assert validate(bundle, signed_by=tmp_path / "nothing").validity is Validity.COULD_NOT_CHECK


def test_a_signed_file_that_is_taken_away_meanwhile(bundle: Path) -> None:
    opened = open_bundle(bundle)
    (bundle / "manifest.json").unlink()
    (finding,) = signatures.check_signatures(opened, None).findings
    assert (finding.reason, finding.where) == (R.SIGNATURE_INVALID, NAME)
    assert finding.expected == "a statement about manifest.json with sha256 None"
