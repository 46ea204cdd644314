"""The shim before real processes that misbehave: whoever waits gets an answer or an error, and only whole answers are kept."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmproxy.client.tools.mcp_shim import EngineShimBackend
from llmproxy.client.tools.stdio_proxy import (
    McpServerProcess,
    StdioProxy,
    iterate_stream_lines,
    make_client_line_writer,
    split_lines_after_notifications,
)
from llmproxy.errors import Exit, MachineError
from llmproxy.protocol import McpStdioLineOutcome, Mode
from llmproxy.settings import Settings
from tests.support.narrowing import known
from tests.support.process import until


class Forwarding:
    """A host that forwards everything and remembers what it is told."""

    def __init__(self) -> None:
        self.kept: dict[int, list[bytes]] = {}
        self.lost_ones: dict[int, str] = {}
        self.left: list[int] = []
        self.unasked: list[tuple[int, bytes]] = []
        self.ended = False
        self.gone = False
        self.faults: list[McpStdioLineOutcome] = []
        self._number = 0

    def on_line(self, line: bytes) -> McpStdioLineOutcome:
        if self.gone:
            raise MachineError("the proxy at http://x does not answer: gone")
        if self.faults:
            return self.faults.pop(0)
        self._number += 1
        return McpStdioLineOutcome(b"", self._number)

    def on_server_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        self.kept[number] = [line for _, line in lines]
        if left:
            self.left.append(number)

    def on_server_loss(self, number: int, why: str) -> None:
        self.lost_ones[number] = why

    def end(self, unasked: Sequence[tuple[int, bytes]], *, in_order: bool) -> None:
        self.unasked, self.ended = list(unasked), True


class Client:
    """A shim with a client's ends of its pipes."""

    def __init__(self, command: Sequence[str], host: Forwarding) -> None:
        self.written: list[bytes] = []
        self._said = threading.Condition()
        self.host = host
        self.shim = StdioProxy(command, os.environ, host, self._write)
        read, self._input = os.pipe()
        self.code: int | None = None
        self._thread = threading.Thread(target=self._serve, args=(read,))
        self._thread.start()

    def _serve(self, read: int) -> None:
        self.code = self.shim.serve(lambda size: os.read(read, size))
        os.close(read)

    def _write(self, data: bytes) -> None:
        with self._said:
            self.written.append(data)
            self._said.notify_all()

    def say(self, **message: Any) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def send(self, line: bytes) -> None:
        left = memoryview(line + b"\n")
        while left:
            left = left[os.write(self._input, left) :]

    def wait(self, done: Callable[[bytes], bool]) -> bytes:
        """Wait until all that was said satisfies; return it."""
        with self._said:
            assert self._said.wait_for(lambda: done(b"".join(self.written)), 20), self.written
            return b"".join(self.written)

    def answer(self, id_: object) -> dict[str, Any]:
        def found(said: bytes) -> list[dict[str, Any]]:
            messages = [json.loads(line) for line in said.splitlines() if line.startswith(b"{") and line.endswith(b"}")]
            return [each for each in messages if each.get("id") == id_ and "method" not in each]

        return found(self.wait(lambda said: bool(found(said))))[0]

    def close(self) -> None:
        os.close(self._input)
        self._thread.join(20)
        assert not self._thread.is_alive()
        assert self.host.ended or self.shim.failed


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


RESULT = '{"jsonrpc":"2.0","id":1,"result":{}}'


