"""Paths and days in all their forms, and where they begin and end; and values of any text: nothing breaks, what is another thing stays."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import Any

import pytest

from llmproxy.core.bindings import (
    BadRunVariable,
    Bindings,
    Fit,
    IdPair,
    IdPairs,
    MisfitReason,
    Mismatch,
    RunVariable,
    RunVariableKind,
    VolatileField,
    build_run_variable,
    build_value_independent_key,
    match_requests_with_bindings,
    rewrite_answer,
)
from llmproxy.core.bindings.created_id_pairs import RecordedIdTextMatcher
from llmproxy.core.bindings.session_bindings import SessionBindings, read_last_user_text
from llmproxy.core.bindings.value_forms import UUID_SPELLINGS
from llmproxy.core.keys.normalize import Canonical, canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.interaction import Chunk, Request, Response
from tests.support.messages import used, user
from tests.support.narrowing import known, narrow


def _fits(recorded: str, present: str, before: list[RunVariable], now: list[RunVariable], role: str = "user") -> bool:
    one, other = ({"messages": [{"role": role, "content": text}]} for text in (recorded, present))
    return isinstance(match_requests_with_bindings(Bindings(before, now), one, other), Fit)


def _paths(**values: str) -> list[RunVariable]:
    return [RunVariable(name, value) for name, value in values.items()]


A, B = _paths(cwd="/tmp/a"), _paths(cwd="/srv/ci/b c")


@pytest.mark.parametrize("around", [
    "{}", "cd {} now", "{}/x.py", "-I{}", "see {}.", "({})", '"{}"', "`{}`", "\x1b[32m{}\x1b[0m", "\\n{}\\n", "\\u001b[1m{}",
    "file://{}/x", "PATH={}:/bin", "{}:12:3", "{}, {}", "<cwd>{}</cwd>", "a\n{}\nb", "cp {}/x {}/y", "{}...", "\\\\n{}",
])  # fmt: skip
def test_a_path_is_found_on_its_borders(around: str) -> None:
    """Behind a flag, a colour, an escaped line break; before a full stop, a colon, a separator."""
    assert _fits(around.format("/tmp/a", "/tmp/a"), around.format("/srv/ci/b c", "/srv/ci/b c"), A, B)


@pytest.mark.parametrize("around", [
    "{}b", "{}.bak", "{}-old", "{}_x", "/private{}", "x{}", "~{}", "{}~", "{}é", "{}@2", "{}%20b", "..{}",
    "$HOME{}", "é{}", "{}\u0301", "{}\u093f", "e\u0301{}",
])  # fmt: skip
def test_another_path_is_not_the_folder(around: str) -> None:
    """``/tmp/a`` is in none of ``/tmp/ab``, ``/tmp/a.bak`` and ``/private/tmp/a``."""
    assert not _fits(around.format("/tmp/a"), around.format("/srv/ci/b c"), A, B)


PROJECT, CI = _paths(cwd="/tmp/a/project"), _paths(cwd="/srv/ci")
KIM, AT_KIM = _paths(cwd="/home/kim/code/x", home="/home/kim"), _paths(cwd="/home/kim/x", home="/home/kim")
BESIDE, ANN = _paths(cwd="/srv/w", home="/users/ann"), _paths(cwd="/users/ann/w", home="/users/ann")
ROOT, UP = _paths(cwd="/app"), _paths(cwd="/tmp/a/project", home="/tmp/a/home")
APP, TODAY = _paths(cwd="/tmp/My App", home="/home/ann"), _paths(cwd="/srv/Today", home="/srv/kim")
NFC, NFD = (unicodedata.normalize(form, "/tmp/Ünï") for form in ("NFC", "NFD"))
LINK, LINKED = (
    [RunVariable("cwd", "/tmp/link", other="/private/tmp/real")],
    [RunVariable("cwd", "/srv/link", other="/data/real")],
)
COMMITS, MORE_COMMITS = _paths(git_commits="a1b2c3d One"), _paths(git_commits="d4e5f6a Two\nb7c8d9e One")
UTC = [RunVariable("date", "2026-12-01", other="2026-12-02")]
GIT, GIT_NOW = _paths(git_branch="main", git_status="M a.py\n?? b"), _paths(git_branch="dev", git_status="(clean)")
STATUS = "You are the main agent\nCurrent branch: {}\nStatus:\n{}\n\nRecent"
SYSTEM = {"role": "system"}
ORDERS = ("3f2b8c1a-9d4e-4f6a-8b7c-1d2e3f4a5b6c", "aaaabbbb-cccc-4ddd-8eee-ffff00001111")


@pytest.mark.parametrize(("before", "now", "said", "rows"), [
    pytest.param(A, B, {}, [("/tmp/a", "/tmp/a", True), ("/tmp/a/x", "/tmp/a/x", True), ("see /tmp/a", "see /tmp/a", True)],
                 id="codex ignores a faked clock, a committed file names another home"),
    pytest.param(PROJECT, CI, {}, [
        ("%2Ftmp%2Fa%2Fproject", "%2Fsrv%2Fci", True),
        ("~/.claude/projects/-tmp-a-project/x", "~/.claude/projects/-srv-ci/x", True),
        (hashlib.sha256(b"/tmp/a/project").hexdigest(), hashlib.sha256(b"/srv/ci").hexdigest(), True),
        (r"\/tmp\/a\/project", r"\/srv\/ci", True),
    ], id="percent-encoded, as a folder's name, hashed, escaped as PHP does"),
    pytest.param(KIM, ANN, {}, [("in ~/code/x/src", "in ~/w/src", True), ("in ~/code/y", "in ~/w", False)], id="a tilde"),
    pytest.param(KIM, BESIDE, {}, [("in ~/code/x/src", "in /srv/w/src", True)], id="a tilde, and whole now"),
    pytest.param(BESIDE, KIM, {}, [("in /srv/w/src", "in ~/code/x/src", True)], id="whole, and a tilde now"),
    pytest.param(UP, BESIDE, SYSTEM, [("see ../home/x", "see ../../users/ann/x", True)], id="a home beside the folder, relative to it"),
    pytest.param(UP, BESIDE, {}, [("see ../home/x", "see ../../users/ann/x", False)], id="never in a question"),
    pytest.param(_paths(cwd="/a/b", home="/a"), _paths(cwd="/a/b/c", home="/a"), SYSTEM, [("cd ..", "cd ../..", False)],
                 id="dots alone say nothing"),
    pytest.param(APP, TODAY, SYSTEM, [
        ("in /home/ann/.gemini/tmp/my-app now", "in /srv/kim/.gemini/tmp/today now", True),
        ("/home/ann/.cache/x/My App/y", "/srv/kim/.cache/x/Today/y", True),
        ("~/.cache/My App", "~/.cache/Today", True),
        ("/home/ann/.gemini/tmp/my-app", "/srv/kim/.gemini/tmp/other", False),
        ("/home/ann/.gemini/tmp/my-app2", "/srv/kim/.gemini/tmp/today2", False),
        ("/home/lee/.gemini/tmp/my-app", "/home/lee/.gemini/tmp/today", False),
        ("/home/ann/lib/My App", "/srv/kim/lib/Today", False),
        ("/home/ann/.cache/x, then /etc/My App", "/srv/kim/.cache/x, then /etc/Today", False),
    ], id="an agent's hidden folder below home is called after ours"),
    pytest.param(APP, TODAY, {}, [
        ("/home/ann/.cache/x/My App/y", "/srv/kim/.cache/x/Today/y", False), ("~/.cache/My App", "~/.cache/Today", False),
    ], id="never in a question what an agent calls a folder"),
    pytest.param(COMMITS, MORE_COMMITS, SYSTEM, [
        (around.format("git: a1b2c3d One"), around.format(f"git: d4e5f6a {word}\ngit: b7c8d9e One"), word == "Two")
        for around in ("```\n{}\n```", "git: Recent commits:\n{}") for word in ("Two", "Too")
    ], id="qwen code writes a word before each commit"),
    pytest.param(ROOT, CI, {}, [
        ("~/.claude/projects/-app/x", "~/.claude/projects/-srv-ci/x", True), ("java -app x", "java -srv-ci x", False),
    ], id="the slug of a folder at the root is no option of a program"),
    pytest.param(CI, ROOT, {}, [("~/.claude/projects/-srv-ci/x", "~/.claude/projects/-app/x", True)], id="to the root"),
    pytest.param(_paths(cwd=NFD), CI, {}, [(f"in {NFC}/x", "in /srv/ci/x", True)], id="NFC where NFD was declared"),
    pytest.param(CI, _paths(cwd=NFC), {}, [("in /srv/ci/x", f"in {NFD}/x", True)], id="NFD where NFC was declared"),
    *(
        pytest.param(before, now, {}, [(text.format(*was), text.format(*now_is), True) for text in ("{0}/x", "{1}/x", "{0} is {1}")], id=name)
        for before, now, was, now_is, name in (
            (LINK, LINKED, ("/tmp/link", "/private/tmp/real"), ("/srv/link", "/data/real"), "links on both sides"),
            (LINK, CI, ("/tmp/link", "/private/tmp/real"), ("/srv/ci", "/srv/ci"), "a link before"),
            (CI, LINK, ("/srv/ci", "/srv/ci"), ("/tmp/link", "/private/tmp/real"), "a link now"),
        )
    ),
    pytest.param(_paths(cwd="/home/kim", home="/home/kim"), BESIDE, {}, [
        ("in /home/kim with /home/kim/.rc", "in /srv/w with /users/ann/.rc", True), ("in /home/kim", "in /other", False),
    ], id="where cwd was home a place fits either"),
    pytest.param(AT_KIM, _paths(cwd="/home/kim/x", home="/users/ann"), {}, [
        ("/home/kim/x/y and /home/kim/z", "/home/kim/x/y and /users/ann/z", True), ("/home/kim/x/y", "/users/ann/x/y", False),
    ], id="a folder that stayed is no part of a home that changed"),
    pytest.param(_paths(date="2026-11-22"), UTC, SYSTEM, [("on 2026-11-22", f"on 2026-12-0{day}", True) for day in (1, 2)],
                 id="just before midnight an agent may write the day in UTC"),
    pytest.param(*(_paths(order=each) for each in ORDERS), {}, [
        *((f"close {write(ORDERS[0])}", f"close {write(ORDERS[1])}", True) for write in UUID_SPELLINGS),
        *((f"close {was} keep {kept}", f"close {now} keep {kept}", False)
          for was, now in [ORDERS] for write in UUID_SPELLINGS for kept in map(write, ORDERS)),
    ], id="a uuid in each spelling, in all places or none"),
    pytest.param(GIT, GIT_NOW, SYSTEM, [
        (STATUS.format("main", "M a.py\n?? b"), STATUS.format("dev", "(clean)"), True),
        ("You are the main agent", "You are the dev agent", False),
    ], id="a status as a whole, a branch as the rest of a line"),
    pytest.param(GIT, GIT_NOW, {}, [("Current branch: main", "Current branch: dev", False)], id="no branch in a question"),
])  # fmt: skip
def test_what_was_declared_has_many_forms(
    before: list[RunVariable], now: list[RunVariable], said: dict[str, str], rows: list[tuple[str, str, bool]]
) -> None:
    """Folders by their links, slugs and hashes, days, commits and branches: only where an agent writes them so."""
    for recorded, present, fits in rows:
        assert _fits(recorded, present, before, now, **said) is fits, (recorded, present)


@pytest.mark.parametrize(
    "around", ["../{}/x", "see ../{}", "at …/{}/x", ".../{}", "a/../{}", "..\\{}\\x", 'cd "../{}"']
)
def test_a_base_name_counts_where_only_that_folder_is_meant(around: str) -> None:
    """``../project`` in a tool's text; never in a question."""
    before, now = _paths(cwd="/tmp/a/project"), _paths(cwd="/srv/today")
    assert _fits(around.format("project"), around.format("today"), before, now, role="assistant")
    assert not _fits(around.format("project"), around.format("today"), before, now)


