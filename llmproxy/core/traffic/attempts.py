"""How often a client had sent a request before, as the SDKs themselves say it in a header."""

from __future__ import annotations

import re

from llmproxy.core.traffic.interaction import Headers, header

_COUNT = re.compile(r"(\d{1,4})\Z", re.ASCII)
_AWS = re.compile(r"(?:.*;)?\s*attempt=(\d{1,4})\b", re.ASCII)
ATTEMPTS = (("x-stainless-retry-count", _COUNT, 0), ("amz-sdk-request", _AWS, 1))
"""Header, its form, and what it says the first time: OpenAI's and Anthropic's SDKs count from 0, the ones of AWS from 1."""


def attempt_of(headers: Headers) -> int | None:
    """Return 0 for a request that is sent for the first time, 1 for its first repetition ...; None if its client does not say."""
    for name, form, first in ATTEMPTS:
        said = header(headers, name)
        match = form.match(said.strip()) if said is not None else None
        if match is not None:
            return max(int(match[1]) - first, 0)
    return None
