"""Requests that differ in a secret ask different questions, unless the secret only says who asks."""

from __future__ import annotations

import json
import random

import pytest

from llmproxy.core.secrets.find import CREDENTIAL
from llmproxy.core.secrets.kinds import KINDS
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Headers, Request

from .examples import NAMED, drawn, drawn_key

PAIRS = 600


def kept(text: str, headers: Headers = ()) -> bytes:
    """Return what is kept of a question."""
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    redactor = Redactor()
    redactor.learn(headers, "/")
    return redactor.request(Request("POST", "/v1/chat/completions", headers, body)).body


def test_a_question_about_a_secret_is_not_answered_with_that_about_another() -> None:
    """Two kinds, a kind and a named value, two named values: 600 pairs drawn by lot, none is one question."""
    chance = random.Random(36)
    served = []
    named = [*NAMED]
    for number in range(PAIRS):
        one, other = chance.sample(KINDS, 2)
        name = chance.choice(named)
        text, secret = NAMED[name]
        another = text.replace(secret, drawn("<alnum32>", 1000 + number))
        kind = f"Who issued this key: {drawn_key(one)}?"
        pairs = {
            f"{one.name} and {other.name}": (
                kind, f"Who issued this key: {drawn_key(other)}?", one.label == other.label,
            ),
            f"{one.name} and {name}": (kind, f"Who issued this key: {text}?", False),
            f"{name}": (f"What is this: {text}", f"What is this: {another}", False),
        }  # fmt: skip
        served += [what for what, (first, second, same) in pairs.items() if not same and kept(first) == kept(second)]
    assert served == []


@pytest.mark.parametrize("place", ["arguments", "member", "query", "base64"])
def test_named_values_are_told_apart_wherever_they_stand(place: str) -> None:
    """In a tool's arguments, in a member of the body, in the query, in a file's data."""
    import base64

    def asked(secret: str) -> tuple[str, bytes]:
        line = f"SMTP_PASSWORD={secret}"
        bodies = {
            "arguments": json.dumps({"arguments": json.dumps({"api_key": secret})}),
            "member": json.dumps({"client_secret": secret, "password": secret}),
            "query": "",
            "base64": json.dumps({"file_data": base64.b64encode(f"HOST=mail\n{line}\nPORT=25\n".encode()).decode()}),
        }
        target = f"/v1/x?pwd={secret}" if place == "query" else "/v1/x"
        out = Redactor().request(Request("POST", target, (), bodies[place].encode()))
        assert secret.encode() not in out.target.encode() + out.body
        return out.target, out.body

    asked_before = [asked(drawn("<alnum20>", seed)) for seed in range(60)]
    assert len(set(asked_before)) == len(asked_before)


def test_who_asks_does_not_count() -> None:
    """The caller's own credential in the body, and two keys of one kind, are one question with another's."""
    keys = [drawn("sk-proj-<word40>", seed) for seed in (1, 2)] + ["my-dummy-key-99x"]
    own = {kept(f"I am {key}", (("authorization", f"Bearer {key}"),)) for key in keys}
    assert len(own) == 1, own
    assert CREDENTIAL.encode()[:2] in own.pop()
    assert len({kept(f"use {key}") for key in keys[:2]}) == 1


def test_what_an_answer_had_is_asked_as_the_secret_itself() -> None:
    """Kind or fingerprint stand in the answer's placeholder: whoever echoes it gets the recorded answer."""
    redactor = Redactor()
    for text in (drawn_key(KINDS[0]), f"db_password: {drawn('<alnum32>')}", f"token={drawn('<hex40>')}"):
        answer = redactor.answer(json.dumps({"content": text}).encode())
        assert kept(json.loads(answer)["content"]) == kept(text), answer
