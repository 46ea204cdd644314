"""Every option: its sources, their order, and what is said about a bad value."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import Exit, SettingsError
from llmproxy.protocol import Exhausted, Mode
from llmproxy.settings import (
    KeyTextReplacement,
    RequestNormalizationRules,
    Settings,
    SettingSource,
    SettingSourceKind,
    format_setting_value,
    list_options_of_settings,
    load,
)
from tests.support.doc_tables import options_table


def project(folder: Path, table: str) -> Path:
    (folder / "pyproject.toml").write_text(f"[tool.llmproxy]\n{table}\n", encoding="utf-8")
    return folder


def test_defaults_are_free_and_local() -> None:
    """Nobody spends money or listens to the network without having said so."""
    settings = Settings()
    assert (settings.mode, settings.host, settings.allow_live) == (Mode.REPLAY, "127.0.0.1", False)
    assert settings.max_request == 64 << 20


def test_each_source_beats_the_one_below_and_is_remembered(tmp_path: Path) -> None:
    """Default < file < environment < flag."""
    project(tmp_path, 'mode = "record"\nport = 1\nspeed = 1')
    loaded = load({"mode": "once"}, {"LLMPROXY_MODE": "auto", "LLMPROXY_PORT": "2"}, tmp_path)
    assert (loaded.settings.mode, loaded.settings.port, loaded.settings.speed) == (Mode.ONCE, 2, 1.0)
    file = f"{tmp_path / 'pyproject.toml'} [tool.llmproxy]"
    names = ["mode", "port", "speed", "host"]
    found = [str(loaded.sources[name]) for name in names]
    assert found == ["flag --mode", "environment LLMPROXY_PORT", file, "default"]


def test_the_file_is_searched_upward_past_files_without_our_table(tmp_path: Path) -> None:
    """A package inside a repository finds the repository's table."""
    project(tmp_path, "fail-on-miss = true")
    inner = tmp_path / "packages" / "one"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[project]\nname='one'\n", encoding="utf-8")
    assert load({}, {}, inner).settings.fail_on_miss


def test_a_relative_store_starts_where_it_was_written(tmp_path: Path) -> None:
    """The file's folder for the file, the current folder for flags and the default."""
    inner = tmp_path / "inner"
    inner.mkdir()
    assert load({}, {}, inner).settings.store == inner / "llmproxy.db"
    project(tmp_path, 'store = "tests/x.db"')
    assert load({}, {}, inner).settings.store == tmp_path / "tests" / "x.db"
    assert load({"store": "y.db"}, {}, inner).settings.store == inner / "y.db"


@pytest.mark.parametrize(
    ("alias", "mode"), [("none", "replay"), ("new_episodes", "auto"), ("all", "record"), ("once", "once")]
)
def test_the_names_of_vcr_are_understood(alias: str, mode: str, tmp_path: Path) -> None:
    """Who comes from VCR keeps the words."""
    assert load({"mode": alias}, {}, tmp_path).settings.mode == mode


@pytest.mark.parametrize(("name", "typed", "value"), [
    ("speed", "0", 0.0),
    ("speed", "2.5", 2.5),
    ("port", "0", 0),
    ("max_request", "64MiB", 64 << 20),
    ("max_request", "512 k", 512 << 10),
    ("exhausted", "CYCLE", Exhausted.CYCLE),
    ("miss_status", "503", 503),
    ("allow_host", "a.example, b.example", ("a.example", "b.example")),
    ("quiet", "yes", True),
    ("verbose", "off", False),
    ("upstream", "x=http://h:1/v1/ y=https://k", {"x": "http://h:1/v1", "y": "https://k"}),
    (
        "rate",
        "60/min, OpenAI=5/s http:api.example.com=9/h",
        {"*": "60/min", "openai": "5/s", "http:api.example.com": "9/h"},
    ),
])  # fmt: skip
def test_text_becomes_a_value(name: str, typed: str, value: object, tmp_path: Path) -> None:
    """The environment's text is read as the option's kind."""
    loaded = load({}, {f"LLMPROXY_{name.upper()}": typed}, tmp_path)
    assert getattr(loaded.settings, name) == value


