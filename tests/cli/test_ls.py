"""``llmproxy ls``, ``show``, ``diff``, ``why`` and ``audit``, on real stores."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from llmproxy.amount_formatting import format_local_time
from llmproxy.cli import main
from llmproxy.core.engine.engine import Engine
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig
from llmproxy.core.sessions.journal import CallDecisionJournalWriter, JournaledMiss
from llmproxy.core.traffic.interaction import Chunk, Ending, Headers, Request, Response
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import answered
from tests.core.traffic.test_frames import descriptor_set
from tests.support.chats import EVIL, NOW, ODD, chat, fill, run
from tests.support.messages import asks, call, user
from tests.trace.observing.test_servers import Tools


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "llmproxy.db", chat(), chat("And now?", "Still fine.", cassette="other"))
    return tmp_path / "llmproxy.db"


def test_ls_lists_cassettes_and_interactions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The overview first, then a line for each interaction, uncut in a pipe."""
    code, out = run(capsys, path, "ls")
    assert code == 0
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert f"default 1 0 11 2 {format_local_time(NOW)} incomplete: interrupted, or its test failed" in rows
    shown = "agent gpt-4o chat.completions 200 2 11 2"
    assert rows[-2:] == [
        f"1 {format_local_time(NOW)} default {shown} How are you? -> Fine.",
        f"2 {format_local_time(NOW)} other {shown} And now? -> Still fine.",
    ]


def test_ls_counts_failures_of_each_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "llmproxy.db"
    fill(path, *(dataclasses.replace(chat(), sample=n, response=Response(500, "", (), ())) for n in (1, 2)))
    _, out = run(capsys, path, "ls")
    assert out.count("incomplete, 1 failed") == 2, out


