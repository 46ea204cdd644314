"""Post events to a LangWatch endpoint. Without LANGWATCH_ENDPOINT there is nothing to do, and nothing is said about it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from urllib.parse import urlsplit

from llmproxy.errors import UpstreamError
from llmproxy.report.langwatch.events import ScenarioEvent

_TIMEOUT = 10.0
_GOOD = range(200, 300)
_log = logging.getLogger(__name__)


class EventReporter:
    """Knows an endpoint and how to speak to it."""

    def __init__(self, endpoint: str | None = None, api_key: str | None = None) -> None:
        """Post to `endpoint`, else to LANGWATCH_ENDPOINT; the key is `api_key`, else LANGWATCH_API_KEY."""
        self.endpoint = (endpoint or os.environ.get("LANGWATCH_ENDPOINT") or "").rstrip("/")
        self.api_key = api_key or os.environ.get("LANGWATCH_API_KEY", "")

    @property
    def active(self) -> bool:
        return bool(self.endpoint)

    async def post_event(self, event: ScenarioEvent) -> None:
        """Post one event. Raises UpstreamError if the endpoint does not take it."""
        if self.endpoint:
            await asyncio.to_thread(self._post, event.to_dict())

    def _post(self, body: object) -> None:
        import http.client

        parts = urlsplit(self.endpoint)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {"Content-Type": "application/json", "X-Auth-Token": self.api_key}
        try:
            wire = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
            try:
                wire.request("POST", parts.path + "/api/scenario-events", json.dumps(body, default=str), headers)
                answer = wire.getresponse()
                status, text = answer.status, answer.read(300)
            finally:
                wire.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UpstreamError(
                f"{self.endpoint} did not take an event: {str(error) or type(error).__name__}"
            ) from error
        if status not in _GOOD:
            raise UpstreamError(f"{self.endpoint} answered {status} to an event: {text.decode(errors='replace')}")
        _log.debug("event.posted %s", status)
