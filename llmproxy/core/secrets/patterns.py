r"""What a secret looks like: names of header fields, query and JSON members, and what is a secret by where it stands. Tables only.

Keys that tell by themselves what they are stand in `kinds`; here is what stands around others: ``Bearer``, an URL's password, the name of a
service. Each has literals (`needles`) of which one must occur before the expression is tried: most bodies hold none and are never scanned. Sources:
the services' documentation as of 2026, GitHub's secret scanning patterns, RFC 6749, RFC 7468, RFC 7519; services' names: see `kinds`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmproxy.core.secrets.kinds import any_of
from llmproxy.core.secrets.looks import is_password, is_random
from llmproxy.late import late


@dataclass(frozen=True, slots=True)
class Pattern:
    """What is a secret by where it stands."""

    name: str
    needles: tuple[bytes, ...]
    regex: re.Pattern[str]
    """Its group ``secret`` is the secret."""
    is_one: Callable[[re.Match[str]], bool] = lambda _: True
    """Looks at what was found: examples and words are none."""

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where such secrets stand in a text."""
        for match in self.regex.finditer(text):
            if self.is_one(match):
                yield match.span("secret")


def _looks_random(least: float = 2.5) -> Callable[[re.Match[str]], bool]:
    return lambda match: is_random(match["secret"], least)


def _url_password(match: re.Match[str]) -> bool:
    return is_password(match["secret"], match["user"])


_BARE_URL = late(
    r"(?:^|/)(?P<user>[^\s/:@]{0,100}):(?P<secret>[^\s/@]{3,200})@(?P<host>[\w.\-]+|\[[0-9A-Fa-f:.]+\])(?=[:/?#\s]|$)"
)
_BEGINNING = late(r"(?:^|\s)/*$")
_NO_USERS = frozenset({"mailto", "acct", "sip", "sips", "xmpp", "im", "jid"})
"""What stands before the colon in front of an address that is no password's."""


def bare_url_passwords(text: str, *, quoted: bool = False) -> list[tuple[int, int]]:
    """Return the spans of passwords in a path or a member of a query that names a host without its scheme: ``/user:password@host/v1``.

    Behind a slash only, or at the beginning: in running text the same form is an address behind a word (``contact:me@example.com``). A host
    that has no dot is one where a base URL begins, elsewhere it may be anybody's mark (``/models/name:tag@digest``). `quoted`: the text is no
    path, it may hold one; names of recordings look alike but for the slash at the beginning of a word.
    """
    return [
        match.span("secret")
        for match in (_BARE_URL.finditer(text) if "@" in text else ())
        if _url_password(match)
        and (not quoted or text[_word_of(text, match.start())] == "/")
        and match["user"].lower() not in _NO_USERS
        and (_BEGINNING.search(text, 0, match.start()) or match["host"] == "localhost" or not match["host"].isalnum())
    ]


def _word_of(text: str, at: int) -> int:
    """Return where the word begins in which a place is."""
    while at and not text[at - 1].isspace():
        at -= 1
    return at


def _is_form(text: str) -> bool:
    return len(text) < _LONGEST_FORM and not any(char.isspace() for char in text.strip())


_LONGEST_FORM = 20_000
_COMMAND = 400
"""Characters of a command before an option of it."""
_OAUTH = "access_token|refresh_token|id_token|client_secret|client_assertion"
_AFTER_OAUTH = "|".join(f"(?<={name}=)" for name in _OAUTH.split("|"))
_QUERY = [
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
    "x-goog-signature",
    "x-goog-credential",
    "x-goog-security-token",
    "signature",
    "sig",
    "hmac",
    "api_key",
    "api-key",
    "apikey",
    "key",
    "token",
    "code",
    "auth_token",
    "subscription-key",
]
_AFTER_QUERY = "|".join(
    f"(?<=[?&;6](?i:{name}){mark})" for name in (*_QUERY, *_OAUTH.split("|")) for mark in ("=", "%3D")
)
"""Behind a border of queries, written in an URL (``&``), in JSON (``\\u0026``) or in another URL (``%26``)."""

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        "pem",
        (b"PRIVATE KEY",),
        late(
            r"(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[A-Za-z0-9+/=\s\\:,.>|#]|-(?!-)){40,20000}"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?)"
        ),
    ),
    Pattern(
        "jwt",
        (b"eyJ",),
        late(
            r"(?P<secret>eyJ(?:(?<![A-Za-z0-9]eyJ)|(?<=\\[nrtbf]eyJ)|(?<=%[0-9A-Fa-f]{2}eyJ)|(?<=[0-9\[]meyJ))"
            r"[\w\-]{8,2000}+\.[\w\-]{16,20000}+\.[\w\-]{16,2000}+(?:\.[\w\-]{1,20000}+){0,2})"
        ),
        _looks_random(3.0),
    ),
    Pattern(
        "bearer",
        (b"earer",),
        late(r"earer(?<=[Bb]earer)(?:\s|%20|\\u0020|\+|:\s?){1,2}(?P<secret>[A-Za-z0-9._~+/\-]{20,4000}={0,2})"),
        lambda match: any(char.isdigit() for char in match["secret"]) and is_random(match["secret"]),
    ),
    Pattern(
        "basic",
        (b"asic ",),
        late(r"asic (?<=[:=\"' ][Bb]asic )(?P<secret>(?=[A-Za-z+/]{0,200}\d)[A-Za-z0-9+/]{12,2000}={0,2})(?![\w/+-])"),
        _looks_random(2.5),
    ),
    Pattern(
        "url",
        (b"://", b":\\/\\/"),
        late(r":(?:\\?/){2}(?P<user>[^\s/:@\"'<>\\]{0,100}):(?P<secret>[^\s/@\"'<>\\]{3,200})@(?=[\w.\-\[])"),
        _url_password,
    ),
    Pattern(
        "aws secret",
        (b"ecret_access", b"ecretAccess", b"ECRET_ACCESS", b"ession_token", b"essionToken", b"ESSION_TOKEN"),
        late(
            r"[eE](?:cret_?[aA]ccess_?[kK]ey|CRET_?ACCESS_?KEY|ssion_?[tT]oken|SSION_?TOKEN)\\{0,15}[\"']?\s{0,4}[:=]\s{0,4}\\{0,15}[\"']?"
            r"(?P<secret>[A-Za-z0-9/+]{40,4000}={0,2})(?![A-Za-z0-9/+=])"
        ),
        _looks_random(3.0),
    ),
    Pattern(
        "presigned",
        (
            b"ignature=",
            b"redential=",
            b"ecurity-Token=",
            b"sig=",
            b"oken=",
            b"ey=",
            b"ode=",
            b"ig%3D",
            b"ature%3D",
            b"oken%3D",
            b"ey%3D",
        ),
        late(rf"(?:=|%3D)(?:{_AFTER_QUERY})(?P<secret>[^&\s\"'<>\\#)]{{16,4000}})"),
        _looks_random(2.5),
    ),
    Pattern(
        "oauth",
        (b"ccess_token=", b"efresh_token=", b"d_token=", b"lient_secret=", b"lient_assertion="),
        late(rf"=(?:{_AFTER_OAUTH})(?P<secret>[^&\s\"'<>\\#)]{{8,4000}})"),
        lambda match: is_random(match["secret"], 2.0) or (_is_form(match.string) and is_password(match["secret"])),
    ),
    Pattern(
        "curl header",
        (b"--header", b"-H "),
        late(
            r"(?:-H|--header)[ =]{0,3}\\{0,15}[\"']?[A-Za-z\-]{0,40}(?i:authorization|key|token|secret)\s{0,2}:\s{0,3}"
            r"(?:(?i:bearer|basic|token|apikey)\s{1,3})?(?P<secret>[\w=~@.+/\-]{8,4000})"
        ),
        _looks_random(2.5),
    ),
    Pattern(
        "curl user",
        (b" -u", b" --user", b"\t-u"),
        late(r"[ \t](?:-u|--user)[ =]{0,3}\\{0,15}[\"']?(?P<user>[^\s:\"'\\]{1,100}):(?P<secret>[^\s\"'\\]{3,200})"),
        lambda match: "curl" in match.string[max(0, match.start() - _COMMAND) : match.start()] and _url_password(match),
    ),
)


