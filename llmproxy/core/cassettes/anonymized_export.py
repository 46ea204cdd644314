"""Export of recordings for pull requests, with stand-ins for names of people and machines in run variables.

What was declared is renamed in requests and answers, as a bound hit renames it for its run. Signed thinking, names in
prose and names behind a terminal's colours stay: `describe_remaining_personal_names` says on which lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from llmproxy.amount_formatting import name_some
from llmproxy.core.bindings import (
    BadVolatileField,
    Bindings,
    Fit,
    Mismatch,
    RunVariable,
    RunVariableKind,
    VolatileField,
    deserialize_run_variables,
    dump_run_variables,
    parse_volatile_field,
    rewrite_answer,
    rewrite_request_to_this_run,
)
from llmproxy.core.cassettes.formats import ReadingProblem, Recorded
from llmproxy.core.cassettes.formats.jsonl import build_jsonl_line_object, parse_jsonl_exchange
from llmproxy.core.changes.accepted_change_model import AcceptedChange
from llmproxy.core.dialects.stream_events import write_json_like
from llmproxy.core.keys.head_rules import is_header_in_request_key
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.core.store.queries import Note, RecordingMaxAge
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import (
    Ending,
    Interaction,
    Key,
    Request,
    Response,
    TimedChunks,
    Usage,
    header,
    overwrite_existing_header,
)
from llmproxy.errors import CassetteCorrupt, remove_program_prefix
from llmproxy.protocol import AGENT

HOME = "/home/user"
_IMPERSONAL = frozenset({"/root", "/", HOME})
_NAMELESS = {"cwd": "/srv/project", "tmp": "/tmp/user"}  # noqa: S108 - no folder of this machine
_CALLED = {"user": frozenset({"root", "user"}), "host": frozenset({"localhost", "host"})}
"""Run variables that get their own names as values, and values that identify nobody."""

_BEGINS = r"(?:(?<![^\W_])|(?<=[0-9\[;]m)|(?<=\\[nrt]))"  # start of a word, also after a terminal's colour or an escape
_LEFT_OUT = ("git_user",)
"""Run variables whose only content is a person's name: replayed without one, any author may be this run's user."""


def anonymize_interaction(interaction: Interaction) -> Interaction:
    """Return a recording with stand-ins for personal values; the same object if it has no run variables."""
    if not interaction.run_variables:
        return interaction
    said, bindings = _build_stand_ins(interaction.run_variables)
    if not bindings.changed:
        return replace(interaction, run_variables=said)
    return replace(put_bound_values_in_interaction(interaction, bindings), run_variables=said)


def put_bound_values_in_interaction(interaction: Interaction, bindings: Bindings) -> Interaction:
    request = interaction.request
    response = rewrite_answer(bindings, Fit((), ()), interaction.response, strict=False)
    renamed = rewrite_request_to_this_run(bindings, tree := parse_json_or_none(request.body))
    return replace(
        interaction,
        request=request if renamed == tree else replace(request, body=write_json_like(renamed, like=request.body)),
        response=interaction.response if isinstance(response, Mismatch) else response,
    )


@lru_cache(64)
def _build_stand_ins(said: str) -> tuple[str, Bindings]:
    recorded = deserialize_run_variables(said)
    renamed = [_build_stand_in(each, recorded) for each in recorded if each.name not in _LEFT_OUT]
    return dump_run_variables(renamed), Bindings(recorded, renamed)


def _build_stand_in(each: RunVariable, all_of_them: Sequence[RunVariable]) -> RunVariable:
    if each.name in _CALLED:
        return each if each.value in _CALLED[each.name] else replace(each, value=each.name, other="")
    if each.kind is not RunVariableKind.PATH:
        return replace(
            each, value=_replace_name_words(each.value, all_of_them), other=_replace_name_words(each.other, all_of_them)
        )
    home = next((one for one in all_of_them if one.name == "home"), None)
    user = next((one.value for one in all_of_them if one.name == "user"), "")
    return replace(
        each,
        value=_strip_user_from_path(each.name, each.value, home, user),
        other=_strip_user_from_path(each.name, each.other, home, user),
    )


def _replace_name_words(text: str, all_of_them: Sequence[RunVariable]) -> str:
    for each in all_of_them:
        if each.name in _CALLED and each.value not in _CALLED[each.name]:
            text = re.sub(rf"(?<![^\W_]){re.escape(each.value)}(?![^\W_])", each.name, text, flags=re.IGNORECASE)
    return text


def _strip_user_from_path(name: str, path: str, home: RunVariable | None, user: str) -> str:
    for own in (home.value, home.other) if home is not None else ():
        if own and own not in _IMPERSONAL and (path == own or path.startswith(own + "/")):
            return HOME + path[len(own) :]
    if user and user != "root" and user.lower() in path.lower():
        return _NAMELESS.get(name, "/srv/folder")
    return path


def describe_remaining_personal_names(path: object, text: str, declared: Iterable[str]) -> Iterator[str]:
    """Yield which declared users, hosts and homes still stand in the text of a file (colours, prose), and where."""
    runs = [deserialize_run_variables(said) for said in set(declared) if said]
    called = {
        each.value for run in runs for each in run if each.name in _CALLED and each.value not in _CALLED[each.name]
    }
    homes = {
        value for run in runs for each in run if each.name == "home" for value in (each.value, each.other) if value
    }
    for name in sorted(called | (homes - _IMPERSONAL)):
        word = re.compile(rf"{_BEGINS}{re.escape(name)}(?![^\W_])", re.IGNORECASE)
        if lines := [number for number, line in enumerate(text.split("\n"), 1) if word.search(line)]:
            where = name_some(map(str, lines), shown=5)
            yield f"{path}: {name} still stands on line {where}: look at it before you commit the file."


def anonymize_recordings_for_file(
    interactions: Iterable[Interaction], notes: Sequence[Note] = (), *, whole: bool = False
) -> list[Recorded]:
    """Return recordings for pull requests, notes in the first; `whole`: for other programs."""
    recorded = list(interactions)
    if whole:
        found = [interaction_to_file_record(anonymize_interaction(each)) for each in recorded]
    else:
        plain = list(map(interaction_to_file_record, recorded))
        found = strip_records_of_unused_variables(list(map(anonymize_interaction_for_file, recorded)), plain)
    return embed_notes_in_first_recording(found, notes)


def embed_notes_in_first_recording(found: list[Recorded], notes: Sequence[Note]) -> list[Recorded]:
    """Add the notes of a file's head to the first recording: age, volatile fields, and accepted changes."""
    said: dict[str, list[Any]] = {
        "max_age": [note.age for note in notes if isinstance(note, RecordingMaxAge)],
        "volatile": [note.to_dict() for note in notes if isinstance(note, VolatileField)],
        "changes": [note.to_member() for note in notes if isinstance(note, AcceptedChange)],
    }
    if found:
        found[0] = replace(found[0], extra={**found[0].extra, **{name: each for name, each in said.items() if each}})
    return found