def test_ls_takes_the_name_of_a_cassette(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `show` does; two different ones are a mistake."""
    assert run(capsys, path, "ls", "other") == run(capsys, path, "ls", "--cassette", "other") != run(capsys, path, "ls")
    code, said = run(capsys, path, "ls", "other", "--cassette", "another")
    assert (code, "one cassette at a time: other or another" in said) == (2, True)


def test_ls_says_what_it_left_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit shows the last ones and how many there are; a cassette shows only its own; JSON is JSON."""
    assert "(the last 1 of 2; --limit 0 shows all)" in run(capsys, path, "ls", "--limit", "1")[1]
    code, out = run(capsys, path, "ls", "--cassette", "other", "--json")
    assert code == 0
    assert [row["id"] for row in json.loads(out)["interactions"]] == [2]
    code, said = run(capsys, path, "ls", "--cassette", "none")
    assert (code, said.splitlines()[0]) == (0, "Nothing is recorded in cassette none.")
    assert said.splitlines()[1].startswith("Cassettes there: ")


def test_looking_changes_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No command that looks touches the store or its folder."""
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.parent.iterdir()}
    for typed in (["ls"], ["show", "1"], ["diff", "1", "2"], ["verify"], ["why"]):
        assert run(capsys, path, *typed)[0] == 0
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.parent.iterdir()} == before


def test_show_reads_as_a_conversation(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts, then who said what, then the answer."""
    code, out = run(capsys, path, "show", "1")
    assert code == 0
    assert "POST https://api.openai.com/v1/chat/completions" in out
    assert "200 OK, complete" in out
    assert "\nusage       11 tokens in, 2 out" in out
    assert out.endswith("--- user\nHow are you?\n\n=== answer\nFine.\n")


def test_who_asked_and_which_model_answered_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording names its client with its version, and the model and fingerprint that its answer says."""
    one, path = chat(), tmp_path / "llmproxy.db"
    said = b'{"model": "gpt-4o-2024-08-06", "system_fingerprint": "fp_7", "choices": []}'
    headers = (*one.request.headers, ("user-agent", "claude-cli/2.1.197 (external, cli)"))
    answer = dataclasses.replace(one.response, chunks=(Chunk(1, said),))
    request = dataclasses.replace(one.request, headers=headers)
    fill(path, dataclasses.replace(one, request=request, response=answer))
    assert "Claude Code 2.1.197" in run(capsys, path, "ls")[1]
    out = run(capsys, path, "show", "1")[1]
    assert "\nclient      Claude Code 2.1.197\nanswered by gpt-4o-2024-08-06 fp_7\n" in out
    told = json.loads(run(capsys, path, "show", "1", "--json")[1])
    assert (told["client"], told["answered_by"]) == ("Claude Code 2.1.197", "gpt-4o-2024-08-06 fp_7")


def test_show_reads_messages_of_grpc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes, texts and the end; by a descriptor, JSON; one that does not fit is an error in words."""
    one, path = chat(), tmp_path / "llmproxy.db"
    body = b"\0\0\0\0\x04\x0a\x02hi"
    headers = (("content-type", "application/grpc"), ("trailer:grpc-status", "15"), ("trailer:grpc-message", "100%25"))
    request = dataclasses.replace(one.request, target="/a.Chat/Say", body=body)
    response = dataclasses.replace(one.response, headers=headers, chunks=(Chunk(1, body + body[:6]),))
    fill(path, dataclasses.replace(one, request=request, response=response))
    out = run(capsys, path, "show", "1")[1]
    assert "message 1, 4 bytes\n  1           hi\n" in out
    assert out.endswith("6 bytes of a message that was cut\n\n=== end\ngrpc-status: 15\ngrpc-message: 100%\n")
    described = tmp_path / "a.desc"
    described.write_bytes(descriptor_set("a", "Chat", "Say", "text").SerializeToString())
    assert '"text": "hi"' in run(capsys, path, "show", "1", "--descriptor", str(described))[1]
    described.write_bytes(descriptor_set("a", "Other", "Say", "text").SerializeToString())
    code, said = run(capsys, path, "show", "1", "--descriptor", str(described))
    assert (code, "does not know a.Chat/Say" in said, "It knows: a.Other" in said) == (2, True, True)


def test_show_shows_tool_calls(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A call's name, id and arguments, the latter as readable JSON; an answer cut short is called so."""
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}
    headers = (("content-type", "application/json"),)
    fill(path, chat(response=Response(200, "OK", headers, (Chunk(1, json.dumps(said).encode()),), Ending.CUT)))
    assert '=== answer (cut)\n-> search  (call_1)\n   {\n     "q": "x"\n   }\n' in run(capsys, path, "show", "3")[1]


def test_raw_is_exact(path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """--raw writes the bytes of the answer, --raw --request those of the request, and nothing else."""
    request = Request("POST", "/v1/x", (), ODD[::-1])
    fill(path, chat(request=request, response=Response(200, "OK", (), (Chunk(1, ODD), Chunk(2, b"\n")))))
    assert main(["show", "3", "--raw", "--store", str(path)]) == 0
    assert capsysbinary.readouterr().out == ODD + b"\n"
    assert main(["show", "3", "--raw", "--request", "--store", str(path)]) == 0
    assert capsysbinary.readouterr().out == ODD[::-1]


def test_recorded_text_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, bells and direction marks in any recorded text come out escaped, in every command."""
    path = tmp_path / "llmproxy.db"
    request = Request(
        "POST", f"/{EVIL}", ((EVIL, EVIL),), json.dumps({"messages": [{"role": EVIL, "content": EVIL}]}).encode()
    )
    evil = chat(EVIL, EVIL, cassette=EVIL, party=EVIL, model=EVIL, upstream=EVIL, made_ids=(EVIL,))
    odd = dataclasses.replace(
        evil, request=request, provider=EVIL, operation=EVIL, response=Response(200, EVIL, (), (Chunk(1, ODD),))
    )
    fill(path, evil, odd)
    journal = CallDecisionJournalWriter.open(Path(f"{path}.state.db"), lambda: NOW)
    journal.add_miss(JournaledMiss(NOW, EVIL, {"text": EVIL}))
    journal.close()
    shown = [["ls"], ["show", "1"], ["show", "2"], ["diff", "1", "2"], ["why"]]
    commands = [*shown, *([*typed, "--json"] for typed in shown), ["show", "2", "--request"], ["verify"]]
    commands += [["prune", "--cassette", EVIL, "--yes"]]
    for typed in commands:
        _, out = run(capsys, path, *typed)
        assert not {char for char in out if not char.isprintable()} - {"\n"}, typed


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("cp1252", marks=pytest.mark.slow)])
def test_any_output_encoding_will_do(tmp_path: Path, encoding: str) -> None:
    """A pipe that takes only ASCII gets escapes, not an exception."""
    path = tmp_path / "llmproxy.db"
    fill(path, chat("größe 😀 \udc80", "→ 日本"))
    for typed in (["ls"], ["show", "1"]):
        command = [sys.executable, "-X", "utf8=0", "-m", "llmproxy", *typed, "--store", str(path)]
        done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": encoding}, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr


def test_show_of_what_is_not_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback: what is missing, and the command that lists what there is."""
    code, out = run(capsys, path, "show", "99")
    assert (code, out.startswith("llmproxy: There is no interaction 99")) == (3, True)
    assert "llmproxy ls" in out
    code, out = run(capsys, path.with_name("none.db"), "ls")
    assert code == 3
    assert "There is no store" in out
    assert not path.with_name("none.db").exists()


def test_diff_names_the_places(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests are compared by what people edit, answers by JSON path; equal ones are called equal."""
    code, out = run(capsys, path, "diff", "1", "2")
    assert code == 0
    assert out.startswith("keys: different\nrequests: 1 difference\n  message 1 (user) at $.messages[0].content")
    assert "- " in out
    assert "How are you?" in out
    assert "And now?" in out
    assert run(capsys, path, "diff", "1", "1")[1] == "keys: the same\nrequests: equal\nanswers: equal\n"


def test_why_says_what_the_client_was_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last misses, oldest first, word for word; none is said to be none."""
    assert run(capsys, path, "why")[1].startswith("Nothing is known: there is no ")
    journal = CallDecisionJournalWriter.open(Path(f"{path}.state.db"), lambda: NOW)
    for n in range(3):
        text = f"llmproxy: no recorded response {n}\nnearest: 1"
        journal.add_miss(JournaledMiss(NOW, text, {"text": text, "key": "v1:x"}))
    journal.close()
    code, out = run(capsys, path, "why", "-n", "2")
    assert code == 0
    one = f"--- {format_local_time(NOW)}\nllmproxy: no recorded response {{}}\nnearest: 1\n"
    assert out == f"{one.format(1)}\n{one.format(2)}"
    assert [missed["key"] for missed in json.loads(run(capsys, path, "why", "--json")[1])] == ["v1:x"]


def test_show_reads_a_websocket_as_a_transcript(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who said what, when, and how it ended; `--raw` gives the lines as they are kept."""
    from llmproxy.core.traffic.websocket_frames import CONTENT_TYPE, WebSocketFrame, encode_websocket_frames_as_chunks

    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi there"}]}
    frames = [
        WebSocketFrame(1500, client=True, data=json.dumps({"type": "conversation.item.create", "item": item})),
        WebSocketFrame(2500, client=False, data='{"type": "response.output_text.delta", "delta": "Hello."}'),
        WebSocketFrame(9000, client=True, data="bye", close=1000),
    ]
    plain = chat()
    request = dataclasses.replace(plain.request, method="GET", target="/v1/realtime?model=m", body=b"")
    response = Response(
        101,
        "Switching Protocols",
        (("content-type", CONTENT_TYPE),),
        encode_websocket_frames_as_chunks(frames),
        chunked=True,
    )
    fill(tmp_path / "llmproxy.db", dataclasses.replace(plain, operation="realtime", request=request, response=response))
    code, out = run(capsys, tmp_path / "llmproxy.db", "show", "1")
    assert code == 0
    assert "=== messages" in out
    assert '1.5 ms client -> {"type": "conversation.item.create"' in " ".join(out.split())
    assert "9.0 ms client -> (close 1000: bye)" in " ".join(out.split())
    assert run(capsys, tmp_path / "llmproxy.db", "show", "1", "--raw")[1].count("\n") == 3
    assert "Hi there -> Hello." in " ".join(run(capsys, tmp_path / "llmproxy.db", "ls")[1].split())


def test_show_reads_a_whole_cassette_as_a_conversation(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it comes to, then what was asked, done and answered, with the number of each call."""
    fill(path, chat("Third?", "Yes.\n\n", cassette="17", started_at=NOW + 5))
    code, out = run(capsys, path, "show", "default")
    assert code == 0
    assert out.startswith("default: 1 call, 11 tokens in, 2 out, $")
    assert out.splitlines()[1:] == ["", "#1     asked     How are you?", "       answered  Fine."]
    code, out = run(capsys, path, "show", "17")
    assert (code, "The cassette 17: llmproxy show --cassette 17" in out) == (3, True)
    assert run(capsys, path, "show", "--cassette", "17")[1].splitlines()[2:] == [
        "#3     asked     Third?",
        "       answered  Yes.",
    ]
    told = json.loads(run(capsys, path, "show", "default", "--json")[1])
    assert [step["kind"] for step in told[0]["steps"]] == ["user", "answer"]


def test_a_number_is_an_id_and_a_cassette_of_that_name_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, so that what is read by a program stays what it was."""
    fill(path, chat("Third?", "Yes.", cassette="1"))
    assert main(["show", "1", "--store", str(path)]) == 0
    out, err = capsys.readouterr()
    assert ("How are you?" in out, "The cassette 1" in out) == (True, False)
    assert err == f"(The cassette 1: llmproxy show --cassette 1 --store {path})\n"
    assert main(["show", "2", "--store", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_show_says_what_it_wants(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that nothing has, and a name where a number is wanted."""
    code, out = run(capsys, path, "show", "othr")
    assert (code, "did you mean 'other'" in out, "Cassettes there: default, other." in out) == (3, True, True)
    code, out = run(capsys, path, "show", "other", "--raw")
    assert (code, "one interaction, by its number" in out, "llmproxy ls --cassette other" in out) == (2, True, True)


def test_show_says_where_servers_of_tools_and_models_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the model asked for and its server got: below the conversation, and in JSON."""
    tools, asked = Tools(), [call("mcp__t__echo", {"n": 1}, "c1"), call("mcp__t__echo", {"n": 2}, "c2")]
    tools.lists("echo")
    tools.chat([user("x")], asks(*asked))
    tools.serve("echo", {"n": 1}, "one")
    tools.serve("echo", {"n": 3}, "three")
    fill(path := tmp_path / "x.db", *(made for _, made in tools.calls if made is not None))
    told = 'a model asked for mcp__t__echo({"n": 2}), and its server got echo({"n": 3})'
    assert json.loads(run(capsys, path, "show", "default", "--json")[1])[0]["differences"] == [told]
    assert run(capsys, path, "show", "default")[1].split("\n\ndiffers: ")[1:] == [f"{told}\n"]


CHAT = "/v1/chat/completions"
HI: dict[str, object] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
Asked = tuple[dict[str, object], Headers]


def perform(store: Path, mode: Mode, *asked: Asked) -> None:
    """Ask through an engine with a journal, as a proxy has it."""
    journal = CallDecisionJournalWriter.open(Path(f"{store}.state.db"), time.time)
    made = Engine(
        EngineConfig(mode=mode, store=store), redactor=Redactor(), journal=journal, now=time.time, clock=time.monotonic
    )
    for body, headers in asked:
        exchange = made.begin_exchange("POST", CHAT, None, headers)
        made.stages.identify_and_decide(exchange, json.dumps(body).encode())
        if exchange.decision is Decision.RECORD:
            answered(made, exchange)
        assert exchange.error is None
    made.close()
    journal.close()


def test_what_was_served_is_compared_with_what_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A question that differs where it does not count, and one in the very same words."""
    store = tmp_path / "a.db"
    perform(store, Mode.RECORD, (HI, (("user-agent", "one"),)), ({**HI, "seed": 1}, ()))
    perform(store, Mode.REPLAY, ({**HI, "user": "u"}, (("user-agent", "two"),)), ({**HI, "seed": 1}, ()))
    code, said = run(capsys, store, "audit")
    assert (code, "0 unexplained" in said) == (0, True), said
    assert "The journal kept 2 answered questions; 1 differed" in said
    assert "$.user: end-user id for abuse detection" in said
    assert "header user-agent: identifies the client and its version" in said
    code, said = run(capsys, store, "audit", "--json")
    assert [len(each["differences"]) for each in json.loads(said)["served"]] == [2, 0]


@pytest.mark.parametrize(("asked", "code", "told"), [
    ([(HI, ()), ({**HI, "metadata": {"run": "2"}}, (("traceparent", "00-1"),))], 0, ["1 of them have the key of an earlier one and differ from it:", "$.metadata: labels for the provider's dashboard"]),
    ([(HI, (("x-brand-new", "\x1b[2J"),)), (HI, ())], 1, ["header x-brand-new", "1 unexplained."]),
])  # fmt: skip
def test_recordings_of_one_key_are_compared(
    asked: list[Asked], code: int, told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked twice, in other words; a field that no table knows, where unknown ones do not count, fails."""
    perform(tmp_path / "a.db", Mode.RECORD, *asked)
    found, said = run(capsys, tmp_path / "a.db", "audit")
    assert (found, [each for each in told if each not in said], "\x1b" in said) == (code, [], False), said


def test_a_key_that_is_equal_by_a_fault_of_ours_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two recordings under one key whose requests differ where it counts."""
    one, other = chat("one"), chat("two")
    fill(tmp_path / "a.db", one, other)
    with closing(sqlite3.connect(tmp_path / "a.db")) as conn:
        conn.execute("UPDATE interactions SET key = (SELECT key FROM interactions WHERE id = 1), occurrence = id")
        conn.commit()
    code, said = run(capsys, tmp_path / "a.db", "audit")
    assert code == 1
    assert '$.messages[0].content: "one" -> "two"' in said


def test_without_a_journal_the_recordings_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "a.db", chat())
    code, said = run(capsys, tmp_path / "a.db", "audit")
    assert (code, "The journal kept 0 answered questions" in said) == (0, True)
