"""The replay engine: steps through a recording, with tool results and answers overridden. No agent runs here.

It behaves like Evalcraft's: an index of an LLM call counts requests and responses over the *filtered* spans,
`output_text` stays as recorded despite overrides, `diff` compares the recording only. Better than the original: an
override without a match warns, or raises with ``strict=True``; `step` applies overridden answers too.

The network guard is an audit hook of the interpreter, process-wide: it sees every connection and lookup below all
libraries, stays for the life of the process, and does nothing while no guard is open. Unix sockets are allowed.
"""

from __future__ import annotations

import copy
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.trace.comparing.diff import ReplayDiff
from llmproxy.trace.span_models import Span, SpanKind
from llmproxy.trace.trace_file import AgentRun, Cassette

_CONNECTING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOKUPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
_lock = threading.Lock()
_open: list[NetworkGuard] = []
_installed = False
_own = threading.local()
_LLM = (SpanKind.LLM_REQUEST, SpanKind.LLM_RESPONSE)
Predicate = Callable[[Span], bool]


class NetworkBlocked(RefusedError, RuntimeError):
    """A connection was attempted while a recording was replayed."""

    code = "llmproxy_network_blocked"


class NetworkGuard:
    """Refuses connections except to hosts of `allowlist` during the ``with`` block. Nested: all must agree."""

    def __init__(self, allowlist: Collection[str] | None = None) -> None:
        self.allowlist = frozenset(host.lower() for host in allowlist or ())
        self._addresses = set(self.allowlist)

    def __enter__(self) -> Self:
        global _installed  # noqa: PLW0603 - a hook cannot be taken out, so there is one for all
        for host in self.allowlist:
            self._resolve_allowed_host(host)
        with _lock:
            if not _installed:
                sys.addaudithook(_audit_connection)
                _installed = True
            _open.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        with _lock:
            _open.remove(self)

    @property
    def is_active(self) -> bool:
        return self in _open

    def allows(self, host: str) -> bool:
        return host.lower() in self._addresses

    def _resolve_allowed_host(self, host: str) -> None:
        """Remember the addresses of an allowed name: the audit hook of a connection sees only addresses."""
        _own.looking = True
        try:
            self._addresses |= {str(found[4][0]).lower() for found in socket.getaddrinfo(host, None)}
        except OSError:
            pass  # unknown here: then nothing connects there either
        finally:
            _own.looking = False


def _audit_connection(event: str, arguments: tuple[Any, ...]) -> None:
    if not _open or not event.startswith("socket.") or getattr(_own, "looking", False):
        return
    if event in _CONNECTING:
        address = arguments[1]
        if isinstance(address, tuple) and address:
            _refuse_blocked_host(str(address[0]), address[1] if len(address) > 1 else None)
    elif event in _LOOKUPS and arguments[0]:
        host = arguments[0]
        _refuse_blocked_host(host.decode("ascii", "replace") if isinstance(host, bytes) else str(host), None)


def _refuse_blocked_host(host: str, port: object) -> None:
    if all(guard.allows(host) for guard in tuple(_open)):
        return
    where = host if port is None else f"{host}:{port}"
    raise NetworkBlocked(
        f"A replay does not use the network: something wanted to reach {where}.",
        hint="Allow it with network_allowlist=[...], or switch the guard off with block_network=False.",
    )


class OverrideWarning(UserWarning):
    """An override matched nothing in the recording, so it changed nothing."""


class OverrideNotUsed(LLMProxyError, LookupError):
    """An override matched nothing in the recording (``strict=True``)."""

    code = "llmproxy_override_not_used"


