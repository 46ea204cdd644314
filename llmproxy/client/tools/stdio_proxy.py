"""The stdio proxy between a client on stdin and stdout, a backend that decides, and the real server if needed.

    client -> line -> host.on_line -> out                 a recording, or a miss, sent to the client; no server runs
                                -> forward -> server      its lines go to the client as they come, and to the host

Lines that are no messages are passed through and not recorded. If the server or the backend ends, waiting clients get
an error. The SDK for Node drops a call's progress if the result arrives in the same read: so a notification that is
followed by something else is sent alone, and the rest when the client has read it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from typing import Any, Protocol

from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.errors import Exit, LLMProxyError, MachineError, remove_program_prefix
from llmproxy.protocol import McpStdioLineOutcome

READ = 1 << 16
LONGEST_LINE = 1 << 29
"""Maximum bytes of a line."""
PATIENCE = 1.0
"""Seconds that a server may take to exit when its input ends; the SDK for Python ends us after two."""
_PR_SET_PDEATHSIG = 1
_NOTIFICATION = re.compile(rb'"method"\s*:\s*"notifications/')
LOOK = 0.0003
"""Seconds between two checks whether the client has read."""
READING = 0.5
"""Maximum seconds to wait until the client has read."""
BLIND = 0.005
"""Seconds to wait where reading cannot be observed."""


def iterate_stream_lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield lines as they arrive, with their line ends; an incomplete last line too. Raises MachineError."""
    parts: list[bytes] = []
    size = 0
    while data := read(READ):
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            yield b"".join([*parts, data[begin : end + 1]])
            parts, size, begin = [], 0, end + 1
        if begin < len(data):
            parts.append(data[begin:])
            size += len(data) - begin
        if size > LONGEST_LINE:
            raise MachineError(f"a line of over {LONGEST_LINE} bytes")
    if parts:
        yield b"".join(parts)


class McpServerProcess:
    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it; its stderr is ours. Raises MachineError."""
        linux = sys.platform == "linux"  # elsewhere it outlives us if we are killed
        die_with_us = partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM) if linux else None
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(env),
                bufsize=0,
                preexec_fn=die_with_us,  # noqa: PLW1509 - one system call, before any thread of ours runs
            )
        except OSError as error:
            raise MachineError(f"{command[0]} cannot be started: {error.strerror or error}") from error

    def write(self, line: bytes) -> bool:
        """Send a line; False if the server has closed its input."""
        if self._child.stdin is None:
            return False
        view = memoryview(line)
        with suppress(OSError, ValueError):
            while view:
                view = view[self._child.stdin.write(view) or 0 :]
            return True
        return False

    def read_lines(self) -> Iterator[bytes]:
        if self._child.stdout is None:
            return iter(())
        return iterate_stream_lines(partial(os.read, self._child.stdout.fileno()))

    def end(self, *, at_once: bool = False) -> int:
        if self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()
        if at_once:
            self._child.terminate()
        for step in (self._child.terminate, self._child.kill):
            if (code := self.wait(PATIENCE)) is not None:
                return code
            step()
        return self._child.wait()

    def close(self) -> None:
        if self._child.stdout is not None:
            self._child.stdout.close()

    def wait(self, seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(seconds)
        return None


def split_lines_after_notifications(data: bytes) -> list[bytes]:
    """Split lines after the last of consecutive notifications that something else follows."""
    if _NOTIFICATION.search(data) is None:
        return [data]
    parts = [b""]
    was_notification = False
    for line in data.splitlines(keepends=True):
        is_notification = _NOTIFICATION.search(line) is not None
        if was_notification and not is_notification:
            parts.append(b"")
        parts[-1] += line
        was_notification = is_notification
    return parts


def make_client_line_writer(fd: int = 1, patience: float = READING) -> Callable[[bytes], None]:
    """Return a thread-safe function that writes whole lines to a descriptor; a closed client is no error."""
    guard = threading.Lock()
    last = b""

    def write(data: bytes) -> None:
        nonlocal last
        with guard, suppress(OSError):
            for part in split_lines_after_notifications(data):
                if _NOTIFICATION.search(last) and not _NOTIFICATION.search(part[: part.find(b"\n")]):
                    wait_until_pipe_drained(fd, patience)
                view = memoryview(part)
                while view:
                    view = view[os.write(fd, view) :]
                last = part[part.rfind(b"\n", 0, -1) + 1 :]

    return write


def wait_until_pipe_drained(fd: int, patience: float) -> None:
    for _ in range(int(patience / LOOK)):
        if (left := _count_unread(fd)) is None:
            sleep(BLIND)
            return
        if not left:
            return
        sleep(LOOK)


def _count_unread(fd: int) -> int | None:
    """Return the number of unread bytes; None if unknown."""
    try:
        from fcntl import ioctl
        from termios import FIONREAD, TIOCOUTQ

        kind = os.fstat(fd).st_mode
        request = FIONREAD if stat.S_ISFIFO(kind) else TIOCOUTQ if stat.S_ISSOCK(kind) else 0
        return int.from_bytes(ioctl(fd, request, bytes(4)), "little") if request else None
    except (ImportError, OSError):  # Windows; what is neither pipe nor socket
        return None


GREETING = 30.0
"""Seconds that a server may take to answer a handshake that its client sent long ago."""
MOST_UNASKED = 64 << 20
"""Maximum recorded bytes of a server's unrequested messages."""
MICROSECONDS = 1_000_000
PARSE_ERROR, INVALID_REQUEST = -32700, -32600
ENDED = -32021
"""Our error code for a server that ended before it answered."""
BOM = b"\xef\xbb\xbf"
TWO_OF_ONE_ID = "two requests had the same id, and nobody knows which of them was answered"
_SPACE = re.compile(r"[\s,]*")
_STEP = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')
_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*)')
_DEEPER = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


