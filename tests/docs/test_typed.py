"""What the pages show to type is typed here, in a shell, each line in a copy of one prepared folder; what is not is named with its reason.

The programs behind `--` (python, node, npm, claude ...) are one small agent that asks a scripted provider three questions, so a line does
to llmproxy what it does with a real one. Lines that differ in that program alone are one. The pages' own programs run elsewhere, see
tests/docs/test_blocks.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.test_commands import PAGES, commands
from tests.provider import Provider, step
from tests.support.forked import shared
from tests.support.process import ROOT

AGENT = """
import http.client, json, os, sys, urllib.parse
at = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
def ask(*messages):
    for _ in range(5):
        try:
            conn = http.client.HTTPConnection(at.hostname, at.port, timeout=30)
            body = json.dumps({"model": "gpt-4o", "messages": messages, "tools": tools})
            conn.request("POST", at.path + "/chat/completions", body, {"content-type": "application/json"})
            answer = conn.getresponse()
            said = json.loads(answer.read())
            if answer.status == 200:
                return said["choices"][0]["message"]
            if answer.status < 429:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            said = error
    sys.exit(f"gave up: {said}")
user = {"role": "user", "content": "Oslo?"}
called = ask(user)
for each in called.get("tool_calls") or ():
    print(ask(user, called, {"role": "tool", "tool_call_id": each["id"], "content": '{"temp": 21}'})["content"])
print(ask({"role": "user", "content": "And Rome?"})["content"])
"""
"""Three questions, of which the second brings a tool's result; what fails for a moment is asked again."""
CALL = [{"name": "get_weather", "arguments": {"city": "Oslo"}}]
STEPS = [
    step(user="And Rome?", say="Hot.", times=None),
    step(tool_result='{"temp": 21}', say="Warm: 21.", times=None),
    step(tool_result='{"temp": 5}', say="Cold: 5.", times=None),
    step(user="Oslo?", call=CALL, times=None),
]
PROGRAMS = ("python", "node", "npm", "claude", "codex", "sh ~/ask.sh")
SUITE = """
name: Tasks
agent: {command: {run: [python, agent.py], lines: false}}
scenarios:
  - {id: create, steps: [{chat: "Oslo?", tools: {get_weather: 1}}]}
"""


def typed(text: str) -> dict[str, None]:
    """Return the lines of a page, without their comments, each program behind `--` as one."""
    joined = re.sub(r" \\\n\s*", " ", text)
    lines = (re.sub(r"\s+#(\s.*)?$", "", line).replace("\\|", "|").strip() for line in commands(joined))
    return dict.fromkeys(re.sub(r" -- \S.*$", " -- python agent.py", line) for line in lines)


LINES = {line: page.name for page in PAGES for line in typed(page.read_text("utf-8"))}