def strip_records_of_unused_variables(said: Sequence[Recorded], recorded: Sequence[Recorded]) -> list[Recorded]:
    """Return `said` without run variables that occur in no body of `recorded`, its form before anonymization."""
    bodies = b"".join(body for each in recorded for body in (each.body, each.response_body))
    text, found = bodies.decode("utf-8", "replace").lower(), []
    for each, as_it_was in zip(said, recorded, strict=True):
        used = {one["name"] for one in as_it_was.extra.get("run_variables") or () if _may_occur(one, text)}
        kept = [one for one in each.extra.get("run_variables") or () if one["name"] in used]
        rest = {name: value for name, value in each.extra.items() if name != "run_variables"}
        found.append(replace(each, extra=rest | ({"run_variables": kept} if kept else {})))
    return found


def read_replay_rules_in_file_head(recorded: Sequence[Recorded], file: object) -> tuple[Note, ...]:
    """Return the notes in a file's head, each once. Raises CassetteCorrupt naming the file."""
    readers: dict[str, Callable[[Any], Note]] = {
        "max_age": RecordingMaxAge.parse,
        "volatile": parse_volatile_field,
        "changes": AcceptedChange.from_member,
    }
    found: dict[Note, None] = {}
    for name, read in readers.items():
        try:
            found.update((read(value), None) for each in recorded for value in each.extra.get(name) or ())
        except (BadVolatileField, ValueError) as error:
            raise CassetteCorrupt(f"{file}, at `{name}`: {remove_program_prefix(error)}") from error
    return tuple(found)


def anonymize_interaction_for_file(interaction: Interaction) -> Recorded:
    return strip_record_of_unkeyed_headers(interaction_to_file_record(anonymize_interaction(interaction)))


def strip_record_of_unkeyed_headers(each: Recorded) -> Recorded:
    """Return an exchange without request headers that cannot choose an answer; the user-agent stays."""
    kept = tuple(
        (name, value)
        for name, value in each.headers
        if name.lower() == "user-agent" or any(is_header_in_request_key(name, known=known) for known in (True, False))
    )
    return replace(each, headers=kept)


