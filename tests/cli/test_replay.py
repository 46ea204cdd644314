"""``llmproxy replay`` and ``fork``: a real agent with a tool loop, in Python and in Node, on its recording."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import llmproxy
from llmproxy.cli import main
from llmproxy.core.forks.fork_rows import find_fork
from llmproxy.core.store.file.store import SqliteCassetteStore
from tests.provider import Provider, step
from tests.support import process
from tests.support.forked import program
from tests.support.process import clean_env, needed, python
from tests.support.proxy import proxy

AGENTS = Path(__file__).parents[1] / "support" / "agents"
COLD = ("--override-tool", 'get_weather={"temp":5}')
CALL = [{"name": "get_weather", "arguments": {"city": "Oslo"}}]
Run = Callable[..., subprocess.CompletedProcess[str]]


class Here:
    """A folder with a store, in which an agent is run; its tool's runs are counted."""

    def __init__(self, folder: Path, agent: list[str]) -> None:
        self.folder, self.agent = folder, agent

    def command(self, *words: str) -> list[str]:
        return [*program("llmproxy"), *words]

    def env(self, upstream: str = "") -> dict[str, str]:
        more = {"OPENAI_BASE_URL": upstream + "/v1"} if upstream else {}
        return clean_env({"RUNS": str(self.folder / "runs"), "COLUMNS": "100", "OPENAI_API_KEY": "sk-x", **more})

    def __call__(self, *words: str, upstream: str = "") -> subprocess.CompletedProcess[str]:
        return process.llmproxy(*words, env=self.env(upstream), cwd=self.folder)

    def replay(self, *options: str, asks: tuple[str, ...] = ("Oslo?", "And Rome?"), upstream: str = "") -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Replay the agent on the cassette `weather`, or another that is named."""
        which = () if "--cassette" in options else ("--cassette", "weather")
        return self("replay", *which, *options, "--", *self.agent, *asks, upstream=upstream)

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text().splitlines())

    def texts(self, cassette: str) -> list[str]:
        with SqliteCassetteStore.open(self.folder / "llmproxy.db", writable=False, now=time.time) as store:
            return [each.request.body.decode() for each in store.iter_interactions(cassette)]


def record(folder: Path, *agent: str) -> Here:
    """Record an agent once: a tool call, its answer, a second question."""
    here = Here(folder, [*agent])
    dialogue = [
        step(user="Oslo?", call=CALL), step(tool_result="21", say="Warm: 21."), step(user="And Rome?", say="Hot."),
    ]  # fmt: skip
    with Provider(dialogue) as provider:
        done = here("run", "--mode", "record", "--cassette", "weather", "--", *agent, "Oslo?", "And Rome?",
                    upstream=provider.url)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "Warm: 21.\nHot.\n"), done.stderr
    return here


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Here:
    """Record the Python agent once, for tests where the language does not matter."""
    return record(tmp_path_factory.mktemp("plain"), python(), str(AGENTS / "loop.py"))


@pytest.fixture(scope="module", params=["python", pytest.param("node", marks=pytest.mark.slow)])
def recorded(request: pytest.FixtureRequest, plain: Here, tmp_path_factory: pytest.TempPathFactory) -> Here:
    """Return the recording of that agent, or of the one in Node, which streams."""
    if request.param == "python":
        return plain
    node = shutil.which("node") or needed("node", "node")
    return record(tmp_path_factory.mktemp("replay"), node, str(AGENTS / "loop.mjs"), "--stream")


@pytest.fixture
def here(recorded: Here, tmp_path: Path) -> Here:
    return Here(Path(shutil.copytree(recorded.folder, tmp_path / "copy")), recorded.agent)


@pytest.fixture
def mine(plain: Here, tmp_path: Path) -> Here:
    """Return a copy of the Python agent's recording for one test."""
    return Here(Path(shutil.copytree(plain.folder, tmp_path / "copy")), plain.agent)


def live(*more: str) -> Iterator[object]:
    """Return the rest of the dialogue after an overridden result."""
    return iter((step(tool_result='"temp":5', say="Cold: 5."), step(user="And Rome?", say="Hot again.")))