@pytest.mark.parametrize(
    "around", ["{}", "lib/{}/x.py:3", "./{}/x", "/etc/{}", "a../{}", "http://host/{}", "../lib/{}"]
)
def test_a_common_word_is_no_folder_of_ours_wherever_it_stands(around: str) -> None:
    """A run in ``test`` and one in ``src``: ``lib/src/x.py`` is another file than ``lib/test/x.py``."""
    before, now = _paths(cwd="/home/kim/test"), _paths(cwd="/srv/src")
    for role in ("system", "user", "assistant", "tool"):
        assert not _fits(around.format("test"), around.format("src"), before, now, role=role), role


@pytest.mark.parametrize(("before", "after"), [
    ("2026-11-22", "2027-01-03"),
    ("Nov 22, 2026", "Jan 3, 2027"),
    ("November 22, 2026", "January 3, 2027"),
    ("22 November 2026", "3 January 2027"),
    ("Sunday, November 22, 2026", "Sunday, January 3, 2027"),
    ("Sun Nov 22 2026", "Sun Jan 03 2027"),
    ("Sun Nov 22 2026", "Sun Jan 3 2027"),
    ("11/22/2026", "1/3/2027"),
    ("11/22/2026", "01/03/2027"),
    ("November 2026", "January 2027"),
])  # fmt: skip
def test_a_day_counts_only_in_what_the_agent_wrote(before: str, after: str) -> None:
    """System text and the agent's own blocks; never what a user typed, never a tool's result."""
    now = [RunVariable("date", "2027-01-03")]
    recorded = [RunVariable("date", "2026-11-22")]
    assert _fits(f"Today: {before}", f"Today: {after}", recorded, now, role="system")
    block = "<system-reminder>\nIt is {}.\n</system-reminder>\nfix it"
    assert _fits(block.format(before), block.format(after), recorded, now)
    for role in ("user", "assistant", "tool"):
        assert not _fits(f"due {before}", f"due {after}", recorded, now, role=role), role
    typed = "<user_query>\ndue {}\n</user_query>"
    assert not _fits(typed.format(before), typed.format(after), recorded, now)


