"""Clients that bring another token with each request: quick as others, and no rule is weaker for them."""

from __future__ import annotations

import random
from pathlib import Path
from string import ascii_letters, digits

import pytest

from llmproxy.core.engine.engine import Engine
from llmproxy.core.traffic.response_bytes import ClientHttp
from llmproxy.protocol import CACHE_HEADER, Mode
from tests.core.engine.test_engine import CHAT, answered, ask, body, engine
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import chat
from tests.provider import Provider, Script, Step, json_answer

CLIENT = ClientHttp()


def tokens(count: int, seed: int = 1) -> list[str]:
    """Return opaque tokens."""
    chance = random.Random(seed)
    return ["".join(chance.choices(ascii_letters + digits, k=40)) for _ in range(count)]


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Return the header that brings it."""
    return (("authorization", f"Bearer {token}"),)


def asked(made: Engine, text: str, token: str) -> tuple[str | None, bool]:
    """Ask as a proxy does, the short way where there is one; the key that was found, and whether it was the short way."""
    hit = made.fast_path.answer(made.place("POST", CHAT, None, bearer(token)), CLIENT, body(text))
    if hit is not None:
        made.fast_path.sum_up(hit)
        return hit.call.key, True
    exchange = ask(made, text, headers=bearer(token))
    if exchange.slot is not None:
        made.plan(exchange, CLIENT)
    made.outcome(exchange, 200)
    return exchange.key, False


def test_what_was_asked_before_is_answered_the_short_way_whatever_the_token(tmp_path: Path) -> None:
    """After the first few tokens, which nobody could know would be many."""
    code = Path(__file__).read_text("utf-8") * 20  # over a hundred thousand characters of long names
    store, texts = tmp_path / "x.db", ["hi", "what is /usr/share/doc/python3.13/README.Debian.gz about?", code]
    with engine(store) as made:
        for text in ("begin", *texts):  # what comes first would begin the walk anew
            answered(made, ask(made, text))
    with engine(store, Mode.REPLAY) as made:
        short = [asked(made, text, token)[1] for token in tokens(60) for text in texts]
    assert all(short[40:])


@pytest.mark.parametrize("how", ["{0}", "key={0}&", "{1}\\n{2}", "x{0}y", "é{0}"])
def test_a_question_that_holds_a_token_has_the_key_that_a_new_proxy_gives_it(tmp_path: Path, how: str) -> None:
    """Asked before its token was seen, and after: whatever was remembered, the key is that of a proxy that learned the same and remembers nothing."""
    store, known = tmp_path / "x.db", tokens(40, seed=2)
    told = known[30]
    text = how.format(told, told[:20], told[20:])
    with engine(store) as made:
        answered(made, ask(made, text))
    with engine(store, Mode.REPLAY) as made:
        keys = [asked(made, text, token)[0] for token in known]
    with engine(store, Mode.REPLAY) as fresh:
        before, _ = asked(fresh, text, known[0])
    with engine(store, Mode.REPLAY) as fresh:
        after, _ = asked(fresh, text, told)
    assert keys == [before] * 30 + [after] * 10
    assert (before == after) is (how == "{1}\\n{2}" and before == after)


def test_what_many_tokens_have_passed_is_still_found_in_what_comes_later(tmp_path: Path) -> None:
    """An answer that echoes the first of many tokens, all of which were hits, is stored without it; so is a question that quotes one."""
    known = tokens(60, seed=3)
    store = tmp_path / "x.db"
    with engine(store, Mode.AUTO) as made:
        for token in known:
            answered(made, ask(made, "hi", headers=bearer(token)))
    echo = json_answer({"choices": [{"message": {"content": f"your token is {known[0]}, the other one {known[31]}"}}]})
    with Provider(Script((Step(echo),))) as p, Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
        for token in known:
            assert c.ask(chat("hi", headers={"authorization": f"Bearer {token}"})).headers[CACHE_HEADER] == "hit"
        quoted = chat(f"quoted: {known[40]}", headers={"authorization": f"Bearer {known[7]}"})
        assert c.ask(quoted).headers[CACHE_HEADER] == "recorded"
        rig.wait_idle()
    kept = recorded(store)[-1]
    assert b"REDACTED" in kept.response.body
    assert b"REDACTED" in kept.request.body
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not [token for token in known if token.encode() in everything]


def test_with_match_credential_each_token_is_somebody_else(tmp_path: Path) -> None:
    """No hit for another one, however alike their heads are."""
    known = tokens(4, seed=4)
    store = tmp_path / "x.db"
    with (
        Provider(Script((Step(json_answer({"choices": []})),))) as p,
        Rig("record", store, {"openai": p.url}, match_credential=True) as rig,
        rig.client() as c,
    ):
        c.ask(chat("hi", headers={"authorization": f"Bearer {known[0]}"}))
    with Rig("replay", store, match_credential=True) as rig, rig.client() as c:
        for _ in range(3):
            found = [c.ask(chat("hi", headers={"authorization": f"Bearer {token}"})).status for token in known]
            assert found == [200, 404, 404, 404]
