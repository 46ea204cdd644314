"""What was typed for a command that runs an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunAsked:
    flags: Mapping[str, object]
    command: tuple[str, ...]
    intercept: bool
    base_urls: bool
    circumstance: tuple[str, ...] = ()
    as_json: Path | None = None
    mcp_config: str | None = None
    """The agent's MCP configuration, as typed; `agents.NONE` for none."""
    recorded: tuple[str, ...] = ()
    """Hosts of other services that are recorded too."""
    runs: int | None = None
    """How often, with live channels; None: once."""

    def circumstances(self, env: Mapping[str, str]) -> list[dict[str, str]]:
        """Return what is true of this run only; what was typed takes the place of what was found. Raises SettingsError."""
        from llmproxy.client.environment.circumstances import gather_circumstances, read_circumstances

        found = gather_circumstances(env, Path.cwd(), git=True)
        typed = read_circumstances(list(self.circumstance))
        names = {each["name"] for each in typed}
        return [*(each for each in found if each["name"] not in names), *typed]

    @property
    def typed(self) -> str:
        """Return how it begins, for what a miss advises; the command itself may hold what nobody else should read."""
        return self.spell("llmproxy run")

    def spell(self, command: str) -> str:
        """Return how one of our commands begins that runs the agent in the same way."""
        from llmproxy.core.traffic.advice import quote_word

        switches = {"--intercept": self.intercept, "--no-base-urls": not self.base_urls}
        values = {"--mcp-config": self.mcp_config}
        words = [name for name, given in switches.items() if given]
        words += [f"{name} {quote_word(str(value))}" for name, value in values.items() if value is not None]
        return " ".join([command, *words])
