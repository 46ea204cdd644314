"""vcrpy's cassettes, by way of `core.cassettes.formats.vcr_yaml`, written by its YAML serializer or by its JSON one.

JSON is not quite YAML: it writes characters beyond 16 bits as two escapes, which YAML refuses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmproxy.core.cassettes.formats import Source, vcr_yaml as cassette
from llmproxy.core.cassettes.formats.recorded import Recorded

_START = re.compile(r"^(?:interactions|version)\s*:|^-\s+\w+\s*:", re.MULTILINE)


def recognises(source: Source) -> bool:
    """Tell whether it is a mapping, or a list, of YAML; what is wrong with it is said when it is read."""
    if source.is_json:
        return "interactions" in source.members
    return not source.head.strip() or bool(_START.search(source.head))


def read(source: Source) -> list[Recorded]:
    """Return the exchanges of a file. Raises CassetteCorrupt, CassetteNewer."""
    if source.is_json and source.members:
        return cassette.of_tree(source.json, source.name)
    return cassette.parse(source.text, source.name)


def dumps(recorded: Sequence[Recorded], name: str) -> str:
    """Return the text of a file that vcrpy plays."""
    return cassette.dumps(recorded, name)
