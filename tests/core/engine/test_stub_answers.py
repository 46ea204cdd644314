"""Auxiliary calls through a real proxy: sign-ins get a dummy that goes nowhere, and lists do not decide whether a cassette is whole.

The requests are those that google-auth, msal, boto3 and Claude Code were seen to send; boto3 and the MCP SDK ask themselves.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from pydantic import AnyUrl

from llmproxy.core.providers.provider_table import build_http_provider_name_and_url
from llmproxy.core.providers.routing import route_by_host
from llmproxy.core.providers.stubs import (
    LIFETIME,
    STUBS,
    RequestAnsweredByStub,
    find_stubs_matching_request,
    has_stubs_for_host,
    list_builtin_and_user_stubs,
    parse_query_and_body,
)
from llmproxy.protocol import DUMMY
from tests.support import mcp_oauth
from tests.support.chats import chat, fill
from tests.support.proxy import Listening, Proxy, near, proxy
from tests.support.services import QuietHandler

if TYPE_CHECKING:
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

FORM = {"content-type": "application/x-www-form-urlencoded"}
ROLE = "arn:aws:iam::123456789012:role/deploy"
TENANT = "/login.microsoftonline.com/72f988bf-86f1-41af-91ab-2d7cd011db47"
IDTOKEN = "/run-actions-1-azure-eastus.actions.githubusercontent.com/68//idtoken/a/b"


class Live:
    """A server of this machine that counts what came, and answers all, or as a server of tools behind OAuth."""

    def __init__(self, *, guarded: bool = False) -> None:
        self.seen: list[bytes] = []
        seen = self.seen

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:  # noqa: N802 - as the library names it
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                seen.append(f"{self.command} {self.path}\n{self.headers}".encode() + body)
                status, fields = 200, dict[str, str]()
                told: object = {"access_token": "real-one", "object": "list", "data": [{"id": "real"}]}
                if guarded:
                    at, sent = f"http://{self.headers['host']}", {k.lower(): v for k, v in self.headers.items()}
                    status, fields, told = mcp_oauth.answer(at, at, self.path, sent, body)
                self.answer(json.dumps(told).encode(), status=status, **fields)

            do_GET = do_POST  # noqa: N815 - a name of the library

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def live() -> Iterator[Live]:
    made = Live()
    yield made
    made.close()


@pytest.fixture(scope="module")
def replaying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy in replay that stands between a client and the network."""
    store = tmp_path_factory.mktemp("stubs") / "x.db"
    fill(store, chat("How are you?", "Fine."))
    with proxy("replay", store, options=("--forward", "--stub", "auth.example.com/oauth/*=token")) as px:
        yield px


def ask(
    px: Listening, method: str, target: str, headers: dict[str, str] | None = None, body: object = None
) -> tuple[int, dict[str, str], str]:
    """Ask; a body that is no text is a form."""
    data = urlencode(body) if isinstance(body, dict) else body
    with closing(HTTPConnection("127.0.0.1", px.port, timeout=20)) as connection:
        connection.request(method, target, data, headers or {})  # type: ignore[arg-type]
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()


SIGN_INS: dict[str, tuple[str, str, dict[str, str], object, str]] = {
    "google-oauth": ("POST", "/oauth2.googleapis.com/token", FORM,
                     {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "a.b.c"}, "id_token"),
    "google-sts": ("POST", "/sts.googleapis.com/v1/token", FORM, {"subject_token": "t"}, "issued_token_type"),
    "google-iam": ("POST", "/iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@b:generateAccessToken", {},
                   '{"scope": ["x"]}', "expireTime"),
    "google-metadata": ("GET", "/computeMetadata/v1/instance/service-accounts/default/token",
                        {"metadata-flavor": "Google"}, None, "expires_in"),
    "entra": ("POST", f"{TENANT}/oauth2/v2.0/token", FORM, {"grant_type": "client_credentials"}, "ext_expires_in"),
    "azure-metadata": ("GET", "/169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource=r",
                       {"metadata": "true"}, None, "expires_on"),
    "aws-sts": ("POST", "/sts.amazonaws.com/", FORM, {"Action": "AssumeRole", "RoleArn": ROLE}, "AssumedRoleUser"),
    "aws-metadata": ("PUT", "/169.254.169.254/latest/api/token", {}, None, DUMMY),
    "aws-container": ("GET", "/169.254.170.2/v2/credentials/x", {}, None, "SecretAccessKey"),
    "ci-oidc": ("GET", f"{IDTOKEN}?api-version=2.0&audience=sts.amazonaws.com", {}, None, "value"),
    "oauth-token": ("POST", "/.well-known/llmproxy/token", FORM, {"grant_type": "client_credentials"}, "Bearer"),
    "auth.example.com": ("POST", "/auth.example.com/oauth/token", FORM, {"a": "b"}, "access_token"),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGN_INS)
