r"""What a secret looks like: names of header fields, query and JSON members, and shapes of keys. Tables only; `core.secrets.redact` uses them.

Each pattern has exactly one group, the secret itself, and literals (`needles`) of which one must occur before the pattern is tried:
most bodies hold none and are never scanned. Patterns begin with a literal, which makes the search quick, and look back over
it for the border: a key does not begin in the middle of a word (``task-...``), but may after a JSON escape (``\n``). Sources:
the providers' key formats as seen in 2026, GitHub's secret scanning patterns, RFC 7468, RFC 7519.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PLACEHOLDER = "[REDACTED]"
"""For a header or query value: whatever stood there does not count."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The shape of one kind of secret."""

    name: str
    needles: tuple[str, ...]
    regex: str
    """With one group."""
    strict: bool = True
    """Tight enough to be looked for in answers as well."""
    apart: bool = False
    """Its needle and its secret are not in one run of key characters, so the whole text is searched for the needle."""


AFTER_ESCAPE = r"(?<=\\[nrtbf]{0})|(?<=\\u[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]{0})"
"""What ends in a JSON escape ends in a letter or digit, and is a border all the same."""


def _prefixed(prefix: str, rest: str, *, name: str = "", strict: bool = True) -> Pattern:
    """Return the pattern of a key that begins with a fixed prefix, with a border on both sides."""
    border = rf"(?:(?<![A-Za-z0-9_\-]{prefix})|{AFTER_ESCAPE.format(prefix)})"
    return Pattern(name or prefix, (prefix.replace("\\", ""),), rf"({prefix}{border}{rest})(?![A-Za-z0-9_\-])", strict)


_DIGIT = r"(?=[A-Za-z_\-]{0,200}\d)"
_WORDY = r"(?=[A-Za-z0-9_\-]{0,200}?(?=[A-Za-z0-9]{12})[A-Za-z]{0,40}\d)"
"""Somewhere 12 letters and digits in a row, a digit among them: tells ``sk-`` keys from kebab-case words."""
_TAIL = r"[A-Za-z0-9_\-]"