AS = {
    "NAME --at N": "weather --at 2", "STORE": "llmproxy.db", "RUN_ID": "create", "CASSETTE": "weather",
    "NAME": "weather", "DIR": "out", "FILE": "report.json", "[PATHS]": "out", " ID": " 1", "spans|otlp": "otlp x.json",
    "validate | list | schema": "validate suite.yaml",
}  # fmt: skip
"""What is put in for what a page leaves open."""
NAMED = {
    "llmproxy cache", "llmproxy changes", "llmproxy diff", "llmproxy diff --fail-on contract", "llmproxy fork",
    "llmproxy judge", "llmproxy judge calibrate", "llmproxy label", "llmproxy learn", "llmproxy mcp",
    "llmproxy mcp --", "llmproxy merge", "llmproxy replay", "llmproxy run", "llmproxy run --intercept",
    "llmproxy show", "llmproxy suite", "llmproxy textconv",
}  # fmt: skip
"""Commands of which a page says the name only: typed so they end with 2, and say how they are used."""
CODES = {"llmproxy doctor": 1, "llmproxy drift --accept": 2}
"""Exit codes that the page announces, where they are not 0: the shell's own variable is wrong, nothing was asked yet."""
SERVES = re.compile(r"llmproxy (start|ui)\b")
ASKS = re.compile(r"llmproxy (status|stop|env|doctor$)")
"""What asks a proxy that runs already."""
RUNNING = (
    "llmproxy start --forward > started & until grep -q 'http://[^ ]*' started; do sleep 0.02; done; "
    "export LLMPROXY_URL=$(grep -o 'http://[^ ]*' started | head -1); {}; code=$?; kill $! 2> /dev/null; wait; exit $code"
)
ELSEWHERE = {
    r"llmproxy demo --(tools|ui)": "cli/test_demo.py", r"llmproxy mcp (serve|-- ).*": "cli/test_mcp.py",
    r"llmproxy run (?!--faults |--live ).*--mcp-config .*": "cli/test_mcp.py",
    r"llmproxy (push|pull) .*": "cli/test_import_export.py",
    r"llmproxy run --faults sweep(?!.*--mcp-config).*": "cli/parts/test_fault_sweep.py",
    r"llmproxy run .*--runs 10 .*": "cli/test_run_live.py", r"llmproxy doctor --pid 4711": "cli/test_doctor.py",
    r"llmproxy test --on ray.*": "cluster/test_ray.py",
    r"llmproxy test (--live|suite.yaml --live) .*": "cli/parts/test_run_ending.py",
    r"llmproxy test --init": "cli/test_test.py", r"llmproxy test --shard.*": "cli/test_merge.py",
    r"llmproxy merge .*": "cli/test_merge.py", r"llmproxy label .*": "cli/test_judge.py",
    r"llmproxy judge calibrate labels.*": "docs/test_page_programs.py",
    r"llmproxy learn fix --drop .*": "cli/test_learn.py",
    r"llmproxy (review|accept|changes (list|drop)|rerecord --changed).*": "cli/test_changes.py",
    r"llmproxy rerecord 1 4 7 .*": "cli/test_rerecord.py",
}  # fmt: skip
"""Lines that another test runs: they need a server, a terminal, a cluster, many runs, or what only that test prepares."""
NOT_RUN = {
    "llmproxy env --format fish | source": "needs fish; tests/cli/test_env.py looks at what is printed",
    "llmproxy env --format powershell | Out-String | Invoke-Expression": "needs PowerShell; as above",
    "llmproxy test --faults sweep --id create": "tests/suite/run/test_sweep.py sweeps without the command",
    "llmproxy run --faults mcp-tool-error@2 --mcp-config tools.json -- python agent.py": "tests/mitm/test_mcp_faults.py breaks it without the command",
    "llmproxy run --faults sweep:mcp-tool-error,mcp-gone --mcp-config tools.json -- python agent.py": "as above",
    "llmproxy mcp --faults flaky-tools -- python agent.py": "as above",
    "llmproxy run --live llm --mcp-config tools.json -- python agent.py": "tests/mitm/test_live_channels.py is live so without the command",
    "llmproxy ui postgresql://USER@HOST/DATABASE": "needs a server; tests/test_store_server.py reads one without the viewer",
}
"""Why a line is run nowhere."""


@dataclass(frozen=True)
class Typed:
    code: int
    said: str


@dataclass
class Shell:
    """A shell in which `llmproxy` and the programs of the pages are."""

    folder: Path
    env: dict[str, str]

    def type(self, line: str, folder: Path) -> Typed:
        """Type a line in a folder, and answer yes to what it asks; a server is ended when it says where it is."""
        for name, value in AS.items():
            line = re.sub(rf"{re.escape(name)}(?![A-Z])", value, line)
        shown = RUNNING.format(line) if ASKS.match(line) else f"exec {line}" if SERVES.match(line) else line
        words = ["sh", "-c", shown.removesuffix("&")]
        with subprocess.Popen(
            words, cwd=folder, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        ) as child:  # fmt: skip
            stuck = threading.Timer(120, os.killpg, (child.pid, signal.SIGKILL))
            stuck.start()
            said = ""
            if SERVES.match(line):
                assert child.stdout is not None
                for text in iter(child.stdout.readline, ""):
                    said += text
                    if "http://127.0.0.1:" in text:
                        break
                os.killpg(child.pid, signal.SIGINT)
            said += child.communicate("y\n" * 9)[0]
            stuck.cancel()
        return Typed(child.returncode, said)