@pytest.mark.parametrize("way", ["by base URL", "intercepted"])
def test_a_sign_in_is_answered_by_a_dummy(replaying: Proxy, name: str, way: str) -> None:
    """It needs no key, no network and no recording, and is counted apart."""
    method, target, headers, body, says = SIGN_INS[name]
    if way == "intercepted":
        if target.startswith(("/computeMetadata", "/.well-known")):
            pytest.skip("asked at the root of its own server")
        target = f"http:/{target}"
    status, _, said = ask(replaying, method, target, headers, body)
    assert status == 200
    assert DUMMY in said
    assert says in said
    call = replaying.control("calls?session=default")["calls"][-1]
    assert (call["stub"], call["decision"], call["miss"]) == (name, "REPLAY", False)


def test_dummies_end_a_day_from_now(replaying: Proxy) -> None:
    """Late for a run, and soon for what a command line tool keeps in its cache: google-auth looks into the JWT."""
    method, target, headers, body, _ = SIGN_INS["ci-oidc"]
    token = json.loads(ask(replaying, method, target, headers, body)[2])["value"]
    _, claims, _ = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
    told = json.loads(claims)
    assert told["aud"] == "sts.amazonaws.com"
    assert abs(int(str(told["exp"])) - time.time() - LIFETIME) < 60


def test_every_row_says_why() -> None:
    assert all(row.why and row.methods for row in STUBS)
    assert len({row.name for row in STUBS}) == len(STUBS)


