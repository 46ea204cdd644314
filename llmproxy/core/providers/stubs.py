"""Auxiliary calls of clients, and built-in answers (stubs) to them for sessions without a network.

A client's machine and caches determine which of these calls it makes, so no recording can hold them all. `always` rows
are used in replay, whatever is recorded, and elsewhere are forwarded and not stored; the others only without a
recording. A stub never influences an agent's decisions: it is a dummy, an acknowledgement, or a refusal in words. A
dummy contains `DUMMY`, and is refused as a credential in a request that would leave the machine. Sources: the services'
API references, and the requests of google-auth 2.63, azure-identity 1.27, msal 1.39, boto3 1.44, mcp 1.30 and Claude
Code 2.1.332.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase, translate
from functools import partial
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from llmproxy.core.providers.provider_table import (
    HostParsedFromPath,
    build_http_provider_name_and_url,
    find_host_in_path,
)
from llmproxy.core.providers.routing import RoutedRequest
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Chunk, Headers, Response, header
from llmproxy.protocol import DUMMY

LIFETIME = 86_400
"""Seconds for which a dummy is valid."""
NAME = "llmproxy-dummy"
WELL_KNOWN = "/.well-known/"
_OURS = f"{WELL_KNOWN}llmproxy/"
NOWHERE = "stubs.invalid"
"""Host of calls by base URL that name no server."""
METADATA = ("169.254.169.254", "metadata.google.internal")
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class RequestAnsweredByStub(NamedTuple):
    path: str
    said: Mapping[str, str]
    """Members of its query and of its form or JSON."""
    origin: str
    """The server's origin for the client, ``https://login.microsoftonline.com``; by base URL with the prefix."""
    now: float
    """Unix seconds."""
    model: str | None = None
    models: tuple[str, ...] = ()
    """Models with answers in the session's cassette."""


class Stub(NamedTuple):
    name: str
    answer: Callable[[RequestAnsweredByStub], Response | None]
    """Returns the answer; None if this call cannot be answered."""
    why: str
    """Reason why it can be answered without a recording."""
    methods: str
    path: str = ""
    """Expression for the whole path; empty: any."""
    hosts: str = ""
    operation: str = ""
    says: Mapping[str, str] = MappingProxyType({})
    """Members of query, form or JSON, with expressions for their values."""
    client: str = ""
    """Prefix of the user-agent, if the row is for one program only."""
    always: bool = True

    @property
    def is_sign_in(self) -> bool:
        """Whether it is a sign-in: live channels need the real one. Its host is always decrypted, to refuse dummies."""
        return self.why == _KEY

    def matches_host(self, host: str) -> bool:
        return any(fnmatchcase(host, each) for each in self.hosts.split())

    def matches_members(self, asked: RequestAnsweredByStub) -> bool:
        return all(re.fullmatch(pattern, asked.said.get(name, "")) for name, pattern in self.says.items())


def build_stub_response(status: int, text: str = "", kind: str = "", *more: tuple[str, str]) -> Response:
    headers = (("content-type", kind), ("cache-control", "no-store"), *more) if text else more
    return Response(status, "", headers, (Chunk(0, text.encode()),) if text else ())


def build_stub_json(value: object, status: int = 200, *more: tuple[str, str]) -> Response:
    return build_stub_response(status, json.dumps(value, separators=(",", ":")), "application/json", *more)


def make_dummy_oauth_token(kind: str = "access") -> str:
    return f"{DUMMY}-{kind}-token-of-a-replay-by-llmproxy-which-nobody-accepts"


def make_unsigned_jwt(asked: RequestAnsweredByStub) -> str:
    audience = asked.said.get("audience") or asked.said.get("client_id") or NAME
    claims: dict[str, object] = {"iss": NAME, "sub": NAME, "aud": audience}
    claims |= {"email": f"{NAME}@llmproxy.invalid", "iat": int(asked.now), "exp": int(asked.now) + LIFETIME}
    parts = (json.dumps(each).encode() for each in ({"alg": "none", "typ": "JWT"}, claims))
    return ".".join((*(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts), f"{DUMMY}000"))


