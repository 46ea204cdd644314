"""What a miss advises, typed as it is printed: the same port, the same upstream, the same folder, and nothing at the public host."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.provider import Provider, step
from tests.support.process import Process, clean_env, llmproxy
from tests.support.proxy import DIRECT, proxy

KEY = "sk-of-the-gateway"


def ask(port: int, text: str) -> tuple[int, Any]:
    """Ask the model once, with the gateway's key: (status, parsed answer)."""
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    head = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    connection.request("POST", "/v1/chat/completions", body, head)
    answer = connection.getresponse()
    status, said = answer.status, json.loads(answer.read())
    connection.close()
    return status, said


@pytest.mark.parametrize("how", ["flag", pytest.param("variable", marks=pytest.mark.slow), "gateway variable"])
def test_the_command_of_a_miss_records_what_was_missing(tmp_path: Path, how: str) -> None:
    """From a shell of its own, without the variables of the first: as printed, word for word."""
    with Provider([step(user="hi", say="hello", times=1)]) as provider:
        url = f"{provider.url}/v1"
        options = {"flag": ("--upstream", f"openai={url}"), "variable": (), "gateway variable": ()}[how]
        variables = {
            "flag": {},
            "variable": {"LLMPROXY_UPSTREAM": f"openai={url}"},
            "gateway variable": {"OPENAI_BASE_URL": url},
        }[how]
        store, files = tmp_path / "x y.db", tmp_path / "cass"
        files.mkdir()
        more = ("--cassette-dir", str(files), "--miss-status", "501", *options)
        with proxy("replay", store, options=more, env=variables) as px:
            port = px.port
            status, said = ask(port, "hi")
        assert (status, len(provider.requests)) == (501, 0)
        found = re.search(r"record what is missing, and then run the agent once: (.*)", said["error"]["message"])
        assert found is not None, said
        words = shlex.split(found[1])
        env = clean_env(
            {"PYTHONUNBUFFERED": "1"} | dict(word.split("=", 1) for word in words[: words.index("llmproxy")])
        )
        again = Process([sys.executable, "-m", *words[words.index("llmproxy") :]], tmp_path, "again", env)
        try:
            again.wait_until(lambda: "http://127.0.0.1" in again.stdout)
            with DIRECT.open(f"http://127.0.0.1:{port}/_llmproxy/health") as answer:
                assert json.loads(answer.read())["mode"] == "auto"
            assert ask(port, "hi")[0] == 200
        finally:
            again.end()
        assert [seen.header("authorization") for seen in provider.requests] == [f"Bearer {KEY}"]
        assert [path.suffix for path in files.iterdir()] == [".yaml"]
    assert "gateway" not in store.with_name("x y.db.state.db").read_bytes().decode("latin-1")


@pytest.mark.parametrize("command", [["learn", "trip"], ["replay", "--mode", "record", "--cassette", "trip"]])
def test_what_records_a_cassette_first_keeps_what_was_typed(tmp_path: Path, command: list[str]) -> None:
    """Where nothing is recorded the command that records it is named with the gateway, the port and the store."""
    typed = ["--store", "my x.db", "--port", "9123", "--upstream", "openai=http://127.0.0.1:9/v1"]
    said = llmproxy(*command, *typed, "--", "true", cwd=tmp_path, env={"CI": ""}).stderr
    found = re.search(r"llmproxy run --mode record (.*)", said)
    assert found is not None, said
    kept = shlex.split(found[1])
    assert kept[: kept.index("--")] == ["--cassette", "trip", *typed]
