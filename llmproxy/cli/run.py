"""``llmproxy run -- COMMAND``: a proxy for the length of one command, which needs no change to use it.

The child has our stdin, stdout and signals, and an environment in which every SDK finds the proxy. We say one line at the end, on
stderr, and end with the child's exit code.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.cli.parts.options import OnAFreePort, flags_of, gather
from llmproxy.errors import Exit, LLMProxyError, MachineError, SettingsError

if TYPE_CHECKING:
    from llmproxy.client.control.client import Report
    from llmproxy.client.environment.build import Interception, Plan
    from llmproxy.client.process.attach import Attached
    from llmproxy.settings import Loaded

_OF_THE_CHILD = ("fail_on_miss", "strict", "quiet", "mode", "cassette", "speed", "exhausted", "verbose", "bind")
"""Options that make sense with a proxy that runs already."""
_SUMMARY = re.compile(r"^[0-9][0-9,]* hits?(?: \([^)\n]*\))?, .*$", re.MULTILINE)
_CALLS = re.compile(r"^[0-9:]{8}\s+(REPLAY|RECORD|PASS|REFUSE|MISS)\b", re.MULTILINE)
_MISSES = re.compile(r"([0-9][0-9,]*) miss(?:es)?\b")


def register(app: typer.Typer) -> None:
    """Add the command."""
    settings = {"allow_interspersed_args": False}
    app.command("run", cls=OnAFreePort, context_settings=settings)(run)


def run(
    ctx: typer.Context,
    command: list[str] = typer.Argument(..., metavar="-- COMMAND...", help="What to run, with its own options."),
    intercept: bool = typer.Option(
        False, "--intercept", help="Intercept HTTPS as well, for clients whose base URL cannot be changed."
    ),
    base_urls: bool = typer.Option(
        True, "--base-urls/--no-base-urls", help="Set base-URL variables; without, only --intercept is used."
    ),
    mount_at: Path | None = typer.Option(
        None,
        "--mount-at",
        metavar="PATH",
        help="Show this folder to the command at PATH, so that it has one path wherever it is recorded and replayed. (Linux)",
    ),
    circumstance: list[str] = typer.Option(
        [],
        "--circumstance",
        metavar="NAME=VALUE",
        help="What is true of this run only, besides its folder, home and day: recorded and present values are exchanged.",
    ),
) -> None:
    """Run a command with the proxy: its LLM calls are replayed, or recorded."""
    if not base_urls and not intercept:
        raise SettingsError("--no-base-urls leaves nothing to do without --intercept")
    asked = Asked(flags_of(ctx), tuple(command), intercept, base_urls, mount_at, tuple(circumstance))
    raise typer.Exit(execute(asked, os.environ))


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed."""

    flags: Mapping[str, object]
    command: tuple[str, ...]
    intercept: bool
    base_urls: bool
    mount_at: Path | None = None
    circumstance: tuple[str, ...] = ()

    def circumstances(self, env: Mapping[str, str]) -> list[dict[str, str]]:
        """Return what is true of this run only; what was typed takes the place of what was found. Raises SettingsError."""
        from llmproxy.client.environment.circumstances import gather_circumstances, read_circumstances

        found = gather_circumstances(env, Path.cwd(), git=True)
        if self.mount_at is not None:
            found = [{"name": "cwd", "value": str(self.mount_at)}, *(each for each in found if each["name"] != "cwd")]
        typed = read_circumstances(list(self.circumstance))
        names = {each["name"] for each in typed}
        return [*(each for each in found if each["name"] not in names), *typed]

    @property
    def child(self) -> tuple[str, ...]:
        """The command line that is run."""
        if self.mount_at is None:
            return self.command
        from llmproxy.client.process.mounted import mounted_command

        return mounted_command(self.mount_at, self.command)

    @property
    def typed(self) -> str:
        """Return how it begins, for what a miss advises; the command itself may hold what nobody else should read."""
        switches = {"--intercept": self.intercept, "--no-base-urls": not self.base_urls}
        return " ".join(["llmproxy run", *(name for name, given in switches.items() if given)])


def execute(asked: Asked, env: Mapping[str, str]) -> int:
    """Do everything and return the exit code.

    Raises:
        LLMProxyError: nothing was run.

    """
    from llmproxy.client.process import child
    from llmproxy.client.process.attach import attached, running_at

    loaded = gather(asked.flags)
    child.find(asked.command, env)
    if asked.mount_at is not None:
        from llmproxy.client.process.mounted import check_mount

        check_mount(asked.mount_at)
    if running_at(env):
        _refuse_options_of_start(asked.flags)
    declared = asked.circumstances(env)
    since = time.time()
    with tempfile.TemporaryDirectory(prefix="llmproxy-run-") as folder:
        log = Path(folder) / "proxy.log"
        options = start_options(asked.flags, forward=asked.intercept)
        with attached(options, env, log=log, started_by=asked.typed) as proxy:
            opened = open_session(proxy, loaded, env, declared)
            plan = plan_for(proxy, opened, env, asked, Path(folder))
            _say(*(f"llmproxy: {note}" for note in plan.notes))
            code = child.run(asked.child, plan.applied_to(env))
            end = Ending(proxy, opened.name, since, loaded, asked.command)
            end.close(failed=code != Exit.OK)
        said = proxy.process.said if proxy.process else ""
        if loaded.settings.verbose:
            _say(said.rstrip())
        return end.tell(code, said, plan)


