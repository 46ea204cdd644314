"""Files of others in which nothing is a secret: the standard library, installed packages, recorded traffic.

What redaction changes in one of them is damage, unless it is a key that somebody put there on purpose; each of those
is named.
"""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from llmproxy.core.secrets.entropy import split_into_words
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Request

TRAFFIC = Path(__file__).resolve().parents[4] / "shared" / "traffic"
LARGEST = 400_000
"""Bytes of a file that is looked at."""
SUFFIXES = frozenset(
    f".{name}" for name in split_into_words("py pyi md txt json yaml yml toml js ts html css rst cfg sh c h xml ini")
) | {""}

_SIGNED = re.compile(r"ASIA[A-Z0-9]{16}|IQoJ|[0-9a-f]{64}$|[\w%]+%3D$")
"""What signs the links of recorded answers."""

REAL_KEYS = (
    ("sqlalchemy/dialects/mssql/base.py", "tiger^5HHH", "a password in a URL"),
    ("rfc3986/builder.py", "not-re%40l", "a password in a URL"),
    ("litellm/proxy/spend_tracking/spend_management_endpoints.py", "d5345c0ecc68", "a digest of a key, as a key"),
    ("litellm/proxy/management_endpoints/key_management_endpoints.py", "d5345c0ecc68", "a digest of a key, as a key"),
    ("litellm/proxy/management_endpoints/key_management_endpoints.py", "sk-QWrx", "a key of litellm's own"),
    ("litellm/proxy/management_endpoints/key_management_endpoints.py", "sk-Fn8E", "a key of litellm's own"),
    ("litellm/proxy/custom_auth_auto.py", "sk-P1zJ", "a key of litellm's own"),
    ("iam/2010-05-08/examples-1.json", "3s0K_;", "a password"),
    ("iam/2010-05-08/examples-1.json", "h]6Esz", "a password"),
    ("kms/2014-11-01/examples-1.json", "AQpAM2Rh", "a grant's token"),
    ("elasticbeanstalk/2010-12-01/examples-1.json", "n%2BEalOV6A2", "a signature of a link"),
    ("tornado/test/httpclient_test.py", "am9zw6k6c8", "a login in base64"),
    ("METADATA", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzb21lIjoi", "a JWT of PyJWT's page"),
)
"""The end of a file's name, the beginning of the key, and what it is."""


def list_files() -> list[Path]:
    """Return the files of the corpus in the order of a hash: any beginning of it is a sample."""
    found: list[Path] = []
    for root in sorted({sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}):
        found += (
            path for path in Path(root).rglob("*") if "site-packages" not in path.parts or "site-packages" in root
        )
    found += TRAFFIC.rglob("*")
    kept = (path for path in found if path.suffix in SUFFIXES and "__pycache__" not in path.parts and path.is_file())
    return sorted(set(kept), key=lambda path: hashlib.sha256(f"{path.parent.name}/{path.name}".encode()).digest())


def find_changes(path: Path) -> Iterator[str]:
    """Yield what redaction takes for a secret in a file: as a message's text, and as it is."""
    if not 0 < path.stat().st_size < LARGEST:
        return
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    redactor = Redactor()
    spans = redactor.find_places(text)
    for start, end, _ in spans:
        if not _is_real(path, text[start:end]):
            yield f"{text[max(0, start - 40) : start]}<<{text[start:end]}>>"
    if spans:
        return
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    yield from _differences("as a message", body, redactor.request(Request("POST", "/v1/chat", (), body)).body)
    yield from _differences("as an answer", data, redactor.redact_answer_body(data, "text/plain"))


def _is_real(path: Path, secret: str) -> bool:
    named = any(path.as_posix().endswith(end) and secret.startswith(begin) for end, begin, _ in REAL_KEYS)
    return named or (TRAFFIC in path.parents and _SIGNED.match(secret) is not None)


def _differences(what: str, before: bytes, after: bytes) -> Iterator[str]:
    if before != after:
        at = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), 0)
        yield f"{what}: {before[max(0, at - 60) : at + 60]!r}"
