"""``llmproxy drift``: recorded requests asked again of a real provider, and what is said of the answers."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest

from llmproxy.cli import drift as drift_module
from llmproxy.core.store.file.store import open_store
from llmproxy.core.traffic.interaction import Interaction, Key, Usage
from llmproxy.errors import Exit
from tests.provider import Provider, Step, json_answer, step
from tests.support.chats import chat, fill
from tests.support.forked import program
from tests.support.process import clean_env, llmproxy, until

USER = "What is order {}?"
SAID = "It is on its way, and you will have it on the day that we told you of."


def body(say: str = SAID, *, tool: str = "", **more: object) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": say or None}
    if tool:
        message["tool_calls"] = [{"id": "c", "type": "function", "function": {"name": tool, "arguments": "{}"}}]
    return {
        "model": "gpt-4o-2024-08-06", "choices": [{"index": 0, "message": message,
            "finish_reason": "tool_calls" if tool else "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}, **more,
    }  # fmt: skip


def recorded(number: int, *, model: str = "gpt-4o", **request: object) -> Interaction:
    asked = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": USER.format(number)}]}
    made = chat(USER.format(number))
    response = dataclasses.replace(
        made.response, chunks=(dataclasses.replace(made.response.chunks[0], data=json.dumps(body()).encode()),)
    )
    sent = dataclasses.replace(made.request, body=json.dumps(asked | request).encode())
    return dataclasses.replace(made, request=sent, response=response, model=model, started_at=1_790_000_000.0 + number,
                               key=Key(f"v2:{number:064x}"), usage=Usage(11, 2))  # fmt: skip


def bare(one: Interaction) -> Interaction:
    """Return a recording of another program, which kept no body of the request."""
    return dataclasses.replace(one, request=dataclasses.replace(one.request, body=b""))


def drift(store: Path, *typed: str, upstream: str = "", key: str = "sk-test") -> subprocess.CompletedProcess[str]:
    env = {"OPENAI_API_KEY": key} if key else {}
    more = ["--upstream", f"openai={upstream}/v1"] if upstream else []
    return llmproxy("drift", "--store", str(store), *more, *typed, env=env, cwd=store.parent)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill(tmp_path / "x.db", *map(recorded, range(8)))
    return tmp_path / "x.db"


def always(answer: Mapping[str, object], status: int = 200) -> list[Step]:
    """Return a provider's script that answers each of the eight calls so, as often as it is asked."""
    return [step(user=USER.format(number), json=answer, status=status, times=None) for number in range(8)]


@pytest.mark.parametrize(("answer", "code", "said"), [
    (body(), Exit.OK, "no drift seen"),
    (body("Your parcel left us, and it is with you on the day that was told to you."), Exit.OK, "no drift seen"),
    (body("", tool="lookup_order"), Exit.DRIFTED, "answered otherwise: #1 default: calls lookup_order"),
    (body(SAID * 2), Exit.DRIFTED, "behavior  drift"),
    (body("Sie ist auf dem Weg, und die Lieferung ist mit der Post an dem Tag, den wir zu nennen."), Exit.DRIFTED,
     "behavior  drift"),
    ({**body(), "usage": None}, Exit.DRIFTED, "#1 default: usage is gone"),
    ({**body(), "usage": {"prompt_tokens": 11, "completion_tokens": "2"}}, Exit.DRIFTED,
     "usage.completion_tokens was a number, and is a string"),
    ({**body(), "choices": [{"index": 0, "delivery": {"text": SAID}}]}, Exit.DRIFTED, "nothing in the answer is understood"),
])  # fmt: skip
def test_a_change_is_told_and_has_its_code(store: Path, answer: dict[str, object], code: Exit, said: str) -> None:
    """Other words are no drift; another tool, length, language, a member or a kind that is gone are."""
    with Provider(always(answer), ordered=False) as provider:
        done = drift(store, "--runs", "2", upstream=provider.url)
        assert len(provider.requests) == 16
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr


def test_a_model_that_is_retired_is_gone_at_its_first_call(store: Path) -> None:
    """A refusal of the request needs no statistics."""
    retired = {"error": {"message": "The model gpt-4o has been deprecated", "code": "model_not_found"}}
    with Provider(always(retired, status=404), ordered=False) as provider:
        done = drift(store, "--calls", "1", upstream=provider.url)
    assert done.returncode == Exit.DRIFTED
    assert "gone      #" in done.stdout
    assert "has been deprecated" in done.stdout


@pytest.mark.parametrize("status", [401, 429, 503])
def test_a_provider_that_does_not_answer_is_not_drift(store: Path, status: int) -> None:
    """Nothing is known then, which is a code of its own."""
    with Provider(always({"error": {"message": "no"}}, status=status), ordered=False) as provider:
        done = drift(store, "--calls", "2", upstream=provider.url)
    assert (done.returncode, f"status {status}" in done.stdout) == (Exit.UNTOLD, True), done.stdout + done.stderr


def test_a_provider_that_cannot_be_reached_is_no_drift(store: Path) -> None:
    """It is said why, nothing was spent, and nothing is left behind; a file of the user's whose name begins alike stays."""
    (mine := Path(f"{store}.drift.db.old")).touch()
    done = drift(store, "--calls", "2", "--runs", "2", upstream="http://127.0.0.1:9")
    assert done.returncode == Exit.UNTOLD
    assert "no answer 4 times: openai at http://127.0.0.1:9 could not be reached" in done.stdout
    assert "Could not tell; 0 answers, $0 spent." in done.stdout
    assert {each.name for each in store.parent.iterdir()} == {store.name, mine.name}


