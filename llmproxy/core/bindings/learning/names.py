"""What a slot is called: after the words before its value, or the column of a listing in which it stands."""

from __future__ import annotations

from collections.abc import Collection

from llmproxy.core.bindings.values.listings import LISTED
from llmproxy.late import late

_WORDS = late(r"[A-Za-z][A-Za-z0-9]*")
_BOUND = late(r"\{(:?)([^{}]*)\}")
_COMMITTED = late(r"\[\S+(?: \(root-commit\))? $")
"""What ``git commit`` says before the commit: ``[main 1f3a9c0] Add the note``."""
_COLUMNS = ("mode", "links", "owner", "group", "size", "time")
_BARE = ("id", "key", "name", "value")
"""Names that say nothing without that of their tool."""
_VERBS = frozenset({
    "make", "create", "add", "new", "insert", "get", "post", "put", "open", "start", "book", "register", "save", "store", "write", "mcp",
})  # fmt: skip
"""Words of a tool's name that say what it does, and not with what."""
_CAMEL = late(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST = 40


def list_words(before: str) -> list[str]:
    """Return the words of an anchor that are no names of what is bound."""
    return _WORDS.findall(_BOUND.sub(" ", before))


def name_slot(before: str, called: str, kind: str, tool: str, taken: Collection[str]) -> str:
    """Return a name that is not taken; `called` is the member of JSON that the value is, empty in a text."""
    base = _of_tool(called or _describe(before.rpartition("\n")[2], kind), tool)
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    return name


def _describe(before: str, kind: str) -> str:
    if LISTED.match(before):
        column = len(before.split())
        return f"file_{_COLUMNS[column] if column < len(_COLUMNS) else 'time' if kind == 'time' else 'name'}"
    if _COMMITTED.fullmatch(before):
        return "commit"
    if kind == "port" or (kind == "name" and before == "["):
        return "branch" if before == "[" else kind
    bound = [name for wild, name in _BOUND.findall(before) if not wild]
    if bound and before.endswith(f"{{{bound[-1]}}}/"):
        return f"{bound[-1]}_{kind}"
    if words := list_words(before):
        return "_".join([*words[-2:], "email"] if before.endswith(" <") else words[-2:])
    return "_".join([*bound[-1:], kind])


def _of_tool(base: str, tool: str) -> str:
    base = "_".join(_WORDS.findall(base)[-2:]).lower()[:_LONGEST] or "value"
    if base not in _BARE:
        return base
    # After the thing that the tool makes: `task_id` of make_task stands in the `task_id` that another tool is given.
    words = [word.lower() for word in _WORDS.findall(_CAMEL.sub(" ", tool))]
    things = [word for word in words if word not in _VERBS] or words
    return "_".join([*things[-1:], base])[:_LONGEST]