@pytest.mark.parametrize(
    ("script", "through"),
    [
        (f"read l; echo 'listening on 1'; echo '{RESULT}'; cat > /dev/null", b"listening on 1\n"),
        (f"read l; printf 'no \\377 text\\n'; echo '{RESULT}'; cat > /dev/null", b"no \xff text\n"),
        (f"read l; echo '{RESULT}'; echo '{RESULT}'; cat > /dev/null", RESULT.encode() + b"\n"),
        (f"read l; echo '{RESULT.replace('1', '9')}'; echo '{RESULT}'; cat > /dev/null", b'"id":9'),
        (f"read l; printf '%s' '{RESULT}'", RESULT.encode() + b"\n"),
        (f"read l; echo; echo '{RESULT}'; cat > /dev/null", b"\n"),
    ],
    ids=["log line", "no UTF-8", "an id twice", "an answer to nobody", "no newline at the end", "an empty line"],
)
def test_what_is_no_answer_goes_through_and_is_not_kept(script: str, through: bytes) -> None:
    """The client sees what it would have seen; kept is the one answer to what was asked."""
    client = Client(shell(script), Forwarding())
    client.say(id=1, method="tools/list")
    assert client.answer(1)["result"] == {}
    client.wait(lambda said: through in said)
    client.close()
    assert client.host.kept == {1: [RESULT.encode()]}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (shell("exit 7"), "exit code 7"),
        (shell("""read l; printf '{"jsonrpc":"2.0","id":1,"res'"""), "exit code 0"),
        (shell("read l; kill -9 $$"), "exit code -9"),
        (["/no/such/server"], "/no/such/server cannot be started: No such file or directory"),
    ],
    ids=["exits at once", "half a line", "killed", "not there"],
)
def test_a_server_that_is_gone_is_an_error_to_who_waits(command: list[str], why: str) -> None:
    """Of a tool's call one that its model reads, of anything else one of JSON-RPC; nothing half is kept, and the next one hears it too."""
    client = Client(command, Forwarding())
    client.say(id=1, method="tools/call", params={"name": "x"})
    called = client.answer(1)["result"]
    assert called["isError"] is True
    assert why in called["content"][0]["text"]
    client.say(id=2, method="tools/list")
    assert why in client.answer(2)["error"]["message"]
    client.close()
    assert client.host.kept == {}
    assert sorted(client.host.lost_ones) == [1, 2]


ECHO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("params", {}).get("wait"):
        held = asked
    elif "id" in asked:
        for each in (held, asked) if asked["params"].get("both") else (asked,):
            print(json.dumps({"jsonrpc": "2.0", "id": each["id"], "result": {"said": each["params"]["text"]}}), flush=True)
"""


def test_what_may_be_the_answer_to_another_request_of_the_same_id_is_not_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Asked twice at once, or after a cancellation, under one id: it goes through; in a replay it would be told to who asked something else."""
    client = Client([sys.executable, "-c", ECHO], Forwarding())
    client.say(id=1, method="x", params={"text": "first", "wait": True})
    client.say(id=1, method="x", params={"text": "second", "both": True})
    client.wait(lambda said: said.count(b"\n") == 2)
    client.say(id=1, method="x", params={"text": "third"})
    client.wait(lambda said: b"third" in said)
    client.say(id=2, method="x", params={"text": "cancelled", "wait": True})
    client.say(method="notifications/cancelled", params={"requestId": 2})
    client.say(id=2, method="x", params={"text": "fourth", "both": True})
    client.wait(lambda said: b"fourth" in said)
    client.say(id=3, method="x", params={"text": "fifth"})
    client.wait(lambda said: b"fifth" in said)
    client.close()
    assert [line for number, lines in client.host.kept.items() if number not in (4, 5) for line in lines] == [
        b'{"jsonrpc": "2.0", "id": 3, "result": {"said": "fifth"}}'
    ]
    assert sorted(client.host.lost_ones) == [1, 2, 3, 6]
    assert capsys.readouterr().err.count("NOT RECORDED: 'x': two requests had the same id") == 4


def test_a_batch_is_its_messages() -> None:
    """A server hears them one after the other, and each is answered and kept by its own; so it is with a batch of the server's."""
    script = """
import json, sys
first, second = (json.loads(sys.stdin.readline()) for _ in range(2))
print(json.dumps([{"jsonrpc": "2.0", "id": each["id"], "result": each["params"]} for each in (second, first)]), flush=True)
sys.stdin.read()
"""
    client = Client([sys.executable, "-c", script], Forwarding())
    client.send(
        b'[{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":1.50}} , {"jsonrpc":"2.0","id":"b","method":"x","params":{"a":2}}]'
    )
    assert (client.answer(1)["result"], client.answer("b")["result"]) == ({"a": 1.5}, {"a": 2})
    client.close()
    assert {number: len(lines) for number, lines in client.host.kept.items()} == {1: 1, 2: 1}


