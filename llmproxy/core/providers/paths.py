"""One provider's paths: what each of them asks for, and what the provider itself would see.

Plain paths are a dict, made once per provider from its operations and versions; a path with ids in it is found below
its resource, and the few that carry a model or a method in the path have a pattern each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple
from urllib.parse import unquote

from llmproxy.core.providers.table import RAW_PREDICT, Operation, Provider
from llmproxy.late import late


class FoundPath(NamedTuple):
    operation: Operation
    name: str
    drop: int = 0
    insert: str = ""
    """What the provider itself would see is `insert` and the path without its first `drop` characters."""
    model: str | None = None
    stream: bool | None = None
    ids: tuple[str, ...] = ()
    variant: str = ""
    """What else of the path chooses the answer: an API version that is not the provider's own, a location, a
    project."""


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
"""Segments below a resource that are words of the API; every other one is somebody's id."""


@cache
def _static(provider: Provider) -> dict[str, FoundPath]:
    """Return the provider's plain paths: under each of its versions, and under a version left out or wrong."""
    found: dict[str, FoundPath] = {}
    first: dict[
        str, str
    ] = {}  # two paths of one operation are two requests: Google's own models, and those of its OpenAI dialect
    for tail, operation in provider.operations.items():
        other = "" if first.setdefault(operation.name, tail) == tail else tail
        for version in ("", "/v1"):
            found[version + tail] = FoundPath(
                operation, operation.name, len(version), provider.versions[0], variant=other
            )
    for tail, operation in provider.operations.items():  # second, so that the true paths win
        other = "" if first[operation.name] == tail else tail
        for version in provider.versions:
            found[version + tail] = FoundPath(operation, operation.name, variant=_suffix(provider, version) + other)
    return found


def _suffix(provider: Provider, version: str) -> str:
    """Return a version that is not what the provider's first one is, else ""."""
    return "" if version == provider.versions[0] or version in provider.alike else version


def _tree(provider: Provider, path: str) -> FoundPath | None:
    """Find a path below a resource: ``/v1/files/file-1/content`` is ``files/file-1/content``."""
    table = _static(provider)
    end = len(path)
    while (end := path.rfind("/", 1, end)) > 0:
        above = table.get(path[:end])
        if above is None or not above.operation.tree:
            continue
        rest = path[end + 1 :]
        if above.name == "models":
            return above._replace(model=rest)
        ids = tuple(part for part in rest.split("/") if part and part not in _WORDS)
        return above._replace(name=f"{above.name}/{rest}", ids=ids)
    return None


def _deployments(provider: Provider, path: str) -> FoundPath | None:
    match = _DEPLOYMENT.match(path)
    if match is None:
        return _tree(provider, path)
    insert = "" if match["base"] else "/openai"
    tail = match["tail"]
    operation = provider.operations.get(tail)
    if operation is None:
        return None
    return FoundPath(operation, operation.name, 0, insert, match["model"], variant=match["more"] or "")


def _actions(provider: Provider, path: str) -> FoundPath | None:
    match = _ACTION.match(path)
    if match is None or (operation := provider.methods.get(match["action"])) is None:
        return _tree(provider, path)
    return FoundPath(operation, operation.name, model=match["model"], stream="stream" in match["action"])


def _google(provider: Provider, path: str) -> FoundPath | None:
    """Find ``/v1beta/models/M:method`` with any version or none, of both of Google's services."""
    upload = _UPLOAD.match(path)
    if upload is not None:
        below = upload.end()
        found = _static(provider).get(path[below:]) or _tree(provider, path[below:])
        return found and found._replace(name=f"{path[1:below]}.{found.name}", drop=0, insert="")
    match = _METHOD.match(path)
    if match is None:
        compat = _VERTEX_OPENAI.match(path)
        if compat is None:
            return _tree(provider, path)
        name = compat["what"].replace("/", ".")
        model = None if compat["model"] == "openapi" else compat["model"]
        more = (_suffix(provider, compat["version"]), "" if model is None else compat["project"], compat["location"])
        return FoundPath(Operation(name, "openai"), name, model=model, variant=" ".join(filter(None, more)))
    insert = "" if match["version"] else provider.versions[0]
    bare = match["method"].removeprefix("stream")
    method = bare[:1].lower() + bare[1:]
    stream = bare != match["method"]
    model = match["model"]
    if match["kind"] != "models":  # tuned models and endpoints are other things than models of the same name
        model = f"{match['kind']}/{model}"
    if method == "rawPredict":
        operation = RAW_PREDICT.get(match["publisher"], Operation("rawPredict", "generic"))
    elif method in provider.methods:
        operation = provider.methods[method]
    else:
        return None
    return FoundPath(operation, operation.name, 0, insert, model, stream, variant=_variant(provider, match))


def _variant(provider: Provider, match: re.Match[str]) -> str:
    """Return what else of ``/v1/projects/P/locations/L/publishers/O/models/M:method`` chooses: P only where a model is
    the project's own.
    """
    version, publisher = match["version"], match["publisher"]
    more = (
        _suffix(provider, f"/{version}") if version else "",
        f"projects/{match['project']}" if match["project"] and match["kind"] != "models" else "",
        f"locations/{match['location']}" if match["location"] else "",
        f"publishers/{publisher}" if publisher not in (None, "google") else "",
    )
    return " ".join(filter(None, more))


_PATTERNS: dict[str, Callable[[Provider, str], FoundPath | None]] = {
    "": _tree,
    "deployments": _deployments,
    "actions": _actions,
    "google": _google,
}
"""By `Provider.pattern`."""


def find(provider: Provider, path: str) -> FoundPath | None:
    """Return what a path (of this provider, prefix gone) means, or None."""
    found = _static(provider).get(path)
    if found is not None:
        return found
    plain = unquote(path) if "%" in path else path
    plain = plain.rstrip("/") or "/"
    if plain.startswith(provider.telemetry):
        return FoundPath(Operation(plain, not_llm=True), plain)
    return _static(provider).get(plain) or _PATTERNS[provider.pattern](provider, plain)
