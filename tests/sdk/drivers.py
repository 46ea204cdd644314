"""The drivers: which program drives which SDK, from which environment, through which cases, against which upstream.

Two upstreams stand in for the providers and play the same dialogue (dialogue.json): aimock, which others wrote, and our own
scripted provider, which refuses what it did not expect and also speaks what aimock does not.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.provider import Script, load
from tests.support import Process
from tests.support.process import clean_env

from .environments import HERE, starter

DIALOGUE: dict[str, list[dict[str, Any]]] = json.loads((HERE / "dialogue.json").read_text("utf-8"))
UPSTREAMS = ("aimock", "provider")
CANARY = "canary0Zq7Wn4Vb9Kx2Lm8Tj5Rc"
"""Stands inside every key that a driver records with, and nowhere else."""
KEYS = {
    "OPENAI_API_KEY": f"sk-proj-{CANARY}openai",
    "ANTHROPIC_API_KEY": f"sk-ant-api03-{CANARY}anthropic",
    "GEMINI_API_KEY": f"AIzaSy{CANARY}gemini",
    "MISTRAL_API_KEY": f"{CANARY}mistral",
    "CO_API_KEY": f"{CANARY}cohere",
}
DRIVER_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Driver:
    """One client: an SDK in one version."""

    name: str
    environment: str
    script: str
    cases: tuple[str, ...]
    not_on: Mapping[str, tuple[str, ...]]
    """For each upstream, cases that it cannot play."""
    version: str = ""
    """Of a Node SDK: what stands behind its name in package.json."""

    def cases_on(self, upstream: str) -> list[str]:
        return [case for case in self.cases if case not in self.not_on.get(upstream, ())]


CHAT = ("plain", "stream", "stream_usage", "tools", "tools_stream", "structured")
RESPONSES = ("responses", "responses_stream", "responses_chain", "responses_tools")
OPENAI = (*CHAT, *RESPONSES, "embeddings", "audio", "models", "retry")
ANTHROPIC = ("plain", "stream", "stream_usage", "tools", "tools_stream", "count_tokens", "retry")
GEMINI = ("plain", "stream", "tools", "structured")
ROUTED = ("plain", "stream", "tools")

# aimock has no count_tokens and answers each request alike, so that it cannot throttle once; errors and Bedrock are the matrix's.
OURS_ONLY = {"aimock": ("count_tokens", "retry", "error", "invoke", "invoke_stream")}


def _routed(*routes: str) -> tuple[str, ...]:
    return tuple(f"{route}_{case}" for route in routes for case in ROUTED)


def _previous(name: str, script: str, cases: tuple[str, ...]) -> Driver:
    """Return one that our provider hears alone: aimock hears the newest of each SDK, and knows no versions."""
    node = script.endswith(".mjs")
    version = "-previous" if node else ""
    return Driver(name, "node" if node else "previous", script, cases, {"aimock": cases}, version)


DRIVERS: tuple[Driver, ...] = (
    Driver("openai-py", "newest", "drive_openai.py", (*OPENAI, "asynchronous"), OURS_ONLY),
    _previous("openai-py-2", "drive_openai.py", (*OPENAI, "asynchronous")),
    Driver("anthropic-py", "newest", "drive_anthropic.py", (*ANTHROPIC, "asynchronous"), OURS_ONLY),
    _previous("anthropic-py-0", "drive_anthropic.py", (*ANTHROPIC, "asynchronous")),
    Driver("genai-py", "newest", "drive_genai.py", (*GEMINI, "asynchronous"), {}),
    _previous("genai-py-1", "drive_genai.py", (*GEMINI, "asynchronous")),
    Driver("ollama-py", "newest", "drive_ollama.py", ("plain", "stream", "tools", "asynchronous"), {}),
    _previous("ollama-py-0.4", "drive_ollama.py", ("plain", "stream", "tools", "asynchronous")),
    Driver("mistral-py", "newest", "drive_mistral.py", ("plain", "stream", "tools"), {}),
    _previous("mistral-py-1", "drive_mistral.py", ("plain", "stream", "tools")),
    Driver("cohere-py", "newest", "drive_cohere.py", ("plain", "stream"), {"provider": ("plain", "stream")}),
    _previous("litellm", "drive_litellm.py", _routed("openai", "anthropic", "gemini")),
    Driver("openai-js", "node", "drive_openai.mjs", OPENAI, OURS_ONLY),
    _previous("openai-js-6.0", "drive_openai.mjs", OPENAI),
    Driver("anthropic-js", "node", "drive_anthropic.mjs", ANTHROPIC, OURS_ONLY),
    _previous("anthropic-js-0", "drive_anthropic.mjs", ANTHROPIC),
    Driver("genai-js", "node", "drive_genai.mjs", GEMINI, {}),
    _previous("genai-js-1", "drive_genai.mjs", GEMINI),
    Driver("ai-sdk", "node", "drive_ai.mjs", _routed("openai", "chat", "anthropic", "google"), {}),
    _previous("ai-sdk-5", "drive_ai.mjs", _routed("openai", "chat", "anthropic", "google")),
)


def script() -> Script:
    """The dialogue for our provider: in any order (several clients run at once), as often as asked."""
    steps = [{"times": None} | step for turns in DIALOGUE.values() for step in turns]
    return load({"ordered": False, "steps": steps})


def fixtures() -> list[dict[str, Any]]:
    """The same dialogue as aimock's fixtures."""
    made: list[dict[str, Any]] = []
    for case, turns in DIALOGUE.items():
        if case in (*OURS_ONLY["aimock"], "models"):
            continue
        for turn in turns:
            match: dict[str, Any] = {"userMessage": turn["user"], "hasToolResult": "tool_result" in turn}
            response: dict[str, Any] = {"content": turn.get("say", "")}
            if "call" in turn:
                response = {"toolCalls": turn["call"]}
            if case == "embeddings":
                match, response = {"inputText": turn["user"]}, {"embedding": [0.25, -0.5, 0.125, 1.0]}
            if case == "audio":
                match, response = {"endpoint": "transcription"}, {"transcription": {"text": turn["say"]}}
            made.append({"match": match, "response": response})
    return made


