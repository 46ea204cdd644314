"""``llmproxy rerecord``: record interactions, or all changed requests of a command, again.

Single requests go through a temporary proxy that records each answer into a store of its own; only a complete,
successful answer replaces the old one, so a wrong key or an outage loses no recording. With a command, the proxy that
replays it sends the requests live (`engine.recording_replacement`).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from decimal import Decimal
from email.utils import formatdate
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

import typer

from llmproxy.advice import format_llmproxy_command
from llmproxy.amount_formatting import dollars
from llmproxy.cli.changes import run_command_in_replay
from llmproxy.cli.parts.options import CliRunArguments, CommandWithoutLiveOptions, format_record_command, load_settings
from llmproxy.cli.parts.printing import print_line, to_safe_line
from llmproxy.cli.parts.store_arguments import (
    is_interaction_number,
    open_given_store,
    parse_interaction_number,
    require_not_being_recorded,
)
from llmproxy.client.proxy_process import ProxyHandle, ensure_proxy
from llmproxy.core.dialects.usage_and_cost import MARGIN, compute_cost, compute_max_call_cost
from llmproxy.core.providers.provider_table import PROVIDERS, ApiKeyVariable
from llmproxy.core.secrets.redact import is_redacted_request
from llmproxy.core.store.row_conversion import extract_texts_and_cost
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Headers, Interaction, header
from llmproxy.core.traffic.websocket_frames import is_websocket_body
from llmproxy.errors import Exit, MachineError, SettingsError
from llmproxy.protocol import CHOSEN_RECORDING, UPDATE_VARIABLE, UpdateMode
from llmproxy.settings import Loaded

_UNSENT = frozenset({"host", "content-length", "accept-encoding", "connection", "transfer-encoding", "cookie"})
_PATIENCE = 600.0


def register(app: typer.Typer) -> None:
    app.command("rerecord", cls=CommandWithoutLiveOptions)(rerecord_interactions)


def rerecord_interactions(
    ctx: typer.Context,
    words: list[str] = typer.Argument(
        ...,
        metavar="ID... [-- COMMAND]",
        help="Interactions, by `llmproxy ls`. With a command, requests that depend on new answers are recorded, too.",
    ),
    changed: bool = typer.Option(
        False, "--changed", help="Run a command on its recording, and record only changed requests again."
    ),
    change: list[str] = typer.Option([], "--change", metavar="NAME", help="With --changed: this change only. Repeats."),
) -> None:
    """Record requests again, with the environment's credentials: single interactions, or all that has changed since a
    command was recorded.
    """
    numbers = list(takewhile(is_interaction_number, words))
    if changed and numbers:
        raise SettingsError("either interactions or --changed.")
    asked = CliRunArguments.from_context(ctx, words if changed else words[len(numbers) :])
    if changed:
        raise typer.Exit(_rerecord_changed(asked, change))
    if change:
        raise SettingsError("--change goes with --changed.")
    loaded = load_settings(asked.flags)
    store = Path(str(asked.flags["store"])) if asked.flags.get("store") else None
    ids = [parse_interaction_number(word, "rerecord") for word in dict.fromkeys(numbers or words)]
    found = [_load_current_recording(each, store) for each in ids]
    if asked.command:
        raise typer.Exit(_rerecord_changed(asked, [f"{CHOSEN_RECORDING}{each.id}" for each in found]))
    requests = [build_rerecord_request(each, loaded) for each in found]
    if not _rerecord_one_by_one(requests, store, loaded.settings.max_cost):
        raise typer.Exit(int(Exit.FAILED))


def _rerecord_changed(asked: CliRunArguments, change: Sequence[str]) -> int:
    asked = replace(asked, flags={**asked.flags, "mode": "replay", "allow_live": True})
    more = {UPDATE_VARIABLE: UpdateMode.CHANGED.value, "LLMPROXY_CHANGE": ",".join(change)}
    return run_command_in_replay(asked, load_settings(asked.flags), more)


class ProviderRequestToRerecord(NamedTuple):
    recorded: Interaction
    headers: Headers
    upstream: str
    """``NAME=URL``; empty for the provider's own host."""
    most: Decimal | None
    """Maximum cost of an answer in US dollars; None if unknown."""

    @property
    def label(self) -> str:
        return f"#{self.recorded.id} {self.recorded.cassette}"


