"""Routing: the provider and the operation of a request.

A request to a base URL is identified by its prefix (``/groq/...``), else by headers that only one provider uses, else
by a path that only one has; all others go to ``--upstream default=URL``, or to OpenAI. One in forward mode is
identified by its host. Both ways give the same `RoutedRequest`, and different resources never share one. A bare host
as base URL gets the whole path, one that ends in a version contains it, any other path replaces the provider's own base
path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from llmproxy.core.providers import provider_table
from llmproxy.core.providers.provider_table import PROVIDERS, ApiOperation, Family, Provider, build_custom_provider
from llmproxy.core.providers.upstreams_and_rate_limits import get_port_or_default, provider_of_host
from llmproxy.core.traffic.interaction import Headers, format_host, header
from llmproxy.errors import RefusedError
from llmproxy.lazy_regex import late
from llmproxy.protocol import CONTROL_PREFIX, SESSION_PREFIX, STDIO_PREFIX, STDIO_URL

DEFAULT = "default"
"""Key in `upstreams` for ``/v1/...`` paths that identify no provider."""
REST = "*"
"""Key in `upstreams` for all other unidentified paths: mitmproxy's reverse mode sends everything to one upstream. Users
never type it."""
_NONE: Mapping[str, str] = MappingProxyType({})
_VERSION = late(r"/v\d+(?:(?:alpha|beta)\d*)?")
_LOCATION = late(r"/locations/([a-z0-9-]+)/")
_REGION = late(r"Credential=[^/]+/\d+/([a-z0-9-]+)/")
_AWS_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    provider: Provider
    operation: str
    target: str
    """Path and query at the provider's public host, with percent-encoding unchanged."""
    upstream: str
    """Address that receives it, ``https://host[:port]``; empty if unknown (Azure without an endpoint)."""
    upstream_target: str
    model: str | None
    """Model in the path; None if the body names it."""
    stream: bool | None
    """Whether the path asks for a stream; None if the body decides. Call :func:`asks_for_stream`."""
    known: bool
    """Whether the operation is in the table. If not, it is generic HTTP."""
    row: ApiOperation
    """The operation's row in a provider's table; for an unknown path one of its own."""
    family: Family = "generic"
    """Dialect of the bodies and of the error envelope: the operation's, else the provider's."""
    ids: tuple[str, ...] = ()
    """Segments of `operation` that are ids created by a server: ``("file-1",)``."""
    variant: str = ""
    """Other parts of the path that select the answer: a version unlike the provider's first, a location, a project."""
    keeps: bool = False


def split_session_from_path(target: str) -> tuple[str | None, str]:
    """Split ``/s/<name>/rest`` into the decoded name, if any, and ``/rest``. Raises RefusedError: empty, no UTF-8."""
    if not target.startswith(SESSION_PREFIX):
        return None, target
    start = len(SESSION_PREFIX)
    end = next((at for at in range(start, len(target)) if target[at] in "/?"), len(target))
    try:
        name = unquote(target[start:end], errors="strict")
    except UnicodeDecodeError as error:
        message = f"llmproxy: the session name {target[start:end]!r} in the URL is not percent-encoded UTF-8"
        raise RefusedError(message) from error
    if not name:
        message = f"llmproxy: the URL {target.partition('?')[0]} names an empty session"
        raise RefusedError(message, hint="Write http://HOST:PORT/s/<session>/v1, or leave /s/ out.")
    rest = target[end:]
    return name, rest if rest.startswith("/") else "/" + rest


_ROWS = sorted(PROVIDERS.values(), key=lambda row: not row.own.certain)
_EXACT: Mapping[str, str] = {path: row.name for row in _ROWS for path in row.own.exact}
_BELOW = tuple((prefix, row) for row in _ROWS for prefix in row.own.below)
_BEGINS = tuple((row.own.begins, row.name) for row in _ROWS if row.own.begins)
_HOLDS = tuple((part, row) for row in _ROWS for part in row.own.holds)


def _find_provider_by_path(path: str) -> str | None:
    if (name := _EXACT.get(path)) is not None:
        return name
    path = unquote(path)
    known = next(
        (row.name for prefix, row in _BELOW if path.startswith(prefix) and find_llm_operation(row, path)), None
    )
    known = known or next((name for begins, name in _BEGINS if path.startswith(begins)), None)
    return known or next((row.name for part, row in _HOLDS if part in path and find_llm_operation(row, path)), None)


