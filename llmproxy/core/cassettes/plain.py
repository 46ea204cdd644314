"""An interaction as one plain JSON object, and back, whole: how recordings leave a running proxy.

It is a line of the JSON-lines export (`formats.jsonl`), so whoever reads those reads this. Its member `recorded` says
more here than in a file: key, model, usage, ids. A file is derived anew when it is imported; what comes from a proxy is
taken at its word, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llmproxy.core.cassettes.formats.jsonl import line_of, of_line
from llmproxy.core.cassettes.formats.recorded import ReadingProblem, Recorded
from llmproxy.core.cassettes.stand_ins import release
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Key, Request, Response, Usage
from llmproxy.errors import CassetteCorrupt
from llmproxy.protocol import AGENT

Json = Any
"""Plain JSON values."""


def to_json(interaction: Interaction) -> dict[str, Json]:
    i = interaction
    released = release(i)
    line: dict[str, Json] = line_of(released, i.cassette)
    line |= {name: [list(field) for field in line[name]] for name in ("headers", "response_headers")}
    line["recorded"] = {
        **released.extra,
        "id": i.id,
        "key": i.key,
        "sample": i.sample,
        "party": i.party,
        "occurrence": i.occurrence,
        "model": i.model,
        "stream": i.stream,
        "upstream": i.upstream,
        "target": i.request.target,
        "usage": asdict(i.usage),
        "redacted": i.redacted,
        "chunked": i.response.chunked,
        "rules": i.rules,
        "made_ids": list(i.made_ids),
    }
    return line


def from_json(line: Mapping[str, Json], number: int = 1) -> Interaction:
    """Read an object that :func:`to_json` wrote; `number` stands in errors.

    Raises:
        CassetteCorrupt: it is none.

    """
    try:
        each = of_line(dict(line), number)
        return _interaction(each, str(line.get("cassette") or "default"))
    except (ReadingProblem, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CassetteCorrupt(f"recording {number} that the proxy told cannot be read: {error!r}.") from error


def _interaction(each: Recorded, cassette: str) -> Interaction:
    said: Mapping[str, Json] = each.extra
    return Interaction(
        provider=said["provider"],
        operation=said["operation"],
        key=Key(said["key"]),
        request=Request(each.method, said["target"], each.headers, each.body),
        response=Response(
            status=each.status,
            reason=each.reason,
            headers=each.response_headers,
            chunks=_chunks(said.get("chunks", ""), each.response_body),
            ending=Ending(said["ending"]),
            head_offset=said["head_offset"],
            chunked=bool(said["chunked"]),
        ),
        started_at=float(said["started_at"]),
        cassette=cassette,
        sample=said.get("sample", 1),
        party=said.get("party", AGENT),
        occurrence=said.get("occurrence", 1),
        id=said.get("id"),
        model=said.get("model"),
        stream=bool(said.get("stream")),
        upstream=said.get("upstream", ""),
        usage=Usage(**said["usage"]),
        redacted=bool(said.get("redacted")),
        rules=said.get("rules", ""),
        made_ids=tuple(said.get("made_ids", ())),
    )


def _chunks(borders: str, body: bytes) -> tuple[Chunk, ...]:
    chunks, at = [], 0
    for part in borders.split():
        offset, _, length = part.partition(":")
        chunks.append(Chunk(int(offset), body[at : at + int(length)]))
        at += int(length)
    if at != len(body):
        raise ValueError(f"its chunks say {at} bytes, its body has {len(body)}")
    return tuple(chunks)
