"""Go, Java, Ruby and PHP with their standard HTTP clients: what they ask is recorded, and replayed byte for byte with nobody upstream.

Where a language is missing its test is skipped, loudly; LLMPROXY_TEST_REQUIRE=go,java,ruby,php makes that a failure. `all` does not: a
machine without them runs everything else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.coding.lab import DEAD, counted
from tests.provider import Provider, load
from tests.support.forked import program
from tests.support.process import clean_env, needed

HERE = Path(__file__).parent
LANGUAGES = {
    "go": ("go", "run", "main.go"),
    "java": ("java", "Main.java"),
    "ruby": ("ruby", "main.rb"),
    "php": ("php", "main.php"),
}
ASKED = ("plain", "stream", "first", "second", "third", "east", "north", "south", "west")
SLOW_DOWN = {"error": {"message": "slow down", "type": "rate_limit"}}
DIALOGUE = {
    "ordered": False,
    "steps": [
        *({"user": each, "say": f"Grüße aus {each} ✓"} for each in ASKED),
        {"user": "error", "status": 429, "headers": {"retry-after": "1"}, "json": SLOW_DOWN},
    ],
}


def command_of(language: str) -> list[str]:
    """Return how its program is started; skips the test where the language is missing."""
    program, *rest = LANGUAGES[language]
    if (found := shutil.which(program)) is None:
        needed(f"no {program} on this machine", language, rare=True)
    if (
        language == "php"
        and subprocess.run([found, "-r", "exit((int) !function_exists('curl_init'));"], check=False).returncode
    ):
        needed("this PHP has no curl", "php", rare=True)
    return [found, *rest]


@pytest.mark.parametrize(
    "language", [pytest.param(each, marks=pytest.mark.slow if each == "java" else ()) for each in LANGUAGES]
)
def test_a_program_replays_byte_for_byte(language: str, tmp_path: Path) -> None:
    """Plain, streamed, over a kept connection, four at once, and an error; each asked once upstream, and never again."""
    command = command_of(language)
    with Provider(load(DIALOGUE)) as up:
        recorded = _run(command, tmp_path, up.url, "--mode", "record")
        assert (recorded.returncode, len(up.requests)) == (0, 10), recorded.stdout.decode() + recorded.stderr.decode()
    replayed = _run(command, tmp_path, DEAD)
    assert replayed.stdout == recorded.stdout
    assert (counted(replayed.stderr.decode(), "hit"), counted(replayed.stderr.decode(), "miss")) == (10, 0)
    lines = [
        line.split(" ", 2) for line in recorded.stdout.decode().splitlines() if line.split(" ")[0] in (*ASKED, "error")
    ]
    assert [(name, status) for name, status, _ in lines] == [*((each, "200") for each in ASKED), ("error", "429")]
    assert all("✓" in text for name, _, text in lines if name not in ("stream", "east", "west", "error"))


def _run(command: list[str], folder: Path, upstream: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    asked = ["--store", str(folder / "x.db"), "--upstream", f"openai={upstream}"]
    whole = [*program("llmproxy"), "run", *options, *asked, "--", *command]
    kept = {name: os.environ[name] for name in ("GOCACHE", "GOPATH", "JAVA_HOME") if name in os.environ}
    env = clean_env({"OPENAI_API_KEY": "sk-test", **kept})
    return subprocess.run(
        whole, cwd=HERE, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False
    )
