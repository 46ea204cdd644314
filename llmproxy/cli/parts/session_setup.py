"""Setup of a run: proxy options, session, MCP servers, environment variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmproxy.cli.parts.options import CliRunArguments
from llmproxy.cli.parts.printing import to_safe_line
from llmproxy.client.child_env import (
    EnvironmentPlan,
    find_env_upstreams,
    list_env_ca_bundles,
    plan_env,
    write_ca_bundle_files,
)
from llmproxy.client.control import CONFLICT, ControlError
from llmproxy.client.proxy_process import ProxyHandle
from llmproxy.client.session_reports import SessionReport
from llmproxy.client.tools.agent_mcp_servers import FoundMcpServers, find_agent_mcp_servers, rewrite_mcp_config
from llmproxy.errors import SettingsError
from llmproxy.protocol import RUN_VARIABLE
from llmproxy.settings import Loaded, Settings, list_options_of_settings


def build_start_flags(
    flags: Mapping[str, object], *, forward: bool = False, tools: FoundMcpServers | None = None
) -> list[str]:
    """Return the given options of ``llmproxy start``, except files and variables, and the address for `tools`."""
    words: list[str] = []
    for option in list_options_of_settings():
        value = flags.get(option.name)
        if option.name == "forward" and forward:
            words.append(option.flag)
        elif value is None or value in ((), []) or option.name == "quiet" or not option.has_flag:
            continue
        elif option.boolean:
            words.append(option.flag if value else f"--no-{option.key}")
        else:
            words += [f"{option.flag}={each}" for each in (value if isinstance(value, list | tuple) else [value])]
    return words + [f"--upstream={name}={url}" for name, url in (tools.config.upstreams if tools else {}).items()]


def open_session(
    proxy: ProxyHandle,
    loaded: Loaded,
    env: Mapping[str, str],
    declared: Sequence[Mapping[str, str]] = (),
    tools: FoundMcpServers | None = None,
) -> SessionReport:
    """Open the session of the child's URLs; `declared` are run variables. Raises SettingsError, ControlError."""
    settings = loaded.settings
    if proxy.process is not None:
        return proxy.control.open_session(settings.cassette, run_variables=declared)
    upstreams = find_env_upstreams(env, proxy.url) | (tools.config.list_upstreams(proxy.url) if tools else {})
    given = ("mode", "exhausted", "speed", "bind")
    live: dict[str, object] | None = None
    if not loaded.is_default("live"):
        channels = [str(each) for each in settings.live]
        live = {"live": channels, "unknown_tool": str(settings.unknown_tool), "read_only": list(settings.read_only)}
    try:
        return proxy.control.open_session(
            settings.cassette,
            **{name: getattr(settings, name) for name in given if not loaded.is_default(name)},
            upstreams=upstreams or None,
            run_variables=declared,
            faults=read_faults(settings),
            live=live,
        )
    except ControlError as error:
        if error.status != CONFLICT or settings.cassette != env.get(RUN_VARIABLE):
            raise
        msg = f"this command stands within `llmproxy run` already, which serves cassette {settings.cassette}."
        hint = "Leave the inner `llmproxy run` out, or give it a cassette of its own: --cassette NAME."
        raise SettingsError(msg, hint=hint) from error


def find_mcp_servers_of_agent_command(asked: CliRunArguments, env: Mapping[str, str]) -> FoundMcpServers | None:
    """Return the known MCP servers of the agent to run. Raises SettingsError."""
    return find_agent_mcp_servers(asked.options.mcp_config, asked.command, env, Path.cwd())


def redirect_mcp_servers(
    asked: CliRunArguments, tools: FoundMcpServers | None, url: str, session: str, folder: Path
) -> tuple[CliRunArguments, list[str]]:
    """Route the command's MCP servers through the proxy by a copy of its configuration; returns a description."""
    if tools is None:
        return asked, []
    made, told = rewrite_mcp_config(tools.config, url, session, [sys.executable, "-m", "llmproxy"])
    said = [*told, *tools.notes] or ["the configuration names no server"]
    return replace(asked, command=tools.place(made, folder)), [f"llmproxy: mcp: {to_safe_line(each)}" for each in said]


def read_faults(settings: Settings) -> Mapping[str, Any] | None:
    if not settings.faults:
        return None
    from llmproxy.core.faults.parsing import load_faults

    return load_faults(settings.faults, Path.cwd(), seed=settings.faults_seed).to_json()


def plan_environment(
    proxy: ProxyHandle, opened: SessionReport, env: Mapping[str, str], asked: CliRunArguments, folder: Path
) -> EnvironmentPlan:
    interception = None
    if asked.options.intercept:
        ca, others = proxy.control.health().ca, list_env_ca_bundles(env)
        interception = write_ca_bundle_files(proxy.url, ca, others, folder / "bundle.pem")
    return plan_env(
        proxy.url,
        opened.name,
        env,
        replay=opened.needs_no_model_keys,
        base_urls=asked.options.base_urls,
        interception=interception,
        aws_files=(Path.home() / ".aws").is_dir(),
        recorded=asked.recorded,
        key_names=opened.key_names,
    )


def refuse_start_only_flags(flags: Mapping[str, object]) -> None:
    """Raise SettingsError for flags that apply only to a proxy started by this command."""
    given = {name for name, value in flags.items() if value is not None and value not in ((), [])}
    if typed := [each.flag for each in list_options_of_settings() if each.name in given and not each.of_session]:
        msg = f"{', '.join(typed)}: LLMPROXY_URL is set, and the proxy that runs there has options of its own."
        raise SettingsError(msg, hint="Unset LLMPROXY_URL to start a proxy of its own.")