def test_a_result_and_the_answer_after_it_are_overridden_offline(here: Here) -> None:
    """New output, no network, the tool really ran; what is different is said, and why."""
    before = here.runs
    done = here.replay(*COLD, "--override-llm", "1=Cold: 5.", asks=("Oslo?",))
    assert (done.returncode, done.stdout) == (0, "Cold: 5.\n"), done.stderr
    assert here.runs == before + 1
    assert 'get_weather: returned {"temp":5}, swapped once' in done.stderr
    assert "LLM call 1: answer overridden" in done.stderr
    assert "result.temp  [result]" in done.stderr
    assert "Warm: 21." in done.stderr


def test_an_overridden_result_alone_stops_at_the_fork(mine: Here) -> None:
    """Exit 4; the agent and the user read why, and what to type, in two lines."""
    done = mine.replay(*COLD)
    assert done.returncode == 4, done.stderr
    why = "llmproxy: the run forks here, at request 2 of the agent: the result of get_weather (call 1) was overridden."
    assert f"{why}\nGo on with the provider and record the fork: the same command with --live" in done.stderr
    assert "--override-llm 1=" in done.stderr
    assert "learn" not in done.stderr


def test_a_live_fork_is_recorded_names_its_parent_and_replays_offline(mine: Here) -> None:
    """Only what differs goes upstream, with the swapped result in every request; the child replays whole, under any command."""
    before = mine.texts("weather")
    with Provider(live()) as provider:  # type: ignore[arg-type]
        done = mine.replay(*COLD, "--live", upstream=provider.url)
        provider.finish()
        assert (done.returncode, done.stdout) == (0, "Cold: 5.\nHot again.\n"), done.stderr
    assert "forked from weather at request 2: the result of get_weather (call 1) was overridden" in done.stderr
    assert mine.texts("weather") == before
    child = mine.texts("weather@fork-1")
    assert len(child) == 3
    assert child[0] == before[0]
    assert all('{\\"temp\\":5}' in text and "21" not in text for text in child[1:])
    with SqliteCassetteStore.open(mine.folder / "llmproxy.db", writable=False, now=time.time) as store:
        fork = find_fork(store, "weather@fork-1", 1)
    assert fork is not None
    assert (fork.parent, fork.step, fork.shared, fork.path) == ("weather", 2, 1, "$.messages[2].content")
    for again in (mine.replay("--cassette", "weather@fork-1"),
                  mine("run", "--cassette", "weather@fork-1", "--fail-on-miss", "--", *mine.agent, "Oslo?", "And Rome?")):  # fmt: skip
        assert (again.returncode, again.stdout) == (0, "Cold: 5.\nHot again.\n"), again.stderr
    assert "fork of weather at request 2: the result of get_weather (call 1) was overridden" in mine("ls").stdout
    assert "fork of weather at request 2" in mine("show", "4").stdout
    diff = mine("diff", "weather", "weather@fork-1", "--fail-on", "any")
    assert diff.returncode == 1
    for told in ('get_weather returns {"temp":5}', "result.temp  [result]", "Texts before the output", "Hot again."):
        assert told in diff.stdout
    assert mine("diff", "weather", "weather@fork-1", "--fail-on", "contract").returncode == 0


@pytest.mark.parametrize(("key", "asked", "said"), [
    ("", 0, "  refused: openai wants a key: set OPENAI_API_KEY.\n"),
    ("sk-wrong", 1, "its request was answered 401 (check the key), so this fork cannot be replayed; remove it: llmproxy rm weather@fork-1"),
])  # fmt: skip
def test_no_fork_is_offered_that_a_key_was_missing_for(mine: Here, key: str, asked: int, said: str) -> None:
    """Without a key the placeholder of replay is sent to nobody, and no fork begins; with a wrong one it is to be removed."""
    with Provider([step(tool_result="temp", status=401, times=None)], check=False) as provider:
        env = {name: value for name, value in (mine.env(provider.url) | {"OPENAI_API_KEY": key}).items() if value}
        words = ("replay", "--cassette", "weather", *COLD, "--live", "--", *mine.agent, "Oslo?")
        done = process.llmproxy(*words, env=env, cwd=mine.folder)
        assert (done.returncode != 0, len(provider.requests)) == (True, asked), done.stderr
    assert said in done.stderr
    assert "replay it" not in done.stderr
    assert "no fork" not in done.stderr


