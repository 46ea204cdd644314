"""Base-URL variables that are set when we start, and are not ours, become their provider's upstream.

A company that set OPENAI_BASE_URL to its gateway also set a key for that gateway: it must never be sent to the public host.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmproxy.core.providers.hosts import upstreams_from_env
from llmproxy.core.providers.table import PROVIDERS
from llmproxy.settings import Loaded


def from_environment(loaded: Loaded, env: Mapping[str, str]) -> Loaded:
    """Add the providers whose base URL the environment sets; what was set by option stays."""
    ours = f"{loaded.settings.host}:{loaded.settings.port}"
    found = {}
    for name, url in upstreams_from_env(env, ours).items():
        variables = (variable for variable in PROVIDERS[name].env if variable in env)
        setter = next(one for one in variables if upstreams_from_env({one: env[one]}, ours).get(name) == url)
        found[name] = (url, f"environment {setter}")
    return loaded.with_upstreams(found)