def _may_occur(variable: Mapping[str, str], text: str) -> bool:
    """Return whether a run variable may occur in recordings in any form: all its words do, or a part of its day."""
    for value in filter(None, (variable["value"], variable.get("other"))):
        if not (found := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", value)):
            if all(word in text for word in re.findall(r"[^\W_]{2,}", value.lower())):
                return True
            continue
        day = date(*map(int, found.groups()))
        parts = (found[1], f"{day:%b}", f"{day:%a}", f"{day.month}/{day.day}", f"{day.day}.{day.month}")
        if any(part.lower() in text for part in parts):
            return True
    return False


def interaction_to_file_record(interaction: Interaction) -> Recorded:
    """Return an interaction in the form of a cassette file, with everything else in `Recorded.extra`."""
    request, response = interaction.request, interaction.response
    provider = PROVIDERS.get(interaction.provider)
    upstream = urlsplit(interaction.upstream or (provider.upstream if provider else "") or "http://unknown.invalid")
    body = response.body
    headers = (
        overwrite_existing_header(response.headers, "content-length", str(len(body))) if body else response.headers
    )
    extra: dict[str, object] = {
        "provider": interaction.provider,
        "operation": interaction.operation,
        "started_at": interaction.started_at,
        "head_offset": response.head_offset,
        "chunks": " ".join(f"{chunk.offset}:{len(chunk.data)}" for chunk in response.chunks),
        "ending": response.ending.value,
    }
    # Written only if it differs from the default: the file is for review.
    exceptions = {
        "upstream": (interaction.upstream, f"{upstream.scheme}://{upstream.netloc}"),
        "sample": (interaction.sample, 1),
        "party": (interaction.party, AGENT),
        "occurrence": (interaction.occurrence, 1),
        "redacted": (interaction.redacted, False),
        "chunked": (response.chunked, header(response.headers, "content-length") is None),
    }
    extra |= {name: value for name, (value, usual) in exceptions.items() if value != usual}
    if interaction.run_variables:
        extra["run_variables"] = json.loads(interaction.run_variables)
    return Recorded(
        method=request.method, uri=f"{upstream.scheme}://{upstream.netloc}{request.target}", headers=request.headers,
        body=request.body, status=response.status, reason=response.reason, response_headers=headers,
        response_body=body, extra=extra,
    )  # fmt: skip


def convert_interaction_to_json(interaction: Interaction) -> dict[str, Any]:
    i = interaction
    released = interaction_to_file_record(i)
    line: dict[str, Any] = build_jsonl_line_object(released, i.cassette)
    line |= {name: [list(field) for field in line[name]] for name in ("headers", "response_headers")}
    line["recorded"] = {
        **released.extra, "id": i.id, "key": i.key, "sample": i.sample, "party": i.party, "occurrence": i.occurrence,
        "model": i.model, "stream": i.stream, "upstream": i.upstream, "target": i.request.target,
        "usage": asdict(i.usage), "redacted": i.redacted, "chunked": i.response.chunked, "rules": i.rules,
        "made_ids": list(i.made_ids),
    }  # fmt: skip
    return line


def build_interaction_from_json(line: Mapping[str, Any], number: int = 1) -> Interaction:
    """Read an object that :func:`convert_interaction_to_json` wrote; `number` is for errors. Raises CassetteCorrupt."""
    try:
        each = parse_jsonl_exchange(dict(line), number)
        said: Mapping[str, Any] = each.extra
        borders = (part.partition(":") for part in said.get("chunks", "").split())
        chunks = TimedChunks(each.response_body, ((int(offset), int(length)) for offset, _, length in borders))
        return Interaction(
            provider=said["provider"], operation=said["operation"], key=Key(said["key"]),
            request=Request(each.method, said["target"], each.headers, each.body),
            response=Response(
                status=each.status, reason=each.reason, headers=each.response_headers, chunks=chunks,
                ending=Ending(said["ending"]), head_offset=said["head_offset"], chunked=bool(said["chunked"]),
            ),
            started_at=float(said["started_at"]), cassette=str(line.get("cassette") or "default"),
            sample=said.get("sample", 1), party=said.get("party", AGENT), occurrence=said.get("occurrence", 1),
            id=said.get("id"), model=said.get("model"), stream=bool(said.get("stream")),
            upstream=said.get("upstream", ""), usage=Usage(**said["usage"]), redacted=bool(said.get("redacted")),
            rules=said.get("rules", ""), made_ids=tuple(said.get("made_ids", ())),
        )  # fmt: skip
    except (ReadingProblem, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CassetteCorrupt(f"recording {number} that the proxy told cannot be read: {error!r}.") from error
