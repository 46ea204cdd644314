"""What all Python drivers share: run the named cases, print one JSON object for each.

Environment: CASES (names with commas between; empty: all; ``plain+`` asks once more), TWIST (text put behind every prompt of a case that
is named with a star at its end, ``plain*``, for a request that was never recorded), ANNOUNCE (a URL that gets each case's name, as it was
given, before it runs; what stands behind an at sign, ``plain@http-429``, is for whoever listens there), and the base URLs and keys that the SDK itself reads. A driver runs in its SDK's environment and imports nothing of
llmproxy. A line is {"case", "seconds", "result"} or {"case", "seconds", "error": {"class", "message", "status"}}.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
import uuid
from pathlib import Path

DIALOGUE = json.loads(Path(__file__).resolve().parents[1].joinpath("dialogue.json").read_text("utf-8"))
TOOL_RESULT = "twelve degrees"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


running = ""
"""Name of the case that runs, as it was given."""


def prompt(case: str, turn: int = 0) -> str:
    """User text of a case."""
    return DIALOGUE[case][turn]["user"] + (os.environ["TWIST"] if running.endswith("*") else "")


def key(name: str) -> str:
    """Key from the environment; a placeholder in replay, because SDKs refuse to start without one."""
    return os.environ.get(name) or "unused"


def plain(value):
    """Turn a result into JSON values; HTTP details that no provider sent are left out."""
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json", warnings=False))
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k != "sdk_http_response"}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def status_of(error):
    """HTTP status that an SDK's exception carries, under whichever name."""
    for name in ("status_code", "code", "http_status"):
        status = getattr(error, name, None)
        if isinstance(status, int):
            return status
    return None


def fresh():
    """Header fields as tracing and retrying clients add them: random for each request, and of no matter to the answer."""
    trace, span = uuid.uuid4().hex, uuid.uuid4().hex[:16]
    return {
        "traceparent": f"00-{trace}-{span}-01",
        "baggage": f"sentry-trace_id={trace}",
        "sentry-trace": f"{trace}-{span}-1",
        "x-request-id": str(uuid.uuid4()),
        "idempotency-key": str(uuid.uuid4()),
    }


def trace(owner, name):
    """Let every request that goes out carry them, whichever SDK made it."""
    send = getattr(owner, name)

    def traced(self, request, *args, **more):
        for field, value in fresh().items():
            request.headers[field] = value
        return send(self, request, *args, **more)

    setattr(owner, name, traced)


def trace_all() -> None:
    """Find the HTTP clients that the SDKs of this process have imported."""
    for library, names in (("httpx", ("Client", "AsyncClient")), ("httpx2", ("Client", "AsyncClient"))):
        for name in names if library in sys.modules else ():
            trace(getattr(sys.modules[library], name), "send")
    if (session := sys.modules.get("botocore.httpsession")) is not None:
        trace(session.URLLib3Session, "send")
    if (aiohttp := sys.modules.get("aiohttp")) is not None:
        ask = aiohttp.ClientSession._request  # noqa: SLF001 - every method of it goes through here

        def traced(self, method, url, **more):
            return ask(self, method, url, **{**more, "headers": {**(more.get("headers") or {}), **fresh()}})

        aiohttp.ClientSession._request = traced  # noqa: SLF001


def announce(name) -> None:
    """Tell whoever wants to know which case comes next, and wait for the answer."""
    if url := os.environ.get("ANNOUNCE"):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, name.encode(), timeout=30).close()


def main(cases) -> None:
    """Run the cases that CASES names."""
    global running
    trace_all()
    for name in [name for name in os.environ.get("CASES", "").split(",") if name] or list(cases):
        announce(name)
        running, begun = name, time.monotonic()
        try:
            line = {"result": plain(cases[name.partition("@")[0].rstrip("*+")]())}
        except Exception as error:
            line = {"error": {"class": type(error).__name__, "message": str(error), "status": status_of(error)}}
        print(json.dumps({"case": name, "seconds": round(time.monotonic() - begun, 3), **line}), flush=True)
    sys.stdout.flush()
    # Some SDKs keep threads that would hold up the end.
    os._exit(0)