def start_options(flags: Mapping[str, object], *, forward: bool = False) -> list[str]:
    """Return what was typed as options of ``llmproxy start``; the files and variables it reads itself."""
    from llmproxy.settings import options

    words: list[str] = []
    for option in options():
        value = flags.get(option.name)
        if option.name == "forward" and forward:
            words.append(option.flag)
        elif value is None or value in ((), []) or option.name == "quiet" or not option.has_flag:
            continue
        elif option.boolean:
            words.append(option.flag if value else f"--no-{option.key}")
        else:
            values = value if isinstance(value, list | tuple) else [value]
            words += [f"{option.flag}={each}" for each in values]
    return words


def open_session(
    proxy: Attached, loaded: Loaded, env: Mapping[str, str], declared: Sequence[Mapping[str, str]] = ()
) -> Report:
    """Open the session that the child's URLs name: the cassette's; `declared` are its circumstances."""
    from llmproxy.client.environment.build import upstreams_of

    settings, sources = loaded.settings, loaded.sources
    if proxy.process is not None:
        return proxy.control.open(settings.cassette, circumstances=declared)
    return proxy.control.open(
        settings.cassette,
        mode=str(settings.mode) if sources["mode"] != "default" else None,
        exhausted=str(settings.exhausted) if sources["exhausted"] != "default" else None,
        speed=settings.speed if sources["speed"] != "default" else None,
        upstreams=upstreams_of(env, proxy.url) or None,
        circumstances=declared,
        bind=str(settings.bind) if sources["bind"] != "default" else None,
    )


def plan_for(proxy: Attached, opened: Report, env: Mapping[str, str], asked: Asked, folder: Path) -> Plan:
    """Return the child's variables."""
    from llmproxy.client.environment.build import plan
    from llmproxy.protocol import Mode

    interception = intercept_files(proxy, env, folder) if asked.intercept else None
    replay = opened.mode == Mode.REPLAY
    aws = (Path.home() / ".aws").is_dir()
    return plan(
        proxy.url, opened.name, env, replay=replay, base_urls=asked.base_urls, interception=interception, aws_files=aws
    )


def intercept_files(proxy: Attached, env: Mapping[str, str], folder: Path) -> Interception:
    """Write the bundle that an intercepted child trusts.

    Raises:
        MachineError: the proxy does not intercept, or its certificate is gone.

    """
    from llmproxy.client.environment.build import Interception
    from llmproxy.client.environment.certificates import combine, java_truststore, presets

    ca = proxy.control.health().ca
    if ca is None:
        raise MachineError(
            f"the proxy at {proxy.url} does not intercept HTTPS.",
            hint="Start it with --forward, or leave --intercept out.",
        )
    bundle = combine(Path(ca), presets(env), folder / "bundle.pem")
    return Interception(ca, str(bundle), java_truststore(Path(ca), folder))


def _refuse_options_of_start(flags: Mapping[str, object]) -> None:
    from llmproxy.settings import options

    typed = [
        each.flag
        for each in options()
        if each.name not in _OF_THE_CHILD and flags.get(each.name) is not None and flags[each.name] not in ((), [])
    ]
    if typed:
        hint = "Unset LLMPROXY_URL to start a proxy of its own."
        raise SettingsError(
            f"{', '.join(typed)}: LLMPROXY_URL is set, and the proxy that runs there has options of its own.", hint=hint
        )


LOOKED_AT = 500
"""Calls that are looked at for refusals: each comes with its recording, and a long session has many."""