def _load_current_recording(id_: int, store: Path | None) -> Interaction:
    """Return a live recording. Raises CassetteBusy, CassetteNotFound, SettingsError."""
    with open_given_store(store) as database:
        found = database.load(id_)
        live = {row.id for row in database.list_summaries(found.cassette)}
        require_not_being_recorded(database, {(found.cassette, found.sample)})
    if id_ not in live:
        hint = f"The numbers of today: {format_llmproxy_command('ls', database.path)}"
        raise SettingsError(f"interaction {id_} was replaced by a newer one.", hint=hint)
    return found


def build_rerecord_request(found: Interaction, loaded: Loaded) -> ProviderRequestToRerecord:
    """Return a request to send. Raises SettingsError."""
    headers = _build_live_headers(found, os.environ, format_record_command(loaded, found.cassette))
    target = _find_live_upstream(found, dict(loaded.settings.upstream))
    tokens, body = found.usage.input, parse_json_or_none(found.request.body)
    most = None
    if tokens is not None and isinstance(body, dict):
        most = compute_max_call_cost(found.provider, found.model, int(tokens * MARGIN) + 1, body)
    return ProviderRequestToRerecord(found, headers, target, most)


def start_recording_proxy(
    asked: Sequence[ProviderRequestToRerecord], store: Path, cassette: str, log: Path | None = None
) -> AbstractContextManager[ProxyHandle]:
    """Start a proxy of our own that records the answers into a cassette of `store`. Raises MachineError."""
    env = {name: value for name, value in os.environ.items() if name != "LLMPROXY_URL"}
    upstreams = sorted({f"--upstream={each.upstream}" for each in asked if each.upstream})
    options = ["--mode=record", f"--store={store}", f"--cassette={cassette}", "--max-cost=", *upstreams]
    return ensure_proxy(options, env, log=log, started_by="llmproxy run")


def _rerecord_one_by_one(
    questions: Sequence[ProviderRequestToRerecord], store: Path | None, limit: Decimal | None
) -> bool:
    spent, good = Decimal(0), True
    with tempfile.TemporaryDirectory(prefix="llmproxy-rerecord-") as folder:
        path = Path(folder) / "new.db"
        with start_recording_proxy(questions, path, "new", Path(folder) / "proxy.log") as proxy:
            for each in questions:
                if limit is not None and (each.most is None or spent + each.most > limit):
                    most = "nobody knows what it costs" if each.most is None else f"it may cost {dollars(each.most)}"
                    left = f"{dollars(limit - spent)} of --max-cost are left"
                    print_line(f"#{each.recorded.id} is not asked: {most}, and {left}.")
                    return False
                named = each.recorded.model or each.recorded.operation
                typer.echo(f"asking {named} at {each.upstream or each.recorded.upstream} again ...", err=True)
                cost = _store_good_answer(each, _send_request(each, proxy.url, path), store)
                good, spent = good and cost is not None, spent + (cost or 0)
    return good


def _store_good_answer(question: ProviderRequestToRerecord, made: Interaction, store: Path | None) -> Decimal | None:
    """Replace the recording by a good answer; returns its cost, None if the recording is kept."""
    found, answer = question.recorded, made.response
    if answer.status >= 400 or answer.ending.value != "complete":
        said = f"{answer.status} {to_safe_line(answer.reason)} ({answer.ending.value})"
        print_line(f"The answer was {said}; the recording stays as it is.")
        print_line(to_safe_line(answer.body[:600].decode("utf-8", "replace")))
        return None
    with open_given_store(store, writable=True) as database:
        new = _replace_recording(database, found, made)
    same = extract_texts_and_cost(made)[:2] == extract_texts_and_cost(found)[:2]
    print_line(f"#{found.id} is replaced by #{new}, whose answer is {'the same' if same else 'another one'}.")
    if not same:
        follows = f"{format_llmproxy_command(f'rerecord {new}', database.path)} -- COMMAND"
        print_line(f"What is different: {format_llmproxy_command(f'diff {found.id} {new}', database.path)}")
        print_line(f"Turns after it hold the old answer, and miss if your agent says the new one. With them: {follows}")
    cost = compute_cost(made.provider, made.model, made.usage)
    return (question.most or Decimal(0)) if cost is None else cost


