"""How a provider says that it failed, in its own words: for injected faults.

`error_shapes` says errors of ours; what stands here is what the providers send, down to the codes by which SDKs choose
an exception and decide to try again. Sources: the providers' error references and recorded answers, read 2026-07.

How many calls a provider may get in a while (`--rate openai=60/min`), kept by waiting: no window of that length ever
sees more calls go.

    pace = Pace({"openai": "60/min", "*": "5/s"}, clock)
    pace.take("openai")     -> 0.0: go now; 12.5: go in 12.5 s. It is counted at once, so whoever asks next waits for a
                            later moment.

A window that slides, not one that begins anew with each minute: a provider counts from whenever it likes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from llmproxy.core.providers.table import Family
    from llmproxy.core.traffic.interaction import Headers


from collections import deque

from llmproxy.core.providers.table import HTTP_PREFIX
from llmproxy.values import ANY_PROVIDER, calls_and_seconds

REASONS = {
    400: "Bad Request", 429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway",
    503: "Service Unavailable", 529: "Overloaded",
}  # fmt: skip
_JSON: Headers = (("content-type", "application/json"),)
_HTML: Headers = (("content-type", "text/html; charset=UTF-8"),)
GATEWAY = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n"
    b"<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
)
"""What stands before a provider says 502, whoever it is: no JSON."""


class RepeatedRequest(NamedTuple):
    """Of the request, what an error's text repeats."""

    model: str = ""
    retry_after: float = 0
    """Seconds."""


Said = tuple[Mapping[str, Any], "Headers"]
"""JSON body, header fields."""


_RPM = (
    "Rate limit reached for {model} on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in "
    "{wait:g}s. "
    "Visit https://platform.openai.com/account/rate-limits to learn more."
)


def _openai(status: int, asked: RepeatedRequest) -> Said:
    busy = "The engine is currently overloaded, please try again later."
    text, kind, code = {
        429: (
            _RPM.format(model=asked.model or "this model", wait=asked.retry_after),
            "requests",
            "rate_limit_exceeded",
        ),
        503: (busy, "service_unavailable_error", None),
        529: (busy, "overloaded_error", None),
    }.get(status, ("The server had an error while processing your request. Sorry about that!", "server_error", None))
    headers: Headers = (("retry-after-ms", f"{asked.retry_after * 1000:.0f}"),) if status == 429 else ()
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}, headers


def _anthropic(status: int, _asked: RepeatedRequest) -> Said:
    kind, text = {
        429: (
            "rate_limit_error",
            "This request would exceed your organization's rate limit of 50 requests per minute.",
        ),
        529: ("overloaded_error", "Overloaded"),
    }.get(status, ("api_error", "Internal server error"))
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}, ()


def _gemini(status: int, asked: RepeatedRequest) -> Said:
    name, text = {
        429: ("RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."),
        503: ("UNAVAILABLE", "The model is overloaded. Please try again later."),
        529: ("UNAVAILABLE", "The model is overloaded. Please try again later."),
    }.get(status, ("INTERNAL", ("An internal error has occurred. Please retry or report in "
    "https://developers.generativeai.google/guide/troubleshooting")))  # fmt: skip
    error: dict[str, Any] = {"code": status, "message": text, "status": name}
    if status == 429:
        retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{asked.retry_after:g}s"}
        error["details"] = [retry]
    return {"error": error}, ()


def _bedrock(status: int, _asked: RepeatedRequest) -> Said:
    kind, text = {
        429: ("ThrottlingException", "Too many requests, please wait before trying again."),
        503: ("ServiceUnavailableException", "Bedrock is unable to process your request."),
        529: ("ServiceUnavailableException", "Bedrock is unable to process your request."),
    }.get(status, ("InternalServerException", ("The system encountered an unexpected error during processing. Try your "
    "request again.")))  # fmt: skip
    return {"message": text}, (("x-amzn-errortype", f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"),)


def _ollama(status: int, _asked: RepeatedRequest) -> Said:
    busy = "server busy, please try again.  maximum pending requests exceeded"
    return {"error": busy if status in (429, 503, 529) else "llama runner process has terminated: exit status 2"}, ()


def _cohere(status: int, _asked: RepeatedRequest) -> Said:
    limited = "You are using a Trial key, which is limited to 20 API calls / minute."
    return {
        "id": "4f21b6ce-9a8e-4f9d-93f5-2c1ad7b8a1f3",
        "message": limited if status == 429 else "internal server error",
    }, ()


_FAMILIES: Mapping[Family, Callable[[int, RepeatedRequest], Said]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
    "ollama": _ollama,
    "cohere": _cohere,
    "generic": _openai,
    "http": _openai,
}


def write_failure(family: Family, status: int, asked: RepeatedRequest) -> tuple[Headers, bytes]:
    """Return header fields and body in which a provider of this family says `status`: 429, 500, 502, 503 or 529."""
    if status == 502:
        return _HTML, GATEWAY
    value, headers = _FAMILIES[family](status, asked)
    wait: Headers = (("retry-after", str(math.ceil(asked.retry_after))),) if status == 429 else ()
    return (*_JSON, *headers, *wait), json.dumps(value).encode()


class Pace:
    """Counts the calls of each provider that has a rate. One thread at a time."""

    def __init__(self, rates: Mapping[str, str], clock: Callable[[], float], *, since: float = -math.inf) -> None:
        """Count from now on.

        `rates` by provider, as `values.read_rates` makes them. `since`: a moment at which as many calls as may go are
        taken to have gone, since whoever counted before is gone.
        """
        self._rates, self._clock = dict(rates), clock
        self._since = since
        self._went: dict[str, deque[float]] = {}

    def rate(self, provider: str, *, model: bool) -> str:
        """Return the rate that holds for a provider, empty if none does; what is said of all holds for models."""
        named = self._rates.get(provider) or self._rates.get(provider.removeprefix(HTTP_PREFIX))
        return named or (self._rates.get(ANY_PROVIDER, "") if model else "")

    def take(self, provider: str, *, model: bool = True) -> float:
        """Count one call, and return the seconds until it may go."""
        rate = self.rate(provider, model=model)
        if not rate:
            return 0.0
        calls, seconds = calls_and_seconds(rate)
        if provider not in self._went:
            self._went[provider] = deque([self._since] * calls, maxlen=calls)
        went, now = self._went[provider], self._clock()
        at = max(now, went[0] + seconds)
        went.append(at)
        return at - now
