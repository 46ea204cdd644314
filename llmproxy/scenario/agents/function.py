"""A Python callable as an agent, sync or async; its arguments (`ARGUMENTS`) are passed by name.

A callable of one argument with another name gets the message. A sync one runs in a thread, so that it cannot block
other runs.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import AgentError, AgentUnreachable, SuiteError
from llmproxy.scenario.agent_adapter import AgentAdapter, OptionalAdapterAttributes
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.running.agent_caller import await_call_in_daemon_thread
from llmproxy.scenario.types import AgentInput, AgentReturnTypes
from llmproxy.scenario.values.messages import join_user_texts
from llmproxy.scenario.values.run_ids_and_options import describe_sys_exit

ARGUMENTS = ("message", "messages", "thread_id", "user_id", "llm", "input")
_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class FunctionAgent(AgentAdapter):
    """Calls a Python callable; one with a parameter `llm` is assumed to use it, and needs no turn."""

    def __init__(
        self, target: Callable[..., Any] | AgentAdapter | str, folder: Path | None = None, timeout: float | None = None
    ) -> None:
        """Call `target`, or the attribute ``module:attr`` or ``path/to/file.py:attr``, relative to `folder`.

        Nothing is imported before the first run. `timeout`: seconds for one answer. Raises SuiteError: an invalid name.
        """
        if isinstance(target, str):
            module, colon, attribute = target.rpartition(":")
            if not colon or not module or not attribute:
                raise SuiteError(
                    f"python: {target!r} does not name a callable.", hint="It is like package.module:agent"
                )
        self.target = target
        self.folder = folder
        self.timeout = timeout
        self._found: Callable[..., Any] | AgentAdapter | None = None
        if not isinstance(target, str):
            self._found = _instantiate_if_adapter_class(target)
            self._copy_adapter_attributes()

    @property
    def who(self) -> str:
        name = self.target if isinstance(self.target, str) else getattr(self.target, "__qualname__", repr(self.target))
        return f"the agent {name}"

    @property
    def session_to_bind(self) -> str | None:
        return OptionalAdapterAttributes.of_adapter(self._found).session_to_bind

    @property
    def declared_processing(self) -> Any:
        return OptionalAdapterAttributes.of_adapter(self._found).declared_processing

    async def open(self, session: RunSession | None) -> None:
        """Import it once, in a turn's environment. Raises AgentUnreachable: not found; AgentError: it raised."""
        if session is not None and self._found is None:
            name = str(self.target).rpartition(":")[0]
            path = _resolve_path_if_python_file(self.folder, name)
            if (name if path is None else _name_file_module(path)) not in sys.modules:
                async with session.importing_environment():
                    self._load_target()
        found = self._load_target()
        if isinstance(found, AgentAdapter):
            await found.open(session)

    async def close(self) -> None:
        if isinstance(self._found, AgentAdapter):
            await self._found.close()

    def clone(self) -> Self:
        made = super().clone()
        if isinstance(self._found, AgentAdapter):
            made._found = self._found.clone()  # noqa: SLF001 (its own kind)
        return made

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        found = self._load_target()
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                return await self._call_target(found, input)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise AgentError(f"{self.who} did not answer within {self.timeout:g} s.") from error

    async def _call_target(self, found: Callable[..., Any] | AgentAdapter, given: AgentInput) -> Any:
        if isinstance(found, AgentAdapter):
            return await found.call(given)
        args, named = _build_call_arguments(found, given, self.who)
        called = getattr(found, "__call__", None)  # noqa: B004 (what is called, not whether it can be)
        if inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(called):
            return await found(*args, **named)
        returned = await await_call_in_daemon_thread(partial(found, *args, **named))
        return await returned if inspect.isawaitable(returned) else returned

    def _load_target(self) -> Callable[..., Any] | AgentAdapter:
        if self._found is None:
            self._found = _instantiate_if_adapter_class(_import_target(str(self.target), self.folder, self.who))
            self._copy_adapter_attributes()
        return self._found

    def _copy_adapter_attributes(self) -> None:
        found = self._found
        if isinstance(found, AgentAdapter):
            uses = found.uses_session
            self.in_process = found.in_process  # type: ignore[misc]
            self.role = found.role  # type: ignore[misc]
        else:
            uses = "llm" in _list_parameters(found)
        self.uses_session = uses  # type: ignore[misc]