@pytest.mark.parametrize(("line", "id_", "code"), [
    (b"hello", None, -32700),
    (b"[]", None, -32700),
    (b'{"id": 7, "method": "tools/list"}', 7, -32700),
    (b'{"jsonrpc":"2.0","params":{"id":1,"a":' + b"[" * 200_000 + b"]" * 200_000 + b'},"id" : "q\\"1"}', 'q"1',
     -32700),
    (b'{"jsonrpc":"2.0","id":null,"method":"tools/call"}', None, -32600),
], ids=["a word", "an empty batch", "another protocol", "too deep", "no id"])  # fmt: skip
def test_a_line_that_is_no_message_is_an_error_to_its_sender(line: bytes, id_: object, code: int) -> None:
    """Under its id, as far as it has one: else its client would wait for ever. No server is started for it; a byte order mark is none of its bytes."""
    client = Client(["/no/such/server"], Forwarding())
    client.send(line)
    said = json.loads(client.wait(lambda said: said.endswith(b"\n")))
    assert (said["id"], said["error"]["code"]) == (id_, code)
    client.send(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":3,"method":"x"}')
    assert (
        client.answer(3)["error"]["message"] == "llmproxy: /no/such/server cannot be started: No such file or directory"
    )
    client.close()


def test_a_server_that_never_answers_is_ended_with_its_client() -> None:
    """It gets its time, then it is ended; what it did not answer is not kept."""
    client = Client([sys.executable, "-c", "import time; time.sleep(600)"], Forwarding())
    client.say(id=1, method="tools/list")
    client.close()
    assert (client.host.kept, list(client.host.lost_ones)) == ({}, [1])


def test_a_signal_while_the_server_ends_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK for Python sends SIGTERM two seconds after it closed the input; while the host is told the end, it waits."""
    said, host = '{"jsonrpc":"2.0","method":"notifications/late"}', Forwarding()
    shim = StdioProxy(shell(f"read l; echo '{RESULT}'; echo '{said}'"), os.environ, host, lambda _: None)
    end, lines = McpServerProcess.end, iter([b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n'])

    def end_late(server: McpServerProcess, *, at_once: bool = False) -> int:
        end(server, at_once=at_once)
        known(shim._reader).join()
        server.close()
        shim.on_sigterm()
        return 0

    def end_with_signal(unasked: Sequence[tuple[int, bytes]], *, in_order: bool) -> None:
        shim.on_sigterm()
        tell(unasked, in_order=in_order)

    tell = host.end
    monkeypatch.setattr(host, "end", end_with_signal)
    monkeypatch.setattr(McpServerProcess, "end", end_late)
    with pytest.raises(KeyboardInterrupt):
        shim.serve(lambda _: next(lines, b""))
    assert (host.ended, host.unasked) == (True, [(1, said.encode())])


def test_a_host_that_is_gone_ends_everything() -> None:
    """Nothing goes to a server of which nobody knows whether it may: an error to the client, and exit code 3."""
    host = Forwarding()
    client = Client(shell(f"read l; echo '{RESULT}'; cat > /dev/null"), host)
    client.say(id=1, method="tools/list")
    client.answer(1)
    host.gone = True
    client.say(id=2, method="tools/call", params={"name": "x"})
    assert "does not answer" in client.answer(2)["result"]["content"][0]["text"]
    client.close()
    assert client.code == Exit.ENVIRONMENT


def test_messages_are_kept_with_the_request_that_they_belong_to() -> None:
    """Progress by its token, whatever else is said by the last request that waits; the rest with the message that it followed."""
    token = {"_meta": {"progressToken": "p"}}
    progress = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}'
    log, late = '{"jsonrpc":"2.0","method":"notifications/message"}', '{"jsonrpc":"2.0","method":"notifications/late"}'
    second = RESULT.replace("1", "2")
    script = f"read a; read b; for l in '{progress}' '{log}' '{second}' '{RESULT}' '{late}'; do echo $l; done; cat > /dev/null"
    client = Client(shell(script), Forwarding())
    client.say(id=1, method="tools/call", params=token)
    client.say(id=2, method="tools/call", params={})
    client.wait(lambda said: b"late" in said)
    client.close()
    assert client.host.kept == {1: [progress.encode(), RESULT.encode()], 2: [log.encode(), second.encode()]}
    assert client.host.unasked == [(2, late.encode())]


def test_a_cancelled_call_is_kept_as_far_as_it_came() -> None:
    """Its progress, and that nobody waited for its end; what its server says afterwards goes through."""
    progress = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}'
    client = Client(shell(f"read a; echo '{progress}'; read b; echo '{RESULT}'; cat > /dev/null"), Forwarding())
    client.say(id=1, method="tools/call", params={"_meta": {"progressToken": "p"}})
    client.wait(lambda said: b"progress" in said)
    client.say(method="notifications/cancelled", params={"requestId": 1})
    client.answer(1)
    client.close()
    assert (client.host.kept, client.host.left) == ({1: [progress.encode()], 2: []}, [1])


class Watching(Forwarding):
    """A host that looks at what its client has read when it is told an answer."""

    client: Client
    read_before: bytes | None = None

    def on_server_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        super().on_server_answer(number, lines, left=left)
        self.read_before = b"".join(self.client.written)


def test_an_answer_is_kept_before_its_client_reads_it() -> None:
    """What somebody has read is not lost by whatever happens next."""
    host = Watching()
    host.client = client = Client(shell(f"read l; echo '{RESULT}'; cat > /dev/null"), host)
    client.say(id=1, method="tools/list")
    client.answer(1)
    client.close()
    assert (host.read_before, host.kept) == (b"", {1: [RESULT.encode()]})


class Deaf(Forwarding):
    def on_server_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        raise MachineError("the proxy at http://x does not answer: gone")


def test_an_answer_that_cannot_be_kept_is_an_error_to_its_client() -> None:
    """What no recording holds nobody has read; the next call gets an error too."""
    client = Client(shell(f"read l; echo '{RESULT}'; cat > /dev/null"), Deaf())
    client.say(id=1, method="tools/call", params={"name": "x"})
    called = client.answer(1)["result"]
    assert (called["isError"], "does not answer" in called["content"][0]["text"]) == (True, True)
    client.say(id=2, method="tools/list")
    client.close()
    assert (client.code, RESULT.encode() in b"".join(client.written)) == (Exit.ENVIRONMENT, False)


def test_a_line_is_put_together_however_it_came() -> None:
    """Borders of reads are none of lines; an endless line is refused."""
    reads = iter([b"a", b"b\nc\n\nd", b"", b""])
    assert list(iterate_stream_lines(lambda _: next(reads))) == [b"ab\n", b"c\n", b"\n", b"d"]


def test_a_server_that_is_gone_on_purpose_ends_with_its_client_s_pipe(tmp_path: Path) -> None:
    """A fault: the real server is ended too, whoever still waits hears nothing, and the shim's exit code says that it failed."""
    pid = tmp_path / "pid"
    client = Client(shell(f"echo $$ > {pid}; cat > /dev/null"), Forwarding())
    client.say(id=1, method="tools/list")
    until(lambda: pid.exists() and pid.read_text(), 60)
    client.host.faults = [McpStdioLineOutcome(b"", None, gone=True)]
    client.say(id=2, method="tools/call", params={"name": "x"})
    client._thread.join(60)
    assert (client.code, client.host.ended, client.written) == (Exit.FAILED, True, [])
    assert list(client.host.lost_ones) == [1]
    assert not Path(f"/proc/{int(pid.read_text())}").exists()
    client.close()


def test_calls_at_once_are_answered_in_the_order_in_which_they_were(tmp_path: Path) -> None:
    """In replay too, where the first one is asked first; a client that has said all and left still hears them."""
    asked = [{"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": f"t{n}"}} for n in (1, 2, 3)]
    answers = [f'echo \'{{"jsonrpc":"2.0","id":{n},"result":{{}}}}\'' for n in (3, 1, 2)]
    server = ("sh", "-c", f"read a; read b; read c; {'; '.join(answers)}; cat > /dev/null")
    for mode in (Mode.RECORD, Mode.REPLAY):
        written: list[bytes] = []
        said = iter([json.dumps(each).encode() + b"\n" for each in asked])
        settings = Settings(mode=mode, store=tmp_path / "x.db")
        shim = StdioProxy(server, os.environ, EngineShimBackend(settings, "slow", {}, ()), written.append)
        assert shim.serve(lambda _, said=said: next(said, b"")) == 0  # type: ignore[misc]
        assert [json.loads(line)["id"] for line in b"".join(written).splitlines()] == [3, 1, 2]


