"""Keys are recognised by their shape and names by what they name; words that merely look alike are not."""

from __future__ import annotations

import pytest

from llmproxy.core.secrets.patterns import (
    COMPILED,
    CREDENTIAL_HEADER,
    PATTERNS,
    SECRET_HEADER,
    is_credential_member,
    is_secret_member,
)

_R = "abcDEF0123456789ghiJKL456mnoPQR789stuVWX012"
_PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA0123456789+/abcdef\n-----END RSA PRIVATE KEY-----"
SAMPLES = {
    "sk": f"sk-proj-{_R}",
    "google": "AIza" + _R[:35],
    "google-oauth": f"ya29.{_R}",
    "aws": "AKIAABCDEFGHIJKLMNOP",
    "aws-session": "ASIAABCDEFGH01234567",
    "groq": f"gsk_{_R}",
    "xai": f"xai-{_R}",
    "huggingface": "hf_" + _R[:34],
    "replicate": "r8_" + _R[:37],
    "perplexity": f"pplx-{_R}",
    "nvidia": f"nvapi-{_R}",
    "cerebras": f"csk-{_R}",
    "tavily": f"tvly-dev-{_R}",
    "langsmith": "lsv2_pt_0123456789abcdef0123456789abcdef_0123456789",
    **{f"github-{kind}": f"gh{kind}_{_R[:36]}" for kind in "pousr"},
    "github-pat": f"github_pat_{_R}_{_R}",
    "gitlab": "glpat-" + _R[:20],
    **{f"slack-{kind}": f"xox{kind}-12345-67890-{_R}" for kind in "abeprs"},
    "npm": "npm_" + _R[:36],
    **{f"stripe-{kind}": f"{kind}_live_{_R[:24]}" for kind in ("sk", "rk")},
    "pem": _PEM,
    "jwt": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{_R}",
    "bearer": f"Bearer {_R}",
    "basic": "Authorization: Basic dXNlcjpwYXNzd29yZDEyMw==",
    "url": "postgres://user:hunter22@db.example.com/x",
    "aws-secret": "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "presigned": "https://b.s3.amazonaws.com/k?X-Amz-Signature=0123456789abcdef0123456789abcdef",
}


def found(text: str) -> list[str]:
    """Return what any pattern takes for a secret."""
    return [match[1] for expression in COMPILED for match in expression.finditer(text)]


@pytest.mark.parametrize(("name", "sample"), SAMPLES.items())
def test_every_pattern_finds_its_kind(name: str, sample: str) -> None:
    """In a sentence, in quotes, after an escape, and by its needle."""
    (pattern,) = (pattern for pattern in PATTERNS if pattern.name == name)
    index = PATTERNS.index(pattern)
    for text in (sample, f" {sample} ", f'"{sample}"', f"x\\n{sample}\\n"):
        assert [match[1] in sample for match in COMPILED[index].finditer(text)] == [True], text
        assert any(needle in text for needle in pattern.needles)


def test_every_pattern_has_a_sample() -> None:
    """None is there untried, and each has one group."""
    assert {pattern.name for pattern in PATTERNS} == set(SAMPLES)
    assert {expression.groups for expression in COMPILED} == {1}


@pytest.mark.parametrize(
    "text",
    [
        "call_Zw4StpBoaWXljZpGSo3eX1gd toolu_01A09q90qw90lq917835lq9 fc_0549b0842d086f2b0068fde84739bc81938e0c1410333ab44f",
        "resp_0549b0842d086f2b0068fde84739bc8193 msg_abc123def456ghi789jkl012 chatcmpl-9zWwFNcFyMUnqkTrYM5Ds4nQ",
        "0b5c3f4e-1111-4222-8333-444455556666",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "gpt-5-2026-01-01 claude-opus-4-20250514 us.anthropic.claude-3-5-haiku-20241022-v1:0 pplx-70b-online",
        "task-0123456789abcdefghij0123 risk-0123456789abcdefghij0123 disk-a0123456789abcdefghij",
        "sk-learn-classification-report-for-2023 sk_learn sk-lego-bricks-of-the-year-number",
        "the key is sk-... or AIza... or hf_transformers_with_long_names_everywhere_in_code",
        "Bearer authentication is required for this endpoint; a Basic understanding",
        "https://example.com:8080/path@2 http://localhost:11434/api mailto:me@example.com",
        "https://x.org/a?page_token=abcdefgh&signature_version=4&next=1",
        "eyJhbGciOiJIUzI1NiJ9",
        "REDACTED [REDACTED-1] sk-[REDACTED-1]",
        "gAAAAABncdef0123456789-_gAAAAABncdef0123456789-_gAAAAABncdef0123456789",
    ],
)
def test_what_only_looks_like_a_key_is_left_alone(text: str) -> None:
    """Ids, hashes, models, kebab words."""
    assert found(text) == []


@pytest.mark.parametrize(
    ("name", "secret", "learned"),
    [
        ("authorization", True, True),
        ("proxy-authorization", True, True),
        ("x-api-key", True, True),
        ("api-key", True, True),
        ("x-goog-api-key", True, True),
        ("x-amz-security-token", True, True),
        ("cookie", True, True),
        ("x-llmproxy-token", True, True),
        ("openai-organization", True, False),
        ("idempotency-key", True, False),
        ("session_id", True, False),
        ("anthropic-version", False, False),
        ("anthropic-beta", False, False),
        ("openai-beta", False, False),
        ("content-type", False, False),
        ("x-stainless-retry-count", False, False),
        ("user-agent", False, False),
        ("x-author", False, False),
        ("keep-alive", False, False),
    ],
)
def test_header_fields_by_name(name: str, secret: object, learned: object) -> None:
    """What is hidden, and what is worth knowing again elsewhere."""
    assert bool(SECRET_HEADER.search(name)) is secret
    assert bool(CREDENTIAL_HEADER.search(name)) is learned


def test_members_by_name() -> None:
    """A page token is content, a key is not; in JSON the value must look like a key as well."""
    assert is_credential_member("api_key", "short")
    assert is_credential_member("X-Amz-Signature", "a")
    assert is_credential_member("key", "x1" * 20)
    assert not is_credential_member("key", "name")
    assert not is_credential_member("key", "path/to/an/object-1.txt")
    assert not is_credential_member("page", "x" * 39)
    assert is_secret_member("Authorization", "Bearer abcdef0123456789")
    assert is_secret_member("x-api-key", "abcdef0123456789")
    assert not is_secret_member("authorization", "required for all users")
    assert not is_secret_member("api_key", "YOUR_API_KEY_HERE")
    assert not is_secret_member("cache_key", "abcdef0123456789")