def _find_provider_by_headers(query: str, headers: Headers) -> str | None:
    names = {name.lower() for name, _ in headers}
    found = (row for row in _ROWS if row.own.header in names or (row.own.query and f"&{row.own.query}" in f"&{query}"))
    return next((row.name for row in found), None)


_HINT = (
    "Write the provider into the base URL: http://HOST:PORT/<provider>/..., with one of {prefixes}; "
    "or say where it goes: --upstream default=URL, --upstream NAME=URL."
)


def _find_provider_and_path(
    path: str, query: str, headers: Headers, upstreams: Mapping[str, str]
) -> tuple[Provider, str]:
    first, slash, rest = path[1:].partition("/")
    if first == "openai" and (  # Azure's own paths begin like the proxy's prefix for OpenAI
        rest.startswith("deployments/") or "api-version=" in query or header(headers, "api-key") is not None
    ):
        return PROVIDERS["azure"], path
    if first in PROVIDERS:
        return PROVIDERS[first], slash + rest or "/"
    if first.startswith(STDIO_PREFIX):
        return build_custom_provider(first, STDIO_URL), slash + rest or "/"
    if first in upstreams and first != DEFAULT:
        return build_custom_provider(first, upstreams[first]), slash + rest or "/"
    if (name := _find_provider_by_path(path)) is not None and PROVIDERS[name].own.certain:
        return PROVIDERS[name], path
    name = _find_provider_by_headers(query, headers) or name
    if name is not None:
        return PROVIDERS[name], path
    if (
        path.startswith("/v1/")
        or path == "/v1"
        or DEFAULT in upstreams
        or find_llm_operation(PROVIDERS["openai"], path)
    ):
        url = upstreams.get(DEFAULT)
        return (build_custom_provider(DEFAULT, url) if url else PROVIDERS["openai"]), path
    if REST in upstreams:
        return build_custom_provider(DEFAULT, upstreams[REST]), path
    prefixes = " ".join(f"/{name}" for name in (*PROVIDERS, *(n for n in upstreams if n not in PROVIDERS)))
    raise RefusedError(f"llmproxy: no provider is known for the path {path}", hint=_HINT.format(prefixes=prefixes))


def _build_route(provider: Provider, path: str, query: str, sent: Callable[[str], tuple[str, str]]) -> RoutedRequest:
    found = find_llm_operation(provider, path)
    operation, name, drop, insert, model, stream, ids, variant = found or OperationMatchedByPath(
        ApiOperation(path), unquote(path)
    )
    target = f"{insert}{path[drop:]}{query}" if insert or drop else path + query
    if stream is None and ids and "stream=true" in query:
        stream = True
    origin, upstream_target = sent(target)
    return RoutedRequest(
        provider, name, target, origin, upstream_target, model, stream, known=found is not None, row=operation,
        family=operation.family or provider.family, ids=ids, variant=variant,
        keeps=operation.keeps or (operation.tree and bool(ids)),
    )  # fmt: skip


def route(target: str, headers: Headers, upstreams: Mapping[str, str] = _NONE) -> RoutedRequest:
    """Route a request to a base URL. Raises RefusedError, listing the prefixes: the path identifies no provider.

    `target` is ``/s/<session>/<provider>/<the provider's path>``; `upstreams` maps names and ``default`` to base URLs.
    """
    path, mark, query = split_session_from_path(target)[1].partition("?")
    if path.lstrip("/").startswith(CONTROL_PREFIX[1:]):
        message = f"llmproxy: {path[:80]} is a path of this proxy itself; nothing was sent."
        raise RefusedError(message, hint="Ask for it at the proxy's address, without HTTP_PROXY.")
    provider, path = _find_provider_and_path(path, query, headers, upstreams)
    url = upstreams.get(provider.name, "") or (STDIO_URL if provider.name.startswith(STDIO_PREFIX) else "")
    return _build_route(
        provider, path, mark + query, lambda sent: build_upstream_origin_and_target(provider, url, sent, headers)
    )