def test_boto3_signs_in(replaying: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """It parses what it is told, of STS and of an instance's metadata."""
    import boto3
    from botocore.utils import InstanceMetadataFetcher

    client = boto3.client(
        "sts", region_name="us-east-1", endpoint_url=f"{replaying.url}/sts.amazonaws.com", aws_access_key_id="AKIAX",
        aws_secret_access_key="x",
    )  # fmt: skip
    made = client.assume_role(RoleArn=ROLE, RoleSessionName="name")
    assert DUMMY in made["Credentials"]["AccessKeyId"]
    assert made["Credentials"]["Expiration"].timestamp() > time.time() + LIFETIME / 2
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    fetcher = InstanceMetadataFetcher(base_url=f"{replaying.url}/169.254.169.254/")
    assert DUMMY in str(fetcher.retrieve_iam_role_credentials())


STEERING = {
    "GetCallerIdentity": ("POST", "/sts.amazonaws.com/", FORM, {"Action": "GetCallerIdentity"}),
    "a region": ("GET", "/169.254.169.254/latest/meta-data/placement/region", {}, None),
    "an attribute": ("GET", "/computeMetadata/v1/instance/attributes/x", {"metadata-flavor": "Google"}, None),
    "flags": ("POST", "http://us.i.posthog.com/flags/?v=2", {}, "{}"),
    "gates": ("POST", "http://statsig.anthropic.com/v1/initialize", {}, "{}"),
    "a signature": ("POST", "/iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@b:signBlob", {}, "{}"),
}


@pytest.mark.parametrize("name", STEERING)
def test_what_would_steer_has_no_stub(replaying: Proxy, name: str) -> None:
    """Who somebody is, where, and what is set are questions: refused in words, and nothing leaves the machine."""
    method, target, headers, body = STEERING[name]
    status, _, said = ask(replaying, method, target, headers, body)
    assert status >= 400
    assert "llmproxy" in said
    assert DUMMY not in said


def test_a_registry_and_telemetry(replaying: Proxy) -> None:
    """A registry is refused in words, and what only is to arrive has arrived; neither is a miss."""
    before = replaying.control("sessions")["sessions"][0]["misses"]
    status, _, said = ask(replaying, "GET", "http://registry.npmjs.org/left-pad/latest")
    assert (status, "nobody asks the registry" in said) == (403, True)
    for target in ("/api/event_logging/batch", "http://us.i.posthog.com/batch/"):
        assert ask(replaying, "POST", target, {}, "{}")[0] == 204, target
    for target in ("/", "/s/default", "/anthropic/", "http://api.anthropic.com/api/hello"):
        assert ask(replaying, "HEAD", target)[0] == 204, target
    assert replaying.control("sessions")["sessions"][0]["misses"] == before


# --- nothing of it is sent ---------------------------------------------------------------------------------------------

BASIC = base64.b64encode(f"llmproxy-dummy:{DUMMY}-x".encode()).decode()
SIGNED = f"AWS4-HMAC-SHA256 Credential=ASIA{DUMMY}000/20260101/us-east-1/bedrock/aws4_request, Signature=0"
CHAT = '{"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}'
CARRIED: dict[str, tuple[str, str, dict[str, str], object]] = {
    "a bearer": ("POST", "/v1/chat/completions", {"authorization": f"Bearer {DUMMY}-access"}, CHAT),
    "a key": ("POST", "/v1/messages", {"x-api-key": f"{DUMMY}-access"}, CHAT),
    "a JWT": ("POST", "/v1/chat/completions", {"authorization": f"Bearer eyJhbGciOiJub25lIn0.e30.{DUMMY}000"}, CHAT),
    "a signature": ("POST", "/v1/chat/completions", {"authorization": SIGNED}, CHAT),
    "a signed link": ("GET", f"/v1/files?X-Amz-Credential=ASIA{DUMMY}000%2F20260101", {}, None),
    "a query": ("GET", f"/v1/models?access_token={DUMMY}", {}, None),
    "basic": ("POST", "/token", {"authorization": f"Basic {BASIC}", **FORM}, {"grant_type": "client_credentials"}),
    "a form": ("POST", "/token", FORM, {"grant_type": "refresh_token", "refresh_token": f"{DUMMY}-refresh"}),
    "a token that is changed": ("POST", "/token", FORM, {"subject_token": f"a.b.{DUMMY}000", "x": "y" * 200_000}),
    "a member": ("POST", "/token", {"content-type": "application/json"}, json.dumps({"assertion": f"a.b.{DUMMY}"})),
    "a long one": ("POST", "/v1/responses", {}, json.dumps({"tools": [{"authorization": DUMMY}], "input": "x" * 900_000})),
    "a connector": ("POST", "/v1/responses", {}, json.dumps({"input": "x", "tools": [{"authorization": DUMMY}]})),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["record", "auto", "once", "passthrough"])
def test_no_dummy_is_sent(live: Live, mode: str, tmp_path: Path) -> None:
    """In no mode that forwards, by base URL or intercepted, and nothing of it is stored."""
    store, upstreams = tmp_path / "x.db", dict.fromkeys(("openai", "anthropic"), live.url)
    with near(mode, store, upstreams=upstreams, forward=True, stub={"127.0.0.1/token": "token"}) as px:
        for name, (method, target, headers, body) in CARRIED.items():
            status, _, said = ask(px, method, f"{live.url}{target}" if target == "/token" else target, headers, body)
            assert status >= 400, name
            assert "placeholder" in said, name
        assert not any(DUMMY.encode() in each for each in live.seen)
        quoted = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": f"What is {DUMMY}?"}]})
        assert ask(px, "POST", "/v1/chat/completions", {}, quoted)[0] == 200, "a text may say it"
    assert sum(DUMMY.encode() in each for each in live.seen) == 1


@pytest.mark.parametrize(
    ("how", "path"),
    [({"stub": {"127.0.0.1/mine": "token"}}, "/mine"), ({"record_host": ("127.0.0.1",)}, "/oauth/token")],
)
def test_a_sign_in_goes_where_it_goes_and_is_not_stored(
    live: Live, how: dict[str, Any], path: str, tmp_path: Path
) -> None:
    """While it is recorded, also at a recorded host; and the replay of what followed needs neither host nor key."""
    store, host = tmp_path / "x.db", Live()
    asked = "POST", f"{host.url}{path}", FORM, {"grant_type": "refresh_token", "refresh_token": "mine"}
    with near("record", store, upstreams={"openai": live.url}, forward=True, **how) as px:
        real = json.loads(ask(px, *asked)[2])["access_token"]
        assert ask(px, "POST", "/v1/chat/completions", {"authorization": f"Bearer {real}"}, CHAT)[0] == 200
        told = px.control("sessions")["sessions"][0]
        assert (told["recorded"], told["passed"]) == (1, 1)
    assert (len(host.seen), len(live.seen)) == (1, 1)
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT operation FROM interactions").fetchall() == [("chat.completions",)]
    live.close()
    host.close()
    with near("replay", store, forward=True, **how) as px:
        dummy = json.loads(ask(px, *asked)[2])["access_token"]
        assert DUMMY in dummy
        status, headers, _ = ask(px, "POST", "/v1/chat/completions", {"authorization": f"Bearer {dummy}"}, CHAT)
        assert (status, headers["x-llmproxy-cache"]) == (200, "hit")
        told = px.control("sessions")["sessions"][0]
        assert (told["hits"], told["misses"], told["stubs"]) == (1, 0, 1)


def test_metadata_of_this_machine_is_not_for_who_asks_by_base_url(tmp_path: Path) -> None:
    """While recording it is refused: a base URL may be asked by somebody else."""
    with near("record", tmp_path / "x.db") as px:
        for target in ("/169.254.169.254/latest/meta-data/iam/security-credentials/", "/computeMetadata/v1/"):
            status, _, said = ask(px, "GET", target, {"metadata-flavor": "Google"})
            assert (status >= 400, "by base URL" in said) == (True, True)


# --- lists, and what Claude Code asks aside ----------------------------------------------------------------------------

CODE = {"user-agent": "claude-cli/2.1.332 (external, cli)", "anthropic-version": "2023-06-01"}
QUOTA = json.dumps({"model": "claude-sonnet-5", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]})