def _answer_token(asked: RequestAnsweredByStub) -> Response:
    """Answer like a token endpoint (RFC 6749, 5.1, RFC 8693), with the member names of all known services."""
    ends, made = int(asked.now) + LIFETIME, dict.fromkeys(("access_token", "accessToken"), make_dummy_oauth_token())
    made |= dict.fromkeys(("token", "value"), make_unsigned_jwt(asked))
    made |= {"token_type": "Bearer", "expires_on": str(ends)}
    made |= {"expireTime": _format_expiry(asked), "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
    made |= {name: asked.said[name] for name in ("scope", "resource") if asked.said.get(name)}
    if asked.said.get("grant_type") in ("authorization_code", "refresh_token", _JWT_GRANT):
        made["id_token"] = make_unsigned_jwt(asked)
    flavor = ("metadata-flavor", "Google")
    return build_stub_json({**made, "expires_in": LIFETIME, "ext_expires_in": LIFETIME}, 200, flavor)


def _format_expiry(asked: RequestAnsweredByStub) -> str:
    return datetime.fromtimestamp(asked.now + LIFETIME, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _answer_google_metadata(asked: RequestAnsweredByStub) -> Response:
    last, flavor = asked.path.rstrip("/").rpartition("/")[2], ("metadata-flavor", "Google")
    if last == "token":
        return _answer_token(asked)
    if asked.said.get("recursive"):
        return build_stub_json({"aliases": ["default"], "email": f"{NAME}@llmproxy.invalid", "scopes": []}, 200, flavor)
    texts = {"identity": make_unsigned_jwt(asked), "universe-domain": "googleapis.com", "": "computeMetadata/"}
    return build_stub_response(200, texts.get(last, NAME), "application/text", flavor)


def _make_aws_credentials(asked: RequestAnsweredByStub) -> dict[str, str]:
    made = {"AccessKeyId": f"ASIA{DUMMY}000", "SecretAccessKey": make_dummy_oauth_token("secret")}
    return {**made, "SessionToken": make_dummy_oauth_token("session"), "Expiration": _format_expiry(asked)}


def _answer_aws_sts(asked: RequestAnsweredByStub) -> Response:
    action = asked.said["Action"]
    told = "".join(f"<{name}>{text}</{name}>" for name, text in _make_aws_credentials(asked).items())
    user = f"<Arn>arn:aws:sts::000000000000:assumed-role/{NAME}/{NAME}</Arn>"
    user = f"<AssumedRoleUser><AssumedRoleId>{NAME}:{NAME}</AssumedRoleId>{user}</AssumedRoleUser>"
    made = f"<{action}Result><Credentials>{told}</Credentials>{user * action.startswith('A')}</{action}Result>"
    made += f"<ResponseMetadata><RequestId>{NAME}</RequestId></ResponseMetadata>"
    space = 'xmlns="https://sts.amazonaws.com/doc/2011-06-15/"'
    return build_stub_response(200, f"<{action}Response {space}>{made}</{action}Response>", "text/xml")


def _answer_aws_metadata(asked: RequestAnsweredByStub) -> Response:
    if asked.path == "/latest/api/token":
        return build_stub_response(
            200, make_dummy_oauth_token("metadata"), "text/plain", ("x-aws-ec2-metadata-token-ttl-seconds", "21600")
        )
    if asked.path.endswith("/security-credentials/"):
        return build_stub_response(200, NAME, "text/plain")
    keys = _make_aws_credentials(asked)
    return build_stub_json({"Code": "Success", "Type": "AWS-HMAC", **keys, "Token": keys["SessionToken"]})


def _answer_entra_discovery(asked: RequestAnsweredByStub) -> Response:
    base, tenant = asked.origin.replace("http:", "https:"), asked.path.split("/")[1]  # msal accepts only https
    if not asked.path.endswith("/discovery/instance"):
        at = f"{base}/{tenant}"
        ways = {"token": "token", "authorization": "authorize", "device_authorization": "devicecode"}
        ends = {f"{name}_endpoint": f"{at}/oauth2/v2.0/{last}" for name, last in ways.items()}
        return build_stub_json({**ends, "issuer": f"{at}/v2.0"})
    about = urlsplit(asked.said.get("authorization_endpoint", f"{base}/{tenant}/"))
    at = f"https://{about.netloc}/{about.path.split('/')[1]}/v2.0/.well-known/openid-configuration"
    names = {"preferred_network": about.netloc, "preferred_cache": about.netloc, "aliases": [about.netloc]}
    return build_stub_json({"tenant_discovery_endpoint": at, "metadata": [names]})


def _answer_oauth_metadata(asked: RequestAnsweredByStub, issuers: Sequence[str] = ()) -> Response:
    """Answer that an MCP server is its own authorization server (RFC 9728, RFC 8414), at the stub's paths, and that
    `issuers` are, too: a client uses only the issuer that it knows.
    """
    kind, _, below = asked.path.removeprefix(WELL_KNOWN).partition("/")
    at = f"{asked.origin}/{below}".rstrip("/")
    if kind == "oauth-protected-resource":
        return build_stub_json({"resource": at, "authorization_servers": [asked.origin, *issuers]})
    ways = {"authorization": "authorization", "token": "token", "registration": "register"}
    ends = {f"{name}_endpoint": f"{asked.origin}{_OURS}{last}" for name, last in ways.items()}
    grants = ["authorization_code", "refresh_token", "client_credentials", _JWT_GRANT]
    methods = ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
    more = {"grant_types_supported": grants, "token_endpoint_auth_methods_supported": methods}
    more |= {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
    return build_stub_json({"issuer": at, **ends, **more})


def _answer_registration(asked: RequestAnsweredByStub) -> Response:
    """Register a client (RFC 7591) with its own metadata."""
    said = {name: value if value[:1] not in "[{" else json.loads(value) for name, value in asked.said.items()}
    ours = {"client_id": NAME, "client_secret": make_dummy_oauth_token("client"), "client_secret_expires_at": 0}
    return build_stub_json({**said, **ours}, 201)


def _answer_authorization(asked: RequestAnsweredByStub) -> Response | None:
    """Redirect the client to its address on this machine, with a code and its state."""
    back = asked.said.get("redirect_uri", "")
    code = {"code": make_dummy_oauth_token("code"), "state": asked.said.get("state", "")}
    if urlsplit(back).hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    return build_stub_response(302, "", "", ("location", f"{back}{'&' if '?' in back else '?'}{urlencode(code)}"))


def _answer_quota_probe(asked: RequestAnsweredByStub) -> Response:
    made = {"id": NAME, "type": "message", "role": "assistant", "model": asked.said["model"], "content": []}
    return build_stub_json({**made, "stop_reason": "max_tokens", "usage": {"input_tokens": 0, "output_tokens": 0}})


def _list_recorded_models(asked: RequestAnsweredByStub) -> Response | None:
    """List the models with recorded answers, in every dialect: any other model would miss."""
    when = {"created": 0, "created_at": "1970-01-01T00:00:00Z", "owned_by": NAME}
    when |= {"object": "model", "type": "model"}
    made = {each: {"id": each, "name": f"models/{each}", "display_name": each, **when} for each in asked.models}
    if asked.model is not None:
        return build_stub_json(made[asked.model]) if asked.model in made else None
    listed = [*made.values()]
    return build_stub_json({"object": "list", "data": listed, "models": listed, "has_more": False}) if made else None


def _answer_nothing(_asked: RequestAnsweredByStub) -> Response:
    return build_stub_response(204)


_NO_REGISTRY = {"error": "llmproxy: in replay nobody asks the registry: nothing newer is known or installed"}
_UNCOUNTED = {"type": "error", "error": {"type": "not_found_error", "message": "llmproxy: this was never counted"}}
_KEY = "it opens a door that no replay has, and who came in counts in no key"
_ENTRA = "login.microsoftonline.com login.microsoftonline.us login.partner.microsoftonline.cn login.microsoft.com"
_RUNNERS = "pipelines.actions.githubusercontent.com run-actions-*.actions.githubusercontent.com"
_STS = "sts.amazonaws.com sts.*.amazonaws.com sts.*.amazonaws.com.cn"
_ROLES = r"AssumeRole(WithWebIdentity|WithSAML)?|GetSessionToken"
_LATEST = r"/latest/(api/token|meta-data/iam/security-credentials(-extended)?/[^/]*)"
_COMPUTE = r"/|/computeMetadata/v1/(instance/service-accounts/.*|project/project-id|universe/universe-domain)?"
_DISCOVERY = r"/\.well-known/(oauth-protected-resource|oauth-authorization-server)(/.*)?"
_REGISTRATION = ".*/(register|registration|clients|clients-registrations/.+)"
_ASKS_CODE = {"response_type": "code.*", "redirect_uri": ".+"}
_INSTANCE = r"/common/discovery/instance|/[^/]+/(v2\.0/)?\.well-known/openid-configuration"
_EVENTS = (
    r"(/v1|/api)?/(rgstr|log_event|log|batch|capture|e|i/v0/e|track|identify|bulk|diagnostic|traces|metrics|logs)/?"
    r"|/api/\d+/(envelope|store)/|/api/v2/logs"
)
_SENDING = (
    "statsig.*.com api.statsig.com *.ingest.sentry.io *.ingest.us.sentry.io *.ingest.de.sentry.io "
    "events.launchdarkly.com app.posthog.com us.i.posthog.com eu.i.posthog.com api.segment.io "
    "telemetry.crewai.com play.googleapis.com http-intake.logs.*.datadoghq.com"
)
STUBS: tuple[Stub, ...] = (
    Stub("google-oauth", _answer_token, _KEY, "POST", "/token", "oauth2.googleapis.com"),
    Stub("google-sts", _answer_token, _KEY, "POST", "/v1/(oauth)?token", "sts.googleapis.com"),
    Stub("google-iam", _answer_token, _KEY, "POST", ".+:generate\\w+Token", "iamcredentials.googleapis.com"),
    Stub("google-metadata", _answer_google_metadata, _KEY, "GET", _COMPUTE, " ".join(METADATA)),
    Stub("entra", _answer_token, _KEY, "POST", r"/[^/]+/oauth2/(v2\.0/)?token", _ENTRA),
    Stub("entra-discovery", _answer_entra_discovery, _KEY, "GET", _INSTANCE, _ENTRA),
    Stub("azure-metadata", _answer_token, _KEY, "GET", "/metadata/identity/oauth2/token", METADATA[0]),
    Stub("aws-sts", _answer_aws_sts, _KEY, "POST GET", "/", _STS, says={"Action": _ROLES}),
    Stub("aws-metadata", _answer_aws_metadata, _KEY, "PUT GET", _LATEST, METADATA[0]),
    Stub("aws-container", _answer_aws_metadata, _KEY, "GET", "/v[12]/credentials(/.*)?", "169.254.170.*"),
    Stub("ci-oidc", _answer_token, _KEY, "GET", ".*/idtoken(/.*)?", _RUNNERS),
    Stub("oauth-discovery", _answer_oauth_metadata, _KEY, "GET", _DISCOVERY),
    Stub("oauth-registration", _answer_registration, _KEY, "POST", _REGISTRATION, says={"redirect_uris": ".+"}),
    Stub("oauth-authorization", _answer_authorization, _KEY, "GET", ".*/auth(oriz(e|ation))?", says=_ASKS_CODE),
    Stub("oauth-token", _answer_token, _KEY, "POST", ".*/(oauth2?|(access_)?token)", says={"grant_type": ".+"}),
    Stub("preconnect", _answer_nothing, "it opens a connection, and its answer is not read", "HEAD", "/|/api/hello"),
    Stub("telemetry", _answer_nothing, "its sender only hears that it arrived", "POST", _EVENTS, _SENDING),
    Stub(
        "registry", lambda _: build_stub_json(_NO_REGISTRY, 403),
        "it is refused in words, since what is newer or installed would steer", "GET HEAD", "",
        "registry.npmjs.org pypi.org files.pythonhosted.org",
    ),
    Stub(
        "models", _list_recorded_models, "it lists the models of which answers are recorded; any other one would miss",
        "GET", operation="models", always=False,
    ),
    Stub(
        "quota", _answer_quota_probe, "Claude Code reads nothing of it but header fields about a subscription", "POST",
        operation="messages", says={"messages": r'\[{"role": "user", "content": "quota"}\]', "max_tokens": "1"},
        client="claude-cli/", always=False,
    ),
    Stub(
        "count_tokens", lambda _: build_stub_json(_UNCOUNTED, 404), "it is refused in words, and Claude Code estimates",
        "POST", operation="count_tokens", client="claude-cli/", always=False,
    ),
)  # fmt: skip
"""Rows in order; the first match applies."""
TELEMETRY = next(row for row in STUBS if row.name == "telemetry")
OPERATIONS = frozenset(row.operation for row in STUBS if row.operation)
"""Operations in the providers' tables that include auxiliary calls."""
OPTIONAL = ("count_tokens", "models")
"""Operations whose recordings are never reported as unused: a client's cache determines whether they occur."""
SIGN_IN_URLS: Mapping[str, str] = {
    "AWS_ENDPOINT_URL_STS": "/sts.amazonaws.com",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"/{METADATA[0]}",
    "AZURE_POD_IDENTITY_AUTHORITY_HOST": f"/{METADATA[0]}",
}
"""Variables that hold the base URL of a sign-in, with the path after the proxy's address."""
SIGN_IN_HOSTS = ("GCE_METADATA_HOST", "GCE_METADATA_IP")
"""Variables that hold host and port of Google's metadata server."""


def list_builtin_and_user_stubs(own: Mapping[str, str]) -> tuple[Stub, ...]:
    """Return the user's own rows (`parsers.parse_stub_kinds_by_url`), then the built-in rows."""
    answers = {"token": _answer_token, "empty": _answer_nothing, "issuer": _answer_nothing}
    places = ((*place.partition("/"), answers[kind]) for place, kind in own.items())
    made = (Stub(host, kind, _KEY, "GET POST PUT", translate(f"/{path}"), host) for host, _, path, kind in places)
    issuers = [f"https://{place}".rstrip("/") for place, kind in own.items() if kind == "issuer"]
    discover = partial(_answer_oauth_metadata, issuers=issuers)
    return (*made, *(row._replace(answer=discover) if row.answer is _answer_oauth_metadata else row for row in STUBS))


def has_stubs_for_host(rows: Sequence[Stub], host: str, *, offline: bool) -> bool:
    return any(row.matches_host(host) for row in rows if offline or row.is_sign_in)


def find_stubs_matching_request(
    rows: Sequence[Stub], where: RoutedRequest, method: str, headers: Headers
) -> tuple[Stub, ...]:
    if where.row.not_llm:
        return (TELEMETRY,)
    host, path = urlsplit(where.upstream).hostname or "", where.target.partition("?")[0]
    agent = header(headers, "user-agent") or ""
    return tuple(
        row
        for row in rows
        if method in row.methods.split()
        and (row.operation == where.operation if where.known else not row.operation)
        and (not row.hosts or row.matches_host(host))
        and (not row.path or re.fullmatch(row.path, path))
        and agent.startswith(row.client)
    )


def find_host_of_auxiliary_call(
    rows: Sequence[Stub], method: str, target: str, headers: Headers, *, named: bool
) -> HostParsedFromPath | None:
    """Return an auxiliary call's host: first in its path, or derived. `named`: paths without one have upstreams."""
    path = target.partition("?")[0]
    if path.startswith("/computeMetadata/") or (path == "/" and header(headers, "metadata-flavor")):
        return HostParsedFromPath(*build_http_provider_name_and_url("http", METADATA[1], None), target)
    if not named and (path.startswith(WELL_KNOWN) or (path == "/" and method == "HEAD")):
        return HostParsedFromPath(*build_http_provider_name_and_url("http", NOWHERE, None), target)
    there = find_host_in_path(target, ("*",))
    if there is None or not has_stubs_for_host(rows, urlsplit(there.url).hostname or "", offline=True):
        return None
    return there


def parse_query_and_body(target: str, headers: Headers, body: bytes) -> dict[str, str]:
    said = dict(parse_qsl(target.partition("?")[2], keep_blank_values=True))
    if body[:1] == b"{":
        tree = parse_json_or_none(body) or {}
        return said | {name: each if isinstance(each, str) else json.dumps(each) for name, each in tree.items()}
    form = "form" in (header(headers, "content-type") or "")
    return said | (dict(parse_qsl(body.decode("latin-1"), keep_blank_values=True)) if form else {})
