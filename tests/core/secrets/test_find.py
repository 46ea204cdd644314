"""Where secrets stand, by shape and as credentials of the run.

What a new credential cannot change is known without looking again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import zlib
from functools import partial
from string import ascii_letters, digits

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.secrets import encoded_secret_redaction
from llmproxy.core.secrets.encoded_secret_redaction import (
    SecretFingerprintCache,
    iter_text_search_windows,
    overwrite_secret_spans,
    renew_aws_frame_message_crcs,
    replace_spans,
    unescape_json_text,
)
from llmproxy.core.secrets.find_secrets import (
    CREDENTIAL,
    FREE,
    CredentialEpoch,
    SecretSpan,
    _find_behind_service_names,
    choose_encoded_secret_substrings,
    detect_secrets_by_pattern,
    find_key_character_runs,
    is_inside_base64,
    list_encoded_secret_forms,
    merge_spans,
)
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Request


def test_spans_that_overlap_become_one() -> None:
    """And come in order; empty ones vanish."""
    spans = [SecretSpan(5, 9, "a"), SecretSpan(1, 3), SecretSpan(2, 4, "b"), SecretSpan(4, 5), SecretSpan(7, 7)]
    assert merge_spans(spans) == [SecretSpan(1, 4, "b"), SecretSpan(4, 5), SecretSpan(5, 9, "a")]
    assert merge_spans([SecretSpan(1, 9), SecretSpan(1, 9, CREDENTIAL), SecretSpan(1, 9, "c")]) == [
        SecretSpan(1, 9, "c")
    ]


def test_a_key_inside_base64_is_chance() -> None:
    """Only beyond 200 characters, and only if it is a part of the run."""
    key = "AKIAABCDEFGHIJKLMNOP"
    long = "QUJD" * 60
    assert is_inside_base64(f"{long}/{key}/{long}", 241, 261)
    assert not is_inside_base64(f'"{key}" {long}', 1, 21)


SECRETS = st.text(ascii_letters + digits + "-._~", min_size=8, max_size=60) | st.text(
    'ab1+/=&%"\\ é-_', min_size=8, max_size=60
)


@given(SECRETS, st.integers(0, 10**6))
def test_no_form_of_a_credential_stands_where_none_of_its_tails_does(secret: str, seed: int) -> None:
    """A text that holds a form has a tail of it in a run of key characters, or the credential counts everywhere."""
    made = choose_encoded_secret_substrings(secret)
    if None in made:
        return
    chance = random.Random(seed)
    for form in list_encoded_secret_forms(secret):
        epoch = CredentialEpoch()
        before, behind = ("".join(chance.choices(ascii_letters + ' "/-', k=6)) for _ in "12")
        assert epoch.record_searched_text(f"{before}{form}{behind}")
        epoch.count_new_credential(made)
        assert not epoch.is_still_valid(0, noted=True)


@given(st.text(ascii_letters + digits + "-._~", min_size=16, max_size=80))
def test_the_quick_tails_are_those_of_the_forms(secret: str) -> None:
    """A tenth of the time, nothing left out."""
    for form in list_encoded_secret_forms(secret):
        assert any(tail is not None and tail in form for tail in choose_encoded_secret_substrings(secret))


def test_what_was_derived_before_holds_unless_a_credential_may_stand_in_it() -> None:
    """In whatever order; what was not noted holds until anything is epoch."""
    epoch = CredentialEpoch()
    assert epoch.is_still_valid(0, noted=False)
    assert epoch.record_searched_text("some text with token0123456789abcdef in it")
    epoch.count_new_credential(choose_encoded_secret_substrings("another0123456789fedcba"))
    assert epoch.is_still_valid(0, noted=True)
    assert not epoch.is_still_valid(0, noted=False)
    epoch.count_new_credential(choose_encoded_secret_substrings("token0123456789abcdef"))
    assert not epoch.is_still_valid(0, noted=True)
    assert not epoch.is_still_valid(1, noted=True)
    assert epoch.is_still_valid(2, noted=True)
    epoch.count_new_credential([None])
    assert not epoch.is_still_valid(2, noted=True)


def test_long_texts_and_pictures_are_not_noted() -> None:
    """Then everything counts; and what is remembered is bounded: above that everything counts once."""
    epoch = CredentialEpoch()
    assert not epoch.record_searched_text("a" * 60_000)
    assert epoch.record_searched_text(("a" * 40 + " ") * 600)  # the same again and again
    assert not epoch.record_searched_text(("a" * 40 + " ") * 60_000)
    chance = random.Random(1)
    assert not epoch.record_searched_text(" ".join("".join(chance.choices(ascii_letters, k=40)) for _ in range(4_000)))
    assert epoch.count == 0
    for _ in range(40):
        assert epoch.record_searched_text("".join(chance.choices(ascii_letters, k=15_000)))
    assert epoch.count == 1
    assert not epoch.is_still_valid(0, noted=True)


BODIES = {
    "plain": "my token is {0}",
    "in json": '{{"a": "{0}"}}',
    "nested": '{{"a": "{{\\"b\\": \\"{0}\\"}}"}}',
    "escaped": '{{"a": "\\u0020{0}"}}',
    "wrapped": "token\n{1}\n{2}",
    "base64": "{3}",
    "wide": "{4}",
    "unlike": "another text with lllllllllllllllllllllll123",
}


@pytest.mark.parametrize("how", BODIES)
@pytest.mark.parametrize("where", ["body", "target"])
def test_whatever_redaction_would_change_counts_as_changed(how: str, where: str) -> None:
    """Derived before and after a credential was learned, what differs is known to differ."""
    chance = random.Random(7)
    for n in range(30):
        secret = "".join(chance.choices(ascii_letters + digits, k=chance.randint(16, 60)))
        half = len(secret) // 2
        coded = base64.b64encode(f"xx{secret} and more of it".encode()).decode()
        text = BODIES[how].format(secret, secret[:half], secret[half:], coded, "\0".join(secret) + "\0")
        redactor = Redactor()
        query = (text.encode().hex() if how == "wide" else text).replace(" ", "%20").replace("\n", "%0A")
        target, body = ("/v1/x", text.encode()) if where == "body" else (f"/v1/x?q={query}", b"")
        request = Request("POST", target, (), body)
        before, noted = redactor.run_and_record_searches(partial(redactor.request, request), target.encode())
        redactor.learn_request((("authorization", f"Bearer {secret}"),), "")
        if redactor.request(request) != before:
            assert not redactor.epoch.is_still_valid(0, noted=noted), (how, n)
        elif how == "unlike":
            assert redactor.epoch.is_still_valid(0, noted=noted)


def test_a_credential_with_a_shape_is_learned_once() -> None:
    """Also when many are known and it is found by its shape."""
    redactor = Redactor()
    chance = random.Random(4)
    for _ in range(400):
        token = "".join(chance.choices(ascii_letters + digits, k=40))
        redactor.learn_request((("authorization", f"Bearer {token}"),), "")
    redactor.text("search")
    shaped = "sk-ant-api03-" + "".join(chance.choices(ascii_letters + digits, k=93)) + "AA"
    redactor.learn_request((("authorization", f"Bearer {shaped}"),), "")
    redactor.text("search")
    count = redactor.epoch.count
    redactor.learn_request((("authorization", f"Bearer {shaped}"),), "")
    assert redactor.epoch.count == count
    assert shaped not in redactor.text(f"it is {shaped}")
    assert FREE == 16


@given(st.lists(st.sampled_from([*'k9_-+/=.~ \n"é%', "k" * 7, "Z" * 15, "a" * 16])).map("".join))
def test_runs_are_sixteen_key_characters_and_more(text: str) -> None:
    """What is searched for keys is what an expression finds."""
    assert find_key_character_runs(text).spans == [
        each.span() for each in re.finditer(r"[A-Za-z0-9_\-+/=.~]{16,}", text)
    ]


def test_a_value_behind_a_service_is_found_wherever_it_stands() -> None:
    """The search around runs misses no value that the search of the whole text finds: 400 texts drawn by lot."""
    chance, found = random.Random(34), 0
    between = ["_api_key = ", '_token": "', " key:\n", "=", "', '", " ", "." * 30, "\n"]
    for _ in range(400):
        values = ("".join(chance.choices(ascii_letters + digits, k=chance.choice([8, 15, 24, 40]))) for _ in range(3))
        names = chance.choices(["datadog", "Stripe", "KLAVIYO", "word", "x" * 50], k=3)
        text = "".join(
            f"{name}{chance.choice(between)}{value}{chance.choice(between)}"
            for name, value in zip(names, values, strict=True)
        )
        data, _, runs, _ = find_key_character_runs(text)
        labelled = {span[:2] for span in _find_behind_service_names(text, data, runs)}
        found += len(labelled)
        assert labelled <= {span[:2] for span in detect_secrets_by_pattern(text)}
    assert found > 100


def test_overwriting_keeps_the_length_and_tells_secrets_apart() -> None:
    """Equal secrets get equal placeholders; the shortest still ends in an asterisk."""
    text = "12345678 abcdefghijklmnopqrstuv 12345678 ABCDEFGHIJKLM ABCDEFGHIJKLM"
    spans = [
        SecretSpan(0, 8, "a"),
        SecretSpan(9, 31, "github"),
        SecretSpan(32, 40, "a"),
        SecretSpan(41, 54, "github"),
        SecretSpan(55, 68),
    ]
    assert overwrite_secret_spans(text, spans) == "REDACTE* REDACTED-2:github***** REDACTE* REDACTED-3*** REDxbLXYbbnf*"
    assert replace_spans("abc", [SecretSpan(1, 2, "x")], lambda secret, kind: secret.upper() + kind) == "aBxc"


@given(st.text(alphabet='ab/\\"é\n\u0001', max_size=30))
def test_the_view_without_escapes_maps_back(text: str) -> None:
    """Each character of the view stands at its offset in the text."""
    written = json.dumps(text).replace("/", "\\/").replace("a", "\\u0061")
    view, offset = unescape_json_text(written)
    assert view.count("a") == text.count("a")
    for index, char in enumerate(view):
        assert written[offset(index)] in (char, "\\")
    assert offset(len(view)) == len(written)


def test_an_escaped_backslash_is_no_escape() -> None:
    r"""``\\u0061`` in JSON is a backslash and letters."""
    assert unescape_json_text(r"\\u0061")[0] == r"\\u0061"
    assert unescape_json_text(r"\\\u0061")[0] == r"\\a"


def test_frames_of_an_event_stream_get_their_checksum() -> None:
    """A frame that was cut stays as it is."""
    frame = (20).to_bytes(4) + bytes(8) + b"body" + bytes(4)
    assert (
        renew_aws_frame_message_crcs(frame + frame[:7]) == frame[:16] + zlib.crc32(frame[:16]).to_bytes(4) + frame[:7]
    )


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


_BROKEN = ["\\n", "\n", "\\r\\n", "\r\n", *'\\rn \t"é', "a-9", "aVz", *(f"kdGhpc2lz{end}" for end in "a0_-+/=.~")]


@given(st.lists(st.sampled_from(_BROKEN), min_size=5).map("".join))
def test_no_break_between_key_characters_is_passed_over(text: str) -> None:
    """Looking at the character before a break first finds what the whole expression finds."""
    for expression, mark in zip(encoded_secret_redaction._WRAPS, encoded_secret_redaction._MARKS, strict=True):
        assert [*encoded_secret_redaction._find_breaks(text, expression, mark)] == [
            each.start() for each in expression.finditer(text)
        ]


def test_windows_cover_a_text_once() -> None:
    """What counts of one begins where that of the one before ended, and has margins on both sides."""
    for size in (0, 1, 4 << 20, (4 << 20) + 1, 9_999_999):
        found = list(iter_text_search_windows(size))
        assert [found[0][1], *(last for _, _, last, _ in found)] == [*(first for _, first, _, _ in found), size]
        assert all(start <= first - 200_000 or start == 0 for start, first, _, _ in found)
        assert all(end >= last + 200_000 or end == size for _, _, last, end in found)


@pytest.mark.parametrize("what", ["key", "known", "pem", "wrapped", "base64", "dealt"])
@pytest.mark.parametrize("shift", [-3000, -20, 0])
def test_a_secret_across_the_border_of_two_windows_is_taken_out(what: str, shift: int) -> None:
    """Whatever it is disguised as; what stands around it stays, and two of the same have one number."""
    redactor = Redactor()
    redactor.learn_request((("authorization", f"Bearer {KNOWN}"),), "/")
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
    changed = redactor.redact_answer_body(whole.encode(), kind).decode()
    hidden = redactor.redact_answer_body(f"{text[at - 100 : at]}\n{said}\n".encode(), kind).decode()[101:-1]
    assert hidden != said
    assert changed == f"{text[:at]}\n{hidden}\n{text[at:]}\n{hidden}"


def test_a_long_run_is_a_picture_whatever_part_of_it_is_seen() -> None:
    """No key is found in base64 of megabytes, also not where a window begins."""
    chance = random.Random(3)
    picture = "".join(chance.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=SIZE))
    body = json.dumps({"b64_json": picture[:BORDER] + "AKIA" + "ABCDEFGHIJKLMNOP" + picture[BORDER:]}).encode()
    assert Redactor().redact_answer_body(body, "application/json") is body


@pytest.mark.parametrize("text", ["", "a", r"\/", r"a\/b\u0041c\\\u0042", r"\u0041" * 3, r"\\/", "\\"])
def test_offsets_of_a_view_are_those_of_the_text(text: str) -> None:
    """One for each character of the view, and one for its end."""
    view, offset = unescape_json_text(text)
    places = [offset(at) for at in range(len(view) + 1)]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] == len(text)
    assert all(text[place] in (char, "\\") for place, char in zip(places, view, strict=False))


def target(number: int, last: str = "end") -> str:
    """Return a URL with so many members that look like credentials, all different."""
    values = [hashlib.sha256(str(each).encode()).hexdigest() for each in range(number)]
    return "/v1/x?" + "&".join(f"token={each}" for each in [*values, last])


def kept(text: str) -> str:
    """Return what is kept of a URL."""
    return Redactor().request(Request("GET", text, (), b"")).target


def test_a_single_one_is_what_it_was() -> None:
    """It is part of keys: another one would be another key."""
    assert SecretFingerprintCache().digest("invoice-1") == "02307ad9b0f2"


def test_each_value_of_many_has_its_own() -> None:
    """However many there are, in order, and whether or not some come twice."""
    assert len(set(kept(target(500)).partition("?")[2].split("&"))) == 501
    assert kept(target(500)) == kept(target(500))
    assert kept(target(500)) != kept(target(500, "End"))
    assert kept(target(3)).split("&")[:3] == kept(target(9)).split("&")[:3], "few do not depend on each other"
    assert kept(kept(target(40))) == kept(target(40)), "twice changes nothing"


def test_the_number_that_is_stretched_is_bounded() -> None:
    """Counted by what it costs: beyond the first ones there is one derivation more, however many follow."""
    encoded_secret_redaction._derive_slow_hash.cache_clear()
    kept(target(2000))
    assert encoded_secret_redaction._derive_slow_hash.cache_info().misses == encoded_secret_redaction._EACH + 1
