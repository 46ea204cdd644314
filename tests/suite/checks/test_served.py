"""A suite that asserts on what a server of tools really got: recorded, replayed with the server dead, and twisted by its agent."""

from __future__ import annotations

from pathlib import Path

from tests.mitm.test_mcp_faults import tools
from tests.provider import Provider, step
from tests.suite import rig
from tests.support import near

AGENT = """
import json, os, urllib.request

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", "authorization": "Bearer x"})
    with OPENER.open(request, timeout=60) as answer:
        return json.load(answer)

def answer(message):
    base = os.environ["OPENAI_BASE_URL"]
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": message.split(": ")[-1]}]}
    said = post(base + "/chat/completions", body)["choices"][0]["message"]
    for call in said.get("tool_calls") or []:
        arguments = json.loads(call["function"]["arguments"])
        if message.startswith("twist"):
            arguments["text"] = arguments["text"].upper()
        params = {"name": call["function"]["name"].rpartition("__")[2], "arguments": arguments}
        post(base.removesuffix("/v1") + "/tools/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    return "done"
"""
CALL = step(user="say it", results=0, call=[{"name": "mcp__t__echo", "arguments": {"text": "milk"}}], times=None)


def run(folder: Path, url: str, line: str, mode: str = "auto") -> rig.Result:
    (folder / "an_agent.py").write_text(AGENT)
    text = (
        f"name: served\nagent: {{python: 'an_agent.py:answer'}}\nscenarios:\n  - id: one\n    steps:\n      - {line}\n"
    )
    return rig.run(rig.cases_of(folder, text), proxy=url, mode=mode)


def test_what_a_server_got_is_asserted_recorded_and_replayed(tmp_path: Path) -> None:
    """A step passes on what the server got and returned, in replay too, and fails on anything else; where nothing was seen it is an error."""
    good = "{chat: say it, tools: {mcp__t__echo: 1}, serverTools: {echo: {count: 1, input: {text: milk}, output: {contains: milk}, error: false}}, serversAsAsked: true}"
    store = tmp_path / "x.db"
    with (
        tools() as server,
        Provider([CALL], ordered=False, check=False) as p,
        near("auto", store, upstreams={"openai": p.url, "tools": server.url}) as px,
    ):
        first = run(tmp_path, px.url, good)
        assert first.statuses == ["passed"], first.told.finished
        told = server.told["tools/call"]
        replayed = run(tmp_path, px.url, good)
        assert (replayed.statuses, server.told["tools/call"], told) == (["passed"], 1, 1), replayed.why
        wrong = run(tmp_path, px.url, good.replace("{text: milk}", "{text: tea}"))
        assert (wrong.statuses, [each.name for each in wrong.told.wrong]) == (["failed"], ["serverTools.echo.input"])
        twisted = run(tmp_path, px.url, '{chat: "twist: say it", serverTools: {echo: 1}, serversAsAsked: true}')
        assert (twisted.statuses, [each.name for each in twisted.told.wrong]) == (["failed"], ["serversAsAsked"])
        assert 'a model asked for mcp__t__echo({"text": "milk"})' in twisted.why
        said = run(tmp_path, px.url, '{chat: "twist: say it", tools: {mcp__t__echo: 1}}')
        assert said.statuses == ["passed"]
        assert 'and its server got echo({"text": "MILK"})' in "".join(said.told.finished[0].labels)
    with Provider([step(user="hi", say="hello", times=None)], check=False) as p:
        with near("auto", tmp_path / "y.db", upstreams={"openai": p.url}) as px:
            nothing = run(tmp_path, px.url, "{chat: hi, serverTools: {echo: 0}}")
        assert (nothing.statuses, "no server of tools was seen" in nothing.why) == (["environment_error"], True)
