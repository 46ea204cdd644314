"""A suite of Node tests for each runner, made in a folder: one agent, files of tests that run one after another, at once, and again after a failure.

What a test asks is its own name, so that an answer which came to another test fails it. The environment variable CHANGED alters
the prompt of the first test of the first file.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.provider import Provider, load
from tests.support.forked import program
from tests.support.process import clean_env

from .environments import NODE, ROOT

PACKAGE = ROOT / "llmproxy" / "data" / "node"
SECONDS = 300

AGENT = """
{openai}
const client = new OpenAI({{ maxRetries: 0 }}); // made at import
{export}async function agent(text) {{
  const messages = [{{ role: "system", content: "Answer with your question." }}, {{ role: "user", content: text }}];
  return (await client.chat.completions.create({{ model: "gpt-4o-mini", messages }})).choices[0].message.content;
}}
"""
FILE = """
{imports}
const changed = {first} && process.env.CHANGED ? " please" : "";
const mine = "again {n}";
let tries = 0;
{hook}(async () => {{ assert(await agent("shared by file {n}"), "shared by file {n}"); }});
{describe}("file {n}", {concurrent}() => {{
  {test}("one (after another)", async () => {{ assert(await agent("one {n}" + changed), "one {n}" + changed); }});
  for (const each of ["a", "b", "c"]) {{
    {test_concurrent}(`at once ${{each}}`, async () => {{
      await new Promise((done) => setTimeout(done, each === "a" ? 30 : 1));
      assert(await agent(`at once ${{each}} {n}`), `at once ${{each}} {n}`);
      assert((await (await session()).report()).arrived, 1);
    }});
  }}
  {retry}
}});
"""
INTERLEAVED = """
{imports}
const play = (who, steps) => played.play(who, steps);
play("file{n}", [["late", 40, 0, "fetch"], ["late", 90, 1, "http"]]);
{hook}(() => play("file{n}", [["ask", 2, "openai"], ["late", 60, 3, "openai"]]));
const programs = {programs};
for (const [who, steps] of programs.slice(0, 4)) {test}(who, () => play(who, steps));
{describe}("at once", {concurrent}() => {{
  for (const [who, steps] of programs.slice(4, 10)) {test_concurrent}(who, () => play(who, steps));
}});
for (const [who, steps] of programs.slice(10)) {test}(who, () => play(who, steps));
"""


@dataclass(frozen=True, slots=True)
class Runner:
    """How a test runner is called, and how its files look."""

    name: str
    command: tuple[str, ...]
    suffix: str
    imports: str
    config: Mapping[str, str]
    words: Mapping[str, str]
    commonjs: bool = False

    def render(self, n: int) -> str:
        return FILE.format(n=n, first=json.dumps(n == 0), imports=self.imports, **self.words)

    def interleave(self, n: int, chance: random.Random) -> str:
        """Return a file of tests with random programs for tests/sdk/node/play.cjs."""
        programs = json.dumps([(f"f{n}t{number}", _program(chance)) for number in range(14)])
        library = '"../play.cjs"'
        played = f"const played = require({library});" if self.commonjs else f"import played from {library};"
        imports = self.imports.partition("\nconst assert")[0].replace('import { agent } from "../agent.mjs";', "")
        imports = imports.replace('const { agent } = require("../agent.cjs");\n', "")
        return INTERLEAVED.format(n=n, programs=programs, imports=f"{imports}\n{played}", **self.words)


def _program(chance: random.Random) -> list[list[object]]:
    """Return what a test does, step after step: awaited, by timers, at once, and too late."""
    numbers = iter(range(99))

    def asked() -> list[object]:
        return [next(numbers), chance.choice(("openai", "fetch", "http"))]

    def step() -> list[object]:
        match chance.randrange(6):
            case 0:
                return ["wait", chance.randrange(20)]
            case 1:
                return ["all", *(["ask", *asked()] for _ in range(3))]
            case 2:
                return ["timer", chance.randrange(15), ["ask", *asked()]]
            case 3:
                return ["late", chance.choice((5, 40, 150, 300)), *asked()]
            case 4:
                return ["emitter", *asked()]
            case _:
                return ["ask", *asked()]

    return [step() for _ in range(chance.randrange(1, 6))]


_ESM = 'import OpenAI from "openai";'
_EQUAL = "const assert = (found, wanted) => { if (found !== wanted) throw new Error(`${found} is not ${wanted}`); };\n"
_SESSION = 'import { session } from "llmproxy-replay";\nimport { agent } from "../agent.mjs";\n'
_TWICE = 'tries += 1; assert(await agent(mine), tries === 1 ? "not yet" : mine); });'
_ONCE = 'test("again", async () => { assert(await agent(mine), mine); });'


def _words(hook: str, at_once: str, concurrent: str, retry: str) -> dict[str, str]:
    """Return what a runner calls the parts of a file of tests."""
    names = {"hook": hook, "describe": "describe", "test": "test", "test_concurrent": at_once}
    return {**names, "concurrent": concurrent, "retry": retry}


RUNNERS = {
    "vitest": Runner(
        "vitest", ("node_modules/.bin/vitest", "run"), ".test.ts",
        'import { beforeAll, describe, test } from "vitest";\n' + _SESSION
        + _EQUAL.replace("(found, wanted)", "(found: unknown, wanted: unknown)"),
        {"vitest.config.mjs": "export default { test: { setupFiles: ['llmproxy-replay/vitest'], reporters: ['default', "
                              "'llmproxy-replay/reporter'] } };\n"},
        _words("beforeAll", "test.concurrent", "", f'test("again", {{ retry: 1 }}, async () => {{ {_TWICE}'),
    ),
    "jest": Runner(
        "jest", ("node_modules/.bin/jest",), ".test.js",
        'const { session } = require("llmproxy-replay");\nconst { agent } = require("../agent.cjs");\njest.retryTimes(1);\n'
        + _EQUAL,
        {"jest.config.json": json.dumps({
            "testEnvironment": "llmproxy-replay/jest", "reporters": ["default", "llmproxy-replay/reporter"],
            "maxWorkers": 2})},
        _words("beforeAll", "test.concurrent", "", f'test("again", async () => {{ {_TWICE}'),
        commonjs=True,
    ),
    "node-test": Runner(
        "node-test",
        ("node", "--import", "llmproxy-replay/node-test",
         "--test-reporter=spec", "--test-reporter-destination=stdout",
         "--test-reporter=llmproxy-replay/node-test", "--test-reporter-destination=stdout", "--test", "tests/"),
        ".test.mjs", 'import { before, describe, test } from "node:test";\n' + _SESSION + _EQUAL, {},
        _words("before", "test", "{ concurrency: true }, ", _ONCE),
    ),
    "playwright": Runner(
        "playwright", ("node_modules/.bin/playwright", "test"), ".spec.mjs",
        'import { test } from "llmproxy-replay/playwright";\n' + _SESSION + "const { describe } = test;\n" + _EQUAL,
        {"playwright.config.mjs": "export default { testDir: 'tests', workers: 2, reporter: [['list'], "
                                  "['llmproxy-replay/reporter']] };\n"},
        _words("test.beforeAll", "test", "", _ONCE),
    ),
}  # fmt: skip
TESTS = 5
"""Tests of a file."""


def packed(folder: Path) -> Path:
    """Return a folder with the package as npm would publish it, and beside it links to what the runners need."""
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder)]
    done = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, check=True, timeout=SECONDS)
    modules = folder / "node_modules"
    modules.mkdir()
    with tarfile.open(folder / done.stdout.strip()) as archive:
        archive.extractall(folder, filter="data")
    shutil.move(folder / "package", modules / "llmproxy-replay")
    for each in (NODE / "node_modules").iterdir():
        if each.name != "llmproxy-replay":
            (modules / each.name).symlink_to(each)
    return modules


@dataclass(frozen=True, slots=True)
class Suite:
    runner: Runner
    folder: Path
    files: int

    @classmethod
    def make(cls, runner: Runner, folder: Path, modules: Path, files: int) -> Suite:
        (folder / "tests").mkdir(parents=True)
        (folder / "node_modules").symlink_to(modules)
        (folder / "agent.mjs").write_text(AGENT.format(openai=_ESM, export="export "))
        required = AGENT.format(openai='const { default: OpenAI } = require("openai");', export="")
        (folder / "agent.cjs").write_text(f"{required}exports.agent = agent;\n")
        (folder / "package.json").write_text('{"name": "suite", "private": true}')
        for name, text in runner.config.items():
            (folder / name).write_text(text)
        for n in range(files):
            (folder / "tests" / f"part{n}{runner.suffix}").write_text(runner.render(n))
        return cls(runner, folder, files)

    @classmethod
    def interleaved(cls, runner: Runner, folder: Path, modules: Path, files: int, seed: int) -> Suite:
        made = cls.make(runner, folder, modules, 0)
        (folder / "package.json").write_text('{"private": true, "llmproxy": {"cassetteDir": "cassettes"}}')
        shutil.copy(NODE / "play.cjs", folder)
        chance = random.Random(seed)
        for n in range(files):
            (folder / "tests" / f"part{n}{runner.suffix}").write_text(runner.interleave(n, chance))
        return made

    def echo(self) -> Provider:
        """Return a provider that answers each question of `interleaved` tests with the question, once."""
        files = [file.read_text("utf-8") for file in (self.folder / "tests").iterdir()]
        who = [each for text in files for each in set(re.findall(r"f\d+t\d+|file\d+", text))]
        said = [f"{each} asks {number}" for each in who for number in range(20)]
        return Provider(load({"ordered": False, "steps": [{"user": each, "say": each} for each in said]}), check=False)

    def astray(self) -> list[str]:
        """Return what is recorded in a cassette of somebody else: of each cassette of a test, and of a file."""
        wrong = []
        for each in (self.folder / "cassettes").iterdir():
            test, file = re.search(r"f\d+t\d+", each.name), re.search(r"part(\d+)", each.name)
            owner = test[0] if test else f"file{file[1] if file else ''}"
            asked = set(re.findall(r"(\w+) asks \d+", each.read_text("utf-8")))
            wrong += [f"{each.name} has a call of {who}" for who in asked if who != owner]
        return wrong

    def environment(self, upstream: str, **env: str) -> dict[str, str]:
        known = {
            "LLMPROXY_COMMAND": " ".join(program("llmproxy")), "OPENAI_BASE_URL": f"{upstream}/v1",
            "TMPDIR": str(self.folder.parent), "HOME": str(self.folder), "NO_COLOR": "1",
        } | env  # fmt: skip
        return clean_env(known)

    def command(self, *more: str) -> list[str]:
        command = [*self.runner.command, *more]
        command[0] = shutil.which("node") or "node" if command[0] == "node" else str(self.folder / command[0])
        return command

    def run(self, upstream: str, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*more), cwd=self.folder, env=self.environment(upstream, **env), capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip

    def provider(self) -> Provider:
        """Return a provider that expects what its tests ask, each question once, and answers with the question."""
        said = [f"{each} {n}" for n in range(self.files) for each in ("one", "at once a", "at once b", "at once c")]
        said += [f"shared by file {n}" for n in range(self.files)]
        steps: list[dict[str, object]] = [{"user": each, "say": each} for each in said]
        flaky = "tries" in self.runner.words["retry"]
        for n in range(self.files):
            said = [*(["not yet?"] if flaky else []), f"again {n}"]
            steps += [{"user": f"again {n}", "say": each} for each in said]
        return Provider(load({"ordered": False, "steps": steps}))


def left_over(folder: Path) -> list[str]:
    """Return what still runs, or lies, of a run in this folder."""
    return [str(each) for each in folder.glob("llmproxy-node-*/*")]
