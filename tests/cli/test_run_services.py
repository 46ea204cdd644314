"""`llmproxy run --record-host` as a user types it: a tool's service recorded once, and dead afterwards."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support import process
from tests.support.process import python
from tests.support.services import CountingService

TOOL = """
import json, sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"content-type": "application/json"})
try:
    print(urllib.request.urlopen(request).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


def llmproxy(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"XDG_DATA_HOME": str(folder / "data"), "NO_PROXY": "127.0.0.1,localhost"}
    return process.llmproxy(*words, cwd=folder, env=env)


def test_a_post_of_a_tool_is_done_once(tmp_path: Path) -> None:
    """The service hears of it while it is recorded, and never again; another amount is refused by name, and the channel is told."""
    with CountingService() as service:
        url = f"http://{service.host}/invoices"
        tool = ("run", "--record-host", "127.0.0.1", "--", python(), "-c", TOOL, url)
        made = llmproxy(tmp_path, *tool[:1], "--mode", "record", *tool[1:], '{"amount": 7}')
        assert json.loads(made.stdout)["number"] == 1, made.stderr
        again = llmproxy(tmp_path, *tool, '{"amount": 7}')
        other = llmproxy(tmp_path, *tool, '{"amount": 8}')
        assert len(service.asked) == 1
    assert (again.stdout, again.returncode) == (made.stdout, 0)
    assert "1 hit" in again.stderr
    assert other.stdout.startswith("501 ")
    assert f"POST http:{service.host} /invoices" in other.stdout
    listed = json.loads(llmproxy(tmp_path, "ls", "--channel", "http", "--json").stdout)
    assert [(row["channel"], row["method"]) for row in listed["interactions"]] == [("http", "POST")]
    assert json.loads(llmproxy(tmp_path, "ls", "--channel", "llm", "--json").stdout)["interactions"] == []
