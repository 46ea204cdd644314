"""The YAML of ``--cassette-dir``: readable in pull requests, and exact: always the same text for the same exchanges.

A body is ``json`` (a tree; its formatting is its `style`, compact by default), ``text`` or ``base64``: the first of
these that restores its exact bytes. Repeated parts of requests (the conversation so far, tools) are written once, with
an anchor derived from their content: the file grows with the conversation, not with its square. The member `open` is
true while mode `once` may add to the cassette; `fork` has a child's parent. Nothing is read from comments.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.formats import ReadingProblem, Recorded, Source, Tree, yaml_text
from llmproxy.core.forks.fork_rows import Fork, parse_fork_in_cassette_file
from llmproxy.core.keys.head_rules import is_header_in_request_key
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.core.traffic.json_diff import clip
from llmproxy.errors import CassetteCorrupt, CassetteNewer
from llmproxy.protocol import AGENT

FORMAT = 1
_AGE = "max_age"
NOTES = (_AGE, "volatile", "changes")
"""Members of the head about the whole cassette: maximum age (in a recording a list; the shortest counts), volatile
fields, accepted changes."""
TITLE = "llmproxy-cassette"
_HEAD = re.compile(rf"^{TITLE}\s*:", re.MULTILINE)
_OPEN = re.compile(r"^open: *true *(#.*)?$", re.MULTILINE)
"""The member at the top level; other occurrences are indented."""
_FORK = re.compile(r"""^["']?fork["']?\s*:""", re.MULTILINE)
"""The member at the top level, anywhere in the file; other occurrences are indented."""
_NOTE = "# Recorded by llmproxy. You may edit the answers: a replay then uses them (docs/cassettes.md).\n"
_END = "..."  # YAML's end of a document: a truncated file is still valid YAML, but lacks it
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_SHARED = 80  # minimum characters of JSON for a repeated part to be written once
_MAX_ALIASES = 9_000  # maximum aliases in one file; the reader accepts 10 000
_SAID = 100
_SHORT = 100  # maximum bytes of an answer on one line
_LINE = 2000  # maximum characters of a line that people skip: an answer's headers, ids, usage


def recognises(source: Source) -> bool:
    return not source.is_json and bool(_HEAD.search(source.head[:2000]))


def dumps(recorded: Sequence[Recorded], cassette: str, fork: Fork | None = None, *, unfinished: bool = False) -> str:
    """Return the text of a file; `fork`: the cassette's row as a child; `unfinished`: mode `once` may add to it."""
    shared = _SharedParts(recorded)
    parts = [_NOTE, f"{TITLE}: {FORMAT}\ncassette: {yaml_text.write_scalar(cassette)}\n"]
    if unfinished:
        parts.append("open: true\n")
    if fork is not None:
        parts.append(yaml_text.dump_yaml_collection({"fork": fork.to_member()}))
    recorded, said_once = _move_shared_to_head(recorded)
    if said_once:
        parts.append(yaml_text.dump_yaml_collection(said_once))
    parts.append("interactions:\n" if recorded else "interactions: []\n")
    for each in recorded:
        method = {} if each.method == "POST" else {"method": each.method}
        request = method | {"url": each.uri, "headers": _format_header_fields(each.headers)}
        status = f"{each.status} {each.reason}" if each.reason else each.status
        headers = yaml_text.FlowStyleValue(_format_header_fields(each.response_headers), _LINE)
        tree = {
            "request": request | _format_body(each.body, shared),
            "response": {"status": status, "headers": headers} | _format_body(each.response_body, None),
        }
        said = {name: value for name, value in each.extra.items() if name != "order"}
        parts.append(f"\n# {_describe_exchange(each)}\n")
        parts.append(
            yaml_text.dump_yaml_collection([tree | ({"recorded": yaml_text.FlowStyleValue(said)} if said else {})])
        )
    return "".join([*parts, f"{_END}\n"])


def _move_shared_to_head(recorded: Sequence[Recorded]) -> tuple[list[Recorded], dict[str, object]]:
    head: dict[str, Any] = {}
    runs: dict[str, str] = {}
    found = []
    for each in recorded:
        extra = dict(each.extra)
        head |= {name: said for name in NOTES if (said := extra.pop(name, None))}
        if (said := extra.get("run_variables")) is not None:
            extra["run_variables"] = runs.setdefault(json.dumps(said), f"run-{len(runs) + 1}")
        found.append(replace(each, extra=extra))
    if len(ages := head.get(_AGE, ())) == 1:
        head[_AGE] = ages[0]
    if runs:
        head["run_variables"] = {name: json.loads(said) for said, name in runs.items()}
    return found, head


def _apply_file_head(recorded: list[Recorded], tree: dict[str, Tree]) -> list[Recorded]:
    """Return the recordings of a file with the data of its head. Raises ReadingProblem."""
    runs = tree.get("run_variables") or {}
    notes = {name: tree[name] for name in NOTES if tree.get(name) not in (None, [])}
    if not isinstance(age := notes.get(_AGE, []), list):
        notes[_AGE] = [age]
    if not isinstance(runs, dict) or not all(isinstance(each, list) for each in notes.values()):
        raise ReadingProblem("`run_variables` is a mapping of runs; `volatile` and `changes` are lists")
    found = []
    for each in recorded:
        if isinstance(name := each.extra.get("run_variables"), str) and name not in runs:
            raise ReadingProblem(f"its `run_variables` are those of {name!r}, which the head of the file does not have")
        same = not isinstance(name, str)
        found.append(each if same else replace(each, extra={**each.extra, "run_variables": runs[name]}))
    if notes and found:
        found[0] = replace(found[0], extra={**found[0].extra, **notes})
    return found


def _format_header_fields(headers: Headers) -> list[dict[str, str]]:
    return [{name: value} for name, value in headers]


def _format_body(body: bytes, shared: _SharedParts | None) -> dict[str, object]:
    if not body:
        return {}
    if found := yaml_text.detect_json_style(body):
        tree, style = found
        how = {} if style == "compact" else {"style": style}
        if shared is None and isinstance(tree, dict) and len(body) > _SHORT:
            return how | {"json_parts": [yaml_text.FlowStyleValue(part, _LINE) for part in _group_answer_members(tree)]}
        if shared is not None and isinstance(tree, dict):
            tree = {name: shared.anchor_part(value, items=True) for name, value in tree.items()}
        return how | {"json": tree}
    try:
        said = body.decode()
    except UnicodeDecodeError:
        said = "\0"
    if not _CONTROLS.search(said):
        return {"text": said}
    return {"base64": "\n".join(textwrap.wrap(base64.b64encode(body).decode(), 100)) + "\n"}


def _group_answer_members(tree: dict[str, object]) -> list[dict[str, object]]:
    """Return an answer's members in a few groups: each list (choices, output, content) alone, the others together."""
    groups: list[dict[str, object]] = [{}]
    for name, value in tree.items():
        if isinstance(value, list) and value:
            groups += [{name: value}, {}]
        else:
            groups[-1][name] = value
    return [group for group in groups if group]


def _describe_exchange(each: Recorded) -> str:
    from llmproxy.core.dialects.conversation import parse_answer_body_as_message, read_request_messages

    provider, operation = each.extra.get("provider"), each.extra.get("operation")
    head = f"{each.method} {each.uri.partition('?')[0]}" if not provider else f"{provider} {operation}"
    said = [one.text for one in read_request_messages(each.body) if one.role in ("user", "tool")]
    answer = parse_answer_body_as_message(
        str(operation), header(each.response_headers, "content-type") or "", each.response_body
    )
    replied = ""
    if answer is not None:
        calls = ", ".join(f"{call.name}({call.arguments})" for call in answer.tool_calls)
        replied = " ".join(part for part in (answer.text, calls) if part)
    texts = " -> ".join(clip(part, _SAID) for part in (said[-1] if said else "", replied) if part)
    return clip(f"{head} {each.status}", _SAID) + (f": {texts}" if texts else "")


class _SharedParts:
    """Parts that occur more than once in the requests of one file."""

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        trees = [found[0] for each in recorded if (found := yaml_text.detect_json_style(each.body))]
        members = [value for tree in trees if isinstance(tree, dict) for value in tree.values()]
        whole = Counter(map(_dump_for_sharing, members))
        seen: set[str] = set()
        items: Counter[str] = Counter()
        for value in members:
            said = _dump_for_sharing(value)
            if isinstance(value, list) and said not in seen:  # a list repeated as a whole is written once
                items.update(map(_dump_for_sharing, value))
            if said and whole[said] > 1:
                seen.add(said)
        self.again = {said for said, count in (whole | items).items() if said and count > 1}
        self.names: dict[str, str] = {}
        self.left = _MAX_ALIASES

    def anchor_part(self, value: object, *, items: bool) -> object:
        text = _dump_for_sharing(value)
        if text in self.again:
            name = "p" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            known = self.names.setdefault(name, "")
            if known == text and self.left:
                self.left -= 1
                return yaml_text.YamlAliasToWrite(name)
            if not known:
                self.names[name] = text
                return yaml_text.YamlValueWithAnchor(name, self.anchor_items(value) if items else value)
        return self.anchor_items(value) if items else value

    def anchor_items(self, value: object) -> object:
        return [self.anchor_part(item, items=False) for item in value] if isinstance(value, list) else value


def _dump_for_sharing(value: object) -> str:
    """Return a part as text; empty if it is too small to share."""
    if not isinstance(value, dict | list | str) or not value:
        return ""
    text = json.dumps(value)
    return text if len(text) >= _SHARED else ""


def read_cassette_name_in_file(source: Source) -> str:
    """Return the cassette's name in the head of a file; empty if it has none. Raises CassetteCorrupt."""
    found = re.search(r"^cassette: *(.*)$", source.head, re.MULTILINE)
    if found is None or yaml_text.PLAIN.fullmatch(found[1]):
        return found[1] if found else ""
    value = yaml_text.load_yaml(found[0], source.name).get("cassette")
    return str(value) if isinstance(value, str | int | float) else ""


def may_get_more_recordings(source: Source) -> bool:
    """Return whether the cassette of a file lacks recordings that mode `once` may add."""
    return bool(_OPEN.search(source.text))


def read_fork_in_cassette_file(source: Source) -> Fork | None:
    """Return a file's fork; None if its cassette is no child. Raises CassetteCorrupt."""
    if not _FORK.search(source.text):
        return None
    try:
        tree = yaml_text.load_yaml(source.text, source.name)
        has_fork = isinstance(tree, dict) and "fork" in tree
        return parse_fork_in_cassette_file(read_cassette_name_in_file(source), tree["fork"]) if has_fork else None
    except ValueError as error:
        raise CassetteCorrupt(f"{source.name}: {error}.") from error


def read(source: Source) -> list[Recorded]:
    tree = yaml_text.load_yaml(source.text, source.name)
    if not source.text.rstrip().endswith(f"\n{_END}"):
        raise CassetteCorrupt(
            f"{source.name}: it does not end with a line `{_END}`: it was cut.",
            hint=f"If it is whole (check its last interaction), append that line: echo {_END} >> {source.name}",
        )
    if not isinstance(tree, dict):
        raise CassetteCorrupt(f"{source.name}: a cassette is a mapping, not {formats.kind(tree)}.")
    if not isinstance(version := tree.get(TITLE), int) or isinstance(version, bool) or version < 1:
        raise CassetteCorrupt(f"{source.name}: `{TITLE}` must be the number of its format, not {version!r}.")
    if version > FORMAT:
        raise CassetteNewer(f"{source.name} was written by a newer llmproxy (format {version}, we know {FORMAT}).")
    if not isinstance(items := tree.get("interactions"), list):
        raise CassetteCorrupt(f"{source.name}: `interactions` must be a list, not {formats.kind(items)}.")
    lines = partial(yaml_text.find_yaml_lines_of_interactions, source.text)
    recorded = formats.read_each_item(items, _read_interaction, source, "interaction", lines)
    try:
        return _apply_file_head(recorded, tree)
    except ReadingProblem as problem:
        raise CassetteCorrupt(f"{source.name}: {problem}.") from problem


def _read_interaction(tree: Tree, number: int) -> Recorded:
    request, response = formats.mapping(tree, "request"), formats.mapping(tree, "response")
    extra = tree.get("recorded") or {}
    if not isinstance(extra, dict):
        raise ReadingProblem(f"`recorded` is {formats.kind(extra)}, not a mapping")
    method = formats.text(request, "method") if "method" in request else "POST"
    code, reason = response.get("status"), formats.text(response, "reason", "")
    if isinstance(code, str) and (found := re.fullmatch(r"(\d{3}) (.+)", code)):
        code, reason = int(found[1]), found[2]
    return Recorded(
        method=method if extra else method.upper(),  # people may write it in lower case
        uri=formats.text(request, "url"),
        headers=_read_headers(request, "request"),
        body=_read_body(request, "request"),
        status=formats.status(code),
        reason=reason,
        response_headers=_read_headers(response, "response"),
        response_body=_read_body(response, "response"),
        number=number,
        extra=extra,
    )


def _read_headers(side: dict[str, Tree], where: str) -> Headers:
    found: list[tuple[str, str]] = []
    for each in formats.get_list(side, "headers"):
        if not isinstance(each, dict) or len(each) != 1:
            raise ReadingProblem(f"{where}: each of `headers` is one `name: value`")
        ((name, value),) = each.items()
        if isinstance(value, dict | list):
            raise ReadingProblem(f"{where}: the header {name!r} is {formats.kind(value)}, not a text")
        found.append((name, "" if value is None else str(value)))
    return tuple(found)


def _read_body(side: dict[str, Tree], where: str) -> bytes:
    forms = [name for name in ("json", "json_parts", "text", "base64") if name in side]
    if len(forms) > 1:
        raise ReadingProblem(f"{where}: its body stands there as {' and as '.join(forms)}")
    if not forms:
        return b""
    if not isinstance(style := side.get("style", "compact"), str) or style not in yaml_text.STYLES:
        raise ReadingProblem(f"{where}: there is no style {style!r}; known: {', '.join(yaml_text.STYLES)}")
    value = side[forms[0]]
    if forms == ["json_parts"]:
        parts = [formats.mapping({"part": part}, "part") for part in formats.get_list(side, "json_parts")]
        value = {name: member for part in parts for name, member in part.items()}
        if len(value) < sum(map(len, parts)):
            raise ReadingProblem(f"{where}: a member stands twice in `json_parts`")
    if forms[0].startswith("json"):
        try:
            return yaml_text.encode_json_in_style(value, style)
        except (ValueError, TypeError, RecursionError) as error:
            raise ReadingProblem(f"{where}: `json` cannot be written: {error}") from error
    if not isinstance(value, str):
        raise ReadingProblem(f"{where}: `{forms[0]}` is {formats.kind(value)}, not a text")
    return formats.encode_text(value) if forms == ["text"] else formats.decode_base64(value)


_BEGIN = re.compile(r"^<{7}( |$)", re.MULTILINE)
_OURS, _BASE, _MIDDLE, _THEIRS = "<" * 7, "|" * 7, "=" * 7, ">" * 7


def has_git_conflict_markers(source: Source) -> bool:
    return recognises(source) and bool(_BEGIN.search(source.text))


class GitConflictSide(NamedTuple):
    source: Source
    lines: list[int]  # line number in the conflicted file, from 1, by own line

    def describe_interaction_place(self, number: int) -> str:
        at = yaml_text.find_yaml_lines_of_interactions(self.source.text).get(number)
        return f"line {self.lines[at - 1]}" if at else f"interaction {number}"


def split_conflict_sides(source: Source) -> tuple[GitConflictSide, GitConflictSide]:
    """Return the file's version of each side. Raises CassetteCorrupt for inconsistent markers."""
    sides: tuple[list[tuple[int, str]], list[tuple[int, str]]] = ([], [])
    into: tuple[int, ...] = (0, 1)
    for number, line in enumerate(source.text.splitlines(keepends=True), 1):
        marker, state = line[:7], into
        if marker == _OURS and line[7:8] in (" ", "\n"):
            state = (0,)
        elif marker == _BASE and line[7:8] in (" ", "\n"):
            state = ()
        elif line.rstrip("\r\n") == _MIDDLE:
            state = (1,)
        elif marker == _THEIRS and line[7:8] in (" ", "\n"):
            state = (0, 1)
        else:
            for side in into:
                sides[side].append((number, line))
            continue
        if state not in _NEXT[into]:
            raise CassetteCorrupt(f"{source.name}, line {number}: this conflict marker does not belong here.")
        into = state
    if into != (0, 1):
        raise CassetteCorrupt(f"{source.name}: its last merge conflict has no end.")
    ours, theirs = (
        GitConflictSide(
            Source("".join(line for _, line in side).encode(), f"{source.name} ({name})"), [n for n, _ in side]
        )
        for side, name in zip(sides, ("ours", "theirs"), strict=True)
    )
    return ours, theirs


_NEXT: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {
    (0, 1): ((0,),),
    (0,): ((), (1,)),
    (): ((1,),),
    (1,): ((0, 1),),
}
"""Allowed transitions between the parts of a conflict."""


def merge_git_conflict_sides(source: Source) -> str:
    """Return the text of a file with the recordings and the head of both sides, once what both have.

    Raises CassetteCorrupt: they have different answers to the same request with the same number of repetition.
    """
    ours, theirs = split_conflict_sides(source)
    kept = read(ours.source)
    known, others = dict(number_exchanges_of_same_request(kept)), read(theirs.source)
    notes = {name: [note for each in (*kept, *others) for note in each.extra.get(name, ())] for name in NOTES}
    head = {name: [one for n, one in enumerate(said) if one not in said[:n]] for name, said in notes.items() if said}
    for place, each in number_exchanges_of_same_request(others):
        if (mine := known.get(place)) is None:
            kept.append(each)
        elif (mine.status, mine.response_body) != (each.status, each.response_body):
            raise CassetteCorrupt(
                f"{source.name}: both sides recorded an answer to the same request, and not the same one:"
                f" {ours.describe_interaction_place(mine.number)} (ours) and"
                f" {theirs.describe_interaction_place(each.number)} (theirs), "
                f"{each.method} {each.uri}.",
                hint="Take one side of this file (git checkout --ours FILE, or --theirs) and record what is missing: "
                "--mode auto",
            )
    for n, each in enumerate(kept):
        extra = {name: value for name, value in each.extra.items() if name not in NOTES}
        kept[n] = replace(each, extra=extra if n else extra | head)
    sides = (ours.source, theirs.source)
    fork = read_fork_in_cassette_file(ours.source) or read_fork_in_cassette_file(theirs.source)
    return dumps(
        kept, read_cassette_name_in_file(ours.source), fork, unfinished=any(map(may_get_more_recordings, sides))
    )


def number_exchanges_of_same_request(recorded: Sequence[Recorded]) -> Iterator[tuple[object, Recorded]]:
    times = Counter[object]()
    for each in recorded:
        said = tuple(sorted((n.lower(), v) for n, v in each.headers if is_header_in_request_key(n, known=True)))
        party, sample = each.extra.get("party", AGENT), each.extra.get("sample", 1)
        asked = each.method, each.uri, said, each.body, party, sample
        times[asked] += 1
        yield (*asked, times[asked]), each
