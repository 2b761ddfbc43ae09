"""Signatures: who vouches for manifest and lock by a key (results/README.md, "Signatures").

Rules:
1. Every ``<file>.sig.json`` is a DSSE envelope of an in-toto statement about that file as it is; anything else is a reason.
2. The key is named by its OpenSSH fingerprint. That it is the right one only ``--signed-by`` can say.
3. A bundle without a signature is as valid as one with it, and is called unsigned.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from validator.checks.integrity import Outcome
from validator.findings import CouldNotCheckError, Finding, Json
from validator.reading.bundle import Bundle
from validator.reading.canonical import StrictJsonError, file_sha256, parse_object, read_small
from validator.reasons import Reason

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
_ENDING, _KIND = ".sig.json", "ssh-ed25519"


class _WrongError(Exception):
    """A signature is not what it must be: what was expected, and what was found."""


def check_signatures(bundle: Bundle, signed_by: Path | None) -> Outcome:
    """Verify all signatures, and that the expected key signed the manifest where one is given."""
    findings: list[Finding] = []
    notes: list[str] = []
    signers: dict[str, str] = {}
    for name in sorted(bundle.files):
        if not name.endswith(_ENDING) or "/" in name:
            continue
        subject = name.removesuffix(_ENDING)
        try:
            signers[subject] = _verify(bundle, subject, name, notes)
        except _WrongError as error:
            expected, got = (str(part) for part in error.args)
            findings.append(
                Finding(reason=Reason.SIGNATURE_INVALID, where=name, expected=expected[:200], got=got[:200])
            )
    notes.extend(f"{subject} is signed by the key {key}" for subject, key in signers.items() if key)
    if "manifest.json" not in signers:
        notes.append("unsigned: no key vouches for manifest.json")
    if signed_by is not None:
        findings.extend(_expected(signers.get("manifest.json"), signed_by))
    return Outcome(findings=tuple(findings), notes=tuple(notes))


def _expected(found: str | None, signed_by: Path) -> Iterator[Finding]:
    try:
        wanted = fingerprint(read_small(signed_by).decode("ascii", "replace"))
    except (OSError, _WrongError) as error:
        raise CouldNotCheckError(f"{signed_by}: expected an Ed25519 public key in OpenSSH form ({error})") from error
    if found == "":
        raise CouldNotCheckError("--signed-by needs a library: install this tool with its extra [sign]")
    if found != wanted:
        yield Finding(
            reason=Reason.SIGNER_NOT_THE_EXPECTED,
            where="manifest.json.sig.json",
            expected=f"a signature by {wanted}",
            got=f"one by {found}" if found else "none that holds",
        )


def _verify(bundle: Bundle, subject: str, name: str, notes: list[str]) -> str:
    """Give the fingerprint of the key; empty where the library that checks it is not installed."""
    if bundle.files[name].bytes > 1 << 20:
        raise _WrongError("a signature of at most 1 MiB", f"{bundle.files[name].bytes} bytes")
    try:
        envelope = parse_object(read_small(bundle.root / name))
    except (OSError, StrictJsonError) as error:
        raise _WrongError("a DSSE envelope", error) from error
    if set(envelope) != {"payload", "payloadType", "signatures", "public_key"}:
        raise _WrongError(
            "a DSSE envelope with payload, payloadType, signatures, public_key", ", ".join(envelope) or "{}"
        )
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise _WrongError(f"payloadType {PAYLOAD_TYPE}", envelope["payloadType"])
    _check_statement(bundle, subject, _decoded(envelope["payload"]))
    key = fingerprint(str(envelope["public_key"]))
    if not _holds(envelope):
        notes.append(f"{name}: not verified, install this tool with its extra [sign]")
        return ""
    return key


def _check_statement(bundle: Bundle, subject: str, payload: bytes) -> None:
    try:
        statement = parse_object(payload)
    except StrictJsonError as error:
        raise _WrongError("an in-toto statement", error) from error
    try:
        digest = file_sha256(bundle.root / subject) if subject in bundle.files else None
    except OSError:
        digest = None
    named = statement.get("subject")
    known = [subject, *(_own_names(named) if subject == "protocol.lock" else ())]
    wanted: list[Json] = [[{"name": name, "digest": {"sha256": digest}}] for name in known]
    if statement.get("_type") != STATEMENT or named not in wanted or digest is None:
        raise _WrongError(f"a statement about {subject} with sha256 {digest}", statement.get("subject"))


def _own_names(subject: Json) -> Iterator[str]:
    """Give the name by which a lock was signed beside its protocol, ``x.lock``: a run copies lock and signature."""
    for item in subject if isinstance(subject, list) else ():
        name = item.get("name") if isinstance(item, dict) else None
        if isinstance(name, str) and name.endswith(".lock"):
            yield name


def _decoded(value: Json) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _WrongError("base64", error) from error


def fingerprint(public: str) -> str:
    """Name an Ed25519 public key, one line of OpenSSH, as ``ssh-keygen -l`` does."""
    kind, blob = [*public.split(), "", ""][:2]
    data = _decoded(blob)
    if kind != _KIND or len(data) != 51 or not data.startswith(b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"):
        raise _WrongError("an Ed25519 public key in OpenSSH form", public[:80])
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("=")


def _holds(envelope: Mapping[str, Json]) -> bool:
    """Verify the signature; False where the library is not installed."""
    try:
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import FormatError, VerificationError
        from securesystemslib.signer import SSlibKey
    except ImportError:
        return False
    try:
        key = SSlibKey.from_crypto(load_ssh_public_key(" ".join(str(envelope["public_key"]).split()[:2]).encode()))
        signed = {name: envelope[name] for name in ("payload", "payloadType", "signatures")}
        Envelope.from_dict(signed).verify([key], 1)
    except (VerificationError, FormatError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _WrongError("a signature by its public_key", f"{type(error).__name__}: {error}") from error
    return True
