"""YAML of data as version 1.2 means it, and as suites read theirs: only true and false are booleans, a date is a text, of two equal keys none wins.

PyYAML reads version 1.1, where ``no`` is false, ``12:30`` a number and ``010`` eight; its rules of what a plain value is are exchanged here
(core schema, https://yaml.org/spec/1.2.2/#103-core-schema).
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_DEPTH = 60
MAX_ALIASED = 300_000
"""Values that the aliases of one file may add: as many as a suite may hold."""
_DIGITS = 400
_TAG = "tag:yaml.org,2002:"
_TAGS = frozenset(f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))
"""What a value may be said to be: a kind of JSON."""
_PLAIN = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    ("merge", "<<", "<"),
)  # fmt: skip
"""Tag, what a plain value of it looks like, and how it begins; the first that fits."""


class _Core(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # libyaml, where it is built in
    """Reads by these rules alone."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own form; filled below)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 (PyYAML's)
        """Refuse equal keys."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"`{key.value}` stands here twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _number(loader: Any, node: Any) -> int:  # noqa: ANN401 (PyYAML has no types)
    text = loader.construct_scalar(node)
    try:
        made = int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    except ValueError:  # thousands of digits
        made = None
    if made is None or len(text) > _DIGITS:  # in 16 or 8 Python reads any number, and then cannot write it
        raise yaml.constructor.ConstructorError(None, None, f"{text[:20]}... is no number", node.start_mark)
    return made


for _name, _form, _first in _PLAIN:
    _Core.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"(?:{_form})\Z"), list(_first))
_Core.add_constructor(f"{_TAG}int", _number)


def _refuse_explosive(text: str) -> None:
    """Refuse what is legal YAML and explodes when it is made: depth (libyaml recurses in C), aliases of aliases, values that hold themselves.

    Raises:
        yaml.YAMLError: it does, or it is no YAML.

    """
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = []
    total = added = 0
    event: Any
    for event in yaml.parse(text, Loader=_Core):
        problem = ""
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, total))
            total += 1
            problem = f"nested deeper than {MAX_DEPTH}" if len(open_) > MAX_DEPTH else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor or "", 1)
            total, added = total + size, added + size
            if any(anchor == event.anchor for anchor, _ in open_):
                problem = f"*{event.anchor} stands inside itself"
            elif added > MAX_ALIASED:
                problem = f"aliases expand to over {MAX_ALIASED:,} values"
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
        tag = getattr(event, "tag", None)
        if tag and tag != "!" and tag not in _TAGS:
            problem = f"the tag {tag} is none that data has"
        if problem:
            raise yaml.constructor.ConstructorError(None, None, problem, event.start_mark)


def load_list(text: str) -> list[tuple[Any, int]]:
    """Return the members of a list, each with the line where it begins; none of an empty text.

    Raises:
        yaml.YAMLError: it is no YAML.
        TypeError: it is no list.

    """
    _refuse_explosive(text)
    loader = _Core(text)
    try:
        node = loader.get_single_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"):
            return []
        if not isinstance(node, yaml.SequenceNode):
            kind = "mapping" if isinstance(node, yaml.MappingNode) else "single value"
            raise TypeError(f"is to be a list of mappings, and is a {kind}")
        return [(loader.construct_document(each), each.start_mark.line + 1) for each in node.value]
    finally:
        loader.dispose()
