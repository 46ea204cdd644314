"""`llmproxy run --live llm` as a user types it: an agent recorded with one model, then run with another one on the recorded tools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.provider import Call, Provider, Reply, Step
from tests.support import process
from tests.support.process import python
from tests.support.services import CountingService

AGENT = """
import json, os, sys, urllib.request, urllib.error
tools = sys.argv[1]

def post(url, body, **fields):
    sent = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **fields})
    try:
        return json.load(urllib.request.urlopen(sent))
    except urllib.error.HTTPError as error:
        return {"failed": error.code}

messages = [{"role": "user", "content": "pay"}]
while True:
    body = {"model": os.environ["MODEL"], "messages": messages}
    said = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]["message"]
    messages.append(said)
    if not said.get("tool_calls"):
        print(said["content"])
        break
    for call in said["tool_calls"]:
        got = post(f"http://{tools}/{call['function']['name']}", json.loads(call["function"]["arguments"]))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(got)})
"""


def policy(model: str, *calls: Call, last: str) -> list[Step]:
    """Return what a model does, call by call, whatever the tools say."""
    turns = [Reply(call=(call,)) for call in calls]
    return [
        Step(turn, model=model, results=n, tool_result="" if n else None)
        for n, turn in enumerate([*turns, Reply(last)])
    ]


OLD = policy("old", Call("invoices", {"amount": 7}), Call("mails", {"to": "ann"}), last="paid")
NEW = policy("new", Call("invoices", {"amount": 7}), Call("mails", {"to": "bob"}), last="all paid")


def llmproxy(folder: Path, provider: Provider, model: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        "XDG_DATA_HOME": str(folder / "data"), "NO_PROXY": "127.0.0.1,localhost", "MODEL": model,
        "OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "sk-made-up-key-of-a-test",
    }  # fmt: skip
    return process.llmproxy(*words, cwd=folder, env=env)


def test_another_model_pays_nothing(tmp_path: Path) -> None:
    """Its own calls are refused, the recorded ones served, the service hears of none; what it did otherwise is told, with its rate."""
    (tmp_path / "agent.py").write_text(AGENT)
    with CountingService() as service, Provider([*OLD, *NEW, *NEW], ordered=False) as provider:
        tool = ("--record-host", "127.0.0.1", "--", python(), "agent.py", service.host)
        refused = llmproxy(tmp_path, provider, "new", "run", "--live", "llm", *tool)
        assert (refused.returncode, provider.requests) == (3, [])
        assert "Record it first: llmproxy run --mode record" in refused.stderr
        assert llmproxy(tmp_path, provider, "old", "run", "--mode", "record", *tool).stdout == "paid\n"
        asked = list(service.asked)
        made = llmproxy(tmp_path, provider, "new", "run", "--live", "llm", "--runs", "2", "--json", "out.json", *tool)
        assert service.asked == asked
    assert (made.stdout, made.returncode) == ("all paid\n" * 2, 0), made.stderr
    told = json.loads((tmp_path / "out.json").read_text())["comparison"]
    changes = {(row["what"], row["tool"], row["place"], row["old"], row["new"], row["runs"]) for row in told["changes"]}
    assert changes == {("arguments", "mails", "$.to", '"ann"', '"bob"', 2), ("answer", "", "", "paid", "all paid", 2)}
    assert told["unknown_tools"] == {f"POST {service.host}/mails": 2}
    assert "2 of 2 (34% to 100%) other arguments of mails: $.to" in made.stderr
    assert "kept in default@live-1 to default@live-2, tools and services served from default" in made.stderr


def test_what_makes_no_sense_is_said(tmp_path: Path) -> None:
    """Modes that record, faults, repeats of a replay, unknown words."""
    with Provider([]) as provider:
        for words, said in (
            (("--live", "models"), "'models' is not one of llm, mcp, http"),
            (("--live", "llm", "--unknown-tool", "no"), "'no' is not one of error, fail, live"),
            (("--runs", "2"), "--runs needs --live"),
        ):
            done = llmproxy(tmp_path, provider, "m", "run", *words, "--", python(), "-c", "")
            assert (done.returncode, said in done.stderr) == (2, True), done.stderr
        assert list(tmp_path.iterdir()) == []