def test_lists_do_not_decide_whether_a_cassette_is_whole(live: Live, store: Path) -> None:
    """A recorded list is served; in a cassette without one another's is, and is said; else the recorded models are listed."""
    with near("record", store, upstreams={"openai": live.url, "anthropic": live.url}) as px:
        ask(px, "GET", "/s/first/v1/models")
        for name in ("first", "second"):
            ask(px, "POST", f"/s/{name}/v1/chat/completions", {}, CHAT)
    live.close()
    with near("replay", store) as px:
        assert '"real"' in ask(px, "GET", "/s/first/v1/models")[2]
        assert '"real"' in ask(px, "GET", "/s/second/v1/models")[2]
        assert '"gpt-4o"' in ask(px, "GET", "/s/second/v1/models?limit=2")[2]
        assert ask(px, "GET", "/s/second/v1/models/gpt-4o")[0] == 200
        assert ask(px, "GET", "/s/second/v1/models/gpt-5")[0] >= 400, "no model of which anything is recorded"
        assert ask(px, "GET", "/s/empty/v1/models?limit=3")[0] >= 400, "nothing is known there"
        first, second = (px.control(f"sessions/{name}") for name in ("first", "second"))
        note = px.control("calls?session=second")["calls"][0]["note"]
    assert (first["hits"], first.get("stubs", 0)) == (1, 0)
    assert (second["hits"], second["misses"], second["stub_names"]) == (0, 1, ["models"])
    assert "recorded in first" in note
    with near("replay", store) as px:
        ask(px, "POST", "/s/first/v1/chat/completions", {}, CHAT)
        assert px.control("sessions/first")["unused"] == [], "who has the list in a cache does not ask for it"


def test_what_claude_code_asks_aside_is_no_miss(tmp_path: Path) -> None:
    """Its probe of the quota and its counts; of any other program these are questions like all."""
    fill(tmp_path / "x.db", chat())
    with near("replay", tmp_path / "x.db") as px:
        assert json.loads(ask(px, "POST", "/v1/messages?beta=true", CODE, QUOTA)[2])["content"] == []
        count = json.dumps({"model": "claude-sonnet-5", "messages": [{"role": "user", "content": "foo"}]})
        assert ask(px, "POST", "/v1/messages/count_tokens?beta=true", CODE, count)[0] == 404
        told = px.control("sessions/default")
        assert (told["misses"], told["stub_names"]) == (0, ["count_tokens", "quota"])
        other = {"anthropic-version": "2023-06-01", "user-agent": "mine/1.0"}
        for path, body in (("/v1/messages", QUOTA), ("/v1/messages/count_tokens", count)):
            assert ask(px, "POST", path, other, body)[0] >= 400
        assert ask(px, "POST", "/v1/messages?beta=true", CODE, QUOTA.replace('"quota"', '"quota?"'))[0] >= 400
        assert px.control("sessions/default")["misses"] == 3


# --- servers of tools behind OAuth -------------------------------------------------------------------------------------