def route_by_host(
    scheme: str, host: str, port: int | None, target: str, upstreams: Mapping[str, str] = _NONE
) -> RoutedRequest | None:
    """Route a request by host; None for an unknown host. Only `target` is as at the provider's public host."""
    origin = f"{scheme}://{format_host(scheme, host, port)}"
    path, mark, query = target.partition("?")
    wanted = host.lower(), get_port_or_default(scheme, port)
    for name, url in sorted(upstreams.items(), key=lambda each: -len(each[1])):
        parts = urlsplit(url)
        same = (parts.hostname or "", get_port_or_default(parts.scheme, parts.port)) == wanted
        below = parts.path.rstrip("/")
        if same and (path.startswith(below + "/") or path == below):
            provider = PROVIDERS.get(name) or build_custom_provider(name, url)
            return _build_route(provider, path[len(below) :] or "/", mark + query, lambda _: (origin, target))
    known = provider_of_host(host, wanted[1])
    return _build_route(known, path, mark + query, lambda _: (origin, target)) if known else None


def asks_for_stream(route: RoutedRequest, body_json: object) -> bool:
    """Return whether a request asks for a stream: from the path if that decides, else from the body's ``stream``."""
    if route.stream is not None:
        return route.stream
    if not isinstance(body_json, dict):
        return False
    value = body_json.get("stream")
    return route.row.stream_default if value is None else value in (True, "true", "True")


def does_request_change_server_state(route: RoutedRequest, method: str) -> bool:
    last = route.operation.rpartition("/")[2].rpartition(":")[2]
    if method == "POST":
        return route.keeps and last not in provider_table.READS_BY_POST
    return route.known and method not in provider_table.SAFE


_OPERATION_FAMILY: dict[tuple[str, str], Family] = {
    (provider.name, operation.name): operation.family
    for provider in PROVIDERS.values()
    for operation in (*provider.operations.values(), *provider_table.RAW_PREDICT.values())
    if operation.family is not None
}


def get_operation_dialect(provider: str, operation: str) -> Family:
    """Return the dialect of a stored interaction; OpenAI's for a provider that is not in the table."""
    if provider.startswith((provider_table.HTTP_PREFIX, STDIO_PREFIX)):
        return "http"
    if provider not in PROVIDERS:
        return _OPERATION_FAMILY.get(("openai", operation)) or "openai"
    return _OPERATION_FAMILY.get((provider, operation)) or PROVIDERS[provider].family


class OperationMatchedByPath(NamedTuple):
    operation: ApiOperation
    name: str
    drop: int = 0
    insert: str = ""
    """The provider's own path is `insert` and the path without its first `drop` characters."""
    model: str | None = None
    stream: bool | None = None
    ids: tuple[str, ...] = ()
    variant: str = ""


_METHOD = late(
    r"(?:/(?P<version>v\d\w*))?/(?:projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+)/)?"
    r"(?:publishers/(?P<publisher>[^/]+)/)?(?P<kind>models|tunedModels|endpoints)/(?P<model>[^:]+):(?P<method>\w+)$"
)
_VERTEX_OPENAI = late(
    r"(?P<version>/v\d\w*)/(?P<project>projects/[^/]+)/(?P<location>locations/[^/]+)/endpoints/(?P<model>[^/]+)"
    r"/(?P<what>chat/completions|completions|embeddings)$"
)
_ACTION = late(r"/model/(?P<model>.+)/(?P<action>[a-z-]+)$")
_DEPLOYMENT = late(r"(?P<base>/openai)?/deployments/(?P<model>[^/]+)(?P<more>/extensions)?(?P<tail>/.+)$")
_UPLOAD = late(r"/(?:upload|download)(?=/v\d)")

_WORDS = frozenset({
    "alpha", "api_keys", "batches", "calls", "cancel", "checkpoints",
    "client_secrets", "compact", "complete", "completions", "content", "cost_report",
    "download", "events", "file_batches", "files", "graders", "input_items",
    "invites", "items", "jobs", "latest", "me", "messages",
    "output_items", "parts", "pause", "permissions", "predictions", "results",
    "resume", "runs", "search", "sessions", "steps", "submit_tool_outputs",
    "transcription_sessions", "usage_report", "versions", "workspaces",
})  # fmt: skip
"""Segments below a resource that are words of the API; all others are ids."""