@pytest.mark.slow
def test_an_overridden_answer_is_part_of_the_fork(mine: Here) -> None:
    """Sent, not bought; the agent goes on from it live; the child has it recorded and needs no override to replay."""
    with Provider([step(user="And Rome?", contains="Made up.", say="Hot again.")]) as provider:
        done = mine.replay(*COLD, "--override-llm", "1=Made up.", "--live", "--as", "what-if", upstream=provider.url)
        assert (done.returncode, done.stdout) == (0, "Made up.\nHot again.\n"), done.stderr
        assert len(provider.requests) == 1
    again = mine.replay("--cassette", "what-if")
    assert (again.returncode, again.stdout) == (0, "Made up.\nHot again.\n"), again.stderr
    assert "the answer of LLM call 1 was overridden" in mine("diff", "weather", "what-if").stdout
    taken = mine.replay("--live", "--as", "what-if")
    assert (taken.returncode, "a cassette 'what-if' already" in taken.stderr) == (2, True), taken.stderr


@pytest.mark.slow
def test_a_fork_from_a_request_that_is_equal(mine: Here) -> None:
    """`--from 2`: the same question is asked again."""
    rest = [step(tool_result="21", say="Warm indeed."), step(user="And Rome?", say="Hot again.")]
    with Provider(rest) as provider:
        done = mine.replay("--from", "2", "--live", upstream=provider.url)
    assert (done.returncode, done.stdout) == (0, "Warm indeed.\nHot again.\n"), done.stderr
    assert "forked from weather at request 2: --from 2" in done.stderr
    assert mine.replay("--cassette", "weather@fork-1").stdout == "Warm indeed.\nHot again.\n"


@pytest.mark.slow
def test_nothing_different_is_no_fork(mine: Here) -> None:
    """With --live and no override the recording is replayed, and nothing is recorded or sent."""
    done = mine.replay("--live")
    assert (done.returncode, done.stdout) == (0, "Warm: 21.\nHot.\n"), done.stderr
    assert "no fork" in done.stderr
    assert "@fork" not in mine("ls").stdout


