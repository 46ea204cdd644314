"""What-if features, alone and together: what a run comes to with each combination, in each situation, in each dialect.

    uv run python -m tests.core.engine.feature_matrix            # write feature_matrix.jsonl: what is so now is expected
    uv run python -m tests.core.engine.feature_matrix --show "bind+fault retry" --dialect responses

A combination is read, not written down: the agent below asks its model three times, between them a tool and a
WebSocket where those belong to the combination, and the session is opened with what the rest of it asks for. The
expected file has a line for each combination and situation: what was seen, in short, and digests of everything.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from llmproxy.core.bindings import VolatileField
from llmproxy.core.dialects.conversation import parse_answer_body_as_message
from llmproxy.core.engine.engine import Engine
from llmproxy.core.forks.fork_rows import list_all_forks_in_store
from llmproxy.core.store.queries import save_cassette_volatile_fields
from llmproxy.core.traffic.interaction import Chunk, Response
from tests.oracle.speak import DIALECTS as SPOKEN, JSON_TYPE, Call, Said, Turn
from tests.support.in_process import Answer, InProcess

Json = Any
EXPECTED = Path(__file__).with_suffix(".jsonl")
FEATURES = ("bind", "override", "fork", "fault", "live", "mcp", "socket")
SITUATIONS = ("hit", "miss", "recording", "retry", "failure", "stream")
REFUSED_WITH_LIVE = {"override", "fork", "fault"}
"""A session with live channels refuses these; each pair shows it, and no triple can be typed."""
DIALECTS = {each.name: each for each in SPOKEN if each.name in ("chat", "responses", "messages", "gemini")}
PARTS = ("bytes", "stored", "told")
"""What is digested: what client and upstream got; what the store holds; what is counted, journalled and reported."""


class Cell(NamedTuple):
    features: tuple[str, ...]
    situation: str
    dialect: str

    @property
    def name(self) -> str:
        """What its line is called: the dialects share it."""
        return f"{'+'.join(self.features) or 'plain'} {self.situation}"

    @property
    def cassette(self) -> str:
        kind = {"stream": "stream", "failure": "failed", "recording": "part"}.get(self.situation, "plain")
        return "-".join([kind, *(each for each in ("mcp", "socket") if each in self.features)])


def combinations() -> Iterator[tuple[str, ...]]:
    """Yield none, each alone, every pair, and the triples that a user can type."""
    for size in range(4):
        for each in itertools.combinations(FEATURES, size):
            if size < 3 or "live" not in each or not REFUSED_WITH_LIVE & set(each):
                yield each


class Place(NamedTuple):
    cwd: str
    chunk: str


RECORDED, ELSEWHERE = Place("/tmp/a/one", "98e1ef00"), Place("/srv/ci/two", "aa01bc22")
FAULTS = [
    {"kind": "http-429", "call": 1},
    {"kind": "cut-frame", "call": [2, 3, 4, 5]},
    {"kind": "mcp-tool-error", "channel": "mcp"},
    {"kind": "http-503", "transport": "websocket"},
]


def opened(cell: Cell, where: Place) -> dict[str, Json]:
    """Return what a session of this cell is opened with."""
    has, asked = cell.features, dict[str, Json]()
    asked["mode"] = "auto" if cell.situation == "recording" else "replay"
    if "bind" in has:
        asked["run_variables"] = {"cwd": where.cwd}
    if "override" in has:
        tools, answers = [{"tool": "run", "result": "no such chunk"}], [{"call": 1, "text": "by hand"}]
        only = {"miss": {"tools": tools}, "retry": {"answers": answers}}
        asked["overrides"] = only.get(cell.situation, {"tools": tools, "answers": answers})
    if "fork" in has:
        asked["fork"] = {"live": True, "from": 2}
    if "fault" in has:
        asked["faults"] = FAULTS
    if "live" in has:
        asked["live"] = ["mcp"] if "mcp" in has and cell.situation == "miss" else ["llm"]
        asked["unknown_tool"] = "live" if cell.situation == "retry" else "error"
    return asked


class Agent:
    """Asks its model three times; `live` marks what its upstreams say while something is replayed."""

    def __init__(self, proxy: InProcess, cell: Cell, where: Place, *, live: str = "") -> None:
        self._proxy, self._cell, self._where, self._live = proxy, cell, where, live
        self._stream, self._turns = cell.situation == "stream", list[Turn]()
        self._id = 100 if live else 0
        self.got: list[tuple[str, Answer]] = []

    def run(self, *, steps: int = 3) -> None:
        cwd, chunk = self._where
        self._turns.append(("user", f"list {cwd}"))
        said = self._model(1, Said(calls=[Call("run", {"in": cwd}, "call_1")]))
        if steps == 1:
            return
        if said.calls:
            result = f"Chunk ID: {chunk}\n{cwd}"
            if "mcp" in self._cell.features:
                result = self._tool(result)
            told = json.dumps({"result": result}) if self._cell.dialect == "gemini" else result
            self._turns.append(("results", [(said.calls[0], told, False)]))
        self._model(2, Said(f"{self._live}made {chunk} in {cwd}"))
        if "socket" in self._cell.features:
            self._socket()
        changed = self._live and self._cell.situation == "miss"
        self._turns.append(("user", "and what else?" if changed else "and now?"))
        self._model(3, Said(f"{self._live}see {cwd}/{chunk}"))

    def _model(self, step: int, said: Said) -> Said:
        """Ask the model, again where the answer is none; returns what it said."""
        dialect, tries, streams = DIALECTS[self._cell.dialect], itertools.count(1), self._stream
        body = dialect.request(self._turns, ["run"], stream=streams)

        def upstream(_sent: bytes) -> Response:
            kind, status, pieces = JSON_TYPE, 200, [dialect.whole(said)]
            if self._cell.situation == "failure" and step == 2 and next(tries) == 1:
                status, pieces = 500, [b'{"error":{"message":"over capacity","code":500}}']
            elif streams:
                kind, pieces = dialect.kind, dialect.stream(said)
            chunks = tuple(Chunk(0, piece) for piece in pieces)
            return Response(status, "", (("content-type", kind),), chunks, chunked=streams)

        def ask(label: str, *more: tuple[str, str]) -> Said | None:
            target, headers = dialect.address(stream=streams), (("content-type", JSON_TYPE), *more)
            answer = self._proxy.ask(label, f"/s/{self._cell.cassette}{target}", body, upstream, headers)
            self.got.append((label, answer))
            kind = dialect.kind if streams else JSON_TYPE
            heard = parse_answer_body_as_message(dialect.operation, kind, answer.body) if answer.status == 200 else None
            if heard is None or not (heard.text or heard.tool_calls):
                return None
            calls = [Call(each.name, json.loads(each.arguments), each.id or "") for each in heard.tool_calls]
            return Said(heard.text, calls)

        heard = ask(str(step))
        status = self.got[-1][1].status
        broken = heard is None and (status in (0, 200, 429) or status >= 500)
        broken = broken or b"x-llmproxy-fault" in self.got[-1][1].data
        if broken or (self._live and self._cell.situation == "retry"):
            heard = ask(f"{step}r", ("x-stainless-retry-count", "1"))
        heard = heard or Said("(no answer)")
        self._turns.append(("model", heard))
        return heard

    def _tool(self, result: str) -> str:
        """Call the tool over MCP, and answer its server's question."""
        self._id += 1
        asked = {"jsonrpc": "2.0", "id": self._id, "method": "tools/call"}
        call = asked | {"params": {"name": "run", "arguments": {"in": self._where.cwd}}}
        content = {"content": [{"type": "text", "text": self._live + result}]}
        question = {"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {"message": "really?"}}
        told = [question, {"jsonrpc": "2.0", "id": self._id, "result": content}]
        pieces = tuple(Chunk(n, f"data: {json.dumps(each)}\n\n".encode()) for n, each in enumerate(told))
        answer = Response(200, "OK", (("content-type", "text/event-stream"),), pieces, chunked=True)
        target, kind = f"/s/{self._cell.cassette}/tools/mcp", (("content-type", "application/json"),)

        def reply(heard: bytes) -> None:
            if b"elicitation" in heard:
                said = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"action": "accept", "content": {}}}).encode()
                taken = Response(202, "Accepted", (), ())
                self.got.append(("q", self._proxy.ask("q", target, said, lambda _: taken, kind)))

        got = self._proxy.ask("t", target, json.dumps(call).encode(), lambda _: answer, kind, reply)
        self.got.append(("t", got))
        found = re.findall(r'"text": ?"((?:[^"\\]|\\.)*)"', got.body.decode())
        return str(json.loads(f'"{found[-1]}"')) if found else "(no result)"

    def _socket(self) -> None:
        says = json.dumps({"type": "say", "text": f"hello from {self._where.cwd}"})

        def upstream(heard: str) -> list[str]:
            kinds = ["delta", "response.done"] if heard else ["session.created"]
            return [json.dumps({"type": kind, "said": self._live}) for kind in kinds]

        target = f"/s/{self._cell.cassette}/v1/realtime?model=gpt-realtime"
        self.got.append(("w", self._proxy.talk("w", target, [says], upstream)))


