"""The language of the built-in rules: what can be done with a member of a JSON object, and where. `core.keys.rules` is written in it.

A `Shape` gives rules to the members of one kind of object; a rule may hand the member's own object, or each object of its array, to
a further shape. Members without a rule count as they are. `core.keys.walk` carries the rules out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Do(StrEnum):
    """What becomes of a member."""

    IGNORE = "ignore"
    """Left out: it cannot change the answer."""
    STREAM = "stream"
    """The stream flag, which is a part of the key of its own: left out where it says just that, kept where it says anything else."""
    WALK = "walk"
    """Its object, or each object of its array, has a shape of its own."""
    SPARE = "spare"
    """As WALK, and left out when it is ``[]`` or ``{}``, which libraries write for "absent"."""
    DECLARE = "declare"
    """An id that means something only inside this request: renamed by first appearance, ``call#1``."""
    REFER = "refer"
    """Names what this request declared, else what an earlier answer made (a response, a file), else stays literal."""
    OWN = "own"
    """The id of an echoed item: declared if the item brings its content along (`Rule.own`), else it refers to the server's copy."""
    FILE_URI = "file-uri"
    """Refers to an uploaded file if it is the URI of one; any other URI is content."""
    JSON = "json"
    """A string that holds JSON: written canonically if it parses."""
    SIGNATURE = "signature"
    """Of a thinking block: a marker stands for it where the thinking is there to be read."""
    SYSTEM = "system"
    """As WALK, after Claude Code's billing header was taken off the front; what else stands in that block counts."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One member's rule."""

    do: Do
    why: str
    into: Shape | None = None
    own: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """The rules for one kind of object."""

    members: Mapping[str, Rule] = field(default_factory=dict)
    nulls: bool = False
    """Leave out members that are null: clients write null for "absent" here."""
    kinds: Mapping[str, Shape] = field(default_factory=dict)
    """By the value of ``type``, where that decides; other types have the rules above."""


NOTHING = Shape()
"""No rules: everything counts."""
