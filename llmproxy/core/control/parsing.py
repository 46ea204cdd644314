"""Strict parsing of control requests: nothing is guessed; errors name the given value and the valid ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmproxy.core.bindings import RunVariable, build_run_variable
from llmproxy.core.engine.forking import ForkState
from llmproxy.core.faults.parsing import parse_session_faults, require_integer_fault_seed
from llmproxy.core.faults.rules import Faults
from llmproxy.core.forks.overrides import AnswerOverrides, parse_answer_overrides_from_json, parse_mocks
from llmproxy.core.mixed_live_replay import LiveChannelSettings
from llmproxy.core.sessions.session import split_cassette_and_sample
from llmproxy.errors import RefusedError
from llmproxy.parsers import parse_channel_list, read_name_patterns, read_tool_policy, read_upstreams
from llmproxy.protocol import VCR_MODES, BindingPolicy, Exhausted, Mode

Json = Any

LAST_SAMPLE = 999_999
"""Largest sample; more digits at the end of a name are part of the cassette's name."""
FASTEST = 1e6


class BadControlRequest(RefusedError):
    code = "llmproxy_control"
    status = 400


def parse_control_body_or_raise(body: bytes) -> dict[str, Json]:
    """Return a body; an empty one is an empty object. Raises BadControlRequest, like all of these."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
    except RecursionError as error:
        raise BadControlRequest("llmproxy: the body is nested too deep.") from error
    except ValueError as error:
        raise BadControlRequest(f"llmproxy: the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadControlRequest("llmproxy: the body must be a JSON object.")
    return value


def format_value_for_error(value: Json) -> str:
    if isinstance(value, str):
        return repr(value[:40])
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else repr(value)[:40]


def parse_enum[E: (Mode, Exhausted, BindingPolicy)](kind: type[E], value: Json, what: str) -> E | None:
    """Return a mode (VCR's names too) or an exhausted rule; None for the proxy's."""
    if value is None:
        return None
    if kind is Mode and isinstance(value, str):
        value = VCR_MODES.get(value, value)
    for each in kind:
        if each == value:
            return each
    raise BadControlRequest(f"llmproxy: {what} is {format_value_for_error(value)}; it can be {', '.join(kind)}.")


def read_boolean_member(value: Json, what: str) -> bool | None:
    """Return a boolean member, None if it is absent. Raises BadControlRequest."""
    if not isinstance(value, bool | None):
        raise BadControlRequest(f"llmproxy: {what} is {format_value_for_error(value)}; it can be true or false.")
    return value


def require_url_encodable_name(value: Json, otherwise: str) -> str:
    """Return a name that is valid in a URL."""
    if not isinstance(value, str):
        raise BadControlRequest(f"llmproxy: {otherwise}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadControlRequest("llmproxy: the name holds half a surrogate pair, which no URL can say.") from error
    return value


def join_cassette_and_sample(name: str, sample: Json) -> str:
    if sample is None:
        return name
    if not isinstance(sample, int) or isinstance(sample, bool) or not 1 <= sample <= LAST_SAMPLE:
        raise BadControlRequest(f"llmproxy: sample is {format_value_for_error(sample)}; it can be 1 to {LAST_SAMPLE}.")
    cassette, named = split_cassette_and_sample(name)
    if name != cassette and named != sample:
        raise BadControlRequest(
            f"llmproxy: the name {format_value_for_error(name)} says sample {named}, and `sample` says {sample}."
        )
    return f"{cassette}~{sample}"


def parse_control_replay_speed(value: Json) -> float | None:
    """Return a speed of replay: 0 is at once, 1 as recorded; None for the proxy's."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= FASTEST:
        raise BadControlRequest(
            f"llmproxy: speed is {format_value_for_error(value)}; it can be 0, 1 or any positive number."
        )
    return float(value)


def parse_control_run_variables(value: Json) -> tuple[RunVariable, ...]:
    """Return run variables, an object or list of objects. Raises BadControlRequest, BadRunVariable."""
    if value is None:
        return ()
    if isinstance(value, dict):
        value = [{"name": name, "value": each} for name, each in value.items()]
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadControlRequest(
            f"llmproxy: run variables are {format_value_for_error(value)}; they are an object of name: value, "
            "or a list."
        )
    found = []
    for each in value:
        if not {"name", "value"} <= each.keys() <= RUN_VARIABLE_MEMBERS:
            raise BadControlRequest(
                f"llmproxy: a run variable has {', '.join(sorted(RUN_VARIABLE_MEMBERS))}; "
                f"this is {format_value_for_error(each)}."
            )
        found.append(build_run_variable(**each))
    return tuple(found)


RUN_VARIABLE_MEMBERS = frozenset({"name", "value", "other", "tool", "path"})
FORK_MEMBERS = ("live", "from", "as")


def parse_control_fork_or_mocks(overrides: Json, fork: Json, mocks: Json = None) -> tuple[ForkState | None, str | None]:
    """Return a session's overrides, and the name of the cassette to fork to. Raises OverrideError too."""
    if mocks is not None:
        if overrides is not None or fork is not None:
            raise BadControlRequest(
                "llmproxy: mocks belong to a recording of their own; overrides and forks part from one.",
                hint="Give the session either.",
            )
        return ForkState(given=AnswerOverrides(parse_mocks(mocks)), mocks=True), None
    if overrides is None and fork is None:
        return None, None
    fork = {} if fork is None else fork
    if not isinstance(fork, dict) or set(fork) - set(FORK_MEMBERS):
        raise BadControlRequest(
            f"llmproxy: fork is {format_value_for_error(fork)}.", hint=f"It has: {', '.join(FORK_MEMBERS)}"
        )
    live, at, child = (fork.get(name) for name in FORK_MEMBERS)
    live = read_boolean_member(live, "fork.live")
    if at is not None and (not isinstance(at, int) or isinstance(at, bool) or at < 1):
        raise BadControlRequest(
            f"llmproxy: fork.from is {format_value_for_error(at)}; the agent's requests count from 1."
        )
    if not live and (at is not None or child is not None):
        raise BadControlRequest("llmproxy: fork.from and fork.as need fork.live.")
    if child is not None:
        child = require_url_encodable_name(child, "fork.as must be the name of a cassette")
        if split_cassette_and_sample(child) != (child, 1):
            raise BadControlRequest(f"llmproxy: fork.as is {format_value_for_error(child)}; a fork is a first sample.")
    return ForkState(given=parse_answer_overrides_from_json(overrides), live=bool(live), at=at), child


def parse_requested_live_channels(
    body: Mapping[str, Json], default: LiveChannelSettings | None
) -> LiveChannelSettings | None:
    """Return a session's live channels, none for an empty list; None for the proxy's. Raises BadControlRequest."""
    if (named := [name for name in ("unknown_tool", "read_only") if body.get(name) is not None]) and not (
        body.get("live") or (body.get("live") is None and default is not None)
    ):
        raise BadControlRequest(f"llmproxy: {named[0]} needs live.", hint='Such as {"live": ["llm"]}.')
    if not named and body.get("live") is None:
        return None
    if not isinstance(body.get("live") or [], list) or not isinstance(body.get("read_only") or [], list):
        raise BadControlRequest("llmproxy: live and read_only are lists of texts.", hint='Such as {"live": ["llm"]}.')
    default = default or LiveChannelSettings(frozenset())
    try:
        return LiveChannelSettings(
            default.channels if body.get("live") is None else frozenset(parse_channel_list(body["live"])),
            default.unknown if body.get("unknown_tool") is None else read_tool_policy(body["unknown_tool"]),
            default.read_only if body.get("read_only") is None else read_name_patterns(body["read_only"]),
        )
    except ValueError as error:
        raise BadControlRequest(f"llmproxy: live, unknown_tool, read_only: {error}.") from error


def parse_control_faults(value: Json, seed: Json = None) -> Faults | None:
    """Return faults: rules, a preset's name, ``http-429@2``, a file's content; no file names. Raises BadFaults."""
    if value is None:
        return None
    found = parse_session_faults(value)
    return found if seed is None else replace(found, seed=require_integer_fault_seed(seed))


def parse_control_upstreams(value: Json) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(url, str) for url in value.values()):
        raise BadControlRequest("llmproxy: upstreams must be an object of name: URL.")
    try:
        return read_upstreams(value)
    except ValueError as error:
        raise BadControlRequest(f"llmproxy: upstreams: {error}.") from error