@pytest.mark.parametrize(("name", "value", "nature"), [
    ("cwd", "/w", RunVariableKind.PATH),
    ("cwd", "C:\\x\\y", RunVariableKind.PATH),
    ("task.id", "7", RunVariableKind.SHORT),
    ("app", "app", RunVariableKind.SHORT),
    ("user", "root-user-1234", RunVariableKind.SHORT),
    ("order", "b7e2c1d0-1111-4a4a-8b8b-000000000001", RunVariableKind.IDENTIFIER),
    ("words", "two words with 1 digit", RunVariableKind.SHORT),
    ("date", "2026-11-22", RunVariableKind.DATE),
])  # fmt: skip
def test_the_kind_of_a_value_says_where_it_may_be_bound(name: str, value: str, nature: RunVariableKind) -> None:
    """A path, a day, an id anywhere; what is short only where it was captured."""
    assert RunVariable(name, value).kind is nature


@pytest.mark.parametrize(("name", "value"), [
    ("", "x"), ("a b", "x"), ("cwd", "/"), ("cwd", ""), ("x", None), ("x", True), ("x", "a\0b"), ("x", ["a"]),
    (7, "x"), *(("x", value) for value in ("/", "//", "\\", "\\\\", "/.", "/..", "", 1.5, "x" * 20_001)),
])  # fmt: skip
def test_what_cannot_be_a_run_variable_is_refused(name: object, value: object) -> None:
    """The root in any writing is in every path; a name is letters and digits; a value is a text or a whole number."""
    with pytest.raises(BadRunVariable):
        build_run_variable(name, value)


