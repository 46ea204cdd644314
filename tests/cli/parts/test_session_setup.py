"""What is opened for an agent that is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmproxy.cli.parts.session_setup import open_session
from llmproxy.client.control import CONFLICT, ControlApiClient, ControlError
from llmproxy.client.proxy_process import ProxyHandle
from llmproxy.client.session_reports import SessionReport
from llmproxy.errors import LLMProxyError, SettingsError
from llmproxy.settings import load


@pytest.mark.parametrize(("run", "kind"), [("default", SettingsError), ("other", ControlError), (None, ControlError)])
def test_a_run_within_a_run_is_told_so(run: str | None, kind: type[LLMProxyError], tmp_path: Path) -> None:
    """It has the outer one's session already; any other session that is open is somebody else's."""

    class Busy(ControlApiClient):
        def open_session(self, name: str, **_: Any) -> SessionReport:
            raise ControlError(f"session {name!r} is open already.", status=CONFLICT)

    url = "http://127.0.0.1:9"
    env = {} if run is None else {"LLMPROXY_RUN": run}
    with pytest.raises(LLMProxyError) as error:
        open_session(ProxyHandle(url, Busy(url), None), load({}, {}, tmp_path), env)
    assert type(error.value) is kind
    assert ("--cassette NAME" in (error.value.hint or "")) is (kind is SettingsError)
