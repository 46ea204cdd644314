"""Explanation of a miss for its client: the reason, and the next command to type.

The engine fills a `MissContext`; this module chooses the text: the first of `_REASONS` that applies is the cause, its
steps are the advice. All inputs are redacted already; every value is escaped and shortened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import NamedTuple

from llmproxy.advice import SuggestedCommandTemplate, format_llmproxy_command
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.misses.nearest_recording import (
    AS_RECORDED,
    COUNTED,
    Nearest,
    RecordingToCurrentRunRewriter,
    find_nearest_recording,
)
from llmproxy.core.providers.provider_table import ClientProgram, get_call_channel
from llmproxy.core.traffic.json_diff import clip
from llmproxy.protocol import AGENT, DEFAULT_STORE, SHOWN_KEY, Channel


@dataclass(frozen=True, slots=True)
class RecordedElsewhere:
    cassette: str
    sample: int = 1
    party: str = AGENT


@dataclass(frozen=True, slots=True)
class MissContext:
    mode: str
    cassette: str
    session: str
    key: str
    method: str
    provider: str
    operation: str
    sample: int = 1
    party: str = AGENT
    model: str | None = None
    stream: bool = False
    last_user: str = ""
    store: str = DEFAULT_STORE
    store_exists: bool = True
    again: SuggestedCommandTemplate = field(default_factory=SuggestedCommandTemplate)
    upstreams: Mapping[str, str] = field(default_factory=dict)
    """Upstreams that only its session has, or that the nearest recording came from and no option names."""
    recordings: int = 0
    """Number of live recordings of (cassette, sample), all parties."""
    same_operation: int = 0
    """Number of those with this provider and operation."""
    played: int = 0
    """Number of recordings of this key, all served already (``--exhausted miss``)."""
    elsewhere: tuple[RecordedElsewhere, ...] = ()
    complete: bool = False
    """Mode `once`: the cassette was complete when the session opened."""
    incomplete: bool = False
    """Whether what is recorded ended early: its run was interrupted, or failed."""
    outside_tests: bool = False
    """Whether no test with the plugin's fixture was running, and so nobody chose a cassette."""
    state: str = ""
    """With live channels: reason why no recording of this tool's call matches the state of the tools."""
    beside_live: str = ""
    """With live channels: the name of this tool's call."""
    toolless: bool = False
    """Whether it went to a tool server, and the cassette has none."""
    concurrent: tuple[tuple[int, ...], ...] = ()
    """Recordings of the session's cassette that ran concurrently, by group."""
    client: ClientProgram | None = None
    recorded_by: ClientProgram | None = None
    is_placeholder: bool = False
    """Whether its API key is the placeholder that replay sets for a missing one."""
    is_python: bool = False
    unbound: str = ""
    """Reason why a recording that was compared with bindings does not fit."""
    unbound_at: str = ""
    """JSON path of that, if a difference is the reason."""
    not_carried: str = ""
    """Reason why the recording at its place is not served in spite of changes."""
    on_trial: bool = False
    """Whether a trial asks that says what has changed (`llmproxy changes`)."""


_SENT_TO: Mapping[Channel, str] = {Channel.LLM: "provider", Channel.MCP: "server", Channel.HTTP: "service"}
LIMIT, LINES = 2000, 12
"""Maximum characters and lines of the whole text, which is an error message."""


@dataclass(frozen=True)
class ExplainedMiss:
    context: MissContext
    nearest: Nearest | None

    @cached_property
    def text(self) -> str:
        """Text for the client: at most 2,000 characters, mostly 12 lines; differences precede cause and commands."""
        text = ""
        for shown, width in ((5, 90), (5, 60), (4, 50), (3, 40), (2, 30), (1, 30), (0, 30)):
            text = "\n".join(_format_miss_lines(self, shown, width))
            if len(text) <= LIMIT and text.count("\n") < LINES:
                return text
        return text[: LIMIT - 1] + "…"

    @property
    def reason(self) -> str:
        return _match_reason(self).name

    @property
    def steps(self) -> tuple[dict[str, object], ...]:
        """Advice, ``{"about": why, "commands": [to type]}``; the likeliest first."""
        found = _list_advice_steps(self)
        return tuple({"about": each.about + each.more, "commands": list(each.commands)} for each in found)

    def to_dict(self) -> dict[str, object]:
        context = asdict(self.context)
        for name in ("again", "upstreams", "concurrent", "is_python"):  # for the text alone
            del context[name]
        context |= {name: str(getattr(self.context, name) or "") for name in ("client", "recorded_by")}
        return {
            **context,
            "reason": self.reason,
            "nearest": self.nearest.to_dict() if self.nearest else None,
            "text": self.text,
            "record": self.record_command,
            "starts": self.proxy_start_commands_by_mode,
            "numbers_only": self.differs_in_numbers,
        }

    @property
    def record_command(self) -> str:
        return _build_start_command(self, "auto") if _match_reason(self).steps is _advise_record else ""

    @property
    def proxy_start_commands_by_mode(self) -> dict[str, str]:
        """The commands of `text` that start a proxy by hand, by mode, for callers with a shorter way."""
        there = self.context.elsewhere[0].cassette if self.context.elsewhere else ""
        modes = {} if self.context.again.is_for_one_command else {"record": "", "auto": "", "replay": there}
        return {mode: _build_start_command(self, mode, cassette) for mode, cassette in modes.items()}

    @property
    def differs_in_numbers(self) -> bool:
        found = self.nearest.differences if self.nearest else ()
        return bool(found) and all(each.only_numbers for each in found)