def _asked(question: str, *more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": question}, *more]}


def _canonical(question: str, *more: object) -> Canonical:
    where = route("/v1/chat/completions", (), {})
    request = Request("POST", "/x", (), json.dumps(_asked(question, *more)).encode())
    return canonicalize_request(request, where, Rules(), lambda _: None)


def _key(question: str) -> str:
    return build_value_independent_key(_canonical(question))


@pytest.mark.parametrize("question", [
    "Say {}", "Übersetze Kapitel {}", "第{}章を要約", "What is in docs/{}/x?", "Open https://example.com and say {}", "Tell {}, then read /a/b",
    "50 {}", "Is {} in http://a.b/c ok?",
])  # fmt: skip
def test_other_words_are_no_candidates(question: str) -> None:
    """However many a cassette holds of them, each request is compared with few."""
    assert _key(question.format("one")) != _key(question.format("two"))


VALUES = ("/tmp/a", "/srv/my work/b", "/w", "C:\\Users\\a b", "/é/ü", "/home/kim/x", "order|2026,a1", "1f3a9c0de4")
AROUND = ("see -I{} x", '"{}"', "path={},", "\x1b[32m{}", "\\n{}\\n", "file://{}/x", "a:{}:b", "1 {} 2")


@pytest.mark.parametrize("recorded", VALUES)
def test_whatever_fits_is_a_candidate(recorded: str) -> None:
    """A path in any of its forms, an id of any characters, wherever one may stand: what is bound is no difference."""
    fitted = 0
    for present in VALUES:
        before, now = ([RunVariable("x", value), RunVariable("home", home)]
                       for value, home in ((recorded, "/home/kim"), (present, "/home/lee")))  # fmt: skip
        bindings = Bindings(before, now)
        for form in (form for forms in bindings.forms_in_user_text.by_text.values() for form in forms):
            for text in form.present:
                for around in AROUND:
                    one, other = around.format(form.recorded), around.format(text)
                    if isinstance(match_requests_with_bindings(bindings, _asked(one), _asked(other)), Fit):
                        fitted += 1
                        assert _key(one) == _key(other), (one, other)
                        typed = known(read_last_user_text(_canonical(other)))
                        assert SessionBindings().may_match_last_user_text(1, _canonical(one), bindings, typed), (
                            one,
                            other,
                        )
    assert fitted > 50


def test_what_was_typed_is_looked_at_first() -> None:
    """Of a thousand questions that begin with a path all but one are none of ours, and that is told without a comparison."""
    bindings = Bindings([RunVariable("cwd", "/tmp/a")], [RunVariable("cwd", "/srv/b")])
    recorded = [_canonical(f"In {folder} say {n}") for folder in ("/tmp/a", "/data") for n in range(9)]
    for question, wanted in (("In /srv/b say 7", [7]), ("In /data say 3", [3, 12]), ("In /srv/b say 77", [])):
        typed, session = known(read_last_user_text(_canonical(question))), SessionBindings()
        assert [
            n for n, one in enumerate(recorded) if session.may_match_last_user_text(n, one, bindings, typed)
        ] == wanted


@pytest.mark.parametrize("last", [
    {"role": "tool", "tool_call_id": "c", "content": "x"},
    {"role": "assistant", "content": "x"},
    {"role": "user", "content": "<system-reminder>\nx\n</system-reminder>\ny"},
    {"role": "user", "content": [{"type": "image"}]},
    {"role": "user", "content": 7},
])  # fmt: skip
def test_where_it_is_not_clear_who_wrote_nothing_is_told(last: dict[str, object]) -> None:
    """A tool's answer may hold what stands in a question later, and an agent's block a day."""
    assert read_last_user_text(_canonical("hi", last)) is None


def exchanged(text: str, *identities: IdPair) -> str:
    """Return a text with this run's values."""
    parts, last = [], 0
    for token in RecordedIdTextMatcher(IdPairs(identities)).find_matches(text):
        parts += [text[last : token.start], token.present]
        last = token.end
    return "".join([*parts, text[last:]])


@pytest.mark.parametrize(("text", "now"), [
    ("curl http://localhost:40121/x", "curl http://localhost:39999/x"),
    ("127.0.0.1:40121", "127.0.0.1:39999"),
    ("GET [::1]:40121.", "GET [::1]:39999."),
    ("http://example.com:40121/", "http://example.com:40121/"),
    ("order 40121 of localhost:401215", "order 40121 of localhost:401215"),
])  # fmt: skip
def test_a_port_is_one_behind_the_name_of_this_machine(text: str, now: str) -> None:
    """A bare number may be anything, and another machine's port is another machine's."""
    assert exchanged(text, IdPair("port", "port", "40121", "39999")) == now


ODD = (
    "7", "app", "the", "a", "é", "日本", "it's", 'say "hi"', "$HOME", "`id`", "a b", "back\\slash", "*", "[ab]", "?", "(x)", "a|b", "{x}", "{{",
    "}", "\\1", "a\nb", "/tmp/a", "/tmp/ab", "/tmp/a b", "/tmp/[x]", "/é/ü", "/tmp/a'b", "C:\\Users\\a b", "~/x", "order-123456", "order-1234567",
    "tok$9ab;ls1", "[REDACTED]", "2026-11-22", "null", "true", "-1", "0", "007", "\ud83d", "x" * 5000, ".", "--help", "\t", "%2Ftmp", "&amp;",
)  # fmt: skip
NAMES = (
    "cwd", "tmp", "user", "date", "os_version", "git_user", "git_branch", "git_status", "task.id", "token", "a.b.c",
)  # fmt: skip
OTHERS = "17 apps, thesis, 77 seats, order-123456789, /var/tmp/abc, http://x/tmp/abc, $HOMEDIR, said, 0071, it's-a-b"
"""Holds most of these values, and means none of them."""


def answer(text: str) -> Response:
    """Return an answer that says a text, and runs it."""
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": text, "seats": 7}}
    body = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}, call]}
    return Response(200, "OK", (("content-type", "application/json"),), (Chunk(0, json.dumps(body).encode()),))