def test_a_client_that_leaves_while_an_answer_waits_for_its_turn_hears_all() -> None:
    """Its end comes while the host is asked again, and another answer waits behind the one that is told now."""
    asked_again = threading.Event()
    written: list[bytes] = []
    outcomes = [
        McpStdioLineOutcome(b"1\n", None, again=0.001),
        McpStdioLineOutcome(b"2\n", None, again=0.2),
        McpStdioLineOutcome(b"3\n", None),
    ]

    class Waiting(Forwarding):
        def on_line(self, line: bytes) -> McpStdioLineOutcome:
            if not line:
                asked_again.set()
                time.sleep(0.1)  # the client's end looks meanwhile for what it has to wait for
            return outcomes.pop(0)

    def read(_: int) -> bytes:
        if written:
            assert asked_again.wait(20)
            return b""
        return b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n'

    assert StdioProxy(shell("exit 7"), os.environ, Waiting(), written.append).serve(read) == 0
    assert b"".join(written) == b"1\n2\n3\n"


def test_a_late_answer_lets_others_pass() -> None:
    """A fault: what is asked meanwhile is answered; what would come after the client's end does not come."""
    client = Client(shell("exit 7"), Forwarding())
    answers = [json.dumps({"jsonrpc": "2.0", "id": id_, "error": {}}).encode() + b"\n" for id_ in (8, 9, 1)]
    client.host.faults = [
        McpStdioLineOutcome(answers[0], None, 3600),
        McpStdioLineOutcome(answers[1], None, 0.01),
        McpStdioLineOutcome(answers[2], None),
    ]
    for id_ in (8, 9, 1):
        client.say(id=id_, method="tools/call", params={"name": "x"})
    client.answer(1)
    client.answer(9)
    client.close()
    assert answers[0] not in client.written


PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n'
RESULT_LINE = RESULT.encode() + b"\n"
ASKED = b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}\n'


@pytest.mark.parametrize("parts", [
    [b""],
    [RESULT_LINE],
    [RESULT_LINE + RESULT_LINE],
    [PROGRESS + PROGRESS],
    [PROGRESS + PROGRESS, RESULT_LINE],
    [RESULT_LINE + PROGRESS, ASKED + PROGRESS, RESULT_LINE],
    [b'{"id":1,"result":{"text":"a \\"method\\": \\"notifications/x\\""}}\n' + RESULT_LINE],
])  # fmt: skip
def test_what_follows_a_notification_is_a_part_of_its_own(parts: list[bytes]) -> None:
    """Nothing else is cut, and not a byte is lost."""
    assert split_lines_after_notifications(b"".join(parts)) == parts


def pipe() -> tuple[int, Callable[[], bytes], Callable[[], None]]:
    """Make a pipe: where to write, what reads all that is there, what closes both."""
    read, write = os.pipe()

    def close() -> None:
        os.close(read)
        os.close(write)

    return write, lambda: os.read(read, 65536), close


def pair() -> tuple[int, Callable[[], bytes], Callable[[], None]]:
    """Make a pair of sockets, which Node gives its children."""
    ours, theirs = socket.socketpair()

    def close() -> None:
        ours.close()
        theirs.close()

    return ours.fileno(), lambda: theirs.recv(65536), close


@pytest.mark.parametrize("made", [pipe, pair])
def test_a_result_waits_until_its_progress_was_read(
    made: Callable[[], tuple[int, Callable[[], bytes], Callable[[], None]]],
) -> None:
    """Whoever reads all that is there gets the one, then the other."""
    fd, read, close = made()
    write = make_client_line_writer(fd, patience=60)
    for before, at_once in ((b"", PROGRESS + RESULT_LINE), (PROGRESS, RESULT_LINE)):
        write(before)
        writer = threading.Thread(target=write, args=(at_once,))
        writer.start()
        assert [read(), read()] == [PROGRESS, RESULT_LINE]
        writer.join(20)
    close()


def test_a_client_that_is_gone_is_no_error() -> None:
    """Nobody reads: nothing is raised."""
    ours, theirs = socket.socketpair()
    theirs.close()
    make_client_line_writer(ours.fileno())(PROGRESS + RESULT_LINE)
    ours.close()