PATTERNS: tuple[Pattern, ...] = (
    _prefixed("sk-", rf"(?:(?:proj|svcacct|admin|ant|or|lf)-{_DIGIT}{_TAIL}{{16,220}}|{_WORDY}{_TAIL}{{20,220}})", name="sk"),
    _prefixed("AIza", rf"{_TAIL}{{35}}", name="google"),
    _prefixed("ya29\\.", rf"{_TAIL}{{20,400}}", name="google-oauth"),
    _prefixed("AKIA", r"[A-Z0-9]{16}", name="aws"),
    _prefixed("ASIA", r"[A-Z0-9]{16}", name="aws-session"),
    _prefixed("gsk_", r"[A-Za-z0-9]{20,100}", name="groq"),
    _prefixed("xai-", rf"{_WORDY}[A-Za-z0-9]{{20,120}}", name="xai"),
    _prefixed("hf_", r"[A-Za-z0-9]{30,40}", name="huggingface"),
    _prefixed("r8_", r"[A-Za-z0-9]{30,45}", name="replicate"),
    _prefixed("pplx-", r"[A-Za-z0-9]{30,60}", name="perplexity"),
    _prefixed("nvapi-", rf"{_TAIL}{{40,90}}", name="nvidia"),
    _prefixed("csk-", rf"{_WORDY}[A-Za-z0-9]{{30,60}}", name="cerebras"),
    _prefixed("tvly-", rf"{_WORDY}{_TAIL}{{20,60}}", name="tavily"),
    _prefixed("lsv2_", r"(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}", name="langsmith"),
    *(_prefixed(f"gh{kind}_", r"[A-Za-z0-9]{30,255}", name=f"github-{kind}") for kind in "pousr"),
    _prefixed("github_pat_", r"[A-Za-z0-9_]{40,255}", name="github-pat"),
    _prefixed("glpat-", rf"{_TAIL}{{20,60}}", name="gitlab"),
    *(_prefixed(f"xox{kind}-", rf"{_DIGIT}[A-Za-z0-9\-]{{11,250}}", name=f"slack-{kind}") for kind in "abeprs"),
    _prefixed("npm_", r"[A-Za-z0-9]{36}", name="npm"),
    *(_prefixed(f"{kind}_live_", r"[A-Za-z0-9]{20,120}", name=f"stripe-{kind}") for kind in ("sk", "rk")),
    Pattern(
        "pem",
        ("PRIVATE KEY-----",),
        r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[A-Za-z0-9+/=\s\\:,.]|-(?!-)){20,20000}-----END [A-Z ]{0,30}PRIVATE KEY-----)",
        apart=True,
    ),
    Pattern(
        "jwt",
        ("eyJ",),
        r"(eyJ(?:(?<![A-Za-z0-9_\-]eyJ)|" + AFTER_ESCAPE.format("eyJ") + r")[\w\-]{8,2000}\.eyJ[\w\-]{8,20000}\.[\w\-]{16,2000})(?![\w\-])",
    ),
    Pattern("bearer", ("earer ",), rf"earer (?<=[Bb]earer ){_DIGIT}([A-Za-z0-9._~+/\-]{{20,4000}}={{0,2}})", strict=False, apart=True),
    Pattern(
        "basic", ("asic ",), r"asic (?<=[Bb]asic )(?<=[:=\"' ][Bb]asic )(?=[A-Za-z+/]{0,200}\d)([A-Za-z0-9+/]{12,2000}={0,2})(?![\w/+-])",
        strict=False,
        apart=True,
    ),
    Pattern("url", ("://",), r"://[^\s/:@\"'<>\\]{0,100}:(?!\[REDACTED)([^\s/@\"'<>\\]{3,200})@(?=[\w.\-\[])", strict=False, apart=True),
    Pattern(
        "aws-secret",
        ("ecret_access", "ecretAccess", "ECRET_ACCESS"),
        r"(?i:secret_?access_?key)\\?[\"']?\s{0,4}[:=]\s{0,4}\\?[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        apart=True,
    ),
    Pattern(
        "presigned",
        ("ignature=", "redential=", "ecurity-Token=", "sig=", "oken=", "ey="),
        r"[?&;](?i:x-(?:amz|goog)-(?:signature|credential|security-token)|signature|sig|api[_-]?key|access_token|subscription-key)="
        r"(?!REDACTED|\[REDACTED)([^&\s\"'<>\\#)]{8,4000})",
        strict=False,
    ),
)  # fmt: skip


KEY_CHARS = bytes.maketrans(
    bytes(range(256)),
    bytes(
        ord("k") if chr(code) in "_-+/=.%&?;~" or (code < 128 and chr(code).isalnum()) else ord(" ")
        for code in range(256)
    ),
)
"""Maps the bytes that keys are made of to ``k``: a run of 16 is worth a look, and most text has few."""
KEY_RUN = b"k" * 16
RUN = re.compile(KEY_RUN + b"+")
LONGEST_RUN = 50_000
"""Longer runs are pictures and audio."""

COMPILED = tuple(re.compile(pattern.regex) for pattern in PATTERNS)
"""Tried one by one: each begins with a literal, so two searches are quicker than one for either."""


# -- names -------------------------------------------------------------------------------------------------------------------

SECRET_HEADER = re.compile(
    r"auth(?!or(?!i[sz]))|token|secret|(?:^|[-_])(?:api)?key|apikey|cookie|credential|passw|session|signature"
    r"|^openai-(?:organization|project)$|^anthropic-(?:workspace|organization|user-profile)|^x-goog-user-project$"
)
"""Header fields whose value never reaches the store: by name, in lower case. Account ids are among them."""

FINGERPRINTED = frozenset({"x-portkey-virtual-key"})
"""Those of them that choose who answers: a fingerprint of the value is stored, and counts."""

CREDENTIAL_HEADER = re.compile(r"^(?:proxy-)?authorization$|api-?key|token|secret|credential|passw|^cookie$")
"""Those whose value is a credential worth knowing again elsewhere."""

