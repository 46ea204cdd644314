"""vcrpy's YAML cassettes, read and written with vcrpy's own serializer.

    FILE.yaml <-> [Recorded, ...]         (`core.cassettes.adopt` makes interactions of them, and the other way round)

What the format says is method, URI, header fields, bodies and status. What it cannot say (chunk borders, times, how the
answer ended, who asked) stands in a member ``llmproxy`` of each interaction, which vcrpy ignores and loses when it
writes the file anew; everything in it is optional on reading. YAML sorts members, so the order of header fields is
kept there too. Chunks are written ``offset:length``, offsets in microseconds.

A file is read whole or not at all: what is damaged raises CassetteCorrupt with file, line and every problem, is never
taken for empty and never overwritten. Before anything is constructed the file's events are counted, so that deep
nesting and alias bombs end in an error; tags that build Python objects are refused by vcrpy's loader.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmproxy import files
from llmproxy.core.cassettes.formats.recorded import ReadingProblem, Recorded, kind, recorded_of
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.errors import CassetteCorrupt, CassetteNewer, CassetteNotFound, MachineError
from llmproxy.sqlite_file import is_database

FORMAT = 1
"""Of the member ``llmproxy``."""
VCR_VERSION = 1

MAX_FILE = 256 << 20
"""Bytes of one file: it is held in memory as a whole, several times over."""
_MAX_DEPTH = 64
_MAX_ALIASES = 10_000
"""PyYAML writes one where the same object stands twice."""
_MAX_PROBLEMS = 10

# -- reading


def read(path: Path) -> list[Recorded]:
    """Return the exchanges of a cassette file in their order.

    Raises:
        CassetteNotFound: there is no such file.
        CassetteCorrupt: it cannot be read, is empty, is not YAML or not a cassette.
        CassetteNewer: a newer llmproxy wrote it.

    """
    return parse(_text(path), str(path))


def parse(text: str, name: str = "<cassette>") -> list[Recorded]:
    """Return the exchanges in the text of a cassette file; `name` stands in errors. Raises as `read`."""
    return of_tree(_load(text, name), name, text)


def of_tree(data: object, name: str, text: str = "") -> list[Recorded]:
    """Return the exchanges of a cassette that is parsed already; `text` is its YAML, for lines in errors. Raises as `read`."""
    if isinstance(data, list):
        raise CassetteCorrupt(
            f"{name}: this is the list that vcrpy wrote before version 1.",
            hint=f"Convert it first: python -m vcr.migration {name}",
        )
    if not isinstance(data, dict):
        raise CassetteCorrupt(f"{name}: a cassette is a mapping with `version` and `interactions`, not {kind(data)}.")
    _check_versions(data, name)
    items = data.get("interactions")
    if not isinstance(items, list):
        raise CassetteCorrupt(f"{name}: `interactions` must be a list, not {kind(items)}.")
    recorded: list[Recorded] = []
    problems: list[tuple[int, str]] = []
    for number, item in enumerate(items, 1):
        try:
            recorded.append(recorded_of(item, number))
        except ReadingProblem as problem:
            problems.append((number, str(problem)))
    if problems:
        raise CassetteCorrupt(listing(text, name, problems))
    return recorded


def read_bytes(path: Path) -> bytes:
    """Return the content of a file of recordings. Raises CassetteNotFound, CassetteCorrupt (too large, a store), MachineError."""
    if is_database(path):
        raise CassetteCorrupt(
            f"{path} is a database, not a file of recordings.", hint=f"A store is given as --store {path}"
        )
    try:
        if path.stat().st_size > MAX_FILE:
            raise CassetteCorrupt(f"{path}: larger than {MAX_FILE >> 20} MiB.")
        return files.read_bytes(path, MAX_FILE)
    except FileNotFoundError as error:
        raise CassetteNotFound(f"There is no cassette file {path}.") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror or error}.") from error


def to_text(data: bytes, name: str) -> str:
    """Return the text of a file; `name` stands in the error. Raises CassetteCorrupt if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise CassetteCorrupt(f"{name}, line {line}: not UTF-8 text ({error.reason}).") from error


def _text(path: Path) -> str:
    return to_text(read_bytes(path), str(path))


def _load(text: str, name: str) -> Any:  # noqa: ANN401 (what a YAML loader returns)
    import yaml
    from vcr.serializers import yamlserializer

    if not text.strip():
        raise CassetteCorrupt(f"{name}: the file is empty.", hint="An empty cassette is written as `interactions: []`.")
    try:
        check_events(text, name)
        return yamlserializer.deserialize(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, CassetteCorrupt):
            raise
        raise yaml_problem(error, text, name) from error


def yaml_problem(error: Exception, text: str, name: str) -> CassetteCorrupt:
    """Return what a YAML loader complains of as an error of ours, with the line where it says one."""
    import yaml

    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        return CassetteCorrupt(f"{name}{where}: {error.problem or error.context or 'not YAML'}.")
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return CassetteCorrupt(f"{name}, line {line}: the character #{error.character:04x} must not stand here.")
    return CassetteCorrupt(f"{name}: {str(error) or type(error).__name__}")