@dataclass(frozen=True, slots=True)
class Label:
    """What is a secret because a service's name stands before it: ``datadog_api_key = "..."``."""

    whole: re.Pattern[str]
    """With the groups ``label`` and ``value``."""
    named: re.Pattern[str]
    """A label that says what the value is."""
    an_id: re.Pattern[str]
    """Values that are the names of commits, files and rows far more often than keys; they need such a label."""


SERVICES = [
    "adafruit",
    "adobe",
    "ai21",
    "airtable",
    "algolia",
    "alibaba",
    "anyscale",
    "asana",
    "assemblyai",
    "atlassian",
    "auth0",
    "azure",
    "beamer",
    "bitbucket",
    "bittrex",
    "braintree",
    "cloudflare",
    "codecov",
    "cohere",
    "co_api_key",
    "coinbase",
    "confluence",
    "confluent",
    "contentful",
    "datadog",
    "deepgram",
    "deepinfra",
    "deepseek",
    "discord",
    "droneci",
    "dropbox",
    "elevenlabs",
    "etsy",
    "exa",
    "facebook",
    "fastly",
    "finicity",
    "finnhub",
    "flickr",
    "freshbooks",
    "gitter",
    "gocardless",
    "heroku",
    "hubspot",
    "intercom",
    "jfrog",
    "artifactory",
    "bintray",
    "jira",
    "kraken",
    "kucoin",
    "launchdarkly",
    "linear",
    "linkedin",
    "linked_in",
    "lob",
    "mailchimp",
    "mailgun",
    "mapbox",
    "mattermost",
    "meraki",
    "messagebird",
    "mistral",
    "netlify",
    "newrelic",
    "new_relic",
    "nytimes",
    "okta",
    "openweather",
    "pinecone",
    "plaid",
    "privateai",
    "private_ai",
    "qdrant",
    "rapidapi",
    "sendbird",
    "sentry",
    "serpapi",
    "serper",
    "snyk",
    "sonar",
    "square",
    "squarespace",
    "stability",
    "sumo",
    "telegram",
    "travis",
    "trello",
    "twilio",
    "twitch",
    "twitter",
    "typeform",
    "unify",
    "vercel",
    "voyage",
    "wandb",
    "weaviate",
    "yandex",
    "zendesk",
    "zilliz",
]
"""Whose keys have no shape of their own."""

SERVICE = any_of([name.replace("_", mark) for name in SERVICES for mark in ("", "_", "-")])
"""An expression; in lower case."""
LABEL = Label(
    whole=late(
        rf"(?P<label>(?i:{SERVICE})(?![a-z])[\w.\t -]{{0,24}})(?:\\{{0,15}}[\"'`])?\s{{0,3}}(?:=>|:=|=|:|,)\s{{0,3}}(?:\\{{0,15}}[\"'`])?"
        r"(?P<value>[A-Za-z0-9_\-+/.%|:]{14,500}={0,2})(?![A-Za-z0-9])"
    ),
    named=late(r"(?i)key|token|secret|passw|auth|cred|api|pat\b|webhook"),
    an_id=late(r"(?i)[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{24}|[0-9a-f-]{36}|[\d.]+|.*[/.].*"),
)
