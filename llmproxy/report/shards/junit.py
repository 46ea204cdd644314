"""JUnit files of the parts of a test -> that of the whole, test case by test case, for who kept nothing else.

What a part says of itself stands in a processing instruction of its file (`report.junit`), which no other reader looks at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from llmproxy.errors import Exit, SettingsError
from llmproxy.files import read_bytes
from llmproxy.report.junit import MARK, WHOLE, finish
from llmproxy.report.revive import is_of
from llmproxy.report.shards.cut import check_shard
from llmproxy.report.shards.merging import Advise, check_cut, ended_late, fold, missing, once, whole_notes

_TIMES = ("time", "timestamp")
_TOLD = re.compile(rf"<\?{MARK} (.*?)\?>".encode())

_TELLS = {"at": "float", "cases": "Sequence[str]", "unrecorded": "Sequence[str]", "ended": "Mapping[str, Any] | None"}
_ENDED = {"exit_code": "int", "seconds": "float", "notes": "Sequence[str]"}
"""Of what a file tells, beside its shard: the kinds of values."""


@dataclass(frozen=True, slots=True)
class JUnitPart:
    path: Path
    root: ET.Element
    told: Mapping[str, Any]
    """As `report.junit` wrote it."""

    @property
    def suites(self) -> Iterator[ET.Element]:
        """Its suites, but for the one that stands for the whole part."""
        return (
            suite
            for suite in self.root.iter("testsuite")
            if [case.get("name") for case in suite.iter("testcase")] != [WHOLE]
        )


def read_junit(path: Path) -> JUnitPart:
    """Return a part of a test.

    Raises:
        SettingsError: it is no JUnit file of a part.
        OSError: it cannot be read.

    """
    data = read_bytes(path)
    found = _TOLD.search(data)
    try:
        root = ET.fromstring(data)  # noqa: S314 - a report of ours; nothing outside is loaded
        told = json.loads(found[1]) if found else None
    except (ET.ParseError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is no JUnit file: {error}.") from error
    hint = "llmproxy test --shard 1/10 --report junit=FILE writes one; of pytest it is --scenario-report junit=FILE, not --junitxml."
    if told is None:
        raise SettingsError(f"{path} is no JUnit file of a part of a test.", hint=hint)
    try:
        _check(told)
    except (KeyError, TypeError) as error:
        raise SettingsError(f"{path} is no JUnit file of a part of a test: {error}.", hint=hint) from error
    return JUnitPart(path, root, told)


def _check(told: Mapping[str, Any]) -> None:
    """See that plain values are what `report.junit` writes. Raises KeyError or TypeError."""
    check_shard(told["shard"])
    for name, kind in _TELLS.items():
        if not is_of(told[name], kind):
            raise TypeError(f"`{name}` is {told[name]!r:.60}, which is no {kind}")
    for name, kind in _ENDED.items() if told["ended"] else ():
        if not is_of(told["ended"][name], kind):
            raise TypeError(f"`ended.{name}` is {told['ended'][name]!r:.60}, which is no {kind}")


def merge_junit(parts: Sequence[JUnitPart], advise: Advise | None = None) -> tuple[bytes, int, list[str]]:
    """Return the file of the whole test, its exit code, and what is missing. Raises SettingsError as `merging.merge`."""
    check_cut([(str(part.path), part.told["shard"]) for part in parts])
    kept = once(
        [
            (
                part.told["shard"]["number"],
                str(part.path),
                _bare(part),
                (part.told["at"], ET.tostring(part.root, "unicode")),
                part,
            )
            for part in parts
        ]
    )
    shard = kept[0].told["shard"]
    title = str(kept[0].root.get("name", ""))
    ended = [part.told["ended"] for part in kept if part.told["ended"]]
    codes = [each["exit_code"] for each in ended]
    gone = missing(shard, {part.told["shard"]["number"] for part in kept})
    gone += [
        text for part in kept if (text := ended_late(part.told["shard"], (part.told["ended"] or {}).get("exit_code")))
    ]
    code = int(Exit.ENVIRONMENT) if gone else fold(codes, shard["by"])
    root = ET.Element("testsuites", name=title)
    order = {name: n for n, name in enumerate(shard["items"])}
    cases = sorted(
        ((order.get(item, len(order)), suite, case) for part in kept for suite, case, item in _cases(part)),
        key=lambda each: each[0],
    )
    for name in dict.fromkeys(suite.get("name", "") for _, suite, _ in cases):
        root.append(_suite(name, [(suite, case) for _, suite, case in cases if suite.get("name", "") == name]))
    skipped = sum(case.find("skipped") is not None for _, _, case in cases)
    unrecorded = [name for part in kept for name in part.told["unrecorded"]]
    unrecorded.sort(key=lambda name: order.get(name, len(order)))
    notes = whole_notes([each["notes"] for each in ended], unrecorded, (skipped, len(cases)), shard, advise, code, gone)
    return finish(root, title, code, tuple(notes), sum(each["seconds"] for each in ended)), code, gone


def _cases(part: JUnitPart) -> Iterator[tuple[ET.Element, ET.Element, str]]:
    found = [(suite, case) for suite in part.suites for case in suite.iter("testcase")]
    if len(found) != len(part.told["cases"]):
        raise SettingsError(
            f"{part.path} was changed since it was written: it has {len(found)} test cases and knows {len(part.told['cases'])}."
        )
    return ((suite, case, item) for (suite, case), item in zip(found, part.told["cases"], strict=True))


def _suite(name: str, cases: Sequence[tuple[ET.Element, ET.Element]]) -> ET.Element:
    """Return a suite of all parts: counts and seconds from its cases, the time of the part that began first."""
    of = list({id(suite): suite for suite, _ in cases}.values())
    counts = {
        kind: sum(int(suite.get(kind, "0")) for suite in of) for kind in ("tests", "failures", "errors", "skipped")
    }
    made = ET.Element("testsuite", {"name": name} | {kind: str(many) for kind, many in counts.items()})
    made.set("time", f"{sum(float(suite.get('time', '0')) for suite in of):.3f}")
    if stamps := [stamp for suite in of if (stamp := suite.get("timestamp"))]:
        made.set("timestamp", min(stamps))
    made.extend(case for _, case in cases)
    return made


def _bare(part: JUnitPart) -> object:
    """Leave out what two runs of one part never have in common."""
    found = [_tree(suite) for suite in part.suites]
    ended = part.told["ended"] or {}
    return [found, part.told["cases"], {name: value for name, value in ended.items() if name != "seconds"}]


def _tree(element: ET.Element) -> object:
    said = {name: value for name, value in element.attrib.items() if name not in _TIMES}
    return [element.tag, said, (element.text or "").strip(), [_tree(each) for each in element]]
