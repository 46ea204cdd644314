"""Lines that are no message: a batch of several, and what an error about the others can be addressed to. Imported when one comes."""

from __future__ import annotations

import json
import re
from typing import Any

_SPACE = re.compile(r"[\s,]*")
_STEP = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')
_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*)')
_DEEPER = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


def split_batch(line: bytes) -> list[bytes]:
    """Return the members of a batch, byte for byte; nothing where a line is none."""
    try:
        text = line.decode()
        members = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(members, list) or not all(isinstance(each, dict) for each in members):
        return []
    found, at = [], text.index("[") + 1
    for _ in members:
        match = _SPACE.match(text, at)
        begin = match.end() if match else at
        _, at = json.JSONDecoder().raw_decode(text, begin)
        found.append(text[begin:at].encode())
    return found


def find_id(line: bytes) -> Any:  # noqa: ANN401 - JSON
    """Return the id of a line that is no message, as far as it can be made out: also of one that is too deep to be read; else None."""
    try:
        value = json.loads(line)
        return value.get("id") if isinstance(value, dict) else None
    except RecursionError:
        depth = 0
        for step in _STEP.finditer(line):
            depth += _DEEPER.get(step[0], 0)
            if depth == 1 and step[0] == b'"id"' and (value := _VALUE.match(line, step.end())):
                return json.loads(value[1])
    except ValueError:
        pass
    return None