def asked(text: str) -> dict[str, Any]:
    """Return a request that holds a text wherever one may stand."""
    told = json.dumps({"user": text, "id": 7}) + f"\nAuthor: {text}\n-rw-r--r-- 1 {text} ann 9 Nov 22 10:33 n.txt"
    messages = [{"role": "system", "content": text}, user(text), *used("sh", {"cmd": text, "id": 7}, told)]
    return {"model": "m", "messages": messages}


@pytest.mark.parametrize("name", NAMES)
def test_no_value_breaks_anything_or_changes_what_is_another_thing(name: str) -> None:
    """Each value against the next ones: an equal request fits, an answer without the value stays, and a short one is changed in no text."""
    for number, value in enumerate(ODD):
        for other in (ODD[number - 1], ODD[number - 7]):
            sides = [build_run_variable(name, value)], [build_run_variable(name, other)]
            bindings = Bindings(*sides)
            text = f"in {value} and {value}/x, {OTHERS}"
            fit = match_requests_with_bindings(bindings, asked(text), asked(text))
            assert isinstance(fit, Fit), fit
            rewrite_answer(bindings, fit, answer(text))
            without = answer(OTHERS)
            assert rewrite_answer(bindings, Fit((), ()), without) is without, (value, other)
            if all(side[0].kind is RunVariableKind.SHORT for side in sides):
                same = answer(text)
                got = rewrite_answer(bindings, Fit((), ()), same)
                assert got is same or (isinstance(got, Mismatch) and got.why is MisfitReason.SHORT), (value, other)


