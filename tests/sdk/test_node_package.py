"""The npm package (llmproxy/data/node) in the test runners of Node: each test has a cassette of its own, on one proxy for all workers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.coding.lab import DEAD
from tests.provider import Provider, load
from tests.support import needed
from tests.support.process import clean_env, until

from .environments import NODE, ROOT, prepare
from .node_suites import PACKAGE, RUNNERS, TESTS, Suite, left_over, packed

pytestmark = pytest.mark.sdk
FILES = 2
SUM = re.compile(r"llmproxy: (\d+) tests?: (\d+) hits?, (\d+) miss(?:es)?, (\d+) recorded")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if problem := prepare()["node"]:
        needed(problem)
    return packed(tmp_path_factory.mktemp("packed"))


def _summed(said: str) -> tuple[int, ...]:
    found = SUM.search(said)
    assert found, said
    return tuple(map(int, found.groups()))


@pytest.mark.parametrize("name", RUNNERS)
def test_suite_is_recorded_once_and_replayed(name: str, modules: Path, tmp_path: Path) -> None:
    """Tests one after another, at once and again after a failure replay with the provider dead; a changed prompt fails its test alone."""
    suite = Suite.make(RUNNERS[name], tmp_path / "suite", modules, FILES)
    with suite.provider() as up:
        recorded = suite.run(up.url, OPENAI_API_KEY="sk-test", LLMPROXY_MODE="once")
        assert not up.refused, up.refused[0].refused
    told = recorded.stdout + recorded.stderr
    assert recorded.returncode == 0, told
    assert _summed(told)[:3:2] == (FILES * TESTS, 0), told
    assert _summed(told)[3] == len(up.requests), told
    changed = suite.run(DEAD, CHANGED="yes")
    said = changed.stdout + changed.stderr
    assert changed.returncode == 1, said
    assert _summed(said)[2:] == (2 if name == "jest" else 1, 0), said  # Jest was told to try again
    assert '"one 0" -> "one 0 please"' in said, said
    assert len(set(re.findall("To record what is missing: (.*)", said))) == 1, said
    until(lambda: not left_over(tmp_path))


def test_update_replaces_the_recording_of_one_test(modules: Path, tmp_path: Path) -> None:
    """LLMPROXY_UPDATE=all for one selected test asks its question anew; the others replay as before."""
    suite = Suite.make(RUNNERS["vitest"], tmp_path / "suite", modules, 1)
    with suite.provider() as up:
        assert suite.run(up.url, OPENAI_API_KEY="sk-test", LLMPROXY_MODE="once").returncode == 0
    with suite.provider() as up:
        chosen = ("-t", "one \\(after another\\)")
        again = suite.run(up.url, *chosen, OPENAI_API_KEY="sk-test", LLMPROXY_UPDATE="all")
        asked = [each.last_user for each in up.requests]
    assert again.returncode == 0, again.stdout
    assert asked == ["shared by file 0", "one 0"]
    replayed = suite.run(DEAD)
    assert replayed.returncode == 0, replayed.stdout
    assert _summed(replayed.stdout)[2:] == (0, 0)
    assert f"{TESTS} passed" in replayed.stdout


@pytest.mark.parametrize(("env", "said"), [
    ({"LLMPROXY_COMMAND": "", "PATH": "/nowhere"}, "uv tool install 'llmproxy-replay[proxy]'"),
    ({"LLMPROXY_COMMAND": "false"}, "the proxy does not start; it was called as `false start`"),
    ({"LLMPROXY_MODE": "sometimes"}, 'LLMPROXY_MODE is "sometimes"; it can be replay, once, auto'),
])  # fmt: skip
def test_what_is_wrong_is_said_in_words(env: dict[str, str], said: str, modules: Path, tmp_path: Path) -> None:
    """Without a command, with one that fails, with no mode: the runner fails, with a text that says what to do."""
    done = Suite.make(RUNNERS["node-test"], tmp_path / "suite", modules, 1).run(DEAD, **env)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr


def test_package_holds_what_it_must_and_its_types_are_right(modules: Path, tmp_path: Path) -> None:
    """What npm packs is code, types and a page; tsc takes the types strictly, for a program that uses all of them."""
    package = modules / "llmproxy-replay"
    there = {each.name for each in package.iterdir()}
    known = json.loads((package / "package.json").read_text("utf-8"))
    assert there == {each.name for each in PACKAGE.iterdir()}
    assert not known.get("dependencies")
    assert sum(len(each.read_text("utf-8").splitlines()) for each in package.glob("*.*js")) < 1000
    program = """
        import { session, type Session } from "llmproxy-replay";
        import "llmproxy-replay/vitest";
        import { test, expect } from "llmproxy-replay/playwright";
        test("x", async ({ llmproxy }) => { const one: Session = llmproxy; expect((await one.report()).hits).toBe(1); });
        const s = await session({ mode: "replay", runVariables: { "order.id": 7 } });
        // @ts-expect-error no such mode
        await session({ mode: "sometimes" });
        const texts: string[] = await s.misses();
        console.log(texts, s.baseURL);
    """
    (tmp_path / "use.mts").write_text(program)
    (tmp_path / "node_modules").symlink_to(modules)
    tsc = [str(NODE / "node_modules/.bin/tsc"), "--strict", "--noEmit", "--module", "nodenext", "--target", "es2023"]
    lint = [str(NODE / "node_modules/.bin/oxlint"), "--deny-warnings", "-D", "correctness", "-D", "suspicious"]
    for command in ([*tsc, "--skipLibCheck", str(tmp_path / "use.mts")], [*lint, str(PACKAGE)]):
        done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout


def test_command_passes_on_to_llmproxy(modules: Path, tmp_path: Path) -> None:
    """`npx llmproxy-replay run -- COMMAND` calls the llmproxy of LLMPROXY_COMMAND, and ends with its exit code."""
    tool = tmp_path / "my tool"
    tool.write_text('#!/bin/sh\necho "called with $*"\nexit 7\n')
    tool.chmod(0o755)
    node = shutil.which("node") or "node"
    env = clean_env({"LLMPROXY_COMMAND": f"'{tool}' first"})
    command = [node, str(modules / "llmproxy-replay/command.js"), "run", "--", "npm", "test"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (7, "called with first run -- npm test\n")


def test_package_that_is_linked_to_a_clone_says_to_install_that_clone() -> None:
    """Nothing is published yet: what is typed as printed has to install from where npm took the package."""
    env = clean_env({"LLMPROXY_COMMAND": "", "PATH": "/nowhere"})
    command = [shutil.which("node") or "node", str(PACKAGE / "command.js"), "run"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert f"uv tool install 'llmproxy-replay[proxy] @ {ROOT.as_uri()}'" in done.stderr


def test_page_is_right_as_it_stands(modules: Path, tmp_path: Path) -> None:
    """The files of docs/node.md and README.md, as the pages have them: recorded, replayed, the sum of both, and a bound hit for another order."""
    page = "".join((ROOT / name).read_text("utf-8") for name in ("docs/node.md", "README.md"))
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "package.json").write_text('{"name": "suite"}')
    (suite / "node_modules").symlink_to(modules)
    for name, text in re.findall(r"^```js suite ([\w.]+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        (suite / name).write_text(text)
    says = {
        "Do I need an umbrella in Oslo?": "Take an umbrella.",
        "Do I need an umbrella in Bergen?": "Always an umbrella.",
        "Does it rain in Oslo?": "Yes, rain.",
        "Does it rain in Bergen?": "Always rain.",
        "Where is order a4f7c2d9?": "Order a4f7c2d9 is here.",
    }
    steps = [{"user": asked, "say": said} for asked, said in says.items()]
    with Provider(load({"ordered": False, "steps": steps})) as up:
        recorded = Suite(RUNNERS["vitest"], suite, 0).run(up.url, OPENAI_API_KEY="sk-test", LLMPROXY_MODE="once")
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    replayed = Suite(RUNNERS["vitest"], suite, 0).run(DEAD)
    assert (replayed.returncode, "arning" in replayed.stderr + recorded.stderr) == (0, False), replayed
    assert _summed(replayed.stdout) == (5, 5, 0, 0)
    order = suite / "order.test.js"
    order.write_text(order.read_text("utf-8").replace("a4f7c2d9", "b5e8d3c1"))
    bound = Suite(RUNNERS["vitest"], suite, 0).run(DEAD, "order.test.js")
    assert "llmproxy: 1 test: 1 hit (1 bound: order.id), 0 misses, 0 recorded" in bound.stdout, bound.stdout


def test_clients_that_ask_at_once_are_told_apart(modules: Path, tmp_path: Path) -> None:
    """SDKs, fetch, undici, axios, got and node:http, twelve at once: each call is in its own test's cassette, in the recording and the replay."""
    suite = Suite.make(RUNNERS["vitest"], tmp_path / "suite", modules, 0)
    shutil.copy(NODE / "clients.test.mjs", suite.folder)
    clients = (NODE / "clients.test.mjs").read_text("utf-8")
    names = re.findall(r'^  "?([\w: ]+?)"?:? ?(?:async|byHttp)', clients, re.MULTILINE)
    steps = [{"user": f"I am {name}", "say": f"I am {name}"} for name in names]
    keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k"}
    with Provider(load({"ordered": False, "steps": steps})) as up:
        places = {"ANTHROPIC_BASE_URL": up.url, "GOOGLE_GEMINI_BASE_URL": up.url}
        recorded = suite.run(up.url, **keys, **places, LLMPROXY_MODE="once")
        assert not up.refused, up.refused[0].refused
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    replayed = suite.run(DEAD, ANTHROPIC_BASE_URL=DEAD, GOOGLE_GEMINI_BASE_URL=DEAD)
    assert replayed.returncode == 0, replayed.stdout
    assert _summed(replayed.stdout) == (12, 12, 0, 0)


