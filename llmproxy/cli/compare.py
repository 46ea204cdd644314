"""``llmproxy diff``: two interactions by JSON path, or two cassettes by what an agent sees of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.cli.look import STORE, opened
from llmproxy.cli.printing import dump, line, say

if TYPE_CHECKING:
    from llmproxy.core.conversation import Message
    from llmproxy.core.interaction import Interaction
    from llmproxy.core.store import Store

_PLACES = 100
"""Differences that are listed."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diff")(diff)


def diff(
    old: str = typer.Argument(..., metavar="OLD", help="Number of an interaction; or a cassette, or a cassette file."),
    new: str = typer.Argument(..., metavar="NEW", help="What to compare it with."),
    store: Path | None = STORE,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show where two interactions differ, by JSON path; or two cassettes, by turns, tool calls, texts, tokens and cost."""
    with opened(store) as database:
        if old.isdecimal() and new.isdecimal():
            _interactions(database.load(int(old)), database.load(int(new)), as_json=as_json)
        else:
            _cassettes(database, old, new, as_json=as_json)


def _cassettes(database: Store, old: str, new: str, *, as_json: bool) -> None:
    from llmproxy.cli.exchange import rules_of
    from llmproxy.cli.importer import cassette_of
    from llmproxy.cli.options import gather
    from llmproxy.core.cassette_diff import cassette_diff

    loaded = gather({})
    rules, upstreams = rules_of(loaded), loaded.settings.upstream
    found = cassette_diff(*(cassette_of(name, database, rules, upstreams) for name in (old, new)))
    if as_json:
        dump(found.to_dict())
        return
    for text in found.lines(old, new):
        say(text)


def _interactions(a: Interaction, b: Interaction, *, as_json: bool) -> None:
    from llmproxy.core.explain import differences

    answers = _answer_trees(a, b)
    found = {
        "requests": differences(_request_tree(a), _request_tree(b), _PLACES),
        "answers": differences(*answers, _PLACES),
    }
    if as_json:
        plain = {part: [each.to_dict() for each in places] for part, places in found.items()}
        dump({"same_key": a.key == b.key, **plain})
        return
    say(f"keys: {'the same' if a.key == b.key else 'different'}")
    for part, places in found.items():
        say(f"{part}: {'equal' if not places else f'{len(places)} differences'}")
        for each in places:
            say(f"  {line(each.path)}" + (f"   (looks like {each.looks})" if each.looks else ""))
            say(f"    - {line(each.old)}\n    + {line(each.new)}")


def _tree(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "backslashreplace")


def _request_tree(one: Interaction) -> object:
    """Return what of a request may differ, its body last."""
    said = {"provider": one.provider, "method": one.request.method, "target": one.request.target}
    return {**said, "body": _tree(one.request.body)}


def _answer_trees(a: Interaction, b: Interaction) -> tuple[object, object]:
    """Return the answers as trees: JSON as it is; where one of them is a stream, what both say."""
    bodies = [_tree(one.response.body) for one in (a, b)]
    if any(isinstance(body, str) for body in bodies):
        said = [_said(one) for one in (a, b)]
        if None not in said:
            bodies = [asdict(message) for message in said if message is not None]
    statuses = [{"status": one.response.status, "ending": one.response.ending.value} for one in (a, b)]
    old, new = ({**status, "body": body} for status, body in zip(statuses, bodies, strict=True))
    return old, new


def _said(one: Interaction) -> Message | None:
    from llmproxy.core.conversation import answered
    from llmproxy.core.interaction import header
    from llmproxy.core.providers import family_of

    kind = header(one.response.headers, "content-type") or ""
    return answered(family_of(one.provider, one.operation), one.operation, kind, one.response.body)