def build_miss_explanation(
    context: MissContext,
    wanted: Canonical,
    candidates: Sequence[tuple[int, Canonical]],
    wording: RecordingToCurrentRunRewriter = AS_RECORDED,
    add_recorded: Callable[[MissContext, int], MissContext] = lambda context, _: context,
) -> ExplainedMiss:
    """Explain a miss; `candidates`: (row, canonical request), 50 are enough; `add_recorded` adds facts of a row."""
    near = find_nearest_recording(wanted, candidates, wording)
    return ExplainedMiss(context if near is None else add_recorded(context, near.id), near)


class _Advice(NamedTuple):
    about: str
    commands: Sequence[str] = ()
    more: str = ""

    def __str__(self) -> str:
        typed = f": {'   '.join(self.commands)}" if self.commands else ""
        return f"{self.about}{typed}{self.more}"


def _format_miss_lines(miss: ExplainedMiss, shown: int, width: int) -> list[str]:
    context, why = miss.context, _match_reason(miss)
    what = " ".join(clip(part, 60) for part in (context.provider, context.operation, context.model or "") if part)
    which = [f"mode {context.mode}", f"session {_quote(context.session)}"]
    which += [f"sample {context.sample}"] if context.sample != 1 else []
    which += [f"party {_quote(context.party)}"] if context.party != AGENT else []
    which += [f"store {clip(context.store, 120)}", f"key {context.key[:SHOWN_KEY]}"]
    asked = f"request: {clip(context.method, 10)} {what}{', streaming' if context.stream else ''}"
    if context.last_user:
        asked += f', last user text "{clip(context.last_user, width)}"'
    cause = why.cause(miss) if callable(why.cause) else why.cause
    cause += "; the recording is incomplete: interrupted, or its run failed" if context.incomplete else ""
    places = [item.path for item in miss.nearest.differences[:shown]] if miss.nearest else []
    return [
        f"llmproxy: no recorded response for this request ({what}) in cassette {_quote(context.cassette)}: {cause}.",
        (
            f"{', '.join(which)}; nothing was sent to the"
            f" {_SENT_TO[get_call_channel(context.provider, context.operation)]}."
        ),
        asked,
        *(_describe_nearest(miss.nearest, shown, width) if miss.nearest else ()),
        *_describe_clients(context),
        *([clip(context.unbound, 6 * width)] if context.unbound and context.unbound_at not in places else []),
        *([clip(context.not_carried, 6 * width)] if context.not_carried else []),
        "What to do:",
        *(f"  {n}. {step}" for n, step in enumerate(_list_advice_steps(miss), 1)),
    ]


def _list_advice_steps(miss: ExplainedMiss) -> list[_Advice]:
    if (why := _match_reason(miss)).steps is _advise_record:
        return why.steps(miss)  # there is no recording to show
    store = miss.context.store
    near = [format_llmproxy_command(f"show {miss.nearest.id}", store)] if miss.nearest else []
    live = [_Advice("or let the real tool answer: --unknown-tool live")] if miss.context.beside_live else []
    page = miss.context.again.page
    seen = f"   {page}#/live/{miss.context.key[3:15]}" if page else ""
    return [*why.steps(miss), *live, _Advice("look closer", [format_llmproxy_command("why", store), *near], seen)]


def _describe_nearest(near: Nearest, shown: int, width: int) -> list[str]:
    found = near.differences
    many = "at least " if len(found) >= COUNTED else ""
    places = f"differs in {many}{len(found)} place{'s' if len(found) != 1 else ''}:" if found else "same content."
    lines = [f"nearest recording: #{near.id}, {places}"]
    for item in found[:shown]:
        old, new = (clip(value, width) or "(absent)" for value in (item.old, item.new))
        looks = f"  [looks like {item.looks}]" if item.looks else ""
        lines.append(f"  {clip(item.place, 100)}: {old} -> {new}{looks}")
    if len(found) > shown > 0:
        lines.append(f"  and {len(found) - shown} more")
    if near.bound and shown:
        lines.append(f"  no difference, since bound: {clip(', '.join(near.bound), 2 * width)}")
    return lines