def _instantiate_if_adapter_class(found: Any) -> Callable[..., Any] | AgentAdapter:
    if isinstance(found, type) and issubclass(found, AgentAdapter):
        found = found()
    if not isinstance(found, AgentAdapter) and not callable(found):
        raise SuiteError(f"python: {found!r:.80} is neither a callable nor an AgentAdapter.")
    return found  # type: ignore[no-any-return]


def _list_parameters(found: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(found).parameters
    except (TypeError, ValueError):  # builtins that do not say
        return {}


def _build_call_arguments(found: Callable[..., Any], given: AgentInput, who: str) -> tuple[list[Any], dict[str, Any]]:
    """Return its arguments by parameter name. Raises SuiteError for an unknown required one."""
    values = {
        "message": join_user_texts(given.new_messages),
        "messages": given.messages,
        "thread_id": given.thread_id,
        "user_id": getattr(given.scenario_state, "user_id", None),
        "llm": given.llm,
        "input": given,
    }
    usable = [each for each in _list_parameters(found).values() if each.kind in _NAMED]
    required = [each for each in usable if each.default is inspect.Parameter.empty]
    named = {each.name: values[each.name] for each in usable if each.name in values}
    unknown = [each.name for each in required if each.name not in values]
    if len(unknown) == 1 and len(required) == 1 and not named:
        return ([values["input"] if "AgentInput" in str(required[0].annotation) else values["message"]], {})
    if unknown:
        name = unknown[0]
        raise SuiteError(
            f"{who} takes {name!r}, and there is no such argument{did_you_mean(name, ARGUMENTS)}",
            hint=f"An agent takes {', '.join(ARGUMENTS)}, each by its name.",
        )
    only = {each.name for each in usable if each.kind is inspect.Parameter.POSITIONAL_ONLY}
    return [named[name] for name in named if name in only], {k: v for k, v in named.items() if k not in only}


def _import_target(target: str, folder: Path | None, who: str) -> Any:
    name, _, attributes = target.rpartition(":")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # as for a script that lies there; its own imports come later, too
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # as for `python -m`
    if (path := _resolve_path_if_python_file(folder, name)) is not None and not path.is_file():
        raise AgentUnreachable(f"{who}: there is no file {name}.", hint=_explain_search_paths(folder))
    try:
        if path is None:
            module = importlib.import_module(name)
        else:
            label = _name_file_module(path)
            module = sys.modules.get(label) or load_module_file(path, label)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise AgentUnreachable(
                f"{who}: there is no module {error.name!r}.", hint=_explain_search_paths(folder)
            ) from error
        raise AgentError(f"{who} cannot be imported: {error}") from error
    except SystemExit as error:
        hint = 'What it does as a program belongs below `if __name__ == "__main__":`.'
        raise AgentError(f"{describe_sys_exit(who, error)} while it was imported.", hint=hint) from error
    except Exception as error:
        raise AgentError(f"{who} crashed while it was imported: {type(error).__name__}: {error}") from error
    found: Any = module
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise AgentUnreachable(f"{who}: {name} has no {attribute!r}{did_you_mean(attribute, dir(found))}")
        found = getattr(found, attribute)
    return found


def _resolve_path_if_python_file(folder: Path | None, name: str) -> Path | None:
    return ((folder or Path.cwd()) / name).resolve() if name.endswith(".py") else None


def _name_file_module(path: Path) -> str:
    return f"_agent_{path.stem}_{abs(hash(str(path))):x}"


def load_module_file(path: Path, label: str) -> ModuleType:
    """Execute a file, ``*.py``, as the module `label`. Raises what it raises."""
    spec = importlib.util.spec_from_file_location(label, path)
    assert spec is not None  # noqa: S101 - of such a name there is one
    assert spec.loader is not None  # noqa: S101 - as above
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[label]
        raise
    return module


def _explain_search_paths(folder: Path | None) -> str:
    places = dict.fromkeys(map(str, (folder or Path.cwd(), Path.cwd())))
    return f"It is looked for in {' and '.join(places)}, and where Python finds modules."
