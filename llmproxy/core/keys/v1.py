"""Keys as version 1 derived them: so that what it recorded is still found. Nothing here changes any more.

Most of the derivation is today's (`core.keys.normalize`). Here stands what was otherwise: three header fields counted and no other, query
members that look like credentials vanished, API versions and locations were one, uploads had no names, and five members of `Walk`.
`store.rederive` says when it is asked for.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from llmproxy.core.keys.fields import ignored_member
from llmproxy.core.keys.key import digest_of, optional
from llmproxy.core.keys.normalize import Canonical, canonicalize, read_body, scrub_fields
from llmproxy.core.keys.scrub import Rules, compile_rules
from llmproxy.core.keys.walk import MadeBy, Walk
from llmproxy.core.secrets.kinds import FINGERPRINTED
from llmproxy.core.traffic.interaction import Key, Request, header
from llmproxy.core.traffic.json_bytes import dump

if TYPE_CHECKING:
    from llmproxy.core.providers.routing import Route

TAG = "v1:"
RULES = 1
"""Version of its built-in rules, part of the digest that was stored with each recording."""

_HEADERS = frozenset({"anthropic-version", "anthropic-beta", "openai-beta", "x-llmproxy-caller"})
_SETS = frozenset({"anthropic-beta", "openai-beta"})
_IGNORED_QUERY = frozenset({"key", "beta"})
_ID_QUERY = frozenset({"after", "before", "run_id", "thread_id"})
_SHORT_NAMES = frozenset({"key", "token", "auth", "secret", "code", "assertion"})
_LONG_VALUE = re.compile(r"(?=\D*\d)[A-Za-z0-9_.~+=-]{16,}")
_CREDENTIALS = frozenset(
    [
        "api_key", "apikey", "api-key", "access_token", "accesstoken", "refresh_token", "client_secret",
        "client_assertion", "id_token", "subscription-key", "x-api-key", "x-goog-api-key", "authorization", "sig",
        "signature", "password", "x-amz-signature", "x-amz-credential", "x-amz-security-token", "x-goog-signature",
        "x-goog-credential", "awsaccesskeyid", "sharedaccesssignature",
    ]
)  # fmt: skip
_BILLING = "x-anthropic-billing-header:"
_UNMARKED = re.compile(r"REDACTED(?!x|-\d+x)")
"""What version 1 left of a secret in a URL; version 2 adds a fingerprint."""
_FINGERPRINT = re.compile(r"(REDACTED-\d+)x[0-9a-f]+")


def key_of(request: Request, route: Route, rules: Rules, made_by: MadeBy) -> Key:
    """Return the key that version 1 gave to a (redacted) request."""
    request = replace(request, target=_FINGERPRINT.sub(r"\1", request.target))
    canonical = _canonical(request, route, rules, made_by)
    named = (canonical.provider, canonical.method, canonical.operation, optional(canonical.model))
    return digest_of(TAG, named, canonical)


def says_all(request: Request, where: Route) -> bool:
    """Tell whether everything that counts today was stored of a request that version 1 redacted."""
    if not request.headers:
        return False
    if any(name.lower() in FINGERPRINTED and value == "[REDACTED]" for name, value in request.headers):
        return False
    return says_target(request.target, where)


def says_target(target: str, where: Route) -> bool:
    """Tell whether nothing that counts today was taken out of a stored URL."""
    path, _, query = target.partition("?")
    return not _UNMARKED.search(path) and not any(
        _UNMARKED.match(value) and not ignored_member(where.provider, name, value, known=where.known)
        for name, value in parse_qsl(query)
    )


def _canonical(request: Request, route: Route, rules: Rules, made_by: MadeBy) -> Canonical:
    made = canonicalize(request, route, rules, made_by, walk=_WalkV1)
    if made.kind == "multipart":
        _, fields = read_body(
            request.body, header(request.headers, "content-type") or "", named=False if route.known else None
        )
        tree = scrub_fields(
            [_plain(field) for field in fields] if isinstance(fields, list) else fields, compile_rules(rules)
        )
        made = replace(made, tree=tree, body=dump(tree))
    walk = _WalkV1(made_by)
    query = _query(request.target, walk, known=route.known)
    return replace(made, method=request.method.upper(), headers=_headers(request), query=query)


def _plain(field: object) -> object:
    """Take off a part what its head says beside its name, which counts since."""
    return field[:-1] if isinstance(field, list) and isinstance(field[-1], dict) else field


def _headers(request: Request) -> tuple[tuple[str, str], ...]:
    found: dict[str, list[str]] = {}
    for name, value in request.headers:
        if (lower := name.lower()) in _HEADERS:
            found.setdefault(lower, []).append(value.strip())
    kept = []
    for name, values in sorted(found.items()):
        text = ",".join(values)
        if name in _SETS:
            text = ",".join(sorted({flag for part in text.lower().split(",") if (flag := part.strip())}))
        if text:
            kept.append((name, text))
    return tuple(kept)


def _query(target: str, walk: Walk, *, known: bool) -> tuple[tuple[str, str], ...]:
    _, mark, query = target.partition("?")
    if not mark:
        return ()
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except ValueError:
        return (("?", query),)
    kept = [
        (name, walk.name_id(value) if known and name in _ID_QUERY else value)
        for name, value in pairs
        if not (known and name in _IGNORED_QUERY) and not _is_credential(name, value)
    ]
    return tuple(sorted(kept, key=lambda pair: pair[0]))


def _is_credential(name: str, value: str) -> bool:
    """Tell whether version 1 took a member of the query for a credential, which counted for nothing."""
    lower = name.lower()
    if lower in _SHORT_NAMES:
        return value.startswith("REDACTED") or bool(_LONG_VALUE.fullmatch(value))
    return lower in _CREDENTIALS


class _WalkV1(Walk):
    """The walk of version 1."""

    def is_id(self, value: str) -> bool:
        del value
        return True

    def says_stream(self, value: object) -> bool:
        del value
        return True

    def literal(self, name: str) -> str:
        return name

    def thing(self, value: object) -> object:
        return value

    def file_name(self, uri: str) -> str:
        match = re.search(r"(?:^|/)(files/[\w-]+)/?$", uri)
        return match[1] if match else ""

    def bill(self, blocks: list[object]) -> bool:
        first = blocks[0] if blocks else None
        text = first.get("text") if isinstance(first, dict) else None
        if not isinstance(text, str) or not text.startswith(_BILLING):
            return False
        del blocks[0]
        return True