def _describe_clients(context: MissContext) -> list[str]:
    then, now = context.recorded_by, context.client
    alone = f"if the program chose {context.provider} because a key is set, set that variable empty"
    chosen = context.is_placeholder and context.recordings and not context.same_operation
    said = [f"its key is the placeholder that replay sets for a missing key: {alone}"] if chosen else []
    if then is None or now is None or then == now:
        return said
    asked = now.version if now.name == then.name else str(now)
    return [*said, f"recorded by {clip(str(then), 60)}, asked by {clip(asked, 60)}"]


def _quote(text: str) -> str:
    return f'"{clip(text, 60)}"'


def _build_start_command(miss: ExplainedMiss, mode: str, cassette: str = "") -> str:
    name = cassette or miss.context.cassette
    return miss.context.again.command(mode, name, store=miss.context.store, upstreams=miss.context.upstreams)


def _advise_record(miss: ExplainedMiss) -> list[_Advice]:
    then = "" if miss.context.again.is_begun_anew else ", and then run the agent once"
    return [_Advice(f"record what is missing{then}", [_build_start_command(miss, "auto")])]


def _advise_record_missing(miss: ExplainedMiss) -> list[_Advice]:
    closed = "mode once adds nothing to a complete cassette; " if miss.context.complete else ""
    return [_Advice(f"{closed}record what is missing", [_build_start_command(miss, "auto")])]


def _advise_record_anew(miss: ExplainedMiss) -> list[_Advice]:
    """Advise to record one run again, not other orders: there are too many of those."""
    anew = _Advice("record all of it again", [_build_start_command(miss, "record")])
    sets = _Advice("if a set gives the order, Python has another in each process: set PYTHONHASHSEED=0")
    return [sets, anew] if miss.context.is_python else [anew]


def _describe_reordering(miss: ExplainedMiss) -> str:
    if (near := miss.nearest) is None:
        return "the same as a recording, in another order"
    what = "messages" if near.reordered in ("$.messages", "$.input", "$.contents") else "members"
    what = "words" if near.is_word_order else what
    at_once = [group for group in miss.context.concurrent if max(group) < near.id]
    why = f": #{min(at_once[-1])} to #{max(at_once[-1])} ran at the same time" if at_once else ""
    return f"it is the same {what} as #{near.id} in another order, at {clip(near.reordered, 80)}{why}"


def _advise_servers(miss: ExplainedMiss) -> list[_Advice]:
    context, again = miss.context, miss.context.again.without_mcp_servers()
    typed = again and again.command("", context.cassette, store=context.store, upstreams=context.upstreams)
    step = _Advice("leave its MCP servers unchanged, as in the recording", [typed] if typed else [])
    return [step, *_advise_record_missing(miss)]


def _advise_other_recording(miss: ExplainedMiss) -> list[_Advice]:
    context, there = miss.context, miss.context.elsewhere[0]
    if there.cassette != context.cassette:
        if context.again.names_cassette and not context.again.is_test_runner:
            typed = _build_start_command(miss, "replay", there.cassette)
        elif context.again.is_pytest or (context.is_python and not context.again.is_test_runner):  # it is no option
            typed = f"@pytest.mark.llmproxy(cassette={json.dumps(there.cassette)})"
        elif context.again.is_suite:
            typed = "a scenario has one of its own"
        else:
            typed = f"session({{ cassette: {json.dumps(there.cassette)} }})"
        step = _Advice("use that cassette", [typed])
    elif there.sample != context.sample:
        step = _Advice(f"use session {_quote(f'{there.cassette}~{there.sample}')}, or record sample {context.sample}")
    else:
        who = f"{_quote(there.party)} recorded it, {_quote(context.party)} asked"
        step = _Advice(f"x-llmproxy-party says who calls: {who}")
    return [step, *_advise_record_missing(miss)]


def _advise_declaring_day(miss: ExplainedMiss) -> _Advice:
    """Advise that `run`, the pytest plugin and suites declare a day in system text, and bind it."""
    context, by_run = miss.context, miss.context.again
    if not by_run.is_begun_anew:
        by_run = by_run.for_other_command("llmproxy run", " -- YOUR COMMAND")
    typed = by_run.command("record", context.cassette, store=context.store, upstreams=context.upstreams)
    return _Advice("or record again with the day declared; it then replays on any other day", [typed])


