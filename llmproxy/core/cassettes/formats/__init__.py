"""File formats of recordings, one row each: llmproxy's own, and those of other programs.

A format is a module of this package with the functions of `FormatModule` (and ``read_all(sources)`` if files of one
cassette depend on each other). A file is read whole or not at all: damage raises CassetteCorrupt with file and
position. An intact exchange that cannot be replayed is returned with `Recorded.problem`.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeGuard, cast

from llmproxy.amount_formatting import format_count
from llmproxy.core.traffic.interaction import Headers
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.errors import CassetteCorrupt, CassetteNotFound, MachineError, SettingsError
from llmproxy.file_io import read_bounded_bytes, replace_file
from llmproxy.sqlite_file import is_sqlite_database_file

# Any: what a YAML loader returns.
Tree = Any


@dataclass(frozen=True, slots=True)
class Recorded:
    """One exchange of a cassette file, unchanged."""

    method: str
    uri: str
    """Scheme, host, path and query."""
    headers: Headers
    body: bytes
    status: int
    reason: str
    response_headers: Headers
    response_body: bytes
    """As recorded: still compressed if content-encoding says so."""
    number: int = 0
    """Position in the file, from 1."""
    extra: Mapping[str, Tree] = field(default_factory=dict)
    """The member ``llmproxy``."""
    recorded_at: float = 0.0
    """Unix time, seconds; 0.0 if unknown."""
    problem: str = ""
    """Reason why this exchange cannot be replayed although its file is intact (its body was never saved), or ""."""


_HEAD = 1 << 16


class Source:
    def __init__(self, data: bytes, name: str, models: Sequence[str] = ()) -> None:
        """`name` is for errors; `models` are those to use if the file names none."""
        self.data, self.name, self.models = data, name, models

    @cached_property
    def text(self) -> str:
        """The content as text. Raises CassetteCorrupt if it is not UTF-8."""
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.data[: error.start].count(b"\n") + 1
            raise CassetteCorrupt(f"{self.name}, line {line}: not UTF-8 text ({error.reason}).") from error

    @cached_property
    def head(self) -> str:
        return self.data[:_HEAD].decode("utf-8", "replace").lstrip("\ufeff")

    @cached_property
    def is_json(self) -> bool:
        return self.head.lstrip()[:1] == "{"

    @cached_property
    def json(self) -> Any:
        """The content as JSON. Raises CassetteCorrupt with the line."""
        return parse_json(self.text, self.name)

    @cached_property
    def members(self) -> dict[str, Any]:
        """The content as a JSON object; empty if it is none. Raises nothing."""
        try:
            tree = self.json if self.is_json else None
        except CassetteCorrupt:
            return {}
        return tree if isinstance(tree, dict) else {}


def parse_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cut = error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip())
        raise CassetteCorrupt(
            f"{name}, line {error.lineno}, column {error.colno}: {error.msg}.",
            hint="It ends in the middle: it was cut. Write or copy it again." if cut else "",
        ) from error
    except RecursionError as error:
        raise CassetteCorrupt(f"{name}: nested too deeply.") from error
    except ValueError as error:  # a number of thousands of digits
        raise CassetteCorrupt(f"{name}: {error}.") from error


class FormatModule(Protocol):
    def recognises(self, source: Source) -> bool:
        """Return whether the content is of this format. Raises nothing."""

    def read(self, source: Source) -> list[Recorded]:
        """Return the exchanges of a file, in its order. Raises CassetteCorrupt, CassetteNewer."""

    def dumps(self, recorded: Sequence[Recorded], cassette: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Format:
    name: str  # value of ``--format``
    module: str
    what: str
    suffixes: tuple[str, ...]  # suffixes of its files in an imported folder; a file given by name may have any
    writes: bool = False
    mark: str = ""  # text in every file that we write, if other programs write this format too
    apart: bool = False  # whether every exchange has a file of its own: a folder of them is one cassette

    def read_all(self, sources: Sequence[Source]) -> list[Recorded]:
        """Return the exchanges of the files of one cassette. Raises as `read`."""
        together: Callable[[Sequence[Source]], list[Recorded]] | None = getattr(self.loaded, "read_all", None)
        if together is not None:
            return together(sources)
        return [each for source in sources for each in self.loaded.read(source)]

    def check_replaceable(self, path: Path) -> None:
        """Refuse to overwrite a file. Raises CassetteCorrupt: it is damaged, or not written by us; CassetteNewer."""
        refused = f"{path} was not written by llmproxy."
        try:
            source = read_file_of_recordings(path)
            if self.loaded.recognises(source) and self.mark in source.text:
                self.loaded.read(source)
                return
        except CassetteCorrupt as error:
            refused = error.message
        raise CassetteCorrupt(f"Not overwritten: {refused}", hint="Write to another file, or replace it with --force.")

    @property
    def loaded(self) -> FormatModule:
        return cast("FormatModule", importlib.import_module(f"llmproxy.core.cassettes.formats.{self.module}"))


_ROWS = (
    Format("review", "review_yaml", "llmproxy's own, for review", (".yaml", ".yml"), writes=True),
    Format("jsonl", "jsonl", "one JSON object a line", (".jsonl", ".ndjson"), writes=True),
    Format("har", "har", "HTTP archive 1.2 of browsers and proxies", (".har",), writes=True, mark='"_llmproxy":'),
    Format("mitmproxy", "mitmflows", "mitmproxy's flow files", (".flow", ".flows", ".mitm", ".dump")),
    Format("aimock", "aimock_reader", "aimock's fixtures", (".json",), apart=True),
    Format("ddapm", "ddapm_reader", "recordings of ddapm-test-agent", (".json",), apart=True),
    Format("nock", "nock_reader", "nock's fixtures", (".json",)),
    Format("cassetter", "cassetter_reader", "cassetter's cassettes", (".yaml", ".yml", ".toml")),
    # The last: any other YAML is taken for vcrpy's, so that what is wrong with it is said in its terms.
    Format("vcr", "vcr", "vcrpy's cassettes", (".yaml", ".yml", ".json"), writes=True, mark="\nllmproxy:"),
)
FORMATS = {row.name: row for row in _ROWS}  # formats by name, in the order in which they are tried
SUFFIXES = tuple(dict.fromkeys(suffix for row in _ROWS for suffix in row.suffixes))


def get_format(name: str) -> Format:
    """Return a format by name. Raises SettingsError."""
    try:
        return FORMATS[name]
    except KeyError as error:
        raise SettingsError(f"There is no format {name!r}.", hint=f"Known: {', '.join(FORMATS)}.") from error


def find_matching_format(source: Source) -> Format | None:
    return next((row for row in _ROWS if row.loaded.recognises(source)), None)


def read_file_of_recordings(path: Path, models: Sequence[str] = ()) -> Source:
    """Return a file's content. Raises CassetteNotFound, CassetteCorrupt, MachineError."""
    if is_sqlite_database_file(path):
        raise CassetteCorrupt(
            f"{path} is a database, not a file of recordings.", hint=f"A store is given as --store {path}"
        )
    try:
        return Source(read_bounded_bytes(path), str(path), models)
    except FileNotFoundError as error:
        raise CassetteNotFound(f"There is no cassette file {path}.") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror or error}.") from error


