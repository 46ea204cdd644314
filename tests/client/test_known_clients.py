"""Clients that read no variable."""

from __future__ import annotations

import pytest

from llmproxy.client.known_clients import (
    CLIENTS,
    OTHER,
    RUNTIMES,
    find_clients,
    find_runtime,
    is_configured_in_command,
    list_bypass_warnings,
)


@pytest.mark.parametrize(
    ("command", "files", "names"),
    [
        (["codex", "exec", "hi"], {}, ["Codex"]),
        (["sh", "-c", "cd x && /opt/bin/codex exec 'hi'"], {}, ["Codex"]),
        (["npx", "codex.js"], {}, ["Codex"]),
        (["claude", "-p", "what is a codex-like thing?"], {}, []),
        (["npm", "test"], {"package.json": '{"dependencies": {"@ai-sdk/google": "^3"}}'}, ["@ai-sdk/google"]),
        (["npm", "test"], {"package.json": '{"dependencies": {"@ai-sdk/google-vertex": "^3"}}'}, []),
        (["pytest"], {"requirements.txt": "mistralai==3.7.0\n"}, ["Mistral's client"]),
        (["npm", "test"], {"package.json": '{"dependencies": {"ollama": "1"}}'}, ["Ollama's JavaScript client"]),
        (["true"], {}, []),
    ],
)
def test_a_client_is_known_by_its_program_or_its_package(
    command: list[str], files: dict[str, str], names: list[str]
) -> None:
    """Programs are whole words of the command, packages whole names of a project's file."""
    assert [each.name for each in find_clients(command, files)] == names


def test_codex_with_an_address_needs_no_advice() -> None:
    """What the command sets itself is not said again."""
    codex = CLIENTS[0]
    assert not is_configured_in_command(codex, ["codex", "exec", "hi"])
    assert is_configured_in_command(codex, ["sh", "-c", "codex -c model_providers.x.base_url=$OPENAI_BASE_URL"])


@pytest.mark.parametrize(
    ("command", "warned"),
    [
        (["codex", "exec", "hi"], True),
        (["/opt/bin/codex", "exec", "hi"], True),
        (["npx", "codex", "exec"], True),
        (["sh", "-c", "cd x && codex exec 'hi'"], True),
        (["sh", "-c", 'codex -c model_providers.x.base_url="$OPENAI_BASE_URL" hi'], False),
        (["claude", "-p", "run codex"], False),
        (["sh", "-c", "claude -p 'say codex'"], False),
        (["sh", "-c", "ls codex.d"], False),
    ],
)
def test_who_goes_past_the_proxy_is_said_before(command: list[str], warned: bool) -> None:
    """Only for a program that is run, not for one that is talked about, and not where it is configured."""
    assert bool(list_bypass_warnings(command)) is warned


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("/usr/bin/python3.13", "Python"),
        ("node", "Node"),
        ("C:\\tools\\NODE.EXE", "Node"),
        ("/usr/bin/java", "Java"),
        ("go", "Go"),
        ("docker", "a container or another machine"),
        ("./my-agent", OTHER.name),
    ],
)
def test_a_runtime_is_known_by_its_program(program: str, name: str) -> None:
    assert find_runtime(program).name == name


def test_every_runtime_has_advice_for_both_ways() -> None:
    assert [each.name for each in (*RUNTIMES, OTHER) if not (each.base_url and each.intercept)] == []