class Bases:
    """Stores with what was recorded, one for each dialect, with volatile fields or without."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[tuple[str, bool], Path]()

    def copy(self, cell: Cell) -> Path:
        """Return a fresh copy of the store that a cell begins with."""
        which = cell.dialect, "bind" in cell.features
        if which not in self._made:
            self._made[which] = self._record(*which)
        return Path(shutil.copyfile(self._made[which], self._folder / "cell.db"))

    def _record(self, dialect: str, bound: bool) -> Path:
        store = self._folder / f"{dialect}-{bound}.db"
        with InProcess(store, "record", upstreams=UPSTREAMS) as proxy:
            for situation in ("hit", "stream", "failure", "recording"):
                for beside in ((), ("mcp",), ("socket",), ("mcp", "socket")):
                    cell = Cell(beside, situation, dialect)
                    given = {"run_variables": {"cwd": RECORDED.cwd}} if bound else {}
                    assert proxy.control("POST", "sessions", name=cell.cassette, **given)[0] == 201
                    Agent(proxy, cell, RECORDED).run(steps=1 if situation == "recording" else 3)
                    assert proxy.control("POST", f"sessions/{cell.cassette}/close")[0] == 200
                    if bound and proxy.engine.store is not None:
                        chunk = VolatileField("chunk", "hex", "run", before="Chunk ID: ")
                        save_cassette_volatile_fields(proxy.engine.store, cell.cassette, [chunk])
        return store


UPSTREAMS = {"tools": "http://127.0.0.1:9"}
_TIMES = {"at", "ms", "first_ms", "recording"}
_COUNTS = ("hits", "bound", "misses", "recorded", "passed", "refused", "failed", "served_failures", "injected")


def observe(cell: Cell, bases: Bases, engine: type[Engine] = Engine) -> dict[str, Json]:
    """Play a cell; returns `short`, and under the name of each of `PARTS` everything that is digested."""
    store = bases.copy(cell)
    where = ELSEWHERE if "bind" in cell.features else RECORDED
    config: dict[str, Json] = {"upstreams": UPSTREAMS, "shown": "x.db", "allow_live": True}
    try:
        with InProcess(store, "replay", engine, **config) as proxy:
            before = _rows(proxy, cell.cassette)
            status, said = proxy.control("POST", "sessions", name=cell.cassette, **opened(cell, where))
            if status != 201:
                return {"short": f"not opened: {status} {said['error']['code']}", "told": said["error"]["code"]}
            agent = Agent(proxy, cell, where, live="live: ")
            agent.run()
            status, report = proxy.control("POST", f"sessions/{cell.cassette}/close", after=0)
            faults = report.get("faults", {})  # why one met no call is told in words
            for told in (faults, *faults.get("faults", ())):
                told.pop("idle", None)
            calls = [{name: each[name] for name in each if name not in _TIMES} for each in report.pop("calls")]
            shown = [_short(label, call) for label, call in zip(proxy.labels, calls, strict=True)]
            stored = {name: rows for name, rows in _rows(proxy, cell.cassette).items() if rows != before.get(name)}
            counts = [f"{name} {report[name]}" for name in _COUNTS if report.get(name)]
            kept = [f"{name} {len(rows) - len(before.get(name, ()))}" for name, rows in stored.items()]
            for call in calls:
                call["note"] = "" if call["decision"] == "REFUSE" else call["note"]
            misses = [
                [each.data.get("reason"), each.data.get("nearest")] for each in proxy.engine.journal.list_misses()
            ]
            told = {"calls": calls, "report": report, "misses": misses, "texts": len(report.pop("miss_texts"))}
            got = [
                (label, answer.status, _plain(answer.data.decode("utf-8", "replace"))) for label, answer in agent.got
            ]
            sent = [(label, data.decode()) for label, data in proxy.sent]
    finally:
        for each in store.parent.glob("cell.db*"):
            each.unlink()
    clean = json.loads(json.dumps(told).replace(str(store), "x.db"))
    short = f"{' '.join(shown)} | {', '.join(counts)} | {', '.join(kept)}"
    return {"short": short, "bytes": {"client": got, "upstream": sent}, "stored": stored, "told": clean}


def _plain(text: str) -> str:
    """Leave out what a refusal says in words, and the length that it has."""
    head = text.partition("\r\n\r\n")[0]
    return re.sub(r"content-length: \d+\r\n", "", f"{head}\r\n") if "x-llmproxy-error" in head else text


def _short(label: str, call: Mapping[str, Json]) -> str:
    kinds = {"replay": "hit", "record": "rec", "refuse": "no", "pass": "pass", "fault": "fault"}
    note = str(call["note"])
    bound = re.match(r"bound: [\w, ]+", note.partition(", a recorded")[0])
    flags = ["miss" if call["miss"] else "", call["fault"] or "", bound[0].replace(" ", "") if bound else ""]
    flags += ["by-hand"] if re.search(r"answer \d+ overridden", note) else []
    flags += ["swapped"] if "overridden: " in note else []
    return ",".join(filter(None, [f"{label}:{kinds[call['decision'].lower()]}{call['status']}", *flags]))


def _rows(proxy: InProcess, cassette: str) -> dict[str, list[Json]]:
    """Return what the store holds of a cassette and its children, by cassette, and the forks."""
    if (store := proxy.engine.store) is None:
        return {}
    found: dict[str, list[Json]] = {}
    for info in store.cassettes():
        if info.name != cassette and not info.name.startswith(f"{cassette}@"):
            continue
        rows = [
            [
                one.id, one.party, one.provider, one.operation, one.occurrence, one.key, one.response.status,
                str(one.response.ending), one.request.target, _digest(one.request.body), _digest(one.response.body),
            ]
            for one in store.iter_interactions(info.name, info.sample)
        ]  # fmt: skip
        found[info.name] = rows
        found.setdefault("open", []).extend([info.name] if not info.closed_cleanly else [])
    if made := [each.to_json() | {"created_at": 0} for each in list_all_forks_in_store(store)]:
        found["forks"] = made
    return found


def _digest(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:6]


def lines(bases: Bases) -> Iterator[dict[str, Json]]:
    for features, situation in itertools.product(combinations(), SITUATIONS):
        seen = {each: observe(Cell(features, situation, each), bases) for each in DIALECTS}
        shorts = dict.fromkeys(one["short"] for one in seen.values())
        did = {" ".join(each for each in seen if seen[each]["short"] == short): short for short in shorts}
        digests = {part: " ".join(_digest(one.get(part)) for one in seen.values()) for part in PARTS}
        yield {"cell": Cell(features, situation, "").name, "did": did, **digests}


def compare(line: Mapping[str, Json], cell: Cell, seen: Mapping[str, Json]) -> list[str]:
    """Return what is other than a line of the file says."""
    was = next((short for names, short in line["did"].items() if cell.dialect in names.split()), "")
    found = [] if was == seen["short"] else [f"was: {was}", f"is:  {seen['short']}"]
    column = list(DIALECTS).index(cell.dialect)
    return found + [f"other {part}" for part in PARTS if line[part].split()[column] != _digest(seen.get(part))]


def expected() -> dict[str, dict[str, Json]]:
    """Return the lines of the file, by the name of their cell."""
    return {line["cell"]: line for line in map(json.loads, EXPECTED.read_text("utf-8").splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="CELL")
    parser.add_argument("--dialect", choices=list(DIALECTS), default="chat")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bases = Bases(Path(folder))
        if asked.show:
            names, _, situation = asked.show.partition(" ")
            features = tuple(each for each in names.split("+") if each != "plain")
            print(json.dumps(observe(Cell(features, situation, asked.dialect), bases), indent=1))
        else:
            EXPECTED.write_text("\n".join([json.dumps(line) for line in lines(bases)]) + "\n", "utf-8")


if __name__ == "__main__":
    main()
