"""Another service is not a model: of its requests everything counts but framing, transport, tracing and credentials."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmproxy.core.engine.engine import Engine
from llmproxy.core.keys.head_rules import CREDENTIAL, find_cookie_ignore_reason
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.integrity_checks import find_key_collisions, list_ignored_fields_by_service
from llmproxy.core.traffic.interaction import Headers
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import answered, engine as engine_of_a_chat, send
from tests.support.chats import NOW

HOST = ("https", "api.example.com", 443)


engine = functools.partial(engine_of_a_chat, record_host=("api.example.com",))


def ask(made: Engine, headers: Headers, target: str = "/api/me") -> Exchange:
    """Send a request; where the service is asked, it answers."""
    exchange = made.begin_exchange("GET", target, HOST, headers)
    made.stages.identify_and_decide(exchange, b"")
    if exchange.slot is None and exchange.error is None:
        answered(made, exchange, b'{"is": "%d"}' % len(str(headers)))
    return exchange


@contextmanager
def recorded(
    folder: Path, headers: Headers, target: str = "/api/me", *, match_credential: bool = False
) -> Iterator[Engine]:
    with engine(folder / "a.db", Mode.RECORD, match_credential=match_credential) as made:
        ask(made, headers, target)
    with engine(folder / "a.db", Mode.REPLAY, match_credential=match_credential) as made:
        yield made


COUNT = (
    *("X-User-Id", "X-User", "X-Username", "X-Email", "X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Host"),
    *("X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Prefix", "Forwarded", "Via", "X-Real-IP", "True-Client-IP"),
    *("X-Original-Host", "X-Original-URL", "X-Scheme", "X-Language", "Accept-Language", "Accept-Charset", "X-Locale"),
    *("Version", "X-Version", "X-API-Version", "X-Client-Version", "X-Client-Name", "X-App", "X-Title", "Originator"),
    *("conversation_id", "session_id", "X-Session-Id", "X-Conversation-Id", "X-Thread-Id", "X-Account-Id", "X-Account"),
    *("X-Tenant-Id", "X-Tenant", "X-Org-Id", "OpenAI-Organization", "OpenAI-Project", "Chatgpt-Account-Id", "X-Team"),
    *("X-Project-Id", "X-Workspace", "X-Authenticated-User", "X-Auth-Request-Email", "X-Auth-Request-User", "X-Role"),
    *("X-Remote-User", "X-Customer-Id", "X-Device-Id", "X-Partition-Key", "X-Routing-Key", "X-Continuation-Token"),
    *("Referer", "Origin", "From", "DNT", "X-Requested-With", "Cache-Control", "Pragma", "Range", "If-None-Match"),
    *("Prefer", "Accept", "X-HTTP-Method-Override", "Access-Control-Request-Method", "Sec-Fetch-Site", "X-Timezone"),
    *("X-Feature", "X-Experiment", "X-Page-Token", "X-Anything", "X-Next-Page-Token", "Max-Forwards", "Save-Data"),
    *("X-Goog-User-Project", "X-Amz-Target", "X-Amz-Acl", "Depth", "Destination", "Overwrite", "X-Database"),
    *("X-Passwordless", "X-Feature-Token", "X-Secretary"),
)
"""Fields of a request to a service, each of which may choose its answer."""
COUNT_NOT = (
    *("Connection", "Keep-Alive", "TE", "Accept-Encoding", "Host", "Priority", "Content-Length", "Expect"),
    *("Traceparent", "Tracestate", "Baggage", "B3", "X-B3-TraceId", "X-Request-Id", "X-Correlation-Id", "Sentry-Trace"),
    *("X-Amzn-Trace-Id", "X-Datadog-Trace-Id", "Idempotency-Key", "X-Retry-Count", "User-Agent", "Date", "X-Amz-Date"),
    *("Authorization", "X-Api-Key", "Api-Key", "X-Auth-Token", "Private-Token", "X-Vault-Token", "X-Access-Token"),
    *("X-CSRF-Token", "X-Amz-Security-Token", "Ocp-Apim-Subscription-Key", "X-Functions-Key", "Proxy-Authorization"),
    *("X-Shopify-Access-Token", "X-Client-Secret", "X-Password", "X-Jwt-Assertion", "X-Hub-Signature-256"),
    *("X-ClientSecret", "X-UserPassword", "X-AuthToken", "X-Credentials"),
)


@pytest.mark.parametrize("name", COUNT)
def test_a_field_that_may_choose_the_answer_counts(name: str, tmp_path: Path) -> None:
    """Recorded with one value: with another one, and without it, nothing is served."""
    with recorded(tmp_path, ((name, "alice"),)) as made:
        assert ask(made, ((name.lower(), "alice"),)).decision is Decision.REPLAY
        assert ask(made, ((name, "bob"),)).decision is Decision.REFUSE
        assert ask(made, ()).decision is Decision.REFUSE


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_field_is_not_a_missing_one(value: str, tmp_path: Path) -> None:
    """A field that a rule empties (`Accept: */*`) is."""
    with recorded(tmp_path, (("X-Tenant", value),)) as made:
        assert ask(made, ()).decision is Decision.REFUSE
        assert ask(made, (("x-tenant", ""), ("Accept", "*/*"))).decision is Decision.REPLAY


@pytest.mark.parametrize("name", COUNT_NOT)
def test_a_field_that_cannot_choose_it_does_not(name: str, tmp_path: Path) -> None:
    """A replay has no key, another connection, another trace."""
    with recorded(tmp_path, ((name, "one"),)) as made:
        assert [ask(made, each).decision for each in (((name, "other"),), ())] == [Decision.REPLAY] * 2


def test_cookies_count_each_by_its_name(tmp_path: Path) -> None:
    """A language and a cart count; a session's is a credential, and analytics are chance. No value is stored."""
    said = "lang=de; sessionid=s3cr3t-of-alice; cart=42; _ga=GA1.2; csrftoken=c"
    covered = Counter[bool]()
    with recorded(tmp_path, (("Cookie", said),)) as made:
        for cookies, same in (
            ("cart=42; lang=de", True), ("lang=de; sessionid=other; cart=42; _ga=x", True), (f"{said}; JSESSIONID=1", True),
            ("lang=en; cart=42", False), ("lang=de; cart=43", False), ("lang=de", False), ("", False),
            ("lang=de; cart=42; theme=dark", False),
        ):  # fmt: skip
            assert (ask(made, (("cookie", cookies),) if cookies else ()).decision is Decision.REPLAY) is same, cookies
            covered[same] += 1
    assert covered[True] >= 3
    data = (tmp_path / "a.db").read_bytes()
    assert b"s3cr3t-of-alice" not in data
    assert b"lang=de" not in data