def _advise_rules(miss: ExplainedMiss) -> list[_Advice]:
    suggestion = miss.nearest.suggestion if miss.nearest else None
    if suggestion is None:
        fixed = miss.context.on_trial or (miss.nearest is not None and miss.nearest.is_other_question)
        return [*_advise_record_missing(miss), *([] if fixed else _advise_changes_command(miss))]
    rule = suggestion.toml.replace("\n", "   ")
    many = "differences" if suggestion.left > 1 else "difference"
    rest = f"; {suggestion.left} other {many} would stay" if suggestion.left else ""
    again = "" if miss.context.again.is_begun_anew else ", and start the proxy again"
    step = _Advice(
        f"if that changes by itself, put into pyproject.toml, [tool.llmproxy.normalize]: {rule}   then",
        [format_llmproxy_command("verify --rekey", miss.context.store)],
        f"{again}{rest}",
    )
    # A rule that leaves differences is not the first advice. If a place is unbound, the recording has declared
    # its day already, and this is a different day.
    steps = [step, *([_advise_declaring_day(miss)] if suggestion.of_days and not miss.context.unbound else [])]
    return [*_advise_record_missing(miss), *steps] if suggestion.left else [*steps, *_advise_record_missing(miss)]


def _advise_changes_command(miss: ExplainedMiss) -> list[_Advice]:
    typed = miss.context.again.format_changes_command(miss.context.cassette, miss.context.store)
    about = "or list, offline, what changed, what it affects and what new recordings cost"
    return [_Advice(about, [typed])] if typed else []


def _describe_elsewhere(miss: ExplainedMiss) -> str:
    context, there = miss.context, miss.context.elsewhere[0]
    parts = [f"cassette {_quote(there.cassette)}"] if there.cassette != context.cassette else []
    parts += [f"sample {there.sample}"] if there.sample != context.sample else []
    parts += [f"party {_quote(there.party)}"] if there.party != context.party else []
    return f"it is recorded under {', '.join(parts) or 'another place'}"


def _describe_missing_operation(miss: ExplainedMiss) -> str:
    context, many = miss.context, miss.context.recordings
    recordings = "its only recording is not" if many == 1 else f"none of its {many} recordings is"
    return f"{recordings} of {clip(context.provider, 40)} {clip(context.operation, 60)}"


def _describe_difference(miss: ExplainedMiss) -> str:
    if miss.nearest is None or not miss.nearest.differences:
        return "no recording has this key"
    first = miss.nearest.differences[0]
    looks = f", which looks like {first.looks}" if first.looks else ""
    return f"the nearest recording (#{miss.nearest.id}) differs at {clip(first.place, 80)}{looks}"


@dataclass(frozen=True, slots=True)
class _Reason:
    name: str
    holds: Callable[[ExplainedMiss], bool]
    cause: Callable[[ExplainedMiss], str] | str
    """End of the first sentence, after "no recorded response for this request: "."""
    steps: Callable[[ExplainedMiss], list[_Advice]]


_REASONS = (
    _Reason("outside_tests", lambda miss: miss.context.outside_tests,
            "no test with the fixture `llmproxy` was running", lambda _miss:
            [_Advice("request the fixture in this test, or in every test: -o llmproxy_autouse=true"),
             _Advice("a fixture that calls models needs the scope of one test")]),
    _Reason("no_store", lambda miss: not miss.context.store_exists,
            lambda miss: f"there is no store {clip(miss.context.store, 120)}", _advise_record),
    _Reason("exhausted", lambda miss: miss.context.played > 0,
            lambda miss: "its only recording was already played" if miss.context.played == 1 else
            f"all its {miss.context.played} recordings were already played",
            lambda miss: [_Advice("repeat the last answer instead: --exhausted last (or cycle)"),
                          *_advise_record_missing(miss)]),
    _Reason("state", lambda miss: bool(miss.context.state), lambda miss: clip(miss.context.state, 300),
            lambda miss: [_Advice("tools have a state, so a result recorded in another state may be wrong here; if it "
                                f"changes nothing: --read-only '{clip(miss.context.beside_live, 60)}'")]),
    _Reason("elsewhere", lambda miss: bool(miss.context.elsewhere), _describe_elsewhere, _advise_other_recording),
    _Reason("empty", lambda miss: miss.context.recordings == 0,
            lambda miss: "nothing is recorded in it" +
            (f" for sample {miss.context.sample}" if miss.context.sample != 1 else ""), _advise_record),
    _Reason("no_tools", lambda miss: miss.context.toolless, "it was recorded without MCP servers", _advise_servers),
    _Reason("operation", lambda miss: miss.context.same_operation == 0, _describe_missing_operation,
            _advise_record_missing),
    _Reason("order", lambda miss: bool(miss.nearest and miss.nearest.reordered), _describe_reordering,
            _advise_record_anew),
    _Reason("different", bool, _describe_difference, _advise_rules),
)  # fmt: skip
"""The first row that applies is the reason; the last always does."""


def _match_reason(miss: ExplainedMiss) -> _Reason:
    return next(row for row in _REASONS if row.holds(miss))
