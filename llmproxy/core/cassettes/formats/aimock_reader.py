"""Fixtures of aimock (npm @copilotkit/aimock): questions with answers, without complete requests or bytes.

    {"fixtures": [{"match": {"userMessage", "model", "turnIndex", "hasToolResult", ...}, "response": {...}}]}

A fixture matches many requests, a recording answers one: each becomes the smallest conversation that it matches, in the
dialect of its model's maker, once without and once with a stream. Earlier turns are those of other fixtures with the
same user message. Source: aimock 1.43.0, dist/types.d.ts and files that it recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.formats import ReadingProblem, Recorded, Source, Tree
from llmproxy.core.dialects.answer_writing import WHOLE, dump_json, sse
from llmproxy.core.dialects.dialect_table import ProviderRequestAndAnswerWriter, SpokenTurn, get_composer_for_model
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.errors import CassetteCorrupt

_MS = 1000


def recognises(source: Source) -> bool:
    fixtures = source.members.get("fixtures")
    return isinstance(fixtures, list) and all(isinstance(each, dict) and "match" in each for each in fixtures)


def read(source: Source) -> list[Recorded]:
    return read_all([source])


def read_all(sources: Sequence[Source]) -> list[Recorded]:
    """Return two exchanges for each fixture of files that belong together. Raises CassetteCorrupt."""
    fixtures: list[_Fixture] = []
    for source in sources:
        try:
            items = formats.get_list(formats.mapping(source.json), "fixtures")
        except ReadingProblem as problem:
            raise CassetteCorrupt(f"{source.name}: {problem}.") from problem
        for some in formats.read_each_item(items, partial(_read_fixture_for_models, source.models), source, "fixture"):
            fixtures += some
    turns = {each.turn_key: each for each in reversed(fixtures) if each.said is not None}
    ordered = sorted(fixtures, key=lambda each: each.turn_key)
    return [recorded for each in ordered for recorded in each.build_exchanges(turns)]


@dataclass(frozen=True, slots=True)
class _Fixture:
    number: int
    match: Mapping[str, Tree]
    model: str
    user: str
    said: SpokenTurn | None  # answer; None for an error
    error: Mapping[str, Tree]
    status: int
    retry_after: str
    times: Mapping[str, Tree]
    problem: str

    @property
    def turn_key(self) -> tuple[str, str, int]:
        index = self.match.get("turnIndex")
        return self.model, self.user, index if isinstance(index, int) else 0

    def build_exchanges(self, turns: Mapping[tuple[str, str, int], _Fixture]) -> Iterator[Recorded]:
        messages = [] if self.problem else self.build_conversation(turns)
        if not messages:
            why = self.problem or "earlier turns of its conversation are not among the fixtures"
            yield Recorded("POST", "", (), b"", 200, "", (), b"", number=self.number, problem=why)
            return
        speaker = get_composer_for_model(self.model)
        timing = {
            "head_offset": formats.microseconds(self.times.get("ttftMs"), _MS),
            "body_offset": formats.microseconds(self.times.get("totalDurationMs"), _MS),
        }
        for stream in (False, True):
            url, body = speaker.ask(self.model, messages, stream)
            kind, answer = self.write_answer(speaker, stream=stream)
            headers = (("content-type", kind), *((("retry-after", self.retry_after),) if self.retry_after else ()))
            yield Recorded(
                "POST", url, WHOLE, dump_json(body), self.status, "", headers, answer, number=self.number, extra=timing
            )

    def build_conversation(self, turns: Mapping[tuple[str, str, int], _Fixture]) -> list[Message]:
        """Return the conversation up to this answer; empty if it is unknown."""
        system = self.match.get("systemMessage")
        said = " ".join(system) if isinstance(system, list) else system
        messages = [Message("system", said)] if isinstance(said, str) and said else []
        messages.append(Message("user", self.user))
        for index in range(self.turn_key[2]):
            earlier = turns.get((self.model, self.user, index))
            if earlier is None or earlier.said is None or not earlier.said.message.tool_calls:
                return []
            messages.append(earlier.said.message)
            last = index == self.turn_key[2] - 1
            result = formats.text(dict(self.match), "toolResultContains", "") if last else ""
            messages += [Message("tool", result, tool_call_id=call.id) for call in earlier.said.message.tool_calls]
        return messages

    def write_answer(self, speaker: ProviderRequestAndAnswerWriter, *, stream: bool) -> tuple[str, bytes]:
        if self.said is None:
            return "application/json", dump_json(speaker.error(dict(self.error), self.status))
        if stream:
            return "text/event-stream", sse(speaker.stream(self.said))
        return "application/json", dump_json(speaker.answer(self.said))


def _read_fixture_for_models(models: Sequence[str], tree: Tree, number: int) -> list[_Fixture]:
    model = formats.mapping(tree, "match").get("model")
    named = [model] if isinstance(model, str) and model else models or [""]
    return [_parse_fixture(tree, number, each) for each in named]


def _parse_fixture(tree: Tree, number: int, model: str) -> _Fixture:
    """Return a fixture for one model, with `problem` if it cannot be replayed. Raises ReadingProblem."""
    match, response = formats.mapping(tree, "match"), formats.mapping(tree, "response")
    user = match.get("userMessage")
    problem = "" if model else "it names no model: say which your agent asks, --model NAME"
    if not isinstance(user, str) or not user:
        problem = "it names no user message: its request cannot be made up"
    if match.get("endpoint") not in ("chat", None):
        problem = f"it answers no conversation but {match['endpoint']}"
    error = formats.mapping(tree, "response", "error") if "error" in response else {}
    if not error and not any(name in response for name in ("content", "toolCalls", "blocks")):
        problem = problem or "it answers with neither text nor tool calls"
    times = tree.get("recordedTimings")
    retry = response.get("retryAfter")
    return _Fixture(
        number=number,
        match=match,
        model=model,
        user=user if isinstance(user, str) else "",
        said=None if error or problem else _read_answer_turn(model, response),
        error=error,
        status=formats.status(response.get("status", 500 if error else 200)),
        retry_after=str(retry) if retry is not None else "",
        times=times if isinstance(times, dict) else {},
        problem=problem,
    )


def _read_answer_turn(model: str, response: dict[str, Tree]) -> SpokenTurn:
    said, calls = formats.text(response, "content", ""), formats.get_list(response, "toolCalls")
    if blocks := list(map(formats.mapping, formats.get_list(response, "blocks"))):
        said = "".join(formats.text(each, "text", "") for each in blocks if each.get("type") == "text")
        calls = [each for each in blocks if each.get("type") == "toolCall"]
    usage = response.get("usage")
    return SpokenTurn(
        model=formats.text(response, "model", "") or model,
        message=Message("assistant", said, tuple(_build_call(each, n) for n, each in enumerate(calls))),
        usage=usage if isinstance(usage, dict) else {},
        finish=formats.text(response, "finishReason", ""),
    )


def _build_call(tree: Tree, number: int) -> ToolCall:
    tree = formats.mapping(tree)
    arguments = tree.get("arguments", "{}")
    said = arguments if isinstance(arguments, str) else dump_json(arguments).decode()
    return ToolCall(formats.text(tree, "id", "") or f"call_{number}", formats.text(tree, "name"), said)