class ReplayEngine:
    def __init__(
        self, cassette: Cassette | str | Path, *, block_network: bool = True,
        network_allowlist: Collection[str] | None = None, strict: bool = False,
    ) -> None:  # fmt: skip
        """Load a file, or take a deep copy of a cassette.

        `block_network` refuses connections during `run` except to `network_allowlist`; `strict` makes an override that
        matches nothing an error. Raises as `Cassette.load`.
        """
        self.cassette = Cassette.load(cassette) if isinstance(cassette, str | Path) else copy.deepcopy(cassette)
        self._strict = strict
        self._block_network = block_network
        self._allowlist = network_allowlist
        self._tools: dict[str, Any] = {}
        self._answers: dict[int, Any] = {}
        self._predicate: Predicate | None = None
        self._cursor = 0
        self._checked = False

    def override_tool_result(self, tool_name: str, result: Any) -> ReplayEngine:
        """Replace result and output of every call of this tool; the last one given wins. Returns self."""
        self._tools[tool_name] = result
        self._checked = False
        return self

    def override_llm_response(self, call_index: int, response: Any) -> ReplayEngine:
        """Replace the output of the LLM span of this index: from 0, requests and responses counted. Returns self."""
        self._answers[call_index] = response
        self._checked = False
        return self

    def filter_spans(self, predicate: Predicate | None) -> ReplayEngine:
        """Keep only the spans for which this holds, in place of an earlier one; None keeps all. Returns self."""
        self._predicate = predicate
        self._checked = False
        return self

    def run(self) -> AgentRun:
        """Return a copy of the recording with the overrides applied, its totals and fingerprint computed anew.

        Raises OverrideNotUsed: an override matches nothing, and this is strict; NetworkBlocked: the predicate wanted to
        connect somewhere.
        """
        with NetworkGuard(self._allowlist) if self._block_network else nullcontext():
            cassette = copy.deepcopy(self.cassette)
            cassette.spans = [span for span in cassette.spans if self._predicate is None or self._predicate(span)]
            self._report_unused_overrides(cassette.spans)
            index = 0
            for span in cassette.spans:
                self._override_span_in_place(span, index)
                index += span.kind in _LLM
            cassette.compute_metrics()
            cassette.compute_fingerprint()
            return AgentRun(cassette=cassette, replayed=True)

    def step(self) -> Span | None:
        """Return a copy of the next span, overrides applied; None at the end."""
        spans = self.spans
        self._report_unused_overrides(spans)
        if self._cursor >= len(spans):
            return None
        span = copy.deepcopy(spans[self._cursor])
        self._override_span_in_place(span, sum(before.kind in _LLM for before in spans[: self._cursor]))
        self._cursor += 1
        return span

    def reset(self) -> None:
        """Go back before the first span; overrides and filter stay."""
        self._cursor = 0

    def _override_span_in_place(self, span: Span, index: int) -> None:
        if span.kind is SpanKind.TOOL_CALL and span.tool_name in self._tools:
            span.tool_result = span.output = self._tools[span.tool_name]
        elif span.kind in _LLM and index in self._answers:
            span.output = self._answers[index]

    def _report_unused_overrides(self, spans: list[Span]) -> None:
        """Report which overrides change nothing, once after each change of them."""
        if self._checked:
            return
        called = {span.tool_name for span in spans if span.kind is SpanKind.TOOL_CALL}
        calls = sum(span.kind in _LLM for span in spans)
        unused = [f"tool {name!r}" for name in self._tools if name not in called]
        unused += [f"LLM call {index}" for index in self._answers if not 0 <= index < calls]
        if unused:
            names = ", ".join(sorted({repr(name) for name in called if name})) or "none"
            there = f"{calls} LLM spans (0 to {calls - 1})" if calls else "no LLM span"
            text = f"Overrides that match nothing: {', '.join(unused)}. The recording has {there} and calls of {names}."
            if self._strict:
                raise OverrideNotUsed(text)
            warnings.warn(text, OverrideWarning, stacklevel=3)
        self._checked = True

    @property
    def spans(self) -> list[Span]:
        """The spans that pass the filter; without one the engine's own list."""
        if self._predicate is None:
            return self.cassette.spans
        return [span for span in self.cassette.spans if self._predicate(span)]

    def get_tool_calls(self) -> list[Span]:
        return [span for span in self.spans if span.kind is SpanKind.TOOL_CALL]

    def get_llm_calls(self) -> list[Span]:
        """Return the recorded requests and responses that pass the filter."""
        return [span for span in self.spans if span.kind in _LLM]

    def get_tool_sequence(self) -> list[str]:
        return [span.tool_name for span in self.get_tool_calls() if span.tool_name]

    def diff(self, other: Cassette | str | Path) -> ReplayDiff:
        """Compare the recording, without overrides or filter, with another one."""
        return ReplayDiff.compute(self.cassette, Cassette.load(other) if isinstance(other, str | Path) else other)


def replay(
    cassette_path: str | Path | Cassette, tool_overrides: dict[str, Any] | None = None, *, block_network: bool = True,
    network_allowlist: Collection[str] | None = None, strict: bool = False,
) -> AgentRun:  # fmt: skip
    """Replay a recording, results of tools replaced by name. Raises as :class:`ReplayEngine` and `run`."""
    engine = ReplayEngine(
        cassette_path, block_network=block_network, network_allowlist=network_allowlist, strict=strict
    )
    for name, result in (tool_overrides or {}).items():
        engine.override_tool_result(name, result)
    return engine.run()