@dataclass(slots=True)
class Ending:
    """What is said and returned after the child."""

    proxy: Attached
    session: str
    since: float
    """Unix time when the run began: older misses in the journal are not ours."""
    loaded: Loaded
    command: tuple[str, ...] = ()
    report: Report | None = None
    misses: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Why requests were refused, other than misses: an upstream that could not be reached."""
    trouble: str = ""

    def close(self, *, failed: bool = False) -> None:
        """Close the session and end the proxy, if it is ours; what goes wrong is told later, it must not hide the child's code.

        A command that `failed`, or was interrupted, leaves its cassette open: mode `once` records what is missing the next time.
        """
        from llmproxy.client.control.client import ControlError

        try:
            self.refused = self._refused()
            self.report = self.proxy.control.close(self.session, complete=False if failed else None)
            if self.proxy.process is None:
                self.misses = self.report.miss_texts
            else:
                self.misses = tuple(miss.text for miss in self.proxy.control.misses() if miss.at >= self.since)
        except ControlError as error:
            self.trouble = str(error)
        self.proxy.end()

    def _refused(self) -> tuple[str, ...]:
        """Return the words of the last refusals, as far as they can be had: nothing else of the ending depends on them."""
        from llmproxy.client.control.client import ControlError
        from llmproxy.protocol import Decision

        found: list[str] = []
        with suppress(ControlError):
            if self.proxy.process is not None:  # of one that others use too, nobody knows whose such a request was
                strays = self.proxy.control.refused()
                found += [f"{each.method} {each.target}: {each.text}" for each in strays if each.at >= self.since]
            told = self.proxy.control.report(self.session)
            if told.refused:
                calls = self.proxy.control.walk(self.session, max(0, told.arrived - LOOKED_AT))
                found += [call.note for call in calls if call.decision == Decision.REFUSE and not call.miss]
        return tuple(found)

    def tell(self, code: int, log: str, plan: Plan) -> int:
        """Say what it came to, and return the exit code."""
        from llmproxy.client.control.summary import first_lines, one_line

        if self.trouble or self.report is None:
            _say(f"llmproxy: the proxy ended before the command did: {self.trouble}", log[-2000:].rstrip())
            return code or Exit.ENVIRONMENT
        sums: list[str] = _SUMMARY.findall(log)
        line = sums[-1] if sums else one_line(self.report)
        store = self.loaded.settings.store
        where = f", store {store.name if store.parent == Path.cwd() else store}" if self.report.recorded else ""
        _say(f"llmproxy: {line}  ({self.report.mode}, cassette {self.report.cassette}{where})")
        _say(*first_lines(self.misses, prefix="  miss: "))
        _say(*first_lines(self.refused, prefix="  refused: "))
        if self.misses:
            typed = f" --store {shlex.quote(str(store))}" if self.loaded.sources["store"].startswith("flag") else ""
            _say(f"  `llmproxy why{typed}` says what each asked for and which recording is nearest.")
        used = self.report.calls or _CALLS.search(log) or code in ENDED_BY_USER
        if not used:
            _say(*never_used(plan, self.proxy.url, self.command))
        if self.report.recorded and self.report.mode in ("record", "auto"):
            _say(*self._varying())
        lost = self.report.failed or self.proxy.exit_code == Exit.ENVIRONMENT
        if lost:
            _say("llmproxy: an answer could not be recorded: this recording is incomplete.")
        if doubts := self._doubts(self.report, line, used=bool(used)):
            named = "--strict" if self.loaded.settings.strict else "--fail-on-miss"
            _say(f"llmproxy: {named}: {', '.join(doubts)}: exit code {Exit.MISS}.")
            return Exit.MISS
        return code or (Exit.ENVIRONMENT if lost else Exit.OK)

    def _varying(self) -> list[str]:
        """Say how many values vary between this run and earlier ones of the cassette; what goes wrong there is no matter of this run."""
        from llmproxy.cli.learn import compare

        cassette = self.loaded.settings.cassette
        try:
            number = len(compare(self.loaded).lessons)
        except LLMProxyError:
            return []
        return (
            [
                f"llmproxy: {number} value{'s vary' if number > 1 else ' varies'} from run to run: llmproxy learn {shlex.quote(cassette)}"
            ]
            if number
            else []
        )

    def _doubts(self, report: Report, line: str, *, used: bool) -> tuple[str, ...]:
        """Return why this run proves nothing, where a proof was asked for."""
        from llmproxy.core.sessions.certify import Came, find_doubts

        settings = self.loaded.settings
        unused = None if report.unused is None else len(report.unused)
        came = Came(requests=int(used), misses=report.misses or _count_misses(line), unused=unused, bound=report.bound)
        return find_doubts(came, fail_on_miss=settings.fail_on_miss, strict=settings.strict)


def _count_misses(line: str) -> int:
    """Return the misses of a summary, those of other sessions among them."""
    found = _MISSES.search(line)
    return int(found[1].replace(",", "")) if found else 0


NAMED = 6
"""Variables that are named before the rest is only counted."""
ENDED_BY_USER = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def never_used(plan: Plan, url: str, command: tuple[str, ...] = ()) -> list[str]:
    """Return what to say when no request arrived."""
    from llmproxy.client.environment.clients import PROJECTS, advise, find_clients, is_configured
    from llmproxy.client.environment.variables import PROXIES

    files = {name: Path(name).read_text("utf-8", "replace") for name in PROJECTS if Path(name).is_file()}
    clients = [each for each in find_clients(command, files) if not is_configured(each, command)]

    names = [*plan.base_urls, *(name for name in PROXIES if name in plan.others)]
    given = " ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return [
        f"llmproxy: THE COMMAND NEVER USED THE PROXY: no request arrived at {url}; nothing was replayed or recorded.",
        f"  It was given: {given}",
        *advise(clients),
        "  A client whose base URL stands in code or in a file does not read them. Next:",
        "    llmproxy doctor -- COMMAND      says which program went past the proxy, and what to do about it",
        "    llmproxy run --intercept -- ... catches clients whose base URL cannot be changed",
    ]


def _say(*lines: str) -> None:
    """Write lines to stderr, each whole."""
    text = "".join(f"{line}\n" for line in lines if line)
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, err=True)