def test_one_that_is_a_prefix_of_another_is_not_taken_for_it() -> None:
    """Folders and ids: the longer one counts where it stands, each becomes its own."""
    old = [RunVariable("cwd", "/tmp/a/b"), RunVariable("home", "/tmp/a"), RunVariable("o.id", "order-123456")]
    new = [RunVariable("cwd", "/srv/x"), RunVariable("home", "/home/k"), RunVariable("o.id", "order-999999")]
    said = answer("/tmp/a/b/c /tmp/a/bc /tmp/a order-123456 order-1234567")
    got = narrow(Response, rewrite_answer(Bindings(old, new), Fit((), ()), said))
    assert json.loads(got.body)["content"][0]["text"] == "/srv/x/c /home/k/bc /home/k order-999999 order-1234567"


def test_a_variable_that_is_the_folder_s_name_may_stand_in_a_member_and_in_a_path() -> None:
    """What a member is called by says which value it is; the folder's name in a path is no second meaning of the same text."""
    recorded, present = ([RunVariable("cwd", f"/tmp/{it}"), RunVariable("project", it)] for it in ("alpha", "beta"))
    before, now = (
        {"messages": [*used("open", {"project": it}), *used("ls", {"path": f"../{it}/x"})]} for it in ("alpha", "beta")
    )
    assert isinstance(match_requests_with_bindings(Bindings(recorded, present), before, now), Fit)


def test_a_number_of_a_volatile_field_is_no_short_id_of_another_one() -> None:
    """The field at the place itself is the more exact one; as a text it stays a miss."""
    made = VolatileField("task.id", "integer", "make_task", at="$.id")
    bindings = Bindings([], [], [made, VolatileField("task", "count", "get", at="$.task_id")])

    def calls(id_: object, told: object) -> Any:
        return {
            "messages": [
                *used("make_task", {}, json.dumps({"id": id_})),
                *used("get", {}, json.dumps({"task_id": told})),
            ]
        }

    assert isinstance(match_requests_with_bindings(bindings, calls(7, 7), calls(9, 7)), Fit)
    assert (
        narrow(Mismatch, match_requests_with_bindings(bindings, calls("7", "7"), calls("9", "7"))).why
        is MisfitReason.LEAKED
    )


@pytest.mark.parametrize("blank", [" ", "\n", "\t"])
def test_an_id_is_not_left_behind_an_escape_of_argument_text(blank: str) -> None:
    """In the JSON text a line break before it ends in a letter, which would glue it to a word."""
    old, new = "1f3a9c0de4b5a69788776655443322110ffeeddc", "2222222de4b5a69788776655443322110ffeeddc"
    call = {"id": "x", "function": {"name": "write", "arguments": json.dumps({"note": f"see{blank}1f3a9 for it"})}}
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [call]}}]}
    response = Response(200, "OK", (("content-type", "application/json"),), (Chunk(0, json.dumps(body).encode()),))
    fit = Fit((), (IdPair("commit", "hex", old, new),))
    assert narrow(Mismatch, rewrite_answer(Bindings([], []), fit, response)).why is MisfitReason.LEAKED