def prepare(shell: Shell) -> Path:
    """Make the folder in which all pages begin: recordings, their files, those of other tools, a suite and its reports."""
    base = shell.folder / "base"
    for name in ("cassettes", "tests/cassettes", "fixtures", "clean"):
        (base / name).mkdir(parents=True)
    files = {"agent.py": AGENT, "suite.yaml": SUITE, "tasks.suite.yaml": SUITE.replace("create", "tasks")}
    for name, text in files.items():
        (base / name).write_text(text)
    formats = ROOT / "fixtures/formats"
    for copy, name in {"trace.har": "har", "session.har": "har", "flows.mitm": "flows"}.items():
        shutil.copy(formats / f"mitmproxy.{name}", base / copy)
    shutil.copy(formats / "cassetter.toml", base / "cassette.toml")
    shutil.copy(min(formats.glob("aimock/openai*")), base / "fixtures")
    override = "--cassette weather --override-tool get_weather='{\"temp\": 5}' --live"
    whole = "weather.yaml --cassette weather --format review"
    for line in (
        "llmproxy run --mode record --cassette weather -- python agent.py",
        f"llmproxy replay {override} -- python agent.py",
        f"llmproxy export {whole} && cp weather.yaml old.yaml && cp weather.yaml clean && cp weather.yaml tests/cassettes/trip.yaml",
        (
            "for name in default fix trip test_trip trip~2 old new checkout 'weather@live-1'; do sed \"s/^cassette: weather/cassette: $name/\" old.yaml"
            ' > "clean/$name.yaml"; done; llmproxy import clean && cp -r clean out && mv weather.yaml cassettes'
        ),
        "llmproxy faults rate-limited > faults.yaml; echo '{\"mcpServers\": {}}' > tools.json",
        "llmproxy test --mode record --report json=report.json --report html=report.html",
        "cp report.json run.json; cp report.json last.json; cp llmproxy.db tests/recordings.db",
    ):
        done = shell.type(line, base)
        assert done.code == 0, done.said
    return base


@pytest.mark.slow
def test_what_is_shown_does_what_it_says(tmp_path: Path) -> None:
    """Each line ends as the page says, and none with a traceback; what replays asks nobody."""
    with Provider(STEPS, ordered=False) as provider:
        (tmp_path / "home").mkdir()
        for name in ("python", "codex"):
            (program := tmp_path / "home" / name).write_text(
                f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS agent.py\n"
            )
            program.chmod(0o755)
        shell = Shell(
            tmp_path,
            {
                "PATH": f"{tmp_path}/home:{shared()}:/usr/bin:/bin", "HOME": str(tmp_path / "home"),
                "LLMPROXY_COMMAND": str(shared() / "llmproxy"), "LLMPROXY_PORT": "0",
                "OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "k",
            },
        )  # fmt: skip
        base = prepare(shell)

        def one(numbered: tuple[int, str]) -> Typed:
            number, line = numbered
            folder = tmp_path / str(number)
            shutil.copytree(base, folder)
            return shell.type(line, folder)

        run = [line for line in LINES if place(line) == "here"]
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(one, enumerate(run)))
    wanted = {line: 2 if line in NAMED else CODES.get(line, 0) for line in run}
    wrong = [
        f"{LINES[line]}: {line}: {each.code}, not {wanted[line]}\n{each.said}"
        for line, each in zip(run, done, strict=True)
        if each.code not in ({0, 130} if SERVES.match(line) else {wanted[line]}) or "Traceback" in each.said
    ]
    assert not wrong, "\n".join(wrong)


def place(line: str) -> str:
    """Return where a line is run: here, by another test, or nowhere."""
    files = [file for pattern, file in ELSEWHERE.items() if re.fullmatch(pattern, line)]
    assert len(files) + (line in NOT_RUN) < 2, line
    return files[0] if files else "nowhere" if line in NOT_RUN else "here"


def test_what_is_not_typed_here_is_typed_there_or_has_its_reason() -> None:
    """Every row of the tables is of a line that stands, and the test that it names knows the command and its first option."""
    assert sorted((NAMED | set(CODES) | set(NOT_RUN)) - set(LINES)) == []
    assert [each for each in ELSEWHERE if not any(re.fullmatch(each, line) for line in LINES)] == []
    for line in LINES:
        if (file := place(line)) not in ("here", "nowhere"):
            text = (ROOT / "tests" / file).read_text("utf-8")
            words = [word for word in shlex.split(line)[1:] if re.match(r"--\w", word)][:1] or shlex.split(line)[1:2]
            assert all(word.lstrip("-") in text for word in words), f"{line}: {words} stand not in {file}"
    assert sum(place(line) == "here" for line in LINES) > 120
