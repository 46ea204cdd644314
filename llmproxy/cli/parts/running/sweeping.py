"""``llmproxy run --faults sweep``: the command again and again, with one fault on purpose each."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmproxy.cli.parts.options import refuse_live
from llmproxy.cli.parts.recording import record_first
from llmproxy.cli.parts.running.ending import write_result
from llmproxy.cli.parts.running.opening import place_tools, plan_for, read_tools, start_options
from llmproxy.errors import Exit, SettingsError
from llmproxy.store_server import show_store

if TYPE_CHECKING:
    from llmproxy.cli.parts.running.asked import RunAsked
    from llmproxy.client.process import Attached
    from llmproxy.settings import Loaded


def sweep(asked: RunAsked, loaded: Loaded, env: Mapping[str, str]) -> int:
    """Run the command again and again in replay, with one fault on purpose each; returns 1 if one breaks it. Raises LLMProxyError."""
    from llmproxy.cli.parts.telling.sweep import given_input, tell_findings, teller, usual_jobs
    from llmproxy.client.process import find_program, running_at
    from llmproxy.client.sweep import asked_kinds
    from llmproxy.client.sweep_command import OpenedRun, Sweep, Swept

    refuse_live(loaded, "llmproxy run --faults sweep")
    kinds = asked_kinds(loaded.settings.faults)
    if str(asked.flags.get("mode") or "replay") not in ("replay", "none"):
        raise SettingsError("a sweep replays: leave --mode out.", hint=f"Record first: {record_first(loaded)}")
    find_program(asked.command, env)
    if asked.options.json is not None:
        write_result(asked.options.json, {})  # a file of an earlier run says nothing of this one
    declared, tools = asked.circumstances(env), read_tools(asked, env)
    flags = {**asked.flags, "faults": None, "faults_seed": None, "mode": "replay"}
    jobs = 1 if running_at(env) else asked.options.jobs or usual_jobs()
    with tempfile.TemporaryDirectory(prefix="llmproxy-run-") as folder:

        def open_trial(proxy: Attached, faults: Mapping[str, Any]) -> OpenedRun:
            report = proxy.control.open(
                loaded.settings.cassette,
                mode="replay",
                upstreams=(tools.config.upstreams or None) if tools else None,
                circumstances=declared,
                faults=faults,
                patience=10.0,
            )
            mine, own = asked, Path(tempfile.mkdtemp(dir=folder))
            if tools is not None:
                mine, _ = place_tools(asked, tools, proxy.url, report.name, own)
            return OpenedRun(
                report.name, mine.command, plan_for(proxy, report, env, mine, Path(folder)).applied_to(env)
            )

        run = Sweep(
            Swept(
                options=start_options(flags, forward=asked.options.intercept),
                env={name: value for name, value in env.items() if not name.startswith("LLMPROXY_FAULTS")},
                open=open_trial,
                kinds=kinds,
                jobs=jobs,
                patience=asked.options.patience,
                stdin=given_input(),
                tell=teller(),
                started_by=asked.typed,
                record=record_first(loaded),
            )
        )
        typed = " ".join([asked.typed, "--faults FAULT", *_format_choice(loaded), "--", shlex.join(asked.command)])
        try:
            run.run()
        except KeyboardInterrupt:
            tell_findings(run.findings, typed, asked.options.json)
            return Exit.INTERRUPTED
    return tell_findings(run.findings, typed, asked.options.json)


def _format_choice(loaded: Loaded) -> list[str]:
    """Return the options that say which recording is meant, as they were typed."""
    named = {"store": show_store(loaded.settings.store), "cassette": loaded.settings.cassette}
    return [
        f"--{name} {shlex.quote(value)}"
        for name, value in named.items()
        if loaded.sources[name].was_typed(environment=False)
    ]