@cache
def _index_operation_paths(provider: Provider) -> dict[str, OperationMatchedByPath]:
    """Return the provider's plain paths: with each of its versions, and with a missing or wrong version."""
    found: dict[str, OperationMatchedByPath] = {}
    first: dict[str, str] = {}
    """Paths of one operation are distinct requests: Google's models, and those of its OpenAI dialect."""
    for tail, operation in provider.operations.items():
        other = "" if first.setdefault(operation.name, tail) == tail else tail
        for version in ("", "/v1"):
            own = OperationMatchedByPath(operation, operation.name, len(version), provider.versions[0], variant=other)
            found[version + tail] = own
    for tail, operation in provider.operations.items():  # second, so that correct paths take precedence
        other = "" if first[operation.name] == tail else tail
        for version in provider.versions:
            variant = _get_unusual_version(provider, version) + other
            found[version + tail] = OperationMatchedByPath(operation, operation.name, variant=variant)
    return found


def _get_unusual_version(provider: Provider, version: str) -> str:
    return "" if version == provider.versions[0] or version in provider.alike else version


def _find_below_resource(provider: Provider, path: str) -> OperationMatchedByPath | None:
    table = _index_operation_paths(provider)
    end = len(path)
    while (end := path.rfind("/", 1, end)) > 0:
        if (above := table.get(path[:end])) is None or not above.operation.tree:
            continue
        rest = path[end + 1 :]
        if above.name == "models":
            return above._replace(model=rest)
        ids = tuple(part for part in rest.split("/") if part and part not in _WORDS)
        return above._replace(name=f"{above.name}/{rest}", ids=ids)
    return None


def _find_azure_path(provider: Provider, path: str) -> OperationMatchedByPath | None:
    if (match := _DEPLOYMENT.match(path)) is None:
        return _find_below_resource(provider, path)
    insert = "" if match["base"] else "/openai"
    if (operation := provider.operations.get(match["tail"])) is None:
        return None
    return OperationMatchedByPath(operation, operation.name, 0, insert, match["model"], variant=match["more"] or "")


def _find_operation_by_model_action(provider: Provider, path: str) -> OperationMatchedByPath | None:
    if (match := _ACTION.match(path)) is None or (operation := provider.methods.get(match["action"])) is None:
        return _find_below_resource(provider, path)
    return OperationMatchedByPath(operation, operation.name, model=match["model"], stream="stream" in match["action"])


def _find_google_operation(provider: Provider, path: str) -> OperationMatchedByPath | None:
    if (upload := _UPLOAD.match(path)) is not None:
        below = upload.end()
        found = _index_operation_paths(provider).get(path[below:]) or _find_below_resource(provider, path[below:])
        return found and found._replace(name=f"{path[1:below]}.{found.name}", drop=0, insert="")
    if (match := _METHOD.match(path)) is None:
        if (compat := _VERTEX_OPENAI.match(path)) is None:
            return _find_below_resource(provider, path)
        name = compat["what"].replace("/", ".")
        model = None if compat["model"] == "openapi" else compat["model"]
        version, project = _get_unusual_version(provider, compat["version"]), compat["project"] if model else ""
        variant = " ".join(filter(None, (version, project, compat["location"])))
        return OperationMatchedByPath(ApiOperation(name, "openai"), name, model=model, variant=variant)
    insert = "" if match["version"] else provider.versions[0]
    bare = match["method"].removeprefix("stream")
    method = bare[:1].lower() + bare[1:]
    stream = bare != match["method"]
    # Tuned models and endpoints differ from models of the same name.
    model = match["model"] if match["kind"] == "models" else f"{match['kind']}/{match['model']}"
    if method == "rawPredict":
        operation = provider_table.RAW_PREDICT.get(match["publisher"], ApiOperation("rawPredict", "generic"))
    elif method in provider.methods:
        operation = provider.methods[method]
    else:
        return None
    return OperationMatchedByPath(
        operation, operation.name, 0, insert, model, stream, variant=_format_google_qualifiers(provider, match)
    )


def _format_google_qualifiers(provider: Provider, match: re.Match[str]) -> str:
    """Return other parts of the path that select the answer: the project only if the model belongs to it."""
    version, publisher = match["version"], match["publisher"]
    more = (
        _get_unusual_version(provider, f"/{version}") if version else "",
        f"projects/{match['project']}" if match["project"] and match["kind"] != "models" else "",
        f"locations/{match['location']}" if match["location"] else "",
        f"publishers/{publisher}" if publisher not in (None, "google") else "",
    )
    return " ".join(filter(None, more))


