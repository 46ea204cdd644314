"""Where a tool's result came from: the agent's machine, or a page, a service, another host.

What a tool on this machine makes varies by the run. What came from elsewhere varies because the world did: a price, a commit, a headline is a part
of what is asked, until somebody says otherwise. Nobody can know it of every tool; its name and its command tell of most.
"""

from __future__ import annotations

import re

from llmproxy.late import late

_TOOLS = late(r"^mcp_|web|brows|http|url|fetch|crawl|scrape|download|online", re.IGNORECASE)
_PROGRAMS = late(
    r"\b(?:ssh|scp|rsync|sftp|gh|glab|aws|gcloud|kubectl|psql|mysql|mongosh|redis-cli|dig|nslookup|ping)\b"
    r"|\bgit\s+(?:fetch|pull|clone|push|ls-remote)\b|\b(?:curl|wget|https?)\b"
)
_HERE = late(r"(?:https?://)?(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::\d+)?[^\s\"'|;&]*")
_ASKS = late(r"\b(?:curl|wget)\b[^|;&]*\x00[^|;&]*")


def is_foreign(tool: str, arguments: str = "") -> bool:
    """Tell whether a call's result says what others know; `arguments` are the call's in JSON, or empty."""
    if _TOOLS.search(tool):
        return True
    at_home = _ASKS.sub("", _HERE.sub("\x00", arguments))  # a server of this machine is asked here
    return _PROGRAMS.search(at_home) is not None