_LISTED = 10


def read_each_item[T](
    items: Sequence[Any],
    one: Callable[[Any, int], T],
    source: Source,
    what: str,
    lines: Callable[[], Mapping[int, int]] = dict,
) -> list[T]:
    """Read numbered items, from 1, by `one`. Raises CassetteCorrupt naming the first ten of its ReadingProblems."""
    found: list[T] = []
    problems: list[tuple[int, str]] = []
    for number, item in enumerate(items, 1):
        try:
            found.append(one(item, number))
        except ReadingProblem as problem:
            problems.append((number, str(problem)))
    if problems:
        at = {number: f"line {line}, " for number, line in lines().items()}
        listed = [f"  {at.get(number, '')}{what} {number}: {problem}" for number, problem in problems[:_LISTED]]
        more = [f"  and {len(problems) - _LISTED} more"] if len(problems) > _LISTED else []
        raise CassetteCorrupt(
            f"{source.name}: {len(problems):,} of its {format_count(len(items), what)} cannot be read; nothing was "
            "taken from it:\n" + "\n".join([*listed, *more])
        )
    return found


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, creating its folder if missing. Raises MachineError."""
    try:
        with replace_file(path) as file:
            file.write(text)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror or error}.") from error


# -- values that a parser returned; each raises ReadingProblem with a description


def build_skipped_exchange(what: object, number: int) -> Recorded:
    return Recorded("GET", "", (), b"", 200, "", (), b"", number=number, problem=f"it is {what}, not HTTP")


class ReadingProblem(Exception):
    """An error in one interaction."""


def kind(value: Tree) -> str:
    return "nothing" if value is None else type(value).__name__


def is_final_http_status(status: object) -> TypeGuard[int]:
    """Return whether a status is a final one: after an interim one every client would wait for another."""
    if isinstance(status, bool) or not isinstance(status, int):
        return False
    return 200 <= status <= 599 or status == SWITCHING


def mapping(tree: Tree, *path: str) -> dict[str, Tree]:
    for n, name in enumerate(path):
        tree = tree.get(name) if isinstance(tree, dict) else None
        if not isinstance(tree, dict):
            raise ReadingProblem(f"`{'.'.join(path[: n + 1])}` is {_describe_wrong_value(tree)}, not a mapping")
    if not isinstance(tree, dict):
        raise ReadingProblem(f"it is {kind(tree)}, not a mapping")
    return tree


def text(tree: dict[str, Tree], name: str, default: str | None = None) -> str:
    """Return a text; a required one (no default) must not be empty."""
    if (value := tree.get(name)) is None and default is not None:
        return default
    if not isinstance(value, str) or (default is None and not value):
        raise ReadingProblem(f"`{name}` is {_describe_wrong_value(value)}, not a text")
    return value


def get_list(tree: dict[str, Tree], name: str) -> list[Tree]:
    if (value := tree.get(name)) is None:
        return []
    if not isinstance(value, list):
        raise ReadingProblem(f"`{name}` is {kind(value)}, not a list")
    return value


def status(value: Tree) -> int:
    if not is_final_http_status(value):
        raise ReadingProblem(f"the status is {value!r}, not one of 200 to 599, or 101")
    return value


def parse_header_mapping(value: Tree) -> Headers:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise ReadingProblem(f"`headers` is {kind(value)}, not a mapping")
    found: list[tuple[str, str]] = []
    for name, values in value.items():
        for each in values if isinstance(values, list) else [values]:
            if not isinstance(each, str | int | float):
                raise ReadingProblem(f"the header {name!r} is {kind(each)}, not a text")
            found.append((str(name), str(each)))
    return tuple(found)


def parse_name_value_headers(value: Tree) -> Headers:
    """Return header fields of a list of mappings with `name` and `value`, without HTTP/2's pseudo fields."""
    found: list[tuple[str, str]] = []
    for each in get_list({"headers": value}, "headers"):
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise ReadingProblem("`headers` has a field without a name")
        if not each["name"].startswith(":"):
            found.append((each["name"], str(each.get("value", ""))))
    return tuple(found)


def decode_base64(value: str) -> bytes:
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ReadingProblem("its base64 is damaged") from error


def encode_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def to_unix_time(value: Tree) -> float:
    """Return ISO text or a time stamp as Unix time; 0.0 for anything else."""
    if isinstance(value, int | float):
        return 0.0 if isinstance(value, bool) else float(value)
    if not isinstance(value, str | date):  # a datetime is a date; TOML and YAML have both
        return 0.0
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def microseconds(value: Tree, unit: int = 1_000_000) -> int:
    """Return a duration as whole microseconds, at least 0; `unit`: microseconds per unit of `value`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return 0
    return round(value * unit)


def _describe_wrong_value(value: Tree) -> str:
    return "missing" if value is None else "empty" if value == "" else kind(value)
