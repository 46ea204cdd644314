"""Secrets of every kind, drawn by lot from the table, and what is no secret at all."""

from __future__ import annotations

import random
import re

from llmproxy.core.secrets.entropy import has_dozen
from llmproxy.core.secrets.kinds import ALPHABETS, KINDS, SERVICES, SecretKind

LENGTHS = {
    "twitter": 45, "freshbooks": 64, "coinbase": 64, "intercom": 60, "kraken": 84, "contentful": 43, "cloudflare": 40,
    "cohere": 40,
    "gitter": 40, "netlify": 40, "sonar": 40, "zendesk": 40, "datadog": 40, "rapidapi": 50, "jfrog": 73,
    "artifactory": 64, "bitbucket": 32,
}  # fmt: skip
"""Of values that services write; 32 where nothing stands here."""


def drawn(template: str, seed: int = 0) -> str:
    """Return a key of a kind."""
    lot = random.Random(f"{template} {seed}")

    def piece(match: re.Match[str]) -> str:
        chars = [chr(code) for code in range(33, 127) if re.fullmatch(f"[{ALPHABETS[match[1]]}]", chr(code))]
        text = "".join(lot.choice(chars) for _ in range(int(match[2])))
        return text[:-1] + lot.choice([char for char in chars if char.isalnum()]) if text else text

    names = "|".join(sorted(ALPHABETS, key=len, reverse=True))
    return re.sub(rf"<({names})(\d+)\+?>", piece, template)


def drawn_key(kind: SecretKind) -> str:
    """Return a key of a kind.

    With a digit in a dozen characters, as such keys have nearly always, where that is asked for.
    """
    keys = (drawn(kind.template, seed) for seed in range(99))
    return next(key for key in keys if not kind.wordy or has_dozen(key))


def of_service(name: str) -> tuple[str, str]:
    """Return an assignment with a service's key, and the key."""
    lot = random.Random(name)
    key = "".join(lot.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(LENGTHS.get(name, 32)))
    return f'{name}_api_token = "{key}"', key


_B = "abcdefGHIJ0123456789klmnopQRSTUVWXYZ42"
STANDING = {
    "pem": f"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA{_B}\n{_B}\n-----END RSA PRIVATE KEY-----",
    "pem, cut": f"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAA{_B}\n{_B}",
    "pgp": f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF{_B}\n{_B}\n-----END PGP PRIVATE KEY BLOCK-----",
    "jwt": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI5OTkifQ.{_B}",
    "jwe": f"eyJhbGciOiJSU0EtT0FFUCJ9.{_B}.{_B[:16]}.{_B}.{_B[:22]}",
    "bearer": f"Authorization: Bearer {_B}",
    "basic": "Authorization: Basic dXNlcjpwYXNzd29yZDEyMw==",
    "url": "postgres://user:hunter22x@db.example.com/x",
    "aws secret": "AWS_SECRET_ACCESS_KEY=wJalrXUtnF3MI/K7MD3NG/bPxRfiCYz42Q9pLKEY",
    "aws session": f"aws_session_token = FwoGZXIvYXdzE{_B}{_B}",
    "presigned": "https://b.s3.amazonaws.com/k?X-Amz-Signature=0123456789abcdef0123456789abcdef",
    "sas": "https://x.blob.core.windows.net/a?sv=2022&sig=lUAyLRCBx0W8qUI0pkW1Cv4N7zyMSGRkk4oItsc1duo%3D",
    "oauth": f"access_token={_B}",
    "curl header": f'curl -H "x-api-key: {_B}"',
    "curl user": "curl https://x.org -u admin:s3cr3t-horse-99",
}
"""Secrets by where they stand; what must vanish is `secret_of`."""


def secret_of(text: str) -> str:
    """Return the part of a standing secret that may not be found anywhere."""
    if "-----BEGIN" in text:
        return _B
    if "sig=" in text:
        return text.partition("sig=")[2]
    if "://user" in text:
        return "hunter22x"
    return re.split(r"[ =:]+", text.strip('"= '))[-1].strip('"=') if "eyJ" not in text else text


