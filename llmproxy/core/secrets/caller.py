"""Whose key was it? A fingerprint of a request's credential, for `--match-credential`.

A test with a wrong key must not get the right key's answer. With the option on, the fingerprint becomes part of the request's identity:
an HMAC of the credential under a secret that lies beside the store (``<store>.secret``). The credential itself is never kept, and
without that file the fingerprint says nothing; keep it together with the store where recordings are shared.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from urllib.parse import parse_qsl

from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.errors import MachineError

CALLER_HEADER = "x-llmproxy-caller"
"""Where the fingerprint stands among the stored request's headers; clients cannot send it, names of ours are taken off first."""

CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_LENGTH = 32


def fingerprint(headers: Headers, target: str, secret: bytes) -> str:
    """Return 16 hex digits that tell one credential from another; ``none`` for a request without one."""
    for name in CREDENTIALS:
        if value := header(headers, name):
            return _digest(_bare(value), secret)
    for name, value in parse_qsl(target.partition("?")[2]):
        if name == "key" and value:
            return _digest(value, secret)
    return "none"


def _bare(value: str) -> str:
    """Return the key of an authorization header: the same key in `x-api-key` is the same caller."""
    scheme, _, rest = value.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.startswith("AWS4-"):  # signed anew each time; the access key's id says who
        return rest.partition("Credential=")[2].partition("/")[0] or rest
    return value.strip()


def _digest(value: str, secret: bytes) -> str:
    return hmac.new(secret, value.encode("utf-8", "surrogatepass"), "sha256").hexdigest()[:16]


def secret_of(store: Path) -> bytes:
    """Return the secret that belongs to a store; made at its first use, readable by its owner only.

    Raises:
        MachineError: the file cannot be made or is damaged.

    """
    path = Path(f"{store}.secret")
    try:
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_LENGTH))
        found = path.read_bytes()
    except FileExistsError:  # another process was quicker
        return secret_of(store)
    except OSError as error:
        msg = f"cannot read or make {path}, which --match-credential needs: {error.strerror or error}"
        raise MachineError(msg) from error
    if len(found) != _LENGTH:
        raise MachineError(
            f"{path} is damaged: it has {len(found)} bytes, not {_LENGTH}.",
            hint="Restore it, or record anew without it.",
        )
    return found