_PATTERNS: dict[str, Callable[[Provider, str], OperationMatchedByPath | None]] = {
    "": _find_below_resource,
    "deployments": _find_azure_path,
    "actions": _find_operation_by_model_action,
    "google": _find_google_operation,
}


def find_llm_operation(provider: Provider, path: str) -> OperationMatchedByPath | None:
    if (found := _index_operation_paths(provider).get(path)) is not None:
        return found
    plain = unquote(path).rstrip("/") or "/"
    if plain.startswith(provider.telemetry):
        return OperationMatchedByPath(ApiOperation(plain, not_llm=True), plain)
    return _index_operation_paths(provider).get(plain) or _PATTERNS[provider.pattern](provider, plain)


class _BaseUrl(NamedTuple):
    origin: str
    path: str


@lru_cache(maxsize=256)
def _split_origin_and_path(url: str) -> _BaseUrl:
    parts = urlsplit(url)
    return _BaseUrl(f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/"))


def find_unset_recorded_upstream(route: RoutedRequest, recorded: str, named: Mapping[str, str]) -> dict[str, str]:
    """Return a recording's upstream, by name, if it is no host of its provider's and none is `named` for that."""
    provider, host = route.provider, urlsplit(recorded).hostname
    if not host or recorded == route.upstream or provider.name in named or provider.name not in PROVIDERS:
        return {}
    return {} if provider_of_host(host, None) is PROVIDERS[provider.name] else {provider.name: recorded}


@lru_cache(maxsize=256)
def _get_base_path_repeated_prefixes(provider: Provider, url: str) -> tuple[str, tuple[str, ...]]:
    """Return a base URL's path, and prefixes of a target; the first that matches is already part of that path."""
    if not (path := _split_origin_and_path(url).path):
        return "", ()
    versions = tuple(sorted((v for v in provider.versions if v), key=len, reverse=True))
    # Base URLs are written with and without the version (one SDK's ends in /v1, another's for the same provider does
    # not): if a base URL ends in a version, the version is removed from the target.
    if path.endswith(versions) or _VERSION.fullmatch(path, path.rindex("/")):
        return path, (*versions, "/v1")
    own = _split_origin_and_path(provider.upstream).path if provider.upstream else ""
    return path, (own,) if own else ()


def build_upstream_origin_and_target(provider: Provider, url: str, target: str, headers: Headers) -> tuple[str, str]:
    if not url:
        return _build_default_origin(provider, target, headers), target
    path, strip = _get_base_path_repeated_prefixes(provider, url)
    if not path and _has_unversioned_api(url) and target.startswith("/v1/"):
        return _split_origin_and_path(url).origin, target[3:]
    for prefix in strip:
        if target.startswith(prefix) and target[len(prefix) : len(prefix) + 1] in ("/", "?", ""):
            return _split_origin_and_path(url).origin, path + target[len(prefix) :]
    return _split_origin_and_path(url).origin, path + target


@lru_cache(maxsize=256)
def _has_unversioned_api(url: str) -> bool:
    """Return whether this is the host of a provider whose API has no version in its path (Perplexity)."""
    parts = urlsplit(url)
    provider = provider_of_host(parts.hostname or "", None)
    return provider is not None and provider.family == "openai" and provider.versions[0] == "" and not parts.port


def _build_default_origin(provider: Provider, target: str, headers: Headers) -> str:
    if not provider.upstream:
        return ""
    if provider.name == "vertex":
        params = unquote(header(headers, "x-goog-request-params") or "")  # in gRPC the path has no location
        match = _LOCATION.search(target) or _LOCATION.search(params)
        if match and match[1] != "global":
            return f"https://{match[1]}-aiplatform.googleapis.com"
    signed = provider.credentials is provider_table.SIGNED_QUERY
    if signed and (match := _REGION.search(header(headers, "authorization") or "")):
        return _split_origin_and_path(provider.upstream).origin.replace(_AWS_REGION, match[1])
    return _split_origin_and_path(provider.upstream).origin
