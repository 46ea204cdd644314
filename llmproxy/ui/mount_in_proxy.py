"""The viewer at a proxy's own port: the page, its queries about the store, and live traffic.

Access follows the control API's rule (`endpoints.find_control_api_access_refusal`); only the page itself, without its
token for those who need one, is open to every client. Answers are computed in a thread, with a store opened for each: a
query must never delay a replay. The engine's state is taken in its own thread, between two of its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from llmproxy.advice import format_llmproxy_command, format_store_option
from llmproxy.calls_and_totals import Call, RecentProxyCallLog
from llmproxy.core.control.endpoints import ControlForbidden, ControlRequest, find_control_api_access_refusal
from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.journal import JournaledMiss
from llmproxy.core.store.file.store import open_store
from llmproxy.core.traffic.interaction import header
from llmproxy.errors import CassetteNotFound, LLMProxyError
from llmproxy.postgres_store_paths import format_store_location
from llmproxy.protocol import UI_PREFIX, Decision
from llmproxy.ui import page, queries

_DATA = UI_PREFIX + "data/"
MOST = 500
"""Maximum rows of one answer about live traffic."""
Json = Any
_WORDS = {
    Decision.REPLAY: "hit", Decision.RECORD: "recorded", Decision.PASS: "passed", Decision.REFUSE: "refused",
    Decision.FAULT: "fault",
}  # fmt: skip


@dataclass(slots=True)
class ProxyViewerRequestHandler:
    """Answers requests below ``/_llmproxy/ui/``."""

    engine: Engine
    watch: RecentProxyCallLog
    opened: Callable[[], Iterable[Exchange]]
    token: str = ""
    page_token: str = ""
    """Token embedded in the page for its queries; new with each proxy."""
    tests: Callable[[Mapping[str, str]], Any] | None = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "llmproxy-viewer"))

    def answer_request(self, asked: ControlRequest) -> Future[page.ViewerResponse]:
        """Answer a request asynchronously. Must be called in the engine's thread."""
        target = urlsplit(asked.target)
        path, refusing = target.path, find_control_api_access_refusal(asked, self.token, self.page_token)
        if path == "/":
            answer = page.redirect_to_page()
        elif asked.method not in ("GET", "HEAD"):
            answer = page.build_viewer_error_response(
                405, "llmproxy_method", "llmproxy: the viewer is for reading.", UI_PREFIX
            )
        elif path in (UI_PREFIX, UI_PREFIX.rstrip("/")):
            answer = self._answer_page(asked, refusing)
        elif refusing is not None:
            answer = page.answer_viewer_with_error(refusing)
        elif not path.startswith(_DATA):
            answer = page.build_viewer_error_response(
                404, "llmproxy_not_found", "llmproxy: there is nothing here.", UI_PREFIX
            )
        else:
            question, query = path.removeprefix(_DATA), dict(parse_qsl(target.query, keep_blank_values=True))
            try:
                ask = self._choose_answerer(question, query)
                return self._thread.submit(page.answer_query_as_json, ask, question, query)
            except LLMProxyError as error:
                answer = page.answer_viewer_with_error(error)
        made: Future[page.ViewerResponse] = Future()
        made.set_result(answer)
        return made

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _answer_page(self, asked: ControlRequest, refusing: LLMProxyError | None) -> page.ViewerResponse:
        """Return the page; with its token only for clients that need none, and never for a script."""
        opens = header(asked.headers, "sec-fetch-dest") in (None, "document")
        typed = find_control_api_access_refusal(_drop_same_origin_headers(asked), self.token)
        if (refusing is not None and not opens) or (typed is not None and asked.loopback):
            return page.answer_viewer_with_error(refusing or typed or ControlForbidden("llmproxy: not for you."))
        given = self.page_token if opens and typed is None else ""
        store = self.engine.config.shown or format_store_location(self.engine.config.store)
        start = {"live": True, "tests": self.tests is not None, "start": "#/live", "token": given}
        return page.build_viewer_page_response({**start, "store": store, "store_words": format_store_option(store)})

    def _choose_answerer(self, question: str, query: Mapping[str, str]) -> Callable[[str, dict[str, str]], Any]:
        """Return the function that answers a query; the engine's state is taken now."""
        engine, path = self.engine, self.engine.config.store
        if question == "live":
            seen = self._take_live_snapshot(queries.read_query_integer(query, "after", 0, 1 << 53))
            return lambda *_: {**seen, "rows": [_call_to_row(number, each) for number, each in seen["rows"]]}
        if question == "miss":
            misses, all_of_them = engine.journal.list_misses(), format_llmproxy_command("why", path)
            return lambda *_: _answer_miss_details(misses, query, all_of_them)
        if question == "report" and (tests := self.tests) is not None:
            return lambda _, given: tests(given)
        return lambda asked, given: _answer_store_question(path, asked, given)

    def _take_live_snapshot(self, after: int) -> dict[str, Json]:
        """Take the changes after call number `after`: plain values, except `rows`, the calls with their numbers."""
        engine = self.engine
        sessions = []
        for each in engine.sessions.open_sessions.values():
            about = {"name": each.name, "cassette": each.cassette, "sample": each.sample}
            totals = each.calls.totals.to_json()
            shown = {name: value for name, value in totals.items() if name not in ("parties", "miss_texts")}
            sessions.append({**about, "mode": str(each.settings.mode), **shown})
        waiting = []
        for one in self.opened():
            place = {"at": one.progress.started_at, "party": one.party}
            waiting.append({**place, "operation": one.operation, "model": one.identity.model})
        found = self.watch.since(after, MOST)
        rows = [(n, o._replace(note=engine.redactor.text(o.note)) if o.note else o) for n, o in found]
        now = {"now": engine.now(), "mode": str(engine.config.mode), "store": engine.config.shown_store_path}
        return {**now, "count": self.watch.count, "rows": rows, "sessions": sessions, "open": waiting}


