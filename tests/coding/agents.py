"""The coding agents of the lab, one row each: package, command, variables.

A row says how a real agent from npm is started without anybody at the terminal, which of its tools runs a shell command, and which
requests it makes on the side. Everything else (the dialogue, the folders, what must be true) is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

ASK = "What do my notes say?"

COMMON = {"ANTHROPIC_API_KEY": "sk-ant-test", "OPENAI_API_KEY": "sk-test", "IS_SANDBOX": "1"}
"""Variables that every agent gets: keys (the provider takes any), and that root may let it run commands."""


@dataclass(frozen=True, slots=True, eq=False)
class Agent:
    name: str
    package: str
    """Of npm, or of PyPI (`python`); more than one behind a space. `node/NAME` holds its lock, which the first build makes."""
    command: tuple[str, ...]
    """How it is asked ASK; ``$NAME`` is a variable of its environment (llmproxy's base URLs), ``{programs}`` the folder of ours."""
    tool: str
    """The tool that runs a shell command."""
    argument: str
    """The tool's argument that holds the command."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Its own, beside COMMON; ``{home}`` is its home."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments that the tool wants."""
    installer: str = ""
    """Script of its package that must run after the installation."""
    aside: tuple[Mapping[str, Any], ...] = ()
    """Steps of the script for what it asks on the side, as often as it likes."""
    stream: bool = True
    """Whether its questions want a stream."""
    source: str = ""
    """Where its package comes from, if not from npm's registry: a folder."""
    shares: str = ""
    """The row whose packages it runs, if not its own."""
    before: str = ""
    """What a shell does before the command, with the same variables."""
    python: str = ""
    """Of which Python its package is, if it is one of PyPI: what `uv venv --python` takes."""
    pause: str = ""
    """What each command ends with where the agent loses the output of a short one."""
    submits: str = ""
    """The command by which it ends, if it does not end with words; ``{said}`` is what it says."""
    says: tuple[str, ...] = ()
    """What it is asked line by line on its stdin if it has no tools: a call of its dialogue is then one of these."""


AGENTS = (
    Agent(
        "claude",
        "@anthropic-ai/claude-code",
        ("claude", "-p", ASK, "--allowedTools", "Bash", "--dangerously-skip-permissions"),
        "Bash",
        "command",
        {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        {"description": "look"},
        "install.cjs",
        ({"method": "HEAD", "path": "/"}, {"path": "*/count_tokens"}, {"stream": False, "say": "ok"}),
    ),
    Agent(
        "codex",
        "@openai/codex",
        (
            *("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "gpt-5"),
            *("-c", "model_provider=x", "-c", "model_providers.x.name=x"),
            *("-c", "model_providers.x.base_url=$OPENAI_BASE_URL", "-c", "model_providers.x.env_key=OPENAI_API_KEY"),
            *("-c", "model_providers.x.wire_api=responses", ASK),
        ),
        "exec_command",
        "cmd",
        {"CODEX_HOME": "{home}"},
        aside=({"method": "GET", "path": "*/models"},),
    ),
)


def _write(file: str, text: str) -> str:
    """Write a file of the home; ``$NAME`` in its text is a variable's value."""
    quoted = text.replace('"', '\\"')
    return f'mkdir -p "$(dirname ~/{file})" && echo "{quoted}" > ~/{file}'


_COPILOT = Agent(
    "copilot",
    "@github/copilot",
    ("copilot", "-p", ASK, "--allow-all-tools", "--allow-all-paths"),
    "bash",
    "command",
    {"COPILOT_OFFLINE": "true", "COPILOT_MODEL": "gpt-5"},
    {"description": "look"},
)
_CLAUDE = AGENTS[0]
_CLAUDE_SDK = replace(
    _CLAUDE, name="claude-sdk-py", package="claude-agent-sdk", command=("python", "{programs}/claude_sdk.py", ASK),
    tool="mcp__lab__shell", arguments={}, installer="", python=">=3.12",
)  # fmt: skip


def _framework(name: str, package: str, program: str, **more: Any) -> Agent:
    command = ("python", f"{{programs}}/{program}", ASK)
    return Agent(name, package, command, "shell", "command", python=">=3.12", **{"stream": False, **more})


MORE = (
    _COPILOT,
    replace(
        _COPILOT,
        name="copilot-responses",
        shares="copilot",
        variables={**_COPILOT.variables, "COPILOT_PROVIDER_WIRE_API": "responses"},
    ),
    replace(
        _COPILOT,
        name="copilot-anthropic",
        shares="copilot",
        variables={**_COPILOT.variables, "COPILOT_MODEL": "claude-sonnet-4.5", "COPILOT_PROVIDER_TYPE": "anthropic"},
    ),
    Agent(
        "gemini",
        "@google/gemini-cli",
        ("gemini", "-p", ASK, "--yolo", "--skip-trust", "-m", "gemini-2.5-pro"),
        "run_shell_command",
        "command",
        {"GEMINI_API_KEY": "test"},
        {"description": "look"},
        before=_write(".gemini/settings.json", '{"security":{"auth":{"selectedType":"gemini-api-key"}}}'),
    ),
    Agent(
        "qwen",
        "@qwen-code/qwen-code",
        ("qwen", "-p", ASK, "--yolo"),
        "run_shell_command",
        "command",
        {"OPENAI_MODEL": "gpt-4o"},
        {"description": "look", "is_background": False},
        aside=({"contains": "managed memory extraction subagent", "say": "ok"},),
        pause="; sleep 0.3",
    ),
    Agent(
        "opencode",
        "opencode-ai",
        ("opencode", "run", "--auto", "-m", "openai/gpt-4o", ASK),
        "bash",
        "command",
        {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        {"description": "look"},
        "postinstall.mjs",
        ({"contains": "You are a title generator", "say": "Notes"},),
    ),
    Agent(
        "pi",
        "@mariozechner/pi-coding-agent",
        ("pi", "--provider", "openai", "--model", "gpt-4o", "-p", ASK),
        "bash",
        "command",
        {"PI_OFFLINE": "1"},
        before=_write(".pi/agent/models.json", '{"providers":{"openai":{"baseUrl":"$OPENAI_BASE_URL"}}}'),
    ),
    Agent(
        "mini-swe-agent",
        "mini-swe-agent",
        ("mini", "-t", ASK, "-y", "--exit-immediately", "-m", "openai/gpt-4o"),
        "bash",
        "command",
        {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "true"},
        stream=False,
        python=">=3.12",
        submits="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo '{said}'",
    ),
    Agent(
        "aider",
        "aider-chat",
        (
            *("aider", "--no-fancy-input", "--yes-always", "--no-check-update", "--analytics-disable"),
            *("--no-show-model-warnings", "--no-gitignore", "--model", "openai/gpt-4o"),
        ),
        "",
        "",
        {"LITELLM_LOCAL_MODEL_COST_MAP": "true"},
        python=">=3.10,<3.13",
        says=(ASK, *(f"And line {number}?" for number in range(2, 11))),
    ),
    _CLAUDE_SDK,
    replace(
        _CLAUDE_SDK,
        name="claude-sdk-node",
        package="@anthropic-ai/claude-agent-sdk zod",
        python="",
        command=("node", "{programs}/claude_sdk.mjs", ASK),
    ),
    _framework("openai-agents", "openai-agents", "openai_agents.py"),
    _framework("deepagents", "deepagents langchain-openai langchain-mcp-adapters", "deep_agents.py"),
    _framework("strands", "strands-agents[openai]", "strands_agents.py", stream=True),
    _framework("adk", "google-adk[mcp]", "adk.py", variables={"GEMINI_API_KEY": "test"}),
)
"""Those that `scripts/lab/compatibility` alone runs, in their newest versions."""
