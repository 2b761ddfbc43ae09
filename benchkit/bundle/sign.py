"""``benchkit sign``: an in-toto attestation of a manifest and a lock, as a DSSE envelope (results/README.md, "Signatures").

Rules:
1. ``<file>.sig.json`` stands beside the file and in no manifest. It attests the file's SHA-256 and nothing else.
2. The key is an Ed25519 private key in PEM or OpenSSH form (``ssh-keygen -t ed25519``); it is read and never stored.
3. The envelope carries the public key, so that a reader can name it; whose key that is, the reader must know.
"""

import base64
import json
from pathlib import Path
from typing import Any

from benchkit.bundle.digest import file_sha256
from benchkit.bundle.reader import open_sealed
from benchkit.bundle.seal import MANIFEST
from benchkit.errors import DataError
from benchkit.protocol.files import read_small, write_text
from benchkit.units import MIB

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:benchkit:sealed:1"


class SignError(DataError):
    """The key cannot be used, or the library is not installed."""


def sign(target: Path, key: Path) -> tuple[Path, ...]:
    """Sign a bundle (its manifest and its lock) or one file, and return the signature files.

    Raises
    ------
    BundleError
        The folder is no sealed bundle.
    SignError
        The key cannot be used.
    """
    if target.is_dir():
        open_sealed(target)
        files = [target / MANIFEST, target / "protocol.lock"]
    else:
        files = [target]
    signer, public = _signer(key)
    return tuple(_sign_file(file, signer, public) for file in files)


def signature_path(file: Path) -> Path:
    """Where the signature of a file lies."""
    return file.with_name(file.name + ".sig.json")


def check_signature(signature: Path, file: Path) -> None:
    """Raise SignError unless ``signature`` is an envelope about ``file`` as it is, and holds (where the library that can say so is installed)."""
    try:
        envelope = json.loads(read_small(signature, most=MIB, what="a signature"))
        statement = json.loads(base64.b64decode(envelope["payload"], validate=True))
        (subject,) = statement["subject"]
        found, public = subject["digest"]["sha256"], str(envelope["public_key"])
        sound = (envelope["payloadType"], statement["_type"]) == (PAYLOAD_TYPE, STATEMENT)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SignError(f"{signature}: expected a signature, found something else ({error}); {_REMEDY}") from error
    wanted = file_sha256(file)
    if not sound or found != wanted:
        raise SignError(
            f"{signature}: expected a signature of {file.name} with SHA-256 {wanted}, found {found}; {_REMEDY}"
        )
    _verify({name: envelope.get(name) for name in ("payload", "payloadType", "signatures")}, public, signature)


_REMEDY = "sign the file again, or remove its signature"


def _verify(envelope: dict[str, Any], public: str, signature: Path) -> None:
    try:
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import FormatError, VerificationError
        from securesystemslib.signer import SSlibKey
    except ImportError:
        return
    try:
        key = SSlibKey.from_crypto(load_ssh_public_key(public.encode()))
        Envelope.from_dict(envelope).verify([key], 1)
    except (VerificationError, FormatError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SignError(
            f"{signature}: expected a signature by its public_key, found none that holds; {_REMEDY}"
        ) from error


def _sign_file(file: Path, signer: Any, public: str) -> Path:
    from securesystemslib.dsse import Envelope

    if not file.is_file():
        raise SignError(f"{file}: expected a file to sign, found none")
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": file.name, "digest": {"sha256": file_sha256(file)}}],
        "predicateType": PREDICATE,
        "predicate": {},
    }
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode("utf-8")
    envelope = Envelope(payload=payload, payload_type=PAYLOAD_TYPE, signatures={})
    envelope.sign(signer)
    beside = signature_path(file)
    write_text(beside, json.dumps({**envelope.to_dict(), "public_key": public}, indent=2) + "\n")
    return beside


def _signer(path: Path) -> tuple[Any, str]:
    """The signer of a private key file, and the public key as one line of OpenSSH."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            PublicFormat,
            load_pem_private_key,
            load_ssh_private_key,
        )
        from securesystemslib.signer import CryptoSigner
    except ImportError as error:
        raise SignError(f'{error}; install this tool with its extra [sign] (README.md, "Installing")') from error
    data = read_small(path, most=MIB, what="a private key")
    load = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in data else load_pem_private_key
    try:
        key = load(data, password=None)
    except (ValueError, TypeError) as error:
        raise SignError(
            f"{path}: expected an Ed25519 private key (PEM or OpenSSH) without a passphrase, found something else: {error}"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SignError(f"{path}: expected an Ed25519 key, found {type(key).__name__}; make one: ssh-keygen -t ed25519")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
    return CryptoSigner(key), public