def _answer_store_question(path: Path, question: str, query: dict[str, str]) -> Any:
    try:
        store = open_store(path, writable=False, now=lambda: 0.0)
    except CassetteNotFound:
        if question != "cassettes":
            raise
        return {"store": path.name, "cassettes": []}
    with store:
        return queries.answer_viewer_query(store, question, query)


def name_call_outcome(call: Call) -> str:
    """Return the outcome in one word: hit, bound, carried, miss, recorded, passed, fault, refused."""
    if call.fault:
        return "fault"
    if call.miss and call.decision is Decision.REFUSE:
        return "miss"
    if call.carried and call.decision is Decision.REPLAY:
        return "carried"
    return "bound" if call.bound and call.decision is Decision.REPLAY else _WORDS[call.decision]


def _call_to_row(number: int, o: Call) -> dict[str, Json]:
    return {
        "n": number, "at": o.at, "what": name_call_outcome(o), "session": o.session, "party": o.party,
        "provider": o.provider, "model": o.model, "operation": o.operation or f"{o.method} {o.target}",
        "channel": o.channel.value, "status": o.status, "ms": o.ms, "first": o.first_ms, "in": o.input, "out": o.output,
        "cost": None if o.cost is None else float(o.cost), "id": o.interaction, "nearest": o.nearest, "key": o.key,
        "bound": list(o.bound), "carried": list(o.carried), "fault": o.fault or "", "lost": o.lost, "note": o.note,
        "asked": o.asked, "answered": o.answered,
    }  # fmt: skip


def _answer_miss_details(misses: Sequence[JournaledMiss], query: Mapping[str, str], all_of_them: str) -> Json:
    """Return a miss: text, places, commands; repeats once. Raises InvalidViewerQuery, UnknownViewerQueryError."""
    try:
        at = float(query.get("at", ""))
    except ValueError as error:
        raise queries.InvalidViewerQuery(f"llmproxy: at is {query.get('at', '')[:20]!r}; it is a Unix time.") from error
    key, own = query.get("key", ""), [each for each in misses if each.data.get("session") == query.get("session", "")]
    found = next((each for each in own if each.at == at), None)
    found = found or next((each for each in reversed(own) if key and each.data.get("key") == key), None)
    if found is None:
        raise queries.UnknownViewerQueryError("llmproxy: this miss is not remembered any more.", hint=all_of_them)
    near = found.data.get("nearest") or {}
    places = list(found.places) or near.get("differences") or []
    about = {name: found.data.get(name) for name in ("reason", "cassette")}
    advice = {"steps": list(found.steps), "suggestion": near.get("suggestion")}
    return {"at": found.at, "text": found.text, **about, "nearest": near.get("id"), "places": places, **advice}


def _drop_same_origin_headers(asked: ControlRequest) -> ControlRequest:
    """Return a navigation without its origin: links on our own page lead to the page as well."""
    names = ("sec-fetch-site", "origin") if header(asked.headers, "sec-fetch-site") == "same-origin" else ()
    headers = tuple((name, value) for name, value in asked.headers if name.lower() not in names)
    return ControlRequest(asked.method, asked.target, headers, b"", asked.loopback, asked.guard, asked.scheme)