@pytest.mark.parametrize(("options", "code", "said"), [
    (("--override-tool", 'get_weather={"temp":'), 2, "looks like JSON and is none"),
    (("--override-llm", "x"), 2, "must begin with the number of a call"),
    (("--from", "2"), 2, "--from needs --live"),
    (("--as", "x"), 2, "--as needs --live"),
    (("--mode", "record"), 2, "`llmproxy replay` replays"),
    (("--cassette", "nope"), 3, "nothing is recorded in cassette 'nope'"),
    (("--from", "0", "--live"), 2, "--from"),
])  # fmt: skip
def test_what_cannot_be_done_is_said_before_the_agent_starts(
    plain: Here, options: tuple[str, ...], code: int, said: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What was wrong, with what there is, and an exit code that no script takes for success."""
    monkeypatch.chdir(plain.folder)
    before = plain.runs
    which = () if "--cassette" in options else ("--cassette", "weather")
    assert main(["replay", *which, *options, "--", *plain.agent, "Oslo?"]) == code
    found = capfd.readouterr().err
    assert said in found
    assert "Traceback" not in found
    assert plain.runs == before


@pytest.mark.parametrize(("override", "said"), [
    (("--override-tool", "get_wether=5"), "--override-tool get_wether: no such result was in the agent's requests. Tools seen: get_weather."),
    (("--override-tool", "get_weather#2=5"), "--override-tool get_weather#2: no such result"),
    (("--override-llm", "7=x"), "--override-llm 7: the agent called the model 3 times (0 to 2)."),
])  # fmt: skip
def test_an_override_that_met_nothing_is_said(plain: Here, override: tuple[str, ...], said: str) -> None:
    """It can be known when the agent has ended, with what it did ask."""
    done = plain.replay(*override)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_recorded_yet_makes_no_file(tmp_path: Path) -> None:
    """The first thing that somebody tries; also without a command, and with one that is not there."""
    here = Here(tmp_path, [python(), "-c", "print('never')"])
    done = here.replay(*COLD)
    assert (done.returncode, done.stdout) == (3, "")
    assert "llmproxy run --mode record --cassette weather" in done.stderr
    assert here("replay", "--cassette", "weather").returncode == 2
    assert here("replay", "--cassette", "weather", "--", "no-such-agent").returncode == 127
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_forks_at_once_have_names_of_their_own(mine: Here) -> None:
    rest = [step(tool_result="temp", say="Cold.", times=2), step(user="And Rome?", say="Hot again.", times=2)]
    words = mine.command("replay", "--cassette", "weather", "--live", *COLD, "--", *mine.agent, "Oslo?", "And Rome?")
    with Provider(rest, ordered=False) as provider:
        both = [
            subprocess.Popen(words, env=mine.env(provider.url), cwd=mine.folder, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]  # fmt: skip
        ended = [each.communicate(timeout=90) for each in both]
    assert [each.returncode for each in both] == [0, 0], ended
    for n in (1, 2):
        assert mine.replay("--cassette", f"weather@fork-{n}").stdout == "Cold.\nHot again.\n"


@pytest.mark.slow
def test_an_interrupted_run_ends_as_its_agent_does(mine: Here) -> None:
    """Ctrl-C in the middle: no override is blamed for what was never reached, and nothing is left running or open."""
    here = Here(mine.folder, [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"])
    words = here.command("replay", "--cassette", "weather", "--live", *COLD, "--", *here.agent)
    running = subprocess.Popen(words, env=here.env(), cwd=here.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "up\n"
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130, said
    assert "no such result" not in said
    assert 'Traceback (most recent call last):\n  File "<frozen' not in said
    assert mine.replay().stdout == "Warm: 21.\nHot.\n"


@pytest.mark.slow
def test_overrides_are_properties_of_a_session_at_a_running_proxy(plain: Here) -> None:
    """LLMPROXY_URL names it; two sessions of different samples side by side know nothing of each other."""
    with proxy("replay", plain.folder / "llmproxy.db") as px:
        env = plain.env() | {"LLMPROXY_URL": px.url}
        made = ("--override-llm", "1=Cold.", "--", *plain.agent, "Oslo?")
        words = plain.command("replay", "--cassette", "weather", *COLD, *made)

        def replay(words: list[str]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                words, env=env, cwd=plain.folder, capture_output=True, text=True, timeout=60, check=False
            )

        done = replay(words)
        assert (done.returncode, done.stdout) == (0, "Cold.\n"), done.stderr
        words.insert(words.index("--"), "--live")
        refused = replay(words)
        assert refused.returncode == 3, refused.stderr
        assert "--allow-live" in refused.stderr
        assert px.control("sessions") == {"sessions": []}


def test_no_server_of_tools_runs_in_a_replay(tmp_path: Path) -> None:
    """Of a configuration that is named: its calls come from the recording, whatever is overridden; what is advised names it too."""
    data = Path(llmproxy.__file__).parent / "data"
    agent = [python(), str(data / "demo_tools_agent.py"), "tools.json"]
    here, asked = Here(tmp_path, agent), {"title": "Printer"}
    server = {"command": python(), "args": [str(data / "demo_ticket_server.py"), "runs"]}
    (tmp_path / "tools.json").write_text(json.dumps({"mcpServers": {"tickets": server}}))
    script = [step(call=[{"name": "create_ticket", "arguments": asked}]), step(tool_result="#1", say="Done.")]
    with Provider(script) as up:
        recorded = here("run", "--mode", "record", "--mcp-config", "tools.json", "--", *agent, upstream=up.url)
    assert (recorded.returncode, here.runs) == (0, 1), recorded.stderr
    same = here("replay", "--mcp-config", "tools.json", "--", *agent)
    assert (same.stdout, same.returncode) == (recorded.stdout, 0), same.stderr
    assert "mcp: tickets: over stdio, behind `llmproxy mcp`" in same.stderr
    ended = here("replay", "--mcp-config", "tools.json", "--override-tool", "create_ticket=no paper", "--", *agent)
    assert ended.returncode == 4
    assert "the run forks here" in ended.stderr
    assert here.runs == 1


@pytest.mark.slow
def test_a_fork_by_hand(mine: Here) -> None:
    """A child of the first interactions replays those; what it lacks is a miss, or is recorded by auto."""
    made = mine("fork", "weather", "--at", "2", "--as", "short")
    assert (made.returncode, "short: 2 interactions of weather" in made.stdout) == (0, True), made.stderr
    assert mine.replay("--cassette", "short", asks=("Oslo?",)).stdout == "Warm: 21.\n"
    assert mine.replay("--cassette", "short").returncode == 4
    assert mine("fork", "weather", "--as", "short").returncode == 2
    missing = mine("fork", "weather", "--at", "9")
    assert (missing.returncode, "interactions are recorded: none is number 9." in missing.stderr) == (3, True)
    assert "one: 1 interaction of short" in mine("fork", "short", "--at", "1", "--as", "one").stdout
    forks = [(each["parent"], each["why"]) for each in json.loads(mine("ls", "--json").stdout)["forks"]]
    assert forks == [("weather", "made by hand"), ("short", "made by hand")]
