"""A body that is too large to be searched at once: no secret is missed at the borders of what is searched."""

from __future__ import annotations

import json
import random

import pytest

from llmproxy.core.secrets.find import unescape_text, windows
from llmproxy.core.secrets.redact import Redactor

KEY = "sk-proj-" + "".join(random.Random(1).choices("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=48))
KNOWN = "kn0wn-" + "".join(random.Random(2).choices("abcdefghijkmnpqrstuvwxyz23456789", k=40))
PEM = (
    "-----BEGIN PRIVATE KEY-----\n"
    + "\n".join("".join(random.Random(n).choices("abcdefghABCDEFGH0123456789+/", k=64)) for n in range(50))
    + "\n-----END PRIVATE KEY-----"
)
LINE = "the quick brown fox jumps over the lazy dog; "
SIZE = 5 << 20
BORDER = 1 << 20


def test_windows_cover_a_text_once() -> None:
    """What counts of one begins where that of the one before ended, and has margins on both sides."""
    for size in (0, 1, 4 << 20, (4 << 20) + 1, 9_999_999):
        found = list(windows(size))
        assert [found[0][1], *(last for _, _, last, _ in found)] == [*(first for _, first, _, _ in found), size]
        assert all(start <= first - 200_000 or start == 0 for start, first, _, _ in found)
        assert all(end >= last + 200_000 or end == size for _, _, last, end in found)


@pytest.mark.parametrize("what", ["key", "known", "pem", "wrapped", "base64", "dealt"])
@pytest.mark.parametrize("shift", [-3000, -20, 0])
def test_a_secret_across_the_border_of_two_windows_is_taken_out(what: str, shift: int) -> None:
    """Whatever it is disguised as; what stands around it stays, and two of the same have one number."""
    import base64

    redactor = Redactor()
    redactor.learn((("authorization", f"Bearer {KNOWN}"),), "/")
    said = {
        "key": f"key {KEY} end",
        "known": f"<{KNOWN}>",
        "pem": PEM,
        "wrapped": f"key {KEY[:30]}\n{KEY[30:]} end",
        "base64": base64.b64encode(f"the key is {KEY} and no other".encode()).decode(),
        "dealt": "".join(
            f'data: {{"delta": "{KEY[at : at + 2]}", "filling": "{LINE}"}}\n\n' for at in range(0, len(KEY), 2)
        ),
    }[what]
    at = BORDER + shift
    text = (LINE * (SIZE // len(LINE) + 1))[:SIZE]
    whole = f"{text[:at]}\n{said}\n{text[at:]}\n{said}"
    kind = "text/event-stream" if what == "dealt" else "text/plain"
    changed = redactor.answer(whole.encode(), kind).decode()
    hidden = redactor.answer(f"{text[at - 100 : at]}\n{said}\n".encode(), kind).decode()[101:-1]
    assert hidden != said
    assert changed == f"{text[:at]}\n{hidden}\n{text[at:]}\n{hidden}"


def test_a_long_run_is_a_picture_whatever_part_of_it_is_seen() -> None:
    """No key is found in base64 of megabytes, also not where a window begins."""
    chance = random.Random(3)
    picture = "".join(chance.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=SIZE))
    body = json.dumps({"b64_json": picture[:BORDER] + "AKIA" + "ABCDEFGHIJKLMNOP" + picture[BORDER:]}).encode()
    assert Redactor().answer(body, "application/json") is body


@pytest.mark.parametrize("text", ["", "a", r"\/", r"a\/b\u0041c\\\u0042", r"\u0041" * 3, r"\\/", "\\"])
def test_offsets_of_a_view_are_those_of_the_text(text: str) -> None:
    """One for each character of the view, and one for its end."""
    view, offset = unescape_text(text)
    places = [offset(at) for at in range(len(view) + 1)]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] == len(text)
    assert all(text[place] in (char, "\\") for place, char in zip(places, view, strict=False))
