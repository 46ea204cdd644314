"""YAML of data as version 1.2 means it, and as suites read theirs: only true and false are booleans, a date is a text, of two equal keys none wins.

PyYAML reads version 1.1, where ``no`` is false, ``12:30`` a number and ``010`` eight; its rules of what a plain value is are exchanged here
(core schema, https://yaml.org/spec/1.2.2/#103-core-schema).
"""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["listed"]

_TAG = "tag:yaml.org,2002:"
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
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    except ValueError as error:  # thousands of digits
        raise yaml.constructor.ConstructorError(None, None, f"{text[:20]}... is no number", node.start_mark) from error


for _name, _form, _first in _PLAIN:
    _Core.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"(?:{_form})\Z"), list(_first))
_Core.add_constructor(f"{_TAG}int", _number)


def listed(text: str) -> list[tuple[Any, int]]:
    """Return the members of a list, each with the line where it begins; none of an empty text.

    Raises:
        yaml.YAMLError: it is no YAML.
        TypeError: it is no list.

    """
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
