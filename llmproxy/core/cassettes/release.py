"""Interactions of the store as a cassette file has them: what `adopt` undoes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from llmproxy.core.bindings import BadSlot, Slot, read_slot
from llmproxy.core.cassettes.formats.recorded import Recorded
from llmproxy.core.cassettes.formats.vcr_yaml import content_length
from llmproxy.core.cassettes.stand_ins import without_names
from llmproxy.core.providers.table import PROVIDERS
from llmproxy.core.traffic.interaction import (
    Interaction,
    header,
)
from llmproxy.errors import CassetteCorrupt, unsign_text
from llmproxy.protocol import AGENT


def release_all(interactions: Iterable[Interaction], slots: Sequence[Slot] = ()) -> list[Recorded]:
    """Return the recordings of a cassette as a file for pull requests says them, the cassette's slots in the first (`slots_in`)."""
    found = [release_to_file(each) for each in interactions]
    if slots and found:
        found[0] = replace(found[0], extra={**found[0].extra, "slots": [slot.to_dict() for slot in slots]})
    return found


def slots_in(recorded: Sequence[Recorded], file: object) -> tuple[Slot, ...]:
    """Return the slots that a file says, each once. Raises CassetteCorrupt, which names the file."""
    values = [value for each in recorded for value in each.extra.get("slots") or ()]
    try:
        return tuple(dict.fromkeys(read_slot(value) for value in values))
    except BadSlot as error:
        raise CassetteCorrupt(f"{file}, at `slots`: {unsign_text(error)}") from error


def release_to_file(interaction: Interaction) -> Recorded:
    """Return an interaction as a file for pull requests says it: as `release`, with stand-ins for what names a person."""
    return release(without_names(interaction))


def release(interaction: Interaction) -> Recorded:
    """Return an interaction as a cassette file says it, with everything else in `Recorded.extra`."""
    request, response = interaction.request, interaction.response
    provider = PROVIDERS.get(interaction.provider)
    upstream = urlsplit(interaction.upstream or (provider.upstream if provider else "") or "http://unknown.invalid")
    body = response.body
    headers = content_length(response.headers, len(body)) if body else response.headers
    extra: dict[str, object] = {
        "provider": interaction.provider,
        "operation": interaction.operation,
        "started_at": interaction.started_at,
        "head_offset": response.head_offset,
        "chunks": " ".join(f"{chunk.offset}:{len(chunk.data)}" for chunk in response.chunks),
        "ending": response.ending.value,
    }
    # Said only where it is not what a reader would take for granted: the file is meant to be reviewed.
    exceptions = {
        "upstream": (interaction.upstream, f"{upstream.scheme}://{upstream.netloc}"),
        "sample": (interaction.sample, 1),
        "party": (interaction.party, AGENT),
        "occurrence": (interaction.occurrence, 1),
        "redacted": (interaction.redacted, False),
        "chunked": (response.chunked, header(response.headers, "content-length") is None),
    }
    extra |= {name: value for name, (value, usual) in exceptions.items() if value != usual}
    if interaction.circumstances:
        extra["circumstances"] = json.loads(interaction.circumstances)
    return Recorded(
        method=request.method,
        uri=f"{upstream.scheme}://{upstream.netloc}{request.target}",
        headers=request.headers,
        body=request.body,
        status=response.status,
        reason=response.reason,
        response_headers=headers,
        response_body=body,
        extra=extra,
    )