class RecordReplayShimBackend(Protocol):
    def on_line(self, line: bytes) -> McpStdioLineOutcome:
        """Decide about a line from the client. Raises LLMProxyError."""

    def on_server_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        """Record the answer to a forwarded message, as cancelled if `left`. Raises LLMProxyError: not kept."""

    def on_server_loss(self, number: int, why: str) -> None:
        """Handle a server that did not answer."""

    def end(self, unasked: Sequence[tuple[int, bytes]], *, in_order: bool) -> None:
        """Handle the client's end, `in_order` if it closed its output, and unrequested messages of the server."""


@dataclass(slots=True)
class _PendingRequest:
    number: int
    message: dict[str, Any]
    token: str | None
    since: float
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    """With microseconds since the request."""

    def add_line(self, line: bytes) -> None:
        self.lines.append((int((monotonic() - self.since) * MICROSECONDS), line))


class StdioProxy:
    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        host: RecordReplayShimBackend,
        write: Callable[[bytes], None],
    ) -> None:
        """`command` starts the server in `env`; `write` sends to the client, from any thread."""
        self._command, self._env, self._host = command, env, host
        self._write_whole = write
        self._guard, self._asking = threading.Lock(), threading.Lock()
        self._server: McpServerProcess | None = None
        self._reader: threading.Thread | None = None
        self._pending: dict[str, _PendingRequest] = {}
        self._doubtful: set[str] = set()
        """Ids used twice: an answer may belong to the first call of an id, so it is not recorded."""
        self._unasked: list[tuple[int, bytes]] = []
        self._unasked_bytes = 0
        self._last = 0
        self._greeting: list[bytes] = []
        self._swallowed: str | None = None
        self._greeted = threading.Event()
        self._dead = ""
        self._gone = self._tells_end = False
        self._late: list[threading.Timer] = []
        self._next: threading.Timer | None = None
        """Timer that polls for waiting answers; guarded by `_asking`."""
        self.failed = ""
        """Reason why nothing more is served: the backend is lost."""

    # --- the client ------------------------------------------------------------------------------------------------

    def serve(self, read: Callable[[int], bytes]) -> int:
        in_order = False
        try:
            for line in iterate_stream_lines(read):
                self.on_client_line(line)
                if self.failed or self._gone:
                    break
            in_order = not (self.failed or self._gone)
        finally:
            code = self._end_session(in_order=in_order)
        return Exit.ENVIRONMENT if self.failed else Exit.FAILED if self._gone else code

    def on_client_line(self, line: bytes) -> None:
        bare = line.rstrip(b"\r\n").removeprefix(BOM)
        if not bare.strip():
            return
        if (message := parse_jsonrpc_line(bare)) is None:
            self._on_non_message(line, bare)
            return
        if "method" in message and message.get("id", 0) is None:
            text = "llmproxy: an id is a text or a number, and never null"
            self._write_whole(build_jsonrpc_error_line({}, text, INVALID_REQUEST))
            return
        if message.get("method") in ("initialize", "notifications/initialized"):
            self._greeting.append(bare)
        if message.get("method") == "notifications/cancelled":
            params = message.get("params")
            left = params.get("requestId") if isinstance(params, dict) else None
            with self._guard:
                pending = self._pending.pop(get_jsonrpc_message_id({"id": left}) or "", None)
            if pending is not None:
                self._record_answer_or_loss(pending, left=True)
                self._doubtful.add(get_jsonrpc_message_id(pending.message) or "")
        try:
            with self._asking:
                heard = self._host.on_line(bare)
                self._write_due_and_poll_later(heard)
        except LLMProxyError as why:
            self._stop_after_backend_error(why, message)
            return
        if heard.gone:
            self._gone = True
            return
        if heard.late:
            later = threading.Timer(heard.late, self._write_whole, (heard.out,))
            later.daemon = True
            self._late.append(later)
            later.start()
        if heard.forward is not None:
            self._forward_to_server(heard.forward, message, bare)

    def _write_due_and_poll_later(self, heard: McpStdioLineOutcome) -> None:
        if heard.out and not heard.late:
            self._write_whole(heard.out)
        if heard.again and self._next is None:
            self._next = threading.Timer(heard.again, self._poll_delayed_answers)
            self._next.daemon = True
            self._next.start()

    def _poll_delayed_answers(self) -> None:
        def take() -> None:
            self._next = None
            self._write_due_and_poll_later(self._host.on_line(b""))

        self._call_backend_or_stop(take)

    def _on_non_message(self, line: bytes, bare: bytes) -> None:
        if batch := split_jsonrpc_batch(bare):
            for each in batch:
                self.on_client_line(each)
        elif self._server is not None and not self._dead:
            self._server.write(line)
        else:
            text = "llmproxy: this line is no JSON-RPC message"
            self._write_whole(build_jsonrpc_error_line({"id": find_id_in_unparsable_line(bare)}, text, PARSE_ERROR))

    def _forward_to_server(self, number: int, message: dict[str, Any], line: bytes) -> None:
        asked = get_jsonrpc_message_id(message) if "method" in message else None
        self._last = number
        if asked is not None:
            with self._guard:
                if (earlier := self._pending.get(asked)) is not None:
                    self._doubtful.add(asked)
                self._pending[asked] = _PendingRequest(number, message, get_progress_token(message), monotonic())
            if earlier is not None:
                self._report_answer_left_unrecorded(earlier)
        sent = self._start_server(message) and self._server is not None and self._server.write(line + b"\n")
        if asked is None:
            host, why = self._host, self._dead
            self._call_backend_or_stop(
                lambda: host.on_server_answer(number, []) if sent else host.on_server_loss(number, why)
            )
        elif not sent:
            if self._reader is not None:
                self._reader.join(2.0)  # it knows how the server ended
            self._fail_pending(self._dead or "the server reads no more")

    def _start_server(self, message: dict[str, Any]) -> bool:
        """Start the server if it is not running; a late start repeats the handshake of the recording's client."""
        if self._dead:
            return False
        if self._server is not None:
            return True
        try:
            self._server = McpServerProcess(self._command, self._env)
        except LLMProxyError as why:
            self._dead = str(why)
            return False
        self._reader = threading.Thread(target=self._read_server, args=(self._server,), daemon=True)
        greeting = self._greeting if message.get("method") != "initialize" else []
        if greeting:
            self._swallowed = get_jsonrpc_message_id(parse_jsonrpc_line(greeting[0]) or {})
        self._reader.start()
        for n, line in enumerate(greeting):
            if message == parse_jsonrpc_line(line):
                break
            self._server.write(line + b"\n")
            if n == 0 and not self._greeted.wait(GREETING):
                self._dead = f"the server did not answer its greeting in {GREETING:g} s"
        return not self._dead

    # --- the server ------------------------------------------------------------------------------------------------

    def _read_server(self, server: McpServerProcess) -> None:
        try:
            for line in server.read_lines():
                self._on_server_line(line)
        except LLMProxyError as why:
            self._dead = f"the server said {why}"
        except OSError as why:
            self._dead = f"the server cannot be read: {why.strerror}"
        code = server.wait(1.0)
        ended = "the server closed its output" if code is None else f"the server ended (exit code {code})"
        self._dead = self._dead or ended
        self._greeted.set()
        self._fail_pending(self._dead)

    def _on_server_line(self, line: bytes) -> None:
        bare = line.rstrip(b"\r\n")
        if (message := parse_jsonrpc_line(bare)) is None:
            if batch := split_jsonrpc_batch(bare):
                for each in batch:
                    self._on_server_line(each)
            elif not self.failed:
                self._write_whole(line if line.endswith(b"\n") else line + b"\n")  # what follows is a line of its own
            return
        answered = get_jsonrpc_message_id(message) if "method" not in message else None
        if answered is not None and answered == self._swallowed:
            self._swallowed = None
            self._greeted.set()
            return
        with self._guard:
            pending = self._match_answer(message, bare, answered)
        if pending is None:
            if not self.failed:
                self._write_whole(bare + b"\n")
        elif self._record_answer_or_loss(pending):  # first: what was read is kept
            self._write_whole(bare + b"\n")
        else:
            self._write_whole(build_jsonrpc_error_line(pending.message, f"llmproxy: {self.failed}"))

    def _report_answer_left_unrecorded(self, pending: _PendingRequest) -> bool:
        """Report a request as unrecorded; its client still gets an answer. False: the backend is lost."""
        asked = str(pending.message.get("method"))[:60]
        sys.stderr.write(f"llmproxy: mcp: NOT RECORDED: {asked!r}: {TWO_OF_ONE_ID}\n")
        return self._call_backend_or_stop(lambda: self._host.on_server_loss(pending.number, TWO_OF_ONE_ID))

    def _record_answer_or_loss(self, pending: _PendingRequest, *, left: bool = False) -> bool:
        """Record a request's answer, or its loss. False: the backend is lost."""
        if get_jsonrpc_message_id(pending.message) in self._doubtful:
            return self._report_answer_left_unrecorded(pending)
        return self._call_backend_or_stop(lambda: self._host.on_server_answer(pending.number, pending.lines, left=left))

    def _match_answer(self, message: dict[str, Any], line: bytes, answered: str | None) -> _PendingRequest | None:
        if answered is not None:
            if (pending := self._pending.pop(answered, None)) is not None:
                pending.add_line(line)
            return pending
        if "method" not in message:
            return None
        token = get_progress_token(message) if message["method"] == "notifications/progress" else None
        mine = (each for each in self._pending.values() if token is not None and each.token == token)
        if (place := next(mine, None) or next(reversed(self._pending.values()), None)) is not None:
            place.add_line(line)
        elif self._unasked_bytes + len(line) <= MOST_UNASKED:
            self._unasked_bytes += len(line)
            self._unasked.append((self._last, line))
        return None

    # --- what goes wrong -------------------------------------------------------------------------------------------

    def _fail_pending(self, why: str) -> None:
        with self._guard:
            waiting, self._pending = list(self._pending.values()), {}
        begun = " before it answered" if self._server is not None else ""
        for each in waiting:
            if not self._gone:  # on purpose: who waits sees what a server leaves that is gone, nothing
                self._write_whole(build_jsonrpc_error_line(each.message, f"llmproxy: {why}{begun}"))
            self._call_backend_or_stop(partial(self._host.on_server_loss, each.number, why))

    def _call_backend_or_stop(self, tell: Callable[[], None]) -> bool:
        """Call the backend; False: it is lost or could not record, and serves nothing more."""
        if not self.failed:
            try:
                with self._asking:
                    tell()
            except LLMProxyError as why:
                self._stop_after_backend_error(why, None)
        return not self.failed

    def _stop_after_backend_error(self, why: LLMProxyError, message: dict[str, Any] | None) -> None:
        self.failed = remove_program_prefix(why)
        sys.stderr.write(f"llmproxy: mcp: {self.failed}\n")
        if message is not None and "method" in message and get_jsonrpc_message_id(message) is not None:
            self._write_whole(build_jsonrpc_error_line(message, f"llmproxy: {self.failed}"))

    def _end_session(self, *, in_order: bool) -> int:
        code = 0
        for each in self._late:
            each.cancel()
        try:
            while not (self.failed or self._gone):
                with self._asking:  # while the host is asked again, nobody knows whether something waits still
                    asking = self._next
                if asking is None:
                    break
                asking.join()  # what was asked for is answered, as a server would
            if self._server is not None and self._reader is not None:
                code = self._server.end(at_once=bool(self.failed) or self._gone)
                self._reader.join(2.0)
                if not self._reader.is_alive():
                    self._server.close()
        finally:
            self._tells_end = True
            self._call_backend_or_stop(lambda: self._host.end(self._unasked, in_order=in_order))
        return max(code, 0)

    def on_sigterm(self, *_: object) -> None:
        """Stop like Ctrl-C, but not while the backend is told the end: the cassette would stay incomplete."""
        if not self._tells_end:
            raise KeyboardInterrupt


