"""Plays generated cases through an engine: recorded in one, asked on trial in another, compared with what is right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmproxy.core.dialects.conversation import parse_answer_body_as_message
from llmproxy.core.traffic.interaction import Chunk, Response
from tests.core.changes.cases import Asked, Case
from tests.oracle.speak import JSON_TYPE, Dialect
from tests.support.in_process import Answer, InProcess


class Judge:
    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self.carried = self.exact = self.refused = 0

    def judge(self, cases: Sequence[Case]) -> list[str]:
        self._count += 1
        store = self._folder / f"{self._count}.db"
        with InProcess(store, "record") as proxy:
            for n, each in enumerate(cases):
                for asked in each.recorded:
                    _send(proxy, f"case{n}", each.dialect, asked, _answer(each.dialect, asked))
        wrong = []
        with InProcess(store, "replay") as proxy:
            for n, each in enumerate(cases):
                proxy.control("POST", "sessions", name=f"case{n}", trial=True)
                wrong += [f"case {n} {each.dialect.name} {each.edits}: {line}" for line in self._play(proxy, n, each)]
        return wrong

    def _play(self, proxy: InProcess, n: int, each: Case) -> list[str]:
        wrong, told = [], 0
        for number, asked in enumerate(each.present):
            answer = _send(proxy, f"case{n}", each.dialect, asked, Response(599, "", (), ()))
            report = proxy.control("GET", f"sessions/case{n}")[1]
            calls = report["trial"][told:]
            told = len(report["trial"])
            refusal = calls[0]["refusal"] if calls else None
            changed = frozenset(change["segment"] for call in calls for change in call["changes"])
            found = None if refusal else changed
            self.refused += found is None
            self.carried += bool(found)
            self.exact += found == frozenset()
            if found != asked.wanted:
                wrong.append(f"call {number}: wanted {_show(asked.wanted)}, found {_show(found)} {refusal or ''}")
            if found is not None and not _says(each.dialect, asked, answer.body):
                wrong.append(f"call {number}: another answer")
            if (found is None) is (answer.status < 400):
                wrong.append(f"call {number}: status {answer.status}")
        return wrong


def _show(found: frozenset[str] | None) -> str:
    return "a miss" if found is None else ", ".join(sorted(found)) or "an exact hit"


def _send(proxy: InProcess, session: str, dialect: Dialect, asked: Asked, answer: Response) -> Answer:
    return proxy.ask(
        "x", f"/s/{session}{asked.target}", asked.body, lambda _: answer, (("content-type", JSON_TYPE), *asked.headers)
    )


def _answer(dialect: Dialect, asked: Asked) -> Response:
    pieces = dialect.stream(asked.said) if asked.stream else [dialect.whole(asked.said)]
    kind = dialect.kind if asked.stream else JSON_TYPE
    return Response(200, "OK", (("content-type", kind),), tuple(Chunk(n, data) for n, data in enumerate(pieces)))


def _says(dialect: Dialect, asked: Asked, body: bytes) -> bool:
    message = parse_answer_body_as_message(dialect.operation, dialect.kind if asked.stream else JSON_TYPE, body)
    wanted = [call.name for call in asked.said.calls]
    return message is not None and message.text == asked.said.text and [c.name for c in message.tool_calls] == wanted
