"""Clients that read no base-URL variable, as a table: for `llmproxy run`, which says what to set instead.

A client is recognised by a program that the command names, or by a package that the folder's project depends on. Measured with the
clients themselves; what is advised here was typed and seen to work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    advice: str
    """What to type."""
    program: str = ""
    """Pattern of a word of the command."""
    package: str = ""
    """Of npm or PyPI, as a project's file names it."""
    configured: str = ""
    """Pattern of a word of the command that says that it is set already."""


CLIENTS = (
    Client(
        "Codex",
        "it reads no variable: codex exec -c model_provider=x -c model_providers.x.name=x -c model_providers.x.base_url="
        '"$OPENAI_BASE_URL" -c model_providers.x.env_key=OPENAI_API_KEY -c model_providers.x.wire_api=responses ... '
        "(in `sh -c '...'`, so that the variable is the command's)",
        program=r"codex(\.js|\.exe)?",
        configured=r"base_url",
    ),
    Client(
        "@ai-sdk/google",
        "it reads no variable: createGoogleGenerativeAI({ baseURL: process.env.GOOGLE_GEMINI_BASE_URL && "
        "process.env.GOOGLE_GEMINI_BASE_URL + '/v1beta' })",
        package="@ai-sdk/google",
    ),
    Client(
        "Mistral's client",
        'it reads no variable: pass server_url (serverURL in JavaScript), os.environ["LLMPROXY_URL"] + "/mistral"',
        package="mistralai",
    ),
    Client(
        "Ollama's JavaScript client",
        "it reads no variable: new Ollama({ host: process.env.OLLAMA_HOST })",
        package="ollama",
    ),
)  # fmt: skip

_RUNS = r"(?:^|[;|&(]\s*|\b(?:npx|exec|env|nice)\s+)(?:[^\s;|&()]*[/\\])?(?:{0})(?=\s|$)"
"""Where a command begins: a prompt may hold the name as well."""
PROJECTS = ("package.json", "pyproject.toml", "requirements.txt")
"""Files that name what a project depends on."""


def find_clients(command: Sequence[str], files: Mapping[str, str]) -> list[Client]:
    """Return the clients of the table that a command, or its folder's project (name -> text of PROJECTS), seems to use."""
    words = [word for each in command for word in re.split(r"[\s;|&()'\"]+", each)]
    names = {word.replace("\\", "/").rpartition("/")[2] for word in words}
    return [
        client
        for client in CLIENTS
        if (client.program and any(re.fullmatch(client.program, name) for name in names))
        or (client.package and any(_depends(text, client.package) for text in files.values()))
    ]


def is_configured(client: Client, command: Sequence[str]) -> bool:
    """Tell whether the command itself says where its provider is."""
    return bool(client.configured) and any(re.search(client.configured, each) for each in command)


def advise(clients: Sequence[Client]) -> list[str]:
    """Return a line for each client: who, and what to set."""
    return [f"  {client.name}: {client.advice}" for client in clients]


def warn(command: Sequence[str]) -> list[str]:
    """Return what to say before a command runs: a program of the table that is not configured goes past the proxy."""
    shell = len(command) > 2 and command[1] == "-c"
    text = command[2] if shell else " ".join(command[:2])
    known = [
        each
        for each in CLIENTS
        if each.program and re.search(_RUNS.format(each.program), text) and not is_configured(each, command)
    ]
    return [f"llmproxy: {each.name} will go past the proxy, to its provider: {each.advice}" for each in known]


def _depends(text: str, package: str) -> bool:
    return re.search(rf"(?<![\w@/.-]){re.escape(package)}(?![\w/.-])", text) is not None
