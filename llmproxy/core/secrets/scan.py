"""Is a secret in what was kept? Of a text: which kinds, how many, on which lines; never what they say.

    names_in("... ghp_...")        {"github": [12]}

The rules are those of today, so that what an older version did not know is found. Placeholders are none.
"""

from __future__ import annotations

from collections import defaultdict

from llmproxy.core.secrets.kinds import KINDS, expression
from llmproxy.core.secrets.patterns import PATTERNS
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Interaction

OTHER = "credential"
"""What is one by its name, its place or a disguise."""


SHAPED = frozenset(kind.name for kind in KINDS)
"""Kinds that tell by themselves what they are."""


def names_in(text: str, redactor: Redactor) -> dict[str, list[int]]:
    """Return the kinds of secrets in a text, each with the lines on which they begin."""
    found: dict[str, list[int]] = defaultdict(list)
    for start, end in redactor.places(text):
        found[name_of(text[start:end])].append(text.count("\n", 0, start) + 1)
    return dict(found)


def names_of(interaction: Interaction, redactor: Redactor) -> dict[str, dict[str, int]]:
    """Return what today's rules would take out of a recording: by part of it, the kinds with how many of each."""
    request, response = interaction.request, interaction.response
    parts = {
        "request": "\n".join((request.target, *(f"{name}: {value}" for name, value in request.headers))),
        "request body": request.body.decode("utf-8", "surrogateescape"),
        "answer": "\n".join(value for _, value in response.headers),
        "answer body": response.body.decode("utf-8", "surrogateescape"),
        "upstream": interaction.upstream,
    }
    found = {part: {name: len(at) for name, at in names_in(text, redactor).items()} for part, text in parts.items()}
    if redactor.request(request).body != request.body and not found["request body"]:
        found["request body"] = {OTHER: 1}
    answer = redactor.response(response)[0]
    if answer.body != response.body and not found["answer body"]:
        found["answer body"] = {OTHER: 1}
    if answer.headers != response.headers and not found["answer"]:
        changed = [old for old, new in zip(response.headers, answer.headers, strict=False) if old != new]
        found["answer"] = {OTHER: 1} if any("REDACTE" not in value for _, value in changed) else {}
    return {part: names for part, names in found.items() if names}


def name_of(secret: str) -> str:
    """Return the name of the kind that a secret is of."""
    for kind in KINDS:
        if kind.needle in secret and expression(kind.template).search(secret):
            return kind.name
    for pattern in PATTERNS:
        if any(needle.decode() in secret for needle in pattern.needles) and any(pattern.spans(secret)):
            return pattern.name
    return OTHER