def test_no_call_is_recorded_in_the_cassette_of_another_test(modules: Path, tmp_path: Path) -> None:
    """Random tests with shared clients, timers and late calls (more: `scripts/lab/node-suites`): each asks its own."""
    suite = Suite.interleaved(RUNNERS["node-test"], tmp_path / "suite", modules, 1, seed=time.time_ns())
    with suite.echo() as up:
        recorded = suite.run(up.url, OPENAI_API_KEY="k", LLMPROXY_MODE="once")
    assert recorded.returncode == 0, recorded.stdout
    assert len(up.requests) > 20
    assert not suite.astray(), suite.folder
    assert not up.refused


def test_cassette_of_pytest_replays_in_vitest_and_back(modules: Path, tmp_path: Path) -> None:
    """One session's name, one store: what a test in Python recorded answers a test in Node, and the other way round."""
    suite = Suite.make(RUNNERS["vitest"], tmp_path / "suite", modules, 0)
    ask = "import json, os, urllib.request as u\ndef ask(text):\n    body = {'model': 'gpt-4o-mini', 'messages': [{'role': 'user', 'content': text}]}\n"
    ask += "    r = u.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', json.dumps(body).encode(), {'content-type': 'application/json', 'authorization': 'Bearer k'})\n"
    ask += "    return json.load(u.urlopen(r))['choices'][0]['message']['content']\n"
    python = "import pytest\n@pytest.mark.llmproxy(cassette='{0}')\ndef test_{0}():\n    assert ask('from {0}') == 'from {0}'\n"
    node = 'import { test, expect } from "vitest";\nimport { session } from "llmproxy-replay";\n'
    node += "const ask = async (text) => (await (await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', { method: 'POST', headers: { 'content-type': "
    node += "'application/json', authorization: 'Bearer k' }, body: JSON.stringify({ model: 'gpt-4o-mini', messages: [{ role: 'user', content: text }] }) })).json()).choices[0].message.content;\n"
    js = "test('{0}', async () => {{ await session({{ cassette: '{0}' }}); expect(await ask('from {0}')).toBe('from {0}'); }});\n"
    (suite.folder / "test_both.py").write_text(ask + python.format("snake") + python.format("node"))
    (suite.folder / "both.test.mjs").write_text(node + js.format("snake") + js.format("node"))
    steps = [{"user": f"from {each}", "say": f"from {each}"} for each in ("snake", "node")]

    def pytest_run(env: dict[str, str], *words: str) -> None:
        command = [sys.executable, "-m", "pytest", "-q", "test_both.py", *words]
        done = subprocess.run(
            command, cwd=suite.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout

    with Provider(load({"ordered": False, "steps": steps})) as up:
        pytest_run(suite.environment(up.url, LLMPROXY_MODE="once", OPENAI_API_KEY="k"), "-k", "snake")
        second = suite.run(up.url, "-t", "node", LLMPROXY_MODE="once", OPENAI_API_KEY="k")
        assert second.returncode == 0, second.stdout
    replayed = suite.run(DEAD)
    assert replayed.returncode == 0, replayed.stdout
    assert _summed(replayed.stdout) == (2, 2, 0, 0)
    pytest_run(suite.environment(DEAD))


def test_killed_run_leaves_no_process_and_is_completed_by_the_next(modules: Path, tmp_path: Path) -> None:
    """After kill -9 of the runner its proxy ends too; once then records what is missing, and asks nothing twice."""
    suite = Suite.make(RUNNERS["vitest"], tmp_path / "suite", modules, 1)
    env = {"OPENAI_API_KEY": "sk-test", "LLMPROXY_MODE": "once"}
    with suite.provider() as up:
        command, environment = suite.command("--no-file-parallelism"), suite.environment(up.url, **env)
        running = subprocess.Popen(command, cwd=suite.folder, env=environment, stdout=subprocess.DEVNULL)
        until(lambda: up.requests)
        running.kill()
        running.wait()
        until(lambda: not left_over(tmp_path))
    with suite.provider() as up:
        completed = suite.run(up.url, **env)
        assert not up.refused, up.refused[0].refused
    assert completed.returncode == 0, completed.stdout
    replayed = suite.run(DEAD)
    assert replayed.returncode == 0, replayed.stdout
    assert _summed(replayed.stdout)[2:] == (0, 0)


SESSION = """
import { expect, test } from "vitest";
import { session } from "llmproxy-replay";
import { agent } from "./agent.mjs";
let told;
test("calls", async () => {
  const here = await session({ cassette: "named" });
  await agent("hi");
  const [call] = await here.calls();
  expect([here.cassette, call.operation, call.status]).toEqual(["named", "chat.completions", 200]);
});
test("faults", async () => {
  const here = await session({ cassette: "named", mode: "replay" });
  await here.faults("http-503@1");
  await expect(agent("hi")).rejects.toThrow("503");
  expect((await here.calls())[0].fault).toContain("http-503");
});
test("overrides and run variables", async () => {
  const here = await session({ cassette: "named", mode: "replay", runVariables: { "order.id": "a4f7c2d9" }, overrides: { answers: [{ call: 0, text: "not hello" }] } });
  expect(await agent("hi")).toBe("not hello");
  await here.runVariable("order.other", 17);
  await here.reset();
});
test("an override that matches nothing", async () => {
  await session({ cassette: "named", mode: "replay", overrides: { answers: [{ call: 7, text: "never" }] } });
  await agent("hi");
});
test("late", async () => { setTimeout(() => agent("too late").catch((error) => { told = error.message; }), 1); });
test("the next one", async () => {
  await new Promise((done) => setTimeout(done, 300));
  expect(told).toContain("this call came after its test had ended");
});
test("expectNoMiss", async () => {
  const here = await session({ cassette: "named", mode: "replay" });
  await agent("never recorded").catch(() => "swallowed");
  await expect(here.expectNoMiss()).rejects.toThrow("1 requests were never recorded");
});
test("its own error", async () => {
  const { url } = await session();
  await fetch(new URL("/_llmproxy/stop", url), { method: "POST" });
  await expect.poll(() => fetch(new URL("/_llmproxy/health", url)).catch(() => "gone"), { timeout: 9000 }).toBe("gone");
  throw new Error("mine");
}, 20000);
"""


def test_session_has_calls_faults_and_misses_and_ci_records_nothing(modules: Path, tmp_path: Path) -> None:
    """What a test reads and sets of its session, its own error beside that of a proxy that is gone; CI records nothing."""
    suite = Suite.make(RUNNERS["vitest"], tmp_path / "suite", modules, 0)
    (suite.folder / "package.json").write_text('{"name": "suite", "llmproxy": {"mode": "once"}}')
    (suite.folder / "session.test.mjs").write_text(SESSION)
    with Provider(load({"ordered": False, "steps": [{"user": "hi", "say": "hello"}]})) as up:
        in_ci = suite.run(up.url, "-t", "calls", OPENAI_API_KEY="k", CI="true")
        assert (in_ci.returncode, len(up.requests)) == (1, 0), in_ci.stdout
        recorded = suite.run(up.url, OPENAI_API_KEY="k")
        assert not up.refused, up.refused[0].refused
    assert "6 passed" in recorded.stdout, recorded.stdout
    assert re.search("Error: mine\nllmproxy: (the proxy ended|no proxy answers)", recorded.stdout + recorded.stderr)
    assert "the override of call 7 (calls count from 0) changed nothing" in recorded.stdout + recorded.stderr
    replayed = suite.run(DEAD, CI="true")
    assert "6 passed" in replayed.stdout, replayed.stdout


LAZY = """
import OpenAI from "openai";
import { expect, test } from "vitest";
import { session } from "llmproxy-replay";
let client;
const ask = async (text) => {
  client ??= new OpenAI(); // made in the first test, and kept
  const messages = [{ role: "user", content: text }];
  return (await client.chat.completions.create({ model: "gpt-4o-mini", messages })).choices[0].message.content;
};
for (const name of ["one", "two"]) {
  test(name, async () => {
    expect(await ask(name)).toBe(name);
    expect((await (await session()).report()).arrived).toBe(1);
  });
}
"""


def test_client_that_the_first_test_made_asks_for_the_second_one(modules: Path, tmp_path: Path) -> None:
    """A client keeps the base URL of the test that made it; its calls belong to the test that makes them."""
    suite = Suite.make(RUNNERS["vitest"], tmp_path / "suite", modules, 0)
    (suite.folder / "lazy.test.mjs").write_text(LAZY)
    steps = [{"user": each, "say": each} for each in ("one", "two")]
    with Provider(load({"ordered": False, "steps": steps})) as up:
        recorded = suite.run(up.url, OPENAI_API_KEY="k", LLMPROXY_MODE="once")
    assert recorded.returncode == 0, recorded.stdout
    assert suite.run(DEAD).returncode == 0


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"hits": 1, "cost_not_spent": 0.0000088}, "1 hit, 0 misses, 0 recorded; $0.0000088 not spent"),
        ({"misses": 1, "recorded": 2, "cost_spent": 0.02}, "0 hits, 1 miss, 2 recorded; $0.0200 spent"),
        (
            {
                "hits": 9, "bound": 2, "bound_names": ["order.id", "date"], "carried": 3,
                "carried_names": ["system-3f2a"], "stale": 1,
            },
            "9 hits (2 bound: date, order.id; 3 carried under system-3f2a; 1 older than its max age), 0 misses, 0 recorded",
        ),
    ],
)  # fmt: skip
def test_the_sum_of_a_run_names_one_and_many_and_what_was_spent(
    told: dict[str, object], line: str, tmp_path: Path
) -> None:
    """The reporter's line reads as that of pytest."""
    sums = tmp_path / "sums"
    sums.write_text(json.dumps({"test": "a.js::b", **told}))
    program = f"import {{ summary }} from {json.dumps(str(PACKAGE / 'reporter.js'))}; console.log(summary({json.dumps(str(sums))})[0])"
    command = ["node", "--input-type=module", "-e", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == f"llmproxy: 1 test: {line}\n"
