"""Fingerprints of credentials."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from llmproxy.core.secrets.caller import fingerprint, secret_of
from llmproxy.errors import MachineError

SECRET = b"0" * 32


@pytest.mark.parametrize(
    ("headers", "target"),
    [
        ((("Authorization", "Bearer sk-right"),), "/v1/models"),
        ((("x-api-key", "sk-right"),), "/v1/models"),
        ((("api-key", "sk-right"),), "/v1/models"),
        ((("X-Goog-Api-Key", "sk-right"),), "/v1/models"),
        ((), "/v1/models?key=sk-right"),
    ],
)
def test_the_same_key_is_the_same_caller_wherever_it_stands(headers: tuple[tuple[str, str], ...], target: str) -> None:
    """SDK generations send one key in different headers."""
    assert fingerprint(headers, target, SECRET) == fingerprint((("x-api-key", "sk-right"),), "/", SECRET)


def test_another_key_or_none_is_another_caller() -> None:
    """A wrong key, no key, and the same key under another secret all differ; the key itself is not in it."""
    right = fingerprint((("x-api-key", "sk-right"),), "/", SECRET)
    others = {
        fingerprint((("x-api-key", "sk-wrong"),), "/", SECRET),
        fingerprint((), "/", SECRET),
        fingerprint((("x-api-key", "sk-right"),), "/", b"1" * 32),
    }
    assert len(others) == 3
    assert right not in others
    assert "sk-right" not in right


def test_a_signed_request_is_its_access_key() -> None:
    """SigV4 signs anew each time; who signs stays."""
    signed = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{}/us-east-1/bedrock/aws4_request, Signature={}"
    both = [fingerprint((("authorization", signed.format(day, day)),), "/", SECRET) for day in ("20260101", "20260102")]
    assert both[0] == both[1]


def test_the_secret_is_made_once_and_is_the_owners(tmp_path: Path) -> None:
    """It lies beside the store with mode 600; a damaged one is an error."""
    store = tmp_path / "a.db"
    first = secret_of(store)
    assert secret_of(store) == first
    path = tmp_path / "a.db.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(MachineError, match="5 bytes"):
        secret_of(store)