def base_urls(url: str, upstream: str, *, proxied: bool = True) -> dict[str, str]:
    """Variables that lead every SDK to `url`; not `proxied`: straight at the upstream, without our prefixes.

    aimock knows Gemini's v1beta only, so that the newest google-genai and litellm are told to ask for it there.
    """
    old_gemini = upstream == "aimock"
    return {
        **({"GOOGLE_GENAI_API_VERSION": "beta"} if old_gemini else {}),
        "OPENAI_BASE_URL": f"{url}/v1",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_BASE": url,
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_BASE": f"{url}/v1beta" if old_gemini else url,
        "OLLAMA_HOST": url,
        "MISTRAL_SERVER_URL": f"{url}/mistral" if proxied else url,
        "CO_API_URL": f"{url}/cohere" if proxied else url,
    }


Outcome = dict[str, dict[str, Any]]
"""Case -> what the driver printed for it."""


def run(
    driver: Driver,
    cases: list[str],
    env: Mapping[str, str],
    folder: Path,
    label: str,
    *,
    seconds: float = DRIVER_SECONDS,
) -> Outcome:
    """Run a driver through `cases`; a case it did not print is an error with its stderr."""
    how = {"CASES": ",".join(cases), "SDK_VERSION": driver.version, "PYTHONDONTWRITEBYTECODE": ""}
    full = clean_env({**how, **env})
    place = HERE / ("node" if driver.environment == "node" else "python")
    command = [starter(driver.environment), str(place / driver.script)]
    process, died = Process(command, folder, f"{driver.name}-{label}", full, cwd=place), ""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        died = f"still running after {seconds:g} s\n"
    finally:
        process.end()
    told, complained = process.stdout, process.stderr
    lines = [json.loads(line) for line in told.splitlines() if line.startswith('{"case"')]
    outcome: Outcome = {line["case"]: line for line in lines}
    for case in cases:
        lost = {"class": "DriverDied", "message": died + complained[-2000:], "status": None}
        outcome.setdefault(case, {"case": case, "seconds": 0.0, "error": lost})
    return outcome