@pytest.mark.parametrize("name", [
    "author", "tokenizer", "assessment", "monkey", "loginless", "secretary", "preAuthored",
])  # fmt: skip
def test_a_cookie_whose_name_merely_begins_like_a_sessions_counts(name: str) -> None:
    assert find_cookie_ignore_reason(name) == ""


@pytest.mark.parametrize("name", [
    "PHPSESSID", "JSESSIONID", "ASPSESSIONIDQQABCD", "ASP.NET_SessionId", "sessionid", "laravel_session", "SESSDATA", "sid",
    "connect.sid", ".ASPXAUTH", "_oauth2_proxy", "accessToken", "csrftoken", "XSRF-TOKEN", "sb-ref-auth-token.0", "rememberMe",
    "REMEMBERME", "remember_user_token", "__Host-next-auth.csrf-token", "apikey", "apiKey", ".AspNetCore.Identity.Application",
    "jwt", "login", "userPassword", "client_secret", "authenticated", "authorization",
])  # fmt: skip
def test_a_cookie_of_a_session_or_credential_does_not_count(name: str) -> None:
    assert find_cookie_ignore_reason(name) == CREDENTIAL


@pytest.mark.parametrize(("one", "other"), [("/api/me", "/api/me/"), ("/a/", "/a"), ("/a?x=1", "/a/?x=1")])
def test_a_trailing_slash_counts(one: str, other: str, tmp_path: Path) -> None:
    """Servers answer one of the two with a redirect, or with another page."""
    with recorded(tmp_path, (), one) as made:
        assert ask(made, (), other).decision is Decision.REFUSE
        assert ask(made, (), one).decision is Decision.REPLAY