def every_secret() -> list[tuple[str, str, str]]:
    """Return name, text and secret of each row of the tables."""
    rows = [(f"{kind.name} {kind.template}", key, key) for kind in KINDS for key in [drawn_key(kind)]]
    rows += [(f"{name} (labelled)", *of_service(name)) for name in SERVICES]
    return rows + [(name, text, secret_of(text)) for name, text in STANDING.items()]


NO_SECRETS = [
    "call_Zw4StpBoaWXljZpGSo3eX1gd toolu_01A09q90qw90lq917835lq9 fc_0549b0842d086f2b0068fde84739bc81938e0c1410333ab44f",
    "resp_0549b0842d086f2b0068fde84739bc8193 msg_abc123def456ghi789jkl012 chatcmpl-9zWwFNcFyMUnqkTrYM5Ds4nQ",
    "0b5c3f4e-1111-4222-8333-444455556666 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "commit 009e025ad4106ab333aa0b9dc4f2a884390d134c",
    "gpt-5-2026-01-01 claude-opus-4-20250514 us.anthropic.claude-3-5-haiku-20241022-v1:0 pplx-70b-online",
    "task-0123456789abcdefghij0123 risk-0123456789abcdefghij0123 disk-a0123456789abcdefghij",
    "sk-learn-classification-report-for-2023 sk_learn sk-lego-bricks-of-the-year-number",
    "the key is sk-... or AIza... or hf_transformers_with_long_names_everywhere_in_code",
    (
        "OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx "
        "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx sk-your-api-key-goes-here-1234"
    ),
    "AKIAIOSFODNN7EXAMPLE aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6"
        "IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5MDIyfQ."
        "SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"
    ),
    "Bearer authentication is required for this endpoint; a Basic understanding; Bearer YOUR_ACCESS_TOKEN_HERE",
    (
        "postgres://user:password@localhost postgresql://postgres:postgres@localhost:5432/db "
        "redis://:secret@redis:6379 mysql://root:${DB_PASS}@db/x"
    ),
    "https://example.com:8080/path@2 http://localhost:11434/api mailto:me@example.com git@github.com:a/b.git",
    "https://x.org/a?page_token=abcdefgh&signature_version=4&next=1",
    "def login(username: str, password: str, token: str | None = None, api_key: SecretStr = Field(...)) -> None: ...",
    'class Settings: api_key: str = os.environ["OPENAI_API_KEY"]; secret = config.get("client_secret")',
    (
        '{"type": "object", "properties": {"password": {"type": "string"}, '
        '"access_token": {"type": "string", "description": "the token"}}}'
    ),
    "eyJhbGciOiJIUzI1NiJ9 REDACTED [REDACTED-1] sk-[REDACTED-1]",
    "gAAAAABncdef0123456789-_gAAAAABncdef0123456789-_gAAAAABncdef0123456789",
    '"integrity": "sha512-Cf6ZPb4AyxVXYBFjkMcL9BPwzN4bpOWPJhKzTnTCIbTV5xDmFDiGUPMjOSbxPqJyMCQ0SIrJfKUpsB1OLTBIQA=="',
    'hash = "sha256:7a1dd6b8a1d3d4d8a33f8b7c6d7a9d8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f"  name = "sentry-sdk"',
    'resolved "https://registry.yarnpkg.com/@sentry/core/-/core-7.1.0.tgz#0fa2a1b0a2b3c4d5e6f708192a3b4c5d6e7f8091"',
    (
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
        "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    ),
    "linear: 009e025ad4106ab333aa0b9dc4f2a884390d134c, heroku: the quick brown fox, global_value = abcdefgh12345678ij",
    "The assistant answered; tenant-acme asked; myAssistantTokenHandler.refreshAccessToken(request)",
    "x-ratelimit-remaining-tokens: 149984 max_tokens=4096 total_tokens=12 key=value code=200 state=running",
    "import { createClientSecretCredentialProvider2024 } from './auth/createClientSecretCredentialProvider2024'",
    "QWxsIHRoZSB3b3JsZCdzIGEgc3RhZ2UsIGFuZCBhbGwgdGhlIG1lbiBhbmQgd29tZW4gbWVyZWx5IHBsYXllcnM=",
    "A sentence that ends in class.\nnextMethodNameThatIsLong2 and/or src/main/java/com/acme/Service1.java:42",
]