@pytest.mark.parametrize("other", ["", "-journal", "another drift", "damaged"])
def test_a_night_without_answers_deletes_only_its_own(store: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    """Not what another drift, which has no answer yet, records into; a store that cannot be read stays, and the error is told."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    kept = Path(f"{store}.drift.db")

    def interrupt(_plan: object, _spending: object, _kept: Path, night: str, **_: object) -> None:
        with open_store(kept, writable=True, now=time.time) as database:
            for name in (night, "asked by another") if other == "another drift" else (night,):
                database.begin_writing(name, 1, exclusive=True, holder=name)
            database.end_writing(night, 1, night, clean=True)
        if other == "damaged":
            kept.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
        elif other == "-journal":
            Path(f"{kept}.state.db-journal").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(drift_module, "_send_and_record_calls", interrupt)
    with pytest.raises(KeyboardInterrupt):
        drift_module.drift_command(
            [], calls=1, runs=2, max_cost="", accept=False, as_json=True, store=store, upstream=[]
        )
    assert len(list(store.parent.glob("*.drift.db*"))) == (other in ("another drift", "damaged"))


def test_an_interrupted_night_keeps_what_came(store: Path) -> None:
    """Ctrl-C ends it although an answer is still out; the next night begins anew, and what came can be accepted."""
    late = json_answer(body()).late(60)
    script = [step(user=USER.format(n), json=body()) for n in range(8)]
    script += [step(user=USER.format(n), answer=late, times=None) for n in range(8)]
    with Provider(script, ordered=False, check=False) as provider:
        command = [*program("llmproxy"), "drift", f"--store={store}", f"--upstream=openai={provider.url}/v1"]
        env = clean_env({"OPENAI_API_KEY": "k"})
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=store.parent) as running:
            until(lambda: len(provider.requests) >= 12)
            running.send_signal(signal.SIGINT)
            said = running.communicate(timeout=30)[0]
    assert (running.returncode, "Interrupted: 8 answers came and are kept in" in said) == (130, True), said
    assert drift(store, "--accept").returncode == 0


def test_a_night_without_drift_is_what_the_next_one_is_compared_with(store: Path) -> None:
    """And one with drift is not, until it is accepted; nothing of it is in the recordings."""
    before = store.read_bytes()
    done, seen = drift(store, "--calls=x"), []
    for answer, typed in ((body("A", finish=1), ["--runs", "3"]), (body(), []), (body(), ["--accept"]), (body(), [])):
        with Provider(always(answer), ordered=False, check=False) as provider:
            done = drift(store, *typed, "--json" if not typed else "--runs=3", upstream=provider.url)
        seen.append(done.returncode)
    assert seen == [Exit.DRIFTED, Exit.OK, Exit.OK, Exit.OK], done.stdout + done.stderr
    assert all(call["earlier"] == 3 for call in json.loads(done.stdout)["models"][0]["calls"])
    assert store.read_bytes() == before


def test_a_budget_is_never_exceeded(store: Path) -> None:
    """What is under way counts with the most that it may cost; the provider counts what came."""
    most = (Decimal(12) * Decimal("2.5") + Decimal(100) * 10) / 1_000_000
    with Provider(always(body()), ordered=False) as provider:
        done = drift(store, "--max-cost", str(most * 3), "--json", upstream=provider.url)
        came = len(provider.requests)
    told = json.loads(done.stdout)
    assert Decimal(told["spent_usd"]) <= most * 3
    assert (told["asked"], told["asked"] + told["not_sent"]) == (came, 24)
    assert came > 0


@pytest.mark.parametrize(("calls", "typed", "key", "why"), [
    ([], [], "k", "nothing is recorded there"),
    ([recorded(1)], [], "", "openai wants a key: set OPENAI_API_KEY"),
    ([recorded(1, model="nobody-knows-it")], ["--max-cost", "1"], "k", "nothing says what an answer costs at the most"),
    ([recorded(1, previous_response_id="resp_1")], [], "k", "names what a server kept"),
    ([recorded(1, tools=[{"type": "web_search"}])], [], "k", "runs tools of the provider"),
    ([recorded(1)], ["other"], "k", "cassette other is not in"),
    ([recorded(1)], ["--max-cost", "0.000001"], "k", "one answer may cost $0.0010, more than --max-cost"),
    ([bare(recorded(1))], [], "k", "the request's body was not recorded, or is no JSON"),
    (None, [], "k", "Record first: llmproxy run --mode record"),
])  # fmt: skip
def test_what_cannot_be_asked_is_left_out_and_said(
    tmp_path: Path, calls: list[Interaction] | None, typed: list[str], key: str, why: str
) -> None:
    """Nothing is sent then, nothing written, and it is no `no drift`; None is no store at all."""
    if calls is not None:
        fill(tmp_path / "x.db", *[dataclasses.replace(each, request=dataclasses.replace(
            each.request, headers=(*each.request.headers, ("authorization", "Bearer [REDACTED]")))) for each in calls])  # fmt: skip
    with Provider() as provider:
        done = drift(tmp_path / "x.db", *typed, upstream=provider.url, key=key)
        assert provider.requests == []
    assert done.returncode in (Exit.UNTOLD, Exit.USAGE)
    assert why in done.stdout + done.stderr
    assert not list(tmp_path.glob("*.drift.db"))