@pytest.mark.parametrize("target", [
    ("/b/k?X-Amz-Algorithm=AWS4&X-Amz-Credential={0}&X-Amz-Date={0}&X-Amz-Expires=60&X-Amz-Signature={0}&versionId=7"),
    ("/b/k?X-Goog-Algorithm=G&X-Goog-Credential={0}&X-Goog-Date={0}&X-Goog-Signature={0}&generation=7"),
    ("/c/k?sv=2026&se={0}&sr=b&sp=r&sig={0}&snapshot=7"),
    ("/k?Expires={0}&Signature={0}&Key-Pair-Id={0}&size=7"),
])  # fmt: skip
def test_a_url_signed_anew_asks_the_same(target: str, tmp_path: Path) -> None:
    """The signature and what belongs to it do not count; what else the URL says does."""
    with recorded(tmp_path, (), target.format("one11one22")) as made:
        assert ask(made, (), target.format("other33other44")).decision is Decision.REPLAY
        assert ask(made, (), target.format("other33other44").replace("=7", "=8")).decision is Decision.REFUSE
        assert ask(made, (), target.partition("?")[0]).decision is Decision.REFUSE
    assert target.count("{0}") >= 2


def test_what_merely_looks_like_a_signature_counts(tmp_path: Path) -> None:
    """A member `sig` alone is one like any other."""
    with recorded(tmp_path, (), "/k?sig=one11one22one33one44") as made:
        assert ask(made, (), "/k?sig=two11two22two33two44").decision is Decision.REFUSE


@pytest.mark.parametrize("name", ["Authorization", "X-Auth-Token", "Private-Token", "Cookie"])
def test_match_credential_tells_the_callers_of_a_service_apart(name: str, tmp_path: Path) -> None:
    """Whatever field of a declared name the credential stands in, a session's cookie included."""
    alice, bob = ("session=alice", "session=bob") if name == "Cookie" else ("alice-1", "bob-2")
    with recorded(tmp_path, ((name, alice),), match_credential=True) as made:
        assert ask(made, ((name, alice),)).decision is Decision.REPLAY
        assert ask(made, ((name, bob),)).decision is Decision.REFUSE
        assert ask(made, ()).decision is Decision.REFUSE


@pytest.mark.parametrize(("target", "body"), [
    ("/v1/responses", b'{"model":"m","input":"x","tools":[{"type":"mcp","server_url":"https://x","authorization":"%s"}]}'),
    ("/v1/messages", b'{"model":"m","max_tokens":1,"messages":[],"mcp_servers":[{"url":"https://x","authorization_token":"%s"}]}'),
], ids=["responses", "messages"])  # fmt: skip
def test_the_credential_of_a_connector_is_one(target: str, body: bytes, tmp_path: Path) -> None:
    """In replay any does; with --match-credential it tells callers apart."""
    head = (("content-type", "application/json"),)
    for match in (False, True):
        store = tmp_path / f"{match}.db"
        with engine(store, Mode.RECORD, match_credential=match) as made:
            answered(made, send(made, body % b"alice-1", target, head), b"{}")
        with engine(store, Mode.REPLAY, match_credential=match) as made:
            assert send(made, body % b"alice-1", target, head).decision is Decision.REPLAY
            assert (send(made, body % b"bob-2", target, head).decision is Decision.REFUSE) is match


def test_audit_names_what_did_not_count(tmp_path: Path) -> None:
    """For each service the fields that were sent and do not count, and recordings of one key whose answers differ."""
    with engine(tmp_path / "a.db", Mode.RECORD) as made:
        ask(made, (("Authorization", "Bearer of-alice-0001"), ("X-Request-Id", "1"), ("Accept", "text/html")))
        ask(made, (("Authorization", "Bearer of-bob-2"), ("X-Request-Id", "2"), ("Accept", "text/html")))
    with SqliteCassetteStore.open(tmp_path / "a.db", writable=False, now=lambda: NOW) as store:
        (found,) = list_ignored_fields_by_service(store, Rules(), {})
        assert found.provider == "http:api.example.com"
        assert list(found.fields) == ["authorization", "x-request-id"]
        assert found.alike == ((1, 2),)
        assert not any(pair.unexplained_differences for pair in find_key_collisions(store, Rules(), {}))