def check_events(text: str, name: str) -> None:
    """Refuse what is legal YAML and explodes when it is constructed: depth, aliases, merges."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = aliases = 0
    for event in yaml.parse(text, Loader=loader):
        problem = ""
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            problem = "nested too deeply" if depth > _MAX_DEPTH else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            problem = "too many aliases" if aliases > _MAX_ALIASES else ""
        elif isinstance(event, yaml.ScalarEvent) and event.value == "<<" and not event.style:
            problem = "merge keys (<<) have no place in a cassette"
        if problem:
            line = event.start_mark.line + 1 if event.start_mark else "?"
            raise CassetteCorrupt(f"{name}, line {line}: {problem}.")


def _check_versions(data: Mapping[str, Any], name: str) -> None:
    version = data.get("version")
    if version != VCR_VERSION or isinstance(version, bool):
        raise CassetteCorrupt(f"{name}: `version` must be {VCR_VERSION}, the file says {version!r}.")
    ours = data.get("llmproxy")
    if ours is not None and (not isinstance(ours, dict) or not isinstance(ours.get("format"), int)):
        raise CassetteCorrupt(f"{name}: the member `llmproxy` must say its `format`.")
    if ours is not None and ours["format"] > FORMAT:
        raise CassetteNewer(f"{name} was written by a newer llmproxy (format {ours['format']}, we know {FORMAT}).")


def listing(text: str, name: str, problems: Sequence[tuple[int, str]]) -> str:
    """Return the message about what is wrong with which interaction (number, what)."""
    lines = lines_of(text)
    listed = [
        f"  line {lines[number]}, interaction {number}: {what}"
        if number in lines
        else f"  interaction {number}: {what}"
        for number, what in problems
    ]
    if len(listed) > _MAX_PROBLEMS:
        listed = [*listed[:_MAX_PROBLEMS], f"  and {len(listed) - _MAX_PROBLEMS} more"]
    return f"{name}: {len(problems)} of its interactions cannot be read; nothing was taken from it:\n" + "\n".join(
        listed
    )


def lines_of(text: str) -> dict[int, int]:
    """Return the line of each interaction, both from 1; needed only to say where a problem is."""
    import yaml

    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for key, value in getattr(root, "value", None) or ():
        if key.value == "interactions":
            return {number: node.start_mark.line + 1 for number, node in enumerate(value.value, 1)}
    return {}


# -- writing


def dumps(recorded: Sequence[Recorded], cassette: str) -> str:
    """Return the text of a cassette file that vcrpy plays."""
    from vcr.serializers import compat, yamlserializer

    interactions = [
        {
            "request": compat.convert_to_unicode(
                {"method": each.method, "uri": each.uri, "headers": _lists(each.headers), "body": each.body or None}
            ),
            "response": compat.convert_to_unicode(
                {
                    "status": {"code": each.status, "message": each.reason},
                    "headers": _lists(each.response_headers),
                    "body": {"string": each.response_body},
                }
            ),
            "llmproxy": {**each.extra, "order": _order(each)},
        }
        for each in recorded
    ]
    ours = {"format": FORMAT, "cassette": cassette}
    text: str = yamlserializer.serialize({"version": VCR_VERSION, "interactions": interactions, "llmproxy": ours})
    return text


def _lists(headers: Headers) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    for name, value in headers:
        lists.setdefault(name, []).append(value)
    return lists


def _order(each: Recorded) -> dict[str, str]:
    return {
        "request": " ".join(name for name, _ in each.headers),
        "response": " ".join(name for name, _ in each.response_headers),
    }


def write(path: Path, recorded: Sequence[Recorded], cassette: str, *, force: bool = False) -> None:
    """Write a cassette file atomically: whoever reads sees the old file or the new one.

    Raises:
        CassetteCorrupt: a file that is damaged, or was not written by us, stands in the way (`force` overwrites it).
        MachineError: the folder cannot be written to.

    """
    if path.exists() and not force:
        _check_ours(path)
    write_text(path, dumps(recorded, cassette))


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, its folder made if missing. Raises MachineError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror or error}.") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def _check_ours(path: Path) -> None:
    hint = "Write to another file, or replace it with --force."
    try:
        text = _text(path)
        parse(text, str(path))
        data = _load(text, str(path))
    except CassetteCorrupt as error:
        raise CassetteCorrupt(f"Not overwritten: {error.message}", hint=hint) from error
    if not data.get("llmproxy"):
        raise CassetteCorrupt(f"Not overwritten: {path} was not written by llmproxy.", hint=hint)


def content_length(headers: Headers, size: int) -> Headers:
    """Return `headers` with the content-length, if there is one, set to `size` bytes."""
    if header(headers, "content-length") in (None, str(size)):
        return headers
    return tuple((name, str(size) if name.lower() == "content-length" else value) for name, value in headers)
