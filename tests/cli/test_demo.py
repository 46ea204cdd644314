"""``llmproxy demo`` as a newcomer runs it: a process, in an empty folder, with no key and no proxy variable."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import Request

import pytest
import yaml

from tests.support.forked import program
from tests.support.process import ROOT, Process, clean_env
from tests.support.proxy import DIRECT


def run(folder: Path, *options: str) -> tuple[int | None, str, str]:
    """Run the demo in `folder`; returns exit code, output and complaints."""
    here, temporary = folder / "empty", folder / "tmp"
    here.mkdir()
    temporary.mkdir()
    env = clean_env({"TMPDIR": str(temporary)})
    child = Process([*program("llmproxy"), "demo", *options], folder, "demo", env, cwd=here)
    child.popen.wait(240)
    return child.exit_code, child.stdout, child.stderr


def type_there(out: str, *words: str) -> int:
    """Type a command that was printed where the demo says that it works; returns its exit code."""
    (place,) = re.findall(r":  cd (\S+)", out)
    return subprocess.run([*program("llmproxy"), *words], cwd=place, env=clean_env(), check=False).returncode


@pytest.mark.slow
def test_the_demo_shows_the_main_job_and_commands_that_work(tmp_path: Path) -> None:
    """It replays plain, tool and streamed calls, counts them, prices them, shows a miss and says what to type next."""
    code, out, err = run(tmp_path)
    assert (code, err) == (0, "")
    assert "assistant  Oslo." in out
    assert 'calls get_weather({"city":"Oslo"})' in out
    assert "the whole suite runs offline" in out
    assert re.search(r"4 calls replayed in ([3-9]|\d\d)\.\d s, as recorded; .* full speed .*: [\d.]+ m?s", out)
    assert re.search(r"0 calls went to the provider, where they would cost \$0\.0001 and 523 tokens", out)
    assert "openai.NotFoundError: HTTP 404" in out
    assert "the nearest recording (#1) differs at message 1 (user)" in " ".join(out.split())
    assert "llmproxy run --mode record -- <your agent>" in out
    assert "llmproxy run -- <your agent>" in out
    assert "incomplete" not in out
    assert list((tmp_path / "empty").iterdir()) == []
    for command in ("why --store demo.db", "show 1 --store demo.db"):
        assert f"llmproxy {command}" in out
        assert type_there(out, *command.split()) == 0


def test_with_tools_an_mcp_server_is_recorded_and_never_asked_again(tmp_path: Path) -> None:
    """Model and server are gone in the second run, which says the same; the ticket was made once, and the replay can be typed again."""
    code, out, err = run(tmp_path, "--tools")
    assert (code, err) == (0, "")
    assert out.count("assistant  Done: ticket #1 created: Printer on floor 3 is broken.") == 2
    assert "0 hits, 0 misses, 5 recorded" in out
    assert "5 hits, 0 misses" in out
    assert "tickets.txt has 1 line still" in out
    again = re.findall(r"\$ llmproxy (run --mcp.*)", out)[0].split()
    assert type_there(out, *(sys.executable if word == "python" else word for word in again)) == 0
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_bundled_recording_holds_no_secret_and_no_local_address() -> None:
    """It may be published: made by scripts/make-demo from a scripted provider."""
    text = (ROOT / "llmproxy/data/demo.yaml").read_text("utf-8")
    recorded = yaml.safe_load(text)["interactions"]
    assert [each["request"]["uri"] for each in recorded] == ["https://api.openai.com/v1/chat/completions"] * 4
    assert [each["request"]["headers"]["Authorization"] for each in recorded] == [["Bearer [REDACTED]"]] * 4
    assert "sk-" not in text


@pytest.mark.slow
def test_with_ui_the_page_shows_what_happened_until_ctrl_c(tmp_path: Path) -> None:
    """At the proxy's own port: the calls that were replayed, and the miss."""
    child = Process([*program("llmproxy"), "demo", "--ui"], tmp_path, "demo", clean_env({"BROWSER": "true"}))
    child.wait_until(lambda: "Ctrl-C ends it." in child.stdout, 120)
    found = re.search(r"(http://127\.0\.0\.1:\d+)/_llmproxy/ui/", child.stdout)
    assert found is not None
    with DIRECT.open(found[0], timeout=10) as answer:
        token = re.search(r'"token":"([^"]+)"', answer.read().decode())
    assert token is not None
    request = Request(f"{found[0]}data/live?after=0", headers={"x-llmproxy-token": token[1]})
    with DIRECT.open(request, timeout=10) as answer:
        rows = json.loads(answer.read())["rows"]
    assert [row["what"] for row in rows] == [*["hit"] * 4, "miss"]
    assert (rows[0]["channel"], rows[0]["answered"], "Sweden" in rows[-1]["asked"]) == ("llm", "Oslo.", True)
    assert child.end() == 0
    assert "Now with your own agent" in child.stdout