_SURE_MEMBERS = frozenset(
    [
        "api_key",
        "apikey",
        "api-key",
        "access_token",
        "accesstoken",
        "refresh_token",
        "client_secret",
        "client_assertion",
        "id_token",
        "subscription-key",
        "x-api-key",
        "x-goog-api-key",
        "authorization",
        "sig",
        "signature",
        "password",
        "x-amz-signature",
        "x-amz-credential",
        "x-amz-security-token",
        "x-goog-signature",
        "x-goog-credential",
        "awsaccesskeyid",
        "sharedaccesssignature",
    ]
)
_LONG_MEMBERS = frozenset({"key", "token", "auth", "secret", "code", "assertion"})
_LONG = 16
_LONG_VALUE = re.compile(r"(?=\D*\d)[A-Za-z0-9_.~+=-]{16,}")
"""Under these names other things travel too (a page's number, a file's path); only what looks like a key is taken for one."""


def is_credential_member(name: str, value: str) -> bool:
    """Tell whether a member of a query or a form is a credential."""
    lower = name.lower()
    if lower in _LONG_MEMBERS:
        return value == "REDACTED" or bool(_LONG_VALUE.fullmatch(value))
    return lower in _SURE_MEMBERS


_API_KEYS = frozenset(
    ["api_key", "apikey", "api-key", "access_token", "subscription-key", "x-api-key", "x-goog-api-key", "client_secret"]
)


def is_api_key_member(name: str, value: str) -> bool:
    """Tell whether a member of a query is nothing but somebody's key, whoever is asked, so that it is looked for elsewhere as well."""
    return name.lower() in _API_KEYS and bool(_LONG_VALUE.fullmatch(value))


_SECRET_MEMBERS = frozenset(
    [
        "authorization",
        "proxyauthorization",
        "authorizationtoken",
        "xapikey",
        "xgoogapikey",
        "apikey",
        "accesstoken",
        "refreshtoken",
        "clientsecret",
        "secretaccesskey",
        "awssecretaccesskey",
        "awssessiontoken",
        "privatekey",
        "cookie",
    ]
)
MEMBERS = tuple(
    (word, re.compile(word + r'\\*"\s*:\s*\\*"[^"\\]{16}'))
    for word in ("authorization", "key", "token", "secret", "cookie")
)
"""How a name ends, and for lower case an expression that begins with it; one of them matches wherever a JSON member has such a name and a value worth a look, escaped or not."""


def is_secret_member(name: str, value: str) -> bool:
    """Tell whether a JSON member with a string value is a credential: by its name, if the value looks like one too.

    An MCP server's ``authorization``, ``headers: {"x-api-key": ...}``. A word or a sentence under such a name is content.
    """
    if len(value) < _LONG or value.startswith("[REDACTED"):
        return False
    if name.lower().replace("-", "").replace("_", "") not in _SECRET_MEMBERS:
        return False
    scheme, space, rest = value.partition(" ")
    bare = rest if space and scheme.lower() in ("bearer", "basic", "token") else value
    return " " not in bare and any(char.isdigit() for char in bare)


DUMMIES = frozenset(
    [
        "not-needed",
        "no-key-required",
        "lm-studio",
        "placeholder",
        "anything",
        "undefined",
        "sk-no-key-required",
        "redacted",
    ]
)
"""Keys that people write where none is needed; hiding the word everywhere would help nobody."""

DROPPED_HEADERS: dict[str, str] = {
    **dict.fromkeys(
        (
            "connection",
            "keep-alive",
            "proxy-connection",
            "proxy-authenticate",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ),
        "hop by hop (RFC 9110 7.6.1)",
    ),
    **dict.fromkeys(("content-encoding", "content-length"), "of the coded body; bodies are stored decoded"),
    "date": "made anew when it is replayed",
    **dict.fromkeys(("set-cookie", "set-cookie2"), "a credential"),
    **dict.fromkeys(
        ("alt-svc", "strict-transport-security", "expect-ct"), "would send the client elsewhere than to us"
    ),
    **dict.fromkeys(("report-to", "nel", "reporting-endpoints"), "would make clients report to others"),
    **dict.fromkeys(
        ("openai-organization", "openai-project", "anthropic-organization-id", "anthropic-workspace-id"),
        "whose account it was",
    ),
}
"""Response fields that are not stored, with the reason; ``cf-*`` besides, which are the CDN's."""
DROPPED_PREFIXES = ("cf-", "x-llmproxy-")