@pytest.mark.parametrize(("name", "typed", "words"), [
    (
        "mode",
        "reply",
        ["'reply'", "replay, auto, record, once, passthrough", "did you mean 'replay'", "LLMPROXY_MODE"],
    ),
    ("speed", "-1", ["'-1'", "0 (at once)"]),
    ("speed", "nan", ["'nan'"]),
    ("port", "70000", ["'70000'", "65535"]),
    ("max_request", "64 potatoes", ["64MiB"]),
    ("miss_status", "500", ["400, 404, 422, 501, 503"]),
    ("exhausted", "lst", ["did you mean 'last'"]),
    ("quiet", "perhaps", ["true", "false"]),
    ("cassette", "a#b", ["without '#'"]),
    ("upstream", "openai", ["NAME=URL"]),
    ("upstream", "s=http://h", ["not an upstream's name"]),
    ("upstream", "x=ftp://h", ["http:// or https://"]),
    ("rate", "60", ["'60' is not a rate", "60/min or openai=60/min"]),
    ("rate", "openai=0/s", ["'0/s' is not a rate"]),
    ("rate", "openai=5/day", ["'5/day' is not a rate"]),
    ("rate", "=5/s", ["'' is not a provider's name"]),
    ("stub", "auth.example.com=token", ["'auth.example.com' is not HOST/PATH"]),
    ("stub", "auth.example.com/x=tokn", ["'tokn' is not one of token, empty, issuer", "did you mean 'token'"]),
    ("stub", "*.example.com/=issuer", ["'*.example.com/' is no issuer", "auth.example.com/tools"]),
    ("host", "a b", ["not a host"]),
    ("normalize", "{", ["not JSON"]),
    ("normalize", '{"ignor": []}', ["unknown name ignor", "did you mean 'ignore'"]),
    ("normalize", '{"scrub": [{"pattern": "("}]}', ["scrub.0: ", "not a regular expression"]),
    ("normalize", '{"scrub": [{"patern": "a"}]}', ["unknown name scrub.0.patern", "did you mean 'pattern'"]),
    ("normalize", '{"scrub": [{"placeholder": "a"}]}', ["scrub.0: a pattern is missing"]),
    ("normalize", '{"scrub": ["a"]}', ["scrub.0: 'a' is not a table"]),
    ("normalize", '{"ignore": "$.a"}', ["ignore: '$.a' is not a list"]),
    ("normalize", '{"packs": [1]}', ["packs.0: 1 is not a text"]),
    ("normalize", "[]", ["[] is not a table"]),
])  # fmt: skip
def test_a_bad_value_names_itself_its_source_and_what_is_allowed(
    name: str, typed: str, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as caught:
        load({}, {f"LLMPROXY_{name.upper()}": typed}, tmp_path)
    assert caught.value.exit_code == Exit.USAGE
    for word in [name, f"environment LLMPROXY_{name.upper()}", *words]:
        assert word in str(caught.value)


def test_a_password_in_an_upstream_is_not_repeated(tmp_path: Path) -> None:
    for typed in ("x=https://me:hunter2@h/v1", "x=https://h/v1?key=hunter2", "https://me:hunter2@h"):
        with pytest.raises(SettingsError) as caught:
            load({"upstream": [typed]}, {}, tmp_path)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("flags", "env", "table", "words"), [
    ({}, {"LLMPROXY_MOD": "x"}, "", ["LLMPROXY_MOD", "did you mean 'LLMPROXY_MODE'"]),
    ({}, {}, "miss-statu = 404", ["miss-statu", "pyproject.toml", "did you mean 'miss-status'"]),
    ({"spede": 1}, {}, "", ["spede", "did you mean 'speed'"]),
    ({}, {}, "miss-status = 404\nmiss_status = 400", ["stands twice"]),
    ({"quiet": True}, {"LLMPROXY_VERBOSE": "1"}, "", ["flag --quiet", "environment LLMPROXY_VERBOSE"]),
    ({}, {}, "mode = ", ["cannot read", "pyproject.toml"]),
    ({}, {}, "faults = 3", ["faults: 3 is not a text", "pyproject.toml"]),
    ({}, {}, "cassette-dir = 3", ["cassette_dir: 3 is not a path", "pyproject.toml"]),
    ({}, {}, "token = true", ["token: True is not a text", "pyproject.toml"]),
    ({}, {}, "store = {a = 3}", ["store: {'a': 3} is not a path", "pyproject.toml"]),
    ({}, {}, "max-age = []", ["max_age: '[]' is not an age", "pyproject.toml"]),
])  # fmt: skip
def test_what_is_not_understood_is_refused(
    flags: dict[str, object], env: dict[str, str], table: str, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(flags, env, project(tmp_path, table))
    for word in words:
        assert word in str(caught.value)


def test_empty_variables_and_variables_of_others_are_ignored(tmp_path: Path) -> None:
    """Compose files set variables to nothing; debugging aids are no options."""
    env = {"LLMPROXY_MODE": " ", "LLMPROXY_DEBUG": "1", "LLMPROXY_TEST_REQUIRE": "all", "MODE": "record"}
    assert load({}, env, tmp_path).settings.mode is Mode.REPLAY


def test_upstreams_of_all_sources_come_together(tmp_path: Path) -> None:
    """A flag adds to the file's upstreams, and replaces one of the same name."""
    project(tmp_path, 'upstream = {a = "http://file", b = "http://file"}')
    loaded = load({"upstream": ["b=http://flag"]}, {}, tmp_path)
    assert loaded.settings.upstream == {"a": "http://file", "b": "http://flag"}
    loaded = loaded.add_unset_upstreams(
        {name: (f"http://{name}", SettingSource(SettingSourceKind.ENVIRONMENT, name.upper())) for name in "ac"}
    )
    found = {(name, url) for name, url, _ in loaded.upstreams}
    assert found == {("a", "http://file"), ("b", "http://flag"), ("c", "http://c")}
    assert str(loaded.sources["upstream.c"]) == "environment C"


def test_rules_come_from_their_own_table(tmp_path: Path) -> None:
    """``[tool.llmproxy.normalize]`` is a nested table."""
    table = '[tool.llmproxy.normalize]\nignore = ["$.user"]\nscrub = [{pattern = "\\\\d+", placeholder = "N"}]'
    rules = load({}, {}, project(tmp_path, table)).settings.normalize
    assert rules.ignore == ("$.user",)
    assert rules.scrub == (KeyTextReplacement(pattern=r"\d+", placeholder="N"),)
    assert format_setting_value(rules) == json.dumps(
        {"ignore": ["$.user"], "scrub": [{"pattern": "\\d+", "placeholder": "N"}]}
    )
    assert (
        format_setting_value(RequestNormalizationRules(scrub=(KeyTextReplacement("a"),)))
        == '{"scrub": [{"pattern": "a"}]}'
    )
    assert format_setting_value(RequestNormalizationRules()) == ""


def test_making_settings_reads_no_environment_and_they_stay_as_they_are() -> None:
    settings: Any = Settings(port=1)
    with pytest.raises(FrozenInstanceError):
        settings.port = 2


def test_every_option_has_help_and_stands_in_the_table() -> None:
    """The table of docs/options.md is drawn from the fields."""
    table = options_table()
    assert [option.name for option in list_options_of_settings()] == [each.name for each in fields(Settings)]
    for option in list_options_of_settings():
        assert option.help
        assert f"`{option.env}`" in table
        assert option.flag in table


@pytest.mark.parametrize(("data", "said"), [
    (b"\xff\xfe", ""),
    (b"a = " + b"[" * 100_000, ""),
    (b"[tool.llmproxy]\nx = " + b"[" * 100_000, ""),
    (b"tool = 5", ": `tool` is not a table, but 5\nOptions stand below"),
    (b"[[tool]]\nllmproxy = 5", ": `tool` is not a table, but [{'llmproxy': 5}]\nOptions"),
    (b"[tool]\nllmproxy = 5", ": [tool.llmproxy] is not a table, but 5\nOptions"),
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    """Nested deep as well: the reader of TOML goes down with it."""
    (tmp_path / "pyproject.toml").write_bytes(data)
    with pytest.raises(SettingsError, match=rf"pyproject\.toml{re.escape(said)}"):
        load({}, {}, tmp_path)
