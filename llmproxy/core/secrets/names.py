"""Names under which secrets travel: header fields, members of queries, forms and JSON. Tables only.

What stands under such a name is a credential, whatever it looks like, or (under names that other things have as well) if it looks like one.
"""

from __future__ import annotations

from llmproxy.core.secrets.looks import is_example, is_password
from llmproxy.late import late

PLACEHOLDER = "[REDACTED]"
"""For a header or query value: whatever stood there does not count."""

SECRET_HEADER = late(
    r"auth(?!or(?!i[sz]))|token|secret|(?:^|[-_])(?:api)?key|apikey|cookie|credential|passw|session|signature"
    r"|^openai-(?:organization|project)$|^anthropic-(?:workspace|organization|user-profile)|^x-goog-user-project$"
)
"""Header fields whose value never reaches the store: by name, in lower case. Account ids are among them."""

FINGERPRINTED = frozenset({"x-portkey-virtual-key"})
"""Those of them that choose who answers: a fingerprint of the value is stored, and counts."""

CREDENTIAL_HEADER = late(r"^(?:proxy-)?authorization$|api-?key|token|secret|credential|passw|^cookie$")
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
_LONG_VALUE = late(r"(?=\D*\d)[A-Za-z0-9_.~+=-]{16,}")
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


_OAUTH_MEMBERS = frozenset(
    ["accesstoken", "refreshtoken", "idtoken", "clientsecret", "clientassertion", "sessiontoken", "authtoken"]
)
"""RFC 6749, and what STS calls them: whatever stands there is a credential."""
_SECRET_MEMBERS = _OAUTH_MEMBERS | frozenset(
    [
        "authorization",
        "proxyauthorization",
        "authorizationtoken",
        "xapikey",
        "xgoogapikey",
        "apikey",
        "secretaccesskey",
        "awssecretaccesskey",
        "awssessiontoken",
        "secretkey",
        "privatekey",
        "bearertoken",
        "cookie",
    ]
)
MEMBERS = tuple(
    (word, late(word + rf'\\*"\s*:\s*\\*"[^"\\]{{{least}}}'))
    for least, words in (
        (16, ("authorization", "key", "cookie")),
        (8, ("secret", "assertion", "token")),
    )
    for word in words
)
"""How a name ends, and for lower case an expression that begins with it; one of them matches wherever a JSON member has such a name and a value worth a look, escaped or not."""
MEMBER = late(
    r'(?<!\\)(?P<escape>\\*)"(?P<name>[A-Za-z_\-]{4,40})(?P=escape)"\s{0,8}:\s{0,8}(?P=escape)"(?P<value>[^"\\]{8,20000})'
)
"""A JSON member with a string, in a text that is not taken apart; `escape` says how deep it is nested."""


def is_secret_member(name: str, value: str, *, said: bool = False) -> bool:
    """Tell whether a JSON member with a string value is a credential: by its name, if the value looks like one too.

    An MCP server's ``authorization``, ``headers: {"x-api-key": ...}``. A word or a sentence under such a name is content. `said`: it is a
    member of the document itself, not of one that is quoted in it; then what OAuth defines is taken for what it is.
    """
    bare_name = name.lower().replace("-", "").replace("_", "")
    if bare_name not in _SECRET_MEMBERS or "REDACTE" in value:
        return False
    scheme, space, rest = value.partition(" ")
    bare = rest if space and scheme.lower() in ("bearer", "basic", "token") else value
    if " " in bare or len(bare) < SHORTEST:
        return False
    if bare_name == "cookie" and "=" not in bare:
        return False  # a recipe's; a header field's is name=value
    if said and bare_name in _OAUTH_MEMBERS:
        return is_password(bare)
    return len(value) >= _LONG and any(char.isdigit() for char in bare) and not is_example(bare)


SHORTEST = 8
"""Characters that a credential must have to be looked for elsewhere; shorter ones are words."""

ANSWER_HEADER = late(
    r"(?:^|[-_])(?:authorization|(?:auth|access|security|session|refresh|id|csrf|xsrf|api|user|service|device|bearer|vault|amz|private|agent)[-_]?token"
    r"|(?:api|access|subscription|signing|secret|private|auth|master|account|shared|encryption|session)[-_]?key|x-token|secret|passw(?:or)?d|(?<!allow-)credentials?"
    r"|cookie2?|jwt)$|^token$"
)
"""Fields of an answer that are credentials by name, in lower case. Not those that count tokens or turn pages."""

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
    "content-length": "of the coded body; bodies are stored decoded",
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
