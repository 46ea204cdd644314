"""Templates of requests to an agent: JSON (or a header) in which ``$name`` stands for a value.

A text that is only a name becomes the value itself, also a list or an object; inside a longer text the value is
inserted as text. ``${name}`` if letters follow, ``$$`` for a dollar sign, ``$env.NAME`` for an environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import AgentUnreachable, SuiteError
from llmproxy.scenario.types import AgentInput
from llmproxy.scenario.values.messages import join_user_texts, to_text

NAMES = {
    "message": "what the user newly said, as text; null if nobody said anything",
    "thread_id": "id of the conversation, made by us",
    "messages": "the whole conversation, as messages in OpenAI's form",
    "history": "the same without what is new",
    "userId": "the user that a suite's run works as; null elsewhere",
    "conversation": "id of the conversation that the agent gave in its last answer; null before",
    "session": "name of the run's session at the proxy; null without one",
    "proxy": "address of the proxy; null without one",
    "llm": "object with base_urls, headers and env for the run's session; null without one",
}
HANDOVER = ("session", "llm")
"""Names that hand over the session: an agent that gets one of them needs no turn."""
_NAME = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<braced>[A-Za-z_][\w.]*)\}|env\.(?P<env>[A-Za-z_]\w*)|(?P<bare>[A-Za-z_]\w*))"
)


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    tree: Any
    names: frozenset[str]

    @classmethod
    def from_tree(cls, tree: Any, what: str) -> RequestTemplate:
        """Parse a template; `what` names its key for errors. Raises SuiteError for an unknown name."""
        found = frozenset(_iter_names(tree))
        for name in sorted(found):
            if name not in NAMES and not name.startswith("env."):
                known = ", ".join(f"${each}" for each in NAMES)
                raise SuiteError(
                    f"{what}: there is no ${name}{did_you_mean(name, NAMES)}",
                    hint=f"There are {known} and $env.NAME; $$ is a dollar sign.",
                )
        return cls(tree, found)

    @property
    def sends_session(self) -> bool:
        return bool(self.names & set(HANDOVER))

    def fill(self, values: Mapping[str, Any], env: Mapping[str, str]) -> Any:
        """Return the template with values. Raises AgentUnreachable: an environment variable is not set."""
        return _fill_in(self.tree, values, env)


def build_values(given: AgentInput, conversation: str | None = None) -> dict[str, Any]:
    llm = given.llm
    new = len(given.new_messages)
    return {
        "message": join_user_texts(given.new_messages),
        "thread_id": given.thread_id,
        "messages": given.messages,
        "history": given.messages[: len(given.messages) - new] if new else given.messages,
        "userId": getattr(given.scenario_state, "user_id", None),
        "conversation": conversation,
        "session": llm.session if llm else None,
        "proxy": llm.proxy if llm else None,
        "llm": llm.to_dict() if llm else None,
    }


def _iter_names(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield from (_get_matched_name(match) for match in _NAME.finditer(tree) if not match["dollar"])
    members = (*tree, *tree.values()) if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    for each in members:
        yield from _iter_names(each)


def _get_matched_name(match: re.Match[str]) -> str:
    return match["braced"] or match["bare"] or f"env.{match['env']}"


def _fill_in(tree: Any, values: Mapping[str, Any], env: Mapping[str, str]) -> Any:
    if isinstance(tree, str):
        whole = _NAME.fullmatch(tree)
        if whole and not whole["dollar"]:
            return _find_value_or_env_variable(_get_matched_name(whole), values, env)
        return _NAME.sub(
            lambda match: (
                "$" if match["dollar"] else to_text(_find_value_or_env_variable(_get_matched_name(match), values, env))
            ),
            tree,
        )
    if isinstance(tree, Mapping):
        return {to_text(_fill_in(key, values, env)): _fill_in(value, values, env) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_fill_in(value, values, env) for value in tree]
    return tree


def _find_value_or_env_variable(name: str, values: Mapping[str, Any], env: Mapping[str, str]) -> Any:
    if not name.startswith("env."):
        return values[name]
    variable = name.removeprefix("env.")
    if variable not in env:
        raise AgentUnreachable(f"the variable {variable} is not set, which the agent's configuration takes by ${name}.")
    return env[variable]


_ENV_IN_FILE = re.compile(r"\$\{env:(\w+)\}")


def fill_env_variables(tree: Any, where: str, env: Mapping[str, str]) -> Any:
    """Put variables of the environment where ``${env:NAME}`` stands in a text. Raises SuiteError: one is not set."""
    if isinstance(tree, Mapping):
        return {key: fill_env_variables(value, f"{where}.{key}", env) for key, value in tree.items()}
    if isinstance(tree, list):
        return [fill_env_variables(each, where, env) for each in tree]
    if not isinstance(tree, str):
        return tree
    for name in _ENV_IN_FILE.findall(tree):
        if name not in env:
            raise SuiteError(f"{where}: the environment has no variable {name}", hint=f"Set it: export {name}=...")
    return _ENV_IN_FILE.sub(lambda found: env[found[1]], tree)
