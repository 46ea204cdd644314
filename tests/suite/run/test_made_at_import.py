"""An agent in this process whose client was made when its module was imported, as SDKs' clients mostly are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.provider import Provider, step
from tests.suite import rig
from tests.support import near

AGENT = """
import json, os, urllib.request

URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]


def answer(message):
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": message}]}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + KEY}
    with urllib.request.urlopen(urllib.request.Request(URL + "/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""
SUITE = """
name: at-import
agent: {{python: "{module}.py:answer"}}
scenarios:
  - id: case
    parametrize: [{{id: a, city: Oslo}}, {{id: b, city: Rome}}]
    steps: [{{chat: "hi from $city", response: {{contains: $city}}, usage: {{callCount: 1}}}}]
"""


def test_its_calls_pass_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the variables say outside: recorded, then replayed without a key; the environment is as it was."""
    for module in ("recorded_here", "replayed_here"):  # a module is imported once in a process
        (tmp_path / f"{module}.py").write_text(AGENT, encoding="utf-8")
    script = [step(say=f"hello {city}", contains=city) for city in ("Oslo", "Rome")]
    with Provider(script) as upstream, near("record", tmp_path / "x.db", upstreams={"openai": upstream.url}) as px:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{upstream.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
        found = rig.run(rig.cases_of(tmp_path, SUITE.format(module="recorded_here")), proxy=px.url, mode="record")
        assert found.statuses == ["passed", "passed"], found.why
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    with near("replay", tmp_path / "x.db") as px:
        found = rig.run(rig.cases_of(tmp_path, SUITE.format(module="replayed_here")), proxy=px.url)
        assert found.statuses == ["passed", "passed"], found.why
        # of many cases no bodies are kept
        ran = [each for runs in found.tested.runs.values() for each in runs]
        assert [(each.calls, each.latency is None) for each in ran] == [((), False)] * 2
    assert not {"OPENAI_BASE_URL", "OPENAI_API_KEY"} & {*os.environ}