# --- lines of JSON-RPC: what is a message, which answers which ------------------------------------------------------


def parse_jsonrpc_line(line: bytes) -> dict[str, Any] | None:
    """Return the message on a line; None for a log line, half a message, invalid UTF-8."""
    value = parse_json_or_none(line)
    return value if isinstance(value, dict) and value.get("jsonrpc") == "2.0" else None


def get_jsonrpc_message_id(message: dict[str, Any]) -> str | None:
    """Return the id of a message, typed so that 1 and "1" differ; None without one."""
    return json.dumps(message["id"]) if message.get("id") is not None else None


def get_progress_token(message: dict[str, Any]) -> str | None:
    params = message.get("params")
    if not isinstance(params, dict):
        return None
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else params.get("progressToken")
    return None if token is None else json.dumps(token)


def build_jsonrpc_error_line(message: dict[str, Any], text: str, code: int = ENDED) -> bytes:
    """Return the error line for a request; for a tool call a result that its model reads."""
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": message.get("id")}
    if message.get("method") == "tools/call":
        said["result"] = {"content": [{"type": "text", "text": text}], "isError": True}
    else:
        said["error"] = {"code": code, "message": text}
    return json.dumps(said).encode() + b"\n"


def split_jsonrpc_batch(line: bytes) -> list[bytes]:
    try:
        text = line.decode()
        members = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(members, list) or not all(isinstance(each, dict) for each in members):
        return []
    found, at = [], text.index("[") + 1
    for _ in members:
        match = _SPACE.match(text, at)
        begin = match.end() if match else at
        _, at = json.JSONDecoder().raw_decode(text, begin)
        found.append(text[begin:at].encode())
    return found


def find_id_in_unparsable_line(line: bytes) -> Any:
    """Return the id in an unparsable line, even one nested too deep; None without one."""
    try:
        value = json.loads(line)
        return value.get("id") if isinstance(value, dict) else None
    except RecursionError:
        depth = 0
        for step in _STEP.finditer(line):
            depth += _DEEPER.get(step[0], 0)
            if depth == 1 and step[0] == b'"id"' and (value := _VALUE.match(line, step.end())):
                return json.loads(value[1])
    except ValueError:
        pass
    return None