class Tokens:
    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def test_the_mcp_sdk_signs_in_without_a_browser(replaying: Proxy) -> None:
    """Discovery, registration and token are stubs, and the link that a browser would open leads straight back."""
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata

    kept, back = Tokens(), list[str]()

    async def follow(link: str) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            back.append((await client.get(link)).headers["location"])

    async def hear() -> tuple[str, str | None]:
        said = parse_qs(urlsplit(back[-1]).query)
        return said["code"][0], said["state"][0]

    server = f"{replaying.url}/s/default/tools/mcp"
    about = OAuthClientMetadata(client_name="test", redirect_uris=[AnyUrl("http://127.0.0.1:7777/callback")])
    auth = OAuthClientProvider(server, about, kept, follow, hear)

    async def sign_in() -> httpx.Request:
        flow = auth.async_auth_flow(httpx.Request("POST", server))
        async with httpx.AsyncClient(trust_env=False) as client:
            request = await flow.asend(httpx.Response(401, request=await anext(flow)))
            while str(request.url) != server:
                request = await flow.asend(await client.send(request))
        return request

    assert DUMMY in asyncio.run(sign_in()).headers["authorization"]
    assert kept.client is not None
    assert back[-1].startswith("http://127.0.0.1:7777/callback?")


def test_a_server_of_tools_behind_oauth_is_recorded_and_replayed_whole(tmp_path: Path) -> None:
    """401, discovery, registration, code, token and calls; in replay the server is dead, and each value is another."""
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata

    store, live, back = tmp_path / "x.db", Live(guarded=True), iter(range(41_000, 41_002))

    async def ask_tool(px: Listening) -> str:
        came, said = dict[str, str](), httpx.Response(500)
        about = OAuthClientMetadata(redirect_uris=[AnyUrl(f"http://127.0.0.1:{next(back)}/callback")])

        async def visit(link: str) -> None:
            came.update(httpx.URL((await client.get(link, auth=None)).headers["location"]).params)

        async def come_back() -> tuple[str, str | None]:
            return came["code"], came["state"]

        auth = OAuthClientProvider(f"{live.url}/mcp", about, Tokens(), visit, come_back)
        async with httpx.AsyncClient(proxy=px.url, auth=auth) as client:
            for number, method in enumerate(("initialize", "tools/call")):
                body = {"jsonrpc": "2.0", "id": number, "method": method, "params": {"name": "greet"}}
                said = await client.post(f"{live.url}/mcp", json=body)
        return str(said.json()["result"]["content"][0]["text"])

    told = []
    for mode in ("record", "replay"):
        with near(mode, store, forward=True, record_host=("127.0.0.1",)) as px:
            assert asyncio.run(ask_tool(px)) == mcp_oauth.SAID
            told.append(px.control("sessions")["sessions"][0])
        live.close()
    counts = [(each["recorded"], each["hits"], each["misses"], each.get("stubs", 0)) for each in told]
    assert counts == [(3, 0, 0, 0), (0, 3, 0, 5)]
    assert not any(DUMMY.encode() in each for each in live.seen)


def answer_stubbed(request: httpx.Request, own: dict[str, str]) -> httpx.Response:
    """Answer as an intercepted host does in replay, with these rows of the user's."""
    rows, url, headers = list_builtin_and_user_stubs(own), request.url, tuple(request.headers.items())
    assert url.host == "mcp.example.com" or has_stubs_for_host(rows, url.host, offline=False)
    target = url.raw_path.decode()
    where = route_by_host(
        "https", url.host, 443, target, dict([build_http_provider_name_and_url("https", url.host, 443)])
    )
    assert where
    asked = RequestAnsweredByStub(
        url.path, parse_query_and_body(target, headers, request.content), f"https://{url.host}", time.time()
    )
    row = next(
        row for row in find_stubs_matching_request(rows, where, request.method, headers) if row.matches_members(asked)
    )
    made = row.answer(asked)
    assert made
    return httpx.Response(made.status, headers=made.headers, content=made.body, request=request)


@pytest.mark.parametrize("issuer", ["auth.example.com/realms/tools", "auth.example.com"])
def test_a_client_that_names_its_authorization_server_signs_in(issuer: str) -> None:
    """If `--stub` names it, too: such a client stops at any other one, and no recording holds which it was."""
    from mcp.client.auth import OAuthFlowError
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

    server = "https://mcp.example.com/mcp"

    async def sign_in(own: dict[str, str]) -> httpx.Request:
        auth = ClientCredentialsOAuthProvider(server, Tokens(), "id", "secret", issuer=f"https://{issuer}")
        flow = auth.async_auth_flow(httpx.Request("POST", server))
        request = await flow.asend(httpx.Response(401, request=await anext(flow)))
        while str(request.url) != server:
            request = await flow.asend(answer_stubbed(request, own))
        return request

    own = {issuer if "/" in issuer else f"{issuer}/": "issuer"}
    assert DUMMY in asyncio.run(sign_in(own)).headers["authorization"]
    with pytest.raises(OAuthFlowError, match="issuer"):
        asyncio.run(sign_in({}))
