"""The command that advice prints: typed as it stands it starts the same proxy."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.misses.context import LONGEST, Again
from llmproxy.core.providers.hosts import from_environment
from llmproxy.core.traffic.advice import store_words
from llmproxy.mitm.build import again_of
from llmproxy.settings import Loaded, load, options

FLAGS: dict[str, object] = {
    "mode": "replay",
    "host": "0.0.0.0",
    "port": "9123",
    "store": "some where/x y.db",
    "cassette_dir": "cass ettes",
    "cassette": "a 'b'",
    "upstream": ["openai=https://gateway.corp/v1", "mine=http://gpu:8000/v1"],
    "speed": "2.5",
    "exhausted": "cycle",
    "faults_seed": "7",
    "forward": True,
    "token": "s3cret-token",
    "allow_host": ["*.example.com", "::1"],
    "record_host": ["api.example.com", "*"],
    "answer_to": ["proxy.lan"],
    "allow_origin": ["http://localhost:5173", "vscode-webview://*"],
    "allow_live": True,
    "read_only": ["get_*", "POST api.example.com/search*"],
    "client_cert": "my cert.pem",
    "rate": ["60/min", "openai=5/s"],
    "match_credential": True,
    "fail_on_miss": True,
    "miss_status": "501",
    "max_request": "1 MiB",
    "quiet": False,
    "strict": True,
    "verbose": True,
}
"""One value for each option, none of them the default where there is another."""


def parse(words: list[str]) -> dict[str, object]:
    """Read a command's flags back."""
    known, found = {option.flag: option for option in options()}, dict[str, object]()
    rest = iter(words)
    for word in rest:
        if word.startswith("--no-") and word not in known:
            found[known[f"--{word[5:]}"].name] = False
        elif known[word].boolean:
            found[known[word].name] = True
        elif known[word].repeat:
            found.setdefault(known[word].name, []).append(next(rest))  # type: ignore[attr-defined]
        else:
            found[known[word].name] = next(rest)
    return found


def same(one: Loaded, other: Loaded, *but: str) -> None:
    """See that settings agree in all that a command keeps."""
    for option in options():
        kept = (option.again and option.name not in but) or option.name in ("cassette", "store")
        if kept and not option.secret:
            assert getattr(one.settings, option.name) == getattr(other.settings, option.name), option.name


def test_every_option_is_known_here() -> None:
    """A new option has a value in the table above, so that it is kept or left out on purpose; a choice or a switch needs none."""
    choices = {
        each.name: True if each.boolean else each.metavar.split("|")[-1]
        for each in options()
        if "|" in each.metavar or each.boolean
    }
    for name, value in choices.items():
        FLAGS.setdefault(name, value)
    assert {option.name for option in options() if option.has_flag} <= set(FLAGS)


@pytest.mark.parametrize("name", [None, *FLAGS])
def test_a_command_typed_as_printed_starts_the_same_proxy(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option alone, and all together."""
    monkeypatch.chdir(tmp_path)
    loaded = load(FLAGS if name is None else {name: FLAGS[name]}, {}, tmp_path)
    settings = loaded.settings
    store = str(settings.store.relative_to(tmp_path))
    printed = again_of(loaded, {}).command("auto", settings.cassette, store=store)
    words = shlex.split(printed)
    assert words[:4] == ["llmproxy", "start", "--mode", "auto"]
    same(loaded, load(parse(words[2:]), {}, tmp_path))
    assert "s3cret" not in printed


@given(st.dictionaries(st.sampled_from(sorted(FLAGS)), st.none(), max_size=6))
def test_from_the_environment_too(chosen: dict[str, None]) -> None:
    """Who starts a proxy by hand may type the advice elsewhere: what LLMPROXY_ variables said is typed out."""
    env = {
        f"LLMPROXY_{name.upper()}": " ".join(value) if isinstance(value := FLAGS[name], list) else str(value).lower()
        for name in chosen
        if name not in ("cassette", "store", "cassette_dir", "max_request")
    }
    if {"LLMPROXY_QUIET", "LLMPROXY_VERBOSE"} <= set(env):
        del env["LLMPROXY_QUIET"]
    loaded = load({}, env, Path.cwd())
    words = shlex.split(again_of(loaded, env).command("auto"))
    same(loaded, load(parse(words[2:]), {}, Path.cwd()), "cassette", "store")


def test_a_gateway_that_a_variable_names_is_kept_by_that_variable() -> None:
    """Its key must never go to the public host; a password in the address is not printed, and the command then fails instead."""
    env = {"OPENAI_BASE_URL": "https://gw.corp/v1", "ANTHROPIC_BASE_URL": "https://me:hunter2@gw.corp/a b"}
    loaded = from_environment(load({}, {}, Path.cwd()), env)
    assert again_of(loaded, env).command("record") == (
        "OPENAI_BASE_URL=https://gw.corp/v1 ANTHROPIC_BASE_URL='https://USER:PASSWORD@gw.corp/a b' llmproxy start --mode record"
    )


def test_what_another_command_started_is_started_by_that_again() -> None:
    """`run` is typed in the same shell, whose variables are still set; the free port that it took is not the user's."""
    env = {
        "OPENAI_BASE_URL": "https://gw.corp/v1",
        "LLMPROXY_STARTED_BY": "llmproxy run --intercept",
        "LLMPROXY_SPEED": "1",
    }
    loaded = from_environment(load({"port": "0", "upstream": ["a=http://a/v1"]}, env, Path.cwd()), env)
    assert again_of(loaded, env).command("auto", "c") == (
        "llmproxy run --intercept --mode auto --cassette c --upstream a=http://a/v1 -- ..."
    )
    spawned = again_of(loaded, env | {"LLMPROXY_STARTED_BY": ""})
    assert spawned.command("auto") == "llmproxy start --mode auto --upstream a=http://a/v1"


def test_inside_mitmproxy_options_are_set() -> None:
    """There is no `llmproxy start` there."""
    again = Again('mitmdump -s "$(llmproxy addon)"', "", (("upstream", "a=http://a/v1"), ("forward", True)))
    assert again.command("auto", "a b") == (
        "mitmdump -s \"$(llmproxy addon)\" --set llmproxy_mode=auto --set 'llmproxy_cassette=a b'"
        " --set llmproxy_upstream=a=http://a/v1 --set llmproxy_forward=true"
    )


def test_upstreams_of_a_session_are_named() -> None:
    """They were told to the session, and the proxy does not know them."""
    command = Again().command("auto", "c", upstreams={"openai": "https://gw.corp"})
    assert command == "llmproxy start --mode auto --cassette c --upstream openai=https://gw.corp"


def test_a_command_is_whole_or_says_that_it_is_not() -> None:
    """Cut in the middle of a gateway's name it would run, with another host."""
    again = Again(options=tuple(("allow_host", f"host-{n}.example.com") for n in range(99)))
    assert len(again.command("auto")) < LONGEST
    assert "... (and the options that it runs with" in again.command("auto")
    assert store_words("llmproxy.db") == ""
    assert store_words("a b.db") == " --store 'a b.db'"