def _build_live_headers(found: Interaction, env: Mapping[str, str], record: str) -> Headers:
    """Return headers with a key from the environment if one was recorded; `record` is advice. Raises SettingsError."""
    request = found.request
    if is_websocket_body(found.response.headers):
        raise SettingsError("a WebSocket cannot be asked again by one request: record it with your agent.")
    if is_redacted_request(request):
        msg = f"a secret was taken out of the request of {found.id}, and nobody knows it any more"
        raise SettingsError(f"{msg}: it cannot be asked again.", hint=f"Record it with your agent: {record}")
    sent = [(name, value) for name, value in request.headers if name.lower() not in _UNSENT]
    plain = [(name, value) for name, value in sent if "REDACTED" not in value]
    row = PROVIDERS.get(found.provider)
    if row is not None and row.signed:
        raise SettingsError(f"requests to {found.provider} are signed anew for each call: record it with your agent.")
    keys = (row and row.keys) or (ApiKeyVariable(f"{re.sub('[^A-Z0-9]', '_', found.provider.upper())}_API_KEY"),)
    fields = {name: held for key in keys for name, held in key.list_header_fields().items()}
    if (name := next((name for name in fields if env.get(name)), None)) is None:
        if len(plain) < len(sent):
            raise SettingsError(f"{found.provider} wants a key: set {' or '.join(fields)}.")
        return tuple(plain)
    return (*plain, (fields[name], env[name]) if fields[name] else ("authorization", f"Bearer {env[name]}"))


def _find_live_upstream(found: Interaction, configured: Mapping[str, str]) -> str:
    """Return the upstream as ``NAME=URL``; empty for the provider's own host.

    A recording may come from somebody else, so its recorded upstream does not decide where our key is sent. Raises
    SettingsError.
    """
    if found.provider in configured:
        return f"{found.provider}={configured[found.provider]}"
    known = PROVIDERS.get(found.provider)
    if known is not None and known.upstream and known.upstream.startswith(found.upstream):
        return ""
    origin = to_safe_line(found.upstream)
    msg = f"interaction {found.id} was recorded from {origin}, which is not {found.provider}'s own host."
    hint = f"To send it there, with your credentials: --upstream {found.provider}={origin}/v1"
    raise SettingsError(msg, hint=hint)


def _send_request(question: ProviderRequestToRerecord, proxy: str, path: Path) -> Interaction:
    """Return the request with its new answer, which a proxy stored at `path`. Raises MachineError."""
    found = question.recorded
    url = f"{proxy}/{quote(found.provider)}{found.request.target}"
    asked = found.request
    request = Request(url, asked.body or None, dict(question.headers), method=asked.method)  # noqa: S310 - ours
    last = _find_last_recorded_id(path)
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=_PATIENCE) as answer:
            answer.read()
    except HTTPError as error:
        error.read()
    except (URLError, OSError) as error:
        raise MachineError(f"the answer did not arrive: {error}") from error
    if (made := _find_last_recorded_id(path)) == last:
        msg = f"{found.provider} could not be asked: nothing was recorded."
        raise MachineError(msg, hint="Is it reachable from here?")
    with open_given_store(path) as database:
        return database.load(made)


def _find_last_recorded_id(path: Path) -> int:
    if not path.exists():
        return 0
    with open_given_store(path) as database:
        return database.find_last_id("new") or 0


def _replace_recording(database: Store, old: Interaction, new: Interaction) -> int:
    kept = {name: getattr(new, name) for name in ("usage", "model", "redacted", "made_ids")}
    response = new.response
    if header(response.headers, "date") is None:  # who keeps a response without a date appends one (RFC 9110, 6.6.1)
        response = replace(response, headers=(*response.headers, ("date", formatdate(new.started_at, usegmt=True))))
    return database.add_interactions(
        [InteractionToStore(replace(old, id=None, response=response, **kept), instead=old.id)]
    )[0]
