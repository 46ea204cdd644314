"""What is said after a replayed agent, and the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmproxy.cli.parts.options import CliRunArguments, RunCommandOptions, load_settings
from llmproxy.cli.replay import ReplayCommandReporter
from llmproxy.client.control import ControlApiClient
from llmproxy.client.proxy_process import ProxyHandle
from llmproxy.client.session_reports import SessionReport

FORK = {"cassette": "c@fork-1", "step": 2, "why": "because", "path": None}


def ending(tmp_path: Path, **members: Any) -> ReplayCommandReporter:
    said = {
        "tools": [], "answers": [], "seen": [], "requests": 1, "llm_calls": 1, "parent": "c", "parent_sample": 1,
        "fork": None,
    }  # fmt: skip
    said |= members.pop("overrides", {})
    report = SessionReport(name="c", cassette="c", overrides=said, **members)
    loaded = load_settings({"store": tmp_path / "x.db"})
    url = "http://127.0.0.1:1"
    return ReplayCommandReporter(
        ProxyHandle(url, ControlApiClient(url), None), "c", loaded, ("agent", "a b"), live=True, report=report
    )


def tool(*, used: int, inherited: bool = False) -> dict[str, Any]:
    return {"tool": "t", "nth": 2, "result": "5", "used": used, "inherited": inherited}


@pytest.mark.parametrize(("members", "child", "code"), [
    ({}, 0, 0),
    ({}, 7, 7),
    ({"misses": 1}, 0, 4),
    ({"misses": 1, "overrides": {"tools": [tool(used=0)]}}, 1, 4),
    ({"overrides": {"tools": [tool(used=0)]}}, 0, 2),
    ({"overrides": {"tools": [tool(used=0)]}}, 130, 130),
    ({"overrides": {"tools": [tool(used=0, inherited=True)]}}, 0, 0),
    ({"failed": 1}, 0, 3),
    ({"failed": 1}, 5, 5),
])  # fmt: skip
def test_the_exit_code_is_the_worst_that_happened(
    tmp_path: Path, members: dict[str, Any], child: int, code: int
) -> None:
    """A miss, an override that matched nothing, a lost answer; else the agent's own."""
    assert ending(tmp_path, **members).print_end(child, 1.0) == code


def test_a_fork_says_how_it_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command as a shell takes it, and with its servers of tools, which would run for real without."""
    end = ending(tmp_path, recorded=2, overrides={"fork": FORK})
    end.start = CliRunArguments({}, (), RunCommandOptions(mcp_config="a b.json")).append_flags_to_command(
        "llmproxy replay"
    )
    assert end.print_end(0, 1.0) == 0
    said = capsys.readouterr().err
    assert "forked from c at request 2: because" in said
    begun = "llmproxy replay --mcp-config 'a b.json' --cassette c@fork-1"
    assert f"{begun} --store {tmp_path / 'x.db'} -- agent 'a b'" in said


def test_a_proxy_that_is_gone_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing answers any more: that is no success."""
    end = ending(tmp_path)
    end.report = None
    end.close_session()
    assert end.print_end(0, 1.0) == 3
    assert "the proxy did not end the session" in capsys.readouterr().err
